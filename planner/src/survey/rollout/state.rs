//! The state of a rollout: its nodes, counted.

use std::collections::HashMap;

use jiff::Timestamp;
use models::operator::{ActiveRollout, RolloutLedger};
use models::shadow::{Place, Step, UPDATED};

use crate::policy::Policy;
use crate::survey::brake::{Brake, Busy};
use crate::survey::key::{is_member, may_be_member};
use crate::survey::{ended, ledger};
use crate::view::{ClusterView, NodeView};
use crate::wait::{Wait, not_ready};

/// The number of nodes that the reason of a canary step names.
pub(super) const NAMED: usize = 3;

/// The state of a rollout, and what it allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rollout {
    /// The number of places of the step due that no node has used up; `None`: as many as the budget allows.
    pub(super) left: Option<usize>,
    /// The number of nodes without a place that are under way. One that waits with its image is not counted: it may have to
    /// wait for long.
    pub(super) under_way: usize,
    /// The number of nodes without a place that are out of service for it, or have a slot.
    pub(super) disrupted: usize,
    /// The nodes that have a slot for it, or are out of service for it.
    pub(super) busy: Vec<Busy>,
    /// The brake, while it is braked or its first node goes alone.
    pub(crate) brake: Option<Brake>,
    /// The number of nodes that it has to update, those included that are, as its canary steps count them.
    pub(crate) base: usize,
    /// The number of nodes that may lack its version now, and of those that have used up a place.
    pub(super) nodes: usize,
    /// The reason why no more may start, if none may.
    pub(crate) wait: Option<Wait>,
    /// The number of its running record in the history; 0 while there is none.
    pub(crate) number: i64,
    /// The number of the canary step due, from 1; 0 after the last one.
    pub(crate) step: i64,
    /// The number of nodes of its variant and architecture under the operator.
    pub(crate) total: usize,
    /// The number of them that were updated since it began.
    pub(crate) finished: usize,
}

impl Rollout {
    /// The number of nodes that may still begin an attempt; `None`: as many as the budget allows.
    pub(crate) fn room_to_begin(&self) -> Option<usize> {
        self.left.map(|left| left.saturating_sub(self.under_way))
    }

    /// Returns why a node may have no slot beside so many others that have just got one, if the rollout is braked, or its first node
    /// goes alone. That may be the node itself, whose slot is being replaced.
    pub(crate) fn braked_for(&self, node: &str, taken: usize) -> Option<&Wait> {
        let brake = self.brake.as_ref().filter(|brake| taken >= brake.room && !brake.is_of(node))?;
        Some(&brake.wait)
    }

    /// The number of staged nodes that may still be taken out of service.
    pub(crate) fn room_for_slots(&self) -> Option<usize> {
        self.left.map(|left| left.saturating_sub(self.disrupted))
    }
}

/// Returns whether the operator has updated a node to the rollout's version since the rollout began.
fn done(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let last = node.record().and_then(|record| record.last.as_ref());
    last.is_some_and(|l| l.reason == UPDATED && l.version == rollout.version && l.ended >= rollout.started)
        && node.update().is_none()
}

/// Counts the nodes of a rollout. Returns it with those that are under way, the first few.
pub(super) fn counted(
    (view, policy): (&ClusterView, &Policy),
    active: &ActiveRollout,
    ledger: &RolloutLedger,
    is_wanted: impl Fn(&NodeView) -> bool,
    now: Timestamp,
) -> (Rollout, Vec<String>) {
    let mut rollout = Rollout::default();
    // A node with a slot is about to be taken out of service.
    let slots: HashMap<&str, bool> = view
        .recorded_slots()
        .map(|slot| (slot.uid.as_str(), slot.update.as_ref().is_some_and(|update| ledger::is_of(update, active))))
        .collect();
    // One that is gone still has its place.
    let held = view.recorded_slots().filter_map(|slot| Some((slot, slot.update.as_ref()?)));
    let (mut on_their_way, mut seen) = (Vec::new(), 0);
    for (slot, update) in held.filter(|(_, update)| ledger::is_of(update, active)) {
        rollout.disrupted += usize::from(update.had.is_none());
        let ended = ended::has_ended((view, policy), slot, update, now);
        if ended && !ended::may_reboot_yet(view, policy, slot, now) {
            continue;
        }
        let node = ended::holder(view, policy, slot);
        if ended::kept_until(view, policy, slot).is_some() && on_their_way.len() < NAMED {
            on_their_way.push(node.clone());
        }
        rollout.busy.push(Busy { node, since: Some(slot.since), ended });
    }
    rollout.under_way = rollout.disrupted;
    for node in view.nodes.values().filter(|node| is_member(node, active)) {
        let place = ledger::place(node, active);
        let slot = slots.get(node.facts.uid.as_str()).copied();
        rollout.total += usize::from(node.facts.labelled);
        rollout.finished += usize::from(node.facts.labelled && done(node, active));
        let progress = node.update().filter(|progress| progress.version == active.version);
        let runs = ledger::runs(node, active);
        let lacks = !runs && (node.is_behind(&active.version) || is_wanted(node));
        // A failure that an earlier version of the operator recorded has no place on its node.
        let named = || ledger.nodes.iter().any(|named| named.node == node.facts.name);
        let counted = place.is_some() || named();
        seen += usize::from(counted);
        let is_of_rollout = counted || progress.is_some();
        rollout.base += usize::from(is_of_rollout || (node.facts.labelled && lacks));
        let is_left = || node.facts.labelled && ledger::may_lack(node, active, &policy.target);
        rollout.nodes += usize::from(is_of_rollout || is_left());
        let Some(progress) = progress else { continue };
        let disrupted = node.disrupted() || slot.is_some();
        let moves = progress.step != Step::Staged || disrupted;
        // Those with a slot that says so are counted above.
        if disrupted && slot != Some(true) && progress.step.place() != Place::Over {
            rollout.busy.push(Busy { node: node.facts.name.clone(), since: None, ended: false });
        }
        if place.is_none() && slot != Some(true) {
            rollout.under_way += usize::from(moves);
            rollout.disrupted += usize::from(disrupted);
        }
        if moves && on_their_way.len() < NAMED {
            let name = &node.facts.name;
            on_their_way.push(if node.facts.ready { name.clone() } else { not_ready(name) });
        }
    }
    // Nodes that are gone keep their places.
    let gone = usize::try_from(ledger.used()).unwrap_or(0).saturating_sub(seen);
    rollout.base += gone;
    // Those that are not known to be gone are left.
    rollout.nodes += gone + of_unknown_kind(view, policy, active);
    let fixed = usize::try_from(ledger.base).unwrap_or(0);
    if rollout.base <= fixed.saturating_mul(2) {
        rollout.base = fixed;
    }
    (rollout, on_their_way)
}

/// Returns the number of nodes that may be left of a rollout although their kind is not known: they or their shadows cannot be read, or
/// their agents have not reported yet.
pub(crate) fn of_unknown_kind(view: &ClusterView, policy: &Policy, rollout: &ActiveRollout) -> usize {
    let may_be_left = |node: &&NodeView| {
        node.facts.labelled && may_be_member(node, rollout) && ledger::may_lack(node, rollout, &policy.target)
    };
    view.unreadable.nodes.len() + view.nodes.values().filter(may_be_left).count()
}
