//! States of nodes and rollouts that a plan derives on its way, for users.

use jiff::Timestamp;
use models::operator::ActiveRollout;

use crate::gates::{self, Obstacle};
use crate::phase;
use crate::policy::Policy;
use crate::survey::key::key_of;
use crate::survey::{NodeContext, Survey};
use crate::view::ClusterView;
use crate::wait::Wait;

/// A rollout under way.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutState {
    pub rollout: ActiveRollout,
    /// Number of nodes of its variant and architecture.
    pub nodes: usize,
    /// Number of them that were updated in this rollout.
    pub updated: usize,
    /// The canary step due, from 1; `None` after the last one, and without any.
    pub step: Option<usize>,
    /// Number of places of that step that are free; `None` without a step.
    pub free: Option<usize>,
    /// The reason why the step has no place that is free.
    pub wait: Option<Wait>,
}

/// Returns the rollouts under way, the newest version first.
pub fn rollouts(view: &ClusterView, policy: &Policy, now: Timestamp) -> Vec<RolloutState> {
    let rollouts = Survey::of(view, policy, now).rollouts;
    let state = |active: &ActiveRollout| {
        let rollout = rollouts.by_key(&key_of(active)).filter(|_| active.ended.is_none())?;
        let passed = usize::try_from(active.steps_passed).unwrap_or(0);
        // Images ahead of time take no place.
        let ahead = policy.pre_stage.is_some();
        let free = if ahead { rollout.room_for_slots() } else { rollout.room_to_begin() };
        Some(RolloutState {
            rollout: active.clone(),
            nodes: rollout.total,
            updated: rollout.finished,
            step: (passed < policy.canary.len()).then_some(passed + 1),
            free,
            wait: rollout.wait.clone().filter(|_| free == Some(0)),
        })
    };
    rollouts.active.iter().filter_map(state).collect()
}

/// Returns when the step under way of each node is given up, where it has a time limit.
pub fn deadlines<'a>(
    view: &'a ClusterView,
    policy: &'a Policy,
    now: Timestamp,
) -> impl Iterator<Item = (&'a str, Timestamp)> {
    let survey = Survey::of(view, policy, now);
    let deadlines = survey.nodes.iter().filter_map(|node| {
        let ctx = NodeContext::of(view, &survey, node, now)?;
        Some((node.node.facts.name.as_str(), phase::deadline(&ctx, node.progress()?)?))
    });
    deadlines.collect::<Vec<_>>().into_iter()
}

/// Returns the pods of each node, where they are known, that may take longer to end than its drain may take.
pub fn long_grace_periods(view: &ClusterView, policy: &Policy, now: Timestamp) -> Vec<(String, Vec<String>)> {
    let survey = Survey::of(view, policy, now);
    let contexts = survey.nodes.iter().filter_map(|node| NodeContext::of(view, &survey, node, now));
    let long = contexts.map(|ctx| (ctx.facts().name.clone(), gates::long_graces(&ctx)));
    long.filter(|(_, pods)| !pods.is_empty()).collect()
}

/// Returns what rules the drain of each node out whose pods are known, as far as its pods and their budgets go. Other
/// reasons for which the node waits do not matter, nor do expressions. Pods that a budget guards are named too.
pub fn drain_refusals(view: &ClusterView, policy: &Policy, now: Timestamp) -> Vec<(String, Wait)> {
    let survey = Survey::of(view, policy, now);
    let mut refusals = Vec::new();
    for node in survey.nodes.iter().filter(|node| node.pods.is_some()) {
        let Some(ctx) = NodeContext::of(view, &survey, node, now) else { continue };
        let refused = |obstacle| match obstacle {
            Obstacle::Refused(wait) => Some((node.facts.name.clone(), wait)),
            Obstacle::Unknown(_) => None,
        };
        refusals.extend(gates::of_drain(&ctx).filter_map(|gate| gate.obstacle(&ctx)).filter_map(refused));
        refusals.extend(gates::guarded(&ctx).map(|wait| (node.facts.name.clone(), wait)));
    }
    refusals
}

#[cfg(test)]
mod tests {
    use models::shadow::{HostState, Step};
    use serde_json::json;

    use super::*;
    use crate::fixtures::{NEW, at, cluster, node, pod, recorded, rollout, t, updated, with_policy};
    use crate::view::{BudgetFacts, NodeView, PodFacts};

    fn with_pods(name: &str, pods: Vec<PodFacts>) -> NodeView {
        NodeView { pods: Some(pods), ..node(name) }
    }

    #[test]
    fn rollout_under_way_counts_its_nodes_and_has_the_canary_step_due() {
        for (sentence, canary, done, step) in [
            ("without steps", json!([]), true, None),
            ("the first step", json!([{"nodes": 1}, {"nodes": 2}]), false, Some(1)),
            ("the second step", json!([{"nodes": 1}, {"nodes": 2}]), true, Some(2)),
            ("after the last step", json!([{"nodes": 1}]), true, None),
        ] {
            let (mut a, b) = (node("a"), node("b"));
            let mut record = updated();
            record.proof.as_mut().unwrap().rollout = 7;
            a.shadow.as_mut().unwrap().status.controller.record = Some(record).filter(|_| done);
            let (mut view, _) = cluster(vec![a, b], &[]);
            let active = ActiveRollout { record: Some(recorded(7)), ..rollout(NEW) };
            view.operator.as_mut().unwrap().status.active_rollouts = vec![active];
            let policy = with_policy(&mut view, json!({"strategy": {"canary": canary}}));
            let found = rollouts(&view, &policy, t(100));
            let found: Vec<_> = found.iter().map(|found| (found.nodes, found.updated, found.step)).collect();
            assert_eq!(found, [(2, usize::from(done), step)], "{sentence}");
        }
    }

    #[test]
    fn canary_step_holds_nodes_back_only_once_it_has_no_free_place() {
        let staging = |name| at(name, Step::Staging, 0, HostState::StagedUpdate);
        let draining = |name| at(name, Step::Draining, 0, HostState::StagedUpdate);
        for (sentence, ahead, others, free) in [
            ("nothing is under way", false, vec![node("b"), node("c")], 2),
            ("an image is downloaded", false, vec![staging("b"), node("c")], 1),
            ("images are downloaded ahead of time", true, vec![staging("b"), staging("c")], 2),
            ("one is drained", true, vec![draining("b"), staging("c")], 1),
            ("two are under way", false, vec![draining("b"), staging("c")], 0),
        ] {
            let (mut view, _) = cluster([node("a")].into_iter().chain(others).collect(), &[]);
            let active = ActiveRollout { record: Some(recorded(7)), ..rollout(NEW) };
            view.operator.as_mut().unwrap().status.active_rollouts = vec![active];
            let mut strategy = json!({"canary": [{"nodes": 2}]});
            if ahead {
                strategy["preStage"] = json!({"maxConcurrent": 2});
            }
            let policy = with_policy(&mut view, json!({"strategy": strategy}));
            let found = rollouts(&view, &policy, t(100)).remove(0);
            let nodes = vec!["b".to_owned(), "c".to_owned()];
            let full = Wait::CanaryStep { step: 1, until: None, approval: None, nodes, none_runs: false };
            assert_eq!((found.free, found.wait), (Some(free), (free == 0).then_some(full)), "{sentence}");
        }
    }

    #[test]
    fn pods_that_may_outlast_the_drain_are_named_by_node() {
        let long = PodFacts { grace: Some(100_000), ..pod("a", false) };
        let (view, policy) = cluster(vec![with_pods("a", vec![long]), with_pods("b", vec![pod("b", false)])], &[]);
        let found = long_grace_periods(&view, &policy, t(0));
        assert!(matches!(&found[..], [(node, pods)] if node == "a" && pods[0].contains("p-a")), "{found:?}");
    }

    #[test]
    fn refusals_of_a_drain_are_those_of_its_pods_and_their_budgets() {
        let nodes = vec![with_pods("a", vec![PodFacts { ready: true, ..pod("a", false) }]), node("b")];
        let (mut view, policy) = cluster(nodes, &[]);
        view.budgets = vec![BudgetFacts {
            namespace: "shop".into(),
            name: "web".into(),
            healthy: 1,
            desired: 1,
            expected: 1,
            selector: Some(kube::core::Selector::default()),
            ..BudgetFacts::default()
        }];
        let found = drain_refusals(&view, &policy, t(0));
        assert!(!found.is_empty() && found.iter().all(|(node, _)| node == "a"), "{found:?}");
    }
}
