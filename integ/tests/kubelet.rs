//! Tests of the kubelet stand-in and the proxy on a real control plane. All tests share one control plane; each has its
//! own node and namespace. A pod that has to serve runs this very program (see
//! `web_server_process_for_pods`).

#![expect(clippy::unwrap_used, reason = "a helper of a test that cannot go on ends the test")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use integ::control_plane::{ControlPlane, Options};
use integ::host::{Host, HostOptions, Releases};
use integ::kubelet::{Addresses, Images, Kubelet, KubeletOptions};
use integ::machine::{Machine, MachineState, Power};
use integ::proxy::ConnectProxy;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
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
const LONG: Duration = Duration::from_secs(90);

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
            let proxy = ConnectProxy::start(control_plane.client(), addresses.clone()).await.unwrap();
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
        let node_client = shared.control_plane.client_as(&format!("system:node:{node}"), &["system:nodes"]).unwrap();
        let root = shared.control_plane.dir().join("m").join(number.to_string());
        std::fs::create_dir_all(root.join("proc/sys/kernel/random")).unwrap();
        std::fs::create_dir_all(root.join("run")).unwrap();
        std::fs::write(root.join("proc/sys/kernel/random/boot_id"), "boot-1\n").unwrap();
        let (power, state) = watch::channel(machine_state(Power::Up, 1));
        let released = Arc::new(Notify::new());
        let machine = Machine::new(node.clone(), root.clone(), state, released.clone());
        let mut options = KubeletOptions::new(
            node_client.clone(),
            shared.control_plane.url(),
            shared.control_plane.ca_file(),
            shared.control_plane.dir(),
            machine,
            shared.addresses.node(number),
        );
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

#[test]
fn deployment_of_unmapped_image_becomes_ready_and_is_deleted() {
    on_a_node("pretend", async |bed| {
        let labels = json!({"app": "pause"});
        let spec = json!({
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"test": "pretend"},
                    "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10"}],
                },
            },
        });
        let _: Deployment = bed.create(json!({"metadata": {"name": "pause"}, "spec": spec})).await;
        let deployments: Api<Deployment> = bed.api();
        until("three ready pods", async || {
            let status = deployments.get("pause").await.unwrap().status.unwrap_or_default();
            (status.ready_replicas == Some(3)).then_some(())
        })
        .await;
        let pods = bed.api::<Pod>().list(&ListParams::default()).await.unwrap();
        for pod in &pods {
            assert!(pod.status.as_ref().unwrap().pod_ip.as_deref().unwrap().starts_with("10."));
        }
        assert!(bed.kubelet.processes().is_empty());
        deployments.delete("pause", &DeleteParams::background()).await.unwrap();
        for pod in pods {
            bed.gone(pod.metadata.name.as_deref().unwrap()).await;
        }

        // Behaviour by annotation.
        let containers = json!([{"name": "c", "image": "pause"}]);
        let _: Pod = bed
            .create(json!({
                "metadata": {"name": "odd", "annotations": {"sim/never-ready": "true", "sim/stop-after": "never"}},
                "spec": {"nodeName": bed.node, "containers": containers},
            }))
            .await;
        bed.see("odd", "it runs and is not ready", |p| phase(p) == "Running" && !is_ready(p)).await;
        let healthy = json!({"metadata": {"annotations": {"sim/never-ready": null, "sim/restarts": "4"}}});
        bed.api::<Pod>().patch("odd", &PatchParams::default(), &Patch::Merge(healthy)).await.unwrap();
        bed.see("odd", "it becomes ready after four restarts", |p| is_ready(p) && restarts(p) == 4).await;
        bed.api::<Pod>().delete("odd", &DeleteParams::default().grace_period(1)).await.unwrap();
        let forced = DeleteParams::default().grace_period(0);
        bed.see("odd", "it terminates and does not end", |p| p.metadata.deletion_timestamp.is_some()).await;
        bed.api::<Pod>().delete("odd", &forced).await.unwrap();
        bed.gone("odd").await;
    });
}

#[test]
fn process_has_environment_and_volumes_of_its_pod() {
    on_a_node("sees", async |bed| {
        let _: ConfigMap = bed.create(json!({"metadata": {"name": "config"}, "data": {"word": "first"}})).await;
        let _: Secret = bed.create(json!({"metadata": {"name": "secret"}, "stringData": {"key": "hush"}})).await;
        let socket = bed.root.join("run/api.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut container = shell(
            "echo name=$NAME ns=$NS node=$NODE label=$LABEL ip=$POD_IP at=$AT secret=$SECRET none=[$NONE]; \
             echo arg=$0; echo kube=$KUBECONFIG proxy=$HTTPS_PROXY; echo boot=$(cat $BOOT); \
             test -S $SOCKET && echo socket; test -d $OPTIONAL && echo optional; echo token=$(cat $TOKEN/t)=; \
             echo low=$(cat $LOW/uid); while :; do echo word=$(cat $CONFIG/word); sleep 0.1; done",
        );
        container["args"].as_array_mut().unwrap().push(json!("--x=/etc/c/word"));
        container["env"] = json!([
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "AT", "value": "$(POD_IP):80"},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "key"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "k", "optional": true}}},
            {"name": "BOOT", "value": "/proc/sys/kernel/random/boot_id"},
            {"name": "SOCKET", "value": "/run/api.sock"},
            {"name": "OPTIONAL", "value": "/etc/optional"},
            {"name": "TOKEN", "value": "/var/run/token"},
            {"name": "LOW", "value": "/etc/low"},
            {"name": "CONFIG", "value": "/etc/c"},
        ]);
        container["volumeMounts"] = json!([
            {"name": "config", "mountPath": "/etc/c"},
            {"name": "optional", "mountPath": "/etc/optional"},
            {"name": "socket", "mountPath": "/run/api.sock"},
            {"name": "token", "mountPath": "/var/run/token"},
            {"name": "low", "mountPath": "/etc/low"},
        ]);
        let token = json!({"serviceAccountToken": {"path": "t", "audience": "tests", "expirationSeconds": 600}});
        let spec = json!({
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": "config"}},
                {"name": "optional", "configMap": {"name": "absent", "optional": true}},
                {"name": "socket", "hostPath": {"path": "/run/api.sock", "type": "Socket"}},
                {"name": "token", "projected": {"sources": [token]}},
                {"name": "low", "downwardAPI": {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
            ],
        });
        let pod = bed.pod("p", spec).await;
        let log = bed.logged("p", "word=first").await;
        let uid = pod.metadata.uid.clone().unwrap();
        let ready = bed.see("p", "the pod is ready", is_ready).await;
        let ip = ready.status.unwrap().pod_ip.unwrap().replacen("10.", "127.", 1);
        let node = &bed.node;
        let expected = format!("name=p ns=sees node={node} label=p ip={ip} at={ip}:80 secret=hush none=[]");
        for expected in [&expected, "boot=boot-1", "\nsocket\n", "\noptional\n", &format!("low={uid}")] {
            assert!(log.contains(expected), "{expected:?} not in {log}");
        }
        let proxy = shared().proxy.url();
        assert!(log.contains(&format!("kube= proxy={proxy}\n")), "{log}");
        let arg = log.lines().find_map(|l| l.strip_prefix("arg=--x=")).unwrap();
        assert!(arg.ends_with("/v/config/word"), "{arg}");

        // The token names its audience, account and node, and is valid for its own audience only.
        let token = log.lines().find_map(|l| l.strip_prefix("token=")).unwrap().trim_end_matches('=');
        let reviews: Api<TokenReview> = Api::all(bed.client.clone());
        let review =
            |audience: &str| object(json!({"metadata": {}, "spec": {"token": token, "audiences": [audience]}}));
        let seen = reviews.create(&PostParams::default(), &review("tests")).await.unwrap().status.unwrap();
        assert_eq!(seen.authenticated, Some(true), "{seen:?}");
        let user = seen.user.unwrap();
        assert_eq!(user.username.as_deref(), Some("system:serviceaccount:sees:default"));
        let extra = user.extra.unwrap();
        assert_eq!(extra["authentication.kubernetes.io/node-name"].join(" "), bed.node);
        assert_eq!(extra["authentication.kubernetes.io/pod-uid"], [uid]);
        let seen = reviews.create(&PostParams::default(), &review("another")).await.unwrap().status.unwrap();
        assert_ne!(seen.authenticated, Some(true));

        let second = Patch::Merge(json!({"data": {"word": "second"}}));
        bed.api::<ConfigMap>().patch("config", &PatchParams::default(), &second).await.unwrap();
        bed.logged("p", "word=second").await;

        let processes = bed.kubelet.processes();
        assert_eq!(processes.len(), 1);
        assert_eq!((processes[0].pod.as_str(), processes[0].container.as_str()), ("p", "c"));
        bed.api::<Pod>().delete("p", &DeleteParams::default()).await.unwrap();
        bed.gone("p").await;
        assert!(bed.kubelet.processes().is_empty());
    });
}

#[test]
fn pod_with_service_account_token_gets_working_kubeconfig() {
    on_a_node("kubeconfig", async |bed| {
        let script = "cat $KUBECONFIG; echo; echo proxy=[$HTTPS_PROXY]; sleep 100";
        bed.pod("p", json!({"terminationGracePeriodSeconds": 0, "containers": [shell(script)]})).await;
        let log = bed.logged("p", "proxy=[]").await;
        let config: kube::config::Kubeconfig = serde_json::from_str(log.lines().next().unwrap()).unwrap();
        assert!(config.auth_infos[0].auth_info.as_ref().unwrap().token_file.is_some());
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let refused = Api::<Secret>::namespaced(client, "kubeconfig").list(&ListParams::default()).await.unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("system:serviceaccount:kubeconfig:default"), "{message}");
    });
}

#[test]
fn pod_waits_for_missing_volumes_and_environment_sources() {
    on_a_node("waits", async |bed| {
        let mut container = shell("cat $F; sleep 100");
        container["env"] = json!([
            {"name": "F", "value": "/c/word"},
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}},
        ]);
        container["volumeMounts"] = json!([{"name": "config", "mountPath": "/c"}]);
        let spec = json!({
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [{"name": "config", "configMap": {"name": "late"}}],
        });
        bed.pod("p", spec).await;
        bed.see("p", "it waits for its volume", |p| waits_for(p).as_deref() == Some("ContainerCreating")).await;
        let _: ConfigMap = bed.create(json!({"metadata": {"name": "late"}, "data": {"word": "there"}})).await;
        let reason = "CreateContainerConfigError";
        bed.see("p", "it waits for its environment", |p| waits_for(p).as_deref() == Some(reason)).await;
        let _: Secret = bed.create(json!({"metadata": {"name": "late"}, "stringData": {"k": "v"}})).await;
        bed.see("p", "it runs", is_ready).await;
        bed.logged("p", "there").await;
    });
}

#[test]
fn failing_container_enters_crash_loop_back_off() {
    on_a_node("crash", async |bed| {
        bed.pod("p", json!({"terminationGracePeriodSeconds": 0, "containers": [shell("echo run; exit 3")]})).await;
        let pod = bed
            .see("p", "it backs off after three restarts", |p| {
                restarts(p) >= 3 && waits_for(p).as_deref() == Some("CrashLoopBackOff")
            })
            .await;
        let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
        assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 3);
        assert!(bed.log("p", "c").lines().count() >= 4);

        let once = json!({"restartPolicy": "Never", "containers": [shell("exit 0")]});
        bed.pod("once", once).await;
        bed.see("once", "it succeeds", |p| phase(p) == "Succeeded").await;
        let once = json!({"restartPolicy": "Never", "containers": [shell("kill -9 $$$$")]});
        bed.pod("killed", once).await;
        let pod = bed.see("killed", "it fails", |p| phase(p) == "Failed").await;
        let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
        assert_eq!(status.state.unwrap().terminated.unwrap().exit_code, 137);
    });
}

#[test]
fn probes_control_readiness_restarts_and_service_endpoints() {
    on_a_node("probes", async |bed| {
        let http = |path: &str| json!({"path": path, "port": "web"});
        let mut container = web();
        container["startupProbe"] = json!({"tcpSocket": {"port": 8443}, "periodSeconds": 1, "failureThreshold": 30});
        container["readinessProbe"] = json!({"httpGet": http("/healthz"), "periodSeconds": 1, "failureThreshold": 1});
        let spec = |container: Value| {
            let volumes = json!([{"name": "state", "emptyDir": {}}]);
            json!({"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes})
        };
        bed.pod("a", spec(container)).await;
        let service = json!({
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "a"}, "ports": [{"name": "web", "port": 443, "targetPort": "web"}]},
        });
        let _: Service = bed.create(service).await;
        let pod = bed.see("a", "it is ready", is_ready).await;
        let target = "web.probes.svc:443";
        until("the Service answers by name", async || through_proxy(target).await.filter(|a| a.ends_with("\r\n\r\na")))
            .await;
        assert_eq!(through_proxy("absent.probes.svc:443").await, None);
        assert_eq!(through_proxy("web.probes.svc:444").await, None);
        assert_eq!(through_proxy("127.0.0.1:1").await, None);

        let short: String = pod.metadata.uid.unwrap().chars().take(8).collect();
        let state = glob_one(&shared().control_plane.dir().join("k"), &short).join("v/state");
        std::fs::write(state.join("sick"), "").unwrap();
        bed.see("a", "it is not ready", |p| !is_ready(p)).await;
        until("the Service has no endpoint", async || through_proxy(target).await.is_none().then_some(())).await;
        std::fs::remove_file(state.join("sick")).unwrap();
        bed.see("a", "it is ready again", is_ready).await;
        until("the Service answers again", async || through_proxy(target).await).await;

        let mut container = web();
        container["livenessProbe"] = json!({"httpGet": http("/healthz"), "periodSeconds": 1, "failureThreshold": 1});
        let pod = bed.pod("b", spec(container)).await;
        bed.see("b", "it is ready", is_ready).await;
        let short: String = pod.metadata.uid.unwrap().chars().take(8).collect();
        let state = glob_one(&shared().control_plane.dir().join("k"), &short).join("v/state");
        std::fs::write(state.join("sick"), "").unwrap();
        bed.see("b", "it was restarted", |p| restarts(p) >= 1).await;

        let mut container = shell("sleep 0.3; touch $D/file; sleep 100");
        container["env"] = json!([{"name": "D", "value": "/d"}]);
        container["volumeMounts"] = json!([{"name": "state", "mountPath": "/d"}]);
        container["readinessProbe"] = json!({"exec": {"command": ["test", "-f", "/d/file"]}});
        bed.pod("c", spec(container)).await;
        bed.see("c", "a command finds it ready", is_ready).await;
    });
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

#[test]
fn deleted_pod_is_killed_after_grace_period() {
    on_a_node("grace", async |bed| {
        let polite = "trap 'echo asked; sleep 0.5; echo done; exit 0' TERM; echo up; while :; do sleep 0.05; done";
        bed.pod("polite", json!({"terminationGracePeriodSeconds": 30, "containers": [shell(polite)]})).await;
        bed.logged("polite", "up").await;
        bed.api::<Pod>().delete("polite", &DeleteParams::default()).await.unwrap();
        bed.gone("polite").await;
        assert!(bed.log("polite", "c").ends_with("asked\ndone\n"));

        let deaf = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done";
        bed.pod("deaf", json!({"terminationGracePeriodSeconds": 1, "containers": [shell(deaf)]})).await;
        bed.logged("deaf", "up").await;
        bed.api::<Pod>().delete("deaf", &DeleteParams::default()).await.unwrap();
        bed.gone("deaf").await;
        assert!(bed.log("deaf", "c").ends_with("asked\n"));

        bed.pod("forced", json!({"terminationGracePeriodSeconds": 600, "containers": [shell(deaf)]})).await;
        bed.logged("forced", "up").await;
        bed.api::<Pod>().delete("forced", &DeleteParams::default().grace_period(0)).await.unwrap();
        until("its process is gone", async || bed.kubelet.processes().is_empty().then_some(())).await;
    });
}

#[test]
fn graceful_reboot_fails_pods_and_changes_boot_id() {
    on_a_node("reboot", async |bed| {
        let polite = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done";
        let critical = json!({"priorityClassName": "system-node-critical", "containers": [shell(polite)]});
        bed.pod("critical", critical).await;
        bed.pod("process", json!({"containers": [shell(polite)]})).await;
        bed.pod("pretended", json!({"containers": [{"name": "c", "image": "pause"}]})).await;
        bed.logged("critical", "up").await;
        bed.logged("process", "up").await;
        bed.see("pretended", "it is ready", is_ready).await;

        bed.power.send_replace(machine_state(Power::ShuttingDown, 1));
        bed.released.notified().await;
        bed.node("the node says that it shuts down", |n| {
            node_condition(n, "Ready") == Some(("False".to_owned(), "node is shutting down".to_owned()))
        })
        .await;
        for name in ["critical", "process", "pretended"] {
            let pod = bed.see(name, "it failed", |p| phase(p) == "Failed").await;
            assert_eq!(condition(&pod, "Ready").as_deref(), Some("False"));
            let status = pod.status.unwrap();
            assert_eq!(status.reason.as_deref(), Some("Terminated"));
            assert!(status.message.unwrap().contains("imminent node shutdown"));
        }
        assert!(bed.log("process", "c").ends_with("asked\n"));
        bed.pod("late", json!({"containers": [{"name": "c", "image": "pause"}]})).await;
        let pod = bed.see("late", "it is refused", |p| phase(p) == "Failed").await;
        assert_eq!(pod.status.unwrap().reason.as_deref(), Some("NodeShutdown"));

        bed.power.send_replace(machine_state(Power::Down, 1));
        until("nothing runs", async || bed.kubelet.processes().is_empty().then_some(())).await;
        bed.pod("next", json!({"containers": [shell("echo up; sleep 100")]})).await;
        bed.power.send_replace(machine_state(Power::Up, 2));
        let node = bed
            .node("the node is back in its new boot", |n| {
                let info = n.status.as_ref().and_then(|s| s.node_info.as_ref());
                info.is_some_and(|i| i.boot_id == "boot-2")
                    && node_condition(n, "Ready").is_some_and(|(status, _)| status == "True")
            })
            .await;
        assert_eq!(node.status.unwrap().node_info.unwrap().os_image, "Bottlerocket OS 1.20.2");
        bed.see("next", "a pod bound meanwhile runs", is_ready).await;
        assert_eq!(phase(&bed.api::<Pod>().get("process").await.unwrap()), "Failed");
        assert_eq!(bed.kubelet.processes().len(), 1);
    });
}

#[test]
fn pods_are_restarted_after_power_loss() {
    on_a_node("power", async |bed| {
        bed.pod("process", json!({"containers": [shell("echo up; sleep 100")]})).await;
        bed.pod("pretended", json!({"containers": [{"name": "c", "image": "pause"}]})).await;
        bed.see("process", "it is ready", is_ready).await;
        bed.see("pretended", "it is ready", is_ready).await;
        let pid = bed.kubelet.processes()[0].pid;
        bed.power.send_replace(machine_state(Power::Down, 1));
        until("its process is gone", async || (!PathBuf::from(format!("/proc/{pid}/exe")).exists()).then_some(()))
            .await;
        assert!(is_ready(&bed.api::<Pod>().get("process").await.unwrap()), "the API still has the last word");
        bed.power.send_replace(machine_state(Power::Up, 2));
        for name in ["process", "pretended"] {
            let pod = bed.see(name, "it was restarted and is ready", |p| restarts(p) == 1 && is_ready(p)).await;
            assert_eq!(pod.status.unwrap().pod_ips.unwrap().len(), 1);
        }
        until("it ran twice", async || (bed.log("process", "c") == "up\nup\n").then_some(())).await;
    });
}

#[test]
fn node_of_paused_kubelet_is_unknown_until_resumed() {
    on_a_node("hangs", async |bed| {
        bed.pod("p", json!({"containers": [{"name": "c", "image": "pause"}]})).await;
        bed.see("p", "it is ready", is_ready).await;
        let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-node-lease");
        let lease = until("a lease", async || leases.get_opt(&bed.node).await.unwrap()).await;
        assert_eq!(lease.metadata.owner_references.unwrap()[0].kind, "Node");
        bed.kubelet.pause();
        bed.node("it is unknown", |n| node_condition(n, "Ready").is_some_and(|(status, _)| status == "Unknown")).await;
        bed.see("p", "its pod is not ready", |p| !is_ready(p)).await;
        bed.kubelet.resume();
        bed.node("it is ready", |n| node_condition(n, "Ready").is_some_and(|(status, _)| status == "True")).await;
        bed.see("p", "its pod is ready again", is_ready).await;
    });
}

#[test]
fn deleted_node_is_recreated_only_when_kubelet_registers() {
    on_a_node("deleted", async |bed| {
        let nodes: Api<Node> = Api::all(bed.client.clone());
        let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-node-lease");
        let first = bed.node("it stands", |_| true).await;
        until("a lease", async || leases.get_opt(&bed.node).await.unwrap()).await;
        nodes.delete(&bed.node, &DeleteParams::default()).await.unwrap();
        until("its lease is collected", async || leases.get_opt(&bed.node).await.unwrap().is_none().then_some(()))
            .await;
        assert!(nodes.get_opt(&bed.node).await.unwrap().is_none());
        bed.kubelet.register().await.unwrap();
        let second = bed.node("it stands", |_| true).await;
        assert_ne!(first.metadata.uid, second.metadata.uid);
        assert_eq!(second.metadata.labels.unwrap()["test"], "deleted");
    });
}

#[test]
fn kubelet_has_only_node_permissions() {
    on_a_node("restricted", async |bed| {
        let refused = |error: kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
        let other: Node = object(json!({"metadata": {"name": "node-of-another"}}));
        let nodes: Api<Node> = Api::all(bed.client.clone());
        nodes.create(&PostParams::default(), &other).await.unwrap();
        let own: Api<Node> = Api::all(bed.node_client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        assert!(refused(own.patch("node-of-another", &PatchParams::default(), &patch).await.unwrap_err()));
        assert!(own.patch(&bed.node, &PatchParams::default(), &patch).await.is_ok());
        let _: Secret = bed.create(json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}})).await;
        let secrets: Api<Secret> = Api::namespaced(bed.node_client.clone(), &bed.namespace);
        assert!(refused(secrets.get("s").await.unwrap_err()));
        let all: Api<Pod> = Api::all(bed.node_client.clone());
        assert!(refused(all.list(&ListParams::default()).await.unwrap_err()));
        nodes.delete("node-of-another", &DeleteParams::default()).await.unwrap();
    });
}

#[test]
fn daemon_set_pod_recovers_from_reboots_and_apiserver_outage() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let mut control_plane = ControlPlane::start(Options::default()).await.unwrap();
        let client = control_plane.client();
        let root = control_plane.dir().join("h");
        let version = semver::Version::new(1, 20, 0);
        let host = Host::start(HostOptions::new("node-1", &root, version, Releases::default())).await.unwrap();
        let addresses = Addresses::claim().unwrap();
        let mut options = KubeletOptions::new(
            control_plane.client_as("system:node:node-1", &["system:nodes"]).unwrap(),
            control_plane.url(),
            control_plane.ca_file(),
            control_plane.dir(),
            host.machine(),
            addresses.node(1),
        );
        options.images = Images::new().map("sh:1", "/bin/sh");
        let kubelet = Kubelet::start(options).await.unwrap();
        let mut container = shell("trap 'exit 0' TERM; test -S $SOCKET && cat $BOOT; while :; do sleep 0.05; done");
        container["env"] = json!([
            {"name": "SOCKET", "value": "/run/api.sock"},
            {"name": "BOOT", "value": "/proc/sys/kernel/random/boot_id"},
        ]);
        container["volumeMounts"] = json!([{"name": "socket", "mountPath": "/run/api.sock"}]);
        let template = json!({
            "metadata": {"labels": {"app": "agent"}},
            "spec": {
                "priorityClassName": "system-node-critical",
                "containers": [container],
                "volumes": [{"name": "socket", "hostPath": {"path": "/run/api.sock", "type": "Socket"}}],
            },
        });
        let daemon = json!({
            "metadata": {"name": "agent"},
            "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
        });
        let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), "kube-system");
        daemons.create(&PostParams::default(), &object(daemon)).await.unwrap();
        // The daemon runs as one ready pod whose process has seen the socket and the host's current boot.
        let runs = async || {
            let boot = host.snapshot().boot_id;
            let api: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
            let pods = api.list(&ListParams::default()).await.ok()?.items;
            let live: Vec<&Pod> = pods.iter().filter(|p| is_ready(p)).collect();
            let process = kubelet.processes().into_iter().next()?;
            let log = kubelet.log_file("kube-system", &process.pod, "c")?;
            let last = std::fs::read_to_string(log).ok()?.lines().last()?.to_owned();
            let name = (live.len() == 1).then(|| live[0].metadata.name.clone())??;
            (last == boot && name == process.pod).then_some(name)
        };
        let first = until("the daemon runs", runs).await;

        let boot = host.snapshot().boot_id;
        let began = Instant::now();
        host.foreign_reboot().await;
        host.booted_after(&boot).await;
        let second = until("another pod of the daemon runs in the new boot", runs).await;
        assert_ne!(first, second);
        eprintln!("from the reboot to the daemon's new pod: {:?}", began.elapsed());

        let boot = host.snapshot().boot_id;
        host.power_off();
        until("nothing runs", async || kubelet.processes().is_empty().then_some(())).await;
        host.power_on();
        host.booted_after(&boot).await;
        assert_eq!(until("the same pod runs in the new boot", runs).await, second);

        control_plane.kill_apiserver().await.unwrap();
        let boot = host.snapshot().boot_id;
        host.power_off();
        until("nothing runs", async || kubelet.processes().is_empty().then_some(())).await;
        host.power_on();
        host.booted_after(&boot).await;
        control_plane.restart_apiserver().await.unwrap();
        until("the daemon runs after the silence", runs).await;
        kubelet.stop().await;
        control_plane.stop().await.unwrap();
    });
}
