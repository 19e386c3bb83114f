//! A host that does not answer: for how long, and when it is tried again.

use std::time::Duration;

use models::backoff::{Backoff, Delays};
use tokio::time::Instant;

use crate::failure_log::FailureLog;

/// Delay after a failed call.
const DELAYS: Delays = (Duration::from_millis(200), Duration::from_secs(5));

/// Time without an answer from the host before it is reported. A restart of its API server takes 5 s and is not
/// reported.
const REPORT_AFTER: Duration = Duration::from_secs(8);

/// Time that the socket may be dead before the agent exits. Only another container has the socket of a host API that was
/// restarted. But while its path has none, a container that starts has containerd make a directory there, and the host API
/// cannot start any more; the kubelet checks the type of the path only for a new pod. The mount does not show whether
/// the path has a socket again. So the time is longer than a restart of the host API (5 s), and than most stops by users.
const SOCKET_DEAD: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    /// Time since which every call has found a dead socket.
    dead_since: Option<Instant>,
    /// Consecutive calls without an answer.
    calls: Backoff,
    pub(super) log: FailureLog,
}

impl Outage {
    /// Records a call without an answer, and returns the delay before the next one.
    pub(super) fn record(&mut self, socket_is_dead: bool, now: Instant) -> Duration {
        self.since.get_or_insert(now);
        self.dead_since = socket_is_dead.then(|| self.dead_since.unwrap_or(now));
        self.calls.next_delay(DELAYS)
    }

    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns true if it has lasted long enough to be reported.
    pub(super) fn is_reported(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now - since >= REPORT_AFTER)
    }

    /// Returns the time for which the socket has been dead, if that is long enough for the agent to exit.
    pub(super) fn dead_for(&self, now: Instant) -> Option<Duration> {
        self.dead_since.map(|since| now - since).filter(|dead_for| *dead_for >= SOCKET_DEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outage_is_reported_after_eight_seconds_until_it_ends() {
        let start = Instant::now();
        let mut outage = Outage::default();
        assert_eq!(outage.record(false, start), DELAYS.0);
        assert!(!outage.is_reported(start + REPORT_AFTER - Duration::from_millis(1)));
        assert!(outage.is_reported(start + REPORT_AFTER));
        outage.end();
        assert!(!outage.is_reported(start + REPORT_AFTER));
        assert_eq!(outage.record(false, start), DELAYS.0);
    }

    #[test]
    fn only_continuously_dead_socket_counts_as_dead() {
        let start = Instant::now();
        let mut outage = Outage::default();
        outage.record(true, start);
        outage.record(true, start + SOCKET_DEAD);
        assert_eq!(outage.dead_for(start + SOCKET_DEAD), Some(SOCKET_DEAD));
        outage.record(false, start + SOCKET_DEAD);
        outage.record(true, start + SOCKET_DEAD);
        assert_eq!(outage.dead_for(start + SOCKET_DEAD), None);
    }
}
