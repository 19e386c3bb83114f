//! The whole fleet: the next nodes, within the budget.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::Slot;
use models::shadow::{ControllerStatus, Step, VersionFailure};
use semver::Version;

use super::attempt;
use super::context::{NodeContext, after};
use super::rollout::{self, Rollout};
use super::slots::Budget;
use super::survey::Survey;
use super::{
    Action, Decision, Plan, Quarantine, Verdict, Wait, evictions, gates, labels, order, report, shadows, slots,
};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView, Standby};

/// The number of candidates beyond the free slots whose pods are checked, so that one that cannot be drained gives way
/// to the next at once. A refused one is checked again after a pause, since checking all would cost a watch a node.
const MARGIN: usize = 2;

/// The time for which the leader's own node waits for a node that has a slot. One that takes longer, for example
/// because its drain is blocked or a user holds it, delays it no more.
const OTHERS_FIRST: Duration = Duration::from_secs(10 * 60);

/// The result for the leader's own node when it is next.
enum OwnTurn {
    /// It gets a slot like any other.
    Slot,
    /// Another replica leads first.
    HandOver,
    /// Others are being updated, or checked.
    Later,
}

/// A plan under construction.
struct Planner<'a> {
    view: &'a ClusterView,
    policy: &'a Policy,
    survey: Survey<'a>,
    held: BTreeMap<&'a str, &'a Slot>,
    now: Timestamp,
    plan: Plan,
}

/// The requests of the nodes, each for itself.
#[derive(Default)]
struct Asked<'a> {
    /// Idle nodes that may begin.
    candidates: Vec<(&'a NodeView, Version)>,
    /// Staged nodes that may be disrupted.
    wanting: Vec<&'a NodeView>,
    /// Nodes that begin, of which the first write is under way or not observed yet.
    beginning: Vec<(&'a NodeView, Version)>,
    wants_slot: BTreeSet<&'a str>,
    /// Failures whose record is about to be written.
    pending: Vec<(&'a str, Vec<VersionFailure>)>,
}

/// Makes the plan.
pub fn plan(view: &ClusterView, policy: &Policy, now: Timestamp) -> Plan {
    if view.stale {
        // An earlier leader may have changed what is not observed yet.
        return Plan::default();
    }
    let held = view.slots().map(|slot| (slot.uid.as_str(), slot)).collect();
    let survey = Survey::of(view, policy, now);
    Planner { view, policy, survey, held, now, plan: Plan::default() }.make()
}

impl<'a> Planner<'a> {
    fn make(mut self) -> Plan {
        self.plan.shadows = shadows::changes(self.view, self.policy);
        self.plan.labels = labels::labels(self.view, self.policy);
        let mut asked = self.ask();
        let held_back_until = evictions::hold_back(self.view, &mut self.plan.evictions, self.now);
        self.wake(held_back_until);
        let freezes = self.freeze(&asked);
        let survey = &self.survey;
        asked.wanting.sort_by_key(|node| order::key(self.view, survey, node));
        asked
            .candidates
            .sort_by(|(a, _), (b, _)| order::key(self.view, survey, a).cmp(&order::key(self.view, survey, b)));

        let mut slots = slots::kept(self.view, &self.held, &asked.wants_slot, self.now);
        let mut budget = Budget::of(self.view, &self.survey, &slots);
        if freezes {
            budget.close();
        }
        let before = budget.clone();
        let ready = self.give_slots(&asked.wanting, &mut budget, &mut slots);
        self.begin(&asked, &ready, before);
        self.report(slots);
        self.plan
    }

    fn context(&self, node: &'a NodeView) -> Option<NodeContext<'_>> {
        let shadow = node.shadow.as_ref()?;
        let slot = self.held.contains_key(node.facts.uid.as_str());
        let Self { view, policy, survey, now, .. } = self;
        Some(NodeContext { view, node, shadow, policy, survey, now: *now, slot })
    }

    fn wake(&mut self, at: Option<Timestamp>) {
        self.plan.wake = earliest(self.plan.wake, at);
    }

    fn wait(&mut self, node: &NodeView, wait: Wait) {
        self.wake(wait.ends());
        self.plan.waits.insert(node.facts.name.clone(), wait);
    }

    /// Collects the next step of each node.
    fn ask(&mut self) -> Asked<'a> {
        let view = self.view;
        let mut asked = Asked::default();
        for (name, node) in &view.nodes {
            let decision = match self.context(node) {
                Some(ctx) => attempt::decide(&ctx),
                None if node.facts.labelled => Decision::wait(Wait::NoShadow),
                None => Decision::wait(Wait::NotLabelled),
            };
            if decision.pods {
                self.plan.pods.insert(name.clone());
            }
            self.wake(decision.wake);
            self.plan.expressions.extend(decision.expressions);
            if let Verdict::Act(Action::Status { status, .. }) = &decision.verdict
                && let Some(record) = &status.report.record
            {
                asked.pending.push((name, record.version_failures.clone()));
            }
            if let Some(evictions) = decision.evictions
                && !view.busy.contains(name)
            {
                self.plan.evictions.insert(name.clone(), evictions);
            }
            if slots::makes_use(&decision.verdict) {
                asked.wants_slot.insert(name);
            }
            match decision.verdict {
                Verdict::WantsSlot => asked.wanting.push(node),
                verdict if view.busy.contains(name) => {
                    if let Verdict::Candidate(version) = verdict
                        && !view.paused.contains(name)
                    {
                        asked.beginning.push((node, version));
                    }
                    self.wait(node, Wait::Acting);
                }
                Verdict::Act(action) => {
                    self.plan.actions.insert(name.clone(), action);
                }
                Verdict::Wait(wait) => self.wait(node, wait),
                Verdict::Candidate(version) => asked.candidates.push((node, version)),
            }
        }
        asked
    }

    /// Counts failures whose record is about to be written: nothing starts beside the write that freezes.
    fn freeze(&mut self, asked: &Asked<'_>) -> bool {
        if asked.pending.is_empty() || self.survey.quarantine.frozen_by().is_some() {
            return false;
        }
        let quarantine = Quarantine::with(self.view, self.policy.max_failures, &asked.pending);
        let Some(version) = quarantine.frozen_by().cloned() else { return false };
        let starting: Vec<_> =
            self.plan.actions.iter().filter(|(_, a)| Plan::starts(a)).map(|(n, _)| n.clone()).collect();
        for name in starting {
            self.plan.actions.remove(&name);
            self.plan.waits.insert(name, Wait::Frozen { version: version.clone() });
        }
        true
    }

    /// Returns whether a node was refused recently, so that it need not be checked again. The results of expressions
    /// are known without a check.
    fn left_alone(&self, node: &NodeView) -> bool {
        let Some(refused) = node.refused.as_ref().filter(|refused| refused.again_at > self.now) else { return false };
        !matches!(refused.wait, Wait::ExpressionFires { .. } | Wait::ExpressionFails { .. })
            || self.context(node).and_then(|ctx| gates::expression(&ctx)).is_some()
    }

    /// Gives the free slots to the first nodes that may have one. Returns those that wait only for a slot: the others
    /// give way, and nodes may be staged in their place.
    fn give_slots(
        &mut self,
        wanting: &[&'a NodeView],
        budget: &mut Budget<'a>,
        slots: &mut Vec<Slot>,
    ) -> Vec<&'a NodeView> {
        let free_at_first = budget.free();
        let used_up = budget.used_up().cloned();
        let busy = slots.first().map(|slot| slot.node.clone());
        let mut given = BTreeMap::new();
        let places = if free_at_first > 0 { free_at_first + MARGIN } else { 0 };
        let left_alone: BTreeSet<&str> =
            wanting.iter().filter(|node| self.left_alone(node)).map(|node| node.facts.name.as_str()).collect();
        // If there are places enough, refused nodes are still watched, and continue as soon as they can.
        let mut spare = places.saturating_sub(wanting.len() - left_alone.len());
        let (mut looked_at, mut ready, mut looking) = (0, Vec::new(), false);
        for (position, node) in wanting.iter().copied().enumerate() {
            let name = &node.facts.name;
            if self.held.contains_key(node.facts.uid.as_str()) {
                continue; // it has one already, and its pods are being read
            }
            let version = node.progress().map(|progress| &progress.version);
            let key = version.map(|version| rollout::key(node, version));
            let before = position.checked_sub(1).and_then(|before| wanting.get(before));
            let behind = before.map(|node| node.facts.name.clone()).or_else(|| busy.clone());
            let mut wait = used_up.clone().unwrap_or(Wait::Queued { position, behind });
            let (mut looked, mut refused_here) = (false, false);
            let rollout = version.and_then(|version| self.survey.rollouts.of(node, version));
            let taken = key.as_ref().and_then(|key| given.get(key)).copied().unwrap_or(0);
            let step_full = rollout.and_then(Rollout::room_for_slots).is_some_and(|room| taken >= room);
            if let Some(refused) = budget.refusal(&self.survey, node) {
                refused_here = true;
                if free_at_first > 0 {
                    wait = refused;
                }
            } else if step_full {
                // Not checked: nodes of another version may come behind it.
                if free_at_first > 0 {
                    wait = rollout.and_then(|rollout| rollout.wait.clone()).unwrap_or(wait);
                }
            } else if let Some(refused) =
                node.refused.as_ref().filter(|_| left_alone.contains(name.as_str()) && spare == 0)
            {
                refused_here = true;
                wait = refused.wait.clone();
                self.wake(Some(refused.again_at).filter(|_| places > 0));
            } else if looked_at < places {
                spare -= usize::from(left_alone.contains(name.as_str()));
                looked_at += 1;
                looked = true;
                self.plan.pods.insert(name.clone());
                let policy = self.survey.group(node);
                self.plan.expressions.extend(gates::queries(&policy.before.expressions, name).map(|(_, query)| query));
                match self.context(node).and_then(|ctx| gates::before_drain(&ctx)) {
                    Some(passing @ (Wait::ReadingPods | Wait::AskingExpressions { .. })) => {
                        // It keeps its place while it is only being checked: which check ends first is random.
                        (looked, looking) = (false, true);
                        given.extend(key.map(|key| (key, taken + 1)));
                        budget.take(&self.survey, node);
                        wait = passing;
                    }
                    Some(refused) => {
                        self.plan.refused.insert(name.clone(), refused.clone());
                        wait = refused;
                        looked_at -= 1;
                        refused_here = true;
                    }
                    None if budget.free() > 0 && self.view.operator.is_some() => {
                        match self.own_turn(node, slots, looking) {
                            OwnTurn::Slot => {
                                given.extend(key.map(|key| (key, taken + 1)));
                                budget.take(&self.survey, node);
                                let uid = node.facts.uid.clone();
                                slots.push(Slot { uid, node: name.clone(), since: self.now });
                                wait = Wait::Queued { position: 0, behind: None };
                            }
                            OwnTurn::HandOver => {
                                self.plan.hand_over = true;
                                wait = Wait::HandingOver;
                            }
                            OwnTurn::Later => wait = Wait::HandingOver,
                        }
                    }
                    None => {}
                }
            }
            if !refused_here {
                ready.push(node);
            }
            if self.view.busy.contains(name) {
                self.wait(node, Wait::Acting);
                continue;
            }
            // A node that is about to be next need not show that it waits.
            let passes_through = free_at_first > 0
                && match wait {
                    Wait::ReadingPods | Wait::AskingExpressions { .. } | Wait::Queued { position: 0, .. } => true,
                    Wait::HandingOver => self.plan.hand_over,
                    _ => false,
                };
            let waiting = self.context(node).and_then(|ctx| {
                let progress = node.progress()?;
                (!passes_through).then(|| attempt::waiting_staged(&ctx, progress, wait.clone(), looked))
            });
            match waiting.map(|d| d.verdict) {
                Some(Verdict::Act(action)) => {
                    self.plan.actions.insert(name.clone(), action);
                }
                _ => self.wait(node, wait),
            }
        }
        ready
    }

    /// Returns what happens to a node that may have a slot. A leader that drains its own node is evicted in the middle,
    /// so that node comes when nothing else is left to do, under another leader if there is one. A leader that was
    /// handed the lead does not hand it back: the reason of the other replica would make it do so again.
    fn own_turn(&mut self, node: &NodeView, slots: &[Slot], looking: bool) -> OwnTurn {
        if self.view.own_node.as_ref() != Some(&node.facts.name) || self.view.standby == Standby::None {
            return OwnTurn::Slot;
        }
        let ends = |slot: &Slot| after(slot.since, OTHERS_FIRST);
        let others = slots.iter().map(ends).filter(|ends| *ends > self.now).min();
        if looking || others.is_some() {
            self.wake(others);
            return OwnTurn::Later;
        }
        if self.view.standby == Standby::Ready && !self.view.handed_over { OwnTurn::HandOver } else { OwnTurn::Slot }
    }

    /// Lets idle nodes begin. Staging disrupts nothing, but without pre-staging it passes the same gates as a start:
    /// for the free slots, and as many nodes again. With it, it has a limit of its own.
    fn begin(&mut self, asked: &Asked<'a>, ready: &[&'a NodeView], mut budget: Budget<'a>) {
        let free = budget.free();
        let used_up = budget.used_up().cloned();
        let busy = self.view.slots().next().map(|slot| slot.node.clone());
        let wanting: BTreeSet<&str> = asked.wanting.iter().map(|node| node.facts.name.as_str()).collect();
        // Nodes that have their image already are among the wanting ones, although no write has recorded it yet.
        let downloads = |n: &&NodeView| n.step() == Some(Step::Staging) && !wanting.contains(n.facts.name.as_str());
        let staging: Vec<&NodeView> = self.view.nodes.values().filter(downloads).collect();
        let ahead = self.policy.pre_stage.as_ref();
        // A node that is staged, or about to be, will take room in its group and zone, and in its canary step if that
        // does not count it by itself: it counts those that it observes at work.
        let mut begun = BTreeMap::new();
        let unseen = asked.beginning.iter().map(|(node, version)| rollout::key(node, version));
        let staged = ready.iter().filter_map(|node| {
            let progress = node.progress().filter(|progress| progress.step == Step::Staged)?;
            Some(rollout::key(node, &progress.version))
        });
        for key in staged.chain(unseen) {
            *begun.entry(key).or_default() += 1;
        }
        let beginning = asked.beginning.iter().map(|(node, _)| node);
        for node in ready.iter().chain(&staging).chain(beginning) {
            budget.take(&self.survey, node);
        }
        let room = match ahead {
            Some(limit) => limit.of(self.survey.total).unwrap_or(1).saturating_sub(staging.len()),
            // A staged node that cannot be drained gives way: it does not count.
            None => (2 * free).saturating_sub(staging.len() + ready.len()),
        };
        let mut room = room.saturating_sub(asked.beginning.len());
        for (position, (node, version)) in asked.candidates.iter().enumerate() {
            let rollout = self.survey.rollouts.of(node, version).filter(|_| ahead.is_none());
            let key = rollout::key(node, version);
            let taken = begun.get(&key).copied().unwrap_or(0);
            let step_full = rollout.and_then(Rollout::room_to_begin).is_some_and(|step| taken >= step);
            if step_full && let Some(wait) = rollout.and_then(|rollout| rollout.wait.clone()) {
                self.wait(node, wait);
                continue;
            }
            if ahead.is_none()
                && let Some(refused) = budget.refusal(&self.survey, node)
            {
                self.wait(node, refused);
                continue;
            }
            let begin = self.context(node).filter(|_| room > 0).map(|ctx| attempt::begin(&ctx, version));
            match begin {
                Some(action) => {
                    room -= 1;
                    budget.take(&self.survey, node);
                    begun.insert(key, taken + 1);
                    self.plan.actions.insert(node.facts.name.clone(), action);
                }
                None => {
                    let before = position.checked_sub(1).and_then(|before| asked.candidates.get(before));
                    let before = before.map(|(node, _)| *node).or(asked.wanting.last().copied());
                    let behind = before.map(|node| node.facts.name.clone()).or_else(|| busy.clone());
                    let queued = Wait::Queued { position: position + asked.wanting.len(), behind };
                    self.wait(node, used_up.clone().filter(|_| ahead.is_none()).unwrap_or(queued));
                }
            }
        }
    }

    fn report(&mut self, slots: Vec<Slot>) {
        self.wake(self.survey.rollouts.wake);
        let ages = self.survey.known.iter().map(|known| after(known.first_seen, self.policy.minimum_age));
        self.wake(ages.filter(|old_enough| *old_enough > self.now).min());
        let missing = self.view.nodes.values().map(|node| node.agent_missing).chain([self.view.web_api_missing]);
        let noticed = missing.flatten().map(|since| after(since, gates::POD_PATIENCE));
        self.wake(noticed.filter(|at| *at > self.now).min());
        for state in self.survey.windows() {
            self.plan.wake = earliest(self.plan.wake, report::changes(state));
        }
        if let Some(operator) = &self.view.operator {
            // A slot that replaces one that is being removed is another slot: whichever write wins, the resource
            // changes, and records the holder.
            let unchanged = operator.status.slots.len() == slots.len()
                && operator.status.slots.iter().zip(&slots).all(|(a, b)| a.uid == b.uid)
                && slots.iter().all(|slot| !self.view.retracted.contains(&slot.uid));
            let mut status = report::status(self.view, operator, &self.survey, &self.plan, self.now);
            status.slots = if unchanged { operator.status.slots.clone() } else { slots.clone() };
            self.plan.slots = (!unchanged).then_some(slots);
            self.plan.status = Some(status);
        }
        self.plan.quarantine = std::mem::take(&mut self.survey.quarantine);
    }
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Plan {
    /// Returns whether no pod is evicted any more once this action is carried out.
    pub fn ends_drain(action: &Action) -> bool {
        let step = |status: &ControllerStatus| status.report.progress.as_ref().map(|progress| progress.step);
        match action {
            Action::Status { status, .. } => step(status) != Some(Step::Draining),
            Action::Claim { .. } | Action::ReadOwner { .. } => false,
            Action::Spec { .. } | Action::Release | Action::Permit { .. } | Action::LookAtLease => true,
        }
    }

    /// Returns whether this action begins the disruption of a node, or an attempt.
    pub fn starts(action: &Action) -> bool {
        match action {
            Action::Status { status, .. } => status
                .report
                .progress
                .as_ref()
                .is_some_and(|p| matches!(p.step, Step::Staging | Step::LeavingBalancer | Step::Draining)),
            Action::Spec { .. }
            | Action::Claim { .. }
            | Action::Release
            | Action::Permit { .. }
            | Action::ReadOwner { .. }
            | Action::LookAtLease => false,
        }
    }
}
