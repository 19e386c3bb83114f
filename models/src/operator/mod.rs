//! `BottlerocketUpdateOperator`: the switch and the policy of the whole operator.

mod bounds;
mod count;
mod credentials;
mod health;
mod hook;
mod ledger;
mod notices;
mod policy;
mod rollout;
mod selector;

use std::borrow::Cow;

use jiff::Timestamp;
use kube::CustomResource;
use schemars::JsonSchema;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::duration::Duration;
use crate::reason::FailureReason;
use crate::schema::{Moment, VersionText};

pub use bounds::{BOUNDS, Bound, OutOfBounds};
pub use count::CountOrPercent;
pub use credentials::{url_without_user_information, without_credentials, without_user_information};
pub use health::{AfterUpdatePolicy, BeforeUpdatePolicy, Expression, HealthPolicy, ObjectCheck, PrometheusPolicy};
pub use hook::{Hook, HookJob, HookWait, OnTimeout};
pub use ledger::{
    BrakeLimit, LEDGER_NODES, LedgerNode, NOT_READY, PROVIDER_ID_LENGTH, RolloutLedger, SlotUpdate, UNDER_PRESSURE,
};
pub use notices::{
    CAUSE_LENGTH, MOST_NODES, MOST_PENDING, Notice, NoticeEvent, NoticeFormat, NoticeReceiver, NoticesPolicy,
    NoticesStatus,
};
pub use policy::*;
pub use rollout::{ActiveRollout, CompletionEstimate, RecordedRevision, RolloutPhase, RolloutRecord};
pub use selector::{LabelOperator, LabelRequirement, NodeSelector};

/// `Enabled`: updates may start.
pub const ENABLED: &str = "Enabled";
/// `WindowOpen`: the schedule allows nodes to be taken out of service now.
pub const WINDOW_OPEN: &str = "WindowOpen";
/// `Progressing`: an update is under way.
pub const PROGRESSING: &str = "Progressing";
/// `Frozen`: failures have stopped the rollout.
pub const FROZEN: &str = "Frozen";
/// Reason of the condition `Frozen` while failed versions are held for their own nodes alone, as a user has requested.
pub const CONTAINED: &str = "Contained";
/// Reason of the conditions `Frozen` and `Braked` after a `resume` has ended them, until they hold again.
pub const RESUMED: &str = "Resumed";
/// `Braked`: updates of a rollout have ended one after the other without a proof.
pub const BRAKED: &str = "Braked";
/// `Degraded`: the policy is invalid, or the operator cannot work.
pub const DEGRADED: &str = "Degraded";

/// `StorageMigrated`: every shadow is stored in the storage version of its definition.
pub const STORAGE_MIGRATED: &str = "StorageMigrated";

/// `HistoryRecorded`: the history of rollouts is written.
pub const HISTORY_RECORDED: &str = "HistoryRecorded";

/// `NoticesSent`: notices reach their receivers.
pub const NOTICES_SENT: &str = "NoticesSent";

/// `Blocked`: an expression that is the same for all nodes, or trouble of most nodes at once, keeps them waiting.
pub const BLOCKED: &str = "Blocked";

/// Switch and policy of the Bottlerocket update operator. Without this resource no update starts.
#[serde_with::skip_serializing_none]
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
    doc = "Switch and policy of the Bottlerocket update operator. Only the one named default in the operator's namespace is used.",
    validation = Rule::new("self.metadata.name == 'default'").message("there is one operator's resource, and it is named default"),
    printcolumn(name = "Enabled", type_ = "boolean", json_path = ".spec.enabled", description = "True while updates may start"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.counts.total", description = "Nodes that the operator updates"),
    printcolumn(name = "Current", type_ = "integer", json_path = ".status.counts.current", description = "Nodes that need no update"),
    printcolumn(name = "Updating", type_ = "integer", json_path = ".status.counts.updating", description = "Nodes whose update is under way"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.counts.failed", description = "Nodes whose last attempt failed and is to be made again"),
    printcolumn(name = "Frozen", type_ = "string", json_path = ".status.conditions[?(@.type=='Frozen')].status", description = "True while failures have stopped the rollout"),
    printcolumn(name = "Braked", type_ = "string", json_path = ".status.conditions[?(@.type=='Braked')].status", description = "True while updates without a proof have braked a rollout"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketUpdateOperatorSpec {
    /// If false, no update starts. Updates that have started are finished. Default false.
    #[schemars(extend("default" = false))]
    pub enabled: Option<bool>,
    /// Versions that nodes update to.
    pub version: Option<VersionPolicy>,
    /// Maximum number of nodes that may be out of service because of updates, as a count or a percentage; a node counts
    /// until it has passed the checks after its update. A greater number than 1,000 has the effect of 1,000. Default 1.
    pub max_unavailable: Option<CountOrPercent>,
    /// Time for which a node that is out of service without the operator (cordoned by a user, or not Ready) counts against
    /// `maxUnavailable`, that of its group, and its zone. Default 1h.
    pub ignore_unavailable_after: Option<Duration>,
    /// Times at which nodes may be taken out of service.
    pub schedule: Option<SchedulePolicy>,
    /// Order and pace at which a version reaches the nodes.
    pub strategy: Option<StrategyPolicy>,
    /// Settings of the drain.
    pub drain: Option<DrainPolicy>,
    /// Handling of external load balancers. Default: none.
    pub load_balancer: Option<LoadBalancerPolicy>,
    /// Handling of cluster autoscalers.
    pub autoscaler: Option<AutoscalerPolicy>,
    /// Handling of the groups of machines that a cloud keeps at a size. Default: none.
    pub autoscaling: Option<AutoscalingPolicy>,
    /// Other controllers that are asked before a node is drained, and after it is back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub hooks: Vec<Hook>,
    /// Health checks of nodes.
    pub health: Option<HealthPolicy>,
    /// Prometheus server that evaluates the expressions of `health`.
    pub prometheus: Option<PrometheusPolicy>,
    /// Time within which nodes have to run a new version.
    pub freshness: Option<FreshnessPolicy>,
    /// Notices about rollouts to other systems. Default: none are sent.
    pub notices: Option<NoticesPolicy>,
    /// Consequences of failures.
    pub failure_policy: Option<FailurePolicy>,
    /// Maximum times of the other steps.
    pub deadlines: Option<Deadlines>,
    /// Groups of nodes with a policy of their own. A node belongs to the first group that matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_groups: Vec<NodeGroup>,
    /// If true, nodes that run Bottlerocket are labelled `bottlerocket.aws/updater-interface-version=2.0.0`, which
    /// selects them for updates. A node on which the label has another value is left alone. Default false.
    pub label_nodes: Option<bool>,
    /// Migration of the shadows that are stored in another version than the storage version of their definition: `Auto`
    /// migrates them, `Manual` waits for the annotation `brupop.bottlerocket.aws/migrate-storage`. Default Auto.
    pub storage_migration: Option<StorageMigration>,
    /// Number of earlier revisions of the policy to keep, besides those that the status or the label of a shadow names.
    /// With 0 only these are kept. Default 10.
    #[schemars(range(min = 0, max = 100), extend("format" = "int32"))]
    pub revision_history_limit: Option<u32>,
    /// Limits of the history of rollouts.
    pub rollout_history: Option<RolloutHistoryPolicy>,
}

impl BottlerocketUpdateOperatorSpec {
    /// Returns how EC2 Auto Scaling groups are kept from replacing nodes, where the policy says so.
    pub fn aws_mode(&self) -> Option<AwsMode> {
        Some(self.autoscaling.as_ref()?.aws.as_ref()?.mode)
    }

    /// Returns it with each duration that is outside its bounds at the nearest one, and these durations. The schema refuses
    /// them; those that were stored under an earlier one are read.
    pub fn within_bounds(&self) -> (Cow<'_, Self>, Vec<OutOfBounds>) {
        let Ok(mut spec) = serde_json::to_value(self) else { return (Cow::Borrowed(self), Vec::new()) };
        let found = bounds::apply(&mut spec);
        match serde_json::from_value(spec) {
            Ok(spec) if !found.is_empty() => (Cow::Owned(spec), found),
            _ => (Cow::Borrowed(self), found),
        }
    }
}

/// Number of nodes by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Nodes that the operator updates.
    pub total: i64,
    /// Nodes that need no update.
    pub current: i64,
    /// Nodes with a staged image that wait.
    pub staged: i64,
    /// Nodes whose update is under way.
    pub updating: i64,
    /// Nodes that wait for a reason of their own.
    pub blocked: i64,
    /// Nodes whose last attempt failed for a reason that counts against the node, and whose update is still wanted.
    pub failed: i64,
}

/// Number of nodes that may be out of service at a time, whatever `maxUnavailable` says: all slots are written as one object, of which etcd
/// takes 1.5 MiB. A slot has 0.6 KiB with names as clouds give them, and 1.4 KiB at most.
pub const MAX_SLOTS: usize = 1_000;

/// A node that is, or is about to be, taken out of service by the operator.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// UID of the Node.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Name of the Node, for information.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Time at which the slot was taken.
    #[schemars(with = "Moment")]
    pub since: Timestamp,
    /// Update that it is for; absent in a drill.
    pub update: Option<SlotUpdate>,
}

impl Slot {
    /// Returns whether it is for this attempt of a Node. One of a drill, or that an earlier version has written, names no attempt.
    pub fn is_for(&self, uid: &str, attempt: Option<i64>) -> bool {
        self.uid == uid && self.update.as_ref().is_none_or(|update| Some(update.attempt) == attempt)
    }
}

/// A reason for which nodes wait, with their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingCount {
    /// Reason, as one fixed word.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Number of nodes that wait for it.
    pub nodes: i64,
}

/// Quarantine of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quarantined {
    /// Failure of the last node that counted.
    pub reason: FailureReason,
    /// Nodes that failed on it, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<String>,
    /// Time at which the version was quarantined.
    #[schemars(with = "Moment")]
    pub since: Timestamp,
    /// True if a user has requested that other variants and architectures go on (`brupop.bottlerocket.aws/continue-others`, which has the
    /// time of this quarantine or a later one): the version is
    /// held for its own nodes, and does not freeze the rollout.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contained: bool,
}

/// Returns the time of the last quarantine that freezes the rollout, which a `continue-others` names.
pub fn frozen_since(versions: &[KnownVersion]) -> Option<Timestamp> {
    let freezing = versions.iter().filter_map(|known| known.quarantined.as_ref()).filter(|found| !found.contained);
    freezing.map(|quarantined| quarantined.since).max()
}

/// A PodDisruptionBudget whose pods stayed when they were asked first and alone. While it is not asked again, no drain begins on a node
/// with such pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetBackOff {
    /// Namespace and name of the PodDisruptionBudget.
    #[schemars(length(max = 317))]
    pub budget: String,
    /// UID and generation of the budget. With others, it is asked again.
    #[schemars(length(max = 128))]
    pub revision: String,
    /// Number of times in a row that its pods stayed.
    pub times: i64,
    /// Last time at which they had stayed.
    #[schemars(with = "Moment")]
    pub last: Timestamp,
    /// Time from which it is asked again.
    #[schemars(with = "Moment")]
    pub until: Timestamp,
}

/// Facts about a version for one variant and architecture.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KnownVersion {
    /// Version.
    #[schemars(with = "VersionText")]
    pub version: Version,
    /// Variant, such as `aws-k8s-1.37`.
    #[schemars(length(max = 64))]
    pub variant: String,
    /// Architecture, such as `x86_64`.
    #[schemars(length(max = 32))]
    pub arch: String,
    /// Time at which several nodes (or the only one of its kind) were first offered it.
    #[schemars(with = "Moment")]
    pub first_seen: Timestamp,
    /// Names of the nodes that have failed on it since the last `resume`, also of nodes that no longer exist; the first
    /// 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_FAILURES), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub failed: Vec<String>,
    /// Quarantine of the version; absent while there is none.
    pub quarantined: Option<Quarantined>,
}

/// `spec.version.urgent` as it is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UrgencyRecord {
    /// First urgent version.
    #[schemars(with = "VersionText")]
    pub from: Version,
    /// Reason that the policy gives.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Time at which the operator first read it with these values.
    #[schemars(with = "Moment")]
    pub since: Timestamp,
    /// Time from which windows and soaks apply again, at most 14 days after `since`.
    #[schemars(with = "Moment")]
    pub until: Timestamp,
}

impl UrgencyRecord {
    /// Returns the predicate of a sentence about an urgent rollout or version, for users.
    pub fn effect(&self) -> String {
        let Self { from, reason, until, .. } = self;
        format!(
            "does not wait for windows and soaks of canary steps until {until} (spec.version.urgent from {from}): {reason}"
        )
    }
}

/// Age of what the nodes run. A node is behind while it runs an earlier version than one that is offered to nodes of its
/// variant and architecture and that policy lets it take.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Freshness {
    /// Number of nodes that are not behind, or not for longer than `spec.freshness.target`; absent without a target.
    pub nodes_within_target: Option<i64>,
    /// Number of nodes that are behind.
    pub nodes_behind: i64,
    /// Node that has been behind for the longest time.
    #[schemars(length(max = 253))]
    pub oldest_node: Option<String>,
    /// Time since which it has been behind: the first version that it lacks was first seen then.
    #[schemars(with = "Option<Moment>")]
    pub oldest_since: Option<Timestamp>,
}

/// One-shot requests that were carried out, each with the value of its annotation: of one of more than 64 characters the first 55,
/// `~` and a hash.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRequests {
    /// `brupop.bottlerocket.aws/resume`.
    #[schemars(length(max = 64))]
    pub resume: Option<String>,
    /// `brupop.bottlerocket.aws/continue-others`.
    #[schemars(length(max = 64))]
    pub continue_others: Option<String>,
    /// `brupop.bottlerocket.aws/approve-step`.
    #[schemars(length(max = 64))]
    pub approve_step: Option<String>,
    /// `brupop.bottlerocket.aws/rotate-certificates`, once the new authority is made.
    #[schemars(length(max = 64))]
    pub rotate_certificates: Option<String>,
    /// `brupop.bottlerocket.aws/rotate-signing-key`, once the new key is made.
    #[schemars(length(max = 64))]
    pub rotate_signing_key: Option<String>,
    /// `brupop.bottlerocket.aws/migrate-storage`, once all shadows are migrated.
    #[schemars(length(max = 64))]
    pub migrate_storage: Option<String>,
    /// `brupop.bottlerocket.aws/test-notices`, once the notice is recorded.
    #[schemars(length(max = 64))]
    pub test_notices: Option<String>,
}

/// Definition of the shadows under which a storage migration was completed.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletedMigration {
    /// UID of the definition.
    #[schemars(length(max = 64))]
    pub uid: String,
    /// Generation of the definition.
    pub generation: i64,
    /// Storage version of the definition.
    #[schemars(length(max = 63))]
    pub storage_version: String,
    /// Hash of the storage version, as the API server lists it; absent if it lists none.
    #[schemars(length(max = 64))]
    pub storage_version_hash: Option<String>,
    /// Time at which it was completed.
    #[schemars(with = "Moment")]
    pub time: Timestamp,
}

/// A time in which many nodes had fallen ill at once, nodes included that were not being updated: not Ready, or under pressure. It
/// counts against no version, and deadlines of attempts do not run in it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnwellSpan {
    /// Time at which it was observed.
    #[schemars(with = "Moment")]
    pub since: Timestamp,
    /// Time at which it was over; absent until then.
    #[schemars(with = "Option<Moment>")]
    pub until: Option<Timestamp>,
    /// Time at which the drain of the updated node began: other nodes are compared since then.
    #[schemars(with = "Moment")]
    pub compared_since: Timestamp,
    /// Number of nodes that had fallen ill when it was observed.
    pub ill: i64,
    /// Number of nodes that were compared.
    pub compared: i64,
    /// Nodes that had fallen ill, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<String>,
}

/// Observed state of the operator.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BottlerocketUpdateOperatorStatus {
    /// Generation that the rest of the status refers to.
    pub observed_generation: Option<i64>,
    /// Number of nodes by state.
    pub counts: Option<Counts>,
    /// Nodes that are, or are about to be, taken out of service by the operator. Each write of this list carries the
    /// resourceVersion that was read, so two controllers cannot use the same slot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000), extend("x-kubernetes-list-type" = "atomic"))]
    pub slots: Vec<Slot>,
    /// Most frequent reasons for which nodes wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub waiting: Vec<WaitingCount>,
    /// Facts about the versions that hosts offer or that failed, for each variant and architecture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "atomic"))]
    pub versions: Vec<KnownVersion>,
    /// Rollouts under way, one for each variant, architecture and version, and the last ones before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub active_rollouts: Vec<ActiveRollout>,
    /// PodDisruptionBudgets whose pods stayed when they were asked first and alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub budget_back_offs: Vec<BudgetBackOff>,
    /// Last times in which many nodes had fallen ill at once, the last one at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub unwell: Vec<UnwellSpan>,
    /// `spec.version.urgent` as it is in force, or was until it expired; absent without it.
    pub urgent: Option<UrgencyRecord>,
    /// Age of what the nodes run. It names times and no ages, and is written when a node changes.
    pub freshness: Option<Freshness>,
    /// Number of the last rollout that was begun. It never falls.
    pub rollout_count: Option<i64>,
    /// Name of the revision of the policy that every node has followed. It equals `updateRevision` once all nodes are
    /// up to date.
    #[schemars(length(max = 253))]
    pub current_revision: Option<String>,
    /// Name of the revision of the policy that nodes follow now. It changes with the versions that nodes update to
    /// (`spec.version`: target, exclude, ignoreWaves) and with nothing else.
    #[schemars(length(max = 253))]
    pub update_revision: Option<String>,
    /// Number of times that the name of a new revision of the policy was taken by another object. It is part of the
    /// names of further revisions, and never falls; absent before the first time.
    #[schemars(range(min = 1), extend("format" = "int32"))]
    pub collision_count: Option<i32>,
    /// Time at which the next window opens, of nodes in no group or of a node group with nodes; absent while all these are open, and
    /// without windows.
    #[schemars(with = "Option<Moment>")]
    pub next_window: Option<Timestamp>,
    /// One-shot requests that were carried out.
    pub requests: Option<OperatorRequests>,
    /// Notices that are to be sent; absent without receivers.
    pub notices: Option<NoticesStatus>,
    /// Last completed migration of stored shadows.
    pub storage_migration: Option<CompletedMigration>,
    /// Last valid `spec`, as JSON, without credentials. It is the policy in force while the one in `spec` is invalid, also for the next
    /// leader.
    #[schemars(length(max = 65_536))]
    pub policy_in_force: Option<String>,
    /// `Enabled`, `WindowOpen`, `Progressing`, `Frozen`, `Degraded`, `StorageMigrated`, `HistoryRecorded`, `NoticesSent` where there are receivers of
    /// notices, and `Blocked` once an expression that is the same for all nodes, trouble of many nodes at once, or the earlier operator, has
    /// kept them waiting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
