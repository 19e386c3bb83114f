//! Pods that tolerate the cordon and came back after their eviction: the reboot ends them, within their budgets.

use std::sync::Arc;

use kube::core::{Expression, Selector};
use models::condition::find_condition;
use models::shadow::{ArmedPhase, BLOCKED, DRAINED, DrainStatus, DrainedPod, HostState, Permit, Step};
use serde_json::json;

use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::{Plan, plan};
use crate::policy::Policy;
use crate::view::{BudgetFacts, ClusterView, InFlight, NodeView, PodFacts};
use crate::wait::Wait;

/// A budget over three pods, of which one may be away.
fn budget() -> BudgetFacts {
    BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        healthy: 3,
        desired: 2,
        expected: 3,
        allowed: 1,
        selector: Some(Selector::from_iter([Expression::Equal("app".into(), "web".into())])),
        ..BudgetFacts::default()
    }
}

fn web(node: &str) -> PodFacts {
    let labels = Arc::new([("app".to_owned(), "web".to_owned())].into());
    PodFacts { tolerates_cordon: true, ready: true, labels, ..pod(node, false) }
}

/// A drained node to which a pod has come back, and whose agent requests the permit.
fn drained(name: &str) -> NodeView {
    let mut node = at(name, Step::Rebooting, 0, HostState::RebootedIntoUpdate);
    node.pods = Some(vec![web(name)]);
    let status = &mut node.shadow.as_mut().unwrap().status;
    status.controller.drain = Some(DrainStatus { evicted_owners: vec!["rs".into()], ..DrainStatus::default() });
    status.agent.armed = Some(armed(ArmedPhase::Arming));
    node
}

/// Node `a`, drained.
fn one(spec: serde_json::Value) -> (ClusterView, Policy) {
    let (mut view, policy) = cluster_with(vec![drained("a")], &["a"], spec);
    view.budgets = vec![budget()];
    (view, policy)
}

/// The outcome for node `a` once a reason to wait is recorded.
fn settled(view: &mut ClusterView, policy: &Policy) -> String {
    let made = plan(view, policy, t(1));
    if let Some(action @ Action::Status { .. }) = made.actions.get("a") {
        written(view, action);
    }
    outcome(&plan(view, policy, t(1)))
}

#[test]
fn reboot_waits_until_the_budget_of_a_pod_that_came_back_lets_it_go() {
    type Change = fn(&mut BudgetFacts, &mut Vec<PodFacts>);
    let case = |sentence: &str, drain: serde_json::Value, expected: &str, change: Change| {
        let (mut view, policy) = one(json!({"drain": drain}));
        change(&mut view.budgets[0], view.nodes.get_mut("a").unwrap().pods.as_mut().unwrap());
        assert_eq!(settled(&mut view, &policy), expected, "{sentence}");
    };
    let breaks: Change = |budget, _| (budget.healthy, budget.allowed) = (2, 0);
    case("all pods are healthy, and one may be away", json!({}), "permit for n", |_, _| {});
    case("another pod has broken since the eviction", json!({}), "BudgetUnhealthy", breaks);
    case("none may be away", json!({}), "BudgetNeverAllows", |budget, _| (budget.desired, budget.allowed) = (3, 0));
    case("its numbers are of an earlier spec", json!({}), "BudgetSyncFailed", |budget, _| budget.stale = true);
    case("the pod is the broken one", json!({}), "permit for n", |budget, pods| {
        (budget.healthy, budget.allowed) = (2, 0);
        pods[0].ready = false;
    });
    case("the pod has not begun", json!({}), "permit for n", |budget, pods| {
        (budget.healthy, budget.allowed) = (2, 0);
        (pods[0].ready, pods[0].pending) = (false, true);
    });
    case("all pods are on the only node", json!({}), "permit for n", |_, pods| {
        let more = ["second", "third"].map(|name| PodFacts { name: name.into(), uid: name.into(), ..web("a") });
        pods.extend(more);
    });
    case("no budget counts it", json!({}), "permit for n", |budget, _| {
        (budget.healthy, budget.allowed, budget.namespace) = (2, 0, "bank".into());
    });
    case("policy deletes pods past their budgets", json!({"atDeadline": "Force"}), "permit for n", breaks);
    let waits = json!({"atDeadline": "Force", "guardedPods": "Wait"});
    case("policy deletes none that a budget guards", waits, "BudgetUnhealthy", breaks);
}

#[test]
fn attempt_ends_as_refused_where_the_budget_of_a_pod_that_came_back_never_lets_it_go() {
    let (mut view, policy) = one(json!({}));
    (view.budgets[0].healthy, view.budgets[0].allowed) = (2, 0);
    for (second, ends) in [(1799, false), (1800, true)] {
        let made = plan(&view, &policy, t(second));
        assert_eq!(outcome(&made) == "GateRefused", ends, "at {second}: {}", outcome(&made));
    }
    let made = plan(&view, &policy, t(1800));
    assert!(last_of(&made).message.contains("shop/web"), "{}", last_of(&made).message);
    assert_eq!(record_of(&made).version_failures, []);
}

/// Node `b` may go down by its permit for as long as node `a` waits.
#[test]
fn attempt_that_waits_for_the_reboot_of_another_node_until_its_deadline_is_no_failure_of_its_own() {
    let (mut view, policy) = cluster_with(vec![drained("a"), drained("b")], &["a", "b"], json!({"maxUnavailable": 2}));
    view.budgets = vec![budget()];
    let other = view.nodes.get_mut("b").unwrap().shadow.as_mut().unwrap();
    other.spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() });
    assert_eq!(settled(&mut view, &policy), "BudgetBusy");
    let shown = find_condition(&shadow(&mut view).status.conditions, BLOCKED).unwrap();
    assert!(shown.reason == "BudgetBusy" && shown.message.contains("pods of b "), "{shown:?}");
    let made = plan(&view, &policy, t(1800));
    assert_eq!(outcome(&made), "ClusterUnwell");
    assert_eq!(record_of(&made).failures, 0);
}

/// The outcome for node `b`, and in another word the reason that its condition shows.
fn outcome_of_b(made: &Plan) -> String {
    match made.actions.get("b") {
        None => made.waits["b"].as_str().to_owned(),
        Some(Action::Permit { .. }) => "permit".to_owned(),
        Some(Action::Status { status, .. }) => find_condition(&status.conditions, BLOCKED).unwrap().reason.clone(),
        Some(action) => panic!("{action:?}"),
    }
}

fn node_a(view: &mut ClusterView) -> &mut NodeView {
    view.nodes.get_mut("a").unwrap()
}

fn permits(view: &mut ClusterView) {
    shadow(view).spec.permit = Some(Permit { nonce: "n".into(), jws: "j".into() });
}

#[test]
fn reboots_that_end_pods_of_one_budget_are_permitted_one_after_the_other() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, expected: &str, change: Change| {
        let nodes = vec![drained("a"), drained("b"), node("c")];
        let (mut view, policy) = cluster_with(nodes, &["a", "b"], json!({"maxUnavailable": 2}));
        view.budgets = vec![budget()];
        change(&mut view);
        let made = plan(&view, &policy, t(1));
        assert_eq!(outcome_of_b(&made), expected, "{sentence}: {:?}", made.waits);
        assert_eq!(crate::lint::lint(&view, &policy, &mut made.clone()), [], "{sentence}");
    };
    case("both request one", "BudgetBusy", |_| {});
    case("two pods may be away", "permit", |view| (view.budgets[0].desired, view.budgets[0].allowed) = (1, 2));
    case("the first one has not requested it", "permit", |view| shadow(view).status.agent.armed = None);
    case("the permit of the first one is being written", "BudgetBusy", |view| _ = view.busy.insert("a".into()));
    case("the first one has its permit, and its pod runs", "BudgetBusy", permits);
    case("its pod is broken, and not counted yet", "BudgetBusy", |view| {
        permits(view);
        node_a(view).pods.as_mut().unwrap()[0].ready = false;
    });
    case("its pod is counted as broken", "BudgetUnhealthy", |view| {
        permits(view);
        node_a(view).pods.as_mut().unwrap()[0].ready = false;
        (view.budgets[0].healthy, view.budgets[0].allowed) = (2, 0);
    });
    case("its pod is counted as broken, and one more may be", "permit", |view| {
        permits(view);
        node_a(view).pods.as_mut().unwrap()[0].ready = false;
        view.budgets[0].desired = 1;
        view.budgets[0].healthy = 2;
    });
    case("its pods are not known", "ReadingPods", |view| {
        permits(view);
        node_a(view).pods = None;
    });
    case("its pods are of no budget", "permit", |view| {
        permits(view);
        node_a(view).pods.as_mut().unwrap()[0].labels = Arc::default();
    });
    case("it is back in service", "permit", |view| {
        let back = NodeView { pods: Some(vec![web("a")]), ..node("a") };
        *node_a(view) = back;
    });
    case("the eviction of a pod on a third node has no answer", "BudgetBusy", |view| {
        *node_a(view) = node("a");
        let third = view.nodes.get_mut("c").unwrap();
        third.pods = Some(vec![web("c")]);
        third.in_flight = [("p-c".to_owned(), InFlight { since: t(0), deletes: false })].into();
    });
}

#[test]
fn no_pod_is_evicted_while_a_reboot_uses_up_its_budget() {
    type Change = fn(&mut ClusterView);
    let case = |sentence: &str, is_sent: bool, change: Change| {
        let mut draining = at("b", Step::Draining, 0, HostState::StagedUpdate);
        let listed =
            DrainedPod { namespace: "shop".into(), name: "p-b".into(), uid: "p-b".into(), ..DrainedPod::default() };
        draining.shadow.as_mut().unwrap().status.controller.drain =
            Some(DrainStatus { pods: [listed].into(), ..DrainStatus::default() });
        draining.pods = Some(vec![PodFacts { tolerates_cordon: false, ..web("b") }]);
        let (mut view, policy) = cluster_with(vec![drained("a"), draining], &["a", "b"], json!({"maxUnavailable": 2}));
        view.budgets = vec![budget()];
        change(&mut view);
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.evictions.contains_key("b"), is_sent, "{sentence}: {:?}", made.waits);
    };
    case("the reboot is permitted in the same plan", false, |_| {});
    case("it was permitted", false, permits);
    case("it is not requested yet", true, |view| shadow(view).status.agent.armed = None);
    case("two pods may be away", true, |view| (view.budgets[0].desired, view.budgets[0].allowed) = (1, 2));
    case("its pod is of no budget", true, |view| {
        node_a(view).pods.as_mut().unwrap()[0].labels = Arc::default();
    });
    case("the budget counts its pod as broken, and refuses by itself", true, |view| {
        permits(view);
        node_a(view).pods.as_mut().unwrap()[0].ready = false;
        (view.budgets[0].healthy, view.budgets[0].allowed) = (2, 0);
    });
}

#[test]
fn drained_node_with_pods_that_came_back_uses_their_budget_until_its_reboot() {
    for (sentence, has_returned, given) in
        [("its pod came back", true, vec!["a", "b"]), ("none did", false, vec!["a", "b", "c"])]
    {
        let mut nodes = [drained("a"), at("b", Step::Draining, 0, HostState::StagedUpdate)];
        nodes[0].pods = Some(if has_returned { vec![web("a")] } else { vec![] });
        nodes[1].pods = Some(vec![web("b")]);
        let mut staged = at("c", Step::Staged, 0, HostState::StagedUpdate);
        staged.pods = Some(vec![web("c")]);
        let (mut view, _) = cluster(nodes.into_iter().chain([staged]).collect(), &["a", "b"]);
        one_proven(&mut view);
        view.budgets = vec![budget()];
        let policy = with_policy(&mut view, json!({"maxUnavailable": 5}));
        let made = plan(&view, &policy, t(1));
        let slots = made.slots.as_ref().unwrap_or(&view.operator.as_ref().unwrap().status.slots);
        let found: Vec<_> = slots.iter().map(|slot| slot.node.as_str()).collect();
        assert_eq!(found, given, "{sentence}: {:?}", made.waits);
        let busy = matches!(made.waits.get("c"), Some(Wait::BudgetBusy { .. }));
        assert_eq!(busy, has_returned, "{sentence}: {:?}", made.waits.get("c"));
    }
}

#[test]
fn end_of_a_drain_names_the_budgets_that_its_reboot_waits_for() {
    for (sentence, drain, budgets, named) in [
        ("a budget counts the pod", json!({}), vec![budget()], true),
        ("none does", json!({}), vec![], false),
        ("policy deletes pods past their budgets", json!({"atDeadline": "Force"}), vec![budget()], false),
    ] {
        let mut node = drained("a");
        let status = &mut node.shadow.as_mut().unwrap().status;
        status.controller.progress.as_mut().unwrap().step = Step::Draining;
        status.agent.armed = None;
        node.shadow.as_mut().unwrap().spec.state = HostState::StagedUpdate;
        let (mut view, policy) = cluster_with(vec![node], &["a"], json!({"drain": drain}));
        view.budgets = budgets;
        let made = plan(&view, &policy, t(1));
        let Some(Action::Status { status, note }) = made.actions.get("a") else {
            panic!("{sentence}: {:?}", made.waits)
        };
        let condition = find_condition(&status.conditions, DRAINED).unwrap();
        assert!(condition.reason == "PodsLeft" && condition.message.contains("shop/p-a"), "{sentence}: {condition:?}");
        assert_eq!(condition.message.contains("a disruption (shop/web)"), named, "{sentence}: {condition:?}");
        let event = note.as_ref().map(|note| (note.warning, note.reason));
        assert_eq!(event, named.then_some((false, "PodsLeft")), "{sentence}");
    }
}
