//! The parts of the policy. Every field is optional; what is left out has the default that its description names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::selector::null_is_empty;
use super::{CountOrPercent, MAX_FAILURES, NodeSelector};
use crate::duration::Duration;
use crate::schema::{Date, TimeOfCron, TimeZone, VersionRange, VersionTarget};

/// Which versions nodes become, and how hosts look for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionPolicy {
    /// What nodes become: `latest` (whatever newer version their host chooses, never an older one), an exact version such as
    /// `1.20.5`, or a range (the highest version in it that the host offers): `1.20` is any 1.20.x and `1` any 1.x, and
    /// operators bound a range, such as `>=1.20, <1.23`. An exact version or a range may also lead down. Both are put into the
    /// host's own setting `updates.version-lock`. Default latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VersionTarget>")]
    pub target: Option<String>,
    /// How long a version has to be known before a node takes it, counted from when several nodes were first offered it.
    /// Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_age: Option<Duration>,
    /// Versions, or ranges of versions, that no node takes, written as in `target`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<VersionRange>", length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub exclude: Vec<String>,
    /// Whether nodes skip their place in a release's waves, by the host's own setting `updates.ignore-waves`. Default false:
    /// the setting is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_waves: Option<bool>,
    /// How often an idle host looks for updates. Default 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_interval: Option<Duration>,
}

/// A time in which updates may start, that comes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// When it opens, as five fields of cron (minute, hour, day of month, month, day of week), such as `0 2 * * 1-5`. Sunday
    /// is 0 or 7; names such as `MON` and `JAN` are known.
    #[schemars(with = "TimeOfCron")]
    pub cron: String,
    /// How long it stays open, up to 31 days (`744h`). Counted in hours that pass, also where clocks are changed meanwhile.
    pub duration: Duration,
    /// The time zone of `cron`, by its IANA name, such as `Europe/Berlin`. Default UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeZone>")]
    pub time_zone: Option<String>,
}

/// Days on which nothing starts, whatever the windows say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.to) || self.to >= self.from", "message": "a blackout ends on the day it begins, or later",
}]))]
#[serde(rename_all = "camelCase")]
pub struct Blackout {
    /// The first day, such as `2026-12-20`.
    #[schemars(with = "Date")]
    pub from: String,
    /// The last day, which belongs to it. Default: the first day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Date>")]
    pub to: Option<String>,
    /// The time zone in which the days begin and end, by its IANA name. Default UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeZone>")]
    pub time_zone: Option<String>,
}

/// When nodes may be taken out of service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePolicy {
    /// The windows; one that is open is enough. Default: always open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub windows: Vec<MaintenanceWindow>,
    /// How long before its window closes, or a blackout begins, a node is no longer started; shorter than every window.
    /// Default 0s. What has started is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_starting_before: Option<Duration>,
    /// Days on which nothing starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub blackouts: Vec<Blackout>,
}

/// How a canary step is passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum StepApproval {
    /// When its nodes are done and its soak is over.
    #[default]
    Automatic,
    /// When a person approves it besides: annotation `brupop.bottlerocket.aws/approve-step` on this resource.
    Manual,
}

/// The first nodes of a rollout, after which it waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStep {
    /// How many nodes of each variant and architecture have to be on the version before the rollout goes on among them, those of
    /// earlier steps included: a count, or a percentage of these nodes.
    pub nodes: CountOrPercent,
    /// How long to wait after the last of them is done. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak: Option<Duration>,
    /// Whether a person has to approve besides. Default Automatic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<StepApproval>,
}

/// Downloads ahead of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreStagePolicy {
    /// How many nodes download at a time. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent: Option<CountOrPercent>,
}

/// How a version spreads over the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StrategyPolicy {
    /// Steps that a version has to pass before all nodes take it. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub canary: Vec<CanaryStep>,
    /// Download images as soon as they are offered, ahead of the window and of a node's turn. Default: not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stage: Option<PreStagePolicy>,
    /// Whether nodes of only one zone (label `topology.kubernetes.io/zone`) are out of service at a time. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_zone_at_a_time: Option<bool>,
}

/// What happens at a drain's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// In a schema an optional enumeration's own description would hide that of the field.
#[schemars(description = "")]
pub enum AtDeadline {
    /// Give up, release the node, and try again later.
    #[default]
    Release,
    /// Delete what is left on the node, past all budgets, and go on. The controller needs a right of its own for it, which
    /// is not part of the default install.
    Force,
}

/// What a drain does about pods that it would take something from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(description = "")]
pub enum PodsAtRisk {
    /// The node is not drained while there is one on it; nothing on it is evicted.
    Refuse,
    /// They are evicted like all others.
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

/// How nodes are drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// How long a drain may take. Default 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// What happens then. Default Release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_deadline: Option<AtDeadline>,
    /// What is done about pods without a controller, or whose DaemonSet is gone, which nothing would bring back. Default
    /// Refuse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bare_pods: Option<PodsAtRisk>,
    /// What is done about pods with an `emptyDir`, whose contents end with the pod. Default Evict: the reboot would end them too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_dir: Option<PodsAtRisk>,
    /// Treatment of nodes that another user or controller has cordoned before their drain: `Skip` leaves them alone, with the
    /// reason `Cordoned`, until they are uncordoned; `Update` updates them like all others. Default Skip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned_nodes: Option<CordonedNodes>,
    /// How long after the end of its grace period a pod that is being deleted and does not go is waited for. Then it hinders
    /// the drain no longer, and ends with the reboot. Default: until the drain's deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_terminating_after: Option<Duration>,
    /// How long pods may take to end, in place of what each pod says of itself; whole seconds. Default: what the pod says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<Duration>,
    /// Whether the drain also waits until the volumes of the pods that left are detached from the node. At the drain's deadline the
    /// update goes on in any case. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_volumes: Option<bool>,
}

/// What external load balancers are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerPolicy {
    /// How long before its drain a node is taken out of external load balancers, by the label
    /// `node.kubernetes.io/exclude-from-external-load-balancers`; it is back in them when it is back in service. Default 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave_before_drain: Option<Duration>,
}

/// What cluster autoscalers are told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalerPolicy {
    /// Whether a node is kept from being scaled down or consolidated from the beginning of its drain until it is back in service,
    /// by the annotations `cluster-autoscaler.kubernetes.io/scale-down-disabled` and `karpenter.sh/do-not-disrupt`. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protect: Option<bool>,
}

/// A query that has to return nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expression {
    /// What it is about, for reasons and messages.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// A PromQL expression. Any series in its result is a reason to wait. `$node` stands for the node's name.
    #[schemars(length(min = 1, max = 2048))]
    pub query: String,
}

/// Where expressions are asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusPolicy {
    /// The base of the Prometheus API, such as `http://prometheus.monitoring.svc:9090`.
    #[schemars(length(max = 512), regex(pattern = "^https?://[^ ]+$"))]
    pub url: String,
    /// How long an answer may take. No answer is a reason to wait. Default 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How often an expression that somebody waits for is asked. Default 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Duration>,
}

/// What has to hold before a node is taken out of service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BeforeUpdatePolicy {
    /// Whether every pod on the node has to be Ready. Default false: a pod that is broken in any case does not keep its node
    /// from updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_ready: Option<bool>,
    /// With more nodes than that not Ready (for other reasons than an update), nothing starts. Default: no such threshold; a
    /// node that is not Ready uses up `maxUnavailable` in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unhealthy_nodes: Option<CountOrPercent>,
    /// Expressions that have to return nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub expressions: Vec<Expression>,
}

/// How a node is judged after its update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AfterUpdatePolicy {
    /// How long a node has to stay healthy after its update before its slot is free. Default 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "duration(self) > duration('0s')", "message": "a soak is longer than zero",
    }]))]
    pub soak: Option<Duration>,
    /// Whether the pods on the node have to be Ready, and not restarting, for the soak. Pods of owners that were not
    /// healthy before the drain do not count. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_ready: Option<bool>,
    /// How long a node may take to become healthy for the soak; after that the update has failed. Default 15m, and never
    /// less than twice the soak.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Expressions that have to return nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub expressions: Vec<Expression>,
}

/// How the health of nodes counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthPolicy {
    /// Before a node is taken out of service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<BeforeUpdatePolicy>,
    /// After its update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<AfterUpdatePolicy>,
}

/// What failures lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// How many nodes may fail on a version before it is quarantined and the rollout is frozen, up to 64: for so many the names
    /// are recorded, which makes nodes count that were replaced since. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_FAILURES), extend("format" = "int32"))]
    pub max_failures: Option<u32>,
    /// How long a node waits after its first failed attempt; doubled with each further one, up to 24h. Default 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_off: Option<Duration>,
}

/// How long the steps of an attempt may take, besides the drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// Downloading the image. Default 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Duration>,
    /// From the order to reboot until the host is in another boot. Default 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot: Option<Duration>,
    /// From the new boot until the node is Ready. Default 10m.
    #[serde(default, rename = "return", skip_serializing_if = "Option::is_none")]
    pub returning: Option<Duration>,
    /// The longest that a host takes to go down from the agent's call on. A node whose order to reboot was withdrawn after its
    /// permit is released only when the permit (30 s) and this time would both be over and its kubelet is still heard, or when it has
    /// another boot.
    /// Default 240s: 90 s in which the host's API server may keep a call, systemd's 90 s for units that do not stop, and room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown: Option<Duration>,
}

/// Nodes with a policy of their own, where it differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroup {
    /// Its name, for reasons and messages.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its nodes. A node belongs to the first group that matches.
    #[serde(deserialize_with = "null_is_empty")]
    #[schemars(extend("nullable" = true))]
    pub selector: NodeSelector,
    /// How many of its nodes may be out of service because of updates, besides the limit for all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<CountOrPercent>,
    /// When its nodes may be taken out of service. Windows and `stopStartingBefore` replace those of all nodes where they are set;
    /// blackouts hold besides those of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<SchedulePolicy>,
    /// How its nodes are drained; what is left out is as for all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainPolicy>,
    /// How the health of its nodes counts; `before` and `after` each replace those of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthPolicy>,
}
