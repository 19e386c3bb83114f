//! A user's hold: the annotation on a Node that keeps it out of updates. Any value holds the node for as long as the
//! annotation exists; one of a certain form names an end and a reason.

use std::fmt;

use jiff::Timestamp;
use models::plain::cut;

/// Maximum length of a reason that is shown.
const REASON_LENGTH: usize = 256;

const UNTIL: &str = "until=";
const REASON: &str = "reason=";

/// A hold of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Time at which it ends; `None`: when the annotation is removed.
    pub until: Option<Timestamp>,
    /// Reason of the user; `None` without one.
    pub reason: Option<String>,
}

impl Hold {
    /// Parses the value of the annotation: `until=<RFC 3339> reason=<text>`, each of them optional. Any other value holds
    /// without an end, and is the reason as a whole: no hold is lost because of how it is written.
    pub fn parse(value: &str) -> Self {
        let value = value.trim();
        let reason = |text: &str| Some(cut(text.trim(), REASON_LENGTH)).filter(|text| !text.is_empty());
        let with_end = || {
            let (time, rest) = value.strip_prefix(UNTIL)?.split_once(' ').unwrap_or((&value[UNTIL.len()..], ""));
            let until = time.parse().ok()?;
            let rest = rest.trim();
            match rest.strip_prefix(REASON) {
                Some(text) => Some(Self { until: Some(until), reason: reason(text) }),
                None => rest.is_empty().then_some(Self { until: Some(until), reason: None }),
            }
        };
        with_end().unwrap_or_else(|| Self { until: None, reason: reason(value.strip_prefix(REASON).unwrap_or(value)) })
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
            assert_eq!(Hold::parse(&hold.to_string()), hold, "{hold}");
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
            ("until=".to_owned(), Some("until=".to_owned())),
            ("until=tomorrow".to_owned(), Some("until=tomorrow".to_owned())),
            // Without an offset, the time is not known.
            ("until=2026-01-01T12:00:00".to_owned(), Some("until=2026-01-01T12:00:00".to_owned())),
            ("until=2026-13-01T12:00:00Z".to_owned(), Some("until=2026-13-01T12:00:00Z".to_owned())),
            (format!("until={end} or longer"), Some(format!("until={end} or longer"))),
            (format!("until={end},reason=x"), Some(format!("until={end},reason=x"))),
            (format!("Until={end}"), Some(format!("Until={end}"))),
            (format!("reason=x until={end}"), Some(format!("x until={end}"))),
        ] {
            let hold = Hold::parse(&value);
            assert_eq!(hold, Hold { until: None, reason }, "{value}");
            assert!(!hold.is_over(Timestamp::MAX), "{value}");
        }
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
        let hold = Hold::parse(&format!("reason=\u{1b}[2J\n{}", "x".repeat(1000)));
        let reason = hold.reason.unwrap();
        assert!(reason.chars().count() == REASON_LENGTH && !reason.contains(char::is_control), "{reason:?}");
    }
}
