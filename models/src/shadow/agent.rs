//! The agent's part of a shadow's status.

use jiff::Timestamp;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::reason::FailureReason;
#[cfg(feature = "crd")]
use crate::schema::{JsonSchema, Moment, StatusWord, VersionText};

/// A state that a host is to reach, or has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
// In a schema an optional enumeration's own description would hide that of the field.
#[cfg_attr(feature = "crd", schemars(description = ""))]
pub enum HostState {
    /// No update is requested, and no image is armed.
    #[default]
    Idle,
    /// The image is downloaded to the inactive partition set and not armed.
    StagedUpdate,
    /// The host runs the image.
    RebootedIntoUpdate,
    /// The update is rehearsed in a drill: the agent has verified a rehearsal permit. Nothing is armed, and the host is not
    /// rebooted. A state of its own, so that an agent that does not know drills does nothing for it.
    RehearsedUpdate,
    /// A state that this version does not know. Nothing is done for it.
    #[serde(other)]
    #[cfg_attr(feature = "crd", schemars(skip))]
    Unknown,
}

/// Updates that a host offers.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OfferedUpdates {
    /// Version that the host would take; absent when there is none.
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub chosen_version: Option<Version>,
    /// Versions that the host may take now, newest first, with the running and older ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(with = "Vec<VersionText>", length(max = 64), extend("x-kubernetes-list-type" = "atomic")))]
    pub available_versions: Vec<Version>,
    /// Time of the host's last successful check for updates. Written only together with another change.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub last_refresh: Option<Timestamp>,
    /// Error of the host's last check for updates; absent if it succeeded.
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub refresh_failure: Option<String>,
}

/// Phase of arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ArmedPhase {
    /// The agent is about to arm the host, and requests a permit.
    Arming,
    /// The image is armed: any reboot takes it.
    Activated,
    /// A phase of another version of the agent.
    #[serde(other)]
    Unknown,
}

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

/// Agent's request for a rehearsal permit in a drill, and its outcome. It is no record of an armed image: in a drill none is
/// armed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Rehearsal {
    /// Number of the attempt.
    pub attempt: i64,
    /// Boot in which the permit is requested.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: String,
    /// Version that the drill is for.
    #[cfg_attr(feature = "crd", schemars(with = "VersionText"))]
    pub version: Version,
    /// Nonce that a rehearsal permit has to answer.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub nonce: String,
    /// True once the agent has verified the permit for this nonce.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verified: bool,
}

/// Failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Number of the attempt. While it is that of `spec`, nothing but `Idle` is carried out.
    pub attempt: i64,
    /// Desired state when it failed: `Idle`, `StagedUpdate`, `RebootedIntoUpdate` or `RehearsedUpdate`.
    #[cfg_attr(feature = "crd", schemars(with = "StatusWord"))]
    pub step: HostState,
    /// Reason, as one fixed word.
    pub reason: FailureReason,
    /// Explanation for users.
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub message: String,
    /// Time of the failure.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub time: Timestamp,
}

/// Settings of the host before the operator changed them, those that it applied, and a lock that prevents it. Written
/// before a change, so that it can be undone after a crash.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FoundSettings {
    /// `settings.updates.version-lock` before it was changed; absent where it was not set.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub version_lock: Option<String>,
    /// `settings.updates.ignore-waves` before it was changed; absent where it was not set.
    pub ignore_waves: Option<bool>,
    /// Settings that were applied or are about to be; absent when none has to be put back.
    pub applied: Option<AppliedSettings>,
    /// Version lock that another client set and that conflicts with the desired one. It is left alone.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub conflicting_lock: Option<String>,
}

/// Settings of the host that the operator applied, or is about to apply.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AppliedSettings {
    /// `settings.updates.version-lock`; absent where it was not applied.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub version_lock: Option<String>,
    /// Applied lock that `versionLock` replaces, until the host has been seen to hold the new one.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub replaces: Option<String>,
    /// `settings.updates.ignore-waves`; absent where it was not applied.
    pub ignore_waves: Option<bool>,
}

/// The agent status of a shadow: the agent's report, and the conditions of its own types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The facts.
    #[serde(flatten)]
    pub report: AgentReport,
    /// Conditions of the types that are the agent's own, such as `HostReachable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Agent's report about its host. It builds all of it each time, starting from the stored one.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct AgentReport {
    /// State reached, `Idle`, `StagedUpdate`, `RebootedIntoUpdate` or `RehearsedUpdate`, computed from the host each time: it
    /// may go backwards.
    #[cfg_attr(feature = "crd", schemars(with = "Option<StatusWord>"))]
    pub state: Option<HostState>,
    /// Generation of the shadow that this report answers.
    pub observed_generation: Option<i64>,
    /// Running version.
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub current_version: Option<Version>,
    /// Running variant, such as `aws-k8s-1.37`.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub variant: Option<String>,
    /// Architecture, such as `x86_64`.
    #[cfg_attr(feature = "crd", schemars(length(max = 32)))]
    pub arch: Option<String>,
    /// ID of the running boot, as the kernel names it.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: Option<String>,
    /// Updates that the host offers; absent until it has checked in this boot.
    pub updates: Option<OfferedUpdates>,
    /// Image that the agent is about to arm or has armed.
    pub armed: Option<Armed>,
    /// Request for a rehearsal permit; absent outside a drill.
    pub rehearsal: Option<Rehearsal>,
    /// Failure of the last attempt.
    pub failure: Option<Failure>,
    /// Settings of the host before the operator changed them, and those that it applied.
    pub host: Option<FoundSettings>,
}
