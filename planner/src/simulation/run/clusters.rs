//! Clusters in which the rules of rollouts are tried: those in which each of them once stalled or let too much through (`table`),
//! and random ones under faults of all parts (`random`). Every plan is checked (`watch`).

mod random;
mod table;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use models::backoff::Backoff;
use models::names::CONTROL_PLANE_LABEL;
use models::operator::{ActiveRollout, BottlerocketUpdateOperatorStatus, frozen_since};
use models::shadow::{AgentReport, BottlerocketShadowSpec, BottlerocketShadowStatus, Step};
use serde_json::Value;

pub(super) use self::watch::Watch;
use super::event::Event;
use super::{Run, Scenario};
use crate::fixtures::set_ready;
use crate::plan::not_begun;
use crate::policy::Policy;
use crate::simulation::PodTemplate;
use crate::view::{NodeFacts, NodeView, ShadowFacts};
use crate::wait::{StepRequest, Wait};

/// The highest number of plans of a course.
const MOST_PLANS: u64 = 60_000;

/// A change that neither the operator nor a host makes.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// An autoscaler adds this node.
    Joins(usize),
    /// An autoscaler marks this node as being removed.
    Marked(usize),
    /// This node is gone.
    Leaves(usize),
    /// No kubelet reaches the API server, until `Connected`.
    Disconnected,
    Connected,
    /// A user writes another policy.
    Policy(Value),
    /// Another replica leads.
    NewLeader,
    /// Another version of the operator leads, after one that recorded no ledger.
    OperatorUpdated,
    /// The operator's resource is deleted and created again.
    CreatedAgain,
    /// A user passes the steps that wait for an approval alone.
    Approve,
    /// A user also accepts what is not proven, and resumes what has failed.
    Resolve,
    /// A user goes on with the nodes of other kinds than those that failed.
    ContinueOthers,
    /// One more pod of this template is started, so that their budget opens.
    Opens(u32),
    /// From now on the cloud deletes the Node object of a machine that is down, and its kubelet registers another one.
    RegistersAgain,
    /// All faults end.
    Repaired,
}

impl Run<'_> {
    /// Deletes the Node object of a machine that is down, and its shadow, where the cloud does so.
    pub(super) fn delete_node(&mut self, index: usize) {
        let name = self.scenario.members[index].name();
        let Some(away) = &mut self.away else { return };
        away.extend(self.view.nodes.remove(name).map(|node| (index, node)));
        self.course.waits.remove(name);
    }

    /// Returns whether the Node object of a machine that boots was deleted, and puts the node as it was into the view.
    pub(super) fn return_node(&mut self, index: usize) -> bool {
        let node = self.away.as_mut().and_then(|away| away.remove(&index));
        let name = self.scenario.members[index].name();
        node.map(|node| self.view.nodes.insert(name.to_owned(), node)).is_some()
    }
}

/// Makes a node that has booted one that its kubelet has registered as another Node object. Its agent has not reported.
pub(super) fn register_again(node: &mut NodeView) {
    let NodeFacts { name, labelled, mut labels, boot_id, os_image, provider_id, .. } = std::mem::take(&mut node.facts);
    // A kubelet cannot set it.
    Arc::make_mut(&mut labels).remove(CONTROL_PLANE_LABEL);
    let uid = format!("uid-{name}-{boot_id}");
    let shadow = node.shadow.take().unwrap();
    let spec = BottlerocketShadowSpec { host: shadow.spec.host, ..BottlerocketShadowSpec::default() };
    let AgentReport { variant, arch, .. } = shadow.status.agent;
    let agent = AgentReport { variant, arch, ..AgentReport::default() };
    let shadow = ShadowFacts {
        node: name.clone(),
        uid: format!("shadow-{uid}"),
        generation: 1,
        owner_uid: Some(uid.clone()),
        spec,
        status: BottlerocketShadowStatus { agent, ..BottlerocketShadowStatus::default() },
        ..ShadowFacts::default()
    };
    let facts = NodeFacts { name, uid, labelled, labels, boot_id, os_image, provider_id, ..NodeFacts::default() };
    let observed_for = node.observed_for;
    *node = NodeView { facts, shadow: Some(Box::new(shadow)), observed_for, ..NodeView::default() };
}

/// A simulated cluster whose plans are watched.
pub(super) struct Cluster<'a> {
    run: Run<'a>,
    name: String,
    requests: u64,
}

impl<'a> Cluster<'a> {
    /// Simulates a scenario to its horizon, with these changes at their times after its beginning. `absent` are the nodes that
    /// join later.
    fn of(
        name: &str,
        scenario: &'a Scenario,
        seed: u64,
        absent: &[usize],
        changes: &[(SignedDuration, Change)],
    ) -> Self {
        let mut run = Run::new(scenario, seed);
        run.watch = Some(Box::new(Watch::new(name)));
        let mut cluster = Self { run, name: name.to_owned(), requests: 0 };
        for index in absent {
            cluster.leaves(*index);
        }
        cluster.run.turn(true);
        let mut changes = changes.to_vec();
        changes.sort_by_key(|(at, _)| *at);
        for (at, change) in changes {
            cluster.advance(scenario.start + at);
            cluster.assert_names_causes();
            cluster.change(change);
            cluster.run.turn(true);
        }
        cluster.advance(scenario.start + scenario.horizon);
        assert_eq!(cluster.run.course.findings, [], "{name}");
        cluster
    }

    /// Lets everything happen up to a time.
    fn advance(&mut self, to: Timestamp) {
        while let Some(next) = self.run.next().filter(|next| *next <= to) {
            self.run.go_on(next);
            let plans = self.run.course.plans;
            assert!(plans < MOST_PLANS, "{}: {plans} plans, and no rest: {:?}", self.name, self.run.course.waits);
        }
        self.run.pass_time(to);
    }

    fn names_of(&self) -> Vec<usize> {
        self.run.classes.awake.values().copied().collect()
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Joins(index) => self.joins(index),
            Change::Leaves(index) => self.leaves(index),
            Change::Marked(index) => {
                if let Some(node) = self.run.node_mut(index) {
                    node.facts.removed_by = Some("ToBeDeletedByClusterAutoscaler".into());
                }
            }
            Change::Disconnected => self.connect(false),
            Change::Connected => self.connect(true),
            Change::Policy(spec) => {
                let operator = self.run.view.operator.as_mut().unwrap();
                operator.spec = serde_json::from_value(spec).unwrap();
                operator.generation += 1;
                self.run.policy = Policy::from_spec(&operator.spec).unwrap();
            }
            Change::NewLeader => self.new_leader(),
            Change::OperatorUpdated => {
                let status = &mut self.run.view.operator.as_mut().unwrap().status;
                status.active_rollouts.iter_mut().for_each(|rollout| rollout.ledger = None);
                status.slots.iter_mut().for_each(|slot| slot.update = None);
                for node in self.run.view.nodes.values_mut() {
                    if let Some(record) = node.shadow.as_mut().and_then(|s| s.status.controller.record.as_mut()) {
                        record.proof = None;
                    }
                }
                self.run.watch.as_mut().unwrap().forget(&self.run.view);
                self.new_leader();
            }
            Change::CreatedAgain => {
                let operator = self.run.view.operator.as_mut().unwrap();
                operator.uid.push('+');
                operator.status = BottlerocketUpdateOperatorStatus::default();
                (operator.resume, operator.approve_step) = (None, None);
                self.run.watch.as_mut().unwrap().forget(&self.run.view);
                self.new_leader();
            }
            Change::Opens(template) => {
                self.run.pods.count(template, 1);
                self.run.budgets_changed = true;
            }
            Change::Approve => self.user(false),
            Change::Resolve => self.user(true),
            Change::ContinueOthers => {
                let operator = self.run.view.operator.as_mut().unwrap();
                operator.continue_others = frozen_since(&operator.status.versions).map(|since| since.to_string());
            }
            Change::RegistersAgain => self.run.away = Some(BTreeMap::new()),
            Change::Repaired => self.repair(),
        }
        let all = self.names_of();
        self.run.touched.extend(all);
    }

    fn joins(&mut self, index: usize) {
        let member = &self.run.scenario.members[index];
        self.run.classes.wake(index, member.name());
        self.run.view.nodes.insert(member.name().to_owned(), member.view());
        (self.run.states[index].up, self.run.states[index].schedulable) = (true, true);
        self.place_homeless();
    }

    /// Removes a node with its pods, which are replaced.
    fn leaves(&mut self, index: usize) {
        let run = &mut self.run;
        let name = run.scenario.members[index].name();
        let state = &mut run.states[index];
        (state.up, state.schedulable, state.watched) = (false, false, false);
        while let Some((serial, template)) = run.pods.key(index, 0) {
            if run.pods.on(index)[0].ready {
                run.pods.count(template, -1);
            }
            run.pods.remove(index, serial, template);
            if run.scenario.pods[template as usize].replaced.is_some() {
                run.place(template);
            }
        }
        run.budgets_changed = true;
        if run.view.nodes.remove(name).is_some() {
            run.classes.sleep(index, name);
        } else {
            let class = run.classes.of[index];
            run.classes.classes[class].waiting.retain(|waiting| *waiting != index);
        }
        for set in [&mut run.touched, &mut run.acted, &mut run.refused, &mut run.failed] {
            set.remove(&index);
        }
        run.classes.counted.retain(|counted| *counted != index);
        run.course.waits.remove(name);
    }

    fn connect(&mut self, connected: bool) {
        let now = self.run.now;
        for index in self.names_of() {
            let up = self.run.states[index].up;
            if let Some(node) = self.run.node_mut(index).filter(|node| node.facts.ready != connected && up) {
                set_ready(&mut node.facts, connected, now);
                let schedulable = connected && !node.facts.unschedulable;
                self.run.states[index].schedulable = schedulable;
            }
        }
        self.place_homeless();
    }

    /// Lets another process lead, with nothing in its memory.
    fn new_leader(&mut self) {
        self.run.view.leader_since = self.run.now;
        for node in self.run.view.nodes.values_mut() {
            node.blocked.clear();
            node.in_flight.clear();
            node.owners.clear();
            (node.refused, node.lease) = (None, None);
        }
        self.run.states.iter_mut().for_each(|state| state.refused = Backoff::default());
        self.run.view.retracted = not_begun(&self.run.view);
    }

    /// Does what a user is asked for: approves, and if `all`, also accepts and resumes.
    fn user(&mut self, all: bool) {
        self.requests += 1;
        let number = self.requests;
        let watch = self.run.watch.as_mut().unwrap();
        let asked = watch.approval.clone();
        let braked = self.run.view.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
        let braked = braked.filter(|rollout| rollout.is_braked()).count() > 0;
        let stopped = |wait: &Wait| matches!(wait, Wait::Frozen { .. } | Wait::Quarantined { .. });
        let stopped = self.run.course.waits.values().any(stopped);
        let request = asked.as_ref().and_then(Wait::step).map(|(_, request)| request);
        if all && (braked || stopped || request == Some(StepRequest::Resume)) {
            watch.resume();
            self.run.view.operator.as_mut().unwrap().resume = Some(format!("resume-{number}"));
        }
        let name = match asked {
            Some(Wait::CanaryStep { approval: Some(name), .. }) => name,
            Some(Wait::StepUnproven { approval, .. }) if all => approval,
            _ => return,
        };
        let mut parts = name.split('/');
        let (rollout, places) = (parts.next().unwrap(), parts.next().unwrap().parse().unwrap());
        let rollouts = &self.run.view.operator.as_ref().unwrap().status.active_rollouts;
        let rollout: ActiveRollout =
            rollouts.iter().find(|active| active.number().to_string() == rollout).unwrap().clone();
        watch.approve(&rollout, places, parts.next().is_some());
        self.run.view.operator.as_mut().unwrap().approve_step = Some(format!("{name}@{number}"));
    }

    /// Ends all faults, and what they have left.
    fn repair(&mut self) {
        let run = &mut self.run;
        run.faults.clear();
        let booting: BTreeSet<usize> = run
            .events
            .iter()
            .filter_map(|event| match event.0.2 {
                Event::Up(index) => Some(index),
                _ => None,
            })
            .collect();
        if run.scenario.pods.iter().any(PodTemplate::stays_unhealthy) {
            // More replicas of what its budget guards.
            run.pods.count(0, 100);
        }
        run.budgets_changed = true;
        for index in self.names_of() {
            let run = &mut self.run;
            run.states[index].sick = false;
            let devices = run.scenario.members[index].node.facts.allocatable.clone();
            if let Some(node) = run.node_mut(index) {
                node.facts.allocatable = devices;
            }
            run.pods.set_ready(index, true);
            let pods = run.pods.watch(index, run.scenario.members[index].name());
            if let Some(node) = run.node_mut(index).filter(|node| node.pods.is_some()) {
                node.pods = Some(pods);
            }
            if !run.states[index].up && !booting.contains(&index) {
                run.states[index].up = true;
                let now = run.now;
                if let Some(node) = run.node_mut(index) {
                    set_ready(&mut node.facts, true, now);
                    let schedulable = !node.facts.unschedulable;
                    run.states[index].schedulable = schedulable;
                }
            }
            run.states[index].hook_request = None;
            run.answer_hooks(index);
            run.react(index);
        }
        self.place_homeless();
    }

    fn place_homeless(&mut self) {
        for template in std::mem::take(&mut self.run.pods.homeless) {
            self.run.place(template);
        }
    }

    /// Returns the nodes that are not up to date, each with its reason.
    fn waits(&self) -> Vec<(&str, Option<&Wait>)> {
        let of = |name: &str| self.run.course.waits.get(name);
        let all = self.run.view.nodes.keys().map(|name| (name.as_str(), of(name)));
        all.filter(|(_, wait)| *wait != Some(&Wait::UpToDate)).collect()
    }

    /// Asserts that where nodes wait, one of them shows what is waited for.
    fn assert_names_causes(&self) {
        let waits = self.waits();
        let busy = self.run.view.nodes.values().any(|node| node.progress().is_some_and(|at| at.step != Step::Staged));
        let named = waits.iter().filter_map(|(_, wait)| *wait).any(names_a_cause);
        let (name, now) = (&self.name, self.run.now);
        assert!(busy || named || waits.is_empty(), "{name}, {now}: none shows what is waited for: {waits:#?}");
    }

    /// Asserts that nothing of an attempt is left.
    fn assert_rests(&self) {
        let name = &self.name;
        assert_eq!(self.run.view.operator.as_ref().unwrap().status.slots, [], "{name}");
        for (node, view) in &self.run.view.nodes {
            assert!(!view.facts.claimed() && !view.disrupted(), "{name}: {node} is out of service: {view:#?}");
            assert!(view.facts.hook_request.is_none(), "{name}: hooks of {node} are still asked");
        }
    }
}

/// Returns whether a reason names what is waited for, and not only that others come first.
fn names_a_cause(wait: &Wait) -> bool {
    let empty = |nodes: &Vec<String>| nodes.is_empty();
    !matches!(
        wait,
        Wait::Queued { .. }
            | Wait::FirstNode { node: None, not_back: None }
            | Wait::GroupFull { node: None, .. }
            | Wait::GuardedPods { .. }
            | Wait::Acting
            | Wait::ReadingPods
            | Wait::NoShadow
            | Wait::ShadowUnreadable
    ) && !matches!(wait, Wait::CanaryStep { until: None, approval: None, nodes, .. } if empty(nodes))
}
