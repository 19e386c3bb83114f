//! The end of a wait: a time, or the command of a user.

use jiff::Timestamp;

use super::{UnfinishedEviction, Wait};

/// The words before the time until which a denied eviction is retried.
pub(crate) const RETRIED_UNTIL: &str = "which is retried until";

/// The words before the time at which the grace period of a pod that is being deleted is over.
pub(crate) const HAS_UNTIL: &str = "it is being deleted and has until";

/// The end of the time for which a denied eviction or deletion is retried.
pub const DENIED_FOR_GOOD: &str = "the attempt ends, unless the API server lets the pod go by then";

/// The end of the time for which a budget counts a pod as gone that is still there.
const COUNTED_AGAIN: &str = "the PodDisruptionBudget counts the pod of the unfinished eviction again";

/// Returns the time that the planner has put into a message about pods and budgets, and what happens then. Other times in it are those of the
/// API server, or of the past.
pub fn end_in(message: &str) -> Option<(Timestamp, &'static str)> {
    let ends = [
        (RETRIED_UNTIL, DENIED_FOR_GOOD),
        (UnfinishedEviction::COUNTED_UNTIL, COUNTED_AGAIN),
        (HAS_UNTIL, "the grace period of the pod is over"),
    ];
    ends.into_iter().find_map(|(before, what)| {
        let word = message.split_once(before)?.1.split_whitespace().next()?;
        Some((word.trim_end_matches([':', ';']).parse().ok()?, what))
    })
}

/// The command of the plugin that a canary step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepRequest {
    /// Of the rollout with this number; 0 while that is not known.
    Approve(i64),
    /// Of the rollout with this number; 0 while that is not known.
    ApproveUnproven(i64),
    /// For failures of these versions, separated by commas.
    Resume,
}

impl StepRequest {
    /// Returns the arguments of the plugin, for this step; `failed` are the versions whose failures are to be resolved, all of them.
    pub fn arguments(self, step: usize, failed: &str) -> String {
        let rollout = |number| if number == 0 { String::new() } else { format!(" --rollout {number}") };
        match self {
            Self::Approve(number) => format!("approve {step}{}", rollout(number)),
            Self::ApproveUnproven(number) => format!("approve {step}{} --unproven", rollout(number)),
            Self::Resume => format!("resume --failures {failed}"),
        }
    }
}

impl Wait {
    /// Returns the canary step, from 1, that waits for a user, and the command of the plugin that lets it go on.
    pub fn step(&self) -> Option<(usize, StepRequest)> {
        // The name begins with the number of the rollout.
        let rollout = |name: &str| name.split('/').next().and_then(|number| number.parse::<i64>().ok()).unwrap_or(0);
        match self {
            Self::CanaryStep { step, approval: Some(name), .. } => Some((*step, StepRequest::Approve(rollout(name)))),
            Self::StepUnproven { step, approval, .. } => Some((*step, StepRequest::ApproveUnproven(rollout(approval)))),
            Self::StepFailed { step, .. } => Some((*step, StepRequest::Resume)),
            _ => None,
        }
    }

    /// Returns the time at which the reason may end without another event.
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.end().map(|(at, _)| at)
    }

    /// Returns the time at which the reason may end without another event, and what happens then.
    pub fn end(&self) -> Option<(Timestamp, &'static str)> {
        let (at, what) = match self {
            Self::BackOff { until, unproven: Some(_), .. } => (Some(*until), "it is verified again"),
            Self::BackOff { until, .. } => (Some(*until), "the back-off is over"),
            Self::Soaking { until } => (Some(*until), "the node has stayed healthy for long enough"),
            Self::AwaitingHook { until, .. } => (Some(*until), "a hook is no longer waited for"),
            Self::LeavingLoadBalancer { until } => (Some(*until), "the drain begins"),
            Self::EarlierOperatorGone { until } => (Some(*until), "the hosts of the earlier operator are down"),
            Self::WindowClosed { opens } => (*opens, "the next window opens"),
            Self::Blackout { ends } => (*ends, "the blackout is over and a window is open"),
            Self::Held { until, .. } => (*until, "the hold is over"),
            Self::TooYoung { until, .. } => (*until, "the version is old enough"),
            Self::BudgetUsedUp { until, .. } => (*until, "enough of the nodes that use up the budget are ignored"),
            Self::BudgetNeverAllows { until, .. } => (*until, "its pods are asked again"),
            Self::CanaryStep { until, .. } => (*until, "the soak of the canary step is over"),
            Self::Braked { until, .. } => (*until, "one node is tried alone"),
            Self::BudgetUnhealthy { eviction, .. } => (eviction.as_ref().map(|eviction| eviction.until), COUNTED_AGAIN),
            // Part of it may have been recorded by an earlier leader.
            Self::DrainBlocked { message, .. } => return end_in(message),
            _ => return None,
        };
        Some((at?, what))
    }
}
