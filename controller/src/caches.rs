//! The caches that each replica keeps filled, so that a standby can take over at once.

use std::sync::Arc;

use parking_lot::Mutex;
use planner::view::{
    BudgetFacts, CsiNodeFacts, DaemonSetFacts, HistoryObject, NodeFacts, OperatorFacts, RevisionFacts, ServiceFacts,
    ShadowFacts,
};
use prometheus::IntCounter;
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
    /// Nothing but the history of rollouts depends on it: no readiness and no turn waits for it.
    pub services: Cache<ServiceFacts>,
    /// Not compared after an update where it is unknown: no readiness and no turn waits for it, and a ClusterRole of an earlier version
    /// does not permit the watch.
    pub csi_nodes: Cache<CsiNodeFacts>,
    pub daemon_sets: Cache<DaemonSetFacts>,
    /// Notified of each change.
    pub changed: Arc<watch::Sender<u64>>,
}

/// Facts that a task beside the leader's turns has for plans. Clones share them.
#[derive(Clone, Default)]
pub struct Shared<T>(Arc<Mutex<T>>);

impl<T: Clone + PartialEq> Shared<T> {
    /// Returns the facts.
    pub fn facts(&self) -> T {
        self.0.lock().clone()
    }

    /// Changes the facts; returns whether they are new.
    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) -> bool {
        let mut facts = self.0.lock();
        let before = facts.clone();
        change(&mut facts);
        *facts != before
    }
}

impl Caches {
    /// Returns empty caches, which count the failures of their watches.
    pub fn new(failures: &IntCounter) -> Self {
        let changed = Arc::new(watch::channel(0).0);
        Self {
            nodes: Cache::new(changed.clone(), failures),
            shadows: Cache::new(changed.clone(), failures),
            operator: Cache::new(changed.clone(), failures),
            budgets: Cache::new(changed.clone(), failures),
            revisions: Cache::new(changed.clone(), failures),
            history: Cache::new(changed.clone(), failures),
            services: Cache::rarely_retried(changed.clone(), failures),
            csi_nodes: Cache::rarely_retried(changed.clone(), failures),
            daemon_sets: Cache::rarely_retried(changed.clone(), failures),
            changed,
        }
    }

    /// Returns whether the first list of each that turns wait for is complete.
    pub fn synced(&self) -> bool {
        self.nodes.synced() && self.shadows.synced() && self.operator.synced() && self.budgets.synced()
    }

    /// Notifies of a change beside the caches.
    pub fn notify(&self) {
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Requests a read of each of these that begins from now on.
    pub fn read_again(&self) -> Reading {
        Reading::default().of(&self.nodes).of(&self.shadows).of(&self.operator).of(&self.budgets)
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use planner::view::Projection;
    use watches::Sink as _;

    use super::*;
    use crate::cache::uncounted;

    fn list<P: Projection>(cache: &Cache<P>) {
        cache.take(0, Event::Init);
        cache.take(0, Event::InitDone);
    }

    #[test]
    fn readiness_waits_for_nothing_that_a_role_of_an_earlier_version_does_not_permit() {
        let caches = Caches::new(&uncounted());
        list(&caches.nodes);
        list(&caches.shadows);
        list(&caches.operator);
        assert!(!caches.synced(), "decisions depend on budgets");
        list(&caches.budgets);
        assert!(caches.synced() && !caches.services.synced() && !caches.revisions.synced());
        assert!(!caches.csi_nodes.synced() && !caches.daemon_sets.synced());
    }

    #[test]
    fn failed_watch_of_services_is_retried_less_often_than_others() {
        let caches = Caches::new(&uncounted());
        assert!(caches.services.longest_pause() > 10 * caches.budgets.longest_pause());
    }
}
