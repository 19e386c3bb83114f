//! A user's hold: the annotation on a Node that keeps it out of updates. A value that begins with `until=` names an end, and is
//! refused if that cannot be read: it would hold without an end. Any other value holds the node for as long as the annotation
//! exists.

use std::fmt;

use jiff::Timestamp;
use models::plain::cut;

/// Maximum length of a reason that is shown.
const REASON_LENGTH: usize = 256;

/// Maximum length of a refused value that is shown.
const SHOWN_LENGTH: usize = 100;

const UNTIL: &str = "until=";
const REASON: &str = "reason=";

/// The value of a hold whose end cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not of the form until=2026-01-31T18:00:00Z reason=…, with a time as RFC 3339 and the reason optional"
)]
pub struct UnreadableEnd(String);

/// A hold of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Time at which it ends; `None`: when the annotation is removed.
    pub until: Option<Timestamp>,
    /// Reason of the user; `None` without one.
    pub reason: Option<String>,
}

impl Hold {
    /// Parses the value of the annotation: `until=<RFC 3339> reason=<text>`, each of them optional. A value without `until=` at
    /// its beginning holds without an end, and all of it is the reason.
    ///
    /// # Errors
    ///
    /// Returns an error if it begins with `until=` and is not of this form.
    pub fn parse(value: &str) -> Result<Self, UnreadableEnd> {
        let value = value.trim();
        let reason = |text: &str| Some(cut(text.trim(), REASON_LENGTH)).filter(|text| !text.is_empty());
        let begins = value.get(..UNTIL.len()).is_some_and(|start| start.eq_ignore_ascii_case(UNTIL));
        if !begins {
            return Ok(Self { until: None, reason: reason(value.strip_prefix(REASON).unwrap_or(value)) });
        }
        let with_end = || {
            let end = value.strip_prefix(UNTIL)?;
            let (time, rest) = end.split_once(' ').unwrap_or((end, ""));
            let until = Some(time.parse().ok()?);
            let rest = rest.trim();
            match rest.strip_prefix(REASON) {
                Some(text) => Some(Self { until, reason: reason(text) }),
                None => rest.is_empty().then_some(Self { until, reason: None }),
            }
        };
        with_end().ok_or_else(|| UnreadableEnd(cut(value, SHOWN_LENGTH)))
    }

    /// Returns whether its time is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

/// Writes the value of the annotation.
impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.until, &self.reason) {
            (None, reason) => write!(f, "{REASON}{}", reason.as_deref().unwrap_or_default()),
            (Some(until), None) => write!(f, "{UNTIL}{until}"),
            (Some(until), Some(reason)) => write!(f, "{UNTIL}{until} {REASON}{reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::t;

    fn hold(until: Option<i64>, reason: Option<&str>) -> Hold {
        Hold { until: until.map(t), reason: reason.map(str::to_owned) }
    }

    #[test]
    fn hold_with_end_and_reason_round_trips_through_its_annotation() {
        for hold in [
            hold(None, None),
            hold(None, Some("the auditors are here")),
            hold(Some(60), None),
            hold(Some(60), Some("disk swap, ticket=7 until=noon")),
        ] {
            assert_eq!(Hold::parse(&hold.to_string()), Ok(hold.clone()), "{hold}");
        }
        assert_eq!(hold(Some(60), Some("disk swap")).to_string(), format!("until={} reason=disk swap", t(60)));
    }

    #[test]
    fn value_of_any_other_form_holds_without_an_end() {
        let end = t(60);
        for (value, reason) in [
            (String::new(), None),
            ("mine".to_owned(), Some("mine".to_owned())),
            ("  maintenance\n".to_owned(), Some("maintenance".to_owned())),
            ("größer".to_owned(), Some("größer".to_owned())),
            (format!("reason=x until={end}"), Some(format!("x until={end}"))),
        ] {
            let hold = Hold::parse(&value).unwrap();
            assert_eq!(hold, Hold { until: None, reason }, "{value}");
            assert!(!hold.is_over(Timestamp::MAX), "{value}");
        }
    }

    #[test]
    fn hold_whose_end_cannot_be_read_is_refused() {
        let end = t(60);
        for value in [
            "until=".to_owned(),
            "until=tomorrow".to_owned(),
            "until=2026-01-31".to_owned(),
            // Without an offset, the time is not known.
            "until=2026-01-01T12:00:00".to_owned(),
            "until=2026-13-01T12:00:00Z".to_owned(),
            format!("until={end} or longer"),
            format!("until={end},reason=x"),
            format!("Until={end}"),
        ] {
            let refused = Hold::parse(&value).unwrap_err().to_string();
            assert!(refused.contains(&format!("'{value}'")), "{value}: {refused}");
        }
        let refused = Hold::parse(&format!("until=\n{}", "x".repeat(1000))).unwrap_err().to_string();
        assert!(refused.len() < 300 && !refused.contains(char::is_control), "{refused}");
    }

    #[test]
    fn hold_is_over_at_its_end_and_not_before() {
        for (until, now, over) in [(Some(60), 59, false), (Some(60), 60, true), (Some(60), 61, true), (None, 61, false)]
        {
            assert_eq!(hold(until, None).is_over(t(now)), over, "{until:?} at {now}");
        }
    }

    #[test]
    fn reason_is_one_short_line() {
        let hold = Hold::parse(&format!("reason=\u{1b}[2J\n{}", "x".repeat(1000))).unwrap();
        let reason = hold.reason.unwrap();
        assert!(reason.chars().count() == REASON_LENGTH && !reason.contains(char::is_control), "{reason:?}");
    }
}
