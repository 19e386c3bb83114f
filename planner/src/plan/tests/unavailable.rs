//! Nodes that are out of service without the operator.

use std::sync::Arc;

use models::operator::CordonedNodes;
use models::shadow::{HostState, Step};

use crate::fixtures::*;
use crate::plan::plan;
use crate::policy::Policy;
use crate::view::{ClusterView, NodeFacts, NodeView};
use crate::wait::Wait;

/// A staged node.
fn staged(name: &str) -> NodeView {
    let mut node = at(name, Step::Staged, 0, HostState::StagedUpdate);
    node.shadow.as_mut().unwrap().status.agent.state = Some(HostState::StagedUpdate);
    node
}

/// Returns the nodes that are given a slot at a second, and the reason why `a` waits.
fn given(view: &ClusterView, policy: &Policy, second: i64) -> (Vec<String>, Option<Wait>) {
    let made = plan(view, policy, t(second));
    assert_eq!(crate::lint::lint(view, policy, &mut made.clone()), []);
    let slots = made.slots.clone().unwrap_or_default().into_iter().map(|slot| slot.node).collect();
    (slots, made.waits.get("a").cloned())
}

#[test]
fn no_node_out_of_service_without_operator_blocks_fleet_for_ever() {
    type Change = fn(&mut NodeFacts);
    let cases: [(&str, Change, bool); 5] = [
        ("cordoned by a user", |facts| (facts.unschedulable, facts.cordoned_since) = (true, Some(t(0))), true),
        ("not Ready", |facts| (facts.ready, facts.not_ready_since) = (false, Some(t(0))), true),
        ("dead for a day", |facts| (facts.ready, facts.not_ready_since) = (false, Some(t(-86_400))), false),
        (
            "removed by an autoscaler",
            |facts| {
                (facts.unschedulable, facts.removed_by) = (true, Some("ToBeDeletedByClusterAutoscaler".into()));
            },
            false,
        ),
        ("in service", |_| {}, false),
    ];
    for (sentence, change, counts) in cases {
        let mut other = node("z");
        change(&mut other.facts);
        let (view, policy) = cluster(vec![staged("a"), other], &[]);
        for second in [60, 3599, 3600] {
            let (slots, wait) = given(&view, &policy, second);
            let blocked = matches!(&wait, Some(Wait::BudgetUsedUp { node, until: Some(until), .. }) if node == "z" && *until == t(3600));
            let expected = counts && second < 3600;
            assert_eq!((slots.is_empty(), blocked), (expected, expected), "{sentence} at {second}: {wait:?}");
        }
        if counts {
            let wake = plan(&view, &policy, t(60)).wake;
            assert!(wake.is_some_and(|wake| wake <= t(3600)), "{sentence}: {wake:?}");
        }
    }
}

#[test]
fn node_that_was_never_ready_does_not_count() {
    let mut joins = node("z");
    (joins.facts.ready, joins.facts.joining, joins.shadow) = (false, true, None);
    let (view, policy) = cluster(vec![staged("a"), joins], &[]);
    assert_eq!(given(&view, &policy, 60).0, ["a"]);
}

#[test]
fn node_cordoned_by_user_is_updated_within_its_own_room() {
    let cordoned = |mut node: NodeView| {
        (node.facts.unschedulable, node.facts.cordoned_since) = (true, Some(t(0)));
        node
    };
    let policy = |limit| {
        let mut policy = Policy {
            present: true,
            max_unavailable: models::operator::CountOrPercent::Count(limit),
            ..Policy::default()
        };
        policy.all.drain.cordoned_nodes = CordonedNodes::Update;
        policy
    };
    // The only one that is out, behind others in the order: they wait, and it goes.
    let (view, _) = cluster(vec![staged("a"), staged("b"), staged("c"), staged("d"), cordoned(staged("e"))], &[]);
    let (slots, wait) = given(&view, &policy(1), 60);
    assert_eq!(slots, ["e"]);
    assert!(matches!(wait, Some(Wait::BudgetUsedUp { .. })), "{wait:?}");
    // Never more at a time than the limit, however many are cordoned.
    let (mut view, _) = cluster(vec![cordoned(staged("a")), cordoned(staged("b")), cordoned(staged("c"))], &[]);
    one_proven(&mut view);
    assert_eq!(given(&view, &policy(2), 60).0.len(), 2);
    // It is staged for that, too.
    let (view, _) = cluster(vec![node("a"), cordoned(node("b"))], &[]);
    let made = plan(&view, &policy(1), t(60));
    assert_eq!(made.actions.keys().collect::<Vec<_>>(), ["b"], "{:?}", made.waits);
}

#[test]
fn control_plane_node_waits_for_others_and_workers_go_on() {
    let mut nodes: Vec<NodeView> = ["a", "b"].map(staged).into();
    let mut dead = node("z");
    (dead.facts.ready, dead.facts.not_ready_since) = (false, Some(t(-1_000_000)));
    for node in [&mut nodes[0], &mut dead] {
        node.facts.labels = Arc::new([(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())].into());
    }
    nodes.push(dead);
    let (view, policy) = cluster(nodes, &[]);
    let (slots, wait) = given(&view, &policy, 60);
    assert_eq!((slots, wait), (vec!["b".to_owned()], Some(Wait::ControlPlaneBusy { node: "z".into() })));
}
