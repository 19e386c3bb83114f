use serde_json::json;

use super::*;
use crate::cluster::testing::{cluster, idle, node, now, operator, shadow};

fn shown(cluster: &Cluster, width: Option<usize>) -> String {
    render(cluster, width, now()).to_string()
}

#[test]
fn status_of_empty_cluster_shows_next_steps() {
    let text = shown(&cluster(None, vec![], vec![]), None);
    assert!(text.contains("Create it to start updates"), "{text}");
    assert!(text.contains("bottlerocket.aws/updater-interface-version=2.0.0"), "{text}");
}

#[test]
fn status_shows_reason_of_every_waiting_node() {
    let misplaced = json!({names::APPROVE_STEP_ANNOTATION: "1"});
    let blocked = json!({
        "currentVersion": "1.20.0",
        "conditions": [{"type": "Blocked", "status": "True", "reason": "DrainBlocked",
            "message": "the PodDisruptionBudget shop/web allows no disruption of shop/web-1; 1 pod(s) left",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "progress": {"step": "Draining", "since": "2026-01-01T00:00:00Z", "started": "2026-01-01T00:00:00Z",
            "attempt": 2, "bootId": "b", "version": "1.20.5", "disruptive": true},
        "record": {"failures": 1, "last": {"attempt": 1, "version": "1.20.5", "reason": "PrepareFailed",
            "message": "no space", "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:00Z"}},
    });
    let mut disabled = operator(
        &json!({"enabled": false, "version": {"target": "1.20.5"}}),
        &json!({
            "observedGeneration": 1,
            "waiting": [{"reason": "Disabled", "nodes": 2}, {"reason": "DrainBlocked", "nodes": 1}],
            "conditions": [
                {"type": "Degraded", "status": "True", "reason": "InvalidPolicy", "message": "spec.schedule: no such zone",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Blocked", "status": "True", "reason": "ExpressionFires",
                    "message": "the expression errors returned job=\"web\"", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "WindowOpen", "status": "False", "reason": "Closed", "message": "the next one opens at noon",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
        }),
    );
    disabled["metadata"]["annotations"] = json!({"brupop.bottlerocket.aws/resum": "1"});
    let pinned = |name, status| {
        let mut shadow = shadow(name, status);
        shadow["spec"]["host"]["versionLock"] = json!("1.20.5");
        shadow
    };
    let cluster = cluster(
        Some(disabled),
        vec![pinned("a", idle()), pinned("b", blocked), pinned("c", idle())],
        vec![node("a", &json!({})), node("b", &json!({})), node("c", &misplaced)],
    );
    let text = shown(&cluster, None);
    for part in [
        "Target version: 1.20.5",
        "Window: closed, the next one opens at noon",
        "Degraded: spec.schedule: no such zone",
        "bruo default: the annotation brupop.bottlerocket.aws/resum is not known",
        "node c: the annotation brupop.bottlerocket.aws/approve-step has no effect here",
        "updates are disabled",
        "shop/web allows no disruption of shop/web-1",
        "PrepareFailed: no space",
        "DrainBlocked, 20m00s left (until 2026-01-01T00:30:00Z): the PodDisruptionBudget shop/web allows no disruption of shop/web-1",
        "Nodes that wait: 2 Disabled, 1 DrainBlocked",
        "Blocked: the expression errors returned",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    let narrow = shown(&cluster, Some(80));
    let table = narrow.lines().skip_while(|line| !line.trim_start().starts_with("NODE"));
    // A heading, three nodes, and how to see the whole lines.
    assert!(table.clone().count() == 5 && table.clone().all(|line| line.chars().count() <= 80), "{narrow}");
    // The heading and, of each waiting node, at least the reason and the remaining time.
    for part in
        ["WAITS FOR", "PrepareFailed", "Disabled: ", "DrainBlocked, 20m00s left: ", "…", "--wide shows them whole"]
    {
        assert!(table.clone().any(|line| line.contains(part)), "{part} is missing in:\n{narrow}");
    }
}

#[test]
fn status_shows_result_of_firing_fleet_expression() {
    let policy = json!({
        "prometheus": {"url": "http://prometheus:9090"},
        "health": {"before": {"expressions": [{"name": "errors", "query": "errors > 0"}]}},
    });
    let firing = json!({
        "observedGeneration": 1,
        "conditions": [{"type": "Blocked", "status": "True", "reason": "ExpressionFires",
            "message": "the expression errors returned job=\"web\"", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    let mut status = idle();
    status["state"] = json!("StagedUpdate");
    status["progress"] = json!({"step": "Staged", "since": "2026-01-01T00:00:00Z", "started": "2026-01-01T00:00:00Z",
        "attempt": 1, "bootId": "b", "version": "1.20.5"});
    let mut staged = shadow("a", status);
    staged["spec"] = json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b",
        "host": {"refreshInterval": "1h"}});
    let mut cluster = cluster(Some(operator(&policy, &firing)), vec![staged], vec![node("a", &json!({}))]);
    cluster.pods.insert("a".to_owned(), vec![]);
    let text = shown(&cluster, None);
    let row = text.lines().find(|line| line.trim_start().starts_with("a ")).unwrap();
    assert!(row.contains("ExpressionFires: the expression errors returned job=\"web\""), "{text}");
}

#[test]
fn status_shows_approval_command_for_waiting_canary_step() {
    let policy = json!({"strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]}});
    let rollout = json!({
        "observedGeneration": 1,
        "activeRollouts": [{"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64",
            "started": "2026-01-01T00:00:00Z", "stepsPassed": 0}],
    });
    let mut done = idle();
    done["currentVersion"] = json!("1.20.5");
    done["updates"] = json!({"availableVersions": [], "lastRefresh": "2026-01-01T00:00:00Z"});
    done["record"] = json!({"last": {"attempt": 1, "version": "1.20.5", "reason": "Updated", "message": "",
        "started": "2026-01-01T00:01:00Z", "ended": "2026-01-01T00:02:00Z"}});
    let cluster = cluster(
        Some(operator(&policy, &rollout)),
        vec![shadow("a", done), shadow("b", idle())],
        vec![node("a", &json!({})), node("b", &json!({}))],
    );
    let text = shown(&cluster, None);
    let command = "Approval required: canary step 1 waits for approval: kubectl annotate bruo default -n brupop-system --overwrite";
    assert!(text.contains(command), "{text}");
}

#[test]
fn status_output_contains_no_reported_control_characters() {
    const HOSTILE: &str = "\u{1b}[2J\r\nok\u{202e}";
    let hostile = json!({
        "metadata": {"name": format!("brs-a{HOSTILE}")},
        "spec": {"state": "StagedUpdate", "version": "1.20.5", "bootId": HOSTILE, "attempt": 2},
        "status": {
            "currentVersion": "1.20.0", "variant": HOSTILE, "arch": HOSTILE,
            "failure": {"attempt": 1, "step": "StagedUpdate", "reason": "PrepareFailed", "message": HOSTILE,
                "time": "2026-01-01T00:00:00Z"},
            "conditions": [{"type": "Blocked", "status": "True", "reason": HOSTILE, "message": HOSTILE,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "record": {"failures": 1, "last": {"attempt": 1, "version": "1.20.5", "reason": HOSTILE,
                "message": HOSTILE, "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:00Z"}},
        },
    });
    let frozen = json!({
        "metadata": {"name": "default"}, "spec": {},
        "status": {
            "conditions": [{"type": "Frozen", "status": "True", "reason": "R", "message": HOSTILE,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    });
    let text = shown(&cluster(Some(frozen), vec![hostile], vec![]), None);
    assert_eq!(text.lines().count(), 4, "target, frozen, a header and a row: {text:?}");
    assert!(text.lines().all(|line| !line.contains(char::is_control)) && !text.contains('\u{202e}'), "{text:?}");
    assert_eq!(text.matches("[2J  ok").count(), 6, "and all of it is there: {text:?}");
}

#[test]
fn status_shows_earlier_operator_and_pauses_every_node() {
    let firing = json!({
        "observedGeneration": 1,
        "conditions": [{"type": "Blocked", "status": "True", "reason": "EarlierOperatorRunning",
            "message": "as recorded", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    let mut draining = idle();
    draining["conditions"] = json!([{"type": "Blocked", "status": "True", "reason": "DrainBlocked",
        "message": "from before", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    draining["progress"] = json!({"step": "Draining", "since": "2026-01-01T00:00:00Z",
        "started": "2026-01-01T00:00:00Z", "attempt": 2, "bootId": "b", "version": "1.20.5", "disruptive": true});
    let mut cluster = cluster(
        Some(operator(&json!({}), &firing)),
        vec![shadow("a", idle()), shadow("b", draining)],
        vec![node("a", &json!({})), node("b", &json!({}))],
    );
    cluster.earlier_pods = ["old/one", "old/two", "old/three", "old/four"].map(str::to_owned).to_vec();
    let text = shown(&cluster, None);
    let line = text.lines().find(|line| line.starts_with("Paused: ")).unwrap();
    assert!(line.contains("4 pod(s): old/one, old/two, old/three and 1 more"), "{text}");
    assert!(line.contains("kubectl brupop takeover"), "{text}");
    for name in ["a ", "b "] {
        let row = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        assert!(row.contains("EarlierOperatorRunning") && !row.contains("left"), "{text}");
    }
    assert!(!text.contains("as recorded") && !text.contains("from before"), "{text}");
    cluster.earlier_pods.clear();
    let text = shown(&cluster, None);
    let line = text.lines().find(|line| line.starts_with("Paused: ")).unwrap();
    assert!(line.contains("waiting until") && line.contains("hosts that it told to reboot"), "{text}");
    let condition = &mut cluster.operator.as_mut().unwrap().status.conditions[0];
    condition.reason = "EarlierOperatorGone".to_owned();
    condition.status = models::condition::ConditionStatus::False;
    assert!(!shown(&cluster, None).contains("Paused"));
}
