use jiff::ToSpan as _;
use json_patch::merge;

use super::*;

fn now() -> Timestamp {
    "2026-05-01T12:00:00Z".parse().unwrap()
}

/// A shadow of the earlier operator, as it is read at v2, and the same as it is read at v3.
fn earlier(status: &Value) -> (Value, Value) {
    let metadata = json!({
        "name": "brs-a", "namespace": "old", "uid": "u", "resourceVersion": "7",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "node"}],
        "managedFields": [{
            "manager": "unknown", "operation": "Update", "apiVersion": "brupop.bottlerocket.aws/v2", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:ownerReferences": {}}, "f:spec": {"f:state": {}}},
        }],
    });
    let spec = json!({"state": "StagedAndPerformedUpdate", "version": "1.20.5", "state_transition_timestamp": null});
    let at_v2 = json!({"metadata": metadata, "spec": spec, "status": status});
    let at_v3 = json!({"metadata": metadata, "spec": {"state": spec["state"], "version": "1.20.5"}, "status": {}});
    (at_v2, at_v3)
}

/// Carries out a write on an object; ends a reset of ownership as the server does.
fn write(object: &mut Value, at_v2: &Value, step: &Next) {
    match step {
        Next::Nothing => {}
        Next::Reset => merge(object, &reset(at_v2)),
        Next::Own(patch) => {
            assert_eq!(patch[0]["value"], object["metadata"]["resourceVersion"], "guarded");
            object["metadata"]["managedFields"] = patch[1]["value"].clone();
        }
        Next::Carry(apply) => {
            assert_eq!(apply["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"], "guarded");
            object["status"] = apply["status"].clone();
        }
        Next::Finish(patch) => merge(object, patch),
    }
    if object["metadata"]["managedFields"] == json!([{}]) {
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
    }
    let version: i64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

fn decide(object: &Value) -> Next {
    next(object, &Policy::default(), now()).unwrap()
}

/// Migrates an object to the end; returns it, and the steps.
fn migrate(status: &Value) -> (Value, Vec<&'static str>) {
    let (at_v2, mut object) = earlier(status);
    let mut steps = Vec::new();
    loop {
        let step = decide(&object);
        steps.push(match step {
            Next::Nothing => return (object, steps),
            Next::Reset => "reset",
            Next::Own(_) => "own",
            Next::Carry(_) => "carry",
            Next::Finish(_) => "finish",
        });
        write(&mut object, &at_v2, &step);
        assert!(steps.len() < 8, "{steps:?}");
    }
}

fn failing(crash_count: u32, failed_at: &str) -> Value {
    json!({
        "current_state": "Idle", "current_version": "1.20.0", "target_version": "1.20.5", "crash_count": crash_count,
        "state_transition_failure_timestamp": failed_at,
    })
}

#[test]
fn shadow_becomes_idle_and_keeps_its_failures_and_its_owner() {
    let (object, steps) = migrate(&failing(3, "2026-05-01T11:50:00Z"));
    assert_eq!(steps, ["reset", "own", "carry", "finish"]);
    assert_eq!(object["spec"], json!({"state": "Idle", "attempt": 0}));
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "node");
    assert_eq!(object["metadata"]["annotations"], json!({}), "the annotation is removed");
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!((&entries[0]["manager"], &entries[0]["operation"]), (&json!("brupop-controller"), &json!("Apply")));
    assert_eq!(entries[0]["fieldsV1"], json!({"f:spec": {"f:attempt": {}, "f:state": {}}}));
    // Ten minutes, doubled twice.
    let record = &object["status"]["record"];
    assert_eq!((&record["failures"], &record["notBefore"]), (&json!(3), &json!("2026-05-01T12:30:00Z")));
    assert!(!is_due(&object));
}

#[test]
fn failures_are_bounded_and_times_that_are_no_times_are_ignored() {
    for (sentence, status, expected) in [
        ("more failures than a back-off needs", failing(u32::MAX, "x"), json!({"failures": 10})),
        ("no time", failing(2, "monday"), json!({"failures": 2})),
        ("an empty time", failing(2, ""), json!({"failures": 2})),
        ("a day", failing(2, "2026-05-01"), json!({"failures": 2})),
        ("a time without a zone", failing(2, "2026-05-01T11:50:00"), json!({"failures": 2})),
        ("a time of no calendar", failing(2, "2026-02-30T11:50:00Z"), json!({"failures": 2})),
        ("a time in the future", failing(2, "2027-05-01T12:00:00Z"), json!({"failures": 2})),
        ("a count beyond 32 bits", json!({"current_state": "Idle", "crash_count": u64::MAX}), json!({"failures": 10})),
        ("a negative count", json!({"current_state": "Idle", "crash_count": -1}), Value::Null),
        ("a count that is text", json!({"current_state": "Idle", "crash_count": "three"}), Value::Null),
        ("no failure", failing(0, "2026-05-01T11:00:00Z"), Value::Null),
        ("no status", Value::Null, Value::Null),
        ("a status of v1", json!({"current_state": "StagedUpdate", "current_version": "1.0.0"}), Value::Null),
    ] {
        let (object, _) = migrate(&status);
        assert_eq!(object["status"]["record"], expected, "{sentence}");
    }
}

#[test]
fn versions_that_no_parser_reads_do_not_keep_shadow_from_being_migrated() {
    for version in ["99999999999999999999999.0.0", "1.2.3-01", "v1.20.5", "latest", ""] {
        let mut status = failing(1, "monday");
        status["current_version"] = version.into();
        let (mut at_v2, mut object) = earlier(&status);
        for read in [&mut at_v2, &mut object] {
            read["spec"]["version"] = version.into();
        }
        while is_due(&object) {
            let step = decide(&object);
            write(&mut object, &at_v2, &step);
        }
        assert_eq!(object["spec"], json!({"state": "Idle", "attempt": 0}), "{version}");
        assert_eq!(object["status"]["record"], json!({"failures": 1}), "{version}");
    }
}

#[test]
fn migration_that_is_interrupted_after_any_write_continues_and_loses_nothing() {
    let status = failing(3, "2026-05-01T11:50:00Z");
    let (whole, steps) = migrate(&status);
    for stop in 0..steps.len() {
        let (at_v2, mut object) = earlier(&status);
        for _ in 0..stop {
            let step = decide(&object);
            write(&mut object, &at_v2, &step);
        }
        assert!(is_due(&object), "after {stop} writes");
        // The next leader can read it only at v3 from the first write on: what it reads at v2 has lost its status.
        let mut lost = at_v2.clone();
        lost["status"] = json!({});
        let rest = if stop == 0 { &at_v2 } else { &lost };
        while is_due(&object) {
            let step = decide(&object);
            write(&mut object, rest, &step);
        }
        assert_eq!(object["status"], whole["status"], "after {stop} writes");
    }
}

#[test]
fn reset_is_one_guarded_write_that_keeps_the_old_content() {
    let (mut at_v2, _) = earlier(&failing(3, &"x".repeat(10_000)));
    at_v2["status"]["unknown_field"] = json!("y");
    let patch = reset(&at_v2);
    assert_eq!((&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]), (&json!("u"), &json!("7")));
    assert_eq!(patch["metadata"]["managedFields"], json!([{}]));
    assert_eq!(patch["spec"], json!({"state": "Idle", "version": null, "attempt": 0}));
    let kept = patch["metadata"]["annotations"][MIGRATED_FROM_ANNOTATION].as_str().unwrap();
    assert!(kept.len() < 1_000, "{}", kept.len());
    let kept = serde_json::from_str(kept).unwrap();
    let read = EarlierShadow::read(&kept);
    assert_eq!(read, EarlierShadow { failed_at: None, ..EarlierShadow::read(&at_v2) });
    assert_eq!(kept["status"]["unknown_field"], Value::Null);
}

#[test]
fn controller_that_has_written_meanwhile_keeps_its_status_and_spec() {
    let (at_v2, mut object) = earlier(&failing(3, "2026-05-01T11:50:00Z"));
    write(&mut object, &at_v2, &Next::Reset);
    // The controller has begun an attempt, and its apply has made an entry of what was there before.
    object["spec"] = json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b"});
    let progress = json!({
        "step": "Staging", "since": now(), "attempt": 1, "bootId": "b", "version": "1.20.5", "started": now(),
    });
    let later = now().saturating_add(24.hours()).unwrap();
    object["status"] = json!({"progress": progress, "record": {"failures": 5, "notBefore": later}});
    object["metadata"]["managedFields"] = json!([
        {"manager": "brupop-controller", "operation": "Apply", "apiVersion": "brupop.bottlerocket.aws/v3",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:state": {}}}},
        {"manager": "before-first-apply", "operation": "Update", "apiVersion": "brupop.bottlerocket.aws/v3",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:ownerReferences": {}}, "f:spec": {"f:attempt": {}}}},
    ]);
    while is_due(&object) {
        let step = decide(&object);
        write(&mut object, &at_v2, &step);
    }
    assert_eq!(object["spec"]["attempt"], 1);
    assert_eq!(object["status"]["progress"]["step"], "Staging");
    assert_eq!(object["status"]["record"]["failures"], 5, "the higher number");
    assert_eq!(object["status"]["record"]["notBefore"], json!(later));
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries[0]["fieldsV1"], json!({"f:spec": {"f:attempt": {}, "f:state": {}}}));
    assert_eq!(entries[1]["fieldsV1"], json!({"f:metadata": {"f:ownerReferences": {}}}), "the owner stays");
}

#[test]
fn ownership_of_desired_state_moves_from_update_to_apply() {
    let entry = |manager: &str, operation: &str, fields: Value| {
        json!({
            "manager": manager, "operation": operation, "apiVersion": "brupop.bottlerocket.aws/v3",
            "time": "2026-05-01T12:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
        })
    };
    let update = |manager: &str, fields: Value| entry(manager, "Update", json!({"f:spec": fields}));
    let apply = |fields: Value| entry(CONTROLLER_MANAGER, "Apply", json!({"f:spec": fields}));
    let always = || json!({"f:attempt": {}, "f:state": {}});
    let host = || json!({"f:attempt": {}, "f:host": {".": {}, "f:versionLock": {}}, "f:state": {}});
    let other = || update("kubectl", host());
    let mut status = update(CONTROLLER_MANAGER, json!({}));
    status["subresource"] = "status".into();
    for (sentence, before, after) in [
        ("no entries", vec![], vec![apply(always())]),
        ("an entry that has all", vec![apply(host())], vec![apply(host())]),
        (
            "the controller's own update",
            vec![update(CONTROLLER_MANAGER, json!({"f:host": {".": {}, "f:versionLock": {}}}))],
            vec![apply(host())],
        ),
        (
            "updates of two managers",
            vec![
                apply(json!({"f:host": {".": {}}})),
                update(BEFORE_FIRST_APPLY, json!({"f:attempt": {}, "f:host": {"f:versionLock": {}}})),
                update(CONTROLLER_MANAGER, json!({"f:state": {}})),
            ],
            vec![apply(host())],
        ),
        ("other managers keep theirs", vec![other()], vec![apply(always()), other()]),
        ("so does the status", vec![apply(always()), status.clone()], vec![apply(always()), status]),
    ] {
        assert_eq!(owned(before, now()), after, "{sentence}");
        assert_eq!(owned(after.clone(), now()), after, "{sentence}: again");
    }
}

#[test]
fn object_that_cannot_be_read_is_an_error_and_not_migrated() {
    let (at_v2, mut object) = earlier(&failing(3, "x"));
    write(&mut object, &at_v2, &Next::Reset);
    let decide = |object: &Value| next(object, &Policy::default(), now()).map_err(|error| error.to_string());
    let step = decide(&object).unwrap();
    assert!(matches!(step, Next::Own(_)), "{step:?}");
    write(&mut object, &at_v2, &step);
    object["status"] = json!({"record": {"failures": "three"}});
    assert!(decide(&object).unwrap_err().contains("cannot be read"));
}

#[test]
fn object_of_this_operator_needs_nothing() {
    let object = json!({"metadata": {"name": "brs-a"}, "spec": {"state": "Idle", "attempt": 0}, "status": {}});
    assert!(!is_due(&object));
    assert_eq!(decide(&object), Next::Nothing);
    assert_eq!(
        unchanged(&json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {}}})),
        json!({"metadata": {"uid": "u", "resourceVersion": "7"}})
    );
}
