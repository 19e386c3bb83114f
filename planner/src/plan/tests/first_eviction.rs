//! The checks that are made again before the first eviction on a node, whatever was awaited since the last ones.

use models::condition::find_condition;
use models::shadow::{BLOCKED, DrainStatus, FirstPod, HostState, Step};
use serde_json::{Value, json};

use crate::decision::Action;
use crate::fixtures::*;
use crate::plan::plan;
use crate::policy::Policy;
use crate::view::{Answer, BudgetFacts, ClusterView, DaemonSetState, PodFacts};

type Change = fn(&mut ClusterView, &mut Value);

/// Node `a` with one pod, out of its load balancers for 5 minutes from 0 s, once something has changed.
fn leaving(change: Change) -> (ClusterView, Policy) {
    let mut node = at("a", Step::LeavingLoadBalancer, 0, HostState::StagedUpdate);
    node.facts.claims = crate::claims::ClaimField::ALL.into_iter().collect();
    node.pods = Some(vec![PodFacts { ready: true, ..pod("a", false) }]);
    node.shadow.as_mut().unwrap().status.controller.drain = Some(DrainStatus::default());
    let (mut view, _) = cluster(vec![node], &["a"]);
    let mut spec = json!({"loadBalancer": {"leaveBeforeDrain": "5m"}});
    change(&mut view, &mut spec);
    let policy = with_policy(&mut view, spec);
    assert!(policy.errors.is_empty(), "{:?}", policy.errors);
    (view, policy)
}

/// A budget over all pods, of which so many are healthy, and that lets none go.
fn budget(healthy: i32) -> BudgetFacts {
    let every = kube::core::Expression::DoesNotExist("other".into());
    BudgetFacts {
        namespace: "shop".into(),
        name: "web".into(),
        healthy,
        desired: 3,
        expected: 3,
        selector: Some(kube::core::Selector::from_iter([every])),
        ..BudgetFacts::default()
    }
}

fn a(view: &mut ClusterView) -> &mut crate::view::NodeView {
    view.nodes.get_mut("a").unwrap()
}

#[test]
fn gates_are_checked_again_after_the_wait_for_load_balancers() {
    let case = |sentence: &str, expected: &str, change: Change| {
        let (view, policy) = leaving(change);
        assert_eq!(outcome(&plan(&view, &policy, t(299))), "LeavingLoadBalancer", "{sentence}");
        let made = plan(&view, &policy, t(300));
        assert_eq!(outcome(&made), expected, "{sentence}");
        assert!(made.evictions.is_empty(), "{sentence}");
        assert_eq!(crate::lint::lint(&view, &policy, &mut made.clone()), [], "{sentence}");
    };
    case("nothing has changed", "step Draining", |_, _| {});
    case("updates are disabled", "step Draining", |_, spec| spec["enabled"] = json!(false));
    case("the window has closed in which it began", "step Draining", |_, spec| {
        spec["schedule"] = json!({"windows": [{"cron": "0 12 * * *", "duration": "1h"}]});
    });
    case("the node is not Ready", "GateRefused", |view, _| a(view).facts.ready = false);
    case("it is short of disk", "GateRefused", |view, _| a(view).facts.pressure = Some("DiskPressure".into()));
    case("more nodes are not Ready than policy allows, and the agent may be back", "ClusterUnwell", |view, spec| {
        a(view).agent_missing = Some(t(-60));
        for name in ["b", "c"] {
            let mut down = node(name);
            down.facts.ready = false;
            view.nodes.insert(name.into(), down);
        }
        spec["health"] = json!({"before": {"maxUnhealthyNodes": 1}});
    });
    case("a pod may not be evicted", "GateRefused", |view, _| a(view).pods = Some(vec![pod("a", true)]));
}

/// An agent is replaced, a pod restarts, the API server does not answer.
#[test]
fn what_may_end_by_itself_is_waited_for_once_the_node_has_left_its_load_balancers() {
    let case = |waits: &str, change: Change| {
        let (mut view, policy) = leaving(change);
        write_due(&mut view, &policy, 300);
        assert_eq!(outcome(&plan(&view, &policy, t(600))), waits);
        assert_eq!(outcome(&plan(&view, &policy, t(300 + 1800))), "GateRefused", "{waits}: not for ever");
    };
    case("AgentNotReady", |view, _| a(view).agent_missing = Some(t(-60)));
    case("PodsNotReady", |view, spec| {
        a(view).pods = Some(vec![pod("a", false)]);
        spec["health"] = json!({"before": {"podsReady": true}});
    });
    case("DrainRefused", |view, _| {
        let daemon_set_state = DaemonSetState::Unreadable;
        let unread = PodFacts { daemon_set: Some("log".into()), daemon_set_state, ready: true, ..pod("a", false) };
        a(view).pods = Some(vec![unread]);
    });
}

/// No agent could request the permit of a node that is emptied meanwhile.
#[test]
fn web_api_is_waited_for_before_the_first_eviction_and_its_outage_counts_against_no_node() {
    let (mut view, policy) = leaving(|view, _| view.web_api_missing = Some(t(100)));
    for second in [300, 600, 300 + 1799] {
        let made = plan(&view, &policy, t(second));
        assert_eq!((outcome(&made).as_str(), made.evictions.len()), ("WebApiNotReady", 0), "{second}");
    }
    let ended = plan(&view, &policy, t(300 + 1800));
    assert_eq!((outcome(&ended).as_str(), record_of(&ended).failures), ("ClusterUnwell", 0), "not for ever");
    view.web_api_missing = None;
    assert_eq!(outcome(&plan(&view, &policy, t(600))), "step Draining");
}

#[test]
fn broken_pods_of_a_budget_are_waited_for_once_the_node_has_left_its_load_balancers() {
    let (mut view, policy) = leaving(|view, _| view.budgets = vec![budget(2)]);
    let waits = plan(&view, &policy, t(300)).actions.remove("a").unwrap();
    let Action::Status { status, .. } = &waits else { panic!("{waits:?}") };
    assert_eq!(find_condition(&status.conditions, BLOCKED).unwrap().reason, "BudgetUnhealthy");
    written(&mut view, &waits);
    assert_eq!(outcome(&plan(&view, &policy, t(300 + 1799))), "BudgetUnhealthy");
    assert_eq!(outcome(&plan(&view, &policy, t(300 + 1800))), "GateRefused", "not for ever");
    // The pods of the budget are well, and it guards this one, which is asked first and alone.
    view.budgets = vec![budget(3)];
    let made = plan(&view, &policy, t(400));
    assert_eq!(outcome(&made), "step Draining");
    let first = FirstPod { uid: "p-a".into(), accepted: None, unguarded: false };
    assert_eq!(status_of(&made).report.drain.as_ref().unwrap().asked_first, [first]);
}

#[test]
fn expressions_are_queried_while_the_node_leaves_its_load_balancers_and_have_to_return_nothing() {
    let (mut view, policy) = leaving(|_, spec| {
        spec["prometheus"] = json!({"url": "http://prometheus:9090"});
        spec["health"] = json!({"before": {"expressions": [{"name": "errors", "query": "errors > 0"}]}});
    });
    assert!(plan(&view, &policy, t(10)).expressions.contains(&question("errors > 0")));
    let made = plan(&view, &policy, t(300));
    assert!(made.expressions.contains(&question("errors > 0")));
    assert_eq!(outcome(&made), "ExpressionsPending");
    assert_eq!(outcome(&plan(&view, &policy, t(300 + 1800))), "GateRefused", "it does not wait for a result for ever");
    for (answer, expected) in [
        (Answer::Quiet { since: t(2), asked: t(299) }, "step Draining"),
        (Answer::Firing { series: "{} 1".into(), since: t(60), asked: t(60) }, "ClusterUnwell"),
        (Answer::Failed { message: "no answer".into() }, "ExpressionFails"),
    ] {
        view.expressions.insert(question("errors > 0"), answer.clone());
        assert_eq!(outcome(&plan(&view, &policy, t(300))), expected, "{answer:?}");
    }
    assert_eq!(
        outcome(&plan(&view, &policy, t(300 + 1800))),
        "ClusterUnwell",
        "nor for a Prometheus that does not answer"
    );
}
