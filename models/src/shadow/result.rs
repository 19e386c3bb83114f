//! Results of ended attempts, as the rollout history keeps them.

use std::sync::Arc;

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

#[cfg(feature = "crd")]
use super::attempt::MOST_ATTEMPTS;
use super::drill::Drill;
#[cfg(feature = "crd")]
use crate::schema::{JsonSchema, Moment, StatusWord, VersionText};

/// The most Services that are recorded of a pod.
pub const RECORDED_SERVICES: usize = 8;

/// The most PodDisruptionBudgets that are recorded of a pod. The API server evicts no pod that has more than one.
pub const RECORDED_BUDGETS: usize = 4;

/// The most pods that are recorded as running on a node at the end of its soak.
pub const RECORDED_RUNNING: usize = 256;

/// Place of an attempt in the rollout history.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistoryPosition {
    /// Number of the rollout's record; 0 if it was not known when the attempt began.
    pub rollout: i64,
    /// Number of the canary step under way when the attempt began, from 1; 0 after the last step.
    pub step: i64,
    /// Boot in which the attempt began.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: String,
    /// Time at which the node was taken out of service; absent while it is not.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub drain_started: Option<Timestamp>,
    /// Time at which the drain was over.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub drain_ended: Option<Timestamp>,
}

/// Way in which a pod left a node that was drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodMove {
    /// It left during the drain, in which pods are evicted.
    Evicted,
    /// It was deleted past its PodDisruptionBudgets after the deadline of the drain.
    Forced,
    /// It was still there when the drain ended, and ended with the reboot.
    LeftToReboot,
    /// A word of another version.
    #[serde(other)]
    Unknown,
}

impl PodMove {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Evicted => "Evicted",
            Self::Forced => "Forced",
            Self::LeftToReboot => "LeftToReboot",
            Self::Unknown => "Unknown",
        }
    }
}

/// A pod to evict from the node.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DrainedPod {
    /// Namespace of the pod.
    #[cfg_attr(feature = "crd", schemars(length(max = 63)))]
    pub namespace: String,
    /// Name of the pod.
    #[cfg_attr(feature = "crd", schemars(length(max = 253)))]
    pub name: String,
    /// UID of the pod: a pod of the same name with another UID is another pod.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub uid: String,
    /// IP address of the pod before the drain.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub ip: Option<String>,
    /// Kind and name of its top owner, such as `Deployment/web`. Its direct owner where that one's owner cannot be read.
    #[cfg_attr(feature = "crd", schemars(length(max = 320)))]
    pub owner: Option<String>,
    /// Names of the PodDisruptionBudgets that select it, in its namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = RECORDED_BUDGETS), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic")))]
    pub budgets: Vec<String>,
    /// Names of the Services whose selector matches it, in its namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = RECORDED_SERVICES), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic")))]
    pub services: Vec<String>,
    /// `Evicted`, `Forced` (deleted past its budgets) or `LeftToReboot`; absent while it has not left, and if it had not
    /// when the attempt ended.
    #[cfg_attr(feature = "crd", schemars(with = "Option<StatusWord>"))]
    pub moved: Option<PodMove>,
}

/// Result of an ended attempt, with the pods that it moved.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RolloutResult {
    /// Number of the rollout's record.
    pub rollout: i64,
    /// Number of the canary step under way when the attempt began, from 1; 0 after the last step.
    pub step: i64,
    /// Number of the attempt.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: i64,
    /// Version that ran before.
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub from: Option<Version>,
    /// Version that the attempt was for.
    #[cfg_attr(feature = "crd", schemars(with = "VersionText"))]
    pub to: Version,
    /// `Updated`, or the reason of the failure; of a drill, as in `status.record.drill.result`.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub result: String,
    /// The drill that the attempt was; absent in an update.
    pub drill: Option<Drill>,
    /// Explanation for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 512)))]
    pub message: String,
    /// Time at which the attempt began.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub started: Timestamp,
    /// Time at which the node was taken out of service; absent if it was not.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub drain_started: Option<Timestamp>,
    /// Time at which the drain was over, and the reboot due; absent if it did not come to that.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub drain_ended: Option<Timestamp>,
    /// Time at which the verification in the new version began; absent if it did not come to that.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub soak_started: Option<Timestamp>,
    /// Time at which it ended.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub ended: Timestamp,
    /// Boot in which it began.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_before: String,
    /// Boot in which it ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_after: String,
    /// Pods that were to leave the node.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic")))]
    pub pods: Arc<[DrainedPod]>,
    /// Namespace and name of the pods that ran on the node when its soak ended, without those of DaemonSets and static pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = RECORDED_RUNNING), inner(length(max = 320)), extend("x-kubernetes-list-type" = "atomic")))]
    pub running: Vec<String>,
}
