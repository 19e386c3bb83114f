//! The reasons why a node waits: one enum, the source of conditions, Events, metrics, the operator's status and
//! `docs/waiting.md`.

#![expect(missing_docs, reason = "strum writes `into_str` without a comment")]

mod reason;
mod text;

use jiff::Timestamp;
use models::reason::FailureReason;
use semver::Version;
use strum::EnumDiscriminants;

pub use reason::WaitsFor;

use crate::rules::Refusal;

/// The reason why a node is not updated now, with the facts.
#[derive(Clone, Debug, PartialEq, EnumDiscriminants)]
#[strum_discriminants(
    name(WaitReason),
    derive(Hash, PartialOrd, Ord, strum::Display, strum::EnumIter, strum::EnumString, strum::IntoStaticStr),
    strum(const_into_str),
    doc = "A reason why a node is not updated now, without its facts: the word in conditions, Events and metrics."
)]
pub enum Wait {
    /// The node runs the newest version that its host offers.
    UpToDate,
    /// The operator's resource is missing, so nothing new starts.
    NoOperatorResource,
    /// Updates are disabled.
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
    /// A user holds the node.
    Held,
    /// Another user or controller has cordoned the node.
    Cordoned,
    /// The node no longer has the label.
    NotLabelled,
    /// The node has no shadow yet.
    NoShadow,
    /// The node is being deleted.
    Deleting,
    /// The node is not Ready for another reason than an update.
    NodeNotReady,
    /// The agent has not reported in the node's current boot.
    NoReport,
    /// No pod of the agent on the node is Ready.
    AgentNotReady,
    /// No pod of the web API is Ready.
    WebApiNotReady,
    /// The agent has not confirmed the last desired state.
    AgentBehind,
    /// The host cannot check for updates.
    RefreshFails {
        /// The host's message.
        message: String,
    },
    /// Another client armed an image on the host.
    HostArmedByOther,
    /// The last attempt failed; the next one is not due.
    BackOff {
        /// The time at which it is due.
        until: Timestamp,
        /// The reason why the last one failed.
        reason: String,
    },
    /// Other nodes come first.
    Queued {
        /// The number of nodes before it.
        position: usize,
        /// The node before it, or else one that has a slot.
        behind: Option<String>,
    },
    /// Nodes that are out of service without the operator have used the budget up.
    BudgetUsedUp {
        /// One of them.
        node: String,
        /// The number of them.
        count: usize,
        /// The number of nodes that may be out of service.
        limit: usize,
    },
    /// The host downloads the image.
    Staging,
    /// The node's pods are being read.
    ReadingPods,
    /// Pods that may not be evicted prevent the drain.
    DrainRefused {
        /// The reason for the first one.
        why: Refusal,
        /// One of them.
        pod: String,
        /// The number of them.
        count: usize,
    },
    /// The node is removed from external load balancers, and open connections may end.
    LeavingBalancer {
        /// The end of that time.
        until: Timestamp,
    },
    /// Volumes of deleted pods are still attached.
    DetachingVolumes {
        /// The number of these volumes.
        count: usize,
    },
    /// Pods are being evicted.
    Draining {
        /// The number of pods that are left.
        left: usize,
    },
    /// Pods cannot be evicted now.
    DrainBlocked {
        /// One of them.
        pod: String,
        /// The budget that refuses, if one does.
        budget: Option<String>,
        /// The answer of the API server, or that there is none.
        message: String,
        /// The number of pods that are left.
        left: usize,
    },
    /// The agent has not requested its permit yet.
    AwaitingAgent,
    /// The permit is issued, the host reboots.
    AwaitingReboot,
    /// The node has rebooted and is not Ready yet.
    AwaitingReady,
    /// The updated node is monitored.
    Soaking {
        /// The end of the soak.
        until: Timestamp,
    },
    /// The attempt failed after a permit; the node is released once the host cannot reboot any more.
    NodeNotBack {
        /// The reason of the failure.
        reason: FailureReason,
    },
    /// The host has not confirmed that nothing of the operator is armed.
    DisarmPending,
    /// The operator's resource has never held a valid policy.
    PolicyUnusable,
    /// No window is open.
    WindowClosed {
        /// The time at which it opens; `None`: never, as far as can be foreseen.
        opens: Option<Timestamp>,
    },
    /// No update starts on this day.
    Blackout {
        /// The time from which nodes may start again.
        ends: Option<Timestamp>,
    },
    /// The version has not been known for long enough.
    TooYoung {
        /// The version.
        version: Version,
        /// The time at which it is old enough; `None`: too few nodes have been offered it.
        until: Option<Timestamp>,
    },
    /// Policy excludes the version.
    Excluded {
        /// The version.
        version: Version,
        /// The entry of `spec.version.exclude` that covers it.
        rule: String,
    },
    /// The host does not offer the target version.
    NotOffered {
        /// `spec.version.target`.
        target: String,
        /// The newest version that the host offers.
        newest: Option<Version>,
    },
    /// Other nodes are offered the version; this one's wave has not come.
    WaveNotCome {
        /// The version.
        version: Version,
    },
    /// The host is offered a newer version and does not choose it because of its own version lock.
    NotChosen {
        /// The version.
        version: Version,
    },
    /// The host's version lock is being set.
    Pinning {
        /// The version.
        version: Version,
    },
    /// Another client has locked the host to a version.
    LockedByOther {
        /// The value of the lock.
        lock: String,
    },
    /// The node is under resource pressure.
    NodePressure {
        /// The condition that reports it.
        condition: String,
    },
    /// Too many nodes are not Ready.
    UnhealthyNodes {
        /// The number of them.
        count: usize,
        /// The number that is allowed.
        limit: usize,
    },
    /// Nodes of another zone are out of service.
    ZoneBusy {
        /// The zone.
        zone: String,
        /// One of them.
        node: String,
    },
    /// The budget of the node's group is used up.
    GroupFull {
        /// The group.
        group: String,
    },
    /// Pods on the node are not Ready.
    PodsNotReady {
        /// One of them.
        pod: String,
        /// The number of them.
        count: usize,
    },
    /// A PodDisruptionBudget would never allow the eviction of a pod.
    BudgetNeverAllows {
        /// The pod.
        pod: String,
        /// The budget.
        budget: String,
    },
    /// Several budgets select one pod, so that the eviction API refuses it.
    MultipleBudgets {
        /// The pod.
        pod: String,
        /// The budgets.
        budgets: Vec<String>,
    },
    /// An expression has no result yet.
    AskingExpressions {
        /// The expression.
        name: String,
    },
    /// An expression that has to return nothing returned something.
    ExpressionFires {
        /// The expression.
        name: String,
        /// The first series that it returned.
        series: String,
        /// True if it is the same for all nodes.
        shared: bool,
    },
    /// The query of an expression fails.
    ExpressionFails {
        /// The expression.
        name: String,
        /// The cause.
        message: String,
        /// True if it is the same for all nodes.
        shared: bool,
    },
    /// The previous canary step is not passed.
    CanaryStep {
        /// The step, from 1.
        step: usize,
        /// The end of its soak, if it waits for that.
        until: Option<Timestamp>,
        /// True if a user has to approve it.
        approval: bool,
        /// Nodes of the step that are under way, the first few.
        nodes: Vec<String>,
    },
    /// The leader runs on the node: it comes after all others, and another replica leads then.
    HandingOver,
    /// Pods on the updated node are not healthy yet.
    Settling {
        /// One of them.
        pod: String,
        /// The cause.
        why: String,
        /// The number of them.
        count: usize,
    },
    /// The number of the next attempt would exceed the maximum: another client has written it.
    AttemptsExhausted,
    /// An action is under way.
    Acting,
}

impl Wait {
    /// Returns the reason without its facts.
    pub fn reason(&self) -> WaitReason {
        self.into()
    }

    /// Returns the reason as one fixed word.
    pub fn as_str(&self) -> &'static str {
        self.reason().as_str()
    }

    /// Returns whether the reason is the node's own and lasting, so that the shadow's `Blocked` condition shows it.
    /// Reasons that the fleet shares are shown once, in the operator's status.
    pub fn blocks(&self) -> bool {
        let shared =
            matches!(self, Self::ExpressionFires { shared: true, .. } | Self::ExpressionFails { shared: true, .. });
        self.reason().blocks() && !shared
    }

    /// Returns whether a recorded message is the same, except for the value of an expression.
    pub fn is_recorded(&self, message: &str) -> bool {
        let text = self.to_string();
        match self {
            Self::ExpressionFires { series: value, .. } | Self::ExpressionFails { message: value, .. } => {
                text.strip_suffix(value.as_str()).is_some_and(|start| message.starts_with(start))
            }
            _ => message == text,
        }
    }

    /// Returns the time at which the reason may end without another event.
    pub fn ends(&self) -> Option<Timestamp> {
        match self {
            Self::BackOff { until, .. } | Self::Soaking { until } | Self::LeavingBalancer { until } => Some(*until),
            Self::WindowClosed { opens } => *opens,
            Self::Blackout { ends } => *ends,
            Self::TooYoung { until, .. } | Self::CanaryStep { until, .. } => *until,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_window_reports_its_opening_time() {
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let closed = Wait::WindowClosed { opens: Some(at) };
        assert_eq!(closed.ends(), Some(at));
        assert_eq!(closed.to_string(), "no window is open; the next one opens at 2027-01-15T08:00:00Z");
        assert_eq!(Wait::WindowClosed { opens: None }.to_string(), "no window is open");
        assert_eq!(Wait::Held.ends(), None);
    }

    #[test]
    fn message_names_rule_that_rejects_version() {
        let version = || Version::new(1, 20, 5);
        for (wait, text) in [
            (
                Wait::Excluded { version: version(), rule: "1.20".into() },
                "1.20.5 is excluded by the entry '1.20' of spec.version.exclude",
            ),
            (
                Wait::NotOffered { target: "1.21".into(), newest: Some(version()) },
                "the host offers no version for spec.version.target '1.21'; the newest that it offers is 1.20.5",
            ),
        ] {
            assert_eq!(wait.to_string(), text);
        }
    }
}
