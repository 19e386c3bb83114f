//! The pause beside the earlier operator: nothing but the report, and the continuation afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use models::condition::ConditionStatus;
use models::operator::BLOCKED;
use models::shadow::{HostState, Step};
use models::time::after;
use serde_json::json;

use super::*;
use crate::fixtures::{NEW, at, cluster, cluster_with, node, pod, t, with_policy};
use crate::policy::Policy;
use crate::survey::condition;
use crate::view::{ClusterView, PodFacts};

const POD: &str = "brupop-bottlerocket-aws/brupop-agent-x";

/// A fleet in which every kind of write is due: an attempt to begin, a drain with a pod to evict, a release, a slot to
/// remove, a shadow to create and one to delete, and a node to label.
fn everything_is_due() -> (ClusterView, Policy) {
    let mut drained = at("drained", Step::Draining, 0, HostState::StagedUpdate);
    drained.pods = Some(vec![pod("drained", false)]);
    let status = &mut drained.shadow.as_mut().unwrap().status.controller;
    let listed = |pod: &PodFacts| models::shadow::DrainedPod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ..models::shadow::DrainedPod::default()
    };
    let pods = drained.pods.iter().flatten().map(listed).collect();
    status.drain = Some(models::shadow::DrainStatus { pods, ..models::shadow::DrainStatus::default() });
    let released = at("released", Step::Releasing, 0, HostState::Idle);
    let mut new = node("new");
    new.shadow = None;
    let mut left = node("left");
    left.facts.labelled = false;
    left.shadow.as_mut().unwrap().spec.host = None;
    let (mut view, _) = cluster(vec![drained, released, new, left, node("idle")], &["drained", "released", "idle"]);
    let other = NodeFacts {
        name: "other".into(),
        os_image: "Bottlerocket OS 1.20.5 (aws-k8s-1.37)".into(),
        labels: Arc::new(BTreeMap::from([("kubernetes.io/os".into(), "linux".into())])),
        ..NodeFacts::default()
    };
    view.unmanaged.insert("other".into(), other);
    let policy = with_policy(&mut view, json!({"labelNodes": true, "maxUnavailable": 5}));
    (view, policy)
}

#[test]
fn beside_earlier_operator_plan_has_only_a_report() {
    let (mut view, policy) = everything_is_due();
    let free = plan(&view, &policy, t(1));
    let kinds = [free.actions.len(), free.evictions.len(), free.labels.len()].map(|count| count > 0);
    assert!(kinds.iter().all(|some| *some) && free.slots.is_some(), "{free:?}");
    let shadows: Vec<_> = free.shadows.iter().map(ShadowChange::node).collect();
    assert_eq!(shadows, ["left", "new"], "{free:?}");

    let until = after(t(2), policy.shutdown);
    let free_then = plan(&view, &policy, until);
    view.earlier_pods = vec![POD.into()];
    let paused = plan(&view, &policy, t(1));
    let Plan { waits, status: Some(status), quarantine, window_open, wake, .. } = paused.clone() else { panic!() };
    let report = Plan { waits, status: Some(status.clone()), quarantine, window_open, wake, ..Plan::default() };
    assert_eq!(paused, report, "something else than a report is planned");
    assert_eq!(status.slots, view.operator.as_ref().unwrap().status.slots, "the slots are as they were");
    let names: Vec<_> = paused.waits.keys().map(String::as_str).collect();
    assert_eq!(names, ["drained", "idle", "left", "new", "released"]);
    assert!(paused.waits.values().all(|wait| wait.as_str() == "EarlierOperatorRunning"), "{:?}", paused.waits);
    let condition = models::condition::true_condition(&status.conditions, BLOCKED).unwrap();
    assert_eq!(condition.reason, "EarlierOperatorRunning");
    assert!(condition.message.contains(POD), "{}", condition.message);

    view.earlier_pods.clear();
    view.operator.as_mut().unwrap().status.conditions = status.conditions;
    let waiting = plan(&view, &policy, t(2));
    let status = waiting.status.unwrap();
    assert!(waiting.actions.is_empty() && waiting.evictions.is_empty() && waiting.shadows.is_empty());
    assert!(waiting.waits.values().all(|wait| *wait == Wait::EarlierOperatorGone { until }), "{:?}", waiting.waits);
    assert_eq!(waiting.wake, Some(until), "it continues by itself");
    let condition = models::condition::find_condition(&status.conditions, BLOCKED).unwrap();
    assert_eq!((condition.status, condition.last_transition_time), (ConditionStatus::Unknown, t(2)));
    assert!(condition.message.contains(&until.to_string()), "{}", condition.message);

    view.operator.as_mut().unwrap().status.conditions = status.conditions;
    let almost = plan(&view, &policy, until.checked_sub(SignedDuration::from_secs(1)).unwrap());
    assert!(almost.actions.is_empty() && almost.evictions.is_empty(), "{almost:?}");
    let again = plan(&view, &policy, until);
    let found = (&again.actions, &again.evictions);
    assert_eq!(found, (&free_then.actions, &free_then.evictions), "it continues as if nothing was");
    assert_eq!(
        (&again.shadows, &again.labels, &again.slots),
        (&free_then.shadows, &free_then.labels, &free_then.slots)
    );
    let conditions = &again.status.as_ref().unwrap().conditions;
    let condition = models::condition::find_condition(conditions, BLOCKED).unwrap();
    assert_eq!((condition.status, condition.reason.as_str()), (false.into(), "EarlierOperatorGone"));
}

#[test]
fn up_to_date_nodes_still_count_as_current_beside_earlier_operator() {
    let mut current = node("current");
    let agent = &mut current.shadow.as_mut().unwrap().status.agent;
    agent.current_version = Some(NEW);
    agent.updates.as_mut().unwrap().chosen_version = None;
    let (mut view, policy) = cluster(vec![current, node("old")], &[]);
    view.earlier_pods = vec![POD.into()];
    let counts = plan(&view, &policy, t(1)).status.unwrap().counts.unwrap();
    assert_eq!((counts.total, counts.current), (2, 1));
}

#[test]
fn attempt_paused_beyond_its_deadline_gets_its_whole_time_again() {
    let mut drained = at("a", Step::Draining, 0, HostState::StagedUpdate);
    drained.pods = Some(vec![pod("a", false)]);
    let (mut view, policy) = cluster_with(vec![drained], &["a"], json!({"drain": {"timeout": "10m"}}));
    let next_step = |plan: &Plan| plan.actions.get("a").and_then(Action::next_step);
    let failed = |view: &ClusterView, second| next_step(&plan(view, &policy, t(second))) == Some(Step::Releasing);
    assert!(failed(&view, 601), "without a pause the drain ends at its deadline");
    view.earlier_pods = vec![POD.into()];
    assert!(!failed(&view, 3600), "nothing fails during the pause");
    view.earlier_pods.clear();
    view.earlier_seen = Some(t(3360));
    assert!(!failed(&view, 3599), "nor while hosts may go down");
    assert!(!failed(&view, 3600), "nor the moment it ends");
    let made = plan(&view, &policy, t(4199));
    assert!(next_step(&made) != Some(Step::Releasing) && made.slots.is_none(), "{made:?}");
    assert!(failed(&view, 4200), "the time of the drain has passed since then");
    // A step that began after the pause has no more time than usual.
    view.earlier_seen = Some(t(-1000));
    assert!(failed(&view, 601));

    // A new leader knows the end from the operator's resource.
    view.earlier_seen = None;
    let over = condition(t(3600), BLOCKED, false, "EarlierOperatorGone", "");
    view.operator.as_mut().unwrap().status.conditions = vec![over];
    assert!(!failed(&view, 4199) && failed(&view, 4200));
}
