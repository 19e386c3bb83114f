//! Actions of the controller: writes, evictions, and the answers to them.

use models::condition::ConditionStatus;

use super::objects::*;
use super::*;

impl World {
    /// Carries out one part of the plan, as a controller that may be interrupted after any write.
    pub(super) fn act(&mut self) {
        if self.late.is_some() && self.rng.random_bool(0.1) {
            // A write that is sent now was decided on what this one changes.
            self.sent = self.late.take();
            return self.arrives();
        }
        if self.sent.is_some() && self.rng.random_bool(0.2) {
            return self.arrives();
        }
        if self.behind.is_some() && self.rng.random_bool(0.2) {
            self.behind = None;
        }
        self.history.push_back(self.view.clone());
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.forged.retain(|name| self.view.nodes[name].progress().is_some());
        if self.rng.random_bool(0.2) {
            return self.answer_an_eviction();
        }
        let plan = self.plan();
        let (now, pause) = (self.clock(), SignedDuration::from_secs(60));
        for (name, wait) in &plan.refused {
            let node = self.view.nodes.get_mut(name).unwrap();
            if node.refused.as_ref().is_none_or(|refused| refused.again_at <= now) {
                node.refused = Some(Refused { wait: wait.clone(), again_at: now.checked_add(pause).unwrap() });
            }
        }
        let differs = self.view.operator.as_ref().map(|o| &o.status) != plan.status.as_ref();
        let nothing = plan.actions.is_empty() && plan.evictions.is_empty();
        let paused = !self.view.earlier_pods.is_empty() || plan.waits.values().any(Wait::pauses);
        assert!(nothing || !paused, "seed {}: beside the earlier operator", self.seed);
        if self.sent.is_none() && ((differs && self.rng.random_bool(0.4)) || nothing) {
            let behind = self.behind.as_ref().is_some_and(|behind| behind.operator.is_some());
            if let (Some(status), Some(operator), false) = (plan.status, &self.view.operator, behind) {
                self.view.retracted.extend(crate::plan::retracted(&operator.status.slots, &status.slots));
                self.sent = Some(status);
            }
            if self.rng.random_bool(0.7) {
                self.arrives();
            }
            return;
        }
        if nothing {
            return self.arrives();
        }
        let index = self.rng.random_range(0..plan.actions.len() + plan.evictions.len());
        if index >= plan.actions.len() {
            let (name, evictions) = plan.evictions.into_iter().nth(index - plan.actions.len()).unwrap();
            return self.evict(&name, &evictions);
        }
        let (name, action) = plan.actions.into_iter().nth(index).unwrap();
        self.carry_out(&name, action);
    }

    /// Sends evictions. Some are answered at once, others later.
    pub(super) fn evict(&mut self, name: &str, evictions: &Evictions) {
        for eviction in &evictions.pods {
            let node = self.view.nodes.get_mut(name).unwrap();
            let since = self.now + self.ahead;
            node.in_flight.insert(eviction.uid.clone(), InFlight { since, deletes: evictions.delete });
            if self.rng.random_bool(0.7) {
                self.answer(name, &eviction.uid);
            }
        }
    }

    /// Answers one of the evictions that were not answered at once.
    pub(super) fn answer_an_eviction(&mut self) {
        let in_flight = self.view.nodes.iter().flat_map(|(n, node)| node.in_flight.keys().map(|uid| (n.clone(), uid)));
        let in_flight: Vec<_> = in_flight.map(|(name, uid)| (name, uid.clone())).collect();
        if let Some((name, uid)) = in_flight.first() {
            self.answer(name, uid);
        }
    }

    /// The answer to an eviction: most pods leave, others are held back by a budget or a broken webhook.
    pub(super) fn answer(&mut self, name: &str, uid: &str) {
        let now = self.clock();
        let (up, budget) = (self.rng.random_bool(0.7), self.rng.random_bool(0.5));
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        let Some(sent) = node.in_flight.remove(uid) else { return };
        let dry_run = node.progress().is_some_and(|progress| progress.mode().is_dry());
        if up && dry_run {
            node.blocked.insert(uid.to_owned(), Blocked { accepted: true, ..refusal(node, &sent, uid, now) });
        } else if up || sent.deletes {
            let evicted = node.pods.iter().flatten().find(|p| p.uid == uid);
            if let Some(pod) = evicted.filter(|p| p.controller_uid.as_deref() == Some("partly-broken")) {
                let uid = format!("{}-again", pod.uid);
                self.homeless.push(PodFacts { uid, ..pod.clone() });
            }
            leave(node, host, &[uid].into());
            node.blocked.remove(uid);
        } else {
            let budget = budget.then(|| "shop/web".into());
            node.blocked.insert(uid.to_owned(), Blocked { budget, ..refusal(node, &sent, uid, now) });
        }
    }

    /// Applies the write of the operator's status, if one is under way, while others were carried out.
    pub(super) fn arrives(&mut self) {
        if let (Some(status), Some(operator)) = (self.sent.take(), &mut self.view.operator) {
            // Beside the earlier operator the slots stay as they are recorded, also where they were lost.
            let blocked = models::condition::find_condition(&status.conditions, models::operator::BLOCKED);
            let paused = blocked.is_some_and(|blocked| blocked.status != ConditionStatus::False);
            operator.status = status;
            self.created_again &= paused;
            self.changed();
        }
    }

    /// Drops pending writes after a change of the operator's resource: they were decided on an old version of it.
    pub(super) fn changed(&mut self) {
        (self.sent, self.late) = (None, None);
        self.view.retracted.clear();
    }

    pub(super) fn carry_out(&mut self, name: &str, action: Action) {
        let (seen, is) = (&self.seen().nodes[name], &self.view.nodes[name]);
        if seen.facts != is.facts || seen.shadow != is.shadow {
            // Decided on an old version of the object: the API server refuses it.
            return;
        }
        let (now, seed) = (self.clock(), self.seed);
        let frozen = Quarantine::of(&self.view, 1).frozen_by().is_some();
        let skips = skips(&self.policy, &self.view.nodes[name]);
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        let shadow = node.shadow.as_mut().unwrap();
        if Plan::ends_drain(&action) {
            node.in_flight.clear();
        }
        let verification = shadow.status.controller.progress.as_ref().is_some_and(|p| p.mode().is_verification());
        let disrupts = match &action {
            Action::Claim { .. } | Action::Permit { .. } => true,
            Action::Spec { spec } => spec.state != HostState::Idle,
            action => action.next_progress().is_some_and(|progress| progress.disruptive),
        };
        assert!(!(verification && disrupts), "seed {seed}: {name} is disrupted in a verification: {action:?}");
        match action {
            Action::Permit { nonce, rules, pods_stay } => return write::permit(node, nonce, rules, pods_stay),
            Action::ReadOwner { owner, nodes, .. } => {
                let mut health = OwnerHealth { read_at: now, ..OwnerHealth::default() };
                for (other, compared) in &nodes {
                    let pods = self.view.nodes[other].pods.iter().flatten();
                    for pod in pods.filter(|pod| pod.controller_uid.as_ref() == Some(&owner)) {
                        health.count(pod, *compared, now);
                    }
                }
                self.view.nodes.get_mut(name).unwrap().owners.insert(owner, health);
                return;
            }
            Action::ReadReplicaSet { set } => return write::read_replica_set(node, set, now),
            Action::ReadLease { .. } => {
                // A host that is going down renews nothing, except one whose kubelet is the last to end.
                let down = host.going_down.is_some_and(|at| at <= now) && !host.lingers && !host.graceful;
                return write::read_lease(node, !down, now);
            }
            Action::Spec { ref spec } => {
                assert!(spec.attempt >= shadow.spec.attempt, "seed {seed}: attempt fell");
                let drill = shadow.status.controller.progress.as_ref().is_some_and(|progress| progress.drill.is_some());
                let reboots = spec.state == HostState::RebootedIntoUpdate;
                assert!(!(drill && reboots), "seed {seed}: {name} is rebooted in a drill");
            }
            Action::Status { ref status, .. } => {
                let starts =
                    status.report.progress.as_ref().is_some_and(|p| p.step == Step::Draining && p.since == now);
                assert!(!(frozen && starts), "seed {seed}: {name} starts although the rollout is frozen");
                let drained_for = status.report.progress.as_ref().filter(|p| {
                    matches!(p.step, Step::LeavingLoadBalancer | Step::Draining)
                        && shadow.status.controller.progress.as_ref().is_some_and(|p| !p.disruptive)
                });
                if let Some(progress) = drained_for {
                    let offered = &shadow.status.agent.updates.as_ref().unwrap().available_versions;
                    let version = &progress.version;
                    let concerns_version = progress.drill.as_ref().is_none_or(|drill| drill.download);
                    assert!(
                        offered.contains(version) || !concerns_version,
                        "seed {seed}: {name} is drained for {version}, not offered"
                    );
                }
                let before = shadow.status.controller.progress.as_ref().map(|p| p.step);
                if starts && node.facts.hook_request.is_none() && before == Some(Step::BeforeDrain) {
                    let silent = self.policy.hooks.iter().filter_map(|hook| hook.before).all(|wait| wait.continues);
                    assert!(silent, "seed {seed}: {name} is drained, and its hooks were not asked");
                }
                assert_ready(seed, &node.facts, before.filter(|_| starts));
                let out = status.report.progress.as_ref().is_some_and(|p| p.disruptive);
                let drains = out && before.map(Step::place) == Some(Place::Waiting);
                assert!(!(drains && host.person_cordoned && skips), "seed {seed}: {name} is a user's, and drained");
                if shadow.status.controller.drain.is_none() {
                    host.pinned_left = 0;
                }
            }
            Action::Claim { .. } | Action::Release | Action::Hook { .. } => {}
        }
        write::write(node, action, host.person_cordoned);
    }
}

/// Asserts that a node is Ready whose drain begins after this step.
fn assert_ready(seed: u64, facts: &NodeFacts, before: Option<Step>) {
    let waited =
        |step: Step| step.place() == Place::Waiting || matches!(step, Step::BeforeDrain | Step::LeavingLoadBalancer);
    assert!(!before.is_some_and(waited) || facts.ready, "seed {seed}: {} is drained, and not Ready", facts.name);
}

/// A refusal by the API server, without a budget.
fn refusal(node: &NodeView, sent: &InFlight, uid: &str, now: Timestamp) -> Blocked {
    Blocked {
        message: "not now".into(),
        since: node.blocked.get(uid).map_or(sent.since, |old| old.since),
        retry_at: now.checked_add(SignedDuration::from_secs(5)).unwrap(),
        ..Blocked::default()
    }
}
