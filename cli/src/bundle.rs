//! `kubectl brupop support-bundle`: one archive with the state of the operator, for those who are to help.
//!
//! Secrets are never read. A part that cannot be read is named in the archive, and the others are in it all the same.

mod archive;
mod trim;

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DynamicObject, ListParams, LogParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Client, ResourceExt as _};
use models::names;
use models::operator::without_user_information;
use serde_json::{Value, json};

use self::archive::Archive;
use self::trim::trim;
use crate::advice::some;
use crate::call::{call, installed, list, list_each, list_in};
use crate::cluster::Cluster;
use crate::files::create_private;
use crate::page::{print_line, progress};
use crate::status::{Look, Report, render, report};

/// Number of lines of each log, and its longest size.
const LOG_LINES: i64 = 5_000;
const LOG_BYTES: i64 = 1 << 20;

/// Number of agents whose logs are in the archive: of thousands, a few are enough.
const AGENTS: usize = 20;

/// Number of parts that a message names.
const NAMED: usize = 10;

const LEFT_OUT: [&str; 7] = [
    "Secrets are not read",
    "user names and passwords in URLs are removed",
    "values of environment variables are replaced by (left out)",
    "metadata.managedFields and copies of objects in annotations (last-applied-configuration) are removed",
    "Nodes are reduced to what concerns updates: no addresses, images, volumes, and no labels and annotations of others",
    "pods and other objects of your workloads are not in it; status and doctor name those that keep a node from its drain",
    "each log ends with its last 5,000 lines, at most 1 MiB; of the agents there are the logs of 20 at most, silent ones first",
];

#[derive(Debug, Args)]
pub(crate) struct BundleOptions {
    /// File to write. It must not exist. Default: brupop-support-TIME.tar.gz in the current folder.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Kinds of objects in a namespace: group, version and kind.
type Kind = (&'static str, &'static str, &'static str);

const RESOURCES: [Kind; 4] = [
    (names::GROUP, "v1", "BottlerocketUpdateOperator"),
    (names::GROUP, "v3", "BottlerocketShadow"),
    (names::GROUP, "v1", "BottlerocketRolloutHistory"),
    ("apps", "v1", "ControllerRevision"),
];

/// The operator's own workloads, and what they depend on.
const WORKLOADS: [Kind; 11] = [
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "ReplicaSet"),
    ("apps", "v1", "DaemonSet"),
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("", "v1", "ServiceAccount"),
    ("discovery.k8s.io", "v1", "EndpointSlice"),
    ("policy", "v1", "PodDisruptionBudget"),
    ("networking.k8s.io", "v1", "NetworkPolicy"),
    ("coordination.k8s.io", "v1", "Lease"),
    ("events.k8s.io", "v1", "Event"),
];

struct Bundle {
    archive: Archive<File>,
    /// Parts that could not be read.
    missing: Vec<String>,
}

impl Bundle {
    fn text(&mut self, path: &str, text: &str) -> anyhow::Result<()> {
        self.archive.add(path, without_user_information(text).as_bytes()).context("the archive cannot be written")
    }

    fn json(&mut self, path: &str, value: &Value) -> anyhow::Result<()> {
        self.text(path, &serde_json::to_string_pretty(value).context("an object is no JSON")?)
    }

    /// Returns what was read; notes what could not be.
    fn part<T>(&mut self, path: &str, answer: anyhow::Result<T>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.missing.push(format!("{path}: {error:#}"));
                None
            }
        }
    }

    /// Adds the objects of a kind, as a file named after it in a folder, whose name ends with a slash.
    async fn objects(&mut self, client: &Client, namespace: &str, kind: Kind, folder: &str) -> anyhow::Result<()> {
        let (group, version, kind) = kind;
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let (api_version, plural) = (&resource.api_version, &resource.plural);
        let path = format!("{folder}{plural}.json");
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let listed = list(&api, ListParams::default()).await;
        let Some(objects) = self.part(&path, listed) else { return Ok(()) };
        let objects = objects.into_iter().map(|object| {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            object["kind"] = json!(kind);
            trim(object)
        });
        let items: Vec<Value> = objects.collect();
        self.json(&path, &json!({"apiVersion": api_version, "kind": format!("{kind}List"), "items": items}))
    }

    /// Adds the logs of a pod, those before its last restart too.
    async fn logs(&mut self, client: &Client, namespace: &str, pod: &Pod) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let containers: Vec<(String, bool)> =
            statuses.map(|container| (container.name.clone(), container.restart_count > 0)).collect();
        for (container, restarted) in containers {
            for previous in [false, true].into_iter().filter(|previous| !previous || restarted) {
                let suffix = if previous { ".previous" } else { "" };
                let path = format!("logs/{namespace}/{}/{container}{suffix}.log", pod.name_any());
                let params = LogParams {
                    container: Some(container.clone()),
                    previous,
                    tail_lines: Some(LOG_LINES),
                    limit_bytes: Some(LOG_BYTES),
                    timestamps: true,
                    ..LogParams::default()
                };
                let right = format!("get pods/log in {namespace}");
                let log = call(&right, pods.logs(&pod.name_any(), &params)).await;
                if let Some(log) = self.part(&path, log) {
                    self.text(&path, &log)?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) async fn bundle(client: &Client, namespace: &str, options: &BundleOptions) -> anyhow::Result<()> {
    let time = crate::clock::now();
    let folder = format!("brupop-support-{}", time.strftime("%Y%m%d-%H%M%S"));
    let path = options.output.clone().unwrap_or_else(|| PathBuf::from(format!("{folder}.tar.gz")));
    let file =
        create_private(&path).with_context(|| format!("{} cannot be created: use another --output", path.display()))?;
    let mut bundle = Bundle { archive: Archive::new(file, &folder, time), missing: Vec::new() };
    fill(&mut bundle, client, namespace, time).await?;
    let readme = readme(&bundle.missing, namespace, time);
    bundle.text("README.txt", &readme)?;
    bundle.archive.end().context("the archive cannot be written")?;
    print_line(format_args!("written: {}", path.display()));
    for sentence in LEFT_OUT {
        print_line(format_args!("left out: {sentence}"));
    }
    for part in &bundle.missing {
        print_line(format_args!("missing: {part}"));
    }
    print_line("Read it before you send it: names of nodes, pods and namespaces are in it.");
    Ok(())
}

async fn fill(bundle: &mut Bundle, client: &Client, namespace: &str, time: Timestamp) -> anyhow::Result<()> {
    progress("reading the state of the fleet ...");
    let version = call("get /version", client.apiserver_version()).await;
    let version = bundle.part("version.json", version).map(|version| version.git_version);
    let plugin = env!("CARGO_PKG_VERSION");
    bundle.json("version.json", &json!({"plugin": plugin, "kubernetes": version, "time": time}))?;
    let status = Cluster::read_now(client, namespace, |_| std::collections::BTreeSet::new()).await;
    let status = bundle.part("status", status).map(|cluster| report(&cluster, time));
    if let Some(report) = &status {
        bundle.json("status.json", &serde_json::to_value(report)?)?;
        let look = Look { all: true, ..Look::default() };
        bundle.text("status.txt", &render(report, look).to_string())?;
    }
    let diagnosis = crate::doctor::diagnose(client, namespace).await;
    if let Some(diagnosis) = bundle.part("doctor", diagnosis) {
        bundle.json("doctor.json", &serde_json::to_value(&diagnosis)?)?;
        bundle.text("doctor.txt", &diagnosis.page(None).to_string())?;
    }
    progress("reading objects ...");
    for kind in RESOURCES {
        bundle.objects(client, namespace, kind, "").await?;
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let mut items = Vec::new();
    let listed = list_each(&nodes, ListParams::default(), |node| items.push(trim::node(&node))).await;
    if bundle.part("nodes.json", listed).is_some() {
        bundle.json("nodes.json", &json!({"items": items}))?;
    }
    let mut namespaces = vec![namespace, names::AGENT_NAMESPACE];
    namespaces.dedup();
    for namespace in &namespaces {
        for kind in WORKLOADS {
            bundle.objects(client, namespace, kind, &format!("{namespace}/")).await?;
        }
    }
    node_events(bundle, client).await?;
    progress("reading logs ...");
    for namespace in namespaces {
        logs(bundle, client, namespace, status.as_ref()).await?;
    }
    Ok(())
}

/// Adds the Events of the operator about Nodes, which are in the namespace `default`.
async fn node_events(bundle: &mut Bundle, client: &Client) -> anyhow::Result<()> {
    use k8s_openapi::api::events::v1::Event;
    let listed = list_in::<Event>(client, "default", ListParams::default()).await;
    let Some(events) = bundle.part("events-of-nodes.json", listed) else { return Ok(()) };
    let ours = |event: &Event| {
        let about_node = event.regarding.as_ref().is_some_and(|object| object.kind.as_deref() == Some("Node"));
        about_node && event.reporting_controller.as_deref() == Some(names::CONTROLLER)
    };
    let events = events.into_iter().filter(ours);
    let items: Vec<Value> = events.map(|event| trim(serde_json::to_value(event).unwrap_or_default())).collect();
    bundle.json("events-of-nodes.json", &json!({"items": items}))
}

/// Adds the logs of the operator's pods in a namespace. Of the agents, those of silent ones come first.
async fn logs(bundle: &mut Bundle, client: &Client, namespace: &str, status: Option<&Report>) -> anyhow::Result<()> {
    let listed = list_in::<Pod>(client, namespace, installed()).await;
    let Some(pods) = bundle.part(&format!("logs/{namespace}"), listed) else { return Ok(()) };
    for pod in chosen(pods, status) {
        bundle.logs(client, namespace, &pod).await?;
    }
    Ok(())
}

/// Returns the pods whose logs are in the bundle.
fn chosen(pods: Vec<Pod>, status: Option<&Report>) -> Vec<Pod> {
    let is_agent = |pod: &Pod| pod.labels().get(names::COMPONENT_LABEL).is_some_and(|name| name == names::AGENT);
    let (mut agents, others): (Vec<Pod>, Vec<Pod>) = pods.into_iter().partition(is_agent);
    let rank = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        let report = status.and_then(|report| report.nodes.iter().find(|other| other.name == node));
        let silent = status.is_some_and(|report| report.silent_agents.iter().any(|agent| agent.node == node));
        match report {
            _ if silent => 0,
            Some(report) if report.has_failed() => 1,
            Some(report) if !report.is_current() => 2,
            _ => 3,
        }
    };
    agents.sort_by_cached_key(rank);
    agents.truncate(AGENTS);
    others.into_iter().chain(agents).collect()
}

fn readme(missing: &[String], namespace: &str, time: Timestamp) -> String {
    let mut text = format!(
        "Support bundle of the Bottlerocket update operator in the namespace {namespace}, made {time:.0} by \
         kubectl-brupop {}.\n\nLeft out:\n",
        env!("CARGO_PKG_VERSION")
    );
    for sentence in LEFT_OUT {
        text.push_str(&format!("* {sentence}\n"));
    }
    if missing.is_empty() {
        text.push_str("\nNothing is missing.\n");
    } else {
        let first = some(missing.iter().map(|part| part.split(':').next().unwrap_or_default()), NAMED);
        text.push_str(&format!("\nMissing, because it could not be read: {first}\n"));
        for part in missing {
            text.push_str(&format!("* {part}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::cluster::testing::{fleet, now};

    fn pod(name: &str, node: &str, component: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {names::COMPONENT_LABEL: component}}, "spec": {"nodeName": node, "containers": []},
        }))
        .unwrap()
    }

    #[test]
    fn logs_of_silent_and_failed_agents_come_first_and_their_number_is_limited() {
        let report = report(&fleet(), now());
        let mut pods: Vec<Pod> = (0..30).map(|n| pod(&format!("agent-{n:02}"), "updated", names::AGENT)).collect();
        pods.push(pod("of-failed", "failed", names::AGENT));
        pods.push(pod("of-silent", "silent", names::AGENT));
        pods.push(pod("controller", "updated", names::CONTROLLER));
        let chosen = chosen(pods, Some(&report));
        let names: Vec<String> = chosen.iter().map(kube::ResourceExt::name_any).collect();
        assert_eq!(names[..3], ["controller", "of-silent", "of-failed"]);
        assert_eq!(names.len(), 1 + AGENTS);
    }

    #[test]
    fn bundle_has_no_password_of_a_url() {
        let path = std::env::temp_dir().join(format!("brupop-bundle-{}.tar.gz", std::process::id()));
        let mut bundle =
            Bundle { archive: Archive::new(File::create(&path).unwrap(), "a", now()), missing: Vec::new() };
        let spec = json!({"prometheus": {"url": "http://me:hunter2@p:9090"}});
        bundle.json("operator.json", &json!({"spec": spec, "status": {"policyInForce": spec.to_string()}})).unwrap();
        bundle.text("a.log", "no answer from http://me:hunter2@p:9090").unwrap();
        bundle.archive.end().unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.matches("http://p:9090").count() == 3 && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn readme_names_what_is_missing() {
        let whole = readme(&[], "brupop-system", now());
        assert!(whole.contains("Nothing is missing.") && whole.contains("Secrets are not read"), "{whole}");
        let part = readme(&["nodes.json: you need the right to list nodes".to_owned()], "brupop-system", now());
        assert!(part.contains("* nodes.json: you need the right to list nodes\n"), "{part}");
    }
}
