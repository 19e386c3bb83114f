//! The release of a node whose attempt has failed, once its host can no longer act on a permit.

use jiff::Timestamp;
use models::reason::{End, FailureReason, Proof};
use models::shadow::{HostState, NodeProof, Progress};

use super::desired::withdraw;
use super::down::down_by;
use super::lease::{READ_INTERVAL, read_again};
use super::row::{Attempt, Turn, act, stay};
use super::status::{forget_claim, unblock};
use crate::decision::Action;
use crate::gates;
use crate::survey::NodeContext;
use crate::wait::Wait;

/// Releases a node, and ends its attempt.
pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    if ctx.shadow.spec.state != HostState::Idle {
        return act(withdraw(ctx));
    }
    if ctx.progress.permit_issued && !cannot_reboot_any_more(ctx) {
        let reason = last_failure(ctx);
        if !ctx.facts().ready {
            // It counts among those that are out of service, for as long as that takes: its slot would show nothing more.
            if ctx.progress.disruptive {
                return free_slot(ctx);
            }
            // A user who holds it knows that it is not back.
            return stay(gates::held(ctx).unwrap_or(Wait::NodeNotReturned { reason }));
        }
        let certain = down_by(ctx, Some(ctx.progress.since));
        if ctx.now < certain {
            return stay(Wait::NodeNotReturned { reason }).waking_at(certain);
        }
        return read_again(ctx, READ_INTERVAL, false, |_| Wait::NodeNotReturned { reason });
    }
    if ctx.needs_release() {
        return act(Action::Release);
    }
    // Also on a held node: nothing is to come for which hooks would have to keep anything.
    if ctx.facts().hook_request.is_some() {
        return act(Action::Hook { request: None });
    }
    let mut status = ctx.controller_status();
    status.report.progress = None;
    // While its host could still act on the permit, it might have come to the version. Now it is certain that it has not.
    if let Some(record) = status.report.record.as_mut().filter(|_| !ctx.runs_target(ctx.progress)) {
        let own = |place: &&mut NodeProof| place.attempt == ctx.progress.attempt && place.proof == Proof::Unproven;
        if let Some(place) = record.proof.as_mut().filter(own) {
            place.proof = Proof::Free;
        }
    }
    // A user who holds the node keeps it as it is: the claim stays, and so does the record of it.
    if !(ctx.facts().held() && ctx.facts().claimed()) {
        forget_claim(ctx, &mut status);
    }
    unblock(&mut status);
    act(Action::Status { status: Box::new(status), note: None })
}

/// Frees the slot of an attempt that has ended while its host may still reboot. The claim stays, and so does the record of the
/// boot.
fn free_slot(ctx: &Attempt<'_>) -> Turn {
    let mut status = ctx.controller_status();
    status.report.progress = Some(Progress { disruptive: false, ..ctx.progress.clone() });
    act(Action::Status { status: Box::new(status), note: None })
}

fn last_failure(ctx: &NodeContext<'_>) -> FailureReason {
    let last = ctx.shadow.status.controller.record.as_ref().and_then(|r| r.last.as_ref());
    last.and_then(|last| End::of(&last.reason)?.failure).unwrap_or(FailureReason::Unknown)
}

/// Returns whether, after a permit, the host can no longer act on it, so that the node may be released. The agent
/// status is not used: a compromised web API can write anything in its name. A kubelet that shuts its pods down reports that it is
/// not Ready, and renews its Lease all the while.
fn cannot_reboot_any_more(ctx: &Attempt<'_>) -> bool {
    let another_boot = ctx.facts().boot_id != ctx.progress.boot_id;
    // Readings of its verification do not count. In its release it is read only after that time: a renewal after it is of a host that did
    // not go down. A release that began in the future was recorded by a clock that ran ahead.
    let since = Some(ctx.progress.since).filter(|since| *since <= ctx.now).unwrap_or(Timestamp::UNIX_EPOCH);
    let alive = ctx.node.lease.is_some_and(|lease| lease.was_alive_after(since));
    let outlived = ctx.now >= down_by(ctx, Some(ctx.progress.since)) && alive;
    another_boot || (outlived && ctx.facts().ready)
}
