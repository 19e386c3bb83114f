//! Canary steps: with a soak, and with a user's approval.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::{ClusterState, Object};
use jiff::{SignedDuration, Timestamp};
use models::names::APPROVE_STEP_ANNOTATION;
use models::operator::ActiveRollout;
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![soak_of_a_canary_step_counts_once_across_leaders_and_each_approval_passes_one_step,];

fn rollout(world: &ClusterState) -> Option<ActiveRollout> {
    world.status().active_rollouts.into_iter().next()
}

/// Waits until so many nodes are updated, so many steps are passed, and all others wait for the next step; and checks that
/// no other has begun.
async fn until_step_done(cluster: &ScriptedCluster, done: usize, passed: i64) -> anyhow::Result<()> {
    let holds = |world: &ClusterState| {
        let others = i64::try_from(world.nodes.len() - done).unwrap_or_default();
        world.nodes.keys().filter(|node| world.is_updated(node, &NEW)).count() == done
            && world.status().slots.is_empty()
            && rollout(world).is_some_and(|rollout| rollout.steps_passed == passed && rollout.step_done.is_some())
            && world.waiting("CanaryStep") == others
    };
    cluster.until(&format!("{done} nodes are updated and the others wait"), holds).await?;
    let world = cluster.planned().await?;
    assert!(holds(&world), "it stays so");
    let begun = world.shadows.values().filter(|shadow| shadow.spec.attempt > 0 || shadow.step().is_some()).count();
    assert_eq!(begun, done, "no other node has begun");
    Ok(())
}

/// Returns the name of the step due in an approval.
fn due(cluster: &ScriptedCluster) -> anyhow::Result<String> {
    let rollout = rollout(&cluster.recorder.so_far()?.end()).context("no rollout")?;
    let number = rollout.record.map_or(0, |record| record.number);
    Ok(format!("{number}/{}", rollout.ledger.unwrap_or_default().due))
}

async fn soak_of_a_canary_step_counts_once_across_leaders_and_each_approval_passes_one_step(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const MINUTE: Duration = Duration::from_mins(1);
    const SOAK: Duration = Duration::from_hours(8);
    // Of four nodes, rounded up: three.
    let steps = json!([
        {"nodes": 1, "soak": "8h"}, {"nodes": 2, "approval": "Manual"}, {"nodes": "60%", "approval": "Manual"},
    ]);
    cluster.start(4, json!({"maxUnavailable": 2, "strategy": {"canary": steps}})).await?;
    cluster.fleet.release(NEW);
    until_step_done(cluster, 1, 0).await?;
    cluster.pass(SOAK / 2).await?;
    cluster.replace_controller().await?;
    cluster.pass(SOAK / 2 - 5 * MINUTE).await?;
    until_step_done(cluster, 1, 0).await?;
    cluster.pass(5 * MINUTE).await?;

    until_step_done(cluster, 2, 1).await?;
    cluster.request(APPROVE_STEP_ANNOTATION, &format!("{}@one", due(cluster)?)).await?;
    until_step_done(cluster, 3, 2).await?;
    // One that names nothing, and one of a step that is passed, approve nothing more.
    let (third, second) = (due(cluster)?, due(cluster)?.replace("/3", "/2"));
    for value in ["two", &format!("{second}@again")] {
        cluster.request(APPROVE_STEP_ANNOTATION, value).await?;
        until_step_done(cluster, 3, 2).await?;
    }
    let value = format!("{third}@two");
    cluster.request(APPROVE_STEP_ANNOTATION, &value).await?;
    let world = cluster.updated().await?;
    assert_eq!(world.status().requests.and_then(|requests| requests.approve_step), Some(value));
    assert_eq!(rollout(&world).map(|rollout| rollout.steps_passed), Some(3));

    let history = cluster.recorder.so_far()?;
    history.ensure_updates(4)?;
    let mut done: BTreeSet<Timestamp> = BTreeSet::new();
    for change in history.changes() {
        let Object::Operator(operator) = &change.object else { continue };
        let first = operator.status.active_rollouts.first().filter(|rollout| rollout.steps_passed == 0);
        done.extend(first.and_then(|rollout| rollout.step_done));
    }
    assert_eq!(done.len(), 1, "the soak is counted once, from one moment: {done:?}");
    let done = done.into_iter().next().unwrap_or_default();
    let mut results: Vec<_> = world.nodes.keys().filter_map(|node| world.record(node).last).collect();
    results.sort_by_key(|result| result.started);
    assert!(results[0].ended <= done);
    assert!(results[1].started >= done + SignedDuration::try_from(SOAK)?, "{results:#?}, {done:?}");
    Ok(())
}
