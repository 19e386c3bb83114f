//! Canary steps: with a user's approval, and with a soak.

use std::collections::BTreeSet;

use deploy::Component;
use integ::oracle::{ClusterState, Expectations, Object};
use jiff::{SignedDuration, Timestamp};
use models::names::{APPROVE_STEP_ANNOTATION, OPERATOR_NAME};
use serde_json::json;

use super::support::{annotate, is_updated, record, status};
use crate::policy::wait_for;
use crate::support::{ScenarioContext, nodes, run, run_expecting};

/// Number of nodes that have begun an attempt.
fn begun(world: &ClusterState) -> usize {
    world.shadows.values().filter(|shadow| shadow.spec.attempt > 0 || shadow.step().is_some()).count()
}

fn updated(world: &ClusterState) -> usize {
    world.nodes.keys().filter(|node| is_updated(world, node)).count()
}

async fn approve(ctx: &ScenarioContext, nonce: &str) -> anyhow::Result<()> {
    annotate(ctx, &["bruo", OPERATOR_NAME], APPROVE_STEP_ANNOTATION, nonce).await
}

/// The nonce of the last approval that was accepted.
fn approved(world: &ClusterState) -> Option<String> {
    status(world).requests?.approve_step
}

/// Waits until so many nodes are done, so many steps are passed, and all others wait for the next step.
async fn until_step_done(ctx: &ScenarioContext, done: usize, passed: i64) -> anyhow::Result<()> {
    let holds = |world: &ClusterState| {
        let waiting = i64::try_from(world.nodes.len() - done).unwrap_or_default();
        updated(world) == done
            && status(world).slots.is_empty()
            && status(world)
                .active_rollouts
                .into_iter()
                .next()
                .is_some_and(|r| r.steps_passed == passed && r.step_done.is_some())
            && wait_for(world, "CanaryStep", waiting)
    };
    ctx.until(&format!("{done} nodes are done and the others wait for approval"), holds).await?;
    ctx.renewals(2).await?;
    let world = ctx.bed.recorder.so_far()?.end();
    assert!(holds(&world), "it stays so");
    assert_eq!(begun(&world), done, "no other node has begun");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn canary_step_waits_for_approval_and_each_approval_passes_one_step() -> anyhow::Result<()> {
    let mut options = nodes(3);
    options.policy["maxUnavailable"] = json!(2);
    options.policy["strategy"] =
        json!({"canary": [{"nodes": 1, "approval": "Manual"}, {"nodes": "67%", "approval": "Manual"}]});
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    let ending = run_expecting(options, expectations, async |ctx| {
        ctx.install().await?;
        ctx.release();
        until_step_done(ctx, 1, 0).await?;

        approve(ctx, "one").await?;
        ctx.until("the approval is acknowledged", |world| approved(world).as_deref() == Some("one")).await?;
        until_step_done(ctx, 2, 1).await?;
        // The same approval again approves nothing more.
        approve(ctx, "one").await?;
        until_step_done(ctx, 2, 1).await?;

        approve(ctx, "two").await?;
        ctx.until("the approval is acknowledged", |world| approved(world).as_deref() == Some("two")).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    assert!(attempts.len() == 3 && attempts.iter().all(integ::oracle::Attempt::updated), "{attempts:#?}");
    assert_eq!(status(&ending.world()).active_rollouts.into_iter().next().map(|rollout| rollout.steps_passed), Some(2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn canary_step_waits_for_soak_across_controller_restart() -> anyhow::Result<()> {
    const SOAK: SignedDuration = SignedDuration::from_secs(8);
    let mut options = nodes(2);
    options.policy["maxUnavailable"] = json!(2);
    options.policy["strategy"] = json!({"canary": [{"nodes": 1, "soak": "8s"}]});
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        ctx.until("the first node is done, and the other waits for the soak", |world| {
            updated(world) == 1
                && status(world).active_rollouts.into_iter().next().is_some_and(|rollout| rollout.step_done.is_some())
                && wait_for(world, "CanaryStep", 1)
        })
        .await?;
        assert_eq!(begun(&ctx.bed.recorder.so_far()?.end()), 1);
        ctx.restart(Component::Controller).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;

    let mut done: BTreeSet<Timestamp> = BTreeSet::new();
    for change in ending.history.changes() {
        let Object::Operator(operator) = &change.object else { continue };
        done.extend(operator.status.active_rollouts.first().cloned().iter().filter_map(|rollout| rollout.step_done));
    }
    assert_eq!(done.len(), 1, "the soak is counted once, from one moment: {done:?}");
    let world = ending.world();
    let mut results: Vec<_> = world.nodes.keys().filter_map(|node| record(&world, node).last).collect();
    results.sort_by_key(|result| result.started);
    assert!(results[0].ended <= *done.first().unwrap());
    assert!(results[1].started >= *done.first().unwrap() + SOAK, "{results:#?}, {done:?}");
    Ok(())
}
