//! The parts of the policy. Every field is optional; what is left out has the default that its description names.

use schemars::JsonSchema;
use semver::Version;
use serde::{Deserialize, Serialize};

use super::selector::null_is_empty;
use super::{CountOrPercent, HealthPolicy, NodeSelector};
use crate::duration::Duration;
use crate::schema::{Date, DateTime, ExcludedVersions, TimeOfCron, TimeZone, VersionTarget, VersionText};

/// Versions that nodes update to, and the interval at which hosts check for them.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionPolicy {
    /// Target version: `latest` (whatever newer version the host chooses, never an older one), an exact version such as
    /// `1.20.5`, or a range (the highest version in it that the host offers): `1.20` is any 1.20.x and `1` any 1.x, and
    /// operators bound a range, such as `>=1.20, <1.23`. An exact version or a range may also lead down. Both are put
    /// into the host's own setting `updates.version-lock`. Default latest.
    #[schemars(with = "Option<VersionTarget>")]
    pub target: Option<String>,
    /// Minimum time since a version was first offered to several nodes before any node takes it. Default 0s.
    pub minimum_age: Option<Duration>,
    /// Versions, or ranges of versions, that no node takes, written as in `target`; with ` on VARIANT/ARCH` after them, that no node of this
    /// variant and architecture takes, such as `1.20.5 on aws-k8s-1.37/x86_64`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<ExcludedVersions>", length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub exclude: Vec<String>,
    /// If true, hosts do not wait for their wave of a release: the host's own setting `updates.ignore-waves` is set.
    /// Default false: the setting is left alone.
    pub ignore_waves: Option<bool>,
    /// Interval at which an idle host checks for updates. Default 1h.
    pub refresh_interval: Option<Duration>,
    /// Version that does not wait for windows and for the soaks of canary steps, until a time. Default: none.
    pub urgent: Option<UrgentVersion>,
}

/// Version that does not wait for windows and for the soaks of canary steps. Everything else applies to it: blackouts,
/// approvals and numbers of nodes of canary steps, `minimumAge`, `maxUnavailable`, PodDisruptionBudgets, health checks,
/// holds, and failures that stop the rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UrgentVersion {
    /// First urgent version, such as `1.20.6`. Nodes that run an earlier version update urgently to this version or a
    /// later one; nodes that run it already do not.
    #[schemars(with = "VersionText")]
    pub from: Version,
    /// Reason, such as `CVE-2026-1234`, for Events and the history.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// Time from which windows and soaks apply again, such as `2026-12-01T00:00:00Z`; at most 14 days after the operator
    /// has first read this field with its present values.
    #[schemars(with = "DateTime")]
    pub until: String,
}

/// Time within which nodes have to run a new version.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FreshnessPolicy {
    /// Maximum time since a newer version than the one that a node runs was first offered to nodes of its variant and
    /// architecture, such as `336h`. Nothing but `status.freshness` and metrics depends on it. Default: none.
    pub target: Option<Duration>,
}

/// A recurring period in which updates may start.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// Opening times as a cron expression of five fields (minute, hour, day of month, month, day of week), such as `0 2
    /// * * 1-5`. Sunday is 0 or 7; names such as `MON` and `JAN` are accepted.
    #[schemars(with = "TimeOfCron")]
    pub cron: String,
    /// Length of the window, up to 31 days (`744h`), in elapsed hours, also across a change of daylight saving time.
    pub duration: Duration,
    /// Time zone of `cron`, as an IANA name such as `Europe/Berlin`. Default UTC.
    #[schemars(with = "Option<TimeZone>")]
    pub time_zone: Option<String>,
}

/// Days on which no update starts, also within a window.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.to) || self.to >= self.from", "message": "a blackout ends on the day it begins, or later",
}]))]
#[serde(rename_all = "camelCase")]
pub struct Blackout {
    /// First day, such as `2026-12-20`.
    #[schemars(with = "Date")]
    pub from: String,
    /// Last day, inclusive. Default: the first day.
    #[schemars(with = "Option<Date>")]
    pub to: Option<String>,
    /// Time zone in which the days begin and end, as an IANA name. Default UTC.
    #[schemars(with = "Option<TimeZone>")]
    pub time_zone: Option<String>,
}

/// Times at which nodes may be taken out of service.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePolicy {
    /// Maintenance windows; updates start while at least one is open. Default: always open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub windows: Vec<MaintenanceWindow>,
    /// Time before a window closes, or a blackout begins, from which no further node is started; shorter than every
    /// window. Updates that have started are finished, but a blackout ends those without a permit to reboot. Default 0s.
    pub stop_starting_before: Option<Duration>,
    /// Days on which no update starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub blackouts: Vec<Blackout>,
}

/// Condition under which a canary step is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum StepApproval {
    /// Passed when its nodes are updated and its soak is over.
    #[default]
    Automatic,
    /// Passed when it is approved as well: annotation `brupop.bottlerocket.aws/approve-step` on this resource.
    Manual,
}

/// First nodes of a rollout, after which it pauses.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStep {
    /// Number of nodes of each variant and architecture that have to be updated before the rollout continues among
    /// them, those of earlier steps included: a count, or a percentage of these nodes.
    pub nodes: CountOrPercent,
    /// Time to wait after the last of these nodes is updated. A node has to run the version at its end: where none does, it is repeated once
    /// with another node, and then a user has to approve the step. Default 0s.
    pub soak: Option<Duration>,
    /// `Manual` if a user has to approve the step before the rollout continues. Default Automatic.
    pub approval: Option<StepApproval>,
}

/// Downloads ahead of the update.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreStagePolicy {
    /// Maximum number of nodes that download at a time. Default 10.
    pub max_concurrent: Option<CountOrPercent>,
}

/// Order and pace at which a version reaches the nodes.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StrategyPolicy {
    /// Steps that a version has to pass before all nodes take it. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub canary: Vec<CanaryStep>,
    /// Downloads images as soon as they are offered, ahead of the window and of the node's update. Default: images are
    /// downloaded when the node's update starts.
    pub pre_stage: Option<PreStagePolicy>,
    /// If true, nodes of only one zone (label `topology.kubernetes.io/zone`) are out of service at a time. Default
    /// false.
    pub one_zone_at_a_time: Option<bool>,
}

/// Handling of pods whose PodDisruptionBudget allows no disruption although all its pods are healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum GuardedPods {
    /// Evicts them first and alone, and releases the node if they stay.
    #[default]
    Ask,
    /// Does not begin the drain while there are any, and has no pod deleted past its budget.
    Wait,
}

/// Handling of pods that autoscalers are not to move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum MarkedPods {
    /// Evicts them like others.
    #[default]
    Evict,
    /// Does not begin the drain while there are any.
    Wait,
}

/// Action at the deadline of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// In a schema an optional enumeration's own description would hide that of the field.
#[schemars(description = "")]
pub enum AtDeadline {
    /// Ends the attempt, releases the node, and retries later.
    #[default]
    Release,
    /// Deletes the pods that are left on the node, past their PodDisruptionBudgets, and continues. The controller needs
    /// a further role for it, which is not part of the default install.
    Force,
}

/// Limits of the history of rollouts. What exceeds one is removed, the oldest first; a running rollout keeps its record.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutHistoryPolicy {
    /// Maximum number of records of ended rollouts. Default 100.
    #[schemars(range(min = 0, max = 1000), extend("format" = "int32"))]
    pub records: Option<u32>,
    /// Maximum time for which the pages of an ended rollout are kept. Default 4320h (180 days). Its record is kept for
    /// longer.
    pub max_age: Option<Duration>,
    /// Maximum size of all records and pages together, in MiB. Pages are removed first. Default 48.
    #[schemars(range(min = 1, max = 1024), extend("format" = "int32"))]
    pub max_mebibytes: Option<u32>,
}

/// Start of a migration of stored shadows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum StorageMigration {
    /// Begins when it is needed.
    #[default]
    Auto,
    /// Begins when a user requests it.
    Manual,
}

/// Treatment of pods that lose something for good when they are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum PodsAtRisk {
    /// The node is not drained while there is such a pod on it; no pod is evicted.
    Refuse,
    /// They are evicted like all other pods.
    Evict,
}

/// Treatment of nodes that another user or controller has cordoned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum CordonedNodes {
    /// They are left alone until they are uncordoned.
    #[default]
    Skip,
    /// They are updated like all others, and are still cordoned afterwards.
    Update,
}

/// Settings of the drain.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// Maximum time that a drain may take. With `atDeadline: Force`, the pods that are left then have as long once more to end, by their grace
    /// periods. Default 30m.
    pub timeout: Option<Duration>,
    /// Action when `timeout` is over. Default Release.
    pub at_deadline: Option<AtDeadline>,
    /// Handling of pods whose PodDisruptionBudget allows no disruption although all its pods are healthy, as of the primary of a
    /// database or of a virtual machine. `Ask` cordons the node and evicts these pods first, and no others before they have left: many
    /// move once they are asked. `Wait` does not begin the drain, and `atDeadline: Force` deletes no pod past its budget then. Default Ask.
    pub guarded_pods: Option<GuardedPods>,
    /// Time, since the last eviction of a guarded pod that was accepted, after which the node is released if others of them stay. Their
    /// PodDisruptionBudgets are not asked for an hour then, up to a day where they stay again and again. Default 10m.
    pub guarded_timeout: Option<Duration>,
    /// Handling of pods that autoscalers are not to move: those with the annotation `karpenter.sh/do-not-disrupt: "true"` or
    /// `cluster-autoscaler.kubernetes.io/safe-to-evict: "false"`, such as running Jobs. `Evict` evicts them like others, as `kubectl drain`
    /// does; `Wait` does not begin the drain before they have ended. Default Evict.
    pub marked_pods: Option<MarkedPods>,
    /// Treatment of pods without a controller, or whose DaemonSet no longer exists: nothing creates them again. Default
    /// Refuse.
    pub bare_pods: Option<PodsAtRisk>,
    /// Treatment of pods with an `emptyDir` volume, whose contents are lost with the pod. Default Evict: the reboot
    /// would delete them too.
    pub empty_dir: Option<PodsAtRisk>,
    /// Treatment of nodes that another user or controller has cordoned before their drain: `Skip` leaves them alone, with the
    /// reason `Cordoned`, until they are uncordoned; `Update` updates them like all others. Default Skip.
    pub cordoned_nodes: Option<CordonedNodes>,
    /// Time after the end of its grace period for which the drain waits for a pod that is being deleted. After that the
    /// drain continues, and the reboot ends the pod. Default: until the deadline of the drain.
    pub skip_terminating_after: Option<Duration>,
    /// Grace period of evicted pods in place of their own, in whole seconds. Default: each pod's own.
    pub grace_period: Option<Duration>,
    /// If true, the drain also waits until the volumes of the evicted pods are detached from the node. At the deadline
    /// of the drain the update continues in any case. Default false.
    pub wait_for_volumes: Option<bool>,
}

/// Handling of external load balancers.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerPolicy {
    /// Time before its drain for which a node is excluded from external load balancers, by the label
    /// `node.kubernetes.io/exclude-from-external-load-balancers`. The label is removed when the node returns to
    /// service. Default 30s.
    pub leave_before_drain: Option<Duration>,
}

/// Handling of cluster autoscalers.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerPolicy {
    /// If true, a node is protected from scale-down and consolidation from the start of its drain until its update is verified and its
    /// hooks have answered, or the soak of its drill is over, by the annotations `cluster-autoscaler.kubernetes.io/scale-down-disabled` and
    /// `karpenter.sh/do-not-disrupt`. Default true.
    pub protect: Option<bool>,
}

/// Groups of machines that a cloud keeps at a size, by replacing those that it takes for broken.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingPolicy {
    /// EC2 Auto Scaling groups. Needs the program `brupop-aws`, which is awaited before the drain and after the update as
    /// the hook `aws-autoscaling`, 15 minutes each unless its entry in `spec.hooks` has another time. Default: their groups are left alone.
    pub aws: Option<AwsAutoscaling>,
}

/// EC2 Auto Scaling groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AwsAutoscaling {
    /// `Standby` puts the instance of a node that is updated into the state Standby, in which its group does not replace
    /// it and its load balancers send it nothing. `SuspendReplaceUnhealthy` suspends the process ReplaceUnhealthy of the
    /// whole group for the time.
    pub mode: AwsMode,
}

/// The means by which an EC2 Auto Scaling group is kept from replacing a node that is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// In a schema an optional enumeration's own description would hide that of the field.
#[schemars(description = "")]
pub enum AwsMode {
    /// The instance is in Standby.
    Standby,
    /// The process ReplaceUnhealthy of the group is suspended.
    SuspendReplaceUnhealthy,
}

/// The largest `failurePolicy.maxFailures`. So many failed nodes are recorded for each version: nodes that were replaced have to
/// count, and the status has to stay small.
pub const MAX_FAILURES: u32 = 64;

/// Consequences of failures.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// Number of nodes that have to fail on a version before it is quarantined and the rollout is frozen, at most 64. Nodes
    /// that were deleted since are counted. Default 1.
    #[schemars(range(min = 1, max = MAX_FAILURES), extend("format" = "int32"))]
    pub max_failures: Option<u32>,
    /// Number of nodes of a rollout whose updates may end one after the other without a proven one between them, whatever the
    /// reasons; or number of nodes that may run the version without a proof, if that is also at least 5 % of the nodes taken to it. Then the rollout is braked: no node is taken, but one at a time after pauses of 10 minutes up to 6 hours. Default 3; at
    /// most one less than the nodes of the variant and architecture. One node alone is not braked by default, and 64 switches the brake off.
    #[schemars(range(min = 1, max = MAX_FAILURES), extend("format" = "int32"))]
    pub max_consecutive_failures: Option<u32>,
    /// Time that a node waits after its first failed attempt; doubled with each further one, up to 24h. Default 10m.
    pub back_off: Option<Duration>,
}

/// Maximum times of the steps of an attempt, except the drain.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// Maximum time of the download. Default 30m.
    pub stage: Option<Duration>,
    /// Maximum time from the desired state `RebootedIntoUpdate` until the host is in another boot. Default 30m.
    pub reboot: Option<Duration>,
    /// Maximum time from the new boot until the node is Ready. Default 30m.
    #[serde(rename = "return")]
    pub returning: Option<Duration>,
    /// Maximum time that a host takes to go down after the agent's call. A node whose update was withdrawn after its
    /// permit is released only when the permit (30 s) and this time are both over and its kubelet still renews its
    /// lease, or when it is in another boot. Default 240s: 90 s for which the host's API server may keep a call,
    /// systemd's 90 s for units that do not stop, and a margin.
    pub shutdown: Option<Duration>,
}

impl Deadlines {
    /// Default of `stage`.
    pub const STAGE: Duration = Duration::from_mins(30);
    /// Default of `reboot`.
    pub const REBOOT: Duration = Duration::from_mins(30);
    /// Default of `return`.
    pub const RETURN: Duration = Duration::from_mins(30);
}

/// Policy of the nodes of one group, where it differs from that of all nodes.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroup {
    /// Name of the group in reasons and messages.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Selector of its nodes. A node belongs to the first group that matches. An empty one selects every node, and leaves none to the groups after it.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(extend("nullable" = true))]
    pub selector: NodeSelector,
    /// Maximum number of nodes of the group that may be out of service because of updates, within the limit for all
    /// nodes.
    pub max_unavailable: Option<CountOrPercent>,
    /// Times at which nodes of the group may be taken out of service. Windows and `stopStartingBefore` replace those of
    /// all nodes where they are set; blackouts are added to those of all nodes.
    pub schedule: Option<SchedulePolicy>,
    /// Settings of the drain; fields that are not set are as for all nodes.
    pub drain: Option<DrainPolicy>,
    /// Health checks of the group; fields that it does not set are those of all nodes. An empty list of expressions or of objects is as none;
    /// another one replaces that of all nodes.
    pub health: Option<HealthPolicy>,
}
