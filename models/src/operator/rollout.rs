//! Rollouts as the status of the operator's resource names them, and the words that their records in the history share with it.

use jiff::Timestamp;
use schemars::JsonSchema;
use semver::Version;
use serde::{Deserialize, Serialize};

use super::ledger::RolloutLedger;
use crate::names::APPROVE_STEP_ANNOTATION;
use crate::schema::{Moment, StatusWord, VersionText};

/// Rollout of a version to the nodes of one variant and architecture.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActiveRollout {
    /// Version that the nodes update to.
    #[schemars(with = "VersionText")]
    pub version: Version,
    /// Variant of these nodes, such as `aws-k8s-1.37`.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub variant: String,
    /// Architecture of these nodes, such as `x86_64`.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub arch: String,
    /// Time at which the rollout started.
    #[schemars(with = "Moment")]
    pub started: Timestamp,
    /// Number of canary steps of the policy that are passed.
    pub steps_passed: i64,
    /// Time at which all places of the step due were proven, or accepted by a user; absent while they are not.
    #[schemars(with = "Option<Moment>")]
    pub step_done: Option<Timestamp>,
    /// True if the next step has been approved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
    /// True if the step due soaks once more, since no node ran the version at the end of its soak. Where that is so again, a user has to
    /// approve it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soak_repeated: bool,
    /// Time at which nodes of its variant and architecture went on to another version. If they come back to this one,
    /// that is a new rollout, which passes the canary steps again. Also the time at which another record took the place of its own: a copy
    /// of the entry stays until the history has the end of that.
    #[schemars(with = "Option<Moment>")]
    pub ended: Option<Timestamp>,
    /// Number of the last canary step that a user approved, or of which a user accepted places that were not proven, from 1.
    pub approved_step: Option<i64>,
    /// Time until which it does not wait for windows and for the soaks of canary steps (`spec.version.urgent`); absent
    /// if it is not urgent.
    #[schemars(with = "Option<Moment>")]
    pub urgent_until: Option<Timestamp>,
    /// Expected completion. It is made again every 15 minutes and after a request or a change of the policy, and written
    /// where it differs by more than a tenth of the time left; absent while no update is expected to end, and after the end.
    pub estimated_completion: Option<CompletionEstimate>,
    /// Record of the rollout in the history; absent until its number is known.
    pub record: Option<RolloutRecord>,
    /// Places that its nodes have used up; absent in what an earlier version of the operator wrote.
    pub ledger: Option<RolloutLedger>,
}

impl ActiveRollout {
    /// Returns a rollout that begins, to the nodes of a variant and architecture, without a record of its places.
    pub const fn new(version: Version, variant: String, arch: String, started: Timestamp) -> Self {
        Self {
            version,
            variant,
            arch,
            started,
            steps_passed: 0,
            step_done: None,
            approved: false,
            soak_repeated: false,
            ended: None,
            approved_step: None,
            urgent_until: None,
            estimated_completion: None,
            record: None,
            ledger: None,
        }
    }

    /// Returns the number of its record in the history; 0 until that is known.
    pub fn number(&self) -> i64 {
        self.record.as_ref().map_or(0, |record| record.number)
    }

    /// Returns the name, in an approval, of its canary step with so many places.
    pub fn step_name(&self, places: i64) -> String {
        format!("{}/{places}", self.number())
    }

    /// Returns whether updates that ended one after the other without a proof have braked it.
    pub fn is_braked(&self) -> bool {
        self.ended.is_none() && self.ledger.as_ref().is_some_and(|ledger| ledger.braked_until.is_some())
    }

    /// Returns what an approval of its canary step is to be called: that the places of the step are used up, all of them proven or
    /// accepted, or some of them without a proof; `None` where an approval would pass nothing, as after the end of its record.
    pub fn approvable(&self) -> Option<String> {
        self.record.as_ref().filter(|record| record.ended.is_none())?;
        let ledger = self.ledger.as_ref().filter(|ledger| self.ended.is_none() && ledger.due > 0)?;
        let name = self.step_name(ledger.due);
        match (ledger.good() >= ledger.due, ledger.failed, ledger.used() >= ledger.due) {
            _ if self.number() == 0 => None,
            (true, ..) => Some(name),
            (false, ..=0, true) => Some(format!("{name}/unproven")),
            (false, ..) => None,
        }
    }

    /// Returns whether the message of the condition `Progressing` shows that its canary step waits for a user. It shows no step of a rollout whose version no
    /// node is to have now.
    pub fn is_shown(&self, message: &str) -> bool {
        self.approvable().is_some_and(|name| message.contains(&format!("{APPROVE_STEP_ANNOTATION}={name}@")))
    }
}

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
