//! Durations of the last updates, for estimates.

use kube::Client;
use models::history::BottlerocketRolloutHistory;
use planner::simulation::UpdateDurations;
use serde_json::Value;

use super::read::Source;

/// The most pages that are read.
const PAGES: usize = 4;

fn of_page(page: &Value) -> Vec<UpdateDurations> {
    let page: Option<BottlerocketRolloutHistory> = serde_json::from_value(page.clone()).ok();
    let rows = page.and_then(|page| page.spec.page).map(|page| page.rows).unwrap_or_default();
    rows.iter().filter_map(UpdateDurations::of).collect()
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
