//! The oracle: reads the API server's whole history, the audit log and the hosts' logs of a run, and checks the safety
//! properties at every revision.
//!
//! ```text
//! Recorder ──► History ─┐
//! hosts' logs ──────────┼──► judge ──► Verdict
//! audit log ────────────┘   (pure)
//! ```
//!
//! All changes of all objects come from one etcd, so their revisions are a total order, and *at every revision* is
//! meant literally. Events of hosts have only times; they are tied to the history by boot ids and, where an order in
//! time matters, by the audit log: a write was made after its request was received, and before its response was sent.
//!
//! Each property has a file in `checks`, and tests that violate it on purpose.

pub mod checks;
mod facts;
mod history;
mod hosts;
mod recorder;
mod report;
#[cfg(test)]
mod scenario;
#[cfg(test)]
mod tests;
mod world;
mod writers;

pub use checks::{Expectations, judge};
pub use facts::{BALANCER_LABEL, Budget, Field, Key, Kind, Node, Object, Operator, Pod, Shadow};
pub use history::{Attempt, Change, History, Shortfall, TimelineEntry};
pub use hosts::{HostEvent, HostFact, HostLog};
pub use recorder::Recorder;
pub use report::{Property, Stats, Verdict, Violation};
pub use world::ClusterState;
pub use writers::{requests_by_user, service_account, settled_audit};
