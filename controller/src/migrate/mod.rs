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

use planner::view::MigrationFacts;

use crate::caches::Shared;

pub use run::Migrator;

/// The known facts about the migration, for plans.
pub type Progress = Shared<MigrationFacts>;
