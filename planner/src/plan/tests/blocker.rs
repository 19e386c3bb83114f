//! Tables of what a drain records of the pods that keep it from its end.

use jiff::Timestamp;
use models::condition::true_condition;
use models::shadow::{BLOCKED, DrainStatus, DrainedPod, ReturnedOwner};

use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, PodFacts};
use crate::wait::Wait;

#[test]
fn plan_wakes_for_retry_of_refused_eviction() {
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![pod("a", false)]);
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), answer(Some("shop/web"), 0, false))].into();
    let named = plan(&view, &policy, t(5));
    assert!(named.wake.is_some_and(|at| at > t(5)), "it is named now: {:?}", named.wake);
    written(&mut view, &named.actions["a"]);
    let waits = plan(&view, &policy, t(11));
    assert!(waits.actions.is_empty() && waits.evictions.is_empty(), "{waits:?}");
    assert_eq!(waits.wake, Some(t(1000)), "the next try");
    let due = plan(&view, &policy, t(1000));
    assert_eq!(due.evictions["a"].pods.len(), 1);
    assert!(due.wake.is_none_or(|at| at > t(1000)), "{:?}", due.wake);
}

/// The record of the drain that a plan writes for node `a`.
fn recorded(made: &Plan) -> DrainStatus {
    match made.actions.get("a") {
        Some(Action::Status { status, .. }) => status.report.drain.clone().unwrap(),
        other => panic!("{other:?} {:?}", made.waits),
    }
}

#[test]
fn blocker_stays_listed_briefly_after_accepted_eviction_unless_another_blocks() {
    let spec = || serde_json::json!({"drain": {"timeout": "1h"}});
    let pods = || ["a", "b", "c"].map(|name| pod(name, false)).to_vec();
    let named = |made: &Plan| recorded(made).blockers.into_iter().map(|b| b.pod).collect::<Vec<_>>();
    let (mut view, policy) = draining(spec(), pods());
    let node = view.nodes.get_mut("a").unwrap();
    node.blocked = ["p-a", "p-b"].map(|uid| (uid.to_owned(), answer(Some("shop/web"), 0, false))).into();
    let first = plan(&view, &policy, t(10));
    assert_eq!(named(&first), ["shop/p-a", "shop/p-b"]);
    written(&mut view, &first.actions["a"]);

    // The eviction of one of them is accepted: it is not worth a write until it is gone for certain.
    let node = view.nodes.get_mut("a").unwrap();
    node.blocked.insert("p-b".to_owned(), answer(None, 11, true));
    let held = plan(&view, &policy, t(12));
    assert!(held.actions.is_empty() && held.wake == Some(t(16)), "{held:?}");
    assert_eq!(named(&plan(&view, &policy, t(16))), ["shop/p-a"]);

    // Another pod blocks by now: that is reported at once.
    let node = view.nodes.get_mut("a").unwrap();
    node.blocked.insert("p-a".to_owned(), answer(None, 11, true));
    node.blocked.insert("p-c".to_owned(), answer(Some("shop/web"), 0, false));
    assert_eq!(named(&plan(&view, &policy, t(12))), ["shop/p-c"]);
}

/// Has turns until nothing is to be written. Returns the time since which the drain of node `a` is blocked.
fn blocked_since(view: &mut ClusterView, policy: &Policy, second: i64) -> Option<Timestamp> {
    for _ in 0..5 {
        let made = plan(view, policy, t(second));
        let Some(action) = made.actions.get("a") else { break };
        written(view, action);
    }
    true_condition(&shadow(view).status.conditions, BLOCKED).map(|blocked| blocked.last_transition_time)
}

#[test]
fn drain_is_blocked_since_fewest_pods_were_left() {
    let old = |from: usize, to: usize| (from..to).map(|number| pod(&format!("{number:02}"), false));
    // Each of another owner, so that none is one that has come back.
    let new = |name: &str| PodFacts {
        tolerates_cordon: true,
        controller_uid: Some(format!("job-{name}")),
        ..pod(name, false)
    };
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), old(0, 12).collect());
    let refused = |pod: PodFacts| (pod.uid, answer(Some("shop/web"), 0, false));
    view.nodes.get_mut("a").unwrap().blocked = old(0, 12).map(refused).collect();
    for (sentence, second, (from, to), arrived, since) in [
        ("all are refused, of which eight are named", 5, (0, 12), None, 5),
        ("one that is not named has left", 125, (0, 11), None, 125),
        ("none has left since", 150, (0, 11), None, 125),
        ("another leaves soon after it", 160, (0, 10), None, 125),
        ("which is written after a minute", 190, (0, 10), None, 190),
        ("one that is named leaves", 200, (1, 10), None, 200),
        ("a new one comes", 400, (1, 10), Some("new-1"), 200),
        ("and leaves", 500, (1, 10), None, 200),
        ("and the next one comes", 600, (1, 10), Some("new-2"), 200),
        ("and leaves", 700, (1, 10), None, 200),
        ("one of before leaves", 800, (2, 10), None, 800),
        ("while a new one comes, another leaves", 900, (3, 10), Some("new-3"), 800),
        ("fewer are left than ever", 950, (3, 10), None, 950),
    ] {
        view.nodes.get_mut("a").unwrap().pods = Some(old(from, to).chain(arrived.map(new)).collect());
        assert_eq!(blocked_since(&mut view, &policy, second), Some(t(since)), "{sentence}, at {second}");
    }
}

#[test]
fn block_begins_with_the_pods_that_are_left_then() {
    let late = || PodFacts { tolerates_cordon: true, controller_uid: Some("job-late".into()), ..pod("late", false) };
    let (mut view, policy) =
        draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![pod("a", false), pod("b", false)]);
    let refused = ["p-a", "p-b"].map(|uid| (uid.to_owned(), answer(Some("shop/web"), 0, false)));
    view.nodes.get_mut("a").unwrap().blocked = refused.into();
    for (sentence, second, pods, since) in [
        ("another comes before one is named", 1, vec![pod("a", false), pod("b", false), late()], None),
        ("those of before are named", 5, vec![pod("a", false), pod("b", false), late()], Some(5)),
        ("one of them leaves", 100, vec![pod("b", false), late()], Some(100)),
        ("the other leaves as well, and is named no more", 200, vec![late()], None),
    ] {
        view.nodes.get_mut("a").unwrap().pods = Some(pods);
        assert_eq!(blocked_since(&mut view, &policy, second), since.map(t), "{sentence}, at {second}");
    }
}

#[test]
fn pod_that_is_waited_for_no_more_is_not_left_whenever_its_object_is_deleted() {
    let there = |name: &str| pod(name, false);
    let ended = |name: &str| PodFacts { finished: true, ..there(name) };
    let stuck = |name: &str| PodFacts { terminating: true, ends_by: Some(t(650)), ..there(name) };
    let spec = serde_json::json!({"drain": {"timeout": "1h", "skipTerminatingAfter": "30s"}});
    let (mut view, policy) = draining(spec, vec![there("a"), there("b"), there("c"), stuck("d")]);
    let refused = ["p-a", "p-b", "p-c"].map(|uid| (uid.to_owned(), answer(Some("shop/web"), 0, false)));
    view.nodes.get_mut("a").unwrap().blocked = refused.into();
    for (sentence, second, pods, since) in [
        ("all but one are refused", 5, vec![there("a"), there("b"), there("c"), stuck("d")], 5),
        ("one has ended by itself", 500, vec![ended("a"), there("b"), there("c"), stuck("d")], 500),
        ("its object is deleted", 600, vec![there("b"), there("c"), stuck("d")], 500),
        ("policy waits no longer for one that is being deleted", 680, vec![there("b"), there("c"), stuck("d")], 680),
        ("its object goes", 800, vec![there("b"), there("c")], 680),
    ] {
        view.nodes.get_mut("a").unwrap().pods = Some(pods);
        assert_eq!(blocked_since(&mut view, &policy, second), Some(t(since)), "{sentence}, at {second}");
    }
}

/// A drain whose only pod to evict was refused by a budget, and has left since.
fn left_by_blocker(spec: serde_json::Value, came: Vec<PodFacts>) -> (ClusterView, Policy) {
    let (mut view, policy) = draining(spec, vec![pod("a", false)]);
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), answer(Some("shop/web"), 0, false))].into();
    write_due(&mut view, &policy, 5);
    view.nodes.get_mut("a").unwrap().pods = Some(came);
    (view, policy)
}

#[test]
fn pod_that_policy_keeps_on_the_node_is_named_once_those_to_evict_have_left() {
    let marked = || PodFacts { marked: true, ..pod("late", false) };
    for (drain, late, message) in [
        (serde_json::json!({"timeout": "1h"}), pod("late", true), "shop/p-late has no controller"),
        (serde_json::json!({"timeout": "1h", "markedPods": "Wait"}), marked(), "spec.drain.markedPods is Wait"),
    ] {
        let (mut view, policy) = left_by_blocker(serde_json::json!({ "drain": drain }), vec![late]);
        let made = plan(&view, &policy, t(10));
        let blockers = recorded(&made).blockers;
        assert_eq!(blockers.iter().map(|blocker| blocker.pod.as_str()).collect::<Vec<_>>(), ["shop/p-late"]);
        assert!(blockers[0].budget.is_none() && blockers[0].message.contains(message), "{blockers:?}");
        written(&mut view, &made.actions["a"]);
        let made = plan(&view, &policy, t(11));
        assert!(made.actions.is_empty() && made.evictions.is_empty(), "{made:?}");
        assert!(matches!(&made.waits["a"], Wait::DrainBlocked { left: 1, .. }), "{:?}", made.waits);
        let blocked = true_condition(&shadow(&mut view).status.conditions, BLOCKED).unwrap();
        assert_eq!((blocked.reason.as_str(), blocked.last_transition_time), ("DrainBlocked", t(10)), "it went on");
    }
}

#[test]
fn pods_that_have_left_are_named_no_more_while_the_drain_waits_for_volumes_or_its_agent() {
    let spec = || serde_json::json!({"drain": {"timeout": "1h", "waitForVolumes": true}});
    for (volumes, synced, wait) in [(1, true, "DetachingVolumes"), (0, false, "AgentNotSynced")] {
        let (mut view, policy) = left_by_blocker(spec(), vec![]);
        view.nodes.get_mut("a").unwrap().facts.volumes = volumes;
        if !synced {
            shadow(&mut view).generation = 2;
        }
        let made = plan(&view, &policy, t(10));
        assert_eq!(recorded(&made).blockers, [], "{wait}");
        written(&mut view, &made.actions["a"]);
        assert!(true_condition(&shadow(&mut view).status.conditions, BLOCKED).is_none(), "{wait}");
        assert_eq!(outcome(&plan(&view, &policy, t(11))), wait);
    }
}

#[test]
fn drain_status_limits_listed_pods_and_owners() {
    let most = crate::plan::LISTED_PODS;
    for (listed, expected) in [(most - 1, Some(most)), (most, None)] {
        let (mut view, policy) = draining(serde_json::json!({}), vec![pod("new", false)]);
        let drain = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.drain.as_mut().unwrap();
        let known = |number| DrainedPod {
            namespace: "shop".into(),
            name: format!("{number}"),
            uid: format!("{number}"),
            ..DrainedPod::default()
        };
        drain.pods = (0..listed).map(known).collect();
        let made = plan(&view, &policy, t(1));
        let recorded = made.actions.get("a").map(|_| recorded(&made).pods.len());
        assert_eq!(recorded, expected, "{listed} are listed: {:?}", made.actions);
    }
    let most = 256;
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("new", false)]);
    let drain = view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.drain.as_mut().unwrap();
    drain.pods = [].into();
    drain.returned_owners = (0..most).map(|number| ReturnedOwner { uid: format!("{number}"), times: 1 }).collect();
    assert_eq!(recorded(&plan(&view, &policy, t(1))).returned_owners.len(), most);
}
