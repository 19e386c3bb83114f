//! The repeated verification of a node that runs a version without having proven it. It disrupts nothing, so that windows, a
//! freeze, canary steps and the budgets are no obstacle.

use jiff::{SignedDuration, Timestamp};
use models::reason::Proof;
use models::shadow::NodeProof;

use super::{fleet, host, node};
use crate::survey::{NodeContext, ledger};
use crate::wait::Wait;

/// The time from the end of an attempt to the next verification, and between two of them.
const INTERVAL: SignedDuration = SignedDuration::from_hours(1);

/// Returns the place of an idle node that runs its version without a proof, in a rollout that goes on.
pub(crate) fn unproven<'a>(ctx: &NodeContext<'a>) -> Option<&'a NodeProof> {
    let proof = ctx.shadow.status.controller.record.as_ref()?.proof.as_ref()?;
    if ctx.node.progress().is_some() || !matches!(proof.proof, Proof::Unproven | Proof::Unknown) {
        return None;
    }
    let rollout = ctx.survey.rollouts.active(ctx.node, &proof.version)?;
    let has_place = ledger::place(ctx.node, rollout).is_some();
    (has_place && ctx.runs(&proof.version)).then_some(proof)
}

/// Returns the time from which such a node is verified again by itself.
pub(crate) fn due(ctx: &NodeContext<'_>) -> Timestamp {
    let last = ctx.shadow.status.controller.record.as_ref().and_then(|record| record.last.as_ref());
    last.map_or(ctx.now, |last| last.ended.checked_add(INTERVAL).unwrap_or(Timestamp::MAX))
}

/// Checks that such a node may be verified now.
pub(crate) fn refusal(ctx: &NodeContext<'_>, proof: &NodeProof) -> Option<Wait> {
    let checks = [
        node::is_labelled,
        node::is_not_deleted,
        node::is_not_held,
        node::is_not_being_removed,
        node::is_ready,
        host::has_reported,
        host::has_attempts_left,
        fleet::has_valid_policy,
    ];
    let refused = checks.iter().find_map(|check| check(ctx));
    refused.or_else(|| fleet::quarantine(ctx, &proof.version))
}
