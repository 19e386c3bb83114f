//! Exponential back-off with jitter, so that many clients do not retry in step.

use std::time::Duration;

/// First and longest delay.
pub type Delays = (Duration, Duration);

/// Consecutive failures of one action, and the delays between its tries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Creates the back-off after this many failures.
    pub const fn after(failures: u32) -> Self {
        Self { failures }
    }

    /// Returns the number of failures.
    pub const fn failures(self) -> u32 {
        self.failures
    }

    /// Returns the delay after the last failure: the first one, doubled with each further failure, up to the longest.
    /// Zero without a failure.
    pub fn delay(self, (first, longest): Delays) -> Duration {
        let doublings = self.failures.checked_sub(1);
        doublings.map_or(Duration::ZERO, |n| first.saturating_mul(1 << n.min(20)).min(longest))
    }

    /// Counts a failure.
    pub fn count(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Counts a failure, and returns the delay before the next try.
    pub fn next_delay(&mut self, delays: Delays) -> Duration {
        self.count();
        self.delay(delays)
    }

    /// Forgets the failures after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Full jitter: returns a random time below `limit`. `random` is in [0, 1).
pub fn full_jitter(limit: Duration, random: f64) -> Duration {
    limit.mul_f64(random.clamp(0.0, 1.0))
}

/// Equal jitter: returns a random time between 50 % and 100 % of `limit`. `random` is in [0, 1).
pub fn equal_jitter(limit: Duration, random: f64) -> Duration {
    limit.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_begin_again_after_a_success() {
        let seconds = Duration::from_secs;
        let delays = (seconds(1), seconds(5));
        let mut backoff = Backoff::default();
        assert_eq!(backoff.delay(delays), Duration::ZERO);
        let taken: Vec<_> = (0..5).map(|_| backoff.next_delay(delays)).collect();
        assert_eq!(taken, [1, 2, 4, 5, 5].map(seconds));
        assert_eq!((backoff.failures(), backoff.delay(delays)), (5, seconds(5)));
        backoff.reset();
        assert_eq!(backoff.next_delay(delays), seconds(1));
    }

    #[test]
    fn delays_have_no_overflow_and_never_exceed_the_longest() {
        let (short, long) = (Duration::from_millis(100), Duration::from_secs(10));
        for failures in [40, u32::MAX] {
            assert_eq!(Backoff::after(failures).next_delay((short, long)), long);
            assert_eq!(Backoff::after(failures).next_delay((long, Duration::MAX)), long * (1 << 20));
        }
        assert_eq!(Backoff::after(3).delay((Duration::MAX, Duration::MAX)), Duration::MAX);
        assert_eq!(Backoff::after(1).delay((long, short)), short);
    }

    #[test]
    fn jitter_is_full_or_equal() {
        let limit = Duration::from_secs(8);
        for (random, full, equal) in [(0.0, 0, 4), (0.5, 4, 6), (1.0, 8, 8), (7.0, 8, 8)] {
            assert_eq!(full_jitter(limit, random), Duration::from_secs(full), "{random}");
            assert_eq!(equal_jitter(limit, random), Duration::from_secs(equal), "{random}");
        }
    }
}
