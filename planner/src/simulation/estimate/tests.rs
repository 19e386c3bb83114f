use models::history::RolloutPhase;
use models::operator::OperatorRequests;
use models::shadow::{HostState, NodeBefore, OwnerBefore, Record, Step};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{NEW, OLD, at, cluster, node, recorded, rollout, t};
use crate::plan::plan_reporting;
use crate::view::{DaemonSetFacts, NodeView, ReportedFacts};

/// A cluster with a running rollout to NEW, which these nodes have on offer.
fn running_rollout(nodes: Vec<NodeView>, spec: &Value) -> (ClusterView, Policy) {
    let (mut view, _) = cluster(nodes, &[]);
    let operator = view.operator.as_mut().unwrap();
    operator.spec = serde_json::from_value(spec.clone()).unwrap();
    operator.status.active_rollouts = vec![ActiveRollout { record: Some(recorded(7)), ..rollout(NEW) }];
    view.history.highest = Some(7);
    let policy = Policy::from_spec(&operator.spec).unwrap();
    (view, policy)
}

fn nodes(number: usize) -> Vec<NodeView> {
    (0..number).map(|number| node(&format!("node-{number}"))).collect()
}

fn estimated(view: &ClusterView, policy: &Policy, updates: &[UpdateDurations]) -> Option<CompletionEstimate> {
    estimate(view.clone(), policy, updates, t(100)).rollouts.get(&7).copied()
}

#[test]
fn estimate_follows_the_durations_of_the_last_updates() {
    let (view, policy) = running_rollout(nodes(8), &json!({"health": {"soak": "60s"}}));
    let unknown = estimated(&view, &policy, &[]).unwrap();
    assert!(unknown.earliest <= unknown.at && unknown.at <= unknown.latest, "{unknown:?}");
    let updates = [UpdateDurations { before_drain: 10, drain: 300, reboot: 500 }; 5];
    let known = estimated(&view, &policy, &updates).unwrap();
    // One node at a time, each for 860 s and the reactions of its agent.
    let seconds = known.at.duration_since(t(100)).as_secs();
    assert!((8 * 860..8 * 900).contains(&seconds), "{seconds} s");
    assert_eq!(known.made, t(100));
    let few = estimated(&view, &policy, &updates[..4]).unwrap();
    assert!(few.latest < known.earliest, "four updates are too few to go by: {few:?}");
}

#[test]
fn nodes_of_another_kind_and_nodes_without_the_version_do_not_count() {
    let updates = [UpdateDurations { before_drain: 10, drain: 300, reboot: 500 }; 5];
    let of = |others: usize, change: fn(&mut NodeView)| {
        let mut all = nodes(8);
        all.iter_mut().take(others).for_each(change);
        let (view, policy) = running_rollout(all, &json!({"maxUnavailable": "100%"}));
        estimated(&view, &policy, &updates)
    };
    let up_to_date = |node: &mut NodeView| {
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        agent.current_version = Some(NEW);
        agent.updates = None;
        node.facts.os_image = "Bottlerocket OS 1.20.5 (aws-k8s-1.37)".into();
    };
    assert!(of(0, up_to_date).is_some());
    assert!(of(7, up_to_date).is_some());
    assert_eq!(of(8, up_to_date), None, "no update is left");
    let other = |node: &mut NodeView| node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into());
    assert_eq!(of(8, other), None);
}

#[test]
fn pods_that_belong_to_a_node_being_updated_are_not_missing_in_an_estimate_without_pods() {
    let mut all = nodes(3);
    let mut out = at("node-0", Step::Draining, 0, HostState::StagedUpdate);
    let set = OwnerBefore { name: "shop/driver".into(), uid: "driver".into() };
    let static_pods = vec!["kube-system/proxy-node-0".into()];
    let replica_sets = ["shop/api", "shop/web"].map(|name| OwnerBefore { name: name.into(), uid: name.into() }).into();
    let before = NodeBefore { daemon_sets: vec![set], replica_sets, static_pods, ..NodeBefore::default() };
    let record = Record { before: Some(before), ..Record::default() };
    out.shadow.as_mut().unwrap().status.controller.record = Some(record);
    all[0] = out;
    let (mut view, policy) = running_rollout(all, &json!({}));
    let facts = DaemonSetFacts { uid: "driver".into(), ..DaemonSetFacts::default() };
    view.daemon_sets = Some([("shop/driver".to_owned(), facts)].into());
    assert!(estimated(&view, &policy, &[]).is_some());
}

#[test]
fn nothing_is_expected_while_no_update_can_end() {
    for (sentence, spec) in [
        ("updates are disabled", json!({"enabled": false})),
        ("another version is the target", json!({"version": {"target": OLD.to_string()}})),
        ("a step waits for approval", json!({"strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]}})),
        ("no window opens in time", json!({"schedule": {"windows": [{"cron": "0 0 29 2 *", "duration": "1h"}]}})),
    ] {
        let (view, policy) = running_rollout(nodes(3), &spec);
        assert_eq!(estimated(&view, &policy, &[]), None, "{sentence}");
    }
    // One node that is held is no reason to say nothing of the others.
    let mut one_held = nodes(3);
    one_held[0].facts.hold = Some(crate::hold::Hold::default());
    let (view, policy) = running_rollout(one_held, &json!({}));
    assert!(estimated(&view, &policy, &[]).is_some(), "one node is held");
    let mut one_locked = nodes(3);
    let updates = one_locked[0].shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
    (updates.chosen_version, updates.available_versions) = (None, vec![NEW]);
    let (view, policy) = running_rollout(one_locked, &json!({}));
    assert!(estimated(&view, &policy, &[]).is_some(), "one host has a version lock of its own");
    let (daily, open) = (json!([{"cron": "0 3 * * *", "duration": "4h"}]), t(100));
    let mut one_held = nodes(3);
    one_held[0].facts.hold = Some(crate::hold::Hold::default());
    let (view, policy) = running_rollout(one_held, &json!({"schedule": {"windows": daily}}));
    let found = estimated(&view, &policy, &[]);
    assert!(found.is_some_and(|found| found.at > open), "one node is held, and windows open every day: {found:?}");
    // The window opens tomorrow: the estimate knows.
    let (view, policy) =
        running_rollout(nodes(3), &json!({"schedule": {"windows": [{"cron": "0 3 * * *", "duration": "4h"}]}}));
    let window = estimated(&view, &policy, &[]).unwrap();
    assert_eq!(window.at.to_zoned(jiff::tz::TimeZone::UTC).hour(), 3, "{window:?}");
}

#[test]
fn estimates_are_made_when_a_rollout_begins_every_quarter_of_an_hour_and_after_a_change() {
    let (mut view, _) = running_rollout(nodes(3), &json!({}));
    assert_eq!(estimate_due(&view, None), Some(t(30)), "once the hosts have reported");
    let last = no_estimate(&view, t(40));
    assert_eq!(estimate_due(&view, Some(&last)), Some(t(40 + 900)));
    let mut under_way = view.clone();
    let out = at("node-0", Step::Draining, 0, HostState::StagedUpdate);
    under_way.nodes.insert("node-0".into(), out);
    assert_eq!(estimate_due(&under_way, Some(&last)), Some(t(40 + 60)), "there is none, and a node is out of service");
    let made = CompletionEstimate { at: t(90), earliest: t(90), latest: t(90), made: t(40) };
    let known = EstimateFacts { rollouts: [(7, made)].into(), ..last.clone() };
    assert_eq!(estimate_due(&under_way, Some(&known)), Some(t(40 + 900)));
    let slow = EstimateFacts { took: Duration::from_secs(10), ..last.clone() };
    assert_eq!(estimate_due(&under_way, Some(&slow)), Some(t(40 + 210)), "20 times as long as the last one took");
    type Change = fn(&mut OperatorFacts);
    let changes: [(&str, Change); 3] = [
        ("another policy", |operator| operator.generation += 1),
        ("a request", |operator| operator.status.requests = Some(OperatorRequests::default())),
        ("another rollout", |operator| {
            operator.status.active_rollouts.push(ActiveRollout { record: Some(recorded(8)), ..rollout(OLD) });
        }),
    ];
    for (sentence, change) in changes {
        let mut changed = view.clone();
        change(changed.operator.as_mut().unwrap());
        assert_eq!(estimate_due(&changed, Some(&last)), Some(t(70)), "{sentence}");
    }
    let record = view.operator.as_mut().unwrap().status.active_rollouts[0].record.as_mut().unwrap();
    (record.phase, record.ended) = (RolloutPhase::Completed, Some(t(50)));
    assert_eq!(estimate_due(&view, Some(&last)), None, "an idle cluster needs none");
    assert_eq!(estimate_due(&ClusterView::default(), None), None);
}

#[test]
fn plan_records_an_estimate_in_the_status_of_the_rollout() {
    let (view, policy) = running_rollout(nodes(3), &json!({}));
    let estimates = Some(estimate(view.clone(), &policy, &[], t(100)));
    let reported = ReportedFacts { estimates, ..ReportedFacts::default() };
    let status = plan_reporting(&view, &reported, &policy, t(101)).status.unwrap();
    let rollout = &status.active_rollouts[0];
    let first = rollout.record.as_ref().unwrap().first_estimate;
    assert!(rollout.estimated_completion.is_some() && rollout.estimated_completion == first, "{rollout:?}");
}
