//! The storage migrator: stores every shadow in the storage version of its definition, and then prunes
//! `status.storedVersions`. The leader runs it beside its plans; no plan waits for it.
//!
//! A write without a change is enough between versions of this operator, which only add fields. A shadow of the earlier
//! operator has other fields, and there is no conversion: it is rewritten.

mod objects;
pub mod plan;
pub mod report;
pub mod rewrite;
mod run;

use std::sync::Arc;

use parking_lot::Mutex;
use planner::view::MigrationFacts;

pub use run::Migrator;

/// The known facts about the migration, for plans. Clones share them.
#[derive(Clone, Default)]
pub struct Progress(Arc<Mutex<MigrationFacts>>);

impl Progress {
    /// Returns the facts.
    pub fn facts(&self) -> MigrationFacts {
        self.0.lock().clone()
    }

    /// Changes the facts; returns whether they are new.
    fn change(&self, change: impl FnOnce(&mut MigrationFacts)) -> bool {
        let mut facts = self.0.lock();
        let before = facts.clone();
        change(&mut facts);
        *facts != before
    }
}
