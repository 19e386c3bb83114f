//! The operator's own pods that carry an update out: the agent of the node, and the web API.

use crate::survey::NodeContext;
use crate::survey::agents::{AgentState, agent_state};
use crate::wait::{Wait, WaitReason};

/// Returns the wait for an agent that is not heard: its node would be drained in vain. The reason of a node that is not
/// Ready is more specific than the state of its pods, and so is a web API that is missing for all agents.
pub(crate) fn agent(ctx: &NodeContext<'_>) -> Option<Wait> {
    let state = agent_state(ctx.view, ctx.node.node, ctx.now);
    matches!(state, AgentState::Silent { reason: WaitReason::AgentNotReady, .. }).then_some(Wait::AgentNotReady)
}

pub(crate) fn web_api(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.survey.web_api_missing.then_some(Wait::WebApiNotReady)
}

#[cfg(test)]
mod tests {
    use super::super::testing::refusal_of;
    use super::super::{begin, start};
    use super::*;
    use crate::fixtures::t;

    #[test]
    fn node_whose_agent_is_missing_for_30_seconds_does_not_start() {
        for (sentence, gate) in [("an idle one", begin as fn(&NodeContext<'_>) -> _), ("a staged one", start)] {
            for (missing, ready, expected) in [
                (None, true, None),
                (Some(-29), true, None),
                (Some(-30), true, Some(Wait::AgentNotReady)),
                (Some(-30), false, Some(Wait::NodeNotReady)),
            ] {
                let wait = refusal_of(gate, |view, _| {
                    let node = view.nodes.get_mut("a").unwrap();
                    (node.agent_missing, node.facts.ready) = (missing.map(t), ready);
                });
                assert_eq!(wait, expected, "{sentence}, missing since {missing:?}, node Ready: {ready}");
            }
        }
    }

    #[test]
    fn no_image_is_downloaded_ahead_of_time_on_a_node_without_an_agent() {
        let wait = refusal_of(begin, |view, policy| {
            policy.pre_stage = Some(models::operator::CountOrPercent::Count(2));
            view.nodes.get_mut("a").unwrap().agent_missing = Some(t(-30));
        });
        assert_eq!(wait, Some(Wait::AgentNotReady));
    }

    #[test]
    fn no_node_starts_when_web_api_is_missing_for_30_seconds() {
        for (missing, expected) in [(None, None), (Some(-29), None), (Some(-30), Some(Wait::WebApiNotReady))] {
            for gate in [begin as fn(&NodeContext<'_>) -> _, start] {
                assert_eq!(refusal_of(gate, |view, _| view.web_api_missing = missing.map(t)), expected, "{missing:?}");
            }
        }
    }
}
