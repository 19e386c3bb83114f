//! Arithmetic with timestamps that ends at the limits and never fails.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Returns a duration for arithmetic with timestamps.
pub fn signed(span: Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}

/// Returns the time after a span; the first or the last timestamp that there is where that is out of range.
pub fn after(at: Timestamp, span: impl TryInto<SignedDuration>) -> Timestamp {
    let span = span.try_into().unwrap_or(SignedDuration::MAX);
    at.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// Returns the time from one moment to another; zero where that is the earlier one.
pub fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn timestamp_sums_saturate_at_limits() {
        for (at, span, sum) in [
            (t(10), Duration::from_secs(5), t(15)),
            (t(10), Duration::ZERO, t(10)),
            (Timestamp::MAX, Duration::from_nanos(1), Timestamp::MAX),
            (t(10), Duration::MAX, Timestamp::MAX),
        ] {
            assert_eq!(after(at, span), sum, "{at} and {span:?}");
        }
        for (at, span, sum) in [
            (t(10), SignedDuration::from_secs(-5), t(5)),
            (t(10), SignedDuration::MAX, Timestamp::MAX),
            (t(10), SignedDuration::MIN, Timestamp::MIN),
            (Timestamp::MIN, SignedDuration::from_secs(-1), Timestamp::MIN),
        ] {
            assert_eq!(after(at, span), sum, "{at} and {span}");
        }
    }

    #[test]
    fn duration_between_timestamps_is_never_negative() {
        for (from, to, expected) in [
            (t(10), t(15), Duration::from_secs(5)),
            (t(10), t(10), Duration::ZERO),
            (t(15), t(10), Duration::ZERO),
            (Timestamp::MAX, Timestamp::MIN, Duration::ZERO),
        ] {
            assert_eq!(between(from, to), expected, "{from} to {to}");
        }
        assert!(between(Timestamp::MIN, Timestamp::MAX) > Duration::from_secs(19_000 * 365 * 24 * 3600));
    }
}
