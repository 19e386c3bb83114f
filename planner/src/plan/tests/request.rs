//! Tables of one-shot requests: each is carried out once, and acknowledged where the user expects it.

use models::condition::true_condition;
use models::names;
use models::operator::FROZEN;
use models::shadow::{
    BLOCKED, HOST_ARMED_BY_OTHER, HOST_REACHABLE, HostState, MOST_MISUNDERSTOOD, Record, Step, VersionFailure,
};

use serde_json::json;

use crate::annotations::{HOLD_REFUSED, Misunderstood, UNKNOWN_REQUEST};
use crate::decision::Action;
use crate::fixtures::{
    NEW, at, cluster, cluster_with, condition, failure, node, shadow, t, updated, write_due, written,
};
use crate::hold::Hold;
use crate::plan::plan;
use crate::view::{ClusterView, NodeFacts, Projection as _, ShadowFacts};
use crate::wait::Wait;

/// The acknowledged `retry` and `release` of node `a`.
fn acknowledged(view: &mut ClusterView) -> (Option<String>, Option<String>) {
    let requests = shadow(view).status.controller.record.clone().unwrap_or_default().requests.unwrap_or_default();
    (requests.retry, requests.release)
}

#[test]
fn resume_is_acknowledged_when_all_failures_are_resolved() {
    for (sentence, resolved_by, done) in
        [("a failure is left", None, false), ("all failures are resolved", Some("monday".to_owned()), true)]
    {
        let mut failed = node("a");
        let version_failures = vec![VersionFailure { resolved_by, ..failure(NEW) }];
        let record = Record { version_failures, ..Record::default() };
        failed.shadow.as_mut().unwrap().status.controller.record = Some(record);
        let (mut view, policy) = cluster(vec![failed], &[]);
        view.operator.as_mut().unwrap().resume = Some("monday".into());
        let made = plan(&view, &policy, t(1));
        let status = made.status.unwrap();
        let resume = status.requests.clone().and_then(|requests| requests.resume);
        assert_eq!(resume, done.then(|| "monday".to_owned()), "{sentence}");
        let frozen = true_condition(&status.conditions, FROZEN).is_some();
        assert_eq!(frozen, !done, "{sentence}");
    }
}

#[test]
fn retry_ends_back_off_once_and_is_acknowledged() {
    let mut waiting = node("a");
    let record = Record { failures: 1, not_before: Some(t(1000)), ..Record::default() };
    waiting.shadow.as_mut().unwrap().status.controller.record = Some(record);
    let (mut view, policy) = cluster(vec![waiting], &[]);
    view.operator.as_mut().unwrap().spec.enabled = Some(false);
    let policy = crate::policy::Policy { enabled: false, ..policy };
    shadow(&mut view).retry = Some("now".into());
    write_due(&mut view, &policy, 1);
    assert_eq!(acknowledged(&mut view), (Some("now".into()), None));
    assert_eq!(shadow(&mut view).status.controller.record.as_ref().unwrap().not_before, None);
    assert_eq!(plan(&view, &policy, t(2)).actions.get("a"), None, "it is carried out once");
    shadow(&mut view).retry = Some("again".into());
    assert!(plan(&view, &policy, t(3)).actions.contains_key("a"), "another value is another request");
}

#[test]
fn event_of_retry_says_what_the_request_did_and_no_more() {
    for (sentence, not_before, is_armed, may_disarm, expected) in [
        ("in back-off", Some(1000), false, false, "retry requested: the back-off is over"),
        ("its back-off was over", Some(0), false, false, "retry requested"),
        ("without a back-off, as after the pause of a brake", None, false, false, "retry requested"),
        ("armed", None, true, true, "retry requested: the agent may disarm the image that it has no record of"),
        ("disarmed since an earlier request", None, false, true, "retry requested"),
    ] {
        let mut asked = node("a");
        let of_node = asked.shadow.as_mut().unwrap();
        of_node.retry = Some("now".into());
        let record = Record { not_before: not_before.map(t), ..Record::default() };
        of_node.status.controller.record = Some(record);
        if is_armed {
            of_node.status.conditions.push(condition(HOST_REACHABLE, HOST_ARMED_BY_OTHER, ""));
        }
        let boot = may_disarm.then(|| asked.facts.boot_id.clone());
        of_node.spec.host.get_or_insert_default().disarm_in_boot = boot;
        let (view, policy) = cluster(vec![asked], &[]);
        let action = plan(&view, &policy, t(1)).actions.remove("a");
        let Some(Action::Status { note: Some(note), .. }) = &action else { panic!("{sentence}: {action:?}") };
        assert_eq!((note.reason, note.message.as_str()), ("Retry", expected), "{sentence}");
    }
}

/// The requests of node `a` that are not understood, as its shadow records them.
fn misunderstood(view: &mut ClusterView) -> Vec<String> {
    let record = shadow(view).status.controller.record.clone().unwrap_or_default();
    record.requests.unwrap_or_default().misunderstood
}

#[test]
fn requests_that_are_not_understood_are_events_once_each() {
    let found = |reason, message: &str| Misunderstood { reason, message: message.to_owned() };
    let hold = || found(HOLD_REFUSED, "hold: until=friday");
    let drill = || found(UNKNOWN_REQUEST, "drill: Evict");
    let (mut view, policy) = cluster(vec![node("a")], &[]);
    let policy = crate::policy::Policy { enabled: false, ..policy };
    let mut told = |sentence: &str, node: Vec<Misunderstood>, of_shadow: Vec<Misunderstood>, expected: &[&str]| {
        view.nodes.get_mut("a").unwrap().facts.misunderstood = node;
        shadow(&mut view).misunderstood = of_shadow;
        let mut events = Vec::new();
        for second in 0..10 {
            let Some(action) = plan(&view, &policy, t(second)).actions.remove("a") else {
                assert_eq!(events, expected, "{sentence}");
                return misunderstood(&mut view);
            };
            let Action::Status { note, .. } = &action else { panic!("{sentence}: {action:?}") };
            events.extend(note.iter().map(|note| {
                assert!(note.warning, "{sentence}");
                note.reason
            }));
            written(&mut view, &action);
        }
        panic!("{sentence}: written again and again");
    };
    assert_eq!(told("none", vec![], vec![], &[]), Vec::<String>::new());
    assert_eq!(told("a hold", vec![hold()], vec![], &[HOLD_REFUSED]), [hold().message]);
    let both = [hold().message, drill().message];
    assert_eq!(told("a drill beside it", vec![hold()], vec![drill()], &[UNKNOWN_REQUEST]), both);
    assert_eq!(told("the hold is removed", vec![], vec![drill()], &[]), [drill().message]);
    assert_eq!(told("it is back", vec![hold()], vec![drill()], &[HOLD_REFUSED]), both);
    assert_eq!(told("both are removed", vec![], vec![], &[]), Vec::<String>::new());
    assert_eq!(told("both at once", vec![hold()], vec![drill()], &[HOLD_REFUSED, UNKNOWN_REQUEST]), both);
    let many = (0..20).map(|number| found(UNKNOWN_REQUEST, &format!("{number}: {}", "x".repeat(1000)))).collect();
    let kept = told("many", many, vec![], &[UNKNOWN_REQUEST; MOST_MISUNDERSTOOD]);
    assert!(kept.len() == MOST_MISUNDERSTOOD && kept.iter().all(|message| message.len() <= 512), "{kept:?}");
}

#[test]
fn hold_whose_end_cannot_be_read_holds_no_node_and_is_an_event() {
    let (mut view, policy) = cluster(vec![node("a")], &[]);
    let annotations = json!({names::HOLD_ANNOTATION: "until=friday reason=audit"});
    let object = json!({"metadata": {"name": "a", "annotations": annotations}});
    let facts = NodeFacts::project(&serde_json::from_value(object).unwrap()).unwrap();
    let node = &mut view.nodes.get_mut("a").unwrap().facts;
    (node.hold, node.misunderstood) = (facts.hold, facts.misunderstood);
    let refused = plan(&view, &policy, t(1)).actions.remove("a").unwrap();
    let Action::Status { note: Some(note), .. } = &refused else { panic!("{refused:?}") };
    assert!(note.reason == HOLD_REFUSED && note.message.contains("until=friday"), "{note:?}");
    written(&mut view, &refused);
    let begins = plan(&view, &policy, t(2)).actions.remove("a").unwrap();
    assert_eq!(begins.next_step(), Some(Step::Staging));
}

#[test]
fn hold_ends_at_its_time_for_which_the_planner_wakes() {
    let hold = Hold { until: Some(t(60)), reason: Some("audit".into()) };
    let wait = Wait::Held { until: hold.until, reason: hold.reason.clone() };
    for (sentence, hold, now, expected) in [
        ("before its end", hold.clone(), 59, Some((wait, Some(t(60))))),
        ("at its end", hold, 60, None),
        ("without an end", Hold::default(), 60, Some((Wait::Held { until: None, reason: None }, None))),
    ] {
        let mut held = node("a");
        held.facts.hold = Some(hold);
        let (mut view, policy) = cluster(vec![], &[]);
        let shadow =
            held.shadow.take().map(|shadow| ShadowFacts { owner_uid: Some(held.facts.uid.clone()), ..*shadow });
        view.insert(held.facts, shadow, t(now));
        let begins = plan(&view, &policy, t(now)).actions["a"].next_step() == Some(Step::Staging);
        assert_eq!(begins, expected.is_none(), "{sentence}");
        if let Some(expected) = expected {
            // The reason is recorded first.
            let action = plan(&view, &policy, t(now)).actions["a"].clone();
            written(&mut view, &action);
            let made = plan(&view, &policy, t(now));
            assert_eq!((made.waits["a"].clone(), made.wake), expected, "{sentence}");
        }
    }
}

#[test]
fn changed_hold_is_recorded_once_with_its_new_end_and_reason() {
    let (mut view, policy) = cluster(vec![node("a")], &[]);
    for (sentence, until, reason) in [
        ("the first hold", Some(60), "audit"),
        ("another end", Some(120), "audit"),
        ("another reason", Some(120), "disk swap"),
        ("no end", None, "disk swap"),
    ] {
        let hold = Hold { until: until.map(t), reason: Some(reason.into()) };
        let wait = Wait::Held { until: hold.until, reason: hold.reason.clone() };
        view.nodes.get_mut("a").unwrap().facts.hold = Some(hold);
        let action = plan(&view, &policy, t(1)).actions.remove("a").unwrap_or_else(|| panic!("{sentence}"));
        written(&mut view, &action);
        let blocked = true_condition(&shadow(&mut view).status.conditions, BLOCKED).unwrap();
        assert_eq!(blocked.message, wait.to_string(), "{sentence}");
        assert_eq!(plan(&view, &policy, t(2)).actions.get("a"), None, "{sentence}: once");
    }
}

#[test]
fn release_of_node_in_service_is_only_acknowledged() {
    let (mut view, policy) = cluster(vec![node("a")], &[]);
    view.operator.as_mut().unwrap().spec.enabled = Some(false);
    let policy = crate::policy::Policy { enabled: false, ..policy };
    shadow(&mut view).release = Some("now".into());
    let before = shadow(&mut view).status.clone();
    write_due(&mut view, &policy, 1);
    assert_eq!(acknowledged(&mut view), (None, Some("now".into())));
    assert_eq!(plan(&view, &policy, t(2)).actions.get("a"), None, "it is carried out once");
    let mut after = shadow(&mut view).status.clone();
    after.controller.record = before.controller.record.clone();
    assert_eq!(after, before, "nothing but the record of the request has changed");
}

#[test]
fn release_during_attempt_is_acknowledged_when_attempt_ends() {
    let (mut view, policy) = cluster(vec![at("a", Step::Draining, 0, HostState::StagedUpdate)], &["a"]);
    shadow(&mut view).release = Some("now".into());
    let made = plan(&view, &policy, t(1));
    assert!(matches!(made.actions["a"], Action::Status { .. }), "{:?}", made.actions);
    written(&mut view, &made.actions["a"]);
    let progress = shadow(&mut view).status.controller.progress.clone();
    assert_eq!(progress.map(|progress| progress.step), Some(Step::Releasing));
    assert_eq!(acknowledged(&mut view), (None, Some("now".into())));
}

#[test]
fn released_node_begins_again_after_the_others_and_at_once_if_there_are_none() {
    let released = || {
        let mut node = node("a");
        let mut record = updated();
        record.last.as_mut().unwrap().reason = "ReleaseRequested".into();
        node.shadow.as_mut().unwrap().status.controller.record = Some(record);
        node
    };
    let staging = || at("b", Step::Staging, 0, HostState::StagedUpdate);
    let staged = || at("b", Step::Staged, 0, HostState::StagedUpdate);
    let pre_staged = json!({"strategy": {"preStage": {"maxConcurrent": 5}}});
    for (sentence, others, spec, begins) in [
        ("it is alone", vec![], json!({}), true),
        ("the only slot is for the other one", vec![node("b")], json!({}), false),
        ("the other one downloads its image", vec![staging()], json!({}), false),
        ("the other one has its image", vec![staged()], json!({}), false),
        ("both may have a slot", vec![node("b")], json!({"maxUnavailable": 2}), true),
        ("images are downloaded ahead of time", vec![node("b")], pre_staged.clone(), false),
        ("it is alone, and images are downloaded ahead of time", vec![], pre_staged, true),
    ] {
        let (view, policy) = cluster_with(others.into_iter().chain([released()]).collect(), &[], spec);
        let made = plan(&view, &policy, t(100));
        assert_eq!(made.actions.contains_key("a"), begins, "{sentence}: {made:?}");
        assert!(begins || matches!(made.waits.get("a"), Some(Wait::Queued { .. })), "{sentence}: {made:?}");
    }
}
