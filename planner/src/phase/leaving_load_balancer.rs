//! The wait before the drain of a cordoned node that has left the balancer: open connections may end by themselves.

use models::reason::FailureReason;
use models::shadow::Step;
use models::time::after;

use super::claim::{claim_due, ended_before_eviction};
use super::drained;
use super::row::{Attempt, Turn, fail, stay};
use crate::wait::Wait;

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    if let Some(turn) = ended_before_eviction(ctx) {
        return turn;
    }
    let deadline = drained::deadline(ctx);
    if let Some(claim) = claim_due(ctx) {
        if ctx.now >= deadline {
            return fail(FailureReason::DrainTimedOut, "the node could not be cordoned");
        }
        return claim.waking_at(deadline);
    }
    // The claim may be later than the step: the Node records its time.
    let since = ctx.facts().claimed_since.map_or(ctx.progress.since, |claimed| claimed.max(ctx.progress.since));
    let until = after(since, ctx.policy.leave_load_balancer.unwrap_or_default());
    if ctx.now < until {
        return stay(Wait::LeavingLoadBalancer { until }).waking_at(until);
    }
    ctx.next(Step::Draining, |_| {})
}
