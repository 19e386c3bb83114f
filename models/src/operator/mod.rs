//! `BottlerocketUpdateOperator`: the switch and the policy of the whole operator.

mod count;
mod policy;
mod selector;

use jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::reason::FailureReason;
use crate::schema::VersionText;

pub use count::CountOrPercent;
pub use policy::{
    AfterUpdatePolicy, AtDeadline, AutoscalerPolicy, BeforeUpdatePolicy, Blackout, CanaryStep, CordonedNodes,
    Deadlines, DrainPolicy, Expression, FailurePolicy, HealthPolicy, LoadBalancerPolicy, MaintenanceWindow, NodeGroup,
    PodsAtRisk, PreStagePolicy, PrometheusPolicy, SchedulePolicy, StepApproval, StrategyPolicy, VersionPolicy,
};
pub use selector::{LabelOperator, LabelRequirement, NodeSelector};

/// `Enabled`: whether new updates start.
pub const ENABLED: &str = "Enabled";
/// `WindowOpen`: whether the time is right for taking nodes out of service.
pub const WINDOW_OPEN: &str = "WindowOpen";
/// `Progressing`: whether any update is under way.
pub const PROGRESSING: &str = "Progressing";
/// `Frozen`: whether failures have stopped the rollout.
pub const FROZEN: &str = "Frozen";
/// `Degraded`: whether the policy cannot be obeyed as it stands, or the operator cannot do its work.
pub const DEGRADED: &str = "Degraded";

/// `Blocked`: whether an expression that is the same for all nodes keeps them waiting.
pub const BLOCKED: &str = "Blocked";

/// The largest `failurePolicy.maxFailures`. So many failed nodes are recorded for each version: nodes that were replaced have to
/// count, and the status has to stay small.
pub const MAX_FAILURES: u32 = 64;

/// The switch and the policy of the operator. Without this resource, nothing new starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "brupop.bottlerocket.aws",
    version = "v1",
    kind = "BottlerocketUpdateOperator",
    namespaced,
    shortname = "bruo",
    category = "brupop",
    status = "BottlerocketUpdateOperatorStatus",
    derive = "PartialEq",
    doc = "The switch and the policy of the Bottlerocket update operator. The one named default in the operator's own namespace counts.",
    validation = Rule::new("self.metadata.name == 'default'").message("there is one operator's resource, and it is named default"),
    printcolumn(name = "Enabled", type_ = "boolean", json_path = ".spec.enabled", description = "Whether new updates start"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.counts.total", description = "Nodes under the operator"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.counts.current", description = "Nodes that need no update"),
    printcolumn(name = "Updating", type_ = "integer", json_path = ".status.counts.updating", description = "Nodes on their way"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.counts.failed", description = "Nodes whose last attempt failed"),
    printcolumn(name = "Frozen", type_ = "string", json_path = ".status.conditions[?(@.type=='Frozen')].status", description = "Whether failures stopped the rollout"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketUpdateOperatorSpec {
    /// Whether new updates start. Running ones end in any case. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Which versions nodes become.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionPolicy>,
    /// How many nodes may be out of service because of updates, as a count or a percentage; a node under watch after its
    /// update counts. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<CountOrPercent>,
    /// When nodes may be taken out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<SchedulePolicy>,
    /// How a version spreads over the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<StrategyPolicy>,
    /// How nodes are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainPolicy>,
    /// What external load balancers are told. Default: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerPolicy>,
    /// What cluster autoscalers are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaler: Option<AutoscalerPolicy>,
    /// How the health of nodes counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthPolicy>,
    /// Where the expressions of `health` are asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusPolicy>,
    /// What failures lead to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// How long the other steps may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
    /// Nodes with a policy of their own. A node belongs to the first group that matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_groups: Vec<NodeGroup>,
    /// Whether nodes that run Bottlerocket get the label `bottlerocket.aws/updater-interface-version=2.0.0`, which puts them
    /// under the operator, by themselves. A node on which the label has another value is left alone. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_nodes: Option<bool>,
}

/// How many nodes are where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Nodes under the operator.
    pub total: i64,
    /// Nodes that need no update.
    pub current: i64,
    /// Nodes with a staged image that wait.
    pub staged: i64,
    /// Nodes on their way.
    pub updating: i64,
    /// Nodes that something of their own blocks.
    pub blocked: i64,
    /// Nodes whose last attempt failed.
    pub failed: i64,
}

/// A node that is, or is about to be, disrupted by us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// The Node's uid, which is what counts.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// The Node's name, for people.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Since when.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
}

/// Why nodes wait, with a count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingCount {
    /// The reason as one fixed word.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// How many nodes wait for it.
    pub nodes: i64,
}

/// Why a version is not taken any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quarantined {
    /// How the last node that counted failed on it.
    pub reason: FailureReason,
    /// Nodes that failed on it, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<String>,
    /// Since when.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub since: Timestamp,
}

/// What is known of a version for one kind of host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KnownVersion {
    /// The version.
    #[schemars(with = "VersionText")]
    pub version: Version,
    /// The variant, such as `aws-k8s-1.37`.
    #[schemars(length(max = 64))]
    pub variant: String,
    /// The architecture, such as `x86_64`.
    #[schemars(length(max = 32))]
    pub arch: String,
    /// When several nodes (or the only one of its kind) were first offered it.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub first_seen: Timestamp,
    /// The nodes that have failed on it and that nobody has resumed since, also where they are gone; the first 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_FAILURES), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub failed: Vec<String>,
    /// Why it is not taken any more; absent while it is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<Quarantined>,
}

/// A version on its way through the nodes of one variant and architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActiveRollout {
    /// The version that nodes become.
    #[schemars(with = "VersionText")]
    pub version: Version,
    /// The variant of these nodes, such as `aws-k8s-1.37`.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub variant: String,
    /// The architecture of these nodes, such as `x86_64`.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub arch: String,
    /// When it began.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub started: Timestamp,
    /// How many canary steps are passed. It never falls within a rollout.
    pub steps_passed: i64,
    /// Since when all nodes of the next step have been done; absent while they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub step_done: Option<Timestamp>,
    /// Whether the next step has a person's approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
    /// When nodes of its variant and architecture went on to another version. If they come back to this one, that is a new
    /// rollout, which passes the canary steps again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub ended: Option<Timestamp>,
}

/// One-shot requests that were carried out, each with the value of its annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRequests {
    /// `brupop.bottlerocket.aws/resume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub resume: Option<String>,
    /// `brupop.bottlerocket.aws/approve-step`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub approve_step: Option<String>,
    /// `brupop.bottlerocket.aws/rotate-certificates`, once the new authority is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub rotate_certificates: Option<String>,
    /// `brupop.bottlerocket.aws/rotate-signing-key`, once the new key is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub rotate_signing_key: Option<String>,
}

/// What the operator is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketUpdateOperatorStatus {
    /// The generation that the rest of the status speaks about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many nodes are where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
    /// The nodes that are out of service because of us. Whoever writes a node in here, with the resourceVersion it read,
    /// has the budget for it, also when two controllers are alive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000), extend("x-kubernetes-list-type" = "atomic"))]
    pub slots: Vec<Slot>,
    /// The commonest reasons why nodes wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub waiting: Vec<WaitingCount>,
    /// What is known of the versions that hosts offer or that failed, for each variant and architecture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub versions: Vec<KnownVersion>,
    /// The rollouts under way, one for each variant, architecture and version that nodes become, and the last ones before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub active_rollouts: Vec<ActiveRollout>,
    /// The policy that every node has followed, by the name of its revision. It is `updateRevision` once all nodes are what
    /// the present policy makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub current_revision: Option<String>,
    /// The policy that nodes follow now, by the name of its revision. It changes with what nodes become (`spec.version`:
    /// target, exclude, ignoreWaves) and with nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub update_revision: Option<String>,
    /// When the next window opens; absent while one is open, and without windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub next_window: Option<Timestamp>,
    /// One-shot requests that were carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<OperatorRequests>,
    /// The last `spec` that could be obeyed, as JSON. It is the policy in force while the one in `spec` cannot be obeyed, also for
    /// the next leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub policy_in_force: Option<String>,
    /// `Enabled`, `WindowOpen`, `Progressing`, `Frozen`, `Degraded`, and `Blocked` once an expression that is the same for all
    /// nodes has kept them waiting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
