//! The time after which a host that acted on a permit has gone down.

use jiff::Timestamp;
use models::permit::PERMIT_LIFETIME;
use models::time::after;

use crate::survey::NodeContext;

/// Returns when a host that acted on a permit has gone down, at the latest, if no permit was issued since `since`;
/// without that, since this process observed the node in this state. It has to have passed by the clock that wrote
/// `since`, and by this process's own monotonic clock.
pub(super) fn down_by(ctx: &NodeContext<'_>, since: Option<Timestamp>) -> Timestamp {
    let span = PERMIT_LIFETIME + ctx.policy.shutdown;
    let own = after(ctx.now, span.saturating_sub(ctx.node.observed_for));
    // A time in the future was written by a clock that ran ahead, or by a user: this process's own clock has to do.
    let since = since.filter(|since| *since <= ctx.now);
    since.map_or(own, |since| own.max(after(since, span)))
}
