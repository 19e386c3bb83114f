//! The wait of an updated node for its hooks. Like its verification, that of an update is not interrupted from outside. A node that does not
//! stay well meanwhile is verified again.

use models::shadow::{Mode, Step};

use super::hooks::{still_awaited, unanswered};
use super::row::{Attempt, Outcome, Turn, act};
use super::verification::{after_drill, interrupted};
use crate::decision::Action;

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    let ended = match ctx.mode() {
        Mode::Update => None,
        Mode::Drill { .. } => after_drill(ctx),
        Mode::Verification => interrupted(ctx),
    };
    if let Some(turn) = ended {
        return turn;
    }
    let is_well = ctx.facts().ready && ctx.facts().pressure.is_none();
    let as_verified = is_well && ctx.facts().boot_id == ctx.progress.boot_id;
    if !ctx.mode().is_drill() && !as_verified {
        return ctx.next_keeping_boot(Step::Verifying);
    }
    if ctx.needs_release() {
        return act(Action::Release);
    }
    still_awaited(ctx).unwrap_or_else(|| Turn::of(Outcome::Pass(unanswered(ctx))))
}
