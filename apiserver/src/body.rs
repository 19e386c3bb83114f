//! Contents of an agent's report: the agent status and nothing else.
//!
//! Unknown fields and condition types are dropped and counted, so that an agent of the next version can report to this
//! one. Fields that are not the agent's are refused and not dropped: a client that sends them is no agent.

use std::collections::HashSet;

use models::shadow::{is_agent_condition, is_controller_condition};
use models::wire::AgentStatus;
use serde_json::{Map, Value};

/// Maximum size of a report's body, in bytes. A full one is a few kilobytes.
pub(crate) const LIMIT: usize = 64 * 1024;

/// Fields of an object around a status. A report is the status itself; taken for unknown fields these would leave an
/// empty report, which would clear all that the agent had reported.
const WRAPPER: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];

/// The controller status, except its conditions.
const CONTROLLER_FIELDS: &[&str] = &["progress", "drain", "record", "results"];

/// A report as it may be applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    /// The report as this version understands it.
    pub(crate) status: AgentStatus,
    /// The report as the agent wrote it, without unknown fields. This is applied, so that a new value in a known field
    /// arrives as it was sent and is validated by the API server's schema.
    pub(crate) applied: Value,
    /// True if `applied` has a value that `status` cannot express.
    pub(crate) lossy: bool,
    /// Number of dropped fields.
    pub(crate) dropped: u64,
}

/// A body that is no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the body is not a JSON object")]
    NotAnObject,
    #[error("the body has the field {0}: send the agent status itself")]
    Wrapper(&'static str),
    #[error("the field {0} is the controller's")]
    ControllerField(&'static str),
    #[error("a condition of that type is the controller's")]
    ControllerCondition,
    #[error("two conditions have the same type")]
    TwoConditions,
    #[error("a field has a value of the wrong kind")]
    Shape(#[source] serde_json::Error),
}

/// Reads a report.
pub(crate) fn parse(bytes: &[u8]) -> Result<Report, BodyError> {
    let mut raw: Value = serde_json::from_slice(bytes).map_err(BodyError::NotJson)?;
    let Value::Object(map) = &mut raw else {
        return Err(BodyError::NotAnObject);
    };
    let has = |names: &[&'static str]| names.iter().find(|name| map.contains_key(**name)).copied();
    if let Some(name) = has(WRAPPER) {
        return Err(BodyError::Wrapper(name));
    }
    if let Some(name) = has(CONTROLLER_FIELDS) {
        return Err(BodyError::ControllerField(name));
    }
    let mut filter = Filter::default();
    if let Some(Value::Array(conditions)) = map.get_mut("conditions") {
        let type_of = |condition: &Value| condition.get("type").and_then(Value::as_str).map(str::to_owned);
        if conditions.iter().filter_map(type_of).any(|type_| is_controller_condition(&type_)) {
            return Err(BodyError::ControllerCondition);
        }
        let before = conditions.len();
        conditions.retain(|condition| type_of(condition).is_none_or(|type_| is_agent_condition(&type_)));
        filter.dropped += (before - conditions.len()) as u64;
    }
    let status: AgentStatus = serde_json::from_value(raw.clone()).map_err(BodyError::Shape)?;
    let mut types = HashSet::new();
    if !status.conditions.iter().all(|condition| types.insert(condition.type_.as_str())) {
        return Err(BodyError::TwoConditions);
    }
    let known = serde_json::to_value(&status).map_err(BodyError::Shape)?;
    let applied = filter.keep(raw, &known);
    Ok(Report { status, applied, lossy: filter.lossy, dropped: filter.dropped })
}

#[derive(Default)]
struct Filter {
    dropped: u64,
    lossy: bool,
}

impl Filter {
    /// Keeps the fields of `raw` that are also in `known`, the same value after reading and writing it.
    fn keep(&mut self, raw: Value, known: &Value) -> Value {
        match (raw, known) {
            (Value::Object(raw), Value::Object(known)) => {
                let mut kept = Map::new();
                for (key, value) in raw {
                    match known.get(&key) {
                        Some(known) => {
                            let value = self.keep(value, known);
                            kept.insert(key, value);
                        }
                        // A known field with an empty value is not written back; nothing is lost with it.
                        None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => {}
                        None => self.dropped += 1,
                    }
                }
                Value::Object(kept)
            }
            (Value::Array(raw), Value::Array(known)) if raw.len() == known.len() => {
                Value::Array(raw.into_iter().zip(known).map(|(raw, known)| self.keep(raw, known)).collect())
            }
            (raw, known) => {
                self.lossy |= raw != *known;
                raw
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use models::shadow::{ControllerReport, HostState};
    use serde_json::json;

    use super::*;

    fn body(value: &Value) -> Result<Report, BodyError> {
        parse(value.to_string().as_bytes())
    }

    fn condition(type_: &str) -> Value {
        json!({"type": type_, "status": "True", "reason": "Answered", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn full() -> Value {
        json!({
            "state": "StagedUpdate", "observedGeneration": 4, "currentVersion": "1.20.0", "variant": "aws-k8s-1.37",
            "arch": "x86_64", "bootId": "b",
            "updates": {"chosenVersion": "1.20.5", "availableVersions": ["1.20.5", "1.20.0"], "lastRefresh": "2026-01-01T00:00:00Z"},
            "armed": {"attempt": 1, "bootId": "b", "version": "1.20.5", "phase": "Arming", "nonce": "n"},
            "failure": {"attempt": 1, "step": "StagedUpdate", "reason": "PrepareFailed", "message": "m", "time": "2026-01-01T00:00:00Z"},
            "host": {"versionLock": "latest", "ignoreWaves": false},
            "conditions": [condition("HostReachable")],
        })
    }

    #[test]
    fn full_report_is_accepted_unchanged() {
        let report = body(&full()).unwrap();
        assert_eq!(report.applied, full());
        assert_eq!(report.status.report.state, Some(HostState::StagedUpdate));
        assert_eq!((report.dropped, report.lossy), (0, false));
    }

    #[test]
    fn unknown_fields_are_dropped_and_counted_at_every_depth() {
        let mut value = full();
        value["mood"] = json!("sunny");
        value["armed"]["mood"] = json!({"deep": 1});
        value["conditions"][0]["mood"] = json!([1]);
        let report = body(&value).unwrap();
        assert_eq!(report.applied, full());
        assert_eq!(report.dropped, 3);
    }

    #[test]
    fn condition_of_unknown_type_is_dropped_and_counted() {
        let mut value = full();
        value["conditions"] = json!([condition("Novel"), condition("HostReachable"), condition("Newer")]);
        let report = body(&value).unwrap();
        assert_eq!(report.applied, full());
        assert_eq!(report.dropped, 2);
        let report = body(&json!({"state": "Idle", "conditions": [condition("Novel")]})).unwrap();
        assert_eq!((report.applied, report.dropped), (json!({"state": "Idle"}), 1));
    }

    #[test]
    fn empty_known_field_is_not_counted_as_dropped() {
        let report = body(&json!({"state": "Idle", "failure": null, "conditions": []})).unwrap();
        assert_eq!(report.applied, json!({"state": "Idle"}));
        assert_eq!(report.dropped, 0);
    }

    #[test]
    fn unknown_value_in_known_field_is_applied_as_sent() {
        let mut value = full();
        value["failure"]["reason"] = json!("EatenByMoths");
        let report = body(&value).unwrap();
        assert_eq!(report.applied["failure"]["reason"], "EatenByMoths");
        assert!(report.lossy);
    }

    #[test]
    fn object_or_part_of_one_beside_the_status_is_rejected() {
        let mut beside = full();
        beside["spec"] = json!({"state": "RebootedIntoUpdate"});
        let wrapped = json!({"status": full()});
        for (field, value) in [("spec", beside), ("status", wrapped), ("metadata", json!({"metadata": {}}))] {
            assert!(matches!(body(&value), Err(BodyError::Wrapper(found)) if found == field), "{field}");
        }
    }

    #[test]
    fn every_controller_status_field_is_rejected() {
        for field in CONTROLLER_FIELDS {
            let mut value = full();
            value[*field] = Value::Null;
            assert!(matches!(body(&value), Err(BodyError::ControllerField(f)) if f == *field), "{field}");
        }
    }

    #[test]
    fn list_of_controller_status_fields_is_complete() {
        let report = ControllerReport {
            progress: Some(
                serde_json::from_value(json!({
                    "step": "Staging", "since": "2026-01-01T00:00:00Z", "attempt": 1, "bootId": "b", "version": "1.20.5",
                    "started": "2026-01-01T00:00:00Z"
                }))
                .unwrap(),
            ),
            drain: Some(serde_json::from_value(json!({})).unwrap()),
            record: Some(serde_json::from_value(json!({})).unwrap()),
            results: vec![
                serde_json::from_value(json!({
                    "rollout": 1, "step": 0, "attempt": 1, "to": "1.20.5", "result": "Updated",
                    "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:00Z"
                }))
                .unwrap(),
            ],
        };
        // Destructured, so that a new field does not compile until it is added here.
        let ControllerReport { progress: _, drain: _, record: _, results: _ } = &report;
        let value = serde_json::to_value(&report).unwrap();
        let fields: HashSet<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, CONTROLLER_FIELDS.iter().copied().collect());
    }

    #[test]
    fn controller_conditions_and_duplicate_conditions_are_rejected() {
        let value = json!({"conditions": [condition("HostReachable"), condition("Healthy")]});
        assert!(matches!(body(&value), Err(BodyError::ControllerCondition)));
        let value = json!({"conditions": [condition("HostReachable"), condition("HostReachable")]});
        assert!(matches!(body(&value), Err(BodyError::TwoConditions)));
    }

    #[test]
    fn malformed_report_is_rejected() {
        assert!(matches!(parse(b"{"), Err(BodyError::NotJson(_))));
        assert!(matches!(parse(b"[]"), Err(BodyError::NotAnObject)));
        assert!(matches!(parse(br#"{"observedGeneration": "four"}"#), Err(BodyError::Shape(_))));
        let deep = "[".repeat(60_000);
        assert!(matches!(parse(deep.as_bytes()), Err(BodyError::NotJson(_))));
    }
}
