//! Jobs of hooks: where policy names Jobs for a hook, the leader answers its requests by them. To plans these are answers like those of any
//! other controller (`docs/hooks.md`), and no turn waits for them.
//!
//! ```text
//!  request on the Node ──► decide ──► Job ──► its end ──► decide ──► answer on the Node ──► plan
//! ```

mod decide;
#[cfg(test)]
mod decide_cases;
mod namespaces;
mod object;
mod run;

pub use run::HookJobs;
