//! The rollouts under way, with what their canary steps wait for.

use models::operator::ActiveRollout;
use planner::plan::{RolloutState, key_of};
use planner::policy::Policy;
use planner::wait::{Wait, alone};

use super::shape::{RestingRollout, Rollout};
use crate::cluster::Cluster;

/// Returns a rollout that has begun.
pub(super) fn rollout(cluster: &Cluster, policy: &Policy, state: &RolloutState) -> Option<Rollout> {
    let active = &state.rollout;
    let status = &cluster.operator.as_ref()?.status;
    let key = key_of(active);
    status.active_rollouts.iter().find(|stored| key_of(stored) == key && stored.ended.is_none())?;
    Some(Rollout {
        version: active.version.clone(),
        variant: active.variant.clone(),
        arch: active.arch.clone(),
        number: active.record.as_ref().map(|record| record.number),
        started: active.started,
        urgent_until: active.urgent_until,
        estimated_completion: active.estimated_completion,
        nodes: state.nodes,
        updated: state.updated,
        step: state.step,
        steps: policy.canary.len(),
        step_nodes: active.ledger.as_ref().and_then(|ledger| usize::try_from(ledger.due).ok()).filter(|due| *due > 0),
        step_free: state.free,
        waits: state.wait.as_ref().map(canary),
    })
}

/// Returns the rollouts with records that run which are not among those under way: policy, or what hosts are offered, has taken the version back.
pub(super) fn resting(cluster: &Cluster, under_way: &[RolloutState]) -> Vec<RestingRollout> {
    let stored = cluster.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
    let rests = |stored: &&ActiveRollout| {
        let runs = stored.ended.is_none() && stored.record.as_ref().is_some_and(|record| record.ended.is_none());
        runs && under_way.iter().all(|state| key_of(&state.rollout) != key_of(stored))
    };
    let resting = stored.filter(rests).map(|stored| RestingRollout {
        version: stored.version.clone(),
        variant: stored.variant.clone(),
        arch: stored.arch.clone(),
        number: stored.number(),
    });
    resting.collect()
}

/// Returns why no more nodes start in a canary step.
pub(super) fn canary(wait: &Wait) -> String {
    match wait {
        Wait::CanaryStep { approval: Some(_), nodes, none_runs, .. } => {
            format!("waits for approval{}", alone(nodes, *none_runs))
        }
        Wait::StepUnproven { nodes, .. } if nodes.is_empty() => "is not proven".to_owned(),
        Wait::StepUnproven { nodes, .. } => format!("is not proven by {}", nodes.join(", ")),
        Wait::StepFailed { nodes, .. } if nodes.is_empty() => "has failed".to_owned(),
        Wait::StepFailed { nodes, .. } => format!("has failed on {}", nodes.join(", ")),
        Wait::CanaryStep { until: Some(until), none_runs, .. } => {
            format!("soaks until {until:.0}{}", alone(&[], *none_runs))
        }
        Wait::CanaryStep { nodes, .. } if !nodes.is_empty() => format!("waits for {}", nodes.join(", ")),
        Wait::CanaryStep { .. } => "is not passed".to_owned(),
        wait => wait.to_string(),
    }
}
