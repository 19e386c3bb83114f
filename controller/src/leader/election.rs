//! The rules of the election, without I/O.

use std::time::{Duration, Instant};

/// Durations of an election: client-go's defaults, except for the period of renewals. Each renewal is a write that the
/// whole cluster pays for, also when nothing else happens.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Time for which a record has to be unchanged before another candidate may take it.
    pub lease_duration: Duration,
    /// Time for which a leader continues after its last successful renewal.
    pub renew_deadline: Duration,
    /// Period of a leader's renewals.
    pub renew_period: Duration,
    /// Maximum time for a renewal before it is retried.
    pub call_limit: Duration,
    /// Time after a failure before a candidate or leader retries.
    pub retry_period: Duration,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            renew_period: Duration::from_secs(6),
            call_limit: Duration::from_secs(2),
            retry_period: Duration::from_secs(1),
        }
    }
}

/// The contents of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The identity of the holder; empty after a release.
    pub(super) holder: String,
    pub(super) duration: Duration,
    /// The version of the Lease object: any change of it is a sign of life.
    pub(super) version: String,
}

/// A record and the moment at which this content was first seen.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) record: Record,
    /// The moment since which this observer has seen it unchanged, by its own clock.
    pub(super) since: Instant,
}

impl Observed {
    /// Records a Lease that was just read.
    pub(super) fn update(previous: Option<Self>, record: Record, now: Instant) -> Self {
        match previous {
            Some(previous) if previous.record == record => previous,
            _ => Self { record, since: now },
        }
    }
}

/// The action of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Create,
    /// Take the Lease: it is free, or has run out.
    Take,
    /// Renew the Lease: this candidate holds it.
    Renew,
    /// Wait until then at least: another candidate holds it.
    Wait(Instant),
}

/// Returns the action of `identity` on the record at `now`. Until `after` it leaves alone a lease that it could take:
/// it has handed it over.
pub(super) fn next(identity: &str, observed: Option<&Observed>, after: Option<Instant>, now: Instant) -> Next {
    let next = match observed {
        None => Next::Create,
        Some(Observed { record, .. }) if record.holder == identity => return Next::Renew,
        Some(Observed { record, since }) => {
            let until = *since + record.duration;
            if record.holder.is_empty() || now >= until { Next::Take } else { return Next::Wait(until) }
        }
    };
    match after {
        Some(after) if now < after => Next::Wait(after),
        _ => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, version: &str) -> Record {
        Record { holder: holder.into(), duration: Duration::from_secs(15), version: version.into() }
    }

    #[test]
    fn lease_is_taken_only_after_its_duration_without_renewal() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let seen = Observed::update(None, record("a", "1"), start);
        assert_eq!(next("b", Some(&seen), None, at(14)), Next::Wait(at(15)));
        assert_eq!(next("b", Some(&seen), None, at(15)), Next::Take);
        let renewed = Observed::update(Some(seen.clone()), record("a", "2"), at(10));
        assert_eq!(next("b", Some(&renewed), None, at(15)), Next::Wait(at(25)));
        let unchanged = Observed::update(Some(seen), record("a", "1"), at(10));
        assert_eq!(unchanged.since, start);
    }

    #[test]
    fn missing_or_released_lease_is_acquired_and_own_lease_renewed() {
        let now = Instant::now();
        assert_eq!(next("a", None, None, now), Next::Create);
        assert_eq!(next("a", Some(&Observed::update(None, record("", "1"), now)), None, now), Next::Take);
        assert_eq!(next("a", Some(&Observed::update(None, record("a", "1"), now)), None, now), Next::Renew);
    }

    #[test]
    fn former_leader_takes_lease_only_if_no_other_candidate_does() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let after = Some(at(15));
        let free = Observed::update(None, Record { duration: Duration::from_secs(1), ..record("", "1") }, start);
        let others = Observed::update(None, record("b", "2"), at(10));
        for (sentence, observed, now, expected) in [
            ("a lease just handed over is left to others", Some(&free), at(0), Next::Wait(at(15))),
            ("up to the end", Some(&free), at(14), Next::Wait(at(15))),
            ("and taken if it is still free", Some(&free), at(15), Next::Take),
            ("one that was deleted is no other", None, at(3), Next::Wait(at(15))),
            ("and is created again if no other does", None, at(15), Next::Create),
            ("one that another client has taken stays with that client", Some(&others), at(12), Next::Wait(at(25))),
            ("until it has run out", Some(&others), at(25), Next::Take),
        ] {
            assert_eq!(next("a", observed, after, now), expected, "{sentence}");
        }
    }
}
