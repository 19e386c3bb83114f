//! Canary steps: the number of nodes that may get a version before it has proven itself.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use jiff::Timestamp;
use models::operator::ActiveRollout;
use models::shadow::{Step, UPDATED};
use semver::Version;

use super::key::{KeyRef, borrowed, key, key_of};
use super::urgency::Urgency;
use crate::policy::Policy;
use crate::survey::key::Key;
use crate::survey::records;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;
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
    /// The canary step that only an approval passes, the newest version's first: that is the one that the next approval
    /// is for.
    pub(crate) fn awaiting_approval(&self) -> Option<&Wait> {
        let waiting =
            self.by_key.iter().filter_map(|((_, _, version), rollout)| Some((version, rollout.wait.as_ref()?)));
        let approvals = waiting.filter(|(_, wait)| matches!(wait, Wait::CanaryStep { approval: true, .. }));
        approvals.max_by_key(|(version, _)| *version).map(|(_, wait)| wait)
    }

    /// The rollout of this variant, architecture and version.
    pub(crate) fn by_key(&self, key: &Key) -> Option<&Rollout> {
        self.by_key.get(key)
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
    /// The number of nodes that may be under way at a time for the step due; `None`: as many as the budget allows.
    left: Option<usize>,
    /// The number of nodes under way. One that waits with its image is not counted: it may have to wait for long.
    under_way: usize,
    /// The number of nodes that are out of service for it, or have a slot.
    disrupted: usize,
    /// The reason why no more may start, if none may.
    pub(crate) wait: Option<Wait>,
    /// The number of its record in the history; 0 while that is not known.
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

    /// The number of staged nodes that may still be taken out of service.
    pub(crate) fn room_for_slots(&self) -> Option<usize> {
        self.left.map(|left| left.saturating_sub(self.disrupted))
    }
}

/// A pending approval: it passes one step of one version, for all kinds of nodes that wait for it.
#[derive(Default)]
struct Approval {
    pending: bool,
    /// The version and the step that it passes.
    given: Option<(Version, usize)>,
}

impl Approval {
    fn take(&mut self, version: &Version, step: usize) -> bool {
        let asks = (version.clone(), step);
        if !self.pending || self.given.as_ref().is_some_and(|given| *given != asks) {
            return false;
        }
        self.given = Some(asks);
        true
    }
}

/// Returns whether the operator has updated a node to the rollout's version since the rollout began.
fn done(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let last = node.record().and_then(|record| record.last.as_ref());
    last.is_some_and(|l| l.reason == UPDATED && l.version == rollout.version && l.ended >= rollout.started)
        && node.update().is_none()
}

/// Follows the rollouts. `wanted` are the nodes that have a target version and have not begun, with that version.
pub(crate) fn follow<'a>(
    view: &'a ClusterView,
    policy: &Policy,
    wanted: impl Iterator<Item = (&'a NodeView, &'a Version)>,
    now: Timestamp,
) -> Rollouts {
    let Some(operator) = &view.operator else { return Rollouts::default() };
    let under_way = view.nodes.values().filter_map(|node| Some((node, &node.update()?.version)));
    let mut keys: BTreeSet<KeyRef<'_>> = BTreeSet::new();
    let mut last = None;
    for key in wanted.chain(under_way).map(|(node, version)| key(node, version)) {
        // Most have the key of the one before.
        if last.replace(key) != Some(key) {
            keys.insert(key);
        }
    }
    let own = |(variant, arch, version): KeyRef<'_>| (variant.to_owned(), arch.to_owned(), version.clone());
    let keys: BTreeSet<Key> = keys.into_iter().map(own).collect();
    let pending = operator.approve_step.is_some()
        && !super::requests::is_new(operator)
        && operator.approve_step != operator.status.requests.as_ref().and_then(|r| r.approve_step.clone());
    let urgency = Urgency::of(view, policy, now);
    let mut approval = Approval { pending, ..Approval::default() };
    let mut rollouts = Rollouts::default();
    // An approval is for one step: the newest version's first.
    let mut newest_first: Vec<&Key> = keys.iter().collect();
    newest_first.sort_by(|(_, _, a), (_, _, b)| b.cmp(a));
    for key @ (variant, arch, version) in newest_first {
        let stored = operator.status.active_rollouts.iter().find(|s| key_of(s) == *key && s.ended.is_none()).cloned();
        let mut active = stored.unwrap_or_else(|| ActiveRollout {
            version: version.clone(),
            variant: variant.clone(),
            arch: arch.clone(),
            started: now,
            steps_passed: 0,
            step_done: None,
            approved: false,
            ended: None,
            approved_step: None,
            urgent_until: None,
            estimated_completion: None,
            record: None,
        });
        follow_urgency(view, &urgency, &mut active);
        let (rollout, wake) = step_on(view, policy, &mut active, &mut approval, now);
        rollouts.wake = [rollouts.wake, wake].into_iter().flatten().min();
        rollouts.by_key.insert(key.clone(), rollout);
        rollouts.active.push(active);
    }
    rollouts.approval_taken = approval.pending;
    // Rollouts without a node stay for users to read. While no other version follows, a late node continues with the
    // steps that are passed; once one does, the earlier result no longer counts.
    let followed = |stored: &ActiveRollout| keys.iter().any(|(v, a, _)| (v, a) == (&stored.variant, &stored.arch));
    let over = operator.status.active_rollouts.iter().filter(|stored| !keys.contains(&key_of(stored))).map(|stored| {
        let ended = stored.ended.or_else(|| followed(stored).then_some(now));
        let urgent_until = stored.urgent_until.filter(|until| urgency.until() == Some(*until));
        ActiveRollout { ended, urgent_until, ..stored.clone() }
    });
    rollouts.active.extend(over);
    rollouts.count = records::keep(view, policy, &mut rollouts.active, &keys, now);
    // One whose record runs is kept until the record has its end.
    let mut room = KEPT.saturating_sub(rollouts.by_key.len());
    rollouts.active.retain(|active| {
        let number = active.record.as_ref().map(|record| record.number);
        let runs = active.record.as_ref().is_some_and(|record| record.ended.is_none());
        let needed = runs
            || view.history.highest.is_none()
            || number.is_some_and(|number| view.history.running.contains(&number));
        let under_way = active.ended.is_none() && keys.contains(&key_of(active));
        let kept = needed || under_way || room > 0;
        room = room.saturating_sub(usize::from(!needed && !under_way));
        kept
    });
    rollouts.active.truncate(MOST);
    for active in rollouts.active.iter().filter(|active| active.ended.is_none()) {
        if let Some(rollout) = rollouts.by_key.get_mut(&key_of(active)) {
            rollout.number = active.record.as_ref().map_or(0, |record| record.number);
            let due = usize::try_from(active.steps_passed).is_ok_and(|passed| passed < policy.canary.len());
            rollout.step = if due { active.steps_passed.saturating_add(1) } else { 0 };
        }
    }
    rollouts
}

/// Notes the end of a rollout's urgency. A rollout stays urgent until that ends, also when its last node that lacks the
/// urgent version is updated.
fn follow_urgency(view: &ClusterView, urgency: &Urgency, active: &mut ActiveRollout) {
    let until = urgency.until().filter(|_| urgency.includes(&active.version));
    let own = key_of(active);
    let lacking = |node: &NodeView| node.facts.labelled && urgency.applies(node, &active.version);
    let lacks = || view.nodes.values().any(|node| lacking(node) && key(node, &active.version) == borrowed(&own));
    active.urgent_until = until.filter(|until| active.urgent_until == Some(*until) || lacks());
}

/// Advances a rollout by as many canary steps as are passed.
fn step_on(
    view: &ClusterView,
    policy: &Policy,
    active: &mut ActiveRollout,
    approval: &mut Approval,
    now: Timestamp,
) -> (Rollout, Option<Timestamp>) {
    let own = key_of(active);
    let mut rollout = Rollout::default();
    // A node with a slot is about to be taken out of service.
    let slots: HashSet<&str> = view.slots().map(|slot| slot.uid.as_str()).collect();
    let mut on_their_way = Vec::new();
    for node in view.nodes.values().filter(|node| key(node, &active.version) == borrowed(&own)) {
        rollout.total += usize::from(node.facts.labelled);
        rollout.finished += usize::from(node.facts.labelled && done(node, active));
        let Some(progress) = node.update().filter(|progress| progress.version == active.version) else { continue };
        let disrupted = node.disrupted() || slots.contains(node.facts.uid.as_str());
        let moves = progress.step != Step::Staged || disrupted;
        rollout.under_way += usize::from(moves);
        rollout.disrupted += usize::from(disrupted);
        if moves && on_their_way.len() < NAMED {
            let state = if node.facts.ready { "" } else { " (not Ready)" };
            on_their_way.push(format!("{}{state}", node.facts.name));
        }
    }
    let Rollout { total, finished, .. } = rollout;
    loop {
        let passed = usize::try_from(active.steps_passed).unwrap_or(0);
        let Some(step) = policy.canary.get(passed) else {
            (active.step_done, active.approved) = (None, false);
            return (rollout, None);
        };
        let waits = |until, approval, nodes| Some(Wait::CanaryStep { step: passed + 1, until, approval, nodes });
        let nodes = step.nodes.of(total).unwrap_or(1);
        if finished < nodes {
            active.step_done = None;
            (rollout.left, rollout.wait) = (Some(nodes - finished), waits(None, false, on_their_way));
            return (rollout, None);
        }
        let since = *active.step_done.get_or_insert(now);
        let until = if active.urgent_until.is_some() { since } else { after(since, step.soak) };
        if step.manual && !active.approved {
            // For this step, which soaks or waits for it, and for no other.
            active.approved = approval.take(&active.version, passed);
            if active.approved {
                active.approved_step = i64::try_from(passed + 1).ok();
            }
        }
        if now < until {
            (rollout.left, rollout.wait) = (Some(0), waits(Some(until), false, Vec::new()));
            return (rollout, Some(until));
        }
        if step.manual && !active.approved {
            (rollout.left, rollout.wait) = (Some(0), waits(None, true, Vec::new()));
            return (rollout, None);
        }
        active.steps_passed += 1;
        (active.step_done, active.approved) = (None, false);
    }
}

#[cfg(test)]
mod tests;
