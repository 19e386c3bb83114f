//! Figures of a long run, one row for each round.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use integ::oracle::History;
use integ::rollout_history::objects;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;

use crate::bed::ScriptedCluster;

/// Names of the figures; the last three count from the begin of the run.
const NAMES: [&str; 9] = [
    "resident memory, KiB",
    "descriptors",
    "tasks of the controller",
    "status of the operator, bytes",
    "history of rollouts, bytes",
    "Events",
    "updates proven",
    "attempts that ended otherwise",
    "controllers started",
];

/// The figures that have to stay flat, with the room beyond a quarter: 16 MiB and 16 descriptors.
const FLAT: [(usize, usize); 2] = [(0, 16 << 10), (1, 16)];

/// The fewest rounds whose flatness is judged.
const FEWEST: usize = 24;

#[derive(Default)]
pub(super) struct Figures {
    rows: Vec<[usize; NAMES.len()]>,
    updated: usize,
    ended_otherwise: usize,
    /// The ends by their reasons; `-` for those that left none.
    ends: BTreeMap<String, usize>,
}

impl Figures {
    /// Adds the row of a round.
    pub(super) async fn sample(&mut self, cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
        let process = std::fs::read_to_string("/proc/self/status")?;
        let resident = process.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let all = ListParams::default();
        let events = Api::<Event>::all(cluster.client.clone()).list_metadata(&all.clone().limit(1)).await?;
        let more = usize::try_from(events.metadata.remaining_item_count.unwrap_or_default())?;
        self.rows.push([
            resident.context("no VmRSS")?.parse()?,
            std::fs::read_dir("/proc/self/fd")?.count(),
            cluster.controller()?.tasks(),
            serde_json::to_vec(&cluster.now()?.status())?.len(),
            serde_json::to_vec(&objects(&cluster.client).list(&all).await?.items)?.len(),
            events.items.len() + more,
            self.updated,
            self.ended_otherwise,
            cluster.started(),
        ]);
        Ok(())
    }

    /// Counts the attempts of a piece.
    pub(super) fn add(&mut self, history: &History) {
        let attempts = history.attempts();
        for attempt in &attempts {
            *self.ends.entry(attempt.result.clone().unwrap_or_else(|| "-".to_owned())).or_default() += 1;
        }
        let updated = attempts.iter().filter(|attempt| attempt.updated()).count();
        self.updated += updated;
        self.ended_otherwise += attempts.len() - updated;
    }

    fn series(&self, figure: usize) -> Vec<usize> {
        self.rows.iter().map(|row| row[figure]).collect()
    }

    /// The medians of the quarters of each figure.
    pub(super) fn table(&self) -> String {
        let titles = ["first", "second", "third", "last quarter"].map(|title| format!("{title:>14}")).concat();
        let rounds = format!("{} rounds, medians", self.rows.len());
        let mut text = format!("{rounds:<32}{titles}");
        for (figure, name) in NAMES.iter().enumerate() {
            let series = self.series(figure);
            let medians = [0, 1, 2, 3].map(|quarter| format!("{:>14}", median(&series, quarter)));
            let _ = write!(text, "\n{name:<32}{}", medians.concat());
        }
        let ends: Vec<String> = self.ends.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let _ = write!(text, "\nends: {}", ends.join(", "));
        text
    }

    /// Fails if a figure grows that has to stay flat.
    pub(super) fn ensure_flat(&self) -> anyhow::Result<()> {
        for (figure, room) in FLAT {
            let series = self.series(figure);
            ensure!(series.len() < FEWEST || !grows(&series, room), "{} grows: {series:?}", NAMES[figure]);
        }
        Ok(())
    }
}

/// The median of a quarter of a series; 0 where that is empty.
fn median(series: &[usize], quarter: usize) -> usize {
    let at = |quarter: usize| series.len() * quarter / 4;
    let mut part = series[at(quarter)..at(quarter + 1)].to_vec();
    part.sort_unstable();
    part.get(part.len() / 2).copied().unwrap_or_default()
}

/// Returns whether the last quarter of a series is above the second by more than a quarter and `room`.
fn grows(series: &[usize], room: usize) -> bool {
    median(series, 3) * 4 > median(series, 1) * 5 + room * 4
}

/// Checks the judgement by a table.
pub(super) fn check_growth() {
    let series = |value: fn(usize) -> usize| (0..80).map(value).collect::<Vec<_>>();
    for (sentence, series, expected) in [
        ("steady", series(|i| 100 + i % 3), false),
        ("caches that fill in the first quarter", series(|i| i.min(20) * 10), false),
        ("a few high rounds at the end", series(|i| if i > 75 { 900 } else { 100 }), false),
        ("within the room", series(|i| 100 + i / 4), false),
        ("a little more in each round", series(|i| 100 + 2 * i), true),
        ("a step in the last quarter", series(|i| if i < 60 { 100 } else { 150 }), true),
    ] {
        assert_eq!(grows(&series, 16), expected, "{sentence}");
    }
}
