//! A time by two clocks.

use std::time::Duration;

use jiff::Timestamp;
use models::time::between;
use tokio::time::Instant;

/// A time by the monotonic clock and by the wall clock. The monotonic clock runs on while a process is stopped, and cannot be
/// set. It stands still while the machine is suspended, which the wall clock shows from the resume on. Where a hypervisor stops the
/// machine, for a snapshot or a live migration, the wall clock may stand still too: it shows that time once it was corrected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) monotonic: Instant,
    pub(super) wall: Timestamp,
}

impl Moment {
    #[expect(clippy::disallowed_methods, reason = "the clock of the agent's decisions and reports")]
    pub(super) fn now() -> Self {
        Self { monotonic: Instant::now(), wall: Timestamp::now() }
    }

    /// Returns the time since `earlier` by the clock that shows more. A wall clock that was set back shows none.
    pub(super) fn since(self, earlier: Self) -> Duration {
        let monotonic = self.monotonic.saturating_duration_since(earlier.monotonic);
        monotonic.max(between(earlier.wall, self.wall))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a time so much later by the monotonic clock, and by the wall clock, which may have been set back.
    pub(in crate::drive) fn later(moment: Moment, monotonic: Duration, wall: i64) -> Moment {
        let wall = moment.wall + jiff::SignedDuration::from_millis(wall);
        Moment { monotonic: moment.monotonic + monotonic, wall }
    }

    #[test]
    fn clock_that_shows_more_counts() {
        let began = Moment::now();
        let seconds = Duration::from_secs;
        for (monotonic, wall, expected) in
            [(0, 0, 0), (5, 5_000, 5), (5, 65_000, 65), (65, 5_000, 65), (5, -3_600_000, 5), (0, -1, 0)]
        {
            assert_eq!(
                later(began, seconds(monotonic), wall).since(began),
                seconds(expected),
                "{monotonic} s, {wall} ms"
            );
        }
    }
}
