//! Drills of real nodes during a rollout.

use anyhow::ensure;
use integ::oracle::{ClusterState, Expectations};
use models::shadow::HostState;
use serde_json::json;

use crate::plugin::{annotate, drill_of};
use crate::support::{NEW, OLD, is_on, is_updated, nodes, run_expecting, shadow_of, step_of};

#[tokio::test(flavor = "multi_thread")]
async fn drill_during_a_rollout_respects_the_budget_and_its_node_is_updated_afterwards() -> anyhow::Result<()> {
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    let ending = run_expecting(nodes(3), expectations, async |ctx| {
        ctx.install().await?;
        ctx.policy(&json!({"version": {"target": OLD.to_string()}})).await?;
        ctx.release();
        for node in ["node-1", "node-2", "node-3"] {
            annotate(ctx, node, "one download").await?;
        }
        ctx.until("nothing is there to download", |world| {
            ["node-1", "node-2", "node-3"].iter().all(|node| drill_of(world, node).is_ok())
        })
        .await?;
        ctx.policy(&json!({"version": {"target": "latest"}})).await?;
        ctx.until("a node is updated", |world| world.nodes.keys().any(|node| step_of(world, node).is_some())).await?;
        annotate(ctx, "node-3", "two").await?;
        let world = ctx
            .until("all are updated", |world| {
                world.nodes.keys().all(|node| is_updated(world, node))
                    && drill_of(world, "node-3").is_ok_and(|found| found.drill.request == "two")
            })
            .await?;
        ensure!(drill_of(&world, "node-3")?.result == "Passed", "{:?}", drill_of(&world, "node-3")?);
        // With nothing left to update, all nodes at a time ask for a drill.
        for node in ["node-1", "node-2", "node-3"] {
            annotate(ctx, node, "three").await?;
        }
        let ended = |world: &ClusterState, node: &str| {
            drill_of(world, node).is_ok_and(|found| found.drill.request == "three" && found.result == "Passed")
        };
        ctx.until("three drills have passed", |world| {
            world.nodes.keys().all(|node| ended(world, node) && is_on(world, node, &NEW))
        })
        .await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 3, "each host is rebooted for its update alone");
    let mut states = Vec::new();
    ending.history.replay(|_, _, world| {
        let drills = shadow_of(world, "node-3").filter(|shadow| {
            shadow.status.controller.progress.as_ref().is_some_and(|progress| progress.drill.is_some())
        });
        states.extend(drills.map(|shadow| shadow.spec.state));
    });
    assert!(states.contains(&HostState::RehearsedUpdate) && !states.contains(&HostState::RebootedIntoUpdate));
    Ok(())
}
