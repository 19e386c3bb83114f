//! The planner against a simulated cluster: every action is carried out on it one at a time, in random order. In between,
//! the controller crashes, and its successor finds old caches; users reboot hosts and change the policy; hosts fail;
//! releases are superseded or withdrawn; an earlier operator comes and goes; and clocks jump. The message of a failing run
//! has its seed.

mod actions;
mod checks;
mod hosts;
mod objects;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use models::operator::{
    ActiveRollout, BottlerocketUpdateOperatorSpec, BottlerocketUpdateOperatorStatus, CordonedNodes,
};
use models::shadow::{HostState, Place, Step};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use semver::Version;
use serde_json::json;
use std::time::Instant;

use self::checks::explains;
pub(super) use self::objects::some_policy;
use self::objects::*;
use super::estimate;
use super::host::Host as SimulatedHost;
use super::write;
use crate::decision::{Action, Evictions};
use crate::drain;
use crate::fixtures::set_ready;
use crate::lint::lint;
use crate::plan::{Plan, not_begun, plan};
use crate::policy::Policy;
use crate::rules::Rules;
use crate::survey::quarantine::Quarantine;
use crate::view::{
    Blocked, ClusterView, DaemonSetState, InFlight, NodeFacts, NodeView, OperatorFacts, OwnerHealth, PodFacts, Refused,
    ShadowFacts, Standings,
};
use crate::wait::Wait;

const OLD: Version = Version::new(1, 20, 0);
const NEW: Version = Version::new(1, 20, 5);
const NEWER: Version = Version::new(1, 20, 6);

/// The longest graceful shutdown, in seconds.
const GRACEFUL: i64 = 2700;

struct Host {
    host: SimulatedHost,
    person_cordoned: bool,
    /// The host goes down from this time on, which takes some time. Before it the call waits in the host's API server,
    /// whatever happens to its client.
    going_down: Option<Timestamp>,
    /// The shutdown takes as long as a host may, and its kubelet renews its Lease to the end.
    lingers: bool,
    /// The next shutdown takes much longer: the kubelet ends the pods first. It reports that it is not Ready, and renews its Lease.
    graceful: bool,
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

impl Host {
    fn new(pinned: bool) -> Self {
        Self {
            host: SimulatedHost::new(OLD),
            person_cordoned: false,
            going_down: None,
            lingers: false,
            graceful: false,
            restarted: false,
            pods_made: 10,
            pinned,
            pinned_left: 0,
            slow_until: None,
            next_boot_fails: false,
            next_stage_fails: false,
        }
    }

    /// Returns whether its kubelet ends the pods for a reboot.
    fn shuts_pods_down(&self, now: Timestamp) -> bool {
        self.graceful && self.going_down.is_some_and(|at| at <= now)
    }
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

/// Returns whether pods are evicted, or asked about, in this step.
fn drains(step: Option<Step>) -> bool {
    matches!(step, Some(Step::Draining))
}

impl World {
    fn new(seed: u64, nodes: usize, budget: u32) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let mut spec = some_policy(&mut rng, budget);
        spec.hooks = if seed.is_multiple_of(3) { some_hooks() } else { Vec::new() };
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
            let mut shadow = ShadowFacts {
                node: name.clone(),
                uid: format!("shadow-{number}"),
                generation: 1,
                owner_uid: Some(facts.uid.clone()),
                ..ShadowFacts::default()
            };
            let agent = &mut shadow.status.agent;
            (agent.variant, agent.arch) = (Some("aws-k8s-1.37".into()), Some("x86_64".into()));
            let addons = rng.random_range(0..3);
            let pods = (0..rng.random_range(0..3)).map(|n| if n < addons { addon(&name, n) } else { pod(&name, n) });
            let bound = rng.random_bool(0.2);
            let pods = pods.chain(bound.then(|| pinned(&name, 5))).collect();
            view.nodes.insert(
                name.clone(),
                NodeView { facts, shadow: Some(Box::new(shadow)), pods: Some(pods), ..NodeView::default() },
            );
            hosts.insert(name, Host::new(bound));
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
            let updated = host.host.runs == NEW;
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
        seen.retracted = not_begun(&seen);
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
        for node in self.view.nodes.values_mut().filter(|node| !drains(node.step())) {
            node.in_flight.clear();
        }
        let waits_for_slot = |node: &NodeView| node.step().map(Step::place) == Some(Place::Waiting);
        for node in self.view.nodes.values_mut().filter(|node| !waits_for_slot(node)) {
            node.refused = None;
        }
        let seen = self.seen();
        let mut plan = plan(&seen, &self.policy, self.clock());
        if self.seed.is_multiple_of(4) {
            explains(&seen, &self.policy, &plan, self.clock(), self.seed);
        }
        let findings = lint(&seen, &self.policy, &mut plan);
        assert!(findings.is_empty(), "seed {}: the planner broke its own rules: {findings:?}", self.seed);
        plan
    }

    fn advance(&mut self, span: Duration) {
        // A shutdown takes 150 s at most, but for a graceful one, and a kubelet that renews its lease is not on a host that is down.
        let passed = span.as_secs().cast_signed();
        for name in self.names() {
            let host = &self.hosts[&name];
            let lasts = if host.graceful { GRACEFUL } else { 150 };
            let Some(gone) = host.going_down.map(|at| self.now.duration_since(at).as_secs() + passed) else { continue };
            if gone >= lasts {
                self.goes_down(&name);
            } else if gone >= 0 && host.graceful {
                let now = self.now;
                let facts = &mut self.view.nodes.get_mut(&name).unwrap().facts;
                (facts.ready, facts.not_ready_since) = (false, facts.not_ready_since.or(Some(now)));
            }
        }
        self.now = self.now.checked_add(jiff::SignedDuration::try_from(span).unwrap()).unwrap();
        self.pods_go_on();
    }

    /// Runs without faults until nothing changes any more, however long that takes.
    fn settle(&mut self, budget: usize) {
        for name in self.names() {
            if self.hosts[&name].shuts_pods_down(self.now) {
                self.goes_down(&name);
            }
            self.hosts.get_mut(&name).unwrap().graceful = false;
        }
        for node in self.view.nodes.values_mut() {
            let host = self.hosts.get_mut(&node.facts.name).unwrap();
            if !node.facts.ready {
                set_ready(&mut node.facts, true, self.now);
            }
            (node.facts.hold, node.facts.labelled) = (None, true);
            // Some users uncordon their nodes, and others do not.
            host.person_cordoned &= self.rng.random_bool(0.5);
            host.pinned = false;
            node.facts.unschedulable = node.facts.claimed() || host.person_cordoned;
        }
        self.earlier_operator_leaves();
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
            // A user accepts what proves nothing, and resumes what has failed. Rollouts have their numbers by then.
            self.view.history.highest.get_or_insert(0);
            let value = |name: &str| format!("{name}@{}", self.now.as_second());
            let operator = self.view.operator.as_mut().unwrap();
            let braked = |rollout: &ActiveRollout| rollout.is_braked();
            // What has failed stays so where the version is to be found out.
            if operator.status.active_rollouts.iter().any(braked) && !self.breaks_driver {
                operator.resume = Some(value("resume"));
            }
            match made.approvals.first() {
                Some(Wait::StepFailed { .. }) if !self.breaks_driver => operator.resume = Some(value("resume")),
                Some(Wait::CanaryStep { approval: Some(name), .. } | Wait::StepUnproven { approval: name, .. }) => {
                    operator.approve_step = Some(value(name));
                }
                _ => {}
            }
            let rests = idle && made.actions.is_empty() && made.evictions.is_empty();
            quiet = if rests { quiet + 1 } else { 0 };
            let verifying = self.view.nodes.values().filter_map(NodeView::step).all(|step| step == Step::Verifying);
            self.advance(Duration::from_secs(if idle {
                1700
            } else if verifying {
                60
            } else {
                7
            }));
        }
    }
}

/// Returns the seeds below a limit, or every so many of them: `make check` takes few, as each takes a second.
pub(super) fn seeds(limit: u64) -> impl Iterator<Item = u64> {
    let every = std::env::var("BRUPOP_SIMULATE_EVERY")
        .map_or(1, |text| text.parse().expect("BRUPOP_SIMULATE_EVERY is a number"));
    (0..limit).step_by(every)
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
    let frozen = Quarantine::of(&world.view, 1).frozen_by().is_some();
    for (name, node) in &world.view.nodes {
        let wait = plan.waits.get(name);
        let context = format!("seed {seed}: {name} ends waiting for {wait:?}: {node:#?}");
        assert!(!node.facts.claimed(), "still claimed; {context}");
        assert!(node.facts.hook_request.is_none(), "hooks are still asked; {context}");
        let progress = node.shadow.as_ref().unwrap().status.controller.progress.as_ref();
        assert!(progress.is_none_or(|p| matches!(p.step, Step::Staged)), "still under way; {context}");
        assert!(wait.is_some(), "neither an action nor a reason; {context}");
        let (newest, runs) = (&world.releases[0], &world.hosts[name].host.runs);
        if world.hosts[name].person_cordoned && skips(&world.policy, node) && runs != newest {
            assert!(frozen || wait == Some(&Wait::Cordoned), "a user's node; {context}");
        } else if !frozen {
            assert_eq!(runs, newest, "{context}");
        }
    }
    assert!(world.view.operator.unwrap().status.slots.is_empty(), "seed {seed}: slots are left");
}

#[test]
fn completion_is_estimated_from_any_state_of_a_cluster() {
    let mut made = 0;
    for seed in 0..16 {
        let mut world = World::new(seed, 4, 2);
        world.view.history.highest = Some(0);
        for _ in 0..30 + seed * 12 {
            match world.rng.random_range(0..8) {
                0..=3 => world.act(),
                4..=5 => {
                    let name = world.some_node();
                    world.agent(&name);
                }
                6 => world.advance(Duration::from_secs(20)),
                _ => world.trouble(),
            }
        }
        for estimate in estimate(world.view.clone(), &world.policy, &[], world.now).rollouts.values() {
            let order = [world.now, estimate.earliest, estimate.at, estimate.latest].map(Timestamp::as_second);
            assert!(order.is_sorted(), "seed {seed}: {estimate:?} at {}", world.now);
            made += 1;
        }
    }
    assert!(made > 2, "{made} estimates");
}

/// Returns the simulation after an update of all its nodes, without faults but with unhealthy pods, and true if the
/// rollout is frozen.
fn run_with_sick_pods(seed: u64, nodes: usize, breaks_driver: bool) -> (World, bool) {
    let budget = if seed.is_multiple_of(2) { 1 } else { 2 };
    let mut world = World::new(seed, nodes, budget);
    world.add_sick_pods();
    world.breaks_driver = breaks_driver;
    world.settle(budget as usize);
    let frozen = Quarantine::of(&world.view, 1).frozen_by().is_some();
    (world, frozen)
}

#[test]
fn unrelated_unhealthy_pods_do_not_freeze_rollout() {
    for seed in seeds(25) {
        let (world, frozen) = run_with_sick_pods(seed, 1 + seed as usize % 5, false);
        assert!(!frozen, "seed {seed}: {:#?}", world.view.nodes.values().map(NodeView::record).collect::<Vec<_>>());
        for (name, node) in &world.view.nodes {
            assert_eq!(world.hosts[name].host.runs, NEW, "seed {seed}: {name}");
            let record = node.record().unwrap();
            let last = record.last.as_ref().unwrap();
            assert!(last.reason == models::shadow::UPDATED && record.failures == 0, "seed {seed}: {name}: {last:?}");
        }
    }
}

#[test]
fn version_that_breaks_pods_freezes_rollout() {
    for seed in seeds(10) {
        let (world, frozen) = run_with_sick_pods(seed, 6, true);
        let updated = world.hosts.values().filter(|host| host.host.runs == NEW).count();
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
    for seed in seeds(20) {
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
    for seed in seeds(50) {
        run(seed, false);
    }
}

#[test]
fn budget_is_kept_and_all_nodes_are_released_under_faults() {
    for seed in seeds(120) {
        run(seed, true);
    }
}
