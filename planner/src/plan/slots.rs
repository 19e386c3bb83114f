//! The budget: the number of nodes that may be out of service in total, in each group, and in how many zones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use models::operator::Slot;

use crate::decision::{Decision, Verdict};
use crate::policy::Policy;
use crate::survey::{Survey, SurveyedNode};
use crate::view::{ClusterView, NodeFacts, NodeView};
use crate::wait::Wait;

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

impl<'a> Budget<'a> {
    /// The budget less disrupted nodes, nodes with a slot, and nodes that are out of service without the operator.
    pub(super) fn of(survey: &Survey<'a>, slots: &[Slot]) -> Self {
        let policy = survey.policy;
        let held: HashSet<&str> = slots.iter().map(|slot| slot.uid.as_str()).collect();
        let limit = policy.max_unavailable.of(survey.total).unwrap_or(1);
        // The number of nodes of each group, and of those of them that are out of service.
        let mut groups = vec![(0, 0); policy.groups.len()];
        let mut zones = policy.one_zone_at_a_time.then(BTreeMap::new);
        let (mut all_out, mut here, mut others) = (0, 0, 0);
        let mut first = None;
        for node in &survey.nodes {
            let has_slot = held.contains(node.facts.uid.as_str());
            let ours = has_slot || node.disrupted;
            let out = ours || (node.labelled && !node.facts.ready && !node.facts.deleting);
            here += usize::from(has_slot);
            all_out += usize::from(out);
            if let Some((total, out_of_group)) = node.group.and_then(|index| groups.get_mut(index)) {
                *total += usize::from(node.labelled);
                *out_of_group += usize::from(out);
            }
            if let Some(zones) = zones.as_mut().filter(|_| ours) {
                zones.insert(node.node.facts.zone(), node.node.facts.name.as_str());
            }
            if out && !ours {
                others += 1;
                first.get_or_insert(&node.node.facts.name);
            }
        }
        let groups = policy.groups.iter().zip(groups).map(|(group, (total, out))| {
            let limit = group.max_unavailable.as_ref()?.of(total).unwrap_or(1);
            Some(limit.saturating_sub(out))
        });
        // A slot of a deleted node counts until it is released.
        let gone = held.len().saturating_sub(here);
        let used_up = first.filter(|_| others >= limit);
        let used_up = used_up.map(|first| Wait::BudgetUsedUp { node: first.clone(), count: others, limit });
        Self { free: limit.saturating_sub(all_out + gone), groups: groups.collect(), zones, used_up }
    }

    /// The reason why this node may not be taken although there is room in total.
    pub(super) fn refusal(&self, policy: &Policy, node: &SurveyedNode<'_>) -> Option<Wait> {
        if let Some(group) = node.group.filter(|group| self.groups[*group] == Some(0)) {
            return Some(Wait::GroupFull { group: policy.groups[group].name.clone() });
        }
        let (zone, other) = self.zones.as_ref()?.iter().find(|(zone, _)| **zone != node.facts.zone())?;
        Some(Wait::ZoneBusy { zone: (*zone).to_owned(), node: (*other).to_owned() })
    }

    /// Takes a node out of the budget.
    pub(super) fn take(&mut self, node: &SurveyedNode<'a>) {
        self.free = self.free.saturating_sub(1);
        if let Some(free) = node.group.and_then(|group| self.groups[group].as_mut()) {
            *free = free.saturating_sub(1);
        }
        if let Some(zones) = &mut self.zones {
            zones.entry(node.node.facts.zone()).or_insert(&node.node.facts.name);
        }
    }
}

/// Returns whether a node that is not disrupted yet uses a slot: it waits for one, or has one and begins its drain. The
/// slot has to outlast the write that begins it, since until then nothing else records that the node is taken.
pub(super) fn makes_use(decision: &Decision) -> bool {
    match &decision.verdict {
        _ if decision.keeps_slot => true,
        Verdict::WantsSlot => true,
        Verdict::Act(action) => action.begins_disruption(),
        Verdict::Wait(_) | Verdict::Candidate(_) | Verdict::Drill(_) => false,
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
///
/// `wants_slot` is true for a node that makes use of a slot, by its index.
pub(super) fn kept(
    view: &ClusterView,
    survey: &Survey<'_>,
    held: &HashMap<&str, &Slot>,
    wants_slot: &[bool],
    now: Timestamp,
) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for (node, wants_slot) in survey.nodes.iter().zip(wants_slot) {
        let NodeFacts { uid, name, .. } = &node.facts;
        // While a write about the node is under way, it may be the one that begins its drain.
        let under_way = node.step.is_some() && node.past_staging();
        let keeps = node.disrupted || under_way || *wants_slot || view.busy.contains(name);
        if !keeps {
            continue;
        }
        match held.get(uid.as_str()) {
            Some(slot) => slots.push((*slot).clone()),
            None if (node.disrupted && node.facts.claimed()) || node.has_rebooted_as_desired() => {
                slots.push(Slot { uid: uid.clone(), node: name.clone(), since: now });
            }
            None => {}
        }
    }
    slots
}

#[cfg(test)]
mod tests;
