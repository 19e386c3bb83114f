//! Parts that the records of an attempt share.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

#[cfg(feature = "crd")]
use crate::schema::{JsonSchema, Moment};

/// The most attempts that a shadow counts. One a second for thirty years are fewer.
pub const MOST_ATTEMPTS: i64 = 1_000_000_000;

/// A pod that does not leave, and why.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// Namespace and name of the pod.
    #[cfg_attr(feature = "crd", schemars(length(max = 320)))]
    pub pod: String,
    /// Namespace and name of the PodDisruptionBudget that refuses, if one does.
    #[cfg_attr(feature = "crd", schemars(length(max = 320)))]
    pub budget: Option<String>,
    /// Answer of the API server.
    #[cfg_attr(feature = "crd", schemars(length(max = 512)))]
    pub message: String,
    /// Time from which it has not left.
    #[cfg_attr(feature = "crd", schemars(with = "Moment"))]
    pub since: Timestamp,
    /// Time from which the API server has denied its eviction, as an admission webhook or a missing right does. Denied for a
    /// minute, it ends the drain.
    #[cfg_attr(feature = "crd", schemars(with = "Option<Moment>"))]
    pub denied_since: Option<Timestamp>,
}
