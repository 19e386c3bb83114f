//! Estimates of when rollouts are completed (`planner::simulation::estimate`), made beside the leader's turns.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;
use planner::policy::Policy;
use planner::simulation::{estimate, no_estimate};
use planner::view::{ClusterView, EstimateFacts};
use tokio::sync::{oneshot, watch};

use crate::history::Pages;

#[derive(Default)]
struct EstimatesState {
    facts: Option<EstimateFacts>,
    under_way: bool,
}

/// The last estimates, and the way to new ones.
pub struct Estimates {
    state: Arc<Mutex<EstimatesState>>,
    pages: Pages,
    changed: Arc<watch::Sender<u64>>,
}

impl Estimates {
    /// Returns estimates that go by the history's pages, and have not been made yet. `changed` is sent when they were.
    pub fn new(pages: Pages, changed: Arc<watch::Sender<u64>>) -> Self {
        Self { state: Arc::default(), pages, changed }
    }

    /// Returns the last estimates.
    pub fn facts(&self) -> Option<EstimateFacts> {
        self.state.lock().facts.clone()
    }

    /// Begins to make new ones, unless some are being made. Nothing waits for them. No copy of pods is kept meanwhile: they are left out.
    pub fn make(&self, mut view: ClusterView, policy: &Policy, now: Timestamp) {
        if std::mem::replace(&mut self.state.lock().under_way, true) {
            return;
        }
        view.nodes.values_mut().for_each(|node| node.pods = None);
        let (policy, nothing) = (policy.clone(), no_estimate(&view, now));
        let (state, pages, changed) = (self.state.clone(), self.pages.clone(), self.changed.clone());
        tokio::spawn(async move {
            let updates = pages.last_updates().await;
            let (sender, made) = oneshot::channel();
            // A thread that the end of the process does not wait for.
            let simulates = move || {
                let begun = Instant::now();
                let made = estimate(view, &policy, &updates, now);
                _ = sender.send(EstimateFacts { took: begun.elapsed(), ..made });
            };
            let thread = std::thread::Builder::new().name("estimate".to_owned()).spawn(simulates);
            let facts = match thread {
                Ok(_) => made.await.ok(),
                Err(error) => {
                    tracing::warn!(%error, "the completion of the rollout is not estimated: no thread can be started");
                    None
                }
            };
            *state.lock() = EstimatesState { facts: Some(facts.unwrap_or(nothing)), under_way: false };
            changed.send_modify(|n| *n = n.wrapping_add(1));
        });
    }
}
