//! The fields that an expression reads of objects, so that no others are kept.

use std::collections::BTreeSet;

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};
use serde_json::{Value, json};

use super::tree::parts;

/// The variable for one object.
pub(super) const OBJECT: &str = "self";

/// The variable for the list of all objects.
pub(super) const OBJECTS: &str = "all";

/// Paths to fields of objects. An empty one is to the whole object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(BTreeSet<Vec<String>>);

impl Fields {
    /// Returns the fields that an expression reads: at least those, where it cannot be told.
    pub(super) fn read_by(expression: &mut IdedExpr) -> Self {
        let mut found = BTreeSet::new();
        collect(expression, &[], &BTreeSet::from([OBJECT.to_owned()]), &mut found);
        Self(found)
    }

    /// Adds those of another expression.
    pub fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    /// Returns an object with these fields alone.
    pub fn kept_of(&self, object: &Value) -> Value {
        let mut kept = json!({});
        for path in &self.0 {
            keep(object, path, &mut kept);
        }
        kept
    }
}

fn keep(object: &Value, path: &[String], kept: &mut Value) {
    let (Some((first, rest)), Value::Object(fields)) = (path.split_first(), object) else {
        kept.clone_from(object);
        return;
    };
    let (Some(field), Value::Object(kept)) = (fields.get(first), kept) else { return };
    keep(field, rest, kept.entry(first.clone()).or_insert_with(|| json!({})));
}

/// Collects the fields that an expression reads of these variables, which are objects. `read` is the path to what is read of its own value.
fn collect(expression: &mut IdedExpr, read: &[String], objects: &BTreeSet<String>, found: &mut BTreeSet<Vec<String>>) {
    match &mut expression.expr {
        Expr::Ident(name) if objects.contains(variable(name)) => {
            found.insert(read.to_vec());
        }
        Expr::Ident(name) if variable(name) == OBJECTS => {
            found.insert(Vec::new());
        }
        Expr::Select(select) => collect(&mut select.operand, &within(&select.field, read), objects, found),
        Expr::Call(call) => collect_from_call(call, read, objects, found),
        Expr::Comprehension(of) => {
            let mut inside = objects.clone();
            if is_list(&mut of.iter_range, objects, found) {
                inside.insert(of.iter_var.clone());
            } else {
                collect(&mut of.iter_range, &[], objects, found);
            }
            for part in [&mut of.accu_init, &mut of.loop_cond, &mut of.loop_step, &mut of.result] {
                collect(part, &[], &inside, found);
            }
        }
        other => {
            for part in parts(other) {
                collect(part, &[], objects, found);
            }
        }
    }
}

fn collect_from_call(
    call: &mut CallExpr,
    read: &[String],
    objects: &BTreeSet<String>,
    found: &mut BTreeSet<Vec<String>>,
) {
    let CallExpr { func_name, target, args } = call;
    match (func_name.as_str(), args.as_mut_slice()) {
        (
            operators::OPT_SELECT | operators::INDEX | operators::OPT_INDEX,
            [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field)), .. }],
        ) => collect(operand, &within(field.inner(), read), objects, found),
        (operators::INDEX | operators::OPT_INDEX, [list, index]) => {
            collect(index, &[], objects, found);
            if is_list(list, objects, found) {
                found.insert(read.to_vec());
            } else {
                collect(list, &[], objects, found);
            }
        }
        (name, args) => {
            for part in target.as_deref_mut().into_iter().chain(args) {
                if name != "size" || !is_list(part, objects, found) {
                    collect(part, &[], objects, found);
                }
            }
        }
    }
}

/// Returns whether an expression is the list of objects, or what `filter` leaves of it, whose condition is collected from.
fn is_list(expression: &mut IdedExpr, objects: &BTreeSet<String>, found: &mut BTreeSet<Vec<String>>) -> bool {
    match &mut expression.expr {
        // A variable of a loop may have its name.
        Expr::Ident(name) => variable(name) == OBJECTS && !objects.contains(OBJECTS),
        Expr::Comprehension(of) => {
            let ComprehensionExpr { iter_range, iter_var, loop_step, .. } = &mut **of;
            let Some(condition) = condition_of_filter(loop_step, iter_var) else { return false };
            let filtered = is_list(iter_range, objects, found);
            if filtered {
                let mut inside = objects.clone();
                inside.insert(iter_var.clone());
                collect(condition, &[], &inside, found);
            }
            filtered
        }
        _ => false,
    }
}

/// Returns the condition of the step of a loop that adds its variable, and nothing else, to the result where the condition holds.
fn condition_of_filter<'a>(step: &'a mut IdedExpr, variable: &str) -> Option<&'a mut IdedExpr> {
    let Expr::Call(CallExpr { func_name, args, .. }) = &mut step.expr else { return None };
    let [condition, IdedExpr { expr: Expr::Call(sum), .. }, _] = args.as_mut_slice() else { return None };
    let [_, IdedExpr { expr: Expr::List(added), .. }] = sum.args.as_slice() else { return None };
    let [IdedExpr { expr: Expr::Ident(name), .. }] = added.elements.as_slice() else { return None };
    let filters = func_name.as_str() == operators::CONDITIONAL && sum.func_name == operators::ADD && name == variable;
    filters.then_some(condition)
}

/// Returns the path to what is read of a field.
fn within(field: &str, read: &[String]) -> Vec<String> {
    [field.to_owned()].into_iter().chain(read.iter().cloned()).collect()
}

/// Returns the variable of a name: a dot before it means the outermost one.
fn variable(name: &str) -> &str {
    name.strip_prefix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Predicate;
    use super::*;

    #[test]
    fn only_fields_that_the_expression_reads_are_kept() {
        let object = json!({
            "metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"replicas": 3, "template": {"big": [1, 2]}},
            "status": {"phase": "Ready", "conditions": [{"type": "Ready", "status": "True"}], "other": 1}, "data": null,
        });
        for (expression, kept) in [
            ("self.status.phase == 'Ready'", json!({"status": {"phase": "Ready"}})),
            (
                "has(self.status.phase) && self.spec.replicas == 3",
                json!({"status": {"phase": "Ready"}, "spec": {"replicas": 3}}),
            ),
            ("!has(self.status.absent)", json!({"status": {}})),
            ("self.data.x == 1", json!({"data": null})),
            (
                "self.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
                json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            ),
            ("all.all(d, d.status.phase == 'Ready')", json!({"status": {"phase": "Ready"}})),
            ("size(all) > 0 && all.size() < 3", json!({})),
            ("self.metadata.labels['x'] == 'y'", json!({"metadata": {"labels": {"x": "y"}}})),
            ("self.metadata == self.metadata && self.metadata.name == 'a'", json!({"metadata": object["metadata"]})),
            ("size(self) > 0", object.clone()),
            ("all.exists(all, all.exists(name, true))", object.clone()),
            ("all.exists(all, size(all) > 3)", object.clone()),
            ("self.?status.?phase.orValue('') == 'Ready'", json!({"status": {"phase": "Ready"}})),
            ("self.?status.?absent.orValue('') == ''", json!({"status": {}})),
            ("self['status'][?'phase'].orValue('') == 'Ready'", json!({"status": {"phase": "Ready"}})),
            ("self.metadata.?labels.?x == self.?absent", json!({"metadata": {"labels": {"x": "y"}}})),
            ("self.?status.optMap(s, s.phase == 'Ready').orValue(true)", json!({"status": object["status"]})),
            (
                "self.status.conditions[0].type == 'Ready'",
                json!({"status": {"conditions": object["status"]["conditions"]}}),
            ),
            (
                "all[0].status.phase == all[?1].?metadata.?name.orValue('')",
                json!({"status": {"phase": "Ready"}, "metadata": {"name": "a"}}),
            ),
            (
                "all.filter(v, v.spec.replicas == 3).all(w, w.status.phase == 'Ready')",
                json!({"spec": {"replicas": 3}, "status": {"phase": "Ready"}}),
            ),
            (
                "size(all.filter(v, has(v.metadata)).filter(w, w.status.other == 1)) == size(all.filter(v, v.spec.replicas > 3))",
                json!({"metadata": object["metadata"], "status": {"other": 1}, "spec": {"replicas": 3}}),
            ),
            (
                "all.map(v, v.spec.replicas == 3, v)[0].status.phase == 'Ready'",
                json!({"spec": {"replicas": 3}, "status": {"phase": "Ready"}}),
            ),
            ("all.filter(v, v.spec.replicas == 3) == all.filter(v, v.status.phase == 'Ready')", object.clone()),
            ("all[0] == all[1]", object.clone()),
            ("all.exists(all, all.filter(v, v.x)[0].y)", object.clone()),
            ("self[node].phase == 'Ready'", object.clone()),
        ] {
            let predicate = Predicate::of(expression).unwrap();
            assert_eq!(predicate.fields.kept_of(&object), kept, "{expression}");
            let result = |object| predicate.test(&BTreeMap::from([("a".to_owned(), object)]), "", "").ok();
            assert_eq!(result(kept), result(object.clone()), "{expression}: as of the whole object");
        }
    }
}
