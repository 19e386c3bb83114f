//! The answer of a gate that does not let a node pass.

use crate::rules::Refusal;
use crate::wait::{Property, Wait};

/// The reason why a gate does not let a node pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Obstacle {
    /// The facts that the gate reads are not known yet. A node loses nothing by that.
    Unknown(Wait),
    /// The facts rule it out.
    Refused(Wait),
}

impl Obstacle {
    /// Returns whether it may end by itself within minutes.
    pub(crate) fn may_end(&self) -> bool {
        let Self::Refused(wait) = self else { return true };
        wait.reason().is(Property::MayEnd) || matches!(wait, Wait::DrainRefused { why: Refusal::Unread, .. })
    }

    /// Returns the reason that users read.
    pub(crate) fn into_wait(self) -> Wait {
        match self {
            Self::Unknown(wait) | Self::Refused(wait) => wait,
        }
    }
}
