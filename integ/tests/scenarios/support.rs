//! Shared parts of the scenarios: running and judging them, and waits over the API server's history.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use integ::bed::{TestCluster, TestClusterOptions, workload};
use integ::durations::Stopwatch;
use integ::host::EventKind;
use integ::oracle::{ClusterState, Expectations, Field, History, Node, Property, Shadow, Verdict};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use models::condition::{Condition, ConditionStatus, find_condition};
use models::names::{AGENT_NAMESPACE, CONTROLLER, OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::{BottlerocketUpdateOperator, BottlerocketUpdateOperatorStatus};
use models::shadow::{Record, Step};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use semver::Version;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::interfere::poll;

/// Number of scenarios that run at a time, if the test runner has as many threads (`make` sets that).
const AT_ONCE: usize = 8;
static RUNNING: Semaphore = Semaphore::const_new(AT_ONCE);

/// Longest wait for anything in a scenario; nothing is measured by it.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// Environment variable with the seed of a run to repeat.
const SEED: &str = "BRUPOP_SEED";

/// Namespace of the workloads.
pub(crate) const SHOP: &str = "shop";

/// The version that the nodes run at first.
pub(crate) const OLD: Version = Version::new(1, 20, 0);
/// The version that is released during a scenario.
pub(crate) const NEW: Version = Version::new(1, 20, 5);

/// A running scenario.
pub(crate) struct ScenarioContext {
    /// The test cluster: control plane and nodes. [`ScenarioContext::install`] installs the operator.
    pub(crate) bed: TestCluster,
    /// Random numbers of the scenario.
    pub(crate) rng: StdRng,
}

/// A scenario after its end.
pub(crate) struct ScenarioResult {
    /// The API server's whole history.
    pub(crate) history: History,
    /// The oracle's verdict: safe, or [`run`] would have failed.
    pub(crate) verdict: Verdict,
}

impl ScenarioResult {
    /// Asserts that so many attempts were made, all of which ended with an update.
    pub(crate) fn assert_updates(&self, updates: usize) {
        let found = self.history.ensure_updates(updates);
        assert!(found.is_ok(), "{found:?}");
    }

    /// The cluster state at the end.
    pub(crate) fn world(&self) -> ClusterState {
        self.history.end()
    }
}

/// Runs a scenario on its own test cluster, and judges it: all safety properties must hold, and no claim may be left.
pub(crate) async fn run(
    options: TestClusterOptions,
    scenario: impl AsyncFnOnce(&mut ScenarioContext) -> anyhow::Result<()>,
) -> anyhow::Result<ScenarioResult> {
    run_expecting(options, Expectations { max_unavailable: Some(1), nothing_left: true }, scenario).await
}

/// The same with other expectations.
pub(crate) async fn run_expecting(
    options: TestClusterOptions,
    expectations: Expectations,
    scenario: impl AsyncFnOnce(&mut ScenarioContext) -> anyhow::Result<()>,
) -> anyhow::Result<ScenarioResult> {
    run_except(None, options, expectations, scenario).await
}

/// The same, where one property cannot hold for reasons outside of the operator.
pub(crate) async fn run_except(
    lost: Option<Property>,
    options: TestClusterOptions,
    expectations: Expectations,
    scenario: impl AsyncFnOnce(&mut ScenarioContext) -> anyhow::Result<()>,
) -> anyhow::Result<ScenarioResult> {
    let _turn = RUNNING.acquire().await?;
    let _stopwatch = Stopwatch::start(std::thread::current().name().unwrap_or("a scenario"));
    let seed = match std::env::var(SEED) {
        Ok(text) => text.parse().with_context(|| format!("{SEED} is no number"))?,
        Err(_) => rand::random::<u64>(),
    };
    // Shown with a failure, also a panic.
    println!("{SEED}={seed} repeats the choices of this run");
    let began = Timestamp::now();
    let bed = TestCluster::start(options).await?;
    let mut ctx = ScenarioContext { bed, rng: StdRng::seed_from_u64(seed) };
    let outcome = scenario(&mut ctx).await;
    if outcome.is_ok() && expectations.nothing_left {
        // A scenario may end with the release of its last node; the slot follows. The oracle reports what stays.
        let clear = |world: &ClusterState| {
            world.nodes.values().all(|node| (node.held() || !node.claimed()) && node.hook_request().is_none())
                && world.operator.as_ref().is_none_or(|operator| operator.status.slots.is_empty())
        };
        let _ = ctx.bed.wait_state("no node has a claim or a slot", LIMIT, clear).await;
    }
    let so_far = ctx.bed.recorder.so_far()?;
    let defect_log_lines = ctx.bed.defect_log_lines()?;
    let diagnostics = outcome.is_err().then(|| ctx.diagnostics());
    let judged = ctx.bed.judge(&expectations).await;
    let repeat = || format!("{SEED}={seed} repeats its choices; it began at {began} and ended at {}", Timestamp::now());
    if let Err(error) = outcome {
        let verdict = judged.map_or_else(|error| format!("{error:#}"), |(verdict, _)| verdict.to_string());
        let diagnostics = diagnostics.unwrap_or_default();
        // The cause comes first: a long output may be cut.
        return Err(anyhow::anyhow!(
            "the scenario failed: {error:#}; {}\n{}{diagnostics}{defect_log_lines}oracle: {verdict}\n",
            repeat(),
            timeline(&so_far, began)
        ));
    }
    let (mut verdict, history) = judged?;
    verdict.violations.retain(|violation| Some(violation.property) != lost);
    verdict.ensure_safe().with_context(|| format!("unsafe; {}\n{}", repeat(), timeline(&history, began)))?;
    anyhow::ensure!(
        defect_log_lines.is_empty(),
        "the operator's own output shows a defect; {}\n{defect_log_lines}",
        repeat()
    );
    let stats = &verdict.stats;
    anyhow::ensure!(
        stats.permits == 0 || stats.node_writes > 0,
        "a permit without a write to any node: {stats:?}; {}",
        repeat()
    );
    Ok(ScenarioResult { history, verdict })
}

/// Options for so many nodes, without the operator's second and third pods, which a scenario about the nodes does not
/// need.
pub(crate) fn nodes(nodes: usize) -> TestClusterOptions {
    TestClusterOptions {
        nodes,
        deploy: deploy::Options { controller_replicas: 1, apiserver_replicas: 1, ..deploy::Options::default() },
        ..TestClusterOptions::default()
    }
}

/// The timeline of a run, for the analysis of a failure.
fn timeline(history: &History, began: Timestamp) -> String {
    let mut text = String::new();
    for moment in history.timeline() {
        let seconds = moment.at.duration_since(began).as_secs_f64();
        let _ = writeln!(text, "  {seconds:7.2} s  {:>6}  {:<8} {}", moment.revision, moment.node, moment.text);
    }
    let world = history.end();
    for shadow in world.shadows.values() {
        for condition in &shadow.status.conditions {
            let Condition { type_, status, reason, message, .. } = condition;
            let _ = writeln!(text, "  at the end: {}: {type_} {status:?} {reason}: {message}", shadow.node());
        }
    }
    for pod in world.pods.values().filter(|pod| !pod.ready && !pod.finished) {
        let node = pod.node.as_deref().unwrap_or("no node");
        let _ = writeln!(text, "  at the end: pod {}/{} on {node} is not Ready", pod.namespace, pod.name);
    }
    text
}

impl ScenarioContext {
    /// Installs the operator and waits until every agent has reported.
    pub(crate) async fn install(&self) -> anyhow::Result<()> {
        self.bed.install().await?;
        self.reported().await
    }

    /// Waits until every agent has reported what its host runs and offers.
    pub(crate) async fn reported(&self) -> anyhow::Result<()> {
        let nodes = self.bed.members.len();
        self.until("every agent has reported", |world| {
            let reported = world.nodes.values().filter(|node| {
                world.shadow_of(node).is_some_and(|shadow| {
                    let agent = &shadow.status.agent;
                    agent.boot_id.as_deref() == Some(node.boot_id.as_str()) && agent.updates.is_some()
                })
            });
            reported.count() >= nodes
        })
        .await?;
        Ok(())
    }

    /// Creates a Deployment `web` of so many pods, with a budget that lets one of them go at a time, and waits until
    /// all are Ready.
    pub(crate) async fn shop(&self, pods: usize) -> anyhow::Result<()> {
        self.shop_with(pods, json!({"maxUnavailable": 1})).await
    }

    /// The same with another budget.
    pub(crate) async fn shop_with(&self, pods: usize, limit: Value) -> anyhow::Result<()> {
        // A node that still has its first taint would get none of the pods.
        self.until("every node takes pods", |world| {
            let taints = |node: &Node| node.fields.get(&Field::Taints).cloned().unwrap_or_default();
            let takes = |node: &Node| node.ready && !taints(node).contains("node.kubernetes.io/not-ready");
            world.nodes.len() >= self.bed.members.len() && world.nodes.values().all(|node| takes(node))
        })
        .await?;
        let mut objects = workload::web(SHOP, pods, json!(1));
        objects.pop();
        objects.push(workload::budget(SHOP, "web", limit));
        workload::apply(&self.bed.client, objects).await?;
        self.shop_is_ready(pods).await
    }

    /// Creates the same Deployment with a budget that allows nothing although all pods are healthy: they are asked first, and stay.
    pub(crate) async fn guarded_shop(&self, pods: usize) -> anyhow::Result<()> {
        self.shop_with(pods, json!({"minAvailable": pods})).await
    }

    /// Has the pods of the workload created again, which spreads them over all nodes.
    pub(crate) async fn spread_shop(&self) -> anyhow::Result<()> {
        self.kubectl(&["-n", SHOP, "delete", "pods", "--all"]).await.map(drop)
    }

    /// Waits until so many pods of the workload are Ready and their budget knows it.
    pub(crate) async fn shop_is_ready(&self, pods: usize) -> anyhow::Result<()> {
        self.until(&format!("{pods} pods of the workload are Ready"), |world| {
            let known =
                world.budgets.values().filter(|b| b.namespace == SHOP).all(|b| b.current_healthy as usize == pods);
            world.ready_pods(SHOP) == pods && known
        })
        .await?;
        Ok(())
    }

    /// Waits until the cluster state meets a condition.
    pub(crate) async fn until(
        &self,
        what: &str,
        holds: impl FnMut(&ClusterState) -> bool,
    ) -> anyhow::Result<ClusterState> {
        self.bed.wait_state(what, LIMIT, holds).await
    }

    /// Waits until a node is in a step of an attempt.
    pub(crate) async fn until_step(&self, node: &str, step: Step) -> anyhow::Result<ClusterState> {
        self.until(&format!("{node} is in {step:?}"), |world| step_of(world, node) == Some(step)).await
    }

    /// Waits until the operator's resource has a condition, true or false, and returns it.
    pub(crate) async fn until_operator(&self, type_: &str, status: ConditionStatus) -> anyhow::Result<Condition> {
        let world = self
            .until(&format!("the operator's resource says {type_}={status:?}"), |world| {
                world.operator_condition(type_).is_some_and(|c| c.status == status)
            })
            .await?;
        world.operator_condition(type_).cloned().context("just seen")
    }

    /// Releases [`NEW`] to all hosts.
    pub(crate) fn release(&self) {
        self.bed.releases.publish(NEW);
    }

    /// Waits until every node is on [`NEW`], idle and released.
    pub(crate) async fn updated(&self) -> anyhow::Result<History> {
        self.bed.wait_updated(&NEW, LIMIT).await
    }

    /// Runs `kubectl` as the cluster's administrator and returns what it prints.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.bed.control_plane.kubectl_command().args(arguments).output().await?;
        anyhow::ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Changes the policy as `kubectl patch` does: a merge patch over `spec`.
    pub(crate) async fn policy(&self, spec: &Value) -> anyhow::Result<()> {
        let kubectl = PatchParams { field_manager: Some("kubectl-patch".to_owned()), ..PatchParams::default() };
        self.policies().patch(OPERATOR_NAME, &kubectl, &Patch::Merge(json!({"spec": spec}))).await?;
        Ok(())
    }

    /// The operator's resources, as they are, whatever a version of the types knows of them.
    pub(crate) fn policies(&self) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<BottlerocketUpdateOperator>(&());
        Api::namespaced_with(self.bed.client.clone(), SYSTEM_NAMESPACE, &kind)
    }

    /// Deletes the pods of a component of the operator, which its workload then replaces.
    pub(crate) async fn restart(&self, component: deploy::Component) -> anyhow::Result<()> {
        let namespace = if component == deploy::Component::Agent { AGENT_NAMESPACE } else { SYSTEM_NAMESPACE };
        let selector = format!("app.kubernetes.io/component={}", component.name());
        let output = self.kubectl(&["-n", namespace, "delete", "pod", "-l", &selector]).await?;
        anyhow::ensure!(output.contains("deleted"), "there was no pod to restart: {output}");
        Ok(())
    }

    /// Waits until the leader has renewed its lease so often: it has worked since then.
    pub(crate) async fn renewals(&self, times: usize) -> anyhow::Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.bed.client.clone(), SYSTEM_NAMESPACE);
        let only = watcher::Config::default().fields(&format!("metadata.name={CONTROLLER}"));
        // The first object is the current lease.
        let stream = watcher(leases, only).applied_objects().take(times + 1);
        tokio::time::timeout(LIMIT, stream.try_collect::<Vec<_>>()).await.context("the lease is not renewed")??;
        Ok(())
    }

    /// The end of the output of the operator's pods, and the requests to the hosts.
    fn diagnostics(&self) -> String {
        const LINES: usize = 25;
        let mut text = String::new();
        for path in self.bed.log_files() {
            let content = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = content.lines().collect();
            let _ = writeln!(text, "--- {}", path.display());
            for line in &lines[lines.len().saturating_sub(LINES)..] {
                let _ = writeln!(text, "{line}");
            }
        }
        for member in &self.bed.members {
            let _ = writeln!(text, "--- host {}", member.name);
            let log = member.host.log();
            for event in log.iter().rev().take(LINES).rev() {
                let kind = match &event.kind {
                    EventKind::Call { method, path, status, .. } => format!("{method} {path} {status:?}"),
                    other => format!("{other:?}"),
                };
                let _ = writeln!(text, "{} {kind}", event.at);
            }
        }
        text
    }
}

/// The shadow of a node, by the node's name.
pub(crate) fn shadow_of<'a>(world: &'a ClusterState, node: &str) -> Option<&'a Shadow> {
    world.shadow_of(world.nodes.get(node)?).map(AsRef::as_ref)
}

/// The step that a node is in.
pub(crate) fn step_of(world: &ClusterState, node: &str) -> Option<Step> {
    shadow_of(world, node)?.step()
}

/// A condition of a node's shadow.
pub(crate) fn condition_of<'a>(world: &'a ClusterState, node: &str, type_: &str) -> Option<&'a Condition> {
    find_condition(&shadow_of(world, node)?.status.conditions, type_)
}

/// Namespace of Events about Nodes.
pub(crate) const EVENTS_OF_NODES: &str = "default";

/// Returns true if a node runs this version, has no attempt under way and nothing of the operator on it.
pub(crate) fn is_on(world: &ClusterState, node: &str, version: &Version) -> bool {
    world.nodes.get(node).is_some_and(|node| !node.claimed())
        && shadow_of(world, node).is_some_and(|shadow| {
            shadow.status.agent.current_version.as_ref() == Some(version) && shadow.step().is_none()
        })
}

/// The status of the operator's resource.
pub(crate) fn status(world: &ClusterState) -> BottlerocketUpdateOperatorStatus {
    world.operator.as_ref().map(|operator| operator.status.clone()).unwrap_or_default()
}

/// The record of a node's attempts.
pub(crate) fn record(world: &ClusterState, node: &str) -> Record {
    shadow_of(world, node).and_then(|shadow| shadow.status.controller.record.clone()).unwrap_or_default()
}

/// The reason of the end of a node's last attempt.
pub(crate) fn last_reason(world: &ClusterState, node: &str) -> Option<String> {
    record(world, node).last.map(|last| last.reason)
}

/// Returns true if a node has no attempt under way, and nothing of the operator on it.
pub(crate) fn is_released(world: &ClusterState, node: &str) -> bool {
    shadow_of(world, node).is_some_and(|shadow| shadow.step().is_none()) && !world.nodes[node].claimed()
}

/// Returns true if a node runs [`NEW`], and is released.
pub(crate) fn is_updated(world: &ClusterState, node: &str) -> bool {
    is_on(world, node, &NEW)
}

/// Waits until there is an Event with this reason whose text contains all of these, and returns the text.
pub(crate) async fn until_event(
    ctx: &ScenarioContext,
    namespace: &str,
    reason: &str,
    words: &[&str],
) -> anyhow::Result<String> {
    let events: Api<Event> = Api::namespaced(ctx.bed.client.clone(), namespace);
    let text = |event: Event| {
        let text = event.message.filter(|_| event.reason.as_deref() == Some(reason))?;
        words.iter().all(|word| text.contains(word)).then_some(text)
    };
    poll(&format!("an Event {reason} with {words:?}"), async || {
        Ok(events.list(&ListParams::default()).await?.items.into_iter().find_map(text))
    })
    .await
}

/// The metrics that a pod of the controller exports.
pub(crate) async fn controller_metrics(ctx: &ScenarioContext) -> anyhow::Result<String> {
    let pods: Api<Pod> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    let selector = format!("app.kubernetes.io/component={CONTROLLER}");
    let pods = pods.list(&ListParams::default().labels(&selector)).await?.items;
    let pod = pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
    let ip = pod.and_then(|pod| pod.status?.pod_ip).unwrap_or_default().parse()?;
    let url = format!("http://{}:8080/metrics", integ::kubelet::to_process(ip));
    Ok(reqwest::Client::builder().no_proxy().build()?.get(url).send().await?.error_for_status()?.text().await?)
}

/// Options for so many nodes that are not updated.
pub(crate) fn silent_fleet(count: usize) -> TestClusterOptions {
    let mut options = nodes(count);
    options.policy["enabled"] = json!(false);
    options
}

/// The other one of two nodes.
pub(crate) fn other(node: &str) -> &'static str {
    if node == "node-1" { "node-2" } else { "node-1" }
}
