//! Rollouts as the status of the operator's resource names them, and the words that their records in the history share with it.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{Moment, StatusWord};

/// The revision of the policy under which a rollout began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecordedRevision {
    /// Name of the revision; empty if it was not known.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,
    /// Number of the revision; 0 if it was not known.
    #[serde(default)]
    pub number: i64,
}

/// Phase of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr)]
pub enum RolloutPhase {
    /// Nodes are still to be updated.
    #[default]
    Running,
    /// Every node of its variant and architecture ran the version.
    Completed,
    /// Nodes went on to another version.
    Superseded,
    /// The policy no longer required it, its quarantine was lifted, or there were no nodes or no policy any more.
    Stopped,
    /// A phase of another version of the operator.
    #[serde(other)]
    Unknown,
}

impl RolloutPhase {
    /// The word.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Expected completion of a rollout, from simulated courses of it. Nodes that wait for more than their turn at the end of a
/// course, as for a user, are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletionEstimate {
    /// End of the last update in the median course.
    #[schemars(with = "Moment")]
    pub at: Timestamp,
    /// End of the last update in the shortest course.
    #[schemars(with = "Moment")]
    pub earliest: Timestamp,
    /// End of the last update in the longest course.
    #[schemars(with = "Moment")]
    pub latest: Timestamp,
    /// Time of the estimate.
    #[schemars(with = "Moment")]
    pub made: Timestamp,
}

/// Place of a rollout in the history.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutRecord {
    /// Number of the rollout. It rises with each new one.
    #[schemars(range(min = 1))]
    pub number: i64,
    /// Time at which it began.
    #[schemars(with = "Moment")]
    pub begun: Timestamp,
    /// Number of the rollout that it continues.
    pub first: Option<i64>,
    /// Revision of the policy under which it began.
    pub revision: RecordedRevision,
    /// `Running`, `Completed`, `Superseded` or `Stopped`.
    #[serde(default)]
    #[schemars(with = "StatusWord")]
    pub phase: RolloutPhase,
    /// Time at which it ended; absent while it runs.
    #[schemars(with = "Option<Moment>")]
    pub ended: Option<Timestamp>,
    /// First estimate of its completion: the one that is held against what happened.
    pub first_estimate: Option<CompletionEstimate>,
}

impl RolloutRecord {
    /// Returns the number of the first record of its rollout, which is its own unless it continues another.
    pub fn first_number(&self) -> i64 {
        self.first.unwrap_or(self.number)
    }
}
