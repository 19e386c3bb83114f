//! The fleet that all cases share, and the operations of a case on its part of it.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use integ::bed::{TestCluster, TestClusterOptions, TestNode, merge, workload};
use integ::control_plane;
use integ::oracle::{ClusterState, Expectations, Field, Shadow};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION, SYSTEM_NAMESPACE};
use models::shadow::{BLOCKED, Step};
use semver::Version;
use serde_json::{Value, json};

use crate::state::CaseState;

/// Longest wait for anything; nothing is measured by it. A claim whose shadow is gone stays for as long as a permit
/// could be valid, which is the longest wait of all.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// The new version.
pub(crate) const NEW: Version = Version::new(1, 20, 5);

/// Nodes besides those under test: the operator runs on them, and pods move to them.
const SPARE: usize = 3;

/// Keeps the scheduler from placing anything on a node under test but the case's own pods.
const TAINT: &str = "example.com/case";

/// Label on a node: its drain policy.
const POLICY: &str = "drain-policy";

/// The drain policy under which no budget keeps a drain from its beginning.
const FORCE_LATER: &str = "force-later";

fn drain_policy() -> Field {
    Field::Label(POLICY.to_owned())
}

/// The drain policies, each of a group of nodes. A failed attempt waits for a user's `retry`. A node gets a policy with a
/// timeout only once its drain has begun ([`Case::pass_deadline`]): how long a machine takes until then is not bounded.
fn policy() -> Value {
    let group =
        |name: &str, drain: Value| json!({"name": name, "selector": {"matchLabels": {POLICY: name}}, "drain": drain});
    json!({
        "version": {"refreshInterval": "1s"},
        "maxUnavailable": "100%",
        "health": {"after": {"soak": "1s"}},
        // The most, so that attempts that cases let fail brake no other one's.
        "failurePolicy": {"backOff": "1h", "maxConsecutiveFailures": 64},
        // Among others, a claim without an attempt is kept for this long: the hosts here go down at once.
        "deadlines": {"shutdown": "5s"},
        "loadBalancer": {"leaveBeforeDrain": "1s"},
        "nodeGroups": [
            group("evict-bare", json!({"barePods": "Evict", "atDeadline": "Force"})),
            group("keep-data", json!({"emptyDir": "Refuse"})),
            group("short", json!({"timeout": "1s"})),
            group(FORCE_LATER, json!({"atDeadline": "Force"})),
            group("force-bare", json!({"timeout": "1s", "atDeadline": "Force", "barePods": "Evict"})),
            group("wait", json!({"guardedPods": "Wait"})),
            group("short-guarded", json!({"guardedTimeout": "1s"})),
            group("cordoned", json!({"cordonedNodes": "Update"})),
            group("grace", json!({"gracePeriod": "1s", "atDeadline": "Force"})),
            group("impatient", json!({"skipTerminatingAfter": "1s"})),
            group("volumes", json!({"waitForVolumes": true})),
            group("volumes-short", json!({"waitForVolumes": true, "timeout": "1s"})),
        ],
    })
}

/// A control plane, its nodes and the operator.
pub(crate) struct Fleet {
    bed: TestCluster,
    unused_nodes: Mutex<VecDeque<String>>,
    spare: Vec<String>,
    /// The case of each node, for reports.
    cases: Mutex<BTreeMap<String, String>>,
}

impl Fleet {
    /// Starts so many nodes for cases, and some spare ones.
    pub(crate) async fn start(nodes: usize) -> anyhow::Result<Self> {
        let options = TestClusterOptions {
            nodes: nodes + SPARE,
            labelled: false,
            policy: policy(),
            proven: Some(NEW),
            deploy: deploy::Options { controller_replicas: 1, apiserver_replicas: 1, ..deploy::Options::default() },
            // No node stays without power. The heartbeats of so many nodes would be most of the requests.
            control_plane: control_plane::Options {
                node_monitor_grace: Duration::from_secs(200),
                ..control_plane::Options::default()
            },
            ..TestClusterOptions::default()
        };
        let bed = TestCluster::start(options).await?;
        let mut names: Vec<String> = bed.members.iter().map(|member| member.name.clone()).collect();
        let spare = names.split_off(nodes);
        let fleet =
            Self { bed, unused_nodes: Mutex::new(names.iter().cloned().collect()), spare, cases: Mutex::default() };
        let taint = format!("{TAINT}=true:NoSchedule");
        let arguments: Vec<&str> = ["taint", "nodes"].into_iter().chain(names.iter().map(String::as_str)).collect();
        fleet.kubectl(&[&arguments[..], &[&taint]].concat()).await?;
        fleet.bed.install().await?;
        // The right that `atDeadline: Force` needs. The behaviour without it is another scenario.
        let force = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/force.yaml");
        fleet.kubectl(&["apply", "--server-side", "-f", force]).await?;
        fleet.bed.releases.publish(NEW);
        Ok(fleet)
    }

    /// Judges the whole run.
    pub(crate) async fn judge(self) -> anyhow::Result<()> {
        let defect_log_lines = self.bed.defect_log_lines()?;
        anyhow::ensure!(defect_log_lines.is_empty(), "the operator's own output shows a defect:\n{defect_log_lines}");
        let (verdict, history) = self.bed.judge(&Expectations::default()).await?;
        // Text after the summary of a test binary counts as a failure of the run, and no case is run again.
        if verdict.violations.is_empty() {
            return Ok(());
        }
        println!("the oracle, over the history of all cases: {verdict}");
        let cases = self.cases.into_inner().unwrap_or_else(PoisonError::into_inner);
        for node in verdict.violations.iter().filter_map(|violation| violation.node.as_deref()) {
            println!("node {node}, case {}:", cases.get(node).map_or("-", String::as_str));
            for moment in history.timeline().into_iter().filter(|moment| moment.node == node) {
                println!("  {}  {:>6}  {}", moment.at, moment.revision, moment.text);
            }
        }
        verdict.ensure_safe()
    }

    fn take_node(&self) -> anyhow::Result<String> {
        let mut unused_nodes = self.unused_nodes.lock().unwrap_or_else(PoisonError::into_inner);
        unused_nodes.pop_front().context("more nodes are needed than the fleet has")
    }

    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.bed.control_plane.kubectl_command().args(arguments).output().await?;
        let message = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "kubectl {arguments:?}: {message}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// One case: a node that is to be updated, and a namespace for its pods. Cloning shares both.
#[derive(Clone)]
pub(crate) struct Case {
    fleet: Arc<Fleet>,
    /// The node under test.
    pub(crate) node: String,
    /// The namespace.
    pub(crate) namespace: String,
    /// Label of the nodes that the case's pods may run on.
    place: String,
}

impl Case {
    /// Assigns a case its node and its namespace.
    pub(crate) async fn new(fleet: Arc<Fleet>, name: &str) -> anyhow::Result<Self> {
        let node = fleet.take_node()?;
        let short = name.rsplit("::").next().unwrap_or(name);
        fleet.cases.lock().unwrap_or_else(PoisonError::into_inner).insert(node.clone(), name.to_owned());
        let namespace = format!("shop-of-{node}");
        let case = Self { fleet, place: format!("example.com/{node}"), node, namespace };
        case.apply(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": case.namespace, "annotations": {"example.com/case": short}},
        }))
        .await?;
        case.allow(&case.node).await?;
        Ok(case)
    }

    async fn allow(&self, node: &str) -> anyhow::Result<()> {
        self.label(node, &self.place, "yes").await
    }

    /// Sets a label of a node. Each case does it often, and `kubectl` would take longer to start.
    async fn label(&self, node: &str, label: &str, value: &str) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"labels": {label: value}}});
        let nodes: Api<Node> = Api::all(self.fleet.bed.client.clone());
        nodes.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Lets this case's pods move from the node under test to the spare nodes.
    pub(crate) async fn allow_spare_nodes(&self) -> anyhow::Result<()> {
        for node in &self.fleet.spare {
            self.allow(node).await?;
        }
        Ok(())
    }

    /// The machine of the node.
    pub(crate) fn member(&self) -> anyhow::Result<&TestNode> {
        self.fleet.bed.member(&self.node)
    }

    pub(crate) async fn apply(&self, object: Value) -> anyhow::Result<()> {
        workload::apply(&self.fleet.bed.client, vec![object]).await
    }

    /// Runs `kubectl` as an administrator.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.fleet.kubectl(arguments).await
    }

    /// Runs `kubectl` in the case's namespace.
    pub(crate) async fn kubectl_in_namespace(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.kubectl(&[&["-n", &self.namespace], arguments].concat()).await
    }

    /// A template of pods that run on the case's nodes, labelled `app: <app>`; `extra` is merged over it.
    pub(crate) fn template(&self, app: &str, extra: &Value) -> Value {
        let mut template = json!({
            "metadata": {"labels": {"app": app}},
            "spec": {
                "terminationGracePeriodSeconds": 5,
                "nodeSelector": {self.place.clone(): "yes"},
                "tolerations": [{"key": TAINT, "operator": "Exists"}],
                "containers": [{"name": "app", "image": "example.invalid/app:1"}],
            },
        });
        merge(&mut template, extra);
        template
    }

    /// A Deployment of so many pods on the node under test, labelled `app: <name>`; they may move to spare nodes.
    /// `extra` is merged over the pods' template.
    pub(crate) async fn deployment(&self, name: &str, pods: usize, extra: Value) -> anyhow::Result<()> {
        self.deployment_on_node(name, pods, extra).await?;
        self.allow_spare_nodes().await
    }

    /// The same, without any other node yet.
    pub(crate) async fn deployment_on_node(&self, name: &str, pods: usize, extra: Value) -> anyhow::Result<()> {
        let unready = extra["metadata"]["annotations"]["sim/never-ready"] == "true";
        self.apply(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "replicas": pods,
                "selector": {"matchLabels": {"app": name}},
                "template": self.template(name, &extra),
            },
        }))
        .await?;
        self.until(&format!("{pods} pods of {name} run on the node"), |state| {
            state.pods_of(name).iter().filter(|p| p.node.is_some() && !p.pending && p.ready != unready).count() == pods
        })
        .await?;
        Ok(())
    }

    /// A pod without a controller on the node under test, labelled `app: <name>`; `extra` is merged over it.
    pub(crate) async fn bare_pod(&self, name: &str, extra: &Value) -> anyhow::Result<()> {
        let mut pod = self.template(name, extra);
        merge(
            &mut pod,
            &json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"nodeName": self.node},
            }),
        );
        self.apply(pod).await?;
        self.until(&format!("{name} runs"), |state| state.pods_of(name).iter().any(|pod| pod.ready)).await?;
        Ok(())
    }

    /// Creates a budget over the pods labelled `app: <name>`, and waits until it counts so many healthy ones.
    pub(crate) async fn budget(&self, name: &str, healthy: usize, limit: Value) -> anyhow::Result<()> {
        self.apply(workload::budget(&self.namespace, name, limit)).await?;
        self.until(&format!("the budget {name} counts {healthy}"), |state| {
            let budget = state.world.budgets.get(&(state.namespace.clone(), name.to_owned()));
            budget.is_some_and(|budget| usize::try_from(budget.current_healthy) == Ok(healthy))
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn set_budget(&self, name: &str, spec: Value) -> anyhow::Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.fleet.bed.client.clone(), &self.namespace);
        budgets.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
        Ok(())
    }

    /// Uses a budget up: one more pod that it counts and that no node takes, so that no eviction is allowed; `pods` is
    /// the number of existing ones. Such a budget keeps a node from its drain, unless policy deletes pods at the deadline: the node
    /// has such a policy until [`Case::until_drain_blocked`].
    pub(crate) async fn block_with_pdb(&self, name: &str, pods: usize) -> anyhow::Result<()> {
        if self.state()?.field(&drain_policy()).is_none() {
            self.set_drain_policy(FORCE_LATER).await?;
        }
        self.apply(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{name}-without-a-node"), "namespace": self.namespace, "labels": {"app": name}},
            "spec": {
                "nodeSelector": {"example.com/no-node": "has-this"},
                "containers": [{"name": "app", "image": "example.invalid/app:1"}],
            },
        }))
        .await?;
        self.budget(name, pods, json!({"minAvailable": pods})).await
    }

    /// Puts the node under one of the drain policies; a name that no group has is the policy of all other nodes.
    pub(crate) async fn set_drain_policy(&self, policy: &str) -> anyhow::Result<()> {
        self.label(&self.node, POLICY, policy).await
    }

    /// Labels the node for the operator: its update begins.
    pub(crate) async fn start_update(&self) -> anyhow::Result<()> {
        self.label(&self.node, INTERFACE_LABEL, INTERFACE_VERSION).await
    }

    /// The current state of the case's part of the cluster.
    pub(crate) fn state(&self) -> anyhow::Result<CaseState<'static>> {
        Ok(self.part_of(Cow::Owned(self.fleet.bed.recorder.now()?)))
    }

    fn part_of<'a>(&self, world: Cow<'a, ClusterState>) -> CaseState<'a> {
        CaseState { world, name: self.node.clone(), namespace: self.namespace.clone() }
    }

    /// Waits until the cluster meets a condition, which sees the state after every change, and returns the state that
    /// met it.
    pub(crate) async fn until(
        &self,
        what: &str,
        mut holds: impl FnMut(&CaseState<'_>) -> bool,
    ) -> anyhow::Result<CaseState<'static>> {
        let met = self
            .fleet
            .bed
            .wait_state(what, LIMIT, |world| holds(&self.part_of(Cow::Borrowed(world))))
            .await
            .with_context(|| self.state().map_or_else(|error| error.to_string(), |state| state.describe()))?;
        Ok(self.part_of(Cow::Owned(met)))
    }

    /// Waits until the node is drained, and returns the state when its attempt continued with the reboot: what the
    /// cluster has by the time that this is seen may be later.
    pub(crate) async fn drained(&self) -> anyhow::Result<CaseState<'static>> {
        self.until("the node is drained", |state| {
            let updated = state.shadow().is_some_and(|s| s.status.agent.current_version == Some(NEW));
            updated || matches!(state.step(), Some(Step::Rebooting | Step::Returning | Step::Verifying))
        })
        .await?;
        self.when(|shadow| shadow.step() == Some(Step::Rebooting))?.context("the node was never drained")
    }

    /// The state in which the node's shadow last began to meet a condition, if it ever did.
    pub(crate) fn when(&self, mut holds: impl FnMut(&Shadow) -> bool) -> anyhow::Result<Option<CaseState<'static>>> {
        let (mut before, mut found) = (false, None);
        self.fleet.bed.recorder.so_far()?.replay(|_, _, world| {
            let now = world.nodes.get(&self.node).and_then(|node| world.shadow_of(node)).is_some_and(|s| holds(s));
            if now && !before {
                found = Some(world.clone());
            }
            before = now;
        });
        Ok(found.map(|world| self.part_of(Cow::Owned(world))))
    }

    /// Waits until the node runs [`NEW`] and is released.
    pub(crate) async fn updated(&self) -> anyhow::Result<CaseState<'static>> {
        self.until("the node is updated", |state| {
            state.is_released() && state.shadow().is_some_and(|s| s.status.agent.current_version == Some(NEW))
        })
        .await
    }

    /// Waits until the attempt has ended for this reason, and returns the message of its record.
    pub(crate) async fn failed(&self, reason: &str) -> anyhow::Result<String> {
        let state = self
            .until(&format!("the attempt ends with {reason}"), |state| {
                state.is_released() && state.last().is_some_and(|(last, _)| last == reason)
            })
            .await?;
        Ok(state.last().context("just seen")?.1)
    }

    /// Waits until the node is blocked for this reason, with all of these parts in the message.
    pub(crate) async fn blocked(&self, reason: &str, parts: &[&str]) -> anyhow::Result<CaseState<'static>> {
        self.until(&format!("the node is blocked by {reason}: {parts:?}"), |state| {
            let blocked = state.condition(BLOCKED).filter(|blocked| blocked.reason == reason);
            blocked.is_some_and(|blocked| parts.iter().all(|part| blocked.message.contains(part)))
        })
        .await
    }

    /// The same, of a node that is left as it is.
    pub(crate) async fn waits(&self, reason: &str, parts: &[&str]) -> anyhow::Result<CaseState<'static>> {
        let state = self.blocked(reason, parts).await?;
        anyhow::ensure!(!state.node().claimed(), "it is claimed: {}", state.describe());
        Ok(state)
    }

    /// Waits until the drain is blocked by a budget. It goes on under the policy of all nodes if it could not begin under that.
    pub(crate) async fn until_drain_blocked(&self) -> anyhow::Result<CaseState<'static>> {
        let blocked = |state: &CaseState<'_>| {
            state.step() == Some(Step::Draining)
                && state.drain().is_some_and(|drain| drain.blockers.iter().any(|blocker| blocker.budget.is_some()))
        };
        let state = self.until("the drain is blocked by a budget", blocked).await?;
        if state.field(&drain_policy()) == Some(FORCE_LATER) {
            self.set_drain_policy("default").await?;
        }
        Ok(state)
    }

    /// Ends a drain: under this drain policy its deadline has passed.
    pub(crate) async fn pass_deadline(&self, policy: &str) -> anyhow::Result<()> {
        self.until("the drain has begun", |state| state.step() == Some(Step::Draining)).await?;
        self.set_drain_policy(policy).await
    }

    /// Brings the node into a blocked drain: a Deployment `web` of so many pods, of which its budget lets none go.
    pub(crate) async fn start_blocked_drain(&self, pods: usize) -> anyhow::Result<CaseState<'static>> {
        self.deployment("web", pods, json!({})).await?;
        self.block_with_pdb("web", pods).await?;
        self.start_update().await?;
        self.until_drain_blocked().await
    }

    /// Lets the pods of [`Case::start_blocked_drain`] go.
    pub(crate) async fn unblock_drain(&self) -> anyhow::Result<()> {
        self.set_budget("web", json!({"minAvailable": 0})).await
    }

    /// Ends the back-off.
    pub(crate) async fn retry(&self) -> anyhow::Result<()> {
        let annotation = format!("{}=again", models::names::RETRY_ANNOTATION);
        let shadow = models::names::shadow_name(&self.node);
        self.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "brs", &shadow, &annotation]).await.map(drop)
    }

    /// Ensures that the case leaves nothing: no attempt, no claim, no slot.
    pub(crate) async fn ensure_released(&self) -> anyhow::Result<()> {
        self.until("the case leaves nothing behind", |state| {
            state.world.nodes.get(&self.node).is_none_or(|_| state.is_released()) && !state.has_slot()
        })
        .await?;
        Ok(())
    }
}
