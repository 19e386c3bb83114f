//! A fleet of thousands of nodes on a real control plane, in two processes beside it: `make bench-fleet`.
//!
//! ```text
//! bench ── control plane, two nodes with the operator's programs, proxy to the Services, measurements
//!   └─ process of the fleet: for each node its host, its kubelet and its agent, as tasks
//! ```
//!
//! The agents are the product's, with real tokens and TLS. The API server, the scheduler and the controllers for workloads and
//! budgets are real. A kubelet is played cheaply: all of them share one watch of pods and one client.

mod agents;
mod bench;
mod chart;
mod cluster;
mod course;
mod faults;
mod figures;
mod kubelets;
mod limit;
mod metrics;
mod node;
mod options;
mod outcome;
mod page;
mod pods;
mod process;
mod requests;
mod samples;
mod spec;
mod workload;

pub use agents::{AgentFiles, AgentProgram};
pub use bench::Bench;
pub use options::Options;
pub use page::{Page, Row, Section};
pub use process::run;
pub use spec::FleetSpec;
