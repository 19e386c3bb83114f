//! Schedule of the host's refreshes.

use std::time::Duration;

use models::backoff::Backoff;
use rand::random;
use tokio::time::Instant;

/// Range of the random delay before the first refresh of an idle host after a boot or a start of the agent, so that a
/// fleet that was installed or rebooted at once does not call its mirrors at once.
const FIRST_WITHIN: Duration = Duration::from_secs(60);

/// Delay after the first failed refresh.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// Minimum time between two refreshes, from one request to the next. Neither policy's interval nor the desired state is
/// signed, and each refresh calls the host's update repository, which another party runs.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Schedule of the host's refreshes.
#[derive(Debug)]
pub(crate) struct Refreshes {
    /// Last request for a refresh, whatever its outcome and desired state.
    pub(crate) requested: Option<Instant>,
    /// Last attempted refresh, whatever its outcome.
    pub(crate) last: Option<Instant>,
    /// Consecutive failures.
    pub(crate) backoff: Backoff,
    /// Time since which the desired state has been `Idle`.
    pub(crate) idle_since: Option<Instant>,
    /// Position of the first refresh in its range, in [0, 1).
    random: f64,
    /// Time of an earlier refresh than policy's, because the settings that it depends on have changed.
    pub(crate) early: Option<Instant>,
}

impl Default for Refreshes {
    fn default() -> Self {
        let (requested, last, backoff, idle_since, early) = (None, None, Backoff::default(), None, None);
        Self { requested, last, backoff, idle_since, random: random(), early }
    }
}

impl Refreshes {
    /// Returns the time until which a refresh has to wait because the last one was requested shortly before.
    pub(crate) fn too_soon(&self, now: Instant) -> Option<Instant> {
        self.requested.map(|requested| requested + SHORTEST_INTERVAL).filter(|allowed| now < *allowed)
    }

    /// Records that the desired state is `Idle`, since now if it was not before.
    pub(crate) fn enter_idle(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    /// Returns the times of the next refresh of an idle host: by policy, and the one that comes first.
    pub(crate) fn next_idle(&self, interval: Duration, now: Instant) -> (Instant, Instant) {
        let by_policy = self.last.or(self.idle_since).unwrap_or(now) + self.delay(interval);
        (by_policy, self.early.map_or(by_policy, |early| early.min(by_policy)))
    }

    /// Returns the next refresh of a host with a staged image. A restarted agent knows of no refresh; the previous one
    /// has refreshed to stage the image.
    pub(crate) fn next_staged(&mut self, interval: Duration, now: Instant) -> Instant {
        *self.last.get_or_insert(now) + self.delay(interval)
    }

    /// Brings the next refresh of an idle host forward to a random time: a whole fleet may get the same settings at once, and
    /// each refresh calls its mirrors.
    pub(crate) fn hasten(&mut self, interval: Duration, now: Instant) {
        self.early = Some(now + first_delay(interval, random()));
    }

    /// Returns the time from the last refresh (before the first one: from becoming idle) to the next one.
    fn delay(&self, interval: Duration) -> Duration {
        // Whatever policy requests.
        let interval = interval.max(SHORTEST_INTERVAL);
        match (self.last, self.backoff.failures()) {
            (None, _) => first_delay(interval, self.random),
            (Some(_), 0) => interval,
            (Some(_), _) => self.backoff.delay((AFTER_FAILURE, interval)),
        }
    }
}

/// Returns the random delay of a refresh that a whole fleet may make at once. `random` is in [0, 1).
fn first_delay(interval: Duration, random: f64) -> Duration {
    interval.max(SHORTEST_INTERVAL).min(FIRST_WITHIN).mul_f64(random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn refreshes() -> Refreshes {
        Refreshes { random: 0.5, ..Refreshes::default() }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn idle_host_refreshes_after_boot_each_interval_and_sooner_after_failure() {
        let now = Instant::now();
        let first = |interval| refreshes().next_idle(interval, now).1 - now;
        assert_eq!(first(HOUR), seconds(30));
        assert_eq!(first(seconds(4)), seconds(2));
        let after = |failures: u32, interval| {
            let mut refreshes = refreshes();
            refreshes.last = Some(now);
            refreshes.backoff = Backoff::after(failures);
            refreshes.next_idle(interval, now).1 - now
        };
        assert_eq!(after(0, HOUR), HOUR);
        assert_eq!(after(1, HOUR), seconds(10));
        assert_eq!(after(3, HOUR), seconds(40));
        assert_eq!(after(30, HOUR), HOUR);
        assert_eq!(after(3, seconds(1)), seconds(1));
        assert_eq!(after(0, Duration::ZERO), seconds(1), "never without a pause");
    }

    #[test]
    fn first_refresh_is_scheduled_from_start_of_idle_state() {
        let start = Instant::now();
        let mut refreshes = refreshes();
        refreshes.enter_idle(start);
        refreshes.enter_idle(start + seconds(20));
        assert_eq!(refreshes.next_idle(HOUR, start + seconds(20)).1, start + seconds(30));
        refreshes.idle_since = None;
        refreshes.enter_idle(start + seconds(20));
        assert_eq!(refreshes.next_idle(HOUR, start + seconds(20)).1, start + seconds(50));
    }

    #[test]
    fn staged_host_refreshes_one_interval_after_agent_start() {
        let start = Instant::now();
        let mut refreshes = refreshes();
        assert_eq!(refreshes.next_staged(HOUR, start), start + HOUR);
        assert_eq!(refreshes.next_staged(HOUR, start + seconds(9)), start + HOUR);
    }

    #[test]
    fn early_refresh_is_scheduled_beside_regular_refresh() {
        let start = Instant::now();
        let mut refreshes = refreshes();
        refreshes.last = Some(start);
        refreshes.early = Some(start + seconds(5));
        assert_eq!(refreshes.next_idle(HOUR, start), (start + HOUR, start + seconds(5)));
    }

    #[test]
    fn refreshes_are_at_least_one_second_apart() {
        let requested = Instant::now();
        let mut refreshes = refreshes();
        assert_eq!(refreshes.too_soon(requested), None);
        refreshes.requested = Some(requested);
        assert_eq!(refreshes.too_soon(requested), Some(requested + seconds(1)));
        assert_eq!(refreshes.too_soon(requested + Duration::from_millis(999)), Some(requested + seconds(1)));
        assert_eq!(refreshes.too_soon(requested + seconds(1)), None);
    }
}
