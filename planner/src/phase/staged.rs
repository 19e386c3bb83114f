//! The wait of a node with its image for its turn.

use models::shadow::Step;

use super::row::{Attempt, Turn};
use super::waiting::{asks_for_slot, ended_or_ordered, lacks_image};

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    ended_or_ordered(ctx)
        .unwrap_or_else(|| if lacks_image(ctx) { ctx.next(Step::Staging, |_| {}) } else { asks_for_slot(ctx) })
}
