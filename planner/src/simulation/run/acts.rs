//! Plans carried out: the part of the controller and of the API server.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::shadow::{FirstPod, UPDATED};

use super::event::Event;
use super::state::{CHECK_AGAIN, Draw, Run};
use crate::decision::{Action, Evictions};
use crate::drain;
use crate::plan::Plan;
use crate::simulation::course::Freeze;
use crate::simulation::scenario::FaultEffect;
use crate::simulation::{pods, write};
use crate::survey::quarantine::Quarantine;
use crate::view::{Answer, Blocked, Compared, NodeView, OwnerHealth, PodFacts, Refused};

impl Run<'_> {
    /// Has all hooks answer the request of a node at once: how long they take cannot be known.
    pub(super) fn answer_hooks(&mut self, index: usize) {
        let request = self.node(index).and_then(|node| node.facts.hook_request.clone());
        if self.states[index].hook_request == request {
            return;
        }
        self.states[index].hook_request.clone_from(&request);
        let Some(request) = request.filter(|_| !self.fails(index, FaultEffect::HooksSilent)) else { return };
        let refused = if self.fails(index, FaultEffect::HooksRefuse) { " Refused: not now" } else { "" };
        let hooks = self.scenario.policy.hooks.iter();
        let answers = hooks.map(|hook| (hook.name.clone(), format!("{request}{refused}"))).collect();
        if let Some(node) = self.node_mut(index) {
            node.facts.hook_answers = answers;
        }
    }

    /// Carries out a plan. Returns true if anything was done after which there may be more to do now.
    pub(super) fn carry_out(&mut self, made: Plan, all: bool) -> bool {
        let mut changed = false;
        for query in made.expressions {
            // Their results cannot be known.
            let quiet = Answer::Quiet { since: self.view.leader_since, asked: Timestamp::MAX };
            changed |= self.view.expressions.insert(query, quiet).is_none();
        }
        if let (true, Some(status), Some(operator)) = (all, made.status, &mut self.view.operator)
            && operator.status != status
        {
            let slots = status.slots.iter().filter_map(|slot| self.index.get(slot.node.as_str()).copied()).collect();
            let before = std::mem::replace(&mut self.slots, slots);
            self.touched.extend(&self.slots - &before);
            operator.status = status;
            self.view.retracted.clear();
            changed = true;
        }
        for (name, wait) in made.refused {
            if let Some(node) = self.view.nodes.get_mut(&name)
                && node.refused.as_ref().is_none_or(|refused| refused.again_at <= self.now)
            {
                let backoff = &mut self.states[self.index[name.as_str()]].refused;
                node.refused = Some(Refused { wait, again_at: self.now + backoff.next_delay(CHECK_AGAIN) });
            }
        }
        changed |= self.watch_pods(&made.pods, all);
        for (name, evictions) in made.evictions {
            self.evict(&name, &evictions);
        }
        for (name, action) in made.actions {
            changed |= self.act(&name, action);
        }
        if all {
            let disrupted = self.view.nodes.values().filter(|node| node.disrupted()).count();
            self.course.peak = self.course.peak.max(disrupted);
            self.freeze();
        }
        changed
    }

    fn freeze(&mut self) {
        if self.course.freeze.is_some() || self.failed.is_empty() {
            return;
        }
        let quarantine = Quarantine::of(&self.view, self.scenario.policy.max_failures);
        if let Some(version) = quarantine.frozen_by() {
            let updated = self.course.updated();
            self.course.freeze = Some(Freeze { version: version.clone(), at: self.course.second(self.now), updated });
        }
    }

    fn watch_pods(&mut self, wanted: &BTreeSet<String>, all: bool) -> bool {
        let mut changed = false;
        if all {
            for (name, node) in &mut self.view.nodes {
                if node.pods.is_some() && !wanted.contains(name) {
                    node.pods = None;
                    node.blocked.clear();
                    self.states[self.index[name.as_str()]].watched = false;
                }
            }
        }
        for name in wanted {
            if let Some(node) = self.view.nodes.get_mut(name).filter(|node| node.pods.is_none()) {
                let index = self.index[name.as_str()];
                node.pods = Some(self.pods.watch(index, name));
                self.states[index].watched = true;
                self.touched.insert(index);
                changed = true;
            }
        }
        changed
    }

    /// Evicts pods. The planner sends the requests about one budget one after the other; each is answered within the same
    /// second, so that all that are due follow here at once.
    fn evict(&mut self, name: &str, evictions: &Evictions) {
        let Some(node) = self.view.nodes.get_mut(name) else { return };
        if evictions.dry_run {
            for pod in &evictions.pods {
                let answer = Blocked { since: self.now, retry_at: self.now, accepted: true, ..Blocked::default() };
                node.blocked.insert(pod.uid.clone(), answer);
            }
            return;
        }
        let pods = node.pods.as_deref().unwrap_or_default();
        let due: BTreeSet<&str> = if evictions.delete {
            evictions.pods.iter().map(|pod| pod.uid.as_str()).collect()
        } else {
            let rules = self.scenario.policy.for_node(&node.facts).drain.rules_at(self.now);
            let drain = node.shadow.as_ref().and_then(|shadow| shadow.status.controller.drain.as_ref());
            let due = |uid: &&str| node.blocked.get(*uid).is_none_or(|blocked| blocked.retry_at <= self.now);
            let sorted = drain::sort(pods, rules, drain);
            // Those that are asked first go alone, and critical ones last, unless policy keeps the others no longer.
            let orders: [Option<&[FirstPod]>; 2] = [drain.map(|drain| drain.asked_first.as_slice()), Some(&[])];
            let in_order = orders.into_iter().flatten().find(|first| {
                let may_go: BTreeSet<&str> = sorted.first_to_go(Some(*first)).map(|pod| pod.uid.as_str()).collect();
                evictions.pods.iter().all(|pod| may_go.contains(pod.uid.as_str()))
            });
            sorted.first_to_go(in_order).map(|pod| pod.uid.as_str()).filter(due).collect()
        };
        let places: Vec<usize> = (0..pods.len()).filter(|place| due.contains(pods[*place].uid.as_str())).collect();
        let index = self.index[name];
        // Put back when all are answered.
        let Some(node) = self.view.nodes.get_mut(name) else { return };
        let (mut pods, mut blocked) = (node.pods.take().unwrap_or_default(), std::mem::take(&mut node.blocked));
        for place in places {
            let leaves = &self.pods.template(self.pods.on(index)[place]).leaves;
            let ends = self.now + leaves.draw(&mut self.rng(index, Draw::Pod));
            self.answer((index, place), evictions.delete, ends, &mut pods[place], &mut blocked);
        }
        if !blocked.is_empty() {
            self.refused.insert(index);
        }
        if let Some(node) = self.view.nodes.get_mut(name) {
            (node.pods, node.blocked) = (Some(pods), blocked);
        }
    }

    /// Answers the eviction of the pod at this place of a node. If it is accepted, the pod ends at `ends`.
    fn answer(
        &mut self,
        (index, place): (usize, usize),
        delete: bool,
        ends: Timestamp,
        facts: &mut PodFacts,
        blocked: &mut BTreeMap<String, Blocked>,
    ) {
        let now = self.now;
        match self.pods.evict(index, place, delete, ends) {
            pods::Answer::Gone => {}
            pods::Answer::Leaves(ends) => {
                (facts.terminating, facts.ready, facts.ends_by) = (true, false, Some(ends));
                blocked.remove(&facts.uid);
                self.course.evictions += 1;
                self.course.nodes[index].evicted += 1;
                self.budgets_changed = true;
                self.touched.insert(index);
                if let Some((serial, template)) = self.pods.key(index, place) {
                    let after = ends.duration_since(now);
                    self.at(after, Event::PodEnds(index, serial, template));
                }
            }
            pods::Answer::Refused(budget) => {
                let budget = self.pods.budget(budget);
                let title = format!("{}/{}", budget.namespace, budget.name);
                *self.course.refusals.entry(title.clone()).or_default() += 1;
                let since = blocked.get(&facts.uid).map_or(now, |before| before.since);
                let refused = models::time::between(since, now);
                let retry_at = models::time::after(now, drain::eviction_pause(drain::BLOCKED_RETRY, refused));
                let answer = Blocked { budget: Some(title), since, retry_at, ..Blocked::default() };
                blocked.insert(facts.uid.clone(), answer);
            }
        }
    }

    /// Carries out one action. Returns true if there may be more to do for its node now.
    fn act(&mut self, name: &str, action: Action) -> bool {
        let index = self.index[name];
        let Some(node) = self.view.nodes.get_mut(name) else { return false };
        // A verification is no update: it moves nothing.
        let step =
            |node: &NodeView| node.step().filter(|_| node.progress().is_some_and(|p| !p.mode().is_verification()));
        let before = step(node);
        let cordoned = self.scenario.members[index].node.facts.cordoned_by_others();
        self.touched.insert(index);
        self.acted.insert(index);
        let left = write::write(node, action, cordoned);
        self.answer_hooks(index);
        let Some(node) = self.view.nodes.get_mut(name) else { return false };
        match left {
            Some(Action::Permit { nonce, rules, pods_stay }) => write::permit(node, nonce, rules, pods_stay),
            Some(Action::ReadLease { .. }) => {
                write::read_lease(node, self.states[index].up, self.now);
                // Of a kubelet that runs the next renewal is near: it takes no time of its own.
                if let Some(lease) = node.lease.as_mut().filter(|_| self.states[index].up) {
                    lease.alive_after = Some(self.now);
                }
            }
            Some(Action::ReadReplicaSet { set }) => write::read_replica_set(node, set, self.now),
            Some(Action::ReadOwner { owner, nodes, .. }) => {
                let health = self.read_owner(&owner, &nodes);
                self.node_mut(index).map(|node| node.owners.insert(owner, health));
            }
            _ => {}
        }
        let Some(node) = self.view.nodes.get_mut(name) else { return false };
        self.states[index].schedulable = node.facts.ready && self.states[index].up && !node.facts.unschedulable;
        let after = step(node);
        if before != after {
            let last = node.record().and_then(|record| record.last.as_ref()).map(|last| last.reason.as_str());
            self.course.step(index, before, after, last, self.now);
            self.fruitful = self.course.plans;
            if after.is_none() && last != Some(UPDATED) {
                self.failed.insert(index);
            }
            // Results go to the history, which has no part in this.
            if let Some(shadow) = &mut node.shadow {
                shadow.status.controller.results.clear();
            }
        }
        let shadow = node.shadow.as_ref();
        let unseen = shadow.is_some_and(|s| s.status.agent.observed_generation != Some(s.generation));
        if self.states[index].schedulable {
            for template in std::mem::take(&mut self.pods.homeless) {
                self.place(template);
            }
        }
        if unseen {
            self.react(index);
        }
        // A write that its agent has to see is planned on once the agent has seen it.
        !unseen
    }

    /// Returns the health of the pods of an owner on these nodes.
    fn read_owner(&self, owner: &String, nodes: &BTreeMap<String, Compared>) -> OwnerHealth {
        let mut health = OwnerHealth { read_at: self.now, ..OwnerHealth::default() };
        for (other, compared) in nodes {
            let pods = self.index.get(other.as_str()).map_or_else(Vec::new, |index| self.pods.watch(*index, other));
            for pod in pods.iter().filter(|pod| pod.controller_uid.as_ref() == Some(owner)) {
                health.count(pod, *compared, self.now);
            }
        }
        health
    }
}
