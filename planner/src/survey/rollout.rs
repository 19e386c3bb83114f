//! The rollouts of versions, each to the nodes of one variant and architecture.

mod state;
mod step;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::{ActiveRollout, LedgerNode, RolloutLedger, RolloutRecord};
use models::shadow::Progress;
use semver::Version;

use self::state::counted;
use self::step::{Approval, Named, step_on};
use super::brake::{self, Brake};
use super::key::{Key, KeyRef, Targets, borrowed, is_member, key, key_of};
use super::ledger::{self, Memory};
use super::requests::pending_approval;
use super::urgency::Urgency;
use super::{ended, fallen, records, unavailable, want};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

pub(crate) use self::state::{Rollout, of_unknown_kind};
pub(crate) use self::step::{due, has_outgrown, is_run};

/// The number of rollouts that the operator's status keeps, those under way first.
const KEPT: usize = 8;

/// The highest number of rollouts that fit.
const MOST: usize = 64;

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

    /// The rollouts that are braked, the newest version's first, each with the reason of its nodes.
    pub(crate) fn braked(&self) -> Vec<(&Key, &Wait)> {
        let braked = self.by_key.iter().filter_map(|(key, rollout)| {
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

    /// The rollout of one version whose step a node needs a place of; `None` for one that keeps its place: it takes no second one.
    pub(crate) fn limiting(&self, node: &NodeView, version: &Version) -> Option<&Rollout> {
        let keeps_place = self.active(node, version).is_some_and(|active| ledger::keeps_place(node, active));
        self.of(node, version).filter(|_| !keeps_place)
    }

    /// The rollout of one version for nodes like this one.
    pub(crate) fn of(&self, node: &NodeView, version: &Version) -> Option<&Rollout> {
        // There are few of them.
        let wanted = key(node, version);
        self.by_key.iter().find(|(key, _)| borrowed(key) == wanted).map(|(_, rollout)| rollout)
    }
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
    let asked = pending_approval(operator);
    let approval = asked.map(|value| Approval::read(value)).unwrap_or_default();
    let urgency = Urgency::of(view, policy, now);
    let mut rollouts = Rollouts::default();
    let mut newest_first: Vec<&Key> = keys.iter().collect();
    newest_first.sort_by(|(_, _, a), (_, _, b)| b.cmp(a));
    for key in newest_first {
        let is_wanted = |node: &NodeView| targets.contains(&(node.facts.uid.as_str(), &key.2));
        let stored = &operator.status.active_rollouts;
        let (active, rollout, wake) = follow_one((view, policy), (key, stored), is_wanted, (&approval, &urgency), now);
        rollouts.wake = rollouts.wake.into_iter().chain(wake).min();
        rollouts.by_key.insert(key.clone(), rollout);
        rollouts.active.push(active);
    }
    rollouts.approval_taken = asked.is_some();
    let (over, wake) = over((view, policy), &operator.status.active_rollouts, (&rollouts, &keys), &urgency, now);
    rollouts.active.extend(over);
    let numbers = records::keep(view, policy, &mut rollouts.active, (&keys, &lacking), now);
    rollouts.count = numbers.highest;
    rollouts.wake = [rollouts.wake, wake, numbers.wake].into_iter().flatten().min();
    limit(view, &mut rollouts, &keys);
    set_numbers(&mut rollouts);
    rollouts
}

/// Follows one rollout, of which `all` may have the entry. Returns its entry and its state, and the time at which these may change.
fn follow_one(
    (view, policy): (&ClusterView, &Policy),
    (key @ (variant, arch, version), all): (&Key, &[ActiveRollout]),
    is_wanted: impl Fn(&NodeView) -> bool,
    (approval, urgency): (&Approval, &Urgency),
    now: Timestamp,
) -> (ActiveRollout, Rollout, Option<Timestamp>) {
    let stored = all.iter().find(|s| key_of(s) == *key && s.ended.is_none()).cloned();
    let same_kind = |stored: &ActiveRollout| (&stored.variant, &stored.arch) == (variant, arch);
    let memory = match &stored {
        Some(_) => Memory::Entry,
        None if all.iter().any(same_kind) => Memory::New,
        None => Memory::Nothing,
    };
    let begun = || ActiveRollout::new(version.clone(), variant.clone(), arch.clone(), now);
    let mut active = stored.unwrap_or_else(begun);
    follow_urgency(view, urgency, &mut active);
    let (mut ledger, fallen) = fallen::followed((view, policy), &active, memory, now);
    let (rollout, on_their_way) = counted((view, policy), &active, &ledger, &is_wanted, now);
    let named = Named::of(view, &active, (on_their_way, fallen.nodes), now);
    let (mut rollout, wake) = step_on(policy, &mut active, &mut ledger, approval, (rollout, named), now);
    let is_asked = |node: &NodeView| node.shadow.as_ref().is_some_and(|shadow| shadow.pending_retry().is_some());
    let is_retried = view.nodes.values().any(|node| {
        let is_on_its_way = || node.update().is_some_and(|progress| progress.version == *version);
        let asks = is_asked(node) && unavailable::kept_out(policy, &node.facts).is_none();
        asks && is_member(node, &active) && (is_wanted(node) || is_on_its_way())
    });
    rollout.brake = brake_of((view, policy), (&active, &mut ledger), (&rollout, is_retried), now);
    active.ledger = Some(ledger);
    let lifted = rollout.brake.as_ref().and_then(|brake| brake.wake);
    let wake = [wake, lifted, fallen.wake].into_iter().flatten().min();
    (active, rollout, wake)
}

/// Returns the entries of rollouts without a node, which stay for users to read. While no other version follows, a late node continues with the
/// steps that are passed; once one does, the earlier result no longer counts. The time is that at which they may change.
fn over(
    (view, policy): (&ClusterView, &Policy),
    all: &[ActiveRollout],
    (rollouts, keys): (&Rollouts, &BTreeSet<Key>),
    urgency: &Urgency,
    now: Timestamp,
) -> (Vec<ActiveRollout>, Option<Timestamp>) {
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
    let over = all.iter().filter(is_over).map(|stored| {
        let ended = stored.ended.or_else(|| followed(stored).then_some(now));
        let urgent_until = stored.urgent_until.filter(|until| urgency.until() == Some(*until));
        // A node may prove the version after the last one was updated, or go down before the next one may be.
        let follows = ended.is_none() && stored.ledger.is_some();
        let shown = follows.then(|| fallen::followed((view, policy), stored, Memory::Entry, now));
        let (mut ledger, wake) = match shown {
            Some((ledger, fallen)) => (Some(ledger), fallen.wake),
            None => (stored.ledger.clone(), None),
        };
        if let Some(ledger) = &mut ledger {
            // No node waits. If some are to take the version again, the row brakes the rollout again.
            ledger.brake(usize::MAX, now);
        }
        (ActiveRollout { ended, urgent_until, ledger, ..stored.clone() }, wake)
    });
    let (over, wakes): (Vec<ActiveRollout>, Vec<Option<Timestamp>>) = over.unzip();
    (over, wakes.into_iter().flatten().min())
}

/// Removes the entries that are too many for the status. One whose record runs is kept until the record has its end.
fn limit(view: &ClusterView, rollouts: &mut Rollouts, keys: &BTreeSet<Key>) {
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
}

/// Sets the numbers of the records, and of the steps due.
fn set_numbers(rollouts: &mut Rollouts) {
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
}

/// Returns the rollouts that go on although no node has their version as its target: a brake, and a step whose places are used up, with its soak
/// and what a user approves, while it is not known what the hosts of their nodes may have, as in an outage. Such a step, and what brakes a
/// rollout, also go on for hosts that are to have the version `later`.
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
    // It is braked, or may be from now on.
    let has_row = |rollout: &ActiveRollout| {
        let runs = rollout.ended.is_none() && rollout.record.as_ref().is_none_or(|record| record.ended.is_none());
        runs && rollout.ledger.as_ref().is_some_and(|ledger| !ledger.row.is_empty())
    };
    let goes_on = |rollout: &&ActiveRollout| {
        let is_full = is_full(rollout);
        let is_wanted_later = || (is_full || has_row(rollout)) && is_later(rollout);
        let may_be_wanted = || view.nodes.values().any(|node| may_want(node, policy, rollout, now));
        !is_followed(rollout) && (is_wanted_later() || ((is_full || rollout.is_braked()) && may_be_wanted()))
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
    let idle = node.progress().is_none() && ledger::may_lack(node, rollout, &policy.target);
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
    ledger::forget_resolved((view, policy), active, ledger, now);
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

#[cfg(test)]
mod tests;
