//! The reasons why a node waits: one enum, the source of conditions, Events, metrics and the operator's status.

use std::fmt;

use jiff::Timestamp;
use models::reason::FailureReason;
use semver::Version;

use crate::rules::Refusal;

/// The reason why a node is not updated now, with the facts.
#[derive(Clone, Debug, PartialEq)]
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
    /// Policy has another target version by now.
    NotWanted {
        /// The version.
        version: Version,
        /// `spec.version.target`.
        target: String,
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
    /// Returns the reason as one fixed word.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::UpToDate => "UpToDate",
            Self::NoOperatorResource => "NoOperatorResource",
            Self::Disabled => "Disabled",
            Self::Frozen { .. } => "Frozen",
            Self::Quarantined { .. } => "Quarantined",
            Self::Held => "Held",
            Self::Cordoned => "Cordoned",
            Self::NotLabelled => "NotLabelled",
            Self::NoShadow => "NoShadow",
            Self::Deleting => "Deleting",
            Self::NodeNotReady => "NodeNotReady",
            Self::NoReport => "NoReport",
            Self::AgentNotReady => "AgentNotReady",
            Self::WebApiNotReady => "WebApiNotReady",
            Self::AgentBehind => "AgentBehind",
            Self::RefreshFails { .. } => "RefreshFails",
            Self::HostArmedByOther => "HostArmedByOther",
            Self::BackOff { .. } => "BackOff",
            Self::Queued { .. } => "Queued",
            Self::BudgetUsedUp { .. } => "BudgetUsedUp",
            Self::Staging => "Staging",
            Self::ReadingPods => "ReadingPods",
            Self::DrainRefused { .. } => "DrainRefused",
            Self::LeavingBalancer { .. } => "LeavingBalancer",
            Self::DetachingVolumes { .. } => "DetachingVolumes",
            Self::Draining { .. } => "Draining",
            Self::DrainBlocked { .. } => "DrainBlocked",
            Self::AwaitingAgent => "AwaitingAgent",
            Self::AwaitingReboot => "AwaitingReboot",
            Self::AwaitingReady => "AwaitingReady",
            Self::Soaking { .. } => "Soaking",
            Self::NodeNotBack { .. } => "NodeNotBack",
            Self::DisarmPending => "DisarmPending",
            Self::PolicyUnusable => "PolicyUnusable",
            Self::WindowClosed { .. } => "WindowClosed",
            Self::Blackout { .. } => "Blackout",
            Self::TooYoung { .. } => "TooYoung",
            Self::Excluded { .. } => "Excluded",
            Self::NotWanted { .. } => "NotWanted",
            Self::NotOffered { .. } => "NotOffered",
            Self::WaveNotCome { .. } => "WaveNotCome",
            Self::NotChosen { .. } => "NotChosen",
            Self::Pinning { .. } => "Pinning",
            Self::LockedByOther { .. } => "LockedByOther",
            Self::NodePressure { .. } => "NodePressure",
            Self::UnhealthyNodes { .. } => "UnhealthyNodes",
            Self::ZoneBusy { .. } => "ZoneBusy",
            Self::GroupFull { .. } => "GroupFull",
            Self::PodsNotReady { .. } => "PodsNotReady",
            Self::BudgetNeverAllows { .. } => "BudgetNeverAllows",
            Self::MultipleBudgets { .. } => "MultipleBudgets",
            Self::AskingExpressions { .. } => "AskingExpressions",
            Self::ExpressionFires { .. } => "ExpressionFires",
            Self::ExpressionFails { .. } => "ExpressionFails",
            Self::CanaryStep { .. } => "CanaryStep",
            Self::HandingOver => "HandingOver",
            Self::Settling { .. } => "Settling",
            Self::AttemptsExhausted => "AttemptsExhausted",
            Self::Acting => "Acting",
        }
    }

    /// Returns whether the reason is the node's own and lasting, so that the shadow's `Blocked` condition shows it.
    /// Reasons that the fleet shares are shown once, in the operator's status.
    pub const fn blocks(&self) -> bool {
        matches!(
            self,
            Self::Held
                | Self::Cordoned
                | Self::AgentNotReady
                | Self::RefreshFails { .. }
                | Self::HostArmedByOther
                | Self::BackOff { .. }
                | Self::DrainRefused { .. }
                | Self::DrainBlocked { .. }
                | Self::NodeNotBack { .. }
                | Self::DisarmPending
                | Self::LockedByOther { .. }
                | Self::NodePressure { .. }
                | Self::PodsNotReady { .. }
                | Self::BudgetNeverAllows { .. }
                | Self::MultipleBudgets { .. }
                | Self::ExpressionFires { shared: false, .. }
                | Self::ExpressionFails { shared: false, .. }
                | Self::Settling { .. }
                | Self::AttemptsExhausted
        )
    }

    /// Returns whether the reason comes from a check of the node's pods or expressions, which only the next nodes get.
    pub const fn is_of_a_look(reason: &str) -> bool {
        matches!(
            reason.as_bytes(),
            b"DrainRefused"
                | b"BudgetNeverAllows"
                | b"MultipleBudgets"
                | b"PodsNotReady"
                | b"ExpressionFires"
                | b"ExpressionFails"
        )
    }

    /// Returns whether a recorded message says the same, except for the value of an expression.
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

/// ` until <time>`, or nothing.
struct Until<'a>(&'a str, &'a Option<Timestamp>);

impl fmt::Display for Until<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.map_or(Ok(()), |at| write!(f, "; {} {at}", self.0))
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
            Self::Cordoned => f.write_str(
                "another user or controller has cordoned the node; uncordon it, or set spec.drain.cordonedNodes to Update",
            ),
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
            Self::AgentNotReady => write!(
                f,
                "no pod of the agent on the node is Ready, so that what the shadow says of the host may be old; see kubectl get pods -A -o wide -l {}={}",
                models::names::COMPONENT_LABEL,
                models::names::AGENT
            ),
            Self::WebApiNotReady => write!(
                f,
                "no pod of the web API is Ready, so that no agent can report and no node reboots; see kubectl get pods -n {} -l {}={}",
                models::names::SYSTEM_NAMESPACE,
                models::names::COMPONENT_LABEL,
                models::names::APISERVER
            ),
            Self::AgentBehind => f.write_str("the agent has not confirmed the desired state; does its pod run?"),
            Self::RefreshFails { message } => write!(f, "the host cannot check for updates: {message}"),
            Self::HostArmedByOther => {
                write!(
                    f,
                    "another client armed an update on the host; reboot it, disarm it there, or let the operator disarm it: kubectl annotate brs brs-<node> -n <namespace> {}=<any new value>",
                    models::names::RETRY_ANNOTATION
                )
            }
            Self::BackOff { until, reason } => {
                write!(f, "the last attempt failed ({reason}); the next one is due at {until}")
            }
            Self::Queued { position, behind: None } => write!(f, "its turn has not come: {position} before it"),
            Self::Queued { position: 0, behind: Some(node) } => write!(f, "its turn comes next, after {node}"),
            Self::Queued { position, behind: Some(node) } => {
                write!(f, "its turn has not come: {position} before it, the last of them {node}")
            }
            Self::BudgetUsedUp { node, count, limit } => write!(
                f,
                "{count} node(s) are not Ready, {node} first, and maxUnavailable lets {limit} be out of service in all"
            ),
            Self::Staging => f.write_str("the host downloads the image"),
            Self::ReadingPods => f.write_str("its pods are being read"),
            Self::DrainRefused { why: Refusal::Unread, pod, count } => write!(
                f,
                "{pod} belongs to a DaemonSet that cannot be read ({count} pod(s) like that); the controller's log says why, \
                 and deploy/manifests/brupop.yaml has the right that it needs"
            ),
            Self::DrainRefused { why, pod, count } => {
                let (what, field) = match why {
                    Refusal::Bare => ("has no controller and would be lost", "barePods"),
                    Refusal::Orphan | Refusal::Unread => {
                        ("belongs to a DaemonSet that is gone, and would be lost", "barePods")
                    }
                    Refusal::EmptyDir => ("has an emptyDir and would lose what is in it", "emptyDir"),
                };
                write!(
                    f,
                    "{pod} {what} by a drain ({count} pod(s) like that); delete or move it, or set spec.drain.{field} to Evict"
                )
            }
            Self::LeavingBalancer { until } => write!(f, "out of external load balancers; the drain begins at {until}"),
            Self::DetachingVolumes { count } => write!(f, "{count} volume(s) are still attached"),
            Self::Draining { left } => write!(f, "{left} pod(s) are on their way out"),
            Self::DrainBlocked { pod, budget: Some(budget), left, .. } => {
                write!(f, "the PodDisruptionBudget {budget} allows no disruption of {pod}; {left} pod(s) left")
            }
            Self::DrainBlocked { pod, budget: None, message, left } => {
                write!(f, "{pod} does not leave the node: {message}; {left} pod(s) left")
            }
            Self::AwaitingAgent => f.write_str("the agent has not requested its permit yet"),
            Self::AwaitingReboot => f.write_str("the host reboots"),
            Self::AwaitingReady => f.write_str("the node is back and not Ready yet"),
            Self::Soaking { until } => write!(f, "the node is watched until {until}"),
            Self::NodeNotBack { reason } => {
                write!(
                    f,
                    "the attempt failed ({reason}) after its permit; the node is released once it is certain that it does not reboot any more"
                )
            }
            Self::DisarmPending => f.write_str("the agent has not confirmed that its host is disarmed"),
            Self::PolicyUnusable => {
                f.write_str("the spec of the BottlerocketUpdateOperator is invalid; its condition Degraded names the fields")
            }
            Self::WindowClosed { opens } => write!(f, "no window is open{}", Until("the next one opens at", opens)),
            Self::Blackout { ends } => write!(f, "nothing starts on this day{}", Until("nodes may start at", ends)),
            Self::TooYoung { version, until } => {
                write!(f, "{version} has not been known for as long as policy asks{}", Until("it will be at", until))
            }
            Self::NotWanted { version, target } => {
                write!(f, "{version} is not a version that spec.version.target '{target}' leads to")
            }
            Self::Excluded { version, rule } => {
                write!(f, "{version} is excluded by the entry '{rule}' of spec.version.exclude")
            }
            Self::NotOffered { target, newest: Some(newest) } => write!(
                f,
                "the host offers no version for spec.version.target '{target}'; the newest that it offers is {newest}"
            ),
            Self::NotOffered { target, newest: None } => {
                write!(f, "the host offers no version for spec.version.target '{target}', nor any other")
            }
            Self::WaveNotCome { version } => {
                write!(f, "other nodes are offered {version}; this node's wave has not come")
            }
            Self::NotChosen { version } => write!(
                f,
                "the host is offered {version} and does not choose it: its updates.version-lock is not latest; set it to latest there"
            ),
            Self::Pinning { version } => write!(f, "the host is being pinned to {version}"),
            Self::LockedByOther { lock } => write!(
                f,
                "another client set the host's updates.version-lock to {lock}; set it to latest there to let the policy apply"
            ),
            Self::NodePressure { condition } => write!(f, "the node reports {condition}"),
            Self::UnhealthyNodes { count, limit } => {
                write!(f, "{count} nodes are not Ready, and policy allows {limit}")
            }
            Self::ZoneBusy { zone, node } => {
                write!(f, "{node} of zone '{zone}' is out of service; one zone goes at a time")
            }
            Self::GroupFull { group } => write!(f, "as many nodes of group {group} as may be are out of service"),
            Self::PodsNotReady { pod, count } => write!(f, "{count} pod(s) on the node are not Ready, {pod} first"),
            Self::BudgetNeverAllows { pod, budget } => write!(
                f,
                "the PodDisruptionBudget {budget} could never allow a disruption of {pod}, even with all its pods healthy; let it allow one disruption, or run one more pod"
            ),
            Self::MultipleBudgets { pod, budgets } => write!(
                f,
                "{pod} is selected by more than one PodDisruptionBudget ({}), so that the eviction API refuses it; let only one of them select it",
                budgets.join(", ")
            ),
            Self::AskingExpressions { name } => write!(f, "the expression {name} has not been answered yet"),
            Self::ExpressionFires { name, series, .. } => write!(f, "the expression {name} returned {series}"),
            Self::ExpressionFails { name, message, .. } => {
                write!(f, "the expression {name} cannot be asked: {message}")
            }
            Self::CanaryStep { step, approval: true, .. } => write!(
                f,
                "canary step {step} waits for approval: kubectl annotate bruo default -n <namespace> {}=<any new value>",
                models::names::APPROVE_STEP_ANNOTATION
            ),
            Self::CanaryStep { step, nodes, .. } if !nodes.is_empty() => {
                write!(f, "canary step {step} is not passed; it waits for {}", nodes.join(", "))
            }
            Self::CanaryStep { step, until, .. } => {
                write!(f, "canary step {step} is not passed{}", Until("its soak ends at", until))
            }
            Self::HandingOver => {
                f.write_str("the leader runs on this node: other nodes come first, and then another replica leads")
            }
            Self::Settling { pod, why, count } => {
                write!(f, "{count} pod(s) on the updated node are not healthy yet, {pod} first ({why})")
            }
            Self::AttemptsExhausted => f.write_str(
                "spec.attempt or the last recorded attempt is the highest number there is; delete the BottlerocketShadow, \
                 and it is made again with attempt 0",
            ),
            Self::Acting => f.write_str("an action is under way"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_ends_by_time_says_when() {
        let at = Timestamp::from_second(1_800_000_000).unwrap();
        let closed = Wait::WindowClosed { opens: Some(at) };
        assert_eq!(closed.ends(), Some(at));
        assert_eq!(closed.to_string(), "no window is open; the next one opens at 2027-01-15T08:00:00Z");
        assert_eq!(Wait::WindowClosed { opens: None }.to_string(), "no window is open");
        assert_eq!(Wait::Held.ends(), None);
    }

    #[test]
    fn version_that_is_not_taken_is_named_with_the_rule() {
        let version = || Version::new(1, 20, 5);
        for (wait, text) in [
            (
                Wait::Excluded { version: version(), rule: "1.20".into() },
                "1.20.5 is excluded by the entry '1.20' of spec.version.exclude",
            ),
            (
                Wait::NotWanted { version: version(), target: "1.19".into() },
                "1.20.5 is not a version that spec.version.target '1.19' leads to",
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
