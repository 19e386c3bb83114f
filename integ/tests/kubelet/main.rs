//! Tests of the kubelet stand-in and the proxy on a real control plane. All tests share one control plane; each has its
//! own node and namespace. A pod that has to serve runs this very program (see
//! `web_server_process_for_pods`).

#![expect(clippy::unwrap_used, reason = "a helper of a test that cannot go on ends the test")]

mod nodes;
mod pods;
mod recorded;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use integ::control_plane::{ControlPlane, Options};
use integ::host::{Host, HostOptions, Releases};
use integ::kubelet::{Addresses, Images, Kubelet, KubeletOptions, NodeAddress};
use integ::machine::{Machine, MachineState, Power};
use integ::proxy::{ConnectProxy, Sources};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};

/// Ends a test that would hang; no test measures time.
const LONG: Duration = Duration::from_secs(240);

struct Shared {
    runtime: Runtime,
    control_plane: ControlPlane,
    addresses: Addresses,
    proxy: ConnectProxy,
    next: AtomicU8,
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let addresses = Addresses::claim().unwrap();
        let (control_plane, proxy) = runtime.block_on(async {
            let control_plane = ControlPlane::start(Options::default()).await.unwrap();
            let proxy = ConnectProxy::start(control_plane.client(), addresses.clone(), Sources::One).await.unwrap();
            (control_plane, proxy)
        });
        Shared { runtime, control_plane, addresses, proxy, next: AtomicU8::new(1) }
    })
}

/// One test's node and namespace.
struct NodeFixture {
    client: Client,
    node_client: Client,
    kubelet: Kubelet,
    node: String,
    namespace: String,
    power: watch::Sender<MachineState>,
    released: Arc<Notify>,
    root: PathBuf,
}

impl NodeFixture {
    async fn new(name: &str) -> Self {
        let shared = shared();
        let number = shared.next.fetch_add(1, Ordering::SeqCst);
        let client = shared.control_plane.client();
        let node = format!("node-{name}");
        let root = shared.control_plane.dir().join("m").join(number.to_string());
        std::fs::create_dir_all(root.join("proc/sys/kernel/random")).unwrap();
        std::fs::create_dir_all(root.join("run")).unwrap();
        std::fs::write(root.join("proc/sys/kernel/random/boot_id"), "boot-1\n").unwrap();
        let (power, state) = watch::channel(machine_state(Power::Up, 1));
        let released = Arc::new(Notify::new());
        let machine = Machine::new(node.clone(), root.clone(), state, released.clone());
        let mut options = kubelet_options(&shared.control_plane, &node, machine, shared.addresses.node(number));
        let node_client = options.client.clone();
        options.images = Images::new().map("sh:1", "/bin/sh").map("web:1", std::env::current_exe().unwrap());
        options.labels = BTreeMap::from([("test".to_owned(), name.to_owned())]);
        options.https_proxy = Some(shared.proxy.url());
        let kubelet = Kubelet::start(options).await.unwrap();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces.create(&PostParams::default(), &object(json!({"metadata": {"name": name}}))).await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
        until("the default service account", async || accounts.get_opt("default").await.unwrap()).await;
        Self { client, node_client, kubelet, node, namespace: name.to_owned(), power, released, root }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create<K>(&self, value: Value) -> K
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        self.api::<K>().create(&PostParams::default(), &object(value)).await.unwrap()
    }

    /// A pod on this test's node.
    async fn pod(&self, name: &str, mut spec: Value) -> Pod {
        spec["nodeName"] = json!(self.node);
        self.create(json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": spec})).await
    }

    async fn see(&self, name: &str, what: &str, look: impl Fn(&Pod) -> bool) -> Pod {
        let api: Api<Pod> = self.api();
        until(what, async || api.get_opt(name).await.unwrap().filter(|p| look(p))).await
    }

    async fn gone(&self, name: &str) {
        let api: Api<Pod> = self.api();
        until("the pod is gone", async || api.get_opt(name).await.unwrap().is_none().then_some(())).await;
    }

    fn log(&self, pod: &str, container: &str) -> String {
        let path = self.kubelet.log_file(&self.namespace, pod, container);
        path.map(|p| std::fs::read_to_string(p).unwrap()).unwrap_or_default()
    }

    async fn logged(&self, pod: &str, text: &str) -> String {
        until(&format!("{text:?} in the log of {pod}"), async || {
            let log = self.log(pod, "c");
            log.contains(text).then_some(log)
        })
        .await
    }

    async fn node(&self, what: &str, look: impl Fn(&Node) -> bool) -> Node {
        let nodes: Api<Node> = Api::all(self.client.clone());
        until(what, async || nodes.get_opt(&self.node).await.unwrap().filter(|n| look(n))).await
    }
}

fn kubelet_options(control_plane: &ControlPlane, node: &str, machine: Machine, address: NodeAddress) -> KubeletOptions {
    let client = control_plane.client_as(&format!("system:node:{node}"), &["system:nodes"]).unwrap();
    let (url, ca_file, folder) = (control_plane.url(), control_plane.ca_file(), control_plane.dir());
    KubeletOptions::new(client, url, ca_file, folder, machine, address)
}

fn machine_state(power: Power, boot: u32) -> MachineState {
    MachineState { power, boot_id: format!("boot-{boot}"), os_image: format!("Bottlerocket OS 1.20.{boot}") }
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "not seen: {what}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

fn on_a_node(test: &'static str, run: impl AsyncFnOnce(&NodeFixture)) {
    shared().runtime.block_on(async {
        let bed = NodeFixture::new(test).await;
        run(&bed).await;
        bed.kubelet.stop().await;
    });
}

fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready") == Some("True".to_owned())
}

fn condition(pod: &Pod, kind: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.clone())
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.as_ref().and_then(|s| s.container_statuses.as_ref()).map_or(0, |c| c[0].restart_count)
}

fn waits_for(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses[0].state.as_ref()?.waiting.as_ref()?.reason.clone()
}

fn node_condition(node: &Node, kind: &str) -> Option<(String, String)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == kind)?;
    Some((found.status.clone(), found.message.clone().unwrap_or_default()))
}

fn shell(script: &str) -> Value {
    json!({"name": "c", "image": "sh:1", "args": ["-c", script]})
}

/// A container that serves on its pod's address. It is healthy while its volume holds no file `sick`.
fn web() -> Value {
    json!({
        "name": "c",
        "image": "web:1",
        "args": ["--exact", "web_server_process_for_pods", "--ignored", "--nocapture"],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "LISTEN", "value": "$(POD_IP):8443"},
            {"name": "STATE", "value": "/state"},
        ],
        "ports": [{"name": "web", "containerPort": 8443}],
        "volumeMounts": [{"name": "state", "mountPath": "/state"}],
    })
}

#[test]
#[ignore = "run as a process of pods by the other tests"]
fn web_server_process_for_pods() {
    let listener = std::net::TcpListener::bind(std::env::var("LISTEN").unwrap()).unwrap();
    let state = PathBuf::from(std::env::var("STATE").unwrap());
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        while lines.next().is_some_and(|line| !line.is_empty()) {}
        let sick = first.contains("/healthz") && state.join("sick").exists();
        let status = if sick { "500 Internal Server Error" } else { "200 OK" };
        let body = std::env::var("HOSTNAME").unwrap();
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    }
}

fn glob_one(parent: &std::path::Path, name: &str) -> PathBuf {
    std::fs::read_dir(parent).unwrap().map(|e| e.unwrap().path().join(name)).find(|p| p.exists()).unwrap()
}

/// The response to a GET through the proxy's tunnel to `target`, if there is a tunnel.
async fn through_proxy(target: &str) -> Option<String> {
    let proxy = shared().proxy.url();
    let mut stream = tokio::net::TcpStream::connect(proxy.trim_start_matches("http://")).await.unwrap();
    stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    if &head != b"HTTP/1.1 200" {
        return None;
    }
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}
