//! Time and memory of simulations: `make bench-simulate` prints them.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and nothing here comes from outside")]

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use planner::simulation::{Description, simulate};
use serde_json::json;

/// Returns the highest resident memory of this process so far, in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn main() {
    let given: Vec<u32> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![100, 5_000, 100_000] } else { given };
    println!(
        "{:>8} {:>9} {:>8} {:>8} {:>10} {:>12} {:>10}",
        "nodes", "pods", "seconds", "plans", "evictions", "makespan", "MiB"
    );
    for nodes in sizes {
        let description = json!({
            "policy": {
                "maxUnavailable": "1%",
                "strategy": {"canary": [{"nodes": 1}, {"nodes": "1%"}]},
                "nodeGroups": [{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": "2%"}],
            },
            "nodes": [
                {"count": nodes - nodes / 4, "name": "web", "version": "1.20.0", "zones": ["a", "b", "c"]},
                {"count": nodes / 4, "name": "db", "version": "1.20.0", "zones": ["a", "b", "c"], "labels": {"tier": "db"}},
            ],
            "versions": ["1.20.5"],
            "workloads": [
                {"name": "shop/web", "replicas": nodes * 25, "budget": {"maxUnavailable": "10%"}},
                {"name": "shop/api", "replicas": nodes * 5},
            ],
        });
        let description: Description = serde_json::from_value(description).unwrap();
        let begin = Instant::now();
        let course = simulate(&description.scenario(Timestamp::UNIX_EPOCH).unwrap(), 1);
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!((course.updated(), course.findings.len()), (nodes as usize, 0), "{:?}", course.waits);
        println!(
            "{nodes:>8} {:>9} {seconds:>8.2} {:>8} {:>10} {:>12} {:>10}",
            u64::from(nodes) * 30,
            course.plans,
            course.evictions,
            format!("{:#}", SignedDuration::from_secs(course.makespan().as_secs())),
            peak_memory()
        );
    }
}
