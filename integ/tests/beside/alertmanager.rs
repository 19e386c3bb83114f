//! Alertmanager itself beside the operator, with the hook of `examples/hooks` that silences the alerts about a node while it is updated: once
//! as a program that runs all the time, and once by Jobs.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::oracle::{ClusterState, Field};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use models::names::{HOLD_ANNOTATION, HOOK_ANSWER_PREFIX, HOOK_LABEL};
use models::shadow::Step;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::programs::{self, Program, port};
use crate::scripted::bed::{Held, NEW, ScriptedCluster, poll};
use crate::scripted::on_stage;

/// The folder with the examples.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
/// The namespace of the examples.
const NAMESPACE: &str = "brupop-hooks";
const NODES: [&str; 2] = ["node-1", "node-2"];

/// A running Alertmanager.
struct Alertmanager {
    program: Program,
    url: String,
    /// The search path for the scripts: with `amtool` and `kubectl`.
    path: String,
    client: reqwest::Client,
}

/// The documents of an example.
fn example(path: &str) -> anyhow::Result<Vec<Value>> {
    let path = format!("{EXAMPLES}/{path}");
    Ok(serde_saphyr::from_multiple(&std::fs::read_to_string(&path).with_context(|| path.clone())?)?)
}

impl Alertmanager {
    /// Starts it, with an alert about each node that goes on.
    async fn start(cluster: &ScriptedCluster) -> anyhow::Result<Self> {
        let folder = programs::folder("alertmanager").await?;
        let bed = cluster.stage.control_plane.dir();
        let config = bed.join("alertmanager.json");
        std::fs::write(&config, json!({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}).to_string())?;
        let port = port()?;
        let arguments = [
            format!("--config.file={}", config.display()),
            format!("--storage.path={}", bed.join("alertmanager").display()),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--cluster.listen-address=".to_owned(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut program = Program::start(&cluster.stage.control_plane, "alertmanager", &arguments, &[]).await?;
        let url = format!("http://127.0.0.1:{port}");
        program.ready(&format!("{url}/-/ready")).await?;
        let kubectl = cluster.stage.control_plane.kubectl().parent().context("kubectl is in a folder")?;
        let path = format!("{}:{}:{}", folder.display(), kubectl.display(), std::env::var("PATH")?);
        let alertmanager = Self { program, url, path, client: reqwest::Client::builder().no_proxy().build()? };
        let alerts: Vec<Value> = NODES
            .iter()
            .map(
                |node| json!({"labels": {"alertname": "NodeNotReady", "node": node}, "endsAt": "2999-01-01T00:00:00Z"}),
            )
            .collect();
        let posted = alertmanager.client.post(format!("{}/api/v2/alerts", alertmanager.url)).json(&alerts).send();
        posted.await?.error_for_status()?;
        for node in NODES {
            alertmanager.until_alert(node, "active").await?;
        }
        Ok(alertmanager)
    }

    async fn get(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        Ok(self.client.get(format!("{}{path}", self.url)).send().await?.error_for_status()?.json().await?)
    }

    /// The state of the alert about a node: `active`, or `suppressed` by a silence.
    async fn alert(&self, node: &str) -> anyhow::Result<String> {
        let alerts = self.get("/api/v2/alerts").await?;
        let alert = alerts.iter().find(|alert| alert["labels"]["node"] == node).context("the alert is gone")?;
        Ok(alert["status"]["state"].as_str().unwrap_or_default().to_owned())
    }

    async fn until_alert(&self, node: &str, state: &str) -> anyhow::Result<()> {
        poll(&format!("the alert about {node} is {state}"), async || {
            Ok((self.alert(node).await? == state).then_some(()))
        })
        .await
    }

    /// The number of silences that are in force.
    async fn silences(&self) -> anyhow::Result<usize> {
        let silences = self.get("/api/v2/silences").await?;
        Ok(silences.iter().filter(|silence| silence["status"]["state"] == "active").count())
    }

    /// Starts the loop of the example, which answers for the hook.
    fn start_loop(&self, cluster: &ScriptedCluster) -> anyhow::Result<Child> {
        let kubectl = cluster.stage.control_plane.kubectl_command();
        let output = std::fs::File::create(cluster.stage.control_plane.dir().join("silence.log"))?;
        let mut command = Command::new(format!("{EXAMPLES}/hooks/hook-loop.sh"));
        command.args(["silence", &format!("{EXAMPLES}/hooks/silence.sh")]);
        command.envs(kubectl.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("KUBECONFIG", cluster.stage.control_plane.kubeconfig());
        command.env("PATH", &self.path).env("ALERTMANAGER_URL", &self.url).env("HOOK_PAUSE", "0.2");
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).kill_on_drop(true);
        Ok(command.spawn()?)
    }

    /// Plays the kubelet for the pods of the hook's Jobs: runs the command of each as it stands in the example.
    async fn run_jobs(&self, cluster: &ScriptedCluster) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        loop {
            let all = pods.list(&ListParams::default().labels(HOOK_LABEL)).await?;
            let waits = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending");
            for pod in all.items.iter().filter(waits) {
                let phase = if self.run_pod(pod).await? { "Succeeded" } else { "Failed" };
                let status = Patch::Merge(json!({"status": {"phase": phase}}));
                pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await?;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn run_pod(&self, pod: &Pod) -> anyhow::Result<bool> {
        let container =
            pod.spec.as_ref().and_then(|spec| spec.containers.first()).context("a pod without a container")?;
        let line = container.command.as_ref().and_then(|command| command.last()).context("a pod without a command")?;
        let mut command = Command::new("sh");
        command.args(["-c", &line.replace("/hooks/", &format!("{EXAMPLES}/hooks/"))]).env("PATH", &self.path);
        for variable in container.env.iter().flatten() {
            let field = variable.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
            let key =
                field.and_then(|field| field.field_path.strip_prefix("metadata.annotations['")?.strip_suffix("']"));
            let value = match key {
                Some(key) => pod.annotations().get(key).cloned(),
                None => variable.value.clone(),
            };
            command.env(&variable.name, value.unwrap_or_default());
        }
        Ok(command.status().await?.success())
    }

    /// Updates both nodes, one of which a user holds in the middle. The alert about a node is silenced while its attempt lasts, and no other.
    async fn update(&self, cluster: &ScriptedCluster) -> anyhow::Result<()> {
        for node in NODES {
            cluster.fleet.script(node, |behaviour| behaviour.held = Some(Held::Activation));
        }
        cluster.fleet.release(NEW);
        let in_reboot = |world: &ClusterState| NODES.into_iter().find(|node| world.step(node) == Some(Step::Rebooting));
        let world = cluster.until("a node is about to reboot", |world| in_reboot(world).is_some()).await?;
        let first = in_reboot(&world).context("just seen")?;
        let second = if first == NODES[0] { NODES[1] } else { NODES[0] };
        self.until_alert(first, "suppressed").await?;
        ensure!(self.alert(second).await? == "active", "the alert about {second} is silenced, too");
        ensure!(self.silences().await? == 1, "one silence");
        cluster.fleet.script(first, |behaviour| behaviour.held = None);
        cluster.until("it is updated", |world| world.is_updated(first, &NEW)).await?;
        self.until_alert(first, "active").await?;
        self.until_alert(second, "suppressed").await?;
        // The attempt ends by a hold: what was prepared is taken back in any case.
        self.hold(cluster, second, json!("audit")).await?;
        cluster.outlive_permit(second).await?;
        self.until_alert(second, "active").await?;
        cluster.fleet.script(second, |behaviour| behaviour.held = None);
        self.hold(cluster, second, Value::Null).await
    }

    async fn hold(&self, cluster: &ScriptedCluster, node: &str, value: Value) -> anyhow::Result<()> {
        cluster.patch_node(node, json!({"metadata": {"annotations": {HOLD_ANNOTATION: value}}})).await
    }
}

/// Waits until every node is updated, no answer is left and no silence is in force.
async fn ends(cluster: &ScriptedCluster, alertmanager: &Alertmanager) -> anyhow::Result<()> {
    cluster.pass(Duration::from_hours(1)).await?;
    cluster.updated().await?;
    let answer = Field::Annotation(format!("{HOOK_ANSWER_PREFIX}silence"));
    let answered = |world: &ClusterState| world.nodes.values().any(|node| node.fields.contains_key(&answer));
    cluster.until("no answer is left", |world| !answered(world)).await?;
    poll("no silence is in force", async || Ok((alertmanager.silences().await? == 0).then_some(()))).await
}

/// The hook of an example's policy.
fn silence_of(policy: &str) -> anyhow::Result<Value> {
    let mut policy = example(policy)?.remove(0);
    let hooks = policy["spec"]["hooks"].as_array_mut().context("a policy without hooks")?;
    hooks.retain(|hook| hook["name"] == "silence");
    ensure!(hooks.len() == 1, "the example has no hook `silence`");
    Ok(json!({"hooks": hooks}))
}

#[tokio::test(flavor = "multi_thread")]
async fn hook_silences_the_alerts_about_a_node_while_it_is_updated() -> anyhow::Result<()> {
    on_stage(async |cluster| {
        let alertmanager = Alertmanager::start(cluster).await?;
        let _hook = alertmanager.start_loop(cluster)?;
        let result = async {
            cluster.start(2, silence_of("policies/hooks.yaml")?).await?;
            alertmanager.update(cluster).await?;
            ends(cluster, &alertmanager).await
        };
        let result = result.await;
        alertmanager.program.end(result).await
    })
    .await
}

/// Applies what the page about hooks has users apply for Jobs, with the address of this Alertmanager. No node takes the pods: the test runs
/// them.
async fn grant(cluster: &ScriptedCluster, alertmanager: &Alertmanager) -> anyhow::Result<()> {
    let templates = std::fs::read_to_string(format!("{EXAMPLES}/hooks/jobs.yaml"))?;
    let changed = templates
        .replace("http://alertmanager.monitoring.svc:9093", &alertmanager.url)
        .replace("restartPolicy: Never", "restartPolicy: Never\n    schedulerName: none");
    ensure!(changed.contains(&alertmanager.url) && changed.contains("schedulerName"), "the example has changed");
    let file = cluster.stage.control_plane.dir().join("jobs.yaml");
    std::fs::write(&file, changed)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rights = ["deploy/manifests/jobs.yaml", "examples/hooks/jobs-rights.yaml"].map(|path| root.join(path));
    for path in std::iter::once(&file).chain(&rights) {
        let mut kubectl = cluster.stage.control_plane.kubectl_command();
        let applied = kubectl.args(["apply", "--server-side", "-f"]).arg(path).output().await?;
        ensure!(applied.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&applied.stderr));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_silence_the_alerts_about_a_node_while_it_is_updated() -> anyhow::Result<()> {
    on_stage(async |cluster| {
        let alertmanager = Alertmanager::start(cluster).await?;
        let result = async {
            grant(cluster, &alertmanager).await?;
            let mut policy = silence_of("policies/hooks.yaml")?;
            policy["hooks"][0]["job"] =
                json!({"namespace": NAMESPACE, "before": "silence-start", "after": "silence-end"});
            cluster.start(2, policy).await?;
            let case = async {
                alertmanager.update(cluster).await?;
                ends(cluster, &alertmanager).await
            };
            tokio::select! {
                result = case => result,
                result = alertmanager.run_jobs(cluster) => result,
            }
        };
        let result = result.await;
        alertmanager.program.end(result).await
    })
    .await
}
