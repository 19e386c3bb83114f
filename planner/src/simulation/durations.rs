//! Durations of updates that have ended, for simulations of the next ones.

use std::time::Duration;

use models::history::HistoryRow;
use models::shadow::UPDATED;
use models::time::between;
use serde::{Deserialize, Serialize};

use super::scenario::{Scenario, Span, Times};

/// The number of ended updates from which on their durations are used.
pub const ENOUGH: usize = 5;

/// The longest duration that is believed, in seconds: a record may have any times.
const LONGEST: u64 = 7 * 24 * 3600;

/// Durations of the parts of one update, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateDurations {
    /// From its beginning to its drain: the download, and the wait for a slot.
    pub before_drain: u64,
    pub drain: u64,
    /// From the end of the drain to the return on the new version.
    pub reboot: u64,
}

impl UpdateDurations {
    /// Returns the durations of a row of the history; `None` if it has updated nothing.
    pub fn of(row: &HistoryRow) -> Option<Self> {
        let result = &row.result;
        if result.result != UPDATED {
            return None;
        }
        let (out, down, back) = (result.drain_started?, result.drain_ended?, result.soak_started?);
        let seconds = |from, to| between(from, to).as_secs().min(LONGEST);
        Some(Self {
            before_drain: seconds(result.started, out),
            drain: seconds(out, down),
            reboot: seconds(down, back),
        })
    }
}

/// Returns whether these are enough to go by.
pub(super) fn are_enough(updates: &[UpdateDurations]) -> bool {
    updates.len() >= ENOUGH
}

/// Returns one of the durations of all of them.
pub(super) fn observed(updates: &[UpdateDurations], of: fn(&UpdateDurations) -> u64) -> Span {
    Span::Observed(updates.iter().map(|update| Duration::from_secs(of(update))).collect())
}

impl Times {
    /// Returns durations as these updates took them, where there are enough.
    pub(super) fn observed(updates: &[UpdateDurations]) -> Self {
        let mut times = Self::default();
        if are_enough(updates) {
            times.shutdown = Span::seconds(0, 1);
            times.boot = observed(updates, |update| update.reboot);
            // A node that waited for its slot took longer than its download: the quicker half is closer to that.
            let mut quick = updates.to_vec();
            quick.sort_unstable_by_key(|update| update.before_drain);
            quick.truncate(quick.len().div_ceil(2));
            times.download = observed(&quick, |update| update.before_drain);
        }
        times
    }
}

/// Lets pods take no longer to end than the longest drain of these updates.
pub(super) fn shorten(scenario: &mut Scenario, updates: &[UpdateDurations]) {
    let Some(longest) = updates.iter().map(|update| update.drain).max().filter(|_| are_enough(updates)) else {
        return;
    };
    for pod in &mut scenario.pods {
        if let Span::Between(from, to) = &mut pod.leaves {
            *to = (*to).min(Duration::from_secs(longest)).max(*from);
        }
    }
}
