//! The policy's history as part of a plan: what is written for it, and what it never changes.

use models::condition::find_condition;
use models::operator::DEGRADED;
use models::shadow::{DrainStatus, HostState, OfferedUpdates, Step};
use serde_json::json;

use crate::fixtures::{NEW, at, cluster, node, record_history, shadow, t, with_policy};
use crate::plan::plan;
use crate::policy::Policy;
use crate::revisions::RevisionAction;
use crate::view::{ClusterView, NodeView, ShadowFacts};

/// A node that is what the policy makes of it.
fn current(name: &str) -> NodeView {
    let mut node = node(name);
    node.shadow.as_mut().unwrap().status.agent.updates = Some(OfferedUpdates::default());
    node
}

/// A cluster whose policy has its first revision, and the name of that.
fn recorded(nodes: Vec<NodeView>) -> (ClusterView, Policy, String) {
    let (mut view, policy) = cluster(nodes, &[]);
    record_history(&mut view, &policy);
    let name = view.revisions.as_ref().unwrap()[0].name.clone();
    (view, policy, name)
}

#[test]
fn first_plan_creates_revision_and_next_one_labels_nodes_that_follow_it_and_nothing_else() {
    let mut silent = node("b");
    silent.shadow.as_mut().unwrap().status.agent.updates = None;
    let (mut view, policy) = cluster(vec![current("a"), silent], &[]);
    view.revisions = Some(Vec::new());
    let first = plan(&view, &policy, t(1));
    assert!(matches!(first.revisions[..], [RevisionAction::Create(_)]), "{:?}", first.revisions);
    assert!(first.relabelled.is_empty() && first.status.as_ref().unwrap().update_revision.is_none());
    record_history(&mut view, &policy);
    let second = plan(&view, &policy, t(2));
    let name = second.status.as_ref().unwrap().update_revision.clone().unwrap();
    assert_eq!(second.relabelled, [("a".to_owned(), name.clone())].into());
    assert!(second.revisions.is_empty());
    // Without the history the plan is the same.
    let without = plan(&ClusterView { revisions: None, ..view.clone() }, &policy, t(2));
    assert_eq!((second.actions, second.waits, second.slots), (without.actions, without.waits, without.slots));
    shadow(&mut view).revision = Some(name);
    assert!(plan(&view, &policy, t(3)).relabelled.is_empty());
}

#[test]
fn node_gets_label_only_while_nothing_else_is_under_way_or_due() {
    let relabelled = |change: &dyn Fn(&mut ClusterView)| {
        let (mut view, policy, _) = recorded(vec![current("a")]);
        change(&mut view);
        plan(&view, &policy, t(1)).relabelled.len()
    };
    assert_eq!(relabelled(&|_| {}), 1);
    assert_eq!(relabelled(&|view| shadow(view).revision = Some("gone".into())), 1, "it names no known revision");
    assert_eq!(relabelled(&|view| shadow(view).deleting = true), 0);
    assert_eq!(relabelled(&|view| _ = view.busy.insert("a".into())), 0, "a write is under way");
    assert_eq!(relabelled(&|view| shadow(view).spec.host = None), 1, "with its settings");
    assert_eq!(relabelled(&|view| shadow(view).spec.state = HostState::StagedUpdate), 1, "with the withdrawal");
    let found = relabelled(&|view| shadow(view).status.controller.drain = Some(DrainStatus::default()));
    assert_eq!(found, 0, "after that");
    assert_eq!(relabelled(&|view| shadow(view).status.agent.updates = None), 0, "its host has not looked yet");
    assert_eq!(relabelled(&|view| view.revisions = None), 0, "the revisions are not known");
    assert_eq!(relabelled(&|view| view.stale = true), 0);
    let attempt = at("a", Step::Draining, 0, HostState::StagedUpdate);
    assert_eq!(relabelled(&|view| _ = view.nodes.insert("a".into(), attempt.clone())), 0, "an attempt is under way");
}

#[test]
fn node_keeps_label_of_its_revision_until_it_follows_another() {
    let (mut view, _, first) = recorded(vec![current("a")]);
    shadow(&mut view).revision = Some(first.clone());
    let pinned = with_policy(&mut view, json!({"version": {"target": NEW.to_string()}}));
    shadow(&mut view).status.agent.updates = Some(OfferedUpdates { chosen_version: Some(NEW), ..Default::default() });
    record_history(&mut view, &pinned);
    let made = plan(&view, &pinned, t(1));
    assert!(made.relabelled.is_empty());
    let status = made.status.unwrap();
    assert_ne!(status.update_revision, Some(first));
    shadow(&mut view).spec.host.as_mut().unwrap().version_lock = Some(NEW.to_string());
    let agent = &mut shadow(&mut view).status.agent;
    (agent.current_version, agent.updates) = (Some(NEW), Some(OfferedUpdates::default()));
    view.nodes.get_mut("a").unwrap().facts.os_image = format!("Bottlerocket OS {NEW} (aws-k8s-1.37)");
    assert_eq!(plan(&view, &pinned, t(2)).relabelled.into_values().next(), status.update_revision);
}

#[test]
fn revision_that_shadow_without_node_or_of_earlier_node_names_is_kept() {
    let (mut view, _, first) = recorded(vec![current("a")]);
    let version = json!({"target": NEW.to_string()});
    let pinned = with_policy(&mut view, json!({"version": version}));
    record_history(&mut view, &pinned);
    let pinned = with_policy(&mut view, json!({"version": version, "revisionHistoryLimit": 0}));
    let deleted = |view: &ClusterView| {
        let deletes = |action: &RevisionAction| matches!(action, RevisionAction::Delete { name, .. } if *name == first);
        plan(view, &pinned, t(1)).revisions.iter().any(deletes)
    };
    view.operator.as_mut().unwrap().status.current_revision = None;
    assert!(deleted(&view), "nothing names it");
    view.revisions_in_use = [first.clone()].into();
    assert!(!deleted(&view), "a shadow whose Node is gone names it");
    view.revisions_in_use.clear();
    let orphan =
        ShadowFacts { node: "b".into(), revision: Some(first.clone()), deleting: true, ..ShadowFacts::default() };
    view.orphaned_shadows.insert("b".into(), orphan);
    assert!(!deleted(&view), "a shadow of an earlier Node names it");
}

#[test]
fn name_taken_by_another_revision_raises_collision_count_with_status() {
    let (mut view, policy, _) = recorded(vec![current("a")]);
    view.revisions.as_mut().unwrap()[0].data = json!({"form": 1, "target": "1.1.1"});
    let made = plan(&view, &policy, t(1));
    assert!(made.revisions.is_empty(), "{:?}", made.revisions);
    assert_eq!(made.status.unwrap().collision_count, Some(1));
}

#[test]
fn policy_without_revision_is_reported_as_degraded() {
    let (mut view, policy, _) = recorded(vec![current("a")]);
    view.revisions.as_mut().unwrap()[0].data = json!({"form": 1, "target": "1.1.1"});
    view.operator.as_mut().unwrap().status.collision_count = Some(i32::MAX);
    let first = plan(&view, &policy, t(1)).revisions;
    let [RevisionAction::Create(revision)] = &first[..] else { panic!("{first:?}") };
    view.revisions.as_mut().unwrap()[0].name = revision.metadata.name.clone().unwrap();
    let made = plan(&view, &policy, t(1)).status.unwrap();
    let degraded = find_condition(&made.conditions, DEGRADED).unwrap();
    assert_eq!(degraded.reason, "PolicyNotRecorded");
    assert!(degraded.message.contains("delete that one"), "{}", degraded.message);
}

#[test]
fn nothing_is_written_for_history_beside_earlier_operator() {
    let (mut view, policy, _) = recorded(vec![current("a")]);
    view.earlier_pods = vec!["old/controller".into()];
    let made = plan(&view, &policy, t(1));
    assert!(made.relabelled.is_empty());
    assert!(made.status.unwrap().update_revision.is_some());
    view.revisions = Some(Vec::new());
    assert!(plan(&view, &policy, t(1)).revisions.is_empty());
    let mut forged = super::Plan { relabelled: [("a".into(), "x".into())].into(), ..super::Plan::default() };
    assert_eq!(crate::lint::lint(&view, &policy, &mut forged)[0].property, "S10");
    assert!(forged.relabelled.is_empty());
}
