//! The migration of one shadow of the earlier operator, in place: a function from the object to its next write.
//!
//! ```text
//! reset ──► own ──► carry ──► finish
//! ```
//!
//! Each write is decided on the object alone, so a migration that was interrupted anywhere continues. The first one
//! erases the old status: from then until the end an annotation keeps it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use models::earlier::{EarlierShadow, MOST_FAILURES};
use models::names::{CONTROLLER_MANAGER, GROUP, MIGRATED_FROM_ANNOTATION};
use models::plain::cut;
use models::shadow::{BottlerocketShadow, Record};
use planner::policy::Policy;
use serde_json::{Map, Value, json};

/// Version in which a migrated shadow is written.
pub const VERSION: &str = "v3";

/// Longest text of the earlier operator that the annotation keeps: its fields have no bounds.
const LONGEST_TEXT: usize = 256;

/// Manager under which the API server records what was there before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The next write of an object's migration.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// The object is migrated.
    Nothing,
    /// It is the earlier operator's: read it in its version, and send [`reset`].
    Reset,
    /// JSON patch of its managed fields.
    Own(Value),
    /// Apply of the controller status, with the record that is carried over.
    Carry(Value),
    /// Merge patch that removes the annotation.
    Finish(Value),
}

/// The reason why an object cannot be migrated.
#[derive(Debug, thiserror::Error)]
#[error("it cannot be read: {0}")]
pub struct RewriteError(#[from] serde_json::Error);

/// Returns true for an object that is not migrated, or not completely. It is read at [`VERSION`]: only there an attempt
/// is shown.
pub fn is_due(object: &Value) -> bool {
    !has_attempt(object) || kept_in(object).is_some()
}

fn has_attempt(object: &Value) -> bool {
    object["spec"]["attempt"].is_i64()
}

fn kept_in(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][MIGRATED_FROM_ANNOTATION].as_str()
}

/// Returns the next write, by the object as it is read at [`VERSION`].
///
/// # Errors
/// If it is not readable as an object that the operator has written.
pub fn next(object: &Value, policy: &Policy, now: Timestamp) -> Result<Next, RewriteError> {
    if !has_attempt(object) {
        return Ok(Next::Reset);
    }
    let Some(kept) = kept_in(object) else { return Ok(Next::Nothing) };
    if let Some(patch) = own(object, now) {
        return Ok(Next::Own(patch));
    }
    // An annotation that a user has changed keeps nothing.
    let earlier = EarlierShadow::read(&serde_json::from_str(kept).unwrap_or_default());
    let shadow: BottlerocketShadow = serde_json::from_value(object.clone())?;
    if let Some(apply) = carry(&shadow, &earlier, policy, now) {
        return Ok(Next::Carry(apply));
    }
    let annotations = json!({MIGRATED_FROM_ANNOTATION: null});
    Ok(Next::Finish(json!({"metadata": guarded(object, &[("annotations", annotations)])})))
}

/// Returns the merge patch that makes an idle shadow of one that is read at a version of the earlier operator. It is one
/// write, since it erases the old status.
///
/// `managedFields: [{}]` removes all ownership: with an entry of an earlier version left, every apply would fail.
pub fn reset(earlier: &Value) -> Value {
    let annotations = json!({MIGRATED_FROM_ANNOTATION: content(earlier).to_string()});
    json!({
        "metadata": guarded(earlier, &[("managedFields", json!([{}])), ("annotations", annotations)]),
        "spec": {"state": "Idle", "version": null, "attempt": 0},
    })
}

/// Returns the merge patch that changes nothing, which stores the object in the storage version.
pub fn unchanged(object: &Value) -> Value {
    json!({"metadata": guarded(object, &[])})
}

fn guarded(object: &Value, more: &[(&str, Value)]) -> Value {
    let meta = &object["metadata"];
    let mut metadata = json!({"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]});
    for (key, value) in more {
        metadata[*key] = value.clone();
    }
    metadata
}

/// Returns the fields of the earlier operator, as it has them.
fn content(earlier: &Value) -> Value {
    let fields = |of: &str, names: &[&str]| -> Value {
        let all = names.iter().filter_map(|name| {
            let value = match &earlier[of][*name] {
                Value::String(text) => cut(text, LONGEST_TEXT).into(),
                Value::Number(number) => number.clone().into(),
                _ => return None,
            };
            Some(((*name).to_owned(), value))
        });
        Value::Object(all.collect::<Map<_, _>>())
    };
    json!({
        "spec": fields("spec", &["state", "state_transition_timestamp", "version"]),
        "status": fields("status", &[
            "current_state", "current_version", "target_version", "crash_count", "state_transition_failure_timestamp",
        ]),
    })
}

/// Returns the JSON patch after which the controller has applied the desired state, so that its next apply can remove
/// fields of it.
fn own(object: &Value, now: Timestamp) -> Option<Value> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let all = owned(entries.clone(), now);
    // A patch of an outdated object is a conflict by its version; a `test` operation would make it an invalid request.
    (all != entries).then(|| {
        json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/metadata/managedFields", "value": all},
        ])
    })
}

/// Moves ownership of the desired state from writes by Update to the controller's Apply entry, as client-go's `csaupgrade` does.
/// Metadata never moves: an owner reference that the next apply does not name would be removed by it.
fn owned(mut entries: Vec<Value>, now: Timestamp) -> Vec<Value> {
    let is = |entry: &Value, manager: &str, operation: &str| {
        entry["manager"] == manager
            && entry["operation"] == operation
            && entry["subresource"].as_str().is_none_or(str::is_empty)
    };
    let mut spec = json!({"f:attempt": {}, "f:state": {}});
    entries.retain_mut(|entry| {
        if ![BEFORE_FIRST_APPLY, CONTROLLER_MANAGER].iter().any(|manager| is(entry, manager, "Update")) {
            return true;
        }
        let Some(fields) = entry.get_mut("fieldsV1").and_then(Value::as_object_mut) else { return true };
        merge(&mut spec, fields.remove("f:spec").unwrap_or_default());
        !fields.is_empty()
    });
    let applied = entries.iter().position(|entry| is(entry, CONTROLLER_MANAGER, "Apply")).unwrap_or_else(|| {
        // As the API server sorts them: applies come first.
        entries.insert(
            0,
            json!({
                "manager": CONTROLLER_MANAGER, "operation": "Apply", "apiVersion": format!("{GROUP}/{VERSION}"),
                "time": Time(now), "fieldsType": "FieldsV1", "fieldsV1": {},
            }),
        );
        0
    });
    merge(&mut entries[applied]["fieldsV1"], json!({"f:spec": spec}));
    entries
}

/// Adds the members of a set of fields to another one.
fn merge(into: &mut Value, other: Value) {
    let (Value::Object(into), Value::Object(other)) = (into, other) else { return };
    for (element, below) in other {
        merge(into.entry(element).or_insert_with(|| json!({})), below);
    }
}

/// Returns the apply of the controller status with the failures that are carried over; `None` if they are there already.
/// Everything that the controller has written since the reset stays.
fn carry(shadow: &BottlerocketShadow, earlier: &EarlierShadow, policy: &Policy, now: Timestamp) -> Option<Value> {
    let mut status = shadow.status.clone().unwrap_or_default().controller_status();
    let old = status.report.record.clone().unwrap_or_default();
    let failures = i64::from(earlier.crash_count.min(MOST_FAILURES));
    let not_before = policy.continued_back_off(failures, earlier.failed_at, now);
    let record =
        Record { failures: old.failures.max(failures), not_before: old.not_before.max(not_before), ..old.clone() };
    if record == old {
        return None;
    }
    status.report.record = Some(record);
    let meta = &shadow.metadata;
    Some(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "BottlerocketShadow",
        "metadata": {"name": meta.name, "namespace": meta.namespace, "resourceVersion": meta.resource_version},
        "status": status,
    }))
}

#[cfg(test)]
mod tests;
