//! Nodes whose Node object is deleted while their machine is down, and registered again.

use std::time::Duration;

use models::reason::Proof;
use models::shadow::Step;
use serde_json::json;

use crate::bed::{Boot, NEW, ScriptedCluster};

crate::cases![node_that_is_registered_again_after_its_permit_goes_on_under_another_leader];

async fn node_that_is_registered_again_after_its_permit_goes_on_under_another_leader(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    // One end without a proof would brake the rollout, and a place without one would wait for a user.
    let policy = json!({
        "failurePolicy": {"maxConsecutiveFailures": 1},
        "strategy": {"canary": [{"nodes": 1}]},
    });
    cluster.start(2, policy).await?;
    for node in ["node-1", "node-2"] {
        cluster.fleet.script(node, |node| node.boot = Boot::Never);
    }
    cluster.fleet.release(NEW);
    for round in 1..=2 {
        let world = cluster
            .until("a host is down by its permit", |world| {
                let is_down =
                    |node: &String| world.step(node) == Some(Step::Rebooting) && world.nodes[node].shutting_down;
                world.nodes.keys().any(is_down)
            })
            .await?;
        let is_down = |node: &&String| world.nodes[*node].shutting_down;
        let node = world.nodes.keys().find(is_down).cloned().unwrap_or_default();
        let earlier = world.nodes[&node].uid.clone();
        cluster.deregister(&node).await?;
        cluster.replace_controller().await?;
        cluster.pass(Duration::from_mins(10)).await?;
        let world = cluster.planned().await?;
        let slots = |world: &integ::oracle::ClusterState| {
            world.status().slots.iter().map(|slot| slot.uid.clone()).collect::<Vec<_>>()
        };
        anyhow::ensure!(slots(&world) == [earlier.clone()], "its machine is waited for: {:?}", world.status().slots);
        cluster.boot_and_register(&node).await?;
        cluster.until_event("UpdateContinued", &["1.20.5 goes on"]).await?;
        let world = cluster
            .until(&format!("{node} is updated"), |world| {
                world.is_updated(&node, &NEW) && world.record(&node).proof.is_some()
            })
            .await?;
        assert_eq!(world.record(&node).proof.map(|place| place.proof), Some(Proof::Proven));
        assert_ne!(world.nodes[&node].uid, earlier);
        let rollout = &world.status().active_rollouts[0];
        let ledger = rollout.ledger.clone().unwrap_or_default();
        assert_eq!((ledger.unproven, ledger.failed, ledger.row), (0, 0, vec![]), "round {round}");
    }
    cluster.updated().await.map(drop)
}
