//! From idle to a staged image: the check that an attempt may begin, and staging, which disrupts nothing.

use models::reason::FailureReason;
use models::shadow::{HostState, MOST_ATTEMPTS, Progress, Step};
use semver::Version;

use super::{Case, unblock};
use crate::plan::{Action, Decision, Verdict, Wait, gates, want};
use crate::wait::WaitReason;

impl Case<'_> {
    /// Cleans up after an interrupted attempt if nothing is under way, else checks if a new one may begin.
    pub(super) fn idle(&self) -> Decision {
        let spec = &self.shadow.spec;
        if spec.state != HostState::Idle {
            // A desired state without a record of its attempt: withdrawn like a failed one.
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
                permit_issued: spec.permit.is_some(),
                soak_restarted: false,
                watched_since: None,
                disruptive: self.slot || self.facts().claimed(),
            };
            return self.fail(&progress, FailureReason::ProgressLost, "the record of this attempt is gone");
        }
        if self.facts().claimed() && self.facts().held {
            // A held node stays out of service until the user removes the hold; its host's settings are restored.
            if !self.host_is_told() {
                return Decision::act(self.withdraw());
            }
            return self.with_blocked(Decision::wait(Wait::Held));
        }
        if self.facts().claimed() {
            // A claim without an attempt, for example from a shadow that was deleted or whose record a client removed,
            // or one that a user's hold has kept. An issued permit is not known any more, nor to an agent that was
            // restarted: the longest time that a host can take to go down has to pass.
            let certain = self.down_by(None);
            if self.now >= certain {
                return Decision::act(Action::Release);
            }
            return self.with_blocked(Decision::wait(Wait::DisarmPending).waking_at(certain));
        }
        if self.drain().is_some() {
            let mut status = self.half();
            self.forget_claim(&mut status);
            return Decision::act(Action::Status { status: Box::new(status), note: None });
        }
        if !self.host_is_told() {
            // The host gets the policy's settings before anything begins: an attempt keeps those that it began with.
            return Decision::act(self.withdraw());
        }
        let decision = self.may_begin();
        self.with_blocked(decision)
    }

    /// Checks the gates that read only the fleet's switches and the node itself, in the order in which their reasons
    /// are worth reading.
    pub(super) fn may_begin(&self) -> Decision {
        let agent = &self.shadow.status.agent;
        let facts = self.facts();
        if !facts.labelled {
            return Decision::wait(Wait::NotLabelled);
        }
        if facts.deleting || self.shadow.deleting {
            return Decision::wait(Wait::Deleting);
        }
        if let Some(wait) = gates::agent_of(self.node, self.now) {
            return Decision::wait(wait);
        }
        if agent.boot_id.as_deref() != Some(facts.boot_id.as_str()) {
            return Decision::wait(Wait::NoReport);
        }
        if self.armed_by_other() {
            return Decision::wait(Wait::HostArmedByOther);
        }
        if let Some(lock) = self.conflicting_lock() {
            return Decision::wait(Wait::LockedByOther { lock });
        }
        if !self.disarmed() {
            return Decision::wait(if agent.armed.is_some() { Wait::DisarmPending } else { Wait::AgentBehind });
        }
        if self.last_attempt() >= MOST_ATTEMPTS {
            return Decision::wait(Wait::AttemptsExhausted);
        }
        let version = match self.survey.wanted(self.node) {
            Ok(version) => version,
            Err(wait) => return Decision::wait(wait),
        };
        match gates::begin(&self.gate_input(version)) {
            Some(wait) => Decision::wait(wait),
            None => Decision { verdict: Verdict::Candidate(version.clone()), ..Decision::default() },
        }
    }

    /// Returns the highest number of an attempt of this shadow.
    fn last_attempt(&self) -> i64 {
        let record = self.shadow.status.controller.record.as_ref();
        let last = record.and_then(|record| record.last.as_ref()).map_or(0, |last| last.attempt);
        self.shadow.spec.attempt.max(last)
    }

    /// The first write of an attempt. The desired state follows once it is recorded.
    pub(in crate::plan) fn begin(&self, version: &Version) -> Action {
        let mut status = self.half();
        status.report.progress = Some(Progress {
            step: Step::Staging,
            since: self.now,
            attempt: self.last_attempt().saturating_add(1),
            boot_id: self.facts().boot_id.clone(),
            version: version.clone(),
            from: self.shadow.status.agent.current_version.clone(),
            started: self.now,
            permit_issued: false,
            soak_restarted: false,
            watched_since: None,
            disruptive: false,
        });
        status.report.drain = None;
        unblock(&mut status);
        Action::Status { status: Box::new(status), note: None }
    }

    pub(super) fn staging(&self, progress: &Progress) -> Decision {
        let spec = &self.shadow.spec;
        if let Some(decision) = self.ended_from_outside(progress) {
            return decision;
        }
        if !self.policy.enabled && !self.slot {
            return self.fail(progress, FailureReason::Disabled, "updates were switched off");
        }
        let agent = &self.shadow.status.agent;
        let no_longer = want::no_longer(self.policy, &self.survey.known, agent, &progress.version, self.now);
        if let Some(message) = no_longer.filter(|_| !self.slot) {
            return self.fail(progress, FailureReason::PolicyChanged, &message);
        }
        let wanted = self.survey.wants.get(self.facts().name.as_str()).map(|want| &want.version);
        if let Some(message) = wanted.and_then(|wanted| want::superseded(agent, &progress.version, wanted)) {
            return self.fail(progress, FailureReason::Superseded, &message);
        }
        if spec.attempt < progress.attempt {
            return Decision::act(self.order(HostState::StagedUpdate, progress));
        }
        if spec.attempt != progress.attempt || spec.state != HostState::StagedUpdate {
            return self.fail(
                progress,
                FailureReason::ProgressLost,
                "the desired state does not belong to this attempt",
            );
        }
        if let Some((reason, message)) = self.agent_failure(progress.attempt) {
            return self.fail(progress, reason, message);
        }
        if agent.boot_id.as_deref() == Some(self.facts().boot_id.as_str())
            && agent.current_version.as_ref() == Some(&progress.version)
        {
            return self.fail(progress, FailureReason::UpdatedByOther, "the host runs the version already");
        }
        if spec.boot_id.as_deref() != Some(self.facts().boot_id.as_str()) {
            // Rebooted by another client while nothing was disrupted: the same attempt goes on in the new boot.
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
        if let Some(wait) = gates::start(&self.gate_input(&progress.version)) {
            return self.waiting_staged(progress, wait, true);
        }
        if self.slot {
            return self.start_drain(progress);
        }
        Decision { verdict: Verdict::WantsSlot, ..Decision::default() }
    }

    /// Records the reason why a staged node waits, once. The findings of the last check stay until the next one:
    /// `looked` is true if this was one.
    pub(in crate::plan) fn waiting_staged(&self, progress: &Progress, wait: Wait, looked: bool) -> Decision {
        if progress.step == Step::Staging {
            return Decision::act(self.step(progress, Step::Staged, |_| {}));
        }
        let stored = models::condition::find_condition(&self.shadow.status.conditions, models::shadow::BLOCKED);
        if !looked && stored.is_some_and(|c| c.reason.parse().is_ok_and(WaitReason::is_check_finding)) {
            return Decision::wait(wait);
        }
        self.with_blocked(Decision::wait(wait))
    }
}
