//! The beginning of attempts on idle nodes.

use std::collections::{BTreeMap, BTreeSet};

use models::shadow::{Place, Step};

use super::assign::Assignment;
use super::planner::{NodeRequests, Planner};
use crate::decision::Action;
use crate::phase;
use crate::plan::order;
use crate::plan::slots::Budget;
use crate::survey::key::{self, KeyRef};
use crate::survey::rollout::Rollout;
use crate::survey::{SurveyedNode, ended};
use crate::wait::Wait;

/// Returns how many nodes there are of each rollout.
fn counted<'k>(nodes: impl Iterator<Item = KeyRef<'k>>) -> BTreeMap<KeyRef<'k>, usize> {
    let mut counts: BTreeMap<KeyRef<'k>, usize> = BTreeMap::new();
    nodes.for_each(|key| *counts.entry(key).or_default() += 1);
    counts
}

impl<'a> Planner<'a> {
    /// Lets requested drills begin: each before which, in the order of updates, fewer wait for their slots than nodes may be out
    /// of service, since updates leave such a node alone and its agent reports often. One that waits for room in its group or
    /// zone does not count.
    pub(super) fn begin_drills(
        &mut self,
        requested: Vec<(&'a SurveyedNode<'a>, Option<Action>)>,
        assignment: &Assignment<'a>,
        freezes: bool,
    ) {
        if requested.is_empty() {
            return;
        }
        let has_slot = |node: &SurveyedNode<'_>| assignment.slots.iter().any(|slot| slot.uid == node.facts.uid);
        let prepares = |node: &&SurveyedNode<'a>| {
            let drills = node.node.progress().is_some_and(|progress| progress.drill.is_some());
            drills && node.step.is_some_and(|step| step.place() == Place::Waiting) && !has_slot(node)
        };
        let prepared = self.survey.nodes.iter().filter(prepares).map(|node| (node, None));
        let mut drills: Vec<_> = requested.into_iter().chain(prepared).collect();
        order::rank(self.view, self.survey, &mut drills, self.now, |(node, _)| node);
        let most = self.policy.slots_among(self.survey.total);
        let (mut position, mut behind) = (0, None);
        for (node, begin) in drills {
            let refused = assignment.budget.refusal(self.policy, node);
            match (begin, refused) {
                (None, Some(_)) => continue,
                (None, None) => {}
                (Some(_), Some(refused)) => {
                    self.wait_in_turn(node, refused);
                    continue;
                }
                (Some(action), None) if position < most && !freezes => {
                    self.plan.actions.insert(node.facts.name.clone(), action);
                }
                (Some(_), None) => self.wait_in_turn(node, Wait::Queued { position, behind }),
            }
            (position, behind) = (position + 1, Some(node.facts.name.clone()));
        }
    }

    /// Lets idle nodes begin. Staging disrupts nothing, but without pre-staging it passes the same gates as a start:
    /// for the free slots, and as many nodes again. With it, it has a limit of its own.
    pub(super) fn begin(
        &mut self,
        requests: &NodeRequests<'a>,
        ready: &[&'a SurveyedNode<'a>],
        held_back: &[(KeyRef<'a>, &'a SurveyedNode<'a>)],
        mut budget: Budget<'a>,
    ) {
        let free = budget.free();
        let used_up = budget.used_up.clone();
        let busy = self.view.slots().next().map(|slot| ended::holder(self.view, self.policy, slot));
        let wanting: BTreeSet<usize> = requests.wanting.iter().map(|node| node.index).collect();
        // Nodes that have their image already are among the wanting ones, although no write has recorded it yet.
        let downloads = |n: &&SurveyedNode<'_>| n.step == Some(Step::Staging) && !wanting.contains(&n.index);
        let staging: Vec<&SurveyedNode<'a>> = self.survey.nodes.iter().filter(downloads).collect();
        let ahead = self.policy.pre_stage.as_ref();
        // A node that is staged, or about to be, will take room in its group and zone, and in its canary step if that
        // does not count it by itself: it counts those that it observes at work.
        let waiting = counted(held_back.iter().map(|(key, _)| *key));
        let unseen = requests.beginning.iter().map(|(node, version)| key::key(node.node, version));
        let staged = ready.iter().chain(held_back.iter().map(|(_, node)| node)).filter_map(|node| {
            let progress = node.node.update().filter(|progress| progress.step == Step::Staged)?;
            Some(key::key(node.node, &progress.version))
        });
        let mut begun = counted(staged.chain(unseen));
        let beginning = requests.beginning.iter().map(|(node, _)| node);
        ready.iter().chain(&staging).chain(beginning).for_each(|node| budget.take(node));
        // What is left beside nodes that wait behind one that goes alone: they take room from those of their own rollout only.
        let mut beside = budget.clone();
        held_back.iter().for_each(|(_, node)| beside.take(node));
        let room = match ahead {
            Some(limit) => limit.of(self.survey.total).saturating_sub(staging.len()),
            // A staged node that cannot be drained gives way: it does not count.
            None => (2 * free).saturating_sub(staging.len() + ready.len()),
        };
        let mut room = room.saturating_sub(requests.beginning.len());
        let mut before_it = staging.len() + ready.len() + requests.beginning.len();
        for (position, (node, version)) in requests.candidates.iter().enumerate() {
            let rollout = self.survey.rollouts.limiting(node, version).filter(|_| ahead.is_none());
            let key = key::key(node.node, version);
            let taken = begun.get(&key).copied().unwrap_or(0);
            let step_full = rollout.and_then(Rollout::room_to_begin).is_some_and(|step| taken >= step);
            if step_full && let Some(wait) = rollout.and_then(|rollout| rollout.wait.clone()) {
                self.wait_in_turn(node, wait);
                continue;
            }
            if ahead.is_none()
                && let Some(refused) =
                    if waiting.contains_key(&key) { &beside } else { &budget }.refusal(self.policy, node)
            {
                self.wait_in_turn(node, refused);
                continue;
            }
            // A released node has its image already: it would have a slot before those that still download theirs.
            let overtakes = order::was_released(node) && before_it >= free;
            let needs_no_room = ahead.is_none() && node.unavailable.is_some() && budget.free_for(node) > 0;
            let before = waiting.get(&key).copied().filter(|_| ahead.is_none()).unwrap_or(0);
            let begins = (room > before || needs_no_room) && !overtakes;
            let begin = self.context(node).filter(|_| begins).map(|ctx| phase::begin(&ctx, version));
            match begin {
                Some(action) => {
                    room = room.saturating_sub(1);
                    before_it += 1;
                    budget.take(node);
                    beside.take(node);
                    begun.insert(key, taken + 1);
                    self.plan.actions.insert(node.facts.name.clone(), action);
                }
                None => {
                    let before = position.checked_sub(1).and_then(|before| requests.candidates.get(before));
                    let before = before.map(|(node, _)| *node).or(requests.wanting.last().copied());
                    let behind = before.map(|node| node.facts.name.clone()).or_else(|| busy.clone());
                    let queued = Wait::Queued { position: position + requests.wanting.len(), behind };
                    self.wait_in_turn(node, used_up.clone().filter(|_| ahead.is_none()).unwrap_or(queued));
                }
            }
        }
    }
}
