//! Draining a node: the pods that have to leave, and the meaning of the eviction endpoint's answers.

pub mod answer;
pub mod daemon_sets;
pub mod filter;
