//! The end of a turn, and what the loop does next.

use std::time::Duration;

use tokio::time::Instant;

use crate::host::client::HostError;

/// Next action of the loop after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Decides again at once.
    Again,
    /// Waits until this time, or for a change.
    At(Instant),
    /// Waits until this time, or for another desired state: no other event of the stream cuts a back-off short.
    BackOff(Instant),
    /// Waits for a change.
    Wait,
}

impl Next {
    pub(super) fn after(delay: Duration) -> Self {
        Self::BackOff(Instant::now() + delay)
    }
}

/// Reason to end a turn before its step is finished.
#[derive(Debug)]
pub(super) enum Stop {
    /// The step cannot continue now.
    Next(Next),
    /// The host does not answer.
    Host(HostError),
}

impl From<Next> for Stop {
    fn from(next: Next) -> Self {
        Self::Next(next)
    }
}

impl From<HostError> for Stop {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}
