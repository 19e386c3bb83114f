//! The node's own Lease: signs of life of its kubelet.

use std::time::Duration;

use jiff::Timestamp;
use models::time::after;

use super::row::{Attempt, Turn, act, stay};
use crate::decision::Action;
use crate::wait::Wait;

/// The interval of reading a Lease while something waits for its renewal: kubelets renew theirs every 10 s.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(10);

/// Reads the Lease of a node whose last reading is older than `interval`, and waits for that time otherwise, which the reason may name.
pub(super) fn read_again(ctx: &Attempt<'_>, interval: Duration, wait: impl FnOnce(Timestamp) -> Wait) -> Turn {
    // A reading in the future was by a clock that ran ahead.
    let before = ctx.node.lease.filter(|lease| lease.observed_at <= ctx.now);
    let next_read = before.map_or(ctx.now, |lease| after(lease.observed_at, interval));
    if next_read <= ctx.now {
        return act(Action::ReadLease);
    }
    stay(wait(next_read)).waking_at(next_read)
}
