//! The wait of an updated node for its hooks. Like its verification, that of an update is not interrupted from outside.

use super::end::ended_from_outside;
use super::hooks::{still_awaited, unanswered};
use super::row::{Attempt, Outcome, Turn, act};
use crate::decision::Action;

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    if ctx.mode().is_drill()
        && let Some(turn) = ended_from_outside(ctx)
    {
        return turn;
    }
    if ctx.needs_release() {
        return act(Action::Release);
    }
    still_awaited(ctx).unwrap_or_else(|| Turn::of(Outcome::Pass(unanswered(ctx))))
}
