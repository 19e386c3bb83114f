//! The node is under the operator, and stays there. `stage_cases.rs` has their table.

use crate::plan::context::NodeContext;
use crate::wait::Wait;

pub(super) fn is_labelled(ctx: &NodeContext<'_>) -> Option<Wait> {
    (!ctx.facts().labelled).then_some(Wait::NotLabelled)
}

pub(super) fn is_not_deleted(ctx: &NodeContext<'_>) -> Option<Wait> {
    (ctx.facts().deleting || ctx.shadow.deleting).then_some(Wait::Deleting)
}
