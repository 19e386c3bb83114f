//! The shape of the state of the fleet, as `-o json` shows it. docs/plugin.md describes each field.

use jiff::Timestamp;
use models::operator::{CompletionEstimate, Counts};
use models::reason::{EndEvent, Proof};
use models::shadow::AttemptResult;
use planner::policy::PolicyError;
use semver::Version;
use serde::Serialize;

use super::freshness::Freshness;
use crate::cluster::Cluster;

/// The step of a node without an attempt.
pub(crate) const IDLE: &str = "Idle";

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) time: Timestamp,
    pub(crate) namespace: String,
    pub(crate) enabled: Option<bool>,
    pub(crate) policy: PolicyReport,
    pub(crate) paused: Option<String>,
    pub(crate) windows: Vec<Window>,
    pub(crate) rollouts: Vec<Rollout>,
    /// The rollouts whose records run although no node is to have their versions now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) resting: Vec<RestingRollout>,
    pub(crate) counts: Option<Counts>,
    pub(crate) freshness: Option<Freshness>,
    /// The reasons for which nodes wait, the most frequent first.
    pub(crate) waiting: Vec<Waiting>,
    /// The canary steps that wait for a user, the newest version's first.
    pub(crate) approvals: Vec<Request>,
    /// The failures that have stopped the rollout.
    pub(crate) frozen: Option<Request>,
    pub(crate) held: Option<Request>,
    /// The updates without a proof that have braked a rollout.
    pub(crate) braked: Option<Request>,
    /// Other problems of the operator as a whole.
    pub(crate) problems: Vec<Problem>,
    pub(crate) silent_agents: Vec<SilentAgent>,
    /// Annotations that are meant as requests and have no effect.
    pub(crate) misplaced_requests: Vec<String>,
    /// Parts that could not be read, and facts that are missing therefore.
    pub(crate) not_read: Vec<String>,
    pub(crate) nodes: Vec<NodeReport>,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PolicyReport {
    pub(crate) state: &'static str,
    pub(crate) generation: Option<i64>,
    pub(crate) observed: bool,
    pub(crate) errors: Vec<PolicyError>,
    pub(crate) target: String,
}

/// The windows in which nodes may be taken out of service.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Window {
    /// The node group; absent for nodes in none.
    pub(crate) group: Option<String>,
    pub(crate) open: bool,
    /// True if a blackout is the reason why it is closed.
    pub(crate) blackout: bool,
    /// The end of the open window; absent if it does not end.
    pub(crate) closes: Option<Timestamp>,
    pub(crate) opens: Option<Timestamp>,
}

/// A rollout under way.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rollout {
    pub(crate) version: Version,
    pub(crate) variant: String,
    pub(crate) arch: String,
    pub(crate) number: Option<i64>,
    pub(crate) started: Timestamp,
    /// Number of nodes of this variant and architecture.
    pub(crate) nodes: usize,
    /// Number of them that were updated in this rollout.
    pub(crate) updated: usize,
    pub(crate) step: Option<usize>,
    /// Number of canary steps.
    pub(crate) steps: usize,
    /// Number of nodes that have to be updated in the step due, those of earlier steps included.
    pub(crate) step_nodes: Option<usize>,
    /// Number of places of that step that are free.
    pub(crate) step_free: Option<usize>,
    /// The reason why that step has no place that is free.
    pub(crate) waits: Option<String>,
    /// Time until which it does not wait for windows and for the soaks of canary steps; absent if it is not urgent.
    pub(crate) urgent_until: Option<Timestamp>,
    pub(crate) estimated_completion: Option<CompletionEstimate>,
}

/// A rollout that goes on once nodes are to have its version again.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RestingRollout {
    pub(crate) version: Version,
    pub(crate) variant: String,
    pub(crate) arch: String,
    pub(crate) number: i64,
}

/// Nodes that wait for the same reason.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waiting {
    pub(crate) reason: String,
    /// The party whose next step they need.
    pub(crate) waits_for: Option<String>,
    pub(crate) nodes: Vec<String>,
}

/// A state that a user ends, with the command.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Request {
    /// One fixed word.
    #[serde(skip)]
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) command: String,
}

/// A problem of the operator as a whole.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// One fixed word of a problem that is no error of the operator: it does what its policy says, or goes on without a part of it.
    #[serde(skip)]
    pub(crate) warning: Option<&'static str>,
}

/// A node whose agent does not report.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SilentAgent {
    pub(crate) node: String,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) since: Option<Timestamp>,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    pub(crate) name: String,
    pub(crate) version: Option<Version>,
    pub(crate) target: Option<Version>,
    pub(crate) step: &'static str,
    /// True if the attempt under way is a drill.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) drill: bool,
    /// True if the attempt under way verifies again a node that has not proven its version.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) verification: bool,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    /// True if failures of other nodes hold it until a user resolves them.
    #[serde(skip)]
    pub(crate) held_by_failures: bool,
    /// The place of a node that runs its version without a proof: `Failed` until a user resolves that, or removes the hold that keeps it
    /// from its verification; `Unproven` while it is verified again.
    #[serde(skip)]
    pub(crate) unproven: Option<Proof>,
    /// True if it is to have no other version: the reason is that for which it has no proof of its own.
    #[serde(skip)]
    pub(crate) waits_for_proof: bool,
    pub(crate) deadline: Option<Timestamp>,
    /// The time that the text names: the one at which the reason of the step under way may end, or `deadline` if that is earlier.
    #[serde(skip)]
    pub(crate) ends: Option<Timestamp>,
    pub(crate) last: Option<LastResult>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastResult {
    pub(crate) version: Version,
    /// `Updated`, or the reason of another end.
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    pub(crate) ended: Timestamp,
}

impl LastResult {
    /// Returns the last result of a node. The commands in its message are for the chosen cluster.
    pub(crate) fn of(last: &AttemptResult, cluster: &Cluster, node: &str) -> Self {
        let (version, reason) = (last.version.clone(), last.reason.clone());
        Self { version, reason, message: cluster.filled(&last.message, node), ended: last.ended }
    }

    /// Returns how the attempt has ended.
    pub(crate) fn event(&self) -> EndEvent {
        EndEvent::of_update(&self.reason)
    }

    /// Returns whether the attempt has failed. One that was ended from outside has not.
    pub(crate) fn is_failure(&self) -> bool {
        self.event().is_warning()
    }
}

impl NodeReport {
    /// Returns whether nothing is under way on it, and nothing to be done.
    pub(crate) fn is_current(&self) -> bool {
        self.step == IDLE && self.reason.is_none()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.last.as_ref().is_some_and(LastResult::is_failure)
    }
}
