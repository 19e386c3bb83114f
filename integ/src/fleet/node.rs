//! One node of a fleet: its kubelet follows the machine's power and the pod of the agent.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, ServiceAccount};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use models::names::{AGENT, AGENT_NAMESPACE, INTERFACE_LABEL, INTERFACE_VERSION, TOKEN_AUDIENCE};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::agents::{AgentFiles, RunningAgent};
use super::kubelets::{FleetNode, Kubelets, replace};
use super::pods::{is_finished, is_ready};
use super::spec::FleetSpec;
use crate::host::{Host, Releases};
use crate::kubelet::{ScriptedPod, node_status};
use crate::machine::{MachineState, Power};

/// Lifetime of the agents' tokens in seconds, as their pod requests it.
const TOKEN_SECONDS: i64 = 600;

/// Age at which a kubelet renews a token: four fifths of its lifetime.
const RENEWED_AFTER: Duration = Duration::from_secs(480);

/// Interval of the readiness probe of an agent, and of its repetition until it has succeeded once.
const PROBE: Duration = Duration::from_secs(10);
const FIRST_PROBE: Duration = Duration::from_millis(500);

/// Number of failures after which a pod is not Ready any more.
const FAILURE_THRESHOLD: u32 = 2;

/// Delay before a container that has ended is started again.
const RESTART: Duration = Duration::from_secs(10);

/// Longest time for which a shutdown waits for the write that announces it.
const ANNOUNCEMENT: Duration = Duration::from_secs(1);

/// Installs the host of a node.
pub(super) async fn install(spec: &FleetSpec, number: usize, releases: &Releases) -> anyhow::Result<FleetNode> {
    let name = FleetSpec::node(number);
    let host = Host::start(spec.host(number, releases)).await.with_context(|| format!("host of {name}"))?;
    // From now on a shutdown waits for the kubelet.
    let machine = host.machine();
    for folder in ["token", "alive"] {
        std::fs::create_dir_all(machine.root().join(folder))?;
    }
    Ok(FleetNode { number, name, host, agent_pod: watch::Sender::new(None) })
}

/// The kubelet of one node.
pub(super) struct NodeKubelet {
    kubelets: Arc<Kubelets>,
    node: Arc<FleetNode>,
    conditions: Vec<NodeCondition>,
    /// True after the first boot.
    booted: bool,
    /// The pod of the agent that was started last, and the restarts of its container.
    last_pod: Option<(String, u32)>,
}

/// Returns true if the pod was not deleted, and has not ended.
fn runs(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_finished(pod)
}

/// Readiness of the agent's pod as it was reported last.
struct Reported {
    ready: bool,
    failures: u32,
}

impl NodeKubelet {
    pub(super) fn new(kubelets: Arc<Kubelets>, node: Arc<FleetNode>) -> Self {
        Self { kubelets, node, conditions: Vec::new(), booted: false, last_pod: None }
    }

    /// Creates the Node.
    pub(super) async fn register(&mut self) -> anyhow::Result<()> {
        let machine = self.node.host.machine().state().borrow().clone();
        let status = self.status(&machine, false)?;
        let name = &self.node.name;
        let node: Node = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                    INTERFACE_LABEL: INTERFACE_VERSION,
                },
            },
            "spec": {}, "status": status,
        }))?;
        let api: Api<Node> = Api::all(self.kubelets.client.clone());
        let params = PostParams::default();
        self.kubelets.repeat(|| api.create(&params, &node)).await;
        Ok(())
    }

    /// The status of the Node, with transition times that move only with a condition.
    fn status(&mut self, machine: &MachineState, shutting_down: bool) -> anyhow::Result<serde_json::Value> {
        let (name, address) = (&self.node.name, FleetSpec::address(self.node.number));
        let mut status = node_status::facts(name, address, &machine.boot_id, &machine.os_image);
        let conditions = json!(node_status::conditions(shutting_down, &self.conditions, Timestamp::now()));
        status["conditions"] = conditions.clone();
        self.conditions = serde_json::from_value(conditions)?;
        Ok(status)
    }

    async fn post(&mut self, shutting_down: bool) -> anyhow::Result<()> {
        let machine = self.node.host.machine().state().borrow().clone();
        let patch = Patch::Strategic(json!({"status": self.status(&machine, shutting_down)?}));
        let api: Api<Node> = Api::all(self.kubelets.client.clone());
        let (name, params) = (&self.node.name, PatchParams::default());
        self.kubelets.repeat(|| api.patch_status(name, &params, &patch)).await;
        Ok(())
    }

    /// Follows the machine through its boots.
    pub(super) async fn run(mut self) {
        loop {
            if let Err(error) = self.boot().await {
                tracing::error!(node = self.node.name, error = format!("{error:#}"), "kubelet ended");
                return;
            }
        }
    }

    /// Runs one boot, from the machine that is up until it is down.
    async fn boot(&mut self) -> anyhow::Result<()> {
        let machine = self.node.host.machine();
        let mut state = machine.state();
        let boot_id = state.wait_for(|machine| machine.power == Power::Up).await?.boot_id.clone();
        if self.booted {
            self.post(false).await?;
        }
        self.booted = true;
        let mut over = machine.state();
        let over = over.wait_for(|machine| machine.power != Power::Up || machine.boot_id != boot_id);
        tokio::select! {
            over = over => drop(over?),
            never = self.keep_agent() => match never? {},
        }
        if state.borrow().power == Power::ShuttingDown {
            if self.kubelets.spec.graceful {
                self.shut_down().await?;
            }
            machine.release_shutdown();
        }
        state.wait_for(|machine| machine.power == Power::Down || machine.boot_id != boot_id).await?;
        Ok(())
    }

    /// Announces the shutdown, and ends the agent's pod.
    async fn shut_down(&mut self) -> anyhow::Result<()> {
        if let Ok(posted) = timeout(ANNOUNCEMENT, self.post(true)).await {
            posted?;
        }
        let pod = self.node.agent_pod.borrow().clone();
        if let Some(pod) = pod.filter(|pod| runs(pod)) {
            let post = self.kubelets.post_pod(&self.node, &pod, ScriptedPod::ShutDown);
            // The machine does not wait for it any longer.
            let _ = timeout(ANNOUNCEMENT, post).await;
        }
        Ok(())
    }

    /// Runs the agent's pod, and each one that replaces it.
    async fn keep_agent(&mut self) -> anyhow::Result<std::convert::Infallible> {
        let mut pods = self.node.agent_pod.subscribe();
        loop {
            let is_new = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|pod| !is_finished(pod));
            let pod = pods.wait_for(is_new).await?.clone().context("just seen")?;
            if runs(&pod) {
                self.run_pod(&pod, &mut pods).await?;
            }
            let uid = pod.uid();
            sleep(self.kubelets.spec.termination).await;
            self.kubelets.delete_pod(&pod).await;
            pods.wait_for(|now| now.as_ref().is_none_or(|now| now.uid() != uid)).await?;
        }
    }

    fn files(&self) -> AgentFiles {
        let root = self.node.host.machine().root().to_owned();
        AgentFiles {
            node: self.node.name.clone(),
            host_socket: self.node.host.socket(),
            boot_id_file: root.join("proc/sys/kernel/random/boot_id"),
            token_file: root.join("token/token"),
            trust_dir: self.kubelets.spec.trust(),
            alive_file: root.join("alive/alive"),
        }
    }

    /// Runs one pod of the agent until it is deleted, or replaced.
    async fn run_pod(&mut self, pod: &Pod, pods: &mut watch::Receiver<Option<Arc<Pod>>>) -> anyhow::Result<()> {
        let files = self.files();
        // The volume of the file is in memory.
        let _ = std::fs::remove_file(&files.alive_file);
        self.write_token(pod, &files.token_file).await?;
        let mut renewal = Instant::now() + RENEWED_AFTER.mul_f64(1.0 - 0.05 * rand::random::<f64>());
        sleep(self.kubelets.spec.start).await;
        let uid = pod.uid().unwrap_or_default();
        let restarts = self.last_pod.take().map_or(0, |(last, restarts)| if last == uid { restarts + 1 } else { 0 });
        self.last_pod = Some((uid, restarts));
        let running = |ready| ScriptedPod::Running { ready, restarts };
        self.kubelets.post_pod(&self.node, pod, running(false)).await;
        let mut agent = self.start(&files)?;
        let mut reported = Reported { ready: false, failures: 0 };
        loop {
            let pause = if reported.ready || agent.is_none() { PROBE } else { FIRST_PROBE };
            let ended = async {
                match agent.as_mut() {
                    Some(agent) => drop((&mut agent.ended).await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep(pause) => {
                    let connected = agent.is_some() && (self.kubelets.program.is_connected)(&files.alive_file);
                    if reported.takes(connected) {
                        self.kubelets.post_pod(&self.node, pod, running(reported.ready)).await;
                    }
                }
                () = tokio::time::sleep_until(renewal) => {
                    self.write_token(pod, &files.token_file).await?;
                    renewal = Instant::now() + RENEWED_AFTER;
                }
                () = ended => {
                    self.kubelets.failures.fetch_add(1, Ordering::Relaxed);
                    sleep(RESTART).await;
                    agent = self.start(&files)?;
                }
                changed = pods.changed() => {
                    changed?;
                    let now = pods.borrow_and_update().clone();
                    let Some(now) = now.filter(|now| now.uid() == pod.uid()) else { return Ok(()) };
                    if now.metadata.deletion_timestamp.is_some() {
                        return Ok(());
                    }
                    // The node controller says so of all pods of a node that it takes for not Ready.
                    if reported.ready && !is_ready(&now) {
                        self.kubelets.post_pod(&self.node, &now, running(true)).await;
                    }
                }
            }
        }
    }

    fn start(&self, files: &AgentFiles) -> anyhow::Result<Option<RunningAgent>> {
        let runs = self.node.number < self.kubelets.spec.agents;
        runs.then(|| self.kubelets.agents.start(files.clone())).transpose()
    }

    /// Requests a token that is bound to the pod, and writes it.
    async fn write_token(&self, pod: &Pod, file: &Path) -> anyhow::Result<()> {
        if self.node.number >= self.kubelets.spec.agents {
            return Ok(());
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(self.kubelets.client.clone(), AGENT_NAMESPACE);
        let spec = TokenRequestSpec {
            audiences: Some(vec![TOKEN_AUDIENCE.to_owned()]),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(pod.name_any()),
                uid: pod.uid(),
            }),
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let params = PostParams::default();
        let granted = self.kubelets.repeat(|| accounts.create_token_request(AGENT, &params, &request)).await;
        if let Some(token) = granted.and_then(|granted| granted.status).and_then(|status| status.token) {
            replace(file, &token)?;
        }
        Ok(())
    }
}

impl Reported {
    /// Takes the result of a probe. Returns true if the pod has to be reported again.
    fn takes(&mut self, connected: bool) -> bool {
        self.failures = if connected { 0 } else { self.failures + 1 };
        let ready = connected || (self.ready && self.failures < FAILURE_THRESHOLD);
        std::mem::replace(&mut self.ready, ready) != ready
    }
}
