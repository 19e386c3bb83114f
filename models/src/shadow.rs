//! `BottlerocketShadow`: one node's desired and reported state, which the controller and the agent share.

mod agent;
mod attempt;
mod before;
mod controller;
mod drill;
mod lenient;
mod result;

use semver::Version;
use serde::{Deserialize, Serialize};

#[cfg(feature = "crd")]
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
#[cfg(feature = "crd")]
use kube::CustomResource;
#[cfg(feature = "crd")]
use schemars::JsonSchema;

use crate::condition::Condition;
use crate::duration::Duration;
use crate::reason::FailureReason;
#[cfg(feature = "crd")]
use crate::schema::VersionText;

pub use agent::*;
pub use attempt::*;
pub use before::*;
pub use controller::*;
pub use drill::*;
pub use result::*;

pub use crate::reason::{DRILL_PASSED, EVICTIONS_REFUSED, UPDATED};

/// Types of the conditions that the agent writes.
pub const AGENT_CONDITIONS: &[&str] = &[HOST_REACHABLE];

/// Types of the conditions that the controller writes. A type that is in neither list is of another version.
pub const CONTROLLER_CONDITIONS: &[&str] = &[CORDONED, DRAINED, BLOCKED, HEALTHY];

/// Validation rule of `spec`. It holds for objects that were stored without an attempt too: a write that sets none would
/// erase what else is in them.
pub const ATTEMPT_RULE: &str = "has(oldSelf.attempt) ? self.attempt >= oldSelf.attempt : has(self.attempt)";

/// `HostReachable`: the agent reached the host API when it reported last (agent); unknown while the agent is not heard
/// (controller).
pub const HOST_REACHABLE: &str = "HostReachable";
/// Reason of [`HOST_REACHABLE`]: the host answers, no image without a record is armed on it, and there is no other problem.
pub const HOST_ANSWERED: &str = "Answered";
/// Reason of [`HOST_REACHABLE`]: an image is armed on the host that the agent has no record of.
pub const HOST_ARMED_BY_OTHER: &str = FailureReason::HostArmedByOther.as_str();
/// Reason of [`HOST_REACHABLE`]: a command has been running on the host for long.
pub const HOST_BUSY: &str = "HostBusy";
/// Reason of [`HOST_REACHABLE`]: the agent does not know the desired state.
pub const UNSUPPORTED_STATE: &str = FailureReason::UnsupportedState.as_str();
/// `Cordoned`: the operator has cordoned the node (controller).
pub const CORDONED: &str = "Cordoned";
/// `Drained`: every pod to evict has left (controller).
pub const DRAINED: &str = "Drained";
/// `Blocked`: a reason of the node's own keeps it from its next step (controller). In a drain, the transition time
/// moves when fewer pods are left than ever before.
pub const BLOCKED: &str = "Blocked";
/// `Healthy`: the node is healthy after its update (controller).
pub const HEALTHY: &str = "Healthy";

/// Desired settings of the host. A permit signs them; a change of settings is signed by itself too
/// ([`crate::permit::SettingsClaims`]), since a setting is changed long before any permit.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HostPolicy {
    /// Exact version for the host's setting `version-lock`; absent: the setting is left alone.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub version_lock: Option<String>,
    /// If true, the host does not wait for its wave of a release; absent or false: the setting is left alone.
    pub ignore_waves: Option<bool>,
    /// Interval at which an idle host checks for updates.
    pub refresh_interval: Option<Duration>,
    /// Boot in which an armed image that the agent has no record of may be disarmed, as a user's `retry` requests; absent:
    /// it is left alone.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub disarm_in_boot: Option<String>,
    /// Controller's signature over `versionLock` and `ignoreWaves` for this node, a JWS in compact form: without it no
    /// setting is changed. Absent where neither is requested.
    #[cfg_attr(feature = "crd", schemars(length(max = 1024)))]
    pub signature: Option<String>,
}

impl HostPolicy {
    /// Returns true if it requests a change of the host's settings, so that it has to be signed.
    pub fn asks_settings(&self) -> bool {
        self.version_lock.is_some() || self.ignore_waves == Some(true)
    }

    /// Returns true if it requests the same as `other`. Two signatures of one statement differ, and that is no difference.
    pub fn asks_as(&self, other: &Self) -> bool {
        Self { signature: None, ..self.clone() } == Self { signature: None, ..other.clone() }
    }
}

/// Reboot permit or rehearsal permit: the controller's signed answer to an agent's nonce ([`crate::permit`]).
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
#[serde_with::skip_serializing_none]
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
            description = "Reason why the node waits"
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
            name = "State",
            type_ = "string",
            json_path = ".status.state",
            description = "State that the host has reached",
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
        {"rule": ATTEMPT_RULE, "message": "attempt never falls and is never absent"},
        {"rule": "self.state == 'Idle' || (has(self.version) && has(self.bootId))", "message": "a desired state other than Idle names its version and its boot"},
        {"rule": "self.state in ['RebootedIntoUpdate', 'RehearsedUpdate'] || !has(self.permit)", "message": "a permit belongs to the desired state RebootedIntoUpdate or RehearsedUpdate"},
    ]))
)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketShadowSpec {
    /// State that the host is to reach.
    #[serde(default)]
    pub state: HostState,
    /// Target version; absent when idle.
    #[cfg_attr(feature = "crd", schemars(with = "Option<VersionText>"))]
    pub version: Option<Version>,
    /// Number of the attempt. It rises with each new one and never falls.
    #[cfg_attr(feature = "crd", schemars(range(min = 0, max = MOST_ATTEMPTS)))]
    pub attempt: i64,
    /// Boot that the desired state is for: the host is armed and rebooted only in that boot.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub boot_id: Option<String>,
    /// Desired settings of the host.
    pub host: Option<HostPolicy>,
    /// Permit for the agent's nonce: of the reboot, or, under `RehearsedUpdate`, a rehearsal permit, by which no host reboots.
    pub permit: Option<Permit>,
}

/// Agent's report about the host and controller's status of its update.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketShadowStatus {
    /// Written by the agent through the web API.
    #[serde(flatten, deserialize_with = "lenient::StoredReport::deserialize")]
    pub agent: AgentReport,
    /// Written by the controller.
    #[serde(flatten)]
    pub controller: ControllerReport,
    /// `HostReachable` is the agent's, and the controller's while the agent is not heard; `Cordoned`, `Drained`, `Blocked` and
    /// `Healthy` are the controller's. One that cannot be read is left out: its owner writes it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "lenient::elements")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))
    )]
    pub conditions: Vec<Condition>,
}

/// The controller status of a shadow: the controller's report, and the conditions of its own types.
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
    /// Returns the agent status.
    pub fn agent_status(&self) -> AgentStatus {
        AgentStatus {
            report: self.agent.clone(),
            conditions: self.conditions.iter().filter(|c| is_agent_condition(&c.type_)).cloned().collect(),
        }
    }

    /// Returns the controller status.
    pub fn controller_status(&self) -> ControllerStatus {
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

#[cfg(feature = "crd")]
impl BottlerocketShadow {
    /// Returns a new shadow of a node, which goes with the Node.
    pub fn of_node(namespace: &str, node: &str, node_uid: &str, host: Option<HostPolicy>) -> Self {
        Self {
            metadata: ObjectMeta {
                name: Some(crate::names::shadow_name(node)),
                namespace: Some(namespace.to_owned()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: node.to_owned(),
                    uid: node_uid.to_owned(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: BottlerocketShadowSpec { host, ..BottlerocketShadowSpec::default() },
            status: None,
        }
    }
}

#[cfg(test)]
mod tests;
