//! The assignment of free slots to staged nodes, one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use models::condition::true_condition;
use models::operator::Slot;
use models::shadow::{BLOCKED, Step};

use super::checked::Checked;
use super::planner::Planner;
use crate::gates::OnTheirWay;
use crate::phase;
use crate::plan::slots::{self, Budget};
use crate::survey::key::{KeyRef, key};
use crate::survey::{SurveyedNode, ended};
use crate::view::Standby;
use crate::wait::Wait;
use models::time::after;

/// The time for which the leader's own node waits for a node that has a slot. One that takes longer, for example
/// because its drain is blocked or a user holds it, delays it no more.
const OTHERS_FIRST: Duration = Duration::from_secs(10 * 60);

/// The slots, and what is left of the budget.
pub(super) struct Assignment<'a> {
    pub(super) slots: Vec<Slot>,
    pub(super) budget: Budget<'a>,
    /// True if slots for nodes in service were free before any was assigned.
    pub(super) any_free: bool,
    /// The number of slots given in each rollout, nodes that are being checked included.
    given: BTreeMap<KeyRef<'a>, usize>,
    /// The nodes with a slot whose pods have not ended yet, once one is checked beside them.
    pub(super) on_their_way: OnTheirWay<'a>,
    /// True if a node is being checked.
    pub(super) checking: bool,
    /// The staged nodes that wait because one of their rollout goes alone, or none.
    pub(super) held_back: Vec<(KeyRef<'a>, &'a SurveyedNode<'a>)>,
}

fn rollout_of<'a>(node: &SurveyedNode<'a>) -> Option<KeyRef<'a>> {
    node.node.update().map(|progress| key(node.node, &progress.version))
}

impl<'a> Assignment<'a> {
    pub(super) fn of(slots: Vec<Slot>, budget: Budget<'a>) -> Self {
        let (given, held_back) = (BTreeMap::new(), Vec::new());
        let on_their_way = OnTheirWay::default();
        Self { slots, any_free: budget.free() > 0, budget, given, on_their_way, checking: false, held_back }
    }

    /// Returns the number of slots given in the rollout of this node.
    pub(super) fn taken(&self, node: &SurveyedNode<'a>) -> usize {
        rollout_of(node).and_then(|key| self.given.get(&key)).copied().unwrap_or(0)
    }

    fn take(&mut self, node: &'a SurveyedNode<'a>) {
        if let Some(key) = rollout_of(node) {
            *self.given.entry(key).or_default() += 1;
        }
        self.budget.take(node);
    }
}

impl<'a> Planner<'a> {
    /// Gives the free slots to the first nodes that may have one. Returns those that wait only for a slot.
    pub(super) fn give_slots(
        &mut self,
        wanting: &[&'a SurveyedNode<'a>],
        assignment: &mut Assignment<'a>,
    ) -> Vec<&'a SurveyedNode<'a>> {
        let used_up = assignment.budget.used_up.clone();
        let busy = assignment.slots.first().map(|slot| ended::holder(self.view, self.policy, slot));
        let mut capacity = self.check_capacity(wanting, &assignment.budget);
        if capacity.any() {
            let nodes = assignment.slots.iter().filter_map(|slot| self.on_its_way(slot));
            nodes.for_each(|ctx| assignment.on_their_way.add(&ctx));
        }
        let mut ready = Vec::new();
        for (position, node) in wanting.iter().copied().enumerate() {
            if self.held.contains_key(node.facts.uid.as_str()) {
                continue; // it has one already, and its pods are being read
            }
            let checked = self.check(node, assignment, &mut capacity);
            if checked.is_ready() {
                ready.push(node);
            }
            if let (Checked::Braked(_), Some(key)) = (&checked, rollout_of(node)) {
                assignment.held_back.push((key, node));
            }
            let before = position.checked_sub(1).and_then(|before| wanting.get(before));
            let behind = before.map(|node| node.facts.name.clone()).or_else(|| busy.clone());
            let queued = used_up.clone().unwrap_or(Wait::Queued { position, behind });
            let (complete, under_way) = (checked.is_complete(), checked.is_under_way());
            let wait = self.assign(node, checked, queued, assignment);
            // A node that is about to be next need not show that it waits.
            let is_next = match wait {
                Wait::Queued { position: 0, .. } => true,
                Wait::HandingOver => self.plan.hand_over,
                _ => under_way,
            };
            self.show(node, wait, complete, assignment.any_free && is_next);
        }
        ready
    }

    /// Gives a slot to a node that has passed its check. Returns the reason why it waits, `queued` if there is no other.
    fn assign(
        &mut self,
        node: &'a SurveyedNode<'a>,
        checked: Checked,
        queued: Wait,
        assignment: &mut Assignment<'a>,
    ) -> Wait {
        match checked {
            Checked::NoRoom(wait) | Checked::StepFull(Some(wait)) | Checked::Braked(wait) if assignment.any_free => {
                wait
            }
            Checked::NoRoom(_) | Checked::StepFull(_) | Checked::Braked(_) | Checked::Queued => queued,
            Checked::LeftAlone(wait) => wait,
            Checked::Refused(wait) => {
                self.plan.refused.insert(node.facts.name.clone(), wait.clone());
                wait
            }
            Checked::UnderWay(wait) => {
                // It keeps its place while it is only being checked: which check ends first is random.
                assignment.take(node);
                assignment.checking = true;
                wait
            }
            Checked::Passed if assignment.budget.free_for(node) == 0 || self.view.operator.is_none() => queued,
            Checked::Passed if !self.is_its_turn(node, assignment) => Wait::HandingOver,
            Checked::Passed => {
                assignment.take(node);
                let slot = slots::new(self.survey, node, self.now);
                if let Some(ctx) = self.on_its_way(&slot) {
                    assignment.on_their_way.add(&ctx);
                }
                assignment.slots.push(slot);
                match self.view.status_write(self.now) {
                    Wait::Acting => Wait::Queued { position: 0, behind: None },
                    fails => fails,
                }
            }
        }
    }

    /// Returns whether a node that may have a slot gets it. A leader that drains its own node is evicted in the middle,
    /// so that node comes when nothing else is left to do, under another leader if there is one, to which the lead is
    /// handed over. A leader that was handed the lead does not hand it back: the reason of the other replica would make
    /// it do so again.
    fn is_its_turn(&mut self, node: &SurveyedNode<'_>, assignment: &Assignment<'a>) -> bool {
        if self.view.own_node.as_ref() != Some(&node.facts.name) || self.view.standby == Standby::None {
            return true;
        }
        let ends = |slot: &Slot| after(slot.since, OTHERS_FIRST);
        let others = assignment.slots.iter().map(ends).filter(|ends| *ends > self.now).min();
        if assignment.checking || others.is_some() {
            self.wake(others);
            return false;
        }
        self.plan.hand_over = self.view.standby == Standby::Ready && !self.view.handed_over;
        !self.plan.hand_over
    }

    /// Returns whether a node that has its image waits for other nodes alone, and not for long. Its shadow shows that wait once half
    /// of the time for a download is over: the other half is left for one that has to be repeated.
    fn waits_briefly(&mut self, node: &SurveyedNode<'_>, wait: &Wait) -> bool {
        let staging = node.update().filter(|progress| progress.step == Step::Staging && wait.is_for_others());
        let (Some(progress), Some(shadow), None) = (staging, &node.shadow, &self.policy.pre_stage) else {
            return false;
        };
        let until = after(progress.since, self.policy.stage / 2);
        let briefly = self.now < until && true_condition(&shadow.status.conditions, BLOCKED).is_none();
        self.wake(Some(until).filter(|_| briefly));
        briefly
    }

    /// Records the reason why a node waits, also in its shadow unless it only passes through this state.
    fn show(&mut self, node: &'a SurveyedNode<'a>, wait: Wait, checked: bool, passes_through: bool) {
        let name = &node.facts.name;
        if self.view.busy.contains(name) {
            self.wait(node, Wait::Acting);
            return;
        }
        let passes_through = passes_through || self.waits_briefly(node, &wait);
        let waiting = self.context(node).and_then(|ctx| {
            let progress = node.progress()?;
            (!passes_through).then(|| phase::waiting_staged(&ctx, progress, wait.clone(), checked))
        });
        self.carry_out(node, waiting, wait);
    }
}
