//! Estimates of when the running rollouts of a cluster are completed, for the operator's status.

use std::time::Duration;

use jiff::Timestamp;
use models::condition::true_condition;
use models::operator::{ActiveRollout, CompletionEstimate, FROZEN, RolloutRecord};
use models::time::after;

use super::durations::{UpdateDurations, are_enough, observed};
use super::scenario::{Member, Span};
use super::{live, simulate};
use crate::policy::Policy;
use crate::view::{ClusterView, EstimateBasis, EstimateFacts, NodeView, OperatorFacts};
use crate::wait::{Property, Wait, WaitsFor};

/// Time between two estimates on the same basis.
const PERIOD: Duration = Duration::from_secs(15 * 60);

/// Time between two estimates at least, and from the beginning of a rollout to its first one: hosts report the versions that
/// they may have one after the other.
const SETTLES: Duration = Duration::from_secs(30);

/// Time between two estimates of which the first has found none for a rollout, although a node is out of service: a user may
/// have ended a hold since, for example.
const MISSING: Duration = Duration::from_secs(60);

/// Time without an estimate after one, in multiples of what that took: a large fleet is simulated for seconds.
const REST: u32 = 20;

/// The number of simulated courses: odd, so that one of them is in the middle.
const COURSES: u64 = 3;

/// The duration of a drain and a shutdown, where nothing better is known.
const DRAIN: Span = Span::seconds(10, 120);

fn running(operator: &OperatorFacts) -> impl Iterator<Item = (&ActiveRollout, &RolloutRecord)> {
    let rollouts = operator.status.active_rollouts.iter().filter(|rollout| rollout.ended.is_none());
    let recorded = rollouts.filter_map(|rollout| Some((rollout, rollout.record.as_ref()?)));
    recorded.filter(|(_, record)| record.ended.is_none())
}

fn basis(operator: &OperatorFacts) -> EstimateBasis {
    EstimateBasis {
        rollouts: running(operator).map(|(_, record)| record.number).collect(),
        generation: operator.generation,
        requests: operator.status.requests.clone(),
        frozen: true_condition(&operator.status.conditions, FROZEN).is_some(),
    }
}

/// Returns whether nodes that wait for this at the end of a course wait for more than what concerns them alone: as long as it
/// lasts, nothing can be said of the end.
fn stops(wait: &Wait) -> bool {
    let reason = wait.reason();
    let party = reason.explanation().0;
    matches!(party, WaitsFor::User | WaitsFor::Time | WaitsFor::Turn)
        && !reason.blocks()
        && !reason.is(Property::OfOneNode)
}

/// Returns the time of the next estimate; `None` while no rollout runs.
pub fn estimate_due(view: &ClusterView, last: Option<&EstimateFacts>) -> Option<Timestamp> {
    let operator = view.operator.as_ref()?;
    let settled = running(operator).map(|(_, record)| after(record.begun, SETTLES)).max()?;
    let Some(last) = last else { return Some(settled) };
    let missing = running(operator).any(|(_, record)| !last.rollouts.contains_key(&record.number));
    let pause = match last.basis == basis(operator) {
        false => SETTLES,
        true if missing && view.nodes.values().any(NodeView::disrupted) => MISSING,
        true => PERIOD,
    };
    let rested = after(last.made, last.took.saturating_mul(1 + REST));
    Some(after(last.made, pause).max(rested).max(settled))
}

/// Returns that nothing is expected.
pub fn no_estimate(view: &ClusterView, now: Timestamp) -> EstimateFacts {
    let basis = view.operator.as_ref().map(basis).unwrap_or_default();
    EstimateFacts { made: now, basis, ..EstimateFacts::default() }
}

/// Simulates the running rollouts from the present state of the cluster to their end. Pods are left out: drains take as long
/// as those of the last updates did.
pub fn estimate(mut view: ClusterView, policy: &Policy, updates: &[UpdateDurations], now: Timestamp) -> EstimateFacts {
    let mut estimates = no_estimate(&view, now);
    let Some(operator) = view.operator.clone() else { return estimates };
    // Without pods, none of a DaemonSet or of a kubelet can be missing.
    view.daemon_sets = None;
    for node in view.nodes.values_mut() {
        node.pods = None;
        let record = node.shadow.as_mut().and_then(|shadow| shadow.status.controller.record.as_mut());
        if let Some(before) = record.and_then(|record| record.before.as_mut()) {
            before.static_pods.clear();
            before.replica_sets.clear();
        }
    }
    let mut scenario = live(view, policy.clone(), updates, now);
    scenario.times.shutdown = if are_enough(updates) { observed(updates, |update| update.drain) } else { DRAIN };
    let courses: Vec<_> = (0..COURSES).map(|seed| simulate(&scenario, seed)).collect();
    for (rollout, record) in running(&operator) {
        let is_own = |member: &Member| {
            let agent = member.node.shadow.as_ref().map(|shadow| &shadow.status.agent);
            let kind = agent.map(|agent| (agent.variant.as_deref(), agent.arch.as_deref()));
            kind == Some((Some(&*rollout.variant), Some(&*rollout.arch)))
        };
        let own: Vec<usize> = (0..scenario.members.len()).filter(|index| is_own(&scenario.members[*index])).collect();
        let end = |course: &super::Course| {
            let is_left = |index: &usize| {
                let (member, node) = (&scenario.members[*index], &course.nodes[*index]);
                let waits = course.waits.get(member.name());
                // One that the course has not come to has no reason.
                let unplanned = waits.is_none()
                    && !node.updated
                    && member.host.runs < rollout.version
                    && member.offered.contains(&rollout.version)
                    && !member.host.waits_for_wave;
                unplanned || waits.is_some_and(stops)
            };
            if own.iter().any(is_left) {
                return None;
            }
            let ends = own.iter().map(|index| &course.nodes[*index]).filter(|node| node.updated);
            ends.filter_map(|node| node.ended).max().map(|second| course.time(second))
        };
        let mut ends: Vec<Timestamp> = courses.iter().filter_map(end).collect();
        ends.sort_unstable();
        if ends.len() == courses.len()
            && let (Some(earliest), Some(latest)) = (ends.first(), ends.last())
        {
            let at = ends[ends.len() / 2];
            let estimate = CompletionEstimate { at, earliest: *earliest, latest: *latest, made: scenario.start };
            estimates.rollouts.insert(record.number, estimate);
        }
    }
    estimates
}

#[cfg(test)]
mod tests;
