//! Simulated courses of a rollout, for `simulate` and `plan`.

pub(crate) mod html;
pub(crate) mod report;
pub(crate) mod summary;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use planner::simulation::{Course, Scenario, simulate};

use crate::page::progress;

/// Exit code if not every node is updated, or not in time.
pub(crate) const LATE: u8 = 6;

/// The time after which the progress is shown, and again.
const PROGRESS: Duration = Duration::from_secs(1);

/// Simulates a scenario with so many seeds from the first one on, on all processors.
pub(crate) fn courses(scenario: &Scenario, first: u64, number: u64) -> anyhow::Result<Vec<Course>> {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(usize::try_from(number)?);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= number {
                return done;
            }
            done.push((index, simulate(scenario, first.wrapping_add(index))));
        }
    };
    let began = Instant::now();
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let (mut shown, mut last) = (began, 0);
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(20));
            let running = next.load(Ordering::Relaxed).min(number);
            if shown.elapsed() > PROGRESS && running != last {
                (shown, last) = (Instant::now(), running);
                progress(format_args!("simulating course {running} of {number} …"));
            }
        }
        for worker in workers {
            match worker.join() {
                Ok(done) => all.extend(done),
                Err(_) => return,
            }
        }
    });
    if all.len() as u64 != number {
        bail!("a simulation has failed: this is an error of the plugin; please report it with the error above");
    }
    all.sort_by_key(|(index, _)| *index);
    let courses: Vec<Course> = all.into_iter().map(|(_, course)| course).collect();
    if let Some(finding) = courses.iter().flat_map(|course| &course.findings).next() {
        let node = finding.node.as_deref().unwrap_or("the fleet");
        bail!("the planner broke its own rule {}: {}, {node}; please report it", finding.property, finding.text);
    }
    Ok(courses)
}
