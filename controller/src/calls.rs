//! The kinds of calls to the API server with their deadlines, and the calls under way.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use models::limits;
use parking_lot::Mutex;
use strum::{IntoStaticStr, VariantArray};
use tokio::time::Instant;

/// Time beyond its deadline after which a call under way makes the process count as stuck.
const CALL_GRACE: Duration = Duration::from_secs(30);

/// Time without a turn of the leader after which the process counts as stuck. A turn comes at least every
/// [`TURN_PERIOD`].
const TURN_LIMIT: Duration = Duration::from_secs(120);

/// The longest time between two turns of the leader.
pub const TURN_PERIOD: Duration = Duration::from_secs(30);

/// A kind of call, which determines its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// A read or write of a Lease.
    Lease,
    Read,
    Write,
    Eviction,
    /// The opening of a watch.
    Watch,
}

impl Kind {
    pub fn of<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        if query.split('&').any(|pair| pair.starts_with("watch=")) {
            Self::Watch
        } else if path.starts_with("/apis/coordination.k8s.io/") {
            Self::Lease
        } else if path.ends_with("/eviction") {
            Self::Eviction
        } else if request.method() == Method::GET {
            Self::Read
        } else {
            Self::Write
        }
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the deadline for the complete answer.
    pub const fn limit(self) -> Duration {
        match self {
            // Short enough that a lost answer leaves time for another renewal before the lease is lost.
            Self::Lease => Duration::from_secs(3),
            Self::Read => Duration::from_secs(15),
            Self::Write | Self::Watch => limits::WRITE,
            // Longer than the API server takes for any request (60 s): behind webhooks it retries evictions by itself.
            Self::Eviction => Duration::from_secs(65),
        }
    }
}

/// A call or turn that is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// A call is under way for longer than its deadline allows.
    Call(Kind, Duration),
    /// The leader has had no turn for this long.
    Turn(Duration),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(kind, age) => {
                write!(f, "a call to the API server ({}) has not ended for {} s", kind.as_str(), age.as_secs())
            }
            Self::Turn(age) => write!(f, "the leader has had no turn for {} s", age.as_secs()),
        }
    }
}

/// The age of the calls under way, and of the leader's last turn and plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// The oldest call of each kind.
    pub calls: BTreeMap<Kind, Duration>,
    /// The time since the leader's last turn; `None` while this process does not lead.
    pub turn: Option<Duration>,
    /// The time since the leader's last plan, or since it began to lead; `None` while this process does not lead.
    pub plan: Option<Duration>,
}

impl Ages {
    pub fn stuck(&self) -> Option<Stuck> {
        let late = |(kind, age): (&Kind, &Duration)| (*age > kind.limit() + CALL_GRACE).then_some((*kind, *age));
        let call = self.calls.iter().find_map(late).map(|(kind, age)| Stuck::Call(kind, age));
        call.or_else(|| self.turn.filter(|age| *age > TURN_LIMIT).map(Stuck::Turn))
    }
}

#[derive(Default)]
struct CallState {
    number: u64,
    under_way: BTreeMap<u64, (Kind, Instant)>,
    turn: Option<Instant>,
    plan: Option<Instant>,
}

/// The calls under way, and the leader's last turn and plan. Clones share them.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<CallState>>);

/// A call under way, until it is dropped.
pub struct UnderWay {
    calls: Calls,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.calls.0.lock().under_way.remove(&self.number);
    }
}

impl Calls {
    pub fn begin(&self, kind: Kind) -> UnderWay {
        let mut state = self.0.lock();
        state.number += 1;
        let number = state.number;
        state.under_way.insert(number, (kind, Instant::now()));
        UnderWay { calls: self.clone(), number }
    }

    /// Records a turn of the leader, and whether it has made a plan: without its caches it has turns, and makes none.
    pub fn turned(&self, at: Instant, planned: bool) {
        let mut state = self.0.lock();
        state.turn = Some(at);
        if planned {
            state.plan = Some(at);
        }
    }

    /// Records that this process no longer leads.
    pub fn stopped(&self) {
        let mut state = self.0.lock();
        (state.turn, state.plan) = (None, None);
    }

    /// Returns the age of the calls under way.
    pub fn ages(&self, now: Instant) -> Ages {
        let state = self.0.lock();
        let mut calls = BTreeMap::new();
        for (kind, began) in state.under_way.values() {
            let age: &mut Duration = calls.entry(*kind).or_default();
            *age = (*age).max(now.saturating_duration_since(*began));
        }
        let age = |at: Instant| now.saturating_duration_since(at);
        Ages { calls, turn: state.turn.map(age), plan: state.plan.map(age) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overdue_call_or_turn_is_reported_stuck() {
        let seconds = Duration::from_secs;
        let calls = |kind: Kind, age: u64| Ages {
            calls: [(kind, seconds(age))].into(),
            turn: Some(seconds(1)),
            ..Ages::default()
        };
        let turn = |age: Option<u64>| Ages { turn: age.map(seconds), ..Ages::default() };
        for (sentence, ages, stuck) in [
            ("nothing is under way", Ages::default(), None),
            ("a call within its deadline", calls(Kind::Eviction, 60), None),
            ("a call at its deadline, which is about to end", calls(Kind::Eviction, 70), None),
            ("one that its deadline left", calls(Kind::Eviction, 96), Some(Stuck::Call(Kind::Eviction, seconds(96)))),
            ("a shorter deadline", calls(Kind::Read, 96), Some(Stuck::Call(Kind::Read, seconds(96)))),
            ("a process that does not lead", turn(None), None),
            ("a leader at rest", turn(Some(31)), None),
            ("a leader whose turn does not end", turn(Some(121)), Some(Stuck::Turn(seconds(121)))),
        ] {
            assert_eq!(ages.stuck(), stuck, "{sentence}");
        }
    }

    #[test]
    fn age_of_the_last_plan_grows_over_turns_without_one() {
        let (calls, begun) = (Calls::default(), Instant::now());
        let after = |seconds: u64| begun + Duration::from_secs(seconds);
        calls.turned(begun, true);
        calls.turned(after(30), false);
        let Ages { turn, plan, .. } = calls.ages(after(40));
        assert_eq!((turn, plan), (Some(Duration::from_secs(10)), Some(Duration::from_secs(40))));
        calls.turned(after(60), true);
        assert_eq!(calls.ages(after(61)).plan, Some(Duration::from_secs(1)));
        calls.stopped();
        assert_eq!(calls.ages(after(62)), Ages::default(), "another replica leads");
    }
}
