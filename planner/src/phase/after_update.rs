//! The wait of an updated node for its hooks. Like its verification, that of an update is not interrupted from outside. A node that is not
//! well once they have answered is verified again.

use models::shadow::{Mode, Progress, Step};

use super::boot::left_target;
use super::hooks::{still_awaited, unanswered};
use super::row::{Attempt, Outcome, Turn, act};
use super::verification::{after_drill, interrupted};
use crate::decision::Action;

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    let ended = match ctx.mode() {
        Mode::Update => left_target(ctx),
        Mode::Drill { .. } => after_drill(ctx),
        Mode::Verification => interrupted(ctx),
    };
    if let Some(turn) = ended {
        return turn;
    }
    if ctx.needs_release() {
        return act(Action::Release);
    }
    // A node that is not well meanwhile keeps its slot: to end its attempt now would let the next one go before the hooks allow it.
    if let Some(turn) = still_awaited(ctx) {
        return turn;
    }
    let is_well = ctx.facts().ready && ctx.facts().pressure.is_none();
    let as_verified = is_well && ctx.facts().boot_id == ctx.progress.boot_id;
    if !ctx.mode().is_drill() && !as_verified {
        // Its soak had passed: it has the whole time of a verification again.
        let again = Progress {
            verifying_since: Some(ctx.now),
            soak_restarted: false,
            interrupted: None,
            ..ctx.progress.clone()
        };
        return ctx.next_keeping_boot(Step::Verifying, again);
    }
    Turn::of(Outcome::Pass(unanswered(ctx)))
}
