//! The result of a check of a staged node.

use crate::wait::Wait;

/// The result of the check of one node.
pub(super) enum Checked {
    /// There is no room for it in its group or zone.
    NoRoom(Wait),
    /// The canary step is full: nodes of another version may come behind it.
    StepFull(Option<Wait>),
    /// One node of its rollout goes alone, or is tried, or none is.
    Braked(Wait),
    /// It was refused recently, and is not checked.
    LeftAlone(Wait),
    /// Others come first, and it is not checked.
    Queued,
    /// The pods or expressions are being read.
    UnderWay(Wait),
    /// Pods, budgets or expressions prevent a drain.
    Refused(Wait),
    /// It may be drained.
    Passed,
}

impl Checked {
    /// Returns whether the node waits only for a slot. The others give way, and nodes may be staged in their place: behind a brake
    /// those of other rollouts.
    pub(super) fn is_ready(&self) -> bool {
        !matches!(self, Self::NoRoom(_) | Self::StepFull(_) | Self::Braked(_) | Self::LeftAlone(_) | Self::Refused(_))
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, Self::UnderWay(_))
    }

    /// Returns whether the pods of the node were checked to the end.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Passed)
    }
}
