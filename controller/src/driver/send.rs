//! The actions of a plan: each is sent in a task of its own, whose answer comes back to the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::watcher;
use planner::plan::{Evictions, Plan, ShadowChange};
use planner::view::{ClusterView, InFlight, NodeFacts, Projection as _};
use tokio::time::Instant;

use super::Driver;
use super::answers::Done;
use super::memory::{PodWatch, Retracting, Sent};
use super::retry::Target;
use crate::apply::ApplyError;
use crate::cache::Cache;
use crate::writes::{self, Priority};

/// Interval of writes of the operator's status when only its counts changed.
const STATUS_PERIOD: Duration = Duration::from_secs(1);

impl Driver {
    pub(super) fn act(&mut self, view: &ClusterView, plan: &mut Plan) {
        let under_way = self.queue.under_way(Target::Node);
        for (node, action, priority) in writes::begin(std::mem::take(&mut plan.actions), view, under_way) {
            let name = &node.facts.name;
            self.queue.begin(Target::Node(name.clone()), priority == Priority::Urgent);
            if Plan::ends_drain(&action)
                && let Some(memory) = self.memory.get_mut(name)
            {
                memory.in_flight.clear();
            }
            self.applier.spawn(node.clone(), action, self.outcomes.0.clone());
        }
    }

    /// Sends evictions, each in a task of its own; none of them keeps the node busy.
    pub(super) fn evict(&mut self, evictions: BTreeMap<String, Evictions>, now: Timestamp) {
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

    /// Writes slots at once and counts at most once a second, never two writes at a time.
    pub(super) fn write_operator(&mut self, view: &ClusterView, plan: &Plan) -> Option<Instant> {
        let (Some(status), Some(operator)) = (&plan.status, &view.operator) else { return None };
        if *status == operator.status || !self.queue.is_free(&Target::Operator) {
            return None;
        }
        let now = Instant::now();
        let due = self.operator_written.map_or(now, |at| at + STATUS_PERIOD);
        if plan.slots.is_none() && due > now {
            return Some(due);
        }
        self.queue.begin(Target::Operator, true);
        let taken = planner::plan::retracted(&operator.status.slots, &status.slots);
        self.retracting = Some(Retracting::with(self.retracting.take(), &operator.resource_version, taken));
        self.operator_written = Some(now);
        let (applier, view, status, done) = (self.applier.clone(), view.clone(), status.clone(), self.done.0.clone());
        tokio::spawn(async move {
            let result = applier.write_operator(&view, &status).await;
            if result.as_ref().is_err_and(ApplyError::is_unknown) {
                applier.read_operator().await;
            }
            let _ = done.send(Done { target: Target::Operator, result });
        });
        None
    }

    pub(super) fn change_shadows(&mut self, changes: Vec<ShadowChange>) {
        let changes = changes.into_iter().map(|change| (change.node().to_owned(), change)).collect();
        for change in self.queue.begin_some(Target::Shadow, changes, writes::AT_A_TIME) {
            let (applier, done) = (self.applier.clone(), self.done.0.clone());
            tokio::spawn(async move {
                let (node, result) = match change {
                    ShadowChange::Create { node, uid, host } => {
                        let result = applier.create_shadow(&node, &uid, *host).await;
                        (node, result)
                    }
                    ShadowChange::Delete { node, uid } => {
                        let result = applier.delete_shadow(&node, &uid).await;
                        (node, result)
                    }
                };
                if result.as_ref().is_err_and(ApplyError::is_unknown) {
                    applier.read_node(&node).await;
                }
                let _ = done.send(Done { target: Target::Shadow(node), result });
            });
        }
    }

    /// Puts nodes under the operator.
    pub(super) fn label_nodes(&mut self, nodes: Vec<NodeFacts>) {
        let wanted = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
        for node in self.queue.begin_some(Target::Label, wanted, writes::LABELS_AT_A_TIME) {
            let (applier, done) = (self.applier.clone(), self.done.0.clone());
            tokio::spawn(async move {
                let result = applier.label(&node).await;
                if result.as_ref().is_err_and(ApplyError::is_unknown) {
                    applier.read_node(&node.name).await;
                }
                let _ = done.send(Done { target: Target::Label(node.name), result });
            });
        }
    }

    /// Watches pods only on the nodes that need it, so memory does not grow with the cluster's pods.
    pub(super) fn watch_pods(&mut self, wanted: &BTreeSet<String>) {
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
