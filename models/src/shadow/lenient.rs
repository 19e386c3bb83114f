//! Readers that leave out what cannot be read and has an owner who writes it again, so that it harms nothing else.

use semver::Version;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

use super::{AgentReport, Armed, Failure, FoundSettings, HostState, OfferedUpdates, Rehearsal};

/// A stored report. Of a field that the agent reads from its host each time, a value that cannot be read counts as missing: the next
/// report replaces it. The others are the only record of what was done to the host, and nothing goes on without them.
#[derive(Deserialize)]
#[serde(remote = "AgentReport", rename_all = "camelCase")]
pub(super) struct StoredReport {
    #[serde(default, deserialize_with = "field")]
    state: Option<HostState>,
    #[serde(default, deserialize_with = "field")]
    observed_generation: Option<i64>,
    #[serde(default, deserialize_with = "field")]
    current_version: Option<Version>,
    #[serde(default, deserialize_with = "field")]
    variant: Option<String>,
    #[serde(default, deserialize_with = "field")]
    arch: Option<String>,
    #[serde(default, deserialize_with = "field")]
    boot_id: Option<String>,
    #[serde(default, deserialize_with = "field")]
    updates: Option<OfferedUpdates>,
    #[serde(default)]
    armed: Option<Armed>,
    #[serde(default)]
    rehearsal: Option<Rehearsal>,
    #[serde(default)]
    failure: Option<Failure>,
    #[serde(default)]
    host: Option<FoundSettings>,
}

/// Reads a field, or nothing where it cannot be read.
fn field<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: D) -> Result<Option<T>, D::Error> {
    Ok(Readable::deserialize(field)?.value())
}

/// Reads a list without those of its elements that cannot be read.
pub(super) fn elements<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    let all: Vec<Readable<T>> = Vec::deserialize(list)?;
    Ok(all.into_iter().filter_map(Readable::value).collect())
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Readable<T> {
    Yes(T),
    No(IgnoredAny),
}

impl<T> Readable<T> {
    fn value(self) -> Option<T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No(_) => None,
        }
    }
}
