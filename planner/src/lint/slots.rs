//! The checks of the nodes that a plan gives a slot: the budgets of all nodes, groups and zones (S1), the places of canary steps (S12),
//! braked rollouts and unwell clusters (S13).

use std::collections::{HashMap, HashSet};

use models::operator::{ActiveRollout, Slot, SlotUpdate};
use models::reason::Proof;
use models::time::between;
use semver::Version;

use super::breach::{Broken, broken};
use crate::plan::Plan;
use crate::policy::{CanaryStep, Policy};
use crate::survey::key::{is_member, key_of};
use crate::survey::unwell::Unwell;
use crate::survey::urgency::Urgency;
use crate::survey::{ended, ledger, rollout};
use crate::view::{ClusterView, NodeFacts, NodeView};

/// The nodes that get a slot. Nodes that are disrupted already keep their slots, also over a budget that was lowered since,
/// or while the rollout is frozen.
pub(super) fn new_slots<'a>(view: &'a ClusterView, plan: &Plan) -> Vec<&'a NodeView> {
    let Some(slots) = plan.slots.as_ref().filter(|_| view.operator.is_some()) else { return Vec::new() };
    let held: HashSet<&str> = view.slots().map(|slot| slot.uid.as_str()).collect();
    let new = slots.iter().filter(|slot| !held.contains(slot.uid.as_str()) && !goes_on(view, slots, slot));
    let new: HashSet<&str> = new.map(|slot| slot.uid.as_str()).collect();
    let given = |node: &&NodeView| new.contains(node.facts.uid.as_str()) && !node.disrupted();
    if new.is_empty() { Vec::new() } else { view.nodes.values().filter(given).collect() }
}

/// Returns whether a slot is no new one: its node had it under another Node object, which was deleted and registered again while the
/// machine rebooted by its permit.
fn goes_on(view: &ClusterView, slots: &[Slot], slot: &Slot) -> bool {
    let is_same = |before: &Slot| {
        let again = ended::registered_again(view, before).is_some_and(|node| node.facts.uid == slot.uid);
        again && ended::goes_on_as(before, slot) && !slots.iter().any(|kept| kept.uid == before.uid)
    };
    view.slots().any(is_same)
}

/// S1: slots are given only up to the budget.
pub(super) fn check_slots(view: &ClusterView, policy: &Policy, plan: &Plan, new: &[&NodeView]) -> Option<Broken> {
    let slots = plan.slots.as_ref()?;
    let total = view.nodes.values().filter(|n| n.facts.labelled).count();
    let budget = policy.slots_among(total);
    let text = || format!("{} slots, {} of them new, over a budget of {budget}", slots.len(), new.len());
    (!new.is_empty() && slots.len() > budget).then(|| ("S1", text()))
}

/// S1 again, for the budgets of groups, for zones that take turns and for nodes of the control plane.
pub(super) fn check_groups(view: &ClusterView, policy: &Policy, plan: &Plan, new: &[&NodeView]) -> Option<Broken> {
    if new.is_empty() {
        return None;
    }
    let slots: HashSet<&str> = plan.slots.iter().flatten().map(|slot| slot.uid.as_str()).collect();
    let with_slot = |node: &&NodeView| slots.contains(node.facts.uid.as_str());
    let there: HashSet<&str> = view.nodes.values().map(|node| node.facts.uid.as_str()).collect();
    // The slot of a node that is gone says what it was.
    let is_gone = |slot: &&Slot| !there.contains(slot.uid.as_str());
    let gone: Vec<&SlotUpdate> =
        plan.slots.iter().flatten().filter(is_gone).filter_map(|slot| slot.update.as_ref()).collect();
    let out = view.nodes.values().filter(with_slot).map(|node| node.facts.zone());
    let out: Vec<&str> = out.chain(gone.iter().map(|update| update.zone.as_str())).collect();
    for node in new.iter().filter(|_| policy.one_zone_at_a_time) {
        if out.iter().any(|zone| *zone != node.facts.zone()) {
            return broken("S1", format!("{} is given a slot beside one in another zone", node.facts.name));
        }
    }
    let reboots = view.nodes.values().filter(|node| node.may_still_reboot()).map(|node| node.facts.uid.as_str());
    let busy: HashSet<&str> = slots.iter().copied().chain(reboots).collect();
    for node in new.iter().filter(|node| node.facts.control_plane()) {
        let of_control_plane = |slot: &&Slot| {
            slot.uid != node.facts.uid && slot.update.as_ref().is_some_and(|update| update.control_plane)
        };
        if let Some(slot) = plan.slots.iter().flatten().find(of_control_plane) {
            let text = format!("{} is given a slot beside {} of the control plane", node.facts.name, slot.node);
            return broken("S1", text);
        }
        let other = |other: &&NodeFacts| other.control_plane() && other.uid != node.facts.uid;
        let busy = |other: &&NodeFacts| !other.ready || busy.contains(other.uid.as_str());
        let mut all = view.nodes.values().map(|node| &node.facts).chain(view.unmanaged.values()).filter(other);
        if let Some(other) = all.find(busy) {
            let text = format!(
                "{} is given a slot while {} of the control plane is not in service",
                node.facts.name, other.name
            );
            return broken("S1", text);
        }
    }
    // The numbers of nodes and of slots of each group.
    let mut counts = vec![(0, 0); policy.groups.len()];
    for node in view.nodes.values() {
        if let Some(index) = policy.group_of(&node.facts) {
            counts[index].0 += usize::from(node.facts.labelled);
            counts[index].1 += usize::from(with_slot(&node));
        }
    }
    for update in gone {
        let own = policy.groups.iter().position(|group| Some(&group.name) == update.group.as_ref());
        own.into_iter().for_each(|index| counts[index].1 += 1);
    }
    for index in new.iter().filter_map(|node| policy.group_of(&node.facts)) {
        let (group, (total, taken)) = (&policy.groups[index], counts[index]);
        let Some(limit) = group.max_unavailable.as_ref().map(|limit| limit.of(total)) else { continue };
        if taken > limit {
            return broken("S1", format!("{taken} slots in group {}, over its budget of {limit}", group.name));
        }
    }
    None
}

/// S12: no more nodes are taken to a version than the places of the canary steps that are passed and of the one due. The places
/// that this plan passes have to be proven or accepted; a node of an earlier step that is tried again takes nothing back. Soaks
/// and approvals are read as the plan records them. Returns the property with each node that is given a slot beyond them.
pub(super) fn check_places<'a>(
    view: &'a ClusterView,
    policy: &Policy,
    plan: &Plan,
    new: &[&'a NodeView],
) -> Vec<Broken> {
    let rollouts = plan.status.iter().flat_map(|status| &status.active_rollouts);
    let open = rollouts.filter(|rollout| rollout.ended.is_none());
    open.flat_map(|rollout| beyond_places(view, policy, plan, new, rollout)).collect()
}

fn beyond_places(
    view: &ClusterView,
    policy: &Policy,
    plan: &Plan,
    new: &[&NodeView],
    rollout: &ActiveRollout,
) -> Vec<Broken> {
    let Some(recorded) = &rollout.ledger else { return Vec::new() };
    let goes = |node: &&&NodeView| {
        let to = node.update().map(|progress| &progress.version);
        to == Some(&rollout.version) && is_member(node, rollout) && ledger::place(node, rollout).is_none()
    };
    let taken: Vec<&&NodeView> = new.iter().filter(goes).collect();
    if taken.is_empty() {
        return Vec::new();
    }
    let places = view.nodes.values().filter_map(|node| Some((&*node.facts.uid, ledger::place(node, rollout)?)));
    let places: HashMap<&str, Proof> = places.collect();
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let proven = places.values().filter(|proof| **proof == Proof::Proven).count();
    let good = count(proven).saturating_add(recorded.accepted).max(recorded.good_for(rollout.urgent_until.is_some()));
    let uses_place = |slot: &&Slot| {
        let of_rollout =
            slot.update.as_ref().is_some_and(|update| update.had.is_none() && ledger::is_of(update, rollout));
        of_rollout && !places.contains_key(slot.uid.as_str())
    };
    let slots: HashSet<&str> = plan.slots.iter().flatten().filter(uses_place).map(|slot| slot.uid.as_str()).collect();
    let used = count(places.len()).max(recorded.used()).saturating_add(count(slots.len()));
    // Nodes that are left count for the places that may be taken, and only those that are known to lack the version for a step that is passed.
    let number = |count: i64| usize::try_from(count).unwrap_or(0);
    let of = |is_left: &dyn Fn(&NodeView) -> bool| {
        let is_used = |uid: &str| places.contains_key(uid) || slots.contains(uid);
        let members = view.nodes.values().filter(|node| is_member(node, rollout) && !is_used(&node.facts.uid));
        (number(recorded.base), number(used).saturating_add(members.filter(|node| is_left(node)).count()))
    };
    let lacks = |node: &NodeView| node.facts.labelled && ledger::may_lack(node, rollout, &policy.target);
    let goes = |node: &NodeView| node.update().is_some_and(|progress| progress.version == rollout.version);
    let least = of(&|node| lacks(node) && node.is_behind(&rollout.version));
    let (base, most) = of(&|node| lacks(node) || goes(node));
    let most = (base, most.saturating_add(rollout::of_unknown_kind(view, policy, rollout)));
    let before = view.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
    let mut before = before.filter(|before| before.ended.is_none() && key_of(before) == key_of(rollout));
    let before = before.find_map(|before| before.ledger.clone()).unwrap_or_default();
    let was_due = rollout::due(policy, (number(before.base), 0), before.passed);
    let mut passed = recorded.passed.min(good.max(before.passed));
    let due = loop {
        let steps = (rollout::due(policy, least, passed), rollout::due(policy, most, passed));
        let (Some(least), Some(most)) = steps else { return Vec::new() };
        // Where few nodes are left, fewer places than its share pass a step, and those that are used up stay as they are.
        let is_same = was_due.is_some_and(|was| was.step == least.step) && before.share >= least.share;
        let stays = is_same && least.due <= before.due.saturating_mul(2);
        let full = if stays { least.due.min(before.due) } else { least.due };
        if good < full || recorded.passed < least.share {
            break most.due;
        }
        passed = least.share;
    };
    let text = |node: &&&NodeView| {
        format!("{} is given a slot for {}: {used} of {due} places", node.facts.name, rollout.version)
    };
    if used > due { taken.iter().map(|node| ("S12", text(node))).collect() } else { Vec::new() }
}

/// S12 again: a canary step is passed only if policy has it, its soak has begun and the approval that it needs is there, or where more nodes have
/// joined after the last one. The soak is over where the same plan gives slots, which have its time, and a node runs the version then, unless a
/// user has decided about the step. Of several steps that are passed at once, the first one is checked.
pub(super) fn check_passed(view: &ClusterView, policy: &Policy, plan: &Plan, new: &[&NodeView]) -> Option<Broken> {
    let operator = view.operator.as_ref()?;
    let is_new = |slot: &&Slot| new.iter().any(|node| node.facts.uid == slot.uid);
    let now = plan.slots.iter().flatten().find(is_new).map(|slot| slot.since);
    let is_open = |rollout: &&ActiveRollout| rollout.ended.is_none();
    plan.status.iter().flat_map(|status| &status.active_rollouts).filter(is_open).find_map(|rollout| {
        let mut recorded = operator.status.active_rollouts.iter().filter(is_open);
        let recorded = recorded.find(|recorded| key_of(recorded) == key_of(rollout))?;
        let (before, after) = (recorded.ledger.as_ref()?, rollout.ledger.as_ref()?);
        let base = usize::try_from(after.base).unwrap_or(0);
        if after.passed <= before.passed || rollout::has_outgrown(policy, before, base) {
            return None;
        }
        let due = rollout::due(policy, (base, base), before.passed);
        let step = due.and_then(|due| policy.canary.get(due.step));
        let own = due.and_then(|due| i64::try_from(due.step + 1).ok());
        let has_soaked = |step: &CanaryStep| {
            let is_over = |begun| now.is_none_or(|now| between(begun, now) >= step.soak);
            rollout.urgent_until.is_some() || recorded.step_done.is_some_and(is_over)
        };
        let taken = operator.status.requests.as_ref().and_then(|requests| requests.approve_step.as_ref());
        let is_pending = operator.approve_step.is_some() && operator.approve_step.as_ref() != taken;
        let is_approved = recorded.approved || is_pending;
        let is_decided =
            is_approved || rollout.urgent_until.is_some() || (own.is_some() && recorded.approved_step == own);
        let is_run = || is_decided || rollout::is_run(view, recorded);
        let may_pass = |step: &CanaryStep| {
            (step.soak.is_zero() || (has_soaked(step) && is_run())) && (!step.manual || is_approved)
        };
        if step.is_some_and(may_pass) {
            return None;
        }
        let text = "places count as passed, and no step of the policy is passed with them";
        broken("S12", format!("{} {text}: {}", after.passed, rollout.version))
    })
}

/// S13: while a rollout is braked, no node is given a slot, but one alone after a pause, and none where a node runs the version without
/// a proof. S12: until a node has proven the version, one goes alone.
pub(super) fn check_alone(view: &ClusterView, policy: &Policy, plan: &Plan, new: &[&NodeView]) -> Vec<Broken> {
    let total = |rollout: &ActiveRollout| {
        view.nodes.values().filter(|node| node.facts.labelled && is_member(node, rollout)).count()
    };
    let rollouts = plan.status.iter().flat_map(|status| &status.active_rollouts);
    let alone = rollouts.filter(|rollout| rollout.ended.is_none()).filter_map(|rollout| {
        let of_rollout = |slot: &&Slot| slot.update.as_ref().is_some_and(|update| ledger::is_of(update, rollout));
        let slots: Vec<&Slot> = plan.slots.iter().flatten().filter(of_rollout).collect();
        let given = slots.iter().find(|slot| new.iter().any(|node| node.facts.uid == slot.uid))?;
        let (recorded, now, of) = (rollout.ledger.as_ref()?, given.since, (view, policy));
        let of_kind = (total(rollout), usize::try_from(recorded.base).unwrap_or(0));
        // Attempts that have ended count, also where their slots are to be taken away yet.
        let (ledger, limit) = ended::foreseen(of, slots.iter().copied(), (rollout, recorded), of_kind, now);
        let braked = ledger.braked_until;
        let has_ended =
            |slot: &Slot| slot.update.as_ref().is_some_and(|update| ended::has_ended(of, slot, update, now));
        let goes = |slot: &&&Slot| !has_ended(slot) || ended::may_reboot_yet(view, policy, slot, now);
        let others = slots.iter().filter(goes).count().saturating_sub(1);
        let text = |why: &str| format!("{} is given a slot for {}, {why}", given.node, rollout.version);
        match braked {
            Some(until) if given.since < until => broken("S13", text("which is braked")),
            Some(_) if ledger.row.iter().any(|end| ledger::stops_trials((view, rollout), &ledger, end, limit)) => {
                broken("S13", text("which is braked by a node that runs it"))
            }
            Some(_) if others > 0 => broken("S13", text("which is braked, beside another node")),
            None if ledger.good() == 0 && others > 0 => {
                broken("S12", text("which no node has proven, beside another node"))
            }
            _ => None,
        }
    });
    alone.collect()
}

/// S13: in an unwell cluster no slot is given, but for a rollout that takes ill nodes off their version.
pub(super) fn check_unwell(view: &ClusterView, policy: &Policy, plan: &Plan, new: &[&NodeView]) -> Option<Broken> {
    let uid = &new.first()?.facts.uid;
    let now = plan.slots.iter().flatten().find(|slot| slot.uid == *uid)?.since;
    let unwell = Unwell::of(view, now);
    let ill = unwell.of_starts()?.ill;
    let urgency = Urgency::of(view, policy, now);
    let cures = |to: &Version, node: &NodeView| unwell.is_cured_by(&policy.target, node, to, urgency.applies(node, to));
    let goes = |node: &NodeView| {
        node.progress().is_some_and(|progress| !progress.mode().is_drill() && cures(&progress.version, node))
    };
    let held = new.iter().find(|node| !goes(node))?;
    broken("S13", format!("{} is given a slot while {ill} nodes have fallen ill at once", held.facts.name))
}
