//! The time for which a node waits for a reason.

use std::time::Duration;

use jiff::Timestamp;
use models::shadow::Step;
use models::time::between;
use planner::wait::{Property, WaitReason};

use super::snapshot::{NodeState, Waits};

/// Returns whether an earlier wait goes on when this reason ends.
fn pauses(reason: &str) -> bool {
    reason.parse().is_ok_and(|reason: WaitReason| reason.is(Property::Pauses))
}

/// The reason why a node waits, its step, and the start of the wait.
pub(super) struct Waiting {
    pub(super) reason: &'static str,
    pub(super) step: Option<Step>,
    pub(super) since: Timestamp,
    /// The fewest pods that have been left of its drain. Others may come for as long as it lasts, so a number that falls shows nothing.
    fewest_left: usize,
    /// The reason before one that pauses it, the time for which the node had waited for it (that of the pause does not count), and the fewest pods that were
    /// left then.
    paused: Option<(&'static str, Duration, usize)>,
}

impl Waiting {
    /// Returns whether the wait begins again although its reason is the same: the drain of the node goes on.
    pub(super) fn is_over(&self, node: &NodeState<'_>) -> bool {
        node.waits == Waits::For(self.reason) && node.left < self.fewest_left
    }

    /// Returns the wait of a node for a reason, after an earlier one in the same step.
    pub(super) fn after(earlier: Option<Self>, reason: &'static str, node: &NodeState<'_>, now: Timestamp) -> Self {
        let (step, left) = (node.step, node.left);
        let paused = earlier.and_then(|old| match pauses(old.reason) {
            true => old.paused,
            false => Some((old.reason, between(old.since, now), old.fewest_left)),
        });
        if pauses(reason) {
            return Self { reason, step, since: now, fewest_left: left, paused };
        }
        let before = paused.filter(|(before, _, fewest)| *before == reason && left >= *fewest);
        let (waited, fewest_left) = before.map_or((Duration::ZERO, left), |(_, waited, fewest)| (waited, fewest));
        Self { reason, step, since: now.checked_sub(waited).unwrap_or(now), fewest_left, paused: None }
    }
}
