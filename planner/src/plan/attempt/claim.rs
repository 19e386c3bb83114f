//! The fields of a node that are claimed at each step.

use models::shadow::Step;

use crate::claims::{Part, Parts};
use crate::policy::Policy;

/// Returns the fields to claim on a node at this step.
pub(super) fn wanted(step: Option<Step>, policy: &Policy) -> Parts {
    match step {
        // In an unknown step nothing is released before the attempt has ended.
        Some(Step::LeavingBalancer | Step::Draining | Step::Rebooting | Step::Returning | Step::Unknown) => {
            let policy = |part: &Part| match part {
                Part::Cordon => true,
                Part::Balancer => policy.leave_balancer.is_some(),
                Part::ScaleDown | Part::DoNotDisrupt => policy.protect_from_autoscalers,
            };
            Part::ALL.into_iter().filter(policy).collect()
        }
        Some(Step::Staging | Step::Staged | Step::Monitoring | Step::Releasing) | None => Parts::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_node_is_claimed_from_the_balancer_to_its_return_and_never_else() {
        let policy = Policy { leave_balancer: Some(Duration::from_secs(30)), ..Policy::default() };
        let bare = Policy { leave_balancer: None, protect_from_autoscalers: false, ..Policy::default() };
        for (step, everything) in [
            (None, false),
            (Some(Step::Staging), false),
            (Some(Step::Staged), false),
            (Some(Step::LeavingBalancer), true),
            (Some(Step::Draining), true),
            (Some(Step::Rebooting), true),
            (Some(Step::Returning), true),
            (Some(Step::Monitoring), false),
            (Some(Step::Releasing), false),
        ] {
            let expected: Parts = if everything { Part::ALL.into_iter().collect() } else { Parts::default() };
            assert_eq!(wanted(step, &policy), expected, "{step:?}");
            assert_eq!(wanted(step, &bare), if everything { Parts::CORDON } else { Parts::default() }, "{step:?}");
        }
    }
}
