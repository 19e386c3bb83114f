//! The data for the gauges: the few facts of a view and its plan that they need.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use models::condition::true_condition;
use models::operator::{BRAKED, Counts, Freshness};
use models::shadow::Step;
use semver::Version;

use super::signals::Signals;
use planner::plan::Plan;
use planner::policy::Policy;
use planner::view::{ClusterView, NodeView};
use planner::wait::Wait;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Not waiting: it needs nothing, or is not the operator's.
    Not,
    /// An action is under way; it may continue to wait for the same reason as before.
    Acting,
    For(&'static str),
}

/// One node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState<'a> {
    /// The name: no label, but the key under which its wait is recorded.
    pub name: &'a str,
    /// The step of its update; `None`: idle.
    pub step: Option<Step>,
    /// The version that it runs, as far as it is reported.
    pub version: Option<Cow<'a, Version>>,
    /// The version that its attempt began with, if it was known, and the target version; `None`: no attempt.
    pub attempt: Option<(Option<&'a Version>, &'a Version)>,
    pub waits: Waits,
    /// The number of pods that are left on it, while pods block its drain; otherwise 0.
    pub left: usize,
}

/// Keys and certificates at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsSnapshot {
    /// End of the authority's certificate, if the operator has one.
    pub authority: Option<Timestamp>,
    /// End of the web API's certificate, if there is one.
    pub serving: Option<Timestamp>,
    pub certificates: &'static str,
    pub signing_key: &'static str,
    pub problem: bool,
}

/// The fleet at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot<'a> {
    pub now: Timestamp,
    /// The nodes under the operator, and those that still have a claim or other state of the operator.
    pub nodes: Vec<NodeState<'a>>,
    /// The counts of the operator's status; `None` without the operator's resource.
    pub counts: Option<Counts>,
    pub slots_in_use: usize,
    /// Number of slots; `None` without the operator's resource.
    pub slots_limit: Option<usize>,
    /// True if failures have stopped the rollout.
    pub frozen: bool,
    /// True while a rollout is braked.
    pub braked: bool,
    /// True while many nodes have fallen ill at once, and no update starts.
    pub cluster_unwell: bool,
    /// Greatest number of times in a row that guarded pods of one PodDisruptionBudget stayed when they were asked.
    pub budget_stays: usize,
    /// Number of quarantined versions, per variant and architecture.
    pub quarantined_versions: usize,
    /// True if the policy cannot be applied as written.
    pub policy_degraded: bool,
    /// True if the schedule of all nodes is open.
    pub window_open: bool,
    /// Number of pods of the earlier operator.
    pub earlier_pods: usize,
    /// Numbers of the objects that cannot be read, by kind.
    pub unreadable: [(&'static str, usize); 3],
    /// The freshness of the fleet; `None` without the operator's resource.
    pub freshness: Option<Freshness>,
    /// The earliest time at which a version was first seen that a node lacks which has itself been behind for a while.
    pub lagging_since: Option<Timestamp>,
    /// Maximum time for which a node may be behind, if policy has one.
    pub freshness_target: Option<Duration>,
    /// The time at which the last running rollout is expected to be completed.
    pub estimated_completion: Option<Timestamp>,
    pub signals: Signals,
}

impl<'a> Snapshot<'a> {
    /// Returns the facts. `policy_degraded` is true if `policy` is not the one in the resource.
    pub fn of(view: &'a ClusterView, plan: &Plan, policy: &Policy, policy_degraded: bool, now: Timestamp) -> Self {
        let conditions = || plan.status.as_ref().map(|status| &status.conditions);
        let rollouts = plan.status.iter().flat_map(|status| &status.active_rollouts);
        let back_offs = plan.status.iter().flat_map(|status| &status.budget_back_offs);
        let budget_stays = back_offs.filter_map(|back_off| usize::try_from(back_off.times).ok());
        let labelled = view.nodes.values().filter(|node| node.facts.labelled).count();
        Self {
            now,
            nodes: view.nodes.iter().map(|(name, node)| node_state(name, node, plan)).collect(),
            counts: plan.status.as_ref().and_then(|status| status.counts.clone()),
            slots_in_use: view.operator.as_ref().map_or(0, |operator| operator.status.slots.len()),
            slots_limit: policy.present.then(|| policy.slots_among(labelled)),
            braked: conditions().is_some_and(|conditions| true_condition(conditions, BRAKED).is_some()),
            cluster_unwell: plan.status.iter().flat_map(|status| &status.unwell).any(|span| span.until.is_none()),
            budget_stays: budget_stays.max().unwrap_or(0),
            frozen: plan.quarantine.frozen_by().is_some(),
            quarantined_versions: plan.quarantine.len(),
            policy_degraded,
            window_open: plan.window_open,
            earlier_pods: view.earlier_pods.len(),
            unreadable: [
                ("BottlerocketUpdateOperator", usize::from(view.unreadable.operator.is_some())),
                ("Node", view.unreadable.nodes.len()),
                ("BottlerocketShadow", view.unreadable.shadows.len()),
            ],
            freshness: plan.status.as_ref().and_then(|status| status.freshness.clone()),
            lagging_since: plan.lagging_since,
            freshness_target: policy.freshness_target,
            estimated_completion: rollouts.filter_map(|rollout| Some(rollout.estimated_completion?.at)).max(),
            signals: Signals::of(view, plan, policy, now),
        }
    }
}

fn node_state<'a>(name: &'a str, node: &'a NodeView, plan: &Plan) -> NodeState<'a> {
    let wait = plan.waits.get(name);
    let shadow = node.shadow.as_ref();
    let reported = shadow.and_then(|s| s.status.agent.current_version.as_ref());
    NodeState {
        name,
        // Neither a drill nor a verification has a step of an update.
        step: node.update().map(|progress| progress.step),
        version: reported.map(Cow::Borrowed).or_else(|| node.facts.os_version().map(Cow::Owned)),
        attempt: node.update().map(|progress| (progress.from.as_ref(), &progress.version)),
        left: if let Some(Wait::DrainBlocked { left, .. }) = wait { *left } else { 0 },
        waits: match wait {
            // As in the operator's status: these are no reasons to wait.
            Some(Wait::UpToDate | Wait::NotLabelled) => Waits::Not,
            Some(Wait::Acting) | None => Waits::Acting,
            Some(wait) => Waits::For(wait.as_str()),
        },
    }
}
