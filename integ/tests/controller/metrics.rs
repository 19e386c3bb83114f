//! The metrics that the controller exports after one update, compared literally.

use serde_json::json;

use crate::bed::{NEW, ScriptedCluster, poll};

crate::cases![one_update_exports_expected_metric_series];

/// The expected series. `*` replaces values that depend only on the speed of the machine.
const EXPECTED: &str = include_str!("one_update.txt");

/// The series of a text, without comments, with `*` for times. Left out are the number of conflicts, counters that are 0, buckets, and what is
/// of the process and not of the update.
fn series(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let plain = name.split('{').next().unwrap_or(name);
        if name.starts_with("brupop_controller_rejected_writes_total{code=\"409\"")
            || (value == "0" && plain.ends_with("_total"))
            || plain.ends_with("_bucket")
            || plain.starts_with("process_")
            || plain.starts_with("brupop_controller_turn_duration_seconds")
            || plain == "brupop_controller_watch_errors_total"
            || plain == "brupop_build_info"
        {
            continue;
        }
        let timed = plain.ends_with("_sum") || plain.ends_with("_seconds");
        lines.push_str(&format!("{name} {}\n", if timed { "*" } else { value }));
    }
    lines
}

async fn one_update_exports_expected_metric_series(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(1, json!({})).await?;
    cluster.fleet.release(NEW);
    cluster.updated().await?;
    cluster
        .until("the update is counted", |world| world.status().counts.is_some_and(|counts| counts.current == 1))
        .await?;
    cluster.planned().await?;
    // Series that do not come from plans are exported later.
    let mut found = String::new();
    let same = poll("the series are those expected", async || {
        found = series(&cluster.metrics().await?);
        Ok((found == EXPECTED).then_some(()))
    })
    .await;
    assert!(same.is_ok(), "one_update.txt is not what the controller exports:\n{found}");
    Ok(())
}
