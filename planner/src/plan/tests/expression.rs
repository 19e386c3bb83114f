//! Waits for expressions: their reason, and the place where they are recorded.

use models::operator::BLOCKED;
use models::shadow::{HostState, Step};
use serde_json::json;

use crate::decision::Action;
use crate::fixtures::{at, cluster, cluster_with, condition, question, record_of, t, with_policy};
use crate::plan::{Plan, news, plan};
use crate::policy::Policy;
use crate::view::{Answer, ClusterView};
use crate::wait::Wait;

const NODES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Five staged nodes that wait for this expression, which returns this series for each of them.
fn staged(query: &str, series: &str) -> (ClusterView, Policy) {
    let (mut view, policy) = cluster_with(
        NODES.map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate)).into(),
        &[],
        json!({"health": {"before": {"expressions": [{"name": "errors", "query": query}]}},
            "prometheus": {"url": "http://p"}}),
    );
    fires(&mut view, query, series);
    (view, policy)
}

fn fires(view: &mut ClusterView, query: &str, series: &str) {
    let firing = || Answer::Firing { series: series.into(), since: t(0), asked: t(0) };
    view.expressions = NODES.into_iter().map(|name| (question(&query.replace("$node", name)), firing())).collect();
}

/// Writes the actions of a plan, and plans again.
fn carried_out(view: &mut ClusterView, policy: &Policy, made: &Plan) -> Plan {
    for (name, action) in &made.actions {
        let Action::Status { status, .. } = action else { panic!("{action:?}") };
        let stored = &mut view.nodes.get_mut(name).unwrap().shadow.as_mut().unwrap().status;
        (stored.controller, stored.conditions) = (status.report.clone(), status.conditions.clone());
    }
    view.operator.as_mut().unwrap().status = made.status.clone().unwrap();
    plan(view, policy, t(20))
}

#[test]
fn expression_for_all_nodes_is_recorded_only_in_operator_status() {
    let (mut view, policy) = staged("errors > 1", "{} 7");
    let first = plan(&view, &policy, t(10));
    assert_eq!(first.actions, [].into(), "no write about a node");
    let conditions = &first.status.as_ref().unwrap().conditions;
    let condition = models::condition::true_condition(conditions, BLOCKED).unwrap();
    let found = (condition.reason.as_str(), condition.message.as_str());
    assert_eq!(found, ("ExpressionFires", "the expression errors returned {} 7"));
    let notes: Vec<_> = news(&[], conditions).into_iter().map(|note| note.reason).collect();
    assert_eq!(notes, ["ExpressionFires"]);
    let again = carried_out(&mut view, &policy, &first);
    fires(&mut view, "errors > 1", "{} 8");
    let another_value = plan(&view, &policy, t(20));
    assert_eq!(another_value.actions, [].into());
    assert_eq!(another_value.status, again.status, "another value is nothing to write");
    view.expressions = [(question("errors > 1"), Answer::Failed { message: "no route".into() })].into();
    let failed = plan(&view, &policy, t(25)).status.unwrap();
    let condition = models::condition::true_condition(&failed.conditions, BLOCKED).unwrap();
    assert_eq!(condition.reason, "ExpressionFails", "another reason is written");
    view.expressions = [(question("errors > 1"), Answer::Quiet { since: t(0), asked: t(0) })].into();
    let quiet = plan(&view, &policy, t(30)).status.unwrap();
    assert!(models::condition::true_condition(&quiet.conditions, BLOCKED).is_none());
    let notes: Vec<_> = news(conditions, &quiet.conditions).into_iter().map(|note| note.reason).collect();
    assert_eq!(notes, ["ExpressionsQuiet"]);
}

#[test]
fn expression_for_node_is_recorded_once_on_that_node() {
    let (mut view, policy) = staged(r#"errors{node="$node"} > 1"#, "{} 7");
    let first = plan(&view, &policy, t(10));
    assert_eq!(first.actions.len(), NODES.len());
    assert!(models::condition::find_condition(&first.status.as_ref().unwrap().conditions, BLOCKED).is_none());
    assert_eq!(carried_out(&mut view, &policy, &first).actions, [].into());
    fires(&mut view, r#"errors{node="$node"} > 1"#, "{} 8");
    assert_eq!(plan(&view, &policy, t(20)).actions, [].into(), "another value is nothing to write");
}

#[test]
fn node_whose_expressions_have_no_answer_says_so_and_keeps_its_slot() {
    let pending = Wait::ExpressionsPending { name: "errors".into() };
    for blocked_before in [false, true] {
        let mut a = at("a", Step::Staged, 0, HostState::StagedUpdate);
        if blocked_before {
            let wait = Wait::AgentNotReady;
            let blocked = condition(BLOCKED, wait.as_str(), &wait.to_string());
            a.shadow.as_mut().unwrap().status.conditions.push(blocked);
        }
        let (mut view, _) = cluster(vec![a, at("b", Step::Staged, 0, HostState::StagedUpdate)], &["a"]);
        let spec = json!({"health": {"before": {"expressions": [{"name": "errors", "query": "errors > 1"}]}},
            "prometheus": {"url": "http://p"}});
        let policy = with_policy(&mut view, spec);
        let silent = plan(&view, &policy, t(10));
        assert_eq!(silent.slots, None, "the slot stays: {:?}", silent.actions);
        assert!(silent.expressions.contains(&question("errors > 1")));
        // The write that ends another reason comes first.
        let found = (silent.waits.get("a"), silent.actions.len());
        assert_eq!(found, if blocked_before { (None, 1) } else { (Some(&pending), 0) });
        view.nodes.get_mut("a").unwrap().pods = None;
        assert_eq!(plan(&view, &policy, t(10)).slots, None, "also while its pods are not known");
        let firing = Answer::Firing { series: "{} 7".into(), since: t(0), asked: t(0) };
        view.expressions = [(question("errors > 1"), firing)].into();
        view.nodes.get_mut("a").unwrap().pods = Some(Vec::new());
        let fires = plan(&view, &policy, t(10));
        assert_eq!(fires.slots, Some(Vec::new()), "a node that is refused gives its slot up");
    }
}

#[test]
fn check_of_objects_for_all_nodes_is_recorded_only_in_operator_status() {
    let (mut view, _) = cluster(NODES.map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate)).into(), &[]);
    let check =
        json!({"name": "ceph", "apiVersion": "ceph.rook.io/v1", "kind": "CephCluster", "expression": "self.ok"});
    let policy = with_policy(&mut view, json!({"health": {"before": {"objects": [check]}}}));
    let asked = plan(&view, &policy, t(10)).expressions;
    assert_eq!(asked.len(), 1, "one question for all nodes: {asked:?}");
    for (answer, reason, message) in [
        (
            Answer::Firing { series: "false for CephCluster rook/main".into(), since: t(0), asked: t(0) },
            "ExpressionFires",
            "the expression ceph returned false for CephCluster rook/main",
        ),
        (
            Answer::Failed { message: "no such object exists".into() },
            "ExpressionFails",
            "the expression ceph has no result: no such object exists",
        ),
    ] {
        view.expressions = asked.iter().map(|question| (question.clone(), answer.clone())).collect();
        let made = plan(&view, &policy, t(10));
        assert_eq!(made.actions, [].into(), "no write about a node");
        let conditions = made.status.unwrap().conditions;
        let condition = models::condition::true_condition(&conditions, BLOCKED).unwrap();
        assert_eq!((condition.reason.as_str(), condition.message.as_str()), (reason, message));
    }
}

/// The answers after the update are compared with these.
#[test]
fn drain_begins_with_the_names_of_the_expressions_of_its_node_that_return_nothing() {
    let quiet = Answer::Quiet { since: t(0), asked: t(0) };
    for (sentence, answer, second, expected) in [
        ("no answer yet", None, 10, None),
        ("a query that has failed is sent again", None, 30, None),
        ("no answer to that either", None, 59, None),
        ("none in a minute", None, 60, Some(&[][..])),
        ("it returns nothing", Some(quiet), 1, Some(&["own"][..])),
        ("it fires", Some(Answer::Firing { series: "{} 7".into(), since: t(0), asked: t(0) }), 1, Some(&[][..])),
        ("it fails", Some(Answer::Failed { message: "no answer".into() }), 59, None),
        ("it fails for a minute", Some(Answer::Failed { message: "no answer".into() }), 60, Some(&[][..])),
    ] {
        let (mut view, _) = cluster(vec![at("a", Step::Staging, 0, HostState::StagedUpdate)], &["a"]);
        let (own, of_all) = ("errors{node=\"$node\"} > 1", "errors > 1");
        let expressions = json!([{"name": "own", "query": own}, {"name": "all", "query": of_all}]);
        let spec = json!({"health": {"after": {"expressions": expressions}}, "prometheus": {"url": "http://p"}});
        let policy = with_policy(&mut view, spec);
        view.expressions = answer.map(|answer| (question(&own.replace("$node", "a")), answer)).into_iter().collect();
        let made = plan(&view, &policy, t(second));
        let Some(expected) = expected else {
            assert_eq!(made.waits.get("a"), Some(&Wait::ExpressionsPending { name: "own".into() }), "{sentence}");
            assert_eq!(made.expressions, [question(&own.replace("$node", "a"))].into(), "{sentence}");
            assert_eq!(made.slots, None, "the slot stays");
            assert_eq!(made.wake, Some(t(if second < 30 { 30 } else { 60 })), "{sentence}");
            continue;
        };
        let before = record_of(&made).before.as_ref().unwrap();
        assert_eq!(before.quiet_expressions, expected, "{sentence}");
    }
}
