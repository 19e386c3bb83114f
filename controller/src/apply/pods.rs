//! Evictions, and the health of the pods of an owner.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction as EvictionBody;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::core::DeserializeGuard;
use models::shadow::OwnerBefore;

use super::{Applier, ApplyError};
use crate::eviction::{Meaning, meaning};
use planner::plan::Eviction;
use planner::view::{Compared, OwnerHealth, PodFacts};

/// Page size for reading the pods of an owner.
const PAGE: u32 = 200;

/// Time until a pod is evicted again where no answer sets it.
const RETRY: Duration = Duration::from_secs(2);

/// The text by which the API server denies a deletion for want of a right.
const LACKS_RIGHT: &str = " cannot delete resource ";

#[derive(Clone, Copy, Debug, Default)]
pub struct Removal {
    /// The grace period, in seconds; `None`: the pod's own.
    pub grace: Option<i64>,
    /// True if it is deleted past its budgets.
    pub delete: bool,
    /// True if the API server is only asked whether it may be evicted.
    pub dry_run: bool,
}

/// The end of an eviction or a deletion.
#[derive(Debug)]
pub struct Evicted {
    pub node: String,
    pub namespace: String,
    pub uid: String,
    /// The number of the driver's request.
    pub request: u64,
    pub means: Meaning,
    pub message: String,
}

/// Returns what a removal means for the pod, and the text of a refusal, which is shown in the shadow. Logs what has become of the pod, or that
/// it is not known.
fn outcome(node: &str, pod: &Eviction, how: Removal, sent: kube::Result<()>) -> (Meaning, String) {
    let (namespace, pod, past_budgets) = (pod.namespace.as_str(), pod.name.as_str(), how.delete);
    match sent {
        Ok(()) if how.dry_run => tracing::debug!(node, namespace, pod, "pod may be evicted"),
        Ok(()) => tracing::info!(node, namespace, pod, past_budgets, "pod evicted"),
        Err(kube::Error::Api(status)) => {
            let (means, text) = meaning(&status);
            if means == Meaning::Leaves {
                tracing::info!(node, namespace, pod, past_budgets, "pod was gone");
            }
            let hint = "; drain.atDeadline: Force needs the rights of deploy/manifests/force.yaml";
            // A webhook may deny it with the same code.
            let hint = if past_budgets && text.contains(LACKS_RIGHT) { hint } else { "" };
            return (means, text + hint);
        }
        Err(error) => {
            tracing::warn!(
                node,
                namespace,
                pod,
                past_budgets,
                error = &error as &dyn std::error::Error,
                "eviction got no answer, trying again"
            );
            return (Meaning::Retry(RETRY), error.to_string());
        }
    }
    (Meaning::Leaves, String::new())
}

impl Applier {
    /// Evicts one pod, or deletes it past its budgets, under its uid; in a dry run, the API server is only asked.
    pub async fn remove_pod(&self, node: String, pod: Eviction, how: Removal, request: u64) -> Evicted {
        let Removal { grace, delete, dry_run } = how;
        let (means, message) = match self.leadership.check() {
            Ok(()) => {
                let sent = if delete { self.delete(&pod, grace).await } else { self.evict(&pod, grace, dry_run).await };
                outcome(&node, &pod, how, sent)
            }
            Err(lost) => (Meaning::Retry(RETRY), lost.to_string()),
        };
        Evicted { node, namespace: pod.namespace, uid: pod.uid, request, means, message }
    }

    /// Deletes a pod past its budgets, under its uid.
    async fn delete(&self, pod: &Eviction, grace: Option<i64>) -> kube::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = kube::api::DeleteParams {
            grace_period_seconds: grace.and_then(|seconds| u32::try_from(seconds).ok()),
            preconditions: Some(kube::api::Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
            ..kube::api::DeleteParams::default()
        };
        api.delete(&pod.name, &params).await.map(drop)
    }

    /// Writes the subresource directly: the client's own `evict` drops the delete options, and with them the uid.
    async fn evict(&self, pod: &Eviction, grace: Option<i64>, dry_run: bool) -> kube::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let body = EvictionBody {
            metadata: ObjectMeta {
                name: Some(pod.name.clone()),
                namespace: Some(pod.namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
                grace_period_seconds: grace,
                ..DeleteOptions::default()
            }),
        };
        let params = PostParams { dry_run, ..PostParams::default() };
        let answer: kube::Result<kube::core::Status> =
            api.create_subresource("eviction", &pod.name, &params, &body).await;
        answer.map(drop)
    }

    /// Counts the pods of an owner by their health on these nodes, page by page, and reads its ReplicaSet where none of them is healthy on any node.
    /// A failure is an unknown outcome: they are read again.
    pub(super) async fn read_owner(
        &self,
        owner: &str,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        nodes: &BTreeMap<String, Compared>,
    ) -> Result<OwnerHealth, ApplyError> {
        let api: Api<DeserializeGuard<Pod>> = Api::namespaced(self.client.clone(), namespace);
        let selector: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut params = ListParams::default().labels(&selector.join(",")).limit(PAGE);
        let now = self.leadership.now();
        let mut health = OwnerHealth { read_at: now, ..OwnerHealth::default() };
        let (mut is_any_healthy, mut controller) = (false, None);
        loop {
            let page = api.list(&params).await.map_err(ApplyError::api("pod_list"))?;
            for pod in page.items.iter().filter_map(|pod| pod.0.as_ref().ok()) {
                let pod = PodFacts::of(pod).at(now);
                if pod.controller_uid.as_deref() != Some(owner) || pod.is_done() || pod.terminating {
                    continue;
                }
                if let Some(on) = nodes.get(&pod.node) {
                    health.count(&pod, *on, now);
                }
                is_any_healthy |= !pod.is_unhealthy(now);
                controller = pod.controller;
            }
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => break,
            }
        }
        if let Some(name) = controller.as_deref().and_then(|controller| controller.strip_prefix("ReplicaSet "))
            && !is_any_healthy
        {
            let set = self.replica_set(namespace, name, owner).await?;
            health.created = set.and_then(|set| set.metadata.creation_timestamp).map(|created| created.0);
        }
        Ok(health)
    }

    /// Reads a ReplicaSet; `None` for one that is gone, or is being deleted, and for one that the controller has no right to read. Any other failure
    /// is an unknown outcome: the ReplicaSet is read again.
    async fn replica_set(&self, namespace: &str, name: &str, uid: &str) -> Result<Option<ReplicaSet>, ApplyError> {
        let api: Api<ReplicaSet> = Api::namespaced(self.client.clone(), namespace);
        let found = match api.get_opt(name).await {
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let error = status.message.as_str();
                tracing::warn!(
                    namespace,
                    name,
                    error,
                    "no right to read a ReplicaSet; neither its age is known nor whether its pods are created again"
                );
                None
            }
            found => found.map_err(ApplyError::api("replica_set"))?,
        };
        let is_same = |found: &ReplicaSet| {
            found.metadata.uid.as_deref() == Some(uid) && found.metadata.deletion_timestamp.is_none()
        };
        Ok(found.filter(is_same))
    }

    /// Reads whether a ReplicaSet has fewer pods than it wants. One that is gone wants none, and one that may not be read shows nothing.
    pub(super) async fn read_replica_set(&self, set: &OwnerBefore) -> Result<OwnerHealth, ApplyError> {
        let read_at = self.leadership.now();
        let (namespace, name) = set.name.split_once('/').unwrap_or_default();
        let lacks = self.replica_set(namespace, name, &set.uid).await?.is_some_and(|found| {
            let wanted = found.spec.replicas.unwrap_or(1);
            found.status.map_or(0, |status| status.replicas) < wanted
        });
        Ok(OwnerHealth { read_at, lacks_pods: Some(lacks), ..OwnerHealth::default() })
    }
}
