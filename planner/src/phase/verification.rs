//! The repeated verification of a node that runs its version without a proof: after its update a hook was silent or refused, its
//! health was not known, or a user released it. It has no slot, no claim and no desired state, and its node stays in service.
//! Also the end of a drill whose node does not stay as it was.

use models::reason::FailureReason;
use models::shadow::{HostState, Progress, Step};

use super::claim::return_to_service;
use super::desired::withdraw;
use super::end::ended_from_outside;
use super::requests::acknowledge_retry;
use super::row::{Attempt, Turn, act, fail};
use super::status::unblock;
use crate::decision::{Action, Decision, Note};
use crate::gates::verification::{due, refusal, unproven};
use crate::survey::NodeContext;

/// Begins the verification of an idle node on which nothing is left of an earlier attempt: if a user requests it, or by itself
/// once it is due. Between these a requested drill goes first.
pub(super) fn begin(ctx: &NodeContext<'_>) -> Option<Decision> {
    let unproven = unproven(ctx)?;
    let retry = ctx.shadow.pending_retry().is_some();
    let by_itself = ctx.shadow.pending_drill().is_none() && due(ctx) <= ctx.now;
    // The slot of the attempt that has ended is about to be removed.
    if !(retry || by_itself) || ctx.slot || refusal(ctx).is_some() {
        return None;
    }
    let attempt = ctx.last_attempt().saturating_add(1);
    let mut status = ctx.controller_status();
    status.report.progress = Some(Progress {
        verification: true,
        verifying_since: Some(ctx.now),
        from: None,
        // Its place is the one that the node has.
        rollout: None,
        ..ctx.new_progress(Step::Verifying, attempt, unproven.version)
    });
    acknowledge_retry(ctx, &mut status);
    unblock(&mut status);
    let message = format!("{} is verified again; it was not proven ({})", unproven.version, unproven.reason);
    let note = Note { warning: false, reason: "VerificationStarted", message };
    Some(Decision::act(Action::Status { status: Box::new(status), note: Some(note) }))
}

/// Returns the end of a verification that its node does not let go on, or the release of fields that are not to be claimed in it.
pub(super) fn interrupted(ctx: &Attempt<'_>) -> Option<Turn> {
    if let Some(turn) = ended_from_outside(ctx) {
        return Some(turn);
    }
    if !ctx.runs_target(ctx.progress) {
        return Some(fail(FailureReason::BootedOtherVersion, "the node runs another version"));
    }
    if ctx.facts().boot_id != ctx.progress.boot_id {
        return Some(fail(FailureReason::RebootedByOther, "the node was rebooted during its verification"));
    }
    if ctx.needs_release() {
        return Some(act(Action::Release));
    }
    // The update has shown that the node becomes Ready on the version: this is not the version's fault alone.
    (!ctx.facts().ready).then(|| fail(FailureReason::HealthUnknown, "the node did not stay Ready"))
}

/// Withdraws the desired state of a drill whose node is verified, and ends it where the node did not stay as it was.
pub(super) fn after_drill(ctx: &Attempt<'_>) -> Option<Turn> {
    if let Some(turn) = ended_from_outside(ctx) {
        return Some(turn);
    }
    if ctx.facts().boot_id != ctx.progress.boot_id {
        return Some(fail(FailureReason::RebootedByOther, "the node was rebooted during the drill"));
    }
    if ctx.shadow.spec.state != HostState::Idle {
        return Some(act(withdraw(ctx)));
    }
    if let Some(action) = return_to_service(ctx) {
        return Some(act(action));
    }
    (!ctx.facts().ready).then(|| fail(FailureReason::SoakFailed, "the node did not stay Ready"))
}
