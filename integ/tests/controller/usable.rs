//! Nodes that are Ready after their update and not as they were before.

use std::time::Duration;

use integ::oracle::ClusterState;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use models::condition::{ConditionStatus, find_condition};
use models::reason::Proof;
use models::shadow::{BLOCKED, HEALTHY, Step};
use serde_json::{Value, json};

use crate::bed::{NEW, SHOP, ScriptedCluster};
use crate::health::driver;

crate::cases![canary_without_what_its_node_had_before_proves_nothing_until_that_is_back];

const DRIVER: &str = "ebs.csi.aws.com";

async fn set_csi_drivers(cluster: &ScriptedCluster, node: &str, drivers: Value) -> anyhow::Result<()> {
    let api: Api<CSINode> = Api::all(cluster.client.clone());
    api.patch(node, &PatchParams::default(), &Patch::Merge(json!({"spec": {"drivers": drivers}}))).await?;
    Ok(())
}

/// The node had devices, a CSI driver and a pod of a DaemonSet.
async fn canary_without_what_its_node_had_before_proves_nothing_until_that_is_back(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
    let registered = |node: &str| json!([{"name": DRIVER, "nodeID": node}]);
    cluster.start(3, json!({"strategy": {"canary": [{"nodes": 1}]}})).await?;
    for node in NODES {
        cluster.fleet.script(node, |node| node.gpus = Some(8));
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
            "spec": {"drivers": registered(node)}});
        cluster.create(Api::<CSINode>::all(cluster.client.clone()), object).await?;
    }
    driver(cluster, &NODES).await?;
    cluster.planned().await?;
    cluster.fleet.release(NEW);
    let at = |world: &ClusterState, step| world.nodes.keys().find(|node| world.step(node) == Some(step)).cloned();
    let world = cluster.until("a node is drained", |world| at(world, Step::Rebooting).is_some()).await?;
    let canary = at(&world, Step::Rebooting).unwrap_or_default();
    let before = world.record(&canary).before.unwrap_or_default();
    assert_eq!(before.csi_drivers, [DRIVER]);
    assert!(before.daemon_sets.iter().any(|set| set.name == "shop/driver"), "{:?}", before.daemon_sets);
    // The kubelet knows of the device and the driver, and neither plugin registers after the boot.
    cluster.fleet.script(&canary, |node| node.gpus = Some(0));
    set_csi_drivers(cluster, &canary, json!([])).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), SHOP);
    pods.delete(&format!("driver-{canary}"), &DeleteParams::default().grace_period(0)).await?;
    cluster.until_step(&canary, Step::Verifying).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let condition = |world: &ClusterState, type_| {
        let shadow = world.shadows.values().find(|shadow| shadow.node() == canary)?;
        find_condition(&shadow.status.conditions, type_).cloned()
    };
    let named = |world: &ClusterState, words: &[&str]| {
        let message = condition(world, BLOCKED).map(|condition| condition.message).unwrap_or_default();
        words.iter().all(|word| message.contains(word))
    };
    let (gpus, csi) = ("nvidia.com/gpu is 0 and was 8", format!("the CSI driver {DRIVER} is missing"));
    let set = "the DaemonSet shop/driver has no Ready pod";
    cluster.until("what is missing is named", |world| named(world, &[gpus, &csi, set])).await?;
    set_csi_drivers(cluster, &canary, registered(&canary)).await?;
    cluster.until("the driver is back", |world| named(world, &[gpus, set]) && !named(world, &[&csi])).await?;
    // The DaemonSet is uninstalled.
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), SHOP);
    sets.delete("driver", &DeleteParams::background()).await?;
    cluster.until("nothing waits for the DaemonSet", |world| named(world, &[gpus]) && !named(world, &[set])).await?;
    cluster.pass(Duration::from_mins(15)).await?;
    cluster.until_event("UpdateFailed", &["NodeNotUsable", gpus]).await?;
    let waits = |world: &ClusterState| world.status().slots.is_empty() && world.waiting("StepUnproven") == 2;
    let world = cluster.until("the others wait for the canary", waits).await?;
    assert_eq!(condition(&world, HEALTHY).map(|condition| condition.status), Some(ConditionStatus::Unknown));
    // Another leader knows it from the shadow, and verifies it again.
    cluster.replace_controller().await?;
    cluster.fleet.script(&canary, |node| node.gpus = Some(8));
    cluster.pass(Duration::from_hours(1)).await?;
    cluster.until_event("VerificationStarted", &["NodeNotUsable"]).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let world = cluster.until("the canary is proven", |world| {
        world.record(&canary).proof.is_some_and(|place| place.proof == Proof::Proven)
    });
    assert_eq!(world.await?.record(&canary).before, None);
    cluster.updated().await.map(drop)
}
