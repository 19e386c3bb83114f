//! Regression tests of decisions about drains and claims.

use std::collections::BTreeMap;

use models::condition::find_condition;
use models::shadow::{Armed, ArmedPhase, BLOCKED, Blocker, FirstPod, HostState, Permit, Step};

use crate::claims::ClaimFields;
use crate::decision::{Action, Evictions};
use crate::fixtures::*;
use crate::hold::Hold;
use crate::plan::{Plan, deadlines, plan};
use crate::policy::Policy;
use crate::view::{Blocked, BudgetFacts, ClusterView, DaemonSetState, InFlight, PodFacts};
use crate::wait::Wait;

/// A drained node with a silent agent is given up at the deadline, and no wake time is in the past.
#[test]
fn drain_with_silent_agent_ends_at_deadline() {
    let mut silent = at("a", Step::Draining, 0, HostState::StagedUpdate);
    silent.shadow.as_mut().unwrap().generation = 2; // the spec was touched, and it is not acknowledged
    let (view, policy) = cluster(vec![silent], &["a"]);
    let now = t(365 * 24 * 3600);
    let plan = plan(&view, &policy, now);
    assert!(plan.wake.is_none_or(|at| at > now), "wakes at {:?}, in the past, again and again", plan.wake);
    assert!(plan.actions.contains_key("a"), "after a year: {:?}", plan.waits);
}

/// Two pods are held back, and one of them leaves: the condition that users read names the one that is left.
#[test]
fn blocked_drain_names_remaining_pod() {
    let held_back = answer(Some("shop/web"), 1, false);
    let mut draining = at("a", Step::Draining, 0, HostState::StagedUpdate);
    draining.pods = Some(vec![pod("1", false), pod("2", false)]);
    draining.blocked = [("p-1".to_owned(), held_back.clone()), ("p-2".to_owned(), held_back)].into();
    let (mut view, policy) = cluster(vec![draining], &["a"]);
    let mut message = || {
        for _ in 0..10 {
            let made = plan(&view, &policy, t(10));
            let node = view.nodes.get_mut("a").unwrap();
            let status = &mut node.shadow.as_mut().unwrap().status;
            let Some(Action::Status { status: written, .. }) = made.actions.get("a") else {
                assert!(made.actions.is_empty(), "{:?}", made.actions);
                let message = find_condition(&status.conditions, BLOCKED).unwrap().message.clone();
                // The next time, the first pod is gone.
                node.pods.as_mut().unwrap().remove(0);
                return message;
            };
            (status.controller, status.conditions) = (written.report.clone(), written.conditions.clone());
        }
        panic!("written again and again");
    };
    assert_eq!(message(), "the PodDisruptionBudget shop/web allows no disruption of shop/p-1; 2 pod(s) left");
    assert_eq!(message(), "the PodDisruptionBudget shop/web allows no disruption of shop/p-2; 1 pod(s) left");
}

pub(super) fn names(pods: &[super::Eviction]) -> Vec<&str> {
    pods.iter().map(|pod| pod.name.as_str()).collect()
}

/// The scheduler may place a runner between the check and the cordon, and `kubectl debug` places a pod past it.
#[test]
fn pod_that_policy_keeps_and_that_comes_during_a_drain_ends_it_only_while_no_pod_has_left() {
    let came = || pod("runner", false);
    let marked = || PodFacts { marked: true, ..came() };
    let with_data = || PodFacts { empty_dir: true, ..came() };
    let orphan = || PodFacts { daemon_set: Some("log".into()), daemon_set_state: DaemonSetState::Gone, ..came() };
    for (runner, spec, gone, expected) in [
        (marked(), serde_json::json!({"markedPods": "Wait"}), false, "ends with GateRefused"),
        (marked(), serde_json::json!({"markedPods": "Wait"}), true, "waits for DrainBlocked"),
        (marked(), serde_json::json!({"markedPods": "Evict"}), false, "evicts p-runner"),
        (pod("runner", true), serde_json::json!({}), false, "ends with GateRefused"),
        (pod("runner", true), serde_json::json!({}), true, "waits for DrainBlocked"),
        (pod("runner", true), serde_json::json!({"barePods": "Evict"}), true, "evicts p-runner"),
        (with_data(), serde_json::json!({"emptyDir": "Refuse"}), true, "waits for DrainBlocked"),
        (orphan(), serde_json::json!({}), true, "waits for DrainBlocked"),
    ] {
        let sentence = format!("{spec}, {runner:?}");
        let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
        staged.pods = Some(vec![pod("web", false)]);
        let (mut view, policy) = cluster_with(vec![staged], &["a"], serde_json::json!({"drain": spec}));
        write_due(&mut view, &policy, 0);
        let node = view.nodes.get_mut("a").unwrap();
        (node.facts.claims, node.facts.unschedulable) = (ClaimFields::USUAL, true);
        node.pods = Some(if gone { vec![runner] } else { vec![pod("web", false), runner] });
        let mut made = plan(&view, &policy, t(1));
        while let Some(action @ Action::Status { status, .. }) = made.actions.get("a")
            && status.report.record.as_ref().is_none_or(|record| record.last.is_none())
        {
            written(&mut view, action);
            made = plan(&view, &policy, t(1));
        }
        let ended = match made.actions.get("a") {
            Some(Action::Status { status, .. }) => status.report.record.clone().and_then(|record| record.last),
            _ => None,
        };
        let evicted = made.evictions.get("a").map(|evictions| names(&evictions.pods)).unwrap_or_default();
        let found = match ended {
            Some(last) => format!("ends with {}", last.reason),
            None if evicted.contains(&"p-runner") => "evicts p-runner".to_owned(),
            None => format!("waits for {}", made.waits["a"].as_str()),
        };
        assert_eq!(found, expected, "{sentence}");
    }
}

#[test]
fn pod_that_policy_keeps_keeps_no_other_one_that_came_with_it() {
    let wait = serde_json::json!({"drain": {"markedPods": "Wait"}});
    let (mut view, policy) = draining(wait, vec![pod("web", false)]);
    let marked = PodFacts { marked: true, ..pod("runner", false) };
    view.nodes.get_mut("a").unwrap().pods = Some(vec![marked, pod("plain", false)]);
    for _ in 0..5 {
        let made = plan(&view, &policy, t(1));
        let Some(action) = made.actions.get("a") else {
            assert_eq!(names(&made.evictions["a"].pods), ["p-plain"]);
            return;
        };
        written(&mut view, action);
    }
    panic!("written again and again");
}

#[test]
fn pod_that_policy_keeps_ends_no_drain_from_which_a_pod_is_about_to_leave() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, expected: &str, change: Change| {
        let wait = serde_json::json!({"drain": {"markedPods": "Wait"}});
        let (mut view, policy) = draining(wait, vec![pod("web", false)]);
        let marked = PodFacts { marked: true, ..pod("runner", false) };
        view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().push(marked);
        change(&mut view);
        assert_eq!(outcome(&plan(&view, &policy, t(1))), expected, "{sentence}");
    };
    case("none is", "GateRefused", |_| {});
    case("one is being deleted", "step Draining", |view| {
        let leaving = &mut view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()[0];
        (leaving.terminating, leaving.ends_by) = (true, Some(t(30)));
    });
    case("an earlier leader has recorded that one goes", "step Draining", |view| {
        let drain = shadow(view).status.controller.drain.as_mut().unwrap();
        drain.asked_first = vec![FirstPod { uid: "p-web".into(), accepted: Some(t(0)), unguarded: true }];
    });
}

#[test]
fn eviction_waits_for_load_balancer_delay() {
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![pod("a", false)]);
    let (mut view, _) = cluster(vec![staged], &["a"]);
    view.operator.as_mut().unwrap().spec =
        serde_json::from_value(serde_json::json!({"loadBalancer": {"leaveBeforeDrain": "30s"}})).unwrap();
    let policy = Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
    write_due(&mut view, &policy, 0);
    let Some(Action::Claim { fields, .. }) = plan(&view, &policy, t(1)).actions.remove("a") else { panic!() };
    assert!(fields.has(crate::claims::ClaimField::Balancer) && fields.has(crate::claims::ClaimField::Cordon));
    let facts = &mut view.nodes.get_mut("a").unwrap().facts;
    (facts.claims, facts.unschedulable) = (fields, true);
    let waits = plan(&view, &policy, t(29));
    assert_eq!(waits.waits.get("a"), Some(&Wait::LeavingLoadBalancer { until: t(30) }));
    assert_eq!(waits.wake, Some(t(30)));
    // The claim was made late, for example by a later leader.
    view.nodes.get_mut("a").unwrap().facts.claimed_since = Some(t(20));
    assert_eq!(plan(&view, &policy, t(30)).waits.get("a"), Some(&Wait::LeavingLoadBalancer { until: t(50) }));
    write_due(&mut view, &policy, 50);
    assert!(plan(&view, &policy, t(51)).evictions.get("a").is_some_and(|e| !e.delete));
}

#[test]
fn drain_waits_for_volumes_until_deadline_if_policy_requires() {
    for (spec, at, goes_on) in [
        (serde_json::json!({"drain": {"timeout": "1m"}}), 1, true),
        (serde_json::json!({"drain": {"timeout": "1m", "waitForVolumes": true}}), 1, false),
        (serde_json::json!({"drain": {"timeout": "1m", "waitForVolumes": true}}), 60, true),
    ] {
        let (mut view, policy) = draining(spec.clone(), vec![]);
        view.nodes.get_mut("a").unwrap().facts.volumes = 2;
        let made = plan(&view, &policy, t(at));
        assert_eq!(made.actions.contains_key("a"), goes_on, "{spec} at {at}: {:?}", made.waits);
        assert_eq!(made.waits.contains_key("a"), !goes_on);
    }
}

#[test]
fn drain_does_not_wait_for_volumes_of_pods_that_stay() {
    let logs = |name: &str, claims: &[&str]| PodFacts {
        name: name.into(),
        daemon_set: Some("logs".into()),
        daemon_set_state: crate::view::DaemonSetState::There,
        volume_claims: claims.iter().map(|claim| (*claim).to_owned()).collect(),
        ..pod("a", false)
    };
    let ended = PodFacts { finished: true, ..logs("job", &["job"]) };
    let other = PodFacts { namespace: "bank".into(), ..logs("c", &["one"]) };
    for (sentence, pods, volumes, waits) in [
        ("one volume of a pod that stays", vec![logs("a", &["one"])], 1, None),
        ("one more", vec![logs("a", &["one"])], 2, Some(1)),
        ("two pods that share one", vec![logs("a", &["one"]), logs("b", &["one"])], 2, Some(1)),
        ("two pods with one each", vec![logs("a", &["one"]), other], 2, None),
        ("a pod that has ended", vec![ended], 1, Some(1)),
    ] {
        let (mut view, policy) = draining(serde_json::json!({"drain": {"waitForVolumes": true}}), pods);
        view.nodes.get_mut("a").unwrap().facts.volumes = volumes;
        let made = plan(&view, &policy, t(1));
        let waits = waits.map(|count| Wait::DetachingVolumes { count });
        assert_eq!(made.waits.get("a"), waits.as_ref(), "{sentence}: {:?}", made.actions);
    }
}

#[test]
fn volumes_that_are_attached_at_the_deadline_of_a_drain_that_waits_for_them_are_recorded() {
    let left = "2 volume(s) are still attached at the drain's deadline";
    let all_gone = "all pods to evict have left the node";
    for (waits, volumes, expected) in [
        (true, 2, ("VolumesAttached", left, Some("VolumesAttached"))),
        (true, 0, ("Drained", all_gone, None)),
        (false, 2, ("Drained", all_gone, None)),
    ] {
        let spec = serde_json::json!({"drain": {"timeout": "1m", "waitForVolumes": waits}});
        let (mut view, policy) = draining(spec, vec![]);
        view.nodes.get_mut("a").unwrap().facts.volumes = volumes;
        let made = plan(&view, &policy, t(60));
        let Some(Action::Status { status, note }) = made.actions.get("a") else { panic!("{:?}", made.waits) };
        assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Rebooting);
        let drained = find_condition(&status.conditions, models::shadow::DRAINED).unwrap();
        let event = note.as_ref().map(|note| note.reason);
        assert_eq!((drained.reason.as_str(), drained.message.as_str(), event), expected, "{waits}, {volumes}");
    }
}

#[test]
fn drain_evicts_pods_tolerating_cordon_once_and_names_returned_ones() {
    let addon = |uid: &str| PodFacts {
        uid: uid.into(),
        name: uid.into(),
        controller_uid: Some("addon".into()),
        tolerates_cordon: true,
        ..pod("a", false)
    };
    let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
    staged.pods = Some(vec![addon("first"), addon("second"), pod("a", false)]);
    let (mut view, policy) = cluster(vec![staged], &["a"]);
    write_due(&mut view, &policy, 0);
    let node = view.nodes.get_mut("a").unwrap();
    (node.facts.claims, node.facts.unschedulable) = (ClaimFields::USUAL, true);
    // One more came before the first eviction, so it has not come back.
    node.pods.as_mut().unwrap().push(addon("another"));
    let mut made = plan(&view, &policy, t(1));
    assert!(made.evictions.is_empty(), "nothing is evicted before it is recorded");
    written(&mut view, &made.actions.remove("a").unwrap());
    let Evictions { pods, .. } = plan(&view, &policy, t(1)).evictions.remove("a").unwrap();
    assert_eq!(names(&pods), ["another", "first", "p-a", "second"]);
    // One of them is back before the others have left, which may not leave yet.
    view.nodes.get_mut("a").unwrap().pods = Some(vec![addon("third"), addon("second"), pod("a", false)]);
    let Evictions { pods, .. } = plan(&view, &policy, t(2)).evictions.remove("a").unwrap();
    assert_eq!(names(&pods), ["p-a", "second"]);
    view.nodes.get_mut("a").unwrap().pods = Some(vec![addon("third"), addon("fourth")]);
    let drained = plan(&view, &policy, t(3)).actions.remove("a").unwrap();
    let Action::Status { status, note } = &drained else { panic!("{drained:?}") };
    assert_eq!(status.report.progress.as_ref().unwrap().step, Step::Rebooting);
    let condition = find_condition(&status.conditions, models::shadow::DRAINED).unwrap();
    let named = condition.message.contains("shop/fourth, shop/third");
    assert!(condition.reason == "PodsLeft" && named && note.is_none(), "{condition:?} {note:?}");
}

/// The template of a Deployment sets nodeName.
#[test]
fn attempt_ends_when_owner_keeps_placing_pods_on_cordoned_node() {
    let pinned = |uid: String| PodFacts {
        name: uid.clone(),
        uid,
        controller: Some("ReplicaSet web-1".into()),
        controller_uid: Some("web-1".into()),
        ..pod("a", false)
    };
    for spec in [
        serde_json::json!({}),
        // At the deadline as before it.
        serde_json::json!({"drain": {"timeout": "2s", "atDeadline": "Force"}}),
    ] {
        let mut staged = at("a", Step::Staged, 0, HostState::StagedUpdate);
        staged.pods = Some(vec![pinned("p-0".into())]);
        let (mut view, policy) = cluster_with(vec![staged], &["a"], spec.clone());
        let (mut evictions, mut last) = (0, None);
        for second in 0..30 {
            let mut made = plan(&view, &policy, t(second));
            let node = view.nodes.get_mut("a").unwrap();
            if let Some(Evictions { pods, .. }) = made.evictions.remove("a") {
                evictions += pods.len();
                node.pods = Some(vec![pinned(format!("p-{evictions}"))]);
            }
            let Some(action) = made.actions.remove("a") else { continue };
            match &action {
                Action::Claim { fields, .. } => (node.facts.claims, node.facts.unschedulable) = (*fields, true),
                Action::Status { status, .. } => {
                    last = status.report.record.as_ref().and_then(|record| record.last.clone());
                    written(&mut view, &action);
                }
                other => panic!("{other:?}"),
            }
            if last.is_some() {
                break;
            }
        }
        let last = last.unwrap();
        assert!(last.reason == "PodsReturn" && last.message.contains("ReplicaSet web-1"), "{spec}: {last:?}");
        assert_eq!(evictions, 3, "{spec}");
    }
}

#[test]
fn drain_ends_when_node_is_being_deleted() {
    let (mut view, policy) = draining(serde_json::json!({}), vec![pod("a", false)]);
    view.nodes.get_mut("a").unwrap().facts.deleting = true;
    assert_eq!(last_of(&plan(&view, &policy, t(1))).reason, "NodeDeleted");
}

/// The scheduler had not observed the cordon yet.
#[test]
fn pod_placed_on_drained_node_restarts_drain_once_before_permit() {
    let asks = |again: bool, permit: bool, tolerates_cordon: bool| {
        let mut node = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
        node.pods = Some(vec![PodFacts { tolerates_cordon, ..pod("a", false) }]);
        let shadow = node.shadow.as_mut().unwrap();
        shadow.status.controller.drain = Some(models::shadow::DrainStatus { restarted: again, ..Default::default() });
        shadow.spec.permit = permit.then(|| Permit { nonce: "old".into(), jws: "j".into() });
        shadow.status.agent.armed = Some(Armed {
            version: NEW,
            boot_id: "b1".into(),
            attempt: 1,
            phase: ArmedPhase::Arming,
            nonce: "new".into(),
        });
        let (view, policy) = cluster(vec![node], &["a"]);
        let made = plan(&view, &policy, t(1));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{:?}", made.actions) };
        let step = status.report.progress.as_ref().unwrap().step;
        if step == Step::Draining {
            // The agent confirms nothing while it waits for its permit, and the drain continues and ends anyway.
            let mut view = view.clone();
            let node = view.nodes.get_mut("a").unwrap();
            let shadow = node.shadow.as_mut().unwrap();
            shadow.status.controller = status.report.clone();
            shadow.generation = 2;
            write_due(&mut view, &policy, 2);
            assert!(plan(&view, &policy, t(2)).evictions.get("a").is_some_and(|e| !e.delete));
            let back = PodFacts { uid: "back".into(), tolerates_cordon, ..pod("a", false) };
            view.nodes.get_mut("a").unwrap().pods = Some(if tolerates_cordon { vec![back] } else { vec![] });
            write_due(&mut view, &policy, 3);
            let gone = plan(&view, &policy, t(4));
            let given = matches!(gone.actions.get("a"), Some(Action::Permit { nonce, .. }) if nonce == "new");
            assert!(given, "{:?} {:?}", gone.actions, gone.waits);
        }
        step
    };
    assert_eq!(asks(false, false, false), Step::Draining);
    assert_eq!(asks(true, false, false), Step::Releasing, "only once");
    assert_eq!(asks(false, true, false), Step::Releasing, "a permit is out");
    assert_eq!(asks(false, false, true), Step::Draining, "it tolerates the cordon, and is of an owner not seen before");
}

/// Another node is drained at the same time, and its replica of an add-on, which tolerates the cordon, is placed here.
#[test]
fn pod_tolerating_cordon_that_arrives_during_drain_is_evicted_once() {
    let ours = |uid: &str| PodFacts { uid: uid.into(), tolerates_cordon: true, ..pod("a", false) };
    let (mut view, policy) = draining(serde_json::json!({}), vec![ours("first")]);
    let status = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status;
    status.controller.drain = Some(models::shadow::DrainStatus::default());
    write_due(&mut view, &policy, 1);
    let Evictions { pods, delete: false, .. } = plan(&view, &policy, t(2)).evictions.remove("a").unwrap() else {
        panic!()
    };
    assert_eq!(pods[0].uid, "first");
    view.nodes.get_mut("a").unwrap().pods = Some(vec![ours("second")]);
    let made = plan(&view, &policy, t(3));
    assert_eq!(status_of(&made).report.progress.as_ref().unwrap().step, Step::Rebooting);
}

#[test]
fn end_of_drain_names_remaining_pods() {
    let stuck = || PodFacts { terminating: true, ends_by: Some(t(10)), ..pod("a", false) };
    let spec = serde_json::json!({"drain": {"skipTerminatingAfter": "30s"}});
    let (mut view, policy) = draining(spec, vec![stuck()]);
    let listed = models::shadow::DrainedPod {
        namespace: "shop".into(),
        name: "p-a".into(),
        uid: "p-a".into(),
        ..models::shadow::DrainedPod::default()
    };
    let status = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status;
    status.controller.drain = Some(models::shadow::DrainStatus { pods: [listed].into(), ..Default::default() });
    let waits = plan(&view, &policy, t(39));
    assert!(waits.actions.is_empty(), "{:?}", waits.actions);
    assert_eq!(waits.wake, Some(t(40)), "nothing else happens by then");
    let ended = plan(&view, &policy, t(40)).actions.remove("a");
    let Some(Action::Status { status, note: Some(note) }) = ended else { panic!("{ended:?}") };
    let drained = find_condition(&status.conditions, models::shadow::DRAINED).unwrap();
    assert!(drained.reason == "PodsLeft" && drained.message.contains("shop/p-a"), "{drained:?}");
    assert!(note.warning && note.message.contains("shop/p-a"));
    assert_eq!(status.report.drain.as_ref().unwrap().removed, 0);
    // One that has ended by itself, as a pod of a Job, is not left to the reboot.
    view.nodes.get_mut("a").unwrap().pods = Some(vec![PodFacts { finished: true, ..pod("a", false) }]);
    let ended = plan(&view, &policy, t(40)).actions.remove("a");
    let Some(Action::Status { status, note: None }) = ended else { panic!("{ended:?}") };
    assert_eq!(find_condition(&status.conditions, models::shadow::DRAINED).unwrap().reason, "Drained");
    assert_eq!(status.report.drain.as_ref().unwrap().pods[0].moved, None);
}

#[test]
fn waiting_critical_pod_causes_no_busy_wakeups() {
    let critical = PodFacts { critical: true, ..pod("dns", false) };
    let leaving = PodFacts { terminating: true, ends_by: Some(t(500)), ..pod("a", false) };
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![critical, leaving]);
    let refused = Blocked { retry_at: t(5), ..answer(Some("shop/dns"), 1, false) };
    view.nodes.get_mut("a").unwrap().blocked = [("p-dns".to_owned(), refused)].into();
    let mut made = plan(&view, &policy, t(10));
    for _ in 0..5 {
        let Some(action) = made.actions.get("a") else { break };
        written(&mut view, action);
        made = plan(&view, &policy, t(10));
    }
    assert!(made.actions.is_empty(), "{:?}", made.actions);
    assert!(made.wake.is_some_and(|at| at > t(10)), "{:?}", made.wake);
}

/// The outcome of a plan for a node whose pod `a` was denied: what is evicted, or the end of the attempt.
fn after_denial(view: &ClusterView, policy: &Policy, at: i64) -> String {
    let made = plan(view, policy, t(at));
    match made.evictions.get("a") {
        Some(evictions) => names(&evictions.pods).join(" "),
        None => outcome(&made),
    }
}

/// A webhook or an API server that has just started may deny for a moment.
#[test]
fn denied_eviction_ends_the_drain_after_it_was_retried_for_a_minute() {
    let denied = |since: i64, denied: i64, retry_at: i64| Blocked {
        denied_since: Some(t(denied)),
        retry_at: t(retry_at),
        ..answer(None, since, false)
    };
    for (sentence, timeout, last, at, expected) in [
        ("it is denied for the first time", "1h", Some(denied(100, 100, 105)), 104, "Draining"),
        ("it is to be asked for again", "1h", Some(denied(100, 100, 105)), 105, "p-a"),
        ("its time is not over", "1h", Some(denied(100, 100, 159)), 159, "p-a"),
        ("its time is over", "1h", Some(denied(100, 100, 170)), 160, "DrainRefused"),
        ("a budget has refused it for long before", "1h", Some(denied(1, 100, 105)), 110, "p-a"),
        ("it is not denied any more", "1h", Some(Blocked { retry_at: t(200), ..answer(None, 100, false) }), 200, "p-a"),
        ("there is no more time to ask", "110s", Some(denied(100, 100, 115)), 110, "DrainRefused"),
    ] {
        for force in [false, true] {
            let at_deadline = if force { "Force" } else { "Release" };
            let spec = serde_json::json!({"drain": {"timeout": timeout, "atDeadline": at_deadline}});
            let (mut view, policy) = draining(spec, vec![pod("a", false)]);
            view.nodes.get_mut("a").unwrap().blocked =
                last.clone().map(|last| ("p-a".to_owned(), last)).into_iter().collect();
            // The pods that block the drain are recorded first.
            let made = plan(&view, &policy, t(at));
            if made.evictions.is_empty() && outcome(&made) == "step Draining" {
                written(&mut view, &made.actions["a"]);
            }
            assert_eq!(after_denial(&view, &policy, at), expected, "{sentence}, {at_deadline}");
        }
    }
}

#[test]
fn denial_is_named_with_its_time_and_kept_for_the_next_leader() {
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![pod("a", false)]);
    let denied =
        |since: i64| Blocked { denied_since: Some(t(since)), retry_at: t(since + 5), ..answer(None, since, false) };
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), denied(100))].into();
    let made = plan(&view, &policy, t(105));
    let Some(Action::Status { status, note: Some(note) }) = made.actions.get("a") else { panic!("{:?}", made.waits) };
    assert_eq!(status.report.drain.as_ref().unwrap().blockers[0].denied_since, Some(t(100)));
    let until = format!("the API server denies its eviction, which is retried until {}: not now", t(160));
    assert!(note.reason == "DrainBlocked" && note.message.contains(&until), "{note:?}");
    written(&mut view, &made.actions["a"]);
    assert_eq!(plan(&view, &policy, t(105)).wake, Some(t(110)), "asked for now, and named if there is no answer");
    assert_eq!(deadlines(&view, &policy, t(105)).next(), Some(("a", t(160))));
    // Another leader ends the drain on an answer of its own.
    let node = view.nodes.get_mut("a").unwrap();
    node.blocked.clear();
    assert_eq!(after_denial(&view, &policy, 165), "p-a");
    assert!(plan(&view, &policy, t(165)).wake.is_some_and(|at| at > t(165)), "the recorded time is over");
    assert_eq!(deadlines(&view, &policy, t(165)).next(), Some(("a", t(3600))));
    let in_row = |view: &mut ClusterView, last| {
        view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), last)].into();
        after_denial(view, &policy, 166)
    };
    assert_eq!(in_row(&mut view, denied(166)), "DrainRefused");
    // A denial after another answer is a first one.
    assert_eq!(in_row(&mut view, answer(None, 166, false)), "step Draining");
    write_due(&mut view, &policy, 166);
    assert_eq!(in_row(&mut view, Blocked { retry_at: t(166), ..denied(166) }), "p-a");
}

#[test]
fn plan_wakes_when_a_denial_is_final_that_is_named_after_another_pod() {
    let pods = vec![pod("a", false), pod("b", false)];
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), pods);
    let denied = Blocked { denied_since: Some(t(100)), ..answer(None, 100, false) };
    view.nodes.get_mut("a").unwrap().blocked =
        [("p-a".to_owned(), answer(Some("shop/web"), 100, false)), ("p-b".to_owned(), denied)].into();
    write_due(&mut view, &policy, 105);
    let made = plan(&view, &policy, t(110));
    assert_eq!((made.actions.len(), made.wake), (0, Some(t(160))), "{:?}", made.waits);
}

#[test]
fn no_other_pod_is_evicted_while_one_is_denied() {
    let pods = vec![pod("a", false), pod("b", false), pod("c", false)];
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), pods);
    let refused = Blocked { retry_at: t(101), ..answer(Some("shop/web"), 100, false) };
    let denied = Blocked { denied_since: Some(t(100)), retry_at: t(101), ..answer(None, 100, false) };
    for (sentence, last, expected) in
        [("a budget refuses one", refused.clone(), "p-a p-b p-c"), ("one is denied", denied, "p-a")]
    {
        view.nodes.get_mut("a").unwrap().blocked =
            [("p-a".to_owned(), last), ("p-b".to_owned(), refused.clone())].into();
        assert_eq!(after_denial(&view, &policy, 101), expected, "{sentence}");
    }
}

/// An earlier leader has recorded the denial.
#[test]
fn recorded_denial_of_a_pod_that_is_asked_after_others_stops_no_eviction_of_these() {
    let spec = serde_json::json!({"drain": {"timeout": "1h"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false), pod("b", false)]);
    let drain = shadow(&mut view).status.controller.drain.as_mut().unwrap();
    drain.asked_first = vec![FirstPod { uid: "p-a".into(), accepted: None, unguarded: true }];
    drain.blockers = vec![Blocker {
        pod: "shop/p-b".into(),
        budget: None,
        message: "denied".into(),
        since: t(1),
        denied_since: Some(t(1)),
    }];
    // The condition is written first.
    write_due(&mut view, &policy, 100);
    assert_eq!(after_denial(&view, &policy, 100), "p-a");
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap().retain(|pod| pod.name != "p-a");
    write_due(&mut view, &policy, 110);
    assert_eq!(after_denial(&view, &policy, 110), "p-b", "its turn has come");
}

#[test]
fn hold_and_deadline_end_drain_with_evictions_in_flight() {
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1m"}}), vec![pod("a", false)]);
    let sent = InFlight { since: t(1), deletes: false };
    view.nodes.get_mut("a").unwrap().in_flight = [("p-a".to_owned(), sent)].into();
    assert!(plan(&view, &policy, t(3)).evictions.is_empty(), "it is asked for once");
    view.nodes.get_mut("a").unwrap().in_flight.clear();
    assert_eq!(plan(&view, &policy, t(1)).wake, Some(t(6)), "if it is not answered, it is named then");
    view.nodes.get_mut("a").unwrap().in_flight = [("p-a".to_owned(), sent)].into();
    let ended = |view: &ClusterView, at| {
        let made = plan(view, &policy, at);
        assert_eq!(status_of(&made).report.progress.as_ref().unwrap().step, Step::Releasing);
        assert!(made.evictions.is_empty() && Plan::ends_drain(&made.actions["a"]));
    };
    ended(&view, t(60));
    view.nodes.get_mut("a").unwrap().facts.hold = Some(Hold::default());
    ended(&view, t(3));
}

#[test]
fn blocking_pod_is_reported_with_api_server_message() {
    let guarded = Some("shop/web");
    let leaving = |by| PodFacts { terminating: true, ends_by: Some(t(by)), ..pod("a", false) };
    let in_flight = |since| Some(InFlight { since: t(since), deletes: false });
    for (sentence, pod, known, sent, named) in [
        ("a budget refuses it for a moment", pod("a", false), Some(answer(guarded, 96, false)), None, None),
        ("a budget refuses it", pod("a", false), Some(answer(guarded, 95, false)), None, Some("Budget shop/web")),
        ("a webhook is broken", pod("a", false), Some(answer(None, 95, false)), None, Some("not now")),
        ("it is asked for again", pod("a", false), Some(answer(None, 9, false)), in_flight(99), Some("not now")),
        ("no answer for a moment", pod("a", false), None, in_flight(96), None),
        ("no answer", pod("a", false), None, in_flight(95), Some("has not answered")),
        ("accepted", pod("a", false), Some(answer(None, 71, true)), None, None),
        ("accepted in vain", pod("a", false), Some(answer(None, 70, true)), None, Some("not being deleted")),
        ("it ends", leaving(71), Some(answer(None, 1, true)), None, None),
        ("it does not end", leaving(70), Some(answer(None, 1, true)), None, Some("was to have ended")),
    ] {
        let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![pod]);
        let node = view.nodes.get_mut("a").unwrap();
        node.blocked = known.map(|known| ("p-a".to_owned(), known)).into_iter().collect();
        node.in_flight = sent.map(|sent| ("p-a".to_owned(), sent)).into_iter().collect();
        let made = plan(&view, &policy, t(100));
        let Some(named) = named else {
            assert!(made.actions.is_empty() && made.wake == Some(t(101)), "{sentence}: {made:?}");
            continue;
        };
        let Some(Action::Status { status, note: Some(note) }) = made.actions.get("a") else {
            panic!("{sentence}: {:?}", made.waits)
        };
        let blocked = find_condition(&status.conditions, BLOCKED).unwrap();
        assert!(blocked.reason == "DrainBlocked" && blocked.message.contains(named), "{sentence}: {blocked:?}");
        assert_eq!((note.warning, &note.message), (true, &blocked.message), "{sentence}");
        assert_eq!(status.report.drain.as_ref().unwrap().blockers[0].pod, "shop/p-a", "{sentence}");
        // Another leader has no answer yet, and removes nothing before it has one of its own.
        let action = made.actions["a"].clone();
        written(&mut view, &action);
        let node = view.nodes.get_mut("a").unwrap();
        (node.blocked, node.in_flight) = (BTreeMap::new(), BTreeMap::new());
        let next = plan(&view, &policy, t(101));
        assert!(next.actions.is_empty(), "{sentence}: {next:?}");
    }
}

#[test]
fn eviction_that_deleted_no_pod_is_named_instead_of_the_pods_that_its_pdb_counts() {
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![pod("a", false)]);
    view.budgets = vec![BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        approved: [("web-1".to_owned(), t(60))].into(),
        ..BudgetFacts::default()
    }];
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), answer(Some("shop/web"), 90, false))].into();
    let named = plan(&view, &policy, t(100)).actions.remove("a").unwrap();
    let Action::Status { status, .. } = &named else { panic!("{named:?}") };
    let text = "the eviction of shop/web-1 was approved at";
    assert!(status.report.drain.as_ref().unwrap().blockers[0].message.starts_with(text), "{status:?}");
    let blocked = find_condition(&status.conditions, BLOCKED).unwrap();
    assert!(blocked.message.contains(text) && blocked.message.contains("as gone until"), "{blocked:?}");
    written(&mut view, &named);
    assert!(plan(&view, &policy, t(150)).actions.is_empty());
    let Some(Action::Status { status, .. }) = plan(&view, &policy, t(180)).actions.remove("a") else { panic!() };
    assert!(!status.report.drain.unwrap().blockers[0].message.contains(text), "the two minutes are over");
}

/// The condition and its Event are gone when a user looks for the cause.
#[test]
fn end_of_drain_at_its_deadline_names_what_kept_the_pods() {
    for (sentence, budget, message, named) in [
        ("a budget", Some("shop/web"), "not now", "the PodDisruptionBudget shop/web allows no disruption of shop/p-a"),
        ("a webhook", None, "failed calling webhook", "shop/p-a does not leave the node: failed calling webhook"),
    ] {
        let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![pod("a", false)]);
        let last = Blocked { message: message.into(), ..answer(budget, 1, false) };
        view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), last)].into();
        write_due(&mut view, &policy, 10);
        // Another leader has no answer yet.
        view.nodes.get_mut("a").unwrap().blocked.clear();
        let made = plan(&view, &policy, t(3600));
        assert_eq!(outcome(&made), "DrainTimedOut", "{sentence}");
        let message = &last_of(&made).message;
        let lists = message.starts_with("still on the node: shop/p-a; ");
        assert!(lists && message.contains(named), "{sentence}: {message}");
    }
}

/// A budget lets one pod go after the other.
#[test]
fn recently_accepted_eviction_causes_no_status_write() {
    let spec = serde_json::json!({"drain": {"timeout": "1h"}});
    let (mut view, policy) = draining(spec, vec![pod("a", false), pod("b", false)]);
    let refused = || answer(Some("shop/web"), 1, false);
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), refused()), ("p-b".to_owned(), refused())].into();
    write_due(&mut view, &policy, 6);
    assert!(plan(&view, &policy, t(20)).actions.is_empty());
    let node = view.nodes.get_mut("a").unwrap();
    node.pods.as_mut().unwrap().remove(0);
    node.blocked.insert("p-a".to_owned(), answer(None, 20, true));
    let just_now = plan(&view, &policy, t(21));
    assert!(just_now.actions.is_empty() && just_now.wake == Some(t(25)), "{just_now:?}");
    assert!(matches!(just_now.waits["a"], Wait::DrainBlocked { .. }));
    let Some(Action::Status { status, .. }) = plan(&view, &policy, t(25)).actions.remove("a") else { panic!() };
    let drain = status.report.drain.unwrap();
    assert_eq!((drain.blockers.len(), drain.blockers[0].pod.as_str()), (1, "shop/p-b"));
}

#[test]
fn drain_counts_as_blocked_while_evictions_are_retried() {
    let (mut view, policy) = draining(serde_json::json!({"drain": {"timeout": "1h"}}), vec![pod("a", false)]);
    let blocked = |view: &ClusterView, at| {
        let status = plan(view, &policy, at).status.unwrap();
        (status.counts.unwrap().blocked, status.waiting.iter().map(|w| w.reason.clone()).collect::<Vec<_>>())
    };
    view.nodes.get_mut("a").unwrap().blocked = [("p-a".to_owned(), answer(Some("shop/web"), 1, false))].into();
    write_due(&mut view, &policy, 6);
    let expected = (1, vec!["DrainBlocked".to_owned()]);
    assert_eq!(blocked(&view, t(7)), expected);
    assert_eq!(plan(&view, &policy, t(1000)).evictions.len(), 1, "asked for again");
    assert_eq!(blocked(&view, t(1000)), expected);
    let sent = InFlight { since: t(1000), deletes: false };
    view.nodes.get_mut("a").unwrap().in_flight = [("p-a".to_owned(), sent)].into();
    assert_eq!(blocked(&view, t(1001)), expected);
    view.busy.insert("a".into());
    assert_eq!(blocked(&view, t(1001)), expected, "something is written about it");
}
