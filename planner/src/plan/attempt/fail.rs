//! The failure of an attempt, and what it counts against.

use models::condition::ConditionStatus;
use models::plain::cut;
use models::reason::{FailureClass, FailureReason};
use models::shadow::{AttemptResult, HEALTHY, HostState, Progress, Record, Step, VersionFailure};

use super::drill;
use super::requests::acknowledge_release;
use super::result::keep_result;
use super::status::unblock;
use models::time::after;

use crate::plan::context::NodeContext;
use crate::plan::{Action, Decision, Note};

/// The number of failures against versions that a shadow keeps.
const VERSION_FAILURES: usize = 8;

/// Ends the attempt: recorded first, then withdrawn, then released.
pub(super) fn fail(ctx: &NodeContext<'_>, progress: &Progress, reason: FailureReason, message: &str) -> Decision {
    if let Some(drill) = &progress.drill {
        return drill::end(ctx, progress, drill, reason.as_str(), message);
    }
    let mut status = ctx.controller_status();
    let mut record = status.report.record.take().unwrap_or_default();
    let end = reason.end();
    if end.backs_off() {
        record.failures = record.failures.saturating_add(1);
        record.not_before = Some(after(ctx.now, ctx.policy.back_off_after(record.failures)));
    }
    if end.class == FailureClass::Version {
        record_version_failure(ctx, &mut record, progress, reason);
        ctx.set_condition(&mut status, HEALTHY, false, reason.as_str(), message);
    } else if matches!(progress.step, Step::Returning | Step::Verifying | Step::AfterUpdate) {
        ctx.set_condition(&mut status, HEALTHY, ConditionStatus::Unknown, reason.as_str(), message);
    }
    record.last = Some(attempt_result(ctx, progress, reason.as_str(), message));
    status.report.record = Some(record);
    keep_result(ctx, &mut status, progress, reason.as_str(), message, Vec::new());
    let permit_issued = may_reboot(ctx, progress);
    status.report.progress =
        Some(Progress { step: Step::Releasing, since: ctx.now, permit_issued, ..progress.clone() });
    acknowledge_release(ctx, &mut status);
    unblock(&mut status);
    let note = Note {
        warning: end.event.is_warning(),
        reason: end.event.as_str(),
        message: format!("attempt {} to {}: {reason}: {message}", progress.attempt, progress.version),
    };
    Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
}

/// Returns whether the host may still act on a permit of this attempt. One is valid in the boot that its desired state names:
/// in another one there is nothing left to wait for. By a rehearsal permit no host reboots.
pub(super) fn may_reboot(ctx: &NodeContext<'_>, progress: &Progress) -> bool {
    let spec = &ctx.shadow.spec;
    let spent = spec.boot_id.as_ref().is_some_and(|boot| *boot != ctx.facts().boot_id);
    let issued = spec.permit.is_some() && spec.state != HostState::RehearsedUpdate;
    !spent && (progress.permit_issued || issued)
}

/// Returns the end of an attempt without an issued permit, whatever its step.
pub(super) fn ended_from_outside(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Decision> {
    let fail = |reason, message| Some(fail(ctx, progress, reason, message));
    let agent = &ctx.shadow.status.agent;
    let updates = progress.drill.as_ref().is_none_or(|drill| drill.download);
    if updates && ctx.survey.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), &progress.version) {
        return fail(FailureReason::Quarantined, "the version has failed on other nodes");
    }
    if !ctx.policy.present {
        return fail(FailureReason::Disabled, "the operator's resource is gone");
    }
    if !ctx.facts().labelled {
        return fail(FailureReason::LabelRemoved, "the node lost the label that puts it under the operator");
    }
    if ctx.facts().held() {
        return fail(FailureReason::Held, "the node is held");
    }
    if ctx.facts().deleting {
        return fail(FailureReason::NodeDeleted, "the node is being deleted");
    }
    None
}

fn record_version_failure(ctx: &NodeContext<'_>, record: &mut Record, progress: &Progress, reason: FailureReason) {
    let agent = &ctx.shadow.status.agent;
    let failure = VersionFailure {
        version: progress.version.clone(),
        variant: agent.variant.clone().unwrap_or_default(),
        arch: agent.arch.clone().unwrap_or_default(),
        reason,
        time: ctx.now,
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
        let resolved = failures.iter().position(|f| f.resolved_by.is_some()).unwrap_or(0);
        failures.remove(resolved);
    }
    failures.push(failure);
}

pub(super) fn attempt_result(ctx: &NodeContext<'_>, progress: &Progress, reason: &str, message: &str) -> AttemptResult {
    AttemptResult {
        attempt: progress.attempt,
        from: progress.from.clone(),
        version: progress.version.clone(),
        reason: reason.to_owned(),
        message: cut(message, 1024),
        started: progress.started,
        ended: ctx.now,
    }
}
