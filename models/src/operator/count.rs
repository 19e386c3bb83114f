//! A number of nodes, or a share of them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// A number of nodes, or a share of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CountOrPercent {
    /// That many nodes.
    Count(u32),
    /// A percentage such as `10%`.
    Percent(String),
}

impl CountOrPercent {
    /// Returns whether it is a count, or a percentage from 1% to 100%. A policy with another string is not put in force.
    pub fn is_valid(&self) -> bool {
        match self {
            Self::Count(_) => true,
            Self::Percent(text) => percent(text).is_some(),
        }
    }

    /// Returns this share of `total` nodes: a percentage rounds down, and never below 1; a count of 0 is 1, since 0 would be
    /// a second switch beside `enabled`, and so is a string that is no percentage.
    pub fn of(&self, total: usize) -> usize {
        self.share(total, |hundredths| hundredths / 100)
    }

    /// The same, with a percentage rounded up.
    pub fn rounded_up(&self, total: usize) -> usize {
        self.share(total, |hundredths| hundredths.div_ceil(100))
    }

    fn share(&self, total: usize, round: impl Fn(usize) -> usize) -> usize {
        let share = match self {
            Self::Count(count) => *count as usize,
            Self::Percent(text) => {
                let percent = percent(text).unwrap_or(0);
                total / 100 * percent + round(total % 100 * percent)
            }
        };
        share.max(1)
    }
}

fn percent(text: &str) -> Option<usize> {
    text.strip_suffix('%')?.parse::<usize>().ok().filter(|percent| (1..=100).contains(percent))
}

impl Default for CountOrPercent {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl JsonSchema for CountOrPercent {
    fn schema_name() -> Cow<'static, str> {
        "CountOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 4,
            "x-kubernetes-validations": [{
                "rule": "type(self) == int ? self >= 1 && self <= 10000 : self.matches('^([1-9][0-9]?|100)%$')",
                "message": "write a count from 1 to 10000, or a percentage from 1% to 100%",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentage_is_rounded_down_to_at_least_one() {
        let percent = |text: &str| CountOrPercent::Percent(text.into());
        for (budget, total, nodes) in [
            (CountOrPercent::Count(3), 100, 3),
            (CountOrPercent::Count(0), 100, 1),
            (percent("10%"), 100, 10),
            (percent("10%"), 19, 1),
            (percent("10%"), 9, 1),
            (percent("10%"), 0, 1),
            (percent("33%"), 10, 3),
            (percent("99%"), 1, 1),
            (percent("100%"), 7, 7),
            (percent("99%"), 1_099, 1_088),
            (percent("100%"), usize::MAX, usize::MAX),
        ] {
            assert_eq!(budget.of(total), nodes, "{budget:?} of {total}");
        }
    }

    #[test]
    fn string_that_is_no_percentage_from_1_to_100_is_invalid_and_no_more_than_one_node() {
        for text in ["0%", "101%", "ten", "", "-5%"] {
            let share = CountOrPercent::Percent(text.into());
            assert_eq!((share.is_valid(), share.of(700), share.rounded_up(700)), (false, 1, 1), "{text}");
        }
        assert!(CountOrPercent::Percent("100%".into()).is_valid() && CountOrPercent::Count(3).is_valid());
    }

    #[test]
    fn share_of_a_canary_step_is_rounded_up() {
        for (text, total, nodes) in [("10%", 10, 1), ("10%", 11, 2), ("1%", 0, 1), ("60%", 4, 3), ("100%", 7, 7)] {
            assert_eq!(CountOrPercent::Percent(text.into()).rounded_up(total), nodes, "{text} of {total}");
        }
        assert_eq!(CountOrPercent::Count(3).rounded_up(100), 3);
    }
}
