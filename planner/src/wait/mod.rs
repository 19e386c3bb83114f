//! The reasons why a node waits: one enum, the source of conditions, Events, metrics, the operator's status and
//! `docs/waiting.md`.

mod ends;
mod reason;
mod text;
mod unfinished;

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::names;
use models::operator::UnwellSpan;
use models::reason::FailureReason;
use semver::Version;
use strum::EnumDiscriminants;

pub use ends::{DENIED_FOR_GOOD, StepRequest, end_in};
pub(crate) use ends::{HAS_UNTIL, RETRIED_UNTIL};
pub use reason::{Property, WaitsFor};
pub(crate) use text::{BEFORE_RESUME, request, resume};
pub use text::{COUNTS_AGAIN, alone, gone, node_name, not_ready, without_command};
pub use unfinished::UnfinishedEviction;

use crate::rules::Refusal;

/// Returns a look-up of the reasons why nodes wait. The nodes are asked about in the order of their names: one walk over both
/// takes less than a search for each.
pub(crate) fn in_order<'w>(waits: &'w BTreeMap<String, Wait>) -> impl FnMut(&str) -> Option<&'w Wait> {
    let mut waits = waits.iter().peekable();
    move |name| {
        while waits.next_if(|(other, _)| other.as_str() < name).is_some() {}
        waits.next_if(|(other, _)| *other == name).map(|(_, wait)| wait)
    }
}

/// The reason why a node is not updated now, with the facts. Its text names the fact, the object, and what a user can do.
#[derive(Clone, Debug, PartialEq, thiserror::Error, EnumDiscriminants)]
#[strum_discriminants(
    name(WaitReason),
    derive(Hash, PartialOrd, Ord),
    derive(strum::Display, strum::EnumCount, strum::EnumIter, strum::EnumString, strum::IntoStaticStr),
    strum(const_into_str),
    doc = "A reason why a node is not updated now, without its facts: the word in conditions, Events and metrics."
)]
pub enum Wait {
    /// The node runs the newest version that its host offers.
    #[error("the host offers nothing newer")]
    UpToDate,
    #[error(
        "the BottlerocketUpdateOperator named default does not exist in the operator's namespace; create it to start updates"
    )]
    NoOperatorResource,
    /// Pods of the earlier operator exist.
    #[error("{}", text::earlier_operator(.pods, *.count))]
    EarlierOperatorRunning {
        /// The first few of them.
        pods: Vec<String>,
        count: usize,
    },
    /// A host whose reboot the earlier operator has requested may still be going down.
    #[error(
        "the earlier bottlerocket-update-operator is gone; waiting until {until:.0} for hosts whose reboot it has requested"
    )]
    EarlierOperatorGone { until: Timestamp },
    #[error("updates are disabled (spec.enabled of bruo default is false)")]
    Disabled,
    /// Failures have stopped the rollout.
    #[error("the rollout is frozen: {version} has failed too often")]
    Frozen { version: Version },
    #[error("{version} has failed too often")]
    Quarantined { version: Version },
    #[error("{}", text::held(*.until, .reason.as_deref()))]
    Held {
        /// The time at which the hold ends; `None`: when its annotation is removed.
        until: Option<Timestamp>,
        /// The reason that the user gave.
        reason: Option<String>,
    },
    #[error("another user or controller has cordoned the node; uncordon it, or set spec.drain.cordonedNodes to Update")]
    Cordoned,
    #[error("an autoscaler or a user is removing the node (taint {taint})")]
    BeingRemoved { taint: String },
    #[error("the node lacks the label {}={}", names::INTERFACE_LABEL, names::INTERFACE_VERSION)]
    NotLabelled,
    #[error("the node has no shadow yet")]
    NoShadow,
    #[error(
        "this version of the operator cannot read the node's shadow; the condition Degraded of bruo default says what to do"
    )]
    ShadowUnreadable,
    #[error("the node is being deleted")]
    Deleting,
    /// The node is not Ready for another reason than an update.
    #[error("the node is not Ready")]
    NodeNotReady,
    /// The agent has not reported in the node's current boot.
    #[error("the agent has not reported since the node's last boot; does its pod run?")]
    NoReport,
    #[error(
        "no pod of the agent on the node is Ready, so that the shadow may show an old state of the host; \
             see kubectl get pods -A -o wide -l {}={}",
        names::COMPONENT_LABEL,
        names::AGENT
    )]
    AgentNotReady,
    #[error(
        "no pod of the web API is Ready, so that no agent can report and no node reboots; \
             see kubectl get pods -A -l {}={}",
        names::COMPONENT_LABEL,
        names::APISERVER
    )]
    WebApiNotReady,
    #[error("the agent has not confirmed the desired state; does its pod run?")]
    AgentNotSynced,
    #[error("the host cannot check for updates: {message}")]
    RefreshFails { message: String },
    #[error(
        "an image is armed on the host that its agent has no record of (another client, or this operator before the \
             node's shadow was deleted); reboot the host, disarm it there, or let the operator disarm it: \
             kubectl annotate brs brs-<node> -n <namespace> --overwrite {}=<any new value>",
        names::RETRY_ANNOTATION
    )]
    HostArmedByOther,
    /// The host does not answer its agent, or with a state that the agent does not know.
    #[error("the agent cannot use the update API of its host ({reason}): {message}")]
    HostNotUsable {
        /// The reason of the condition `HostReachable`.
        reason: String,
        message: String,
    },
    /// A command has been running on the host for long, as its agent reports it.
    #[error("the host is busy: {message}")]
    HostBusy { message: String },
    /// The last attempt ended for this reason. The next one is not due, or the next verification of this version, which the node runs without a proof.
    #[error("{}", text::back_off(*.until, .reason, .unproven.as_ref()))]
    BackOff { until: Timestamp, reason: String, unproven: Option<Version> },
    /// Other nodes come first.
    #[error("{}", text::queued(*.position, .behind.as_deref()))]
    Queued {
        /// The number of nodes before it.
        position: usize,
        /// The node before it, or else one that has a slot.
        behind: Option<String>,
    },
    /// Nodes that are out of service without the operator have used the budget up.
    #[error("{}", text::used_up(.group.as_deref(), .node, .why, *.count, *.limit, *.until))]
    BudgetUsedUp {
        /// The node group whose budget it is; `None`: that of all nodes.
        group: Option<String>,
        /// The first of them.
        node: String,
        /// The cause for which it is out of service.
        why: &'static str,
        count: usize,
        limit: usize,
        /// The time from which enough of them are ignored.
        until: Option<Timestamp>,
    },
    #[error("the host downloads the image")]
    Staging,
    #[error("its pods are being read")]
    ReadingPods,
    /// Pods that may not be evicted prevent the drain.
    #[error("{}", text::drain_refused(*.why, .pod, *.count))]
    DrainRefused {
        /// The reason for the first one.
        why: Refusal,
        pod: String,
        count: usize,
    },
    /// Hooks have not answered.
    #[error("waiting until {until:.0} for hook(s) {} to answer the request {request} on the Node", .hooks.join(", "))]
    AwaitingHook {
        hooks: Vec<String>,
        request: String,
        /// The first of their deadlines.
        until: Timestamp,
    },
    /// The node is removed from external load balancers, and open connections may end.
    #[error("out of external load balancers; the drain begins at {until:.0}")]
    LeavingLoadBalancer { until: Timestamp },
    /// Volumes of deleted pods are still attached.
    #[error("{count} volume(s) are still attached")]
    DetachingVolumes { count: usize },
    #[error("{left} pod(s) are being evicted or are terminating")]
    Draining { left: usize },
    /// Pods cannot be evicted now.
    #[error("{}; {left} pod(s) left", text::drain_blocked(.pod, .budget.as_deref(), .message))]
    DrainBlocked {
        pod: String,
        /// The budget that refuses, if one does.
        budget: Option<String>,
        /// The answer of the API server, or that there is none.
        message: String,
        left: usize,
    },
    #[error("the agent has not requested its permit yet")]
    AwaitingAgent,
    /// The rehearsal permit of a drill is issued.
    #[error("the agent has not verified the permit of its drill yet")]
    AwaitingRehearsal,
    /// The permit is issued.
    #[error("the host reboots")]
    AwaitingReboot,
    #[error("the node is back and not Ready yet")]
    AwaitingReady,
    #[error("the node has to stay healthy until {until:.0}")]
    Soaking { until: Timestamp },
    #[error(
        "the attempt failed ({reason}) after its permit; \
             the node is released in another boot, or once it is Ready and it is certain that it does not reboot any more"
    )]
    NodeNotReturned { reason: FailureReason },
    /// The host has not confirmed that nothing of the operator is armed, or may still go down by a permit.
    #[error("it is not certain yet that the host does not reboot any more")]
    DisarmPending,
    /// The operator's resource holds no valid policy: what a user wants is not known.
    #[error("the spec of the BottlerocketUpdateOperator is invalid; its condition Degraded names the fields")]
    PolicyInvalid,
    #[error("no window is open{}", text::at("the next one opens at", *.opens))]
    WindowClosed {
        /// The time at which it opens; `None`: never, as far as can be foreseen.
        opens: Option<Timestamp>,
    },
    #[error("nothing starts on this day{}", text::at("nodes may start at", *.ends))]
    Blackout { ends: Option<Timestamp> },
    #[error("{version} has not been known for as long as spec.version.minimumAge requires{}",
            text::at("it will be at", *.until))]
    TooYoung {
        version: Version,
        /// The time at which it is old enough; `None`: too few nodes have been offered it.
        until: Option<Timestamp>,
    },
    /// Policy excludes the version by this entry.
    #[error("{version} is excluded by the entry '{rule}' of spec.version.exclude")]
    Excluded { version: Version, rule: String },
    /// The host does not offer the target version.
    #[error("the host offers no version for spec.version.target '{target}'{}", text::newest_offer(.newest.as_ref()))]
    NotOffered {
        target: String,
        /// The newest version that the host offers.
        newest: Option<Version>,
    },
    #[error("other nodes are offered {version}; this node's host was not, most likely since its wave has not come")]
    WaveNotCome { version: Version },
    #[error(
        "the host is offered {version} and does not choose it: its updates.version-lock is not latest; \
             set it to latest there"
    )]
    NotChosen { version: Version },
    /// The host's version lock is being set.
    #[error("the host is being pinned to {version}")]
    Pinning { version: Version },
    #[error(
        "another client set the host's updates.version-lock to {lock}; \
             set it to latest there to let the policy apply"
    )]
    LockedByOther { lock: String },
    /// The node is under resource pressure, as this condition of it reports.
    #[error("the node reports {condition}")]
    NodePressure { condition: String },
    #[error("{}", text::unhealthy(*.count, *.limit, .nodes))]
    UnhealthyNodes { count: usize, limit: usize, nodes: Vec<String> },
    #[error("{node} of zone '{zone}' is out of service; one zone is updated at a time")]
    ZoneBusy { zone: String, node: String },
    #[error(
        "{node} of the control plane is out of service or not Ready; control-plane nodes are updated one at a time"
    )]
    ControlPlaneBusy { node: String },
    /// Nodes under way have used the budget of a node group up, with others that are out of service.
    #[error("{}", text::group_full(.group, .node.as_deref()))]
    GroupFull {
        group: String,
        /// One of those under way.
        node: Option<String>,
    },
    #[error("{count} pod(s) on the node are not Ready, {pod} first")]
    PodsNotReady { pod: String, count: usize },
    /// A budget allows nothing although all its pods are healthy.
    #[error("the PodDisruptionBudget {budget} allows no disruption of {pod} although all its pods are healthy{}", text::never(*.until, *.by_reboot))]
    BudgetNeverAllows {
        pod: String,
        budget: String,
        /// The time from which it is asked again, if its pods stayed when it was asked; `None`: policy waits for it, or the reboot ends it.
        until: Option<Timestamp>,
        /// True for a pod that the reboot ends: a static one, or one that came back to the cordoned node.
        by_reboot: bool,
    },
    /// A node with guarded pods comes after those without.
    #[error(
        "nodes without such pods come first: the PodDisruptionBudget {budget} allows no disruption of {pod} now, although all its pods \
             are healthy; in its turn, this node is cordoned, and such pods are evicted first and alone"
    )]
    GuardedPods { pod: String, budget: String },
    /// Other nodes use up what a budget allows, and wait for more.
    #[error("pods of {node} use up the disruptions that the PodDisruptionBudget {budget} allows, as {pod} would")]
    BudgetBusy { pod: String, budget: String, node: String },
    /// Pods of a budget are broken, so that it allows nothing.
    #[error(
        "the PodDisruptionBudget {budget} allows no disruption of {pod} before it has {count} more healthy pod(s), here or on other \
             nodes{}", text::unfinished(.eviction.as_ref())
    )]
    BudgetUnhealthy {
        pod: String,
        budget: String,
        /// Number of further pods that have to be healthy.
        count: i32,
        /// The eviction for which it counts a pod as gone that is still there.
        eviction: Option<UnfinishedEviction>,
    },
    /// Kubernetes cannot count the pods of a budget.
    #[error(
        "Kubernetes has no count of the pods of the PodDisruptionBudget {budget}, so that nothing shows that it lets {pod} go: {message}"
    )]
    BudgetSyncFailed { pod: String, budget: String, message: String },
    /// Pods were deleted and do not end.
    #[error(
        "{count} pod(s) on the node were deleted and do not end, {pod} first; see its finalizers, its volumes and its preStop \
             hook"
    )]
    PodsTerminating { pod: String, count: usize },
    /// Pods that autoscalers are not to move run on the node.
    #[error(
        "{count} pod(s) on the node are marked as not to be moved (karpenter.sh/do-not-disrupt or \
             cluster-autoscaler.kubernetes.io/safe-to-evict), {pod} first, and spec.drain.markedPods is Wait"
    )]
    MarkedPods { pod: String, count: usize },
    #[error("{pod} is selected by more than one PodDisruptionBudget ({}), so that the eviction API refuses it; \
             let only one of them select it", .budgets.join(", "))]
    MultipleBudgets { pod: String, budgets: Vec<String> },
    #[error("the expression {name} has no result yet")]
    ExpressionsPending { name: String },
    /// A query that has to return nothing returned something, or a check of objects is false.
    #[error("the expression {name} returned {series}")]
    ExpressionFires {
        name: String,
        /// The first series that it returned, or that it is false, and for which object.
        series: String,
        /// True if it is the same for all nodes.
        shared: bool,
    },
    #[error("the expression {name} has no result: {message}")]
    ExpressionFails {
        name: String,
        message: String,
        /// True if it is the same for all nodes.
        shared: bool,
    },
    /// The previous canary step is not passed.
    #[error("canary step {step} {}", text::canary(*.until, .approval.as_deref(), .nodes, *.none_runs))]
    CanaryStep {
        /// The step, from 1.
        step: usize,
        /// The end of its soak, if it waits for that.
        until: Option<Timestamp>,
        /// The name of the step in an approval, if a user has to approve it.
        approval: Option<String>,
        /// Nodes of the step that are under way, or have proven it and are not Ready, the first few; where a user has to approve it, those that
        /// were verified without pods of workloads.
        nodes: Vec<String>,
        /// True if no Ready node runs the version, in its soak and after it: autoscalers may have removed those that did.
        none_runs: bool,
    },
    /// The places of a canary step are used up, and some of them have proven nothing about the version.
    #[error("canary step {step} {}", text::unproven(.approval, .nodes))]
    StepUnproven {
        /// The step, from 1.
        step: usize,
        /// The name of the step in an approval that accepts them.
        approval: String,
        /// Nodes without proof, the first few, each with the end of its attempt, or with that of its proof.
        nodes: Vec<String>,
    },
    /// The places of a canary step are used up, and nodes have failed on the version.
    #[error("canary step {step} {}", text::step_failed(.nodes))]
    StepFailed {
        /// The step, from 1.
        step: usize,
        /// Nodes that have failed, the first few, each with the end of its attempt.
        nodes: Vec<String>,
    },
    /// Too many updates of the rollout have ended one after the other without a proof, or too many nodes have lost theirs.
    #[error("{}", text::braked(*.count, *.fallen, .nodes, *.until, .trial.as_deref()))]
    Braked {
        count: usize,
        /// The number of those among them that had proven the version.
        fallen: usize,
        /// The last few of the nodes, each with the end of its attempt, or with that of its proof.
        nodes: Vec<String>,
        /// The time from which another node is tried; `None`: a node has to prove the version that it runs.
        until: Option<Timestamp>,
        /// The node that is tried.
        trial: Option<String>,
    },
    /// Many nodes have become not Ready or short of a resource at once, also nodes that were not being updated.
    #[error(
        "{ill} of {compared} nodes that are not being updated have become not Ready or short of a resource within a day, {} first: that is \
             trouble of the cluster and no evidence against a version", .nodes.join(", ")
    )]
    ClusterUnwell {
        ill: i64,
        compared: i64,
        /// The first few of them.
        nodes: Vec<String>,
    },
    /// No node has proven the version yet: `node` goes first, if one is under way. The host of `not_back`, whose attempt is over, may still reboot.
    #[error("{}", text::first_node(.node.as_deref(), .not_back.as_deref()))]
    FirstNode { node: Option<String>, not_back: Option<String> },
    #[error("the leader runs on this node: other nodes come first, and then another replica leads")]
    HandingOver,
    #[error("{count} pod(s) on the updated node are not healthy yet, {pod} first ({why})")]
    Settling { pod: String, why: String, count: usize },
    /// The updated node is Ready, and something that it had before its drain is not back.
    #[error("{}", text::not_usable(.missing))]
    NodeNotUsable {
        /// The things that are missing or new, each as a clause.
        missing: Vec<String>,
    },
    #[error(
        "spec.attempt or the last recorded attempt is the highest number there is; delete the BottlerocketShadow, \
             and it is created again with attempt 0"
    )]
    AttemptsExhausted,
    #[error("an action is under way")]
    Acting,
    /// The next action has failed again and again.
    #[error("what is due has failed since {since:.0}, and is tried again within 30 s or in turn with others: {error}")]
    ActionFails { since: Timestamp, error: String },
}

/// The number of pods of the earlier operator that a message names.
const NAMED_PODS: usize = 3;

impl Wait {
    /// Returns the wait for trouble of the cluster.
    pub(crate) fn of_unwell(span: &UnwellSpan) -> Self {
        Self::ClusterUnwell { ill: span.ill, compared: span.compared, nodes: span.nodes.clone() }
    }

    /// Returns the reason why every node waits while these pods of the earlier operator exist; `None` without any.
    pub fn for_earlier_operator(pods: &[String]) -> Option<Self> {
        let named = pods.iter().take(NAMED_PODS).cloned().collect();
        (!pods.is_empty()).then_some(Self::EarlierOperatorRunning { pods: named, count: pods.len() })
    }

    /// Returns the reason without its facts.
    pub fn reason(&self) -> WaitReason {
        self.into()
    }

    /// Returns the reason as one fixed word.
    pub fn as_str(&self) -> &'static str {
        self.reason().as_str()
    }

    /// Returns whether nothing is done at all because of the earlier operator.
    pub fn pauses(&self) -> bool {
        matches!(self, Self::EarlierOperatorRunning { .. } | Self::EarlierOperatorGone { .. })
    }

    /// Returns whether a node waits for other nodes alone. A node whose attempt has begun has its image then.
    pub fn is_for_others(&self) -> bool {
        matches!(self, Self::Queued { .. } | Self::FirstNode { .. })
    }

    /// Returns whether the reason is the node's own and lasting, so that the shadow's `Blocked` condition shows it.
    /// Reasons that the fleet shares are shown once, in the operator's status.
    pub fn blocks(&self) -> bool {
        let shared =
            matches!(self, Self::ExpressionFires { shared: true, .. } | Self::ExpressionFails { shared: true, .. });
        self.reason().blocks() && !shared
    }

    /// Returns whether a recorded message of the same reason is as good as a new one: it is the same, except for the value of an
    /// expression, for numbers in the cause for which one has no result, and for what changes with each restart of a pod that settles.
    pub fn is_recorded(&self, message: &str) -> bool {
        let text = self.to_string();
        match self {
            Self::ExpressionFires { series, .. } => {
                text.strip_suffix(series.as_str()).is_some_and(|start| message.starts_with(start))
            }
            // Another cause has another remedy. The name of the expression, in which digits count, is before it.
            Self::ExpressionFails { message: cause, .. } => {
                let recorded = text.strip_suffix(cause.as_str()).and_then(|start| message.strip_prefix(start));
                recorded.is_some_and(|recorded| text::is_same_cause(recorded, cause))
            }
            Self::Settling { pod, .. } => message.contains(&format!(", {pod} first (")),
            // The rest of it may differ each time.
            Self::ActionFails { since, .. } => message.contains(&format!("{since:.0}")),
            // Each pod that leaves changes the text: `phase/blockers.rs` writes it again with the pods, or once a minute.
            Self::DrainBlocked { .. } => true,
            _ => message == text,
        }
    }
}

#[cfg(test)]
mod tests;
