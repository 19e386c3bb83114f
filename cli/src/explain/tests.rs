use models::shadow::DrainedPod;
use planner::view::PodFacts;
use serde_json::json;

use super::report::{Explanation, Next, explain};
use super::*;
use crate::cluster::ControllerLease;
use crate::cluster::testing::{
    braked, cluster, condition, fleet, idle, last, lease, node, now, one, operator, own, progress, shadow,
    with_expression,
};
use crate::fixtures::{fitted, snapshot};
use crate::shell::testing::{with_context, without_context};

fn text(explanation: &Explanation) -> String {
    text::render(explanation, None).to_string()
}

#[test]
fn explanation_of_a_waiting_a_draining_and_a_failed_node_fits_the_terminal() {
    let fleet = fleet();
    for name in ["blocked", "failed", "silent"] {
        let explanation = explain(&fleet, name, now());
        let page = |width| text::render(&explanation, Some(width));
        fitted(&format!("explain-{name}"), page, |line| line.contains(" kubectl "));
    }
    let failed = text::render(&explain(&fleet, "failed", now()), Some(200)).to_string();
    snapshot("explain-failed-200.txt", &failed);
}

#[test]
fn commands_are_for_the_chosen_context() {
    let fleet = fleet();
    let page = |cluster: &Cluster, name: &str| with_context("c", || text(&explain(cluster, name, now())));
    for name in ["blocked", "failed", "held", "silent", "waiting-1"] {
        assert_eq!(without_context(&page(&fleet, name)), None, "{name}");
    }
    let expected = "kubectl brupop unhold held --context c";
    assert_eq!(with_context("c", || explain(&fleet, "held", now())).commands, [expected]);
    let (mut status, mut not_ready) = (idle(), node("a", &json!({})));
    not_ready["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    for (reason, message, expected) in [
        ("ClusterUnwell", "", "kubectl get nodes --context c"),
        ("GateRefused", "see kubectl get pods -A", "see kubectl get pods -A --context c"),
    ] {
        status["record"] = json!({"failures": 0, "last": last(reason, message)});
        let policy = operator(&json!({}), &json!({"observedGeneration": 1}));
        let fleet = cluster(Some(policy), vec![shadow("a", status.clone())], vec![not_ready.clone()]);
        let page = page(&fleet, "a");
        assert!(page.contains("NodeNotReady") && page.contains("is Ready again") && page.contains(expected), "{page}");
        assert_eq!(without_context(&page), None, "{page}");
    }
}

#[test]
fn first_check_that_is_not_passed_is_the_reason_and_later_ones_are_shown_too() {
    let mut held = node("a", &json!({names::HOLD_ANNOTATION: ""}));
    held["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    let policy = operator(&json!({"enabled": false}), &json!({"observedGeneration": 1}));
    let cluster = cluster(Some(policy), vec![shadow("a", idle())], vec![held]);
    let explanation = explain(&cluster, "a", now());
    let waits: Vec<_> = explanation
        .checks
        .iter()
        .filter(|check| check.result == "Waits")
        .filter_map(|check| check.reason.as_deref())
        .collect();
    assert_eq!(waits, ["Disabled", "Held", "NodeNotReady"], "{explanation:#?}");
    assert_eq!(explanation.waits.as_ref().unwrap().reason, "Disabled");
    assert_eq!(explanation.commands, ["kubectl brupop resume"]);
    assert!(text(&explanation).contains("To do:     kubectl brupop resume"), "{}", text(&explanation));
}

#[test]
fn node_on_its_target_is_up_to_date_and_waits_for_nothing() {
    let explanation = explain(&fleet(), "updated", now());
    let target = explanation.checks.iter().find(|check| check.name == "HasTarget").unwrap();
    assert_eq!(target.result, "UpToDate", "{explanation:#?}");
    let text = text(&explanation);
    for part in
        ["for nothing: it is up to date", " up to date   HasTarget", "it runs the newest version that it may have"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("WAITS"), "{text}");
}

#[test]
fn node_is_called_newest_only_after_a_check_for_updates_that_succeeded() {
    for (sentence, updates, is_newest) in [
        ("it has succeeded", json!({"lastRefresh": "2026-01-01T00:00:00Z"}), true),
        ("there was none", json!({}), false),
        ("the last one failed", json!({"lastRefresh": "2026-01-01T00:00:00Z", "refreshFailure": "no route"}), false),
    ] {
        let mut status = idle();
        status["updates"] = updates;
        let text = text(&explain(&one(operator(&json!({}), &json!({})), shadow("a", status)), "a", now()));
        assert_eq!(text.contains("it runs the newest version"), is_newest, "{sentence}: {text}");
    }
}

#[test]
fn node_without_a_shadow_leads_to_doctor_where_there_is_no_policy_either() {
    for (policy, reason, command) in [
        (Some(operator(&json!({}), &json!({}))), "NoShadow", "kubectl logs -n brupop-system"),
        (None, "NoOperatorResource", "kubectl brupop doctor"),
    ] {
        let explanation = explain(&cluster(policy, vec![], vec![node("a", &json!({}))]), "a", now());
        assert_eq!(explanation.waits.as_ref().unwrap().reason, reason);
        assert!(explanation.commands[0].starts_with(command), "{explanation:#?}");
    }
}

#[test]
fn host_of_an_agent_that_is_not_heard_is_not_called_unreached() {
    for (status, expected) in [
        ("False", "the agent does not reach the host"),
        ("Unknown", "it is not known whether the agent reaches the host"),
    ] {
        let mut agent = idle();
        let mut reach = condition("HostReachable", "R", "m");
        reach["status"] = json!(status);
        agent["conditions"] = json!([reach]);
        let cluster = one(operator(&json!({}), &json!({})), shadow("a", agent));
        let text = text(&explain(&cluster, "a", now()));
        assert!(text.contains(&format!("Reach:     {expected}: R: m")), "{expected}: {text}");
        let (report, expected) = (crate::status::report(&cluster, now()), format!("{expected}: m"));
        assert_eq!(report.silent_agents[0].message, expected);
        assert_eq!(report.nodes[0].message.as_deref(), Some(expected.as_str()));
    }
}

#[test]
fn node_that_was_not_read_or_is_gone_is_not_called_up_to_date() {
    let mut unread = fleet();
    unread.nodes = None;
    let mut gone = fleet();
    gone.nodes.as_mut().unwrap().remove("updated");
    for (cluster, expected) in [(unread, "Waits:     NotKnown: its Node was not read"), (gone, "its Node is gone")] {
        let text = text(&explain(&cluster, "updated", now()));
        assert!(text.contains(expected) && !text.contains("it is up to date"), "{expected}: {text}");
    }
}

#[test]
fn recorded_command_that_annotates_is_replaced_by_that_of_the_plugin() {
    let message = "let the operator disarm it: kubectl annotate brs brs-<node> -n <namespace> x=<any new value>";
    let mut shadow = shadow("a", idle());
    shadow["status"]["conditions"] = json!([condition("Blocked", "HostArmedByOther", message)]);
    let mut cluster = one(operator(&json!({}), &json!({"observedGeneration": 1})), shadow);
    cluster.nodes = None;
    let explanation = explain(&cluster, "a", now());
    assert_eq!(explanation.waits.as_ref().unwrap().message, "let the operator disarm it");
    assert_eq!(explanation.commands, ["kubectl brupop retry a  # disarms the image"]);
}

#[test]
fn condition_for_all_nodes_is_not_shown_as_the_record_of_a_node() {
    let unwell = condition("Blocked", "ClusterUnwell", "m");
    let status = json!({"observedGeneration": 1, "conditions": [unwell]});
    let held = node("a", &json!({names::HOLD_ANNOTATION: ""}));
    let cluster = cluster(Some(operator(&json!({}), &status)), vec![shadow("a", idle())], vec![held]);
    let explanation = explain(&cluster, "a", now());
    assert_eq!(explanation.waits.as_ref().unwrap().reason, "Held");
    assert_eq!(explanation.recorded, None);
}

#[test]
fn node_that_lacks_a_version_shows_since_when_and_the_end_of_the_target() {
    let known = json!([{"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64",
        "firstSeen": "2025-12-29T00:10:00Z"}]);
    for (target, expected) in [
        (json!({}), "behind 1.20.5 since 2025-12-29T00:10:00Z (3d ago)\n"),
        (json!({"target": "168h"}), "; spec.freshness.target is exceeded at 2026-01-05T00:10:00Z (in 4d)\n"),
        (json!({"target": "48h"}), "; spec.freshness.target has been exceeded since 2025-12-31T00:10:00Z (1d ago)\n"),
    ] {
        let status = json!({"observedGeneration": 1, "versions": known});
        let cluster = one(operator(&json!({"freshness": target}), &status), shadow("a", idle()));
        let text = text(&explain(&cluster, "a", now()));
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn next_change_has_its_time() {
    let closed = json!({"schedule": {"windows": [{"cron": "0 2 * * *", "duration": "1h"}]}});
    let cluster = one(operator(&closed, &json!({"observedGeneration": 1})), shadow("a", idle()));
    let text = text(&explain(&cluster, "a", now()));
    assert!(text.contains("Waits:     WindowClosed (waits for time): no window is open"), "{text}");
    assert!(text.contains("Next:      2026-01-01T02:00:00Z (in 1h 50m): the next window opens"), "{text}");
    let text = self::text(&explain(&fleet(), "blocked", now()));
    assert!(text.contains("2026-01-01T00:30:00Z (in 20m): the drain ends"), "{text}");
}

#[test]
fn denied_eviction_ends_the_attempt_at_its_own_time_and_nothing_is_deleted_then() {
    let mut cluster = fleet();
    let drain = cluster.shadows.get_mut("blocked").unwrap().status.controller.drain.as_mut().unwrap();
    let mut denied = drain.blockers[0].clone();
    (denied.budget, denied.denied_since) = (None, Some("2026-01-01T00:09:40.5Z".parse().unwrap()));
    drain.blockers = vec![denied.clone()];
    let only = "Next:      2026-01-01T00:10:40Z (in 40s): the attempt ends, unless the API server lets the pod go by \
                then\nTo do:";
    let text = text(&explain(&cluster, "blocked", now()));
    assert!(text.contains(only), "{text}");
    // Another pod is named first.
    let drain = cluster.shadows.get_mut("blocked").unwrap().status.controller.drain.as_mut().unwrap();
    denied.pod = "shop/web-2".to_owned();
    drain.blockers[0].denied_since = None;
    drain.blockers.push(denied);
    let mut listed = drain.pods.to_vec();
    listed.extend(drain.pods.iter().cloned().map(|pod| DrainedPod {
        name: "web-2".to_owned(),
        uid: "3".to_owned(),
        ..pod
    }));
    drain.pods = listed.into();
    let pods = cluster.pods.get_mut("blocked").unwrap();
    pods.push(PodFacts { name: "web-2".to_owned(), uid: "3".to_owned(), ..pods[0].clone() });
    let text = self::text(&explain(&cluster, "blocked", now()));
    assert!(text.contains("(in 40s): the attempt ends") && !text.contains("the drain ends"), "{text}");
}

#[test]
fn step_that_is_due_waits_for_a_controller_where_none_leads() {
    let mut late = idle();
    late["progress"] = progress("Staging", 1);
    late["progress"]["since"] = json!("2025-12-25T00:00:00Z");
    let pods = [(names::CONTROLLER, true), (names::APISERVER, true)];
    for (sentence, status, age, problem, waits) in [
        ("it leads", idle(), 5, None, "for the controller: its next step is due\n"),
        ("no node is begun", idle(), 3600, Some("NoLeader"), "for a controller that leads: its next step is due\n"),
        ("a step is late", late, 3600, Some("NoLeader"), "Staging (waits for the update)"),
    ] {
        let mut cluster = one(operator(&json!({}), &json!({"observedGeneration": 1})), shadow("a", status));
        (cluster.own, cluster.lease) = (Some(own(&pods)), Some(lease(age)));
        let explanation = explain(&cluster, "a", now());
        assert_eq!(explanation.problems.first().map(|problem| problem.reason.as_str()), problem, "{sentence}");
        let is_past = |next: &Next| next.at.is_some_and(|at| at <= now());
        assert!(!explanation.next.iter().any(is_past), "{sentence}: {explanation:#?}");
        let text = text(&explanation);
        assert!(text.contains(&format!("Waits:     {waits}")), "{sentence}: {text}");
        assert_eq!(text.contains("once a controller leads\n"), problem.is_some(), "{sentence}: {text}");
    }
}

/// The step has been past its deadline for five minutes. A new leader gives it ten minutes.
#[test]
fn deadline_of_a_step_is_that_which_its_leader_has_given_it() {
    for (sentence, acquired, age, expected) in [
        ("an earlier leader began it", Some("2026-01-01T00:06:00Z"), 5, "2026-01-01T00:16:00Z"),
        ("this one began it", Some("2025-12-31T23:00:00Z"), 5, "2026-01-01T00:05:00Z"),
        ("since when it leads is not known", None, 5, "2026-01-01T00:05:00Z"),
        ("none leads any more", Some("2026-01-01T00:06:00Z"), 600, "2026-01-01T00:05:00Z"),
    ] {
        let mut staging = idle();
        staging["progress"] = progress("Staging", 1);
        staging["progress"]["since"] = json!("2025-12-31T23:35:00Z");
        let mut cluster = one(operator(&json!({}), &json!({"observedGeneration": 1})), shadow("a", staging));
        let acquired = acquired.map(|at| at.parse().unwrap());
        cluster.lease = Some(ControllerLease { acquired, ..lease(age) });
        let attempt = explain(&cluster, "a", now()).attempt.unwrap();
        assert_eq!(attempt.deadline, Some(expected.parse().unwrap()), "{sentence}");
    }
}

#[test]
fn next_change_of_a_braked_rollout_is_a_trial_or_what_ends_it() {
    let trial = "Next:      2026-01-01T01:00:00Z (in 50m): one node is tried alone";
    let resume = "Next:      what ends it: The cause of the ends that the message names; then resume.";
    for (proof, expected) in [("Free", trial), ("Unproven", resume)] {
        let text = text(&explain(&braked(proof), "a", now()));
        assert!(text.contains("Waits:     Braked") && text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn expressions_that_only_the_controller_queries_are_not_guessed() {
    let fires = condition("Blocked", "ExpressionFires", "the expression errors returned job=\"web\"");
    let fails = condition("Blocked", "ExpressionFails", "the expression errors returned job=\"web\"");
    for (conditions, reason, commands) in [
        (json!([]), "ExpressionsPending", &[][..]),
        (json!([fires]), "ExpressionFires", &[][..]),
        (json!([fails]), "ExpressionFails", &["kubectl brupop doctor"][..]),
    ] {
        let cluster = with_expression(&conditions);
        let explanation = explain(&cluster, "a", now());
        assert_eq!(explanation.waits.as_ref().unwrap().reason, reason);
        assert_eq!(explanation.commands, commands);
        let last = explanation.checks.last().unwrap();
        assert_eq!((last.name, last.result), ("ExpressionsQuiet", "NotKnown"));
    }
}

#[test]
fn action_that_fails_is_no_next_change_and_the_log_of_the_controller_is_named() {
    let recorded = json!([condition("Blocked", "ActionFails", "what is due has failed")]);
    let logs = "kubectl logs -n brupop-system -l app.kubernetes.io/component=brupop-controller --prefix --tail=200";
    for (conditions, commands, begins) in [(json!([]), &[][..], true), (recorded, &[logs][..], false)] {
        let mut status = idle();
        status["conditions"] = conditions;
        let policy = operator(&json!({}), &json!({"observedGeneration": 1}));
        let explanation = explain(&one(policy, shadow("a", status)), "a", now());
        assert_eq!(explanation.commands, commands, "{explanation:#?}");
        let attempt = |next: &Next| next.what.starts_with("its attempt begins");
        assert_eq!(explanation.next.iter().any(attempt), begins, "{explanation:#?}");
        assert!(begins || explanation.next[0].what.starts_with("what ends it: "), "{explanation:#?}");
    }
}

#[test]
fn node_is_found_by_its_names_and_like_names_are_offered() {
    let fleet = fleet();
    for name in ["held", "node/held", "brs-held", "brs/brs-held"] {
        assert_eq!(find(&fleet, name).as_deref(), Some("held"), "{name}");
    }
    assert_eq!(find(&fleet, "hold"), None);
    assert_eq!(unknown(&fleet, "hold"), "there is no node hold; did you mean held?");
    assert_eq!(unknown(&fleet, "elsewhere"), "there is no node elsewhere: kubectl get nodes");
}

#[test]
fn node_that_is_not_under_the_operator_is_explained() {
    let mut other = node("a", &json!({}));
    other["metadata"]["labels"] = json!({});
    let cluster = cluster(Some(operator(&json!({}), &json!({"observedGeneration": 1}))), vec![], vec![other]);
    let explanation = explain(&cluster, "a", now());
    assert_eq!(explanation.waits.as_ref().unwrap().reason, "NotLabelled");
    let label = "kubectl label node a --overwrite bottlerocket.aws/updater-interface-version=2.0.0";
    assert_eq!(explanation.commands, [label]);
}

#[test]
fn explanation_for_programs_has_the_documented_shape() {
    let documented = include_str!("../../../docs/plugin.md");
    for name in ["blocked", "updated", "failed"] {
        let value = serde_json::to_value(explain(&fleet(), name, now())).unwrap();
        for field in crate::fixtures::fields(&value) {
            assert!(documented.contains(&format!("`{field}`")), "docs/plugin.md lacks `{field}`");
        }
    }
    // The row of the attempt has what only some attempts have, too.
    let row = documented.lines().find(|line| line.starts_with("| `attempt`* |")).unwrap();
    for (field, value) in [("drill", json!({"request": "x", "evict": true})), ("verification", json!(true))] {
        let mut status = idle();
        status["progress"] = progress("Verifying", 1);
        status["progress"][field] = value;
        let explanation = explain(&one(operator(&json!({}), &json!({})), shadow("a", status)), "a", now());
        for field in crate::fixtures::fields(&serde_json::to_value(explanation.attempt).unwrap()) {
            assert!(row.contains(&format!("`{field}`")), "docs/plugin.md lacks `{field}`");
        }
    }
}
