//! The canary steps.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    if ctx.policy.pre_stage.is_some() {
        // Images are downloaded ahead of a step, and no more nodes are drained than it has.
        return None;
    }
    let rollout = ctx.survey.rollouts.of(ctx.node, ctx.version().ok()?)?;
    (rollout.room_to_begin() == Some(0)).then(|| rollout.wait.clone()).flatten()
}

#[cfg(test)]
mod tests {
    use models::operator::CountOrPercent;

    use super::super::begin;
    use super::super::testing::asked;
    use super::*;
    use crate::fixtures::at;
    use crate::policy::CanaryStep;
    use models::shadow::{HostState, Step};

    #[test]
    fn node_beyond_canary_step_waits() {
        let canary = |nodes| {
            vec![CanaryStep { nodes: CountOrPercent::Count(nodes), soak: std::time::Duration::ZERO, manual: false }]
        };
        for (sentence, steps, moving, expected) in [
            ("no steps", vec![], true, None),
            ("the first node of a step", canary(1), false, None),
            (
                "another one is on its way",
                canary(1),
                true,
                Some(Wait::CanaryStep { step: 1, until: None, approval: false, nodes: vec!["b".into()] }),
            ),
            ("a step of two", canary(2), true, None),
        ] {
            for (ahead, expected) in [(None, expected), (Some(CountOrPercent::Count(2)), None)] {
                for gate in [gate, begin] {
                    let wait = asked(gate, |view, policy| {
                        (policy.canary, policy.pre_stage) = (steps.clone(), ahead.clone());
                        if moving {
                            view.nodes.insert("b".into(), at("b", Step::Draining, 0, HostState::StagedUpdate));
                        }
                    });
                    assert_eq!(wait, expected, "{sentence}, images ahead of time: {ahead:?}");
                }
            }
        }
    }
}
