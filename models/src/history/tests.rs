use serde_json::json;

use super::*;

fn rollout() -> RecordedRollout {
    RecordedRollout {
        number: 7,
        operator: RecordedOperator { namespace: "ns".into(), name: "default".into(), uid: "uid-1".into() },
        revision: RecordedRevision { name: "default-x".into(), number: 3 },
        variant: "aws-k8s-1.37".into(),
        arch: "x86_64".into(),
        version: Version::new(1, 21, 0),
        from: Vec::new(),
        begun: Timestamp::from_second(1).unwrap(),
        drill: false,
        first: None,
        steps: Vec::new(),
        policy: "{}".into(),
    }
}

#[test]
fn record_name_depends_on_everything_that_identifies_a_rollout_and_on_nothing_else() {
    let name = record_name(&rollout());
    assert!(name.starts_with("rollout-7-") && name.len() <= 63, "{name}");
    type Change = fn(&mut RecordedRollout);
    let other: [Change; 7] = [
        |r| r.drill = true,
        |r| r.number = 8,
        |r| r.operator.uid = "uid-2".into(),
        |r| r.revision.number = 4,
        |r| r.variant = "metal-k8s-1.37".into(),
        |r| r.arch = "aarch64".into(),
        |r| r.version = Version::new(1, 21, 1),
    ];
    for change in other {
        let mut changed = rollout();
        change(&mut changed);
        assert_ne!(record_name(&changed), name, "{changed:?}");
    }
    let same: [Change; 3] =
        [|r| r.begun = Timestamp::from_second(2).unwrap(), |r| r.policy = "x".into(), |r| r.first = Some(1)];
    for change in same {
        let mut changed = rollout();
        change(&mut changed);
        assert_eq!(record_name(&changed), name, "a second leader has to find it: {changed:?}");
    }
}

#[test]
fn page_name_names_its_record_and_number() {
    let name = page_name("rollout-7-abc", 12);
    assert_eq!(name, "rollout-7-abc-p012");
    assert_eq!(page_number("rollout-7-abc", &name), Some(12));
    for other in ["rollout-7-abc", "rollout-7-abcd-p012", "rollout-7-abc-pxyz", "x"] {
        assert_eq!(page_number("rollout-7-abc", other), None, "{other}");
    }
}

#[test]
fn digest_depends_on_content_and_not_on_order_or_signature() {
    let spec = json!({"b": [1, {"d": 1, "c": 2}], "a": "x"});
    let same: Value = serde_json::from_str(r#"{"a": "x", "b": [1, {"c": 2, "d": 1}]}"#).unwrap();
    assert_eq!(page_digest(&spec).unwrap(), page_digest(&same).unwrap());
    assert_ne!(page_digest(&spec).unwrap(), page_digest(&json!({"b": [{"d": 1, "c": 2}, 1], "a": "x"})).unwrap());
    let digest = |status: Value| record_digest(&spec, &status).unwrap();
    assert_eq!(digest(json!({"phase": "Completed"})), digest(json!({"phase": "Completed", "signature": "s"})));
    assert_ne!(digest(json!({"phase": "Completed"})), digest(json!({"phase": "Stopped"})));
}
