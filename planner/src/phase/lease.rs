//! The node's own Lease: signs of life of its kubelet.

use std::time::Duration;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::time::after;

use super::row::{Attempt, Turn, act, fail, stay};
use crate::decision::Action;
use crate::wait::Wait;

/// The interval of reading a Lease while something waits for its renewal: kubelets renew theirs every 10 s.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(10);

/// Reads the Lease of a node whose last reading is older than `interval`, with its `pods` or without, and waits for that time otherwise, which
/// the reason may name.
pub(super) fn read_again(
    ctx: &Attempt<'_>,
    interval: Duration,
    pods: bool,
    wait: impl FnOnce(Timestamp) -> Wait,
) -> Turn {
    // A reading in the future was by a clock that ran ahead.
    let before = ctx.node.lease.filter(|lease| lease.observed_at <= ctx.now);
    let next_read = before.map_or(ctx.now, |lease| after(lease.observed_at, interval));
    if next_read <= ctx.now {
        return act(Action::ReadLease { pods });
    }
    stay(wait(next_read)).waking_at(next_read)
}

/// Returns what is left to do until the kubelet of a node that has passed its soak has renewed its Lease after that: a host that crashes stays
/// Ready for most of a minute. Its pods are read once more before that: a watch whose connection is dead may show them as they were before the
/// reboot. A drill reboots no host.
pub(super) fn sign_of_life(ctx: &Attempt<'_>, soaked: Timestamp, limit: Timestamp) -> Option<Turn> {
    let lease = ctx.node.lease.filter(|lease| lease.observed_at >= soaked);
    if ctx.mode().is_drill() || lease.is_some_and(|lease| lease.was_alive_after(soaked)) {
        return None;
    }
    if ctx.now >= limit {
        let cause = match lease.map(|lease| lease.renewed) {
            Some(Some(renewed)) => format!("has not been renewed since {renewed:.0}"),
            Some(None) => "does not exist".to_owned(),
            None => "or its pods could not be read: see the controller's log".to_owned(),
        };
        let message =
            format!("whether the node still runs could not be found out: its Lease in kube-node-lease {cause}");
        return Some(fail(FailureReason::HealthUnknown, message));
    }
    // A shorter soak is one of tests, whose kubelets renew their Leases more often.
    let interval = READ_INTERVAL.min(ctx.group().after.soak);
    let pods = lease.is_none() && ctx.group().after.pods_ready;
    Some(read_again(ctx, interval, pods, |until| Wait::Soaking { until }))
}
