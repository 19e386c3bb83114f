//! Readers that leave out what cannot be read and has an owner who writes it again, so that it harms nothing else.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

use super::AgentReport;

/// Reads a report of the agent. One that cannot be read is none.
pub(super) fn report<'de, D: Deserializer<'de>>(report: D) -> Result<AgentReport, D::Error> {
    Ok(AgentReport::deserialize(report).unwrap_or_default())
}

/// Reads a list without those of its elements that cannot be read.
pub(super) fn elements<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    let all: Vec<Element<T>> = Vec::deserialize(list)?;
    Ok(all.into_iter().filter_map(Element::read).collect())
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Element<T> {
    Read(T),
    NotRead(IgnoredAny),
}

impl<T> Element<T> {
    fn read(self) -> Option<T> {
        match self {
            Self::Read(element) => Some(element),
            Self::NotRead(_) => None,
        }
    }
}
