//! The answer of a gate that does not let a node pass.

use crate::wait::Wait;

/// The reason why a gate does not let a node pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Obstacle {
    /// The facts that the gate reads are not known yet. A node loses nothing by that.
    Unknown(Wait),
    /// The facts rule it out.
    Refused(Wait),
}

impl Obstacle {
    /// Returns the reason that users read.
    pub(crate) fn into_wait(self) -> Wait {
        match self {
            Self::Unknown(wait) | Self::Refused(wait) => wait,
        }
    }
}
