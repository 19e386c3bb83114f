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
    /// The action of the last of them, if AWS has refused it.
    refused: Option<&'static str>,
    /// True if the call is an ExitStandby.
    leaving: bool,
}

/// The failures in a row before one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// True if there is any.
    pub(crate) failed: bool,
    /// True if AWS has refused the same action, as it does now.
    pub(crate) refused: bool,
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

    /// Records the success of a call, after which its key stays held for a time.
    pub(crate) fn succeeded(&mut self, key: &str, time: Duration, now: Instant) {
        let hold = self.0.entry(key.to_owned()).or_default();
        hold.until = Some(now + time);
        hold.backoff.reset();
        hold.refused = None;
    }

    /// Records the failure of a call, after which its key stays held for a growing time with jitter: `random` is in
    /// [0, 1). `refused` is its action, if AWS has refused it. Returns the failures before it.
    pub(crate) fn failed(&mut self, key: &str, refused: Option<&'static str>, random: f64, now: Instant) -> Before {
        let hold = self.0.entry(key.to_owned()).or_default();
        hold.until = Some(now + equal_jitter(hold.backoff.next_delay(PAUSES), random));
        let before =
            Before { failed: hold.backoff.failures() > 1, refused: refused.is_some() && hold.refused == refused };
        // A failure that is no refusal may have been carried out: a refusal after it says nothing about the first. The time limit of
        // the hook bounds the retries.
        hold.refused = refused;
        before
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
            assert_eq!(holds.failed("web", None, 1.0, now).failed, repeated);
            holds.left("web", now).as_secs()
        });
        assert_eq!(pauses, [2, 4, 8]);
        holds.succeeded("web", Duration::ZERO, now);
        assert!(!holds.failed("web", None, 1.0, now).failed, "the first after a success");
        let now = now + Duration::from_secs(61);
        holds.keys(now);
        assert!(holds.failed("web", None, 1.0, now).failed, "its pause has ended a minute ago at most");
        let now = now + Duration::from_secs(65);
        holds.keys(now);
        assert!(!holds.failed("web", None, 1.0, now).failed, "of an earlier update");
    }

    #[test]
    fn refusal_is_repeated_only_after_one_of_the_same_action() {
        let (enter, exit) = (Some("EnterStandby"), Some("ExitStandby"));
        let cases: [(&str, &[Option<&'static str>], bool); 6] = [
            ("refused once", &[enter], false),
            ("limited, or without an answer, and then refused", &[None, None, enter], false),
            ("refused twice", &[enter, enter], true),
            ("refused twice, and limited between", &[enter, None, enter], false),
            ("refused, and limited now", &[enter, None], false),
            ("another action was refused", &[exit, enter], false),
        ];
        for (sentence, failures, expected) in cases {
            let (mut holds, now) = (Holds::default(), Instant::now());
            let mut found = None;
            for refused in failures {
                found = Some(holds.failed("i-a", *refused, 1.0, now).refused);
            }
            assert_eq!(found, Some(expected), "{sentence}");
            holds.succeeded("i-a", Duration::ZERO, now);
            assert!(!holds.failed("i-a", enter, 1.0, now).refused, "{sentence}, and then carried out");
        }
    }
}
