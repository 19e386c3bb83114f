//! Turns: plans, carried out until nothing is left to do at that moment.

use std::collections::BTreeSet;

use models::operator::Slot;
use models::shadow::{HostState, Step};

use super::state::{PAUSES, Run};
use crate::lint::lint;
use crate::plan::{Plan, plan};

/// The highest number of plans of one turn: a plan that always has something to do would not end otherwise.
const ROUNDS: usize = 64;

impl Run<'_> {
    /// Plans and carries out until nothing is left to do now: all nodes that are awake, or those alone that have changed and
    /// are under way.
    pub(super) fn turn(&mut self, all: bool) {
        if !all {
            return self.plan_changed();
        }
        for _ in 0..ROUNDS {
            self.show_budgets();
            let plan = self.plan_all();
            self.planned = Some(self.now);
            let hand_over = plan.hand_over;
            if hand_over {
                // Another replica leads from now on, on a node whose turn was before.
                self.view.own_node = None;
            }
            if !self.carry_out(plan, true) && !hand_over {
                break;
            }
            if !self.is_exact() {
                self.plan_changed();
                // More may be left to do.
                self.wake = Some(self.now);
                break;
            }
        }
        self.fall_asleep();
    }

    /// Returns whether each turn plans all awake nodes until nothing is left to do.
    fn is_exact(&self) -> bool {
        self.scenario.exhaustive || self.states.len() <= PAUSES[0].0
    }

    /// Shows the budgets as they are now. The controller tries again at once where one has changed.
    fn show_budgets(&mut self) {
        if !std::mem::take(&mut self.budgets_changed) {
            return;
        }
        self.pods.show_budgets(&mut self.view.budgets);
        let now = self.now;
        for index in std::mem::take(&mut self.refused) {
            let Some(node) = self.node_mut(index) else { continue };
            node.blocked.values_mut().for_each(|answer| answer.retry_at = answer.retry_at.min(now));
            if !node.blocked.is_empty() {
                self.touched.insert(index);
                self.refused.insert(index);
            }
        }
    }

    /// Plans all awake nodes. Where nodes that are asleep might be in the plan too, they are woken, and it is made again.
    fn plan_all(&mut self) -> Plan {
        loop {
            self.wake_ahead();
            self.count_left_out();
            let mut made = plan(&self.view, &self.policy, self.now);
            self.course.findings.extend(lint(&self.view, &self.policy, &mut made));
            self.course.plans += 1;
            #[cfg(test)]
            if let Some(watch) = &mut self.watch {
                assert_eq!(self.course.findings, []);
                watch.check(&self.view, &self.policy, &made, self.now);
            }
            if !self.wake_more(&made) {
                self.course.waits = std::mem::take(&mut made.waits);
                self.classes.keep_fewer_awake();
                self.touched.clear();
                self.wake = made.wake;
                return made;
            }
        }
    }

    /// Counts the nodes that the view lacks as well ones: of those that are not, each is awake. Where a plan is of nodes that are under way, and
    /// the view lacks others too, none of them waits for the others.
    fn count_left_out(&mut self) {
        self.view.left_out = self.states.len().saturating_sub(self.view.nodes.len());
    }

    /// Plans the nodes alone that have changed and are under way, until they rest. What the whole fleet decides waits for the
    /// next plan of all.
    fn plan_changed(&mut self) {
        self.show_budgets();
        for _ in 0..ROUNDS {
            let chosen: BTreeSet<usize> = self.touched.iter().copied().filter(|index| self.is_alone(*index)).collect();
            if chosen.is_empty() {
                return;
            }
            self.touched.retain(|index| !chosen.contains(index));
            let made = self.plan_only(&chosen);
            self.wake = [self.wake, made.wake].into_iter().flatten().min();
            if !self.carry_out(made, false) {
                return;
            }
        }
    }

    /// Returns whether the next step of a node does not depend on others.
    fn is_alone(&self, index: usize) -> bool {
        let Some(node) = self.node(index) else { return false };
        let begins = || {
            node.step() == Some(Step::Staging)
                && node.shadow.as_ref().is_some_and(|shadow| shadow.spec.state != HostState::StagedUpdate)
        };
        node.past_staging() || (node.progress().is_some() && (self.slots.contains(&index) || begins()))
    }

    /// Plans these nodes, beside those that have failed: their failures count against the version.
    fn plan_only(&mut self, chosen: &BTreeSet<usize>) -> Plan {
        let mut others = std::mem::take(&mut self.view.nodes);
        for index in chosen | &self.failed {
            self.view.nodes.extend(others.remove_entry(self.scenario.members[index].name()));
        }
        let here = |slot: &Slot| self.index.get(slot.node.as_str()).is_some_and(|index| chosen.contains(index));
        let slots = self.view.operator.as_mut().map(|operator| {
            let few = operator.status.slots.iter().filter(|slot| here(slot)).cloned().collect();
            std::mem::replace(&mut operator.status.slots, few)
        });
        self.count_left_out();
        let mut made = plan(&self.view, &self.policy, self.now);
        self.course.plans += 1;
        if let (Some(operator), Some(slots)) = (&mut self.view.operator, slots) {
            operator.status.slots = slots;
        }
        for (name, node) in std::mem::replace(&mut self.view.nodes, others) {
            let chosen = self.index.get(name.as_str()).is_some_and(|index| chosen.contains(index));
            if !chosen {
                made.actions.remove(&name);
                made.evictions.remove(&name);
            } else if let Some(wait) = made.waits.remove(&name) {
                self.course.waits.insert(name.clone(), wait);
            }
            self.view.nodes.insert(name, node);
        }
        made
    }
}
