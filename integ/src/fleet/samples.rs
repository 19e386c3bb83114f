//! Memory and processor time of all processes of a cluster, and the idle share of the processors, once a second.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::control_plane::processes_of;
use crate::durations::{seconds, ticks};

/// Size in bytes of a page on every architecture that the control plane is built for.
const PAGE: f64 = 4096.0;

const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Name of the program that measures.
pub(super) const BENCH: &str = "bench_fleet";

struct Sample {
    at: Instant,
    /// Idle and all ticks of the processors since the start of the machine.
    processors: (f64, f64),
    processes: BTreeMap<u32, Process>,
}

struct Process {
    program: String,
    /// Resident memory in MiB.
    resident: f64,
    /// Processor time in seconds.
    time: f64,
}

/// The samples so far. Dropping this ends their task.
pub(super) struct Samples {
    all: Arc<Mutex<Vec<Sample>>>,
    task: AbortHandle,
}

impl Drop for Samples {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Samples {
    /// Begins to sample the processes that are marked with this folder, and this one.
    pub(super) fn start(folder: &Path) -> Self {
        let all: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let (samples, folder) = (all.clone(), folder.to_owned());
        let task = tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let sample = sample(&folder);
                samples.lock().push(sample);
            }
        });
        Self { all, task: task.abort_handle() }
    }

    fn between<T>(&self, from: Instant, to: Instant, read: impl FnOnce(&[&Sample]) -> T) -> T {
        let all = self.all.lock();
        let within: Vec<&Sample> = all.iter().filter(|sample| sample.at >= from && sample.at <= to).collect();
        read(&within)
    }

    /// Resident memory of a program in MiB, in each sample: of its largest process, and of all.
    pub(super) fn memory(&self, program: &str, from: Instant, to: Instant) -> Vec<(f64, f64)> {
        self.between(from, to, |samples| {
            let of = |sample: &&Sample| {
                let all = sample.processes.values().filter(|process| process.program == program);
                all.fold((0.0_f64, 0.0), |(most, sum), it| (most.max(it.resident), sum + it.resident))
            };
            samples.iter().map(of).collect()
        })
    }

    /// Share of the processors' time that they were idle for, from 0 to 1.
    pub(super) fn idle(&self, from: Instant, to: Instant) -> f64 {
        self.between(from, to, |samples| {
            let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return 0.0 };
            let all = last.processors.1 - first.processors.1;
            if all > 0.0 { (last.processors.0 - first.processors.0) / all } else { 0.0 }
        })
    }

    /// Share of the processors' time that the processes used, from 0 to 1. On a machine that does nothing else the rest is idle.
    pub(super) fn used(&self, from: Instant, to: Instant) -> f64 {
        let used: f64 = self.processor_times(from, to).values().sum();
        let processors = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        used / processors / to.duration_since(from).as_secs_f64()
    }

    /// Processor time of each program in seconds.
    pub(super) fn processor_times(&self, from: Instant, to: Instant) -> BTreeMap<String, f64> {
        self.between(from, to, |samples| {
            let mut spans: BTreeMap<u32, (String, f64, f64)> = BTreeMap::new();
            for (process, it) in samples.iter().flat_map(|sample| &sample.processes) {
                spans.entry(*process).or_insert_with(|| (it.program.clone(), it.time, it.time)).2 = it.time;
            }
            let mut times = BTreeMap::new();
            for (program, first, last) in spans.into_values() {
                *times.entry(program).or_default() += last - first;
            }
            times
        })
    }
}

fn sample(folder: &Path) -> Sample {
    let mut processes = BTreeMap::new();
    let marked = processes_of(folder).unwrap_or_default();
    for process in marked.into_iter().chain([std::process::id()]) {
        // It may have ended meanwhile.
        if let Some(found) = read_process(process) {
            processes.insert(process, found);
        }
    }
    Sample { at: Instant::now(), processors: read_processors().unwrap_or_default(), processes }
}

fn read_process(process: u32) -> Option<Process> {
    let program = std::fs::read_link(format!("/proc/{process}/exe")).ok()?;
    // A build has replaced the file since.
    let mut program = program.file_name()?.to_string_lossy().trim_end_matches(" (deleted)").to_owned();
    if program == BENCH && process != std::process::id() {
        program = "fleet".to_owned();
    }
    let memory = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: f64 = memory.split(' ').nth(1)?.parse().ok()?;
    Some(Process { program, resident: pages * PAGE / MEBIBYTE, time: seconds(ticks(process)?.own) })
}

fn read_processors() -> Option<(f64, f64)> {
    processors(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Reads idle and all ticks of the processors from `/proc/stat`.
fn processors(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // The time of guests, after these, is part of the user's.
    let ticks: Vec<f64> = line.split_whitespace().take(8).map_while(|field| field.parse().ok()).collect();
    Some((ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_ticks_are_read_from_proc() {
        assert_eq!(processors("cpu  10 1 20 60 5 0 4 0 3 0\ncpu0 1 1 1 1\n"), Some((65.0, 100.0)));
    }

    #[test]
    fn own_process_has_memory() {
        let own = read_process(std::process::id()).unwrap();
        assert!(own.resident > 1.0 && !own.program.is_empty());
    }
}
