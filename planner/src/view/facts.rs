//! Conversion of each kind of object into the facts for decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    ContainerStatus, Node, NodeCondition, NodeStatus, Pod, PodStatus, Service, Toleration, Volume,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference};
use models::names;
use models::operator::{BottlerocketUpdateOperator, PROVIDER_ID_LENGTH};
use models::plain::{cut, plain};
use models::shadow::{BottlerocketShadow, BottlerocketShadowStatus, is_agent_condition};
use models::time::after;

use crate::annotations::{Place, misunderstood, recorded_value};
use crate::hold::Hold;
use crate::{claims, hooks};

use super::projection::Projection;
use super::revision::CAUSE_LENGTH;
use super::{
    BudgetFacts, DaemonSetState, NodeFacts, OperatorFacts, PodFacts, RequestManagers, ServiceFacts, ShadowFacts,
};

/// Conditions of a Node that are bad when they are true, the most important first, each with the taint that the control plane adds then.
const PRESSURE: &[(&str, &str)] = &[
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];

/// The taints that the control plane adds to a node that is not Ready.
const NOT_READY: &[&str] = &["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Beginning of the taints that Kubernetes itself adds and removes.
const KUBERNETES_TAINTS: &str = "node.kubernetes.io/";

/// The condition of a PodDisruptionBudget, and its reason where its pods cannot be counted.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";
const SYNC_FAILED: &str = "SyncFailed";

/// The lowest priority that only the cluster's own classes have (`system-cluster-critical`).
const CRITICAL: i32 = 2_000_000_000;

/// Returns the number of volumes that are attached, or that the kubelet still uses.
fn attached_volumes(status: &NodeStatus) -> usize {
    let attached = status.volumes_attached.iter().flatten().map(|volume| volume.name.as_str());
    let in_use = status.volumes_in_use.iter().flatten().map(String::as_str);
    attached.chain(in_use).collect::<BTreeSet<_>>().len()
}

/// Returns whether a node has to have a resource again after its update: a device (an extended resource), and what pods request.
fn is_of_node(resource: &str) -> bool {
    let device = resource.contains('/') && !resource.contains("kubernetes.io/");
    device || matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with("hugepages-")
}

fn allocatable(status: &NodeStatus) -> BTreeMap<String, String> {
    let resources = status.allocatable.iter().flatten().map(|(name, quantity)| (name, &quantity.0));
    let there = resources.filter(|(name, quantity)| is_of_node(name) && *quantity != "0");
    there.map(|(name, quantity)| (name.clone(), quantity.clone())).collect()
}

/// Returns the taints that keep pods from a node, without those that Kubernetes itself adds and removes.
fn lasting_taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let lasting = taints
        .filter(|taint| taint.effect != "PreferNoSchedule" && !taint.key.starts_with(KUBERNETES_TAINTS))
        .map(|taint| format!("{}:{}", taint.key, taint.effect));
    lasting.collect()
}

/// Returns whether a toleration lets a pod onto a cordoned node, by the rules of the scheduler.
fn tolerates_cordon(toleration: &Toleration) -> bool {
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = match toleration.key.as_deref().unwrap_or_default() {
        "" => exists,
        key => {
            key == "node.kubernetes.io/unschedulable"
                && (exists || toleration.value.as_deref().unwrap_or("").is_empty())
        }
    };
    key && matches!(toleration.effect.as_deref(), None | Some("" | "NoSchedule"))
}

/// Returns the time since which a condition of a node has been bad: that of its kubelet, whose clock may be ahead, or that of a taint that the
/// control plane adds for it a moment later, by its own.
fn bad_since(node: &Node, condition: &NodeCondition, taints: &[&str]) -> Option<Timestamp> {
    let reported = condition.last_transition_time.as_ref().map(|time| time.0);
    let added = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let added = added.filter(|taint| taints.contains(&taint.key.as_str()));
    added.filter_map(|taint| Some(taint.time_added.as_ref()?.0)).chain(reported).min()
}

/// Returns the time since which a node has been Ready, or else has not been, as far as it is known.
fn readiness(node: &Node) -> Result<Option<Timestamp>, Option<Timestamp>> {
    let ready = node.status.iter().flat_map(|s| s.conditions.iter().flatten()).find(|c| c.type_ == "Ready");
    match ready {
        Some(condition) if condition.status == "True" => Ok(condition.last_transition_time.as_ref().map(|time| time.0)),
        Some(condition) => Err(bad_since(node, condition, NOT_READY)),
        None => Err(None),
    }
}

/// The time in which a kubelet that registers its node first reports that it is not Ready.
const REGISTRATION: SignedDuration = SignedDuration::from_mins(1);

fn created(node: &Node) -> Option<Timestamp> {
    node.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Returns whether a node that has not been Ready since this time was never Ready before.
fn joining(node: &Node, not_ready_since: Option<Timestamp>) -> bool {
    match (created(node), not_ready_since) {
        (Some(created), Some(since)) => since <= after(created, REGISTRATION),
        _ => true,
    }
}

/// Returns the name of a node's machine, as a slot can record it.
fn provider_id(node: &Node) -> Option<String> {
    let id = node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())?;
    Some(cut(id, PROVIDER_ID_LENGTH))
}

fn text(value: Option<&String>) -> String {
    value.cloned().unwrap_or_default()
}

fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    meta.annotations.as_ref().and_then(|a| a.get(name))
}

/// Returns the value of a one-shot request, as its acknowledgement records it.
fn request(meta: &ObjectMeta, name: &str) -> Option<String> {
    annotation(meta, name).map(|value| recorded_value(value))
}

impl Projection for NodeFacts {
    type Object = Node;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    /// A heartbeat moves the resourceVersion and nothing else. Volumes come and go all the time, and only a drain waits for them.
    fn matters(&self, old: &Self) -> bool {
        let volumes = if self.claimed() { self.volumes } else { old.volumes };
        Self { resource_version: old.resource_version.clone(), volumes, ..self.clone() } != *old
    }

    fn project(node: &Node) -> Option<Self> {
        let status = node.status.as_ref();
        let info = status.and_then(|s| s.node_info.as_ref());
        let conditions = || status.iter().flat_map(|s| s.conditions.iter().flatten());
        let mut holding = conditions().filter(|c| c.status == "True");
        let pressure = holding.find_map(|c| Some((c, PRESSURE.iter().find(|(type_, _)| *type_ == c.type_)?.1)));
        let is_over = |c: &&NodeCondition| c.status != "True" && PRESSURE.iter().any(|(type_, _)| *type_ == c.type_);
        let over = conditions().filter(is_over).filter_map(|c| Some(c.last_transition_time.as_ref()?.0));
        let label = node.metadata.labels.as_ref().and_then(|l| l.get(names::INTERFACE_LABEL));
        let unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
        let ready = readiness(node);
        let not_ready = ready.err();
        let taints = || node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        let removed_by = taints().map(|taint| &taint.key).find(|key| names::REMOVAL_TAINTS.contains(&key.as_str()));
        let cordon = taints().find(|taint| taint.key == names::UNSCHEDULABLE_TAINT);
        let cordoned_since = cordon.and_then(|taint| Some(taint.time_added.as_ref()?.0));
        Some(Self {
            name: text(node.metadata.name.as_ref()),
            uid: text(node.metadata.uid.as_ref()),
            created: created(node),
            resource_version: text(node.metadata.resource_version.as_ref()),
            labelled: label.is_some_and(|value| value == names::INTERFACE_VERSION),
            labels: Arc::new(node.metadata.labels.clone().unwrap_or_default()),
            pressure: pressure.map(|(c, _)| c.type_.clone()),
            pressure_since: pressure.and_then(|(c, taint)| bad_since(node, c, &[taint])),
            no_pressure_since: over.max().filter(|_| pressure.is_none()),
            ready: ready.is_ok(),
            ready_since: ready.ok().flatten(),
            not_ready_since: not_ready.flatten(),
            joining: not_ready.is_some_and(|since| joining(node, since)),
            cordoned_since: cordoned_since
                .or_else(|| claims::cordoned_by_others_since(&node.metadata))
                .filter(|_| unschedulable),
            removed_by: removed_by.cloned(),
            boot_id: info.map(|i| i.boot_id.clone()).unwrap_or_default(),
            provider_id: provider_id(node),
            os_image: info.map(|i| i.os_image.clone()).unwrap_or_default(),
            unschedulable,
            hold: annotation(&node.metadata, names::HOLD_ANNOTATION).and_then(|value| Hold::parse(value).ok()),
            held_since: super::managers::annotated(&node.metadata, names::HOLD_ANNOTATION),
            misunderstood: misunderstood(Place::Node, &node.metadata),
            claims: claims::owned(&node.metadata),
            claimed_since: claims::since(&node.metadata),
            set_by_others: claims::set_by_others(&node.metadata, unschedulable),
            set_otherwise: claims::set_otherwise(&node.metadata),
            unowned: claims::unowned(&node.metadata, unschedulable),
            hook_request: hooks::requested(&node.metadata),
            hook_answers: hooks::answers(&node.metadata),
            allocatable: Arc::new(status.map(allocatable).unwrap_or_default()),
            taints: lasting_taints(node),
            volumes: status.map_or(0, attached_volumes),
            deleting: node.metadata.deletion_timestamp.is_some(),
        })
    }
}

/// Returns the status, with the agent's messages for users on one line each: from here they go into records, conditions
/// and Events of the operator. Values that are only compared (boots, nonces) are not among them.
fn plain_status(shadow: &BottlerocketShadow) -> BottlerocketShadowStatus {
    let mut status = shadow.status.clone().unwrap_or_default();
    let agent = &mut status.agent;
    let texts = [
        agent.variant.as_mut(),
        agent.arch.as_mut(),
        agent.updates.as_mut().and_then(|updates| updates.refresh_failure.as_mut()),
        agent.failure.as_mut().map(|failure| &mut failure.message),
        agent.host.as_mut().and_then(|host| host.conflicting_lock.as_mut()),
    ];
    let conditions = status.conditions.iter_mut().filter(|condition| is_agent_condition(&condition.type_));
    let conditions = conditions.flat_map(|condition| [&mut condition.reason, &mut condition.message]);
    for text in texts.into_iter().flatten().chain(conditions) {
        *text = plain(text);
    }
    status
}

impl Projection for ShadowFacts {
    type Object = BottlerocketShadow;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    fn project(shadow: &BottlerocketShadow) -> Option<Self> {
        let meta = &shadow.metadata;
        Some(Self {
            node: Self::key_of(meta),
            uid: text(meta.uid.as_ref()),
            resource_version: text(meta.resource_version.as_ref()),
            generation: meta.generation.unwrap_or_default(),
            owner_uid: meta.owner_references.iter().flatten().find(|o| o.kind == "Node").map(|o| o.uid.clone()),
            spec: shadow.spec.clone(),
            status: plain_status(shadow),
            deleting: meta.deletion_timestamp.is_some(),
            retry: request(meta, names::RETRY_ANNOTATION),
            release: request(meta, names::RELEASE_ANNOTATION),
            drill: request(meta, names::DRILL_ANNOTATION),
            misunderstood: misunderstood(Place::Shadow, meta),
            revision: meta.labels.as_ref().and_then(|labels| labels.get(names::REVISION_LABEL)).cloned(),
            shared_field: super::managers::shared_field(meta),
        })
    }

    /// Returns the node that the shadow is named after.
    fn key_of(meta: &ObjectMeta) -> String {
        names::node_of_shadow(meta.name.as_deref().unwrap_or_default()).to_owned()
    }
}

impl Projection for OperatorFacts {
    type Object = BottlerocketUpdateOperator;
    const BY_NAME: bool = true;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    fn project(operator: &BottlerocketUpdateOperator) -> Option<Self> {
        let meta = &operator.metadata;
        (meta.name.as_deref() == Some(names::OPERATOR_NAME) && meta.deletion_timestamp.is_none()).then(|| Self {
            uid: text(meta.uid.as_ref()),
            resource_version: text(meta.resource_version.as_ref()),
            generation: meta.generation.unwrap_or_default(),
            spec: operator.spec.clone(),
            spec_changed: super::managers::spec_changed(meta),
            status: operator.status.clone().unwrap_or_default(),
            change_cause: annotation(meta, names::CHANGE_CAUSE_ANNOTATION).map(|cause| cut(cause, CAUSE_LENGTH)),
            resume: request(meta, names::RESUME_ANNOTATION),
            continue_others: request(meta, names::CONTINUE_OTHERS_ANNOTATION),
            approve_step: request(meta, names::APPROVE_STEP_ANNOTATION),
            rotate_certificates: request(meta, names::ROTATE_CERTIFICATES_ANNOTATION),
            misunderstood: misunderstood(Place::Operator, meta).into_iter().map(|found| found.message).collect(),
            rotate_signing_key: request(meta, names::ROTATE_SIGNING_KEY_ANNOTATION),
            migrate_storage: request(meta, names::MIGRATE_STORAGE_ANNOTATION),
            test_notices: request(meta, names::TEST_NOTICES_ANNOTATION),
            managers: RequestManagers::of(meta),
        })
    }
}

/// Returns the PersistentVolumeClaim of a pod's volume: one that it names, or one that is made for the pod.
fn claim(pod: &ObjectMeta, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
    let own = || volume.ephemeral.as_ref().map(|_| format!("{}-{}", text(pod.name.as_ref()), volume.name));
    named.or_else(own)
}

/// Returns the containers of a pod, those first that start before the others.
fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|s| s.init_container_statuses.iter().flatten().chain(s.container_statuses.iter().flatten()))
}

/// Returns the time at which a container last ended before it was restarted. Kubelets write whole seconds: it ended
/// before the next one.
fn restarted_at(container: &ContainerStatus) -> Option<Timestamp> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0;
    (container.restart_count > 0).then(|| after(ended, SignedDuration::from_secs(1)))
}

fn is_true(pod: &Pod, type_: &str) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == type_ && c.status == "True")
}

/// Returns the time at which a pod that was Ready ceased to be. The condition of one that never was has been False since its kubelet first
/// saw it.
fn lost_ready_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready" && c.status != "True")?;
    let since = ready.last_transition_time.as_ref()?.0;
    let second = SignedDuration::from_secs(1);
    (since > after(after(status.start_time.as_ref()?.0, second), second)).then(|| after(since, second))
}

/// Returns whether the kubelet has rejected a pod: it has failed for a reason that is none of those for which kubelets end a pod that runs,
/// or take none at all. Kubernetes adds reasons of this kind from release to release.
fn is_rejected(status: &PodStatus) -> bool {
    const OTHERS: [&str; 7] =
        ["DeadlineExceeded", "Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"];
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty() && !OTHERS.contains(reason));
    status.phase.as_deref() == Some("Failed") && reason.is_some()
}

/// Returns the reason why a pod is not Ready: that of its failure, the state of the first container that is neither ready nor done, else the
/// condition that is not true.
fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if is_true(pod, "Ready") {
        return None;
    }
    let state = |container: &ContainerStatus| {
        let state = container.state.as_ref()?;
        let reason = match (&state.waiting, &state.terminated) {
            (Some(waiting), _) => waiting.reason.clone()?,
            (None, Some(ended)) if ended.exit_code != 0 => format!("exit code {}", ended.exit_code),
            _ => return None,
        };
        Some(format!("container {}: {reason}", container.name))
    };
    let not_true = || {
        let condition = status.conditions.iter().flatten().find(|c| c.status != "True" && c.reason.is_some())?;
        condition.reason.clone()
    };
    let failed = || status.reason.clone().filter(|_| status.phase.as_deref() == Some("Failed"));
    let text = failed().or_else(|| containers(pod).find_map(state)).or_else(not_true);
    let text = text.unwrap_or_else(|| "not Ready".to_owned());
    Some(cut(&plain(&text), 128))
}

/// Returns whether an owner of a pod usually has an owner itself: a ReplicaSet of a Deployment, a Job of a CronJob.
fn may_have_owner(owner: &OwnerReference) -> bool {
    matches!((owner.api_version.as_str(), owner.kind.as_str()), ("apps/v1", "ReplicaSet") | ("batch/v1", "Job"))
}

impl PodFacts {
    /// Makes the facts of a pod.
    pub fn of(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let owner = meta.owner_references.iter().flatten().find(|o| o.controller == Some(true));
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        let spec = pod.spec.as_ref();
        let volumes = || spec.iter().flat_map(|s| s.volumes.iter().flatten());
        Self {
            namespace: text(meta.namespace.as_ref()),
            name: text(meta.name.as_ref()),
            uid: text(meta.uid.as_ref()),
            resource_version: text(meta.resource_version.as_ref()),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            node: spec.and_then(|s| s.node_name.clone()).unwrap_or_default(),
            ip: pod.status.as_ref().and_then(|s| s.pod_ip.clone()),
            top_owner: owner.filter(|owner| !may_have_owner(owner)).map(|o| format!("{}/{}", o.kind, o.name)),
            owner_pending: false,
            finished: matches!(phase, Some("Succeeded" | "Failed")),
            failed: phase == Some("Failed"),
            rejected: pod.status.as_ref().is_some_and(is_rejected),
            runs_to_completion: spec.and_then(|s| s.restart_policy.as_deref()).is_some_and(|policy| policy != "Always"),
            terminating: meta.deletion_timestamp.is_some(),
            ends_by: meta.deletion_timestamp.as_ref().map(|time| time.0),
            grace: meta.deletion_grace_period_seconds.or_else(|| spec.and_then(|s| s.termination_grace_period_seconds)),
            pending: phase == Some("Pending"),
            marked: annotation(meta, names::DO_NOT_DISRUPT_ANNOTATION).is_some_and(|value| value == "true")
                || annotation(meta, names::SAFE_TO_EVICT_ANNOTATION).is_some_and(|value| value == "false"),
            empty_dir: volumes().any(|volume| volume.empty_dir.is_some()),
            volume_claims: volumes().filter_map(|volume| claim(meta, volume)).collect(),
            tolerates_cordon: spec.iter().flat_map(|s| s.tolerations.iter().flatten()).any(tolerates_cordon),
            critical: spec.and_then(|s| s.priority).is_some_and(|priority| priority >= CRITICAL),
            mirror: annotation(meta, names::MIRROR_ANNOTATION).is_some(),
            daemon_set: owner.filter(|o| o.kind == "DaemonSet" && o.api_version == "apps/v1").map(|o| o.name.clone()),
            daemon_set_state: DaemonSetState::Unknown,
            controller: owner.map(|o| format!("{} {}", o.kind, o.name)),
            controller_uid: owner.map(|o| o.uid.clone()),
            labels: Arc::new(meta.labels.clone().unwrap_or_default()),
            ready: is_true(pod, "Ready"),
            started: pod.status.as_ref().and_then(|status| Some(status.start_time.as_ref()?.0)),
            startup: super::pods::startup(pod),
            lost_ready_at: lost_ready_at(pod),
            restarts: containers(pod).map(|container| container.restart_count).max().unwrap_or_default(),
            restarted_at: containers(pod).filter_map(restarted_at).max(),
            trouble: trouble(pod),
        }
    }
}

impl Projection for PodFacts {
    type Object = Pod;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    fn matters(&self, old: &Self) -> bool {
        Self { resource_version: old.resource_version.clone(), ..self.clone() } != *old
    }

    fn project(pod: &Pod) -> Option<Self> {
        Some(Self::of(pod))
    }
}

impl Projection for BudgetFacts {
    type Object = PodDisruptionBudget;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    /// Only a budget that allows more than before can unblock a drain, or a node that could never be drained.
    fn matters(&self, old: &Self) -> bool {
        self.allowed > old.allowed
            || (self.desired, self.expected, self.stale, self.allows_unhealthy, self.lacks() > 0)
                != (old.desired, old.expected, old.stale, old.allows_unhealthy, old.lacks() > 0)
            || (&self.sync_error, &self.revision) != (&old.sync_error, &old.revision)
            || self.selector != old.selector
    }

    fn project(budget: &PodDisruptionBudget) -> Option<Self> {
        let (spec, status) = (budget.spec.as_ref(), budget.status.as_ref());
        // Its generation says nothing: the disruption controller writes that of its last success. A later success replaces it.
        let failed = |condition: &&Condition| {
            (&*condition.type_, &*condition.status, &*condition.reason) == (DISRUPTION_ALLOWED, "False", SYNC_FAILED)
        };
        let failed = status.and_then(|status| status.conditions.as_ref()?.iter().find(failed));
        Some(Self {
            namespace: text(budget.metadata.namespace.as_ref()),
            name: text(budget.metadata.name.as_ref()),
            resource_version: text(budget.metadata.resource_version.as_ref()),
            revision: format!(
                "{}/{}",
                text(budget.metadata.uid.as_ref()),
                budget.metadata.generation.unwrap_or_default()
            ),
            allowed: status.and_then(|s| s.disruptions_allowed).unwrap_or(0),
            healthy: status.and_then(|s| s.current_healthy).unwrap_or(0),
            desired: status.and_then(|s| s.desired_healthy).unwrap_or(0),
            expected: status.and_then(|s| s.expected_pods).unwrap_or(0),
            stale: status.and_then(|s| s.observed_generation) < budget.metadata.generation,
            sync_error: failed.map(|condition| condition.message.clone()),
            approved: status
                .and_then(|status| status.disrupted_pods.as_ref())
                .into_iter()
                .flatten()
                .map(|(name, at)| (name.clone(), at.0))
                .collect(),
            allows_unhealthy: spec.is_some_and(|s| s.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow")),
            selector: spec.and_then(|s| s.selector.clone()).and_then(|s| s.try_into().ok()),
        })
    }
}

impl Projection for ServiceFacts {
    type Object = Service;
    const VERSION: fn(&Self) -> &str = |facts| &facts.resource_version;

    /// No decision waits for one.
    fn matters(&self, _: &Self) -> bool {
        false
    }

    /// One without a selector has endpoints that its users maintain: no pod is known to be one of them.
    fn project(service: &Service) -> Option<Self> {
        let selector = service.spec.as_ref()?.selector.clone().filter(|selector| !selector.is_empty())?;
        Some(Self {
            namespace: text(service.metadata.namespace.as_ref()),
            name: text(service.metadata.name.as_ref()),
            resource_version: text(service.metadata.resource_version.as_ref()),
            selector,
        })
    }
}

#[cfg(test)]
mod tests;
