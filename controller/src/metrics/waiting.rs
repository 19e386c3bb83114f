//! The time for which a node waits for a reason.

use jiff::Timestamp;
use models::shadow::Step;
use planner::wait::WaitReason;

/// Reasons that let an earlier wait go on when they end: what a node waits for is not looked at meanwhile, or is asked for again.
const PAUSES: [&str; 6] = [
    WaitReason::WindowClosed.as_str(),
    WaitReason::Blackout.as_str(),
    WaitReason::Disabled.as_str(),
    WaitReason::Frozen.as_str(),
    WaitReason::ExpressionsPending.as_str(),
    WaitReason::ReadingPods.as_str(),
];

/// The reason why a node waits, its step, and the start of the wait.
pub(super) struct Waiting {
    pub(super) reason: &'static str,
    pub(super) step: Option<Step>,
    pub(super) since: Timestamp,
    /// The reason before one of [`PAUSES`], and the start of that wait.
    paused: Option<(&'static str, Timestamp)>,
}

impl Waiting {
    /// Returns the wait of a node for a reason, after an earlier one in the same step.
    pub(super) fn after(earlier: Option<Self>, reason: &'static str, step: Option<Step>, now: Timestamp) -> Self {
        let paused = earlier
            .and_then(|old| if PAUSES.contains(&old.reason) { old.paused } else { Some((old.reason, old.since)) });
        if PAUSES.contains(&reason) {
            return Self { reason, step, since: now, paused };
        }
        let since = paused.filter(|(before, _)| *before == reason).map_or(now, |(_, since)| since);
        Self { reason, step, since, paused: None }
    }
}
