//! Checks for a slot, and the reasons that the other nodes get.

use models::shadow::{HostState, Step};
use serde_json::{Value, json};

use super::{Plan, Wait, plan};
use crate::fixtures::*;
use crate::view::NodeView;

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
