//! The health checks of the policy, and the Prometheus server that answers some of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CountOrPercent, NodeSelector};
use crate::duration::Duration;

/// A query that has to return an empty result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expression {
    /// Name of the expression in reasons and messages.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// PromQL expression. Any series in its result keeps the node waiting. `$node` is replaced by the node's name.
    #[schemars(length(min = 1, max = 2048))]
    pub query: String,
}

/// Objects on which a CEL expression has to be true.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!(has(self.objectName) && has(self.selector))", "message": "write objectName or selector, not both",
}, {
    "rule": "!(self.apiVersion == 'v1' && self.kind == 'Secret')", "message": "Secrets are not read for checks",
}]))]
#[serde(rename_all = "camelCase")]
pub struct ObjectCheck {
    /// Name of the check in reasons and messages; no expression of the same list has it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Group and version of the objects, such as `apps/v1`, or `v1` for those of the core group.
    #[schemars(length(max = 317), regex(pattern = "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?v[0-9][a-z0-9]*$"))]
    pub api_version: String,
    /// Kind of the objects, such as `Deployment`.
    #[schemars(length(max = 63), regex(pattern = "^[A-Z][A-Za-z0-9]*$"))]
    pub kind: String,
    /// Namespace of the objects. Default: all namespaces. With `objectName`, objects that have a namespace need it.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: Option<String>,
    /// Name of the only object. While it does not exist, the result is not known. Default: all objects.
    #[schemars(length(min = 1, max = 253))]
    pub object_name: Option<String>,
    /// Selector of the objects by their labels. Default: all objects.
    pub selector: Option<NodeSelector>,
    /// CEL expression. With `self` it has to be true of each object, and there has to be one; with `all` it has to be true of the list
    /// of objects, which may be empty. Further variables are `node`, the name of the node, and `version`, the version that its update is to.
    #[schemars(length(min = 1, max = 1024))]
    pub expression: String,
}

impl ObjectCheck {
    /// Returns whether it is about Secrets. The controller may read its own keys, which no expression may ask for.
    pub fn is_about_secrets(&self) -> bool {
        self.api_version == "v1" && self.kind == "Secret"
    }
}

/// Prometheus server that evaluates the expressions.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusPolicy {
    /// Base URL of the Prometheus API, such as `http://prometheus.monitoring.svc:9090`. All users who may read this
    /// resource can read it: credentials belong in the Secret `brupop-prometheus`.
    #[schemars(length(max = 512), regex(pattern = "^https?://[^ ]+$"), extend("x-kubernetes-validations" = [{
        "rule": "!self.contains('@')",
        "message": "write no user name and no password here, but into the Secret brupop-prometheus, as username and password; an @ in a path is written %40",
    }]))]
    pub url: String,
    /// Timeout of a query. A query without an answer keeps the node waiting. Default 10s.
    pub timeout: Option<Duration>,
    /// Interval at which an expression is evaluated while a node waits for it. Default 30s.
    pub interval: Option<Duration>,
}

/// Checks before a node is taken out of service.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BeforeUpdatePolicy {
    /// If true, every pod on the node has to be Ready. Default false: a pod that is broken in any case does not keep
    /// its node from updates.
    pub pods_ready: Option<bool>,
    /// Maximum number of nodes of the whole fleet, also in a node group, that are not Ready for other reasons than an update; with more
    /// than that, no update starts. Nodes that join and have never been Ready, that an autoscaler removes, that are held, and that were
    /// taken down (cordoned by another client before, or their machines shut down, as their clouds show) do not count. Default: no limit.
    pub max_unhealthy_nodes: Option<CountOrPercent>,
    /// Expressions that have to return an empty result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub expressions: Vec<Expression>,
    /// Objects of the cluster on which a CEL expression has to be true. The controller may read those that it is granted the right for: the
    /// condition `Degraded` has the role to apply. What is not known keeps the node waiting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub objects: Vec<ObjectCheck>,
}

/// Verification of a node after its update.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AfterUpdatePolicy {
    /// Minimum time for which a node has to be healthy in its verification before its slot is freed. Default 1m.
    pub soak: Option<Duration>,
    /// If true, the pods on the node have to be Ready, and not restarting, for the soak. Pods that are ill without the version, too, and
    /// those that were unhealthy on the node before its drain and come back to it, are not counted. Default true.
    pub pods_ready: Option<bool>,
    /// Maximum time of the verification, in which a node has to be healthy for the soak. After that the update has ended without a proof, or
    /// failed where the version is at fault. Default 15m, and never less than twice the soak.
    pub timeout: Option<Duration>,
    /// Expressions that have to return an empty result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub expressions: Vec<Expression>,
    /// Objects of the cluster on which a CEL expression has to be true. The controller may read those that it is granted the right for: the
    /// condition `Degraded` has the role to apply. What is not known until `timeout` proves nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub objects: Vec<ObjectCheck>,
}

/// Health checks of nodes.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HealthPolicy {
    /// Checks before a node is taken out of service.
    pub before: Option<BeforeUpdatePolicy>,
    /// Checks after its update.
    pub after: Option<AfterUpdatePolicy>,
}
