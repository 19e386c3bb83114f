//! The budget: the number of nodes that may be out of service in total, in each group, and in how many zones.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::Slot;

use super::survey::Survey;
use super::{Verdict, Wait, begins_disruption};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// The free part of the budget.
#[derive(Clone)]
pub(super) struct Budget<'a> {
    /// The number of nodes that may still be taken in total.
    pub(super) free: usize,
    groups: Vec<Option<usize>>,
    /// The zones that nodes are out of service in, each with one of these nodes, where only one zone may be.
    zones: Option<BTreeMap<&'a str, &'a str>>,
    /// The reason why nothing is free, if it is nodes that are out of service without the operator.
    pub(super) used_up: Option<Wait>,
}

/// The number of nodes of each group, and of those out of service. Index 0 is all nodes.
fn of_groups<'a>(
    view: &'a ClusterView,
    policy: &Policy,
    groups: &BTreeMap<&str, usize>,
    out: impl Fn(&'a NodeView) -> bool,
) -> Vec<(usize, usize)> {
    let mut counts = vec![(0, 0); policy.groups.len() + 1];
    for (index, count) in counts.iter_mut().skip(1).enumerate() {
        count.0 = view.unlisted.in_group(index);
    }
    for (name, node) in &view.nodes {
        let own = groups.get(name.as_str()).map(|group| group + 1);
        for index in std::iter::once(0).chain(own) {
            counts[index].0 += usize::from(node.facts.labelled);
            counts[index].1 += usize::from(out(node));
        }
    }
    counts
}

impl<'a> Budget<'a> {
    /// The budget less disrupted nodes, nodes with a slot, and nodes that are out of service without the operator.
    pub(super) fn of(view: &'a ClusterView, survey: &Survey<'_>, slots: &[Slot]) -> Self {
        let policy = survey.policy;
        let held: BTreeSet<&str> = slots.iter().map(|slot| slot.uid.as_str()).collect();
        let ours = |node: &NodeView| held.contains(node.facts.uid.as_str()) || node.disrupted();
        let out = |node: &NodeView| ours(node) || (node.facts.labelled && !node.facts.ready && !node.facts.deleting);
        let counts = of_groups(view, policy, &survey.groups, out);
        // A slot of a deleted node counts until it is released.
        let here = view.nodes.values().filter(|node| held.contains(node.facts.uid.as_str())).count();
        let gone = held.len().saturating_sub(here);
        let limit = policy.max_unavailable.of(survey.total).unwrap_or(1);
        let groups = policy.groups.iter().zip(&counts[1..]).map(|(group, (total, out))| {
            let limit = group.max_unavailable.as_ref()?.of(*total).unwrap_or(1);
            Some(limit.saturating_sub(*out))
        });
        let zones = policy.one_zone_at_a_time.then(|| {
            view.nodes.values().filter(|n| ours(n)).map(|n| (n.facts.zone(), n.facts.name.as_str())).collect()
        });
        let free = limit.saturating_sub(counts[0].1 + gone);
        let others: Vec<&NodeView> = view.nodes.values().filter(|node| out(node) && !ours(node)).collect();
        let first = others.first().filter(|_| others.len() >= limit);
        let used_up =
            first.map(|first| Wait::BudgetUsedUp { node: first.facts.name.clone(), count: others.len(), limit });
        Self { free, groups: groups.collect(), zones, used_up }
    }

    /// The reason why this node may not be taken although there is room in total.
    pub(super) fn refusal(&self, survey: &Survey<'_>, node: &NodeView) -> Option<Wait> {
        if let Some(group) = survey.groups.get(node.facts.name.as_str())
            && self.groups[*group] == Some(0)
        {
            return Some(Wait::GroupFull { group: survey.policy.groups[*group].name.clone() });
        }
        let (zone, other) = self.zones.as_ref()?.iter().find(|(zone, _)| **zone != node.facts.zone())?;
        Some(Wait::ZoneBusy { zone: (*zone).to_owned(), node: (*other).to_owned() })
    }

    /// Takes a node out of the budget.
    pub(super) fn take(&mut self, survey: &Survey<'_>, node: &'a NodeView) {
        self.free = self.free.saturating_sub(1);
        if let Some(group) = survey.groups.get(node.facts.name.as_str())
            && let Some(free) = &mut self.groups[*group]
        {
            *free = free.saturating_sub(1);
        }
        if let Some(zones) = &mut self.zones {
            zones.entry(node.facts.zone()).or_insert(&node.facts.name);
        }
    }
}

/// Returns whether a node that is not disrupted yet uses a slot: it waits for one, or has one and begins its drain. The
/// slot has to outlast the write that begins it, since until then nothing else records that the node is taken.
pub(super) fn makes_use(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::WantsSlot | Verdict::Wait(Wait::ReadingPods) => true,
        Verdict::Act(action) => action.next_step().is_some_and(begins_disruption),
        Verdict::Wait(_) | Verdict::Candidate(_) => false,
    }
}

/// The nodes (uid) whose slot a write of the slots removes or replaces.
pub fn retracted(before: &[Slot], after: &[Slot]) -> BTreeSet<String> {
    before.iter().filter(|slot| !after.contains(slot)).map(|slot| slot.uid.clone()).collect()
}

/// The nodes (uid) that have a slot and have not begun. An earlier leader may have a write under way that removes the
/// slot, so a new leader records it again.
pub fn not_begun(view: &ClusterView) -> BTreeSet<String> {
    let begun = |node: &&NodeView| node.facts.claimed() || node.past_staging();
    let begun: BTreeSet<&str> = view.nodes.values().filter(begun).map(|node| node.facts.uid.as_str()).collect();
    let slots = view.operator.iter().flat_map(|operator| &operator.status.slots);
    slots.filter(|slot| !begun.contains(slot.uid.as_str())).map(|slot| slot.uid.clone()).collect()
}

/// The slots that stay: recorded ones of nodes that are under way or disrupted, and those of nodes that have lost
/// their own and have a claim, or have rebooted as requested. The status of a shadow alone gives no slot: other clients
/// than the controller may have written it.
pub(super) fn kept(
    view: &ClusterView,
    held: &BTreeMap<&str, &Slot>,
    wants_slot: &BTreeSet<&str>,
    now: Timestamp,
) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for (name, node) in &view.nodes {
        let uid = node.facts.uid.as_str();
        // While a write about the node is under way, it may be the one that begins its drain.
        let busy = view.busy.contains(name);
        let keeps = node.disrupted() || node.past_staging() || busy || wants_slot.contains(name.as_str());
        match held.get(uid) {
            Some(slot) if keeps => slots.push((*slot).clone()),
            None if (node.disrupted() && node.facts.claimed()) || node.has_rebooted_as_desired() => {
                slots.push(Slot { uid: uid.to_owned(), node: name.clone(), since: now });
            }
            _ => {}
        }
    }
    slots
}

#[cfg(test)]
mod tests;
