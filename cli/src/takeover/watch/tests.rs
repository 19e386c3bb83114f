use serde_json::{Value, json};

use super::*;
use crate::cluster::testing::{self, now};
use crate::takeover::settings;

fn trial(spec: &Value) -> Trial {
    let policy = json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator", "metadata": {"name": "default"},
        "spec": spec,
    });
    let (operator, policy) = settings::parse(&policy.to_string()).unwrap();
    Trial::of(operator, policy, "a policy".to_owned())
}

fn node(name: &str, spec: &Value) -> Node {
    let mut node = testing::node(name, &json!({}));
    node["metadata"]["labels"]["kubernetes.io/arch"] = json!("amd64");
    node["spec"] = spec.clone();
    serde_json::from_value(node).unwrap()
}

fn shadow(name: &str, target: &str) -> Shadow {
    Shadow::of(&json!({
        "metadata": {"namespace": "n", "name": format!("brs-{name}")},
        "spec": {"state": "Idle"},
        "status": {"current_state": "Idle", "current_version": "1.20.0", "target_version": target, "crash_count": 0},
    }))
}

/// Nodes `a`, `b` and `c`, all of which are offered 1.20.5.
fn snapshot() -> Snapshot {
    let nodes = ["a", "b", "c"];
    Snapshot {
        nodes: nodes.map(|name| node(name, &json!({}))).to_vec(),
        facts: Facts { shadows: nodes.map(|name| shadow(name, "1.20.5")).to_vec(), ..Facts::default() },
        pods: nodes.map(|name| (name.to_owned(), vec![])).into(),
        ..Snapshot::default()
    }
}

/// The outlook for a node, as text.
fn outlook(snapshot: &Snapshot, spec: &Value, node: &str) -> String {
    match outlooks(snapshot, &trial(spec), now()).remove(node) {
        Some(Outlook::Begins { version, drain: Ok(()) }) => format!("begins {version}"),
        Some(Outlook::Begins { drain: Err(reason), .. }) => format!("begins, then {reason}"),
        Some(Outlook::Waits(reason)) => reason.split(':').next().unwrap_or_default().to_owned(),
        None => "none".to_owned(),
    }
}

#[test]
fn nodes_begin_by_policy_in_order_of_their_names() {
    let all = snapshot();
    assert_eq!(outlook(&all, &json!({}), "a"), "begins 1.20.5");
    let second = outlook(&all, &json!({}), "b");
    assert!(second.starts_with("begins, then FirstNode"), "{second}");
    assert_eq!(outlook(&all, &json!({}), "c"), "Queued");
    // A proposed policy is off, and planned with as if it was on.
    assert_eq!(outlook(&all, &json!({"enabled": false}), "a"), "begins 1.20.5");
    for name in ["a", "b", "c"] {
        let expected = if name == "a" { "begins 1.20.5" } else { "begins, then FirstNode" };
        let found = outlook(&all, &json!({"maxUnavailable": 3}), name);
        assert!(found.starts_with(expected), "{name}: {found}");
        let closed = json!({"schedule": {"windows": [{"cron": "0 2 * * *", "duration": "1h"}]}});
        assert_eq!(outlook(&all, &closed, name), "WindowClosed");
    }
}

#[test]
fn state_of_node_and_earlier_shadow_decides() {
    for (sentence, change, expected) in [
        (
            "no offer, while others have one",
            (|all: &mut Snapshot| all.facts.shadows[0] = shadow("a", "1.20.0")) as fn(&mut Snapshot),
            "WaveNotCome",
        ),
        ("a version that is none", |all| all.facts.shadows[0] = shadow("a", "newest"), "WaveNotCome"),
        ("cordoned", |all| all.nodes[0] = node("a", &json!({"unschedulable": true})), "Cordoned"),
        ("no shadow", |all| drop(all.facts.shadows.remove(0)), "NoShadow"),
        (
            "a shadow of an earlier node",
            |all| {
                let owner = json!([{"kind": "Node", "name": "a", "uid": "other"}]);
                all.facts.shadows[0] = Shadow::of(&json!({"metadata": {"name": "brs-a", "ownerReferences": owner}}));
            },
            "NoShadow",
        ),
        (
            "no status",
            |all| all.facts.shadows[0] = Shadow::of(&json!({"metadata": {"name": "brs-a"}, "spec": {"state": "Idle"}})),
            "NoReport",
        ),
        ("not labelled", |all| drop(all.nodes[0].metadata.labels.take()), "NotLabelled"),
    ] {
        let mut all = snapshot();
        change(&mut all);
        // A node that is cordoned counts against the budget.
        let policy = json!({"maxUnavailable": 2});
        assert_eq!(outlook(&all, &policy, "a"), expected, "{sentence}");
        assert_eq!(outlook(&all, &policy, "b"), "begins 1.20.5", "{sentence}: the next one");
    }
}

#[test]
fn drain_of_next_node_is_checked_with_its_pods() {
    let mut all = snapshot();
    let pod = json!({
        "metadata": {"namespace": "shop", "name": "bare", "uid": "p"},
        "spec": {"nodeName": "a", "containers": []}, "status": {"phase": "Running"},
    });
    all.pods.insert("a".to_owned(), vec![PodFacts::of(&serde_json::from_value(pod).unwrap())]);
    let refused = outlook(&all, &json!({"drain": {"barePods": "Refuse"}}), "a");
    assert!(refused.starts_with("begins, then DrainRefused") && refused.contains("shop/bare"), "{refused}");
    assert_eq!(outlook(&all, &json!({"drain": {"barePods": "Evict"}}), "a"), "begins 1.20.5");
    all.pods.remove("a");
    assert!(outlook(&all, &json!({}), "a").starts_with("begins, then ReadingPods"));
}

#[test]
fn policy_of_versions_decides() {
    for (target, expected) in [("1.20.5", "begins 1.20.5"), ("1.20", "begins 1.20.5"), ("1.21", "NotOffered")] {
        assert_eq!(outlook(&snapshot(), &json!({"version": {"target": target}}), "a"), expected, "{target}");
    }
}

#[test]
fn output_names_next_node_reasons_and_traces_of_earlier_operator() {
    let mut all = snapshot();
    let mut cordoned = node("c", &json!({"unschedulable": true}));
    cordoned.metadata.managed_fields = serde_json::from_value(json!([
        {"manager": "unknown", "operation": "Update", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
    ]))
    .unwrap();
    all.nodes[2] = cordoned;
    all.facts.shadows[2] = Shadow::of(&json!({
        "metadata": {"name": "brs-c"}, "spec": {"state": "RebootedIntoUpdate"},
        "status": {"current_state": "StagedAndPerformedUpdate", "target_version": "1.20.5", "crash_count": 2},
    }));
    let text = render(&all, &trial(&json!({"maxUnavailable": 2})), "brupop-system", now()).to_string();
    for part in [
        "by a policy. Nothing is written.",
        "Next: a, b",
        "begins 1.20.5, then may be drained",
        "wants Idle, reports Idle",
        "Cordoned: another user or controller has cordoned the node",
        "wants RebootedIntoUpdate, reports StagedAndPerformedUpdate; 2 failed call(s); its cordon; may reboot; may be armed",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains("<node>") && !text.contains("<namespace>"), "{text}");
}
