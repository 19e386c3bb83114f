//! Drains: rights that are missing, and a user's uncordons.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::Field;
use models::shadow::Step;
use serde_json::json;

use crate::bed::ScriptedCluster;
use crate::leaders::{blocked_drain, until_drain_blocked};

crate::cases![
    forced_deletion_needs_delete_permission,
    node_uncordoned_by_user_during_drain_is_cordoned_again_with_event_until_it_is_released,
];

/// Runs `kubectl` as an administrator.
async fn kubectl(cluster: &ScriptedCluster, arguments: &[&str]) -> anyhow::Result<()> {
    let output = cluster.stage.control_plane.kubectl_command().args(arguments).output().await?;
    anyhow::ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn forced_deletion_needs_delete_permission(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/force.yaml");
    const TIMEOUT: Duration = Duration::from_mins(10);
    let drain = json!({"drain": {"timeout": "10m", "atDeadline": "Force"}, "failurePolicy": {"backOff": "1h"}});
    cluster.start(1, drain).await?;
    let node = blocked_drain(cluster).await?;
    cluster.pass(TIMEOUT).await?;
    cluster.until_event("DrainForced", &["shop/web-"]).await?;
    // The installation gives no right to delete pods.
    cluster
        .until("the drain fails and says what is missing", |world| {
            world.record(&node).last.is_some_and(|last| {
                last.reason == "DrainTimedOut" && last.message.contains("deploy/manifests/force.yaml")
            })
        })
        .await?;
    kubectl(cluster, &["apply", "--server-side", "-f", MANIFEST]).await?;
    let updated = async {
        cluster.until("the node is released", |world| world.is_released(&node)).await?;
        cluster.pass(Duration::from_hours(1)).await?;
        until_drain_blocked(cluster).await?;
        cluster.pass(TIMEOUT).await?;
        cluster.updated().await
    };
    let updated = updated.await;
    kubectl(cluster, &["delete", "-f", MANIFEST]).await?;
    updated.map(drop)
}

async fn node_uncordoned_by_user_during_drain_is_cordoned_again_with_event_until_it_is_released(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(1, json!({})).await?;
    let node = blocked_drain(cluster).await?;
    let uncordon = json!({"spec": {"unschedulable": null}});
    for times in 1..=3 {
        cluster.patch_node(&node, uncordon.clone()).await?;
        cluster.until_event("Uncordoned", &[&format!("{times} of 3")]).await?;
        let world = cluster
            .until("the node is cordoned again", |world| {
                world.nodes[&node].claimed() && world.nodes[&node].fields.contains_key(&Field::Unschedulable)
            })
            .await?;
        assert_eq!(world.step(&node), Some(Step::Draining), "the same attempt goes on");
    }
    cluster.patch_node(&node, uncordon).await?;
    let world = cluster.until("the node is released", |world| world.is_released(&node)).await?;
    let last = world.record(&node).last.context("it has ended")?;
    assert!(last.reason == "Uncordoned" && last.message.contains("hold"), "{last:?}");
    cluster.unblock_shop().await?;
    // The back-off ends.
    cluster.pass(Duration::from_hours(1)).await?;
    cluster.updated().await?;
    assert_eq!(cluster.recorder.so_far()?.attempts().len(), 2);
    Ok(())
}
