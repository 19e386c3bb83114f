//! The facts about the history of rollouts: its records in full while they run, its pages by their metadata.

use std::collections::BTreeSet;

use kube::core::PartialObjectMeta;
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistoryStatus, RecordedRollout, RolloutPhase, page_number,
};
use models::names;

use super::Projection;

/// The facts about the history for plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFacts {
    /// The highest number of a recorded rollout, 0 without one; `None` until the records are known.
    pub highest: Option<i64>,
    /// The running records (number) that hold as many pages as one may.
    pub full: BTreeSet<i64>,
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
    /// Its course. Of one that has ended, without entries and pages.
    pub status: BottlerocketRolloutHistoryStatus,
    /// The size of the object as JSON, in bytes.
    pub bytes: i64,
    pub deleting: bool,
}

impl RecordFacts {
    /// Returns true while nodes are still to be updated.
    pub fn runs(&self) -> bool {
        self.status.phase == RolloutPhase::Running
    }

    /// Returns the number of its next page.
    pub fn next_page(&self) -> i64 {
        i64::try_from(self.status.pages.len()).unwrap_or(i64::MAX).saturating_add(1)
    }
}

impl Projection for RecordFacts {
    type Object = BottlerocketRolloutHistory;

    fn key(&self) -> String {
        self.name.clone()
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    fn project(object: &BottlerocketRolloutHistory) -> Option<Self> {
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
            status,
            bytes,
            deleting: meta.deletion_timestamp.is_some(),
        })
    }

    /// Returns the name alone: records are read in one namespace.
    fn key_of(object: &BottlerocketRolloutHistory) -> String {
        object.metadata.name.clone().unwrap_or_default()
    }
}

/// A page, without its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFacts {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The name of its record.
    pub record: String,
    pub number: i64,
    /// The size of the page as JSON, in bytes, as the operator noted it.
    pub bytes: i64,
    pub deleting: bool,
}

impl Projection for PageFacts {
    type Object = PartialObjectMeta<BottlerocketRolloutHistory>;

    fn key(&self) -> String {
        self.name.clone()
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    fn project(object: &Self::Object) -> Option<Self> {
        let meta = &object.metadata;
        let name = meta.name.clone()?;
        let record = meta.labels.as_ref()?.get(names::RECORD_LABEL)?.clone();
        let number = page_number(&record, &name)?;
        let bytes = meta.annotations.as_ref().and_then(|all| all.get(names::BYTES_ANNOTATION)?.parse().ok());
        Some(Self {
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            // One whose note is gone counts as a large one: the limit of the whole holds all the same.
            bytes: bytes.filter(|bytes| *bytes > 0).unwrap_or(names::LARGEST_PAGE),
            deleting: meta.deletion_timestamp.is_some(),
            name,
            record,
            number,
        })
    }

    fn key_of(object: &Self::Object) -> String {
        object.metadata.name.clone().unwrap_or_default()
    }
}
