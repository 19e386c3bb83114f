//! The download of the image, as far as the attempt has one.

use models::reason::FailureReason;

use super::end::timed_out;
use super::row::{Attempt, Turn, stay};
use super::waiting::{asks_for_slot, deadline, ended_or_ordered, lacks_image};
use crate::gates;

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    ended_or_ordered(ctx).unwrap_or_else(|| {
        if !lacks_image(ctx) {
            return asks_for_slot(ctx);
        }
        let deadline = deadline(ctx);
        if ctx.now < deadline {
            return stay(gates::staging(ctx)).waking_at(deadline);
        }
        timed_out(ctx, FailureReason::StageTimedOut, "the host did not stage the image in time")
    })
}
