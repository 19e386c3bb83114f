//! The download of the image, as far as the attempt has one.

use models::reason::FailureReason;

use super::row::{Attempt, Turn, fail, stay};
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
            return stay(Wait::Staging).waking_at(deadline);
        }
        let trouble = gates::host_trouble(ctx);
        fail(FailureReason::StageTimedOut, format!("the host did not stage the image in time{trouble}"))
    })
}
