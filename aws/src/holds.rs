//! The instances and groups for which nothing is done for a while: a call is under way, has failed, or AWS may not show yet
//! what it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use models::backoff::{Backoff, Delays, equal_jitter};
use tokio::time::Instant;

/// The first pause after a failed call, and the longest.
const PAUSES: Delays = (Duration::from_secs(2), Duration::from_secs(60));

/// Time after which an ended hold is forgotten, and its failures with it: a call that is repeated is so before.
const FORGET: Duration = Duration::from_secs(60);

/// A hold.
#[derive(Debug, Default)]
struct Hold {
    /// End; `None` while the call is under way.
    until: Option<Instant>,
    /// Failed calls in a row.
    backoff: Backoff,
    /// True if the call is an ExitStandby.
    leaving: bool,
}

/// The holds, by key of their call.
#[derive(Debug, Default)]
pub(crate) struct Holds(BTreeMap<String, Hold>);

impl Holds {
    /// Holds a key for a call, unless it is held. Returns true if it was not.
    pub(crate) fn begin(&mut self, key: &str, leaving: bool, now: Instant) -> bool {
        if self.left(key, now) > Duration::ZERO {
            return false;
        }
        let hold = self.0.entry(key.to_owned()).or_default();
        (hold.until, hold.leaving) = (None, leaving);
        true
    }

    /// Takes in the success of a call, after which its key stays held for a time.
    pub(crate) fn succeeded(&mut self, key: &str, time: Duration, now: Instant) {
        let hold = self.0.entry(key.to_owned()).or_default();
        hold.until = Some(now + time);
        hold.backoff.reset();
    }

    /// Takes in the failure of a call, after which its key stays held for a growing time with jitter: `random` is in
    /// [0, 1). Returns true if the call before it has failed, too.
    pub(crate) fn failed(&mut self, key: &str, random: f64, now: Instant) -> bool {
        let hold = self.0.entry(key.to_owned()).or_default();
        hold.until = Some(now + equal_jitter(hold.backoff.next_delay(PAUSES), random));
        hold.backoff.failures() > 1
    }

    /// Returns the time for which a key is still held; the longest that there is while its call is under way.
    pub(crate) fn left(&self, key: &str, now: Instant) -> Duration {
        self.0.get(key).map_or(Duration::ZERO, |hold| hold.left(now))
    }

    /// Returns the held keys, and those of them that are held for an ExitStandby. What is over is removed.
    pub(crate) fn keys(&mut self, now: Instant) -> (BTreeSet<String>, BTreeSet<String>) {
        self.0.retain(|_, hold| hold.until.is_none_or(|until| until + FORGET > now));
        let held = || self.0.iter().filter(|(_, hold)| hold.left(now) > Duration::ZERO);
        let keys = held().map(|(key, _)| key.clone()).collect();
        (keys, held().filter(|(_, hold)| hold.leaving).map(|(key, _)| key.clone()).collect())
    }

    /// Ends all holds for calls that are under way.
    pub(crate) fn abandon(&mut self) {
        self.0.retain(|_, hold| hold.until.is_some());
    }
}

impl Hold {
    fn left(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(holds: &mut Holds, now: Instant) -> [Vec<String>; 2] {
        let (held, leaving) = holds.keys(now);
        [held, leaving].map(|keys| keys.into_iter().collect())
    }

    #[test]
    fn key_is_held_during_a_call_and_for_a_time_after_it() {
        let (mut holds, now) = (Holds::default(), Instant::now());
        let a = || vec!["i-a".to_owned()];
        assert!(holds.begin("i-a", true, now) && !holds.begin("i-a", false, now), "one call at a time");
        assert_eq!((keys(&mut holds, now), holds.left("i-a", now)), ([a(), a()], Duration::MAX));
        let time = Duration::from_secs(3);
        holds.succeeded("i-a", time, now);
        assert_eq!((keys(&mut holds, now), holds.left("i-a", now)), ([a(), a()], time));
        let now = now + time;
        assert_eq!((keys(&mut holds, now), holds.left("i-a", now)), ([vec![], vec![]], Duration::ZERO));
        assert!(holds.begin("i-a", false, now));
        assert_eq!(keys(&mut holds, now), [a(), vec![]]);
        holds.abandon();
        assert_eq!(keys(&mut holds, now)[0].len(), 0, "its call has no result");
    }

    #[test]
    fn failures_in_a_row_are_counted_until_a_success_or_for_a_while() {
        let (mut holds, now) = (Holds::default(), Instant::now());
        let pauses = [false, true, true].map(|repeated| {
            assert_eq!(holds.failed("web", 1.0, now), repeated);
            holds.left("web", now).as_secs()
        });
        assert_eq!(pauses, [2, 4, 8]);
        holds.succeeded("web", Duration::ZERO, now);
        assert!(!holds.failed("web", 1.0, now), "the first after a success");
        let now = now + Duration::from_secs(61);
        holds.keys(now);
        assert!(holds.failed("web", 1.0, now), "its pause has ended a minute ago at most");
        let now = now + Duration::from_secs(65);
        holds.keys(now);
        assert!(!holds.failed("web", 1.0, now), "of an earlier update");
    }
}
