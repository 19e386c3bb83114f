//! The historian: keeps the history of rollouts (`docs/history.md`). The leader runs it beside its plans, and no plan waits for
//! it: what it has not written yet stays on the shadows.

mod keys;
mod objects;
mod pages;
mod results;
mod run;

use planner::view::HistoryFacts;

use crate::caches::Shared;

pub use pages::Pages;
pub use run::Historian;

/// The known facts about the history, for plans.
pub type History = Shared<HistoryFacts>;
