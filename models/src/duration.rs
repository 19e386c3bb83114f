//! Durations as Kubernetes users write them: `90s`, `1h30m`, `500ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration as StdDuration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A span of time in a resource, written in Go's syntax without fractions or signs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub StdDuration);

/// Error of a string that is not a [`Duration`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no duration: write whole numbers with a unit, such as 30s, 10m, 1h30m or 500ms")]
pub struct ParseDurationError(String);

impl Duration {
    /// No time.
    pub const ZERO: Self = Self(StdDuration::ZERO);

    /// A duration of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(StdDuration::from_secs(seconds))
    }

    /// A duration of whole minutes.
    pub const fn from_mins(minutes: u64) -> Self {
        Self(StdDuration::from_secs(minutes * 60))
    }

    /// The same for arithmetic with timestamps.
    pub fn signed(self) -> jiff::SignedDuration {
        crate::time::signed(self.0)
    }
}

impl FromStr for Duration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseDurationError(text.to_owned());
        let mut rest = text;
        // In whole milliseconds throughout: what is read is never longer than what can be written and read again.
        let mut total = 0_u64;
        if rest.is_empty() {
            return Err(fail());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(fail)?;
            let number: u64 = rest[..digits].parse().map_err(|_| fail())?;
            rest = &rest[digits..];
            let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let milliseconds = match &rest[..unit] {
                "ms" => 1,
                "s" => 1_000,
                "m" => 60_000,
                "h" => 3_600_000,
                _ => return Err(fail()),
            };
            let part = number.checked_mul(milliseconds).ok_or_else(fail)?;
            total = total.checked_add(part).ok_or_else(fail)?;
            rest = &rest[unit..];
        }
        Ok(Self(StdDuration::from_millis(total)))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_millis();
        if rest == 0 {
            return f.write_str("0s");
        }
        for (size, unit) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")] {
            if rest >= size {
                write!(f, "{}{unit}", rest / size)?;
            }
            rest %= size;
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_and_round_trip() {
        for (text, seconds) in [("30s", 30), ("10m", 600), ("1h30m", 5_400), ("0s", 0), ("24h", 86_400)] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration, Duration::from_secs(seconds), "{text}");
            assert_eq!(duration.to_string().parse::<Duration>().unwrap(), duration, "{text}");
        }
        let longest: Duration = "18446744073709551615ms".parse().unwrap();
        assert_eq!(longest.to_string().parse::<Duration>().unwrap(), longest);
        assert_eq!("1s500ms".parse::<Duration>().unwrap().0, StdDuration::from_millis(1_500));
        assert_eq!(Duration::from_secs(5_400).to_string(), "1h30m");
    }

    #[test]
    fn invalid_duration_error_shows_an_example() {
        for text in ["", "5", "s", "-5s", "1.5h", "5 s", "5d", "99999999999999999999s", "18446744073709551615ms1ms"] {
            let error = text.parse::<Duration>().unwrap_err();
            assert!(error.to_string().contains("such as 30s"), "{text}: {error}");
        }
    }
}
