//! The kubelet stand-in of one simulated host. To the API server it is a kubelet: it authenticates as
//! `system:node:<name>` under the Node authoriser and NodeRestriction, maintains its Node and Lease, and runs the pods
//! that the real scheduler binds to it. Pods whose images map to a local program run as processes of this machine; the
//! others are only reported.
//!
//! Deliberate differences from a real kubelet: no namespaces, so paths of mounts in arguments and environment are
//! replaced by the real ones; a pod that is `10.a.b.c` for Kubernetes gets `127.a.b.c` in its environment; restarts,
//! readiness and mounts are retried sooner. A pod that needs what no pod of the operator has (init containers, hooks, variables from
//! a Secret) is not started, and says so.

mod address;
mod container;
mod env;
mod images;
mod node;
pub mod node_status;
mod pod;
mod pods;
mod probes;
mod process;
mod status;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

pub use address::{Addresses, NodeAddress, to_process};
pub use images::Images;
pub use process::PodProcess;
pub use status::{ScriptedPod, scripted_status};

use crate::machine::{Machine, Power};
use address::IpPool;
use node::NodeKeeper;
use pods::{PauseGate, Pods};
use process::Processes;

/// Options of a kubelet stand-in.
#[derive(Clone)]
pub struct KubeletOptions {
    /// The Node's name.
    pub node_name: String,
    /// A client that is `system:node:<name>` in `system:nodes`.
    pub client: Client,
    /// URL of the API server for the kubeconfigs of pods.
    pub api_url: String,
    /// The certificate authority of the API server.
    pub api_ca_file: PathBuf,
    /// The private folder of the test cluster. Its path has to be short: Unix sockets below it may have 107 bytes.
    pub bed: PathBuf,
    /// The machine that the kubelet runs on.
    pub machine: Machine,
    /// Mapping from images to programs.
    pub images: Images,
    /// Labels that the Node is registered with.
    pub labels: BTreeMap<String, String>,
    /// The node's addresses.
    pub address: NodeAddress,
    /// The proxy through which pods without API access reach Services.
    pub https_proxy: Option<String>,
    /// Folder for the output of containers.
    pub log_dir: PathBuf,
    /// Longest time until a change of a ConfigMap or Secret reaches a pod's volume.
    pub volume_lag: Duration,
    /// Interval at which the Node's status is compared with the machine; a change of the machine triggers that too. The kubelets'
    /// default is 10 s.
    pub status_period: Duration,
    /// Interval at which the Node's Lease is renewed.
    pub lease_period: Duration,
}

impl std::fmt::Debug for KubeletOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeletOptions").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

impl KubeletOptions {
    /// Options for a kubelet on `machine` with no images, no labels and no proxy. The Node has the machine's name.
    pub fn new(
        client: Client,
        api_url: impl Into<String>,
        api_ca_file: impl Into<PathBuf>,
        bed: impl Into<PathBuf>,
        machine: Machine,
        address: NodeAddress,
    ) -> Self {
        let bed = bed.into();
        Self {
            node_name: machine.name().to_owned(),
            client,
            api_url: api_url.into(),
            api_ca_file: api_ca_file.into(),
            log_dir: bed.join("log"),
            bed,
            machine,
            images: Images::new(),
            labels: BTreeMap::new(),
            address,
            https_proxy: None,
            volume_lag: Duration::ZERO,
            status_period: Duration::from_secs(10),
            lease_period: Duration::from_secs(2),
        }
    }
}

/// Shared state of a kubelet during one boot of its machine.
pub(crate) struct Ctx {
    options: Arc<KubeletOptions>,
    client: Client,
    http: reqwest::Client,
    processes: Processes,
    ips: Mutex<IpPool>,
    gate: Arc<PauseGate>,
}

impl Ctx {
    /// Waits until the kubelet may act: not while it is paused, and never again once its machine is down, so that it
    /// does not act on what it received during a power loss.
    async fn may_act(&self) {
        self.gate.open().await;
        if self.processes.is_closed() {
            std::future::pending::<()>().await;
        }
    }

    fn pod_directory(&self, uid: &str) -> PathBuf {
        let short: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
        self.options.bed.join("k").join(self.options.address.node.to_string()).join(short)
    }

    fn log_path(&self, namespace: &str, pod: &str, container: &str) -> PathBuf {
        log_path(&self.options, namespace, pod, container)
    }

    /// Emits an Event about a pod, without waiting; a lost one is ignored.
    fn event(&self, pod: &Pod, kind: &'static str, reason: &'static str, message: &str) {
        let meta = &pod.metadata;
        let now = Timestamp::now();
        let event: Result<Event, _> = serde_json::from_value(json!({
            "metadata": {
                "name": format!("{}.{:x}", meta.name.as_deref().unwrap_or_default(), now.as_nanosecond()),
                "namespace": meta.namespace,
            },
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": meta.name, "namespace": meta.namespace, "uid": meta.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now.to_string(),
            "lastTimestamp": now.to_string(),
            "source": {"component": "kubelet", "host": self.options.node_name},
            "reportingComponent": "kubelet",
            "reportingInstance": self.options.node_name,
        }));
        let Ok(event) = event else { return };
        let api: Api<Event> = Api::namespaced(self.client.clone(), meta.namespace.as_deref().unwrap_or_default());
        tokio::spawn(async move {
            let _ = timeout(Duration::from_secs(5), api.create(&PostParams::default(), &event)).await;
        });
    }
}

fn log_path(options: &KubeletOptions, namespace: &str, pod: &str, container: &str) -> PathBuf {
    options.log_dir.join(format!("{namespace}_{pod}")).join(format!("{container}.log"))
}

/// Shared state of the kubelet and its supervisor over all boots.
struct Inner {
    options: Arc<KubeletOptions>,
    http: reqwest::Client,
    gate: Arc<PauseGate>,
    /// The parts of the current boot; `None` while the machine is down.
    boot: Mutex<Option<(Arc<Ctx>, Arc<NodeKeeper>)>>,
}

impl Inner {
    fn boot(&self) -> Option<(Arc<Ctx>, Arc<NodeKeeper>)> {
        self.boot.lock().clone()
    }
}

/// A running kubelet stand-in. It ends, and its processes with it, when stopped or dropped.
pub struct Kubelet {
    inner: Arc<Inner>,
    supervisor: JoinHandle<()>,
}

impl std::fmt::Debug for Kubelet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubelet").field("node", &self.inner.options.node_name).finish_non_exhaustive()
    }
}

impl Kubelet {
    /// Starts a kubelet stand-in. If its machine runs, the Node exists when this returns.
    pub async fn start(options: KubeletOptions) -> Result<Self> {
        let http = reqwest::Client::builder()
            .tls_danger_accept_invalid_certs(true)
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()
            .context("no HTTP client for probes")?;
        let options = Arc::new(options);
        let inner = Arc::new(Inner {
            options: options.clone(),
            http,
            gate: Arc::new(PauseGate::new()),
            boot: Mutex::new(None),
        });
        let (registered, mut is_registered) = watch::channel(false);
        let supervisor = tokio::spawn(supervise(inner.clone(), registered));
        let kubelet = Self { inner, supervisor };
        if options.machine.state().borrow().power == Power::Up {
            timeout(Duration::from_secs(30), is_registered.wait_for(|r| *r))
                .await
                .with_context(|| format!("node {} could not be registered within 30 s", options.node_name))?
                .context("the kubelet ended while it registered")?;
        }
        Ok(kubelet)
    }

    /// The node's name.
    pub fn node_name(&self) -> &str {
        &self.inner.options.node_name
    }

    /// Creates the Node again, as a restarted kubelet does.
    pub async fn register(&self) -> Result<()> {
        let (_, node) = self.inner.boot().context("the machine does not run")?;
        node.register().await
    }

    /// The running processes.
    pub fn processes(&self) -> Vec<PodProcess> {
        self.inner.boot().map(|(ctx, _)| ctx.processes.list()).unwrap_or_default()
    }

    /// Pauses the kubelet, as if it had hung: it posts nothing and acts on nothing, and the processes continue.
    pub fn pause(&self) {
        self.inner.gate.set_open(false);
    }

    /// Resumes a paused kubelet.
    pub fn resume(&self) {
        self.inner.gate.set_open(true);
        if let Some((_, node)) = self.inner.boot() {
            node.wake();
        }
    }

    /// The file with the output of a container, from all its runs.
    pub fn log_file(&self, namespace: &str, pod: &str, container: &str) -> Option<PathBuf> {
        let path = log_path(&self.inner.options, namespace, pod, container);
        path.is_file().then_some(path)
    }

    /// Ends the kubelet and all its processes at once.
    pub async fn stop(mut self) {
        self.end();
        let _ = (&mut self.supervisor).await;
    }

    fn end(&self) {
        if let Some((ctx, _)) = self.inner.boot() {
            ctx.processes.close();
        }
        self.supervisor.abort();
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.end();
    }
}

/// Follows the machine's power. Each boot has its own tasks and its own processes.
async fn supervise(inner: Arc<Inner>, registered: watch::Sender<bool>) {
    let mut machine = inner.options.machine.state();
    loop {
        let Ok(boot_id) = machine.wait_for(|s| s.power == Power::Up).await.map(|s| s.boot_id.clone()) else { return };
        let ctx = Arc::new(Ctx {
            options: inner.options.clone(),
            client: inner.options.client.clone(),
            http: inner.http.clone(),
            processes: Processes::default(),
            ips: Mutex::new(IpPool::new(inner.options.address)),
            gate: inner.gate.clone(),
        });
        let node = Arc::new(NodeKeeper::new(ctx.clone()));
        *inner.boot.lock() = Some((ctx.clone(), node.clone()));
        let over = {
            let mut machine = machine.clone();
            async move {
                let _ = machine.wait_for(|s| s.power == Power::Down || s.boot_id != boot_id).await;
            }
        };
        tokio::select! {
            () = over => {}
            () = run_boot(&inner, &ctx, &node, &registered) => {}
        }
        // Power is lost: first the processes, so that the tasks can do nothing more with them.
        ctx.processes.close();
        *inner.boot.lock() = None;
        let _ = std::fs::remove_dir_all(inner.options.bed.join("k").join(inner.options.address.node.to_string()));
    }
}

/// Runs one boot: the Node first, then the pods, then, in an orderly shutdown, their end. Returns only if the shutdown
/// was cancelled, which a kubelet treats as a new start.
async fn run_boot(inner: &Inner, ctx: &Arc<Ctx>, node: &Arc<NodeKeeper>, registered: &watch::Sender<bool>) {
    let mut machine = inner.options.machine.state();
    inner.gate.open().await;
    while let Err(error) = node.register().await {
        tracing::debug!(error = format!("{error:#}"), "the Node is registered later");
        sleep(Duration::from_millis(200)).await;
    }
    registered.send_replace(true);
    let mut tasks = JoinSet::new();
    tasks.spawn(node.clone().keep_lease());
    tasks.spawn(node.clone().keep_status());
    let (requests, receiver) = mpsc::channel(1);
    tasks.spawn(Pods::new(ctx.clone()).run(receiver));

    if machine.wait_for(|s| s.power == Power::ShuttingDown).await.is_err() {
        return std::future::pending().await;
    }
    // A kubelet that hangs delays no shutdown: systemd's limit for it passes, and the machine goes down.
    if inner.gate.is_open() {
        let (done, ended) = oneshot::channel();
        let pods_end = async {
            if requests.send(done).await.is_ok() {
                let _ = ended.await;
            }
        };
        // The end of a pod takes a container runtime longer than this: the pods that replace it usually find the node's taint.
        if timeout(Duration::from_secs(1), node.set_shutting_down()).await.is_err() {
            node.wake();
        }
        pods_end.await;
    }
    inner.options.machine.release_shutdown();
    let _ = machine.wait_for(|s| s.power != Power::ShuttingDown).await;
    if machine.borrow().power == Power::Down {
        std::future::pending::<()>().await;
    }
}
