//! The release of a node whose attempt has failed, once its host can no longer act on a permit.

use std::time::Duration;

use jiff::Timestamp;
use models::permit::PERMIT_LIFETIME;
use models::reason::FailureReason;
use models::shadow::{CORDONED, ControllerStatus, DRAINED, HostState, Progress};

use super::desired::withdraw;
use super::status::unblock;
use models::time::after;

use crate::decision::{Action, Decision};
use crate::survey::NodeContext;
use crate::wait::Wait;

/// The interval of reading a Lease while a release waits for it: kubelets renew theirs every 10 s.
const LEASE_READ_INTERVAL: Duration = Duration::from_secs(10);

/// Releases a node, and ends its attempt.
pub(super) fn decide(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if ctx.shadow.spec.state != HostState::Idle {
        return Decision::act(withdraw(ctx));
    }
    if progress.permit_issued && !cannot_reboot_any_more(ctx, progress) {
        let reason = last_failure(ctx);
        let certain = down_by(ctx, Some(progress.since));
        if ctx.now < certain {
            return Decision::wait(Wait::NodeNotReturned { reason }).waking_at(certain);
        }
        // A reading in the future was by a clock that ran ahead.
        let before = ctx.node.lease.filter(|lease| lease.observed_at <= ctx.now);
        let next_read = before.map_or(ctx.now, |lease| after(lease.observed_at, LEASE_READ_INTERVAL));
        if next_read <= ctx.now {
            return Decision::act(Action::ReadLease);
        }
        return Decision::wait(Wait::NodeNotReturned { reason }).waking_at(next_read);
    }
    if ctx.needs_release() {
        return Decision::act(Action::Release);
    }
    // Also on a held node: nothing is to come for which hooks would have to keep anything.
    if ctx.facts().hook_request.is_some() {
        return Decision::act(Action::Hook { request: None });
    }
    let mut status = ctx.controller_status();
    status.report.progress = None;
    // A user who holds the node keeps it as it is: the claim stays, and so does the record of it.
    if !(ctx.facts().held() && ctx.facts().claimed()) {
        forget_claim(ctx, &mut status);
    }
    unblock(&mut status);
    Decision::act(Action::Status { status: Box::new(status), note: None })
}

/// Removes the record of a claim that is released.
pub(super) fn forget_claim(ctx: &NodeContext<'_>, status: &mut ControllerStatus) {
    if status.report.drain.is_some() {
        ctx.set_condition(status, CORDONED, false, "Released", "the attempt has ended");
        ctx.set_condition(status, DRAINED, false, "Released", "the attempt has ended");
    }
    status.report.drain = None;
}

fn last_failure(ctx: &NodeContext<'_>) -> FailureReason {
    let last = ctx.shadow.status.controller.record.as_ref().and_then(|r| r.last.as_ref());
    last.and_then(|l| serde_json::from_value(serde_json::Value::String(l.reason.clone())).ok())
        .unwrap_or(FailureReason::Unknown)
}

/// Returns when a host that acted on a permit has gone down, at the latest, if no permit was issued since `since`;
/// without that, since this process observed the node in this state. It has to have passed by the clock that wrote
/// `since`, and by this process's own monotonic clock.
pub(super) fn down_by(ctx: &NodeContext<'_>, since: Option<Timestamp>) -> Timestamp {
    let span = PERMIT_LIFETIME + ctx.policy.shutdown;
    let own = after(ctx.now, span.saturating_sub(ctx.node.observed_for));
    // A time in the future was written by a clock that ran ahead, or by a user: this process's own clock has to do.
    let since = since.filter(|since| *since <= ctx.now);
    since.map_or(own, |since| own.max(after(since, span)))
}

/// Returns whether, after a permit, the host can no longer act on it, so that the node may be released. The agent
/// status is not used: a compromised web API can write anything in its name.
fn cannot_reboot_any_more(ctx: &NodeContext<'_>, progress: &Progress) -> bool {
    let another_boot = ctx.facts().boot_id != progress.boot_id;
    // Read only after that time: a renewal after it is of a host that did not go down.
    let outlived = ctx.now >= down_by(ctx, Some(progress.since)) && ctx.node.lease.is_some_and(|lease| lease.alive());
    another_boot || outlived
}
