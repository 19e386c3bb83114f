//! Hooks: other controllers that are asked before a node is drained, and after it is back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::Duration;

/// A controller that answers the operator's requests on a Node.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Name of the hook, which the annotation with its answer has: `hook.brupop.bottlerocket.aws/NAME`.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Wait for its answer before the node is drained. Default: it is not awaited then, unless it is `aws-autoscaling` and `autoscaling.aws` is set.
    pub before: Option<HookWait>,
    /// Wait for its answer after the node was updated and verified. Default: as for `before`.
    pub after: Option<HookWait>,
}

/// Wait for the answer of a hook.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookWait {
    /// Maximum time of the wait. Default 5m; 15m for `aws-autoscaling` where `autoscaling.aws` is set.
    pub timeout: Option<Duration>,
    /// Action if the hook has not answered by then: `Fail` ends the attempt, `Continue` goes on without the answer. A hook
    /// that refuses ends the attempt in any case. Default Fail.
    pub on_timeout: Option<OnTimeout>,
}

/// Action if a hook has not answered in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// In a schema an optional enumeration's own description would hide that of the field.
#[schemars(description = "")]
pub enum OnTimeout {
    /// Ends the attempt, releases the node, and retries later.
    #[default]
    Fail,
    /// Goes on without the answer.
    Continue,
}
