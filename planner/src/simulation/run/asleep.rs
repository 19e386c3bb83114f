//! The nodes that are out of the view: those that wait for their update behind others of their class, and those that are
//! updated and at rest.

use std::collections::BTreeMap;

use models::operator::ActiveRollout;
use models::shadow::HostState;

use super::classes::{Class, Seen, has_fallen, is_plain};
use super::state::Run;
use crate::plan::Plan;
use crate::view::NodeView;
use crate::wait::{Wait, in_order};

impl Run<'_> {
    /// Returns the nodes that are awake, each with its index and the reason for which it waits, if it is among these.
    pub(super) fn awake<'w>(
        &'w self,
        waits: &'w BTreeMap<String, Wait>,
    ) -> impl Iterator<Item = (usize, &'w NodeView, Option<&'w Wait>)> {
        let mut wait_of = in_order(waits);
        // Both are ordered by name.
        let nodes = self.view.nodes.iter().zip(self.classes.awake.values());
        nodes.map(move |((name, node), index)| (*index, node, wait_of(name)))
    }

    /// Keeps enough nodes of each class awake that wait for their update.
    pub(super) fn wake_ahead(&mut self) {
        if self.classes.waiting() == 0 {
            return;
        }
        let mut idle = vec![0; self.classes.classes.len()];
        for (index, node, wait) in self.awake(&self.course.waits) {
            idle[self.classes.of[index]] += usize::from(node.progress().is_none() && wait != Some(&Wait::UpToDate));
        }
        for (class, idle) in idle.into_iter().enumerate() {
            let missing = self.classes.classes[class].ahead.saturating_sub(idle);
            self.awaken(class, missing);
        }
    }

    fn awaken(&mut self, class: usize, number: usize) {
        for _ in 0..number {
            let Some(index) = self.classes.classes[class].waiting.pop_front() else { return };
            let member = &self.scenario.members[index];
            self.classes.wake(index, member.name());
            self.view.nodes.insert(member.name().to_owned(), member.view());
        }
    }

    /// Wakes more nodes of the classes of which this plan leaves none to wait. Returns true if there were any.
    pub(super) fn wake_more(&mut self, made: &Plan) -> bool {
        if self.classes.waiting() == 0 {
            return false;
        }
        let mut woken = false;
        for (class, seen) in self.seen(made).into_iter().enumerate() {
            let Class { waiting, ahead, .. } = &mut self.classes.classes[class];
            if seen.waits || waiting.is_empty() {
                continue;
            }
            if seen.up_to_date && !seen.begins && self.now == self.scenario.start {
                // Nodes that are alike are all up to date: they need not be updated at all.
                waiting.clear();
                continue;
            }
            let number = *ahead;
            *ahead = number.saturating_mul(2);
            self.awaken(class, number);
            woken = true;
        }
        woken
    }

    /// Returns what a plan shows of each class.
    fn seen(&self, made: &Plan) -> Vec<Seen> {
        let mut all = vec![Seen::default(); self.classes.classes.len()];
        for (index, node, wait) in self.awake(&made.waits) {
            let seen = &mut all[self.classes.of[index]];
            match wait {
                Some(Wait::UpToDate) => seen.up_to_date = true,
                Some(_) => seen.waits = seen.waits || (node.progress().is_none() && is_plain(node)),
                None => seen.begins = true,
            }
        }
        all
    }

    /// Takes the nodes out of the view that are updated and at rest, and those that wait behind others, while no canary step
    /// counts them.
    pub(super) fn fall_asleep(&mut self) {
        if self.scenario.exhaustive || self.is_canary_step_due() {
            return;
        }
        for index in std::mem::take(&mut self.classes.counted) {
            let wait = self.course.waits.get(self.scenario.members[index].name());
            // It is as it was at the beginning.
            let (true, Some(wait)) = (!self.acted.contains(&index) && !self.states[index].watched, wait) else {
                continue;
            };
            if *wait != Wait::UpToDate {
                self.classes.classes[self.classes.of[index]].waiting.push_back(index);
            } else if self.classes.awake_of[self.classes.kind_of(index)] < 2 {
                continue;
            }
            self.remove(index);
        }
        let acted = std::mem::take(&mut self.acted);
        for index in acted {
            // One of each kind shows what is offered.
            if !self.rests(index) || self.classes.awake_of[self.classes.kind_of(index)] < 2 {
                self.acted.insert(index);
                continue;
            }
            self.remove(index);
        }
    }

    /// Takes a node out of the view.
    fn remove(&mut self, index: usize) {
        let name = self.scenario.members[index].name();
        self.view.nodes.remove(name);
        self.states[index].watched = false;
        self.course.waits.remove(name);
        self.classes.sleep(index, name);
    }

    fn is_canary_step_due(&self) -> bool {
        let due = |rollout: &ActiveRollout| {
            let passed = usize::try_from(rollout.steps_passed).unwrap_or(0);
            rollout.ended.is_none() && passed < self.policy.canary.len()
        };
        self.view.operator.iter().flat_map(|operator| &operator.status.active_rollouts).any(due)
    }

    /// Returns whether a node is updated, and nothing is left to do about it.
    fn rests(&self, index: usize) -> bool {
        // One with sick pods shows that the version breaks them.
        let Some(node) = self.node(index).filter(|_| !self.states[index].sick) else { return false };
        let caught_up = node.shadow.as_ref().is_some_and(|shadow| {
            let agent = &shadow.status.agent;
            agent.observed_generation == Some(shadow.generation) && agent.state == Some(HostState::Idle)
        });
        caught_up
            && node.progress().is_none()
            && !node.facts.claimed()
            && node.facts.ready
            && self.is_up_to_date(&node.facts.name)
            && !has_fallen(self.view.operator.as_ref(), &node.facts.name)
    }
}

#[cfg(test)]
mod tests {
    use models::shadow::{Record, ShadowRequests};

    use super::*;
    use crate::fixtures::node;

    #[test]
    fn node_that_is_being_removed_is_set_apart() {
        let mut removed = node("a");
        assert!(is_plain(&removed));
        removed.facts.removed_by = Some("karpenter.sh/disrupted".into());
        assert!(!is_plain(&removed), "the others of its class do not wait with it");
    }

    #[test]
    fn request_that_was_carried_out_sets_no_node_apart() {
        let mut asked = node("a");
        let shadow = asked.shadow.as_mut().unwrap();
        (shadow.retry, shadow.release, shadow.drill) = (Some("1".into()), Some("2".into()), Some("3 evict".into()));
        assert!(!is_plain(&asked));
        let mut done =
            ShadowRequests { retry: Some("1".into()), release: Some("2".into()), ..ShadowRequests::default() };
        for (drill, plain) in [(None, false), (Some("2 evict".to_owned()), false), (Some("3 evict".to_owned()), true)] {
            done.drill = drill;
            let record = Record { requests: Some(done.clone()), ..Record::default() };
            asked.shadow.as_mut().unwrap().status.controller.record = Some(record);
            assert_eq!(is_plain(&asked), plain, "{done:?}");
        }
    }
}
