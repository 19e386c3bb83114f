//! The user's hold.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn gate(ctx: &NodeContext<'_>) -> Option<Wait> {
    ctx.node.facts.held.then_some(Wait::Held)
}

#[cfg(test)]
mod tests {
    use super::super::testing::asked;
    use super::*;

    #[test]
    fn only_held_node_waits() {
        for (held, expected) in [("a", Some(Wait::Held)), ("b", None)] {
            assert_eq!(asked(gate, |view, _| view.nodes.get_mut(held).unwrap().facts.held = true), expected);
        }
    }
}
