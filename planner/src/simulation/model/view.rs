//! Controllers: the view that each sees, the plan that it makes of it, and the writes that it may send.

use std::sync::Arc;

use jiff::Timestamp;
use models::shadow::Step;

use super::state::{Controller, Kind, Memory, State, Truth};
use super::write::{What, Write, permit};
use super::{Bounds, NAMES, World};
use crate::claims::ClaimsMade;
use crate::decision::{Action, Evictions};
use crate::lint::{Finding, lint};
use crate::plan::{Plan, can_wait, not_begun, plan, retracted};
use crate::policy::Policy;
use crate::view::{ClusterView, InFlight, NodeView, Standby, Standing};

/// The number of earlier desired states that a hostile web API can show.
pub(super) const KEPT: usize = 3;

/// The writes and reads that a controller may send next.
pub(super) struct Choices {
    pub(super) writes: Vec<Arc<Write>>,
    /// Nodes whose Lease it reads.
    pub(super) reads: Vec<usize>,
    pub(super) wake: Option<Timestamp>,
    pub(super) findings: Vec<Finding>,
}

impl Controller {
    pub(super) fn new(state: &State, leads: bool) -> Self {
        Self {
            leads,
            deposed: None,
            since: state.now,
            behind: [false; 4],
            seen: state.truth.clone(),
            operator: state.operator.clone(),
            memory: vec![Memory::default(); state.truth.len()],
            retracting: None,
        }
    }

    /// Returns a controller that takes the lead: a write of an earlier leader may be under way that removes a slot.
    pub(super) fn leader(state: &State, bounds: &Bounds) -> Self {
        let mut own = Self::new(state, true);
        own.retracting = Some((own.operator.version, not_begun(&own.view(state, bounds))));
        own
    }

    /// Reads all caches that are not behind, and observes the nodes, as the controller does at each change.
    pub(super) fn observe(
        &mut self,
        truth: &[Truth],
        operator: &Arc<super::state::Object<crate::view::OperatorFacts>>,
        now: Timestamp,
    ) {
        let before = self.seen.clone();
        for (seen, truth) in self.seen.iter_mut().zip(truth) {
            if !self.behind[Kind::Nodes as usize] {
                seen.node.clone_from(&truth.node);
            }
            if !self.behind[Kind::Shadows as usize] {
                seen.shadow.clone_from(&truth.shadow);
            }
            if !self.behind[Kind::Pods as usize] {
                seen.pods.clone_from(&truth.pods);
            }
        }
        if !self.behind[Kind::Operator as usize] {
            self.operator.clone_from(operator);
        }
        for ((seen, before), memory) in self.seen.iter().zip(before).zip(&mut self.memory) {
            if seen.is_same_as(&before) {
                continue;
            }
            let Some(node) = node_of(seen) else {
                *memory = Memory::default();
                continue;
            };
            memory.forget(&node);
            let standing = Standing::of(&node);
            let before = memory.standing.take();
            memory.standing = standing.map(|standing| {
                let since = before.filter(|(was, _)| *was == standing).map_or(now, |(_, since)| since);
                (standing, since)
            });
        }
    }

    /// Records the answer to a write of its own: the object as it is now.
    pub(super) fn read_back(
        &mut self,
        write: &Write,
        truth: &[Truth],
        operator: &Arc<super::state::Object<crate::view::OperatorFacts>>,
    ) {
        match &write.what {
            What::Operator(_) => self.operator.clone_from(operator),
            What::Action(Action::Claim { .. } | Action::Release | Action::Hook { .. }) => {
                self.seen[write.node].node.clone_from(&truth[write.node].node);
            }
            What::Action(_) | What::Permit(_) | What::Shadow(_) => {
                self.seen[write.node].shadow.clone_from(&truth[write.node].shadow);
            }
            What::Evict(_) => {}
        }
    }

    pub(super) fn view(&self, state: &State, bounds: &Bounds) -> ClusterView {
        let mut view = ClusterView {
            operator: Some(self.operator.value.clone()),
            leader_since: self.since,
            standby: Standby::Ready,
            ..ClusterView::default()
        };
        view.history.highest = Some(0);
        if state.earlier_operator {
            view.earlier_pods = vec!["old/agent".into()];
        }
        for seen in &self.seen {
            if let Some(node) = &seen.node {
                view.insert(node.value.clone(), seen.shadow.as_ref().map(|shadow| shadow.value.clone()), state.now);
            }
        }
        for (index, name) in NAMES.iter().enumerate().take(bounds.nodes) {
            let Some(node) = view.nodes.get_mut(*name) else { continue };
            let memory = &self.memory[index];
            node.pods = Some(self.seen[index].pods.value.clone());
            node.in_flight.clone_from(&memory.in_flight);
            (node.lease, node.claims_made) = (memory.lease, memory.claims_made);
            if let Some((_, since)) = &memory.standing {
                node.observed_for = state.now.duration_since(*since).unsigned_abs();
            }
        }
        let retracting = self.retracting.as_ref().filter(|(base, _)| *base == self.operator.version);
        view.retracted = retracting.map(|(_, slots)| slots.clone()).unwrap_or_default();
        view
    }

    /// Plans, and returns what may be sent next.
    pub(super) fn choices(&self, state: &State, world: &World) -> Choices {
        let view = self.view(state, &world.bounds);
        let own;
        let policy = match &world.policies[policy_index(self)] {
            Some(policy) => policy,
            None => {
                own = Policy::in_force(view.operator.as_ref());
                &own
            }
        };
        let made = plan(&view, policy, state.now);
        // The plan is carried out as it was made: what the validator would drop is judged by its consequences.
        let findings = lint(&view, policy, &mut made.clone());
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        let Plan { actions, evictions, shadows, status, slots, wake, .. } = made;
        for (name, action) in actions {
            let node = index_of(&name);
            if let Action::ReadLease { .. } = action {
                reads.push(node);
                continue;
            }
            writes.extend(self.send(state, node, action));
        }
        for (name, evictions) in evictions {
            let node = index_of(&name);
            writes.push(Write::new(node, What::Evict(Evictions { ..evictions }), None));
        }
        for change in shadows {
            writes.push(Write::new(index_of(change.node()), What::Shadow(change), None));
        }
        let recorded = &self.operator.value.status;
        if let Some(status) = status.filter(|status| status != recorded) {
            // Counts and reasons wait until nothing else is left to do.
            if slots.is_some() || !can_wait(recorded, &status) {
                let guard = Some((self.operator.value.uid.clone(), self.operator.version));
                writes.push(Write::new(0, What::Operator(Box::new(status)), guard));
            }
        }
        writes.retain(|write| !write.is_refused(state));
        Choices { writes, reads, wake, findings }
    }

    /// Returns the write of an action, with the precondition that the controller sends.
    fn send(&self, state: &State, node: usize, action: Action) -> Option<Arc<Write>> {
        let seen = &self.seen[node];
        let facts = seen.node.as_ref()?;
        match &action {
            Action::Claim { .. } | Action::Release | Action::Hook { .. } => {
                let guard = Some((facts.value.uid.clone(), facts.version));
                Some(Write::new(node, What::Action(action), guard))
            }
            Action::Status { .. } | Action::Spec { .. } | Action::Permit { .. } => {
                let shadow = seen.shadow.as_ref()?;
                let guard = Some((shadow.value.uid.clone(), shadow.version));
                let what = match &action {
                    Action::Permit { .. } => {
                        let live = state.truth[node].node.as_ref()?;
                        if live.value.uid != facts.value.uid {
                            return None;
                        }
                        permit(state, node, &action, &shadow.value)?
                    }
                    _ => What::Action(action),
                };
                Some(Write::new(node, what, guard))
            }
            Action::ReadOwner { .. } | Action::ReadReplicaSet { .. } | Action::ReadLease { .. } => None,
        }
    }

    /// Remembers that it has sent a write.
    pub(super) fn remember(&mut self, write: &Write, now: Timestamp) {
        match &write.what {
            What::Operator(status) => {
                let taken = retracted(&self.operator.value.status.slots, &status.slots);
                let base = self.operator.version;
                let before = self.retracting.take().filter(|(before, _)| *before == base);
                let mut all = before.map(|(_, slots)| slots).unwrap_or_default();
                all.extend(taken);
                self.retracting = Some((base, all));
            }
            What::Evict(evictions) => {
                let sent = InFlight { since: now, deletes: evictions.delete };
                let memory = &mut self.memory[write.node];
                memory.in_flight.extend(evictions.pods.iter().map(|pod| (pod.uid.clone(), sent)));
            }
            What::Action(action) => {
                let memory = &mut self.memory[write.node];
                if let (Action::Claim { fields, .. }, Some(seen)) = (action, &self.seen[write.node].node) {
                    memory.claims_made = memory.claims_made.and(seen.value.claims_in_effect(), *fields);
                }
                if Plan::ends_drain(action) {
                    memory.in_flight.clear();
                }
            }
            What::Permit(_) | What::Shadow(_) => {}
        }
    }
}

impl Memory {
    /// Forgets what the node's step has outlived, as the controller does.
    fn forget(&mut self, node: &NodeView) {
        if node.step() != Some(Step::Draining) {
            self.in_flight.clear();
        }
        if node.progress().is_none() {
            self.lease = None;
            self.claims_made = ClaimsMade::default();
        }
    }
}

/// Returns the view of a node by these objects, without its pods.
pub(super) fn node_of(seen: &Truth) -> Option<NodeView> {
    let facts = seen.node.as_ref()?.value.clone();
    let shadow = seen.shadow.as_ref().filter(|shadow| shadow.value.owner_uid.as_ref() == Some(&facts.uid));
    Some(NodeView { facts, shadow: shadow.map(|shadow| Box::new(shadow.value.clone())), ..NodeView::default() })
}

/// Returns the index of the policy that a controller sees: each is a generation.
pub(super) fn policy_index(controller: &Controller) -> usize {
    usize::try_from(controller.operator.value.generation).unwrap_or(0)
}

pub(super) fn index_of(name: &str) -> usize {
    NAMES.iter().position(|known| *known == name).unwrap()
}
