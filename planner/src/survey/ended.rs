//! The ends of attempts whose slots no write has taken away yet, and the places that they leave.

use jiff::Timestamp;
use models::operator::{ActiveRollout, RolloutLedger, Slot, SlotUpdate};
use models::reason::{End, Proof};
use models::shadow::AttemptResult;
use models::time::after;

use super::ledger::{inferred, is_of, runs};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// Returns until when the slot of a node that is gone is kept, if it is: its machine may reboot by its permit and come back. One
/// that has come back as another Node object shows by itself what it runs.
pub(crate) fn kept_until(view: &ClusterView, policy: &Policy, slot: &Slot) -> Option<Timestamp> {
    let permitting = slot.update.as_ref()?.permitting_since?;
    let back = view.nodes.contains_key(&slot.node) || view.unmanaged.contains_key(&slot.node);
    (!back).then(|| after(after(permitting, policy.reboot), policy.returning))
}

/// Returns the node that a slot was given to; `None` if it is gone, also where another one has its name.
fn own<'a>(view: &'a ClusterView, slot: &Slot) -> Option<&'a NodeView> {
    view.nodes.get(&slot.node).filter(|node| node.facts.uid == slot.uid)
}

/// Returns the end of the attempt of a slot, if the record of its node has it as the last one.
fn recorded_end<'a>(node: &'a NodeView, update: &SlotUpdate) -> Option<&'a AttemptResult> {
    node.record()?.last.as_ref().filter(|last| last.attempt == update.attempt)
}

/// Returns the end of the attempt of a slot that is taken away, and the place that its node has now.
fn ended(view: &ClusterView, slot: &Slot, update: &SlotUpdate, rollout: &ActiveRollout) -> (Proof, String) {
    let own = own(view, slot);
    if let Some(proof) = own.and_then(|node| node.record()?.proof.as_ref())
        && (proof.attempt, &proof.version) == (update.attempt, &update.version)
    {
        return (proof.proof, proof.reason.clone());
    }
    if let Some((node, last)) = own.and_then(|node| Some((node, recorded_end(node, update)?))) {
        // An earlier version of the operator recorded no place.
        let proof = inferred(node, rollout).filter(|_| update.permitting_since.is_some());
        return (proof.unwrap_or(Proof::Free), last.reason.clone());
    }
    // Without a record of the end, as of a node that is gone, what may have happened counts as if it had.
    let may_run = view.nodes.get(&slot.node).is_none_or(|there| runs(there, rollout));
    let proof = if update.permitting_since.is_some() && may_run { Proof::Unproven } else { Proof::Free };
    (proof, "NodeDeleted".to_owned())
}

/// Counts the end of the attempt of a slot.
pub(super) fn count(
    view: &ClusterView,
    ledger: &mut RolloutLedger,
    (slot, update, rollout): (&Slot, &SlotUpdate, &ActiveRollout),
    limit: usize,
    now: Timestamp,
) {
    let (proof, reason) = ended(view, slot, update, rollout);
    // A node that has a place keeps it until another takes its place.
    if proof != Proof::Free {
        ledger.move_node(update.had, (&slot.node, proof, &reason));
    }
    if End::of(&reason).is_none_or(|end| end.brakes(proof)) {
        ledger.add_to_row((&slot.node, proof, &reason), slot.since, limit, now);
    }
}

/// Returns whether the attempt of a slot is over: its end is recorded, or its node is gone and is not waited for.
pub(crate) fn has_ended(
    (view, policy): (&ClusterView, &Policy),
    slot: &Slot,
    update: &SlotUpdate,
    now: Timestamp,
) -> bool {
    match own(view, slot) {
        Some(node) => recorded_end(node, update).is_some(),
        None => kept_until(view, policy, slot).is_none_or(|until| until <= now),
    }
}

/// Returns the node of a slot for a message: one that is gone is not found by its name.
pub(crate) fn holder(view: &ClusterView, policy: &Policy, slot: &Slot) -> String {
    match kept_until(view, policy, slot) {
        Some(until) => format!(
            "{}, whose Node was deleted and whose machine may still reboot: it is waited for until {until:.0}",
            slot.node
        ),
        None => slot.node.clone(),
    }
}

/// Returns the ledger with the attempts that have ended, and whose slots no write has taken away yet: what follows from them is
/// known before the write that counts them gives their slots to others.
pub(crate) fn foreseen<'a>(
    (view, policy): (&ClusterView, &Policy),
    slots: impl Iterator<Item = &'a Slot>,
    (rollout, ledger): (&ActiveRollout, &RolloutLedger),
    limit: usize,
    now: Timestamp,
) -> RolloutLedger {
    let mut ledger = ledger.clone();
    for slot in slots {
        let Some(update) = slot.update.as_ref().filter(|update| is_of(update, rollout)) else { continue };
        if has_ended((view, policy), slot, update, now) {
            count(view, &mut ledger, (slot, update, rollout), limit, now);
        }
    }
    ledger
}
