//! The wait of a claimed node for its hooks. Its drain begins if it still passes the gates that it had passed before they were
//! asked; otherwise it returns to service.

use models::time::after;

use super::claim::{claim_due, ended_before_eviction, not_claimed};
use super::hooks::{BEFORE_DRAIN, awaited, deadline, still_awaited, unanswered};
use super::row::{Attempt, Turn};
use super::start::{begin_drain, first_of_drain, kept_back};
use crate::{gates, hooks};

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
        // The hooks are asked once the node is claimed. Where policy goes on without their answers, the drain claims it further.
        let fails = awaited(ctx.policy, BEFORE_DRAIN).any(|(_, wait)| !wait.continues);
        if fails && ctx.facts().hook_request != hooks::request(ctx.progress) {
            return not_claimed(ctx);
        }
    }
    still_awaited(ctx).unwrap_or_else(|| checked_again(ctx))
}

fn checked_again(ctx: &Attempt<'_>) -> Turn {
    let until = after(deadline(ctx).unwrap_or(ctx.progress.since), ctx.group().drain.timeout);
    kept_back(ctx, gates::after_hooks(ctx), until)
        .unwrap_or_else(|| begin_drain(ctx, first_of_drain(ctx)).noting(unanswered(ctx)))
}
