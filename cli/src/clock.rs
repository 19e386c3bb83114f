//! The clock, which a command reads to pass the time on to what decides, and times for people: a moment with its distance from now.

use std::time::Duration;

use jiff::Timestamp;
use models::time::between;

#[expect(clippy::disallowed_methods, reason = "the clock module")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Returns a span in its two largest units, such as `3h 20m`.
pub(crate) fn span(span: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = span.as_secs();
    let first = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[first];
    let rest = UNITS.get(first + 1).map(|(unit, name)| (seconds % UNITS[first].0 / unit, name));
    match rest.filter(|(count, _)| *count > 0) {
        Some((count, smaller)) => format!("{}{name} {count}{smaller}", seconds / unit),
        None => format!("{}{name}", seconds / unit),
    }
}

/// Returns a moment to the second, with its distance: `2026-01-01T06:00:00Z (in 3h 20m)`.
pub(crate) fn moment(at: Timestamp, now: Timestamp) -> String {
    if at >= now {
        format!("{at:.0} (in {})", span(between(now, at)))
    } else {
        format!("{at:.0} ({} ago)", span(between(at, now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_their_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (61, "1m 1s"),
            (3_600, "1h"),
            (12_000, "3h 20m"),
            (86_400 + 59, "1d"),
            (200_000, "2d 7h"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn moments_are_in_the_future_or_past() {
        let now: Timestamp = "2026-01-01T02:40:00.5Z".parse().unwrap();
        let at = |text: &str| moment(text.parse().unwrap(), now);
        assert_eq!(at("2026-01-01T06:00:01Z"), "2026-01-01T06:00:01Z (in 3h 20m)");
        assert_eq!(at("2026-01-01T02:39:30Z"), "2026-01-01T02:39:30Z (30s ago)");
    }
}
