//! The facts about the history of rollouts: its records in full while they run, its pages by their metadata.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::core::PartialObjectMeta;
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistoryStatus, LARGEST_OBJECT, RecordedRollout, RolloutPhase,
    page_number,
};
use models::names;
use serde_json::Value;

use super::Projection;

/// The facts about the history for plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFacts {
    /// The highest number of a recorded rollout, 0 without one; `None` until the records are known.
    pub highest: Option<i64>,
    /// The numbers of the running records.
    pub running: BTreeSet<i64>,
    /// Those of them that hold as many pages as one may.
    pub full: BTreeSet<i64>,
    /// The numbers of the ended records of rollouts: their pages hold every result of theirs that a shadow still has.
    pub ended: BTreeSet<i64>,
    /// The times at which the records of rollouts began, by number, without drills.
    pub begun: BTreeMap<i64, Timestamp>,
    /// The condition `HistoryRecorded`: its truth, its reason and its message; `None` until it is known.
    pub state: Option<(bool, &'static str, String)>,
}

/// The record of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordFacts {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The rollout, without its policy.
    pub rollout: RecordedRollout,
    /// The spec of one that runs as the API server returned it, with fields that this version does not know: its end signs that.
    pub spec: Value,
    /// The course. Of one that has ended, without entries and pages.
    pub status: BottlerocketRolloutHistoryStatus,
    /// The size of the object as JSON, in bytes.
    pub bytes: i64,
}

impl RecordFacts {
    /// Returns the facts of a record with this spec; `None` for a page.
    pub fn of(object: &BottlerocketRolloutHistory, spec: &Value) -> Option<Self> {
        let meta = &object.metadata;
        let rollout = object.spec.rollout.clone()?;
        let mut status = object.status.clone().unwrap_or_default();
        let bytes = serde_json::to_vec(object).map_or(0, |text| i64::try_from(text.len()).unwrap_or(i64::MAX));
        if status.phase != RolloutPhase::Running {
            (status.entries, status.pages) = (Vec::new(), Vec::new());
        }
        Some(Self {
            name: meta.name.clone()?,
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            rollout: RecordedRollout { policy: String::new(), ..rollout },
            spec: if status.phase == RolloutPhase::Running { spec.clone() } else { Value::Null },
            status,
            bytes,
        })
    }

    /// Returns true while nodes are still to be updated.
    pub fn runs(&self) -> bool {
        self.status.phase == RolloutPhase::Running
    }

    /// Returns the number of its next page.
    pub fn next_page(&self) -> i64 {
        i64::try_from(self.status.pages.len()).unwrap_or(i64::MAX).saturating_add(1)
    }
}

/// An object of the history by its metadata: a record, or a page without its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryObject {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The name of the record, its own or the one that a page belongs to.
    pub record: String,
    /// The number of the page; `None`: a record.
    pub page: Option<i64>,
    /// The uid of the record that owns a page.
    pub owner: Option<String>,
    /// The size of a page as JSON, in bytes, as the operator noted it.
    pub bytes: i64,
    pub deleting: bool,
}

impl Projection for HistoryObject {
    type Object = PartialObjectMeta<BottlerocketRolloutHistory>;
    const BY_NAME: bool = true;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    /// The name tells what it is: the API server checks it, and labels can be changed.
    fn project(object: &Self::Object) -> Option<Self> {
        let meta = &object.metadata;
        let name = meta.name.clone()?;
        let page =
            name.rsplit_once("-p").and_then(|(record, _)| Some((record.to_owned(), page_number(record, &name)?)));
        let (record, page) = page.map_or((name.clone(), None), |(record, number)| (record, Some(number)));
        let noted = meta.annotations.as_ref().and_then(|all| all.get(names::BYTES_ANNOTATION)?.parse().ok());
        Some(Self {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            owner: meta.owner_references.iter().flatten().map(|owner| owner.uid.clone()).next(),
            // One whose note is gone counts as a large one: the limit of the whole holds all the same.
            bytes: noted.filter(|bytes| (1..=LARGEST_OBJECT).contains(bytes)).unwrap_or(LARGEST_OBJECT),
            deleting: meta.deletion_timestamp.is_some(),
            name,
            record,
            page,
        })
    }
}
