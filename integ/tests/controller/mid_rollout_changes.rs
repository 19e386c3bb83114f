//! A policy that changes, or is deleted, during a rollout.

use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::operator::DEGRADED;
use models::shadow::{HostState, Step, UPDATED};
use serde_json::json;

use crate::bed::{Held, NEW, ScriptedCluster, other};
use crate::leaders::blocked_drain;

crate::cases![
    invalid_policy_starts_nothing_new_and_what_is_under_way_ends,
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

/// A blackout in an emergency, with a misspelled time zone.
async fn invalid_policy_starts_nothing_new_and_what_is_under_way_ends(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let (drained, staged) = drained_and_staged(cluster).await?;
    cluster.policy(&json!({"schedule": {"blackouts": [{"from": "2000-01-01", "timeZone": "Europe/Berlim"}]}})).await?;
    let degraded = cluster.until_operator(DEGRADED, ConditionStatus::True).await?;
    assert!(degraded.reason == "InvalidPolicy" && degraded.message.contains("Berlim"), "{degraded:?}");
    cluster.unblock_shop().await?;
    let world = cluster
        .until("the drained node is updated, and the other one waits", |world| {
            world.is_updated(&drained, &NEW) && world.waiting("PolicyInvalid") == 1
        })
        .await?;
    assert!(!world.nodes[staged].claimed() && world.step(staged) == Some(Step::Staged), "{:?}", world.step(staged));
    cluster.policy(&json!({"schedule": {"blackouts": null}})).await?;
    cluster.until_operator(DEGRADED, ConditionStatus::False).await?;
    cluster.updated().await?;
    for node in [&*drained, staged] {
        assert_eq!(cluster.recorder.so_far()?.results(node), [(NEW, UPDATED.to_owned())]);
    }
    Ok(())
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
