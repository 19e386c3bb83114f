//! The record of slots in the ledgers of rollouts: when they are given, while their node is gone, and when they are taken away.

use std::collections::HashSet;

use jiff::Timestamp;
use models::operator::{ActiveRollout, RolloutLedger, Slot, SlotUpdate};
use models::reason::Proof;

use super::brake;
use super::ended::{count, goes_on_as};
use super::key::{key_of, kind};
use super::ledger::{is_of, place};
use super::rollout::Rollouts;
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// Returns what a slot that is given now records of its update; `None` in a drill.
pub(crate) fn update_of(rollouts: &Rollouts, node: &NodeView) -> Option<SlotUpdate> {
    let progress = node.update()?;
    let (variant, arch) = kind(node);
    let rollout = rollouts.active(node, &progress.version);
    Some(SlotUpdate {
        version: progress.version.clone(),
        variant: variant.to_owned(),
        arch: arch.to_owned(),
        attempt: progress.attempt,
        boot_id: progress.boot_id.clone(),
        provider_id: node.facts.provider_id.clone(),
        had: rollout.and_then(|rollout| place(node, rollout)),
        permitting_since: None,
        zone: node.facts.zone().to_owned(),
        group: None,
        control_plane: node.facts.control_plane(),
        removed_in: None,
    })
}

/// Frees the places of failures of nodes that are being updated again: a node that has no place uses one up.
pub(crate) fn forgive(slots: &mut [Slot]) {
    for update in slots.iter_mut().filter_map(|slot| slot.update.as_mut()) {
        update.had.take_if(|had| *had == Proof::Failed);
    }
}

/// Writes into the ledgers what follows from the slots that are taken away and given: `before` are recorded, `after` are about to
/// be.
pub(crate) fn settle(
    view: &ClusterView,
    (policy, rollouts): (&Policy, &Rollouts),
    (before, after): (&[Slot], &[Slot]),
    active: &mut [ActiveRollout],
    now: Timestamp,
) {
    let remaining: HashSet<&str> = after.iter().map(|slot| slot.uid.as_str()).collect();
    let remains =
        |slot: &Slot| remaining.contains(slot.uid.as_str()) || after.iter().any(|after| goes_on_as(slot, after));
    for rollout in active.iter_mut().filter(|rollout| rollout.ended.is_none()) {
        let Some(mut ledger) = rollout.ledger.take() else { continue };
        let followed = rollouts.by_key(&key_of(rollout));
        let of_kind = followed.map_or((0, 0), |followed| (followed.total, followed.base));
        let limit = |ledger: &RolloutLedger| brake::limit_among(view, policy, ledger, of_kind);
        for slot in before.iter().filter(|slot| !remains(slot)) {
            if let Some(update) = slot.update.as_ref().filter(|update| is_of(update, rollout)) {
                count((view, policy), &mut ledger, (slot, update, rollout), limit, now);
            }
        }
        let holds = |slot: &Slot| slot.update.as_ref().is_some_and(|update| is_of(update, rollout));
        let begins = || ledger.base > 0 || ledger.used() > 0 || after.iter().any(holds);
        if let Some(followed) = followed.filter(|_| begins()) {
            ledger.base = i64::try_from(followed.base).unwrap_or(i64::MAX);
        }
        rollout.ledger = Some(ledger);
    }
}

#[cfg(test)]
mod tests {
    use models::shadow::{HostState, Step};

    use super::*;
    use crate::fixtures::{NEW, OLD, at, cluster, first_update, rollout, slot, t};
    use crate::survey::Survey;

    #[test]
    fn number_of_nodes_is_recorded_once_the_rollout_has_begun() {
        let nodes = ["a", "b"].map(|name| at(name, Step::Staged, 0, HostState::StagedUpdate));
        let (mut view, policy) = cluster(nodes.into(), &[]);
        view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout(NEW)];
        let rollouts = Survey::of(&view, &policy, t(0)).rollouts;
        let given = |version| Slot { update: Some(SlotUpdate { version, ..first_update() }), ..slot("a") };
        for (sentence, base, proven, after, expected) in [
            ("nothing has begun", 0, 0, vec![], 0),
            ("it has a number already", 1, 0, vec![], 2),
            ("a place is used up", 0, 1, vec![], 2),
            ("a slot is given", 0, 0, vec![given(NEW)], 2),
            ("a slot of another rollout is given", 0, 0, vec![given(OLD)], 0),
        ] {
            let ledger = RolloutLedger { base, proven, ..RolloutLedger::default() };
            let mut active = [ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }];
            settle(&view, (&policy, &rollouts), (&[], &after), &mut active, t(0));
            assert_eq!(active[0].ledger.as_ref().unwrap().base, expected, "{sentence}");
        }
    }
}
