//! An eviction for which a PodDisruptionBudget counts a pod as gone that is still there.

use std::fmt;

use jiff::Timestamp;

/// An eviction that was approved and has not deleted its pod, as when its client was killed in the middle of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedEviction {
    /// The pod's name for users.
    pub pod: String,
    /// The time of the approval.
    pub approved: Timestamp,
    /// The time until which the budget counts the pod as gone.
    pub until: Timestamp,
}

impl UnfinishedEviction {
    /// The words before that time, by which a recorded one is known.
    pub(super) const COUNTED_UNTIL: &str = "has not deleted it: the PodDisruptionBudget counts it as gone until";

    /// Returns whether a message is about such an eviction.
    pub(crate) fn is_in(message: &str) -> bool {
        message.contains(Self::COUNTED_UNTIL)
    }
}

impl fmt::Display for UnfinishedEviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, approved, until } = self;
        write!(f, "the eviction of {pod} was approved at {approved:.0} and {} {until:.0}", Self::COUNTED_UNTIL)
    }
}
