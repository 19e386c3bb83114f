//! The budget: the number of nodes that may be out of service in total, in each group, and in how many zones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use jiff::Timestamp;
use models::operator::{Slot, SlotUpdate};
use models::shadow::{Place, Progress, Step};

use crate::decision::{Decision, Verdict};
use crate::policy::Policy;
use crate::survey::unavailable::Unavailable;
use crate::survey::{Survey, SurveyedNode, ended, settled};
use crate::view::{ClusterView, NodeFacts, NodeView};
use crate::wait::Wait;

/// The free part of the budget. A node that is out of service already, and counts, needs no further room for its own update.
#[derive(Clone)]
pub(super) struct Budget<'a> {
    room: Room,
    groups: Vec<Option<Group<'a>>>,
    /// The zones that nodes are out of service in, where only one zone may be.
    zones: Option<BTreeMap<&'a str, Zone<'a>>>,
    /// The nodes of the control plane that are out of service, and those with a slot that are gone: what they were is not known.
    control_plane: BTreeSet<String>,
    /// The reason why nothing is free, if it is nodes that are out of service without the operator.
    pub(super) used_up: Option<Wait>,
}

/// The room within a limit.
#[derive(Clone, Copy)]
struct Room {
    /// For nodes that are in service.
    free: usize,
    /// For nodes that count already: what the operator itself has not taken.
    own: usize,
}

/// The budget of a node group.
#[derive(Clone)]
struct Group<'a> {
    room: Room,
    /// A node of it that the operator has taken.
    node: Option<&'a str>,
    /// As [`Budget::used_up`].
    used_up: Option<Wait>,
}

/// The nodes that are out of service in a zone.
#[derive(Clone)]
struct Zone<'a> {
    out: usize,
    /// The number of them that the operator has taken.
    own: usize,
    /// One of them.
    node: &'a str,
}

/// The numbers of nodes among those that share a limit.
#[derive(Clone, Copy, Default)]
struct Counted<'a> {
    total: usize,
    /// Those that the operator has taken, and one of them.
    own: usize,
    node: Option<&'a str>,
    /// Those that are out of service without it.
    others: usize,
}

impl Room {
    fn within(limit: usize, counted: Counted<'_>) -> Self {
        let own = limit.saturating_sub(counted.own);
        Self { free: own.saturating_sub(counted.others), own }
    }

    fn of(self, node: &SurveyedNode<'_>) -> usize {
        if node.unavailable.is_some() { self.own } else { self.free }
    }

    fn take(&mut self, node: &SurveyedNode<'_>) {
        self.own = self.own.saturating_sub(1);
        if node.unavailable.is_none() {
            self.free = self.free.saturating_sub(1);
        }
    }
}

impl<'a> Budget<'a> {
    /// The budget less disrupted nodes, nodes with a slot, and nodes that are out of service without the operator.
    pub(super) fn of(view: &'a ClusterView, survey: &Survey<'a>, slots: &[Slot]) -> Self {
        let policy = survey.policy;
        let held: HashSet<&str> = slots.iter().map(|slot| slot.uid.as_str()).collect();
        let limit = policy.slots_among(survey.total);
        let mut all = Counted::default();
        let mut groups = vec![Counted::default(); policy.groups.len()];
        let mut zones = policy.one_zone_at_a_time.then(BTreeMap::new);
        let there: HashSet<&str> = survey.nodes.iter().map(|node| node.node.facts.uid.as_str()).collect();
        let is_gone = |slot: &&Slot| held.contains(slot.uid.as_str()) && !there.contains(slot.uid.as_str());
        let gone: Vec<&Slot> = view.recorded_slots().filter(is_gone).collect();
        // A node that is registered again may lack the label.
        let of_control_plane = |slot: &&Slot| {
            held.contains(slot.uid.as_str()) && slot.update.as_ref().is_some_and(|update| update.control_plane)
        };
        let names = view.recorded_slots().filter(of_control_plane).map(|slot| slot.node.as_str());
        let mut control_plane: BTreeSet<String> =
            survey.control_plane_down.iter().copied().chain(names).map(str::to_owned).collect();
        for (slot, update) in gone.iter().filter_map(|slot| Some((slot, slot.update.as_ref()?))) {
            let index = policy.groups.iter().position(|group| Some(&group.name) == update.group.as_ref());
            if let Some(group) = index.and_then(|index| groups.get_mut(index)) {
                group.own += 1;
                group.node.get_or_insert(slot.node.as_str());
            }
            if let Some(zones) = &mut zones {
                let zone = zones.entry(update.zone.as_str()).or_insert(Zone { out: 0, own: 0, node: &slot.node });
                (zone.out, zone.own) = (zone.out + 1, zone.own + 1);
            }
        }
        let mut here = 0;
        let mut unavailable = Vec::new();
        for node in &survey.nodes {
            let has_slot = held.contains(node.facts.uid.as_str());
            let own = has_slot || node.disrupted;
            here += usize::from(has_slot);
            let group = node.group.and_then(|index| groups.get_mut(index));
            for counted in [&mut all].into_iter().chain(group) {
                counted.total += usize::from(node.labelled);
                counted.own += usize::from(own);
                counted.node = counted.node.or(own.then_some(node.node.facts.name.as_str()));
                counted.others += usize::from(!own && node.unavailable.is_some());
            }
            if let Some(zones) = zones.as_mut().filter(|_| own || node.unavailable.is_some()) {
                count(zones, node, own, true);
            }
            if (own || node.may_still_reboot()) && node.facts.control_plane() {
                control_plane.insert(node.facts.name.clone());
            }
            unavailable.extend(node.unavailable.filter(|_| !own).map(|cause| (node, cause)));
        }
        let groups = policy.groups.iter().zip(groups).enumerate().map(|(index, (group, counted))| {
            let limit = group.max_unavailable.as_ref()?.of(counted.total);
            let of_group = unavailable.iter().filter(|(node, _)| node.group == Some(index)).copied();
            let used_up = used_up(&of_group.collect::<Vec<_>>(), limit, Some(&group.name));
            Some(Group { room: Room::within(limit, counted), node: counted.node, used_up })
        });
        // A slot of a deleted node counts until it is released.
        all.own += held.len().saturating_sub(here);
        let used_up = used_up(&unavailable, limit, None);
        Self { room: Room::within(limit, all), groups: groups.collect(), zones, control_plane, used_up }
    }

    /// Returns the number of nodes like this one that may still be taken in total.
    pub(super) fn free_for(&self, node: &SurveyedNode<'_>) -> usize {
        self.room.of(node)
    }

    /// Returns the number of nodes in service that may still be taken in total.
    pub(super) fn free(&self) -> usize {
        self.room.free
    }

    /// Leaves no room in total.
    pub(super) fn close(&mut self) {
        self.room = Room { free: 0, own: 0 };
    }

    /// The reason why this node may not be taken although there is room in total.
    pub(super) fn refusal(&self, policy: &Policy, node: &SurveyedNode<'_>) -> Option<Wait> {
        let own_name = node.facts.name.as_str();
        if node.facts.control_plane()
            && let Some(other) = self.control_plane.iter().find(|name| *name != own_name)
        {
            return Some(Wait::ControlPlaneBusy { node: other.clone() });
        }
        let group = node.group.and_then(|index| Some((&policy.groups[index].name, self.groups[index].as_ref()?)));
        if let Some((name, group)) = group.filter(|(_, group)| group.room.of(node) == 0) {
            let full = || Wait::GroupFull { group: name.clone(), node: group.node.map(str::to_owned) };
            // A node that counts already waits for those under way alone.
            let used_up = group.used_up.clone().filter(|_| node.unavailable.is_none());
            return Some(used_up.unwrap_or_else(full));
        }
        // No zone beside one that the operator works in, and otherwise the one that has lost most.
        let zones = self.zones.as_ref()?;
        let mine = node.facts.zone();
        let most = || zones.iter().max_by_key(|(name, zone)| (zone.out, zone.own, std::cmp::Reverse(**name)));
        let others = zones.iter().find(|(name, zone)| zone.own > 0 && **name != mine);
        let (zone, Zone { node, .. }) = others.or_else(most).filter(|(name, _)| **name != mine)?;
        Some(Wait::ZoneBusy { zone: (*zone).to_owned(), node: (*node).to_owned() })
    }

    /// Takes a node out of the budget.
    pub(super) fn take(&mut self, node: &'a SurveyedNode<'a>) {
        self.room.take(node);
        if let Some(group) = node.group.and_then(|group| self.groups[group].as_mut()) {
            group.room.take(node);
            group.node.get_or_insert(node.node.facts.name.as_str());
        }
        if let Some(zones) = &mut self.zones {
            count(zones, node, true, node.unavailable.is_none());
        }
        if node.facts.control_plane() {
            self.control_plane.insert(node.facts.name.clone());
        }
    }
}

/// Counts a node in its zone: among those of the operator if it is `own`, and among those out of service if it is `new`.
fn count<'a>(zones: &mut BTreeMap<&'a str, Zone<'a>>, node: &SurveyedNode<'a>, own: bool, new: bool) {
    let facts = &node.node.facts;
    let zone = zones.entry(facts.zone()).or_insert(Zone { out: 0, own: 0, node: &facts.name });
    zone.out += usize::from(new);
    zone.own += usize::from(own);
}

/// Returns the reason why nothing is free within a limit, if it is these nodes: the first of them, and the time at which so many
/// of them are ignored that there is room.
fn used_up(unavailable: &[(&SurveyedNode<'_>, Unavailable)], limit: usize, group: Option<&str>) -> Option<Wait> {
    let count = unavailable.len();
    let (first, Unavailable { why, .. }) = unavailable.first().filter(|_| count >= limit)?;
    let mut ends: Vec<_> = unavailable.iter().filter_map(|(_, cause)| cause.until).collect();
    ends.sort_unstable();
    let until = ends.get(count.saturating_sub(limit)).copied();
    let group = group.map(str::to_owned);
    Some(Wait::BudgetUsedUp { group, node: first.facts.name.clone(), why, count, limit, until })
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
    let same = |slot: &Slot, kept: &Slot| (&kept.uid, kept.since) == (&slot.uid, slot.since);
    let kept = |slot: &Slot| after.iter().any(|kept| same(slot, kept) || ended::goes_on_as(slot, kept));
    before.iter().filter(|slot| !kept(slot)).map(|slot| slot.uid.clone()).collect()
}

/// The nodes (uid) that have a slot and have not begun. One whose slot records that its reboot may be permitted has, also where it
/// is gone. An earlier leader may have a write under way that removes the
/// slot, so a new leader records it again.
pub fn not_begun(view: &ClusterView) -> BTreeSet<String> {
    let begun = |node: &&NodeView| node.facts.claimed() || node.past_staging();
    let begun: BTreeSet<&str> = view.nodes.values().filter(begun).map(|node| node.facts.uid.as_str()).collect();
    let permitted = |slot: &&Slot| slot.update.as_ref().is_some_and(|update| update.permitting_since.is_some());
    // An attempt that cannot be read may have begun.
    let has_begun = |slot: &Slot| begun.contains(slot.uid.as_str()) || view.unreadable.hide(&slot.node);
    let idle = view.recorded_slots().filter(|slot| !permitted(slot) && !has_begun(slot));
    idle.map(|slot| slot.uid.clone()).collect()
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
    let waits = |slot: &Slot| ended::kept_until(view, survey.policy, slot).is_some_and(|until| until > now);
    let mut slots: Vec<Slot> = Vec::new();
    for (node, wants_slot) in survey.nodes.iter().zip(wants_slot) {
        let NodeFacts { uid, name, .. } = &node.facts;
        // While a write about the node is under way, it may be the one that begins its drain.
        let under_way = node.step.is_some() && node.past_staging() && !node.may_still_reboot();
        let continues = held.get(uid.as_str()).is_some_and(|slot| waits(slot));
        // An attempt may be under way that cannot be read.
        let unknown = view.busy.contains(name) || view.unreadable.shadows.contains_key(name);
        let keeps = node.disrupted || under_way || *wants_slot || continues || unknown;
        if !keeps {
            continue;
        }
        match held.get(uid.as_str()) {
            Some(slot) => slots.push(followed(survey, slot, node, now)),
            None if (node.disrupted && node.facts.claimed()) || node.has_rebooted_as_desired() => {
                slots.push(followed(survey, &new(survey, node, now), node, now));
            }
            None => {}
        }
    }
    // The machine of a Node object that was deleted may still reboot. Once it is registered again, it goes on with its slot.
    let there: HashSet<&str> = survey.nodes.iter().map(|node| node.facts.uid.as_str()).collect();
    let stays = |slot: &Slot| waits(slot) || view.unreadable.nodes.contains_key(&slot.node);
    let mut gone: Vec<_> = held.values().filter(|slot| !there.contains(slot.uid.as_str()) && stays(slot)).collect();
    gone.sort_by_key(|slot| (slot.since, &slot.uid));
    for slot in gone {
        let again = ended::registered_again(view, slot).map(|node| &node.facts.uid);
        let uid = again.filter(|uid| !held.contains_key(uid.as_str())).unwrap_or(&slot.uid);
        slots.push(Slot { uid: uid.clone(), ..(*slot).clone() });
    }
    slots
}

/// Returns whether two slots record the same of the same node. The time since which it has one is no record of its update.
pub(super) fn records_the_same(a: &Slot, b: &Slot) -> bool {
    (&a.uid, &a.update) == (&b.uid, &b.update)
}

/// A slot of a node.
pub(super) fn new(survey: &Survey<'_>, node: &SurveyedNode<'_>, now: Timestamp) -> Slot {
    let NodeFacts { uid, name, .. } = &node.facts;
    Slot { uid: uid.clone(), node: name.clone(), since: now, update: update_of(survey, node) }
}

/// Returns what a slot records of the update of a node.
fn update_of(survey: &Survey<'_>, node: &SurveyedNode<'_>) -> Option<SlotUpdate> {
    let group = node.group.map(|index| survey.policy.groups[index].name.clone());
    Some(SlotUpdate { group, ..settled::update_of(&survey.rollouts, node.node)? })
}

/// The slot of a node that is under way, with what it records of the update. That the reboot may be permitted is in it before the
/// permit is.
fn followed(survey: &Survey<'_>, slot: &Slot, node: &SurveyedNode<'_>, now: Timestamp) -> Slot {
    let Slot { uid, node: name, since, update } = slot.clone();
    let mut update = update.or_else(|| update_of(survey, node));
    // An attempt that ended before its permit leaves nothing that may reboot, or has.
    let begun_in = update.as_ref().map(|update| update.boot_id.as_str());
    let same_boot = begun_in == Some(node.facts.boot_id.as_str());
    let in_vain = |progress: &Progress| {
        let runs_it = node.facts.os_version().as_ref() == Some(&progress.version);
        progress.step == Step::Releasing && !progress.permit_issued && same_boot && !runs_it
    };
    let away = node.update().is_some_and(|progress| progress.step.place() >= Place::Away && !in_vain(progress));
    if let Some(update) = &mut update {
        // The label may come after the slot.
        update.control_plane |= node.facts.control_plane();
    }
    if let Some(update) = update.as_mut().filter(|_| away) {
        update.permitting_since.get_or_insert(now);
    }
    if let Some(update) = update.as_mut().filter(|update| update.permitting_since.is_some()) {
        let seen = if node.facts.ready { node.facts.boot_id.as_str() } else { "" };
        update.removed_in = node.facts.removed_by.as_ref().map(|_| seen.to_owned());
    }
    Slot { uid, node: name, since, update }
}

#[cfg(test)]
mod tests;
