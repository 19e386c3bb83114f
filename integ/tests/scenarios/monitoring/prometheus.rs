//! A real Prometheus that finds the operator's pods as the Prometheus operator lets it: by the PodMonitor of
//! `deploy/monitoring`, turned into a configuration by the same rules.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::interfere::poll;
use crate::support::ScenarioContext;

/// Times of the alerts that a test cannot wait for, and those that it waits for instead.
const SHORTENED: [(&str, &str); 4] =
    [("> 300 unless", "> 1 unless"), ("> 1800", "> 3"), ("< 3 * 86400", "< 100 * 86400"), ("[10m]", "[1m]")];

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
    _directory: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
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
        let config = configuration(ctx.bed.control_plane.kubeconfig(), beside)?;
        std::fs::write(file("prometheus.json"), config.to_string())?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let log = std::fs::File::create(file("log"))?;
        let process = Command::new(programs.join("prometheus"))
            .arg(format!("--config.file={}", file("prometheus.json").display()))
            .arg(format!("--storage.tsdb.path={}", file("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .env_remove("HTTPS_PROXY")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start Prometheus")?;
        let prometheus = Self { url: format!("http://127.0.0.1:{port}"), process, _directory: directory };
        let ready = poll("Prometheus is ready", async || Ok(prometheus.get("/-/ready").await.ok().map(drop))).await;
        let log = std::fs::read_to_string(prometheus._directory.path().join("log")).unwrap_or_default();
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
fn configuration(kubeconfig: &Path, beside: &[String]) -> anyhow::Result<Value> {
    let monitor = deploy::monitoring::pod_monitor();
    let (meta, spec) = (&monitor["metadata"], &monitor["spec"]);
    let label = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
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
        "kubernetes_sd_configs": [{
            "role": "pod", "kubeconfig_file": kubeconfig, "namespaces": {"names": [meta["namespace"]]},
        }],
    });
    let others = json!({"job_name": "brupop-controller", "static_configs": [{"targets": beside}]});
    Ok(json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [pods, others],
    }))
}
