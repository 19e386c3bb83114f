//! What is next for one node: its attempt from the first write to the last.

use std::time::Duration;

use jiff::Timestamp;
use models::condition::{Condition, set_condition};
use models::go::{GO_LIFETIME, SHUTDOWN_LIMIT};
use models::reason::{FailureClass, FailureReason};
use models::shadow::{
    ArmedPhase, AttemptResult, BLOCKED, BottlerocketShadowSpec, CORDONED, ControllerStatus, DRAINED, DrainStatus,
    DrainedPod, HEALTHY, HOST_REACHABLE, HostPolicy, HostState, Progress, Record, Step, UPDATED, VersionFailure,
};
use semver::Version;

use super::{Action, Decision, Eviction, Note, Quarantine, Verdict, Wait};
use crate::apply::CORDONED_BEFORE;
use crate::drain::filter::{self, Sorted};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeFacts, NodeView, ShadowFacts};

/// How long a new leader waits before it gives up on a step that it finds past its deadline: long enough to see what the
/// step has come to.
pub(super) const NEW_LEADER_GRACE: Duration = Duration::from_secs(30);

/// How often a Lease is looked at while a release waits for it: kubelets renew theirs every 10 s.
const LEASE_LOOK: Duration = Duration::from_secs(10);

/// How many failures against versions a shadow keeps.
const VERSION_FAILURES: usize = 8;

/// How many blockers a shadow names.
const BLOCKERS: usize = 8;

/// How many pods of a drain a shadow lists.
const LISTED_PODS: usize = 1024;

fn after(at: Timestamp, span: Duration) -> Timestamp {
    jiff::SignedDuration::try_from(span).ok().and_then(|span| at.checked_add(span).ok()).unwrap_or(Timestamp::MAX)
}

/// Everything that the rules for one node look at.
pub(super) struct Case<'a> {
    pub(super) view: &'a ClusterView,
    pub(super) node: &'a NodeView,
    pub(super) shadow: &'a ShadowFacts,
    pub(super) policy: &'a Policy,
    pub(super) quarantine: &'a Quarantine,
    pub(super) now: Timestamp,
    /// Whether the node has a slot.
    pub(super) slot: bool,
}

impl<'a> Case<'a> {
    fn facts(&self) -> &'a NodeFacts {
        &self.node.facts
    }

    fn half(&self) -> ControllerStatus {
        self.shadow.status.controller_half()
    }

    fn host_policy(&self) -> HostPolicy {
        HostPolicy { refresh_interval: Some(self.policy.refresh_interval), ..HostPolicy::default() }
    }

    fn condition(&self, type_: &str, holds: bool, reason: &str, message: &str) -> Condition {
        Condition {
            type_: type_.to_owned(),
            status: holds.into(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: self.now,
            observed_generation: None,
        }
    }

    /// When a step that began at `since` and may take `limit` is given up.
    fn deadline(&self, since: Timestamp, limit: Duration) -> Timestamp {
        let at = after(since, limit);
        if since < self.view.leader_since { at.max(after(self.view.leader_since, NEW_LEADER_GRACE)) } else { at }
    }

    fn sorted_pods(&self) -> Option<Sorted<'a>> {
        let pods = self.node.pods.as_ref()?;
        Some(filter::sort(pods, self.shadow.status.controller.drain.as_ref(), models::names::SYSTEM_NAMESPACE))
    }

    fn agent_failure(&self, attempt: i64) -> Option<(FailureReason, &'a str)> {
        let failure = self.shadow.status.agent.failure.as_ref().filter(|f| f.attempt == attempt)?;
        Some((failure.reason, failure.message.as_str()))
    }

    /// Whether the agent has confirmed, in the node's current boot, that the last order is carried out.
    fn caught_up(&self) -> bool {
        let agent = &self.shadow.status.agent;
        agent.observed_generation == Some(self.shadow.generation)
            && agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
    }

    /// Whether the agent has confirmed that nothing of ours is armed.
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

    /// A write of the status with the step changed.
    fn step(&self, progress: &Progress, step: Step, change: impl FnOnce(&mut ControllerStatus)) -> Action {
        let mut status = self.half();
        status.report.progress =
            Some(Progress { step, since: self.now, boot_id: self.facts().boot_id.clone(), ..progress.clone() });
        unblock(&mut status);
        change(&mut status);
        Action::Status { status: Box::new(status), note: None }
    }

    /// The order as it has to be.
    fn order(&self, state: HostState, progress: &Progress) -> Action {
        Action::Spec {
            spec: Box::new(BottlerocketShadowSpec {
                state,
                version: Some(progress.version.clone()),
                attempt: progress.attempt,
                boot_id: Some(self.facts().boot_id.clone()),
                host: Some(self.host_policy()),
                go: None,
            }),
        }
    }

    /// The order taken back. The attempt stays, since it never falls.
    fn withdraw(&self) -> Action {
        Action::Spec {
            spec: Box::new(BottlerocketShadowSpec {
                state: HostState::Idle,
                attempt: self.shadow.spec.attempt,
                host: Some(self.host_policy()),
                ..BottlerocketShadowSpec::default()
            }),
        }
    }

    /// The attempt is given up: recorded first, then withdrawn, then released.
    pub(super) fn fail(&self, progress: &Progress, reason: FailureReason, message: &str) -> Decision {
        let mut status = self.half();
        let mut record = status.report.record.take().unwrap_or_default();
        let counts = reason.class() != FailureClass::Wait;
        if counts {
            record.failures = record.failures.saturating_add(1);
            record.not_before = Some(after(self.now, self.policy.back_off_after(record.failures)));
        }
        if reason.class() == FailureClass::Version {
            self.charge(&mut record, progress, reason);
        }
        record.last = Some(self.result(progress, reason.as_str(), message));
        status.report.record = Some(record);
        status.report.progress = Some(Progress {
            step: Step::Releasing,
            since: self.now,
            go_given: progress.go_given || self.shadow.spec.go.is_some(),
            may_be_rebooting: progress.may_be_rebooting || self.may_be_rebooting(),
            ..progress.clone()
        });
        unblock(&mut status);
        let note = Note {
            warning: counts,
            reason: if counts { "UpdateFailed" } else { "UpdateWithdrawn" },
            message: format!("attempt {} to {}: {reason}: {message}", progress.attempt, progress.version),
        };
        Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
    }

    /// Whether the host may have been told to reboot: a go was given, and the agent's last word is not that it still waits
    /// to act on this only one. (Once restarted, an agent does not know what it told the host before.)
    fn may_be_rebooting(&self) -> bool {
        let Some(go) = &self.shadow.spec.go else { return false };
        let still_arming = self.shadow.status.agent.armed.as_ref().is_some_and(|armed| {
            armed.phase == ArmedPhase::Arming && armed.attempt == self.shadow.spec.attempt && armed.nonce == go.nonce
        });
        go.repeated || !still_arming
    }

    /// Whether the agent has reported the image of this attempt as armed.
    fn activated(&self, progress: &Progress) -> bool {
        let armed = self.shadow.status.agent.armed.as_ref();
        armed.is_some_and(|a| a.attempt == progress.attempt && a.phase == ArmedPhase::Activated)
    }

    fn charge(&self, record: &mut Record, progress: &Progress, reason: FailureReason) {
        let agent = &self.shadow.status.agent;
        let failure = VersionFailure {
            version: progress.version.clone(),
            variant: agent.variant.clone().unwrap_or_default(),
            arch: agent.arch.clone().unwrap_or_default(),
            reason,
            time: self.now,
            resolved_by: None,
        };
        let failures = &mut record.version_failures;
        let same = |f: &VersionFailure| {
            f.resolved_by.is_none()
                && (&f.version, &f.variant, &f.arch) == (&failure.version, &failure.variant, &failure.arch)
        };
        if failures.iter().any(same) {
            return;
        }
        if failures.len() >= VERSION_FAILURES {
            let settled = failures.iter().position(|f| f.resolved_by.is_some()).unwrap_or(0);
            failures.remove(settled);
        }
        failures.push(failure);
    }

    fn result(&self, progress: &Progress, reason: &str, message: &str) -> AttemptResult {
        AttemptResult {
            attempt: progress.attempt,
            from: progress.from.clone(),
            version: progress.version.clone(),
            reason: reason.to_owned(),
            message: message.chars().take(1024).collect(),
            started: progress.started,
            ended: self.now,
        }
    }

    /// What is next.
    pub(super) fn decide(&self) -> Decision {
        let Some(progress) = &self.shadow.status.controller.progress else { return self.idle() };
        let decision = match progress.step {
            Step::Staging | Step::Staged => self.staging(progress),
            Step::LeavingBalancer | Step::Draining => self.draining(progress),
            Step::Rebooting => self.rebooting(progress),
            Step::Returning => self.returning(progress),
            Step::Monitoring => self.monitoring(progress),
            Step::Releasing => self.releasing(progress),
        };
        self.with_blocked(decision)
    }

    /// Nothing is under way: clean up what an interrupted attempt left, else see whether a new one may begin.
    fn idle(&self) -> Decision {
        let spec = &self.shadow.spec;
        if spec.state != HostState::Idle {
            // An order without a record of its attempt: take it back like a failed one.
            let (Some(version), Some(boot_id)) = (spec.version.clone(), spec.boot_id.clone()) else {
                return Decision::act(self.withdraw());
            };
            let progress = Progress {
                step: Step::Releasing,
                since: self.now,
                attempt: spec.attempt,
                boot_id,
                version,
                from: self.shadow.status.agent.current_version.clone(),
                started: self.now,
                go_given: spec.go.is_some(),
                may_be_rebooting: false,
                soak_restarted: false,
                disruptive: self.slot || self.facts().claimed,
            };
            return self.fail(&progress, FailureReason::ProgressLost, "the record of this attempt is gone");
        }
        if self.facts().claimed {
            // A claim without an attempt, from a shadow that was deleted, say. Whether a go was given is not known any
            // more, nor to an agent that was restarted: the longest time that a host can take to go down has to pass.
            let known_since = self.shadow.created.map_or(self.view.leader_since, |at| at.max(self.view.leader_since));
            let certain = after(known_since, GO_LIFETIME + SHUTDOWN_LIMIT);
            if self.now >= certain {
                return Decision::act(Action::Release);
            }
            return self.with_blocked(Decision::wait(Wait::DisarmPending).waking_at(certain));
        }
        let decision = self.may_begin();
        if matches!(decision.verdict, Verdict::Wait(_)) && spec.host.as_ref() != Some(&self.host_policy()) {
            return Decision::act(self.withdraw());
        }
        self.with_blocked(decision)
    }

    /// The gates that look at nothing but the fleet's switches and the node itself, in the order in which their reasons
    /// are worth reading.
    fn may_begin(&self) -> Decision {
        let agent = &self.shadow.status.agent;
        let facts = self.facts();
        if !facts.labelled {
            return Decision::wait(Wait::NotLabelled);
        }
        if facts.deleting || self.shadow.deleting {
            return Decision::wait(Wait::Deleting);
        }
        if agent.boot_id.as_deref() != Some(facts.boot_id.as_str()) {
            return Decision::wait(Wait::NoReport);
        }
        if models::condition::find_condition(&self.shadow.status.conditions, HOST_REACHABLE)
            .is_some_and(|c| c.reason == "HostArmedByOther")
        {
            return Decision::wait(Wait::HostArmedByOther);
        }
        if !self.disarmed() {
            return Decision::wait(if agent.armed.is_some() { Wait::DisarmPending } else { Wait::AgentBehind });
        }
        let Some(current) = &agent.current_version else { return Decision::wait(Wait::NoReport) };
        let Some(updates) = &agent.updates else { return Decision::wait(Wait::UpToDate) };
        // Under `latest`, a host can offer a lower version after a release was pulled; that is never taken.
        let Some(version) = updates.chosen_version.as_ref().filter(|chosen| *chosen > current) else {
            return Decision::wait(match &updates.refresh_failure {
                Some(message) => Wait::RefreshFails { message: message.clone() },
                None => Wait::UpToDate,
            });
        };
        if let Some(message) = &updates.refresh_failure {
            return Decision::wait(Wait::RefreshFails { message: message.clone() });
        }
        if let Some(wait) = self.gates(version) {
            return Decision::wait(wait);
        }
        let record = self.shadow.status.controller.record.as_ref();
        if let Some(until) = record.and_then(|r| r.not_before).filter(|until| *until > self.now) {
            let reason = record.and_then(|r| r.last.as_ref()).map(|l| l.reason.clone()).unwrap_or_default();
            return Decision::wait(Wait::BackOff { until, reason }).waking_at(until);
        }
        Decision { verdict: Verdict::Candidate(version.clone()), ..Decision::default() }
    }

    /// The gates that hold for a start as for the disruption.
    fn gates(&self, version: &Version) -> Option<Wait> {
        if !self.policy.present {
            return Some(Wait::NoOperatorResource);
        }
        if !self.policy.enabled {
            return Some(Wait::Disabled);
        }
        let agent = &self.shadow.status.agent;
        if self.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), version) {
            return Some(Wait::Quarantined { version: version.clone() });
        }
        if let Some(version) = self.quarantine.frozen_by() {
            return Some(Wait::Frozen { version: version.clone() });
        }
        if self.facts().held {
            return Some(Wait::Held);
        }
        if !self.facts().ready {
            return Some(Wait::NodeNotReady);
        }
        None
    }

    /// The first write of an attempt. The order follows once it is recorded.
    pub(super) fn begin(&self, version: &Version) -> Action {
        let mut status = self.half();
        let last = status.report.record.as_ref().and_then(|r| r.last.as_ref()).map_or(0, |l| l.attempt);
        status.report.progress = Some(Progress {
            step: Step::Staging,
            since: self.now,
            attempt: self.shadow.spec.attempt.max(last) + 1,
            boot_id: self.facts().boot_id.clone(),
            version: version.clone(),
            from: self.shadow.status.agent.current_version.clone(),
            started: self.now,
            go_given: false,
            may_be_rebooting: false,
            soak_restarted: false,
            disruptive: false,
        });
        status.report.drain = None;
        unblock(&mut status);
        Action::Status { status: Box::new(status), note: None }
    }

    /// What ends an attempt that has not been given a go, whatever its step.
    fn ended_from_outside(&self, progress: &Progress) -> Option<Decision> {
        let fail = |reason, message| Some(self.fail(progress, reason, message));
        let agent = &self.shadow.status.agent;
        if self.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), &progress.version) {
            return fail(FailureReason::Quarantined, "the version has failed on other nodes");
        }
        if !self.policy.present {
            return fail(FailureReason::Disabled, "the operator's resource is gone");
        }
        if !self.facts().labelled {
            return fail(FailureReason::LabelRemoved, "the node lost the label that puts it under the operator");
        }
        if self.facts().held {
            return fail(FailureReason::Held, "the node is held");
        }
        None
    }

    fn staging(&self, progress: &Progress) -> Decision {
        let spec = &self.shadow.spec;
        if let Some(decision) = self.ended_from_outside(progress) {
            return decision;
        }
        if !self.policy.enabled && !self.slot {
            return self.fail(progress, FailureReason::Disabled, "updates were switched off");
        }
        if spec.attempt < progress.attempt {
            return Decision::act(self.order(HostState::StagedUpdate, progress));
        }
        if spec.attempt != progress.attempt || spec.state != HostState::StagedUpdate {
            return self.fail(progress, FailureReason::ProgressLost, "the order does not belong to this attempt");
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        let agent = &self.shadow.status.agent;
        if agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
            && agent.current_version.as_ref() == Some(&progress.version)
        {
            return self.fail(progress, FailureReason::UpdatedByOther, "the host runs the version already");
        }
        if spec.boot_id.as_deref() != Some(self.facts().boot_id.as_str()) {
            // Rebooted by somebody else while nothing was disrupted: the same attempt goes on in the new boot.
            return Decision::act(self.order(HostState::StagedUpdate, progress));
        }
        if !self.staged() {
            if progress.step == Step::Staged {
                return Decision::act(self.step(progress, Step::Staging, |_| {}));
            }
            let deadline = self.deadline(progress.since, self.policy.stage);
            if self.now >= deadline {
                return self.fail(progress, FailureReason::StageTimedOut, "the host did not stage the image in time");
            }
            return Decision::wait(Wait::Staging).waking_at(deadline);
        }
        if let Some(wait) = self.gates(&progress.version) {
            return self.waiting_staged(progress, wait);
        }
        if self.slot {
            return self.start_drain(progress);
        }
        Decision { verdict: Verdict::WantsSlot, ..Decision::default() }
    }

    /// A staged node that has to wait says so, once.
    pub(super) fn waiting_staged(&self, progress: &Progress, wait: Wait) -> Decision {
        if progress.step == Step::Staging {
            return Decision::act(self.step(progress, Step::Staged, |_| {}));
        }
        self.with_blocked(Decision::wait(wait))
    }

    /// The slot is ours: record what has to go before anything is touched.
    fn start_drain(&self, progress: &Progress) -> Decision {
        let Some(sorted) = self.sorted_pods() else {
            return Decision::wait(Wait::ReadingPods).watching_pods();
        };
        if let Some(refused) = refusal(&sorted) {
            return self.waiting_staged(progress, refused).watching_pods();
        }
        let drained = |pod: &&crate::view::PodFacts| DrainedPod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        };
        let pods: Vec<_> = sorted.go.iter().chain(&sorted.leaving).take(LISTED_PODS).map(drained).collect();
        let mut own: Vec<String> = sorted
            .go
            .iter()
            .filter(|pod| pod.namespace == models::names::SYSTEM_NAMESPACE)
            .filter_map(|pod| pod.controller_uid.clone())
            .collect();
        own.sort();
        own.dedup();
        own.truncate(16);
        let mut action = self.step(&Progress { disruptive: true, ..progress.clone() }, Step::Draining, |status| {
            let message = format!("cordoned for the update to {}", progress.version);
            let reason = if self.facts().unschedulable && !self.facts().claimed { CORDONED_BEFORE } else { "Updating" };
            set_condition(&mut status.conditions, self.condition(CORDONED, true, reason, &message));
            set_condition(&mut status.conditions, self.condition(DRAINED, false, "Draining", "pods are being evicted"));
            status.report.drain = Some(DrainStatus { pods, own_evicted: own, ..DrainStatus::default() });
        });
        if let Action::Status { note, .. } = &mut action {
            *note = Some(Note {
                warning: false,
                reason: "UpdateStarted",
                message: format!("draining for the update to {} (attempt {})", progress.version, progress.attempt),
            });
        }
        Decision::act(action).watching_pods()
    }

    fn draining(&self, progress: &Progress) -> Decision {
        self.draining_pods(progress).watching_pods()
    }

    fn draining_pods(&self, progress: &Progress) -> Decision {
        if let Some(decision) = self.ended_from_outside(progress) {
            return decision;
        }
        if self.facts().boot_id != progress.boot_id {
            return self.fail(progress, FailureReason::RebootedByOther, "the node was rebooted during the drain");
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        if !self.staged() && self.caught_up() {
            return self.fail(progress, FailureReason::NotStaged, "the staged image is gone");
        }
        if !self.slot && self.view.operator.is_some() {
            // The resource is new and its slots are being rebuilt; nothing is disrupted without one.
            return Decision::wait(Wait::Queued { position: 0 });
        }
        if !self.facts().claimed || !self.facts().unschedulable {
            return Decision::act(Action::Claim);
        }
        let Some(sorted) = self.sorted_pods() else { return Decision::wait(Wait::ReadingPods) };
        if sorted.empty() {
            if !self.staged() {
                let deadline = self.deadline(progress.since, self.policy.drain);
                if self.now >= deadline {
                    return self.fail(
                        progress,
                        FailureReason::AgentSilent,
                        "the agent has not confirmed the last order",
                    );
                }
                return Decision::wait(Wait::AgentBehind).waking_at(deadline);
            }
            return Decision::act(self.step(progress, Step::Rebooting, |status| {
                set_condition(
                    &mut status.conditions,
                    self.condition(DRAINED, true, "Drained", "every pod that had to go is gone"),
                );
                if let Some(drain) = &mut status.report.drain {
                    drain.gone = i64::try_from(drain.pods.len()).unwrap_or(i64::MAX);
                    drain.blockers = Vec::new();
                }
            }));
        }
        if let Some(Wait::DrainRefused { pod, count }) = refusal(&sorted) {
            let message = format!("{count} pod(s) without a controller came to the node, {pod} first");
            return self.fail(progress, FailureReason::DrainRefused, &message);
        }
        let blocked = |uid: &str| self.node.blocked.get(uid);
        if let Some((pod, fatal)) = sorted.go.iter().find_map(|p| Some((p, blocked(&p.uid).filter(|b| b.fatal)?))) {
            let message = format!("{}/{} cannot be evicted: {}", pod.namespace, pod.name, fatal.message);
            return self.fail(progress, FailureReason::DrainRefused, &message);
        }
        let deadline = self.deadline(progress.since, self.policy.drain);
        if self.now >= deadline {
            let left: Vec<_> = sorted
                .go
                .iter()
                .chain(&sorted.leaving)
                .take(3)
                .map(|p| format!("{}/{}", p.namespace, p.name))
                .collect();
            let message = format!("still on the node: {}", left.join(", "));
            return self.fail(progress, FailureReason::DrainTimedOut, &message);
        }
        let due: Vec<_> = sorted
            .go
            .iter()
            .filter(|pod| blocked(&pod.uid).is_none_or(|b| b.retry_at <= self.now))
            .map(|pod| Eviction { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() })
            .collect();
        if !due.is_empty() {
            return Decision::act(Action::Evict { pods: due });
        }
        let left = sorted.go.len() + sorted.leaving.len();
        let blockers: Vec<_> = sorted
            .go
            .iter()
            .filter_map(|pod| Some((pod, blocked(&pod.uid).filter(|b| !b.accepted)?)))
            .take(BLOCKERS)
            .collect();
        if let Some(action) = self.blockers_changed(&blockers) {
            return Decision::act(action);
        }
        let retry = sorted.go.iter().filter_map(|p| blocked(&p.uid)).map(|b| b.retry_at).min();
        let wait = match blockers.first() {
            Some((pod, blocked)) => Wait::DrainBlocked {
                pod: format!("{}/{}", pod.namespace, pod.name),
                budget: blocked.budget.clone(),
                left,
            },
            None => Wait::Draining { left },
        };
        let decision = Decision::wait(wait).waking_at(deadline);
        retry.map_or(decision.clone(), |at| decision.waking_at(at))
    }

    /// Writes who blocks the drain when that has changed.
    fn blockers_changed(&self, blockers: &[(&&crate::view::PodFacts, &crate::view::Blocked)]) -> Option<Action> {
        let wanted: Vec<_> = blockers
            .iter()
            .map(|(pod, blocked)| models::shadow::Blocker {
                pod: format!("{}/{}", pod.namespace, pod.name),
                budget: blocked.budget.clone(),
                message: blocked.message.chars().take(512).collect(),
                since: blocked.since,
            })
            .collect();
        let stored = self.shadow.status.controller.drain.as_ref().map(|d| d.blockers.as_slice()).unwrap_or_default();
        let same = stored.len() == wanted.len()
            && stored.iter().zip(&wanted).all(|(a, b)| (&a.pod, &a.budget) == (&b.pod, &b.budget));
        if same {
            return None;
        }
        let mut status = self.half();
        status.report.drain.get_or_insert_default().blockers = wanted;
        Some(Action::Status { status: Box::new(status), note: None })
    }

    /// Whether the Node itself, or else its agent, says that the wanted version runs in its present boot.
    fn runs_wanted(&self, progress: &Progress) -> bool {
        let agent = &self.shadow.status.agent;
        self.facts().os_version().as_ref() == Some(&progress.version)
            || (agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
                && agent.current_version.as_ref() == Some(&progress.version))
    }

    fn rebooting(&self, progress: &Progress) -> Decision {
        let spec = &self.shadow.spec;
        if self.facts().boot_id != progress.boot_id {
            return self.in_another_boot(progress);
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        if spec.go.is_none()
            && let Some(decision) = self.ended_from_outside(progress)
        {
            return decision;
        }
        if spec.attempt != progress.attempt || spec.state == HostState::Idle {
            return self.fail(progress, FailureReason::ProgressLost, "the order does not belong to this attempt");
        }
        if !self.facts().claimed {
            // Uncordoned under our hands: what the scheduler put here since would be lost.
            return Decision::act(Action::Claim).watching_pods();
        }
        if spec.state == HostState::StagedUpdate {
            return Decision::act(self.order(HostState::RebootedIntoUpdate, progress)).watching_pods();
        }
        let deadline = self.deadline(progress.since, self.policy.reboot);
        if self.now >= deadline {
            if self.activated(progress) && !self.facts().ready {
                // Armed, gone, and not seen since: an image that kills the host's network looks just like this.
                let message = "the node has not been seen since its image was armed";
                return self.fail(progress, FailureReason::NotReadyAfterBoot, message);
            }
            let reason = if spec.go.is_some() { FailureReason::RebootTimedOut } else { FailureReason::AgentSilent };
            return self.fail(progress, reason, "the host did not reboot in time");
        }
        // An agent that was restarted after it had armed the host asks as well, for the reboot alone.
        let asks = self.shadow.status.agent.armed.as_ref().filter(|armed| {
            armed.attempt == spec.attempt
                && spec.boot_id.as_ref() == Some(&armed.boot_id)
                && armed.boot_id == self.facts().boot_id
                && spec.version.as_ref() == Some(&armed.version)
        });
        let decision = match asks {
            Some(armed) if spec.go.as_ref().is_none_or(|go| go.nonce != armed.nonce) => {
                self.answer(progress, &armed.nonce)
            }
            _ if spec.go.is_some() => Decision::wait(Wait::AwaitingReboot),
            _ => Decision::wait(Wait::AwaitingAgent),
        };
        decision.watching_pods().waking_at(deadline)
    }

    /// The agent asks: a go, if nothing came to the node since it was drained.
    fn answer(&self, progress: &Progress, nonce: &str) -> Decision {
        let Some(sorted) = self.sorted_pods() else { return Decision::wait(Wait::ReadingPods) };
        if let Some(pod) = sorted.go.first().or(sorted.refused.first()) {
            let message = format!("{}/{} came to the drained node", pod.namespace, pod.name);
            return self.fail(progress, FailureReason::PodsReturn, &message);
        }
        if !sorted.leaving.is_empty() {
            return Decision::wait(Wait::Draining { left: sorted.leaving.len() });
        }
        Decision::act(Action::Go { nonce: nonce.to_owned() })
    }

    /// The node is in another boot than the one that the order was for.
    fn in_another_boot(&self, progress: &Progress) -> Decision {
        if self.runs_wanted(progress) {
            if !self.facts().ready {
                return self.not_ready_yet(progress);
            }
            if self.facts().claimed {
                return Decision::act(Action::Release);
            }
            return Decision::act(self.step(progress, Step::Monitoring, |status| {
                let message = format!("back on {}", progress.version);
                set_condition(&mut status.conditions, self.condition(CORDONED, false, "Updated", &message));
                set_condition(&mut status.conditions, self.condition(DRAINED, false, "Updated", &message));
            }));
        }
        // Not the wanted version: the agent knows how far it had come.
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        self.not_ready_yet(progress)
    }

    fn not_ready_yet(&self, progress: &Progress) -> Decision {
        if progress.step != Step::Returning {
            // Keeps the boot that the order was for: it is what tells that the node is in another one.
            let returning = |status: &mut ControllerStatus| {
                if let Some(p) = &mut status.report.progress {
                    p.boot_id.clone_from(&progress.boot_id);
                }
            };
            return Decision::act(self.step(progress, Step::Returning, returning));
        }
        let deadline = self.deadline(progress.since, self.policy.returning);
        if self.now < deadline {
            return Decision::wait(Wait::AwaitingReady).waking_at(deadline);
        }
        if self.runs_wanted(progress) {
            return self.fail(progress, FailureReason::NotReadyAfterBoot, "the node is not Ready on the new version");
        }
        let (reason, message) = if self.activated(progress) {
            (FailureReason::BootFellBack, "the node came back on another version and its agent is silent")
        } else {
            (FailureReason::RebootedByOther, "the node was rebooted before it was armed and its agent is silent")
        };
        self.fail(progress, reason, message)
    }

    fn returning(&self, progress: &Progress) -> Decision {
        self.in_another_boot(progress)
    }

    fn monitoring(&self, progress: &Progress) -> Decision {
        if self.facts().claimed {
            return Decision::act(Action::Release);
        }
        let until = after(progress.since, self.policy.soak);
        if self.shadow.spec.state != HostState::Idle {
            let another_boot = self.facts().boot_id != progress.boot_id;
            if another_boot && !self.runs_wanted(progress) {
                let message = "the node was rebooted into another version";
                return self.fail(progress, FailureReason::BootedOtherVersion, message);
            }
            if another_boot || !self.facts().ready {
                // Once is nothing: the soak begins anew when the node is Ready. Twice is a node that does not hold.
                if progress.soak_restarted {
                    return self.fail(progress, FailureReason::SoakFailed, "the node did not stay Ready in one boot");
                }
                let anew = Progress { soak_restarted: true, ..progress.clone() };
                return Decision::act(self.step(&anew, Step::Returning, |_| {}));
            }
            if self.now < until {
                return Decision::wait(Wait::Soaking { until }).waking_at(until);
            }
            return Decision::act(self.withdraw());
        }
        let mut status = self.half();
        let mut record = status.report.record.take().unwrap_or_default();
        record.failures = 0;
        record.not_before = None;
        record.last = Some(self.result(progress, UPDATED, ""));
        status.report.record = Some(record);
        status.report.progress = None;
        status.report.drain = None;
        let message = format!("Ready on {} for the soak time", progress.version);
        set_condition(&mut status.conditions, self.condition(HEALTHY, true, "Soaked", &message));
        unblock(&mut status);
        let from = progress.from.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
        let note =
            Note { warning: false, reason: "Updated", message: format!("updated from {from} to {}", progress.version) };
        Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
    }

    fn releasing(&self, progress: &Progress) -> Decision {
        if self.shadow.spec.state != HostState::Idle {
            return Decision::act(self.withdraw());
        }
        if progress.go_given && !self.cannot_reboot_any_more(progress) {
            let reason = self.last_failure();
            let quiet = after(progress.since, GO_LIFETIME);
            let certain = after(progress.since, GO_LIFETIME + SHUTDOWN_LIMIT);
            if self.now < certain {
                let wake = if self.disarmed() && !progress.may_be_rebooting { quiet } else { certain };
                return Decision::wait(Wait::NodeNotBack { reason }).waking_at(wake);
            }
            let look = self.node.lease.map_or(self.now, |lease| after(lease.looked_at, LEASE_LOOK));
            if look <= self.now {
                return Decision::act(Action::LookAtLease);
            }
            return Decision::wait(Wait::NodeNotBack { reason }).waking_at(look);
        }
        if self.facts().claimed {
            return Decision::act(Action::Release);
        }
        let mut status = self.half();
        status.report.progress = None;
        if status.report.drain.is_some() {
            set_condition(&mut status.conditions, self.condition(CORDONED, false, "Released", "the attempt has ended"));
            set_condition(&mut status.conditions, self.condition(DRAINED, false, "Released", "the attempt has ended"));
        }
        status.report.drain = None;
        unblock(&mut status);
        Decision::act(Action::Status { status: Box::new(status), note: None })
    }

    fn last_failure(&self) -> FailureReason {
        let last = self.shadow.status.controller.record.as_ref().and_then(|r| r.last.as_ref());
        last.and_then(|l| serde_json::from_value(serde_json::Value::String(l.reason.clone())).ok())
            .unwrap_or(FailureReason::Unknown)
    }

    /// After a go: whether the host can no longer act on it, so that the node may be given back.
    fn cannot_reboot_any_more(&self, progress: &Progress) -> bool {
        let certain = after(progress.since, GO_LIFETIME + SHUTDOWN_LIMIT);
        let quiet = if progress.may_be_rebooting { certain } else { after(progress.since, GO_LIFETIME) };
        let confirmed = self.disarmed() && self.now >= quiet;
        let another_boot = self.facts().boot_id != progress.boot_id;
        // Looked at only after `certain`: a sign of life after that is one of a host that did not go down.
        let outlived = self.now >= certain && self.node.lease.is_some_and(|lease| lease.alive());
        confirmed || another_boot || outlived
    }

    /// Keeps the `Blocked` condition true to the reason, in a write of its own only where no other write is due.
    fn with_blocked(&self, decision: Decision) -> Decision {
        let Verdict::Wait(wait) = &decision.verdict else { return decision };
        let stored = models::condition::find_condition(&self.shadow.status.conditions, BLOCKED);
        let wanted = wait.blocks().then(|| wait.as_str());
        let now = stored.filter(|c| c.status == models::condition::ConditionStatus::True).map(|c| c.reason.as_str());
        if wanted == now {
            return decision;
        }
        let mut status = self.half();
        match wanted {
            Some(reason) => {
                set_condition(&mut status.conditions, self.condition(BLOCKED, true, reason, &wait.to_string()));
            }
            None => unblock(&mut status),
        }
        let note = wanted.map(|reason| Note { warning: true, reason, message: wait.to_string() });
        Decision { verdict: Verdict::Act(Action::Status { status: Box::new(status), note }), ..decision }
    }
}

/// Any other write ends a block.
fn unblock(status: &mut ControllerStatus) {
    status.conditions.retain(|c| c.type_ != BLOCKED);
}

/// Why these pods keep a node from being drained at all.
pub(super) fn refusal(sorted: &Sorted<'_>) -> Option<Wait> {
    let first = sorted.refused.first()?;
    Some(Wait::DrainRefused { pod: format!("{}/{}", first.namespace, first.name), count: sorted.refused.len() })
}
