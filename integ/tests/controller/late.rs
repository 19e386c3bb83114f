//! Nodes that come back from their reboot after the end of their attempt.

use std::time::Duration;

use models::condition::ConditionStatus;
use models::operator::FROZEN;
use models::reason::Proof;
use models::shadow::Step;
use serde_json::json;

use crate::bed::{Boot, NEW, ScriptedCluster};

crate::cases![
    node_that_shuts_down_for_long_keeps_its_cordon_and_is_verified_when_it_is_back,
    node_that_gets_ready_after_its_deadline_resolves_its_own_failure,
];

async fn node_that_shuts_down_for_long_keeps_its_cordon_and_is_verified_when_it_is_back(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start_beside_proven(1, json!({})).await?;
    // Its kubelet reports that the node is shutting down, and renews its Lease.
    cluster.fleet.script("node-1", |node| node.boot = Boot::Never);
    cluster.fleet.release(NEW);
    cluster
        .until("its host shuts down", |world| {
            world.step("node-1") == Some(Step::Rebooting) && world.nodes["node-1"].shutting_down
        })
        .await?;
    cluster.pass(Duration::from_mins(31)).await?;
    cluster
        .until("its attempt has ended, and its slot is free", |world| {
            world.last_reason("node-1").as_deref() == Some("RebootTimedOut") && world.status().slots.is_empty()
        })
        .await?;
    cluster.until_event("UpdateFailed", &["RebootTimedOut", "within 30m (spec.deadlines.reboot)"]).await?;
    for _ in 0..3 {
        cluster.pass(Duration::from_mins(10)).await?;
        cluster.renew_lease("node-1").await?;
        let world = cluster.planned().await?;
        assert!(world.nodes["node-1"].claimed(), "a host that shuts down is not released");
        assert_eq!(world.status().slots, []);
    }
    cluster.fleet.power_on("node-1");
    cluster.until_event("VerificationStarted", &["1.20.5", "RebootTimedOut"]).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    let world = cluster.updated().await?;
    assert_eq!(world.record("node-1").proof.map(|place| place.proof), Some(Proof::Proven));
    Ok(())
}

async fn node_that_gets_ready_after_its_deadline_resolves_its_own_failure(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({})).await?;
    cluster.fleet.script("node-1", |node| node.boot = Boot::NotReady);
    cluster.fleet.script("node-2", |node| node.boot = Boot::NotReady);
    cluster.fleet.release(NEW);
    let world = cluster
        .until("a node is not Ready on the version", |world| {
            world.nodes.keys().any(|node| world.step(node) == Some(Step::Returning))
        })
        .await?;
    let late = world.nodes.keys().find(|node| world.step(node) == Some(Step::Returning)).cloned().unwrap_or_default();
    cluster.pass(Duration::from_mins(31)).await?;
    let frozen = cluster.until_operator(FROZEN, ConditionStatus::True).await?;
    assert!(frozen.message.contains("NotReadyAfterBoot"), "{}", frozen.message);
    cluster.until_event("UpdateFailed", &["NotReadyAfterBoot", "within 30m (spec.deadlines.return)"]).await?;
    for node in ["node-1", "node-2"] {
        cluster.fleet.script(node, |node| (node.boot, node.ready) = (Boot::Runs, true));
    }
    cluster.until(&format!("{late} is verified"), |world| world.step(&late) == Some(Step::Verifying)).await?;
    cluster.pass(Duration::from_mins(1)).await?;
    cluster.until_event("Updated", &["verified again", "(NotReadyAfterBoot) is resolved"]).await?;
    cluster.until_operator(FROZEN, ConditionStatus::False).await?;
    cluster.updated().await.map(drop)
}
