//! The planner: from a snapshot of the cluster to the next action of each node, or the reason why it waits.
//!
//! Plan, validator and policy are pure functions of their arguments: no client, no clock, no metrics. The only state is
//! [`view::Standings`], which the caller keeps and updates. The modules form layers (`integ/tests/layers.rs`):
//! none depends on one above it.

#![expect(missing_docs, reason = "a field whose name says all has no comment; strum writes `into_str` without one")]

pub mod annotations;
pub mod claims;
mod decision;
pub mod drain;
pub mod expressions;
mod fnv;
mod gates;
pub mod history;
pub mod hold;
pub mod hooks;
pub mod lint;
pub mod objects;
pub mod pause;
pub mod phase;
pub mod plan;
pub mod policy;
pub mod predicate;
pub mod revisions;
pub mod rules;
pub mod signature;
pub mod simulation;
pub mod standby;
mod survey;
pub mod view;
pub mod wait;

#[cfg(test)]
mod fixtures;
