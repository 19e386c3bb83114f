//! What the gauges are made from: the few facts of a view and its plan that they need.

use std::borrow::Cow;

use jiff::Timestamp;
use models::operator::Counts;
use models::shadow::Step;
use semver::Version;

use crate::plan::{Plan, Wait};
use crate::policy::{Policy, WindowState};
use crate::view::{ClusterView, NodeView};

/// Whether a node waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It does not: it needs nothing, or is not the operator's.
    Not,
    /// Something is being done about it this moment; it may go on waiting for the same as before.
    Acting,
    /// For this reason.
    For(&'static str),
}

/// One node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState<'a> {
    /// Its name. No label, but what its wait is remembered by.
    pub name: &'a str,
    /// The step of its update; `None`: idle.
    pub step: Option<Step>,
    /// The version that it runs, as far as anybody has said.
    pub version: Option<Cow<'a, Version>>,
    /// The version that its attempt began with, if it was known, and the one that it is for; `None`: no attempt.
    pub attempt: Option<(Option<&'a Version>, &'a Version)>,
    /// Whether it waits.
    pub waits: Waits,
}

/// Keys and certificates at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsSnapshot {
    /// When the authority's certificate ends, if there is one of ours.
    pub authority: Option<Timestamp>,
    /// When the web API's certificate ends, if there is one.
    pub serving: Option<Timestamp>,
    /// Where the rotation of certificates stands.
    pub certificates: &'static str,
    /// Where the rotation of the signing key stands.
    pub signing_key: &'static str,
    /// Whether something is not in order.
    pub problem: bool,
}

/// The fleet at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot<'a> {
    /// The moment.
    pub now: Timestamp,
    /// The nodes under the operator, and those that still have something of the operator.
    pub nodes: Vec<NodeState<'a>>,
    /// The counts of the operator's status; `None` without the operator's resource.
    pub counts: Option<Counts>,
    /// How many slots are taken.
    pub slots_in_use: usize,
    /// How many there are; `None` without the operator's resource.
    pub slots_limit: Option<usize>,
    /// Whether failures have stopped the rollout.
    pub frozen: bool,
    /// How many versions are quarantined, per variant and architecture.
    pub quarantined_versions: usize,
    /// Whether the policy cannot be obeyed as it stands.
    pub policy_degraded: bool,
    /// Whether the schedule of all nodes is open.
    pub window_open: bool,
}

impl<'a> Snapshot<'a> {
    /// Picks the facts out. `policy_degraded` is whether `policy` is not the one that stands in the resource.
    pub fn of(view: &'a ClusterView, plan: &Plan, policy: &Policy, policy_degraded: bool, now: Timestamp) -> Self {
        let labelled = view.nodes.values().filter(|node| node.facts.labelled).count();
        Self {
            now,
            nodes: view.nodes.iter().map(|(name, node)| node_state(name, node, plan)).collect(),
            counts: plan.status.as_ref().and_then(|status| status.counts.clone()),
            slots_in_use: view.operator.as_ref().map_or(0, |operator| operator.status.slots.len()),
            slots_limit: policy.max_unavailable.of(labelled).filter(|_| policy.present),
            frozen: plan.quarantine.frozen_by().is_some(),
            quarantined_versions: plan.quarantine.len(),
            policy_degraded,
            window_open: matches!(policy.all.schedule.at(now), WindowState::Open { .. }),
        }
    }
}

fn node_state<'a>(name: &'a str, node: &'a NodeView, plan: &Plan) -> NodeState<'a> {
    let shadow = node.shadow.as_ref();
    let reported = shadow.and_then(|s| s.status.agent.current_version.as_ref());
    NodeState {
        name,
        step: node.step(),
        version: reported.map(Cow::Borrowed).or_else(|| node.facts.os_version().map(Cow::Owned)),
        attempt: node.progress().map(|progress| (progress.from.as_ref(), &progress.version)),
        waits: match plan.waits.get(name) {
            // As in the operator's status: these are no reasons to wait.
            Some(Wait::UpToDate | Wait::NotLabelled) => Waits::Not,
            Some(Wait::Acting) | None => Waits::Acting,
            Some(wait) => Waits::For(wait.as_str()),
        },
    }
}
