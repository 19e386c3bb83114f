//! The data for the gauges: the few facts of a view and its plan that they need.

use std::borrow::Cow;

use jiff::Timestamp;
use models::condition::true_condition;
use models::operator::{BRAKED, Counts};
use models::shadow::Step;
use semver::Version;

use super::gauges::Sample;
use super::signals;
use super::values::{flag, float, seconds};
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
    /// The gauges about the fleet as a whole.
    pub samples: Vec<Sample>,
}

impl<'a> Snapshot<'a> {
    /// Returns the facts. `policy_degraded` is true if `policy` is not the one in the resource.
    pub fn of(view: &'a ClusterView, plan: &Plan, policy: &Policy, policy_degraded: bool, now: Timestamp) -> Self {
        let nodes = view.nodes.iter().map(|(name, node)| node_state(name, node, plan)).collect();
        Self { now, nodes, samples: samples(view, plan, policy, policy_degraded, now) }
    }
}

/// Returns the gauges about the fleet as a whole. Those of its freshness are times and no ages: the time that passes between two plans
/// changes none.
pub(super) fn samples(
    view: &ClusterView,
    plan: &Plan,
    policy: &Policy,
    policy_degraded: bool,
    now: Timestamp,
) -> Vec<Sample> {
    let status = plan.status.as_ref();
    let slots_in_use = view.operator.as_ref().map_or(0, |operator| operator.status.slots.len());
    let labelled = view.nodes.values().filter(|node| node.facts.labelled).count();
    let slots_limit = policy.present.then(|| policy.slots_among(labelled));
    let braked = status.is_some_and(|status| true_condition(&status.conditions, BRAKED).is_some());
    let back_offs = plan.status.iter().flat_map(|status| &status.budget_back_offs);
    let budget_stays = back_offs.filter_map(|back_off| usize::try_from(back_off.times).ok()).max();
    let mut spans = plan.status.iter().flat_map(|status| &status.unwell);
    // Trouble from before any drain of now is not recorded.
    let is_waited = || plan.waits.values().any(|wait| matches!(wait, Wait::ClusterUnwell { .. }));
    let is_unwell = spans.any(|span| span.until.is_none()) || is_waited();
    let rollouts = plan.status.iter().flat_map(|status| &status.active_rollouts);
    let completion = rollouts.filter_map(|rollout| Some(rollout.estimated_completion?.at)).max();
    let counts = status.and_then(|status| status.counts.as_ref());
    let total = counts.map(|counts| whole(counts.total)).filter(|total| *total > 0.0);
    let freshness = status.and_then(|status| status.freshness.as_ref());
    let within = freshness.and_then(|freshness| freshness.nodes_within_target).map(whole);
    let target = freshness.and(policy.freshness_target);
    let alone = [
        ("slots_in_use", Some(float(slots_in_use))),
        ("slots_limit", slots_limit.map(float)),
        ("frozen", Some(flag(plan.quarantine.frozen_by().is_some()))),
        ("braked", Some(flag(braked))),
        ("cluster_unwell", Some(flag(is_unwell))),
        ("budget_stays", Some(float(budget_stays.unwrap_or(0)))),
        ("quarantined_versions", Some(float(plan.quarantine.len()))),
        ("policy_degraded", Some(flag(policy_degraded))),
        ("window_open", Some(flag(plan.window_open))),
        ("nodes_behind", freshness.map(|freshness| whole(freshness.nodes_behind))),
        ("behind_since_timestamp_seconds", freshness.and_then(|freshness| freshness.oldest_since).map(seconds)),
        ("lagging_since_timestamp_seconds", plan.lagging_since.map(seconds)),
        ("freshness_target_seconds", target.map(|target| target.as_secs_f64())),
        ("nodes_within_freshness_target", within),
        ("freshness_ratio", within.zip(total).map(|(within, total)| within / total)),
        ("estimated_completion_timestamp_seconds", completion.map(seconds)),
        ("earlier_operator_pods", Some(float(view.earlier_pods.len()))),
    ];
    let unreadable = [
        ("BottlerocketUpdateOperator", usize::from(view.unreadable.operator.is_some())),
        ("Node", view.unreadable.nodes.len()),
        ("BottlerocketShadow", view.unreadable.shadows.len()),
    ];
    let mut samples: Vec<Sample> = alone.into_iter().map(|(name, value)| (name, None, value)).collect();
    samples.extend(unreadable.map(|(kind, count)| ("unreadable_objects", Some(kind), Some(float(count)))));
    if let Some(Counts { total, current, updating, staged, blocked, failed }) = counts {
        let states = [
            ("total", total),
            ("current", current),
            ("updating", updating),
            ("staged", staged),
            ("blocked", blocked),
            ("failed", failed),
        ];
        samples.extend(states.map(|(state, count)| ("nodes_by_state", Some(state), Some(whole(*count)))));
    }
    samples.extend(signals::samples(view, plan, policy, now));
    samples
}

/// A count of the operator's status, which is never negative.
fn whole(count: i64) -> f64 {
    float(usize::try_from(count).unwrap_or_default())
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
