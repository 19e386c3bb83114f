//! The controller's part of a shadow's status.

use std::sync::Arc;

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

use super::attempt::Blocker;
#[cfg(feature = "crd")]
use super::attempt::MOST_ATTEMPTS;
use super::before::NodeBefore;
use super::drill::{Drill, DrillResult, Mode};
use super::result::{DrainedPod, HistoryPosition, RolloutResult};
use crate::reason::{FailureReason, Proof};
#[cfg(feature = "crd")]
use crate::schema::{JsonSchema, Moment, StatusWord, VersionText};

/// Where an attempt is, seen from outside. Each step is at one place, and an attempt passes them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Before the node gets a slot: nothing is disrupted.
    Waiting,
    /// The node is taken out of service.
    Leaving,
    /// The node is out of service, and its host is to reboot.
    Away,
    /// The host has rebooted, and its node is not Ready yet.
    Booted,
    /// The node is back, and is watched.
    Back,
    /// The attempt is over, and what it has left is cleaned up.
    Over,
}

macro_rules! steps {
    ($($(#[doc = $doc:literal])+ $name:ident at $place:ident,)+) => {
        /// Step of a node's update, drill or verification. What each means is in one list: `PHASES` of the planner.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Step {
            $($(#[doc = $doc])+ $name,)+
            /// A step of another version of the controller. What it requires is not known, so the attempt ends.
            #[serde(other)]
            Unknown,
        }

        impl Step {
            /// All steps that this version knows, in the order in which an attempt passes them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The step as one fixed word.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                    Self::Unknown => "Unknown",
                }
            }

            /// Where an attempt in this step is.
            pub const fn place(self) -> Place {
                match self {
                    $(Self::$name => Place::$place,)+
                    Self::Unknown => Place::Over,
                }
            }
        }
    };
}

steps! {
    /// The agent downloads the image. Nothing is disrupted.
    Staging at Waiting,
    /// The image is staged; the node waits for a slot.
    Staged at Waiting,
    /// The node holds a slot and is cordoned; hooks are awaited.
    BeforeDrain at Leaving,
    /// The node holds a slot and is out of external load balancers.
    LeavingLoadBalancer at Leaving,
    /// The node is cordoned and its pods are evicted; in a drill without evictions, the API server is asked about them.
    Draining at Leaving,
    /// The desired state is the reboot into the new version; in a drill, the agent verifies a rehearsal permit.
    Rebooting at Away,
    /// The node is in another boot, and not Ready yet.
    Returning at Booted,
    /// The node runs the new version and is verified: it has to stay healthy for the soak.
    Verifying at Back,
    /// The node is back in service and verified; hooks are awaited.
    AfterUpdate at Back,
    /// The attempt has failed: its desired state is withdrawn and the node is being released.
    Releasing at Over,
}

/// Attempt under way: its step and start. Deadlines are counted from `since`, so they survive restarts.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Step: `Staging`, `Staged`, `BeforeDrain`, `LeavingLoadBalancer`, `Draining`, `Rebooting`, `Returning`, `Verifying`,
    /// `AfterUpdate` or `Releasing`.
    #[cfg_attr(feature = "crd", schemars(with = "StatusWord"))]
    pub step: Step,
    /// Time at which the step began.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub since: Timestamp,
    /// Number of the attempt.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: i64,
    /// Boot in which the step began.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: String,
    /// Version that the attempt is for, which `spec` no longer names once the desired state is withdrawn.
    #[cfg_attr(feature = "crd", schemars(with = "VersionText"))]
    pub version: Version,
    /// Version that ran when the attempt began.
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub from: Option<Version>,
    /// Time at which the attempt began.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub started: Timestamp,
    /// While `Releasing`: true if a permit was issued in this attempt, so that the host may still act on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permit_issued: bool,
    /// True once the soak was restarted after another boot; while `AfterUpdate`, if the hooks were asked before another verification.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soak_restarted: bool,
    /// Time since which something has kept the node from its soak, which begins again when that is over; while `AfterUpdate`, the
    /// time at which the node was found in another boot soon after its soak, which `bootId` is then. Absent while there is nothing.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub interrupted: Option<Timestamp>,
    /// True while the attempt holds a slot and may have claims on the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disruptive: bool,
    /// Time at which the verification began. The soak may have been restarted since.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub verifying_since: Option<Timestamp>,
    /// Place of the attempt in the rollout history.
    pub rollout: Option<HistoryPosition>,
    /// The drill that the attempt is; absent in an update.
    pub drill: Option<Drill>,
    /// True if the attempt verifies again a node that runs the version without a proof. The node stays in service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verification: bool,
}

impl Progress {
    /// Returns the kind of the attempt.
    pub fn mode(&self) -> Mode {
        match &self.drill {
            Some(drill) => drill.mode(),
            None if self.verification => Mode::Verification,
            None => Mode::Update,
        }
    }

    /// Returns whether the attempt has ended with a permit by which its host may still reboot.
    pub fn has_ended_permitted(&self) -> bool {
        self.step == Step::Releasing && self.permit_issued
    }

    /// Returns whether it has, and its slot is free.
    pub fn may_still_reboot(&self) -> bool {
        self.has_ended_permitted() && !self.disruptive
    }
}

/// An owner whose pods come to a cordoned node without tolerating the cordon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReturnedOwner {
    /// UID of the owner.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub uid: String,
    /// Number of times that new pods of this owner, created more than two seconds after the cordon, were found on the node.
    pub times: i64,
}

/// A pod that is asked first and alone in a drain.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FirstPod {
    /// UID of the pod.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub uid: String,
    /// Time at which its eviction was accepted, or it had gone.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub accepted: Option<Timestamp>,
    /// True if no PodDisruptionBudget guarded it. Its grace period may be longer than the drain, or it did not leave in an earlier attempt.
    // An earlier version knows this name, and goes on with the drain during an upgrade or after a return.
    #[serde(default, rename = "forGrace", skip_serializing_if = "std::ops::Not::not")]
    pub unguarded: bool,
}

/// A PodDisruptionBudget whose pods stayed although they were asked first and alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RefusingBudget {
    /// Namespace and name.
    #[cfg_attr(feature = "crd", schemars(length(max = 317)))]
    pub budget: String,
    /// UID and generation.
    #[cfg_attr(feature = "crd", schemars(length(max = 128)))]
    pub revision: String,
}

/// State of the drain. Written when it changes, not on a timer.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// Pods to evict, recorded before the first eviction.
    // Shared: each write during the drain repeats them.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic")))]
    pub pods: Arc<[DrainedPod]>,
    /// Number of these pods that have left. It is written while a budget blocks the drain, and when the drain ends. While the drain goes on, it also
    /// counts pods that came after the drain began, and pods that have ended but are still listed by the API server.
    #[serde(default)]
    pub removed: i64,
    /// Pods that are evicted first and alone. A PodDisruptionBudget guarded them when the drain began, their grace period may be longer than
    /// the drain, or `record.drainBlockers` names them or their owners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic")))]
    pub asked_first: Vec<FirstPod>,
    /// First few pods that do not leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic")))]
    pub blockers: Vec<Blocker>,
    /// Owners (uid) of evicted pods that tolerate the cordon. Pods of these owners that return to the node are not evicted
    /// again; the reboot ends them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 256), inner(length(max = 64)), extend("x-kubernetes-list-type" = "atomic")))]
    pub evicted_owners: Vec<String>,
    /// Owners whose pods came to the node during its drain although they do not tolerate the cordon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic")))]
    pub returned_owners: Vec<ReturnedOwner>,
    /// Labels and annotations, by name, that the operator claims on the node and that another manager had set before. The release
    /// leaves them in place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 8), inner(length(max = 128)), extend("x-kubernetes-list-type" = "atomic")))]
    pub preexisting: Vec<String>,
    /// Of a drill: owners of pods that were unhealthy before it, named as in `record.unhealthyBefore`. Its soak does not wait for their pods,
    /// and no update or verification reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 256), inner(length(max = 64)), extend("x-kubernetes-list-type" = "atomic")))]
    pub unhealthy_before: Vec<String>,
    /// True once the drain was restarted for a pod that was created more than two seconds after the cordon, or found later than `drain.timeout`
    /// after it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
    /// Time from which pods are deleted past their PodDisruptionBudgets, as `drain.atDeadline: Force` requires.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub forced_since: Option<Timestamp>,
}

/// Result of an attempt.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttemptResult {
    /// Number of the attempt.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: i64,
    /// Version that ran before.
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub from: Option<Version>,
    /// Version that the attempt was for.
    #[cfg_attr(feature = "crd", schemars(with = "VersionText"))]
    pub version: Version,
    /// `Updated`, or the reason of the failure.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub reason: String,
    /// Explanation for users.
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub message: String,
    /// Time at which it began.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub started: Timestamp,
    /// Time at which it ended.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub ended: Timestamp,
}

/// Place of a node in the rollout of a version: what its last attempt that took it to the version has shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeProof {
    /// Version.
    #[cfg_attr(feature = "crd", schemars(with = "VersionText"))]
    pub version: Version,
    /// Number of the rollout's record; 0 if it was not known.
    pub rollout: i64,
    /// Number of the attempt.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: i64,
    /// `Proven`, `Unproven`, `Failed`, or `Free` once it is certain that the node has not come to the version.
    #[cfg_attr(feature = "crd", schemars(with = "StatusWord"))]
    pub proof: Proof,
    /// End of the attempt, as one fixed word.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub reason: String,
}

/// A failure that counts against a version until it is resolved by `resume`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionFailure {
    /// Version.
    #[cfg_attr(feature = "crd", schemars(with = "VersionText"))]
    pub version: Version,
    /// Variant that it failed on.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub variant: String,
    /// Architecture that it failed on.
    #[cfg_attr(feature = "crd", schemars(length(max = 32)))]
    pub arch: String,
    /// Reason of the failure.
    pub reason: FailureReason,
    /// Time of the failure.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub time: Timestamp,
    /// Value of the `resume` request that resolved it, or `Updated` if the node has proven the version since; absent while it counts.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub resolved_by: Option<String>,
}

/// One-shot requests that were carried out, each with the value of its annotation: of one of more than 64 characters the first 55,
/// `~` and a hash. And those that are not understood.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShadowRequests {
    /// `brupop.bottlerocket.aws/retry`.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub retry: Option<String>,
    /// `brupop.bottlerocket.aws/release`.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub release: Option<String>,
    /// `brupop.bottlerocket.aws/drill`.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub drill: Option<String>,
    /// Annotations on the Node and on the shadow that are meant as requests and are refused, or not understood as they are
    /// written; each was shown by an Event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = MOST_MISUNDERSTOOD), inner(length(max = 512)), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub misunderstood: Vec<String>,
}

/// The number of requests that are not understood that a shadow names.
pub const MOST_MISUNDERSTOOD: usize = 8;

/// Record of a node's earlier attempts.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Number of failed attempts since the last successful one.
    #[serde(default)]
    pub failures: i64,
    /// Result of the last attempt.
    pub last: Option<AttemptResult>,
    /// Place of the node in the rollout of the last version that it was taken to; absent in what an earlier version of the
    /// operator wrote.
    pub proof: Option<NodeProof>,
    /// PodDisruptionBudgets whose pods stayed in the last attempt although they were asked first and alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic")))]
    pub refusing_budgets: Vec<RefusingBudget>,
    /// UIDs of pods that did not leave in an attempt, and of owners whose pods came back to the node. The next drain evicts these pods first
    /// and alone. Absent in what an earlier version of the operator wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 16), inner(length(max = 64)), extend("x-kubernetes-list-type" = "atomic")))]
    pub drain_blockers: Vec<String>,
    /// Time before which no attempt starts.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub not_before: Option<Timestamp>,
    /// Owners (uid) of pods that were unhealthy before the node was last drained for an update, static pods (uid of the mirror pod), and pods of
    /// StatefulSets (uid of the set, and number), which an update of this node does not wait for. On no node do pods
    /// of these owners count against the version, and an update does not wait for them unless most of the owner's pods on nodes
    /// that were not updated are healthy. Nor does an update of this node where a single pod of the owner is not healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 256), inner(length(max = 64)), extend("x-kubernetes-list-type" = "atomic")))]
    pub unhealthy_before: Vec<String>,
    /// Facts of the node before it was last drained, until it has proven its version; absent in what an earlier version of the operator
    /// wrote.
    pub before: Option<NodeBefore>,
    /// True if no pods of workloads were on the node when it was last verified: all that ran there was its own, and DaemonSets'.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_workloads: bool,
    /// One-shot requests that were carried out.
    pub requests: Option<ShadowRequests>,
    /// Failures that count against versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic")))]
    pub version_failures: Vec<VersionFailure>,
    /// Result of the node's last drill. It counts as no attempt: neither against the version nor against the node.
    pub drill: Option<DrillResult>,
}

/// The most results of ended attempts that a shadow keeps for the rollout history.
pub const MOST_RESULTS: usize = 8;

/// The controller's part of a shadow's status, without its conditions.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ControllerReport {
    /// Attempt under way; absent when the node is idle.
    pub progress: Option<Progress>,
    /// State of the drain.
    pub drain: Option<DrainStatus>,
    /// Record of earlier attempts.
    pub record: Option<Record>,
    /// Results of ended attempts until a page of the rollout history holds them. Those of the last page of a rollout are removed
    /// with the next other change of this status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = MOST_RESULTS), extend("x-kubernetes-list-type" = "atomic")))]
    pub results: Vec<Arc<RolloutResult>>,
}
