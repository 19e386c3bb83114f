//! The agents' own state, as each says it when it opens its stream. Agents serve no port, so their process metrics are here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use models::wire::AgentProcess;
use parking_lot::Mutex;
use prometheus::{IntGauge, IntGaugeVec};

/// Number of versions with a series of their own: two during an upgrade, and some that were forgotten.
const VERSIONS: usize = 8;

/// The agents with an open stream.
#[derive(Clone, Debug)]
pub(crate) struct Agents {
    connected: Arc<Mutex<Connected>>,
    /// By version.
    pub(crate) count: IntGaugeVec,
    pub(crate) resident: IntGauge,
    pub(crate) started: IntGauge,
}

#[derive(Debug, Default)]
struct Connected {
    next: u64,
    /// The agent behind each stream, as far as it has described itself.
    streams: HashMap<u64, Option<AgentProcess>>,
}

/// An agent with an open stream, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Presence {
    agents: Agents,
    number: u64,
}

impl Agents {
    pub(crate) fn new(count: IntGaugeVec, resident: IntGauge, started: IntGauge) -> Self {
        Self { connected: Arc::default(), count, resident, started }
    }

    /// Adds the agent of a stream; `None`: it has said nothing readable about itself.
    pub(crate) fn enter(&self, process: Option<AgentProcess>) -> Presence {
        let mut connected = self.connected.lock();
        connected.next += 1;
        let number = connected.next;
        connected.streams.insert(number, process);
        Presence { agents: self.clone(), number }
    }

    /// Sets the gauges. Called for each scrape, so that opening a stream costs nothing.
    pub(crate) fn measure(&self) {
        let connected = self.connected.lock();
        let mut versions: BTreeMap<String, i64> = BTreeMap::new();
        for process in connected.streams.values() {
            let version = process.as_ref().map_or_else(|| "unknown".to_owned(), |process| process.version.to_string());
            *versions.entry(version).or_default() += 1;
        }
        let mut versions: Vec<_> = versions.into_iter().collect();
        versions.sort_by_key(|(_, count)| -count);
        self.count.reset();
        for (index, (version, count)) in versions.iter().enumerate() {
            let version = if index < VERSIONS { version } else { "other" };
            self.count.with_label_values(&[version]).add(*count);
        }
        let known = || connected.streams.values().flatten();
        self.resident.set(known().map(|process| whole(process.resident)).max().unwrap_or_default());
        self.started.set(known().map(|process| whole(process.started)).max().unwrap_or_default());
    }
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.agents.connected.lock().streams.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn agents_are_counted_by_version_while_their_streams_are_open() {
        let metrics = Metrics::new().unwrap();
        let agents = &metrics.agents;
        let of = |patch, resident, started| {
            Some(AgentProcess { version: semver::Version::new(0, 1, patch), resident, started })
        };
        let mut open = vec![agents.enter(of(0, 4_000_000, 7)), agents.enter(of(0, 5_000_000, 9)), agents.enter(None)];
        let text = || String::from_utf8(metrics.text().unwrap()).unwrap();
        for line in [
            r#"brupop_apiserver_agents{version="0.1.0"} 2"#,
            r#"brupop_apiserver_agents{version="unknown"} 1"#,
            "brupop_apiserver_agent_resident_bytes 5000000",
            "brupop_apiserver_agent_start_time_seconds 9",
        ] {
            assert!(text().lines().any(|found| found == line), "{line} in {}", text());
        }
        open.extend((1..20).map(|patch| agents.enter(of(patch, 1, 1))));
        let series = text().lines().filter(|line| line.starts_with("brupop_apiserver_agents{")).count();
        assert_eq!(series, VERSIONS + 1, "the others share one");
        open.clear();
        assert!(!text().contains("brupop_apiserver_agents{"));
    }
}
