//! The course that a node is taken through: pods start, get late and changed volumes, are evicted and deleted, and the node
//! reboots gracefully and loses its power.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::states;
use super::watch::{Collected, Watch};
use crate::bed::workload;

/// The image whose containers run a shell: on a real node the host's, which is mounted.
pub const SHELL: &str = "example.invalid/app:1";
/// The image whose containers only wait; the stand-in runs no process for it.
pub const PAUSE: &str = "guest.invalid/pause:3.10.2";

const NAMESPACE: &str = "course";
/// The pods that stay.
const APPS: [&str; 5] = ["web", "daemon", "probed", "late", "waiting"];
/// Time for the last state of a node to arrive whose power is cut.
const IN_FLIGHT: Duration = Duration::from_secs(1);

/// The machine of the node.
#[expect(async_fn_in_trait, reason = "the course is awaited where it is started, and not sent between threads")]
pub trait Machine {
    /// Restarts the machine gracefully; returns once that is requested.
    async fn reboot(&mut self) -> anyhow::Result<()>;
    /// Cuts the power.
    async fn cut_power(&mut self) -> anyhow::Result<()>;
    /// Restores the power.
    async fn restore_power(&mut self) -> anyhow::Result<()>;
    /// The content of a pod's file `t` in its volume `token`.
    async fn token(&self, pod_uid: &str) -> anyhow::Result<String>;
}

/// The course of one node.
pub struct Course<'a, M> {
    /// An administrator's client.
    pub client: Client,
    /// The node.
    pub node: &'a str,
    /// The machine of the node.
    pub machine: &'a mut M,
    /// Longest wait in a step.
    pub limit: Duration,
    /// Time without changes after which a step is over.
    pub quiet: Duration,
}

impl<M: Machine> Course<'_, M> {
    /// Starts to collect what the course shows.
    pub fn watch(&self) -> Watch {
        Watch::start(&self.client, self.node, NAMESPACE)
    }

    /// Takes the node through the course.
    ///
    /// # Errors
    /// A step does not come to its end.
    pub async fn run(&mut self, watch: &Watch) -> anyhow::Result<()> {
        self.until(watch, "the node takes pods", node_is_ready).await?;
        self.start(watch).await?;
        self.change_volumes(watch).await?;
        self.end_pods(watch).await?;

        let boot = watch.lock().boot();
        let before = containers(&watch.lock());
        self.begin(watch, "reboot");
        self.machine.reboot().await?;
        self.until(watch, "the node is back", |all| all.boot() != boot && node_is_ready(all)).await?;
        self.run_again(watch, &before).await?;

        let boot = watch.lock().boot();
        let before = containers(&watch.lock());
        self.machine.cut_power().await?;
        sleep(IN_FLIGHT).await;
        self.begin(watch, "power off");
        self.until(watch, "the node is Unknown, and no pod is Ready", |all| {
            node_condition(all).as_deref() == Some("Unknown") && all.pods.values().all(|pod| !is_ready(pod))
        })
        .await?;
        watch.end(self.quiet).await;
        self.begin(watch, "power on");
        self.machine.restore_power().await?;
        self.until(watch, "the node is back", |all| all.boot() != boot && node_is_ready(all)).await?;
        self.run_again(watch, &before).await?;
        Ok(())
    }

    /// Each pod starts.
    async fn start(&self, watch: &Watch) -> anyhow::Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        workload::apply(&self.client, vec![namespace, self.config_map("config", "good")]).await?;
        let accounts: Api<ServiceAccount> = self.api();
        let created = async {
            while accounts.get_opt("default").await?.is_none() {
                sleep(Duration::from_millis(50)).await;
            }
            anyhow::Ok(())
        };
        timeout(self.limit, created).await.context("the namespace has no ServiceAccount `default`")??;
        self.begin(watch, "start");
        workload::apply(&self.client, self.pods()).await?;
        self.until(watch, "all pods are as they have to be", |all| {
            let ready = ["web", "daemon", "probed", "evicted", "deaf"];
            let runs = |app: &str| pods_of(all, app).any(|pod| text(pod, "container").as_deref() == Some("running"));
            let waits = |pod| text(pod, "container").as_deref() == Some("waiting: ContainerCreating");
            ready.iter().all(|app| pods_of(all, app).any(is_ready))
                && runs("late")
                && pods_of(all, "waiting").any(waits)
                && all.lease.is_some()
        })
        .await?;
        let (node, lease) = {
            let all = watch.lock();
            (all.node.clone().context("just seen")?, all.lease.clone().context("just seen")?)
        };
        watch.lock().add("lease", states::lease(&lease, &node));
        let pod = pods_of(&watch.lock(), "daemon").next().context("just seen")?.clone();
        let token = self.machine.token(pod.metadata.uid.as_deref().unwrap_or_default()).await?;
        watch.lock().add("token", states::token(&claims(&token)?, &node, &pod));
        watch.end(self.quiet).await;
        Ok(())
    }

    /// A ConfigMap and a Secret appear in the volumes of a running pod and of one that waits; a ConfigMap changes.
    async fn change_volumes(&self, watch: &Watch) -> anyhow::Result<()> {
        self.begin(watch, "late objects");
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late", "namespace": NAMESPACE},
            "stringData": {"word": "there"},
        });
        workload::apply(&self.client, vec![self.config_map("late", "there"), secret]).await?;
        self.until(watch, "both pods are Ready", |all| {
            ["late", "waiting"].iter().all(|app| pods_of(all, app).any(is_ready))
        })
        .await?;
        watch.end(self.quiet).await;

        for (step, word, ready) in [("probe fails", "bad", false), ("probe succeeds again", "good", true)] {
            self.begin(watch, step);
            let patch = Patch::Merge(json!({"data": {"word": word}}));
            self.api::<ConfigMap>().patch("config", &PatchParams::default(), &patch).await?;
            self.until(watch, step, |all| pods_of(all, "probed").all(|pod| is_ready(pod) == ready)).await?;
            watch.end(self.quiet).await;
        }
        Ok(())
    }

    /// A pod is evicted, and one that ignores SIGTERM is deleted.
    async fn end_pods(&self, watch: &Watch) -> anyhow::Result<()> {
        let pods: Api<Pod> = self.api();
        self.begin(watch, "eviction");
        pods.evict("evicted", &EvictParams::default()).await?;
        self.until(watch, "it is gone", |all| pods_of(all, "evicted").next().is_none()).await?;
        self.begin(watch, "deletion");
        pods.delete("deaf", &DeleteParams::default()).await?;
        self.until(watch, "it is gone", |all| pods_of(all, "deaf").next().is_none()).await
    }

    /// Waits until every pod that stays runs again, or will not.
    async fn run_again(&self, watch: &Watch, before: &BTreeSet<String>) -> anyhow::Result<()> {
        self.until(watch, "every pod runs again, or has ended for good", |all| {
            APPS.iter().all(|app| {
                let restarted = |pod: &Pod| is_ready(pod) && container(pod).is_some_and(|id| !before.contains(&id));
                let ended = |pod: &Pod| pod.metadata.owner_references.is_none() && is_finished(pod);
                pods_of(all, app).any(|pod| restarted(pod) || ended(pod))
            })
        })
        .await?;
        watch.end(self.quiet).await;
        Ok(())
    }

    fn begin(&self, watch: &Watch, step: &str) {
        eprintln!("{}: {step}", self.node);
        watch.begin(step);
    }

    async fn until(&self, watch: &Watch, what: &str, holds: impl Fn(&Collected) -> bool) -> anyhow::Result<()> {
        watch.until(what, self.limit, holds).await
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn config_map(&self, name: &str, word: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE},
            "data": {"word": word},
        })
    }

    fn pods(&self) -> Vec<Value> {
        let polite = "trap 'exit 0' TERM; sleep 100000 & wait";
        let token = json!({"serviceAccountToken": {"path": "t", "audience": "tests", "expirationSeconds": 600}});
        let token = json!({"name": "token", "projected": {"sources": [token]}});
        let config = json!({"name": "config", "configMap": {"name": "config"}});
        let late = |optional: bool| {
            json!({"name": "late", "projected": {"sources": [
                {"configMap": {"name": "late", "optional": optional, "items": [{"key": "word", "path": "config"}]}},
                {"secret": {"name": "late", "optional": optional, "items": [{"key": "word", "path": "secret"}]}},
            ]}})
        };
        let probe = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 5, "failureThreshold": 1, "timeoutSeconds": 60});
        let mut daemon = self.shell(polite, &[token]);
        daemon["priorityClassName"] = json!("system-node-critical");
        let pause = json!({
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": PAUSE}],
        });
        let mut probed = self.shell(polite, &[config]);
        probed["containers"][0]["readinessProbe"] = probe("read word <$CONFIG/word; test \"$word\" = good");
        let mut appears = self.shell(polite, &[late(true)]);
        appears["containers"][0]["readinessProbe"] = probe("test -e $LATE/config && test -e $LATE/secret");
        let mut deaf = self.shell("trap '' TERM; while :; do sleep 1; done", &[]);
        deaf["terminationGracePeriodSeconds"] = json!(2);
        vec![
            self.of_controller("Deployment", "web", &pause),
            self.of_controller("DaemonSet", "daemon", &daemon),
            self.pod("probed", &probed),
            self.pod("late", &appears),
            self.pod("waiting", &self.shell(polite, &[late(false)])),
            self.pod("evicted", &self.shell("trap 'sleep 1; exit 0' TERM; sleep 100000 & wait", &[])),
            self.pod("deaf", &deaf),
        ]
    }

    /// A pod whose container runs a script in the shell of its host; `$CONFIG` is the folder of the volume `config`.
    fn shell(&self, script: &str, volumes: &[Value]) -> Value {
        let host = [("usr", "/usr", "/usr"), ("lib", "/usr/lib", "/lib"), ("lib64", "/usr/lib64", "/lib64")];
        let name = |volume: &Value| volume["name"].as_str().unwrap_or_default().to_owned();
        let mut mounts: Vec<Value> =
            host.iter().map(|(name, _, path)| json!({"name": name, "mountPath": path, "readOnly": true})).collect();
        mounts.extend(
            volumes.iter().map(|volume| json!({"name": name(volume), "mountPath": format!("/of/{}", name(volume))})),
        );
        let mut all: Vec<Value> =
            host.iter().map(|(name, path, _)| json!({"name": name, "hostPath": {"path": path}})).collect();
        all.extend(volumes.iter().cloned());
        let env: Vec<Value> = volumes
            .iter()
            .map(|volume| json!({"name": name(volume).to_uppercase(), "value": format!("/of/{}", name(volume))}))
            .collect();
        json!({
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": false,
            "containers": [
                {"name": "c", "image": SHELL, "command": ["sh", "-c", script], "env": env, "volumeMounts": mounts},
            ],
            "volumes": all,
        })
    }

    fn pod(&self, name: &str, spec: &Value) -> Value {
        let metadata = json!({"name": name, "namespace": NAMESPACE, "labels": {"app": name}});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }

    fn of_controller(&self, kind: &str, name: &str, spec: &Value) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
            },
        })
    }
}

fn claims(token: &str) -> anyhow::Result<Value> {
    let payload = token.split('.').nth(1).context("it is no token")?;
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).context("it is no token")?;
    let claims: Value = serde_json::from_slice(&payload)?;
    ensure!(claims.is_object(), "a token without claims: {claims}");
    Ok(claims)
}

impl Collected {
    fn boot(&self) -> Option<String> {
        Some(self.node.as_ref()?.status.as_ref()?.node_info.as_ref()?.boot_id.clone())
    }
}

/// The status of the Node's condition Ready.
fn node_condition(all: &Collected) -> Option<String> {
    let conditions = all.node.as_ref()?.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status.clone())
}

fn node_is_ready(all: &Collected) -> bool {
    let taints = all.node.as_ref().and_then(|node| node.spec.as_ref()).and_then(|spec| spec.taints.as_ref());
    node_condition(all).as_deref() == Some("True") && taints.is_none_or(Vec::is_empty)
}

fn pods_of<'a>(all: &'a Collected, app: &'a str) -> impl Iterator<Item = &'a Pod> {
    all.pods.values().filter(move |pod| {
        pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).is_some_and(|label| label == app)
    })
}

fn text(pod: &Pod, field: &str) -> Option<String> {
    states::pod(pod, false).remove(field)
}

fn is_ready(pod: &Pod) -> bool {
    text(pod, "Ready").as_deref() == Some("True")
}

fn is_finished(pod: &Pod) -> bool {
    text(pod, "phase").is_some_and(|phase| phase.starts_with("Failed") || phase.starts_with("Succeeded"))
}

/// The id of a pod's container.
fn container(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.clone()
}

fn containers(all: &Collected) -> BTreeSet<String> {
    all.pods.values().filter_map(container).collect()
}
