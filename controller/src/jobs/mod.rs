//! Jobs of hooks: where policy names Jobs for a hook, the leader answers its requests by them. To plans these are answers like those of any
//! other controller (`docs/hooks.md`), and no turn waits for them.
//!
//! ```text
//!  request on the Node ──► decide ──► Job ──► its end ──► decide ──► answer on the Node ──► plan
//! ```
//!
//! The waits of the last plan say until when it awaits a hook: its deadline may have moved, as by a change of the policy.

mod acts;
mod decide;
#[cfg(test)]
mod decide_cases;
mod namespaces;
mod object;
mod run;

use std::collections::BTreeMap;

use planner::wait::Wait;

use crate::caches::Shared;

pub use run::HookJobs;

/// The waits for hooks that the last plan has, by node.
pub type Awaited = Shared<BTreeMap<String, Wait>>;

/// Returns the waits for hooks among those of a plan.
pub fn awaited(waits: &BTreeMap<String, Wait>) -> BTreeMap<String, Wait> {
    let waits = waits.iter().filter(|(_, wait)| matches!(wait, Wait::AwaitingHook { .. }));
    waits.map(|(node, wait)| (node.clone(), wait.clone())).collect()
}
