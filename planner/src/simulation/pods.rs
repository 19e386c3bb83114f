//! The pods of a simulated fleet and their budgets.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::scenario::{PodTemplate, Scenario};
use crate::view::{BudgetFacts, PodFacts};

/// A pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pod {
    pub(super) template: u32,
    /// 0 for a pod that existed at the beginning under its template's own uid.
    serial: u32,
    /// The second of the simulation by which it has to have ended; 0 if it is not being deleted.
    ends: u32,
    /// The second of the simulation in which it was placed; 0 for a pod that existed at the beginning.
    placed: u32,
    pub(super) ready: bool,
}

/// The answer to an eviction.
pub(super) enum Answer {
    /// Accepted; it ends at this time.
    Leaves(Timestamp),
    /// The index of the budget that refuses it.
    Refused(usize),
    /// It is not there, or is being deleted already.
    Gone,
}

/// The place of a new pod.
pub(super) enum Place {
    /// A node, and the pod's serial.
    Node(usize, u32),
    /// A node that is not under the operator.
    Elsewhere,
    Nowhere,
}

/// All pods.
pub(super) struct Pods<'a> {
    templates: &'a [PodTemplate],
    start: Timestamp,
    /// The budgets of each template.
    guards: Vec<Vec<u32>>,
    facts: &'a [BudgetFacts],
    /// The number of healthy pods of each budget.
    healthy: Vec<i32>,
    /// The pods of each node.
    on: Vec<Vec<Pod>>,
    /// The templates of pods that wait for a node.
    pub(super) homeless: Vec<u32>,
    /// The node on which the next pod is placed, if it is schedulable.
    next_node: usize,
    /// The number of nodes that are not under the operator.
    elsewhere: usize,
    made: u32,
}

impl<'a> Pods<'a> {
    pub(super) fn of(scenario: &'a Scenario) -> Self {
        let mut by_namespace: HashMap<&str, Vec<u32>> = HashMap::new();
        for (index, budget) in (0..).zip(&scenario.budgets) {
            by_namespace.entry(&budget.namespace).or_default().push(index);
        }
        let guards = scenario.pods.iter().map(|template| {
            let candidates = by_namespace.get(template.facts.namespace.as_str()).into_iter().flatten().copied();
            candidates.filter(|index| scenario.budgets[*index as usize].selects(&template.facts)).collect()
        });
        let mut made = 0;
        let mut uses = vec![0_u32; scenario.pods.len()];
        scenario.members.iter().flat_map(|member| &member.pods).for_each(|index| uses[*index as usize] += 1);
        let on = scenario.members.iter().map(|member| {
            let pods = member.pods.iter().map(|template| {
                let alone = uses[*template as usize] == 1;
                made += u32::from(!alone);
                let serial = if alone { 0 } else { made };
                let ready = scenario.pods[*template as usize].facts.ready;
                Pod { template: *template, serial, ends: 0, placed: 0, ready }
            });
            pods.collect()
        });
        let on = on.collect();
        Self {
            templates: &scenario.pods,
            start: scenario.start,
            guards: guards.collect(),
            facts: &scenario.budgets,
            healthy: scenario.budgets.iter().map(|budget| budget.healthy).collect(),
            on,
            homeless: Vec::new(),
            next_node: 0,
            elsewhere: scenario.elsewhere,
            made,
        }
    }

    fn second(&self, at: Timestamp) -> u32 {
        u32::try_from(at.duration_since(self.start).as_secs().max(1)).unwrap_or(u32::MAX)
    }

    fn time(&self, second: u32) -> Timestamp {
        self.start + SignedDuration::from_secs(i64::from(second))
    }

    fn to_facts(&self, node: &str, pod: Pod) -> PodFacts {
        let shared = &self.template(pod).facts;
        let serial = if pod.serial > 0 { format!("-{}", pod.serial) } else { String::new() };
        PodFacts {
            name: [shared.name.as_str(), &serial].concat(),
            uid: [shared.uid.as_str(), &serial].concat(),
            node: node.to_owned(),
            ready: pod.ready,
            pending: shared.pending && !pod.ready,
            created: if pod.placed > 0 { Some(self.time(pod.placed)) } else { shared.created },
            started: if pod.placed > 0 { Some(self.time(pod.placed)) } else { shared.started },
            terminating: pod.ends > 0,
            ends_by: (pod.ends > 0).then(|| self.time(pod.ends)),
            ..shared.clone()
        }
    }

    /// Returns the facts about the pods of a node.
    pub(super) fn watch(&self, member: usize, node: &str) -> Vec<PodFacts> {
        self.on[member].iter().map(|pod| self.to_facts(node, *pod)).collect()
    }

    /// Returns the pods of a node.
    pub(super) fn on(&self, member: usize) -> &[Pod] {
        &self.on[member]
    }

    pub(super) fn template(&self, pod: Pod) -> &'a PodTemplate {
        &self.templates[pod.template as usize]
    }

    /// Updates the budgets, which are those of the scenario, as the API server shows them.
    pub(super) fn show_budgets(&self, budgets: &mut [BudgetFacts]) {
        for (budget, healthy) in budgets.iter_mut().zip(&self.healthy) {
            (budget.allowed, budget.healthy) = ((healthy - budget.desired).max(0), *healthy);
        }
    }

    pub(super) fn budget(&self, index: usize) -> &'a BudgetFacts {
        &self.facts[index]
    }

    /// Counts a healthy pod for its budgets, or no longer. One that stays unhealthy is never counted.
    pub(super) fn count(&mut self, template: u32, change: i32) {
        if self.templates[template as usize].stays_unhealthy() {
            return;
        }
        for budget in &self.guards[template as usize] {
            self.healthy[*budget as usize] += change;
        }
    }

    /// Evicts the pod at this place of a node's list, or deletes it regardless of its budgets. It ends at `ends`.
    pub(super) fn evict(&mut self, member: usize, place: usize, delete: bool, ends: Timestamp) -> Answer {
        let Some(pod) = self.on[member].get(place).copied().filter(|pod| pod.ends == 0) else { return Answer::Gone };
        let guards = &self.guards[pod.template as usize];
        // Budgets do not guard a pod that has not started.
        let delete = delete || (self.template(pod).facts.pending && !pod.ready);
        let refuses = |index: &&u32| {
            let (budget, healthy) = (&self.facts[**index as usize], self.healthy[**index as usize]);
            healthy <= budget.desired && (pod.ready || !(budget.allows_unhealthy || healthy >= budget.desired))
        };
        if let Some(budget) = guards.iter().find(refuses).filter(|_| !delete) {
            return Answer::Refused(*budget as usize);
        }
        if pod.ready {
            self.count(pod.template, -1);
        }
        let second = self.second(ends);
        let found = &mut self.on[member][place];
        (found.ends, found.ready) = (second, false);
        Answer::Leaves(ends)
    }

    /// Removes a pod that has ended. Returns its place in the node's list, where the last one takes its place.
    pub(super) fn remove(&mut self, member: usize, serial: u32, template: u32) -> Option<usize> {
        let place = self.on[member].iter().position(|pod| (pod.serial, pod.template) == (serial, template))?;
        self.on[member].swap_remove(place);
        Some(place)
    }

    /// Returns the key by which [`Pods::remove`] finds the pod at this place.
    pub(super) fn key(&self, member: usize, place: usize) -> Option<(u32, u32)> {
        self.on[member].get(place).map(|pod| (pod.serial, pod.template))
    }

    /// Returns whether pods of a node are being deleted that its drain waits for before it goes on: critical ones leave last.
    pub(super) fn more_leave(&self, member: usize) -> bool {
        self.on[member].iter().any(|pod| pod.ends > 0 && !self.template(*pod).facts.critical)
    }

    /// Places a pod on the next node that takes pods, not Ready yet. Without one it waits.
    pub(super) fn place(&mut self, template: u32, now: Timestamp, takes: impl Fn(usize) -> bool) -> Place {
        let (own, nodes) = (self.on.len(), self.on.len() + self.elsewhere);
        let mut places = (0..nodes).map(|offset| (self.next_node + offset) % nodes);
        let Some(place) = places.find(|place| *place >= own || takes(*place)) else {
            self.homeless.push(template);
            return Place::Nowhere;
        };
        self.next_node = (place + 1) % nodes;
        if place >= own {
            return Place::Elsewhere;
        }
        self.made += 1;
        let placed = self.second(now);
        self.on[place].push(Pod { template, serial: self.made, ends: 0, placed, ready: false });
        Place::Node(place, self.made)
    }

    /// Returns the facts about the last pod of a node.
    pub(super) fn last(&self, member: usize, node: &str) -> Option<PodFacts> {
        self.on[member].last().map(|pod| self.to_facts(node, *pod))
    }

    /// Sets a pod Ready, unless it is being deleted. Returns its place.
    pub(super) fn becomes_ready(&mut self, member: usize, serial: u32, template: u32) -> Option<usize> {
        let place = self.on[member].iter().position(|pod| (pod.serial, pod.template) == (serial, template))?;
        let pod = &mut self.on[member][place];
        if pod.ends > 0 || pod.ready || self.templates[template as usize].stays_unhealthy() {
            return None;
        }
        pod.ready = true;
        self.count(template, 1);
        Some(place)
    }

    /// Sets the pods of a node that its drain does not move Ready or not, as a boot does. Those that it moves have left.
    pub(super) fn set_ready(&mut self, member: usize, ready: bool) {
        let mut changes: BTreeMap<u32, i32> = BTreeMap::new();
        for pod in self.on[member].iter_mut().filter(|pod| pod.ends == 0 && pod.ready != ready) {
            pod.ready = ready;
            *changes.entry(pod.template).or_default() += if ready { 1 } else { -1 };
        }
        for (template, change) in changes {
            self.count(template, change);
        }
    }
}
