//! A real Prometheus that finds the operator's pods as the Prometheus operator lets it: by the PodMonitor of
//! `deploy/monitoring`, turned into a configuration by the same rules.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::control_plane::RUN_DIRECTORY_VARIABLE;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use models::names::SYSTEM_NAMESPACE;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::interfere::poll;
use crate::support::ScenarioContext;

/// Times of the alerts that a test cannot wait for, and those that it waits for instead.
const SHORTENED: [(&str, &str); 5] =
    [("> 50 or", "> 1 or"), ("> 900", "> 3"), ("> 7200", "> 3"), ("[10m]", "[1m]"), ("[5m]", "[5s]")];

/// The file with the discovered pods.
const TARGETS: &str = "targets.json";

/// The folder with `prometheus` and `promtool`.
pub(super) fn programs() -> anyhow::Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/prometheus/get.sh");
    let output = Command::new(script).output().with_context(|| format!("cannot run {script}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// A running server.
pub(super) struct Prometheus {
    url: String,
    process: Child,
    discovery: JoinHandle<()>,
    directory: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.discovery.abort();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    /// Starts a server that scrapes the test cluster, and waits until it is ready. `beside` are further targets.
    pub(super) async fn start(ctx: &ScenarioContext, beside: &[String]) -> anyhow::Result<Self> {
        let programs = programs()?;
        let directory = tempfile::tempdir()?;
        let file = |name: &str| directory.path().join(name);
        std::fs::write(file("rules.json"), rules()?.to_string())?;
        let config = configuration(beside)?;
        std::fs::write(file("prometheus.json"), config.to_string())?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let log = std::fs::File::create(file("log"))?;
        let process = Command::new(programs.join("prometheus"))
            .arg(format!("--config.file={}", file("prometheus.json").display()))
            .arg(format!("--storage.tsdb.path={}", file("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .env_remove("HTTPS_PROXY")
            .env(RUN_DIRECTORY_VARIABLE, ctx.bed.control_plane.dir())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start Prometheus")?;
        let pods = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
        let discovery = tokio::spawn(discover(pods, file(TARGETS)));
        let prometheus = Self { url: format!("http://127.0.0.1:{port}"), process, discovery, directory };
        let ready = poll("Prometheus is ready", async || Ok(prometheus.get("/-/ready").await.ok().map(drop))).await;
        let log = std::fs::read_to_string(prometheus.directory.path().join("log")).unwrap_or_default();
        ready.with_context(|| format!("Prometheus says: {log}"))?;
        Ok(prometheus)
    }

    async fn get(&self, path: &str) -> anyhow::Result<reqwest::Response> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(client.get(format!("{}{path}", self.url)).send().await?.error_for_status()?)
    }

    /// The series that a query returns now.
    pub(super) async fn query(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let url = reqwest::Url::parse_with_params(&format!("{}/api/v1/query", self.url), [("query", query)])?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        let answer: Value = client.get(url).send().await?.json().await?;
        ensure!(answer["status"] == "success", "{query}: {answer}");
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until an alert fires, and returns its annotations.
    pub(super) async fn fires(&self, name: &str) -> anyhow::Result<Value> {
        poll(&format!("{name} fires"), async || {
            let answer: Value = self.get("/api/v1/alerts").await?.json().await?;
            let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
            let firing = |alert: &Value| alert["labels"]["alertname"] == name && alert["state"] == "firing";
            Ok(alerts.into_iter().find(firing).map(|alert| alert["annotations"].clone()))
        })
        .await
    }

    /// The names of the alerts that fire.
    pub(super) async fn firing(&self) -> anyhow::Result<BTreeSet<String>> {
        let series = self.query(r#"ALERTS{alertstate="firing"}"#).await?;
        Ok(series.iter().filter_map(|one| Some(one["metric"]["alertname"].as_str()?.to_owned())).collect())
    }
}

/// A name of a Kubernetes label as a part of a name of a Prometheus label.
fn label(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

/// Writes the pods as targets, with the labels that Prometheus' own discovery gives them. Debian's Prometheus has none for Kubernetes.
async fn discover(pods: Api<Pod>, file: PathBuf) {
    loop {
        if let Ok(found) = pods.list(&ListParams::default()).await {
            let targets: Vec<Value> = found.items.iter().flat_map(targets).collect();
            let new = file.with_extension("new");
            if std::fs::write(&new, Value::from(targets).to_string()).is_ok() {
                let _ = std::fs::rename(&new, &file);
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn targets(pod: &Pod) -> Vec<Value> {
    let status = pod.status.clone().unwrap_or_default();
    let (Some(ip), Some(spec)) = (status.pod_ip, &pod.spec) else { return Vec::new() };
    let mut labels = json!({
        "__meta_kubernetes_namespace": pod.metadata.namespace, "__meta_kubernetes_pod_name": pod.metadata.name,
        "__meta_kubernetes_pod_phase": status.phase, "__meta_kubernetes_pod_node_name": spec.node_name,
    });
    for (name, value) in pod.metadata.labels.iter().flatten() {
        let name = label(name);
        labels[format!("__meta_kubernetes_pod_label_{name}")] = value.as_str().into();
        labels[format!("__meta_kubernetes_pod_labelpresent_{name}")] = "true".into();
    }
    let ports = spec
        .containers
        .iter()
        .flat_map(|container| container.ports.iter().flatten().map(move |port| (container, port)));
    ports
        .map(|(container, port)| {
            let mut labels = labels.clone();
            labels["__meta_kubernetes_pod_container_name"] = container.name.as_str().into();
            labels["__meta_kubernetes_pod_container_port_name"] = port.name.clone().into();
            json!({"targets": [format!("{ip}:{}", port.container_port)], "labels": labels})
        })
        .collect()
}

/// The alerts as a file of rules, without the times that they have to hold.
fn rules() -> anyhow::Result<Value> {
    let mut text = deploy::monitoring::ALERTS.to_owned();
    for (long, short) in SHORTENED {
        ensure!(text.contains(long), "no alert has '{long}'");
        text = text.replace(long, short);
    }
    let mut rules: Value = serde_saphyr::from_str(&text)?;
    for group in rules["groups"].as_array_mut().into_iter().flatten() {
        for rule in group["rules"].as_array_mut().into_iter().flatten() {
            rule.as_object_mut().context("a rule")?.remove("for");
        }
    }
    Ok(rules)
}

/// The configuration that the Prometheus operator makes of the PodMonitor, and what differs in the test cluster: pods listen on
/// loopback addresses.
fn configuration(beside: &[String]) -> anyhow::Result<Value> {
    let monitor = deploy::monitoring::pod_monitor();
    let spec = &monitor["spec"];
    let keep = |name: &str, values: &str| {
        let name = label(name);
        let sources =
            [format!("__meta_kubernetes_pod_label_{name}"), format!("__meta_kubernetes_pod_labelpresent_{name}")];
        json!({"action": "keep", "source_labels": sources, "regex": format!("({values});true")})
    };
    let mut relabel = Vec::new();
    for (name, value) in spec["selector"]["matchLabels"].as_object().context("matchLabels")? {
        relabel.push(keep(name, value.as_str().unwrap_or_default()));
    }
    for expression in spec["selector"]["matchExpressions"].as_array().context("matchExpressions")? {
        ensure!(expression["operator"] == "In");
        let values: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        relabel.push(keep(expression["key"].as_str().unwrap_or_default(), &values.join("|")));
    }
    let endpoint = &spec["podMetricsEndpoints"][0];
    let source = |from: &str, to: &str| json!({"source_labels": [from], "target_label": to});
    relabel.extend([
        json!({"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"}),
        json!({"action": "keep", "source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"]}),
        source("__meta_kubernetes_namespace", "namespace"),
        source("__meta_kubernetes_pod_container_name", "container"),
        source("__meta_kubernetes_pod_name", "pod"),
        json!({"target_label": "job", "replacement": "podMonitor"}),
        json!({
            "source_labels": [format!("__meta_kubernetes_pod_label_{}", label(spec["jobLabel"].as_str().unwrap_or_default()))],
            "target_label": "job", "regex": "(.+)", "replacement": "$1",
        }),
        json!({"target_label": "endpoint", "replacement": endpoint["port"]}),
    ]);
    for own in endpoint["relabelings"].as_array().into_iter().flatten() {
        relabel.push(json!({
            "action": own["action"], "source_labels": own["sourceLabels"], "target_label": own["targetLabel"],
        }));
    }
    relabel.push(json!({
        "source_labels": ["__address__"], "target_label": "__address__", "regex": r"10\.(.+)", "replacement": "127.$1",
    }));
    let pods = json!({
        "job_name": "podMonitor", "metrics_path": endpoint["path"], "relabel_configs": relabel,
        "file_sd_configs": [{"files": [TARGETS], "refresh_interval": "1s"}],
    });
    let others = json!({"job_name": "brupop-controller", "static_configs": [{"targets": beside}]});
    Ok(json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [pods, others],
    }))
}
