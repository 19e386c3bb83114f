//! A node that another user or controller has cordoned.

use models::operator::CordonedNodes;

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    let skipped = ctx.group().drain.cordoned_nodes == CordonedNodes::Skip;
    (skipped && ctx.node.facts.cordoned_by_others()).then_some(Wait::Cordoned)
}

#[cfg(test)]
mod tests {
    use super::super::testing::asked;
    use super::*;
    use crate::claims::Parts;

    #[test]
    fn node_cordoned_by_user_waits_unless_policy_allows_update() {
        for (sentence, node, claims, policy, expected) in [
            ("cordoned", "a", Parts::default(), CordonedNodes::Skip, Some(Wait::Cordoned)),
            ("cordoned, and policy updates it", "a", Parts::default(), CordonedNodes::Update, None),
            ("cordoned by the operator", "a", Parts::CORDON, CordonedNodes::Skip, None),
            ("another node is cordoned", "b", Parts::default(), CordonedNodes::Skip, None),
        ] {
            let wait = asked(gate, |view, all| {
                let facts = &mut view.nodes.get_mut(node).unwrap().facts;
                (facts.unschedulable, facts.claims) = (true, claims);
                all.all.drain.cordoned_nodes = policy;
            });
            assert_eq!(wait, expected, "{sentence}");
        }
    }
}
