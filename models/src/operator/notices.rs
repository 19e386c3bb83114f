//! Notices: messages about rollouts to other systems, by webhook.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::Duration;
use crate::schema::{Moment, StatusWord};

/// Maximum number of notices that wait to be sent.
pub const MOST_PENDING: usize = 32;
/// Maximum number of nodes that a notice names.
pub const MOST_NODES: usize = 8;
/// Maximum length of the cause of a notice, in characters.
pub const CAUSE_LENGTH: usize = 1024;

/// Notices about rollouts, sent by webhook. No update waits for them.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticesPolicy {
    /// Receivers of notices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub receivers: Vec<NoticeReceiver>,
    /// Time for which a node has the condition `Blocked` before `NodesBlocked` is sent. Default 20m.
    pub blocked_after: Option<Duration>,
}

/// A receiver of notices. Its address and its token are in the Secret `brupop-notices` in the operator's namespace.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticeReceiver {
    /// Name of the receiver, in its notices, conditions, metrics and logs.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Format of the notices: `CloudEvents` is CloudEvents 1.0 as JSON, one event in each request; `Slack` is a message for
    /// an incoming webhook of Slack.
    pub format: NoticeFormat,
    /// Key of the Secret that holds the receiver's URL. It begins with `https://`; `http://` is accepted with the format
    /// `CloudEvents` and without a token.
    #[schemars(length(max = 253), regex(pattern = "^[A-Za-z0-9_-][-._A-Za-z0-9]*$"))]
    pub url_key: String,
    /// Key of the Secret that holds a bearer token to send. Default: none is sent.
    #[schemars(length(max = 253), regex(pattern = "^[A-Za-z0-9_-][-._A-Za-z0-9]*$"))]
    pub token_key: Option<String>,
    /// Events that it is notified of. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub events: Vec<NoticeEvent>,
}

/// Format of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
// In a schema an enumeration's own description would hide that of the field.
#[schemars(description = "")]
pub enum NoticeFormat {
    /// CloudEvents 1.0, structured JSON.
    CloudEvents,
    /// A message for an incoming webhook of Slack.
    Slack,
}

/// Event that a notice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
pub enum NoticeEvent {
    /// A rollout began.
    RolloutStarted,
    /// A canary step was passed.
    StepPassed,
    /// A canary step waits for a user: for an approval, or because nodes of it have not proven the version or have failed on it.
    AwaitingApproval,
    /// Failures have stopped all updates.
    Frozen,
    /// Updates that ended one after the other without a proof have braked a rollout.
    Braked,
    /// Many nodes have fallen ill at once, nodes included that were not being updated: no update starts.
    ClusterUnwell,
    /// Nodes have been blocked for `blockedAfter`.
    NodesBlocked,
    /// A rollout ended.
    RolloutEnded,
}

impl NoticeEvent {
    /// The word.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// State of notices, from which another leader continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoticesStatus {
    /// Nodes that have been blocked since this time, or for longer, are reported.
    #[schemars(with = "Moment")]
    pub blocked_reported: Timestamp,
    /// Awaited approvals and brakes that are reported, each as the id of its notice without the time at its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub approvals_reported: Vec<String>,
    /// Notices that are still to be sent, the oldest first. Of more than 32, the oldest are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_PENDING), extend("x-kubernetes-list-type" = "atomic"))]
    pub pending: Vec<Notice>,
}

/// A message about an event.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// Identifier of the event. A receiver that gets a notice twice knows it by this.
    #[schemars(length(max = 253))]
    pub id: String,
    /// Event, as one fixed word.
    #[schemars(with = "StatusWord")]
    pub event: String,
    /// Time of the event.
    #[schemars(with = "Moment")]
    pub time: Timestamp,
    /// Object that it is about: `rollout/NUMBER`, `node/NAME` or `nodes`.
    #[schemars(length(max = 253))]
    pub subject: String,
    /// Nodes that it is about, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_NODES), inner(length(max = 253)), extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<String>,
    /// Explanation for users.
    #[schemars(length(max = CAUSE_LENGTH))]
    pub cause: String,
    /// Time at which the state ends by itself; absent where there is none.
    #[schemars(with = "Option<Moment>")]
    pub deadline: Option<Timestamp>,
    /// Command of the plugin to run next.
    #[schemars(length(max = 512))]
    pub command: String,
    /// Names of the receivers that it is still to be sent to.
    #[schemars(length(max = 8), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
    pub receivers: Vec<String>,
}
