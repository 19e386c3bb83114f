//! The next step of one node: its attempt from the first write to the last.

mod begin;
mod blockers;
mod claim;
mod draining;
mod judge;
mod overdue;
mod permit;
mod release;

use std::time::Duration;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, set_condition, true_condition};
use models::reason::FailureReason;
use models::shadow::{
    Armed, ArmedPhase, BLOCKED, BottlerocketShadowSpec, ControllerStatus, DrainStatus, HEALTHY, HOST_REACHABLE,
    HostPolicy, HostState, Progress, Step,
};
pub(in crate::plan) use models::time::after;

use crate::drain;
use crate::drain::Sorted;
use crate::plan::survey::Survey;
use crate::plan::{Action, Decision, Note, Verdict, Wait, gates, requests};
use crate::policy::{GroupPolicy, Policy};
use crate::view::{ClusterView, DaemonSetIs, NodeFacts, NodeView, ShadowFacts};

/// The time that a new leader waits before it gives up on a step that it finds past its deadline: long enough to
/// observe the result of the step.
pub(super) const NEW_LEADER_GRACE: Duration = Duration::from_secs(30);

/// The interval of reading a Lease while a release waits for it: kubelets renew theirs every 10 s.
const LEASE_LOOK: Duration = Duration::from_secs(10);

/// The number of failures against versions that a shadow keeps.
const VERSION_FAILURES: usize = 8;

/// The number of blockers that a shadow names.
const BLOCKERS: usize = 8;

/// The number of owners of unhealthy pods that a shadow lists.
const UNHEALTHY_OWNERS: usize = 256;

/// The number of pods of a drain that a shadow lists.
pub const LISTED_PODS: usize = 1024;

/// The input of the rules for one node.
pub(super) struct Case<'a> {
    pub(super) view: &'a ClusterView,
    pub(super) node: &'a NodeView,
    pub(super) shadow: &'a ShadowFacts,
    pub(super) policy: &'a Policy,
    pub(super) survey: &'a Survey<'a>,
    pub(super) now: Timestamp,
    /// True if the node has a slot.
    pub(super) slot: bool,
}

impl<'a> Case<'a> {
    pub(super) fn facts(&self) -> &'a NodeFacts {
        &self.node.facts
    }

    /// The policy for nodes like this one.
    pub(super) fn group(&self) -> &'a GroupPolicy {
        self.survey.group(self.node)
    }

    /// The input of the gates, for this version.
    fn gate_input<'b>(&'b self, version: &'b semver::Version) -> gates::Input<'b> {
        gates::Input { survey: self.survey, node: self.node, shadow: self.shadow, version, now: self.now }
    }

    pub(super) fn half(&self) -> ControllerStatus {
        self.shadow.status.controller_half()
    }

    fn host_policy(&self) -> HostPolicy {
        let pin = self.survey.wants.get(self.facts().name.as_str()).and_then(|want| want.pin.as_ref());
        // A host that leaves the operator gets its settings back.
        let labelled = self.facts().labelled;
        HostPolicy {
            version_lock: pin.filter(|_| labelled).map(ToString::to_string),
            ignore_waves: (labelled && self.policy.ignore_waves).then_some(true),
            refresh_interval: Some(self.policy.refresh_interval),
            disarm_in_boot: self.disarm_in_boot(),
            // Each client that writes it signs it.
            signature: None,
        }
    }

    /// Returns whether the shadow has the host settings of the policy, signed by the current key or the next one.
    pub(super) fn host_is_told(&self) -> bool {
        let Some(host) = &self.shadow.spec.host else { return false };
        let tls = &self.view.tls;
        let signed = || {
            let by = host.signature.as_deref().and_then(crate::signature::signed_by);
            by.is_some() && (by == tls.signing_key || by == tls.newest_key)
        };
        host.asks_as(&self.host_policy()) && (tls.signing_key.is_none() || !host.asks_settings() || signed())
    }

    /// The desired state of an attempt without a permit, to be signed again because the key that signed its host
    /// settings was revoked: its agent would wait for that key until a deadline. A key being replaced is still
    /// accepted.
    fn order_signed_again(&self, progress: &Progress) -> Option<Action> {
        let (spec, tls) = (&self.shadow.spec, &self.view.tls);
        let host = spec.host.as_ref()?;
        let key = crate::signature::signed_by(host.signature.as_deref()?)?;
        // A desired state that is being withdrawn does not count: its withdrawal is signed by the key that there is.
        let under_way = match progress.step {
            Step::Staging | Step::Staged | Step::LeavingBalancer | Step::Draining => {
                spec.state == HostState::StagedUpdate
            }
            Step::Rebooting => spec.state != HostState::Idle,
            Step::Returning | Step::Monitoring | Step::Releasing | Step::Unknown => false,
        };
        let stands = under_way
            && spec.attempt == progress.attempt
            && spec.boot_id.as_ref() == Some(&self.facts().boot_id)
            && spec.permit.is_none();
        let revoked = tls.signing_key.is_some() && !tls.signing_keys.contains(&key);
        (stands && revoked).then(|| {
            let host = Some(HostPolicy { signature: None, ..host.clone() });
            Action::Spec { spec: Box::new(BottlerocketShadowSpec { host, ..spec.clone() }) }
        })
    }

    /// Returns whether anything of the operator has to be released on the node: owned fields, or, after a reset of
    /// managedFields, fields that the record names and no client owns. A held node stays as it is.
    fn to_release(&self) -> bool {
        let left = self.facts().unowned.and(crate::claims::recorded(&self.shadow.status));
        !self.facts().held && (self.facts().claimed() || !left.is_empty())
    }

    /// Returns whether another client armed an image on the host.
    pub(super) fn armed_by_other(&self) -> bool {
        models::condition::find_condition(&self.shadow.status.conditions, HOST_REACHABLE)
            .is_some_and(|c| c.reason == models::shadow::HOST_ARMED_BY_OTHER)
    }

    /// The version lock that another client set on the host, if it conflicts with the operator's.
    fn conflicting_lock(&self) -> Option<String> {
        self.host_policy().version_lock?;
        self.shadow.status.agent.host.as_ref()?.conflicting_lock.clone()
    }

    /// The permission to disarm the host, which is valid for one boot.
    pub(super) fn disarm_in_boot(&self) -> Option<String> {
        let boot = self.shadow.spec.host.as_ref()?.disarm_in_boot.clone();
        boot.filter(|boot| *boot == self.facts().boot_id)
    }

    fn condition(&self, type_: &str, holds: impl Into<ConditionStatus>, reason: &str, message: &str) -> Condition {
        Condition {
            type_: type_.to_owned(),
            status: holds.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: self.now,
            observed_generation: None,
        }
    }

    /// Returns when a step that began at `since` and may take `limit` is given up.
    fn deadline(&self, since: Timestamp, limit: Duration) -> Timestamp {
        let at = after(since, limit);
        if since < self.view.leader_since { at.max(after(self.view.leader_since, NEW_LEADER_GRACE)) } else { at }
    }

    fn sorted_pods(&self) -> Option<Sorted<'a>> {
        let pods = self.node.pods.as_ref()?;
        if pods.iter().any(|pod| pod.daemon_set.is_some() && pod.daemon_set_is == DaemonSetIs::Unknown) {
            // Requested, and as good as known.
            return None;
        }
        Some(drain::sort(pods, self.group().drain.rules_at(self.now), self.drain()))
    }

    /// The record of the drain, from before its first eviction.
    fn drain(&self) -> Option<&'a DrainStatus> {
        self.shadow.status.controller.drain.as_ref()
    }

    fn agent_failure(&self, attempt: i64) -> Option<(FailureReason, &'a str)> {
        let failure = self.shadow.status.agent.failure.as_ref().filter(|f| f.attempt == attempt)?;
        Some((failure.reason, failure.message.as_str()))
    }

    /// Returns whether the agent has confirmed, in the node's current boot, that the last desired state is reached.
    fn caught_up(&self) -> bool {
        let agent = &self.shadow.status.agent;
        agent.observed_generation == Some(self.shadow.generation)
            && agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
    }

    /// Returns whether the agent has confirmed that nothing of the operator is armed.
    fn disarmed(&self) -> bool {
        let agent = &self.shadow.status.agent;
        self.shadow.spec.state == HostState::Idle
            && self.caught_up()
            && agent.state == Some(HostState::Idle)
            && agent.armed.is_none()
    }

    fn staged(&self) -> bool {
        let agent = &self.shadow.status.agent;
        self.caught_up()
            && agent.state == Some(HostState::StagedUpdate)
            && self.shadow.spec.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
    }

    /// Returns whether the image is staged for this attempt and boot, also if the agent has to reboot and waits for its
    /// permit: it confirms no desired state while it waits.
    fn still_staged(&self) -> bool {
        let (spec, agent) = (&self.shadow.spec, &self.shadow.status.agent);
        self.staged()
            || (spec.state == HostState::RebootedIntoUpdate
                && spec.permit.is_none()
                && self.asks().is_some_and(|armed| armed.phase == ArmedPhase::Arming)
                && agent.state == Some(HostState::StagedUpdate))
    }

    /// The agent's permit request, if it belongs to the current desired state and to the node's current boot.
    fn asks(&self) -> Option<&'a Armed> {
        let spec = &self.shadow.spec;
        self.shadow.status.agent.armed.as_ref().filter(|armed| {
            armed.attempt == spec.attempt
                && spec.boot_id.as_ref() == Some(&armed.boot_id)
                && armed.boot_id == self.facts().boot_id
                && spec.version.as_ref() == Some(&armed.version)
        })
    }

    /// A write of the status with the step changed.
    fn step(&self, progress: &Progress, step: Step, change: impl FnOnce(&mut ControllerStatus)) -> Action {
        let mut status = self.half();
        status.report.progress =
            Some(Progress { step, since: self.now, boot_id: self.facts().boot_id.clone(), ..progress.clone() });
        unblock(&mut status);
        if matches!(step, Step::Returning | Step::Monitoring) {
            // The findings after the previous update do not apply to this boot.
            let message = format!("the node was rebooted for {} and is watched", progress.version);
            let watched = self.condition(HEALTHY, ConditionStatus::Unknown, "Monitoring", &message);
            set_condition(&mut status.conditions, watched);
        }
        change(&mut status);
        Action::Status { status: Box::new(status), note: None }
    }

    /// Returns the desired state of the attempt.
    fn order(&self, state: HostState, progress: &Progress) -> Action {
        Action::Spec {
            spec: Box::new(BottlerocketShadowSpec {
                state,
                version: Some(progress.version.clone()),
                attempt: progress.attempt,
                boot_id: Some(self.facts().boot_id.clone()),
                // An attempt keeps the settings that it began with: the image was chosen under them.
                host: self.shadow.spec.host.clone(),
                permit: None,
            }),
        }
    }

    /// Withdraws the desired state. The attempt number stays, since it never decreases.
    fn withdraw(&self) -> Action {
        self.idle_order(self.host_policy())
    }

    /// Withdraws the desired state, and permits disarming in this boot an image that another client armed.
    pub(super) fn withdraw_and_disarm(&self) -> Action {
        self.idle_order(HostPolicy { disarm_in_boot: Some(self.facts().boot_id.clone()), ..self.host_policy() })
    }

    fn idle_order(&self, host: HostPolicy) -> Action {
        Action::Spec {
            spec: Box::new(BottlerocketShadowSpec {
                state: HostState::Idle,
                attempt: self.shadow.spec.attempt,
                host: Some(host),
                ..BottlerocketShadowSpec::default()
            }),
        }
    }

    /// Decides the next step.
    pub(super) fn decide(&self) -> Decision {
        let progress = self.shadow.status.controller.progress.as_ref();
        // Before any request: its answer would be a write with the forged attempt in it.
        if let Some(progress) = progress.filter(|progress| self.unbacked(progress)) {
            return self.repair(progress);
        }
        if let Some(action) = requests::resume(self).or_else(|| self.retry()) {
            return Decision::act(action);
        }
        if self.pending_release().is_some() {
            let under_way = progress.filter(|p| p.step != Step::Releasing);
            return match under_way {
                Some(progress) => {
                    self.fail(progress, FailureReason::ReleaseRequested, "a user asked for the release of the node")
                }
                None => self.nothing_to_release().map_or_else(|| self.idle(), Decision::act),
            };
        }
        let Some(progress) = progress else { return self.idle() };
        if let Some(action) = self.order_signed_again(progress) {
            let decision = Decision::act(action);
            let calm = matches!(progress.step, Step::Staging | Step::Staged);
            return if calm { decision } else { decision.watching_pods() };
        }
        let decision = match progress.step {
            Step::Staging | Step::Staged => self.staging(progress),
            Step::LeavingBalancer => self.leaving_balancer(progress).watching_pods(),
            Step::Draining => self.draining(progress),
            // Pods are watched from the drain to the end of the soak without a break, so that they are listed once.
            Step::Rebooting => self.rebooting(progress).watching_pods(),
            Step::Returning => self.returning(progress).watching_pods(),
            Step::Monitoring => self.monitoring(progress).watching_pods(),
            Step::Releasing => self.releasing(progress),
            // Releasing the node is safe after any step: the release waits for a permit that was issued.
            Step::Unknown => {
                self.fail(progress, FailureReason::ProgressLost, "its step is one of another version of the controller")
            }
        };
        self.with_blocked(decision)
    }

    /// Returns whether a step that disrupts the node has neither a slot nor a claim, which the controller records
    /// before it. Without the operator's resource there are no slots, and after the reboot no claim either: then the
    /// desired state of the shadow decides, and once that is withdrawn, its attempt and the version that runs.
    fn unbacked(&self, progress: &Progress) -> bool {
        let spec = &self.shadow.spec;
        let watched = spec.state == HostState::Idle && spec.attempt == progress.attempt && self.runs_wanted(progress);
        let needs_either = match progress.step {
            Step::LeavingBalancer | Step::Draining | Step::Rebooting | Step::Unknown => true,
            Step::Returning => self.view.operator.is_some(),
            Step::Monitoring => self.view.operator.is_some() && !watched,
            Step::Staging | Step::Staged | Step::Releasing => false,
        };
        needs_either && !self.slot && !self.facts().claimed() && !self.node.has_rebooted_as_desired()
    }

    /// Ends an attempt that is not the controller's own: it takes no part of the budget unless its host may still act
    /// on a permit.
    fn repair(&self, progress: &Progress) -> Decision {
        let disruptive = progress.permit_issued || self.shadow.spec.permit.is_some();
        let progress = Progress { disruptive, ..progress.clone() };
        self.fail(&progress, FailureReason::ProgressLost, "neither a slot nor a claim on the node backs its step")
    }

    /// Keeps the `Blocked` condition true to the reason, in a write of its own only where no other write is due.
    fn with_blocked(&self, decision: Decision) -> Decision {
        let Verdict::Wait(wait) = &decision.verdict else { return decision };
        let stored = true_condition(&self.shadow.status.conditions, BLOCKED);
        let wanted = wait.blocks().then(|| wait.as_str());
        let now = stored.map(|c| c.reason.as_str());
        // The finding of a check names a pod or a series, and another one may be the first by now.
        let finding = wanted.is_some() && wait.reason().is_check_finding();
        let same_text = !finding || stored.is_some_and(|c| wait.is_recorded(&c.message));
        if wanted == now && same_text {
            return decision;
        }
        let mut status = self.half();
        match wanted {
            Some(reason) => {
                set_condition(&mut status.conditions, self.condition(BLOCKED, true, reason, &wait.to_string()));
            }
            None => unblock(&mut status),
        }
        let note =
            wanted.filter(|_| wanted != now).map(|reason| Note { warning: true, reason, message: wait.to_string() });
        Decision { verdict: Verdict::Act(Action::Status { status: Box::new(status), note }), ..decision }
    }
}

/// Removes the `Blocked` condition, as any other write ends a block.
fn unblock(status: &mut ControllerStatus) {
    status.conditions.retain(|c| c.type_ != BLOCKED);
}

/// Returns why these pods prevent any drain of a node.
pub(super) fn refusal(sorted: &Sorted<'_>) -> Option<Wait> {
    let (first, why) = sorted.refused.first()?;
    let pod = format!("{}/{}", first.namespace, first.name);
    Some(Wait::DrainRefused { why: *why, pod, count: sorted.refused.len() })
}
