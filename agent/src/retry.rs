//! Consecutive failures of one action, and the delays between its tries.

use std::time::Duration;

use models::backoff::{exponential, full_jitter};
use rand::random;

/// Failures of one host command after which an attempt fails.
pub(crate) const TRIES: u32 = 3;

/// First and maximum delay.
pub(crate) type Delays = (Duration, Duration);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retry(u32);

impl Retry {
    /// Counts this many failures.
    pub(crate) const fn after(failures: u32) -> Self {
        Self(failures)
    }

    pub(crate) const fn failures(self) -> u32 {
        self.0
    }

    /// Returns true if an attempt does not try it again.
    pub(crate) const fn is_exhausted(self) -> bool {
        self.0 >= TRIES
    }

    pub(crate) fn count(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    /// Counts a failure and returns the delay before the next try, which doubles with each failure.
    pub(crate) fn delay(&mut self, (first, longest): Delays) -> Duration {
        let delay = exponential(first, longest, self.0);
        self.count();
        delay
    }

    /// Counts a failure and returns a random delay up to the one that [`Retry::delay`] returns, so that a fleet does
    /// not retry in step.
    pub(crate) fn jittered_delay(&mut self, (first, longest): Delays) -> Duration {
        let delay = full_jitter(first, longest, self.0, random());
        self.count();
        delay
    }

    /// Forgets the failures after a success.
    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_double_up_to_maximum_and_reset_after_success() {
        let seconds = |seconds| Duration::from_secs(seconds);
        let delays = (seconds(1), seconds(5));
        let mut retry = Retry::default();
        let taken: Vec<_> = (0..5).map(|_| retry.delay(delays)).collect();
        assert_eq!(taken, [1, 2, 4, 5, 5].map(seconds));
        assert!(retry.jittered_delay(delays) <= seconds(5));
        assert_eq!(retry.failures(), 6);
        retry.reset();
        assert_eq!(retry.delay(delays), seconds(1));
    }

    #[test]
    fn retries_are_exhausted_after_three_failures() {
        assert!(!Retry::after(TRIES - 1).is_exhausted());
        assert!(Retry::after(TRIES).is_exhausted());
    }
}
