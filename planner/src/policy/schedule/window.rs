//! One window: its openings in its time zone, and the effect of changes of the clock.
//!
//! Between two changes a zone's clock runs evenly, so openings are searched in one such stretch after the other. At a
//! change, a window that names its hour opens once: the first time where the hour comes twice, and with the change
//! where the hour is left out. A window whose hour is a wildcard follows the clock instead.

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use models::time::after;

use super::calendar::Calendar;

/// A window, parsed and validated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Window {
    pub(super) calendar: Calendar,
    pub(super) zone: TimeZone,
    /// Time for which it stays open, in elapsed time.
    pub(super) duration: SignedDuration,
}

/// The smallest step of a timestamp.
const TICK: SignedDuration = SignedDuration::from_nanos(1);

/// A time in which a zone's clock runs evenly.
struct Stretch {
    from: Timestamp,
    to: Timestamp,
    offset: Offset,
    /// The clock's time at the beginning of the stretch, had it not been changed.
    unchanged: DateTime,
}

impl Stretch {
    fn around(zone: &TimeZone, moment: Timestamp) -> Self {
        let offset = zone.to_offset(moment);
        let since = zone.preceding(moment.saturating_add(TICK).unwrap_or(moment)).next();
        let from = since.map_or(Timestamp::MIN, |change| change.timestamp());
        let to = zone.following(moment).next().map_or(Timestamp::MAX, |change| change.timestamp());
        let before = from.checked_sub(TICK).map_or(offset, |before| zone.to_offset(before));
        Self { from, to, offset, unchanged: before.to_datetime(from) }
    }

    fn clock(&self, moment: Timestamp) -> DateTime {
        self.offset.to_datetime(moment)
    }
}

impl Window {
    /// Returns the end of the window that is open at this moment, including those that open again before that on the
    /// same day.
    pub(super) fn open_until(&self, now: Timestamp) -> Option<Timestamp> {
        let earliest = now.checked_sub(self.duration).unwrap_or(Timestamp::MIN);
        let close = |opening: Timestamp| after(opening, self.duration);
        let mut at = now;
        loop {
            let stretch = Stretch::around(&self.zone, at);
            let from = self.first_of(&stretch).max(stretch.clock(earliest));
            if let Some(opening) = self.calendar.last(from, stretch.clock(at)) {
                if stretch.offset.to_timestamp(opening).ok()? <= earliest {
                    return None;
                }
                let last = self.calendar.last_of_run(opening, stretch.clock(stretch.to));
                return stretch.offset.to_timestamp(last).ok().map(close);
            }
            if stretch.from <= earliest {
                return None;
            }
            if self.opens_with(&stretch) {
                return Some(close(stretch.from));
            }
            at = stretch.from.checked_sub(TICK).ok()?;
        }
    }

    /// Returns the next opening of the window after this moment, before `limit`.
    pub(super) fn opens_after(&self, now: Timestamp, limit: Timestamp) -> Option<Timestamp> {
        let mut at = now.checked_add(TICK).ok()?;
        while at < limit {
            let stretch = Stretch::around(&self.zone, at);
            if at == stretch.from && self.opens_with(&stretch) {
                return Some(at);
            }
            let from = self.first_of(&stretch).max(stretch.clock(at));
            if let Some(opening) = self.calendar.first(from, stretch.clock(stretch.to.min(limit))) {
                return stretch.offset.to_timestamp(opening).ok();
            }
            at = stretch.to;
        }
        None
    }

    /// Returns the clock's time from which on the minutes of the stretch count.
    fn first_of(&self, stretch: &Stretch) -> DateTime {
        let shown = stretch.clock(stretch.from);
        // A time that the clock shows for the second time has been used already.
        if self.calendar.every_hour() { shown } else { shown.max(stretch.unchanged) }
    }

    /// Returns whether the window opens with a change of the clock, because the change leaves out a minute in which it
    /// would open.
    fn opens_with(&self, stretch: &Stretch) -> bool {
        let shown = stretch.clock(stretch.from);
        !self.calendar.every_hour()
            && stretch.unchanged < shown
            && self.calendar.first(stretch.unchanged, shown).is_some()
    }
}
