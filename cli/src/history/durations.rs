//! Durations of the last updates, for estimates.

use kube::Client;
use models::history::BottlerocketRolloutHistory;
use models::shadow::UPDATED;
use models::time::between;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::read::Source;

/// The most pages that are read.
const PAGES: usize = 4;

/// Durations of the parts of one update, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UpdateDurations {
    /// From its beginning to its drain: the download, and the wait for a slot.
    pub(crate) before_drain: u64,
    pub(crate) drain: u64,
    /// From the end of the drain to the return on the new version.
    pub(crate) reboot: u64,
}

fn of_page(page: &Value) -> Vec<UpdateDurations> {
    let page: Option<BottlerocketRolloutHistory> = serde_json::from_value(page.clone()).ok();
    let rows = page.and_then(|page| page.spec.page).map(|page| page.rows).unwrap_or_default();
    let durations = rows.iter().map(|row| &row.result).filter(|result| result.result == UPDATED).filter_map(|result| {
        let (out, down, back) = (result.drain_started?, result.drain_ended?, result.soak_started?);
        let seconds = |from, to| between(from, to).as_secs();
        Some(UpdateDurations {
            before_drain: seconds(result.started, out),
            drain: seconds(out, down),
            reboot: seconds(down, back),
        })
    });
    durations.collect()
}

/// Returns the durations of the last updates, as far as the history has them.
pub(crate) async fn last_updates(client: &Client, namespace: &str) -> anyhow::Result<Vec<UpdateDurations>> {
    let source = Source::Cluster { client, namespace };
    let (mut found, mut left) = (Vec::new(), PAGES);
    let updates = |record: &&Value| record["spec"]["rollout"]["drill"] != true;
    for record in source.records().await?.iter().rev().filter(updates).take(PAGES) {
        for page in source.pages(record).await?.values().rev().take(left) {
            found.extend(of_page(page));
            left -= 1;
        }
    }
    Ok(found)
}
