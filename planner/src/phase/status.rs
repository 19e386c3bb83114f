//! Writes of the controller status that several phases make.

use jiff::Timestamp;
use models::condition::true_condition;
use models::shadow::{BLOCKED, CORDONED, ControllerStatus, DRAINED};

use crate::decision::{Action, Decision, Note, Verdict};
use crate::survey::NodeContext;
use crate::view::NodeView;
use crate::wait::{Wait, WaitReason};

/// Keeps the `Blocked` condition true to the reason and its facts, in a write of its own only where no other write is due.
pub(super) fn with_blocked_condition(ctx: &NodeContext<'_>, decision: Decision) -> Decision {
    let Verdict::Wait(wait) = &decision.verdict else { return decision };
    let stored = true_condition(&ctx.shadow.status.conditions, BLOCKED);
    let wanted = ctx.node.is_blocked_by(wait).then(|| wait.as_str());
    let now = stored.map(|c| c.reason.as_str());
    // The facts of a reason change: a hold has another end, or another pod is the first by now.
    let same_text = wanted.is_none() || stored.is_some_and(|c| wait.is_recorded(&c.message));
    if wanted == now && same_text {
        return decision;
    }
    let mut status = ctx.controller_status();
    match wanted {
        Some(reason) => {
            ctx.set_condition(&mut status, BLOCKED, true, reason, &wait.to_string());
        }
        None => unblock(&mut status),
    }
    let note = wanted.filter(|_| wanted != now).map(|reason| Note { warning: true, reason, message: wait.to_string() });
    Decision { verdict: Verdict::Act(Action::Status { status: Box::new(status), note }), ..decision }
}

/// Returns the wait for an action that has failed for a while.
pub(crate) fn failing(node: &NodeView, now: Timestamp) -> Option<Wait> {
    node.failing.as_ref()?.wait(now)
}

/// Shows on the node that an action about it fails, once, before it is tried again. Where the write of the status itself fails, the
/// operator's status alone has it.
pub(crate) fn with_failing_action(ctx: &NodeContext<'_>, decision: Decision) -> Decision {
    let acts = matches!(&decision.verdict, Verdict::Act(action) if !matches!(action, Action::Status { .. }));
    let Some(wait) = failing(ctx.node, ctx.now).filter(|_| acts) else { return decision };
    match with_blocked_condition(ctx, Decision::wait(wait)).verdict {
        write @ Verdict::Act(_) => Decision { verdict: write, ..decision },
        _ => decision,
    }
}

/// Records the reason why a node that was not checked waits for its turn: what blocked it before does not any more. The findings of
/// the last check stay until the next one.
pub(crate) fn waiting_in_turn(ctx: &NodeContext<'_>, wait: Wait) -> Decision {
    let stored = true_condition(&ctx.shadow.status.conditions, BLOCKED);
    if stored.is_some_and(|c| c.reason.parse().is_ok_and(WaitReason::is_check_finding)) {
        return Decision::wait(wait);
    }
    with_blocked_condition(ctx, Decision::wait(wait))
}

/// Removes the `Blocked` condition, as any other write ends a block.
pub(super) fn unblock(status: &mut ControllerStatus) {
    status.conditions.retain(|c| c.type_ != BLOCKED);
}

/// Removes the record of a claim that is released.
pub(super) fn forget_claim(ctx: &NodeContext<'_>, status: &mut ControllerStatus) {
    if status.report.drain.is_some() {
        ctx.set_condition(status, CORDONED, false, "Released", "the attempt has ended");
        ctx.set_condition(status, DRAINED, false, "Released", "the attempt has ended");
    }
    status.report.drain = None;
}
