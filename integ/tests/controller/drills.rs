//! Drills by a plain annotation, beside updates.

use integ::oracle::ClusterState;
use models::names::DRILL_ANNOTATION;
use models::shadow::{DrillResult, HostState};
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![drill_during_a_rollout_respects_the_budget_and_its_node_is_updated_afterwards];

/// The request of a node's last drill, if that has passed.
fn passed(world: &ClusterState, node: &str) -> Option<String> {
    let drill: DrillResult = world.record(node).drill?;
    (drill.result == "Passed").then_some(drill.drill.request)
}

async fn drill_during_a_rollout_respects_the_budget_and_its_node_is_updated_afterwards(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(3, json!({})).await?;
    cluster.fleet.release(NEW);
    cluster.until("a node is updated", |world| world.nodes.keys().any(|node| world.step(node).is_some())).await?;
    cluster.request_of_node("node-3", DRILL_ANNOTATION, "beside an update").await?;
    let is = |request: &str| Some(request.to_owned());
    cluster.until("the drill has passed", |world| passed(world, "node-3") == is("beside an update")).await?;
    cluster.updated().await?;
    // With nothing left to update, all nodes at a time ask for a drill.
    for node in ["node-1", "node-2", "node-3"] {
        cluster.request_of_node(node, DRILL_ANNOTATION, "at once").await?;
    }
    cluster
        .until("three drills have passed", |world| {
            world.nodes.keys().all(|node| passed(world, node) == is("at once") && world.is_updated(node, &NEW))
        })
        .await?;
    assert_eq!(cluster.verdict().await?.stats.reboots, 3, "each host is rebooted for its update alone");
    let mut states = Vec::new();
    cluster.recorder.so_far()?.replay(|_, _, world| {
        let drilled = world.shadows.values().filter(|shadow| {
            shadow.status.controller.progress.as_ref().is_some_and(|progress| progress.drill.is_some())
        });
        states.extend(drilled.map(|shadow| shadow.spec.state));
    });
    assert!(states.contains(&HostState::RehearsedUpdate) && !states.contains(&HostState::RebootedIntoUpdate));
    Ok(())
}
