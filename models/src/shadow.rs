//! `BottlerocketShadow`: one node's desired and reported state, standing between the controller and the agent.

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

#[cfg(feature = "crd")]
use kube::CustomResource;
#[cfg(feature = "crd")]
use schemars::JsonSchema;

use crate::condition::Condition;
use crate::duration::Duration;
use crate::reason::FailureReason;
#[cfg(feature = "crd")]
use crate::schema::{StatusWord, VersionText};
use crate::wire::AgentStatus;

/// Types of the conditions that the agent writes.
pub const AGENT_CONDITIONS: &[&str] = &[HOST_REACHABLE];

/// Types of the conditions that the controller writes. A type that is in neither list is of another version.
pub const CONTROLLER_CONDITIONS: &[&str] = &[CORDONED, DRAINED, BLOCKED, HEALTHY];

/// `HostReachable`: the agent reached the host API when it reported last (agent).
pub const HOST_REACHABLE: &str = "HostReachable";
/// Reason of [`HOST_REACHABLE`]: another client armed an image on the host.
pub const HOST_ARMED_BY_OTHER: &str = FailureReason::HostArmedByOther.as_str();
/// Reason of [`HOST_REACHABLE`]: the agent does not know the desired state.
pub const UNSUPPORTED_STATE: &str = "UnsupportedState";
/// `Cordoned`: the operator has cordoned the node (controller).
pub const CORDONED: &str = "Cordoned";
/// `Drained`: every pod to evict has left (controller).
pub const DRAINED: &str = "Drained";
/// `Blocked`: a reason of the node's own keeps it from its next step (controller).
pub const BLOCKED: &str = "Blocked";
/// `Healthy`: the node is healthy after its update (controller).
pub const HEALTHY: &str = "Healthy";

/// A state that a host is asked to reach, or has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
// In a schema an optional enumeration's own description would hide that of the field.
#[cfg_attr(feature = "crd", schemars(description = ""))]
pub enum HostState {
    /// No update is asked for, and no image is armed.
    #[default]
    Idle,
    /// The image is downloaded to the inactive partition set and not armed.
    StagedUpdate,
    /// The host runs the image.
    RebootedIntoUpdate,
    /// State that the next version adds: the agent has taken note of an attempt, before it stages anything.
    #[cfg(feature = "next")]
    PlannedUpdate,
    /// A state that this version does not know. Nothing is done for it.
    #[serde(other)]
    #[cfg_attr(feature = "crd", schemars(skip))]
    Unknown,
}

/// Desired settings of the host. A permit signs them; a change of settings is signed by itself too
/// ([`crate::permit::SettingsClaims`]), since a setting is changed long before any permit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostPolicy {
    /// Exact version for the host's setting `version-lock`; absent: the setting is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub version_lock: Option<String>,
    /// If true, the host does not wait for its wave of a release; absent or false: the setting is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_waves: Option<bool>,
    /// Interval at which an idle host checks for updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_interval: Option<Duration>,
    /// Boot in which an image that another client armed may be disarmed, as a user's `retry` asks; absent: it is left
    /// alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub disarm_in_boot: Option<String>,
    /// Controller's signature over `versionLock` and `ignoreWaves` for this node, a JWS in compact form: without it no
    /// setting is changed. Absent where neither is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub signature: Option<String>,
}

impl HostPolicy {
    /// Returns true if it asks for a change of the host's settings, so that it has to be signed.
    pub fn asks_settings(&self) -> bool {
        self.version_lock.is_some() || self.ignore_waves == Some(true)
    }

    /// Returns true if it asks for the same as `other`. Two signatures of one statement differ, and that is no difference.
    pub fn asks_as(&self, other: &Self) -> bool {
        let Self { version_lock, ignore_waves, refresh_interval, disarm_in_boot, signature: _ } = self;
        *version_lock == other.version_lock
            && *ignore_waves == other.ignore_waves
            && *refresh_interval == other.refresh_interval
            && *disarm_in_boot == other.disarm_in_boot
    }
}

/// Reboot permit: the controller's signed answer to an agent's nonce ([`crate::permit`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Permit {
    /// Nonce that the permit answers, for information. The one inside the signature counts.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub nonce: String,
    /// Claims and their signature, a JWS in compact form.
    #[cfg_attr(feature = "crd", schemars(length(max = 4096)))]
    pub jws: String,
}

/// Desired state of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(CustomResource, JsonSchema))]
#[cfg_attr(
    feature = "crd",
    kube(
        group = "brupop.bottlerocket.aws",
        version = "v3",
        kind = "BottlerocketShadow",
        namespaced,
        shortname = "brs",
        category = "brupop",
        status = "BottlerocketShadowStatus",
        derive = "PartialEq",
        doc = "Desired and observed state of the update of one Bottlerocket node. Written by the operator; named brs-<node>.",
        printcolumn(
            name = "State",
            type_ = "string",
            json_path = ".status.state",
            description = "State that the host has reached"
        ),
        printcolumn(
            name = "Version",
            type_ = "string",
            json_path = ".status.currentVersion",
            description = "Running version"
        ),
        printcolumn(
            name = "Target",
            type_ = "string",
            json_path = ".spec.version",
            description = "Target version of the attempt under way"
        ),
        printcolumn(
            name = "Step",
            type_ = "string",
            json_path = ".status.progress.step",
            description = "Step of the update"
        ),
        printcolumn(
            name = "Blocked",
            type_ = "string",
            json_path = ".status.conditions[?(@.type=='Blocked')].reason",
            description = "Reason that keeps it from its next step"
        ),
        printcolumn(
            name = "Last",
            type_ = "string",
            json_path = ".status.record.last.reason",
            description = "Result of its last attempt"
        ),
        printcolumn(
            name = "Wanted",
            type_ = "string",
            json_path = ".spec.state",
            description = "Desired state of the host",
            priority = "1"
        ),
        printcolumn(
            name = "Attempt",
            type_ = "integer",
            json_path = ".spec.attempt",
            description = "Number of attempts",
            priority = "1"
        ),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[cfg_attr(
    feature = "crd",
    schemars(extend("x-kubernetes-validations" = [
        {"rule": "self.attempt >= oldSelf.attempt", "message": "attempt never falls"},
        {"rule": "self.state == 'Idle' || (has(self.version) && has(self.bootId))", "message": "a desired state other than Idle names its version and its boot"},
        {"rule": "self.state == 'RebootedIntoUpdate' || !has(self.permit)", "message": "a permit belongs to the desired state RebootedIntoUpdate"},
    ]))
)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketShadowSpec {
    /// State that the host is to reach.
    #[serde(default)]
    pub state: HostState,
    /// Target version; absent when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub version: Option<Version>,
    /// Number of the attempt. It rises with each new one and never falls.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: i64,
    /// Boot that the desired state is for: the host is armed and rebooted only in that boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: Option<String>,
    /// Desired settings of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostPolicy>,
    /// Reboot permit for the agent's nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Permit>,
    /// Field that the next version adds.
    #[cfg(feature = "next")]
    #[serde(default = "crate::next::Novelty::absent", skip_serializing_if = "crate::next::Novelty::is_absent")]
    pub novelty: crate::next::Novelty,
}

/// Updates that a host offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OfferedUpdates {
    /// Version that the host would take; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub chosen_version: Option<Version>,
    /// Versions that the host may take now, newest first, with the running and older ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(with = "Vec<VersionText>", length(max = 64), extend("x-kubernetes-list-type" = "atomic")))]
    pub available_versions: Vec<Version>,
    /// Time of the host's last successful check for updates. Written only together with another change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<String>", extend("format" = "date-time")))]
    pub last_refresh: Option<Timestamp>,
    /// Error of the host's last check for updates; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub refresh_failure: Option<String>,
}

/// Phase of arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
pub enum ArmedPhase {
    /// The agent is about to arm the host, and requests a permit.
    Arming,
    /// The image is armed: any reboot takes it.
    Activated,
    /// A phase of another version of the agent.
    #[serde(other)]
    #[cfg_attr(feature = "crd", schemars(skip))]
    Unknown,
}

/// The most attempts that a shadow counts. One a second for thirty years are fewer.
pub const MOST_ATTEMPTS: i64 = 1_000_000_000;

/// Agent's record about arming, written before it acts, so that the next boot can be judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Armed {
    /// Number of the attempt.
    pub attempt: i64,
    /// Boot in which the host was armed.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: String,
    /// Version of the image.
    #[cfg_attr(feature = "crd", schemars(with = "VersionText"))]
    pub version: Version,
    /// Phase: `Arming` or `Activated`.
    #[cfg_attr(feature = "crd", schemars(with = "StatusWord"))]
    pub phase: ArmedPhase,
    /// Nonce that a permit has to answer.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub nonce: String,
}

/// Failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Number of the attempt. While it is that of `spec`, nothing but `Idle` is carried out.
    pub attempt: i64,
    /// Desired state when it failed: `Idle`, `StagedUpdate` or `RebootedIntoUpdate`.
    #[cfg_attr(feature = "crd", schemars(with = "StatusWord"))]
    pub step: HostState,
    /// Reason, as one fixed word.
    pub reason: FailureReason,
    /// Explanation for users.
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub message: String,
    /// Time of the failure.
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
    pub time: Timestamp,
}

/// Settings of the host before the operator changed them, those that it applied, and a lock that prevents it. Written
/// before a change, so that it can be undone after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FoundSettings {
    /// `settings.updates.version-lock` before it was changed; absent where it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub version_lock: Option<String>,
    /// `settings.updates.ignore-waves` before it was changed; absent where it was not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_waves: Option<bool>,
    /// Settings that were applied or are about to be; absent when none has to be put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<AppliedSettings>,
    /// Version lock that another client set and that conflicts with the desired one. It is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub conflicting_lock: Option<String>,
}

/// Settings of the host that the operator applied, or is about to apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AppliedSettings {
    /// `settings.updates.version-lock`; absent where it was not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub version_lock: Option<String>,
    /// Applied lock that `versionLock` replaces, until the host has been seen to hold the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub replaces: Option<String>,
    /// `settings.updates.ignore-waves`; absent where it was not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_waves: Option<bool>,
}

/// Agent's report about its host. It builds all of it each time, starting from the stored one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    /// State reached, `Idle`, `StagedUpdate` or `RebootedIntoUpdate`, computed from the host each time: it may go
    /// backwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<StatusWord>"))]
    pub state: Option<HostState>,
    /// Generation of the shadow that this report answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Running version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub current_version: Option<Version>,
    /// Running variant, such as `aws-k8s-1.37`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub variant: Option<String>,
    /// Architecture, such as `x86_64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 32)))]
    pub arch: Option<String>,
    /// ID of the running boot, as the kernel names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: Option<String>,
    /// Updates that the host offers; absent until it has checked in this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<OfferedUpdates>,
    /// Image that the agent is about to arm or has armed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub armed: Option<Armed>,
    /// Failure of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Settings of the host before the operator changed them, and those that it applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<FoundSettings>,
    /// Field that the next version adds.
    #[cfg(feature = "next")]
    #[serde(default = "crate::next::Novelty::absent", skip_serializing_if = "crate::next::Novelty::is_absent")]
    pub agent_novelty: crate::next::Novelty,
}

/// Step of a node's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
pub enum Step {
    /// The agent downloads the image. Nothing is disrupted.
    Staging,
    /// The image is staged; the node waits for a slot.
    Staged,
    /// The node holds a slot and is out of external load balancers.
    LeavingBalancer,
    /// The node is cordoned and its pods are evicted.
    Draining,
    /// The desired state is the reboot into the new version.
    Rebooting,
    /// The node is in another boot, and not Ready yet.
    Returning,
    /// The node runs the new version and is watched for the soak time.
    Monitoring,
    /// The attempt has failed: its desired state is withdrawn and the node is being released.
    Releasing,
    /// Step that the next version adds: the agent is asked to take note of the attempt.
    #[cfg(feature = "next")]
    Planning,
    /// A step of another version of the controller. What it asks for is not known, so the attempt ends.
    #[serde(other)]
    #[cfg_attr(feature = "crd", schemars(skip))]
    Unknown,
}

impl Step {
    /// All steps that this version knows.
    pub const ALL: [Self; 8] = [
        Self::Staging,
        Self::Staged,
        Self::LeavingBalancer,
        Self::Draining,
        Self::Rebooting,
        Self::Returning,
        Self::Monitoring,
        Self::Releasing,
    ];

    /// The step as one fixed word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Staging => "Staging",
            Self::Staged => "Staged",
            Self::LeavingBalancer => "LeavingBalancer",
            Self::Draining => "Draining",
            Self::Rebooting => "Rebooting",
            Self::Returning => "Returning",
            Self::Monitoring => "Monitoring",
            Self::Releasing => "Releasing",
            #[cfg(feature = "next")]
            Self::Planning => "Planning",
            Self::Unknown => "Unknown",
        }
    }
}

/// Attempt under way: its step and start. Deadlines are counted from `since`, so they survive restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Step: `Staging`, `Staged`, `LeavingBalancer`, `Draining`, `Rebooting`, `Returning`, `Monitoring` or `Releasing`.
    #[cfg_attr(feature = "crd", schemars(with = "StatusWord"))]
    pub step: Step,
    /// Time at which the step began.
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub from: Option<Version>,
    /// Time at which the attempt began.
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
    pub started: Timestamp,
    /// While `Releasing`: true if a permit was issued in this attempt, so that the host may still act on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permit_issued: bool,
    /// True once the soak was restarted, after another boot or a time in which the node was not Ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub soak_restarted: bool,
    /// True while the attempt holds a slot and may have claims on the node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disruptive: bool,
    /// While `Monitoring`: time from which the node has been watched; the soak itself may have been restarted since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<String>", extend("format" = "date-time")))]
    pub watched_since: Option<Timestamp>,
}

/// A pod to evict from the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// A pod that does not leave, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// Namespace and name of the pod.
    #[cfg_attr(feature = "crd", schemars(length(max = 320)))]
    pub pod: String,
    /// Namespace and name of the PodDisruptionBudget that refuses, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 320)))]
    pub budget: Option<String>,
    /// Answer of the API server.
    #[cfg_attr(feature = "crd", schemars(length(max = 512)))]
    pub message: String,
    /// Time from which it has not left.
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
    pub since: Timestamp,
}

/// An owner whose pods come to a cordoned node without tolerating the cordon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ReturnedOwner {
    /// UID of the owner.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub uid: String,
    /// Number of times that new pods of it were found on the node.
    pub times: i64,
}

/// State of the drain. Written when it changes, not on a timer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// Pods to evict, recorded before the first eviction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic")))]
    pub pods: Vec<DrainedPod>,
    /// Number of these pods that have left: counted while a budget blocks the drain, and when it ends.
    #[serde(default)]
    pub removed: i64,
    /// First few pods that do not leave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic")))]
    pub blockers: Vec<Blocker>,
    /// Owners (uid) of evicted pods that tolerate the cordon: what comes back is left to the reboot.
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
    /// True once the drain was restarted for a pod that was bound to the node while it was being cordoned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarted: bool,
    /// Time from which pods are deleted past their PodDisruptionBudgets, as `drain.atDeadline: Force` asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<String>", extend("format" = "date-time")))]
    pub forced_since: Option<Timestamp>,
}

/// Result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AttemptResult {
    /// Number of the attempt.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: i64,
    /// Version that ran before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
    pub started: Timestamp,
    /// Time at which it ended.
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
    pub ended: Timestamp,
}

/// The word in [`AttemptResult::reason`] for an attempt that did what it was made for.
pub const UPDATED: &str = "Updated";

/// A failure that counts against a version until it is resolved by `resume`.
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
    #[cfg_attr(feature = "crd", schemars(with = "String", extend("format" = "date-time")))]
    pub time: Timestamp,
    /// Value of the `resume` request that resolved it; absent while it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub resolved_by: Option<String>,
}

/// One-shot requests that were carried out, each with the value of its annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShadowRequests {
    /// `brupop.bottlerocket.aws/retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub retry: Option<String>,
    /// `brupop.bottlerocket.aws/release`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub release: Option<String>,
}

/// Record of a node's earlier attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Number of failed attempts since the last successful one.
    #[serde(default)]
    pub failures: i64,
    /// Result of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<AttemptResult>,
    /// Time before which no attempt starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(with = "Option<String>", extend("format" = "date-time")))]
    pub not_before: Option<Timestamp>,
    /// Owners (uid) of pods that were unhealthy before the node was last drained. Their pods are not waited for after
    /// that update, and are no evidence against the version on any node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 256), inner(length(max = 64)), extend("x-kubernetes-list-type" = "atomic")))]
    pub unhealthy_before: Vec<String>,
    /// One-shot requests that were carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ShadowRequests>,
    /// Failures that count against versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic")))]
    pub version_failures: Vec<VersionFailure>,
}

/// The controller's part of a shadow's status, without its conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ControllerReport {
    /// Attempt under way; absent when the node is idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// State of the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
    /// Record of earlier attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// Field that the next version adds.
    #[cfg(feature = "next")]
    #[serde(default = "crate::next::Novelty::absent", skip_serializing_if = "crate::next::Novelty::is_absent")]
    pub controller_novelty: crate::next::Novelty,
}

/// Agent's report about the host and controller's status of its update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketShadowStatus {
    /// Written by the agent through the web API.
    #[serde(flatten)]
    pub agent: AgentReport,
    /// Written by the controller.
    #[serde(flatten)]
    pub controller: ControllerReport,
    /// `HostReachable` is the agent's; `Cordoned`, `Drained`, `Blocked` and `Healthy` are the controller's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))
    )]
    pub conditions: Vec<Condition>,
}

/// The controller's half of a shadow's status: its report and the conditions of its types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControllerStatus {
    /// The facts.
    #[serde(flatten)]
    pub report: ControllerReport,
    /// Conditions of the controller's types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl BottlerocketShadowStatus {
    /// The agent's half.
    pub fn agent_half(&self) -> AgentStatus {
        AgentStatus {
            report: self.agent.clone(),
            conditions: self.conditions.iter().filter(|c| is_agent_condition(&c.type_)).cloned().collect(),
        }
    }

    /// The controller's half.
    pub fn controller_half(&self) -> ControllerStatus {
        ControllerStatus {
            report: self.controller.clone(),
            conditions: self.conditions.iter().filter(|c| is_controller_condition(&c.type_)).cloned().collect(),
        }
    }
}

/// Returns true for the types of conditions that the agent writes.
pub fn is_agent_condition(type_: &str) -> bool {
    AGENT_CONDITIONS.contains(&type_)
}

/// Returns true for the types of conditions that the controller writes. Those of another version's agent are not among them.
pub fn is_controller_condition(type_: &str) -> bool {
    CONTROLLER_CONDITIONS.contains(&type_)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_of_a_newer_controller_reads_as_unknown() {
        let spec: BottlerocketShadowSpec =
            serde_json::from_str(r#"{"state": "Hibernate", "attempt": 3, "novelty": true}"#).unwrap();
        assert_eq!(spec.state, HostState::Unknown);
        assert_eq!(spec.attempt, 3);
    }

    #[test]
    fn a_word_of_another_version_takes_nothing_away_that_stands_beside_it() {
        let status: BottlerocketShadowStatus = serde_json::from_str(
            r#"{
            "state": "Hibernating", "currentVersion": "1.20.0", "novelty": {"a": 1},
            "armed": {"attempt": 3, "bootId": "b", "version": "1.20.5", "phase": "Pondering", "nonce": "n"},
            "failure": {"attempt": 3, "step": "Hibernate", "reason": "EatenByMoths", "message": "m", "time": "2026-01-01T00:00:00Z"},
            "progress": {"step": "Pondering", "since": "2026-01-01T00:00:00Z", "attempt": 3, "bootId": "b", "version": "1.20.5",
                "started": "2026-01-01T00:00:00Z", "disruptive": true},
            "record": {"failures": 2}}"#,
        )
        .unwrap();
        assert_eq!(status.agent.state, Some(HostState::Unknown));
        assert_eq!(status.agent.current_version, Some(Version::new(1, 20, 0)));
        assert_eq!(status.agent.armed.as_ref().map(|a| (a.attempt, a.phase)), Some((3, ArmedPhase::Unknown)));
        let failure = status.agent.failure.as_ref().map(|f| (f.attempt, f.step, f.reason));
        assert_eq!(failure, Some((3, HostState::Unknown, FailureReason::Unknown)));
        let progress = status.controller.progress.as_ref().map(|p| (p.step, p.attempt, p.disruptive));
        assert_eq!(progress, Some((Step::Unknown, 3, true)));
        assert_eq!(status.controller.record.as_ref().map(|r| r.failures), Some(2));
        // What is written back in its place is what the schema accepts.
        let written = serde_json::to_value(&status).unwrap();
        assert_eq!((&written["state"], &written["failure"]["step"]), (&"Unknown".into(), &"Unknown".into()));
    }

    #[test]
    fn a_condition_of_a_type_that_nobody_knows_is_in_neither_half() {
        let status: BottlerocketShadowStatus = serde_json::from_str(
            r#"{"conditions": [{"type": "Novel", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}"#,
        )
        .unwrap();
        assert!(status.agent_half().conditions.is_empty() && status.controller_half().conditions.is_empty());
    }

    #[test]
    fn the_two_halves_of_a_status_share_nothing_and_lose_nothing() {
        let text = r#"{
            "state": "Idle", "observedGeneration": 4, "currentVersion": "1.20.0", "bootId": "b",
            "record": {"failures": 2},
            "conditions": [
                {"type": "HostReachable", "status": "True", "reason": "Answered", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Blocked", "status": "False", "reason": "None", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            ]}"#;
        let status: BottlerocketShadowStatus = serde_json::from_str(text).unwrap();
        let agent = serde_json::to_value(status.agent_half()).unwrap();
        let controller = serde_json::to_value(status.controller_half()).unwrap();
        assert_eq!(agent["conditions"][0]["type"], "HostReachable");
        assert_eq!(controller["conditions"][0]["type"], "Blocked");
        assert_eq!(agent["currentVersion"], "1.20.0");
        assert_eq!(controller["record"]["failures"], 2);
        assert!(agent.get("record").is_none() && controller.get("state").is_none());
    }
}
