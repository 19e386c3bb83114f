//! Why a node waits: one enum, the source of conditions, Events, metrics and the operator's status.

use std::fmt;

use jiff::Timestamp;
use models::reason::FailureReason;
use semver::Version;

/// Why nothing is done about a node right now, with the facts.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// It runs the newest version that its host offers.
    UpToDate,
    /// The operator's resource is missing, so nothing new starts.
    NoOperatorResource,
    /// Updates are switched off.
    Disabled,
    /// Failures have stopped the rollout.
    Frozen {
        /// The version that failed.
        version: Version,
    },
    /// The version has failed too often.
    Quarantined {
        /// The version.
        version: Version,
    },
    /// A person holds the node.
    Held,
    /// The node no longer carries the label.
    NotLabelled,
    /// The node has no shadow yet.
    NoShadow,
    /// The node is being deleted.
    Deleting,
    /// The node is not Ready for another reason than an update of ours.
    NodeNotReady,
    /// The agent has not reported in the node's current boot.
    NoReport,
    /// The agent has not caught up with the last order.
    AgentBehind,
    /// The host cannot look for updates.
    RefreshFails {
        /// What it says.
        message: String,
    },
    /// Somebody else armed an image on the host.
    HostArmedByOther,
    /// The last attempt failed; the next one is not due.
    BackOff {
        /// When it is.
        until: Timestamp,
        /// Why the last one failed.
        reason: String,
    },
    /// Its turn has not come.
    Queued {
        /// How many are before it.
        position: usize,
    },
    /// The host downloads the image.
    Staging,
    /// Its pods are being looked at.
    ReadingPods,
    /// Pods that may not be evicted stand in the way.
    DrainRefused {
        /// One of them.
        pod: String,
        /// How many there are.
        count: usize,
    },
    /// Pods are on their way out.
    Draining {
        /// How many are left.
        left: usize,
    },
    /// Pods cannot be evicted now.
    DrainBlocked {
        /// One of them.
        pod: String,
        /// The budget that refuses, where one does.
        budget: Option<String>,
        /// How many are left.
        left: usize,
    },
    /// The agent has not asked for its go yet.
    AwaitingAgent,
    /// The go is given, the host reboots.
    AwaitingReboot,
    /// The node is back and not Ready yet.
    AwaitingReady,
    /// The node is watched.
    Soaking {
        /// Until when.
        until: Timestamp,
    },
    /// The attempt failed after a go; the node is released once the host cannot reboot any more.
    NodeNotBack {
        /// Why it failed.
        reason: FailureReason,
    },
    /// The host has not confirmed that nothing of ours is armed.
    DisarmPending,
    /// An action is under way.
    Acting,
}

impl Wait {
    /// The reason as one fixed word.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::UpToDate => "UpToDate",
            Self::NoOperatorResource => "NoOperatorResource",
            Self::Disabled => "Disabled",
            Self::Frozen { .. } => "Frozen",
            Self::Quarantined { .. } => "Quarantined",
            Self::Held => "Held",
            Self::NotLabelled => "NotLabelled",
            Self::NoShadow => "NoShadow",
            Self::Deleting => "Deleting",
            Self::NodeNotReady => "NodeNotReady",
            Self::NoReport => "NoReport",
            Self::AgentBehind => "AgentBehind",
            Self::RefreshFails { .. } => "RefreshFails",
            Self::HostArmedByOther => "HostArmedByOther",
            Self::BackOff { .. } => "BackOff",
            Self::Queued { .. } => "Queued",
            Self::Staging => "Staging",
            Self::ReadingPods => "ReadingPods",
            Self::DrainRefused { .. } => "DrainRefused",
            Self::Draining { .. } => "Draining",
            Self::DrainBlocked { .. } => "DrainBlocked",
            Self::AwaitingAgent => "AwaitingAgent",
            Self::AwaitingReboot => "AwaitingReboot",
            Self::AwaitingReady => "AwaitingReady",
            Self::Soaking { .. } => "Soaking",
            Self::NodeNotBack { .. } => "NodeNotBack",
            Self::DisarmPending => "DisarmPending",
            Self::Acting => "Acting",
        }
    }

    /// Whether the reason is the node's own and lasting, so that it stands in the shadow's `Blocked` condition. Reasons
    /// that the fleet shares stand once, in the operator's status.
    pub const fn blocks(&self) -> bool {
        matches!(
            self,
            Self::Held
                | Self::RefreshFails { .. }
                | Self::HostArmedByOther
                | Self::BackOff { .. }
                | Self::DrainRefused { .. }
                | Self::DrainBlocked { .. }
                | Self::NodeNotBack { .. }
                | Self::DisarmPending
        )
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpToDate => f.write_str("the host offers nothing newer"),
            Self::NoOperatorResource => {
                f.write_str("the BottlerocketUpdateOperator named default is missing; create it to start updates")
            }
            Self::Disabled => f.write_str("updates are switched off (spec.enabled of the operator's resource)"),
            Self::Frozen { version } => write!(f, "the rollout is frozen: {version} has failed too often"),
            Self::Quarantined { version } => write!(f, "{version} has failed too often"),
            Self::Held => write!(f, "the node carries the annotation {}", models::names::HOLD_ANNOTATION),
            Self::NotLabelled => write!(
                f,
                "the node lacks the label {}={}",
                models::names::INTERFACE_LABEL,
                models::names::INTERFACE_VERSION
            ),
            Self::NoShadow => f.write_str("the node has no shadow yet"),
            Self::Deleting => f.write_str("the node is being deleted"),
            Self::NodeNotReady => f.write_str("the node is not Ready"),
            Self::NoReport => f.write_str("the agent has not reported since the node's last boot; does its pod run?"),
            Self::AgentBehind => f.write_str("the agent has not confirmed the last order; does its pod run?"),
            Self::RefreshFails { message } => write!(f, "the host cannot look for updates: {message}"),
            Self::HostArmedByOther => {
                f.write_str("somebody else armed an update on the host; reboot it or disarm it there")
            }
            Self::BackOff { until, reason } => {
                write!(f, "the last attempt failed ({reason}); the next one is due at {until}")
            }
            Self::Queued { position } => write!(f, "its turn has not come: {position} before it"),
            Self::Staging => f.write_str("the host downloads the image"),
            Self::ReadingPods => f.write_str("its pods are being looked at"),
            Self::DrainRefused { pod, count } => {
                write!(
                    f,
                    "{count} pod(s) without a controller would be lost by a drain, {pod} first; delete or move them"
                )
            }
            Self::Draining { left } => write!(f, "{left} pod(s) are on their way out"),
            Self::DrainBlocked { pod, budget: Some(budget), left } => {
                write!(f, "the PodDisruptionBudget {budget} does not let {pod} go; {left} pod(s) left")
            }
            Self::DrainBlocked { pod, budget: None, left } => write!(f, "{pod} cannot be evicted; {left} pod(s) left"),
            Self::AwaitingAgent => f.write_str("the agent has not asked for its go yet"),
            Self::AwaitingReboot => f.write_str("the host reboots"),
            Self::AwaitingReady => f.write_str("the node is back and not Ready yet"),
            Self::Soaking { until } => write!(f, "the node is watched until {until}"),
            Self::NodeNotBack { reason } => {
                write!(
                    f,
                    "the attempt failed ({reason}) after its go; the node is released once it is certain that it does not reboot any more"
                )
            }
            Self::DisarmPending => f.write_str("the agent has not confirmed that nothing of ours is armed on the host"),
            Self::Acting => f.write_str("an action is under way"),
        }
    }
}
