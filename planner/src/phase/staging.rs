//! The download of the image, as far as the attempt has one.

use models::reason::FailureReason;

use super::end::timed_out;
use super::row::{Attempt, Turn, stay};
use super::waiting::{asks_for_slot, deadline, ended_or_ordered, lacks_image};
use crate::gates;
use crate::wait::Wait;

pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    ended_or_ordered(ctx).unwrap_or_else(|| {
        if !lacks_image(ctx) {
            return asks_for_slot(ctx);
        }
        let deadline = deadline(ctx);
        if ctx.now < deadline {
            // It is not known then whether the host downloads anything.
            return stay(gates::silent(ctx).unwrap_or(Wait::Staging)).waking_at(deadline);
        }
        timed_out(ctx, FailureReason::StageTimedOut, "the host did not stage the image in time")
    })
}
