//! Nodes that are Ready after their update and not as they were before.

use std::time::Duration;

use integ::oracle::ClusterState;
use models::condition::{ConditionStatus, find_condition};
use models::reason::Proof;
use models::shadow::{BLOCKED, HEALTHY, Step};
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![canary_without_its_devices_proves_nothing_until_they_are_back];

async fn canary_without_its_devices_proves_nothing_until_they_are_back(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(3, json!({"strategy": {"canary": [{"nodes": 1}]}})).await?;
    for node in ["node-1", "node-2", "node-3"] {
        cluster.fleet.script(node, |node| node.gpus = Some(8));
    }
    cluster.planned().await?;
    cluster.fleet.release(NEW);
    let at = |world: &ClusterState, step| world.nodes.keys().find(|node| world.step(node) == Some(step)).cloned();
    let world = cluster.until("a node is drained", |world| at(world, Step::Rebooting).is_some()).await?;
    let canary = at(&world, Step::Rebooting).unwrap_or_default();
    // Its kubelet knows of the device, and the plugin does not register after the boot.
    cluster.fleet.script(&canary, |node| node.gpus = Some(0));
    cluster.until_step(&canary, Step::Verifying).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let condition = |world: &ClusterState, type_| {
        let shadow = world.shadows.values().find(|shadow| shadow.node() == canary)?;
        find_condition(&shadow.status.conditions, type_).cloned()
    };
    let missing = "nvidia.com/gpu is 0 and was 8";
    let named = |world: &ClusterState| condition(world, BLOCKED).is_some_and(|c| c.message.contains(missing));
    cluster.until("what is missing is named", named).await?;
    cluster.pass(Duration::from_mins(15)).await?;
    cluster.until_event("UpdateFailed", &["NodeNotUsable", missing]).await?;
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
