//! Figures of a long run, one row for each round.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use integ::oracle::{History, Stats};
use integ::rollout_history::objects;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;

use crate::bed::ScriptedCluster;

/// Names of the figures; the last ones are counted from the begin of the run.
const NAMES: [&str; 9] = [
    "resident memory, MiB",
    "descriptors",
    "tasks of the controller",
    "status of the operator, KiB",
    "history of rollouts, KiB",
    "Events",
    "updates proven, so far",
    "attempts that ended otherwise, so far",
    "controllers started, so far",
];

/// The figures that have to stay flat, with the room beyond a quarter.
const FLAT: [(usize, f64); 2] = [(0, 16.0), (1, 16.0)];

/// The fewest rounds whose flatness is judged.
const FEWEST: usize = 24;

#[derive(Default)]
pub(super) struct Figures {
    rows: Vec<[f64; NAMES.len()]>,
    updated: usize,
    ended_otherwise: usize,
    reboots: usize,
    evictions: usize,
}

impl Figures {
    /// Adds the row of a round.
    pub(super) async fn sample(&mut self, cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
        let process = std::fs::read_to_string("/proc/self/status")?;
        let resident = process.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        let resident: f64 = resident.context("no VmRSS")?.parse()?;
        let descriptors = std::fs::read_dir("/proc/self/fd")?.count();
        let status = serde_json::to_vec(&cluster.now()?.status())?.len();
        let records = objects(&cluster.client).list(&ListParams::default()).await?.items;
        let records = serde_json::to_vec(&records)?.len();
        let events = Api::<Event>::all(cluster.client.clone());
        let events = events.list_metadata(&ListParams::default().limit(1)).await?;
        let more = usize::try_from(events.metadata.remaining_item_count.unwrap_or_default())?;
        let events = events.items.len() + more;
        let counts = [descriptors, cluster.controller()?.tasks()].map(|count| count as f64);
        let sizes = [status, records].map(|bytes| bytes as f64 / 1_024.0);
        let sums = [events, self.updated, self.ended_otherwise, cluster.started()].map(|count| count as f64);
        self.rows.push([
            resident / 1_024.0,
            counts[0],
            counts[1],
            sizes[0],
            sizes[1],
            sums[0],
            sums[1],
            sums[2],
            sums[3],
        ]);
        Ok(())
    }

    /// Counts the attempts of a piece.
    pub(super) fn add(&mut self, history: &History, stats: &Stats) {
        let attempts = history.attempts();
        let updated = attempts.iter().filter(|attempt| attempt.updated()).count();
        self.updated += updated;
        self.ended_otherwise += attempts.len() - updated;
        self.reboots += stats.reboots;
        self.evictions += stats.evictions;
    }

    fn series(&self, figure: usize) -> Vec<f64> {
        self.rows.iter().map(|row| row[figure]).collect()
    }

    /// The medians of the quarters of each figure.
    pub(super) fn table(&self, hours: f64, pace: f64) -> String {
        let mut text = format!(
            "{} rounds, {hours:.1} hours of the cluster's time, {pace:.1} in a real hour; {} updates proven, {} attempts ended otherwise, {} \
             reboots, {} evictions\n{:<40}{:>14}{:>14}{:>14}",
            self.rows.len(),
            self.updated,
            self.ended_otherwise,
            self.reboots,
            self.evictions,
            "medians",
            "first quarter",
            "second",
            "last"
        );
        for (figure, name) in NAMES.iter().enumerate() {
            let series = self.series(figure);
            let [first, second, last] = [0, 1, 3].map(|quarter| median_of_quarter(&series, quarter));
            let _ = write!(text, "\n{name:<40}{first:>14.1}{second:>14.1}{last:>14.1}");
        }
        text
    }

    /// Fails if a figure grows that has to stay flat.
    pub(super) fn ensure_flat(&self) -> anyhow::Result<()> {
        if self.rows.len() < FEWEST {
            eprintln!("{} rounds are too few to judge whether anything grows", self.rows.len());
            return Ok(());
        }
        for (figure, room) in FLAT {
            let series = self.series(figure);
            ensure!(!grows(&series, room), "{} grows: {series:.1?}", NAMES[figure]);
        }
        Ok(())
    }
}

/// The median of a quarter of a series; 0 where that is empty.
fn median_of_quarter(series: &[f64], quarter: usize) -> f64 {
    let at = |quarter: usize| series.len() * quarter / 4;
    let mut part = series[at(quarter)..at(quarter + 1)].to_vec();
    part.sort_by(f64::total_cmp);
    part.get(part.len() / 2).copied().unwrap_or_default()
}

/// Returns whether the last quarter of a series is above the second by more than a quarter and `room`.
fn grows(series: &[f64], room: f64) -> bool {
    median_of_quarter(series, 3) > median_of_quarter(series, 1) * 1.25 + room
}

/// Checks the judgement by a table.
pub(super) fn check_growth() {
    let steady = |i: u32| 100.0 + f64::from(i % 3);
    let series = |value: &dyn Fn(u32) -> f64| (0..80).map(value).collect::<Vec<f64>>();
    for (sentence, series, expected) in [
        ("steady", series(&steady), false),
        ("caches that fill in the first quarter", series(&|i| f64::from(i.min(20)) * 10.0), false),
        ("a few high rounds at the end", series(&|i| if i > 75 { 900.0 } else { steady(i) }), false),
        ("a little more in each round", series(&|i| 100.0 + f64::from(i) / 4.0), false),
        ("more than twice as much at the end", series(&|i| 100.0 + 2.0 * f64::from(i)), true),
        ("a step in the last quarter", series(&|i| if i < 60 { 100.0 } else { 150.0 }), true),
    ] {
        assert_eq!(grows(&series, 16.0), expected, "{sentence}");
    }
    assert!(!grows(&[], 0.0), "none");
}
