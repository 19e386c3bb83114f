//! Karpenter, with the provider for tests of its own project (kwok), makes and removes the nodes that the operator updates. Their kubelets,
//! hosts and agents are scripted; the NodePool is that of the page about autoscalers.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::bed::{merge, workload};
use integ::kubelet::node_status;
use integ::oracle::{ClusterState, Field, Node};
use integ::pages;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1::Event;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, Resource as _};
use models::names::{APPROVE_STEP_ANNOTATION, DO_NOT_DISRUPT_ANNOTATION, SCALE_DOWN_ANNOTATION, UNSCHEDULABLE_TAINT};
use models::shadow::{Step, UPDATED};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::programs::{self, Program, port};
use crate::scripted::bed::{Held, NEW, OLD, SHOP, ScriptedCluster};
use crate::scripted::on_stage;

/// The page with the NodePool.
const PAGE: &str = "docs/how-to/autoscalers.md";
/// The size that the scripted kubelets report.
const INSTANCE_TYPE: &str = "s-8x-amd64-linux";
/// A pod of which one node takes one.
const LARGE_POD: &str = "5";
/// Longest wait for anything: Karpenter looks for something to do every ten seconds, and looks again after fifteen.
const LIMIT: Duration = Duration::from_secs(300);
/// Time in which Karpenter has removed an empty node that it may remove, twice over.
const TWO_ROUNDS: Duration = Duration::from_secs(60);
/// The taint that a Node is created with.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Karpenter's taint on a node that it is removing.
const DISRUPTED: &str = "karpenter.sh/disrupted";

/// Karpenter beside the controller.
struct Beside<'a> {
    cluster: &'a mut ScriptedCluster,
    karpenter: Program,
    /// The nodes that have a scripted machine.
    machines: BTreeSet<String>,
    /// All nodes that ever had one.
    seen: BTreeSet<String>,
    /// The command that does not end on any of them.
    held: Option<Held>,
}

/// A workload whose pods Karpenter may move to other nodes, or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pods {
    Movable(usize),
    /// They have Karpenter's annotation, which keeps it from consolidating their nodes. The operator evicts them like others.
    Marked(usize),
}

/// Runs a case with Karpenter, whose nodes a Deployment of large pods has it make: one for each.
async fn run(
    workload: Pods,
    disruption: Value,
    case: impl AsyncFnOnce(&mut Beside<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    on_stage(async |cluster| {
        let mut beside = Beside::start(cluster, disruption).await?;
        let result = async {
            let pods = beside.create(workload).await?;
            let all = |world: &ClusterState| world.ready_pods(SHOP) == pods && world.nodes.len() == pods;
            beside.until("each pod is on a node of its own", all).await?;
            beside.cluster.reported().await?;
            case(&mut beside).await
        };
        let result = result.await;
        beside.karpenter.end(result).await
    })
    .await
}

fn taints(node: &Node) -> &str {
    node.fields.get(&Field::Taints).map_or("", String::as_str)
}

/// Returns whether a node has both annotations that keep autoscalers away.
fn is_protected(node: &Node) -> bool {
    [SCALE_DOWN_ANNOTATION, DO_NOT_DISRUPT_ANNOTATION]
        .iter()
        .all(|key| node.fields.get(&Field::Annotation((*key).to_owned())).is_some_and(|value| value == "true"))
}

/// The node in a step of an attempt, if there is one.
fn in_step(world: &ClusterState, step: Step) -> Option<String> {
    world.nodes.keys().find(|node| world.step(node) == Some(step)).cloned()
}

/// The objects of Karpenter of a kind.
fn api(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind)))
}

/// The NodePool of the page, with the test's provider and one instance type, and with this over its `spec.disruption`.
fn node_pool(disruption: &Value) -> anyhow::Result<Value> {
    let mut pool: Value = serde_saphyr::from_str(&pages::yaml(PAGE, "Karpenter")?)?;
    let spec = &mut pool["spec"]["template"]["spec"];
    spec["nodeClassRef"] = json!({"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"});
    let size = json!({"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [INSTANCE_TYPE]});
    spec["requirements"].as_array_mut().context("the page's NodePool has no requirements")?.push(size);
    merge(&mut pool["spec"]["disruption"], disruption);
    Ok(pool)
}

impl<'a> Beside<'a> {
    /// Starts the controller without nodes, and Karpenter with a NodePool.
    async fn start(cluster: &'a mut ScriptedCluster, disruption: Value) -> anyhow::Result<Self> {
        cluster.start(0, json!({})).await?;
        let (metrics, health) = (port()?, port()?);
        let definitions = programs::folder("karpenter").await?.join("definitions");
        let mut kubectl = cluster.stage.control_plane.kubectl_command();
        let applied = kubectl.args(["apply", "--server-side", "-f"]).arg(definitions).output().await?;
        ensure!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
        let mut karpenter = Program::start(
            &cluster.stage.control_plane,
            "karpenter",
            &[],
            &[
                ("SYSTEM_NAMESPACE", "kube-system"),
                ("DISABLE_LEADER_ELECTION", "true"),
                ("METRICS_PORT", &metrics.to_string()),
                ("HEALTH_PROBE_PORT", &health.to_string()),
            ],
        )
        .await?;
        karpenter.ready(&format!("http://127.0.0.1:{health}/readyz")).await?;
        let class = json!({
            "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}, "spec": {},
        });
        workload::apply(&cluster.client, vec![class, node_pool(&disruption)?]).await?;
        Ok(Self { cluster, karpenter, machines: BTreeSet::new(), seen: BTreeSet::new(), held: None })
    }

    /// Creates the Deployment `web`, whose pods are so large that each needs a node of its own. Returns their number.
    async fn create(&self, workload: Pods) -> anyhow::Result<usize> {
        let (Pods::Movable(pods) | Pods::Marked(pods)) = workload;
        let mut deployment = workload::deployment(SHOP, "web", pods);
        let template = &mut deployment["spec"]["template"];
        if workload == Pods::Marked(pods) {
            template["metadata"]["annotations"] = json!({DO_NOT_DISRUPT_ANNOTATION: "true"});
        }
        let pod = &mut template["spec"];
        pod["containers"][0]["resources"] = json!({"requests": {"cpu": LARGE_POD}});
        pod.as_object_mut().context("a pod")?.remove("topologySpreadConstraints");
        workload::apply(&self.cluster.client, vec![deployment]).await?;
        Ok(pods)
    }

    /// Plays the cloud: a new Node gets a machine that boots, and the machine of a Node that is gone ends.
    async fn tend(&mut self) -> anyhow::Result<()> {
        let world = self.cluster.now()?;
        for node in world.nodes.values() {
            if self.machines.insert(node.name.clone()) {
                self.seen.insert(node.name.clone());
                self.boot(&node.name).await.with_context(|| format!("{} boots", node.name))?;
            } else if taints(node).contains(NOT_READY)
                || taints(node).contains(UNSCHEDULABLE_TAINT) != node.fields.contains_key(&Field::Unschedulable)
            {
                self.taint(&node.name).await?;
            }
        }
        let gone: Vec<String> = self.machines.iter().filter(|name| !world.nodes.contains_key(*name)).cloned().collect();
        for name in gone {
            self.cluster.end_agent(&name).await?;
            self.cluster.fleet.remove(&name);
            self.machines.remove(&name);
        }
        Ok(())
    }

    /// Boots the machine of a Node that Karpenter has created: from an image of the version that the NodePool's class would have.
    async fn boot(&self, name: &str) -> anyhow::Result<()> {
        let (boot_id, held) = (self.cluster.fleet.add(name, &OLD), self.held);
        self.cluster.fleet.script(name, |behaviour| behaviour.held = held);
        let kubelet = self.cluster.stage.control_plane.client_as(&format!("system:node:{name}"), &["system:nodes"])?;
        self.cluster.kubelets.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), kubelet.clone());
        let now = self.cluster.time.now();
        let mut status =
            node_status::facts(name, [10, 9, 0, 1].into(), &boot_id, "Bottlerocket OS 1.20.0 (aws-k8s-1.37)");
        status["conditions"] = json!(node_status::conditions(false, &[], now));
        let nodes: Api<core::Node> = Api::all(kubelet.clone());
        let patch = Patch::Strategic(json!({"status": status}));
        let node = nodes.patch_status(name, &PatchParams::default(), &patch).await?;
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {"name": name, "ownerReferences": [node.owner_ref(&()).context("a Node without a name")?]},
            "spec": {
                "holderIdentity": name, "leaseDurationSeconds": 40,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            },
        }))?;
        let leases: Api<Lease> = Api::namespaced(kubelet, "kube-node-lease");
        leases.create(&PostParams::default(), &lease).await?;
        self.cluster.start_agent(name).await
    }

    /// Gives a Node that is Ready the taints that the node lifecycle controller gives it: Karpenter knows a cordon by its taint alone. Others may
    /// change the Node meanwhile: then it is done next time.
    async fn taint(&self, name: &str) -> anyhow::Result<()> {
        let nodes: Api<core::Node> = Api::all(self.cluster.client.clone());
        let Some(mut node) = nodes.get_opt(name).await? else { return Ok(()) };
        let spec = node.spec.get_or_insert_default();
        let taints = spec.taints.get_or_insert_default();
        taints.retain(|taint| ![NOT_READY, UNSCHEDULABLE_TAINT].contains(&taint.key.as_str()));
        if spec.unschedulable == Some(true) {
            let (key, effect) = (UNSCHEDULABLE_TAINT.to_owned(), "NoSchedule".to_owned());
            taints.push(core::Taint { key, effect, ..core::Taint::default() });
        }
        match nodes.replace(name, &PostParams::default(), &node).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            replaced => Ok(replaced.map(drop)?),
        }
    }

    /// Waits until the cluster meets a condition that lasts.
    async fn until(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&ClusterState) -> bool,
    ) -> anyhow::Result<ClusterState> {
        let deadline = Instant::now() + LIMIT;
        loop {
            self.tend().await?;
            let world = self.cluster.now()?;
            if holds(&world) {
                return Ok(world);
            }
            ensure!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Lets Karpenter work for so long, in which a condition has to hold.
    async fn throughout(
        &mut self,
        span: Duration,
        what: &str,
        holds: impl Fn(&ClusterState) -> bool,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + span;
        while Instant::now() < end {
            self.tend().await?;
            ensure!(holds(&self.cluster.now()?), "not any more: {what}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Asks again and again until the answer is yes.
    async fn poll(&mut self, what: &str, holds: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !holds().await? {
            ensure!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
            self.tend().await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// Waits until Karpenter has said of an object that it does not disrupt it, in a text with this word.
    async fn until_blocked(&mut self, name: &str, word: &str) -> anyhow::Result<()> {
        let events: Api<Event> = Api::all(self.cluster.client.clone());
        let said = |event: &Event| {
            let about = event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name);
            let note = event.note.as_deref().unwrap_or_default();
            about && event.reason.as_deref() == Some("DisruptionBlocked") && note.contains(word)
        };
        let what = format!("Karpenter says of {name} that '{word}' blocks its disruption");
        self.poll(&what, async || Ok(events.list(&ListParams::default()).await?.items.iter().any(said))).await
    }

    /// Deletes the NodeClaim of a node, as Karpenter does once a node has expired.
    async fn expire(&self, node: &str) -> anyhow::Result<()> {
        let claims = api(&self.cluster.client, "karpenter.sh", "v1", "NodeClaim");
        let all = claims.list(&ListParams::default()).await?.items;
        let claim =
            all.iter().find(|claim| claim.data["status"]["nodeName"] == node).context("no NodeClaim of the node")?;
        claims.delete(claim.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Has every machine, also one to come, stop at this command.
    fn hold(&mut self, held: Option<Held>) {
        self.held = held;
        for node in &self.machines {
            self.cluster.fleet.script(node, |behaviour| behaviour.held = held);
        }
    }

    /// Changes when Karpenter may disrupt nodes of the NodePool.
    async fn pool(&self, disruption: &Value) -> anyhow::Result<()> {
        let pools = api(&self.cluster.client, "karpenter.sh", "v1", "NodePool");
        let patch = Patch::Merge(json!({"spec": {"disruption": disruption}}));
        pools.patch("bottlerocket", &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until Karpenter says of so many nodes that they have drifted.
    async fn until_drifted(&mut self, nodes: usize) -> anyhow::Result<()> {
        let claims = api(&self.cluster.client, "karpenter.sh", "v1", "NodeClaim");
        let drifted = |claim: &&DynamicObject| {
            let conditions = claim.data["status"]["conditions"].as_array();
            conditions.into_iter().flatten().any(|c| c["type"] == "Drifted" && c["status"] == "True")
        };
        let count =
            async || Ok(claims.list(&ListParams::default()).await?.items.iter().filter(drifted).count() == nodes);
        self.poll(&format!("{nodes} nodes have drifted"), count).await
    }

    /// Waits until every node runs the new version and is idle.
    async fn updated(&mut self) -> anyhow::Result<ClusterState> {
        self.until("every node is updated", |world| {
            world.nodes.keys().all(|node| world.is_updated(node, &NEW)) && world.status().slots.is_empty()
        })
        .await
    }
}

/// The node that is updated is empty, cordoned and down for a time, and each of these makes Karpenter want to remove it. Its pod makes
/// Karpenter create another node meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn node_is_not_removed_in_its_update_and_takes_the_pods_of_the_next_one() -> anyhow::Result<()> {
    const PODS: usize = 2;
    run(Pods::Movable(PODS), json!({}), async |beside| {
        beside.hold(Some(Held::Activation));
        beside.cluster.fleet.release(NEW);
        let rebooting = |world: &ClusterState| in_step(world, Step::Rebooting).is_some();
        let world = beside.until("a node is about to reboot", rebooting).await?;
        let first = in_step(&world, Step::Rebooting).context("just seen")?;
        let moved = |world: &ClusterState| world.ready_pods(SHOP) == PODS && world.nodes.len() == PODS + 1;
        beside.until("its pod has a new node", moved).await?;
        // Karpenter has seen the empty node, and would consolidate it.
        beside.pool(&json!({"consolidateAfter": "0s"})).await?;
        beside.until_blocked(&first, "do-not-disrupt").await?;
        let stays = |world: &ClusterState| {
            world.nodes.get(&first).is_some_and(|node| is_protected(node) && !taints(node).contains(DISRUPTED))
        };
        beside.throughout(TWO_ROUNDS, "the empty node is protected and stays", stays).await?;
        beside.pool(&node_pool(&json!({}))?["spec"]["disruption"]).await?;
        beside.hold(None);
        beside.updated().await?;
        // One node more than pods, however many were updated, and none was removed.
        ensure!(beside.seen.len() == PODS + 1, "Karpenter has made {:?}", beside.seen);
        ensure!(beside.machines == beside.seen, "Karpenter has removed some of {:?}", beside.seen);
        beside.pool(&json!({"consolidateAfter": "0s"})).await?;
        beside.until("Karpenter removes the node that is left over", |world| world.nodes.len() == PODS).await?;
        let world = beside.updated().await?;
        ensure!(world.ready_pods(SHOP) == PODS, "its pods stay");
        Ok(())
    })
    .await
}

/// With Karpenter's default, an updated node is removed as soon as nothing protects it, and its pods are on a new one with the earlier version: as
/// many nodes as before are left to be updated. The page's setting ends that.
#[tokio::test(flavor = "multi_thread")]
async fn updated_node_is_removed_by_the_default_of_karpenter_and_stays_by_that_of_the_page() -> anyhow::Result<()> {
    const PODS: usize = 2;
    run(Pods::Marked(PODS), json!({"consolidateAfter": "0s"}), async |beside| {
        let first = beside.machines.first().cloned().context("there are nodes")?;
        // The others take long to download, so that the next drain does not follow at once.
        beside.hold(Some(Held::Download));
        beside.cluster.fleet.script(&first, |behaviour| behaviour.held = Some(Held::Activation));
        beside.cluster.fleet.release(NEW);
        let moved = |world: &ClusterState| world.ready_pods(SHOP) == PODS && world.nodes.len() == PODS + 1;
        beside.until("its pod has a new node", moved).await?;
        beside.cluster.fleet.script(&first, |behaviour| behaviour.held = None);
        beside.until("Karpenter removes the updated node", |world| !world.nodes.contains_key(&first)).await?;
        let results = beside.cluster.recorder.so_far()?.results(&first);
        ensure!(results == [(NEW, UPDATED.to_owned())], "it was updated before: {results:?}");
        let world = beside.cluster.now()?;
        let left = world.nodes.keys().filter(|node| !world.is_updated(node, &NEW)).count();
        ensure!(left == PODS && world.nodes.len() == PODS, "{left} of {} nodes are to be updated", world.nodes.len());
        beside.pool(&node_pool(&json!({}))?["spec"]["disruption"]).await?;
        beside.hold(None);
        beside.updated().await.map(drop)
    })
    .await
}

/// A canary is often empty, and Karpenter's default removes it in its soak. Twice in a row that is a question to a user.
#[tokio::test(flavor = "multi_thread")]
async fn canary_that_karpenter_removes_is_followed_by_another_one_and_then_by_a_question() -> anyhow::Result<()> {
    const PODS: usize = 2;
    const SOAK: Duration = Duration::from_hours(1);
    run(Pods::Marked(PODS), json!({"consolidateAfter": "0s"}), async |beside| {
        beside.cluster.policy(&json!({"strategy": {"canary": [{"nodes": 1, "soak": "1h"}]}})).await?;
        beside.hold(Some(Held::Activation));
        beside.cluster.fleet.release(NEW);
        for _ in 0..2 {
            let moved = |world: &ClusterState| {
                let empty = in_step(world, Step::Rebooting).is_some();
                empty && world.ready_pods(SHOP) == PODS && world.nodes.len() == PODS + 1
            };
            let world = beside.until("the pod of a canary has a new node", moved).await?;
            let canary = in_step(&world, Step::Rebooting).context("just seen")?;
            beside.hold(None);
            beside.until("Karpenter removes the canary", |world| !world.nodes.contains_key(&canary)).await?;
            let results = beside.cluster.recorder.so_far()?.results(&canary);
            ensure!(results == [(NEW, UPDATED.to_owned())], "it was updated before: {results:?}");
            beside.hold(Some(Held::Activation));
            beside.cluster.pass(SOAK + Duration::from_mins(5)).await?;
        }
        beside.hold(None);
        let rollout = |world: &ClusterState| world.status().active_rollouts.into_iter().next();
        let waits = |world: &ClusterState| {
            world.waiting("CanaryStep") == i64::try_from(PODS).unwrap_or_default()
                && rollout(world).is_some_and(|rollout| rollout.soak_repeated && rollout.steps_passed == 0)
        };
        let world = beside.until("the step waits for a user", waits).await?;
        beside.cluster.planned().await?;
        beside.throughout(Duration::from_secs(5), "no node begins", waits).await?;
        let rollout = rollout(&world).context("just seen")?;
        let number = rollout.record.map_or(0, |record| record.number);
        let step = format!("{number}/{}@user", rollout.ledger.unwrap_or_default().due);
        beside.pool(&node_pool(&json!({}))?["spec"]["disruption"]).await?;
        beside.cluster.request(APPROVE_STEP_ANNOTATION, &step).await?;
        beside.updated().await.map(drop)
    })
    .await
}

/// The label of the NodePool is changed as a user changes the image of its class: every node has drifted.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_have_drifted_are_updated_in_place_and_none_is_replaced() -> anyhow::Result<()> {
    const PODS: usize = 2;
    run(Pods::Movable(PODS), json!({}), async |beside| {
        let labels = json!({"spec": {"template": {"metadata": {"labels": {"example.com/image": "2"}}}}});
        let pools = api(&beside.cluster.client, "karpenter.sh", "v1", "NodePool");
        pools.patch("bottlerocket", &PatchParams::default(), &Patch::Merge(labels)).await?;
        beside.until_drifted(PODS).await?;
        let before = beside.machines.clone();
        beside.until_blocked("bottlerocket", "Drifted").await?;
        beside
            .throughout(TWO_ROUNDS, "no node is removed", |world| {
                before.iter().all(|node| world.nodes.contains_key(node))
            })
            .await?;
        beside.cluster.fleet.release(NEW);
        let world = beside.updated().await?;
        ensure!(before.iter().all(|node| world.nodes.contains_key(node)), "a node was replaced: {before:?}");
        let label = Field::Label("example.com/image".to_owned());
        let labelled = before.iter().filter(|node| world.nodes[*node].fields.contains_key(&label)).count();
        ensure!(labelled == 0, "the page says that a label comes to no node that is there");
        Ok(())
    })
    .await
}

/// A node expires while it is drained, and another one once its reboot was permitted. Expiry does not look at the annotation.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_expires_in_its_update_is_left_to_karpenter_and_the_rollout_goes_on() -> anyhow::Result<()> {
    const PODS: usize = 3;
    run(Pods::Movable(PODS), json!({}), async |beside| {
        let budget = workload::budget(SHOP, "web", json!({"minAvailable": PODS}));
        workload::apply(&beside.cluster.client, vec![budget]).await?;
        let known = |world: &ClusterState| world.budgets.values().any(|budget| budget.current_healthy as usize == PODS);
        beside.until("the budget is known", known).await?;
        beside.cluster.block_shop().await?;
        beside.hold(Some(Held::Activation));
        beside.cluster.fleet.release(NEW);
        let draining = |world: &ClusterState| in_step(world, Step::Draining).is_some();
        let world = beside.until("a node is drained", draining).await?;
        let first = in_step(&world, Step::Draining).context("just seen")?;
        beside.expire(&first).await?;
        let marked =
            |world: &ClusterState| world.nodes.get(&first).is_some_and(|node| taints(node).contains(DISRUPTED));
        beside.until("Karpenter drains the node", marked).await?;
        let left = |world: &ClusterState| {
            world.is_released(&first) && world.last_reason(&first).is_some_and(|reason| reason == "NodeDeleted")
        };
        beside.until("the operator leaves it", left).await?;
        beside.cluster.unblock_shop().await?;
        beside.until("Karpenter has removed it", |world| !world.nodes.contains_key(&first)).await?;
        let rebooting = |world: &ClusterState| in_step(world, Step::Rebooting).is_some();
        let world = beside.until("the next one is about to reboot", rebooting).await?;
        let second = in_step(&world, Step::Rebooting).context("just seen")?;
        beside.expire(&second).await?;
        beside.until("Karpenter has removed it, too", |world| !world.nodes.contains_key(&second)).await?;
        let free = |world: &ClusterState| world.status().slots.iter().all(|slot| slot.node != second);
        beside.until("its slot is free", free).await?;
        beside.hold(None);
        let world = beside.updated().await?;
        ensure!(world.ready_pods(SHOP) == PODS, "all pods have a node");
        Ok(())
    })
    .await
}
