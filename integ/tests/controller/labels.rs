//! The operator's label of a node: set by the operator itself if policy says so, and removed in every state of an update.

use std::collections::BTreeSet;
use std::time::Duration;

use integ::oracle::{Attempt, ClusterState, Field};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION, LABEL_MANAGER};
use models::shadow::Step;
use serde_json::json;

use crate::bed::{Boot, ControllerOptions, Held, NEW, SHOP, ScriptedCluster};
use crate::leaders::until_drain_blocked;

crate::cases![
    label_nodes_labels_bottlerocket_nodes_unless_label_is_set,
    node_unlabelled_before_permit_is_released_and_after_it_is_updated_before_its_shadow_is_deleted,
];

fn label() -> Field {
    Field::Label(INTERFACE_LABEL.to_owned())
}

/// The value of the label on a node.
fn labelled<'a>(world: &'a ClusterState, node: &str) -> Option<&'a str> {
    world.nodes.get(node)?.fields.get(&label()).map(String::as_str)
}

/// The fields of a node that the manager of the label owns.
fn owned(world: &ClusterState, node: &str) -> BTreeSet<Field> {
    let owners = world.nodes.get(node).map(|node| node.owners.clone()).unwrap_or_default();
    owners.into_iter().filter(|(_, managers)| managers.contains(LABEL_MANAGER)).map(|(field, _)| field).collect()
}

/// A node with another operating system, which the script leaves alone.
async fn other_system(cluster: &ScriptedCluster, name: &str) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(cluster.client.clone());
    cluster.create(api.clone(), json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).await?;
    let info = json!({
        "osImage": "Debian GNU/Linux 12 (bookworm)", "bootID": "boot", "machineID": "id", "systemUUID": "id",
        "architecture": "amd64", "operatingSystem": "linux", "kernelVersion": "6.1", "kubeletVersion": "v1.37.0",
        "kubeProxyVersion": "", "containerRuntimeVersion": "containerd://2.1.5",
    });
    let patch = Patch::Merge(json!({"status": {"nodeInfo": info}}));
    api.patch_status(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn label_nodes_labels_bottlerocket_nodes_unless_label_is_set(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    for node in ["node-1", "node-2", "node-3"] {
        cluster.add_node(node, &[(INTERFACE_LABEL, "none")]).await?;
        cluster.end_agent(node).await?;
    }
    let both = ["node-1", "node-2"];
    for node in both {
        cluster.patch_node(node, json!({"metadata": {"labels": {INTERFACE_LABEL: null}}})).await?;
    }
    other_system(cluster, "debian").await?;
    cluster.create_policy(json!({"labelNodes": true})).await?;
    cluster.fleet.release(NEW);
    cluster.start_controller(&ControllerOptions::default())?;
    for node in both {
        cluster.until("it has the label", |world| labelled(world, node) == Some(INTERFACE_VERSION)).await?;
        cluster.start_agent(node).await?;
    }
    let world = cluster
        .until("the two are updated", |world| {
            both.iter().all(|node| world.is_updated(node, &NEW)) && world.status().slots.is_empty()
        })
        .await?;
    for node in both {
        assert_eq!(owned(&world, node), BTreeSet::from([label()]), "and nothing else");
    }
    assert_eq!((labelled(&world, "node-3"), labelled(&world, "debian")), (Some("none"), None));
    assert!(owned(&world, "node-3").is_empty() && owned(&world, "debian").is_empty());
    assert_eq!(world.shadows.len(), 2);

    // Disabled, it removes nothing, and sets nothing again.
    cluster.policy(&json!({"labelNodes": false})).await?;
    let world = cluster.planned().await?;
    assert!(both.iter().all(|node| labelled(&world, node) == Some(INTERFACE_VERSION)));
    cluster.unlabel("node-1").await?;
    cluster.until("its shadow goes", |world| world.shadow("node-1").is_none()).await?;
    assert_eq!(labelled(&cluster.planned().await?, "node-1"), None);

    // Enabled, a removed label comes back; another value excludes a node.
    cluster.policy(&json!({"labelNodes": true})).await?;
    cluster
        .until("label and shadow are back", |world| {
            labelled(world, "node-1") == Some(INTERFACE_VERSION) && world.shadow("node-1").is_some()
        })
        .await?;
    cluster.start_agent("node-1").await?;
    cluster.patch_node("node-2", json!({"metadata": {"labels": {INTERFACE_LABEL: "none"}}})).await?;
    cluster.end_agent("node-2").await?;
    cluster.until("the shadow of the other goes", |world| world.shadow("node-2").is_none()).await?;
    let world = cluster.planned().await?;
    assert_eq!((labelled(&world, "node-2"), owned(&world, "node-2")), (Some("none"), BTreeSet::new()));
    cluster.recorder.so_far()?.ensure_updates(2)?;
    Ok(())
}

/// The node whose label is set and removed.
const NODE: &str = "node-1";

/// Removes the label, and checks the step of the node at that time.
async fn leave(cluster: &ScriptedCluster, step: Option<Step>) -> anyhow::Result<()> {
    cluster.unlabel(NODE).await?;
    cluster.until("the node has no label", |world| labelled(world, NODE).is_none()).await?;
    let (mut had, mut at) = (false, None);
    cluster.recorder.so_far()?.replay(|_, _, world| {
        let has = labelled(world, NODE).is_some();
        if had && !has {
            at = Some(world.step(NODE));
        }
        had = has;
    });
    anyhow::ensure!(at == Some(step), "the label went in {at:?}, not in {step:?}");
    Ok(())
}

/// Waits until nothing of the operator is left of the node.
async fn left(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    cluster
        .until("nothing is left of the node", |world| {
            world.shadows.is_empty() && !world.nodes[NODE].claimed() && world.status().slots.is_empty()
        })
        .await
        .map(drop)
}

/// The reboots of hosts that the operator requested, and the attempts that ended with an update.
async fn reboots_and_updates(cluster: &mut ScriptedCluster) -> anyhow::Result<(usize, usize)> {
    let reboots = cluster.verdict().await?.stats.reboots;
    let updates = cluster.recorder.so_far()?.attempts().into_iter().filter(Attempt::updated).count();
    Ok((reboots, updates))
}

async fn node_unlabelled_before_permit_is_released_and_after_it_is_updated_before_its_shadow_is_deleted(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(1, json!({"health": {"after": {"soak": "10m"}}})).await?;
    leave(cluster, None).await?;
    left(cluster).await?;

    cluster.fleet.script(NODE, |node| node.held = Some(Held::Download));
    cluster.label(NODE).await?;
    cluster.fleet.release(NEW);
    cluster.until_step(NODE, Step::Staging).await?;
    leave(cluster, Some(Step::Staging)).await?;
    left(cluster).await?;

    cluster.fleet.script(NODE, |node| node.held = None);
    cluster.shop(4, json!({"minAvailable": 4})).await?;
    cluster.block_shop().await?;
    cluster.label(NODE).await?;
    until_drain_blocked(cluster).await?;
    leave(cluster, Some(Step::Draining)).await?;
    left(cluster).await?;
    assert_eq!(reboots_and_updates(cluster).await?, (0, 0), "the host is as it was");

    cluster.unblock_shop().await?;
    cluster.fleet.script(NODE, |node| node.boot = Boot::Never);
    cluster.label(NODE).await?;
    cluster.until("the host goes down", |world| world.nodes[NODE].shutting_down).await?;
    leave(cluster, Some(Step::Rebooting)).await?;
    cluster.fleet.power_on(NODE);
    cluster.until_step(NODE, Step::Verifying).await?;
    // The soak begins with the last pod that comes back.
    cluster.until("its pods are back", |world| world.ready_pods(SHOP) == 4).await?;
    cluster.planned().await?;
    cluster.pass(Duration::from_mins(10)).await?;
    left(cluster).await?;
    assert_eq!(reboots_and_updates(cluster).await?, (1, 1));
    Ok(())
}
