//! The test bed of the operator: a real control plane as local processes, simulated Bottlerocket hosts and kubelets, an
//! oracle that checks the safety properties on the API server's history, and the scenarios and the demo built on them.
//!
//! Users of the operator do not need this crate.

pub mod bed;
pub mod control_plane;
pub mod demo;
pub mod durations;
pub mod fleet;
pub mod kubelet;
pub mod named_cases;
pub mod node_recording;
pub mod oracle;
pub mod pages;
pub mod proxy;
pub mod rights;
pub mod rollout_history;
pub mod tools;
pub mod vm;

pub use guest::{host, machine};
