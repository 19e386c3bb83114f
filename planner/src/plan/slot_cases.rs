//! Checks for a slot, and the reasons that the other nodes get.

use models::condition::{Condition, ConditionStatus};
use models::shadow::{BLOCKED, HostState, Step};
use serde_json::{Value, json};

use super::{Plan, Wait, plan};
use crate::fixtures::*;
use crate::view::{NodeView, Refused, Standby};

/// Plans for `a`, which is drained and has the only slot that is taken, and `b`, which is staged.
fn plan_beside(spec: Value, change: impl Fn(&mut NodeView)) -> Plan {
    let mut nodes =
        vec![at("a", Step::Draining, 0, HostState::StagedUpdate), at("b", Step::Staged, 0, HostState::StagedUpdate)];
    nodes.iter_mut().for_each(change);
    let (mut view, _) = cluster(nodes, &["a"]);
    let policy = with_policy(&mut view, spec);
    plan(&view, &policy, t(1))
}

/// Returns why `b` waits: in the plan, or in the condition that is about to be written.
fn reason(made: &Plan) -> &'static str {
    made.waits.get("b").unwrap_or_else(|| panic!("{:?}", made.actions)).as_str()
}

#[test]
fn nobody_is_checked_while_there_is_no_free_slot() {
    let made = plan_beside(json!({"maxUnavailable": 1}), |_| {});
    assert_eq!(made.pods, ["a".to_owned()].into());
    assert_eq!(made.waits["b"], Wait::Queued { position: 0, behind: Some("a".into()) });
    let made = plan_beside(json!({"maxUnavailable": 2}), |_| {});
    assert_eq!(made.pods, ["a".to_owned(), "b".to_owned()].into());
}

#[test]
fn a_limit_of_its_own_is_named_only_while_there_are_free_slots() {
    let groups = json!([{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": 1}]);
    let of_the_group = |node: &mut NodeView| {
        node.facts.labels = std::sync::Arc::new([("tier".to_owned(), "db".to_owned())].into());
    };
    for (limit, expected) in [(1, "Queued"), (2, "GroupFull")] {
        let made = plan_beside(json!({"maxUnavailable": limit, "nodeGroups": groups}), of_the_group);
        assert_eq!(reason(&made), expected, "{limit} at a time");
    }
    let strategy = json!({"canary": [{"nodes": 1, "soak": "1h"}], "preStage": {"maxConcurrent": 2}});
    for (limit, expected) in [(1, "Queued"), (2, "CanaryStep")] {
        let made = plan_beside(json!({"maxUnavailable": limit, "strategy": strategy}), |_| {});
        assert_eq!(reason(&made), expected, "{limit} at a time");
    }
}

#[test]
fn a_node_without_a_shadow_says_what_is_missing() {
    for (labelled, expected) in [(true, Wait::NoShadow), (false, Wait::NotLabelled)] {
        let mut bare = node("a");
        bare.shadow = None;
        bare.facts.labelled = labelled;
        let (view, policy) = cluster(vec![bare], &[]);
        assert_eq!(plan(&view, &policy, t(1)).waits["a"], expected);
    }
}

/// A staged node whose shadow still has the condition `Blocked` of an earlier reason.
fn blocked_before(name: &str) -> NodeView {
    let mut node = at(name, Step::Staged, 0, HostState::StagedUpdate);
    let wait = Wait::AgentNotReady;
    node.shadow.as_mut().unwrap().status.conditions.push(Condition {
        type_: BLOCKED.into(),
        status: ConditionStatus::True,
        reason: wait.as_str().into(),
        message: wait.to_string(),
        last_transition_time: t(0),
        observed_generation: None,
    });
    node
}

#[test]
fn a_node_that_is_next_costs_no_write_beside_its_slot_and_one_that_waits_is_told() {
    let plan_with = |slots: &[&str], standby: Standby, own: Option<&str>| {
        let drained = at("a", Step::Draining, 0, HostState::StagedUpdate);
        let nodes = if slots.is_empty() { vec![blocked_before("b")] } else { vec![drained, blocked_before("b")] };
        let (mut view, policy) = cluster(nodes, slots);
        (view.standby, view.own_node) = (standby, own.map(str::to_owned));
        plan(&view, &policy, t(1))
    };
    let next = plan_with(&[], Standby::None, None);
    assert_eq!(next.slots.as_ref().map(Vec::len), Some(1));
    assert!(!next.actions.contains_key("b"), "{:?}", next.actions);
    let handed_over = plan_with(&[], Standby::Ready, Some("b"));
    assert!(handed_over.hand_over && !handed_over.actions.contains_key("b"), "{:?}", handed_over.actions);
    let waiting = plan_with(&["a"], Standby::None, None);
    assert!(waiting.slots.is_none() && waiting.actions.contains_key("b"), "{:?}", waiting.waits);
}

#[test]
fn slots_and_checks_go_to_no_more_nodes_than_a_canary_step_has() {
    let strategy = json!({"canary": [{"nodes": 1, "soak": "1h"}], "preStage": {"maxConcurrent": 2}});
    for read in [true, false] {
        let mut nodes = ["a", "b"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
        if !read {
            nodes.iter_mut().for_each(|node| node.pods = None);
        }
        let (mut view, _) = cluster(nodes.into(), &[]);
        let policy = with_policy(&mut view, json!({"maxUnavailable": 2, "strategy": strategy}));
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.pods.len(), 1, "{:?}", made.waits);
        assert_eq!(made.slots.map_or(0, |slots| slots.len()), usize::from(read), "{:?}", made.waits);
    }
}

#[test]
fn only_the_leaders_own_node_waits_for_the_others() {
    for (own, standby, slots) in [
        ("b", Standby::Ready, 1),
        ("b", Standby::NotReady, 1),
        ("b", Standby::None, 2),
        ("c", Standby::Ready, 2),
        ("c", Standby::NotReady, 2),
    ] {
        let nodes = vec![
            at("a", Step::Draining, 0, HostState::StagedUpdate),
            at("b", Step::Staged, 0, HostState::StagedUpdate),
            node("c"),
        ];
        let (mut view, _) = cluster(nodes, &["a"]);
        (view.standby, view.own_node) = (standby, Some(own.to_owned()));
        let policy = with_policy(&mut view, json!({"maxUnavailable": 2}));
        let made = plan(&view, &policy, t(1));
        assert_eq!(made.slots.map_or(1, |slots| slots.len()), slots, "{own} {standby:?}: {:?}", made.waits);
    }
}

#[test]
fn a_refused_node_wakes_nobody_while_there_is_no_free_slot() {
    let refused = |node: &mut NodeView| {
        if node.facts.name == "b" {
            let wait = Wait::PodsNotReady { pod: "shop/web".into(), count: 1 };
            node.refused = Some(Refused { wait, again_at: t(10) });
        }
    };
    let made = plan_beside(json!({"maxUnavailable": 1}), refused);
    assert!(made.wake.is_none_or(|wake| wake > t(10)), "{:?}", made.wake);
    let made = plan_beside(json!({"maxUnavailable": 2}), refused);
    assert!(made.pods.contains("b"), "there is room to check it at once");
}
