//! Canary steps: the number of nodes that may get a version before it has proven itself.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use models::operator::{ActiveRollout, CountOrPercent, LedgerNode, RolloutLedger, RolloutRecord};
use models::reason::Proof;
use models::shadow::{Place, Progress, Step, UPDATED};
use semver::Version;

use super::brake::{self, Brake, Busy};
use super::ended;
use super::fallen;
use super::key::{Key, KeyRef, Targets, borrowed, is_member, key, key_of, may_be_member};
use super::ledger::{self, Memory};
use super::quarantine::Quarantine;
use super::urgency::Urgency;
use super::want;
use crate::policy::{CanaryStep, Policy};
use crate::survey::records;
use crate::view::{ClusterView, NodeView};
use crate::wait::{Wait, not_ready};
use models::time::after;

/// The number of rollouts that the operator's status keeps, those under way first.
const KEPT: usize = 8;

/// The highest number of rollouts that fit.
const MOST: usize = 64;

/// The number of nodes that the reason of a canary step names.
const NAMED: usize = 3;

/// All rollouts: each target version is tried on its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rollouts {
    by_key: BTreeMap<Key, Rollout>,
    /// The rollouts for the operator's status.
    pub(crate) active: Vec<ActiveRollout>,
    /// The time at which that may change without another event.
    pub(crate) wake: Option<Timestamp>,
    /// True if the pending approval was applied, or had nothing to approve.
    pub(crate) approval_taken: bool,
    /// The highest number of a rollout, once it is known.
    pub(crate) count: Option<i64>,
}

impl Rollouts {
    /// The canary steps that only a user passes, the newest version's first.
    pub(crate) fn awaiting_approval(&self) -> Vec<Wait> {
        let waiting =
            self.by_key.iter().filter_map(|((_, _, version), rollout)| Some((version, rollout.wait.as_ref()?)));
        let mut approvals: Vec<_> = waiting.filter(|(_, wait)| wait.step().is_some()).collect();
        approvals.sort_by(|(a, _), (b, _)| b.cmp(a));
        approvals.into_iter().map(|(_, wait)| wait.clone()).collect()
    }

    /// The rollouts that are braked, the newest version's first, each with the reason of its nodes. A quarantine holds back more.
    pub(crate) fn braked(&self, quarantine: &Quarantine) -> Vec<(&Key, &Wait)> {
        let braked = self.by_key.iter().filter(|(key, _)| !quarantine.spent.contains_key(*key));
        let braked = braked.filter_map(|(key, rollout)| {
            let wait = &rollout.brake.as_ref()?.wait;
            matches!(wait, Wait::Braked { .. }).then_some((key, wait))
        });
        let mut braked: Vec<_> = braked.collect();
        braked.sort_by(|((_, _, a), _), ((_, _, b), _)| b.cmp(a));
        braked
    }

    /// The rollout of this variant, architecture and version.
    pub(crate) fn by_key(&self, key: &Key) -> Option<&Rollout> {
        self.by_key.get(key)
    }

    /// The entry in the operator's status of the rollout under way of one version for nodes like this one.
    pub(crate) fn active(&self, node: &NodeView, version: &Version) -> Option<&ActiveRollout> {
        let own =
            |active: &&ActiveRollout| active.ended.is_none() && active.version == *version && is_member(node, active);
        self.active.iter().find(own)
    }

    /// The rollout of one version whose step a node needs a place of; `None` for one that has a place: it takes no second one.
    pub(crate) fn limiting(&self, node: &NodeView, version: &Version) -> Option<&Rollout> {
        let has_place = self.active(node, version).is_some_and(|active| ledger::place(node, active).is_some());
        self.of(node, version).filter(|_| !has_place)
    }

    /// The rollout of one version for nodes like this one.
    pub(crate) fn of(&self, node: &NodeView, version: &Version) -> Option<&Rollout> {
        // There are few of them.
        let wanted = key(node, version);
        self.by_key.iter().find(|(key, _)| borrowed(key) == wanted).map(|(_, rollout)| rollout)
    }
}

/// The state of a rollout, and what it allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rollout {
    /// The number of places of the step due that no node has used up; `None`: as many as the budget allows.
    left: Option<usize>,
    /// The number of nodes without a place that are under way. One that waits with its image is not counted: it may have to
    /// wait for long.
    under_way: usize,
    /// The number of nodes without a place that are out of service for it, or have a slot.
    disrupted: usize,
    /// The nodes that have a slot for it, or are out of service for it.
    busy: Vec<Busy>,
    /// The brake, while it is braked or its first node goes alone.
    pub(crate) brake: Option<Brake>,
    /// The number of nodes that it has to update, those included that are, as its canary steps count them.
    pub(crate) base: usize,
    /// The number of nodes that may lack its version now, and of those that have used up a place.
    nodes: usize,
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

/// The name of a canary step in an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepName {
    /// The number of the rollout's record.
    rollout: i64,
    /// The places of the step.
    places: i64,
    /// True if places that are not proven are accepted.
    unproven: bool,
}

/// Returns the steps that an approval names: `<rollout>/<places>[/unproven]`, several with commas, and after an `@` what makes it
/// a new value. A name that cannot be read passes nothing.
fn named(value: &str) -> Vec<StepName> {
    let names = value.split_once('@').map_or(value, |(names, _)| names);
    let name = |name: &str| {
        let mut parts = name.trim().split('/');
        let (rollout, places) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let unproven = match (parts.next(), parts.next()) {
            (None, _) => false,
            (Some("unproven"), None) => true,
            _ => return None,
        };
        Some(StepName { rollout, places, unproven })
    };
    // A rollout whose record is not known yet has no name.
    names.split(',').filter_map(name).filter(|step| step.rollout > 0).collect()
}

/// A pending approval.
#[derive(Default)]
struct Approval {
    pending: bool,
    steps: Vec<StepName>,
}

impl Approval {
    /// Returns whether it passes this step, and if so, whether also with places that are not proven.
    fn of(&self, rollout: i64, places: i64) -> Option<bool> {
        let own = |step: &&StepName| (step.rollout, step.places) == (rollout, places);
        self.steps.iter().find(own).map(|step| step.unproven)
    }
}

/// Returns whether the operator has updated a node to the rollout's version since the rollout began.
fn done(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let last = node.record().and_then(|record| record.last.as_ref());
    last.is_some_and(|l| l.reason == UPDATED && l.version == rollout.version && l.ended >= rollout.started)
        && node.update().is_none()
}

/// Follows the rollouts. `wanted` are the nodes that have a target version and have not begun, with that version; `later` those whose hosts
/// are to choose it, or wait for their waves.
pub(crate) fn follow<'a>(
    view: &'a ClusterView,
    policy: &Policy,
    wanted: impl Iterator<Item = (&'a NodeView, &'a Version)>,
    later: impl Iterator<Item = (&'a NodeView, &'a Version)>,
    now: Timestamp,
) -> Rollouts {
    let Some(operator) = &view.operator else { return Rollouts::default() };
    let under_way = view.nodes.values().filter_map(|node| Some((node, &node.update()?.version)));
    let mut keys: BTreeSet<KeyRef<'_>> = BTreeSet::new();
    let mut last = None;
    let wanted: Vec<(&NodeView, &Version)> = wanted.collect();
    let targets: Targets<'_> = wanted.iter().map(|(node, version)| (node.facts.uid.as_str(), *version)).collect();
    for key in wanted.into_iter().chain(under_way).map(|(node, version)| key(node, version)) {
        // Most have the key of the one before.
        if last.replace(key) != Some(key) {
            keys.insert(key);
        }
    }
    let own = |(variant, arch, version): KeyRef<'_>| (variant.to_owned(), arch.to_owned(), version.clone());
    let mut keys: BTreeSet<Key> = keys.into_iter().map(own).collect();
    // A machine whose Node is gone, and which is waited for, is under way too.
    for slot in view.recorded_slots() {
        if let Some(update) = &slot.update
            && ended::kept_until(view, policy, slot).is_some_and(|until| until > now)
        {
            keys.insert((update.variant.clone(), update.arch.clone(), update.version.clone()));
        }
    }
    let later: Vec<(&NodeView, &Version)> = later.collect();
    // A host that has yet to take its lock, or whose wave has not come, lacks the version like a target.
    let mut lacking = targets.clone();
    lacking.extend(later.iter().map(|(node, version)| (node.facts.uid.as_str(), *version)));
    let later: BTreeSet<KeyRef<'_>> = later.into_iter().map(|(node, version)| key(node, version)).collect();
    keys.extend(going_on(view, &operator.status.active_rollouts, policy, &later, now));
    let pending = operator.approve_step.is_some()
        && !super::requests::is_new(operator)
        && operator.approve_step != operator.status.requests.as_ref().and_then(|r| r.approve_step.clone());
    let urgency = Urgency::of(view, policy, now);
    let asked = operator.approve_step.as_ref().filter(|_| pending);
    let approval = Approval { pending, steps: asked.map(|value| named(value)).unwrap_or_default() };
    let mut rollouts = Rollouts::default();
    let mut newest_first: Vec<&Key> = keys.iter().collect();
    newest_first.sort_by(|(_, _, a), (_, _, b)| b.cmp(a));
    for key @ (variant, arch, version) in newest_first {
        let stored = operator.status.active_rollouts.iter().find(|s| key_of(s) == *key && s.ended.is_none()).cloned();
        let same_kind = |stored: &ActiveRollout| (&stored.variant, &stored.arch) == (variant, arch);
        let memory = match &stored {
            Some(_) => Memory::Entry,
            None if operator.status.active_rollouts.iter().any(same_kind) => Memory::New,
            None => Memory::Nothing,
        };
        let begun = || ActiveRollout::new(version.clone(), variant.clone(), arch.clone(), now);
        let mut active = stored.unwrap_or_else(begun);
        follow_urgency(view, &urgency, &mut active);
        let mut ledger = ledger::of(view, &active, memory);
        let is_wanted = |node: &NodeView| targets.contains(&(node.facts.uid.as_str(), version));
        let (rollout, on_their_way) = counted((view, policy), &active, &ledger, is_wanted, now);
        let without_workloads = without_workloads(view, &active);
        let fallen = fallen::of(view, &active, now);
        // A repair may be about to replace them, and with them what they show about the version.
        fallen.lost.iter().for_each(|node| ledger.fall(node));
        let ready_again = fallen::ready_again(view, &active, now);
        let named = Named { on_their_way, without_workloads, fallen: fallen.nodes, ready_again };
        let (mut rollout, wake) = step_on(policy, &mut active, &mut ledger, &approval, (rollout, named), now);
        let is_asked = |node: &NodeView| node.shadow.as_ref().is_some_and(|shadow| shadow.pending_retry().is_some());
        let is_retried = view.nodes.values().any(|node| {
            let is_on_its_way = || node.update().is_some_and(|progress| progress.version == *version);
            is_asked(node) && is_member(node, &active) && (is_wanted(node) || is_on_its_way())
        });
        rollout.brake = brake_of((view, policy), (&active, &mut ledger), (&rollout, is_retried), now);
        active.ledger = Some(ledger);
        let lifted = rollout.brake.as_ref().and_then(|brake| brake.wake);
        rollouts.wake = [rollouts.wake, wake, lifted, fallen.wake].into_iter().flatten().min();
        rollouts.by_key.insert(key.clone(), rollout);
        rollouts.active.push(active);
    }
    rollouts.approval_taken = approval.pending;
    // Rollouts without a node stay for users to read. While no other version follows, a late node continues with the
    // steps that are passed; once one does, the earlier result no longer counts.
    let followed = |stored: &ActiveRollout| {
        let of_kind = |active: &&ActiveRollout| (&active.variant, &active.arch) == (&stored.variant, &stored.arch);
        let mut others = rollouts.active.iter().filter(of_kind).peekable();
        if others.peek().is_none() {
            return false;
        }
        // Places of an earlier rollout, and its nodes on their way, are from before. A node that is taken back to its version is not.
        let is_taken = |active: &ActiveRollout| {
            let has_slots = rollouts.by_key.get(&key_of(active)).is_some_and(|rollout| !rollout.busy.is_empty());
            let is_used = active.ledger.as_ref().is_some_and(|ledger| ledger.used() > 0);
            active.started >= stored.started && (has_slots || is_used)
        };
        others.any(is_taken)
            || has_gone_on(view, stored)
            || !view.nodes.values().any(|node| may_want(node, policy, stored, now))
    };
    // An earlier rollout of a version that is tried again stays until the history has the end of its record.
    let is_over = |stored: &&ActiveRollout| {
        !keys.contains(&key_of(stored)) || (stored.ended.is_some() && records::is_unended(view, stored))
    };
    let over = operator.status.active_rollouts.iter().filter(is_over).map(|stored| {
        let ended = stored.ended.or_else(|| followed(stored).then_some(now));
        let urgent_until = stored.urgent_until.filter(|until| urgency.until() == Some(*until));
        // A node may prove the version after the last one was updated.
        let follows = ended.is_none() && stored.ledger.is_some();
        let mut ledger = if follows { Some(ledger::of(view, stored, Memory::Entry)) } else { stored.ledger.clone() };
        if let Some(ledger) = &mut ledger {
            // No node waits. If some are to take the version again, the row brakes the rollout again.
            ledger.brake(usize::MAX, now);
        }
        ActiveRollout { ended, urgent_until, ledger, ..stored.clone() }
    });
    let over: Vec<ActiveRollout> = over.collect();
    rollouts.active.extend(over);
    let numbers = records::keep(view, policy, &mut rollouts.active, (&keys, &lacking), now);
    rollouts.count = numbers.highest;
    rollouts.wake = [rollouts.wake, numbers.wake].into_iter().flatten().min();
    // One whose record runs is kept until the record has its end.
    let mut room = KEPT.saturating_sub(rollouts.by_key.len());
    rollouts.active.retain(|active| {
        let needed = view.history.highest.is_none() || records::is_unended(view, active);
        let under_way = active.ended.is_none() && keys.contains(&key_of(active));
        // One that a single host has named leaves nothing to read.
        let empty = active.record.is_none() && active.ledger.as_ref().is_some_and(|ledger| ledger.used() == 0);
        let kept = needed || under_way || (room > 0 && !empty);
        room = room.saturating_sub(usize::from(!needed && !under_way));
        kept
    });
    rollouts.active.truncate(MOST);
    for active in rollouts.active.iter_mut().filter(|active| active.ended.is_none()) {
        let first = active.record.as_ref().map(RolloutRecord::first_number);
        if let (Some(ledger), Some(first)) = (&mut active.ledger, first) {
            // One that was rebuilt begins with the places that its nodes record.
            ledger.first = if ledger.first == 0 { first } else { ledger.first.min(first) };
        }
        if let Some(rollout) = rollouts.by_key.get_mut(&key_of(active)) {
            // An attempt that begins while a follow-up waits for its record is none of the record before it, which has ended.
            let running = active.record.as_ref().filter(|record| record.ended.is_none());
            rollout.number = running.map_or(0, |record| record.number);
            let due = active.ledger.as_ref().is_some_and(|ledger| ledger.due > 0);
            rollout.step = if due { active.steps_passed.saturating_add(1) } else { 0 };
        }
    }
    rollouts
}

/// Returns the rollouts that go on although no node has their version as its target: a brake, and a step whose places are used up, with its soak
/// and what a user approves, while it is not known what the hosts of their nodes may have, as in an outage. Such a step also goes on for
/// hosts that are to have the version `later`.
fn going_on(
    view: &ClusterView,
    stored: &[ActiveRollout],
    policy: &Policy,
    later: &BTreeSet<KeyRef<'_>>,
    now: Timestamp,
) -> Vec<Key> {
    let is_used = |other: &ActiveRollout| other.ledger.as_ref().is_some_and(|ledger| ledger.used() > 0);
    let is_followed = |rollout: &ActiveRollout| {
        let of_kind = |other: &&ActiveRollout| (&other.variant, &other.arch) == (&rollout.variant, &rollout.arch);
        let mut others = stored.iter().filter(of_kind);
        others.any(|other| other.started > rollout.started && other.ended.is_none() && is_used(other))
    };
    let is_full = |rollout: &ActiveRollout| rollout.approvable().is_some() && !has_gone_on(view, rollout);
    let is_later = |rollout: &ActiveRollout| later.contains(&(&*rollout.variant, &*rollout.arch, &rollout.version));
    let goes_on = |rollout: &&ActiveRollout| {
        let is_full = is_full(rollout);
        (is_full || rollout.is_braked())
            && !is_followed(rollout)
            && ((is_full && is_later(rollout)) || view.nodes.values().any(|node| may_want(node, policy, rollout, now)))
    };
    stored.iter().filter(goes_on).map(key_of).collect()
}

/// Returns whether a node was taken to another version since a rollout began: then its kind has gone on. An update that began before may take
/// until now.
fn has_gone_on(view: &ClusterView, rollout: &ActiveRollout) -> bool {
    let goes_on = |update: &Progress| update.version != rollout.version && update.started > rollout.started;
    let mut disrupted = view.nodes.values().filter(|node| node.disrupted() && is_member(node, rollout));
    disrupted.any(|node| node.update().is_some_and(goes_on))
}

/// Returns whether a node may still be updated to the version of a rollout, although it wants none now: it is not known what its host
/// may have, and policy does not rule the version out.
fn may_want(node: &NodeView, policy: &Policy, rollout: &ActiveRollout, now: Timestamp) -> bool {
    let Some(shadow) = node.shadow.as_ref().filter(|_| node.facts.labelled && is_member(node, rollout)) else {
        return false;
    };
    let host = want::Host { policy, known: &[], agent: &shadow.status.agent, now };
    let idle = node.progress().is_none() && node.is_behind(&rollout.version);
    idle && host.is_unknown() && host.ruled_out(&rollout.version, node.running().as_ref()).is_none()
}

/// Follows the brake of a rollout in its ledger, and returns it, or what lets the first node go alone. `is_retried` says that a user
/// requests to try one of its nodes.
fn brake_of(
    (view, policy): (&ClusterView, &Policy),
    (active, ledger): (&ActiveRollout, &mut RolloutLedger),
    (rollout, is_retried): (&Rollout, bool),
    now: Timestamp,
) -> Option<Brake> {
    brake::end_pause(ledger, brake::window_opens(view, policy, active, now), is_retried, now);
    let of_kind = (rollout.total, rollout.base);
    ledger::forget_resolved(view, active, ledger);
    ledger.brake(brake::limit_among(view, policy, ledger, of_kind), now);
    let (settled, limit) = ended::foreseen((view, policy), view.recorded_slots(), (active, ledger), of_kind, now);
    let runs = |end: &LedgerNode| ledger::stops_trials((view, active), &settled, end, limit);
    brake::of(&settled, &rollout.busy, runs, now).or_else(|| brake::first(&settled, &rollout.busy))
}

/// Notes the end of a rollout's urgency. A rollout stays urgent until that ends, also when its last node that lacks the
/// urgent version is updated.
fn follow_urgency(view: &ClusterView, urgency: &Urgency, active: &mut ActiveRollout) {
    let until = urgency.until().filter(|_| urgency.includes(&active.version));
    let lacking = |node: &NodeView| node.facts.labelled && urgency.applies(node, &active.version);
    let lacks = || view.nodes.values().any(|node| lacking(node) && is_member(node, active));
    active.urgent_until = until.filter(|until| active.urgent_until == Some(*until) || lacks());
}

/// Counts the nodes of a rollout. Returns it with those that are under way, the first few.
fn counted(
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
        if ended::has_ended((view, policy), slot, update, now) {
            continue;
        }
        let node = ended::holder(view, policy, slot);
        if ended::kept_until(view, policy, slot).is_some() && on_their_way.len() < NAMED {
            on_their_way.push(node.clone());
        }
        rollout.busy.push(Busy { node, since: Some(slot.since) });
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
        let named = || ledger.nodes.iter().any(|named| named.node == node.facts.name && named.proof != Proof::Free);
        let counted = place.is_some() || named();
        seen += usize::from(counted);
        let is_of_rollout = counted || progress.is_some();
        rollout.base += usize::from(is_of_rollout || (node.facts.labelled && lacks));
        rollout.nodes += usize::from(is_of_rollout || (node.facts.labelled && !runs));
        let Some(progress) = progress else { continue };
        let disrupted = node.disrupted() || slot.is_some();
        let moves = progress.step != Step::Staged || disrupted;
        // Those with a slot that says so are counted above.
        if disrupted && slot != Some(true) && progress.step.place() != Place::Over {
            rollout.busy.push(Busy { node: node.facts.name.clone(), since: None });
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
    rollout.nodes += gone + of_unknown_kind(view, active);
    let fixed = usize::try_from(ledger.base).unwrap_or(0);
    if fixed > 0 && rollout.base <= fixed.saturating_mul(2) {
        rollout.base = fixed;
    }
    (rollout, on_their_way)
}

/// Returns the number of nodes that may be left of a rollout although their kind is not known: they or their shadows cannot be read, or
/// their agents have not reported yet.
pub(crate) fn of_unknown_kind(view: &ClusterView, rollout: &ActiveRollout) -> usize {
    let may_be_left =
        |node: &&NodeView| node.facts.labelled && may_be_member(node, rollout) && !ledger::runs(node, rollout);
    view.unreadable.nodes.len() + view.nodes.values().filter(may_be_left).count()
}

/// Returns the places of each canary step, with those of the steps before it: shares are of all nodes that the rollout has to
/// update, and round up.
fn places(policy: &Policy, base: usize) -> Vec<i64> {
    let mut before = 0;
    let places = policy.canary.iter().map(|step| {
        let own = step.nodes.rounded_up(base).unwrap_or(1);
        before = i64::try_from(own).unwrap_or(i64::MAX).max(before + 1);
        before
    });
    places.collect()
}

/// The places of a canary step, with those of the steps before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepPlaces {
    /// The index of the step.
    pub(crate) step: usize,
    /// The share of all nodes that the rollout has to update.
    pub(crate) share: i64,
    /// The share of those that are left, and no more than that.
    pub(crate) due: i64,
}

/// Returns the places of the first step above those that are passed; `None` after the last one. Of `base` there may be so few `nodes` left that
/// all of them fit into the step as it was, and it would never be full.
pub(crate) fn due(policy: &Policy, (base, nodes): (usize, usize), passed: i64) -> Option<StepPlaces> {
    let (step, share) = places(policy, base).into_iter().enumerate().find(|(_, share)| *share > passed)?;
    let due = places(policy, nodes).get(step).copied()?.min(share);
    Some(StepPlaces { step, share, due })
}

/// Returns whether a step is due again among so many nodes after the last one was passed among as many as the ledger has.
pub(crate) fn has_outgrown(policy: &Policy, ledger: &RolloutLedger, base: usize) -> bool {
    let is_due = |base| due(policy, (base, base), ledger.passed).is_some();
    ledger.due == 0 && is_due(base) && !is_due(usize::try_from(ledger.base).unwrap_or(0))
}

/// Returns the first few nodes that have failed, or whose places are neither proven nor accepted, each with the end of its attempt.
fn without_proof(ledger: &RolloutLedger, failed: bool) -> Vec<String> {
    let named = ledger.nodes.iter().filter(|node| (node.proof == Proof::Failed) == failed && !node.accepted);
    named.take(NAMED).map(ToString::to_string).collect()
}

/// Returns the first few of the nodes that are not Ready which no user has accepted.
fn not_accepted(ledger: &RolloutLedger, fallen: &[String]) -> Vec<String> {
    let is_accepted = |name: &&String| ledger.nodes.iter().any(|node| node.node == **name && node.accepted);
    fallen.iter().filter(|name| !is_accepted(name)).take(NAMED).map(|name| not_ready(name)).collect()
}

/// Returns the first few nodes that have proven the version of a rollout without any pods of workloads.
fn without_workloads(view: &ClusterView, active: &ActiveRollout) -> Vec<String> {
    let proven = |node: &&NodeView| ledger::place(node, active) == Some(Proof::Proven);
    let alone = |node: &&NodeView| node.record().is_some_and(|record| record.without_workloads);
    let nodes = view.nodes.values().filter(proven).filter(alone);
    nodes.take(NAMED).map(|node| node.facts.name.clone()).collect()
}

/// Nodes that the reason of a canary step may name, and the time from which those in its soak have been Ready again.
struct Named {
    on_their_way: Vec<String>,
    without_workloads: Vec<String>,
    fallen: Vec<String>,
    ready_again: Option<Timestamp>,
}

/// Returns the index of the step due, whose places the ledger has then; `None` after the last one.
fn step_due(
    policy: &Policy,
    active: &mut ActiveRollout,
    ledger: &mut RolloutLedger,
    rollout: &Rollout,
) -> Option<usize> {
    let due = due(policy, (rollout.base, rollout.nodes), ledger.passed);
    let passed = due.map_or(policy.canary.len(), |due| due.step);
    let count = i64::try_from(passed).unwrap_or(i64::MAX);
    if count < active.steps_passed {
        // A step that is due again is to be approved again.
        active.approved_step = active.approved_step.filter(|step| *step <= count);
    }
    active.steps_passed = count;
    let share = due.map_or(0, |due| due.share);
    // An earlier version of the operator recorded no share: its places were that.
    let before = if ledger.share == 0 { ledger.due } else { ledger.share };
    let first = ledger.due == 0 && active.ledger.is_none();
    // Fewer nodes were there for a moment, or policy has other places for the same share.
    let outgrown = due.is_some_and(|due| due.due > ledger.due.saturating_mul(2));
    if (share != before || outgrown) && !first {
        // Another step, or a change of this one: an approval and a soak are for one step as it was.
        (active.step_done, active.approved) = (None, false);
    }
    // Other places that are used up stay as they are: nodes that come by day and go by night would begin each soak again.
    if share != before || outgrown || ledger.used() < ledger.due {
        // So do those of nodes that are on their way.
        let taken = ledger.used().saturating_add(i64::try_from(rollout.disrupted).unwrap_or(i64::MAX));
        ledger.due = due.map_or(0, |due| due.due.max(taken).min(due.share));
    }
    ledger.share = share;
    due.map(|due| due.step)
}

/// Passes the canary step due, the one of this index.
fn pass(policy: &Policy, step: usize, rollout: &mut Rollout, ledger: &mut RolloutLedger) {
    if ledger.due < ledger.share {
        // Few nodes have passed it for those that are left alone: with more than twice as many it is due again.
        rollout.base = rollout.base.min(rollout.nodes);
    }
    ledger.passed = places(policy, rollout.base).get(step).copied().unwrap_or(ledger.share);
}

/// Advances a rollout by as many canary steps as are passed.
fn step_on(
    policy: &Policy,
    active: &mut ActiveRollout,
    ledger: &mut RolloutLedger,
    approval: &Approval,
    (mut rollout, named): (Rollout, Named),
    now: Timestamp,
) -> (Rollout, Option<Timestamp>) {
    let steps = places(policy, rollout.base);
    if active.ledger.is_none() {
        // Of an earlier version of the operator, which counted steps.
        let passed = usize::try_from(active.steps_passed).ok().and_then(|passed| passed.checked_sub(1));
        ledger.passed = passed.and_then(|last| steps.get(last).or(steps.last())).copied().unwrap_or(0);
    }
    if active.ledger.is_none() {
        // No node was taken beyond a step before it was passed. A share may have been one of more nodes than there are now.
        let margin = |step: &CanaryStep| if matches!(step.nodes, CountOrPercent::Count(_)) { 1 } else { 2 };
        let beyond = |(step, places): &(&CanaryStep, &i64)| places.saturating_mul(margin(step)) < ledger.good();
        let passed = policy.canary.iter().zip(&steps).filter(beyond).map(|(_, places)| *places).max();
        ledger.passed = ledger.passed.max(passed.unwrap_or(0));
        ledger.keep_passed();
    } else if has_outgrown(policy, ledger, rollout.base) {
        // Proven places open no step again: the first one above the places that are used is due. A policy without steps, or with fewer of
        // them, passes none: they may be back in a moment.
        ledger.passed = ledger.passed.max(ledger.good());
    }
    let number = active.number();
    let used = ledger.used();
    let mut approval_used = false;
    loop {
        let due = step_due(policy, active, ledger, &rollout);
        let places = ledger.due;
        let Some((passed, step)) = due.and_then(|due| Some((due, policy.canary.get(due)?))) else {
            (active.step_done, active.approved) = (None, false);
            rollout.left = None;
            return (rollout, None);
        };
        let own = passed + 1;
        let name = active.step_name(places);
        let waits = |until, approval, nodes| Some(Wait::CanaryStep { step: own, until, approval, nodes });
        rollout.left = Some(usize::try_from(places.saturating_sub(used)).unwrap_or(0));
        // An approval is for what its user has seen: a step whose places are used up.
        let (given, full) = (approval.of(number, places).filter(|_| !approval_used), used >= places);
        if given == Some(true) && full && ledger.failed == 0 && ledger.open() > 0 {
            ledger.accept();
            active.approved_step = i64::try_from(own).ok();
        }
        if ledger.good_for(active.urgent_until.is_some()) < places {
            // An approval stays for the places that its user has seen: a node that was not Ready for a time may be back in a moment.
            active.step_done = None;
            active.approved &= full && ledger.nodes.iter().any(|node| node.has_fallen() && !node.accepted);
            rollout.wait = if full && ledger.failed > 0 {
                Some(Wait::StepFailed { step: own, nodes: without_proof(ledger, true) })
            } else if full && ledger.open() > 0 {
                let nodes = without_proof(ledger, false);
                Some(Wait::StepUnproven { step: own, approval: format!("{name}/unproven"), nodes })
            } else {
                waits(None, None, named.on_their_way)
            };
            return (rollout, None);
        }
        if step.manual && given.is_some() {
            (active.approved, active.approved_step) = (true, i64::try_from(own).ok());
        }
        let since = active.step_done.map_or(now, |since| named.ready_again.map_or(since, |again| again.max(since)));
        active.step_done = Some(since);
        let until = if active.urgent_until.is_some() { since } else { after(since, step.soak) };
        if now < until {
            (rollout.left, rollout.wait) = (Some(0), waits(Some(until), None, Vec::new()));
            return (rollout, Some(until));
        }
        if step.manual && !active.approved {
            (rollout.left, rollout.wait) = (Some(0), waits(None, Some(name), named.without_workloads));
            return (rollout, None);
        }
        // A user has decided otherwise where one approves the step, or has the version taken urgently.
        let fallen = not_accepted(ledger, &named.fallen);
        if !step.manual && active.urgent_until.is_none() && !fallen.is_empty() {
            (rollout.left, rollout.wait) = (Some(0), waits(None, None, fallen));
            return (rollout, None);
        }
        pass(policy, passed, &mut rollout, ledger);
        // The next step may have as many places, and the same share: nothing of this one is for it.
        approval_used |= given.is_some();
        (active.step_done, active.approved, ledger.due, ledger.share) = (None, false, 0, 0);
    }
}

#[cfg(test)]
mod tests;
