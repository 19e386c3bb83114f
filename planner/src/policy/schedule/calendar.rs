//! The calendar part of a line of cron: its days and minutes. No time zone and no clock.

use std::ops::RangeInclusive;

use croner::parser::{CronParser, Seconds, Year};
use croner::{CronPattern, Weekday};
use jiff::SignedDuration;
use jiff::civil::{Date, DateTime};

/// The minutes of a cron expression, on any day of any year.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Calendar {
    /// The days and months.
    pattern: CronPattern,
    /// The minutes of a day, rising.
    minutes: Vec<Minute>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Minute {
    minute: u16,
    /// The last minute that is reached from this one without a long pause.
    run: u16,
}

/// After these years the calendar repeats: every month has begun on each day of the week.
const CYCLE: RangeInclusive<i16> = 2001..=2028;
const FIELDS: [&str; 5] = ["minute", "hour", "day of month", "month", "day of week"];
const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl Calendar {
    /// Parses five fields of cron. A pause of more than `pause` minutes ends a run.
    ///
    /// # Errors
    /// The error in the fields, as a message for the user.
    pub(super) fn parse(text: &str, pause: u16) -> Result<Self, String> {
        const EXAMPLE: &str = "such as '0 2 * * 1-5' (02:00 from Monday to Friday)";
        let fields: Vec<_> = text.split_whitespace().collect();
        let &[minute, hour, day, month, weekday] = &fields[..] else {
            return Err(format!(
                "'{text}' has {} fields; write five (minute, hour, day of month, month, day of week), {EXAMPLE}",
                fields.len()
            ));
        };
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let fields = [minute, hour, day, month, weekday];
        let parsed = parser.parse(text).ok().filter(|_| fields.iter().enumerate().all(|(i, f)| is_plain(i, f)));
        let Some(pattern) = parsed.map(|cron| cron.pattern) else {
            // Parsing each field alone shows the invalid one.
            let alone = |index: usize| {
                let mut line = ["*"; 5];
                line[index] = fields[index];
                line.join(" ")
            };
            let wrong = (0..5).find(|i| !is_plain(*i, fields[*i]) || parser.parse(&alone(*i)).is_err()).unwrap_or(0);
            return Err(format!(
                "the {} '{}' of '{text}' cannot be read; write five fields of cron {EXAMPLE}",
                FIELDS[wrong], fields[wrong]
            ));
        };
        let hours = pattern.hours.values();
        let minutes = pattern.minutes.values();
        let all = hours.into_iter().flat_map(|hour| minutes.iter().map(move |m| hour * 60 + m));
        let mut minutes: Vec<_> = all.map(|minute| Minute { minute, run: minute }).collect();
        let mut after: Option<Minute> = None;
        for minute in minutes.iter_mut().rev() {
            minute.run =
                after.filter(|after| after.minute - minute.minute <= pause).map_or(minute.minute, |after| after.run);
            after = Some(*minute);
        }
        let calendar = Self { pattern, minutes };
        let mut months = CYCLE.flat_map(|year| (1..=12).filter_map(move |month| Date::new(year, month, 1).ok()));
        if !months.any(|month| (1..=31).any(|day| month.with().day(day).build().is_ok_and(|day| calendar.has(day)))) {
            return Err(format!("'{text}' names no day that any year has; write five fields of cron {EXAMPLE}"));
        }
        Ok(calendar)
    }

    /// Returns whether the hour field is a wildcard, so that it follows the clock and names no hour.
    pub(super) fn every_hour(&self) -> bool {
        self.pattern.hours.from_wildcard
    }

    fn has_month(&self, date: Date) -> bool {
        self.pattern.month_match(part(date.month())).unwrap_or(false)
    }

    /// Returns whether a day is one of the calendar's.
    fn has(&self, date: Date) -> bool {
        let weekday = Weekday::from_days_from_sunday(part(date.weekday().to_sunday_zero_offset()));
        let matched = || self.pattern.day_match(date.year().into(), part(date.month()), part(date.day()), weekday);
        self.has_month(date) && matched().unwrap_or(false)
    }

    /// Returns the latest minute at or before `limit` and not before `from`.
    pub(super) fn last(&self, from: DateTime, limit: DateTime) -> Option<DateTime> {
        let (mut date, mut latest) = (limit.date(), minute_of(limit));
        while date >= from.date() {
            let until = self.minutes.partition_point(|m| m.minute <= latest);
            if until > 0 && self.has(date) {
                return Some(at(date, self.minutes[until - 1].minute)).filter(|found| *found >= from);
            }
            (date, latest) = (date.yesterday().ok()?, u16::MAX);
        }
        None
    }

    /// Returns the earliest minute at or after `from` and before `limit`.
    pub(super) fn first(&self, from: DateTime, limit: DateTime) -> Option<DateTime> {
        let part_of_minute = from.second() > 0 || from.subsec_nanosecond() > 0;
        let (mut date, mut earliest) = (from.date(), minute_of(from) + u16::from(part_of_minute));
        while at(date, 0) < limit {
            let next = self.minutes.partition_point(|m| m.minute < earliest);
            if next < self.minutes.len() && self.has(date) {
                return Some(at(date, self.minutes[next].minute)).filter(|found| *found < limit);
            }
            let passed = if self.has_month(date) { date } else { date.last_of_month() };
            (date, earliest) = (passed.tomorrow().ok()?, 0);
        }
        None
    }

    /// Returns the last of the minutes that are reached from `minute` on its day, before `limit`, without a pause
    /// longer than the one that the calendar was parsed with.
    pub(super) fn last_of_run(&self, minute: DateTime, limit: DateTime) -> DateTime {
        let (date, time) = (minute.date(), minute_of(minute));
        let end = match self.minutes.binary_search_by_key(&time, |m| m.minute) {
            Ok(index) => self.minutes[index].run,
            Err(_) => time,
        };
        if at(date, end) < limit {
            return at(date, end);
        }
        // The change of a clock cuts the day short.
        limit
            .checked_sub(SignedDuration::from_nanos(1))
            .ok()
            .and_then(|limit| self.last(minute, limit))
            .unwrap_or(minute)
    }
}

/// Returns a part of a date, none of which is negative.
fn part(value: i8) -> u32 {
    u32::from(value.unsigned_abs())
}

fn minute_of(moment: DateTime) -> u16 {
    u16::from(moment.hour().unsigned_abs()) * 60 + u16::from(moment.minute().unsigned_abs())
}

/// Returns a minute of a day. `minute` is below 1440, so that its parts fit.
fn at(date: Date, minute: u16) -> DateTime {
    let part = |value: u16| i8::try_from(value).unwrap_or(0);
    date.at(part(minute / 60), part(minute % 60), 0, 0)
}

/// Returns whether a field is plain cron. The parser also takes names in the middle of numbers and in other fields, and
/// words of its own that no other cron knows.
fn is_plain(index: usize, field: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_word = |word: &str| match index {
        2 => matches!(word, "L" | "LW") || word.strip_suffix('W').is_some_and(is_number),
        3 => MONTHS.contains(&word),
        4 => {
            let day = word.strip_suffix('L').unwrap_or(word);
            WEEKDAYS.contains(&day) || (day.len() < word.len() && is_number(day))
        }
        _ => false,
    };
    let is_item = |item: &str| {
        let words: Vec<_> = item.split(['-', '/', '#', '*', '?']).filter(|word| !word.is_empty()).collect();
        !item.is_empty() && words.into_iter().all(|word| is_number(word) || is_word(word))
    };
    field.to_ascii_uppercase().split(',').all(is_item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cron_expression_matches_expected_times() {
        for (text, from, first) in [
            ("30 2 * * *", "2026-01-01T02:31", "2026-01-02T02:30"),
            ("30 2 * * *", "2026-01-01T02:30", "2026-01-01T02:30"),
            ("30 2 * * *", "2026-12-31T03:00", "2027-01-01T02:30"),
            ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
            ("0 0 * * 0", "2026-11-21T00:00", "2026-11-22T00:00"),
            ("0 0 * * 7", "2026-11-21T00:00", "2026-11-22T00:00"),
            ("0 0 * * sun", "2026-11-21T00:00", "2026-11-22T00:00"),
            ("0 0 * * FRI-SUN", "2026-11-16T00:00", "2026-11-20T00:00"),
            ("0 0 * JAN,Mar *", "2026-01-31T00:01", "2026-03-01T00:00"),
            ("0 0 L * *", "2026-02-01T00:00", "2026-02-28T00:00"),
            ("0 0 15W * *", "2026-11-01T00:00", "2026-11-16T00:00"),
            ("0 0 LW 10 *", "2026-10-01T00:00", "2026-10-30T00:00"),
            ("0 0 ? * TUE#2", "2026-11-01T00:00", "2026-11-10T00:00"),
            ("0 0 * * FRIL", "2026-11-01T00:00", "2026-11-27T00:00"),
            ("0 0 31 * 1", "2026-11-03T00:00", "2026-11-09T00:00"),
            ("*/20 9-17/4 * * *", "2026-11-01T09:41", "2026-11-01T13:00"),
        ] {
            let calendar = Calendar::parse(text, 0).unwrap();
            let (from, found) = (from.parse().unwrap(), first.parse().unwrap());
            assert_eq!(calendar.first(from, DateTime::MAX), Some(found), "{text} from {from}");
            assert_eq!(calendar.first(from, found), None, "{text} before {found}");
            assert_eq!(calendar.last(from, found), Some(found), "{text} up to {found}");
            if from < found {
                let before = found.checked_sub(SignedDuration::from_secs(1)).unwrap();
                assert_eq!(calendar.last(from, before), None, "{text} from {from} to {before}");
            }
        }
    }

    #[test]
    fn invalid_cron_error_names_its_field() {
        for (text, what) in [
            ("61 2 * * *", "the minute '61'"),
            ("0 24 * * *", "the hour '24'"),
            ("0 2 32 * *", "the day of month '32'"),
            ("0 2 * 13 *", "the month '13'"),
            ("0 2 * * 8", "the day of week '8'"),
            ("0 2 * * FRI-MON", "the day of week 'FRI-MON'"),
            ("0 2 * * L", "the day of week 'L'"),
            ("0 2 * 1JAN *", "the month '1JAN'"),
            ("0 2 * MON *", "the month 'MON'"),
            ("0 JAN * * *", "the hour 'JAN'"),
            ("0 2 * * +1", "the day of week '+1'"),
            ("0 2 1,,2 * *", "the day of month '1,,2'"),
            (", 2 * * *", "the minute ','"),
            ("*/0 2 * * *", "the minute '*/0'"),
            ("5/10 2 * * *", "the minute '5/10'"),
            ("0 2 * *", "has 4 fields"),
            ("0 0 2 * * *", "has 6 fields"),
            ("0 0 2 * * * *", "has 7 fields"),
            ("@daily", "has 1 fields"),
            ("", "has 0 fields"),
            ("0 0 30 2 *", "no day that any year has"),
            ("0 0 31 2,4,6,9,11 *", "no day that any year has"),
            ("99999999999999999999 2 * * *", "the minute '99999999999999999999'"),
        ] {
            let message = Calendar::parse(text, 0).unwrap_err();
            assert!(message.contains(what) && message.contains("such as"), "{text}: {message}");
        }
    }
}
