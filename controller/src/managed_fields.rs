//! Ownership of fields that an object's `metadata.managedFields` records, moved from writes by Update to writes by
//! Apply.
//!
//! The rule is that of client-go's `csaupgrade`, restricted to paths: only what the caller names is moved, and never
//! metadata. What a shared manager name (`unknown`) owns besides belongs to other clients, and an owner reference that
//! the next apply does not name would be removed by it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use serde_json::{Map, Value, json};

/// A path to fields as in a managed-fields set, such as `["f:spec", "f:unschedulable"]`. It stands for everything below
/// it too.
pub type FieldPath<'a> = &'a [&'a str];

/// A set of fields: a tree of path elements.
type FieldSet = Map<String, Value>;

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";
const FORMAT: &str = "FieldsV1";
const METADATA: &str = "f:metadata";

/// The reason why ownership cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// An entry that has to be read cannot be read.
    #[error("the managedFields entry of {manager} ({operation}) cannot be read: {problem}")]
    Undecodable { manager: String, operation: String, problem: String },
    /// The path is one of metadata.
    #[error("the path {0} is metadata, which is not moved")]
    Metadata(String),
}

/// Writers by Update whose fields are moved, and the writer by Apply that receives them.
#[derive(Clone, Copy, Debug)]
pub struct Upgrade<'a> {
    /// Managers whose Update entries lose the paths, in the order in which they are considered.
    pub from: &'a [&'a str],
    /// Manager whose Apply entry gets them.
    pub to: &'a str,
    /// Subresource of both; `None` for the main resource.
    pub subresource: Option<&'a str>,
    /// Paths that may move.
    pub paths: &'a [FieldPath<'a>],
}

impl Upgrade<'_> {
    /// Returns the managed fields after the upgrade; `None` if nothing changes.
    ///
    /// For each old manager: the paths of its first Update entry of the target's API version are added to the target,
    /// the new manager's Apply entry. Without a target, one is made of the paths of the first Update entry that has any.
    /// All Update entries of the old manager lose the paths, those of another API version too, and an entry with nothing
    /// left is removed.
    ///
    /// # Errors
    /// If a set that takes part cannot be read, or a path is metadata.
    pub fn apply(&self, entries: &[ManagedFieldsEntry]) -> Result<Option<Vec<ManagedFieldsEntry>>, UpgradeError> {
        if let Some(path) = self.paths.iter().find(|path| path.first().is_none_or(|first| *first == METADATA)) {
            return Err(UpgradeError::Metadata(path.join(".")));
        }
        let mut all = entries.to_vec();
        for from in self.from {
            self.move_from(from, &mut all)?;
        }
        Ok((all != entries).then_some(all))
    }

    fn move_from(&self, from: &str, all: &mut Vec<ManagedFieldsEntry>) -> Result<(), UpgradeError> {
        let is = |entry: &ManagedFieldsEntry, manager: &str, operation: &str| {
            entry.manager.as_deref() == Some(manager)
                && entry.operation.as_deref() == Some(operation)
                && entry.subresource.as_deref().unwrap_or_default() == self.subresource.unwrap_or_default()
        };
        // For each entry of the old manager, its place, the paths that move, and what is left of it.
        let mut parts = Vec::new();
        for (place, entry) in all.iter().enumerate().filter(|(_, entry)| is(entry, from, UPDATE)) {
            let mut left = fields_of(entry)?;
            let moved = self.take(&mut left);
            parts.push((place, moved, left));
        }
        let Some(first) = parts.iter().find(|(_, moved, _)| !moved.is_empty()) else { return Ok(()) };
        let target = all.iter().position(|entry| is(entry, self.to, APPLY));
        let (mut target, mut owned) = match target {
            Some(place) => (all[place].clone(), fields_of(&all[place])?),
            None => {
                let made = ManagedFieldsEntry {
                    manager: Some(self.to.to_owned()),
                    operation: Some(APPLY.to_owned()),
                    ..all[first.0].clone()
                };
                (made, FieldSet::new())
            }
        };
        let same_version = |place: usize| all[place].api_version == target.api_version;
        if let Some((_, moved, _)) = parts.iter().find(|(place, moved, _)| same_version(*place) && !moved.is_empty()) {
            merge(&mut owned, moved);
        }
        target.fields_v1 = Some(FieldsV1(Value::Object(owned)));
        for (place, _, left) in parts.into_iter().filter(|(_, moved, _)| !moved.is_empty()) {
            all[place].fields_v1 = Some(FieldsV1(Value::Object(left)));
        }
        all.retain(|entry| !(is(entry, from, UPDATE) && is_empty(entry)));
        match all.iter_mut().find(|entry| is(entry, self.to, APPLY)) {
            Some(entry) => *entry = target,
            // As the API server sorts them: applies come first.
            None => all.insert(0, target),
        }
        Ok(())
    }

    /// Removes the paths from a set and returns them.
    fn take(&self, set: &mut FieldSet) -> FieldSet {
        let mut taken = FieldSet::new();
        for path in self.paths {
            if let Some(found) = remove(set, path) {
                let found = path.iter().rev().fold(found, |below, element| json!({(*element): below}));
                if let Value::Object(found) = found {
                    merge(&mut taken, &found);
                }
            }
        }
        taken
    }
}

/// Returns the entry of a manager that has applied these fields.
pub fn applied_entry(manager: &str, api_version: &str, fields: Value, time: jiff::Timestamp) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        manager: Some(manager.to_owned()),
        operation: Some(APPLY.to_owned()),
        api_version: Some(api_version.to_owned()),
        time: Some(Time(time)),
        fields_type: Some(FORMAT.to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        subresource: None,
    }
}

/// Returns true if the manager has an Apply entry of the main resource.
pub fn has_applied(entries: &[ManagedFieldsEntry], manager: &str) -> bool {
    entries.iter().any(|entry| {
        entry.manager.as_deref() == Some(manager)
            && entry.operation.as_deref() == Some(APPLY)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    })
}

fn is_empty(entry: &ManagedFieldsEntry) -> bool {
    entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object()).is_none_or(Map::is_empty)
}

/// Removes what is at a path, and what is left empty above it.
fn remove(set: &mut FieldSet, path: FieldPath<'_>) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    if rest.is_empty() {
        return set.remove(*first);
    }
    let below = set.get_mut(*first)?.as_object_mut()?;
    let found = remove(below, rest)?;
    if below.is_empty() {
        set.remove(*first);
    }
    Some(found)
}

/// Adds the members of a set to another one.
fn merge(into: &mut FieldSet, other: &FieldSet) {
    for (element, below) in other {
        match (into.entry(element).or_insert_with(|| json!({})), below) {
            (Value::Object(into), Value::Object(below)) => merge(into, below),
            (into, below) => *into = below.clone(),
        }
    }
}

/// Reads an entry's set, all of whose elements have to be known: a set that is written in part would lose ownership.
fn fields_of(entry: &ManagedFieldsEntry) -> Result<FieldSet, UpgradeError> {
    let error = |problem: String| UpgradeError::Undecodable {
        manager: entry.manager.clone().unwrap_or_default(),
        operation: entry.operation.clone().unwrap_or_default(),
        problem,
    };
    if entry.fields_type.as_deref() != Some(FORMAT) {
        return Err(error(format!("its fieldsType is {}", entry.fields_type.as_deref().unwrap_or("absent"))));
    }
    match entry.fields_v1.as_ref().map(|fields| &fields.0) {
        None => Ok(FieldSet::new()),
        Some(Value::Object(fields)) => check(fields).map(|()| fields.clone()).map_err(error),
        Some(_) => Err(error("fieldsV1 is no object".to_owned())),
    }
}

fn check(set: &FieldSet) -> Result<(), String> {
    for (element, below) in set {
        let known = match element.split_once(':') {
            None => element == ".",
            Some(("f", name)) => !name.is_empty(),
            Some(("k", key)) => serde_json::from_str::<Map<String, Value>>(key).is_ok(),
            Some(("v", value)) => serde_json::from_str::<Value>(value).is_ok(),
            Some(("i", index)) => index.parse::<u64>().is_ok(),
            Some(_) => false,
        };
        if !known {
            return Err(format!("{element} is no path element"));
        }
        check(below.as_object().ok_or_else(|| format!("the fields of {element} are no object"))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "unknown";
    const NEW: &str = "brupop-controller";
    const SPEC: FieldPath<'_> = &["f:spec"];

    fn entry(manager: &str, operation: &str, version: &str, fields: &Value) -> ManagedFieldsEntry {
        serde_json::from_value(json!({
            "manager": manager, "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z", "fieldsV1": fields,
        }))
        .unwrap()
    }

    fn of_subresource(subresource: &str, entry: ManagedFieldsEntry) -> ManagedFieldsEntry {
        ManagedFieldsEntry { subresource: Some(subresource.to_owned()), ..entry }
    }

    fn spec(names: &[&str]) -> Value {
        let fields: FieldSet = names.iter().map(|name| (format!("f:{name}"), json!({}))).collect();
        json!({"f:spec": fields})
    }

    const WHOLE: Upgrade<'_> = Upgrade { from: &[OLD], to: NEW, subresource: None, paths: &[SPEC] };

    #[test]
    fn ownership_moves_from_update_to_apply() {
        let update = |fields: &[&str]| entry(OLD, UPDATE, "v1", &spec(fields));
        let apply = |fields: &[&str]| entry(NEW, APPLY, "v1", &spec(fields));
        let other = entry("kubectl", UPDATE, "v1", &spec(&["z"]));
        for (sentence, before, after) in [
            ("without a target one is made", vec![update(&["a"])], Some(vec![apply(&["a"])])),
            ("a target with the same fields", vec![apply(&["a"]), update(&["a"])], Some(vec![apply(&["a"])])),
            ("a target with fewer fields", vec![apply(&["a"]), update(&["a", "b"])], Some(vec![apply(&["a", "b"])])),
            ("a target with more fields", vec![apply(&["a", "b"]), update(&["a"])], Some(vec![apply(&["a", "b"])])),
            (
                "other managers keep theirs",
                vec![other.clone(), update(&["a"])],
                Some(vec![apply(&["a"]), other.clone()]),
            ),
            ("no entry of the old manager", vec![apply(&["a"]), other.clone()], None),
            ("no entries", vec![], None),
            (
                "no entry of the target's version: the fields have no owner any more",
                vec![apply(&["a"]), entry(OLD, UPDATE, "v2", &spec(&["b"]))],
                Some(vec![apply(&["a"])]),
            ),
            (
                "one of two entries has the target's version",
                vec![apply(&["a"]), entry(OLD, UPDATE, "v2", &spec(&["b"])), update(&["c"])],
                Some(vec![apply(&["a", "c"])]),
            ),
            ("an entry of another subresource is not concerned", vec![of_subresource("status", update(&["a"]))], None),
            ("an entry by Apply of the old name is not concerned", vec![entry(OLD, APPLY, "v1", &spec(&["a"]))], None),
        ] {
            assert_eq!(WHOLE.apply(&before), Ok(after), "{sentence}");
        }
    }

    #[test]
    fn several_old_managers_move_into_one_target() {
        let upgrade = Upgrade { from: &[OLD, "older", "oldest"], ..WHOLE };
        let update = |manager: &str, field: &str| entry(manager, UPDATE, "v1", &spec(&[field]));
        let all = [update("older", "b"), update(OLD, "a"), update("oldest", "c")];
        let expected = vec![entry(NEW, APPLY, "v1", &spec(&["a", "b", "c"]))];
        assert_eq!(upgrade.apply(&all), Ok(Some(expected.clone())), "into a new one");
        let with_target = [vec![entry(NEW, APPLY, "v1", &spec(&["a"]))], all.to_vec()].concat();
        assert_eq!(upgrade.apply(&with_target), Ok(Some(expected)), "into an existing one");
    }

    #[test]
    fn subresource_is_upgraded_for_itself() {
        let upgrade = Upgrade { subresource: Some("status"), paths: &[&["f:status"]], ..WHOLE };
        let status = |manager: &str, operation: &str| {
            of_subresource("status", entry(manager, operation, "v1", &json!({"f:status": {"f:record": {}}})))
        };
        let main = entry(OLD, UPDATE, "v1", &spec(&["a"]));
        let expected = vec![status(NEW, APPLY), main.clone()];
        assert_eq!(upgrade.apply(&[main, status(OLD, UPDATE)]), Ok(Some(expected)));
    }

    #[test]
    fn only_named_paths_move_and_metadata_never() {
        let fields = json!({
            "f:metadata": {"f:labels": {"f:of-another-tool": {}}, "f:ownerReferences": {}},
            "f:spec": {"f:unschedulable": {}, "f:taints": {".": {}, "k:{\"key\":\"a\"}": {".": {}, "f:key": {}}}},
        });
        let upgrade = Upgrade { paths: &[&["f:spec", "f:unschedulable"]], ..WHOLE };
        let mut left = fields.clone();
        left["f:spec"].as_object_mut().unwrap().remove("f:unschedulable");
        let expected = vec![entry(NEW, APPLY, "v1", &spec(&["unschedulable"])), entry(OLD, UPDATE, "v1", &left)];
        assert_eq!(upgrade.apply(&[entry(OLD, UPDATE, "v1", &fields)]), Ok(Some(expected)));

        let upgrade = Upgrade { paths: &[&["f:metadata", "f:labels"]], ..WHOLE };
        let refused = Err(UpgradeError::Metadata("f:metadata.f:labels".to_owned()));
        assert_eq!(upgrade.apply(&[entry(OLD, UPDATE, "v1", &fields)]), refused);
        assert!(Upgrade { paths: &[&[]], ..WHOLE }.apply(&[]).is_err(), "the root holds metadata");
    }

    #[test]
    fn undecodable_set_is_an_error_and_changes_nothing() {
        for (fields, problem) in [
            (json!({"spec": {}}), "spec is no path element"),
            (json!({"x:spec": {}}), "x:spec is no path element"),
            (json!({"f:spec": 1}), "the fields of f:spec are no object"),
            (json!({"f:spec": {"k:{": {}}}), "k:{ is no path element"),
            (json!({"f:spec": {"v:x": {}}}), "v:x is no path element"),
            (json!({"f:spec": {"i:-1": {}}}), "i:-1 is no path element"),
            (json!([]), "fieldsV1 is no object"),
        ] {
            let error = WHOLE.apply(&[entry(OLD, UPDATE, "v1", &fields)]).unwrap_err();
            assert!(error.to_string().ends_with(problem), "{error}");
            // Entries that do not take part are not read.
            assert_eq!(WHOLE.apply(&[entry("kubectl", UPDATE, "v1", &fields)]), Ok(None));
        }
        let other_format =
            ManagedFieldsEntry { fields_type: Some("FieldsV2".to_owned()), ..entry(OLD, UPDATE, "v1", &spec(&["a"])) };
        assert!(WHOLE.apply(&[other_format]).unwrap_err().to_string().ends_with("its fieldsType is FieldsV2"));
    }

    #[test]
    fn entry_of_migrated_object_counts_as_applied() {
        let made = applied_entry(NEW, "v1", spec(&["a"]), "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(made, entry(NEW, APPLY, "v1", &spec(&["a"])));
        assert!(has_applied(std::slice::from_ref(&made), NEW));
        assert!(!has_applied(&[of_subresource("status", made.clone())], NEW));
        assert!(!has_applied(&[entry(NEW, UPDATE, "v1", &spec(&["a"]))], NEW) && !has_applied(&[made], OLD));
    }
}
