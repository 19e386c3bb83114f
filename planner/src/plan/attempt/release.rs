//! The failure of an attempt, what it counts against, and the time at which the node may be released.

use jiff::Timestamp;
use models::condition::{ConditionStatus, set_condition};
use models::permit::PERMIT_LIFETIME;
use models::plain::cut;
use models::reason::{FailureClass, FailureReason};
use models::shadow::{
    ArmedPhase, AttemptResult, CORDONED, ControllerStatus, DRAINED, HEALTHY, HostState, Progress, Record, Step,
    VersionFailure,
};

use super::{Case, LEASE_LOOK, VERSION_FAILURES, after, unblock};
use crate::plan::{Action, Decision, Note, Wait};

impl Case<'_> {
    /// Ends the attempt: recorded first, then withdrawn, then released.
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
            set_condition(&mut status.conditions, self.condition(HEALTHY, false, reason.as_str(), message));
        } else if matches!(progress.step, Step::Returning | Step::Monitoring) {
            let unknown = self.condition(HEALTHY, ConditionStatus::Unknown, reason.as_str(), message);
            set_condition(&mut status.conditions, unknown);
        }
        record.last = Some(self.result(progress, reason.as_str(), message));
        status.report.record = Some(record);
        // A permit is valid in the boot that its desired state names. In another one there is nothing left to wait for.
        let order_boot = self.shadow.spec.boot_id.as_ref();
        let spent = order_boot.is_some_and(|boot| *boot != self.facts().boot_id);
        status.report.progress = Some(Progress {
            step: Step::Releasing,
            since: self.now,
            permit_issued: !spent && (progress.permit_issued || self.shadow.spec.permit.is_some()),
            ..progress.clone()
        });
        self.acknowledge_release(&mut status);
        unblock(&mut status);
        let note = Note {
            warning: counts,
            reason: if counts { "UpdateFailed" } else { "UpdateWithdrawn" },
            message: format!("attempt {} to {}: {reason}: {message}", progress.attempt, progress.version),
        };
        Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
    }

    /// Returns the end of an attempt without an issued permit, whatever its step.
    pub(super) fn ended_from_outside(&self, progress: &Progress) -> Option<Decision> {
        let fail = |reason, message| Some(self.fail(progress, reason, message));
        let agent = &self.shadow.status.agent;
        if self.survey.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), &progress.version) {
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
        if self.facts().deleting {
            return fail(FailureReason::NodeDeleted, "the node is being deleted");
        }
        None
    }

    /// Returns whether the agent has reported the image of this attempt as armed.
    pub(super) fn activated(&self, progress: &Progress) -> bool {
        let armed = self.shadow.status.agent.armed.as_ref();
        armed.is_some_and(|a| a.attempt == progress.attempt && a.phase == ArmedPhase::Activated)
    }

    pub(super) fn charge(&self, record: &mut Record, progress: &Progress, reason: FailureReason) {
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

    pub(super) fn result(&self, progress: &Progress, reason: &str, message: &str) -> AttemptResult {
        AttemptResult {
            attempt: progress.attempt,
            from: progress.from.clone(),
            version: progress.version.clone(),
            reason: reason.to_owned(),
            message: cut(message, 1024),
            started: progress.started,
            ended: self.now,
        }
    }

    pub(super) fn releasing(&self, progress: &Progress) -> Decision {
        if self.shadow.spec.state != HostState::Idle {
            return Decision::act(self.withdraw());
        }
        if progress.permit_issued && !self.cannot_reboot_any_more(progress) {
            let reason = self.last_failure();
            let certain = self.down_by(Some(progress.since));
            if self.now < certain {
                return Decision::wait(Wait::NodeNotBack { reason }).waking_at(certain);
            }
            // A reading in the future was by a clock that ran ahead.
            let before = self.node.lease.filter(|lease| lease.looked_at <= self.now);
            let look = before.map_or(self.now, |lease| after(lease.looked_at, LEASE_LOOK));
            if look <= self.now {
                return Decision::act(Action::LookAtLease);
            }
            return Decision::wait(Wait::NodeNotBack { reason }).waking_at(look);
        }
        if self.to_release() {
            return Decision::act(Action::Release);
        }
        let mut status = self.half();
        status.report.progress = None;
        // A user who holds the node keeps it as it is: the claim stays, and so does the record of it.
        if !(self.facts().held && self.facts().claimed()) {
            self.forget_claim(&mut status);
        }
        unblock(&mut status);
        Decision::act(Action::Status { status: Box::new(status), note: None })
    }

    /// Removes the record of a claim that is released.
    pub(super) fn forget_claim(&self, status: &mut ControllerStatus) {
        if status.report.drain.is_some() {
            set_condition(&mut status.conditions, self.condition(CORDONED, false, "Released", "the attempt has ended"));
            set_condition(&mut status.conditions, self.condition(DRAINED, false, "Released", "the attempt has ended"));
        }
        status.report.drain = None;
    }

    pub(super) fn last_failure(&self) -> FailureReason {
        let last = self.shadow.status.controller.record.as_ref().and_then(|r| r.last.as_ref());
        last.and_then(|l| serde_json::from_value(serde_json::Value::String(l.reason.clone())).ok())
            .unwrap_or(FailureReason::Unknown)
    }

    /// Returns when a host that acted on a permit has gone down, at the latest, if no permit was issued since `since`;
    /// without that, since this process observed the node in this state. It has to have passed by the clock that wrote
    /// `since`, and by this process's own monotonic clock.
    pub(super) fn down_by(&self, since: Option<Timestamp>) -> Timestamp {
        let span = PERMIT_LIFETIME + self.policy.shutdown;
        let own = after(self.now, span.saturating_sub(self.node.stood));
        // A time in the future was written by a clock that ran ahead, or by a user: this process's own clock has to do.
        let since = since.filter(|since| *since <= self.now);
        since.map_or(own, |since| own.max(after(since, span)))
    }

    /// Returns whether, after a permit, the host can no longer act on it, so that the node may be released. The agent
    /// status is not used: a compromised web API can write anything in its name.
    fn cannot_reboot_any_more(&self, progress: &Progress) -> bool {
        let another_boot = self.facts().boot_id != progress.boot_id;
        // Read only after that time: a renewal after it is of a host that did not go down.
        let outlived =
            self.now >= self.down_by(Some(progress.since)) && self.node.lease.is_some_and(|lease| lease.alive());
        another_boot || outlived
    }
}
