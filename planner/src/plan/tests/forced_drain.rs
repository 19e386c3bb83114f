//! The deletion of the pods that are left at the deadline of a drain.

use super::drain::names;
use crate::decision::{Action, Evictions};
use crate::fixtures::*;
use crate::plan::plan;
use crate::policy::Policy;
use crate::view::{InFlight, PodFacts};

/// Past the deadline, with `Force`.
#[test]
fn forced_drain_is_recorded_then_deletes_with_grace_then_without() {
    let stuck =
        || PodFacts { terminating: true, ends_by: Some(t(5)), ..PodFacts { name: "stuck".into(), ..pod("s", false) } };
    let (mut view, release) = draining(serde_json::json!({"drain": {"timeout": "1m"}}), vec![pod("a", false), stuck()]);
    let made = plan(&view, &release, t(60));
    assert!(
        matches!(made.actions.get("a"), Some(Action::Status { note: Some(note), .. }) if note.reason == "UpdateFailed")
    );

    view.operator.as_mut().unwrap().spec =
        serde_json::from_value(serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}})).unwrap();
    let force = Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
    let before = plan(&view, &force, t(59));
    assert!(before.evictions.get("a").is_some_and(|e| !e.delete), "{:?}", before.actions);
    let recorded = plan(&view, &force, t(60)).actions.remove("a").unwrap();
    assert!(matches!(&recorded, Action::Status { note: Some(note), .. } if note.reason == "DrainForced"
        && note.message.contains("shop/p-a") && note.message.contains("shop/stuck")));
    written(&mut view, &recorded);
    let Evictions { pods, grace, delete: true, .. } = plan(&view, &force, t(60)).evictions.remove("a").unwrap() else {
        panic!()
    };
    assert_eq!((names(&pods), grace), (vec!["stuck"], Some(0)), "it has outlived its own grace period");
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().retain(|pod| pod.name != "stuck");
    let Evictions { pods, grace, delete: true, .. } = plan(&view, &force, t(60)).evictions.remove("a").unwrap() else {
        panic!()
    };
    assert_eq!((names(&pods), grace), (vec!["p-a"], None));
    // Deleted, and waited for until its grace period is over.
    let leaving = PodFacts { terminating: true, ends_by: Some(t(90)), ..pod("a", false) };
    view.nodes.get_mut("a").unwrap().pods = Some(vec![leaving]);
    let waits = plan(&view, &force, t(61));
    assert!(waits.actions.is_empty() && waits.wake <= Some(t(90)), "{:?} {:?}", waits.actions, waits.wake);
    let late = plan(&view, &force, t(90));
    assert!(late.evictions.get("a").is_some_and(|e| e.delete && e.grace == Some(0)), "{:?}", late.actions);
    let last = plan(&view, &force, t(90 + 299));
    assert!(last.evictions.get("a").is_some_and(|e| e.delete && e.grace == Some(0)), "{:?}", last.actions);
    let never = plan(&view, &force, t(90 + 300));
    assert!(
        matches!(never.actions.get("a"), Some(Action::Status { note: Some(note), .. }) if note.reason == "UpdateFailed")
    );
}

/// The pod may take an hour to end, and does not.
#[test]
fn forced_drain_deletes_without_grace_only_after_grace_period() {
    let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false)]);
    let recorded = plan(&view, &policy, t(60)).actions.remove("a").unwrap();
    written(&mut view, &recorded);
    let made = plan(&view, &policy, t(60));
    assert!(made.evictions.get("a").is_some_and(|e| e.delete && e.grace.is_none()), "{:?}", made.actions);
    let ends = 60 + 3600;
    view.nodes.get_mut("a").unwrap().pods =
        Some(vec![PodFacts { terminating: true, ends_by: Some(t(ends)), ..pod("a", false) }]);
    let made = plan(&view, &policy, t(61));
    assert!(made.actions.is_empty() && made.wake == Some(t(60 + 300)), "{:?} {:?}", made.actions, made.wake);
    // Named five minutes after the deadline, however long its grace period is.
    let named = plan(&view, &policy, t(60 + 300)).actions.remove("a").unwrap();
    assert!(
        matches!(&named, Action::Status { status, note: Some(note) } if note.reason == "DrainBlocked"
            && status.report.drain.as_ref().unwrap().blockers[0].message.ends_with("to end")),
        "{named:?}"
    );
    written(&mut view, &named);
    let made = plan(&view, &policy, t(ends - 1));
    assert!(made.actions.is_empty() && made.wake == Some(t(ends)), "{:?} {:?}", made.actions, made.wake);
    assert_eq!(made.waits["a"].as_str(), "DrainBlocked");
    let made = plan(&view, &policy, t(ends));
    assert!(made.evictions.get("a").is_some_and(|e| e.delete && e.grace == Some(0)), "{:?}", made.actions);
}

/// `Force`, and a pod that policy refuses came to the node meanwhile.
#[test]
fn forced_drain_fails_on_refused_pod_or_unready_node() {
    let spec = || serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    for (pods, ready) in [(vec![pod("a", true)], true), (vec![pod("a", false)], false)] {
        let (mut view, policy) = draining(spec(), pods);
        let node = view.nodes.get_mut("a").unwrap();
        node.facts.ready = ready;
        let status = &mut node.shadow.as_mut().unwrap().status;
        status.controller.drain = Some(models::shadow::DrainStatus { forced_since: Some(t(60)), ..Default::default() });
        let made = plan(&view, &policy, t(61));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
        let last = status.report.record.as_ref().unwrap().last.as_ref().unwrap();
        assert_eq!(last.reason, "DrainTimedOut");
        assert_eq!(last.message.contains("not Ready"), !ready, "{}", last.message);
    }
}

#[test]
fn forced_deletion_does_not_wait_for_eviction_in_flight() {
    let spec = serde_json::json!({"drain": {"timeout": "1m", "atDeadline": "Force"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false)]);
    let node = view.nodes.get_mut("a").unwrap();
    node.shadow.as_mut().unwrap().status.controller.drain.as_mut().unwrap().forced_since = Some(t(60));
    for (deletes, sent) in [(false, 1), (true, 0)] {
        let in_flight = [("p-a".to_owned(), InFlight { since: t(50), deletes })].into();
        view.nodes.get_mut("a").unwrap().in_flight = in_flight;
        let made = plan(&view, &policy, t(61)).evictions;
        assert_eq!(made.values().filter(|e| e.delete).count(), sent, "{made:?}");
    }
}
