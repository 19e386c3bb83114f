//! The limits of the history: what is deleted, the oldest first.

use std::collections::BTreeSet;
use std::time::Duration;

use models::history::RecordedRollout;
use models::operator::BottlerocketUpdateOperatorSpec;
use models::time::after;

use super::snapshot::HistorySnapshot;
use crate::view::{HistoryObject, RecordFacts};

/// The number of the newest records that go in their order, whatever they are of: users read them.
const SPARED: usize = 10;

/// The number of objects that are deleted in one pass.
const AT_A_TIME: usize = 16;

/// The limits in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of records of ended rollouts.
    pub records: usize,
    /// Time for which the pages of an ended rollout are kept.
    pub max_age: Duration,
    /// Size of all objects together, in bytes.
    pub bytes: i64,
}

impl Limits {
    pub fn of(spec: &BottlerocketUpdateOperatorSpec) -> Self {
        let limits = spec.within_bounds().0.rollout_history.clone().unwrap_or_default();
        Self {
            records: limits.records.unwrap_or(100) as usize,
            max_age: limits.max_age.map_or(Duration::from_hours(4320), |age| age.0),
            bytes: i64::from(limits.max_mebibytes.unwrap_or(48)) << 20,
        }
    }
}

/// Returns the objects to delete, once every record was read.
pub(super) fn surplus<'a>(limits: Limits, snapshot: &HistorySnapshot<'a>) -> Vec<&'a HistoryObject> {
    let HistorySnapshot { records, objects, unreadable, now, .. } = *snapshot;
    let mut oldest: Vec<&RecordFacts> = records.values().collect();
    oldest.sort_by_key(|record| record.rollout.number);
    // Those of drills, and of at most one node, as of one that came late, go before those of whole fleets, but for the newest ones.
    let mut least: Vec<&RecordFacts> = oldest.iter().copied().filter(|record| !record.runs()).collect();
    let newest = least.iter().rev().take(SPARED).next_back().map_or(0, |record| record.rollout.number);
    let of_fleet = |record: &RecordFacts| {
        let RecordedRollout { drill, first, number, .. } = &record.rollout;
        *number >= newest || (!drill && first.is_none() && record.status.nodes > 1)
    };
    least.sort_by_key(|record| (of_fleet(record), record.rollout.number));
    let too_many = least.len().saturating_sub(limits.records);
    let mut gone: BTreeSet<&str> = least.iter().take(too_many).map(|record| record.name.as_str()).collect();
    let mut pages: Vec<(i64, &HistoryObject)> = Vec::new();
    let readable = |object: &&HistoryObject| !unreadable.contains_key(&object.record);
    for object in objects.values().filter(|o| o.page.is_some() && !o.deleting).filter(readable) {
        let record = records.get(&object.record);
        let owned = record.is_some_and(|record| object.owner.as_deref().is_none_or(|owner| owner == record.uid));
        let old = || record.and_then(|r| r.status.ended).is_some_and(|ended| after(ended, limits.max_age) <= now);
        match record {
            Some(record) if owned && !old() && !gone.contains(record.name.as_str()) => {
                pages.push((record.rollout.number, object));
            }
            // The record of this page is gone, or is another one of the same name.
            _ => _ = gone.insert(&object.name),
        }
    }
    pages.sort_by_key(|(number, page)| (*number, page.page));
    let kept = oldest.iter().filter(|record| !gone.contains(record.name.as_str()));
    let mut bytes =
        kept.map(|record| record.bytes).sum::<i64>() + pages.iter().map(|(_, page)| page.bytes).sum::<i64>();
    // The last page of a running record may not be named in it yet.
    let last = |page: &HistoryObject| {
        let record = records.get(&page.record).filter(|record| record.runs());
        record.is_some_and(|record| page.page.is_some_and(|number| number >= record.next_page()))
    };
    for (_, page) in pages.iter().filter(|(_, page)| !last(page)) {
        if bytes <= limits.bytes {
            break;
        }
        bytes -= page.bytes;
        gone.insert(&page.name);
    }
    for record in least {
        if bytes <= limits.bytes {
            break;
        }
        if gone.insert(&record.name) {
            bytes -= record.bytes;
        }
    }
    gone.iter().filter_map(|name| objects.get(*name)).filter(|object| !object.deleting).take(AT_A_TIME).collect()
}
