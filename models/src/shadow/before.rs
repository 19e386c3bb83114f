//! The facts of a node before its drain.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(feature = "crd")]
use schemars::JsonSchema;

/// The most entries of each kind that the facts of a node before its drain have.
pub const MOST_FACTS: usize = 64;

/// The longest quantity of a resource, in characters.
pub const MOST_DIGITS: usize = 32;

/// The most ReplicaSets that the facts of a node before its drain name.
pub const MOST_REPLICA_SETS: usize = 8;

/// The most nodes that the facts of a node before its drain name.
pub const MOST_COMPARED: usize = 8;

/// An owner of pods that were on a node before its drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OwnerBefore {
    /// Namespace and name.
    #[cfg_attr(feature = "crd", schemars(length(max = 317)))]
    pub name: String,
    /// UID.
    #[cfg_attr(feature = "crd", schemars(length(max = 64)))]
    pub uid: String,
}

/// Facts of a node before its drain. They have to be back after its update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NodeBefore {
    /// Allocatable quantities of its devices (extended resources), CPU, memory, ephemeral storage and huge pages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(extend("maxProperties" = MOST_FACTS, "additionalProperties" = {"type": "string", "maxLength": MOST_DIGITS}))
    )]
    pub allocatable: BTreeMap<String, String>,
    /// Taints with the effect `NoSchedule` or `NoExecute`, but those of `node.kubernetes.io`, each as `key:effect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = MOST_FACTS), inner(length(max = 330)), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub taints: Vec<String>,
    /// CSI drivers that its kubelet had registered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = MOST_FACTS), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub csi_drivers: Vec<String>,
    /// DaemonSets with a Ready pod on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = MOST_FACTS), extend("x-kubernetes-list-type" = "atomic")))]
    pub daemon_sets: Vec<OwnerBefore>,
    /// First few ReplicaSets whose pods were to be evicted. If there are two or more, and the node comes back without pods of workloads, at
    /// least one of them has to have as many pods as it wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "crd", schemars(length(max = MOST_REPLICA_SETS), extend("x-kubernetes-list-type" = "atomic")))]
    pub replica_sets: Vec<OwnerBefore>,
    /// Static pods of its kubelet that were Ready, each as `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = MOST_FACTS), inner(length(max = 317)), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub static_pods: Vec<String>,
    /// Names of the expressions of `health.after` with `$node` that returned nothing, and of its checks of objects with `node` that were
    /// true. Only these count against the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = 24), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub quiet_expressions: Vec<String>,
    /// First few nodes that were like this one: not being updated, with no less of these resources, the same CSI drivers and no other
    /// taints. What they have lost too is not missing; an expression that returns something for them too does not count against the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(
        feature = "crd",
        schemars(length(max = MOST_COMPARED), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))
    )]
    pub compared_with: Vec<String>,
}
