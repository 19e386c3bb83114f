//! When nodes may be taken out of service: windows and blackouts.

use jiff::Timestamp;
use models::operator::SchedulePolicy;

use super::PolicyError;

/// A schedule, read and checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {}

/// What a schedule says about a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// Nodes may start.
    Open {
        /// Until when; `None`: for good, as far as the schedule says.
        until: Option<Timestamp>,
    },
    /// Nodes may not start.
    Closed {
        /// From when they may; `None`: never again, as far as can be foreseen.
        opens: Option<Timestamp>,
        /// Whether a blackout is the reason.
        blackout: bool,
    },
}

impl Schedule {
    /// Reads a schedule. What cannot be obeyed goes into `errors`, with its field under `path`.
    pub fn parse(path: &str, schedule: &SchedulePolicy, errors: &mut Vec<PolicyError>) -> Self {
        let _ = (path, schedule, errors);
        Self {}
    }

    /// What it says about this moment.
    pub fn at(&self, now: Timestamp) -> WindowState {
        let _ = now;
        WindowState::Open { until: None }
    }
}
