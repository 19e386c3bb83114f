//! Evictions, and the last look before a go.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::Eviction as EvictionBody;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::core::DeserializeGuard;
use models::go::GoClaims;
use models::shadow::{BottlerocketShadowSpec, Go};

use super::{Applier, ApplyError, Learned};
use crate::claims::Part;
use crate::drain::answer::{Meaning, meaning};
use crate::drain::filter::{self, Rules};
use crate::plan::Eviction;
use crate::view::{Blocked, Compared, NodeFacts, NodeView, OwnerHealth, PodFacts, Projection};

/// How many pods of an owner are read at a time.
const PAGE: u32 = 200;

/// How long an accepted eviction may take to show in the watch before it is asked for again.
const ACCEPTED: Duration = Duration::from_secs(30);

impl Applier {
    /// Evicts pods, each under its uid. Namespaces go side by side, and one that is blocked does not hold back the others;
    /// within a namespace it is one after the other, since evictions that meet on one budget make the API server sleep
    /// for half a second between its own tries.
    pub(super) async fn evict(&self, pods: &[Eviction], grace: Option<i64>) -> Result<Learned, ApplyError> {
        let mut namespaces: BTreeMap<&str, Vec<&Eviction>> = BTreeMap::new();
        for pod in pods {
            namespaces.entry(&pod.namespace).or_default().push(pod);
        }
        let answers = join_all(namespaces.into_values().map(|pods| async move {
            let mut answers = Vec::new();
            for pod in pods {
                answers.push((pod, self.evict_one(pod, grace).await));
            }
            answers
        }))
        .await;
        let now = crate::clock::now();
        let mut learned = Learned::default();
        for (pod, answer) in answers.into_iter().flatten() {
            let (means, message) = answer?;
            let after = |span: Duration| {
                jiff::SignedDuration::try_from(span).ok().and_then(|s| now.checked_add(s).ok()).unwrap_or(now)
            };
            let blocked = |budget, span, fatal, accepted| Blocked {
                budget,
                message: message.clone(),
                since: now,
                retry_at: after(span),
                fatal,
                accepted,
                deleted: false,
            };
            let state = match means {
                Meaning::Leaves | Meaning::OtherPod => blocked(None, ACCEPTED, false, true),
                Meaning::Blocked { budget, retry } => {
                    blocked(budget.map(|b| format!("{}/{b}", pod.namespace)), retry, false, false)
                }
                Meaning::Retry(span) => blocked(None, span, false, true),
                Meaning::Fatal => blocked(None, ACCEPTED, true, false),
            };
            learned.evictions.insert(pod.uid.clone(), state);
        }
        Ok(learned)
    }

    /// Deletes pods past their budgets, each under its uid.
    pub(super) async fn delete(&self, pods: &[Eviction], grace: Option<i64>) -> Result<Learned, ApplyError> {
        self.leadership.check()?;
        let answers = join_all(pods.iter().map(|pod| async move {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
            let params = kube::api::DeleteParams {
                grace_period_seconds: grace.and_then(|seconds| u32::try_from(seconds).ok()),
                preconditions: Some(kube::api::Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
                ..kube::api::DeleteParams::default()
            };
            (pod, api.delete(&pod.name, &params).await)
        }))
        .await;
        let now = crate::clock::now();
        let mut learned = Learned::default();
        for (pod, answer) in answers {
            let (message, fatal) = match answer {
                // 409: the name belongs to another pod by now.
                Ok(_) => (String::new(), false),
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => (String::new(), false),
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    let hint = "drain.atDeadline: Force needs the rights of deploy/manifests/force.yaml";
                    (format!("{}; {hint}", status.message), true)
                }
                Err(error) => (error.to_string(), false),
            };
            let accepted = message.is_empty();
            let retry_at = jiff::SignedDuration::try_from(ACCEPTED).ok().and_then(|s| now.checked_add(s).ok());
            let retry_at = if accepted { retry_at.unwrap_or(now) } else { now + jiff::SignedDuration::from_secs(2) };
            let state = Blocked { budget: None, message, since: now, retry_at, fatal, accepted, deleted: true };
            learned.evictions.insert(pod.uid.clone(), state);
        }
        Ok(learned)
    }

    /// The client's own `evict` drops the delete options, and with them the uid: so the subresource is written directly.
    async fn evict_one(&self, pod: &Eviction, grace: Option<i64>) -> Result<(Meaning, String), ApplyError> {
        self.leadership.check()?;
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
        let answer: Result<kube::core::Status, _> =
            api.create_subresource("eviction", &pod.name, &PostParams::default(), &body).await;
        match answer {
            Ok(_) => Ok((Meaning::Leaves, String::new())),
            Err(kube::Error::Api(status)) => {
                let details = status.details.as_ref();
                let causes: Vec<_> = details
                    .map(|d| d.causes.iter().map(|c| (c.reason.clone(), c.message.clone())).collect())
                    .unwrap_or_default();
                let retry = details
                    .map(|d| u64::from(d.retry_after_seconds))
                    .filter(|seconds| *seconds > 0)
                    .map(Duration::from_secs);
                let text = causes.first().map_or_else(|| status.message.clone(), |(_, m)| m.clone());
                Ok((meaning(status.code, retry, &status.message, &causes), text))
            }
            Err(error) => {
                tracing::warn!(
                    pod = pod.name,
                    namespace = pod.namespace,
                    error = &error as &dyn std::error::Error,
                    "eviction got no answer"
                );
                Ok((Meaning::Retry(Duration::from_secs(1)), error.to_string()))
            }
        }
    }

    /// Counts the pods of an owner by how they are on these nodes, page by page. Where they cannot be read, nothing is known of them,
    /// which is evidence of nothing.
    pub(super) async fn read_owner(
        &self,
        owner: &str,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        nodes: &BTreeMap<String, Compared>,
    ) -> OwnerHealth {
        let api: Api<DeserializeGuard<Pod>> = Api::namespaced(self.client.clone(), namespace);
        let selector: Vec<_> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut params = ListParams::default().labels(&selector.join(",")).limit(PAGE);
        let mut health = OwnerHealth::default();
        let now = crate::clock::now();
        loop {
            let page = match api.list(&params).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(
                        namespace,
                        owner,
                        error = &error as &dyn std::error::Error,
                        "the pods of an owner cannot be read; its pods on updated nodes count against no version"
                    );
                    return OwnerHealth::default();
                }
            };
            for pod in page.items.iter().filter_map(|pod| pod.0.as_ref().ok()).map(PodFacts::of) {
                if pod.controller_uid.as_deref() != Some(owner) || pod.finished || pod.terminating {
                    continue;
                }
                let on = nodes.get(&pod.node).copied();
                if on.is_some() || pod.node.is_empty() {
                    health.count(&pod, on, now);
                }
            }
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params.continue_token = Some(token),
                _ => return health,
            }
        }
    }

    /// The last look, at the Node and its pods as they are and not as a cache has them; then the go, signed for this
    /// agent's nonce, at the version of the shadow that the decision was made on.
    pub(super) async fn give_go(&self, view: &NodeView, nonce: &str, rules: Rules) -> Result<(), ApplyError> {
        let shadow = view.shadow.as_ref().ok_or(ApplyError::Changed("the shadow"))?;
        let (Some(version), Some(boot_id)) = (shadow.spec.version.clone(), shadow.spec.boot_id.clone()) else {
            return Err(ApplyError::Changed("the order"));
        };
        let name = &view.facts.name;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let pods: Api<Pod> = Api::all(self.client.clone());
        let on_node = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let (node, pods) = futures::join!(nodes.get(name), pods.list(&on_node));
        let node = node.map_err(ApplyError::api("node_get"))?;
        let pods = pods.map_err(ApplyError::api("pod_list"))?;
        let live = NodeFacts::project(&node).ok_or(ApplyError::Changed("the node"))?;
        if live.uid != view.facts.uid || live.boot_id != boot_id {
            return Err(ApplyError::Changed("the node"));
        }
        // The caches of nodes and shadows are not in step: a hold may have come before the agent asked.
        if live.held || !live.labelled || live.deleting {
            return Err(ApplyError::NoGo("the node is held, leaving, or no longer under the operator".to_owned()));
        }
        if !live.unschedulable || !live.claims.has(Part::Cordon) {
            return Err(ApplyError::NoGo("the node is not cordoned any more".to_owned()));
        }
        let pods: Vec<PodFacts> = pods.items.iter().map(PodFacts::of).collect();
        let drain = shadow.status.controller.drain.as_ref();
        // Whether a pod may be evicted makes no difference here: none may be left.
        let sorted = filter::sort(&pods, rules, drain);
        if let Some(pod) = sorted.left().next() {
            return Err(ApplyError::NoGo(format!("{} is on the node", pod.title())));
        }
        let claims = GoClaims {
            node_uid: live.uid,
            boot_id,
            attempt: shadow.spec.attempt,
            version,
            nonce: nonce.to_owned(),
            host: shadow.spec.host.clone(),
        };
        let jws = self.sign(&claims)?;
        let spec = BottlerocketShadowSpec { go: Some(Go { nonce: nonce.to_owned(), jws }), ..shadow.spec.clone() };
        self.leadership.check()?;
        self.write_spec(shadow, &spec).await
    }
}
