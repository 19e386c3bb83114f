//! Hooks: before the drain, after the update, and the end of their request.

use models::operator::BottlerocketUpdateOperatorSpec;
use models::shadow::{BLOCKED, DrainStatus, HOST_BUSY, HOST_REACHABLE, HostState, NodeBefore, Step};
use serde_json::json;

use crate::claims::{ClaimField, ClaimFields};
use crate::decision::Action;
use crate::fixtures::*;
use crate::hold::Hold;
use crate::hooks;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{Answer, ClusterView, NodeFacts, NodeView, PodFacts};
use crate::wait::Wait;

/// A policy with two hooks: `ceph` is awaited before and after, and its missing answer ends the attempt; `mute` is awaited for
/// less long, and its missing answer does not.
fn both() -> serde_json::Value {
    let wait = |timeout: &str, action: &str| json!({"timeout": timeout, "onTimeout": action});
    json!({"hooks": [
        {"name": "ceph", "before": wait("2m", "Fail"), "after": wait("2m", "Fail")},
        {"name": "mute", "before": wait("1m", "Continue")},
    ]})
}

/// A static pod that is not Ready: there is none on another node to compare it with.
fn static_pod() -> PodFacts {
    PodFacts { mirror: true, ..pod("a", false) }
}

/// A node in a step, with this policy.
fn in_step(step: Step, spec: serde_json::Value) -> (ClusterView, Policy) {
    let state = if step == Step::AfterUpdate { HostState::Idle } else { HostState::StagedUpdate };
    let mut node = at("a", step, 0, state);
    node.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus::default());
    if step == Step::AfterUpdate || step == Step::Verifying {
        (node.facts.claims, node.facts.unschedulable) = (ClaimFields::default(), false);
        node.facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    }
    cluster_with(vec![node], &["a"], spec)
}

fn a(view: &mut ClusterView) -> &mut NodeView {
    view.nodes.get_mut("a").unwrap()
}

/// Writes the request that is due.
fn ask(view: &mut ClusterView, policy: &Policy, second: i64) -> String {
    let made = plan(view, policy, t(second));
    let Some(Action::Hook { request: Some(request) }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    a(view).facts.hook_request = Some(request.clone());
    request.clone()
}

/// A node in a step whose hooks are asked, and their request.
fn asked(step: Step, spec: serde_json::Value) -> (ClusterView, Policy, String) {
    let (mut view, policy) = in_step(step, spec);
    let request = ask(&mut view, &policy, 1);
    (view, policy, request)
}

fn answers(view: &mut ClusterView, hook: &str, answer: &str) {
    a(view).facts.hook_answers.insert(hook.into(), answer.into());
}

#[test]
fn staged_node_awaits_hooks_before_its_drain() {
    for (spec, step) in [
        (both(), "step BeforeDrain"),
        (json!({"hooks": [{"name": "ceph", "after": {}}]}), "step Draining"),
        (json!({"hooks": [{"name": "ceph"}]}), "step Draining"),
        (json!({}), "step Draining"),
    ] {
        let (mut view, _) = cluster(vec![at("a", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
        let agent = &mut shadow(&mut view).status.agent;
        agent.updates.as_mut().unwrap().available_versions = vec![NEW];
        let policy = with_policy(&mut view, spec.clone());
        assert_eq!(outcome(&plan(&view, &policy, t(0))), step, "{spec}");
    }
}

#[test]
fn node_is_claimed_then_hooks_are_asked_then_awaited() {
    let spec = json!({"loadBalancer": {}, "hooks": [{"name": "ceph", "before": {}}]});
    let (mut view, policy) = in_step(Step::BeforeDrain, spec);
    (a(&mut view).facts.claims, a(&mut view).facts.unschedulable) = (ClaimFields::default(), false);
    let made = plan(&view, &policy, t(1));
    let Some(Action::Claim { fields, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert!(fields.has(ClaimField::Cordon) && !fields.has(ClaimField::Balancer), "connections go on");

    (a(&mut view).facts.claims, a(&mut view).facts.unschedulable) = (*fields, true);
    let request = ask(&mut view, &policy, 1);
    assert_eq!(Some(&request), hooks::request(&progress(Step::BeforeDrain, 0)).as_ref());
    // The wait is recorded on the shadow, and is what the plan counts afterwards.
    write_due(&mut view, &policy, 2);
    let blocked = shadow(&mut view).status.conditions.iter().find(|c| c.type_ == BLOCKED).unwrap();
    assert!(blocked.reason == "AwaitingHook" && blocked.message.contains("ceph"), "{blocked:?}");
    let made = plan(&view, &policy, t(2));
    let wait = Wait::AwaitingHook { hooks: vec!["ceph".into()], request: request.clone(), until: t(300) };
    assert_eq!((made.waits.get("a"), made.wake), (Some(&wait), Some(t(300))));
    assert!(made.evictions.is_empty() && made.pods.contains("a"));

    answers(&mut view, "ceph", &request);
    assert_eq!(outcome(&plan(&view, &policy, t(3))), "step LeavingLoadBalancer");
    let policy = with_policy(&mut view, json!({"hooks": [{"name": "ceph", "before": {}}]}));
    assert_eq!(outcome(&plan(&view, &policy, t(3))), "step Draining");
}

#[test]
fn each_hook_has_to_answer_this_very_request() {
    let (mut view, policy, request) = asked(Step::BeforeDrain, both());
    let old = request.replace("BeforeDrain/1/", "BeforeDrain/0/");
    for (ceph, mute, expected) in [
        (None, None, "step BeforeDrain"),
        (Some(request.as_str()), None, "step BeforeDrain"),
        (None, Some(request.as_str()), "step BeforeDrain"),
        (Some(old.as_str()), Some(request.as_str()), "step BeforeDrain"),
        (Some(request.as_str()), Some(request.as_str()), "step Draining"),
    ] {
        a(&mut view).facts.hook_answers.clear();
        for (hook, answer) in [("ceph", ceph), ("mute", mute)] {
            answer.into_iter().for_each(|answer| answers(&mut view, hook, answer));
        }
        // A wait is written to the condition first.
        assert_eq!(outcome(&plan(&view, &policy, t(2))), expected, "{ceph:?} {mute:?}");
    }
}

#[test]
fn message_names_the_hooks_that_are_still_awaited() {
    let (mut view, policy, request) = asked(Step::BeforeDrain, both());
    write_due(&mut view, &policy, 2);
    answers(&mut view, "mute", &request);
    let made = plan(&view, &policy, t(3));
    let Some(Action::Status { status, note: None }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    let blocked = status.conditions.iter().find(|c| c.type_ == BLOCKED).unwrap();
    assert!(blocked.message.contains("hook(s) ceph to answer"), "{}", blocked.message);
    written(&mut view, &made.actions["a"]);
    assert!(plan(&view, &policy, t(4)).actions.is_empty(), "the condition is written once");
}

#[test]
fn deadline_ends_or_continues_the_attempt_as_policy_says() {
    let (mut view, policy, request) = asked(Step::BeforeDrain, both());
    // Each hook has its own deadline. That of `mute` alone ends nothing.
    assert_eq!(outcome(&plan(&view, &policy, t(61))), "step BeforeDrain");
    assert_eq!(outcome(&plan(&view, &policy, t(119))), "step BeforeDrain");
    assert_eq!(outcome(&plan(&view, &policy, t(120))), "HookTimedOut");
    answers(&mut view, "ceph", &request);
    assert_eq!(outcome(&plan(&view, &policy, t(59))), "step BeforeDrain");
    let made = plan(&view, &policy, t(60));
    assert_eq!(outcome(&made), "step Draining");
    let Some(Action::Status { note: Some(note), .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert!(note.warning && note.reason == "HookTimedOut" && note.message.contains("mute"), "{note:?}");
    // As the deadline of each other step, it is no later for a request that could not be written.
    a(&mut view).facts.hook_request = None;
    assert_eq!(outcome(&plan(&view, &policy, t(60))), "step Draining");
    a(&mut view).facts.hook_request = Some(request);
    a(&mut view).facts.hook_answers.clear();
    view.leader_since = t(119);
    // A hook has its time again: after an outage of the control plane, its controller starts again as well.
    assert_ne!(outcome(&plan(&view, &policy, t(238))), "HookTimedOut");
    assert_eq!(outcome(&plan(&view, &policy, t(239))), "HookTimedOut");
}

#[test]
fn hooks_that_were_never_asked_are_not_reported_as_silent() {
    let uncordoned = |view: &mut ClusterView| {
        (a(view).facts.claims, a(view).facts.unschedulable) = (ClaimFields::default(), false);
    };
    let case = |sentence: &str, step: Step, reason: &str, message: &str, change: fn(&mut ClusterView)| {
        let (mut view, policy) = in_step(step, both());
        change(&mut view);
        let made = plan(&view, &policy, t(120));
        assert_eq!(outcome(&made), reason, "{sentence}");
        let Some(Action::Status { note: Some(note), .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
        assert!(note.message.contains(message), "{sentence}: {}", note.message);
    };
    case("the node was not cordoned", Step::BeforeDrain, "DrainTimedOut", "could not be cordoned", uncordoned);
    case("the request was not written", Step::BeforeDrain, "DrainTimedOut", "was not on the Node", |_| {});
    case("nor that after the update", Step::AfterUpdate, "HookTimedOut", "was not on the Node", |_| {});
    let silent = "hook ceph has not answered";
    case("they were asked, and the node is uncordoned", Step::BeforeDrain, "HookTimedOut", silent, |view| {
        a(view).facts.hook_request = hooks::request(&progress(Step::BeforeDrain, 0));
        (a(view).facts.claims, a(view).facts.unschedulable) = (ClaimFields::default(), false);
    });
    // Where policy goes on without any answer, the node has the time of its drain to be cordoned.
    let continues = json!({"hooks": [{"name": "mute", "before": {"timeout": "1m", "onTimeout": "Continue"}}]});
    let (mut view, policy) = in_step(Step::BeforeDrain, continues);
    uncordoned(&mut view);
    assert_eq!(outcome(&plan(&view, &policy, t(60))), "step Draining");
}

#[test]
fn refusal_ends_the_attempt_with_name_and_reason_also_where_timeout_continues() {
    for hook in ["ceph", "mute"] {
        let (mut view, policy, request) = asked(Step::BeforeDrain, both());
        answers(&mut view, hook, &format!("{request} Refused: HEALTH_WARN"));
        let made = plan(&view, &policy, t(2));
        assert_eq!(outcome(&made), "HookRefused");
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!() };
        let last = status.report.record.as_ref().unwrap().last.as_ref().unwrap();
        assert!(last.message.contains(hook) && last.message.ends_with(": HEALTH_WARN"), "{}", last.message);
        assert_eq!(status.report.record.as_ref().unwrap().failures, 1, "it counts against the node");
    }
}

#[test]
fn hook_that_policy_drops_is_no_longer_awaited() {
    let (mut view, policy, request) = asked(Step::BeforeDrain, both());
    answers(&mut view, "mute", &request);
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "step BeforeDrain");
    let policy = with_policy(&mut view, json!({"hooks": [{"name": "mute", "before": {}}]}));
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "step Draining");
    let policy = with_policy(&mut view, json!({}));
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "step Draining");
}

/// A hook that is added, and one whose time is made shorter, gets its whole time.
#[test]
fn change_of_policy_begins_the_time_of_hooks_again() {
    for before in [json!({"timeout": "1h"}), json!({"timeout": "5m"})] {
        let (mut view, policy, _) = asked(Step::BeforeDrain, json!({"hooks": [{"name": "ceph", "before": before}]}));
        assert_eq!(outcome(&plan(&view, &policy, t(299))), "step BeforeDrain");
        let added = json!({"hooks": [{"name": "ceph", "before": {"timeout": "5m"}}, {"name": "mute", "before": {}}]});
        let policy = with_policy(&mut view, added);
        view.operator.as_mut().unwrap().spec_changed = Some(t(1200));
        // The API server's clock may be ahead.
        for now in [1199, 1200, 1499] {
            assert_eq!(outcome(&plan(&view, &policy, t(now))), "step BeforeDrain", "{now}");
        }
        assert_eq!(outcome(&plan(&view, &policy, t(1500))), "HookTimedOut");
        view.operator.as_mut().unwrap().spec_changed = Some(t(-1200));
        assert_eq!(outcome(&plan(&view, &policy, t(300))), "HookTimedOut", "an earlier change does not count");
    }
}

/// A change of the cluster and of its policy.
type Change = fn(&mut ClusterView, &mut serde_json::Value);

fn close_window(_: &mut ClusterView, spec: &mut serde_json::Value) {
    spec["schedule"] = json!({"windows": [{"cron": "0 12 * * *", "duration": "1h"}]});
}

/// Has an expression of `health.before` return something for node `a`.
fn fire(view: &mut ClusterView, spec: &mut serde_json::Value, query: &str) {
    spec["prometheus"] = json!({"url": "http://prometheus:9090"});
    spec["health"] = json!({"before": {"expressions": [{"name": "errors", "query": query}]}});
    let query = question(&query.replace("$node", "a"));
    view.expressions.insert(query, Answer::Firing { series: "{} 1".into(), since: t(2), asked: t(2) });
}

/// A hook that takes longer than each window, or causes what an expression shows, lets no node come to its drain.
#[test]
fn second_end_in_a_row_by_a_window_or_by_an_expression_of_the_fleet_is_a_failure() {
    let fire: Change = |view, spec| fire(view, spec, "errors > 0");
    let case = |before: Option<&str>, expected: &str, failures: i64, change: Change| {
        let (mut view, _) = in_step(Step::BeforeDrain, both());
        let last =
            before.map(|reason| models::shadow::AttemptResult { reason: reason.into(), ..updated().last.unwrap() });
        shadow(&mut view).status.controller.record.get_or_insert_default().last = last;
        let mut spec = both();
        change(&mut view, &mut spec);
        let policy = with_policy(&mut view, spec);
        let request = ask(&mut view, &policy, 1);
        answers(&mut view, "ceph", &request);
        answers(&mut view, "mute", &request);
        let made = plan(&view, &policy, t(3));
        assert_eq!(outcome(&made), expected, "after {before:?}");
        assert_eq!(record_of(&made).failures, failures, "after {before:?}");
    };
    case(None, "WindowEnded", 0, close_window);
    case(Some("BlackoutBegan"), "WindowEnded", 0, close_window);
    case(Some("WindowEnded"), "GateRefused", 1, close_window);
    case(Some("GateRefused"), "GateRefused", 1, close_window);
    case(None, "ClusterUnwell", 0, fire);
    case(Some("ClusterUnwell"), "GateRefused", 1, fire);
    case(Some("GateRefused"), "GateRefused", 1, fire);
}

/// The window has closed, an expression fires, a budget has become impossible.
#[test]
fn gates_are_checked_again_after_the_wait_for_hooks() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let (mut view, _) = in_step(Step::BeforeDrain, both());
        let mut spec = both();
        change(&mut view, &mut spec);
        let policy = with_policy(&mut view, spec);
        assert!(policy.errors.is_empty(), "{sentence}: {:?}", policy.errors);
        let request = ask(&mut view, &policy, 1);
        answers(&mut view, "ceph", &request);
        answers(&mut view, "mute", &request);
        let made = plan(&view, &policy, t(3));
        assert_eq!(outcome(&made), expected, "{sentence}");
        if expected == "step Draining" {
            return;
        }
        // A window that closes is no failure; by any other refusal the node backs off, and others go first.
        let backs_off = expected != "WindowEnded";
        let failures = i64::from(expected == "GateRefused");
        let record = record_of(&made);
        assert_eq!((record.failures, record.not_before.is_some()), (failures, backs_off), "{sentence}");
        assert!(made.evictions.is_empty());
    };
    case("nothing has changed", "step Draining", |_, _| {});
    case("updates are disabled", "step Draining", |_, spec| spec["enabled"] = json!(false));
    case("window", "WindowEnded", close_window);
    case("node", "GateRefused", |view, _| a(view).facts.ready = false);
    case("expression of the node", "GateRefused", |view, spec| fire(view, spec, "errors{node=\"$node\"} > 0"));
    case("expression of the fleet", "ClusterUnwell", |view, spec| fire(view, spec, "errors > 0"));
}

/// Pods of the web API may have run on nodes that are drained, too.
#[test]
fn web_api_is_waited_for_once_hooks_have_answered() {
    let (mut view, policy) = in_step(Step::BeforeDrain, json!({}));
    view.web_api_missing = Some(t(-60));
    assert_eq!(outcome(&plan(&view, &policy, t(600))), "WebApiNotReady");
    let ended = plan(&view, &policy, t(1800));
    assert_eq!((outcome(&ended).as_str(), record_of(&ended).failures), ("ClusterUnwell", 0));
    view.web_api_missing = None;
    assert_eq!(outcome(&plan(&view, &policy, t(600))), "step Draining");
}

/// A host may not answer for some seconds, as while its API server restarts.
#[test]
fn host_that_cannot_be_used_when_hooks_have_answered_is_waited_for() {
    for reported in [unreachable(), condition(HOST_REACHABLE, HOST_BUSY, "a command runs")] {
        let waits = if reported.reason == HOST_BUSY { "HostBusy" } else { "HostNotUsable" };
        let (mut view, policy) = in_step(Step::BeforeDrain, json!({}));
        shadow(&mut view).status.conditions.push(reported);
        write_due(&mut view, &policy, 1);
        assert_eq!(outcome(&plan(&view, &policy, t(600))), waits);
        let mut answers = view.clone();
        shadow(&mut answers).status.conditions.retain(|condition| condition.type_ != HOST_REACHABLE);
        assert_eq!(outcome(&plan(&answers, &policy, t(600))), "step Draining", "{waits}");
        assert_eq!(outcome(&plan(&view, &policy, t(1800))), "GateRefused", "{waits}");
    }
}

#[test]
fn expressions_are_queried_after_the_wait_for_hooks_and_have_to_return_nothing() {
    let mut spec = both();
    spec["prometheus"] = json!({"url": "http://prometheus:9090"});
    spec["health"] = json!({"before": {"expressions": [{"name": "errors", "query": "errors > 0"}]}});
    let (mut view, policy, request) = asked(Step::BeforeDrain, spec);
    answers(&mut view, "ceph", &request);
    answers(&mut view, "mute", &request);
    let made = plan(&view, &policy, t(3));
    assert!(made.expressions.contains(&question("errors > 0")) && !made.actions.values().any(Plan::starts), "{made:?}");
    assert_eq!(outcome(&made), "ExpressionsPending");
    for (answer, expected) in [
        (Answer::Quiet { since: t(2), asked: t(2) }, "step Draining"),
        (Answer::Firing { series: "{} 1".into(), since: t(2), asked: t(2) }, "ClusterUnwell"),
        (Answer::Failed { message: "no answer".into() }, "ExpressionFails"),
    ] {
        view.expressions.insert(question("errors > 0"), answer.clone());
        assert_eq!(outcome(&plan(&view, &policy, t(4))), expected, "{answer:?}");
    }
    // A cordoned node does not wait for a result for ever.
    assert_eq!(outcome(&plan(&view, &policy, t(120 + 1800))), "ClusterUnwell");
    view.expressions.clear();
    assert_eq!(outcome(&plan(&view, &policy, t(120 + 1800))), "GateRefused");
}

#[test]
fn attempt_that_awaits_hooks_ends_from_outside_as_in_a_drain() {
    for (sentence, change, reason) in [
        ("hold", (|v: &mut ClusterView| a(v).facts.hold = Some(Hold::default())) as fn(&mut ClusterView), "Held"),
        ("label", |v| a(v).facts.labelled = false, "LabelRemoved"),
        ("reboot", |v| a(v).facts.boot_id = "b2".into(), "RebootedByOther"),
        ("release", |v| shadow(v).release = Some("now".into()), "ReleaseRequested"),
        ("deletion", |v| a(v).facts.deleting = true, "NodeDeleted"),
    ] {
        let (mut view, policy) = in_step(Step::BeforeDrain, both());
        change(&mut view);
        assert_eq!(outcome(&plan(&view, &policy, t(2))), reason, "{sentence}");
    }
    // With `enabled: false` a node with a slot is finished.
    let (mut view, _) = in_step(Step::BeforeDrain, both());
    let mut spec = both();
    spec["enabled"] = json!(false);
    let policy = with_policy(&mut view, spec);
    assert!(matches!(plan(&view, &policy, t(2)).actions.get("a"), Some(Action::Hook { .. })));
}

#[test]
fn request_stays_from_drain_to_verification() {
    for step in [Step::LeavingLoadBalancer, Step::Draining, Step::Rebooting, Step::Returning, Step::Verifying] {
        let (mut view, policy) = in_step(step, both());
        a(&mut view).facts.hook_request = hooks::request(&progress(Step::BeforeDrain, 0));
        let made = plan(&view, &policy, t(2));
        assert!(!matches!(made.actions.get("a"), Some(Action::Hook { .. })), "{step:?}: {:?}", made.actions);
    }
}

/// To a hook, the removal means that the attempt is over.
#[test]
fn request_that_another_client_removes_from_a_drained_node_is_set_again() {
    let request = hooks::request(&progress(Step::BeforeDrain, 0)).unwrap();
    let with_answer = |step, answer: &str| {
        let (mut view, policy) = in_step(step, both());
        a(&mut view).pods = Some(vec![pod("a", false)]);
        if step == Step::Rebooting {
            shadow(&mut view).spec.state = HostState::RebootedIntoUpdate;
        }
        answers(&mut view, "ceph", answer);
        // Other due writes come first.
        for _ in 0..3 {
            match plan(&view, &policy, t(2)).actions.get("a") {
                Some(action @ Action::Status { .. }) => written(&mut view, action),
                other => return other.cloned(),
            }
        }
        None
    };
    let restored = Some(Action::Hook { request: Some(request.clone()) });
    for step in [Step::Draining, Step::Rebooting, Step::Verifying] {
        assert_eq!(with_answer(step, &request), restored, "{step:?}");
        assert_eq!(with_answer(step, &format!("{request} Preparing")), restored, "{step:?}: it had begun to prepare");
        for other in ["", "BeforeDrain/0/1", &format!("{request}1")] {
            assert_ne!(with_answer(step, other), restored, "{step:?}: no hook has read it: {other}");
        }
    }
}

#[test]
fn request_that_is_removed_is_set_again_after_other_writes_and_not_once_the_attempt_has_ended() {
    let request = hooks::request(&progress(Step::BeforeDrain, 0)).unwrap();
    let (mut view, policy) = in_step(Step::Draining, both());
    (a(&mut view).facts.claims, a(&mut view).facts.unschedulable) = (ClaimFields::default(), false);
    answers(&mut view, "ceph", &request);
    let made = plan(&view, &policy, t(2));
    assert!(matches!(made.actions.get("a"), Some(Action::Claim { .. })), "{:?}", made.actions);
    // The host may still reboot.
    let (mut view, policy) = in_step(Step::Releasing, both());
    shadow(&mut view).spec.state = HostState::Idle;
    shadow(&mut view).status.controller.progress.as_mut().unwrap().permit_issued = true;
    answers(&mut view, "ceph", &request);
    write_due(&mut view, &policy, 2);
    let made = plan(&view, &policy, t(2));
    assert_eq!((made.waits["a"].as_str(), made.actions.get("a")), ("NodeNotReturned", None));
}

#[test]
fn verified_node_awaits_hooks_and_then_is_updated() {
    let (mut view, policy) = in_step(Step::Verifying, both());
    shadow(&mut view).spec.state = HostState::Idle;
    a(&mut view).lease = renewed_after(100);
    assert_eq!(outcome(&plan(&view, &policy, t(100))), "step AfterUpdate");
    let none = with_policy(&mut view, json!({"hooks": [{"name": "ceph", "before": {}}]}));
    assert_eq!(outcome(&plan(&view, &none, t(100))), "no attempt", "no hook is awaited after the update");

    let (mut view, policy) = in_step(Step::AfterUpdate, both());
    a(&mut view).facts.hook_request = hooks::request(&progress(Step::BeforeDrain, 0));
    answers(&mut view, "ceph", &hooks::request(&progress(Step::BeforeDrain, 0)).unwrap());
    let request = ask(&mut view, &policy, 1);
    assert!(request.starts_with("AfterUpdate/1/"), "{request}");
    assert_eq!(outcome(&plan(&view, &policy, t(119))), "step AfterUpdate");
    assert_eq!(outcome(&plan(&view, &policy, t(120))), "HookTimedOut");
    // An update is not interrupted any more.
    a(&mut view).facts.hold = Some(Hold::default());
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "step AfterUpdate");
    answers(&mut view, "ceph", &request);
    let made = plan(&view, &policy, t(3));
    assert_eq!((outcome(&made).as_str(), last_of(&made).reason.as_str()), ("no attempt", "Updated"));
    // The slot is kept until then.
    assert!(made.slots.is_none() && made.status.unwrap().slots.len() == 1);

    // A hook without whose answer it ends has an Event, too.
    let (mut view, _) = in_step(Step::AfterUpdate, both());
    let hooks = json!([{"name": "mute", "after": {"timeout": "1m", "onTimeout": "Continue"}}]);
    let policy = with_policy(&mut view, json!({"hooks": hooks}));
    ask(&mut view, &policy, 1);
    assert_eq!(outcome(&plan(&view, &policy, t(59))), "step AfterUpdate");
    let made = plan(&view, &policy, t(60));
    let Some(Action::Status { note: Some(note), .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
    assert_eq!((outcome(&made).as_str(), note.warning, note.reason), ("no attempt", true, "Updated"));
    assert!(note.message.contains("; going on without an answer of hook(s) mute"), "{}", note.message);
}

/// A policy with long hooks: what the verification had left is over long before they answer.
#[test]
fn node_that_is_not_well_once_hooks_have_answered_is_verified_again_for_its_whole_time() {
    let case = |sentence: &str, expected: &str, change: Change| {
        for began in [0, -900] {
            let (mut view, _, request) = asked(Step::AfterUpdate, both());
            let progress = shadow(&mut view).status.controller.progress.as_mut().unwrap();
            (progress.verifying_since, progress.soak_restarted) = (Some(t(began)), true);
            let mut spec = both();
            change(&mut view, &mut spec);
            let policy = with_policy(&mut view, spec);
            let made = plan(&view, &policy, t(2));
            assert_eq!(outcome(&made), "step AfterUpdate", "{sentence}: the hooks have not answered");
            assert!(made.slots.is_none() && made.status.unwrap().slots.len() == 1, "{sentence}: it keeps its slot");
            answers(&mut view, "ceph", &request);
            let made = plan(&view, &policy, t(3));
            assert_eq!(outcome(&made), "step Verifying", "{sentence}");
            written(&mut view, &made.actions["a"]);
            assert_eq!(outcome(&plan(&view, &policy, t(4))), expected, "{sentence}, verified since {began}");
        }
    };
    case("it is not Ready", "step Verifying", |view, _| a(view).facts.ready = false);
    case("it is under pressure", "step Verifying", |view, _| a(view).facts.pressure = Some("DiskPressure".into()));
    case("it was rebooted, as in its soak before", "step Returning", |view, _| a(view).facts.boot_id = "b3".into());
    case("a pod is not Ready", "step Verifying", |view, _| a(view).pods = Some(vec![static_pod()]));
    case("an expression fires", "step Verifying", fire_after);
    case("a taint is new", "Soaking", taint);
}

/// Has an expression of `health.after` return something for node `a`.
fn fire_after(view: &mut ClusterView, spec: &mut serde_json::Value) {
    fire(view, spec, "errors{node=\"$node\"} > 0");
    let expressions = spec["health"]["before"].take();
    spec["health"] = json!({"after": expressions});
}

/// Gives node `a` a taint that it did not have before its drain.
fn taint(view: &mut ClusterView, _: &mut serde_json::Value) {
    a(view).facts.taints = vec!["startup:NoSchedule".into()];
    shadow(view).status.controller.record.get_or_insert_default().before = Some(NodeBefore::default());
}

#[test]
fn expressions_are_queried_while_hooks_are_awaited_after_an_update() {
    let (mut view, _) = in_step(Step::AfterUpdate, both());
    let mut spec = both();
    fire_after(&mut view, &mut spec);
    let policy = with_policy(&mut view, spec);
    assert!(plan(&view, &policy, t(1)).expressions.contains(&question("errors{node=\"a\"} > 0")));
    // A new leader knows none of the answers at first.
    view.expressions.clear();
    let request = ask(&mut view, &policy, 1);
    answers(&mut view, "ceph", &request);
    view.leader_since = t(1);
    assert_eq!(outcome(&plan(&view, &policy, t(60))), "ExpressionsPending");
    assert_eq!(outcome(&plan(&view, &policy, t(61))), "no attempt");
}

#[test]
fn verification_goes_on_where_a_pod_is_not_ready_once_its_hooks_have_answered() {
    let (mut view, policy) = in_step(Step::AfterUpdate, both());
    shadow(&mut view).status.controller.progress.as_mut().unwrap().verification = true;
    let request = ask(&mut view, &policy, 1);
    answers(&mut view, "ceph", &request);
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "no attempt", "it is well");
    a(&mut view).pods = Some(vec![static_pod()]);
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "step Verifying");
}

/// The API server does not show the other pods of its owner.
#[test]
fn node_whose_pod_cannot_be_compared_once_its_hooks_have_answered_is_verified_again() {
    let (mut view, policy, request) = asked(Step::AfterUpdate, both());
    answers(&mut view, "ceph", &request);
    a(&mut view).pods = Some(vec![pod("a", false)]);
    for second in [2, 179] {
        let made = plan(&view, &policy, t(second));
        assert!(matches!(made.actions.get("a"), Some(Action::ReadOwner { .. })), "at {second}: {}", outcome(&made));
    }
    assert_eq!(outcome(&plan(&view, &policy, t(180))), "step Verifying");
}

/// A pod that crashes once an hour, and a hook that never answers.
#[test]
fn node_that_is_not_well_after_a_second_wait_for_a_silent_hook_is_not_proven() {
    let hooks = json!([{"name": "ceph", "after": {"timeout": "2h", "onTimeout": "Continue"}}]);
    let (mut view, policy, _) = asked(Step::AfterUpdate, json!({"hooks": hooks}));
    a(&mut view).pods = Some(vec![static_pod()]);
    goes_on(&mut view, &policy, 7200, "step Verifying");
    a(&mut view).pods = Some(vec![]);
    a(&mut view).lease = renewed_after(7261);
    goes_on(&mut view, &policy, 7261, "step AfterUpdate");
    let changes: [fn(&mut NodeView); 2] =
        [|node| node.pods = Some(vec![static_pod()]), |node| node.facts.pressure = Some("DiskPressure".into())];
    for change in changes {
        let mut view = view.clone();
        change(a(&mut view));
        assert_eq!(outcome(&plan(&view, &policy, t(14_460))), "step AfterUpdate");
        assert_eq!(outcome(&plan(&view, &policy, t(14_461))), "HealthUnknown");
    }
}

/// That may take hours, and its drain has emptied the node.
#[test]
fn updated_node_is_protected_from_autoscalers_until_its_hooks_have_answered() {
    let (mut view, policy) = in_step(Step::Verifying, both());
    shadow(&mut view).spec.state = HostState::Idle;
    let protection: ClaimFields = [ClaimField::ScaleDown, ClaimField::DoNotDisrupt].into_iter().collect();
    (a(&mut view).facts.claims, a(&mut view).lease) = (protection, renewed_after(100));
    goes_on(&mut view, &policy, 100, "step AfterUpdate");
    let request = ask(&mut view, &policy, 101);
    goes_on(&mut view, &policy, 102, "step AfterUpdate");
    assert_eq!(outcome(&plan(&view, &policy, t(103))), "AwaitingHook");
    answers(&mut view, "ceph", &request);
    let mut made = plan(&view, &policy, t(104));
    assert_eq!(crate::lint::lint(&view, &policy, &mut made), []);
    assert_eq!(made.actions.get("a"), Some(&Action::Release));
    a(&mut view).facts.claims = ClaimFields::default();
    assert_eq!(outcome(&plan(&view, &policy, t(105))), "no attempt");
}

/// The hook of a storage cluster cannot answer while the node's disks are away.
#[test]
fn node_that_falls_ill_soon_after_its_soak_counts_against_the_version_whatever_its_hooks_answer() {
    for (sentence, began, answer, now, expected) in [
        ("soon, and the hook refuses", 180, " Refused: disks are away", 400, "SoakFailed"),
        ("soon, and the hook answers", 180, "", 400, "SoakFailed"),
        ("an instant ago, and the hook refuses", 390, " Refused: disks are away", 400, "step Verifying"),
        ("an instant ago", 390, "", 400, "step Verifying"),
        ("hours later, when anything may be the cause", 7200, "", 8000, "step Verifying"),
    ] {
        let (mut view, policy, request) = asked(Step::AfterUpdate, both());
        let facts = &mut a(&mut view).facts;
        (facts.ready, facts.not_ready_since) = (false, Some(t(began)));
        answers(&mut view, "ceph", &format!("{request}{answer}"));
        let made = plan(&view, &policy, t(now));
        assert_eq!(outcome(&made), expected, "{sentence}");
        if began > 1000 {
            written(&mut view, &made.actions["a"]);
            let made = plan(&view, &policy, t(now + 901));
            assert_eq!(outcome(&made), "HealthUnknown", "{sentence}: at the deadline");
        }
    }
}

#[test]
fn node_that_is_taken_away_while_its_hooks_are_awaited_counts_against_no_version() {
    type Change = fn(&mut NodeFacts);
    let case = |sentence: &str, end: &str, change: Change| {
        let (mut view, policy, request) = asked(Step::AfterUpdate, both());
        let facts = &mut a(&mut view).facts;
        (facts.ready, facts.not_ready_since) = (false, Some(t(180)));
        change(facts);
        answers(&mut view, "ceph", &format!("{request} Refused: disks are away"));
        assert_eq!(outcome(&plan(&view, &policy, t(400))), end, "{sentence}");
    };
    case("a user has held it", "Held", |facts| (facts.hold, facts.held_since) = (Some(Hold::default()), Some(t(100))));
    case("an autoscaler removes it", "HealthUnknown", |facts| facts.removed_by = Some("karpenter.sh/disrupted".into()));
}

/// Carries out the write that is due, which goes on to this step.
fn goes_on(view: &mut ClusterView, policy: &Policy, second: i64, step: &str) {
    let made = plan(view, policy, t(second));
    assert_eq!(outcome(&made), step, "after {second} s");
    written(view, &made.actions["a"]);
}

/// Hours after its soak anything may be the cause.
#[test]
fn node_that_is_rebooted_once_while_a_silent_hook_is_awaited_is_verified_again() {
    type Change = fn(&mut NodeFacts);
    let case = |sentence: &str, change: Change| {
        for (action, end) in [("Continue", "no attempt"), ("Fail", "HookTimedOut")] {
            let hooks = json!([{"name": "ceph", "after": {"timeout": "2h", "onTimeout": action}}]);
            let (mut view, policy, _) = asked(Step::AfterUpdate, json!({"hooks": hooks}));
            change(&mut a(&mut view).facts);
            goes_on(&mut view, &policy, 7200, "step Verifying");
            let facts = &mut a(&mut view).facts;
            (facts.ready, facts.not_ready_since, facts.boot_id) = (true, None, "b2".into());
            shadow(&mut view).status.agent.boot_id = Some("b2".into());
            goes_on(&mut view, &policy, 7201, "step Returning");
            goes_on(&mut view, &policy, 7202, "step Verifying");
            assert_eq!(outcome(&plan(&view, &policy, t(7203))), "Soaking", "{sentence}, {action}");
            a(&mut view).lease = renewed_after(7300);
            goes_on(&mut view, &policy, 7300, "step AfterUpdate");
            assert_eq!(outcome(&plan(&view, &policy, t(14_499))), "step AfterUpdate", "{sentence}, {action}");
            assert_eq!(outcome(&plan(&view, &policy, t(14_500))), end, "{sentence}, {action}");
            // A reboot in each wait for a hook that never answers makes no circle.
            a(&mut view).facts.boot_id = "b3".into();
            goes_on(&mut view, &policy, 14_500, "step Verifying");
            let ended = plan(&view, &policy, t(14_501));
            assert_eq!(outcome(&ended), "HealthUnknown", "{sentence}, {action}: it counts against nothing");
        }
    };
    case("it is back", |facts| facts.boot_id = "b2".into());
    case("it is going down", |facts| {
        facts.ready = false;
        facts.not_ready_since = Some(t(7190));
    });
}

#[test]
fn node_that_falls_ill_after_its_first_verification_counts_against_nothing() {
    // Soon after another verification.
    let (mut view, policy) = in_step(Step::AfterUpdate, both());
    shadow(&mut view).status.controller.progress.as_mut().unwrap().soak_restarted = true;
    let request = ask(&mut view, &policy, 1);
    answers(&mut view, "ceph", &request);
    let facts = &mut a(&mut view).facts;
    (facts.ready, facts.not_ready_since) = (false, Some(t(180)));
    assert_eq!(outcome(&plan(&view, &policy, t(400))), "step Verifying");
    // It does not come back from a reboot.
    let (mut view, policy, request) = asked(Step::AfterUpdate, both());
    a(&mut view).facts.boot_id = "b2".into();
    answers(&mut view, "ceph", &request);
    goes_on(&mut view, &policy, 1000, "step Verifying");
    goes_on(&mut view, &policy, 1001, "step Returning");
    a(&mut view).facts.ready = false;
    assert_ne!(outcome(&plan(&view, &policy, t(2800))), "HealthUnknown");
    assert_eq!(outcome(&plan(&view, &policy, t(2801))), "HealthUnknown");
}

/// A host that panics some minutes after each boot, past each soak.
#[test]
fn node_that_is_rebooted_twice_soon_after_its_soak_counts_against_the_version() {
    for (sentence, second, expected) in [
        ("while its hook is awaited", 250, "SoakFailed"),
        ("after its hook was awaited", 480, "SoakFailed"),
        ("late", 901, "step Verifying"),
    ] {
        let hooks = json!([{"name": "ceph", "after": {"timeout": "5m", "onTimeout": "Continue"}}]);
        let (mut view, policy, _) = asked(Step::AfterUpdate, json!({"hooks": hooks}));
        a(&mut view).facts.boot_id = "b2".into();
        goes_on(&mut view, &policy, 120, "step AfterUpdate");
        assert_eq!(outcome(&plan(&view, &policy, t(301))), "Soaking", "{sentence}: once is nothing");
        a(&mut view).facts.boot_id = "b3".into();
        assert_eq!(outcome(&plan(&view, &policy, t(second))), expected, "{sentence}");
    }
}

/// The pods that its network needs start slowly.
#[test]
fn node_that_comes_back_slowly_from_one_reboot_soon_after_its_soak_does_not_count() {
    let (mut view, policy, request) = asked(Step::AfterUpdate, both());
    let facts = &mut a(&mut view).facts;
    (facts.boot_id, facts.ready, facts.not_ready_since) = ("b2".into(), false, Some(t(110)));
    goes_on(&mut view, &policy, 120, "step AfterUpdate");
    answers(&mut view, "ceph", &request);
    for second in [125, 200, 899] {
        assert_eq!(outcome(&plan(&view, &policy, t(second))), "Soaking", "{second}");
    }
    assert_eq!(outcome(&plan(&view, &policy, t(900))), "step Verifying");
}

#[test]
fn node_that_is_rebooted_once_soon_after_its_soak_is_verified_again() {
    let (mut view, policy, request) = asked(Step::AfterUpdate, both());
    a(&mut view).facts.boot_id = "b2".into();
    shadow(&mut view).status.agent.boot_id = Some("b2".into());
    goes_on(&mut view, &policy, 100, "step AfterUpdate");
    answers(&mut view, "ceph", &request);
    assert_eq!(outcome(&plan(&view, &policy, t(899))), "Soaking");
    goes_on(&mut view, &policy, 900, "step Verifying");
    assert_eq!(outcome(&plan(&view, &policy, t(901))), "Soaking");
    a(&mut view).lease = renewed_after(961);
    goes_on(&mut view, &policy, 961, "step AfterUpdate");
    assert_eq!(outcome(&plan(&view, &policy, t(962))), "no attempt");
}

#[test]
fn node_that_is_well_again_when_hooks_answer_is_updated() {
    let (mut view, policy, request) = asked(Step::AfterUpdate, both());
    a(&mut view).facts.ready = false;
    assert_eq!(outcome(&plan(&view, &policy, t(2))), "step AfterUpdate");
    a(&mut view).facts.ready = true;
    answers(&mut view, "ceph", &request);
    assert_eq!(outcome(&plan(&view, &policy, t(12))), "no attempt");
}

#[test]
fn node_that_is_rebooted_into_another_version_ends_before_hooks_have_answered() {
    let (mut view, policy, _) = asked(Step::AfterUpdate, both());
    let facts = &mut a(&mut view).facts;
    (facts.boot_id, facts.os_image) = ("b2".into(), format!("Bottlerocket OS {OLD} (aws-k8s-1.37)"));
    assert_eq!(outcome(&plan(&view, &policy, t(3))), "BootedOtherVersion");
}

#[test]
fn node_that_is_verified_again_while_hooks_are_awaited_has_its_whole_soak_and_keeps_the_request() {
    let (mut view, policy, request) = asked(Step::AfterUpdate, both());
    answers(&mut view, "ceph", &request);
    answers(&mut view, "mute", &hooks::request(&progress(Step::BeforeDrain, 0)).unwrap());
    a(&mut view).facts.ready = false;
    write_due(&mut view, &policy, 30);
    a(&mut view).facts.ready = true;
    let made = plan(&view, &policy, t(31));
    assert_eq!((outcome(&made).as_str(), made.waits.get("a")), ("Soaking", Some(&Wait::Soaking { until: t(90) })));
    // Another client removes it. A hook that has not answered it was asked too.
    a(&mut view).facts.hook_request = None;
    assert_eq!(plan(&view, &policy, t(31)).actions.get("a"), Some(&Action::Hook { request: Some(request) }));
}

/// The desired state is withdrawn first.
#[test]
fn verified_node_that_does_not_stay_well_until_its_attempt_has_ended_is_not_updated() {
    let (mut view, policy) = in_step(Step::Verifying, json!({}));
    shadow(&mut view).spec.state = HostState::Idle;
    a(&mut view).facts.ready = false;
    assert_eq!(outcome(&plan(&view, &policy, t(100))), "step Verifying");
}

#[test]
fn ended_attempt_withdraws_the_request_also_on_a_held_node() {
    for held in [false, true] {
        let (mut view, policy) = in_step(Step::Releasing, both());
        shadow(&mut view).spec.state = HostState::Idle;
        a(&mut view).facts.hook_request = Some("BeforeDrain/1/1".into());
        a(&mut view).facts.hold = held.then(Hold::default);
        let made = plan(&view, &policy, t(1));
        if !held {
            assert_eq!(made.actions.get("a"), Some(&Action::Release), "the claim is released first");
            (a(&mut view).facts.claims, a(&mut view).facts.unschedulable) = (ClaimFields::default(), false);
        }
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.actions.get("a"), Some(&Action::Hook { request: None }), "held: {held}");
        a(&mut view).facts.hook_request = None;
        assert_eq!(outcome(&plan(&view, &policy, t(1))), "no attempt", "held: {held}");
    }
}

#[test]
fn request_without_an_attempt_is_withdrawn() {
    let left = |claimed: bool, held: bool, observed: u64| {
        let mut node = node("a");
        node.facts.hook_request = Some("BeforeDrain/1/1".into());
        if claimed {
            (node.facts.claims, node.facts.unschedulable) = (ClaimFields::USUAL, true);
        }
        node.facts.hold = held.then(Hold::default);
        node.observed_for = std::time::Duration::from_secs(observed);
        let (view, policy) = cluster_with(vec![node], &[], json!({}));
        plan(&view, &policy, t(1)).actions.get("a").cloned()
    };
    let withdrawn = Some(Action::Hook { request: None });
    assert_eq!(left(false, false, 0), withdrawn);
    assert_eq!(left(true, true, 0), withdrawn, "a hold keeps the claim alone");
    // An issued permit is not known any more: the host may still reboot.
    assert!(!matches!(left(true, false, 0), Some(Action::Hook { .. })));
    assert_eq!(left(true, false, 1_000_000), Some(Action::Release));
}

/// The shadow and the label are gone.
#[test]
fn request_without_a_shadow_gets_one() {
    let mut orphan = node("a");
    orphan.facts.hook_request = Some("BeforeDrain/1/1".into());
    (orphan.facts.labelled, orphan.shadow) = (false, None);
    let (view, policy) = cluster(vec![orphan], &[]);
    assert_eq!(plan(&view, &policy, t(1)).shadows.len(), 1);
}

#[test]
fn defaults_of_hooks() {
    let spec: BottlerocketUpdateOperatorSpec =
        serde_json::from_value(json!({"hooks": [{"name": "ceph", "before": {}}]})).unwrap();
    let policy = Policy::from_spec(&spec).unwrap();
    let before = policy.hooks[0].before.unwrap();
    assert_eq!((before.timeout.as_secs(), before.continues, policy.hooks[0].after), (300, false, None));
}
