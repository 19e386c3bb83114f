//! Pods that come to a node during its drain.

use models::shadow::{ArmedPhase, DrainStatus, HostState, Step};
use serde_json::json;

use super::drain::names;
use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{ClusterView, PodFacts};

/// A pod of one owner, created at this second.
fn created(name: &str, at: i64) -> PodFacts {
    PodFacts { name: name.into(), uid: name.into(), created: Some(t(at)), ..pod("a", false) }
}

fn pods(view: &mut ClusterView) -> &mut Vec<PodFacts> {
    view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap()
}

/// Node `a` in its drain, cordoned at 100 s, with one pod that it lists.
fn drained() -> (ClusterView, Policy) {
    let (mut view, policy) = draining(json!({}), vec![created("first", 1)]);
    view.nodes.get_mut("a").unwrap().facts.claimed_since = Some(t(100));
    (view, policy)
}

/// Plans, and writes what is to be recorded about node `a`, until nothing is, or the attempt has ended.
fn settle(view: &mut ClusterView, policy: &Policy, now: i64) -> Plan {
    for _ in 0..5 {
        let made = plan(view, policy, t(now));
        match made.actions.get("a") {
            Some(action) if outcome(&made) == "step Draining" => written(view, action),
            _ => return made,
        }
    }
    panic!("written again and again");
}

fn evicted(made: &Plan) -> Vec<&str> {
    made.evictions.get("a").map(|evictions| names(&evictions.pods)).unwrap_or_default()
}

/// The scheduler has chosen the node for all of them before it observed the cordon, and binds them one by one, as their volumes come.
#[test]
fn pods_that_were_created_before_the_cordon_was_observed_are_evicted_however_many_times_they_come() {
    let (mut view, policy) = drained();
    for (created_at, second) in [(101, 101), (102, 102), (100, 130), (99, 400), (102, 700)] {
        let name = format!("late-{second}");
        *pods(&mut view) = vec![created(&name, created_at)];
        assert_eq!(evicted(&settle(&mut view, &policy, second)), [name]);
    }
    assert_eq!(view.nodes["a"].shadow.as_ref().unwrap().status.controller.drain.as_ref().unwrap().returned_owners, []);
}

#[test]
fn pods_that_were_created_after_the_cordon_end_the_attempt_when_they_come_a_third_time() {
    let (mut view, policy) = drained();
    for (name, at, expected) in [("one", 103, "Draining"), ("two", 104, "Draining"), ("three", 105, "PodsReturn")] {
        *pods(&mut view) = vec![created(name, at)];
        assert_eq!(outcome(&settle(&mut view, &policy, at)), expected, "{name}");
    }
}

#[test]
fn pod_that_was_created_before_the_cordon_is_evicted_also_where_its_owner_has_put_pods_there_since() {
    let (mut view, policy) = drained();
    for (name, created_at, at) in [("one", 103, 103), ("two", 104, 104), ("late", 101, 105)] {
        *pods(&mut view) = vec![created(name, created_at)];
        assert_eq!(evicted(&settle(&mut view, &policy, at)), [name]);
    }
}

/// Replacements of evicted pods come while another client has uncordoned the node.
#[test]
fn pods_that_come_while_the_node_is_uncordoned_count_nothing() {
    let (mut view, policy) = drained();
    for (name, at) in [("one", 200), ("two", 300), ("three", 400)] {
        *pods(&mut view) = vec![created(name, at)];
        view.nodes.get_mut("a").unwrap().facts.claimed_since = Some(t(at + 1));
        assert_eq!(evicted(&settle(&mut view, &policy, at + 10)), [name]);
    }
}

#[test]
fn only_a_pod_that_was_created_after_the_cordon_or_comes_long_after_it_ends_a_drain_that_has_begun_again() {
    for (sentence, created_at, cordoned_at, restarted, expected) in [
        ("before the cordon", 100, 100, false, (Some(Step::Draining), false)),
        ("before it, and not the first one", 100, 100, true, (Some(Step::Draining), true)),
        ("before it was observed, and not the first one", 102, 100, true, (Some(Step::Draining), true)),
        ("after the cordon", 103, 100, false, (Some(Step::Draining), true)),
        ("after it, and not the first one", 103, 100, true, (Some(Step::Releasing), true)),
        ("before a cordon of long ago", -1590, -1590, false, (Some(Step::Draining), true)),
        ("before it, and not the first one", -1590, -1590, true, (Some(Step::Releasing), true)),
    ] {
        let mut node = at("a", Step::Rebooting, 200, HostState::RebootedIntoUpdate);
        node.facts.claimed_since = Some(t(cordoned_at));
        node.pods = Some(vec![created("late", created_at)]);
        let shadow = node.shadow.as_mut().unwrap();
        shadow.status.agent.armed = Some(armed(ArmedPhase::Arming));
        shadow.status.controller.drain = Some(DrainStatus { restarted, ..DrainStatus::default() });
        let (view, policy) = cluster(vec![node], &["a"]);
        let made = plan(&view, &policy, t(210));
        let Some(Action::Status { status, .. }) = made.actions.get("a") else { panic!("{sentence}: {:?}", made.waits) };
        let step = status.report.progress.as_ref().map(|progress| progress.step);
        let restarted = status.report.drain.as_ref().is_some_and(|drain| drain.restarted);
        assert_eq!((step, restarted), expected, "created {sentence}");
    }
}
