use models::names;
use planner::claims::{ClaimField, ClaimFields};
use planner::plan::Action;
use serde_json::{Value, json};

use super::report::next_action;
use super::*;
use crate::cluster::testing::{
    braked, cluster, condition, current, fleet, idle, last, lease, node, now, one, operator, own, progress, shadow,
    step_used_up, with_expression,
};
use crate::cluster::{ControllerLease, Part, Unread};
use crate::fixtures::{fitted, snapshot};
use crate::shell::testing::with_context;

fn shown(cluster: &Cluster, width: Option<usize>) -> String {
    render(&report(cluster, now()), Look { width, ..Look::default() }).to_string()
}

#[test]
fn claim_that_uncordons_is_not_shown_as_a_cordon() {
    let protection: ClaimFields = [ClaimField::ScaleDown, ClaimField::DoNotDisrupt].into_iter().collect();
    for (fields, expected) in [
        (ClaimFields::CORDON, "it is being cordoned"),
        (protection, "it is in service, and protected from autoscalers"),
    ] {
        assert_eq!(next_action(&Action::Claim { fields, note: None }), expected);
    }
}

/// A canary step whose place is used up without a proof by a node that exists, with these annotations, and runs the version.
fn not_proven_by(annotations: &Value) -> Cluster {
    let mut status = current();
    status["currentVersion"] = json!("1.20.5");
    used_up_by(node("gone", annotations), status)
}

/// The same by a node that is not back from the reboot of its update.
fn not_back() -> Cluster {
    let (mut down, mut status) = (node("gone", &json!({})), idle());
    down["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
    status["progress"] = progress("Releasing", 1);
    (status["progress"]["permitIssued"], status["progress"]["disruptive"]) = (json!(true), json!(false));
    used_up_by(down, status)
}

fn used_up_by(mut node: Value, status: Value) -> Cluster {
    let runs = status["currentVersion"].as_str().unwrap_or_default();
    node["status"]["nodeInfo"]["osImage"] = json!(format!("Bottlerocket OS {runs} (aws-k8s-1.37)"));
    let mut cluster = step_used_up(false);
    cluster.add_node(&serde_json::from_value(node).unwrap());
    cluster.add_shadow(&serde_json::from_value(shadow("gone", status)).unwrap());
    cluster
}

#[test]
fn node_without_a_proof_for_which_others_wait_is_not_called_up_to_date() {
    let mut status = current();
    (status["currentVersion"], status["record"]) = (json!("1.20.5"), json!({"last": last("HookTimedOut", "")}));
    let due = "BackOff: it runs 1.20.5 without a proof (HookTimedOut), and is verified again at 2026-01-01T01:05:00Z";
    for (annotations, expected) in [(json!({}), due), (held(), "Held: the node carries the annotation")] {
        let cluster = used_up_by(node("gone", &annotations), status.clone());
        let report = report(&cluster, now());
        let node = report.nodes.iter().find(|node| node.name == "gone").unwrap();
        let found =
            format!("{}: {}", node.reason.as_deref().unwrap_or_default(), node.message.as_deref().unwrap_or_default());
        assert!(found.starts_with(expected) && !node.is_current() && node.waits_for_proof, "{found}");
    }
}

#[test]
fn canary_step_with_a_free_place_is_not_said_to_hold_nodes_back() {
    let t = "2026-01-01T00:00:00Z";
    let rollout = json!({"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "started": t, "stepsPassed": 0,
        "record": {"number": 3, "begun": t, "revision": {"name": "", "number": 0}}});
    let status = json!({"observedGeneration": 1, "activeRollouts": [rollout]});
    let policy = json!({"enabled": false, "strategy": {"canary": [{"nodes": 1}, {"nodes": 3}]}});
    let cluster = one(operator(&policy, &status), shadow("a", idle()));
    let text = shown(&cluster, None);
    assert!(text.contains("; canary step 1 of 2 (1 node), which has 1 of 1 places free\n"), "{text}");
    let json = serde_json::to_value(report(&cluster, now())).unwrap();
    assert_eq!((&json["rollouts"][0]["waits"], &json["rollouts"][0]["stepFree"]), (&Value::Null, &json!(1)));
}

/// The release of the rollout is withdrawn.
#[test]
fn rollout_whose_version_no_node_is_to_have_now_is_said_to_rest() {
    let t = "2026-01-01T00:00:00Z";
    for (sentence, host, ended, expected) in [
        ("it is offered", idle(), None, Value::Null),
        ("it is withdrawn", current(), None, json!(3)),
        ("its record has ended", current(), Some(t), Value::Null),
    ] {
        let rollout = json!({"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "started": t, "stepsPassed": 0,
            "record": {"number": 3, "begun": t, "ended": ended, "revision": {"name": "", "number": 0}}});
        let status = json!({"observedGeneration": 1, "activeRollouts": [rollout]});
        let cluster = one(operator(&json!({}), &status), shadow("a", host));
        let json = serde_json::to_value(report(&cluster, now())).unwrap();
        assert_eq!(json["resting"][0]["number"], expected, "{sentence}: {json:#}");
        let line = "1.20.5 for aws-k8s-1.37 x86_64 (rollout 3): rests; no node is to have it now\n";
        assert_eq!(shown(&cluster, None).contains(line), !expected.is_null(), "{sentence}");
    }
}

fn held() -> Value {
    json!({names::HOLD_ANNOTATION: "the auditors are here"})
}

#[test]
fn command_of_status_is_a_line_of_its_own_in_a_narrow_terminal() {
    let label = crate::advice::labelling("NAME").replace("kubectl ", "");
    let pods = |component: &str| format!("get pods -n brupop-system -l {}={component}", names::COMPONENT_LABEL);
    let (controller, web_api) = (pods(names::CONTROLLER), pods(names::APISERVER));
    let disabled = operator(&json!({"enabled": false}), &json!({}));
    let mut stopped = one(operator(&json!({}), &json!({})), shadow("a", idle()));
    stopped.own = Some(own(&[]));
    let accept = "brupop approve 1 --rollout 3 --unproven";
    for (cluster, commands) in [
        (cluster(None, vec![], vec![]), &[label.as_str()][..]),
        (one(disabled, shadow("a", idle())), &["brupop resume"][..]),
        (braked("Unproven"), &["brupop resume --failures 1.20.5"][..]),
        (step_used_up(false), &[accept][..]),
        (not_proven_by(&json!({})), &["brupop retry gone", accept][..]),
        (not_proven_by(&held()), &["brupop unhold gone", accept][..]),
        (not_back(), &["describe node gone", accept][..]),
        (stopped, &[controller.as_str(), web_api.as_str()][..]),
    ] {
        let text = with_context("prod-eu", || shown(&cluster, Some(80)));
        for command in commands {
            let command = format!("kubectl {command} --context prod-eu");
            assert!(text.lines().any(|line| line.trim() == command), "{command}: {text}");
        }
    }
}

#[test]
fn status_of_empty_cluster_shows_next_steps() {
    let text = shown(&cluster(None, vec![], vec![]), None);
    assert!(text.contains("Create it to start updates") && text.contains(": kubectl brupop doctor\n"), "{text}");
    assert!(text.contains("bottlerocket.aws/updater-interface-version=2.0.0"), "{text}");
}

#[test]
fn status_shows_reason_of_every_waiting_node() {
    let misplaced = json!({names::APPROVE_STEP_ANNOTATION: "1"});
    let blocked = json!({
        "currentVersion": "1.20.0",
        "conditions": [condition("Blocked", "DrainBlocked",
            "the PodDisruptionBudget shop/web allows no disruption of shop/web-1; 1 pod(s) left")],
        "progress": progress("Draining", 2),
        "record": {"failures": 1, "last": last("PrepareFailed", "no space")},
    });
    let mut disabled = operator(
        &json!({"enabled": false, "version": {"target": "1.20.5"}}),
        &json!({
            "observedGeneration": 1,
            "waiting": [{"reason": "Disabled", "nodes": 2}, {"reason": "DrainBlocked", "nodes": 1}],
            "conditions": [
                condition("Degraded", "CertificatesInvalid", "brupop-ca: no key"),
                condition("Blocked", "ExpressionFires", "the expression errors returned job=\"web\""),
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
        "Updates:   disabled (spec.enabled is false): kubectl brupop resume",
        "Target:    1.20.5",
        "Window:    always open",
        "Problem:   CertificatesInvalid: brupop-ca: no key",
        "bruo default: the annotation brupop.bottlerocket.aws/resum is not known",
        "node c: the annotation brupop.bottlerocket.aws/approve-step has no effect here",
        "updates are disabled",
        "shop/web allows no disruption of shop/web-1",
        "PrepareFailed: no space",
        "DrainBlocked, 20m left (until 2026-01-01T00:30:00Z): the PodDisruptionBudget shop/web allows no disruption of shop/web-1",
        "Waiting:   2 Disabled (a user): a, c",
        "           1 DrainBlocked (the update): b",
        "Problem:   ExpressionFires: the expression errors returned",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    let narrow = shown(&cluster, Some(80));
    let table = narrow.lines().skip_while(|line| !line.trim_start().starts_with("NODE"));
    // A heading, three nodes, and how to see the whole lines.
    assert!(table.clone().count() == 5 && table.clone().all(|line| line.chars().count() <= 80), "{narrow}");
    // The heading and, of each waiting node, at least the reason and the remaining time.
    for part in
        ["WAITS FOR", "PrepareFailed", "Disabled: ", "DrainBlocked, 20m left: ", "…", "-o wide shows them whole"]
    {
        assert!(table.clone().any(|line| line.contains(part)), "{part} is missing in:\n{narrow}");
    }
}

#[test]
fn status_names_one_time_for_each_node_and_it_is_the_one_of_its_reason() {
    let recorded = |reason: &str, message: &str| json!([condition("Blocked", reason, message)]);
    let hook = "waiting until 2026-01-01T00:12:00Z for hook(s) lb to answer the request 2/drain on the Node";
    let slot = json!({"observedGeneration": 1,
        "slots": [{"uid": "uid of a", "node": "a", "since": "2026-01-01T00:00:00Z"}]});
    let foreign = "the host cannot check for updates: since 2026-01-01T00:12:00Z";
    let unfinished = "the PodDisruptionBudget shop/web allows no disruption of shop/web-0: the eviction of shop/web-1 was approved \
                      at 2026-01-01T00:09:00Z and has not deleted it: the PodDisruptionBudget counts it as gone until \
                      2026-01-01T00:11:00Z; 1 pod(s) left";
    let kept = |message: &str| format!("shop/web-0 does not leave the node: {message}; 1 pod(s) left");
    let denied = kept(
        "the API server denies its eviction, which is retried until 2026-01-01T00:10:30Z: since 2026-01-01T00:12:00Z",
    );
    let leaves = kept("it is being deleted and has until 2026-01-01T00:11:00Z to end");
    let outlasts = kept("it is being deleted and has until 2026-01-08T00:00:00Z to end");
    let over = kept("it is being deleted and has until 2026-01-01T00:09:00Z to end");
    let of_step = ", 20m left (until 2026-01-01T00:30:00Z)";
    for (step, conditions, expected) in [
        ("Verifying", json!([]), "Soaking, 3m 20s left: the node has to stay healthy until 2026-01-01T00:13:20Z"),
        ("Draining", recorded("AwaitingHook", hook), &format!("AwaitingHook, 2m left: {hook}")),
        ("Draining", recorded("DrainBlocked", "no disruption"), &format!("DrainBlocked{of_step}: no disruption")),
        ("Draining", recorded("DrainBlocked", unfinished), &format!("DrainBlocked, 1m left: {unfinished}")),
        ("Draining", recorded("DrainBlocked", &denied), &format!("DrainBlocked, 30s left: {denied}")),
        ("Draining", recorded("DrainBlocked", &leaves), &format!("DrainBlocked, 1m left: {leaves}")),
        ("Draining", recorded("DrainBlocked", &outlasts), &format!("DrainBlocked{of_step}: {outlasts}")),
        ("Draining", recorded("DrainBlocked", &over), &format!("DrainBlocked{of_step}: {over}")),
        ("Staging", recorded("BudgetUnhealthy", unfinished), &format!("BudgetUnhealthy, 1m left: {unfinished}")),
        ("Draining", recorded("RefreshFails", foreign), &format!("RefreshFails{of_step}: {foreign}")),
    ] {
        let mut status = idle();
        status["conditions"] = conditions;
        status["progress"] = progress(step, 2);
        if step == "Verifying" {
            status["progress"]["since"] = json!("2026-01-01T00:08:20Z");
            (status["state"], status["currentVersion"]) = (json!("RebootedIntoUpdate"), json!("1.20.5"));
        }
        let policy = json!({"health": {"after": {"soak": "5m"}}, "autoscaler": {"protect": false}});
        let mut cluster = one(operator(&policy, &slot), shadow("a", status));
        cluster.pods.insert("a".to_owned(), vec![]);
        let text = shown(&cluster, None);
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
        let json = serde_json::to_value(report(&cluster, now())).unwrap();
        assert!(json["nodes"][0]["deadline"].is_string(), "the deadline of the step stays: {json:#}");
    }
}

#[test]
fn status_shows_result_of_firing_fleet_expression() {
    let fires = condition("Blocked", "ExpressionFires", "the expression errors returned job=\"web\"");
    let cluster = with_expression(&json!([fires]));
    let text = shown(&cluster, None);
    let row = text.lines().find(|line| line.trim_start().starts_with("a ")).unwrap();
    assert!(row.contains("ExpressionFires: the expression errors returned job=\"web\""), "{text}");
}

#[test]
fn status_says_that_no_controller_leads_and_no_step_is_under_way() {
    let (ready, missing) = ([(names::CONTROLLER, true), (names::APISERVER, true)], [(names::APISERVER, true)]);
    for (sentence, pods, lease, expected) in [
        ("it leads", &ready[..], Some(lease(5)), None),
        ("none renews the Lease", &ready[..], Some(lease(3600)), Some("NoLeader")),
        ("none has taken it", &ready[..], Some(ControllerLease::default()), Some("NoLeader")),
        ("it may not be read", &ready[..], None, None),
        ("no pod is Ready", &missing[..], Some(lease(3600)), Some("ControllerNotReady")),
        ("its pod, which leads, is not Ready, as its kubelet is away", &missing[..], Some(lease(5)), None),
    ] {
        let mut cluster = one(operator(&json!({}), &json!({"observedGeneration": 1})), shadow("a", idle()));
        (cluster.own, cluster.lease) = (Some(own(pods)), lease);
        let report = report(&cluster, now());
        let problems: Vec<&str> = report.problems.iter().map(|problem| problem.reason.as_str()).collect();
        assert_eq!(problems, expected.into_iter().collect::<Vec<_>>(), "{sentence}");
        let message = report.nodes[0].message.as_ref().unwrap();
        assert_eq!(message.ends_with(" once a controller leads"), expected.is_some(), "{sentence}: {message}");
    }
}

#[test]
fn condition_is_a_problem_where_the_plugin_cannot_see_for_itself() {
    let degraded = |reason: &str| operator(&json!({}), &json!({"conditions": [condition("Degraded", reason, "m")]}));
    let web_api = |ready| Some(own(&[(names::CONTROLLER, true), (names::APISERVER, ready)]));
    let pods = "no pod of the web API is Ready, so that no agent can report: kubectl get pods -n brupop-system -l \
                app.kubernetes.io/component=brupop-apiserver";
    for (sentence, reason, own, expected) in [
        ("pods may not be read", "WebApiNotReady", None, Some("m")),
        ("its pods are Ready again", "WebApiNotReady", web_api(true), None),
        ("its pods are not Ready", "WebApiNotReady", web_api(false), Some(pods)),
        ("the controller alone rejects the policy", "InvalidPolicy", None, Some("m")),
    ] {
        let mut cluster = one(degraded(reason), shadow("a", idle()));
        cluster.own = own;
        let problems = report(&cluster, now()).problems;
        let found: Vec<(&str, &str)> = problems.iter().map(|p| (p.reason.as_str(), p.message.as_str())).collect();
        assert_eq!(found, expected.map(|message| (reason, message)).into_iter().collect::<Vec<_>>(), "{sentence}");
    }
}

/// A cluster with a canary step that waits for approval on each of these architectures.
fn awaiting_approval(kinds: &[(&str, i64)]) -> Cluster {
    let policy = json!({"strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]}});
    let rollout = |(arch, number): &(&str, i64)| {
        json!({
            "version": "1.20.5", "variant": "aws-k8s-1.37", "arch": arch,
            "started": "2026-01-01T00:00:00Z", "stepsPassed": 0,
            "record": {"number": number, "begun": "2026-01-01T00:00:00Z", "revision": {"name": "", "number": 0}},
        })
    };
    let rollouts: Vec<_> = kinds.iter().map(rollout).collect();
    let (mut shadows, mut nodes) = (Vec::new(), Vec::new());
    for (arch, _) in kinds {
        let mut waiting = idle();
        waiting["arch"] = json!(arch);
        let mut done = waiting.clone();
        done["currentVersion"] = json!("1.20.5");
        done["updates"] = json!({"availableVersions": [], "lastRefresh": "2026-01-01T00:00:00Z"});
        done["record"] = json!({"last": {"attempt": 1, "version": "1.20.5", "reason": "Updated", "message": "",
            "started": "2026-01-01T00:01:00Z", "ended": "2026-01-01T00:02:00Z"}});
        for (name, status) in [("done", done), ("waiting", waiting)] {
            let name = format!("{name}-{}", arch.replace('_', "-"));
            let mut node = node(&name, &json!({}));
            node["status"]["nodeInfo"]["architecture"] = json!(if *arch == "x86_64" { "amd64" } else { "arm64" });
            shadows.push(shadow(&name, status));
            nodes.push(node);
        }
    }
    let status = json!({"observedGeneration": 1, "activeRollouts": rollouts});
    cluster(Some(operator(&policy, &status)), shadows, nodes)
}

#[test]
fn status_shows_the_command_of_each_step_that_waits_and_the_kinds_of_several() {
    let both = [("x86_64", 7), ("aarch64", 8)];
    for (kinds, of_kind) in [(&both[..1], false), (&both[..], true)] {
        let text = shown(&awaiting_approval(kinds), None);
        assert!(text.contains("Approval:  canary step 1 "), "{text}");
        for (arch, number) in kinds {
            let kind = if of_kind { format!(" for aws-k8s-1.37 {arch}") } else { String::new() };
            let line = format!(
                "canary step 1 of the rollout of 1.20.5{kind} waits for approval: kubectl brupop approve 1 --rollout {number}\n"
            );
            assert!(text.contains(&line), "{text}");
        }
    }
}

#[test]
fn command_that_goes_on_without_evidence_says_so_and_comes_last() {
    let known = |version: &str| {
        json!({"version": version, "variant": "aws-k8s-1.37", "arch": "x86_64", "firstSeen": "2026-01-01T00:00:00Z",
            "failed": ["a"], "quarantined": {"reason": "BootFellBack", "nodes": ["a"], "since": "2026-01-01T00:00:00Z"}})
    };
    let frozen = |versions: &[&str]| {
        let versions: Vec<_> = versions.iter().copied().map(known).collect();
        one(operator(&json!({}), &json!({"observedGeneration": 1, "versions": versions})), shadow("a", idle()))
    };
    let again = "kubectl brupop resume --failures 1.20.5";
    let skip = "To skip 1.20.5, first: kubectl brupop quarantine 1.20.5. To";
    let first = format!("prove the version. {skip} try again: {again}\n");
    let each = format!(
        "prove the version. {skip} skip 1.20.6, first: kubectl brupop quarantine 1.20.6. To try again: {again},1.20.6\n"
    );
    let mut beside = frozen(&["1.20.5"]);
    let mut other_kind = idle();
    other_kind["arch"] = json!("aarch64");
    beside.add_shadow(&serde_json::from_value(shadow("b", other_kind)).unwrap());
    beside.add_node(&serde_json::from_value(node("b", &json!({}))).unwrap());
    let others = "go on with nodes of another variant or architecture: kubectl brupop resume --others 1.20.5. To";
    let or_others = format!("prove the version. {skip} {others} try again: {again}\n");
    let removed = format!(". Once the cause is removed, to try again: {again}\n");
    let accept = "To accept them as they are: kubectl brupop approve 1 --rollout 3 --unproven\n";
    let verify = format!(". To have a node verified again at once: kubectl brupop retry gone. {accept}");
    let unhold = format!(". To let it prove the version, end its hold: kubectl brupop unhold gone. {accept}");
    let returns = format!(". gone is not back from its reboot: kubectl describe node gone. {accept}");
    let only_accept = format!("is not proven by gone (HookTimedOut). {accept}");
    for (sentence, cluster, expected) in [
        ("frozen", frozen(&["1.20.5"]), first.as_str()),
        ("frozen by two versions", frozen(&["1.20.5", "1.20.6"]), each.as_str()),
        ("frozen beside nodes of another kind", beside, or_others.as_str()),
        ("braked", braked("Unproven"), removed.as_str()),
        ("failed", step_used_up(true), removed.as_str()),
        ("not proven", not_proven_by(&json!({})), verify.as_str()),
        ("not proven, and held", not_proven_by(&held()), unhold.as_str()),
        ("not proven, and not back from its reboot", not_back(), returns.as_str()),
        ("not proven, and gone", step_used_up(false), only_accept.as_str()),
    ] {
        let text = shown(&cluster, None);
        assert!(text.contains(expected), "{sentence}: {text}");
    }
}

#[test]
fn ill_nodes_are_counted_as_they_are_now() {
    let recorded = condition("Blocked", "ClusterUnwell", "7 of 9 nodes, when it began");
    let ill = |name: &str| {
        let mut node = node(name, &json!({}));
        node["status"]["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:05:00Z"}]);
        node
    };
    let cluster = cluster(
        Some(operator(&json!({}), &json!({"observedGeneration": 1, "conditions": [recorded]}))),
        ["a", "b", "c"].map(|name| shadow(name, idle())).to_vec(),
        vec![node("a", &json!({})), ill("b"), ill("c")],
    );
    let text = shown(&cluster, None);
    assert!(text.contains("2 of 3") && !text.contains("7 of 9"), "{text}");
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
            "conditions": [condition("Blocked", HOSTILE, HOSTILE)],
            "record": {"failures": 1, "last": last(HOSTILE, HOSTILE)},
        },
    });
    let degraded = json!({
        "metadata": {"name": "default"}, "spec": {},
        "status": {"conditions": [condition("Degraded", "R", HOSTILE)]},
    });
    let text = shown(&cluster(Some(degraded), vec![hostile], vec![]), None);
    let table = text.lines().skip_while(|line| !line.starts_with(" NODE"));
    assert_eq!(table.count(), 2, "a header and a row: {text:?}");
    assert!(text.lines().all(|line| !line.contains(char::is_control)) && !text.contains('\u{202e}'), "{text:?}");
    assert_eq!(text.matches("[2J").count(), 8, "and all of it is there: {text:?}");
}

#[test]
fn status_shows_earlier_operator_and_pauses_every_node() {
    let recorded = condition("Blocked", "EarlierOperatorRunning", "as recorded");
    let firing = json!({"observedGeneration": 1, "conditions": [recorded]});
    let mut draining = idle();
    draining["conditions"] = json!([condition("Blocked", "DrainBlocked", "from before")]);
    draining["progress"] = progress("Draining", 2);
    let mut cluster = cluster(
        Some(operator(&json!({}), &firing)),
        vec![shadow("a", idle()), shadow("b", draining)],
        vec![node("a", &json!({})), node("b", &json!({}))],
    );
    cluster.earlier_pods = ["old/one", "old/two", "old/three", "old/four"].map(str::to_owned).to_vec();
    let text = shown(&cluster, None);
    let line = text.lines().find(|line| line.starts_with("Paused:")).unwrap();
    assert!(line.contains("4 pod(s): old/one, old/two, old/three and 1 more"), "{text}");
    assert!(line.contains("kubectl brupop takeover"), "{text}");
    for name in ["a ", "b "] {
        let row = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        assert!(row.contains("EarlierOperatorRunning") && !row.contains("left"), "{text}");
    }
    assert!(!text.contains("as recorded") && !text.contains("from before"), "{text}");
    cluster.earlier_pods.clear();
    let text = shown(&cluster, None);
    let line = text.lines().find(|line| line.starts_with("Paused:")).unwrap();
    assert!(line.contains("waiting until") && line.contains("hosts whose reboot it has requested"), "{text}");
    let condition = &mut cluster.operator.as_mut().unwrap().status.conditions[0];
    condition.reason = "EarlierOperatorGone".to_owned();
    condition.status = models::condition::ConditionStatus::False;
    assert!(!shown(&cluster, None).contains("Paused"));
}

#[test]
fn status_is_one_screen_as_wide_as_the_terminal() {
    let report = report(&fleet(), now());
    let page = |width| render(&report, Look { width: Some(width), ..Look::default() });
    fitted("status", page, |_| false);
    snapshot("status-200.txt", &page(200).to_string());
}

#[test]
fn screen_of_watch_names_the_command_that_shows_lines_whole() {
    let look = Look { width: Some(60), is_live: true, ..Look::default() };
    let text = with_context("c", || render(&report(&fleet(), now()), look).to_string());
    assert!(text.ends_with("They are whole in:\nkubectl brupop status --context c -o wide\n"), "{text}");
}

#[test]
fn status_for_programs_has_the_documented_shape() {
    let page = super::shown(&report(&fleet(), now()), Some(Output::Json), Look::default()).unwrap();
    snapshot("status.json", &page.to_string());
    let documented = include_str!("../../../docs/plugin.md");
    let found = crate::fixtures::fields(&serde_json::from_str(&page.to_string()).unwrap());
    for field in found {
        assert!(documented.contains(&format!("`{field}`")), "docs/plugin.md lacks `{field}`");
    }
    // The row of the nodes has what only some attempts have, too.
    let row = documented.lines().find(|line| line.starts_with("| `nodes` | `name`")).unwrap();
    for (field, value) in [("drill", json!({"request": "x"})), ("verification", json!(true))] {
        let mut status = idle();
        status["progress"] = progress("Verifying", 1);
        status["progress"][field] = value;
        let report = report(&one(operator(&json!({}), &json!({})), shadow("a", status)), now());
        for field in crate::fixtures::fields(&serde_json::to_value(&report.nodes[0]).unwrap()) {
            assert!(row.contains(&format!("`{field}`")), "docs/plugin.md lacks `{field}`");
        }
    }
    let names = super::shown(&report(&fleet(), now()), Some(Output::Name), Look::default()).unwrap().to_string();
    assert!(names.lines().all(|line| line.starts_with("node/")) && names.contains("node/failed\n"), "{names}");
}

#[test]
fn status_of_many_nodes_lists_those_with_something_to_see() {
    let mut shadows = Vec::new();
    let mut nodes = Vec::new();
    for number in 0..200 {
        let name = format!("n{number:03}");
        shadows.push(shadow(&name, if number == 100 { idle() } else { current() }));
        nodes.push(node(&name, &if number == 150 { json!({names::HOLD_ANNOTATION: ""}) } else { json!({}) }));
    }
    let cluster =
        cluster(Some(operator(&json!({"enabled": false}), &json!({"observedGeneration": 1}))), shadows, nodes);
    let text = shown(&cluster, Some(100));
    let rows = text.lines().skip_while(|line| !line.starts_with(" NODE")).skip(1);
    assert!(rows.clone().next().unwrap().starts_with(" n100 "), "{text}");
    assert!(text.contains("199 of 200 nodes are not listed (199 of them are up to date): --all lists them."), "{text}");
    let all = render(&report(&cluster, now()), Look { all: true, ..Look::default() }).to_string();
    assert!(all.contains(" n000 ") && !all.contains("not listed"), "{all}");
}

#[test]
fn mistake_of_many_nodes_takes_few_lines() {
    let misplaced = json!({names::APPROVE_STEP_ANNOTATION: "1"});
    let nodes = (0..100).map(|number| node(&format!("n{number}"), &misplaced)).collect();
    let mut cluster = cluster(Some(operator(&json!({}), &json!({"observedGeneration": 1}))), vec![], nodes);
    for part in [Part::Pods, Part::Budgets, Part::AgentPods, Part::Lease] {
        cluster.unread.insert(part, Unread { reason: format!("{part:?} are missing"), is_unanswered: false });
    }
    for number in 100..200 {
        cluster.unreadable.nodes.insert(format!("n{number}"), "no uid".to_owned());
    }
    let report = report(&cluster, now());
    assert_eq!((report.misplaced_requests.len(), report.not_read.len()), (100, 104), "-o json has all");
    let text = render(&report, Look::default()).to_string();
    let count = |label: &str| text.lines().filter(|line| line.starts_with(label)).count();
    assert_eq!((count("Request:"), count("Not read:")), (3, 12), "{text}");
    assert!(text.contains("           and 97 more (-o json has them)\n"), "{text}");
    assert!(text.contains("Lease are missing") && text.contains("and 92 more (-o json has them)\n"), "{text}");
}

#[test]
fn status_without_the_right_to_read_nodes_shows_what_the_controller_has_recorded() {
    let mut fleet = fleet();
    fleet.nodes = None;
    let unread = Unread { reason: "you need the right to list nodes".to_owned(), is_unanswered: false };
    fleet.unread.insert(Part::Nodes, unread);
    let text = shown(&fleet, None);
    assert!(text.contains("Not read:  you need the right to list nodes, so that the reasons are those"), "{text}");
    assert!(text.contains(" blocked ") && text.contains("DrainBlocked: the PodDisruptionBudget shop/web"), "{text}");
}

#[test]
fn attempt_that_was_ended_from_outside_is_no_failure() {
    for (reason, is_failure) in [
        ("Updated", false),
        ("PolicyChanged", false),
        ("ReleaseRequested", false),
        ("BootFellBack", true),
        ("New", true),
    ] {
        let mut status = idle();
        status["record"] = json!({"last": last(reason, "")});
        let cluster = one(operator(&json!({}), &json!({"observedGeneration": 1})), shadow("a", status));
        assert_eq!(report(&cluster, now()).nodes[0].has_failed(), is_failure, "{reason}");
    }
}

#[test]
fn command_in_the_last_result_of_a_node_is_for_the_chosen_cluster() {
    let mut status = idle();
    status["record"] = json!({"last": last("GateRefused", "see kubectl get pods -n <namespace>")});
    let cluster = one(operator(&json!({}), &json!({"observedGeneration": 1})), shadow("a", status));
    let report = crate::shell::testing::with_context("c", || report(&cluster, now()));
    let message = report.nodes[0].last.as_ref().map(|last| last.message.as_str());
    assert_eq!(message, Some("see kubectl get pods -n brupop-system --context c"));
}

#[test]
fn node_that_was_not_read_is_not_counted_as_up_to_date() {
    let shadows = (0..60).map(|number| shadow(&format!("n{number}"), idle())).collect();
    let mut cluster = cluster(Some(operator(&json!({}), &json!({"observedGeneration": 1}))), shadows, vec![]);
    cluster.nodes = None;
    let text = shown(&cluster, None);
    assert!(text.contains("10 of 60 nodes are not listed (0 of them are up to date)"), "{text}");
    assert!(text.contains("NotKnown: its Node was not read") && !text.contains("Waiting:"), "{text}");
    // The same where this version cannot read a Node.
    cluster.nodes = Some(std::collections::BTreeMap::new());
    cluster.unreadable.nodes.insert("n1".to_owned(), "no uid".to_owned());
    let unread = report(&cluster, now()).nodes.into_iter().filter(|node| !node.is_current());
    assert_eq!(unread.map(|node| node.name).collect::<Vec<_>>(), ["n1"]);
}

#[test]
fn status_names_rejected_fields_and_the_policy_in_force() {
    let spec = json!({"schedule": {"windows": [{"cron": "0 2 * * *", "duration": "4h", "timeZone": "Mars/Base"}]}});
    let in_force = json!({"observedGeneration": 1, "policyInForce": "{\"version\": {\"target\": \"1.19\"}}"});
    for (status, sentence) in [
        (in_force, "Nothing new starts. Updates under way are finished under the last valid policy."),
        (
            json!({"observedGeneration": 1}),
            "There is no valid policy to go back to: nothing new starts, and updates without a reboot permit end.",
        ),
    ] {
        let text = shown(&one(operator(&spec, &status), shadow("a", idle())), None);
        assert!(text.contains("Rejected:  spec.schedule.windows[0].timeZone: 'Mars/Base' is no time zone"), "{text}");
        assert!(text.contains(sentence), "{text}");
    }
}
