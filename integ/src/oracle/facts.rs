//! The facts about objects that the safety properties need.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ManagedFieldsEntry, ObjectMeta};
use kube::core::{Selector, SelectorExt};
use models::names;
use models::operator::{
    BottlerocketUpdateOperator, BottlerocketUpdateOperatorSpec, BottlerocketUpdateOperatorStatus, CountOrPercent,
    DrainPolicy, NodeGroup,
};
use models::shadow::{BottlerocketShadow, BottlerocketShadowSpec, BottlerocketShadowStatus, Step};
use serde_json::Value;

/// Label that takes a node out of external load balancers.
pub use models::names::BALANCER_LABEL;

/// The name that the API server gives to the owner of fields that were there before the first apply.
pub(super) const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The kinds of objects that the oracle watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Nodes.
    Node,
    /// Pods of all namespaces.
    Pod,
    /// PodDisruptionBudgets of all namespaces.
    Budget,
    /// BottlerocketShadows.
    Shadow,
    /// BottlerocketUpdateOperators.
    Operator,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Node, Self::Pod, Self::Budget, Self::Shadow, Self::Operator];
}

/// An object at some revision.
#[derive(Clone, Debug)]
pub enum Object {
    /// A Node.
    Node(Arc<Node>),
    /// A Pod.
    Pod(Arc<Pod>),
    /// A PodDisruptionBudget.
    Budget(Arc<Budget>),
    /// A BottlerocketShadow.
    Shadow(Arc<Shadow>),
    /// A BottlerocketUpdateOperator.
    Operator(Arc<Operator>),
}

/// Identity of an object: kind, namespace (empty for a Node) and name.
pub type Key = (Kind, String, String);

impl Object {
    /// Parses an object of the kind as the API server writes it.
    ///
    /// # Errors
    /// If it is not an object of that kind.
    pub fn parse(kind: Kind, value: Value) -> anyhow::Result<Self> {
        let what = || format!("an object of kind {kind:?} cannot be read");
        Ok(match kind {
            Kind::Node => {
                let status = hash(&value["status"]);
                let node: core::Node = serde_json::from_value(value).with_context(what)?;
                Self::Node(Arc::new(Node::read(&node, status)))
            }
            Kind::Pod => Self::Pod(Arc::new(Pod::read(&serde_json::from_value(value).with_context(what)?))),
            Kind::Budget => Self::Budget(Arc::new(Budget::read(serde_json::from_value(value).with_context(what)?))),
            Kind::Shadow => {
                let mut value = value;
                if value["spec"]["attempt"].is_null() {
                    // The earlier operator's, before its migration: its words mean nothing here.
                    value["spec"] = serde_json::json!({"state": "Idle", "attempt": 0});
                }
                Self::Shadow(Arc::new(Shadow::read(serde_json::from_value(value).with_context(what)?)))
            }
            Kind::Operator => {
                Self::Operator(Arc::new(Operator::read(serde_json::from_value(value).with_context(what)?)))
            }
        })
    }

    /// Identity of the object.
    pub fn key(&self) -> Key {
        match self {
            Self::Node(node) => (Kind::Node, String::new(), node.name.clone()),
            Self::Pod(pod) => (Kind::Pod, pod.namespace.clone(), pod.name.clone()),
            Self::Budget(budget) => (Kind::Budget, budget.namespace.clone(), budget.name.clone()),
            Self::Shadow(shadow) => (Kind::Shadow, shadow.namespace.clone(), shadow.name.clone()),
            Self::Operator(operator) => (Kind::Operator, operator.namespace.clone(), operator.name.clone()),
        }
    }
}

fn hash(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.to_string().hash(&mut hasher);
    hasher.finish()
}

fn text(field: Option<&String>) -> String {
    field.cloned().unwrap_or_default()
}

/// A field of a Node that users, the operator and other controllers share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// A label.
    Label(String),
    /// An annotation.
    Annotation(String),
    /// The cordon.
    Unschedulable,
    /// The taints, which Kubernetes treats as one field.
    Taints,
}

/// The recorded facts of a Node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// The machine, as its cloud names it; empty where nothing names it.
    pub provider_id: String,
    /// The boot that its kubelet reports.
    pub boot_id: String,
    /// True if its kubelet reports it as Ready.
    pub ready: bool,
    /// True if its kubelet reports that it shuts down.
    pub shutting_down: bool,
    /// True while it is being deleted.
    pub deleting: bool,
    /// The shared fields, with their values.
    pub fields: BTreeMap<Field, String>,
    /// The field managers that own them.
    pub owners: BTreeMap<Field, BTreeSet<String>>,
    /// A digest of its status, which no component of the operator ever writes.
    pub status: u64,
}

impl Node {
    /// The request to hooks.
    pub fn hook_request(&self) -> Option<&String> {
        self.fields.get(&Field::Annotation(names::HOOKS_ANNOTATION.to_owned()))
    }

    fn read(node: &core::Node, status: u64) -> Self {
        let meta = &node.metadata;
        let mut fields = BTreeMap::new();
        for (key, value) in meta.labels.iter().flatten() {
            fields.insert(Field::Label(key.clone()), value.clone());
        }
        for (key, value) in meta.annotations.iter().flatten() {
            fields.insert(Field::Annotation(key.clone()), value.clone());
        }
        if let Some(spec) = &node.spec {
            if spec.unschedulable == Some(true) {
                fields.insert(Field::Unschedulable, "true".to_owned());
            }
            if let Some(taints) = spec.taints.as_ref().filter(|taints| !taints.is_empty()) {
                fields.insert(Field::Taints, serde_json::to_string(taints).unwrap_or_default());
            }
        }
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        let message = ready.and_then(|condition| condition.message.as_deref()).unwrap_or_default();
        Self {
            name: text(meta.name.as_ref()),
            uid: text(meta.uid.as_ref()),
            provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
            boot_id: info.map(|info| info.boot_id.clone()).unwrap_or_default(),
            ready: ready.is_some_and(|condition| condition.status == "True"),
            shutting_down: message == "node is shutting down",
            deleting: meta.deletion_timestamp.is_some(),
            owners: owners(meta.managed_fields.as_deref().unwrap_or_default()),
            fields,
            status,
        }
    }

    /// Returns true if the operator has a claim on it: owns the cordon or the balancer label.
    pub fn claimed(&self) -> bool {
        self.claims().next().is_some()
    }

    /// The fields that the operator owns and that take the node out of service.
    pub fn claims(&self) -> impl Iterator<Item = &Field> {
        let label = Field::Label(BALANCER_LABEL.to_owned());
        self.owners
            .iter()
            .filter(move |(field, _)| **field == Field::Unschedulable || **field == label)
            .filter(|(_, owners)| owners.iter().any(|owner| is_ours(owner)))
            .map(|(field, _)| field)
    }

    /// Returns true if it has a user's hold.
    pub fn held(&self) -> bool {
        self.fields.contains_key(&Field::Annotation(names::HOLD_ANNOTATION.to_owned()))
    }

    /// Returns true if it has the operator's label.
    pub fn labelled(&self) -> bool {
        self.fields.contains_key(&Field::Label(names::INTERFACE_LABEL.to_owned()))
    }

    /// Returns true if it is out of service for another reason than the operator, and so uses up the budget.
    pub fn down(&self) -> bool {
        self.labelled() && !self.ready && !self.deleting
    }

    /// Returns its zone; empty where it has none.
    pub fn zone(&self) -> &str {
        self.fields.get(&Field::Label(names::ZONE_LABEL.to_owned())).map_or("", String::as_str)
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let label = |(field, value): (&Field, &String)| match field {
            Field::Label(key) => Some((key.clone(), value.clone())),
            _ => None,
        };
        self.fields.iter().filter_map(label).collect()
    }
}

/// Returns true if a field manager is a component of the operator. The plugin is none: what it writes is its user's.
pub(super) fn is_ours(manager: &str) -> bool {
    manager.starts_with("brupop-") && !manager.starts_with(names::PLUGIN_MANAGER)
}

fn owners(entries: &[ManagedFieldsEntry]) -> BTreeMap<Field, BTreeSet<String>> {
    let mut owners: BTreeMap<Field, BTreeSet<String>> = BTreeMap::new();
    for entry in entries {
        let (Some(manager), Some(fields)) = (&entry.manager, &entry.fields_v1) else { continue };
        let mut own = |field: Field| owners.entry(field).or_default().insert(manager.clone());
        let keys = |of: &str| -> Vec<String> {
            let of = fields.0.get("f:metadata").and_then(|meta| meta.get(of)).and_then(Value::as_object);
            of.into_iter()
                .flat_map(|map| map.keys().filter_map(|key| key.strip_prefix("f:").map(str::to_owned)))
                .collect()
        };
        for key in keys("f:labels") {
            own(Field::Label(key));
        }
        for key in keys("f:annotations") {
            own(Field::Annotation(key));
        }
        if let Some(spec) = fields.0.get("f:spec") {
            if spec.get("f:unschedulable").is_some() {
                own(Field::Unschedulable);
            }
            if spec.get("f:taints").is_some() {
                own(Field::Taints);
            }
        }
    }
    owners
}

/// The recorded facts of a Pod.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Kind and uid of its controller.
    pub controller: Option<(String, String)>,
    /// True for the mirror pod of a static pod.
    pub mirror: bool,
    /// True if it tolerates the taint of a cordoned node.
    pub tolerates_cordon: bool,
    /// True once it has ended.
    pub finished: bool,
    /// True while it is pending.
    pub pending: bool,
    /// True while it is Ready.
    pub ready: bool,
    /// True while it is terminating.
    pub terminating: bool,
}

impl Pod {
    fn read(pod: &core::Pod) -> Self {
        let meta = &pod.metadata;
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        Self {
            namespace: text(meta.namespace.as_ref()),
            name: text(meta.name.as_ref()),
            uid: text(meta.uid.as_ref()),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty()),
            labels: meta.labels.clone().unwrap_or_default(),
            controller: controller(meta),
            mirror: meta.annotations.iter().flatten().any(|(key, _)| key == "kubernetes.io/config.mirror"),
            tolerates_cordon: pod
                .spec
                .iter()
                .flat_map(|spec| spec.tolerations.iter().flatten())
                .any(|toleration| tolerates(toleration, "node.kubernetes.io/unschedulable", "NoSchedule")),
            finished: matches!(phase, "Succeeded" | "Failed"),
            pending: phase == "Pending",
            ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            terminating: meta.deletion_timestamp.is_some(),
        }
    }

    /// Returns true if a drain has to evict it: bound, not finished, not a DaemonSet's and not a mirror pod.
    pub fn evictable(&self) -> bool {
        let of_a_daemon_set = self.controller.as_ref().is_some_and(|(kind, _)| kind == "DaemonSet");
        self.node.is_some() && !self.finished && !self.mirror && !of_a_daemon_set
    }

    /// Namespace and name, for messages.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Returns true if a toleration is for the taint with this key, this effect and no value.
fn tolerates(toleration: &core::Toleration, key: &str, effect: &str) -> bool {
    let is = |field: &Option<String>, value: &str| field.as_deref().unwrap_or_default() == value;
    let exists = is(&toleration.operator, "Exists");
    let same_key = is(&toleration.key, key) && (exists || is(&toleration.value, ""));
    (same_key || (exists && is(&toleration.key, ""))) && (is(&toleration.effect, "") || is(&toleration.effect, effect))
}

fn controller(meta: &ObjectMeta) -> Option<(String, String)> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    Some((owner.kind.clone(), owner.uid.clone()))
}

/// The recorded facts of a PodDisruptionBudget.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Selector of its pods; `None` matches nothing.
    pub selector: Option<LabelSelector>,
    /// Number of further evictions that it allows.
    pub disruptions_allowed: i32,
    /// Number of its healthy pods.
    pub current_healthy: i32,
    /// Number of healthy pods that it requires.
    pub desired_healthy: i32,
    /// Names of pods whose eviction has been counted and not yet seen.
    pub disrupted: BTreeSet<String>,
}

impl Budget {
    fn read(budget: PodDisruptionBudget) -> Self {
        let status = budget.status.unwrap_or_default();
        Self {
            namespace: text(budget.metadata.namespace.as_ref()),
            name: text(budget.metadata.name.as_ref()),
            selector: budget.spec.and_then(|spec| spec.selector),
            disruptions_allowed: status.disruptions_allowed.unwrap_or_default(),
            current_healthy: status.current_healthy.unwrap_or_default(),
            desired_healthy: status.desired_healthy.unwrap_or_default(),
            disrupted: status.disrupted_pods.into_iter().flatten().map(|(pod, _)| pod).collect(),
        }
    }

    /// Returns true if it selects this pod. A selector that cannot be parsed matches nothing, as with the API server.
    pub fn covers(&self, pod: &Pod) -> bool {
        let selector = self.selector.clone().and_then(|selector| Selector::try_from(selector).ok());
        self.namespace == pod.namespace && selector.is_some_and(|selector| selector.matches(&pod.labels))
    }
}

/// The recorded facts of a BottlerocketShadow.
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Name and uid of the Node that owns it.
    pub owner: Option<(String, String)>,
    /// The desired state.
    pub spec: BottlerocketShadowSpec,
    /// Agent status and controller status.
    pub status: BottlerocketShadowStatus,
}

impl Shadow {
    fn read(shadow: BottlerocketShadow) -> Self {
        let owners = shadow.metadata.owner_references.into_iter().flatten();
        Self {
            namespace: text(shadow.metadata.namespace.as_ref()),
            name: text(shadow.metadata.name.as_ref()),
            uid: text(shadow.metadata.uid.as_ref()),
            owner: owners.into_iter().find(|owner| owner.kind == "Node").map(|owner| (owner.name, owner.uid)),
            spec: shadow.spec,
            status: shadow.status.unwrap_or_default(),
        }
    }

    /// The name of its node.
    pub fn node(&self) -> &str {
        match &self.owner {
            Some((node, _)) => node,
            None => names::node_of_shadow(&self.name),
        }
    }

    /// The step of its node.
    pub fn step(&self) -> Option<Step> {
        self.status.controller.progress.as_ref().map(|progress| progress.step)
    }

    /// Returns true if its node is out of service according to its progress.
    pub fn disruptive(&self) -> bool {
        self.status.controller.progress.as_ref().is_some_and(|progress| {
            let in_service = progress.mode().is_verification();
            progress.disruptive
                || !in_service
                    && matches!(
                        progress.step,
                        Step::BeforeDrain
                            | Step::LeavingLoadBalancer
                            | Step::Draining
                            | Step::Rebooting
                            | Step::Returning
                            | Step::Verifying
                            | Step::AfterUpdate
                    )
        })
    }

    /// The nonce of the current permit.
    pub fn permit_nonce(&self) -> Option<&str> {
        self.spec.permit.as_ref().map(|permit| permit.nonce.as_str())
    }
}

/// The recorded facts of a BottlerocketUpdateOperator.
#[derive(Clone, Debug, Default)]
pub struct Operator {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The policy.
    pub spec: BottlerocketUpdateOperatorSpec,
    /// A user's approval of canary steps; empty without one.
    pub approve_step: String,
    /// A user's request to go on without the nodes that failed; empty without one.
    pub continue_others: String,
    /// Status of the operator.
    pub status: BottlerocketUpdateOperatorStatus,
}

impl Operator {
    fn read(operator: BottlerocketUpdateOperator) -> Self {
        let annotation = |name: &str| text(operator.metadata.annotations.as_ref().and_then(|all| all.get(name)));
        Self {
            namespace: text(operator.metadata.namespace.as_ref()),
            name: text(operator.metadata.name.as_ref()),
            approve_step: annotation(names::APPROVE_STEP_ANNOTATION),
            continue_others: annotation(names::CONTINUE_OTHERS_ANNOTATION),
            spec: operator.spec,
            status: operator.status.unwrap_or_default(),
        }
    }

    /// Number of `nodes` that may be out of service.
    pub fn max_unavailable(&self, nodes: usize) -> usize {
        self.spec.max_unavailable.as_ref().unwrap_or(&CountOrPercent::Count(1)).of(nodes)
    }

    /// The drain policy of a node: that of its group, or else the common one.
    pub fn drain_of(&self, node: &Node) -> Option<&DrainPolicy> {
        self.group_of(node).and_then(|group| group.drain.as_ref()).or(self.spec.drain.as_ref())
    }

    /// The group of a node: the first whose selector matches its labels.
    pub fn group_of(&self, node: &Node) -> Option<&NodeGroup> {
        let labels = node.labels();
        self.spec.node_groups.iter().find(|group| group.selector.matches(&labels))
    }

    /// Returns true if only nodes of one zone may be out of service at a time.
    pub fn one_zone_at_a_time(&self) -> bool {
        self.spec.strategy.as_ref().is_some_and(|strategy| strategy.one_zone_at_a_time == Some(true))
    }

    /// Number of failures of a version that freeze the rollout.
    pub fn max_failures(&self) -> usize {
        let policy = self.spec.failure_policy.as_ref();
        policy.and_then(|policy| policy.max_failures).unwrap_or(1).max(1) as usize
    }
}

#[cfg(test)]
mod tests;
