//! The state of a window, compared with a count minute by minute.

use std::collections::HashSet;

use croner::{Cron, Weekday};

use super::*;

/// A reference implementation of a window, minute by minute.
struct Minutes {
    from: Timestamp,
    open: Vec<bool>,
}

impl Minutes {
    fn of(cron: &str, duration: i64, zone: &str, from: Timestamp, count: i64) -> Self {
        let pattern = cron.parse::<Cron>().unwrap().pattern;
        let zone = TimeZone::get(zone).unwrap();
        let clock = |minute: i64| zone.to_datetime(from + SignedDuration::from_mins(minute));
        let names = |clock: jiff::civil::DateTime| {
            let part = |value: i8| u32::try_from(value).unwrap();
            let weekday = Weekday::from_days_from_sunday(part(clock.weekday().to_sunday_zero_offset()));
            pattern.minute_match(part(clock.minute())).unwrap()
                && pattern.hour_match(part(clock.hour())).unwrap()
                && pattern.month_match(part(clock.month())).unwrap()
                && pattern.day_match(i32::from(clock.year()), part(clock.month()), part(clock.day()), weekday).unwrap()
        };
        let before = duration + 180;
        let mut seen = HashSet::new();
        let mut expected = clock(-before);
        let mut open_for = 0;
        let mut open = Vec::new();
        for minute in -before..count {
            let shown = clock(minute);
            let mut opens = seen.insert(shown) && names(shown);
            while expected < shown {
                opens |= names(expected);
                expected += SignedDuration::from_mins(1);
            }
            expected = shown + SignedDuration::from_mins(1);
            if pattern.hours.from_wildcard {
                opens = names(shown);
            }
            open_for = if opens { duration } else { open_for - 1 };
            if minute >= 0 {
                open.push(open_for > 0);
            }
        }
        Self { from, open }
    }

    fn next(&self, minute: usize, open: bool) -> Option<Timestamp> {
        let ahead = self.open[minute..].iter().position(|is| *is == open)?;
        Some(self.from + SignedDuration::from_mins(i64::try_from(minute + ahead).unwrap()))
    }
}

#[test]
fn window_state_around_dst_changes_matches_minute_by_minute_count() {
    const HOURS: i64 = 12;
    // Each some hours before the change.
    let changes = [
        ("Europe/Berlin", "2026-10-24T20:00:00Z"),
        ("Europe/Berlin", "2027-03-27T20:00:00Z"),
        ("America/New_York", "2026-11-01T01:00:00Z"),
        ("America/New_York", "2027-03-14T02:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T10:00:00Z"),
        ("Australia/Lord_Howe", "2027-04-03T10:00:00Z"),
        ("Africa/Cairo", "2026-04-23T17:00:00Z"),
        ("Africa/Cairo", "2026-10-29T16:00:00Z"),
        ("America/Nuuk", "2027-03-27T20:00:00Z"),
        ("America/Nuuk", "2026-10-24T20:00:00Z"),
        // A day that was left out entirely.
        ("Pacific/Apia", "2011-12-30T05:00:00Z"),
        // No change of the clock, and the end of a year.
        ("Asia/Kolkata", "2026-12-31T13:00:00Z"),
    ];
    let windows = [
        ("30 2 * * *", 60),
        ("30 1 * * *", 30),
        ("0 0 * * *", 60),
        ("30 23 * * SAT,SUN", 120),
        ("0 0 30 12 *", 90),
        ("*/15 1-3 * * *", 15),
        ("*/15 1-3 * * *", 10),
        ("10,50 * * * *", 20),
        ("0 */2 * * *", 60),
        ("0 1 * * *", 1500),
    ];
    let minutes = |count: i64| SignedDuration::from_mins(count);
    for (zone, from) in changes {
        let from: Timestamp = from.parse().unwrap();
        for (cron, duration) in windows {
            let schedule = schedule(&window(cron, &format!("{duration}m"), zone));
            let counted = Minutes::of(cron, duration, zone, from, (HOURS + 48) * 60);
            for minute in (0..HOURS * 60).step_by(5) {
                let now = from + minutes(minute);
                let minute = usize::try_from(minute).unwrap();
                let (open, end) = match schedule.at(now) {
                    WindowState::Open { until } => (true, until),
                    WindowState::Closed { opens, .. } => (false, opens),
                };
                let what = format!("{cron} for {duration}m in {zone} at {now}: open {open}, {end:?}");
                assert_eq!(open, counted.open[minute], "{what}");
                // A state that does not change in the counted time may change at any later time.
                let change = counted.next(minute, !open);
                assert!(end == change || change.is_none(), "{what}, counted {change:?}");
            }
        }
    }
}
