//! The continuation of an update whose node is in another boot than the one that its desired state was for.

use std::time::Duration;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{ArmedPhase, CORDONED, DRAINED, HostState, Progress, Step};

use super::claim::return_to_service;
use super::health::blame_first;
use super::row::{Attempt, Turn, act, fail, stay};
use crate::wait::Wait;

/// Returns when the node is no longer waited for.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Timestamp {
    ctx.deadline(ctx.progress.since, ctx.policy.returning)
}

/// Continues an attempt whose node is in another boot than the one that the desired state was for.
pub(super) fn after_reboot(ctx: &Attempt<'_>) -> Turn {
    if ctx.runs_target(ctx.progress) {
        if !ctx.facts().ready {
            return not_ready_yet(ctx);
        }
        if let Some(action) = return_to_service(ctx) {
            return act(action);
        }
        let verifying =
            Progress { verifying_since: ctx.progress.verifying_since.or(Some(ctx.now)), ..ctx.progress.clone() };
        return ctx.next_with(Step::Verifying, verifying, |status| {
            let message = format!("back on {}", ctx.progress.version);
            ctx.set_condition(status, CORDONED, false, "Updated", &message);
            ctx.set_condition(status, DRAINED, false, "Updated", &message);
        });
    }
    if !is_desired(ctx) {
        let message =
            "the node came back on another version, and how far its update had come went with its Node object";
        return fail(FailureReason::RebootedByOther, message);
    }
    // Not the target version: the agent knows how far it had come.
    if let Some((reason, message)) = ctx.agent_failure(ctx.progress) {
        return fail(reason, message);
    }
    if ctx.shadow.spec.state == HostState::StagedUpdate && !is_activated(ctx) {
        // No reboot was requested from its agent, which has nothing to report.
        return fail(FailureReason::RebootedByOther, "the node was rebooted before its update was to boot");
    }
    not_ready_yet(ctx)
}

fn not_ready_yet(ctx: &Attempt<'_>) -> Turn {
    if ctx.progress.step != Step::Returning {
        return ctx.next_keeping_boot(Step::Returning, ctx.progress.clone());
    }
    let deadline = deadline(ctx);
    if ctx.now < deadline {
        return stay(Wait::AwaitingReady).waking_at(deadline);
    }
    let limit = limit_of(ctx.policy.returning, "return");
    if ctx.runs_target(ctx.progress) {
        let message = format!("the node was not Ready on the new version {limit}");
        return blame_first(ctx, FailureReason::NotReadyAfterBoot, &message);
    }
    let (reason, what) = if is_activated(ctx) {
        (FailureReason::BootFellBack, "came back on another version")
    } else {
        (FailureReason::RebootedByOther, "was rebooted before it was armed")
    };
    fail(reason, format!("the node {what}, and its agent did not report {limit}"))
}

/// Names a time limit with its field, for users.
pub(super) fn limit_of(limit: Duration, field: &str) -> String {
    format!("within {} (spec.deadlines.{field})", models::duration::Duration(limit))
}

/// Returns the end of an update whose node has left the target version by another boot.
pub(super) fn left_target(ctx: &Attempt<'_>) -> Option<Turn> {
    let another_boot = ctx.facts().boot_id != ctx.progress.boot_id;
    (another_boot && !ctx.runs_target(ctx.progress))
        .then(|| fail(FailureReason::BootedOtherVersion, "the node was rebooted into another version"))
}

/// Returns whether the shadow had a desired state for this attempt. One that was created with another Node object while its machine
/// rebooted had none.
pub(super) fn is_desired(ctx: &Attempt<'_>) -> bool {
    ctx.shadow.spec.attempt == ctx.progress.attempt
}

/// Returns whether the agent has reported the image of this attempt as armed, by a permit that it had.
fn is_activated(ctx: &Attempt<'_>) -> bool {
    let armed = ctx.shadow.status.agent.armed.as_ref();
    let armed = armed.is_some_and(|a| a.attempt == ctx.progress.attempt && a.phase == ArmedPhase::Activated);
    armed && ctx.permit_issued(ctx.progress)
}
