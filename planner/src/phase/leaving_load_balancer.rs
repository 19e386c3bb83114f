//! The wait before the drain of a cordoned node that has left the balancer: open connections may end by themselves. Users may
//! notice it, so that the gates are checked again after it.

use jiff::Timestamp;
use models::shadow::Step;
use models::time::after;

use super::claim::{claim_due, ended_before_eviction, not_claimed};
use super::row::{Attempt, Turn, stay};
use super::start::{begin_drain, kept_back};
use crate::gates;
use crate::wait::Wait;

/// Returns when open connections have had their time.
fn left_by(ctx: &Attempt<'_>) -> Timestamp {
    // The claim may be later than the step: the Node records its time.
    let since = ctx.facts().claimed_since.map_or(ctx.progress.since, |claimed| claimed.max(ctx.progress.since));
    after(since, ctx.policy.leave_load_balancer.unwrap_or_default())
}

/// Returns when what keeps the node from its drain is no longer waited for.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Timestamp {
    ctx.deadline(left_by(ctx), ctx.group().drain.timeout)
}

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    if let Some(turn) = ended_before_eviction(ctx) {
        return turn;
    }
    let deadline = deadline(ctx);
    if let Some(claim) = claim_due(ctx) {
        if ctx.now >= deadline {
            return not_claimed(ctx);
        }
        return claim.waking_at(deadline);
    }
    let until = left_by(ctx);
    if ctx.now < until {
        let queries = gates::questions(&ctx.group().before.checks, ctx.subject());
        return stay(Wait::LeavingLoadBalancer { until }).querying(queries).waking_at(until);
    }
    kept_back(ctx, gates::before_eviction(ctx), deadline).unwrap_or_else(|| begin_drain(ctx, Step::Draining))
}
