//! The message of each reason: the facts, and what a user can do.

use std::fmt;

use jiff::Timestamp;

use super::Wait;
use crate::rules::Refusal;

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
                "no pod of the agent on the node is Ready, so that the shadow may show an old state of the host; see kubectl get pods -A -o wide -l {}={}",
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
            Self::Queued { position, behind: None } => write!(f, "{position} node(s) are updated before this one"),
            Self::Queued { position: 0, behind: Some(node) } => write!(f, "its turn comes next, after {node}"),
            Self::Queued { position, behind: Some(node) } => {
                write!(f, "{position} node(s) are updated before this one, the last of them {node}")
            }
            Self::BudgetUsedUp { node, count, limit } => write!(
                f,
                "{count} node(s) are not Ready, {node} first, and maxUnavailable lets {limit} be out of service in all"
            ),
            Self::Staging => f.write_str("the host downloads the image"),
            Self::ReadingPods => f.write_str("its pods are being read"),
            Self::DrainRefused { why: Refusal::Unread, pod, count } => write!(
                f,
                "{pod} belongs to a DaemonSet that cannot be read ({count} pod(s) like that); the controller's log has the reason, \
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
            Self::Draining { left } => write!(f, "{left} pod(s) are being evicted or are terminating"),
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
                write!(f, "{version} has not been known for as long as spec.version.minimumAge requires{}", Until("it will be at", until))
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
                write!(f, "{node} of zone '{zone}' is out of service; one zone is updated at a time")
            }
            Self::GroupFull { group } => write!(f, "the budget of node group {group} is used up"),
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
            Self::AskingExpressions { name } => write!(f, "the query of expression {name} has no result yet"),
            Self::ExpressionFires { name, series, .. } => write!(f, "the expression {name} returned {series}"),
            Self::ExpressionFails { name, message, .. } => {
                write!(f, "the query of expression {name} failed: {message}")
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
                 and it is created again with attempt 0",
            ),
            Self::Acting => f.write_str("an action is under way"),
        }
    }
}
