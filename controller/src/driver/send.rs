//! The actions of a plan: each is sent in a task of its own, whose answer comes back to the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::watcher;
use planner::plan::{Action, Evictions, Plan, ShadowChange, Silence};
use planner::revisions::RevisionAction;
use planner::view::{ClusterView, InFlight, NodeFacts};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::Driver;
use super::memory::{Changed, Ended, PodWatch, Retracting, Sent};
use super::retry::Target;
use crate::apply::{ApplyError, Learned, Removal};
use crate::cache::{Cache, Reading};
use crate::writes::{self, Priority};

/// Interval of writes of the operator's status when its slots have not changed.
pub(super) const STATUS_PERIOD: Duration = Duration::from_secs(1);

/// Time for which anything but slots waits for another change: with the end of an attempt comes that of its slot, and perhaps of its rollout.
pub(super) const GATHERING: Duration = Duration::from_millis(250);

/// Longest time for which counts and reasons wait for another change while updates are under way: one that users who watch hardly
/// notice, and in which a slot is often given or taken back.
pub(super) const COUNTS_WAIT: Duration = Duration::from_secs(10);

/// Time in which the pods on a node are read again: that of one call.
const PODS_LIMIT: Duration = Duration::from_secs(15);

/// Waits until the pods on a node are read, if that was requested.
async fn pods_read(reading: Option<(Reading, watch::Receiver<u64>)>) -> Result<(), ApplyError> {
    let Some((reading, changed)) = reading else { return Ok(()) };
    timeout(PODS_LIMIT, reading.wait(changed)).await.map_err(|_| ApplyError::PodsUnread)
}

impl Driver {
    /// Runs a task whose end comes back to the loop.
    fn spawn(&self, task: impl Future<Output = Ended> + Send + 'static) -> AbortHandle {
        let ended = self.ended.0.clone();
        tokio::spawn(async move { _ = ended.send(task.await) }).abort_handle()
    }

    /// Runs a write other than a node's action. After a call with an unknown result, what it was about is read again.
    fn write(&self, target: Target, write: impl Future<Output = Result<(), ApplyError>> + Send + 'static) {
        let applier = self.applier.clone();
        self.spawn(async move {
            let result = write.await;
            if result.as_ref().is_err_and(ApplyError::is_unknown) {
                match &target {
                    Target::Node(node)
                    | Target::Shadow(node)
                    | Target::Label(node)
                    | Target::Revision(node)
                    | Target::Silence(node) => applier.read_node(node).await,
                    // Read as part of the write.
                    Target::Operator | Target::History => {}
                }
            }
            Ended::Write(target, result.map(|()| Learned::default()))
        });
    }

    pub(super) fn act(&mut self, view: &ClusterView, plan: &mut Plan) {
        for (name, memory) in &mut self.memory {
            // An action that had failed is not due any more: the answer may have been lost, and the write not.
            if !view.busy.contains(name) && !plan.actions.contains_key(name) {
                memory.failing = None;
            }
        }
        let relabelled = std::mem::take(&mut plan.relabelled).into_iter();
        let (carried, alone): (BTreeMap<_, _>, _) = relabelled.partition(|(name, _)| plan.actions.contains_key(name));
        plan.relabelled = alone;
        let failures = |name: &str| self.writes.failures(&Target::Node(name.to_owned()));
        let room = |priority: Priority| self.writes.room(Target::Node, priority, writes::AT_A_TIME);
        for (node, action, priority) in writes::begin(std::mem::take(&mut plan.actions), view, failures, room) {
            let name = &node.facts.name;
            self.writes.begin(Target::Node(name.clone()), priority);
            let memory = self.memory.entry(name.clone()).or_default();
            memory.writes_status = matches!(action, Action::Status { .. });
            if Plan::ends_drain(&action) {
                memory.in_flight.clear();
            }
            let (applier, mut node) = (self.applier.clone(), node.clone());
            if let (Some(shadow), Some(revision)) = (&mut node.shadow, carried.get(&node.facts.name)) {
                // The write of the spec applies the label too.
                shadow.revision = Some(revision.clone());
            }
            let reads_pods = matches!(action, Action::ReadLease { pods: true });
            let watched = self.pods.get(&node.facts.name).filter(|_| reads_pods);
            let changed = &self.applier.caches.changed;
            let reading = watched.map(|watch| (Reading::default().of(&watch.cache), changed.subscribe()));
            self.spawn(async move {
                let (read, result) = futures::join!(pods_read(reading), applier.act(&node, action));
                Ended::Write(Target::Node(node.facts.name), read.and(result))
            });
        }
    }

    /// Sends evictions, each in a task of its own; none of them keeps the node busy.
    pub(super) fn evict(&mut self, evictions: BTreeMap<String, Evictions>, now: Timestamp) {
        for (name, Evictions { pods, grace, delete, dry_run }) in evictions {
            // The versions before the request. A budget can refuse a pod and allow it again before the refusal arrives;
            // read then, that change would pass for one that the refusal included.
            let concerned =
                self.applier.caches.budgets.select(|budget| pods.iter().any(|pod| pod.namespace == budget.namespace));
            let budgets: BTreeMap<_, _> =
                concerned.into_iter().map(|budget| (budget.title(), budget.resource_version)).collect();
            let budgets = Arc::new(budgets);
            for pod in pods {
                self.requests += 1;
                let (request, uid) = (self.requests, pod.uid.clone());
                let (applier, node) = (self.applier.clone(), name.clone());
                let task = self.spawn(async move {
                    Ended::Eviction(applier.remove_pod(node, pod, Removal { grace, delete, dry_run }, request).await)
                });
                let what = InFlight { since: now, deletes: delete };
                let sent = Sent { request, what, budgets: budgets.clone(), task };
                self.memory.entry(name.clone()).or_default().in_flight.insert(uid, sent);
            }
        }
    }

    /// Writes slots at once, anything else at most once a second, and counts with them or after [`COUNTS_WAIT`]; never two writes at
    /// a time.
    pub(super) fn write_operator(&mut self, view: &ClusterView, plan: &Plan) -> Option<Instant> {
        let (Some(status), Some(operator)) = (&plan.status, &view.operator) else {
            self.status_failing = None;
            return None;
        };
        if *status == operator.status {
            self.operator_changed = Changed::default();
            self.status_failing = None;
            return None;
        }
        if !self.writes.is_free(&Target::Operator) {
            return None;
        }
        let now = Instant::now();
        let changed = &mut self.operator_changed;
        let first = *changed.first.get_or_insert(now);
        let due = if planner::plan::can_wait(&operator.status, status) {
            first + COUNTS_WAIT
        } else {
            let gathered = *changed.promptly.get_or_insert(now) + GATHERING;
            self.operator_written.map_or(gathered, |at| gathered.max(at + STATUS_PERIOD))
        };
        if plan.slots.is_none() && due > now {
            return Some(due);
        }
        self.operator_changed = Changed::default();
        self.writes.begin(Target::Operator, Priority::Urgent);
        let taken = planner::plan::retracted(&operator.status.slots, &status.slots);
        self.retracting = Some(Retracting::with(self.retracting.take(), &operator.resource_version, taken));
        self.operator_written = Some(now);
        self.write(Target::Operator, self.applier.write_operator(view, status));
        None
    }

    pub(super) fn change_shadows(&mut self, changes: Vec<ShadowChange>) {
        let changes = changes.into_iter().map(|change| (change.node().to_owned(), change)).collect();
        for change in self.writes.begin_some(Target::Shadow, changes, writes::AT_A_TIME) {
            let applier = self.applier.clone();
            self.write(Target::Shadow(change.node().to_owned()), async move {
                match change {
                    ShadowChange::Create { node, uid, host } => applier.create_shadow(&node, &uid, *host).await,
                    ShadowChange::Delete { node, uid } => applier.delete_shadow(&node, &uid).await,
                }
            });
        }
    }

    /// Puts nodes under the operator.
    pub(super) fn label_nodes(&mut self, nodes: Vec<NodeFacts>) {
        let wanted = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        for node in self.writes.begin_some(Target::Label, wanted, writes::LABELS_AT_A_TIME) {
            let applier = self.applier.clone();
            self.write(Target::Label(node.name.clone()), async move { applier.label(&node).await });
        }
    }

    /// Writes the policy's history, one plan of it at a time. Returns the time at which a renumbering that has to wait may
    /// begin.
    pub(super) fn write_history(&mut self, view: &ClusterView, actions: Vec<RevisionAction>) -> Option<Instant> {
        let operator = view.operator.as_ref().filter(|_| !actions.is_empty());
        let Some(uid) = operator.map(|operator| operator.uid.clone()) else {
            self.writes.retain(|target| *target != Target::History);
            self.revisions_failing = None;
            return None;
        };
        if !self.writes.is_free(&Target::History) {
            return None;
        }
        if actions.iter().any(|action| matches!(action, RevisionAction::Renumber { .. }))
            && let Some(at) = self.renumberings.begin(Instant::now())
        {
            return Some(at);
        }
        self.writes.begin(Target::History, Priority::Status);
        let applier = self.applier.clone();
        self.write(Target::History, async move { applier.write_history(&uid, actions).await });
        None
    }

    /// Writes the labels of idle shadows. No action of a node waits for one: whichever write comes second is repeated.
    pub(super) fn label_shadows(&mut self, view: &ClusterView, revisions: BTreeMap<String, String>) {
        let wanted = |(name, revision): (String, String)| {
            let node = view.nodes.get(&name)?.clone();
            Some((name, (node, revision)))
        };
        let wanted = revisions.into_iter().filter_map(wanted).collect();
        for (node, revision) in self.writes.begin_some(Target::Revision, wanted, writes::LABELS_AT_A_TIME) {
            let applier = self.applier.clone();
            self.write(Target::Revision(node.facts.name.clone()), async move {
                applier.label_shadow(&node, revision).await
            });
        }
    }

    /// Writes `HostReachable` of silent agents, a few at a time: an outage of the web API concerns all of them at once.
    pub(super) fn record_silence(&mut self, view: &ClusterView, silent: BTreeMap<String, Silence>, now: Timestamp) {
        let wanted = |(name, silence): (String, Silence)| {
            let shadow = view.nodes.get(&name)?.shadow.clone()?;
            Some((name, (shadow, silence)))
        };
        let wanted = silent.into_iter().filter_map(wanted).collect();
        for (shadow, silence) in self.writes.begin_some(Target::Silence, wanted, writes::LABELS_AT_A_TIME) {
            let name = shadow.node.clone();
            self.memory.entry(name.clone()).or_default().silence_written = Some((silence.reason, now));
            let applier = self.applier.clone();
            self.write(Target::Silence(name), async move { applier.record_silence(&shadow, &silence.condition).await });
        }
    }

    /// Watches pods only on the nodes that need it, so memory does not grow with the cluster's pods.
    pub(super) fn watch_pods(&mut self, wanted: &BTreeSet<String>) {
        self.pods.retain(|node, _| wanted.contains(node));
        for node in wanted {
            self.pods.entry(node.clone()).or_insert_with(|| {
                let failures = &self.applier.metrics.watch_errors;
                let cache = Cache::new(self.applier.caches.changed.clone(), failures).of_node(node);
                let api = Api::all(self.applier.client.clone());
                let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
                let run = cache.run_as_watch_list(api, config, self.lists_pods.clone());
                PodWatch { _task: JoinSet::from_iter([run]), cache }
            });
        }
    }
}
