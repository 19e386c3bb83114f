//! Hooks: other controllers that are asked before a node is drained, and after it is back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::Duration;

/// A controller that answers the operator's requests on a Node, or Jobs that do.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.job) || has(self.before) == has(self.job.before)",
    "message": "write before and job.before together: the Job is the answer that is awaited",
}, {
    "rule": "!has(self.job) || !has(self.after) || has(self.job.after)",
    "message": "after awaits an answer, which job.after has to give",
}, {
    "rule": "!has(self.job) || self.name != 'aws-autoscaling'",
    "message": "aws-autoscaling takes no job, because brupop-aws answers for it",
}]))]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Name of the hook, which the annotation with its answer has: `hook.brupop.bottlerocket.aws/NAME`.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Wait for its answer before the node is drained. Default: it is not awaited then, unless it is `aws-autoscaling` and `autoscaling.aws` is set.
    pub before: Option<HookWait>,
    /// Wait for its answer after the node was updated and verified. Default: as for `before`.
    pub after: Option<HookWait>,
    /// Jobs that answer for it. The controller creates them where it has the right to: docs/hooks.md. Default: another controller answers.
    pub job: Option<HookJob>,
}

/// Jobs that answer for a hook, each made by a `PodTemplate` of core/v1.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.before) || has(self.after)", "message": "name a PodTemplate: before, after or both",
}]))]
#[serde(rename_all = "camelCase")]
pub struct HookJob {
    /// Namespace of the PodTemplates and of the Jobs.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub namespace: String,
    /// Name of the PodTemplate of the Job before the drain.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub before: Option<String>,
    /// Name of the PodTemplate of the Job after the update. It runs at every end of an attempt in which the one of `before` was created.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub after: Option<String>,
    /// If true, the pods run on the node that is updated, and not where the scheduler puts them. Default false.
    pub run_on_node: Option<bool>,
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
