//! Draining a node: which pods have to go, and what the eviction endpoint's answers mean.

pub mod answer;
pub mod daemon_sets;
pub mod filter;
