//! The wait of a claimed node for its hooks. Its drain begins if it still passes the gates that it had passed before they were
//! asked; otherwise it returns to service.

use jiff::Timestamp;
use models::condition::true_condition;
use models::reason::FailureReason;
use models::shadow::BLOCKED;
use models::time::after;

use super::claim::{claim_due, ended_before_eviction};
use super::hooks::{deadline, still_awaited, unanswered};
use super::row::{Attempt, Outcome, Turn, act, fail, stay};
use super::start::begin_drain;
use super::status::unblock;
use crate::decision::Action;
use crate::gates::{self, Obstacle};
use crate::hooks;
use crate::wait::Wait;

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    if let Some(turn) = ended_before_eviction(ctx) {
        return turn;
    }
    if let Some(deadline) = deadline(ctx)
        && let Some(claim) = claim_due(ctx)
    {
        if ctx.now < deadline {
            return claim.waking_at(deadline);
        }
        // The hooks are asked once the node is claimed.
        if ctx.facts().hook_request != hooks::request(ctx.progress) {
            return fail(FailureReason::DrainTimedOut, "the node could not be cordoned");
        }
    }
    still_awaited(ctx).unwrap_or_else(|| checked_again(ctx))
}

fn checked_again(ctx: &Attempt<'_>) -> Turn {
    let until = after(deadline(ctx).unwrap_or(ctx.progress.since), ctx.group().drain.timeout);
    match gates::after_hooks(ctx) {
        None => begin_drain(ctx).noting(unanswered(ctx)),
        Some(Obstacle::Unknown(wait)) if ctx.now < until => {
            let queries = gates::queries(&ctx.group().before.expressions, &ctx.facts().name);
            stay(wait).querying(queries).waking_at(until)
        }
        Some(Obstacle::Refused(
            wait @ (Wait::BudgetUnhealthy { .. }
            | Wait::BudgetNeverAllows { until: None, is_static: false, .. }
            | Wait::HostNotUsable { .. }
            | Wait::HostBusy { .. }),
        )) if ctx.now < until => awaits_recovery(ctx, wait, until),
        Some(Obstacle::Unknown(refused) | Obstacle::Refused(refused)) => Turn::of(Outcome::Refuse(refused)),
    }
}

/// Waits for a budget or for the host no longer than a drain waits for guarded pods: another node's drain may have moved pods of the budget,
/// whose replacements are about to be Ready, and a host may not answer for some seconds. The `Blocked` condition records since when.
fn awaits_recovery(ctx: &Attempt<'_>, wait: Wait, until: Timestamp) -> Turn {
    match true_condition(&ctx.shadow.status.conditions, BLOCKED) {
        None => stay(wait).waking_at(until),
        // It has held since the hooks were asked: its time is that of this reason only if it has not held in between.
        Some(blocked) if blocked.reason != wait.as_str() => {
            let mut status = ctx.controller_status();
            unblock(&mut status);
            act(Action::Status { status: Box::new(status), note: None })
        }
        Some(blocked) => {
            let until = until.min(ctx.deadline(blocked.last_transition_time, ctx.group().drain.guarded_timeout));
            if ctx.now < until { stay(wait).waking_at(until) } else { Turn::of(Outcome::Refuse(wait)) }
        }
    }
}
