//! The end of a wait: a time, or the command of a user.

use jiff::Timestamp;

use super::Wait;

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
            _ => return None,
        };
        Some((at?, what))
    }
}
