//! The only place that reads the clock. All other code receives the time.
//!
//! Times in Kubernetes objects are compared by other programs, by users, and by the next leader, so they are the API
//! server's: local time, corrected by the `Date` header of the answers to the requests for the Lease. In between, time
//! runs by the monotonic clock, so that a step of the local clock affects no deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use models::time::{after, between};
use parking_lot::Mutex;

/// Precision of a `Date` header, which has whole seconds, cut off.
const RESOLUTION: SignedDuration = SignedDuration::from_secs(1);

/// Added to a wait for a time, which has millisecond precision: waking a little late beats waking early and again.
const LATE: Duration = Duration::from_millis(2);

/// The clocks of a machine. They are an argument of the controller, so that a test lets time pass by script.
pub trait TimeSource: Send + Sync {
    /// Reads the wall clock, which may be wrong, and the monotonic clock.
    fn read(&self) -> Reading;

    /// Completes when time has passed that no timer of the process has noticed: never on a machine.
    fn stepped(&self) -> BoxFuture<'static, ()>;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine;

impl TimeSource for Machine {
    #[expect(clippy::disallowed_methods, reason = "the clock module")]
    fn read(&self) -> Reading {
        Reading { local: Timestamp::now(), at: Instant::now() }
    }

    fn stepped(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A reading of the local clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub local: Timestamp,
    pub at: Instant,
}

/// A local clock with its correction. Clones share it.
#[derive(Clone)]
pub struct Clock {
    source: Arc<dyn TimeSource>,
    state: Arc<Mutex<ClockState>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ClockState {
    offset: SignedDuration,
    heard: Option<Reading>,
}

impl Clock {
    /// Returns a clock that no answer of the API server has corrected yet.
    pub fn new(source: impl TimeSource + 'static) -> Self {
        Self { source: Arc::new(source), state: Arc::default() }
    }

    /// Reads the local clock, which may be wrong.
    pub fn read(&self) -> Reading {
        self.source.read()
    }

    /// Returns the time now, by the API server's clock as far as it is known, in whole milliseconds: finer ones only
    /// make resources harder to read.
    pub fn now(&self) -> Timestamp {
        self.at(self.read())
    }

    /// Waits until the time is `at`; a correction meanwhile may make that a little early or late.
    pub async fn sleep_until(&self, at: Timestamp) {
        loop {
            let stepped = self.source.stepped();
            let now = self.now();
            if now >= at {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(between(now, at) + LATE) => return,
                () = stepped => {}
            }
        }
    }

    /// Returns the corrected time at the moment of a reading.
    fn at(&self, reading: Reading) -> Timestamp {
        let ClockState { offset, heard, .. } = *self.state.lock();
        let local = match heard {
            Some(heard) => after(heard.local, since(heard.at, reading.at)),
            None => reading.local,
        };
        let time = after(local, offset);
        Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time)
    }

    /// Returns the delay of the local clock behind the API server's; negative where it is ahead. Zero while no
    /// difference is known.
    pub fn offset(&self) -> SignedDuration {
        self.state.lock().offset
    }

    /// Records a server's answer with the time `date`, to a request sent at an earlier moment.
    pub fn record_answer(&self, sent: Instant, received: Reading, date: Timestamp) {
        // As a clock that showed the time of the receipt would have shown, in case it was set in between.
        let before = after(received.local, -since(sent, received.at));
        let mut state = self.state.lock();
        let previous = state.offset;
        state.offset = next_offset(before, received.local, date, previous);
        state.heard = Some(received);
        let now = state.offset;
        drop(state);
        if (now - previous).abs() > RESOLUTION {
            tracing::warn!(
                behind_seconds = now.as_secs_f64(),
                "the local clock differs from the API server's, whose time is used"
            );
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Machine)
    }
}

/// Returns the time from one moment to another, which may be the earlier one.
fn since(from: Instant, to: Instant) -> SignedDuration {
    let span = |from, to: Instant| SignedDuration::try_from(to.saturating_duration_since(from)).unwrap_or_default();
    span(from, to) - span(to, from)
}

/// Returns the correction from local time to the server's, after an answer that the server dated between two moments of
/// local time.
///
/// An answer leaves a range open: the length of the round trip and the second that the date is cut off to. The
/// correction is the smallest that the answer demands, so a correct clock is left alone, and successive answers bring a
/// wrong one closer. Only after a step, of either clock, the middle of the range is the better estimate.
pub fn next_offset(before: Timestamp, after: Timestamp, date: Timestamp, previous: SignedDuration) -> SignedDuration {
    let least = date.duration_since(after);
    let most = date.duration_since(before) + RESOLUTION;
    if least > most {
        return previous;
    }
    let nearest = previous.clamp(least, most);
    if (nearest - previous).abs() <= most - least {
        nearest
    } else if least <= SignedDuration::ZERO && SignedDuration::ZERO <= most {
        SignedDuration::ZERO
    } else {
        least + (most - least) / 2
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn ms(milliseconds: i64) -> SignedDuration {
        SignedDuration::from_millis(milliseconds)
    }

    /// Returns 12:00:00 plus this many milliseconds.
    fn noon(milliseconds: i64) -> Timestamp {
        after("2026-11-21T12:00:00Z".parse().unwrap(), ms(milliseconds))
    }

    #[test]
    fn clock_offset_is_derived_from_response_date() {
        for (sentence, before, after, date, previous, expected) in [
            ("a clock that may be right is left alone", 400, 410, 0, ms(0), ms(0)),
            ("also one that shows the next second already", 1_000, 1_002, 0, ms(0), ms(0)),
            ("a long round trip proves nothing", 400, 9_400, 9_000, ms(0), ms(0)),
            ("nor does one over many seconds", 400, 9_400, 0, ms(0), ms(0)),
            ("a clock that is a little behind is corrected by what is certain", 500, 510, 1_000, ms(0), ms(490)),
            ("and one that is a little ahead", 1_500, 1_510, 0, ms(0), ms(-500)),
            ("a correction that may be right stays", 500, 510, 1_000, ms(700), ms(700)),
            ("a better answer narrows it", 100, 110, 1_000, ms(700), ms(890)),
            ("a clock that is an hour behind is corrected by the middle", 500, 600, 3_601_000, ms(0), HOUR + ms(950)),
            ("and one that is an hour ahead", 3_600_500, 3_600_600, 1_000, ms(0), -HOUR + ms(950)),
            ("a clock that was set right needs no correction", 500, 510, 0, HOUR, ms(0)),
            ("a clock set back in the middle of a request is ignored", 500, -60_000, 0, ms(30), ms(30)),
        ] {
            let corrected = next_offset(noon(before), noon(after), noon(date), previous);
            assert_eq!(corrected, expected, "{sentence}");
        }
    }

    #[test]
    fn clock_offset_converges_with_each_response() {
        for wrong_by in [ms(0), ms(3), ms(850), ms(-850), ms(2_500), HOUR * 5, HOUR * -5] {
            let round_trip = ms(8);
            let mut known = ms(0);
            for turn in 0..200 {
                let server = noon(turn * 2_037);
                let date = Timestamp::from_second(server.as_second()).unwrap();
                let local = after(server, -wrong_by);
                let better = next_offset(local, after(local, round_trip), date, known);
                let error = |known: SignedDuration| (known - wrong_by).abs();
                assert!(
                    error(better) <= error(known).max(RESOLUTION),
                    "{wrong_by:?}, turn {turn}: {known:?} {better:?}"
                );
                assert!(turn < 1 || error(better) <= error(known), "{wrong_by:?}, turn {turn}: {known:?} {better:?}");
                known = better;
            }
            assert!((known - wrong_by).abs() <= round_trip + ms(40), "{wrong_by:?} became {known:?}");
            assert!(wrong_by != ms(0) || known == ms(0), "a right clock was corrected");
        }
    }

    #[test]
    fn step_of_local_clock_does_not_change_cluster_time() {
        let clock = Clock::default();
        let began = Instant::now();
        let reading = |seconds: u64, step: SignedDuration| Reading {
            local: after(noon(0), SignedDuration::from_secs(i64::try_from(seconds).unwrap()) + step),
            at: began + Duration::from_secs(seconds),
        };
        assert_eq!(clock.at(reading(0, ms(0))), noon(0));
        clock.record_answer(began, reading(0, ms(0)), noon(0));
        for step in [HOUR, -HOUR] {
            assert_eq!(clock.at(reading(1, step)), noon(1_000), "before the next response of the server");
        }
        clock.record_answer(began + Duration::from_secs(2), reading(2, HOUR), noon(2_000));
        assert_eq!(clock.offset(), -HOUR + ms(500));
        assert_eq!(clock.at(reading(3, HOUR)), noon(3_500), "after that");
        clock.record_answer(began + Duration::from_secs(4), reading(4, ms(0)), noon(4_000));
        assert_eq!((clock.offset(), clock.at(reading(5, ms(0)))), (ms(0), noon(5_000)), "and after it was mended");
    }
}
