//! The historian: keeps the history of rollouts (`docs/history.md`). The leader runs it beside its plans, and no plan waits for
//! it: what it has not written yet stays on the shadows.

mod keys;
mod objects;
mod pages;
mod results;
mod run;

use std::sync::Arc;

use parking_lot::Mutex;
use planner::view::HistoryFacts;

pub use pages::Pages;
pub use run::Historian;

/// The known facts about the history, for plans. Clones share them.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<HistoryFacts>>);

impl History {
    /// Returns the facts.
    pub fn facts(&self) -> HistoryFacts {
        self.0.lock().clone()
    }

    /// Takes in the facts; returns whether they are new.
    fn set(&self, facts: HistoryFacts) -> bool {
        let mut known = self.0.lock();
        let news = *known != facts;
        *known = facts;
        news
    }
}
