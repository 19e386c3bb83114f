//! The results of ended updates, read from the pages of the history.

use std::time::Duration;

use models::history::{page_number, record_number};
use planner::simulation::UpdateDurations;
use tokio::time::{Instant, timeout_at};

use super::objects::Objects;
use crate::apply::Applier;

/// The number of pages with updates: each may have hundreds.
const PAGES: usize = 2;

/// The most pages that are read: those of drills have no update.
const MOST_PAGES: usize = 12;

/// Time for all of them.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct Pages(Objects);

impl Pages {
    /// Returns the pages of the namespace that this applier writes to.
    pub fn new(applier: &Applier) -> Self {
        Self(Objects(applier.clone()))
    }

    /// Reads how long the last updates took. What cannot be read, or not in time, is left out.
    pub async fn last_updates(&self) -> Vec<UpdateDurations> {
        let objects = self.0.known().items();
        let place = |object: &&planner::view::HistoryObject| {
            let record = object.name.rsplit_once("-p").map_or("", |(record, _)| record);
            (record_number(record), page_number(record, &object.name))
        };
        let mut pages: Vec<_> = objects.values().filter(|object| object.page.is_some()).collect();
        pages.sort_by_key(place);
        let mut updates = Vec::new();
        let (mut left, deadline) = (PAGES, Instant::now() + LIMIT);
        for page in pages.iter().rev().take(MOST_PAGES) {
            if left == 0 {
                break;
            }
            let Ok(read) = timeout_at(deadline, self.0.read(&page.name)).await else { break };
            match read {
                Ok(Some(found)) => {
                    let page = found.object.ok().and_then(|object| object.spec.page).unwrap_or_default();
                    let before = updates.len();
                    updates.extend(page.rows.iter().filter_map(UpdateDurations::of));
                    left -= usize::from(updates.len() > before);
                }
                Ok(None) => {}
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(error, object = page.name, "durations of earlier updates are not known");
                }
            }
        }
        updates
    }
}
