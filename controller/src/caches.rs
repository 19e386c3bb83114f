//! The caches that each replica keeps filled, so that a standby can take over at once.

use std::sync::Arc;

use planner::view::{BudgetFacts, HistoryObject, NodeFacts, OperatorFacts, RevisionFacts, ShadowFacts};
use tokio::sync::watch;

use crate::cache::{Cache, Reading};

/// The caches of all facts but pods. Clones share them.
#[derive(Clone)]
pub struct Caches {
    pub nodes: Cache<NodeFacts>,
    pub shadows: Cache<ShadowFacts>,
    pub operator: Cache<OperatorFacts>,
    pub budgets: Cache<BudgetFacts>,
    /// Nothing but the policy's history depends on it: no readiness and no turn waits for it.
    pub revisions: Cache<RevisionFacts>,
    /// The objects of the rollout history. Nothing but that history depends on them.
    pub history: Cache<HistoryObject>,
    /// Notified of each change.
    pub changed: Arc<watch::Sender<u64>>,
}

impl Default for Caches {
    fn default() -> Self {
        let changed = Arc::new(watch::channel(0).0);
        Self {
            nodes: Cache::new(changed.clone()),
            shadows: Cache::new(changed.clone()),
            operator: Cache::new(changed.clone()),
            budgets: Cache::new(changed.clone()),
            revisions: Cache::new(changed.clone()),
            history: Cache::new(changed.clone()),
            changed,
        }
    }
}

impl Caches {
    /// Returns whether the first list of each that turns wait for is complete.
    pub fn synced(&self) -> bool {
        self.nodes.synced() && self.shadows.synced() && self.operator.synced() && self.budgets.synced()
    }

    /// Requests a read of each of these that begins from now on.
    pub fn read_again(&self) -> Reading {
        Reading::default().of(&self.nodes).of(&self.shadows).of(&self.operator).of(&self.budgets)
    }
}
