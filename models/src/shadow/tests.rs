use super::*;

#[test]
fn desired_state_of_newer_controller_deserializes_as_unknown() {
    let spec: BottlerocketShadowSpec =
        serde_json::from_str(r#"{"state": "Hibernate", "attempt": 3, "novelty": true}"#).unwrap();
    assert_eq!(spec.state, HostState::Unknown);
    assert_eq!(spec.attempt, 3);
}

#[test]
fn unknown_status_values_deserialize_without_losing_other_fields() {
    let status: BottlerocketShadowStatus = serde_json::from_str(
        r#"{
        "state": "Hibernating", "currentVersion": "1.20.0", "novelty": {"a": 1},
        "armed": {"attempt": 3, "bootId": "b", "version": "1.20.5", "phase": "Pondering", "nonce": "n"},
        "failure": {"attempt": 3, "step": "Hibernate", "reason": "EatenByMoths", "message": "m", "time": "2026-01-01T00:00:00Z"},
        "progress": {"step": "Pondering", "since": "2026-01-01T00:00:00Z", "attempt": 3, "bootId": "b", "version": "1.20.5",
            "started": "2026-01-01T00:00:00Z", "disruptive": true},
        "record": {"failures": 2}}"#,
    )
    .unwrap();
    assert_eq!(status.agent.state, Some(HostState::Unknown));
    assert_eq!(status.agent.current_version, Some(Version::new(1, 20, 0)));
    assert_eq!(status.agent.armed.as_ref().map(|a| (a.attempt, a.phase)), Some((3, ArmedPhase::Unknown)));
    let failure = status.agent.failure.as_ref().map(|f| (f.attempt, f.step, f.reason));
    assert_eq!(failure, Some((3, HostState::Unknown, FailureReason::Unknown)));
    let progress = status.controller.progress.as_ref().map(|p| (p.step, p.attempt, p.disruptive));
    assert_eq!(progress, Some((Step::Unknown, 3, true)));
    assert_eq!(status.controller.record.as_ref().map(|r| r.failures), Some(2));
    // The schema accepts the text that is written back in its place.
    let written = serde_json::to_value(&status).unwrap();
    assert_eq!((&written["state"], &written["failure"]["step"]), (&"Unknown".into(), &"Unknown".into()));
}

#[test]
fn unguarded_first_pod_has_the_field_name_of_earlier_versions() {
    let first = FirstPod { uid: "p".into(), accepted: None, unguarded: true };
    let written = serde_json::to_value(&first).unwrap();
    assert_eq!(written, serde_json::json!({"uid": "p", "forGrace": true}));
    assert_eq!(serde_json::from_value::<FirstPod>(written).unwrap(), first);
}

#[test]
fn unreadable_part_of_a_status_that_its_owner_writes_again_harms_nothing_else() {
    const UNREADABLE: &str = "9999-12-31T23:59:59Z";
    let condition = |type_: &str, time: &str| serde_json::json!({"type": type_, "status": "True", "reason": "R", "lastTransitionTime": time});
    let status = serde_json::json!({
        "state": "Idle", "currentVersion": "1.20", "updates": {"lastRefresh": UNREADABLE},
        "armed": {"attempt": 3, "bootId": "b", "version": "1.20.5", "phase": "Activated", "nonce": "n"},
        "record": {"failures": 2},
        "conditions": [condition("HostReachable", UNREADABLE), condition("Blocked", "2026-01-01T00:00:00Z")],
    });
    let read: BottlerocketShadowStatus = serde_json::from_value(status.clone()).unwrap();
    let AgentReport { state, current_version, updates, armed, .. } = &read.agent;
    assert_eq!((*state, current_version, updates), (Some(HostState::Idle), &None, &None));
    assert_eq!(armed.as_ref().map(|armed| armed.attempt), Some(3));
    assert_eq!(read.controller.record.as_ref().map(|record| record.failures), Some(2));
    let types: Vec<_> = read.conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["Blocked"]);
    // The only record of what was done: nothing may be decided without it.
    let without = |pointer: &str, field: &str, value: &str| {
        let mut status = status.clone();
        status.pointer_mut(pointer).unwrap()[field] = value.into();
        serde_json::from_value::<BottlerocketShadowStatus>(status).is_err()
    };
    assert!(without("/record", "notBefore", UNREADABLE) && without("/armed", "version", "1.20"));
}

#[test]
fn condition_of_unknown_type_is_in_neither_agent_nor_controller_status() {
    let status: BottlerocketShadowStatus = serde_json::from_str(
        r#"{"conditions": [{"type": "Novel", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}"#,
    )
    .unwrap();
    assert!(status.agent_status().conditions.is_empty() && status.controller_status().conditions.is_empty());
}

#[test]
fn agent_and_controller_status_partition_shadow_status() {
    let text = r#"{
        "state": "Idle", "observedGeneration": 4, "currentVersion": "1.20.0", "bootId": "b",
        "record": {"failures": 2},
        "conditions": [
            {"type": "HostReachable", "status": "True", "reason": "Answered", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Blocked", "status": "False", "reason": "None", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        ]}"#;
    let status: BottlerocketShadowStatus = serde_json::from_str(text).unwrap();
    let agent = serde_json::to_value(status.agent_status()).unwrap();
    let controller = serde_json::to_value(status.controller_status()).unwrap();
    assert_eq!(agent["conditions"][0]["type"], "HostReachable");
    assert_eq!(controller["conditions"][0]["type"], "Blocked");
    assert_eq!(agent["currentVersion"], "1.20.0");
    assert_eq!(controller["record"]["failures"], 2);
    assert!(agent.get("record").is_none() && controller.get("state").is_none());
}
