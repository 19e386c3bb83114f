//! Schedules: windows and blackouts, which decide when nodes may be taken out of service.
//!
//! `at` is called for every plan and every group, so its cost is bounded: a window is searched over its own length, day
//! by day, and nothing is followed further than [`FORESIGHT`] and [`HORIZON`].

mod calendar;
mod window;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use models::operator::{Blackout, MaintenanceWindow, SchedulePolicy};

use self::calendar::Calendar;
use self::window::Window;
use super::error::PolicyError;
use models::time::after;

/// The longest window. It is also the distance back over which an opening is searched.
const LONGEST: SignedDuration = SignedDuration::from_hours(31 * 24);
/// Distance over which windows that follow each other are added up. More than [`LONGEST`], so that `stopStartingBefore`
/// is judged correctly.
const FORESIGHT: SignedDuration = SignedDuration::from_hours(35 * 24);
/// Distance over which the next opening is searched. It includes a leap day.
const HORIZON: SignedDuration = SignedDuration::from_hours(5 * 366 * 24);

/// A schedule, parsed and validated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// None: always open.
    windows: Vec<Window>,
    /// Time before the end of an open window in which nothing starts any more.
    stop_before: SignedDuration,
    /// Sorted, none touching another.
    blackouts: Vec<Closure>,
}

/// A blackout: from the first moment on, up to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Closure {
    from: Timestamp,
    to: Timestamp,
}

/// The state of a schedule at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// Nodes may start.
    Open {
        /// The end; `None`: open for good, or for longer than can be foreseen (some weeks).
        until: Option<Timestamp>,
    },
    /// Nodes may not start.
    Closed {
        /// The next opening; `None`: never again, as far as can be foreseen (some years).
        opens: Option<Timestamp>,
        /// True if a blackout is the reason.
        blackout: bool,
    },
}

/// The time for which the windows of a moment stay open.
struct Stay {
    /// [`Timestamp::MAX`]: as far as can be foreseen.
    until: Timestamp,
    /// True if a blackout ends it.
    blackout: bool,
}

impl Schedule {
    /// Parses a schedule. Parts that cannot be applied go into `errors`, with their field under `path`.
    pub fn parse(path: &str, schedule: &SchedulePolicy, errors: &mut Vec<PolicyError>) -> Self {
        Self::parse_within(path, schedule, &Self::default(), errors)
    }

    /// Parses the schedule of a group. Windows and `stopStartingBefore` that it leaves out are those of all nodes, and
    /// the blackouts of all nodes apply besides its own.
    pub(super) fn parse_within(
        path: &str,
        schedule: &SchedulePolicy,
        all: &Self,
        errors: &mut Vec<PolicyError>,
    ) -> Self {
        let SchedulePolicy { windows, stop_starting_before, blackouts } = schedule;
        let read_window = |(index, window)| read_window(&format!("{path}.windows[{index}]"), window, errors);
        let windows: Vec<_> = match windows.as_slice() {
            [] => all.windows.clone(),
            own => own.iter().enumerate().filter_map(read_window).collect(),
        };
        let of_all = || models::duration::Duration(all.stop_before.unsigned_abs());
        let stop_before = stop_starting_before.unwrap_or_else(of_all);
        // What a group inherits is reported where it is written.
        let is_own = !schedule.windows.is_empty() || stop_starting_before.is_some();
        if let Some(shortest) = windows.iter().map(|window| window.duration).min()
            && is_own
            && stop_before.signed() >= shortest
        {
            let shortest = models::duration::Duration(shortest.unsigned_abs());
            errors.push(PolicyError {
                field: format!("{path}.stopStartingBefore"),
                message: format!(
                    "{stop_before} leaves no time to start in a window of {shortest}; \
                     write less than the shortest window is long, or make that one longer"
                ),
            });
        }
        let read_blackout = |(index, blackout)| read_blackout(&format!("{path}.blackouts[{index}]"), blackout, errors);
        let own = blackouts.iter().enumerate().filter_map(read_blackout);
        let mut blackouts: Vec<_> = own.chain(all.blackouts.iter().copied()).collect();
        blackouts.sort_unstable();
        let blackouts = blackouts.into_iter().fold(Vec::<Closure>::new(), |mut merged, next| {
            match merged.last_mut().filter(|last| next.from <= last.to) {
                Some(last) => last.to = last.to.max(next.to),
                None => merged.push(next),
            }
            merged
        });
        Self { windows, stop_before: stop_before.signed(), blackouts }
    }

    /// Returns the state at this moment.
    pub fn at(&self, now: Timestamp) -> WindowState {
        if let Some(blackout) = self.blackout_at(now) {
            return WindowState::Closed { opens: self.opens(blackout.to), blackout: true };
        }
        match self.stay(now) {
            Some(stay) if self.leaves_time(now, &stay) => WindowState::Open {
                until: Some(stay.until)
                    .filter(|until| *until < Timestamp::MAX)
                    .and_then(|until| until.checked_sub(self.stop_before).ok()),
            },
            Some(stay) => WindowState::Closed { opens: self.opens(stay.until), blackout: stay.blackout },
            None => WindowState::Closed { opens: self.opens(now), blackout: false },
        }
    }

    /// Returns the first moment from this one on at which nodes may start.
    fn opens(&self, from: Timestamp) -> Option<Timestamp> {
        let limit = after(from, HORIZON);
        let mut at = from;
        // Each round leaves a blackout, a closed time or the rest of a window behind. Their number is finite: a window
        // that no blackout cuts is longer than `stop_before`.
        while at < limit {
            if let Some(blackout) = self.blackout_at(at) {
                at = blackout.to;
            } else if let Some(stay) = self.stay(at) {
                if self.leaves_time(at, &stay) {
                    return Some(at);
                }
                at = stay.until;
            } else {
                at = self.windows.iter().filter_map(|window| window.opens_after(at, limit)).min()?;
            }
        }
        None
    }

    fn leaves_time(&self, now: Timestamp, stay: &Stay) -> bool {
        now.duration_until(stay.until) > self.stop_before
    }

    fn blackout_at(&self, moment: Timestamp) -> Option<&Closure> {
        let next = self.blackouts.partition_point(|blackout| blackout.to <= moment);
        self.blackouts.get(next).filter(|blackout| blackout.from <= moment)
    }

    /// Returns the time for which windows are open, if one is. The moment is in no blackout.
    fn stay(&self, now: Timestamp) -> Option<Stay> {
        let windows = if self.windows.is_empty() { Timestamp::MAX } else { self.windows_open_until(now)? };
        let next = self.blackouts.partition_point(|blackout| blackout.to <= now);
        // Beyond the foreseen time, something else may come first.
        let foreseen = if self.windows.is_empty() { Timestamp::MAX } else { far(now) };
        let blackout =
            self.blackouts.get(next).map(|blackout| blackout.from).filter(|from| *from < foreseen.min(windows));
        Some(Stay { until: blackout.unwrap_or(windows), blackout: blackout.is_some() })
    }

    /// Returns the end of the time in which some window is open, without a pause; [`Timestamp::MAX`] where that cannot
    /// be foreseen.
    fn windows_open_until(&self, now: Timestamp) -> Option<Timestamp> {
        let far = far(now);
        let mut until = now;
        while until < far {
            match self.windows.iter().filter_map(|window| window.open_until(until)).max() {
                Some(later) if later > until => until = later,
                _ => return Some(until).filter(|until| *until > now),
            }
        }
        Some(Timestamp::MAX)
    }
}

fn far(now: Timestamp) -> Timestamp {
    after(now, FORESIGHT)
}

fn read_window(path: &str, window: &MaintenanceWindow, errors: &mut Vec<PolicyError>) -> Option<Window> {
    let MaintenanceWindow { cron, duration, time_zone } = window;
    let mut refuse =
        |field: &str, message: String| errors.push(PolicyError { field: format!("{path}.{field}"), message });
    let length = duration.signed();
    let fits = length > SignedDuration::ZERO && length <= LONGEST;
    if length <= SignedDuration::ZERO {
        refuse("duration", format!("a window of {duration} is never open; write how long it stays open, such as 4h"));
    } else if !fits {
        let days = LONGEST.as_hours() / 24;
        refuse(
            "duration",
            format!("a window of {duration} is too long; write at most {days} days, or no windows for always"),
        );
    }
    // A pause as long as the window itself closes nothing; none is longer than a day.
    let pause = u16::try_from(length.as_mins().clamp(0, 24 * 60)).unwrap_or(0);
    let calendar = Calendar::parse(cron, pause).map_err(|message| refuse("cron", message)).ok();
    let zone = read_zone(time_zone.as_deref()).map_err(|message| refuse("timeZone", message)).ok();
    Some(Window { calendar: calendar?, zone: zone?, duration: length }).filter(|_| fits)
}

fn read_blackout(path: &str, blackout: &Blackout, errors: &mut Vec<PolicyError>) -> Option<Closure> {
    let Blackout { from, to, time_zone } = blackout;
    let mut refuse =
        |field: &str, message: String| errors.push(PolicyError { field: format!("{path}.{field}"), message });
    let first = read_date(from).map_err(|message| refuse("from", message)).ok();
    let last = match to {
        Some(to) => read_date(to).map_err(|message| refuse("to", message)).ok(),
        None => first,
    };
    let zone = read_zone(time_zone.as_deref()).map_err(|message| refuse("timeZone", message)).ok();
    let (first, last, zone) = (first?, last?, zone?);
    if last < first {
        refuse("to", format!("{last} is before {first}; write the last day, which is the first one or later"));
        return None;
    }
    let end = last.tomorrow().ok().and_then(|day| begin(&zone, day)).map_or(Timestamp::MAX, |(_, to)| to);
    Some(Closure { from: begin(&zone, first)?.0, to: end })
}

fn read_zone(name: Option<&str>) -> Result<TimeZone, String> {
    let Some(name) = name else { return Ok(TimeZone::UTC) };
    TimeZone::get(name).ok().filter(|zone| !zone.is_unknown()).ok_or_else(|| {
        format!(
            "'{name}' is no time zone that is known here; \
             write an IANA name such as Europe/Berlin or America/New_York, or leave it out for UTC"
        )
    })
}

fn read_date(text: &str) -> Result<Date, String> {
    // The parser accepts several formats of a date; the schema accepts one.
    text.parse::<Date>()
        .ok()
        .filter(|date| date.to_string() == text)
        .ok_or_else(|| format!("'{text}' is no day of the calendar; write one as year-month-day, such as 2026-12-20"))
}

/// Returns the beginning of a day. Where its midnight comes twice there are two results; where it is left out the day
/// begins with the change of the clock.
fn begin(zone: &TimeZone, day: Date) -> Option<(Timestamp, Timestamp)> {
    let midnight = day.at(0, 0, 0, 0);
    let ambiguous = zone.to_ambiguous_timestamp(midnight);
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(midnight).ok().map(|begin| (begin, begin)),
        AmbiguousOffset::Fold { before, after } => {
            Some((before.to_timestamp(midnight).ok()?, after.to_timestamp(midnight).ok()?))
        }
        // Not `jiff`'s own start of the day, which is later where the change begins before midnight.
        AmbiguousOffset::Gap { before, .. } => {
            let unchanged = before.to_timestamp(midnight).ok()?;
            let change = zone.preceding(unchanged.checked_add(SignedDuration::from_nanos(1)).ok()?).next()?;
            Some((change.timestamp(), change.timestamp()))
        }
    }
}

#[cfg(test)]
mod tests;
