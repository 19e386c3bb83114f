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
    let case = |sentence: &str, counts: bool, change: Change| {
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
    };
    case("cordoned by a user", true, |facts| (facts.unschedulable, facts.cordoned_since) = (true, Some(t(0))));
    case("not Ready", true, |facts| (facts.ready, facts.not_ready_since) = (false, Some(t(0))));
    case("dead for a day", false, |facts| (facts.ready, facts.not_ready_since) = (false, Some(t(-86_400))));
    case("removed by an autoscaler", false, |facts| {
        (facts.unschedulable, facts.removed_by) = (true, Some("ToBeDeletedByClusterAutoscaler".into()));
    });
    case("in service", false, |_| {});
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
    for others in [vec![], vec![cordoned(node("c"))]] {
        let (view, _) = cluster([vec![node("a"), cordoned(node("b"))], others].concat(), &[]);
        let made = plan(&view, &policy(1), t(60));
        assert_eq!(made.actions.keys().collect::<Vec<_>>(), ["b"], "{:?}", made.waits);
    }
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

/// A staged node of the control plane.
fn of_control_plane(name: &str) -> NodeView {
    let mut node = staged(name);
    node.facts.labels = Arc::new([(models::names::CONTROL_PLANE_LABEL.to_owned(), String::new())].into());
    node
}

#[test]
fn control_plane_nodes_go_one_at_a_time_whatever_else_is_out_of_service() {
    type Change = fn(&mut ClusterView);
    fn other(view: &mut ClusterView) -> &mut NodeView {
        view.nodes.get_mut("z").unwrap()
    }
    let case = |sentence: &str, goes: bool, change: Change| {
        let mut other = of_control_plane("z");
        other.shadow.as_mut().unwrap().status.controller.progress = None;
        let nodes = vec![of_control_plane("a"), of_control_plane("b"), other, node("w")];
        let (mut view, mut policy) = cluster(nodes, &[]);
        one_proven(&mut view);
        change(&mut view);
        policy.max_unavailable = models::operator::CountOrPercent::Percent("100%".into());
        policy.ignore_unavailable_after = std::time::Duration::from_secs(60);
        let (slots, wait) = given(&view, &policy, 1_000_000);
        let own: Vec<_> = slots.iter().filter(|slot| ["a", "b"].contains(&slot.as_str())).collect();
        assert_eq!(own.len(), usize::from(goes), "{sentence}: {slots:?}, {wait:?}");
        assert_eq!(plan(&view, &policy, t(1_000_000)).waits["b"].as_str(), "ControlPlaneBusy", "{sentence}");
    };
    case("all are Ready", true, |_| {});
    case("one has not been Ready for a month", false, |view| other(view).facts.ready = false);
    case("one joins", false, |view| (other(view).facts.ready, other(view).facts.joining) = (false, true));
    case("one that is not the operator's is not Ready", false, |view| {
        let facts = NodeFacts { ready: false, labelled: false, ..view.nodes.remove("z").unwrap().facts };
        view.unmanaged.insert("z".into(), facts);
    });
    case("one may still reboot, and is Ready", false, |view| {
        let mut releasing = progress(Step::Releasing, 0);
        (releasing.permit_issued, releasing.disruptive) = (true, false);
        other(view).shadow.as_mut().unwrap().status.controller.progress = Some(releasing);
    });
    case("one is updated", false, |view| {
        let labels = other(view).facts.labels.clone();
        *other(view) = at("z", Step::Draining, 999_999, HostState::StagedUpdate);
        other(view).facts.labels = labels;
        view.operator.as_mut().unwrap().status.slots = vec![with_slot("z", true)];
    });
    case("one is updated, and was registered again without the label", false, |view| {
        *other(view) = at("z", Step::Draining, 999_999, HostState::StagedUpdate);
        view.operator.as_mut().unwrap().status.slots = vec![with_slot("z", true)];
    });
    case("one is gone whose machine may still reboot", false, |view| {
        view.operator.as_mut().unwrap().status.slots = vec![with_slot("gone", true)];
    });
    case("a worker is gone whose machine may still reboot", true, |view| {
        view.operator.as_mut().unwrap().status.slots = vec![with_slot("gone", false)];
    });
    case("one is cordoned by a user", true, |view| other(view).facts.unschedulable = true);
    case("a worker is not Ready", true, |view| view.nodes.get_mut("w").unwrap().facts.ready = false);
}

/// A slot of a node whose reboot may be permitted.
fn with_slot(node: &str, control_plane: bool) -> models::operator::Slot {
    let update = models::operator::SlotUpdate { permitting_since: Some(t(999_999)), control_plane, ..first_update() };
    models::operator::Slot { update: Some(update), ..slot(node) }
}

#[test]
fn update_without_a_permit_ends_when_others_remove_its_node() {
    type Change = fn(&mut NodeView);
    let drained = HostState::RebootedIntoUpdate;
    let permitted: Change = |node| {
        let permit = models::shadow::Permit { nonce: "n".into(), jws: String::new() };
        node.shadow.as_mut().unwrap().spec.permit = Some(permit);
    };
    let case = |sentence: &str, mut node: NodeView, expected: &str, change: Change| {
        node.facts.removed_by = Some("karpenter.sh/disrupted".into());
        change(&mut node);
        let (view, policy) = cluster(vec![node], &["a"]);
        assert_eq!(outcome(&plan(&view, &policy, t(60))), expected, "{sentence}");
    };
    case("its image is staged", staged("a"), "NodeDeleted", |_| {});
    case("it is drained", at("a", Step::Draining, 0, HostState::StagedUpdate), "NodeDeleted", |_| {});
    case("it is to reboot", at("a", Step::Rebooting, 0, drained), "NodeDeleted", |_| {});
    case("its reboot is permitted", at("a", Step::Rebooting, 0, drained), "AwaitingReboot", permitted);
}
