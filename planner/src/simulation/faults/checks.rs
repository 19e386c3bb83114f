//! Properties that hold after each step.

use super::*;
use crate::plan::{Check, PROVEN, TURN, checks};

/// Asserts that the first check that a node does not pass has the reason for which the plan lets it wait, except for a proof, and that
/// only what depends on other nodes is taken from the plan.
pub(super) fn explains(view: &ClusterView, policy: &Policy, plan: &Plan, now: Timestamp, seed: u64) {
    for (name, wait) in plan.waits.iter().filter(|_| !view.stale) {
        let checks = checks(view, policy, plan, now, name);
        let first = checks.iter().find(|check| check.wait().is_some() && check.name != PROVEN);
        let context = || format!("seed {seed}: {name} waits for {wait:?}: {checks:#?}");
        assert_eq!(first.and_then(Check::wait), Some(wait), "{}", context());
        let of_others = matches!(
            wait,
            Wait::Queued { .. }
                | Wait::BudgetUsedUp { .. }
                | Wait::GroupFull { .. }
                | Wait::ControlPlaneBusy { .. }
                | Wait::ZoneBusy { .. }
                | Wait::CanaryStep { .. }
                | Wait::StepUnproven { .. }
                | Wait::StepFailed { .. }
                | Wait::Braked { .. }
                | Wait::FirstNode { .. }
                | Wait::HandingOver
                | Wait::Frozen { .. }
        );
        assert!(first.is_none_or(|check| check.name != TURN || of_others), "{}", context());
    }
}

impl World {
    /// Returns whether only a forged attempt is on a node's shadow.
    pub(super) fn only_forged(&self, node: &NodeView) -> bool {
        self.forged.contains(&node.facts.name) && !node.facts.claimed()
    }

    /// Returns whether the rest of an attempt on a node may have been kept by a user's hold.
    pub(super) fn kept(&self, node: &NodeView) -> bool {
        self.held.contains(&node.facts.name) && node.progress().is_none()
    }

    pub(super) fn check(&mut self, budget: usize) {
        for (name, node) in &self.view.nodes {
            if !node.facts.labelled {
                self.left.insert(name.clone(), self.now);
            }
            let slots = self.view.recorded_slots();
            let rests = !node.facts.held() && !node.facts.claimed() && node.progress().is_none();
            if rests && !slots.chain(self.sent.iter().flat_map(|sent| &sent.slots)).any(|slot| slot.node == *name) {
                self.held.remove(name);
            }
        }
        let slots = &self.view.operator.as_ref().unwrap().status.slots;
        // A claim that a user's hold has kept beyond its attempt gets its slot when the hold ends, also over the
        // budget: it is out of service already.
        let given = slots.iter().filter(|slot| !self.kept(&self.view.nodes[&slot.node])).count();
        // A node that may still reboot has no slot any more, and counts as before.
        let waits = |node: &&NodeView| node.may_still_reboot() && !self.left.contains_key(&node.facts.name);
        let waits = self.view.nodes.values().filter(waits).filter(|node| !self.held.contains(&node.facts.name));
        let waits = waits.filter(|node| !slots.iter().any(|slot| slot.uid == node.facts.uid)).count();
        assert!(given + waits <= budget, "seed {}: {given} slots and {waits} over a budget of {budget}", self.seed);
        for node in self.view.nodes.values() {
            let progress = node.progress();
            // A claim without an attempt is one that a user's hold has kept: it takes no slot.
            let disrupted = progress.is_some() && node.disrupted() && !self.only_forged(node);
            let has_slot = slots.iter().any(|s| s.uid == node.facts.uid);
            if progress.is_none() || has_slot {
                self.lost_slot.remove(&node.facts.name);
            }
            let lost = self.lost_slot.contains(&node.facts.name) && (self.created_again || !node.facts.claimed());
            assert!(
                !disrupted || has_slot || lost,
                "seed {}: {} is disrupted without a slot",
                self.seed,
                node.facts.name
            );
        }
        self.check_policy();
    }

    /// Checks the limits of groups, zones and canary steps, at every moment and not only where a slot is given.
    pub(super) fn check_policy(&self) {
        let (seed, policy) = (self.seed, &self.policy);
        let out: Vec<&NodeView> =
            self.view.nodes.values().filter(|n| n.disrupted() && !self.kept(n) && !self.only_forged(n)).collect();
        for (index, group) in policy.groups.iter().enumerate() {
            let members = out.iter().filter(|n| policy.group_of(&n.facts) == Some(index)).count();
            let limit = group.max_unavailable.as_ref().map_or(usize::MAX, |limit| limit.of(1));
            assert!(members <= limit, "seed {seed}: {members} nodes of group {} are out of service", group.name);
        }
        let zones: BTreeSet<&str> = out.iter().map(|n| n.facts.zone()).collect();
        assert!(!policy.one_zone_at_a_time || zones.len() <= 1, "seed {seed}: zones {zones:?} are out of service");
        let status = self.view.operator.as_ref().map(|o| &o.status);
        for rollout in status.iter().flat_map(|status| &status.active_rollouts).filter(|r| r.ended.is_none()) {
            let Some(ledger) = rollout.ledger.as_ref().filter(|ledger| ledger.due > 0) else { continue };
            let ours = |n: &&&NodeView| n.update().is_some_and(|p| p.version == rollout.version);
            let out = out.iter().filter(ours).count();
            let updated = |n: &&NodeView| {
                let last = n.record().and_then(|r| r.last.as_ref());
                // Others may have begun while one that was updated was not the operator's, and it counts again when it
                // comes back.
                let left = self.left.get(&n.facts.name);
                !n.disrupted()
                    && last.is_some_and(|l| {
                        l.reason == models::shadow::UPDATED
                            && l.version == rollout.version
                            && l.ended >= rollout.started
                            && left.is_none_or(|left| l.ended > *left)
                    })
            };
            let updated = self.view.nodes.values().filter(updated).count();
            let limit = usize::try_from(ledger.due).unwrap();
            let spread = updated + out;
            assert!(spread <= limit, "seed {seed}: {spread} nodes have begun, and the canary step allows {limit}");
        }
    }
}
