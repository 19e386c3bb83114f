//! The fields that an expression reads of objects, so that no others are kept.

use std::collections::BTreeSet;

use cel::common::ast::{Expr, IdedExpr};
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
        collect(expression, &BTreeSet::from([OBJECT.to_owned()]), &mut found);
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

/// Collects the paths from these variables, which are objects.
fn collect(expression: &mut IdedExpr, objects: &BTreeSet<String>, found: &mut BTreeSet<Vec<String>>) {
    if let Some((variable, path)) = path(expression)
        && objects.contains(variable)
    {
        found.insert(path);
        return;
    }
    match &mut expression.expr {
        Expr::Ident(name) if variable(name) == OBJECTS => {
            found.insert(Vec::new());
        }
        Expr::Call(call) if call.func_name == "size" => {
            let parts = call.target.as_deref_mut().into_iter().chain(&mut call.args);
            for part in parts.filter(|part| !is_all(part, objects)) {
                collect(part, objects, found);
            }
        }
        Expr::Comprehension(of) if is_all(&of.iter_range, objects) => {
            let mut objects = objects.clone();
            objects.insert(of.iter_var.clone());
            for part in [&mut of.accu_init, &mut of.loop_cond, &mut of.loop_step, &mut of.result] {
                collect(part, &objects, found);
            }
        }
        other => {
            for part in parts(other) {
                collect(part, objects, found);
            }
        }
    }
}

/// Returns whether it is the list of objects, and no variable of a loop that has its name.
fn is_all(expression: &IdedExpr, objects: &BTreeSet<String>) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if variable(name) == OBJECTS) && !objects.contains(OBJECTS)
}

/// Returns the variable of a name: a dot before it means the outermost one.
fn variable(name: &str) -> &str {
    name.strip_prefix('.').unwrap_or(name)
}

/// Returns the variable and the fields of `variable.field.field`.
fn path(expression: &IdedExpr) -> Option<(&str, Vec<String>)> {
    let (mut fields, mut at) = (Vec::new(), expression);
    while let Expr::Select(select) = &at.expr {
        fields.push(select.field.clone());
        at = &select.operand;
    }
    let Expr::Ident(name) = &at.expr else { return None };
    fields.reverse();
    Some((variable(name), fields))
}

#[cfg(test)]
mod tests {
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
            ("all[0].status.phase == 'Ready'", object.clone()),
            ("self['status'].phase == 'Ready'", object.clone()),
        ] {
            let predicate = Predicate::of(expression).unwrap();
            assert_eq!(predicate.fields.kept_of(&object), kept, "{expression}");
        }
    }
}
