//! The ends of attempts: one table, from which the Events, the log, the metrics, the reference and the plugin are made.

use std::fmt;

use serde::{Deserialize, Serialize};

use EndEvent::{DrillFailed, DrillPassed, UpdateFailed, UpdateWithdrawn, Updated};
use FailureClass::{Node, Nothing, Version};

/// Object that a failed attempt is counted against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Nothing: the attempt was ended from outside, so the node does not back off and the version keeps its budget.
    Nothing,
    /// The node backs off; others continue.
    Node,
    /// The version is to blame: counted once per node against its budget, and a spent budget freezes the rollout.
    Version,
}

/// Place of a node in a rollout after its attempt: what the attempt has shown about the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Proof {
    /// The node runs the version, and has stayed healthy for its soak.
    Proven,
    /// The node runs, or may run, the version, and has not shown that it is good.
    Unproven,
    /// The version is to blame for the failure.
    Failed,
    /// The node has no place: it was not taken to the version, or has left it.
    Free,
    /// A word of a newer version of the operator. It counts as not proven.
    #[serde(other)]
    Unknown,
}

/// Consequence of a reboot permit, as it is known when an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permitted {
    /// None was issued, and the host is in the boot in which its attempt began.
    Nothing,
    /// The host runs another version, and can no longer act on its permit.
    OtherVersion,
    /// The host runs the version.
    Version,
    /// The host has not rebooted, and may still do so.
    Reboot,
}

/// Announcement of the end of an attempt, by an Event and in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndEvent {
    /// The node is updated.
    Updated,
    /// The attempt failed.
    UpdateFailed,
    /// The attempt was ended from outside.
    UpdateWithdrawn,
    /// Nothing kept the drill from its end.
    DrillPassed,
    /// The drill ended early, or evictions were refused.
    DrillFailed,
}

impl EndEvent {
    /// Returns the reason of the Event, the log line, and whether both are warnings.
    const fn row(self) -> (&'static str, &'static str, bool) {
        match self {
            Updated => ("Updated", "node verified", false),
            UpdateFailed => ("UpdateFailed", "attempt failed", true),
            UpdateWithdrawn => ("UpdateWithdrawn", "attempt withdrawn", false),
            DrillPassed => ("DrillPassed", "drill passed", false),
            DrillFailed => ("DrillFailed", "drill ended", true),
        }
    }

    /// Returns the event of an update that ended for `reason`. One of a newer version of the operator is a failure.
    pub fn of_update(reason: &str) -> Self {
        End::of(reason).unwrap_or(&UNKNOWN).event
    }

    /// Returns the event of a drill that ended with `result`. All but one are failures, reasons to wait included.
    pub fn of_drill(result: &str) -> Self {
        if result == DRILL_PASSED { DrillPassed } else { DrillFailed }
    }

    /// Returns the reason of the Event.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns the text of the log line.
    pub const fn log_line(self) -> &'static str {
        self.row().1
    }

    /// Returns whether the Event and the log line are warnings.
    pub const fn is_warning(self) -> bool {
        self.row().2
    }
}

/// One way in which an attempt ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// One fixed word, as in resources, Events and metrics.
    pub reason: &'static str,
    /// The failure; `None` for the end of an attempt that went through.
    pub failure: Option<FailureReason>,
    /// Description, as a sentence.
    pub text: &'static str,
    /// Announcement of an update that ends so. A drill has its own: [`EndEvent::of_drill`].
    pub event: EndEvent,
    /// Object that it is counted against. A drill counts against nothing.
    pub class: FailureClass,
    /// True if it is for an agent to report. Any other word of an agent is read as `Unknown`, which counts against the node.
    pub by_agent: bool,
    /// Advice to a user, in Markdown, with links relative to `docs`; empty if there is nothing to do.
    pub advice: &'static str,
}

impl End {
    /// Returns the end of a word; `None` for one of a newer version of the operator, and for any other word.
    pub fn of(reason: &str) -> Option<&'static Self> {
        ENDS.iter().find(|end| end.reason == reason).copied()
    }

    /// Returns the place of the node in its rollout. There is no arm for the rest: a new consequence has to be decided.
    pub const fn proof(&self, permitted: Permitted) -> Proof {
        match (self.failure, self.class, permitted) {
            (None, _, Permitted::Version) => Proof::Proven,
            (
                Some(_),
                Version,
                Permitted::Nothing | Permitted::OtherVersion | Permitted::Version | Permitted::Reboot,
            ) => Proof::Failed,
            (None, _, Permitted::Nothing | Permitted::OtherVersion)
            | (Some(_), Node | Nothing, Permitted::Nothing | Permitted::OtherVersion) => Proof::Free,
            (None, _, Permitted::Reboot) | (Some(_), Node | Nothing, Permitted::Version | Permitted::Reboot) => {
                Proof::Unproven
            }
        }
    }

    /// Returns whether the end adds its node to the row of ends without a proof, which brakes a rollout. One from outside shows
    /// nothing about the rollout, unless it leaves a node on the version without a proof. Without a policy, good nodes have none either.
    pub const fn brakes(&self, proof: Proof) -> bool {
        match (proof, self.class) {
            (Proof::Unproven, Nothing) if matches!(self.failure, Some(FailureReason::Disabled)) => false,
            (Proof::Proven, _) | (Proof::Free, Nothing) => false,
            (Proof::Unproven | Proof::Failed | Proof::Unknown, _) | (Proof::Free, Node | Version) => true,
        }
    }

    /// Returns whether the node backs off.
    pub const fn backs_off(&self) -> bool {
        !matches!(self.class, Nothing)
    }

    /// Returns whether a node that runs the version is verified again as soon as it can be: it was not back from its reboot in time, or a user
    /// held it.
    pub const fn is_verified_at_once(&self) -> bool {
        use FailureReason::{Held, NotReadyAfterBoot, RebootTimedOut};
        matches!(self.failure, Some(Held | NotReadyAfterBoot | RebootTimedOut))
    }

    /// Returns whether only drills end so.
    pub const fn is_of_drills(&self) -> bool {
        matches!(self.event, DrillPassed | DrillFailed)
    }

    /// Returns whether a user released the node: then it is updated after others.
    pub fn is_release(&self) -> bool {
        self.failure == Some(FailureReason::ReleaseRequested)
    }
}

/// Any end of a newer version of the operator, and any that an agent reports and that is not for an agent to report.
const UNKNOWN: End = End {
    reason: "Unknown",
    failure: Some(FailureReason::Unknown),
    text: "The reason is one of a newer version of the operator, or not one for an agent to report.",
    event: UpdateFailed,
    class: Node,
    by_agent: false,
    advice: "",
};

/// Makes the table. The description of a row is the text of its end; the columns are the fields of [`End`].
macro_rules! ends {
    (
        $($(#[doc = $about:literal])+ $word:ident: $value:literal { $($field:ident: $of:expr),+ $(,)? })+
        failures
        $($(#[doc = $doc:literal])+ $name:ident { $($column:ident: $in:expr),+ $(,)? })+
    ) => {
        $($(#[doc = $about])+ pub const $word: &str = $value;)+

        /// Reason of a failed attempt.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum FailureReason {
            $($(#[doc = $doc])+ $name,)+
            /// A reason of a newer version of the operator.
            #[serde(other)]
            Unknown,
        }

        impl FailureReason {
            /// Returns the end of an attempt that fails for this reason.
            pub const fn end(self) -> &'static End {
                match self {
                    $(Self::$name => {
                        const END: End = End {
                            reason: stringify!($name),
                            failure: Some(FailureReason::$name),
                            text: concat!($($doc),+).trim_ascii_start(),
                            $($column: $in,)+
                        };
                        &END
                    })+
                    Self::Unknown => &UNKNOWN,
                }
            }
        }

        /// All ends that this version knows, each once.
        pub const ENDS: &[&End] = &[
            $(&End {
                reason: $word,
                failure: None,
                text: concat!($($about),+).trim_ascii_start(),
                $($field: $of,)+
            },)+
            $(FailureReason::$name.end(),)+
        ];
    };
}

ends! {
    /// The node runs the version and is healthy.
    UPDATED: "Updated" { event: Updated, class: Nothing, by_agent: false, advice: "" }
    /// Nothing in the drill would have kept an update from the node.
    DRILL_PASSED: "Passed" { event: DrillPassed, class: Nothing, by_agent: false, advice: "" }
    /// The drill went through, and evictions were refused.
    EVICTIONS_REFUSED: "EvictionsRefused" {
        event: DrillFailed, class: Nothing, by_agent: false,
        advice: "See the [budgets that block](how-to/blocking-budgets.md) the pods that the message names.",
    }

    failures

    /// The host could not refresh its list of updates.
    RefreshFailed {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Check the network between the host and its update repository; see the agent's log.",
    }
    /// The host does not offer the target version.
    VersionNotOffered {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Check that the update repository of the host has the version; see the agent's log.",
    }
    /// The host failed to download or write the image.
    PrepareFailed {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Check the network between the host and its update repository, and the space on its disk; see the agent's log.",
    }
    /// The host wrote another version than the target, or wrote nothing.
    WrongImageStaged {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Check the update repository of the host, and for another client of the host's API; see the agent's log.",
    }
    /// The host failed to arm the image.
    ActivateFailed {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "See the host's own message, and the agent's log.",
    }
    /// The host failed to disarm the image.
    DeactivateFailed {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "See the host's own message, and the agent's log.",
    }
    /// The host refused to reboot.
    RebootRefused {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "See the host's own message, and the agent's log.",
    }
    /// The desired state is the reboot, but nothing, or another image, is staged.
    NotStaged {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Check for another client of the host's API; see the agent's log.",
    }
    /// An image is armed on the host that its agent has no record of: another client's, or this operator's before the shadow was deleted.
    HostArmedByOther {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Reboot the host, or disarm it, or let the operator disarm it: [retry](policy.md#requests).",
    }
    /// Another client of the host's API disarmed the image after the agent had armed it.
    DisarmedByOther {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Find the other client, and stop it.",
    }
    /// The host booted the armed image and fell back to the old one.
    BootFellBack {
        event: UpdateFailed, class: Version, by_agent: true,
        advice: "See the host's console. Once the cause is known, [quarantine the version or try it again](runbook/BrupopRolloutFrozen.md).",
    }
    /// The host was rebooted during the attempt, and not by the operator.
    RebootedByOther {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Find out what rebooted the host: a user, another controller, or a crash (see its console).",
    }
    /// The host came back with neither the old nor the wanted version.
    BootedOtherVersion {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Find the other client that updates the host, and stop it.",
    }
    /// Staging took longer than policy allows.
    StageTimedOut {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See what the message names. Else check the network between the host and its update repository, or raise `spec.deadlines.stage`; see the agent's log.",
    }
    /// The drain took longer than policy allows.
    DrainTimedOut {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See the pods that the message names, and the [budget that blocks](how-to/blocking-budgets.md) them or the answer of the API server, as a webhook's. Where a budget lets pods go one at a time, raise `drain.timeout`.",
    }
    /// Pods that were asked first and alone stayed, as their PodDisruptionBudget guards them. No pod was evicted but those asked first.
    GuardedPodsStayed {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "The budget is asked again after a back-off, and other nodes go first. See the pods and the \
            [budgets that block](how-to/blocking-budgets.md) them: whatever runs the pods has to move them.",
    }
    /// A pod may not be evicted: the API server denies it, as a webhook or a missing right does, or policy now refuses it.
    DrainRefused {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See the answer of the API server in the message: an admission webhook denies it, or the controller has no right to create `pods/eviction`. \
            Where policy refuses the pod, delete or move it, or change `spec.drain.barePods` or `.emptyDir`.",
    }
    /// Pods came back to the cordoned node.
    PodsReturn {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "Remove `nodeName`, or a toleration of the cordon, from the pod template of the owner that the message names. A pod without an \
            owner comes from a user, as by `kubectl debug node/NAME`. Where the template has neither, the scheduler had chosen the node before \
            its cordon; no action is needed.",
    }
    /// Another client uncordoned the node during its drain, again and again.
    Uncordoned {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "Find the client that uncordons the node. To keep the node as it is, [hold](plugin.md#hold-and-unhold) it.",
    }
    /// A hook did not answer in time.
    HookTimedOut {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See the log of the [hook](hooks.md) that the message names, and its answer on the Node. Where [Jobs](hooks.md#jobs) answer for \
            it, they are shown by `kubectl describe jobs -A -l brupop.bottlerocket.aws/hook=NAME`.",
    }
    /// A hook refused.
    HookRefused {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See the log of the [hook](hooks.md) that the message names, and its answer on the Node.",
    }
    /// A check that the node had passed before its cordon no longer lets it be drained, or rebooted.
    GateRefused {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See the [reason to wait](waiting.md) in the message: the node is tried again when it is over, after its back-off. \
            Neither a hook nor the node's leaving of its load balancers may cause what keeps it from the drain.",
    }
    /// Before the reboot was permitted, the cluster was not well. Many nodes fell ill at once, nodes included that were not being updated, or
    /// more nodes were not Ready than `health.before.maxUnhealthyNodes` allows. Or an expression of `health.before` that is the same for all
    /// nodes returned something or had no result, another control-plane node was out of service, other nodes used up a budget, or the web API was away.
    ClusterUnwell {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "Find out why nodes are not well: those that the message names, or the ones that are not Ready in `kubectl get nodes`. \
            Where it names an expression, see [that](expressions.md), and where the web API, [that](runbook/BrupopWebApiDown.md). The node is updated once that is over. Where the last attempt for the \
            version ended so or as `GateRefused`, an expression ends the attempt as `GateRefused`.",
    }
    /// The rollout was braked before the node was drained, while its hooks were awaited.
    RolloutBraked {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "See why the nodes that the message names have ended: they have [braked](runbook/BrupopRolloutBraked.md) the rollout.",
    }
    /// The window closed before the node was drained, while its hooks were awaited.
    WindowEnded {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "The node is updated in the next [window](policy.md#when). Where the last attempt for the version ended so or as `GateRefused`, it is `GateRefused`.",
    }
    /// The agent did not answer in time.
    AgentSilent {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See the agent's pod on the node, its log, and [that of the web API](runbook/waiting.md#noreport), which has the reports \
            that could not be stored.",
    }
    /// The node did not reboot in time.
    RebootTimedOut {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See the host's console, and the agent's log.",
    }
    /// The node came back on the new version but did not become Ready in time.
    NotReadyAfterBoot {
        event: UpdateFailed, class: Version, by_agent: false,
        advice: "See the conditions of the Node, and the host's console. Once the cause is known, \
            [quarantine the version or try it again](runbook/BrupopRolloutFrozen.md).",
    }
    /// The node did not stay healthy for the soak.
    SoakFailed {
        event: UpdateFailed, class: Version, by_agent: false,
        advice: "See what the message names: an expression can return something because of [the reboot itself](expressions.md#the-reboot-itself). Once the cause is known, \
            [quarantine the version or try it again](runbook/BrupopRolloutFrozen.md).",
    }
    /// The health of the node after its update could not be determined in time, or was not good, and nothing shows that the version is to
    /// blame.
    HealthUnknown {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "See what the message names: other nodes that are ill too, a pod, Prometheus, or the API server. The node is verified again \
            every hour.",
    }
    /// The node was Ready on the version, and was not as before its drain in time: devices, CSI drivers, pods of DaemonSets or static pods
    /// were missing, a taint was new, its agent could not use its host or had not reported, or no pod of those evicted was created again.
    NodeNotUsable {
        event: UpdateFailed, class: Node, by_agent: false,
        advice: "Find out why what the message names is not back, such as a device plugin, a start-up taint that nothing removes, or a webhook \
            that lets no pod be created. The node is \
            verified again every hour, and proves the version once it is. If it is meant to be so, \
            [approve](policy.md#requests) the step with `--unproven` where a canary step waits, or [resume](policy.md#requests) where the \
            rollout is braked.",
    }
    /// Updates were disabled, or the operator's resource is gone or has no policy that can be applied.
    Disabled {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "To update, set `spec.enabled` to true. A node that runs the version already is verified once there is a policy.",
    }
    /// The host runs the wanted version already, put there by another client.
    UpdatedByOther { event: UpdateWithdrawn, class: Nothing, by_agent: false, advice: "" }
    /// The record of the attempt was lost; the desired state is withdrawn to be safe.
    ProgressLost {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "If it happens again, find the client that writes to the status of the shadow.",
    }
    /// A client holds the node.
    Held {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "To update the node, or to have it verified, [unhold](plugin.md#hold-and-unhold) it.",
    }
    /// A user requested the end of the attempt.
    ReleaseRequested {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "The node is updated after others. To keep it as it is, [hold](plugin.md#hold-and-unhold) it.",
    }
    /// The policy names another version now.
    PolicyChanged { event: UpdateWithdrawn, class: Nothing, by_agent: false, advice: "" }
    /// A blackout began before the reboot was permitted.
    BlackoutBegan {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "The node is updated after the [blackout](policy.md#when).",
    }
    /// Before the reboot was permitted, the host stopped offering the version; or before the drain, policy chose a newer one, or the host one that policy refuses.
    Superseded { event: UpdateWithdrawn, class: Nothing, by_agent: false, advice: "" }
    /// The host's version lock was set by another client, and does not let the wanted version in.
    LockedByOther {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "Set `settings.updates.version-lock` to `latest` on the host.",
    }
    /// The host refused a change of its settings.
    SettingsFailed {
        event: UpdateFailed, class: Node, by_agent: true,
        advice: "See the host's own message, and the agent's log.",
    }
    /// The node is being deleted, or an autoscaler or a user is removing it.
    NodeDeleted { event: UpdateWithdrawn, class: Nothing, by_agent: false, advice: "" }
    /// The version has been quarantined.
    Quarantined {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "Find the cause on the nodes that failed, then [resume](runbook/BrupopRolloutFrozen.md).",
    }
    /// The node no longer carries the label that places it under the operator.
    LabelRemoved {
        event: UpdateWithdrawn, class: Nothing, by_agent: false,
        advice: "To update the node, set the label `bottlerocket.aws/updater-interface-version=2.0.0` again.",
    }
    /// The agent, or the web API, is of an earlier version that does not know drills.
    UnsupportedState {
        event: DrillFailed, class: Nothing, by_agent: false,
        advice: "[Update](upgrade.md) the agent and the web API, then request the drill again.",
    }
}

impl FailureReason {
    /// Returns the reason as one fixed word, as in resources, Events and metrics.
    pub const fn as_str(self) -> &'static str {
        self.end().reason
    }
}

impl fmt::Display for FailureReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
