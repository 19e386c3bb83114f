//! Conversion of each kind of object into the facts for decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Node, NodeStatus, Pod, PodStatus, Service, Toleration, Volume};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference};
use models::names;
use models::operator::{BottlerocketUpdateOperator, PROVIDER_ID_LENGTH};
use models::plain::{cut, plain};
use models::shadow::{BottlerocketShadow, BottlerocketShadowStatus, is_agent_condition};
use models::time::after;

use crate::annotations::{Place, misunderstood, recorded_value};
use crate::claims;
use crate::hold::Hold;
use crate::hooks;

use super::projection::{Projection, key};
use super::revision::CAUSE_LENGTH;
use super::{BudgetFacts, DaemonSetIs, NodeFacts, OperatorFacts, PodFacts, RequestManagers, ServiceFacts, ShadowFacts};

/// Conditions of a Node that are bad when they are true, the most important first.
const PRESSURE: &[&str] = &["MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];

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

/// Returns the time since which a node has been Ready, or else has not been, as far as it is known.
fn readiness(node: &Node) -> Result<Option<Timestamp>, Option<Timestamp>> {
    let ready = node.status.iter().flat_map(|s| s.conditions.iter().flatten()).find(|c| c.type_ == "Ready");
    let since = ready.and_then(|condition| Some(condition.last_transition_time.as_ref()?.0));
    match ready {
        Some(condition) if condition.status == "True" => Ok(since),
        _ => Err(since),
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

    fn key(&self) -> String {
        self.name.clone()
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

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
        let pressure = holding.find(|c| PRESSURE.contains(&c.type_.as_str()));
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
            pressure: pressure.map(|c| c.type_.clone()),
            pressure_since: pressure.and_then(|c| Some(c.last_transition_time.as_ref()?.0)),
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

    fn key(&self) -> String {
        self.node.clone()
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

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

    fn key(&self) -> String {
        names::OPERATOR_NAME.to_owned()
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

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

    /// Returns the name alone: only the resource of that name counts.
    fn key_of(meta: &ObjectMeta) -> String {
        meta.name.clone().unwrap_or_default()
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
            grace: spec.and_then(|s| s.termination_grace_period_seconds),
            pending: phase == Some("Pending"),
            marked: annotation(meta, names::DO_NOT_DISRUPT_ANNOTATION).is_some_and(|value| value == "true")
                || annotation(meta, names::SAFE_TO_EVICT_ANNOTATION).is_some_and(|value| value == "false"),
            empty_dir: volumes().any(|volume| volume.empty_dir.is_some()),
            volume_claims: volumes().filter_map(|volume| claim(meta, volume)).collect(),
            tolerates_cordon: spec.iter().flat_map(|s| s.tolerations.iter().flatten()).any(tolerates_cordon),
            critical: spec.and_then(|s| s.priority).is_some_and(|priority| priority >= CRITICAL),
            mirror: annotation(meta, names::MIRROR_ANNOTATION).is_some(),
            daemon_set: owner.filter(|o| o.kind == "DaemonSet" && o.api_version == "apps/v1").map(|o| o.name.clone()),
            daemon_set_is: DaemonSetIs::Unknown,
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

    fn key(&self) -> String {
        key(Some(&self.namespace), &self.name)
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    fn matters(&self, old: &Self) -> bool {
        Self { resource_version: old.resource_version.clone(), ..self.clone() } != *old
    }

    fn project(pod: &Pod) -> Option<Self> {
        Some(Self::of(pod))
    }
}

impl Projection for BudgetFacts {
    type Object = PodDisruptionBudget;

    fn key(&self) -> String {
        key(Some(&self.namespace), &self.name)
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    /// Only a budget that allows more than before can unblock a drain, or a node that could never be drained.
    fn matters(&self, old: &Self) -> bool {
        self.allowed > old.allowed
            || (self.desired, self.expected, self.lets_unhealthy_go, self.lacks() > 0)
                != (old.desired, old.expected, old.lets_unhealthy_go, old.lacks() > 0)
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
            lets_unhealthy_go: spec.is_some_and(|s| s.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow")),
            selector: spec.and_then(|s| s.selector.clone()).and_then(|s| s.try_into().ok()),
        })
    }
}

impl Projection for ServiceFacts {
    type Object = Service;

    fn key(&self) -> String {
        key(Some(&self.namespace), &self.name)
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::{ClusterView, CsiNodeFacts, DaemonSetFacts};

    #[test]
    fn volume_claims_of_pod_include_named_and_ephemeral_claims() {
        let volumes = json!([
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "cache", "emptyDir": {}},
        ]);
        let meta = json!({"name": "db-0", "creationTimestamp": "2026-01-01T00:00:00Z"});
        let pod = json!({"metadata": meta, "spec": {"containers": [], "volumes": volumes}});
        let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
        assert_eq!(facts.created, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(facts.volume_claims, ["data-db-0", "db-0-scratch"]);
    }

    #[test]
    fn key_of_object_is_key_of_its_facts() {
        fn check<P: Projection>(metadata: &serde_json::Value, spec: &serde_json::Value) {
            let object: P::Object = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
            assert_eq!(P::key_of(kube::Resource::meta(&object)), P::project(&object).unwrap().key());
        }
        let namespaced = |name: &str| json!({"name": name, "namespace": names::SYSTEM_NAMESPACE});
        check::<NodeFacts>(&json!({"name": "a"}), &json!({}));
        check::<PodFacts>(&namespaced("a"), &json!({"containers": []}));
        check::<BudgetFacts>(&namespaced("a"), &json!({}));
        check::<ServiceFacts>(&namespaced("a"), &json!({"selector": {"app": "web"}}));
        check::<CsiNodeFacts>(&json!({"name": "a"}), &json!({"drivers": []}));
        check::<DaemonSetFacts>(&namespaced("a"), &json!({"selector": {}, "template": {}}));
        check::<ShadowFacts>(&namespaced(&names::shadow_name("a")), &json!({"state": "Idle", "attempt": 0}));
        check::<OperatorFacts>(&namespaced(names::OPERATOR_NAME), &json!({}));
    }

    #[test]
    fn numbers_of_pdb_are_those_of_its_spec_or_nothing_is_counted() {
        let facts = |generation: i64, observed: i64, reason: &str| {
            let condition = json!({
                "type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "no scale",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": observed,
            });
            let budget = json!({
                "metadata": {"name": "web", "namespace": "shop", "generation": generation},
                "status": {
                    "observedGeneration": observed, "currentHealthy": 2, "desiredHealthy": 3, "expectedPods": 3,
                    "disruptionsAllowed": 0, "conditions": [condition],
                },
            });
            let facts = BudgetFacts::project(&serde_json::from_value(budget).unwrap()).unwrap();
            (facts.lacks(), facts.sync_error)
        };
        let error = Some("no scale".to_owned());
        for (sentence, generation, observed, reason, expected) in [
            ("a pod is missing", 2, 2, "InsufficientPods", (1, None)),
            ("the numbers of an earlier spec", 3, 2, "InsufficientPods", (0, None)),
            ("it was never counted", 1, 0, "SyncFailed", (0, error.clone())),
            ("it cannot be counted any more", 2, 2, "SyncFailed", (1, error)),
        ] {
            assert_eq!(facts(generation, observed, reason), expected, "{sentence}");
        }
    }

    #[test]
    fn approved_evictions_of_pdb_are_read() {
        let budget = json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "status": {"disruptedPods": {"web-1": "2026-01-01T00:00:00Z"}, "currentHealthy": 2, "desiredHealthy": 2,
                "expectedPods": 3, "disruptionsAllowed": 0},
        });
        let facts = BudgetFacts::project(&serde_json::from_value(budget).unwrap()).unwrap();
        let approved: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(facts.approved, [("web-1".to_owned(), approved)].into());
        let found = |seconds, leaving| facts.unfinished_eviction(|_| leaving, after(approved, seconds));
        let second = std::time::Duration::from_secs;
        let text = "the eviction of shop/web-1 was approved at 2026-01-01T00:00:00Z and has not deleted it: the \
                    PodDisruptionBudget counts it as gone until 2026-01-01T00:02:00Z";
        assert_eq!(found(second(5), false).unwrap().to_string(), text);
        assert_eq!(found(second(4), false), None, "it may go through");
        assert_eq!(found(second(5), true), None, "it has");
        assert!(found(second(119), false).is_some() && found(second(120), false).is_none());
    }

    #[test]
    fn pod_that_autoscalers_are_not_to_move_is_marked() {
        for (annotation, value, expected) in [
            ("karpenter.sh/do-not-disrupt", "true", true),
            ("karpenter.sh/do-not-disrupt", "false", false),
            ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false", true),
            ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", false),
            ("example.com/other", "true", false),
        ] {
            let pod = json!({"metadata": {"annotations": {annotation: value}}, "spec": {"containers": []}});
            let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
            assert_eq!(facts.marked, expected, "{annotation}: {value}");
        }
    }

    #[test]
    fn toleration_of_cordon_is_recognized() {
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}), true),
            (json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}), true),
            (json!({"key": "node.kubernetes.io/unschedulable", "value": "no"}), false),
            (json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists"}), false),
        ] {
            let pod = json!({"spec": {"containers": [], "tolerations": [toleration]}});
            let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
            assert_eq!(facts.tolerates_cordon, expected, "{toleration}");
        }
    }

    #[test]
    fn revision_of_shadow_is_that_of_its_label() {
        let shadow = json!({
            "metadata": {"name": names::shadow_name("a"), "labels": {names::REVISION_LABEL: "default-1"}},
            "spec": {"state": "Idle", "attempt": 0},
        });
        let facts = ShadowFacts::project(&serde_json::from_value(shadow).unwrap()).unwrap();
        assert_eq!(facts.revision.as_deref(), Some("default-1"));
    }

    #[test]
    fn volumes_of_a_node_matter_while_the_operator_claims_it() {
        let node = || NodeFacts { resource_version: "5".into(), volumes: 1, ..NodeFacts::default() };
        let claimed = || NodeFacts { claims: claims::ClaimFields::CORDON, ..node() };
        for (sentence, old, new, expected) in [
            ("a heartbeat", claimed(), NodeFacts { resource_version: "6".into(), ..claimed() }, false),
            ("a volume is attached", node(), NodeFacts { volumes: 2, ..node() }, false),
            ("a volume is detached in a drain", claimed(), NodeFacts { volumes: 0, ..claimed() }, true),
            ("the node is cordoned meanwhile", node(), NodeFacts { unschedulable: true, volumes: 2, ..node() }, true),
        ] {
            assert_eq!(new.matters(&old), expected, "{sentence}");
        }
    }

    #[test]
    fn node_is_ready_by_status_of_its_condition() {
        for (status, ready) in [("True", true), ("False", false), ("Unknown", false)] {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": status}]},
            }))
            .unwrap();
            assert_eq!(NodeFacts::project(&node).map(|facts| facts.ready), Some(ready), "{status}");
        }
    }

    #[test]
    fn node_shows_since_when_it_is_in_or_out_of_service() {
        let (created, minute, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z");
        let facts = |ready: serde_json::Value, spec: serde_json::Value, managed: serde_json::Value| {
            let node = serde_json::from_value::<Node>(json!({
                "metadata": {"name": "a", "creationTimestamp": created, "managedFields": managed},
                "spec": spec, "status": {"conditions": ready},
            }));
            NodeFacts::project(&node.unwrap()).unwrap()
        };
        let ready =
            |status: &str, since: &str| json!([{"type": "Ready", "status": status, "lastTransitionTime": since}]);
        let at = |time: &str| Some(time.parse::<Timestamp>().unwrap());
        for (sentence, conditions, ready_since, not_ready_since, joining) in [
            ("Ready", ready("True", later), at(later), None, false),
            ("not Ready any more", ready("False", later), None, at(later), false),
            ("its kubelet is silent", ready("Unknown", later), None, at(later), false),
            ("it was never Ready", ready("False", minute), None, at(minute), true),
            ("its kubelet has not reported yet", json!([]), None, None, true),
        ] {
            let facts = facts(conditions, json!({}), json!([]));
            assert_eq!((facts.not_ready_since, facts.joining), (not_ready_since, joining), "{sentence}");
            assert_eq!((facts.ready, facts.ready_since), (sentence == "Ready", ready_since), "{sentence}");
            assert_eq!(facts.created, at(created), "{sentence}");
        }
        let taint = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": later}]);
        let managed = json!([{
            "manager": "kubectl", "operation": "Update", "time": minute, "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
        }]);
        for (sentence, spec, managed, since) in [
            ("not cordoned", json!({}), json!([]), None),
            (
                "the taint of the control plane",
                json!({"unschedulable": true, "taints": taint}),
                managed.clone(),
                at(later),
            ),
            ("no taint yet: the write of the cordon", json!({"unschedulable": true}), managed, at(minute)),
        ] {
            assert_eq!(facts(ready("True", created), spec, managed).cordoned_since, since, "{sentence}");
        }
        let annotation = json!({"f:metadata": {"f:annotations": {(format!("f:{}", names::HOLD_ANNOTATION)): {}}}});
        for (sentence, fields, since) in [
            ("the write of the hold", annotation, at(later)),
            ("another write", json!({"f:metadata": {"f:annotations": {"f:other": {}}}}), None),
        ] {
            let managed =
                json!([{"manager": "kubectl-brupop", "operation": "Update", "time": later, "fieldsV1": fields}]);
            assert_eq!(facts(ready("True", created), json!({}), managed).held_since, since, "{sentence}");
        }
        for (taint, removed) in [
            ("ToBeDeletedByClusterAutoscaler", true),
            ("karpenter.sh/disrupted", true),
            ("DeletionCandidateOfClusterAutoscaler", false),
        ] {
            let spec = json!({"taints": [{"key": taint, "effect": "NoSchedule"}]});
            let found = facts(ready("True", created), spec, json!([])).removed_by;
            assert_eq!(found, removed.then(|| taint.to_owned()), "a mere candidate may stay for ever: {taint}");
        }
    }

    #[test]
    fn node_shows_its_devices_and_the_taints_that_kubernetes_does_not_remove_by_itself() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"taints": [
                {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
                {"key": "ebs.csi.aws.com/agent-not-ready", "effect": "NoExecute"},
                {"key": "DeletionCandidateOfClusterAutoscaler", "effect": "PreferNoSchedule"},
                {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
            ]},
            "status": {"allocatable": {
                "nvidia.com/gpu": "8", "example.com/fpga": "0", "cpu": "7910m", "memory": "31Gi", "hugepages-2Mi": "64Mi",
                "ephemeral-storage": "95551679124", "pods": "110", "kubernetes.io/batch-cpu": "4k", "attachable-volumes-x": "9",
            }},
        }))
        .unwrap();
        let facts = NodeFacts::project(&node).unwrap();
        assert_eq!(facts.taints, ["dedicated:NoSchedule", "ebs.csi.aws.com/agent-not-ready:NoExecute"]);
        let resources: Vec<_> = facts.allocatable.keys().map(String::as_str).collect();
        assert_eq!(resources, ["cpu", "ephemeral-storage", "hugepages-2Mi", "memory", "nvidia.com/gpu"]);
        assert_eq!(facts.allocatable["nvidia.com/gpu"], "8");
    }

    #[test]
    fn node_version_is_parsed_from_os_image() {
        let node = |image: &str| NodeFacts { os_image: image.into(), ..NodeFacts::default() };
        assert_eq!(node("Bottlerocket OS 1.20.5 (aws-k8s-1.37)").os_version(), Some(semver::Version::new(1, 20, 5)));
        assert_eq!(node("Debian GNU/Linux 12 (bookworm)").os_version(), None);
    }

    #[test]
    fn node_is_of_the_kind_that_its_node_names_whatever_its_agent_reports() {
        let (own, other) = (("aws-k8s-1.37", "x86_64"), ("metal-k8s-1.37", "aarch64"));
        let (long, image) = ("v".repeat(100), "Bottlerocket OS 1.20.5 (aws-k8s-1.37)");
        let long_image = format!("Bottlerocket OS 1.20.5 ({long})");
        for (sentence, image, arch, reported, expected) in [
            ("its agent reports the same", image, Some("amd64"), Some(own), Some(own)),
            ("its agent reports another kind", image, Some("amd64"), Some(other), Some(own)),
            ("its Node names the variant alone", image, None, Some(other), Some((own.0, other.1))),
            ("its Node names none", "", None, Some(other), Some(other)),
            ("its agent has not reported", image, Some("amd64"), None, None),
            (
                "its Node names more than a record has room for",
                long_image.as_str(),
                None,
                Some(own),
                Some((&long[..64], own.1)),
            ),
        ] {
            let labels = arch.map(|arch| ("kubernetes.io/arch".to_owned(), arch.to_owned()));
            let labels = Arc::new(labels.into_iter().collect());
            let facts = NodeFacts { labelled: true, labels, os_image: image.to_owned(), ..NodeFacts::default() };
            let mut shadow = ShadowFacts { owner_uid: Some(String::new()), ..ShadowFacts::default() };
            let agent = &mut shadow.status.agent;
            agent.variant = reported.map(|(variant, _)| variant.to_owned());
            agent.arch = reported.map(|(_, arch)| arch.to_owned());
            let mut view = ClusterView::default();
            view.insert(facts, Some(shadow), Timestamp::UNIX_EPOCH);
            let agent = &view.nodes[""].shadow.as_ref().unwrap().status.agent;
            assert_eq!(agent.variant.as_deref().zip(agent.arch.as_deref()), expected, "{sentence}");
        }
    }

    #[test]
    fn pod_that_was_ready_and_no_longer_is_shows_since_when() {
        for (sentence, status, since, expected) in [
            ("it has never been Ready", "False", "2027-01-15T08:00:01Z", None),
            ("it was", "False", "2027-01-15T08:05:00Z", Some("2027-01-15T08:05:01Z")),
            ("its node is silent", "Unknown", "2027-01-15T08:05:00Z", Some("2027-01-15T08:05:01Z")),
            ("it is", "True", "2027-01-15T08:05:00Z", None),
        ] {
            let pod = serde_json::json!({"metadata": {}, "status": {"startTime": "2027-01-15T08:00:00Z",
                "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": since}]}});
            let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
            assert_eq!(facts.lost_ready_at.map(|at| at.to_string()).as_deref(), expected, "{sentence}");
        }
    }

    #[test]
    fn pod_facts_include_last_restart_and_reason_for_not_ready() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let ended =
            |second: i64| serde_json::json!({"terminated": {"exitCode": 1, "finishedAt": at(second).to_string()}});
        let pod = |status: serde_json::Value| {
            PodFacts::of(&serde_json::from_value(serde_json::json!({"metadata": {}, "status": status})).unwrap())
        };
        let container = |name: &str, restarts: i32, state: serde_json::Value, last: serde_json::Value| {
            serde_json::json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": restarts,
                "state": state, "lastState": last})
        };
        let running = serde_json::json!({"running": {"startedAt": at(0).to_string()}});
        let waiting = serde_json::json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let crashed = pod(serde_json::json!({
            "initContainerStatuses": [container("sidecar", 4, running.clone(), ended(5))],
            "containerStatuses": [
                container("app", 2, waiting, ended(9)),
                container("other", 0, running.clone(), ended(20)),
            ],
        }));
        let expected = (4, Some(at(10)), Some("container app: CrashLoopBackOff"));
        assert_eq!((crashed.restarts, crashed.restarted_at, crashed.trouble.as_deref()), expected);
        for (sentence, status, expected) in [
            ("no status yet", serde_json::json!({}), Some("not Ready")),
            (
                "no place",
                serde_json::json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
                Some("Unschedulable"),
            ),
            (
                "it has just ended",
                serde_json::json!({"containerStatuses": [container("app", 0, ended(1), serde_json::json!({}))]}),
                Some("container app: exit code 1"),
            ),
            (
                "its probe fails",
                serde_json::json!({
                    "containerStatuses": [container("app", 0, running, serde_json::json!({}))],
                    "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
                }),
                Some("ContainersNotReady"),
            ),
            (
                "its kubelet rejected it",
                serde_json::json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}),
                Some("UnexpectedAdmissionError"),
            ),
            ("it is Ready", serde_json::json!({"conditions": [{"type": "Ready", "status": "True"}]}), None),
        ] {
            let pod = pod(status);
            assert_eq!((pod.trouble.as_deref(), pod.restarted_at), (expected, None), "{sentence}");
        }
    }

    #[test]
    fn pod_that_its_kubelet_rejected_differs_from_one_that_failed_later() {
        for (phase, reason, expected) in [
            ("Failed", Some("UnexpectedAdmissionError"), true),
            ("Failed", Some("OutOfnvidia.com/gpu"), true),
            ("Failed", Some("NodeAffinity"), true),
            ("Failed", Some("TopologyAffinityError"), true),
            ("Failed", Some("Evicted"), false),
            ("Failed", Some("NodeShutdown"), false),
            ("Failed", Some("Terminated"), false),
            ("Failed", Some("Preempting"), false),
            ("Failed", None, false),
            ("Pending", Some("UnexpectedAdmissionError"), false),
        ] {
            let pod = json!({"metadata": {}, "status": {"phase": phase, "reason": reason}});
            let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
            assert_eq!(facts.rejected, expected, "{phase} {reason:?}");
        }
    }

    #[test]
    fn pod_runs_to_completion_unless_its_containers_are_always_restarted() {
        for (policy, expected) in
            [(None, false), (Some("Always"), false), (Some("OnFailure"), true), (Some("Never"), true)]
        {
            let pod = json!({"metadata": {}, "spec": {"containers": [], "restartPolicy": policy}});
            let facts = PodFacts::of(&serde_json::from_value(pod).unwrap());
            assert_eq!(facts.runs_to_completion, expected, "{policy:?}");
        }
    }
}
