//! The planner against a simulated cluster: every action is carried out on it one at a time, in random order, with
//! crashes of the controller, whose successor finds old caches, other users' reboots, failing hosts, releases that are
//! superseded or withdrawn, clocks that jump and changing policy in between. The message of a failing run has its seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use models::operator::{BottlerocketUpdateOperatorSpec, BottlerocketUpdateOperatorStatus, CordonedNodes};
use models::reason::FailureReason;
use models::shadow::{AgentReport, Armed, ArmedPhase, Failure, HostState, OfferedUpdates, Permit, Step};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use semver::Version;
use serde_json::{Value, json};
use std::time::Instant;

use super::{Action, Evictions, Plan, Wait, plan};
use crate::claims::Parts;
use crate::drain;
use crate::lint::lint;
use crate::policy::Policy;
use crate::rules::Rules;
use crate::view::{
    Blocked, ClusterView, DaemonSetIs, InFlight, LeaseObservations, NodeFacts, NodeView, OperatorFacts, OwnerHealth,
    PodFacts, Refused, ShadowFacts, Standings,
};

const OLD: Version = Version::new(1, 20, 0);
const NEW: Version = Version::new(1, 20, 5);
const NEWER: Version = Version::new(1, 20, 6);

#[derive(Default)]
struct Host {
    boots: u32,
    runs: Option<Version>,
    staged: Option<Version>,
    armed: bool,
    person_cordoned: bool,
    nonces: u32,
    /// A permit is valid for 30 s after the nonce was sent.
    asked: Option<Timestamp>,
    /// The agent has its acknowledgement and will reboot, whatever happens to the desired state meanwhile.
    cleared: bool,
    /// The host goes down from this time on, which takes some time. Before it the call waits in the host's API server,
    /// whatever happens to its client.
    going_down: Option<Timestamp>,
    /// The shutdown takes as long as a host may, and its kubelet renews its Lease to the end.
    lingers: bool,
    /// The agent was restarted while the host goes down: the new process does not know of the requested reboot.
    restarted: bool,
    pods_made: u32,
    /// A pod that its owner binds to this node itself, past the scheduler.
    pinned: bool,
    /// The number of pods of that owner that have left in the last drain.
    pinned_left: u32,
    /// The time at which the pod that is slow after each boot becomes Ready.
    slow_until: Option<Timestamp>,
    next_boot_fails: bool,
    next_stage_fails: bool,
}

struct World {
    view: ClusterView,
    hosts: BTreeMap<String, Host>,
    now: Timestamp,
    /// The time by which the controller's clock is ahead of that, for now.
    ahead: SignedDuration,
    /// The controller's memory, and the moment at which the simulation began.
    standings: Standings,
    began: (Timestamp, Instant),
    rng: StdRng,
    seed: u64,
    policy: Policy,
    /// The versions in the update repository, newest first.
    releases: Vec<Version>,
    /// A write of the operator's status that has been sent and has not arrived.
    sent: Option<BottlerocketUpdateOperatorStatus>,
    /// A write that a controller sent that has crashed since, or whose answer was lost.
    late: Option<BottlerocketUpdateOperatorStatus>,
    /// The state after the last writes, for caches that are behind.
    history: VecDeque<ClusterView>,
    /// The caches of a new leader where they have not caught up yet.
    behind: Option<Behind>,
    /// Nodes whose shadow shows an attempt that is not the controller's.
    forged: BTreeSet<String>,
    /// Nodes that a user has held, for as long as anything of an attempt from before is left on them.
    held: BTreeSet<String>,
    /// The last time at which each node was without the label.
    left: BTreeMap<String, Timestamp>,
    /// Pods that were evicted and have no node yet.
    homeless: Vec<PodFacts>,
    /// True if the new version breaks the pods of the DaemonSet `driver`.
    breaks_driver: bool,
    /// True if the operator's resource was deleted and created again, and its status was not written since.
    created_again: bool,
    /// Nodes whose attempt has lost its slot with the operator's resource. Without a claim it ends: nothing backs it.
    lost_slot: BTreeSet<String>,
}

/// The number of earlier states that a cache may be behind by.
const HISTORY: usize = 20;

/// Caches of a new leader that show old states, each of another time.
struct Behind {
    nodes: Option<ClusterView>,
    shadows: Option<ClusterView>,
    operator: Option<ClusterView>,
}

fn pod(node: &str, number: u32) -> PodFacts {
    PodFacts {
        namespace: "shop".into(),
        name: format!("{node}-{number}"),
        uid: format!("{node}-{number}"),
        node: node.into(),
        controller_uid: Some("rs".into()),
        ready: true,
        ..PodFacts::default()
    }
}

/// A pod that tolerates the cordon, and that its owner creates again where it was.
fn addon(node: &str, number: u32) -> PodFacts {
    let owner = Some(format!("addon-{node}"));
    PodFacts { namespace: "kube-system".into(), tolerates_cordon: true, controller_uid: owner, ..pod(node, number) }
}

/// A pod of an owner that binds its pods to this node itself.
fn pinned(node: &str, number: u32) -> PodFacts {
    PodFacts { controller_uid: Some("pinned".into()), ..pod(node, number) }
}

/// Removes pods from a node; those that tolerate the cordon or are bound to it by their owner come back.
fn leave(node: &mut NodeView, host: &mut Host, uids: &BTreeSet<&str>) {
    let (name, pods) = (&node.facts.name, node.pods.as_mut().unwrap());
    let left = |test: fn(&PodFacts) -> bool| pods.iter().filter(|p| uids.contains(p.uid.as_str()) && test(p)).count();
    let back = left(|p| p.tolerates_cordon);
    let bound = left(|p| p.controller_uid.as_deref() == Some("pinned"));
    pods.retain(|p| !uids.contains(p.uid.as_str()));
    for _ in 0..back {
        host.pods_made += 1;
        pods.push(addon(name, host.pods_made));
    }
    for _ in 0..bound {
        host.pinned_left += 1;
        assert!(host.pinned_left <= 4, "{name}: a pod that comes back each time is evicted again and again");
        if host.pinned {
            host.pods_made += 1;
            pods.push(pinned(name, host.pods_made));
        }
    }
}

/// A pod of a DaemonSet.
fn daemon(node: &str, set: &str) -> PodFacts {
    PodFacts {
        name: format!("{set}-{node}"),
        uid: format!("{set}-{node}"),
        controller_uid: Some(set.into()),
        daemon_set: Some(set.into()),
        daemon_set_is: DaemonSetIs::There,
        ..pod(node, 0)
    }
}

/// The time that the pods of the DaemonSet `slow` take to become Ready: longer than an update waits for pods.
const SLOW: SignedDuration = SignedDuration::from_mins(16);

fn some_labels(rng: &mut StdRng) -> BTreeMap<String, String> {
    let zone = if rng.random_bool(0.5) { "a" } else { "b" };
    let tier = if rng.random_bool(0.5) { "db" } else { "web" };
    [(models::names::ZONE_LABEL.to_owned(), zone.to_owned()), ("tier".to_owned(), tier.to_owned())].into()
}

/// A policy with a random choice of its parts. It never keeps a node from its update for good.
fn some_policy(rng: &mut StdRng, budget: u32) -> BottlerocketUpdateOperatorSpec {
    let mut spec = json!({"maxUnavailable": budget});
    let parts = [
        json!({"nodeGroups": [{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": 1, "health": {"after": {"soak": "30s"}}}]}),
        json!({"strategy": {"oneZoneAtATime": true}}),
        json!({"strategy": {"preStage": {"maxConcurrent": 2}}}),
        json!({"strategy": {"canary": [{"nodes": 1, "soak": "1m"}, {"nodes": "60%"}]}}),
        json!({"schedule": {"windows": [{"cron": "0 * * * *", "duration": "40m"}], "stopStartingBefore": "5m"}}),
        json!({"version": {"minimumAge": "10m"}}),
        json!({"health": {"before": {"podsReady": true, "maxUnhealthyNodes": 2}}}),
        json!({"loadBalancer": {"leaveBeforeDrain": "30s"}, "autoscaler": {"protect": false}}),
        json!({"drain": {"atDeadline": "Force", "timeout": "10m"}}),
        json!({"drain": {"cordonedNodes": "Update"}}),
    ];
    for part in parts {
        if rng.random_bool(0.3) {
            merge(&mut spec, part);
        }
    }
    serde_json::from_value(spec).unwrap()
}

fn merge(into: &mut Value, part: Value) {
    match (into, part) {
        (Value::Object(into), Value::Object(part)) => {
            for (key, value) in part {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, part) => *into = part,
    }
}

/// Returns whether policy leaves the node alone where a user has cordoned it.
fn skips(policy: &Policy, node: &NodeView) -> bool {
    policy.for_node(&node.facts).drain.cordoned_nodes == CordonedNodes::Skip
}

impl World {
    fn new(seed: u64, nodes: usize, budget: u32) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let spec = some_policy(&mut rng, budget);
        let operator = OperatorFacts { uid: "op".into(), spec, ..OperatorFacts::default() };
        let mut view = ClusterView { operator: Some(operator), leader_since: now, ..ClusterView::default() };
        let mut hosts = BTreeMap::new();
        for number in 0..nodes {
            let name = format!("node-{number}");
            let facts = NodeFacts {
                name: name.clone(),
                uid: format!("uid-{number}"),
                labelled: true,
                ready: true,
                boot_id: "boot-0".into(),
                os_image: format!("Bottlerocket OS {OLD} (aws-k8s-1.37)"),
                labels: Arc::new(some_labels(&mut rng)),
                ..NodeFacts::default()
            };
            let shadow = ShadowFacts {
                node: name.clone(),
                uid: format!("shadow-{number}"),
                generation: 1,
                owner_uid: Some(facts.uid.clone()),
                ..ShadowFacts::default()
            };
            let addons = rng.random_range(0..3);
            let pods = (0..rng.random_range(0..3)).map(|n| if n < addons { addon(&name, n) } else { pod(&name, n) });
            let bound = rng.random_bool(0.2);
            let pods = pods.chain(bound.then(|| pinned(&name, 5))).collect();
            view.nodes.insert(
                name.clone(),
                NodeView { facts, shadow: Some(shadow), pods: Some(pods), ..NodeView::default() },
            );
            hosts.insert(name, Host { runs: Some(OLD), pods_made: 10, pinned: bound, ..Host::default() });
        }
        let policy = Policy::from_spec(&view.operator.as_ref().unwrap().spec).unwrap();
        let (ahead, standings, began) = (SignedDuration::ZERO, Standings::default(), (now, Instant::now()));
        Self {
            view,
            hosts,
            now,
            ahead,
            standings,
            began,
            rng,
            seed,
            policy,
            releases: vec![NEW, OLD],
            sent: None,
            late: None,
            history: VecDeque::new(),
            behind: None,
            forged: BTreeSet::new(),
            held: BTreeSet::new(),
            left: BTreeMap::new(),
            homeless: Vec::new(),
            breaks_driver: false,
            created_again: false,
            lost_slot: BTreeSet::new(),
        }
    }

    /// Adds pods that are unhealthy without any fault of the version: some of a Deployment are broken on any node, a
    /// DaemonSet crash-loops everywhere and is Ready in between, another one is slow to become Ready after each boot.
    /// And a healthy one.
    fn add_sick_pods(&mut self) {
        let operator = self.view.operator.as_mut().unwrap();
        // These may keep a node with an unhealthy pod from an update, or the simulation from ending within its limit.
        (operator.spec.health, operator.spec.schedule) = (None, None);
        self.policy = Policy::from_spec(&operator.spec).unwrap();
        for (name, node) in &mut self.view.nodes {
            let broken = self.rng.random_bool(0.5);
            let owned = PodFacts { controller_uid: Some("partly-broken".into()), ..pod(name, 5) };
            let crash_loops = PodFacts { restarts: 5, restarted_at: Some(self.now), ..daemon(name, "crash-loops") };
            let all = [PodFacts { ready: !broken, ..owned }, crash_loops, daemon(name, "slow"), daemon(name, "driver")];
            node.pods.as_mut().unwrap().extend(all);
        }
    }

    /// Advances the state of unhealthy pods.
    fn pods_go_on(&mut self) {
        let mut homeless = std::mem::take(&mut self.homeless);
        for (name, node) in &mut self.view.nodes {
            let host = &self.hosts[name];
            let updated = host.runs == Some(NEW);
            if !node.facts.unschedulable
                && let Some(pod) = homeless.pop()
            {
                node.pods.as_mut().unwrap().push(PodFacts { node: name.clone(), ..pod });
            }
            for pod in node.pods.iter_mut().flatten() {
                match pod.daemon_set.as_deref() {
                    Some("crash-loops") => {
                        (pod.ready, pod.restarted_at) = (self.rng.random_bool(0.8), Some(self.now));
                    }
                    Some("slow") => pod.ready = host.slow_until.is_none_or(|until| until <= self.now),
                    Some("driver") => pod.ready = !(updated && self.breaks_driver),
                    _ => {}
                }
            }
        }
        self.homeless = homeless;
    }

    fn names(&self) -> Vec<String> {
        self.view.nodes.keys().cloned().collect()
    }

    fn some_node(&mut self) -> String {
        let names = self.names();
        names[self.rng.random_range(0..names.len())].clone()
    }

    /// The time by the controller's clock.
    fn clock(&self) -> Timestamp {
        self.now + self.ahead
    }

    /// The controller's view: the current state, or an older one from caches that are behind.
    fn seen(&self) -> ClusterView {
        let mut seen = self.view.clone();
        let Some(behind) = &self.behind else { return seen };
        seen.stale = true;
        for (name, node) in &mut seen.nodes {
            if let Some(old) = behind.nodes.as_ref().and_then(|old| old.nodes.get(name)) {
                node.facts = old.facts.clone();
            }
            if let Some(old) = behind.shadows.as_ref().and_then(|old| old.nodes.get(name)) {
                node.shadow.clone_from(&old.shadow);
            }
        }
        if let Some(old) = &behind.operator {
            seen.operator.clone_from(&old.operator);
        }
        seen.retracted = super::not_begun(&seen);
        seen
    }

    /// Gives a new leader each cache in its current state, or an older one.
    fn fall_behind(&mut self) {
        let old = |world: &mut Self| {
            // In half of the cases it is not behind.
            let index = world.rng.random_range(0..2 * HISTORY);
            world.history.get(index).cloned()
        };
        self.behind = Some(Behind { nodes: old(self), shadows: old(self), operator: old(self) });
    }

    fn plan(&mut self) -> Plan {
        let lasted = Duration::try_from(self.now.duration_since(self.began.0)).unwrap();
        self.standings.observe(&mut self.view.nodes, self.began.1 + lasted);
        for node in self.view.nodes.values_mut().filter(|node| node.step() != Some(Step::Draining)) {
            node.in_flight.clear();
        }
        let waits_for_slot = |node: &NodeView| matches!(node.step(), Some(Step::Staging | Step::Staged));
        for node in self.view.nodes.values_mut().filter(|node| !waits_for_slot(node)) {
            node.refused = None;
        }
        let seen = self.seen();
        let mut plan = plan(&seen, &self.policy, self.clock());
        let findings = lint(&seen, &self.policy, &mut plan);
        assert!(findings.is_empty(), "seed {}: the planner broke its own rules: {findings:?}", self.seed);
        plan
    }

    /// Carries out one part of the plan, as a controller that may be interrupted after any write.
    fn act(&mut self) {
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
        if self.sent.is_none() && ((differs && self.rng.random_bool(0.4)) || nothing) {
            let behind = self.behind.as_ref().is_some_and(|behind| behind.operator.is_some());
            if let (Some(status), Some(operator), false) = (plan.status, &self.view.operator, behind) {
                self.view.retracted.extend(super::retracted(&operator.status.slots, &status.slots));
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
    fn evict(&mut self, name: &str, evictions: &Evictions) {
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
    fn answer_an_eviction(&mut self) {
        let in_flight = self.view.nodes.iter().flat_map(|(n, node)| node.in_flight.keys().map(|uid| (n.clone(), uid)));
        let in_flight: Vec<_> = in_flight.map(|(name, uid)| (name, uid.clone())).collect();
        if let Some((name, uid)) = in_flight.first() {
            self.answer(name, uid);
        }
    }

    /// The answer to an eviction: most pods leave, others are held back by a budget or a broken webhook.
    fn answer(&mut self, name: &str, uid: &str) {
        let now = self.clock();
        let (up, budget) = (self.rng.random_bool(0.7), self.rng.random_bool(0.5));
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        let Some(sent) = node.in_flight.remove(uid) else { return };
        if up || sent.deletes {
            let evicted = node.pods.iter().flatten().find(|p| p.uid == uid);
            if let Some(pod) = evicted.filter(|p| p.controller_uid.as_deref() == Some("partly-broken")) {
                let uid = format!("{}-again", pod.uid);
                self.homeless.push(PodFacts { uid, ..pod.clone() });
            }
            leave(node, host, &[uid].into());
            node.blocked.remove(uid);
        } else {
            let blocked = Blocked {
                budget: budget.then(|| "shop/web".into()),
                message: "not now".into(),
                since: node.blocked.get(uid).map_or(sent.since, |old| old.since),
                retry_at: now.checked_add(SignedDuration::from_secs(5)).unwrap(),
                fatal: false,
                accepted: false,
                deleted: false,
            };
            node.blocked.insert(uid.to_owned(), blocked);
        }
    }

    /// Applies the write of the operator's status, if one is under way, while others were carried out.
    fn arrives(&mut self) {
        if let (Some(status), Some(operator)) = (self.sent.take(), &mut self.view.operator) {
            operator.status = status;
            self.created_again = false;
            self.changed();
        }
    }

    /// Drops pending writes after a change of the operator's resource: they were decided on an old version of it.
    fn changed(&mut self) {
        (self.sent, self.late) = (None, None);
        self.view.retracted.clear();
    }

    fn carry_out(&mut self, name: &str, action: Action) {
        let (seen, is) = (&self.seen().nodes[name], &self.view.nodes[name]);
        if seen.facts != is.facts || seen.shadow != is.shadow {
            // Decided on an old version of the object: the API server refuses it.
            return;
        }
        let (now, seed) = (self.clock(), self.seed);
        let frozen = super::Quarantine::of(&self.view, 1).frozen_by().is_some();
        let skips = skips(&self.policy, &self.view.nodes[name]);
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        let shadow = node.shadow.as_mut().unwrap();
        if Plan::ends_drain(&action) {
            node.in_flight.clear();
        }
        match action {
            Action::Status { status, .. } => {
                let starts =
                    status.report.progress.as_ref().is_some_and(|p| p.step == Step::Draining && p.since == now);
                assert!(!(frozen && starts), "seed {seed}: {name} starts although the rollout is frozen");
                let drained_for = status.report.progress.as_ref().filter(|p| {
                    matches!(p.step, Step::LeavingBalancer | Step::Draining)
                        && shadow.status.controller.progress.as_ref().is_some_and(|p| !p.disruptive)
                });
                if let Some(progress) = drained_for {
                    let offered = &shadow.status.agent.updates.as_ref().unwrap().available_versions;
                    let version = &progress.version;
                    assert!(offered.contains(version), "seed {seed}: {name} is drained for {version}, not offered");
                }
                let before = shadow.status.controller.progress.as_ref().map(|p| p.step);
                let out = status.report.progress.as_ref().is_some_and(|p| p.disruptive);
                let drains = out && matches!(before, Some(Step::Staging | Step::Staged));
                assert!(!(drains && host.person_cordoned && skips), "seed {seed}: {name} is a user's, and drained");
                if shadow.status.controller.drain.is_none() {
                    host.pinned_left = 0;
                }
                shadow.status.controller = status.report;
                let agents = shadow.status.agent_status().conditions;
                shadow.status.conditions = agents.into_iter().chain(status.conditions).collect();
            }
            Action::Spec { spec } => {
                assert!(spec.attempt >= shadow.spec.attempt, "seed {seed}: attempt fell");
                shadow.spec = *spec;
                shadow.generation += 1;
            }
            Action::Claim { parts, .. } => {
                node.facts.claims = parts;
                node.facts.unschedulable = true;
            }
            Action::Release => {
                node.facts.claims = Parts::default();
                node.facts.unschedulable = host.person_cordoned;
            }
            Action::Permit { nonce, rules } => {
                // The executor's own last check.
                let drain = shadow.status.controller.drain.clone();
                let pods = node.pods.clone().unwrap_or_default();
                let empty = drain::sort(&pods, rules, drain.as_ref()).empty();
                if empty && node.facts.claimed() && shadow.spec.boot_id.as_ref() == Some(&node.facts.boot_id) {
                    shadow.spec.permit = Some(Permit { nonce, jws: String::new() });
                    shadow.generation += 1;
                }
            }
            Action::ReadOwner { owner, nodes, .. } => {
                let mut health = OwnerHealth::default();
                for (other, compared) in &nodes {
                    let pods = self.view.nodes[other].pods.iter().flatten();
                    for pod in pods.filter(|pod| pod.controller_uid.as_ref() == Some(&owner)) {
                        health.count(pod, Some(*compared), now);
                    }
                }
                self.view.nodes.get_mut(name).unwrap().owners.insert(owner, health);
            }
            Action::LookAtLease => {
                // A host that is going down renews nothing, except one whose kubelet is the last to end.
                let down = host.going_down.is_some_and(|at| at <= now) && !host.lingers;
                let renewed = if down { Timestamp::UNIX_EPOCH } else { now };
                node.lease = Some(LeaseObservations::add(node.lease, Some(renewed), now));
            }
        }
    }

    /// Runs one step of one agent, with its reports in the real order but without their cost.
    fn agent(&mut self, name: &str) {
        let (now, releases) = (self.now, self.releases.clone());
        let (stalls, slow) = (self.rng.random_bool(0.4), self.rng.random_bool(0.5));
        let queued = if self.rng.random_bool(0.2) { self.rng.random_range(1..=90) } else { 0 };
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        if host.going_down.is_some() && !host.restarted {
            if !slow && !host.lingers && host.going_down <= Some(now) {
                self.goes_down(name);
            }
            return;
        }
        let fresh = host.asked.is_some_and(|at| now.duration_since(at).as_secs() < 30);
        if host.cleared {
            if fresh && stalls {
                return;
            }
            host.cleared = false;
            if fresh {
                host.going_down = Some(now + SignedDuration::from_secs(queued));
                host.lingers = queued > 60;
                return;
            }
        }
        let shadow = node.shadow.as_mut().unwrap();
        let spec = &shadow.spec;
        let agent: &mut AgentReport = &mut shadow.status.agent;
        let boot = node.facts.boot_id.clone();
        let same_boot = spec.boot_id.as_deref() == Some(boot.as_str());
        let failed = agent.failure.as_ref().is_some_and(|f| f.attempt == spec.attempt);
        let runs = host.runs.clone().unwrap();
        let before = agent.current_version.clone();
        let lock = spec.host.as_ref().and_then(|host| host.version_lock.clone());
        let lets_in = |version: &Version| lock.as_ref().is_none_or(|lock| *lock == version.to_string());
        agent.boot_id = Some(boot.clone());
        agent.current_version = Some(runs.clone());
        agent.variant = Some("aws-k8s-1.37".into());
        agent.arch = Some("x86_64".into());
        agent.updates = Some(OfferedUpdates {
            chosen_version: releases.iter().find(|version| **version > runs && lets_in(version)).cloned(),
            available_versions: releases.clone(),
            ..OfferedUpdates::default()
        });
        agent.observed_generation = Some(shadow.generation);
        let fail = |agent: &mut AgentReport, reason| {
            let (attempt, step, message) = (spec.attempt, spec.state, String::new());
            agent.failure = Some(Failure { attempt, step, reason, message, time: now });
            agent.state = Some(HostState::Idle);
        };
        match spec.state {
            HostState::Idle | HostState::Unknown => {
                host.armed = false;
                agent.armed = None;
                agent.state = Some(HostState::Idle);
            }
            _ if failed => {}
            HostState::StagedUpdate => {
                if host.next_stage_fails {
                    host.next_stage_fails = false;
                    fail(agent, FailureReason::PrepareFailed);
                } else if host.staged != spec.version && agent.updates.as_ref().unwrap().chosen_version != spec.version
                {
                    fail(agent, FailureReason::VersionNotOffered);
                } else {
                    host.staged.clone_from(&spec.version);
                    agent.state = Some(HostState::StagedUpdate);
                }
            }
            HostState::RebootedIntoUpdate if !same_boot => {
                let activated =
                    agent.armed.as_ref().is_some_and(|a| a.attempt == spec.attempt && a.phase == ArmedPhase::Activated);
                if Some(&runs) == spec.version.as_ref() {
                    agent.state = Some(HostState::RebootedIntoUpdate);
                } else if activated && before.as_ref() == Some(&runs) {
                    fail(agent, FailureReason::BootFellBack);
                } else {
                    fail(agent, FailureReason::RebootedByOther);
                }
                agent.armed = None;
            }
            HostState::RebootedIntoUpdate if host.staged != spec.version => fail(agent, FailureReason::NotStaged),
            HostState::RebootedIntoUpdate => {
                let armed = agent.armed.clone().filter(|a| a.attempt == spec.attempt && a.boot_id == boot);
                let answered =
                    armed.as_ref().is_some_and(|a| fresh && spec.permit.as_ref().is_some_and(|g| g.nonce == a.nonce));
                match armed {
                    Some(armed) if answered && armed.phase == ArmedPhase::Arming => {
                        host.armed = true;
                        agent.armed = Some(Armed { phase: ArmedPhase::Activated, ..armed });
                    }
                    Some(_) if answered => host.cleared = true,
                    _ if fresh => {}
                    _ => {
                        host.nonces += 1;
                        host.asked = Some(now);
                        let nonce = format!("{boot}-{}", host.nonces);
                        let (attempt, version) = (spec.attempt, spec.version.clone().unwrap());
                        agent.armed = Some(Armed { attempt, boot_id: boot, version, phase: ArmedPhase::Arming, nonce });
                    }
                }
            }
        }
    }

    /// Carries out the reboot that the agent requested: never of a released node, never over pods that had to leave.
    fn goes_down(&mut self, name: &str) {
        let seed = self.seed;
        let node = &self.view.nodes[name];
        let drain = node.shadow.as_ref().and_then(|s| s.status.controller.drain.clone());
        let pods = node.pods.clone().unwrap_or_default();
        let left = drain::sort(&pods, Rules::default(), drain.as_ref());
        assert!(node.facts.claimed(), "seed {seed}: {name} reboots although it was released");
        assert!(left.evictable.is_empty() && left.refused.is_empty(), "seed {seed}: {name} reboots with pods");
        self.reboot(name);
    }

    fn reboot(&mut self, name: &str) {
        let node = self.view.nodes.get_mut(name).unwrap();
        let host = self.hosts.get_mut(name).unwrap();
        host.boots += 1;
        host.slow_until = Some(self.now + SLOW);
        node.facts.boot_id = format!("boot-{}", host.boots);
        if host.armed && !host.next_boot_fails {
            host.runs = host.staged.take();
        }
        host.next_boot_fails &= !host.armed;
        (host.armed, host.staged, host.asked) = (false, None, None);
        (host.cleared, host.going_down, host.restarted, host.lingers) = (false, None, false, false);
        node.facts.os_image = format!("Bottlerocket OS {} (aws-k8s-1.37)", host.runs.as_ref().unwrap());
    }

    /// Injects a fault.
    fn trouble(&mut self) {
        let name = self.some_node();
        let kind = self.rng.random_range(0..22);
        if matches!(kind, 4 | 12 | 21) {
            self.changed();
        }
        if matches!(kind, 5 | 6) {
            self.late = self.sent.take().or(self.late.take());
            self.view.retracted = super::not_begun(&self.view);
        }
        // The answer to the write of the operator's status is lost; the write may still arrive.
        if kind == 20 {
            self.late = self.sent.take().or(self.late.take());
        }
        if kind == 21 {
            let operator = self.view.operator.as_mut().unwrap();
            operator.uid.push('+');
            (operator.status, operator.resume) = (BottlerocketUpdateOperatorStatus::default(), None);
            self.created_again = true;
            self.lost_slot = self.names().into_iter().collect();
        }
        if kind == 17 {
            self.releases = vec![NEWER, NEW, OLD];
        }
        if kind == 18 && self.releases.contains(&NEWER) {
            self.releases = vec![NEWER, OLD];
        }
        let ahead = self.rng.random_range(-1..=1) * 10;
        let now = self.now;
        let request = Some(self.now.to_string());
        let node = self.view.nodes.get_mut(&name).unwrap();
        let host = self.hosts.get_mut(&name).unwrap();
        match kind {
            0 => self.reboot(&name),
            1 => host.next_stage_fails = true,
            2 => host.next_boot_fails = true,
            3 => {
                node.facts.held = !node.facts.held;
                self.held.insert(name);
            }
            4 => {
                let operator = self.view.operator.as_mut().unwrap();
                operator.spec.enabled = Some(operator.spec.enabled == Some(false));
                self.policy = Policy::from_spec(&operator.spec).unwrap();
            }
            5 | 6 => {
                // The controller crashed: its memory is lost.
                self.view.leader_since = self.clock();
                self.standings = Standings::default();
                self.fall_behind();
                for node in self.view.nodes.values_mut() {
                    node.blocked.clear();
                    node.in_flight.clear();
                    node.refused = None;
                    node.lease = None;
                }
            }
            7 => node.facts.ready = !node.facts.ready,
            8 if !node.facts.unschedulable => {
                host.pods_made += 1;
                let pod = pod(&name, host.pods_made);
                node.pods.as_mut().unwrap().push(pod);
            }
            9 => {
                host.person_cordoned = !host.person_cordoned;
                node.facts.unschedulable = node.facts.claimed() || host.person_cordoned;
            }
            10 => {
                node.facts.labelled = !node.facts.labelled;
            }
            11 => {
                host.restarted = host.going_down.is_some();
                (host.asked, host.cleared) = (None, false);
            }
            12 => self.view.operator.as_mut().unwrap().resume = request,
            13 => node.shadow.as_mut().unwrap().retry = request,
            14 => node.shadow.as_mut().unwrap().release = request,
            15 => self.ahead = SignedDuration::from_mins(ahead),
            // A client edits the status of a shadow by hand.
            16 if node.step() == Some(Step::Releasing) => {
                node.shadow.as_mut().unwrap().status.controller.progress = None;
            }
            // Another client writes an attempt into the status of a shadow that has none.
            19 if node.progress().is_none() && !node.facts.claimed() => {
                let steps = [Step::LeavingBalancer, Step::Draining, Step::Rebooting, Step::Returning, Step::Monitoring];
                let step = steps[usize::try_from(now.as_second()).unwrap() % steps.len()];
                let shadow = node.shadow.as_mut().unwrap();
                let attempt = shadow.spec.attempt;
                let forged = crate::fixtures::progress(step, 0);
                shadow.status.controller.progress = Some(models::shadow::Progress {
                    attempt,
                    boot_id: node.facts.boot_id.clone(),
                    since: now,
                    started: now,
                    ..forged
                });
                self.forged.insert(name);
            }
            _ => {}
        }
    }

    /// Returns whether only a forged attempt is on a node's shadow.
    fn only_forged(&self, node: &NodeView) -> bool {
        self.forged.contains(&node.facts.name) && !node.facts.claimed()
    }

    /// Returns whether the rest of an attempt on a node may have been kept by a user's hold.
    fn kept(&self, node: &NodeView) -> bool {
        self.held.contains(&node.facts.name) && node.progress().is_none()
    }

    fn check(&mut self, budget: usize) {
        for (name, node) in &self.view.nodes {
            if !node.facts.labelled {
                self.left.insert(name.clone(), self.now);
            }
            let slots = self.view.operator.iter().flat_map(|operator| &operator.status.slots);
            let rests = !node.facts.held && !node.facts.claimed() && node.progress().is_none();
            if rests && !slots.chain(self.sent.iter().flat_map(|sent| &sent.slots)).any(|slot| slot.node == *name) {
                self.held.remove(name);
            }
        }
        let slots = &self.view.operator.as_ref().unwrap().status.slots;
        // A claim that a user's hold has kept beyond its attempt gets its slot when the hold ends, also over the
        // budget: it is out of service already.
        let given = slots.iter().filter(|slot| !self.kept(&self.view.nodes[&slot.node])).count();
        assert!(given <= budget, "seed {}: {given} slots over a budget of {budget}", self.seed);
        for node in self.view.nodes.values() {
            let progress = node.progress();
            // A claim without an attempt is one that a user's hold has kept: it takes no slot.
            let disrupted = progress.is_some_and(|p| p.disruptive || node.facts.claimed()) && !self.only_forged(node);
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
    fn check_policy(&self) {
        let (seed, policy) = (self.seed, &self.policy);
        let out: Vec<&NodeView> =
            self.view.nodes.values().filter(|n| n.disrupted() && !self.kept(n) && !self.only_forged(n)).collect();
        for (index, group) in policy.groups.iter().enumerate() {
            let members = out.iter().filter(|n| policy.group_of(&n.facts) == Some(index)).count();
            let limit = group.max_unavailable.as_ref().map_or(usize::MAX, |limit| limit.of(1).unwrap());
            assert!(members <= limit, "seed {seed}: {members} nodes of group {} are out of service", group.name);
        }
        let zones: BTreeSet<&str> = out.iter().map(|n| n.facts.zone()).collect();
        assert!(!policy.one_zone_at_a_time || zones.len() <= 1, "seed {seed}: zones {zones:?} are out of service");
        let status = self.view.operator.as_ref().map(|o| &o.status);
        for rollout in status.iter().flat_map(|status| &status.active_rollouts).filter(|r| r.ended.is_none()) {
            let passed = usize::try_from(rollout.steps_passed).unwrap();
            let Some(step) = policy.canary.get(passed) else { continue };
            let ours = |n: &&&NodeView| n.progress().is_some_and(|p| p.version == rollout.version);
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
            let limit = step.nodes.of(self.view.nodes.len()).unwrap();
            let spread = updated + out;
            assert!(spread <= limit, "seed {seed}: {spread} nodes have begun, and the canary step allows {limit}");
        }
    }

    fn advance(&mut self, span: Duration) {
        // A shutdown takes 150 s at most, and a kubelet that renews its lease is not on a host that is down.
        for name in self.names() {
            let since = self.hosts[&name].going_down;
            if since.is_some_and(|at| self.now.duration_since(at).as_secs() + span.as_secs().cast_signed() >= 150) {
                self.goes_down(&name);
            }
        }
        self.now = self.now.checked_add(jiff::SignedDuration::try_from(span).unwrap()).unwrap();
        self.pods_go_on();
    }

    /// Runs without faults until nothing changes any more, however long that takes.
    fn settle(&mut self, budget: usize) {
        for node in self.view.nodes.values_mut() {
            (node.facts.held, node.facts.ready, node.facts.labelled) = (false, true, true);
            // Some users uncordon their nodes, and others do not.
            let host = self.hosts.get_mut(&node.facts.name).unwrap();
            host.person_cordoned &= self.rng.random_bool(0.5);
            host.pinned = false;
            node.facts.unschedulable = node.facts.claimed() || host.person_cordoned;
        }
        let operator = self.view.operator.as_mut().unwrap();
        operator.spec.enabled = Some(true);
        self.policy = Policy::from_spec(&operator.spec).unwrap();
        let mut quiet = 0;
        for _ in 0..1000 {
            // Longer than the longest back-off, with nothing to do.
            if quiet > 60 {
                break;
            }
            for name in self.names() {
                self.agent(&name);
            }
            for _ in 0..4 {
                self.act();
                self.check(budget);
            }
            let idle = self
                .view
                .nodes
                .values()
                .all(|n| n.shadow.as_ref().is_none_or(|s| s.status.controller.progress.is_none()));
            let made = self.plan();
            let rests = idle && made.actions.is_empty() && made.evictions.is_empty();
            quiet = if rests { quiet + 1 } else { 0 };
            let watched = self.view.nodes.values().filter_map(NodeView::step).all(|step| step == Step::Monitoring);
            self.advance(Duration::from_secs(if idle {
                1700
            } else if watched {
                60
            } else {
                7
            }));
        }
    }
}

fn run(seed: u64, trouble: bool) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (nodes, budget) = (rng.random_range(1..6), rng.random_range(1..3));
    let mut world = World::new(seed, nodes, budget);
    for _ in 0..rng.random_range(50..400) {
        match world.rng.random_range(0..10) {
            0..=4 => world.act(),
            5..=7 => {
                let name = world.some_node();
                world.agent(&name);
            }
            8 => {
                let seconds = world.rng.random_range(0..40);
                world.advance(Duration::from_secs(seconds));
            }
            _ if trouble => world.trouble(),
            _ => {}
        }
        world.check(budget as usize);
    }
    world.settle(budget as usize);
    world.arrives();

    let plan = world.plan();
    let frozen = super::Quarantine::of(&world.view, 1).frozen_by().is_some();
    for (name, node) in &world.view.nodes {
        let wait = plan.waits.get(name);
        let context = format!("seed {seed}: {name} ends waiting for {wait:?}: {node:#?}");
        assert!(!node.facts.claimed(), "still claimed; {context}");
        let progress = node.shadow.as_ref().unwrap().status.controller.progress.as_ref();
        assert!(progress.is_none_or(|p| matches!(p.step, Step::Staged)), "still under way; {context}");
        assert!(wait.is_some(), "neither an action nor a reason; {context}");
        let newest = world.releases.first();
        if world.hosts[name].person_cordoned && skips(&world.policy, node) && world.hosts[name].runs.as_ref() != newest
        {
            assert!(frozen || wait == Some(&Wait::Cordoned), "a user's node; {context}");
        } else if !frozen {
            assert_eq!(world.hosts[name].runs.as_ref(), newest, "{context}");
        }
    }
    assert!(world.view.operator.unwrap().status.slots.is_empty(), "seed {seed}: slots are left");
}

/// Returns the simulation after an update of all its nodes, without faults but with unhealthy pods, and true if the
/// rollout is frozen.
fn run_with_sick_pods(seed: u64, nodes: usize, breaks_driver: bool) -> (World, bool) {
    let budget = if seed.is_multiple_of(2) { 1 } else { 2 };
    let mut world = World::new(seed, nodes, budget);
    world.add_sick_pods();
    world.breaks_driver = breaks_driver;
    world.settle(budget as usize);
    let frozen = super::Quarantine::of(&world.view, 1).frozen_by().is_some();
    (world, frozen)
}

#[test]
fn unrelated_unhealthy_pods_do_not_freeze_rollout() {
    for seed in 0..25 {
        let (world, frozen) = run_with_sick_pods(seed, 1 + seed as usize % 5, false);
        assert!(!frozen, "seed {seed}: {:#?}", world.view.nodes.values().map(NodeView::record).collect::<Vec<_>>());
        for (name, node) in &world.view.nodes {
            assert_eq!(world.hosts[name].runs, Some(NEW), "seed {seed}: {name}");
            let record = node.record().unwrap();
            let last = record.last.as_ref().unwrap();
            assert!(last.reason == models::shadow::UPDATED && record.failures == 0, "seed {seed}: {name}: {last:?}");
        }
    }
}

#[test]
fn version_that_breaks_pods_freezes_rollout() {
    for seed in 0..10 {
        let (world, frozen) = run_with_sick_pods(seed, 6, true);
        let updated = world.hosts.values().filter(|host| host.runs == Some(NEW)).count();
        assert!(frozen && updated < 6, "seed {seed}: {updated} nodes run it");
        let records = world.view.nodes.values().filter_map(NodeView::record);
        let failed = records.filter(|record| !record.version_failures.is_empty());
        let messages: Vec<_> = failed.filter_map(|record| Some(record.last.as_ref()?.message.clone())).collect();
        assert!(messages.iter().all(|message| message.contains("driver-node-")), "seed {seed}: {messages:?}");
    }
}

/// The order in which the server lists objects must not matter.
#[test]
fn plan_is_independent_of_object_order() {
    for seed in 0..20 {
        let mut world = World::new(seed, 6, 2);
        for _ in 0..60 {
            world.act();
            let name = world.some_node();
            world.agent(&name);
            let mut other = world.view.clone();
            for node in other.nodes.values_mut() {
                node.pods.as_mut().unwrap().reverse();
            }
            other.budgets.reverse();
            let before = plan(&world.view, &world.policy, world.now);
            let after = plan(&other, &world.policy, world.now);
            assert_eq!(
                before.actions.keys().collect::<Vec<_>>(),
                after.actions.keys().collect::<Vec<_>>(),
                "seed {seed}"
            );
            assert_eq!((before.waits, before.status), (after.waits, after.status), "seed {seed}");
        }
    }
}

#[test]
fn all_nodes_are_updated_and_released_without_faults() {
    for seed in 0..50 {
        run(seed, false);
    }
}

#[test]
fn budget_is_kept_and_all_nodes_are_released_under_faults() {
    for seed in 0..120 {
        run(seed, true);
    }
}
