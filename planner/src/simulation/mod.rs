//! Simulated fleets: the planner and its validator in virtual time.
//!
//! [`simulate`] has the real planner decide about a fleet whose hosts, pods and budgets are simulated. The tests of the
//! planner under faults (`faults`) use the same hosts and the same writes.

mod course;
mod description;
mod durations;
mod estimate;
mod host;
mod live;
mod pods;
mod run;
mod scenario;
mod write;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use course::{Course, Freeze, NodeCourse};
pub use description::{Description, DescriptionError};
pub use durations::{ENOUGH, UpdateDurations};
pub use estimate::{estimate, estimate_due, no_estimate};
pub use host::Host;
pub use live::live;
pub use scenario::{Fault, FaultEffect, Member, PodTemplate, Scenario, Span, Times};

/// Simulates a scenario. The same seed gives the same course.
pub fn simulate(scenario: &Scenario, seed: u64) -> Course {
    run::Run::new(scenario, seed).finish()
}
