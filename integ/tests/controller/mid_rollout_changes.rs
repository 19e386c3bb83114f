//! A policy that changes, or is deleted, during a rollout.

use integ::oracle::ClusterState;
use models::shadow::{HostState, Step, UPDATED};
use serde_json::json;

use crate::bed::{Held, NEW, OLD, ScriptedCluster, other};
use crate::leaders::blocked_drain;

crate::cases![
    excluding_version_ends_staged_attempt_and_completes_running_update,
    operator_resource_deletion_keeps_permitted_update_and_blocks_new_starts
];

/// Brings one of two nodes into a blocked drain, with the other one staged, and returns both.
async fn drained_and_staged(cluster: &mut ScriptedCluster) -> anyhow::Result<(String, &'static str)> {
    cluster.start(2, json!({"strategy": {"preStage": {}}})).await?;
    let drained = blocked_drain(cluster).await?;
    let staged = other(&drained);
    cluster.until_step(staged, Step::Staged).await?;
    Ok((drained, staged))
}

/// Returns true if a node has nothing to do since its last attempt ended for this reason.
fn is_given_up(world: &ClusterState, node: &str, reason: &str) -> bool {
    world.is_released(node)
        && world.shadow(node).is_some_and(|shadow| shadow.spec.state == HostState::Idle)
        && world.last_reason(node).as_deref() == Some(reason)
}

/// Checks the ends of all attempts.
fn ensure_results(cluster: &ScriptedCluster, drained: &str, staged: &str, given_up: &str) -> anyhow::Result<()> {
    let history = cluster.recorder.so_far()?;
    assert_eq!(history.results(drained), [(NEW, UPDATED.to_owned())]);
    assert_eq!(history.results(staged), [given_up, UPDATED].map(|end| (NEW, end.to_owned())));
    Ok(())
}

async fn excluding_version_ends_staged_attempt_and_completes_running_update(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let (drained, staged) = drained_and_staged(cluster).await?;
    cluster.policy(&json!({"version": {"exclude": ["1.20.5"]}})).await?;
    let world = cluster
        .until("the staged node's attempt is given up", |world| {
            is_given_up(world, staged, "PolicyChanged") && world.waiting("Excluded") == 1
        })
        .await?;
    let record = world.record(staged);
    let charged = (record.failures, record.not_before, record.version_failures);
    assert_eq!(charged, (0, None, vec![]), "it counts against nothing");
    assert_eq!(world.step(&drained), Some(Step::Draining), "who has started keeps its version");

    cluster.unblock_shop().await?;
    let world = cluster.until("the running update has ended", |world| world.is_updated(&drained, &NEW)).await?;
    assert_eq!(world.shadow(staged).and_then(|shadow| shadow.status.agent.current_version.clone()), Some(OLD));
    cluster.policy(&json!({"version": {"exclude": null}})).await?;
    cluster.updated().await?;
    ensure_results(cluster, &drained, staged, "PolicyChanged")
}

async fn operator_resource_deletion_keeps_permitted_update_and_blocks_new_starts(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let (drained, staged) = drained_and_staged(cluster).await?;
    cluster.fleet.script(&drained, |behaviour| behaviour.held = Some(Held::Activation));
    cluster.unblock_shop().await?;
    cluster
        .until("the node has its permit", |world| world.shadow(&drained).is_some_and(|s| s.spec.permit.is_some()))
        .await?;
    cluster.delete_policy(&kube::api::DeleteParams::default()).await?;
    cluster.until("the other one's attempt is given up", |world| is_given_up(world, staged, "Disabled")).await?;
    cluster.create_policy(json!({"enabled": false})).await?;
    cluster
        .until("the new resource names the slot", |world| {
            world.status().slots.iter().map(|slot| &slot.node).eq([&drained])
        })
        .await?;
    cluster.delete_policy(&kube::api::DeleteParams::default()).await?;
    cluster.fleet.script(&drained, |behaviour| behaviour.held = None);
    // Without a policy the soak is a minute, as documented.
    let world = cluster
        .until("the node is back and being verified", |world| {
            world.step(&drained) == Some(Step::Verifying)
                && !world.nodes[&drained].claimed()
                && world.shadow(&drained).is_some_and(|s| s.status.agent.current_version == Some(NEW))
        })
        .await?;
    assert!(world.operator.is_none() && is_given_up(&world, staged, "Disabled"), "nothing starts");
    cluster.create_policy(json!({})).await?;
    cluster.updated().await?;
    ensure_results(cluster, &drained, staged, "Disabled")
}
