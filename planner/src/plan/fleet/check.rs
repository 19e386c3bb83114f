//! The check of a staged node that waits for a slot.

use std::collections::BTreeSet;

use models::operator::Slot;
use models::shadow::Place;

use super::assign::Assignment;
use super::checked::Checked;
use super::planner::Planner;
use crate::gates::{self, Obstacle};
use crate::plan::slots::Budget;
use crate::survey::rollout::Rollout;
use crate::survey::{NodeContext, SurveyedNode};
use crate::wait::Wait;

/// The number of candidates beyond the free slots whose pods are checked, so that one that cannot be drained gives way
/// to the next at once. A refused one is checked again after a pause, since checking all would cost a watch a node.
const MARGIN: usize = 2;

/// The number of nodes whose pods may be checked at a time: as many as there are free slots, and some more.
pub(super) struct CheckCapacity {
    total: usize,
    taken: usize,
    /// The nodes that were refused recently, by their indices.
    left_alone: BTreeSet<usize>,
    /// The number of nodes that could go next, and were not refused: nodes with guarded pods come after them.
    fresh: usize,
    /// The part that no other node needs: the pods of refused nodes are still watched there, so that these continue as
    /// soon as they can.
    spare: usize,
}

impl CheckCapacity {
    /// Returns whether any node is checked.
    pub(super) fn any(&self) -> bool {
        self.total > 0
    }
}

impl<'a> Planner<'a> {
    /// Returns whether a node was refused recently, so that it need not be checked again. The results of expressions
    /// are known without a check.
    fn is_left_alone(&self, node: &'a SurveyedNode<'a>) -> bool {
        let Some(refused) = node.refused.as_ref().filter(|refused| refused.again_at > self.now) else { return false };
        !matches!(refused.wait, Wait::ExpressionFires { .. } | Wait::ExpressionFails { .. })
            || self.context(node).and_then(|ctx| gates::expression(&ctx)).is_some()
    }

    /// Returns the node of a slot if its pods have not all ended yet: those that came back end with the reboot.
    pub(super) fn on_its_way(&self, slot: &Slot) -> Option<NodeContext<'a>> {
        let leaves = |node: &&SurveyedNode<'a>| node.step.is_some_and(|step| step.place() <= Place::Away);
        self.context(self.survey.find(&slot.node).filter(leaves)?)
    }

    /// Returns whether the rollout of a node has no room for it: its canary step is full, or it is braked.
    fn is_stopped(&self, node: &SurveyedNode<'a>) -> bool {
        let Some(version) = node.update().map(|progress| &progress.version) else { return false };
        let limiting = self.survey.rollouts.limiting(node, version);
        limiting.and_then(Rollout::room_for_slots) == Some(0)
            || self.survey.rollouts.of(node, version).is_some_and(|of| of.braked_for(&node.facts.name, 0).is_some())
    }

    /// Returns how many of these nodes may be checked.
    pub(super) fn check_capacity(&self, wanting: &[&'a SurveyedNode<'a>], budget: &Budget<'a>) -> CheckCapacity {
        let free = wanting.iter().map(|node| budget.free_for(node)).max().unwrap_or(0);
        let total = if free > 0 { free + MARGIN } else { 0 };
        let left_alone: BTreeSet<usize> =
            wanting.iter().filter(|node| self.is_left_alone(node)).map(|node| node.index).collect();
        let goes = |node: &&&SurveyedNode<'a>| {
            let has_slot = self.held.contains_key(node.facts.uid.as_str());
            !has_slot
                && !left_alone.contains(&node.index)
                && budget.refusal(self.policy, node).is_none()
                && !self.is_stopped(node)
        };
        let fresh = wanting.iter().filter(goes).count();
        CheckCapacity {
            total,
            taken: 0,
            fresh,
            spare: total.saturating_sub(wanting.len() - left_alone.len()),
            left_alone,
        }
    }

    /// Checks a node, and has its pods watched if the capacity allows that.
    pub(super) fn check(
        &mut self,
        node: &'a SurveyedNode<'a>,
        assignment: &Assignment<'a>,
        capacity: &mut CheckCapacity,
    ) -> Checked {
        let name = &node.facts.name;
        if let Some(refused) = assignment.budget.refusal(self.policy, node) {
            return Checked::NoRoom(refused);
        }
        let version = node.update().map(|progress| &progress.version);
        let rollout = version.and_then(|version| self.survey.rollouts.limiting(node, version));
        if rollout.and_then(Rollout::room_for_slots).is_some_and(|room| assignment.taken(node) >= room) {
            return Checked::StepFull(rollout.and_then(|rollout| rollout.wait.clone()));
        }
        let of = version.and_then(|version| self.survey.rollouts.of(node, version));
        if let Some(wait) = of.and_then(|rollout| rollout.braked_for(name, assignment.taken(node))) {
            return Checked::Braked(wait.clone());
        }
        let left_alone = capacity.left_alone.contains(&node.index);
        if let Some(refused) = node.refused.as_ref().filter(|_| left_alone && capacity.spare == 0) {
            self.wake(Some(refused.again_at).filter(|_| capacity.total > 0));
            return Checked::LeftAlone(refused.wait.clone());
        }
        if capacity.taken >= capacity.total || (!assignment.any_free && assignment.budget.free_for(node) == 0) {
            return Checked::Queued;
        }
        capacity.spare -= usize::from(left_alone);
        self.plan.pods.insert(name.clone());
        let checks = &self.survey.group(node).before.checks;
        self.plan.expressions.extend(gates::questions(checks, node.subject()));
        // Where there is room for all of the others, none has to come first.
        let taken = assignment.taken(node);
        let alone = of.is_some_and(|rollout| rollout.braked_for("", taken + 1).is_some());
        let step = rollout.and_then(Rollout::room_for_slots).map(|room| room.saturating_sub(taken));
        let room = if alone { 1 } else { assignment.budget.free_for(node).min(step.unwrap_or(usize::MAX)) };
        let others = capacity.fresh.saturating_sub(usize::from(!left_alone));
        let after_others = others >= room.max(1) && node.update().is_some();
        let gives_way = |ctx: &NodeContext<'_>| gates::guarded(ctx).filter(|_| after_others);
        let obstacle = self.context(node).and_then(|ctx| {
            let busy = || gates::busy_budget(&ctx, &assignment.on_their_way);
            let in_turn = || gives_way(&ctx).or_else(busy).map(Obstacle::Refused);
            gates::before_drain(&ctx).or_else(in_turn)
        });
        let checked = match obstacle {
            Some(Obstacle::Unknown(wait)) => Checked::UnderWay(wait),
            // The next one is checked instead.
            Some(Obstacle::Refused(wait)) => return Checked::Refused(wait),
            None => Checked::Passed,
        };
        capacity.taken += 1;
        checked
    }
}
