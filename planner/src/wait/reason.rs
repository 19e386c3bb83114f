//! The properties of each reason: what the node waits for, and what ends it.

use strum::EnumCount as _;

use super::WaitReason::{self, *};
use Property::{
    Blocks, Finding, FirstTime, Leaves, MarkedTime, MayEnd, OfFailures, OfOneNode, Passes, Pauses, Rests, Stuck,
};
use WaitsFor::{Expression, Host, Nodes, Nothing, Operator, Pods, Time, Turn, Update, User, Version};

/// The party whose next step a waiting node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum WaitsFor {
    /// No party: there is nothing to update.
    #[strum(to_string = "nothing")]
    Nothing,
    /// A user.
    #[strum(to_string = "a user")]
    User,
    /// The schedule, or the end of another interval.
    #[strum(to_string = "time")]
    Time,
    /// The node's turn: the budget, other nodes, or a canary step.
    #[strum(to_string = "its turn")]
    Turn,
    /// The version: the policy, or the versions that the host offers.
    #[strum(to_string = "the version")]
    Version,
    /// The node's host.
    #[strum(to_string = "the host")]
    Host,
    /// The agent or the web API.
    #[strum(to_string = "the operator's pods")]
    Operator,
    /// The health of nodes.
    #[strum(to_string = "nodes")]
    Nodes,
    /// The node's pods.
    #[strum(to_string = "pods")]
    Pods,
    /// An expression: Prometheus, or the objects that it is about.
    #[strum(to_string = "an expression")]
    Expression,
    /// The update itself, which has begun.
    #[strum(to_string = "the update")]
    Update,
}

/// Property of some reasons. What asks for one names no reason itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// It is the node's own and lasting, so that the shadow's `Blocked` condition shows it. Reasons that the fleet shares are shown once, in the
    /// operator's status.
    Blocks,
    /// A check of the node's pods or expressions finds it, which are read for the next nodes only: it stays until the next check. It blocks, too.
    Finding,
    /// It does not block, and concerns the node alone all the same, so that others are done without it.
    OfOneNode,
    /// The node is not to be updated.
    Rests,
    /// The node leaves the operator, and is not verified again.
    Leaves,
    /// The node's agent or host keeps it from any update.
    Stuck,
    /// Failures of other nodes hold the node until a user resolves them. A place without a proof, and a brake, may end by themselves: those
    /// nodes are verified again.
    OfFailures,
    /// It may end by itself within minutes: another node's drain may have moved pods of a budget, whose replacements are about to be Ready; a
    /// host, Prometheus or the API server may not answer for some seconds, as where they run on a node that is drained too.
    MayEnd,
    /// Of the reasons that rule a drain out: it is over once pods have gone on, without a user.
    Passes,
    /// An earlier wait goes on when it ends: what a node waits for is not looked at meanwhile, or is asked for again.
    Pauses,
    /// The first time in its message is that of its end.
    FirstTime,
    /// The time of its end is in its message after certain words: see [`end_in`](super::end_in).
    MarkedTime,
}

/// The party whose next step a waiting node needs, the properties of the reason, and what ends the wait, in the order of [`WaitReason`]: the
/// rows of `docs/waiting.md`.
static REASONS: [(WaitReason, WaitsFor, &[Property], &str); WaitReason::COUNT] = [
    (UpToDate, Nothing, &[Rests], "The host offers nothing newer."),
    (NoOperatorResource, User, &[], "Create the `BottlerocketUpdateOperator` named `default`."),
    (
        EarlierOperatorRunning,
        User,
        &[],
        "Its last pod, in any namespace, to be gone: [move over](install.md#over-the-earlier-operator).",
    ),
    (
        EarlierOperatorGone,
        Time,
        &[],
        "The time that hosts of the earlier operator have to go down (`spec.deadlines.shutdown`).",
    ),
    (Disabled, User, &[Pauses], "Set `spec.enabled` to true."),
    (
        Frozen,
        User,
        &[Pauses],
        "Find the cause in the condition `Frozen` of `bruo default`, then [resume](policy.md#requests), or continue with \
         nodes of another variant or architecture. Nodes that failed, come back late and prove the version end it, too.",
    ),
    (
        Quarantined,
        User,
        &[OfFailures],
        "A [resume](policy.md#requests). To skip the version, exclude it first. Nodes that failed, come back late and prove the version end it, \
         too.",
    ),
    (
        Held,
        User,
        &[Blocks, FirstTime],
        "The end of the hold, if it has one, or [unhold](plugin.md#hold-and-unhold): remove the annotation.",
    ),
    (Cordoned, User, &[Blocks], "Uncordon the node, or set `spec.drain.cordonedNodes: Update`."),
    (
        BeingRemoved,
        Nothing,
        &[Rests, Leaves],
        "The autoscaler or user that removes the node: it is deleted, or loses its taint.",
    ),
    (
        NotLabelled,
        Nothing,
        &[Rests, Leaves],
        "The label `bottlerocket.aws/updater-interface-version=2.0.0`, if the node is to be updated.",
    ),
    (NoShadow, Operator, &[], "The controller creates it; if it does not, see its log."),
    (ShadowUnreadable, User, &[], "Correct the shadow, as the condition `Degraded` of `bruo default` says."),
    (Deleting, User, &[OfOneNode], "The deletion of the node or of its shadow; a finalizer may keep it."),
    (NodeNotReady, Nodes, &[], "The node is Ready again: see its conditions."),
    (NoReport, Operator, &[], "The agent's first report in this boot: see the log of its pod on the node."),
    (AgentNotReady, Operator, &[Blocks, Stuck, MayEnd], "A Ready pod of the agent on the node: see its log."),
    (WebApiNotReady, Operator, &[MayEnd], "A Ready pod of the web API: see its log."),
    (AgentNotSynced, Operator, &[], "The agent's confirmation of the desired state: see the log of its pod."),
    (RefreshFails, Host, &[Blocks, Stuck], "A successful check for updates; the message is the host's own."),
    (
        HostArmedByOther,
        Host,
        &[Blocks],
        "Reboot the host, or disarm it, or let the operator disarm it: [retry](policy.md#requests).",
    ),
    (
        HostNotUsable,
        Host,
        &[Blocks, Stuck, MayEnd],
        "An answer of the host's update API to its agent; for a state that the agent does not know, an agent of a later version.",
    ),
    (
        HostBusy,
        Host,
        &[Blocks, Stuck, MayEnd],
        "The end of the command that runs on the host: see the journal of its `apiserver.service`.",
    ),
    (
        BackOff,
        Time,
        &[Blocks, FirstTime],
        "The end of the back-off, or, on a version without a proof, the next verification; or [retry](policy.md#requests).",
    ),
    (Queued, Turn, &[], "The nodes before it."),
    (
        BudgetUsedUp,
        Turn,
        &[],
        "Nodes that users have cordoned or that are not Ready, to be in service, `spec.ignoreUnavailableAfter` (for nodes that are not back \
         from their update: to be held or deleted), or a higher `maxUnavailable`, of `spec` or of the node group.",
    ),
    (Staging, Update, &[], "The download of the image."),
    (ReadingPods, Pods, &[Pauses], "The list of the node's pods."),
    (
        DrainRefused,
        Pods,
        &[Finding],
        "Delete or move the pod, let it [end](how-to/jobs.md#pods-without-a-controller) on a node that you cordon, or change \
         `spec.drain.barePods` or `.emptyDir`; for a DaemonSet that cannot be read, give the controller the right to.",
    ),
    (
        AwaitingHook,
        Update,
        &[Blocks, FirstTime],
        "The answer of the [hooks](hooks.md) that the message names, or their deadline.",
    ),
    (LeavingLoadBalancer, Update, &[], "The end of `spec.loadBalancer.leaveBeforeDrain`."),
    (DetachingVolumes, Update, &[], "The detachment of the volumes of deleted pods."),
    (Draining, Update, &[], "Pods that are being evicted or are terminating."),
    (DrainBlocked, Update, &[Blocks, MarkedTime], "The PodDisruptionBudget or the pod that the message names."),
    (AwaitingAgent, Update, &[], "The agent's request for its permit."),
    (AwaitingRehearsal, Update, &[], "The agent's report that it has verified the rehearsal permit of a drill."),
    (AwaitingReboot, Update, &[], "The reboot."),
    (AwaitingReady, Update, &[], "The node, to become Ready after the reboot."),
    (Soaking, Update, &[], "The end of `spec.health.after.soak`, and then a renewal of the node's Lease."),
    (
        NodeNotReturned,
        Update,
        &[Blocks],
        "The node in another boot, or its Lease renewed after the longest shutdown; else see its console, or \
         delete the Node if it is gone for good.",
    ),
    (
        DisarmPending,
        Host,
        &[Blocks],
        "The agent's confirmation that nothing of the operator is armed; for a claim without an attempt, \
         the longest time that a host may take to go down; for a Node that was registered again in the boot of its permit, \
         `spec.deadlines.reboot` and `.return`.",
    ),
    (PolicyInvalid, User, &[], "Correct the fields that the condition `Degraded` of `bruo default` names."),
    (WindowClosed, Time, &[Pauses], "The next window."),
    (Blackout, Time, &[Pauses], "The end of the blackout."),
    (TooYoung, Version, &[], "`spec.version.minimumAge`, since a second node was offered the version."),
    (Excluded, Version, &[Rests], "Another version, or a change of `spec.version.exclude`."),
    (NotOffered, Version, &[Rests], "The release of a version for `spec.version.target`, or another target."),
    (WaveNotCome, Version, &[Rests], "The node's wave of the release, or `spec.version.ignoreWaves: true`."),
    (NotChosen, User, &[OfOneNode], "Set `settings.updates.version-lock` to `latest` on the host."),
    (Pinning, Version, &[], "The agent sets the host's version lock."),
    (
        LockedByOther,
        User,
        &[Blocks],
        "Set `settings.updates.version-lock` to `latest` on the host; another client has locked it.",
    ),
    (NodePressure, Nodes, &[Blocks], "The node's condition that the message names."),
    (UnhealthyNodes, Nodes, &[], "Other nodes: no more of them not Ready than `spec.health.before.maxUnhealthyNodes`."),
    (ZoneBusy, Turn, &[], "The nodes of another zone: `spec.strategy.oneZoneAtATime`."),
    (
        ControlPlaneBusy,
        Turn,
        &[],
        "The other nodes of the control plane, all of them Ready: each could be the one that etcd cannot lose.",
    ),
    (GroupFull, Turn, &[], "The nodes of its group that are under way: `spec.nodeGroups[].maxUnavailable`."),
    (PodsNotReady, Pods, &[Finding, MayEnd, Passes], "The pods on the node: `spec.health.before.podsReady`."),
    (
        BudgetNeverAllows,
        Pods,
        &[Finding, FirstTime],
        "A PodDisruptionBudget that allows one disruption, or the end of its back-off; with `spec.drain.guardedPods: Wait`, also one more pod.",
    ),
    (GuardedPods, Turn, &[Passes], "The nodes without pods that a PodDisruptionBudget guards."),
    (BudgetBusy, Turn, &[], "The pods of the nodes before it that the same PodDisruptionBudget counts."),
    (
        BudgetUnhealthy,
        Pods,
        &[Finding, MayEnd, Passes, MarkedTime],
        "The pods of the PodDisruptionBudget: one more of them healthy than it requires, or all.",
    ),
    (
        BudgetSyncFailed,
        Pods,
        &[Finding],
        "A PodDisruptionBudget whose pods can be counted: the message has why they are not, mostly from its condition `DisruptionAllowed`.",
    ),
    (PodsTerminating, Pods, &[Finding, Passes], "The end of the pods, or `spec.drain.skipTerminatingAfter`."),
    (MarkedPods, Pods, &[Finding, Passes], "The end of these pods, or `spec.drain.markedPods: Evict`."),
    (MultipleBudgets, Pods, &[Finding], "One PodDisruptionBudget per pod: the eviction API refuses several."),
    (ExpressionsPending, Expression, &[Pauses], "The first answer, or after a soak one from after that."),
    (ExpressionFires, Expression, &[Finding], "An empty result of the query; for a check of objects, that it is true."),
    (
        ExpressionFails,
        Expression,
        &[Finding, MayEnd],
        "A result: see [expressions](expressions.md) and [checks of objects](object-checks.md).",
    ),
    (CanaryStep, Turn, &[], "The nodes of the canary step, its soak, or its [approval](policy.md#requests)."),
    (
        StepUnproven,
        User,
        &[],
        "The end of the cause that the message names: each node that is back on the version is verified again every hour, or by a \
         [retry](policy.md#requests); one with the end `NotReady` or `NodePressure` has to be in service again, and Ready \
         without pressure [for its soak or an hour](policy.md#canary-steps-and-images-ahead-of-time). Or an \
         [approval](policy.md#requests) with `--unproven`.",
    ),
    (
        StepFailed,
        User,
        &[OfFailures],
        "The cause of the failures that the message names; then [resume](policy.md#requests). A node that failed, comes back late and proves \
         the version frees its place, too.",
    ),
    (
        Braked,
        User,
        &[],
        "The cause of the ends that the message names; then [resume](policy.md#requests). A node that proves the version ends it, too: \
         one is tried after each pause, of 10 minutes first and 6 hours at most; none while a node runs the version without a proof, which \
         is verified again once an hour, or is not back from its reboot. One with the end `NotReady` or `NodePressure` that has \
         been in service on the version again [for its soak or an hour](policy.md#canary-steps-and-images-ahead-of-time) ends it, too.",
    ),
    (
        ClusterUnwell,
        Nodes,
        &[],
        "The nodes that the message names, Ready and without pressure, or deleted. It ends after 24 hours at the latest: nodes that have been ill \
         for longer say nothing about a version.",
    ),
    (
        FirstNode,
        Turn,
        &[],
        "The first node of the rollout, until it has proven the version; after a missed deadline while its host is up, until it is certain that it \
         does not reboot any more, or for `spec.deadlines.return`.",
    ),
    (
        HandingOver,
        Turn,
        &[],
        "The nodes under way, each for ten minutes at most; then another replica leads, if one is Ready.",
    ),
    (Settling, Update, &[Blocks], "The pods on the updated node, until `spec.health.after.timeout`."),
    (
        NodeNotUsable,
        Update,
        &[Blocks],
        "What the message names: devices, CSI drivers, pods of DaemonSets, static pods, evicted pods of ReplicaSets, the end of a taint, or \
         the agent's use of its host, until `spec.health.after.timeout`.",
    ),
    (AttemptsExhausted, User, &[Blocks], "Delete the shadow; it is created again with attempt 0."),
    (Acting, Update, &[], "A write that is under way."),
    (
        ActionFails,
        Operator,
        &[Blocks],
        "The API server, a right, or the policy or webhook that the message names, to let the controller do it: see its log.",
    ),
];

impl WaitReason {
    /// Returns the reason as one fixed word.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    /// Returns whether the reason has a property.
    pub fn is(self, property: Property) -> bool {
        REASONS[self as usize].2.contains(&property)
    }

    /// Returns whether a check of the node's pods or expressions finds the reason.
    pub fn is_check_finding(self) -> bool {
        self.is(Finding)
    }

    /// Returns whether the shadow's `Blocked` condition shows the reason.
    pub fn blocks(self) -> bool {
        self.is(Blocks) || self.is(Finding)
    }

    /// Returns the party whose next step the node needs, and what ends the wait.
    pub fn explanation(self) -> (WaitsFor, &'static str) {
        let (_, party, _, end) = REASONS[self as usize];
        (party, end)
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use strum::IntoEnumIterator;

    use super::*;

    #[test]
    fn wait_reasons_round_trip_through_their_names() {
        for reason in WaitReason::iter() {
            assert_eq!(WaitReason::from_str(reason.as_str()), Ok(reason));
            assert_eq!(REASONS[reason as usize].0, reason);
        }
        assert!(WaitReason::from_str("NoSuchReason").is_err());
    }
}
