//! The cluster state at one revision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use models::condition::{Condition, find_condition};
use models::names;
use models::operator::BottlerocketUpdateOperatorStatus;
use models::shadow::{HostState, Mode, Record, Step};
use semver::Version;

use super::facts::{Budget, Node, Object, Operator, Pod, Shadow};
use super::history::Change;

/// A variant, an architecture and a version.
pub(super) type Key = (String, String, Version);

/// All objects that the oracle watches, after [`World::revision`].
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    /// The revision.
    pub revision: u64,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// Pods by namespace and name.
    pub pods: BTreeMap<(String, String), Arc<Pod>>,
    /// PodDisruptionBudgets by namespace and name.
    pub budgets: BTreeMap<(String, String), Arc<Budget>>,
    /// Shadows of the operator's namespace, by name.
    pub shadows: BTreeMap<String, Arc<Shadow>>,
    /// The active operator resource.
    pub operator: Option<Arc<Operator>>,
}

impl ClusterState {
    /// Applies the next revision. Returns the object before it; ignored objects (shadows and operator resources in
    /// other namespaces) leave no trace.
    pub fn apply(&mut self, change: &Change) -> Option<Object> {
        fn put<K: Ord, V>(map: &mut BTreeMap<K, Arc<V>>, key: K, value: &Arc<V>, gone: bool) -> Option<Arc<V>> {
            if gone { map.remove(&key) } else { map.insert(key, Arc::clone(value)) }
        }
        self.revision = self.revision.max(change.revision);
        let gone = change.gone;
        match &change.object {
            Object::Node(node) => put(&mut self.nodes, node.name.clone(), node, gone).map(Object::Node),
            Object::Pod(pod) => {
                put(&mut self.pods, (pod.namespace.clone(), pod.name.clone()), pod, gone).map(Object::Pod)
            }
            Object::Budget(budget) => {
                put(&mut self.budgets, (budget.namespace.clone(), budget.name.clone()), budget, gone)
                    .map(Object::Budget)
            }
            Object::Shadow(shadow) => {
                let counts = shadow.namespace == names::SYSTEM_NAMESPACE;
                let old = counts.then(|| put(&mut self.shadows, shadow.name.clone(), shadow, gone));
                old.flatten().map(Object::Shadow)
            }
            Object::Operator(operator) => {
                if operator.namespace != names::SYSTEM_NAMESPACE || operator.name != names::OPERATOR_NAME {
                    return None;
                }
                let old = self.operator.take();
                self.operator = (!gone).then(|| Arc::clone(operator));
                old.map(Object::Operator)
            }
        }
    }

    /// The shadow that this very Node owns.
    pub fn shadow_of(&self, node: &Node) -> Option<&Arc<Shadow>> {
        let shadow = self.shadows.get(&names::shadow_name(&node.name))?;
        shadow.owner.as_ref().is_some_and(|(_, uid)| *uid == node.uid).then_some(shadow)
    }

    /// The Node that owns a shadow, if it still exists.
    pub fn node_of(&self, shadow: &Shadow) -> Option<&Arc<Node>> {
        let (name, uid) = shadow.owner.as_ref()?;
        self.nodes.get(name).filter(|node| node.uid == *uid)
    }

    /// Returns true if a node runs `version`, has no attempt under way and is released.
    pub fn is_updated(&self, node: &str, version: &Version) -> bool {
        let Some(node) = self.nodes.get(node) else { return false };
        let Some(shadow) = self.shadow_of(node) else { return false };
        let agent = &shadow.status.agent;
        node.ready
            && !node.claimed()
            && shadow.spec.state == HostState::Idle
            && shadow.status.controller.progress.is_none()
            && agent.current_version.as_ref() == Some(version)
            && agent.boot_id.as_deref() == Some(node.boot_id.as_str())
    }

    /// Number of pods of a namespace that are Ready and stay.
    pub fn ready_pods(&self, namespace: &str) -> usize {
        let stays = |pod: &Pod| pod.ready && !pod.terminating && !pod.finished;
        self.pods.values().filter(|pod| pod.namespace == namespace && stays(pod)).count()
    }

    /// The shadow of a node, by the node's name.
    pub fn shadow(&self, node: &str) -> Option<&Shadow> {
        self.shadow_of(self.nodes.get(node)?).map(AsRef::as_ref)
    }

    /// The step that a node is in, by the node's name.
    pub fn step(&self, node: &str) -> Option<Step> {
        self.shadow(node)?.step()
    }

    /// A condition of a node's shadow, by the node's name.
    pub fn condition(&self, node: &str, type_: &str) -> Option<&Condition> {
        find_condition(&self.shadow(node)?.status.conditions, type_)
    }

    /// The record of a node's attempts, by the node's name.
    pub fn record(&self, node: &str) -> Record {
        self.shadow(node).and_then(|shadow| shadow.status.controller.record.clone()).unwrap_or_default()
    }

    /// The reason of the end of a node's last attempt.
    pub fn last_reason(&self, node: &str) -> Option<String> {
        self.record(node).last.map(|last| last.reason)
    }

    /// Returns true if a node, by its name, has no attempt under way and nothing of the operator on it.
    pub fn is_released(&self, node: &str) -> bool {
        let claimed = self.nodes.get(node).is_none_or(|node| node.claimed());
        !claimed && self.shadow(node).is_some_and(|shadow| shadow.step().is_none())
    }

    /// The status of the operator's resource.
    pub fn status(&self) -> BottlerocketUpdateOperatorStatus {
        self.operator.as_ref().map(|operator| operator.status.clone()).unwrap_or_default()
    }

    /// Number of nodes that wait for a reason, by the operator's status.
    pub fn waiting(&self, reason: &str) -> i64 {
        let counts = self.operator.iter().flat_map(|operator| &operator.status.waiting);
        counts.filter(|count| count.reason == reason).map(|count| count.nodes).sum()
    }

    /// A condition of the operator's resource.
    pub fn operator_condition(&self, type_: &str) -> Option<&Condition> {
        find_condition(&self.operator.as_ref()?.status.conditions, type_)
    }

    /// Nodes that are out of service because of the operator, by uid, with their names, according to slots, progress or
    /// claim. A node with a user's hold of which the operator owns only the cordon is the user's.
    pub fn out_of_service(&self) -> BTreeMap<String, String> {
        self.touched(|node, busy| busy || (node.claimed() && !node.held()))
    }

    /// The same with nodes that have a user's hold.
    pub fn out_of_service_or_held(&self) -> BTreeMap<String, String> {
        self.touched(|node, busy| busy || node.claimed())
    }

    fn touched(&self, counts: impl Fn(&Node, bool) -> bool) -> BTreeMap<String, String> {
        let slots = self.operator.iter().flat_map(|operator| &operator.status.slots);
        let slots: BTreeSet<&str> = slots.map(|slot| slot.uid.as_str()).collect();
        let mut all = BTreeMap::new();
        for node in self.nodes.values() {
            let busy =
                slots.contains(node.uid.as_str()) || self.shadow_of(node).is_some_and(|shadow| shadow.disruptive());
            if counts(node, busy) {
                all.insert(node.uid.clone(), node.name.clone());
            }
        }
        all
    }

    /// Number of nodes that may be taken out of service: none without the operator's resource.
    pub fn max_unavailable(&self) -> usize {
        let nodes = self.nodes.values().filter(|node| node.labelled()).count();
        self.operator.as_ref().map_or(0, |operator| operator.max_unavailable(nodes))
    }

    /// Pods on a node that a drain has to evict.
    pub fn evictable_on(&self, node: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values().filter(move |pod| pod.node.as_deref() == Some(node) && pod.evictable())
    }

    /// The versions that have stopped the rollout on every node.
    pub fn frozen_by(&self) -> Vec<Version> {
        let contained = self.contained();
        self.failed_too_often()
            .into_iter()
            .filter(|key| !contained.contains(key))
            .map(|(.., version)| version)
            .collect()
    }

    /// The versions that are held for nodes of their own variant and architecture alone, as the operator's status says.
    pub(super) fn contained(&self) -> BTreeSet<Key> {
        let known = self.operator.iter().flat_map(|operator| &operator.status.versions);
        let contained = known.filter(|known| known.quarantined.as_ref().is_some_and(|held| held.contained));
        contained.map(|known| (known.variant.clone(), known.arch.clone(), known.version.clone())).collect()
    }

    /// The variant, the architecture and the version of a node's update under way.
    pub(super) fn update_of(&self, node: &str) -> Option<Key> {
        let status = &self.shadow(node)?.status;
        let progress = status.controller.progress.as_ref().filter(|progress| progress.mode() == Mode::Update)?;
        Some((status.agent.variant.clone()?, status.agent.arch.clone()?, progress.version.clone()))
    }

    /// The versions whose failures, not yet resolved by a user, have spent the failure budget. A node counts once for
    /// each variant, architecture and version.
    pub(super) fn failed_too_often(&self) -> BTreeSet<Key> {
        let mut failed: BTreeMap<Key, BTreeSet<&str>> = BTreeMap::new();
        for shadow in self.shadows.values() {
            let failures = shadow.status.controller.record.iter().flat_map(|record| &record.version_failures);
            for failure in failures.filter(|failure| failure.resolved_by.is_none()) {
                let key = (failure.variant.clone(), failure.arch.clone(), failure.version.clone());
                failed.entry(key).or_default().insert(&shadow.name);
            }
        }
        let limit = self.operator.as_ref().map_or(1, |operator| operator.max_failures());
        failed.into_iter().filter(|(_, nodes)| nodes.len() >= limit).map(|(key, _)| key).collect()
    }
}
