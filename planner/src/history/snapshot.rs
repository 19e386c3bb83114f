//! The input of the plan, and the calls that it may name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use models::history::{BottlerocketRolloutHistoryStatus, HistoryPage, HistoryRow, PageSummary, RecordedRollout};
use models::shadow::RolloutResult;
use semver::Version;

use crate::view::{HistoryObject, OperatorFacts, RecordFacts};

/// A result that no page holds yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// Name and uid of its node.
    pub node: String,
    pub uid: String,
    pub variant: String,
    pub arch: String,
    pub result: Arc<RolloutResult>,
    /// The size of the result as JSON, in bytes.
    pub bytes: usize,
    /// True if its shadow is gone: only this process has it.
    pub orphaned: bool,
}

/// Identity of the result of an attempt: the uid of the Node and the number of the attempt.
pub type RowId = (String, i64);

impl Waiting {
    pub fn id(&self) -> RowId {
        (self.uid.clone(), self.result.attempt)
    }

    /// Returns whether it is of an attempt at this version on a node of this variant and architecture.
    pub(super) fn is_for(&self, variant: &str, arch: &str, version: &Version) -> bool {
        (self.variant.as_str(), self.arch.as_str(), &self.result.to) == (variant, arch, version)
    }

    pub(super) fn row(&self) -> HistoryRow {
        HistoryRow { node: self.node.clone(), uid: self.uid.clone(), result: RolloutResult::clone(&self.result) }
    }
}

pub fn row_id(row: &HistoryRow) -> RowId {
    (row.uid.clone(), row.result.attempt)
}

/// A page that is written, and that its record does not name yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPage {
    pub number: i64,
    pub summary: PageSummary,
    pub rows: BTreeSet<RowId>,
}

pub struct HistorySnapshot<'a> {
    pub namespace: &'a str,
    pub operator: Option<&'a OperatorFacts>,
    /// All objects of the history.
    pub objects: &'a BTreeMap<String, HistoryObject>,
    /// The records, as far as they were read, by name.
    pub records: &'a BTreeMap<String, RecordFacts>,
    /// The records that this version cannot read, each with its resourceVersion. They and their pages are left alone.
    pub unreadable: &'a BTreeMap<String, String>,
    /// The numbers of ended records that were deleted, as far as this leader saw that.
    pub removed: &'a BTreeSet<i64>,
    /// The written pages that their records (name) do not name yet, as far as they were read.
    pub open: &'a BTreeMap<String, OpenPage>,
    pub waiting: &'a [Waiting],
    /// The numbers of the rollouts with attempts under way.
    pub under_way: &'a BTreeSet<i64>,
    /// Variant, architecture and version of each node, as its host reports them.
    pub nodes: &'a [(String, String, Version)],
    pub now: Timestamp,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub enum HistoryAction {
    /// Reads a record that changed.
    ReadRecord { name: String },
    /// Reads a page that its record does not name yet.
    ReadPage { record: String, number: i64 },
    /// Creates the record of a rollout.
    Begin { name: String, rollout: Box<RecordedRollout> },
    /// Creates a page.
    WritePage { record: String, owner: String, page: HistoryPage },
    /// Removes results that are on a page from the shadow of a node.
    Clear { node: String, rows: BTreeSet<RowId> },
    /// Removes results of which no record is known.
    Drop { node: String, rows: BTreeSet<RowId> },
    /// Writes the course of a record. That of one that ends is signed.
    Update { name: String, status: Box<BottlerocketRolloutHistoryStatus> },
    /// Deletes this very object.
    Delete { name: String, uid: String },
}
