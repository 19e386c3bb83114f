//! The Node object and its Lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Api;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::pods::Wake;
use super::{Ctx, node_status};
use crate::machine::MachineState;

/// Duration of the lease: the kubelets' default.
const LEASE_SECONDS: i32 = 40;
/// The time after a boot in which the Lease is renewed at least every [`SOON`], however many nodes a cluster has: an update waits for a
/// renewal after its soak.
const FIRST: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(2);
/// Interval, in seconds, at which an unchanged status is posted: the kubelets' default. The Lease is the heartbeat.
const HEARTBEAT: i64 = 300;
/// Timeout of one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Maintains the Node of one kubelet.
pub(crate) struct NodeKeeper {
    ctx: Arc<Ctx>,
    shutting_down: AtomicBool,
    wake: Wake,
    /// One status at a time, as in a kubelet: an earlier one would be stored after a later one.
    posting: Mutex<()>,
}

impl NodeKeeper {
    pub(crate) fn new(ctx: Arc<Ctx>) -> Self {
        Self { ctx, shutting_down: AtomicBool::new(false), wake: Wake::default(), posting: Mutex::default() }
    }

    fn api(&self) -> Api<Node> {
        Api::all(self.ctx.client.clone())
    }

    /// Triggers an update of the status.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) async fn set_shutting_down(&self) {
        self.shutting_down.store(true, Ordering::SeqCst);
        if let Err(error) = self.sync_once().await {
            tracing::debug!(error = format!("{error:#}"), "the Node's status is posted later");
            self.wake();
        }
    }

    /// Creates the Node, or updates the status of an existing one.
    pub(crate) async fn register(&self) -> Result<()> {
        let options = &self.ctx.options;
        let name = &options.node_name;
        let mut labels: BTreeMap<String, String> =
            [("kubernetes.io/hostname", name.as_str()), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into();
        labels.extend(options.labels.clone());
        let state = options.machine.state().borrow().clone();
        let mut status = self.facts(&state);
        if let Some(fields) = status.as_object_mut() {
            fields.insert("conditions".to_owned(), json!(self.conditions(&[], Timestamp::now())));
        }
        let node: Node = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": {},
            "status": status,
        }))?;
        match self.api().create(&PostParams::default(), &node).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => self.sync_once().await.map(drop),
            Err(error) => Err(error).with_context(|| format!("cannot register node {name}")),
        }
    }

    /// The facts that do not change while the machine runs, and those that change with its boot.
    fn facts(&self, state: &MachineState) -> Value {
        let options = &self.ctx.options;
        node_status::facts(&options.node_name, options.address.host_ip(), &state.boot_id, &state.os_image)
    }

    /// The conditions that a kubelet reports.
    fn conditions(&self, known: &[NodeCondition], now: Timestamp) -> Vec<Value> {
        node_status::conditions(self.shutting_down.load(Ordering::SeqCst), known, now)
    }

    /// Compares the Node's status with the actual one and posts differences; also a heartbeat at intervals. A Node that
    /// was deleted is not created again: a real kubelet does that only when it starts.
    pub(crate) async fn sync_once(&self) -> Result<()> {
        let _posting = self.posting.lock().await;
        let name = &self.ctx.options.node_name;
        let cached = GetParams::any();
        let node = timeout(REQUEST_LIMIT, self.api().get_with(name, &cached)).await?;
        let node = match node {
            Ok(node) => node,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let state = self.ctx.options.machine.state().borrow().clone();
        let now = Timestamp::now();
        let current = serde_json::to_value(&node.status)?;
        let known = node.status.and_then(|s| s.conditions).unwrap_or_default();
        let facts = self.facts(&state);
        let conditions = self.conditions(&known, now);
        let stale = known
            .iter()
            .find(|c| c.type_ == "Ready")
            .and_then(|c| c.last_heartbeat_time.as_ref())
            .is_none_or(|t| now.as_second() - t.0.as_second() >= HEARTBEAT);
        let is_reported = conditions.iter().all(|c| {
            known.iter().any(|k| {
                json!(k.type_) == c["type"] && json!(k.status) == c["status"] && json!(k.reason) == c["reason"]
            })
        });
        let same =
            ["nodeInfo", "addresses", "capacity", "allocatable"].iter().all(|f| contains(&current[f], &facts[f]));
        if is_reported && same && !stale {
            return Ok(());
        }
        let mut status = facts;
        if let Some(fields) = status.as_object_mut() {
            fields.insert("conditions".to_owned(), json!(conditions));
        }
        let patch = Patch::Strategic(json!({"status": status}));
        timeout(REQUEST_LIMIT, self.api().patch_status(name, &PatchParams::default(), &patch)).await??;
        Ok(())
    }

    /// Keeps the status up to date.
    pub(crate) async fn keep_status(self: Arc<Self>) {
        let mut ticks = interval(self.ctx.options.status_period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.wake.notified() => {}
            }
            self.ctx.may_act().await;
            if let Err(error) = self.sync_once().await {
                tracing::debug!(error = format!("{error:#}"), node = self.ctx.options.node_name, "no status posted");
                sleep(Duration::from_millis(200)).await;
                self.wake();
            }
        }
    }

    /// Renews the node's lease.
    pub(crate) async fn keep_lease(self: Arc<Self>) {
        let api: Api<Lease> = Api::namespaced(self.ctx.client.clone(), "kube-node-lease");
        let mut held: Option<Lease> = None;
        let (began, period) = (Instant::now(), self.ctx.options.lease_period);
        loop {
            self.ctx.may_act().await;
            match timeout(REQUEST_LIMIT, self.renew(&api, held.take())).await {
                Ok(Ok(lease)) => held = Some(lease),
                Ok(Err(error)) => {
                    tracing::debug!(
                        error = format!("{error:#}"),
                        node = self.ctx.options.node_name,
                        "no lease renewed"
                    );
                }
                Err(_) => {}
            }
            sleep(if began.elapsed() < FIRST { period.min(SOON) } else { period }).await;
        }
    }

    async fn renew(&self, api: &Api<Lease>, held: Option<Lease>) -> Result<Lease> {
        let name = &self.ctx.options.node_name;
        let lease = match held {
            Some(lease) => Some(lease),
            None => api.get_opt(name).await?,
        };
        let now = Some(MicroTime(Timestamp::now()));
        let Some(mut lease) = lease else {
            // A lease without its Node would outlive it, so there is none until there is a Node.
            let node = self.api().get(name).await?;
            let owner = OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: name.clone(),
                uid: node.metadata.uid.unwrap_or_default(),
                ..OwnerReference::default()
            };
            let metadata = ObjectMeta {
                name: Some(name.clone()),
                namespace: Some("kube-node-lease".to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            };
            let spec = LeaseSpec {
                holder_identity: Some(name.clone()),
                lease_duration_seconds: Some(LEASE_SECONDS),
                renew_time: now,
                ..LeaseSpec::default()
            };
            let lease = Lease { metadata, spec: Some(spec) };
            return Ok(api.create(&PostParams::default(), &lease).await?);
        };
        lease.spec.get_or_insert_default().renew_time = now;
        Ok(api.replace(name, &PostParams::default(), &lease).await?)
    }
}

/// Returns true if `whole` contains everything in `part`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| contains(whole.get(key).unwrap_or(&Value::Null), value))
        }
        (Value::Array(whole), Value::Array(part)) => part.iter().all(|p| whole.iter().any(|w| contains(w, p))),
        (whole, part) => whole == part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_fields_and_list_entries_count_as_contained() {
        let whole = json!({"a": 1, "b": [{"t": "x", "v": 1}, {"t": "y", "v": 2}]});
        assert!(contains(&whole, &json!({"b": [{"t": "y", "v": 2}]})));
        assert!(!contains(&whole, &json!({"b": [{"t": "y", "v": 3}]})));
    }
}
