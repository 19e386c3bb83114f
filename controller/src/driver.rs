//! The loop of the leader: gather a view, plan, validate, apply; again after a change.
//!
//! It is woken by a change of a cache, by the end of an action, or by the time that the last plan set. Nothing polls.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::watcher;
use models::shadow::Step;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

use crate::apply::{self, Applier, ApplyError, Evicted, Outcome};
use crate::cache::{Cache, Reading};
use crate::calls::{Calls, TURN_PERIOD};
use crate::daemon_sets::DaemonSets;
use crate::eviction::{Meaning, pause};
use crate::expressions::Expressions;
use crate::labels::Labelling;
use crate::leader::Peers;
use crate::metrics::Snapshot;
use crate::writes::{self, Priority};
use planner::labels::labels;
use planner::plan::{Evictions, Plan, plan};
use planner::policy::Policy;
use planner::shadows::{Change, changes};
use planner::view::{
    Blocked, BudgetFacts, ClusterView, InFlight, LeaseLooks, NodeView, OwnerHealth, PodFacts, Projection as _, Refused,
    Standings, newer,
};
use planner::wait::Wait;

/// Interval of writes of the operator's status when only its counts changed.
const STATUS_PERIOD: Duration = Duration::from_secs(1);

/// Time for which changes are collected after a turn, at least and at most.
const SHORTEST_REST: Duration = Duration::from_millis(5);
const LONGEST_REST: Duration = Duration::from_millis(250);

/// Time for actions under way to end when the process has to stop, including an eviction that a webhook delays, since
/// one that is cut off may use its budget up for two minutes. The pod's grace period is 30 s.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Time for an accepted eviction to show in the watch before it is requested again.
const ACCEPTED: Duration = Duration::from_secs(30);

/// First pause for a node whose pods prevent a drain.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause for such a node.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);

/// A request for the eviction of a pod without an answer so far.
struct Sent {
    request: u64,
    what: InFlight,
    /// The versions of the budgets of its namespace at the time of the request, by the budget's key.
    budgets: Arc<BTreeMap<String, String>>,
    task: AbortHandle,
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The leader's memory of a node besides what Kubernetes keeps. Its loss costs a repeated request, never a wrong one.
#[derive(Default)]
struct Memory {
    /// The last answer, by the pod's uid.
    blocked: BTreeMap<String, Blocked>,
    /// The evictions under way, by the pod's uid.
    in_flight: BTreeMap<String, Sent>,
    refused: Option<RefusedLook>,
    lease: Option<LeaseLooks>,
    owners: BTreeMap<String, OwnerHealth>,
    /// Number of claims of the node in this attempt.
    claims: u32,
    agent_missing: Option<Timestamp>,
    busy: bool,
    /// True if the node is not busy with an urgent write.
    can_wait: bool,
    failures: u32,
    paused_until: Option<Instant>,
}

/// The last check of a staged node that ruled out a drain.
struct RefusedLook {
    what: Refused,
    /// The pause before the next check.
    pause: Duration,
    /// The generation of the policy at the check.
    generation: Option<i64>,
}

struct PodWatch {
    cache: Cache<PodFacts>,
    task: JoinHandle<()>,
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A write of the slots that was sent, by this leader or perhaps by the previous one, and may not have arrived.
struct Retracting {
    /// The version of the operator's resource that it was decided on, and is valid for.
    base: String,
    /// The nodes (uid) whose slots it removes.
    slots: BTreeSet<String>,
}

impl Retracting {
    /// Adds a further write of the kind. One without an answer may still arrive, as long as the resource is unchanged.
    fn with(before: Option<Self>, base: &str, slots: BTreeSet<String>) -> Self {
        let mut all = before.filter(|before| before.base == base).map(|before| before.slots).unwrap_or_default();
        all.extend(slots);
        Self { base: base.to_owned(), slots: all }
    }

    /// Returns the nodes whose slots are about to be removed, where the resource is known in this version.
    fn at(&self, version: &str) -> BTreeSet<String> {
        if self.base == version { self.slots.clone() } else { BTreeSet::new() }
    }
}

enum Done {
    Operator(Result<(), ApplyError>),
    Shadow(String, Result<(), ApplyError>),
    Label(String, Result<(), ApplyError>),
}

/// The reason for the end of a leader's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process has to stop.
    Stopped,
    /// Another replica takes over.
    HandedOver,
}

/// The leader's loop and its state.
pub struct Driver {
    applier: Applier,
    budgets: Cache<BudgetFacts>,
    peers: Peers,
    /// The read of every cache since the lead was taken.
    reading: Reading,
    expressions: Expressions,
    changed: Arc<watch::Sender<u64>>,
    own_node: Option<String>,
    leader_since: Timestamp,
    web_api_missing: Option<Timestamp>,
    handing_over: bool,
    /// See [`ClusterView::handed_over`].
    handed_over: bool,
    memory: HashMap<String, Memory>,
    standings: Standings,
    pods: HashMap<String, PodWatch>,
    daemon_sets: DaemonSets,
    shadow_changes: BTreeMap<String, Option<Instant>>,
    labelling: Labelling,
    operator_busy: bool,
    retracting: Option<Retracting>,
    operator_written: Option<Instant>,
    operator_paused: Option<Instant>,
    operator_failures: u32,
    /// The version of each budget before its last refusal, by the budget's key. A budget that refuses one pod refuses
    /// others too.
    refused_at: BTreeMap<String, String>,
    /// Number of evictions sent.
    requests: u64,
    evicted: (mpsc::UnboundedSender<Evicted>, mpsc::UnboundedReceiver<Evicted>),
    outcomes: (mpsc::UnboundedSender<Outcome>, mpsc::UnboundedReceiver<Outcome>),
    done: (mpsc::UnboundedSender<Done>, mpsc::UnboundedReceiver<Done>),
}

impl Driver {
    /// Returns a driver for a leader since `leader_since`, which decides nothing before `reading` is done.
    #[expect(clippy::too_many_arguments, reason = "each is another thing that a leader works with")]
    pub fn new(
        applier: Applier,
        budgets: Cache<BudgetFacts>,
        peers: Peers,
        reading: Reading,
        expressions: Expressions,
        changed: Arc<watch::Sender<u64>>,
        own_node: Option<String>,
        leader_since: Timestamp,
    ) -> Self {
        Self {
            daemon_sets: DaemonSets::new(applier.client.clone(), changed.clone()),
            handed_over: applier.leadership.handed_over(),
            applier,
            budgets,
            peers,
            reading,
            expressions,
            changed,
            own_node,
            leader_since,
            web_api_missing: None,
            handing_over: false,
            memory: HashMap::new(),
            standings: Standings::default(),
            pods: HashMap::new(),
            shadow_changes: BTreeMap::new(),
            labelling: Labelling::default(),
            operator_busy: false,
            retracting: None,
            operator_written: None,
            operator_paused: None,
            operator_failures: 0,
            refused_at: BTreeMap::new(),
            requests: 0,
            evicted: mpsc::unbounded_channel(),
            outcomes: mpsc::unbounded_channel(),
            done: mpsc::unbounded_channel(),
        }
    }

    /// Ends this leader's work after the present turn, so that another replica takes over. Called in a turn, when
    /// [`ClusterView::standby`] reports that one is Ready.
    pub fn hand_over(&mut self) {
        self.handing_over = true;
    }

    /// Runs until `stop` turns true or the work is handed over, then waits for the actions under way.
    pub async fn run(mut self, calls: &Calls, mut stop: watch::Receiver<bool>) -> End {
        let mut changes = self.changed.subscribe();
        changes.mark_changed();
        calls.turned(Some(Instant::now()));
        let mut wake: Option<Instant> = None;
        let mut rested = Instant::now();
        loop {
            let idle_until = Instant::now() + TURN_PERIOD;
            let timer = tokio::time::sleep_until(wake.map_or(idle_until, |at| at.min(idle_until)));
            tokio::select! {
                // First: a process that has to stop begins nothing more.
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                _ = changes.changed() => {}
                Some(outcome) = self.outcomes.1.recv() => self.ended(outcome),
                Some(evicted) = self.evicted.1.recv() => self.answered(evicted),
                Some(done) = self.done.1.recv() => self.written(done),
                () = timer => {}
            }
            // Changes that come close together are handled together, and planning takes half of the time at most,
            // however large the fleet is: after a turn that took long, changes are collected for as long.
            tokio::time::sleep_until(rested).await;
            if *stop.borrow() {
                break;
            }
            changes.mark_unchanged();
            while let Ok(outcome) = self.outcomes.1.try_recv() {
                self.ended(outcome);
            }
            while let Ok(evicted) = self.evicted.1.try_recv() {
                self.answered(evicted);
            }
            while let Ok(done) = self.done.1.try_recv() {
                self.written(done);
            }
            let began = Instant::now();
            wake = self.turn();
            let ended = Instant::now();
            rested = ended + (ended - began).clamp(SHORTEST_REST, LONGEST_REST);
            calls.turned(Some(ended));
            if self.handing_over {
                break;
            }
        }
        let deadline = Instant::now() + STOP_LIMIT;
        while self.writing() {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                Some(outcome) = self.outcomes.1.recv() => self.ended(outcome),
                Some(evicted) = self.evicted.1.recv() => self.answered(evicted),
                Some(done) = self.done.1.recv() => self.written(done),
            }
        }
        if self.handing_over && !*stop.borrow() { End::HandedOver } else { End::Stopped }
    }

    /// Returns whether any write of the operator is under way.
    fn writing(&self) -> bool {
        self.memory.values().any(|m| m.busy || !m.in_flight.is_empty())
            || self.operator_busy
            || self.shadow_changes.values().any(Option::is_none)
            || self.labelling.under_way()
    }

    /// Runs one turn: view, plan, lint, apply. Returns the time of the next turn if nothing changes.
    fn turn(&mut self) -> Option<Instant> {
        let synced = self.applier.nodes.synced()
            && self.applier.shadows.synced()
            && self.applier.operator.synced()
            && self.budgets.synced();
        if !synced {
            return None;
        }
        let now = crate::clock::now();
        let view = self.view(now);
        let (policy, errors) = Policy::in_force(view.operator.as_ref());
        let mut plan = plan(&view, &policy, now);
        for finding in planner::lint::lint(&view, &policy, &mut plan) {
            tracing::error!(
                property = finding.property,
                node = finding.node,
                text = finding.text,
                "the plan broke a safety property and was cut down"
            );
            self.applier.metrics.finding(finding.property);
        }
        if view.stale {
            return None;
        }
        self.applier.metrics.observe(&Snapshot::of(&view, &plan, &policy, !errors.is_empty(), now));
        self.applier.metrics.clock_offset(crate::clock::offset());
        self.expressions.want(&plan.expressions, policy.prometheus.as_ref());
        if plan.hand_over {
            tracing::info!(node = self.own_node, "lease handed over: the node of this replica is next");
            self.hand_over();
        }
        self.change_shadows(&policy);
        self.label_nodes(&policy);
        self.watch_pods(&plan.pods);
        self.remember_refused(&view, std::mem::take(&mut plan.refused), now);
        let mut wakes = vec![self.write_operator(&view, &plan)];
        self.act(&view, &mut plan);
        self.evict(std::mem::take(&mut plan.evictions), now);
        let until = plan.wake.map(|at| {
            let ahead = at.duration_since(now).max(jiff::SignedDuration::ZERO);
            // A timestamp has millisecond precision; waking a little late beats waking early and again.
            Instant::now() + Duration::try_from(ahead).unwrap_or_default() + Duration::from_millis(2)
        });
        wakes.push(until);
        wakes.extend(self.memory.values().map(|m| m.paused_until));
        wakes.extend(self.shadow_changes.values().copied());
        wakes.push(self.labelling.wake());
        wakes.into_iter().flatten().min()
    }

    fn view(&mut self, now: Timestamp) -> ClusterView {
        let nodes = self.applier.nodes.items();
        let mut shadows = self.applier.shadows.items();
        self.memory.retain(|name, memory| memory.busy || nodes.contains_key(name));
        // Of all nodes, also of those that left the view: a pause in the past would wake the loop again and again.
        let clock = Instant::now();
        for memory in self.memory.values_mut() {
            memory.paused_until = memory.paused_until.filter(|until| *until > clock);
        }
        let mut view = ClusterView {
            operator: self.applier.operator.get(models::names::OPERATOR_NAME),
            own_node: self.own_node.clone(),
            leader_since: self.leader_since,
            stale: !self.reading.done(),
            standby: self.peers.standby(self.own_node.as_deref(), &nodes),
            tls: self.applier.signer.facts(),
            ..ClusterView::default()
        };
        let missing =
            |since: Option<Timestamp>, there: Option<bool>| (there == Some(false)).then(|| since.unwrap_or(now));
        self.web_api_missing = missing(self.web_api_missing, self.peers.is_web_api_ready());
        view.web_api_missing = self.web_api_missing;
        let with_agent = self.peers.nodes_with_agent();
        let generation = view.operator.as_ref().map(|operator| operator.generation);
        for (name, facts) in nodes {
            let shadow = shadows.remove(&name).filter(|s| s.owner_uid.as_deref() == Some(facts.uid.as_str()));
            if !facts.labelled && !facts.claimed() && shadow.is_none() {
                continue;
            }
            let mut node = NodeView { facts, shadow, ..NodeView::default() };
            if let Some(watch) = self.pods.get(&name).filter(|w| w.cache.synced()) {
                let mut pods: Vec<PodFacts> = watch.cache.items().into_values().collect();
                self.daemon_sets.mark(&mut pods);
                node.pods = Some(pods);
            }
            let has_agent = with_agent.as_ref().map(|nodes| nodes.contains(&name));
            if has_agent == Some(false) {
                self.memory.entry(name.clone()).or_default();
            }
            if let Some(memory) = self.memory.get_mut(&name) {
                memory.agent_missing = missing(memory.agent_missing, has_agent);
                node.agent_missing = memory.agent_missing;
                if memory.busy || memory.paused_until.is_some() {
                    view.busy.insert(name.clone());
                }
                if memory.paused_until.is_some() {
                    view.paused.insert(name.clone());
                }
                if node.step() != Some(Step::Draining) {
                    memory.in_flight.clear();
                }
                if node.progress().is_none() {
                    memory.blocked.clear();
                    memory.lease = None;
                    memory.owners.clear();
                    memory.claims = 0;
                }
                node.claims_made = memory.claims;
                node.blocked.clone_from(&memory.blocked);
                for blocked in node.blocked.values_mut() {
                    let Some(key) = &blocked.budget else { continue };
                    let seen = self.refused_at.get(key).map_or("", String::as_str);
                    let lets_go = match self.budgets.get(key) {
                        Some(budget) => budget.allowed > 0 && newer(&budget.resource_version, seen),
                        // The pod was deleted.
                        None => !seen.is_empty(),
                    };
                    if lets_go {
                        blocked.retry_at = now;
                    }
                }
                if !matches!(node.step(), Some(Step::Staging | Step::Staged)) {
                    memory.refused = None;
                }
                node.refused = memory.refused.as_ref().filter(|r| r.generation == generation).map(|r| r.what.clone());
                if let Some(Refused { wait: Wait::BudgetNeverAllows { budget, .. }, again_at }) = &mut node.refused
                    && self.budgets.get(budget).is_none_or(|budget| budget.desired < budget.expected)
                {
                    *again_at = now;
                }
                node.in_flight = memory.in_flight.iter().map(|(uid, sent)| (uid.clone(), sent.what)).collect();
                node.lease = memory.lease;
                node.owners.clone_from(&memory.owners);
            }
            view.nodes.insert(name, node);
        }
        if let Some(operator) = view.operator.as_ref().filter(|_| !view.stale) {
            let version = &operator.resource_version;
            let first = || Retracting::with(None, version, planner::plan::not_begun(&view));
            view.retracted = self.retracting.get_or_insert_with(first).at(version);
        }
        self.handed_over &= !view.slots().any(|slot| slot.since >= self.leader_since);
        view.handed_over = self.handed_over;
        self.standings.look(&mut view.nodes, clock.into_std());
        let namespaces: BTreeSet<&str> =
            view.nodes.values().flat_map(|n| n.pods.iter().flatten()).map(|pod| pod.namespace.as_str()).collect();
        view.expressions = self.expressions.answers(now);
        view.budgets = self.budgets.select(|budget| namespaces.contains(budget.namespace.as_str()));
        view
    }

    fn act(&mut self, view: &ClusterView, plan: &mut Plan) {
        let under_way = self.memory.values().filter(|memory| memory.busy && memory.can_wait).count();
        for (node, action, priority) in writes::begin(std::mem::take(&mut plan.actions), view, under_way) {
            let memory = self.memory.entry(node.facts.name.clone()).or_default();
            memory.busy = true;
            memory.can_wait = priority != Priority::Urgent;
            if Plan::ends_drain(&action) {
                memory.in_flight.clear();
            }
            self.applier.spawn(node.clone(), action, self.outcomes.0.clone());
        }
    }

    /// Records the refused candidates, so that they are checked again after a pause that grows.
    fn remember_refused(&mut self, view: &ClusterView, refused: BTreeMap<String, Wait>, now: Timestamp) {
        let generation = view.operator.as_ref().map(|operator| operator.generation);
        for (name, wait) in refused {
            let last = &mut self.memory.entry(name).or_default().refused;
            let pause = match last {
                // The node is watched, since there are slots enough.
                Some(last) if last.what.again_at > now && last.generation == generation => {
                    last.what.wait = wait;
                    continue;
                }
                Some(last) => last.pause.saturating_mul(2).min(LONGEST_PAUSE),
                None => FIRST_PAUSE,
            };
            let again_at = jiff::SignedDuration::try_from(pause).ok().and_then(|p| now.checked_add(p).ok());
            let what = Refused { wait, again_at: again_at.unwrap_or(now) };
            *last = Some(RefusedLook { what, pause, generation });
        }
    }

    /// Sends evictions, each in a task of its own; none of them keeps the node busy.
    fn evict(&mut self, evictions: BTreeMap<String, Evictions>, now: Timestamp) {
        for (name, Evictions { pods, grace, delete }) in evictions {
            // The versions before the request. A budget can refuse a pod and allow it again before the refusal arrives;
            // read then, that change would pass for one that the refusal included.
            let concerned = self.budgets.select(|budget| pods.iter().any(|pod| pod.namespace == budget.namespace));
            let budgets: BTreeMap<_, _> =
                concerned.into_iter().map(|budget| (budget.key(), budget.resource_version)).collect();
            let budgets = Arc::new(budgets);
            let memory = self.memory.entry(name.clone()).or_default();
            for pod in pods {
                self.requests += 1;
                let (request, uid, done) = (self.requests, pod.uid.clone(), self.evicted.0.clone());
                let task = self.applier.spawn_eviction(name.clone(), pod, (grace, delete), request, done);
                let what = InFlight { since: now, deletes: delete };
                memory.in_flight.insert(uid, Sent { request, what, budgets: budgets.clone(), task });
            }
        }
    }

    /// Takes in the answer to an eviction, or its timeout. The answer to a request that was given up meanwhile is
    /// ignored.
    fn answered(&mut self, evicted: Evicted) {
        let Some(memory) = self.memory.get_mut(&evicted.node) else { return };
        if memory.in_flight.get(&evicted.uid).is_none_or(|sent| sent.request != evicted.request) {
            return;
        }
        let Some(sent) = memory.in_flight.remove(&evicted.uid) else { return };
        let now = crate::clock::now();
        let namespace = evicted.namespace;
        let (accepted, fatal, budget, retry) = match evicted.means {
            Meaning::Leaves | Meaning::OtherPod => (true, false, None, ACCEPTED),
            Meaning::Blocked { budget, retry } => (false, false, budget.map(|b| format!("{namespace}/{b}")), retry),
            Meaning::Retry(retry) => (false, false, None, retry),
            Meaning::Fatal => (false, true, None, ACCEPTED),
        };
        if let Some(budget) = &budget {
            let last = self.refused_at.entry(budget.clone()).or_default();
            match sent.budgets.get(budget) {
                Some(before) if newer(before, last) => last.clone_from(before),
                Some(_) => {}
                // For a budget created meanwhile any version is new.
                None => last.clear(),
            }
        }
        let alike = memory.blocked.get(&evicted.uid).filter(|old| old.accepted == accepted);
        let since = alike.map_or(sent.what.since, |old| old.since);
        let refused = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        let retry = if accepted { retry } else { pause(retry, refused) };
        let retry_at = jiff::SignedDuration::try_from(retry).ok().and_then(|s| now.checked_add(s).ok()).unwrap_or(now);
        let (message, deleted) = (evicted.message, sent.what.deletes);
        let answer = Blocked { budget, message, since, retry_at, fatal, accepted, deleted };
        memory.blocked.insert(evicted.uid, answer);
    }

    fn ended(&mut self, outcome: Outcome) {
        let memory = self.memory.entry(outcome.node).or_default();
        memory.busy = false;
        match outcome.result {
            Ok(learned) => {
                memory.failures = 0;
                memory.claims = memory.claims.saturating_add(u32::from(learned.claimed));
                memory.owners.extend(learned.owner);
                if let Some((renewed, now)) = learned.lease {
                    memory.lease = Some(LeaseLooks::look(memory.lease, renewed, now));
                }
            }
            Err(error) => {
                memory.paused_until = Some(Instant::now() + apply::pause(&error, memory.failures));
                memory.failures = memory.failures.saturating_add(1);
            }
        }
    }

    fn written(&mut self, done: Done) {
        match done {
            Done::Operator(result) => {
                self.operator_busy = false;
                match &result {
                    Ok(()) => self.operator_failures = 0,
                    Err(error) => self.applier.metrics.rejected(error.what(), error.code()),
                }
                if let Err(error) = result {
                    self.operator_paused = Some(Instant::now() + apply::pause(&error, self.operator_failures));
                    self.operator_failures = self.operator_failures.saturating_add(1);
                    if error.code() != Some(409) {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "the operator's status could not be written"
                        );
                    }
                }
            }
            Done::Shadow(node, Ok(())) => {
                self.shadow_changes.remove(&node);
            }
            Done::Shadow(node, Err(error)) => {
                self.applier.metrics.rejected(error.what(), error.code());
                tracing::warn!(node, error = &error as &dyn std::error::Error, "a shadow could not be made or deleted");
                self.shadow_changes.insert(node, Some(Instant::now() + Duration::from_secs(2)));
            }
            Done::Label(node, result) => {
                if let Err(error) = &result {
                    self.applier.metrics.rejected(error.what(), error.code());
                }
                if let Err(error) = &result
                    && error.code() != Some(409)
                {
                    tracing::warn!(node, error = error as &dyn std::error::Error, "a node could not be labelled");
                }
                self.labelling.ended(&node, result.as_ref().err(), Instant::now());
            }
        }
    }

    /// Writes slots at once and counts at most once a second, never two writes at a time.
    fn write_operator(&mut self, view: &ClusterView, plan: &Plan) -> Option<Instant> {
        let (Some(status), Some(operator)) = (&plan.status, &view.operator) else { return None };
        if *status == operator.status || self.operator_busy {
            return None;
        }
        let now = Instant::now();
        if let Some(until) = self.operator_paused.filter(|until| *until > now) {
            return Some(until);
        }
        let due = self.operator_written.map_or(now, |at| at + STATUS_PERIOD);
        if plan.slots.is_none() && due > now {
            return Some(due);
        }
        self.operator_busy = true;
        let taken = planner::plan::retracted(&operator.status.slots, &status.slots);
        self.retracting = Some(Retracting::with(self.retracting.take(), &operator.resource_version, taken));
        self.operator_written = Some(now);
        let (applier, view, status, done) = (self.applier.clone(), view.clone(), status.clone(), self.done.0.clone());
        tokio::spawn(async move {
            let result = applier.write_operator(&view, &status).await;
            if result.as_ref().is_err_and(ApplyError::is_unknown) {
                applier.read_operator().await;
            }
            let _ = done.send(Done::Operator(result));
        });
        None
    }

    fn change_shadows(&mut self, policy: &Policy) {
        let now = Instant::now();
        self.shadow_changes.retain(|_, retry| retry.is_none_or(|at| at > now));
        let under_way = self.shadow_changes.values().filter(|retry| retry.is_none()).count();
        let mut places = writes::AT_A_TIME.saturating_sub(under_way);
        for change in changes(&self.applier.nodes.items(), &self.applier.shadows.items()) {
            if places == 0 {
                break;
            }
            let (Change::Create { node, .. } | Change::Delete { node, .. }) = &change;
            if self.shadow_changes.contains_key(node) {
                continue;
            }
            places -= 1;
            self.shadow_changes.insert(node.clone(), None);
            let host = models::shadow::HostPolicy {
                refresh_interval: Some(policy.refresh_interval),
                ..models::shadow::HostPolicy::default()
            };
            let (applier, done) = (self.applier.clone(), self.done.0.clone());
            tokio::spawn(async move {
                let (node, result) = match change {
                    Change::Create { node, uid } => {
                        let result = applier.create_shadow(&node, &uid, host).await;
                        (node, result)
                    }
                    Change::Delete { node, uid } => {
                        let result = applier.delete_shadow(&node, &uid).await;
                        (node, result)
                    }
                };
                if result.as_ref().is_err_and(ApplyError::is_unknown) {
                    applier.read_node(&node).await;
                }
                let _ = done.send(Done::Shadow(node, result));
            });
        }
    }

    /// Puts nodes that run Bottlerocket under the operator, if policy asks for that.
    fn label_nodes(&mut self, policy: &Policy) {
        let nodes = self.applier.nodes.items();
        for node in self.labelling.begin(labels(&nodes, policy), Instant::now()) {
            let (applier, done) = (self.applier.clone(), self.done.0.clone());
            tokio::spawn(async move {
                let result = applier.label(&node).await;
                if result.as_ref().is_err_and(ApplyError::is_unknown) {
                    applier.read_node(&node.name).await;
                }
                let _ = done.send(Done::Label(node.name, result));
            });
        }
    }

    /// Watches pods only on the nodes that need it, so memory does not grow with the cluster's pods.
    fn watch_pods(&mut self, wanted: &BTreeSet<String>) {
        self.pods.retain(|node, _| wanted.contains(node));
        for node in wanted {
            self.pods.entry(node.clone()).or_insert_with(|| {
                let cache = Cache::new(self.changed.clone());
                let api: Api<kube::core::DeserializeGuard<Pod>> = Api::all(self.applier.client.clone());
                let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
                PodWatch { task: tokio::spawn(cache.run(api, config)), cache }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::Leadership;
    use kube::core::DeserializeGuard;
    use kube::runtime::watcher::Event;
    use planner::plan::Action;
    use planner::view::{NodeFacts, OperatorFacts, ShadowFacts};

    fn cache<P: planner::view::Projection>(changed: &Arc<watch::Sender<u64>>) -> Cache<P> {
        let cache = Cache::new(changed.clone());
        cache.take(Event::Init);
        cache.take(Event::InitDone);
        cache
    }

    type Server = tower_test::mock::Handle<http::Request<kube::client::Body>, http::Response<kube::client::Body>>;

    /// Returns the driver of a leader with nothing to do, and the cache of its nodes.
    fn driver() -> (Driver, Cache<NodeFacts>) {
        let (driver, nodes, _) = driver_and_server();
        (driver, nodes)
    }

    fn driver_and_server() -> (Driver, Cache<NodeFacts>, Server) {
        let (service, server) =
            tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<kube::client::Body>>();
        let client = kube::Client::new(service, "default");
        let changed = Arc::new(watch::channel(0).0);
        let nodes = cache::<NodeFacts>(&changed);
        let applier = Applier::new(
            client,
            "brupop-system".into(),
            "me".into(),
            Leadership::forever(),
            crate::tls::Signer::default(),
            crate::metrics::Metrics::new().unwrap(),
            nodes.clone(),
            cache::<ShadowFacts>(&changed),
            cache::<OperatorFacts>(&changed),
        );
        let peers = Peers { identity: "me".into(), pods: cache(&changed), agents: cache(&changed) };
        let expressions = Expressions::start(changed.clone(), crate::metrics::Metrics::new().unwrap(), None);
        let reading = Reading::default();
        let driver =
            Driver::new(applier, cache(&changed), peers, reading, expressions, changed, None, crate::clock::now());
        (driver, nodes, server)
    }

    #[tokio::test(start_paused = true)]
    async fn policy_change_for_a_large_fleet_delays_no_eviction_and_is_no_burst_of_writes() {
        let (mut driver, _, mut server) = driver_and_server();
        let (mut view, mut actions) = (ClusterView::default(), BTreeMap::new());
        for number in 0..=5000 {
            let name = format!("node-{number:04}");
            let facts = NodeFacts { name: name.clone(), ..NodeFacts::default() };
            let shadow = Some(ShadowFacts { node: name.clone(), ..ShadowFacts::default() });
            view.nodes.insert(name.clone(), NodeView { facts, shadow, ..NodeView::default() });
            actions.insert(name, Action::Spec { spec: Box::default() });
        }
        let pod = planner::plan::Eviction { namespace: "shop".into(), name: "web".into(), uid: "u".into() };
        let evictions = Evictions { pods: vec![pod], grace: None, delete: false };
        let plan = || Plan { actions: actions.clone(), ..Plan::default() };
        driver.act(&view, &mut plan());
        driver.evict(BTreeMap::from([("node-5000".to_owned(), evictions)]), crate::clock::now());
        let mut unanswered = Vec::new();
        // The clock moves on as soon as nothing else is to be done.
        while let Ok(Some((request, reply))) = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await
        {
            unanswered.push((request.uri().path().to_owned(), reply));
        }
        let evictions = unanswered.iter().filter(|(path, _)| path.ends_with("/eviction")).count();
        assert_eq!((evictions, unanswered.len()), (1, 1 + crate::writes::AT_A_TIME));
        // The next one begins when one has ended.
        let (_, reply) =
            unanswered.iter().position(|(path, _)| path.contains("brs-")).map(|at| unanswered.remove(at)).unwrap();
        reply.send_response(http::Response::builder().status(409).body(kube::client::Body::empty()).unwrap());
        let outcome = driver.outcomes.1.recv().await.unwrap();
        let done = outcome.node.clone();
        driver.ended(outcome);
        view.busy.extend(driver.memory.iter().filter(|(_, memory)| memory.busy).map(|(name, _)| name.clone()));
        view.busy.insert(done);
        driver.act(&view, &mut plan());
        let next = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await;
        // The reply is kept: a dropped one is a lost answer, after which the node is read again.
        assert!(matches!(next, Ok(Some(_))));
        let another = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await;
        assert!(another.is_err(), "more than {} at a time", crate::writes::AT_A_TIME);
    }

    #[tokio::test]
    async fn a_leader_that_hands_over_ends_its_work_and_one_that_is_stopped_meanwhile_stops() {
        for (stopped, end) in [(false, End::HandedOver), (true, End::Stopped)] {
            let (mut driver, _) = driver();
            let (_stop, stop) = watch::channel(stopped);
            driver.hand_over();
            let ended = tokio::time::timeout(Duration::from_secs(60), driver.run(&Calls::default(), stop)).await;
            assert_eq!(ended, Ok(end));
        }
    }

    fn take<P: planner::view::Projection>(cache: &Cache<P>, object: serde_json::Value) {
        cache.take(Event::Apply(DeserializeGuard(Ok(serde_json::from_value(object).unwrap()))));
    }

    /// Takes in node `a` and its shadow with this step and this desired state.
    fn take_node_in(driver: &Driver, nodes: &Cache<NodeFacts>, step: &str, order: &serde_json::Value) {
        take(
            nodes,
            serde_json::json!({"metadata": {"name": "a", "uid": "node-1", "resourceVersion": "5", "labels": {
                models::names::INTERFACE_LABEL: models::names::INTERFACE_VERSION}}}),
        );
        let shadow = serde_json::json!({
            "metadata": {"name": "brs-a", "uid": "shadow-1", "resourceVersion": "6", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "node-1"}]},
            "spec": order,
            "status": {"progress": {"step": step, "since": "2026-01-01T00:00:00Z",
                "started": "2026-01-01T00:00:00Z", "attempt": 1, "bootId": "b", "version": "1.20.5", "disruptive": true}}});
        take(&driver.applier.shadows, shadow);
    }

    fn evictions(pods: &[&str]) -> BTreeMap<String, Evictions> {
        let pod = |name: &&str| planner::plan::Eviction {
            namespace: "shop".into(),
            name: (*name).into(),
            uid: format!("uid-{name}"),
        };
        let pods = pods.iter().map(pod).collect();
        BTreeMap::from([("a".to_owned(), Evictions { pods, grace: None, delete: false })])
    }

    fn refusal(pod: &str, request: u64) -> Evicted {
        Evicted {
            node: "a".into(),
            namespace: "shop".into(),
            uid: format!("uid-{pod}"),
            request,
            means: Meaning::Blocked { budget: Some("web".into()), retry: Duration::from_secs(5) },
            message: String::new(),
        }
    }

    #[tokio::test]
    async fn evictions_under_way_keep_no_node_busy_and_end_with_the_drain() {
        let order = serde_json::json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b"});
        let (mut driver, nodes) = driver();
        take_node_in(&driver, &nodes, "Draining", &order);
        let now = crate::clock::now();
        driver.evict(evictions(&["first", "second"]), now);
        let view = driver.view(now);
        assert!(view.busy.is_empty());
        assert_eq!(view.nodes["a"].in_flight.keys().collect::<Vec<_>>(), ["uid-first", "uid-second"]);
        // An answered request leaves the answer alone, and a replaced request leaves none.
        driver.answered(refusal("first", 1));
        driver.answered(refusal("second", 1));
        let view = driver.view(now);
        assert_eq!(view.nodes["a"].in_flight.keys().collect::<Vec<_>>(), ["uid-second"]);
        assert_eq!(view.nodes["a"].blocked.keys().collect::<Vec<_>>(), ["uid-first"]);
        driver.applier.shadows.forget("a");
        take_node_in(&driver, &nodes, "Releasing", &serde_json::json!({"state": "Idle", "attempt": 1}));
        assert!(driver.view(now).nodes["a"].in_flight.is_empty());
        driver.answered(refusal("second", 2));
        assert_eq!(driver.view(now).nodes["a"].blocked.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn leader_that_is_stopped_waits_for_the_answers_to_its_evictions() {
        let order = serde_json::json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b"});
        let (mut driver, nodes, mut server) = driver_and_server();
        take_node_in(&driver, &nodes, "Draining", &order);
        driver.evict(evictions(&["web"]), crate::clock::now());
        let (request, reply) = server.next_request().await.unwrap();
        assert!(request.uri().path().ends_with("/eviction"));
        let (_stop, stop) = watch::channel(true);
        let calls = Calls::default();
        let mut run = std::pin::pin!(driver.run(&calls, stop));
        let early = tokio::time::timeout(Duration::from_secs(10), run.as_mut()).await;
        assert!(early.is_err(), "an eviction that is cut off may cost its budget two minutes");
        let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string();
        reply.send_response(http::Response::builder().status(201).body(body.into_bytes().into()).unwrap());
        assert_eq!(tokio::time::timeout(Duration::from_secs(5), run).await, Ok(End::Stopped));
    }

    #[tokio::test]
    async fn pod_that_is_refused_for_long_is_asked_for_more_seldom() {
        let order = serde_json::json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b"});
        let seconds = jiff::SignedDuration::from_secs;
        for (refused, pause) in [(0, 5), (60, 30), (600, 60)] {
            let (mut driver, nodes) = driver();
            take_node_in(&driver, &nodes, "Draining", &order);
            let now = crate::clock::now();
            driver.evict(evictions(&["web"]), now - seconds(refused));
            driver.answered(refusal("web", 1));
            let retry_at = driver.view(now).nodes["a"].blocked["uid-web"].retry_at;
            assert!(retry_at >= now + seconds(pause), "after {refused} s: {retry_at}, at {now}");
        }
    }

    #[tokio::test]
    async fn a_budget_that_lets_go_before_its_refusal_is_heard_of_is_not_missed() {
        let budget = |version: &str, allowed: i32| {
            serde_json::json!({"metadata": {"namespace": "shop", "name": "web", "resourceVersion": version},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 3}})
        };
        for (sentence, meanwhile, now_due) in [
            ("the budget is as it was before the eviction", vec![], false),
            ("it has counted the eviction before", vec![budget("8", 0)], false),
            ("it lets another go already", vec![budget("8", 0), budget("9", 1)], true),
        ] {
            let (mut driver, nodes) = driver();
            take_node_in(
                &driver,
                &nodes,
                "Draining",
                &serde_json::json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b"}),
            );
            take(&driver.budgets, budget("7", 1));
            let now = crate::clock::now();
            driver.view(now);
            driver.evict(evictions(&["first", "second"]), now);
            for change in meanwhile {
                take(&driver.budgets, change);
            }
            driver.answered(refusal("second", 2));
            let blocked = &driver.view(now).nodes["a"].blocked["uid-second"];
            assert_eq!(blocked.retry_at <= now, now_due, "{sentence}: {blocked:?}");
        }
    }

    #[tokio::test]
    async fn a_leader_decides_nothing_before_every_cache_has_been_read_since_it_leads() {
        let (mut driver, nodes) = driver();
        take_node_in(&driver, &nodes, "Staged", &serde_json::json!({"state": "StagedUpdate", "attempt": 1}));
        let slot = serde_json::json!({"uid": "node-1", "node": "a", "since": "2026-01-01T00:00:00Z"});
        take(
            &driver.applier.operator,
            serde_json::json!({"metadata": {"name": models::names::OPERATOR_NAME, "uid": "op", "resourceVersion": "7"},
                "spec": {}, "status": {"slots": [slot]}}),
        );
        driver.reading = Reading::default().of(&driver.budgets);
        assert_eq!(driver.turn(), None);
        assert!(!driver.writing() && driver.retracting.is_none());
        driver.reading = Reading::default();
        driver.turn();
        assert!(driver.writing());
    }

    #[tokio::test]
    async fn a_slot_is_on_its_way_out_until_the_resource_has_changed_whatever_is_heard_of_its_write() {
        let operator = |version: &str, slots: serde_json::Value| {
            serde_json::json!({"metadata": {"name": models::names::OPERATOR_NAME, "uid": "op", "resourceVersion": version},
                "spec": {}, "status": {"slots": slots}})
        };
        let slot = serde_json::json!({"uid": "node-1", "node": "a", "since": "2026-01-01T00:00:00Z"});
        let (mut driver, _) = driver();
        // The previous leader may be about to remove the slots that the first read shows.
        take(&driver.applier.operator, operator("6", serde_json::json!([slot])));
        let now = crate::clock::now();
        assert_eq!(driver.view(now).slots().count(), 0);
        take(&driver.applier.operator, operator("7", serde_json::json!([slot])));
        let view = driver.view(now);
        assert_eq!(view.slots().count(), 1);
        let without = |view: &ClusterView| {
            let mut status = view.operator.as_ref().unwrap().status.clone();
            status.slots.clear();
            Plan { slots: Some(Vec::new()), status: Some(status), ..Plan::default() }
        };
        driver.write_operator(&view, &without(&view));
        let sent = driver.view(now);
        assert!(sent.retracted.contains("node-1") && sent.slots().count() == 0, "{:?}", sent.retracted);
        // The result of this write is unknown.
        driver.written(Done::Operator(Err(ApplyError::NoKey)));
        assert_eq!(driver.view(now).slots().count(), 0);
        // A further write that removes nothing does not settle the first one.
        driver.operator_paused = None;
        let mut counts = without(&view);
        counts.slots = Some(view.operator.as_ref().unwrap().status.slots.clone());
        counts.status.as_mut().unwrap().slots = counts.slots.clone().unwrap();
        counts.status.as_mut().unwrap().observed_generation = Some(5);
        driver.write_operator(&view, &counts);
        assert_eq!(driver.view(now).slots().count(), 0);
        // The resource has changed: it records the slots, and no write for the version before it can arrive any more.
        take(&driver.applier.operator, operator("8", serde_json::json!([slot])));
        assert_eq!(driver.view(now).slots().count(), 1);
    }

    #[tokio::test]
    async fn a_new_leader_goes_on_with_a_slot_with_which_something_was_begun() {
        for (step, begun) in [("Staging", false), ("Staged", false), ("Draining", true), ("Monitoring", true)] {
            let (mut driver, nodes) = driver();
            take_node_in(&driver, &nodes, step, &serde_json::json!({"state": "StagedUpdate", "attempt": 1}));
            take(
                &driver.applier.operator,
                serde_json::json!({"metadata": {"name": models::names::OPERATOR_NAME, "uid": "op", "resourceVersion": "7"},
                    "spec": {}, "status": {"slots": [{"uid": "node-1", "node": "a", "since": "2026-01-01T00:00:00Z"}]}}),
            );
            assert_eq!(driver.view(crate::clock::now()).slots().count(), usize::from(begun), "{step}");
        }
    }

    #[tokio::test]
    async fn a_node_is_seen_to_stand_in_its_release_for_as_long_as_this_leader_has_looked() {
        let (mut driver, nodes) = driver();
        take_node_in(&driver, &nodes, "Releasing", &serde_json::json!({"state": "Idle", "attempt": 1}));
        // However often it checks in between, and whatever the clock shows.
        let now = crate::clock::now();
        assert_eq!(driver.view(now).nodes["a"].stood, Duration::ZERO);
        for milliseconds in [2, 4] {
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert!(driver.view(now).nodes["a"].stood >= Duration::from_millis(milliseconds));
        }
    }

    /// An action failed, then the shadow was removed (its node has lost the label, or was created again without it).
    #[tokio::test]
    async fn a_pause_of_a_node_that_left_the_view_does_not_spin() {
        let (mut driver, nodes) = driver();
        take(&nodes, serde_json::json!({"metadata": {"name": "a", "uid": "node-1", "resourceVersion": "5"}}));
        // An earlier action about it failed, and the pause after that is over.
        driver.memory.entry("a".into()).or_default().paused_until = Some(Instant::now());
        let mut in_the_past = 0;
        for _ in 0..100 {
            if driver.turn().is_some_and(|wake| wake <= Instant::now()) {
                in_the_past += 1;
            }
        }
        assert_eq!(in_the_past, 0, "turns that want to be followed by another one at once");
    }
}
