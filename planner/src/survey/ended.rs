//! The ends of attempts whose slots no write has taken away yet, and the places that they leave.

use jiff::Timestamp;
use models::operator::{ActiveRollout, BrakeLimit, RolloutLedger, Slot, SlotUpdate};
use models::reason::{End, Proof};
use models::shadow::AttemptResult;
use models::time::after;

use super::brake;
use super::ledger::{forget_resolved, inferred, is_of, runs};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};
use crate::wait::gone;

/// Returns until when a slot is kept although nothing shows what its attempt has become, if it is: its Node is gone, or was registered
/// again without a record of the attempt, and the machine may reboot by its permit and come back.
pub(crate) fn kept_until(view: &ClusterView, policy: &Policy, slot: &Slot) -> Option<Timestamp> {
    let update = slot.update.as_ref().filter(|_| !is_unreadable(view, slot))?;
    let permitting = update.permitting_since?;
    // What an autoscaler was removing does not come back, and what came back without the operator's label is not under it any more.
    let is_over = || update.removed_in.is_some() || is_back_unmanaged(view, policy, slot, update);
    let lost = own(view, slot).map_or_else(|| !is_over(), |node| is_lost(node, update));
    lost.then(|| after(after(permitting, policy.reboot), policy.returning))
}

/// Returns whether the node of a slot, or its shadow, exists and cannot be read: its attempt may be under way.
fn is_unreadable(view: &ClusterView, slot: &Slot) -> bool {
    let has_node = own(view, slot).is_some() || view.unreadable.nodes.contains_key(&slot.node);
    has_node && view.unreadable.hide(&slot.node)
}

/// Returns whether the machine of a slot is registered again without the operator's label, in another boot, and is not about to get it:
/// a kubelet cannot set it, and the operator, or another controller, may do so once the Node exists.
fn is_back_unmanaged(view: &ClusterView, policy: &Policy, slot: &Slot, update: &SlotUpdate) -> bool {
    let Some(facts) = view.unmanaged.get(&slot.node) else { return false };
    let is_same = update.provider_id.is_none() || facts.provider_id == update.provider_id;
    let may_get_label = facts.joining || policy.label_nodes && facts.lacks_label();
    is_same && facts.boot_id != update.boot_id && !may_get_label
}

/// Returns whether a node with the slot of an attempt has no record of it: it is in another boot, or may be on its way to one. A kubelet
/// whose host goes down is Ready until its last seconds.
fn is_lost(node: &NodeView, update: &SlotUpdate) -> bool {
    node.progress().is_none() && recorded_end(node, update).is_none()
}

/// Returns the node that goes on with a slot after its Node object was deleted and registered again: the machine is the same one, as
/// far as its cloud names it. Its reboot may have been permitted, and nothing else has begun there.
pub(crate) fn registered_again<'a>(view: &'a ClusterView, slot: &Slot) -> Option<&'a NodeView> {
    let update = slot.update.as_ref().filter(|update| update.permitting_since.is_some())?;
    let node = view.nodes.get(&slot.node).filter(|node| node.facts.uid != slot.uid)?;
    let same = update.provider_id.is_none() || node.facts.provider_id == update.provider_id;
    (same && node.progress().is_none()).then_some(node)
}

/// Returns whether a slot is an earlier one that goes on under another Node object of its name.
pub(crate) fn goes_on_as(before: &Slot, after: &Slot) -> bool {
    let permitted = before.update.as_ref().is_some_and(|update| update.permitting_since.is_some());
    permitted && (&before.node, before.since, &before.update) == (&after.node, after.since, &after.update)
}

/// Returns the update of a slot whose node is in another boot than the one in which its reboot was permitted, and has no record of
/// the attempt: the attempt goes on.
pub(crate) fn to_continue<'a>(node: &NodeView, slot: &'a Slot) -> Option<&'a SlotUpdate> {
    let update = slot.update.as_ref().filter(|update| update.permitting_since.is_some())?;
    let rebooted = !node.facts.boot_id.is_empty() && node.facts.boot_id != update.boot_id;
    (rebooted && is_lost(node, update)).then_some(update)
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
    let may_reboot = |node: &NodeView| node.facts.boot_id == update.boot_id && !node.facts.ready;
    let was_removed_before = || update.removed_in.as_ref() == Some(&update.boot_id);
    let may_run = own.map_or_else(|| !was_removed_before(), |node| runs(node, rollout) || may_reboot(node));
    let proof = if update.permitting_since.is_some() && may_run { Proof::Unproven } else { Proof::Free };
    (proof, "NodeDeleted".to_owned())
}

/// Counts the end of the attempt of a slot. `limit` returns the number of ends that brakes the rollout with a ledger: a node that is gone counts
/// for it once its end is in the row.
pub(super) fn count(
    (view, policy): (&ClusterView, &Policy),
    ledger: &mut RolloutLedger,
    (slot, update, rollout): (&Slot, &SlotUpdate, &ActiveRollout),
    limit: impl Fn(&RolloutLedger) -> BrakeLimit,
    now: Timestamp,
) {
    let (proof, reason) = ended(view, slot, update, rollout);
    // A node that has a place keeps it until another takes its place.
    if proof != Proof::Free {
        // One that had fallen is counted without a proof, whatever its record said when it got its slot, or which machine has its name now.
        let has_fallen = ledger.nodes.iter().any(|named| named.node == slot.node && named.has_fallen());
        let had = if has_fallen { Some(Proof::Unproven) } else { update.had };
        ledger.move_node(had, (&slot.node, proof, &reason));
    }
    forget_resolved((view, policy), rollout, ledger, now);
    if End::of(&reason).is_none_or(|end| end.brakes(proof)) {
        ledger.count_end((&slot.node, proof, &reason), slot.since, now);
    }
    ledger.brake(limit(ledger), now);
}

/// Returns whether the attempt of a slot is over: its end is recorded, or its machine is not waited for.
pub(crate) fn has_ended(
    (view, policy): (&ClusterView, &Policy),
    slot: &Slot,
    update: &SlotUpdate,
    now: Timestamp,
) -> bool {
    match (own(view, slot), kept_until(view, policy, slot)) {
        _ if is_unreadable(view, slot) => false,
        (_, Some(until)) => until <= now,
        (Some(node), None) => recorded_end(node, update).is_some(),
        (None, None) => true,
    }
}

/// Returns whether the host of a slot is up, in the boot of an attempt that has ended, and may still reboot by its permit. That is asked no longer
/// than a machine is waited for: where its Lease cannot be read, it may never be certain.
pub(crate) fn may_reboot_yet(view: &ClusterView, policy: &Policy, slot: &Slot, now: Timestamp) -> bool {
    let Some(node) = own(view, slot).filter(|node| node.facts.ready) else { return false };
    node.progress().is_some_and(|progress| {
        let is_in_boot = progress.boot_id == node.facts.boot_id;
        progress.has_ended_permitted() && is_in_boot && now < after(progress.since, policy.returning)
    })
}

/// Returns the node of a slot for a message: one that is gone is not found by its name.
pub(crate) fn holder(view: &ClusterView, policy: &Policy, slot: &Slot) -> String {
    match kept_until(view, policy, slot) {
        Some(until) => gone(&slot.node, until),
        None => slot.node.clone(),
    }
}

/// Returns the ledger with the attempts that have ended, and whose slots no write has taken away yet: what follows from them is
/// known before the write that counts them gives their slots to others. Returns also the number of ends that brakes the rollout then.
pub(crate) fn foreseen<'a>(
    (view, policy): (&ClusterView, &Policy),
    slots: impl Iterator<Item = &'a Slot>,
    (rollout, ledger): (&ActiveRollout, &RolloutLedger),
    of_kind: (usize, usize),
    now: Timestamp,
) -> (RolloutLedger, BrakeLimit) {
    let limit = |ledger: &RolloutLedger| brake::limit_among(view, policy, ledger, of_kind);
    let mut ledger = ledger.clone();
    for slot in slots {
        let Some(update) = slot.update.as_ref().filter(|update| is_of(update, rollout)) else { continue };
        if has_ended((view, policy), slot, update, now) {
            // A pause that is foreseen runs from the end, so that it is the same in each plan until the end is counted.
            let end =
                own(view, slot).and_then(|node| recorded_end(node, update)).map_or(now, |last| last.ended.min(now));
            count((view, policy), &mut ledger, (slot, update, rollout), limit, end);
        }
    }
    let limit = limit(&ledger);
    ledger.brake(limit, now);
    (ledger, limit)
}

#[cfg(test)]
mod tests {
    use models::shadow::{HostState, Step};

    use super::*;
    use crate::fixtures::{at, cluster, t};

    /// A slot whose node may have been permitted to reboot, long after its machine was waited for.
    #[test]
    fn attempt_of_a_slot_is_not_over_while_its_node_or_the_shadow_of_that_cannot_be_read() {
        type Change = fn(&mut ClusterView);
        fn without_shadow(view: &mut ClusterView) {
            view.nodes.get_mut("a").unwrap().shadow = None;
        }
        fn without_node(view: &mut ClusterView) {
            view.nodes.remove("a");
        }
        let case = |sentence: &str, is_over: bool, changes: [Change; 2]| {
            let rebooting = at("a", Step::Rebooting, 0, HostState::RebootedIntoUpdate);
            let (mut view, policy) = cluster(vec![rebooting], &["a"]);
            changes.iter().for_each(|change| change(&mut view));
            let slot = view.recorded_slots().next().unwrap();
            let update = slot.update.as_ref().unwrap();
            assert_eq!(has_ended((&view, &policy), slot, update, t(1_000_000)), is_over, "{sentence}");
        };
        let nothing: Change = |_| {};
        let no_node: Change = |view| drop(view.unreadable.nodes.insert("a".into(), "a field".into()));
        let no_shadow: Change = |view| drop(view.unreadable.shadows.insert("a".into(), "a field".into()));
        case("it is under way", false, [nothing, nothing]);
        case("its shadow is gone", true, [without_shadow, nothing]);
        case("its shadow cannot be read", false, [without_shadow, no_shadow]);
        case("its Node is gone", true, [without_node, nothing]);
        case("its Node cannot be read", false, [without_node, no_node]);
        case("its Node is gone, and the shadow that is left cannot be read", true, [without_node, no_shadow]);
    }
}
