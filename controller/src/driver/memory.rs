//! The leader's memory: what it has under way, and what it has learned, besides what Kubernetes keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use models::backoff::Backoff;
use models::shadow::Step;
use planner::claims::ClaimsMade;
use planner::view::{Blocked, Failing, InFlight, LeaseObservations, OwnerHealth, PodFacts, Refused};
use planner::wait::WaitReason;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::retry::Target;
use crate::apply::{ApplyError, Evicted, Learned};
use crate::cache::Cache;

/// The end of something that was sent.
pub(super) enum Ended {
    Write(Target, Result<Learned, ApplyError>),
    Eviction(Evicted),
}

/// A request for the eviction of a pod without an answer so far.
pub(super) struct Sent {
    pub(super) request: u64,
    pub(super) what: InFlight,
    /// The versions of the budgets of its namespace at the time of the request, by the budget's key.
    pub(super) budgets: Arc<BTreeMap<String, String>>,
    pub(super) task: AbortHandle,
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The leader's memory of a node besides what Kubernetes keeps. Its loss costs a repeated request, never a wrong one.
#[derive(Default)]
pub(super) struct NodeMemory {
    /// The last answer, by the pod's uid.
    pub(super) blocked: BTreeMap<String, Blocked>,
    /// The evictions under way, by the pod's uid.
    pub(super) in_flight: BTreeMap<String, Sent>,
    pub(super) refused: Option<RefusedCheck>,
    pub(super) lease: Option<LeaseObservations>,
    pub(super) owners: BTreeMap<String, OwnerHealth>,
    /// The claims of the node in this attempt.
    pub(super) claims: ClaimsMade,
    pub(super) agent_missing: Option<Timestamp>,
    pub(super) silence_written: Option<(WaitReason, Timestamp)>,
    /// True if the last action was a write of the controller status.
    pub(super) writes_status: bool,
    pub(super) failing: Option<FailingAction>,
}

/// An action that fails again and again.
pub(super) struct FailingAction {
    pub(super) what: Failing,
    /// True if it is the write of the controller status, which others succeed beside.
    pub(super) writes_status: bool,
    pub(super) step: Option<Step>,
}

/// The last check of a staged node that ruled out a drain.
pub(super) struct RefusedCheck {
    pub(super) what: Refused,
    /// Such checks in a row.
    pub(super) backoff: Backoff,
    /// The generation of the policy at the check.
    pub(super) generation: Option<i64>,
}

pub(super) struct PodWatch {
    pub(super) cache: Cache<PodFacts>,
    pub(super) _task: JoinSet<()>,
}

/// The changes of the operator's status that are not written yet.
#[derive(Default)]
pub(super) struct Changed {
    /// The moment of the first one.
    pub(super) first: Option<Instant>,
    /// The moment of the first one that may not wait for long.
    pub(super) promptly: Option<Instant>,
}

/// A write of the slots that was sent, by this leader or perhaps by the previous one, and may not have arrived.
pub(super) struct Retracting {
    /// The version of the operator's resource that it was decided on, and is valid for.
    pub(super) base: String,
    /// The nodes (uid) whose slots it removes.
    pub(super) slots: BTreeSet<String>,
}

impl Retracting {
    /// Adds a further write of the kind. One without an answer may still arrive, as long as the resource is unchanged.
    pub(super) fn with(before: Option<Self>, base: &str, slots: BTreeSet<String>) -> Self {
        let mut all = before.filter(|before| before.base == base).map(|before| before.slots).unwrap_or_default();
        all.extend(slots);
        Self { base: base.to_owned(), slots: all }
    }

    /// Returns the nodes whose slots are about to be removed, where the resource is known in this version.
    pub(super) fn at(&self, version: &str) -> BTreeSet<String> {
        if self.base == version { self.slots.clone() } else { BTreeSet::new() }
    }
}
