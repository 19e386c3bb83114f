//! Canary steps: with a user's approval, and with a soak.

use std::collections::BTreeSet;

use deploy::Component;
use integ::oracle::{Expectations, Object, World};
use jiff::{SignedDuration, Timestamp};
use models::names::{APPROVE_STEP_ANNOTATION, OPERATOR_NAME};
use serde_json::json;

use super::support::{annotate, is_updated, record, status};
use crate::policy::wait_for;
use crate::support::{Scene, nodes, run, run_expecting};

/// Number of nodes that have begun an attempt.
fn begun(world: &World) -> usize {
    world.shadows.values().filter(|shadow| shadow.spec.attempt > 0 || shadow.step().is_some()).count()
}

fn updated(world: &World) -> usize {
    world.nodes.keys().filter(|node| is_updated(world, node)).count()
}

async fn approve(scene: &Scene, nonce: &str) -> anyhow::Result<()> {
    annotate(scene, &["bruo", OPERATOR_NAME], APPROVE_STEP_ANNOTATION, nonce).await
}

/// The nonce of the last approval that was accepted.
fn approved(world: &World) -> Option<String> {
    status(world).requests?.approve_step
}

/// Waits until so many nodes are done, so many steps are passed, and all others wait for the next step.
async fn step_stands(scene: &Scene, done: usize, passed: i64) -> anyhow::Result<()> {
    let holds = |world: &World| {
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
    scene.until(&format!("{done} nodes are done and the others wait for approval"), holds).await?;
    scene.renewals(2).await?;
    let world = scene.bed.recorder.so_far()?.end();
    assert!(holds(&world), "it stays so");
    assert_eq!(begun(&world), done, "no other node has begun");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_node_beyond_a_step_begins_until_a_person_approves_and_each_approval_is_for_one_step() -> anyhow::Result<()>
{
    let mut options = nodes(3);
    options.policy["maxUnavailable"] = json!(2);
    options.policy["strategy"] =
        json!({"canary": [{"nodes": 1, "approval": "Manual"}, {"nodes": "67%", "approval": "Manual"}]});
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    let ending = run_expecting(options, expectations, async |scene| {
        scene.install().await?;
        scene.release();
        step_stands(scene, 1, 0).await?;

        approve(scene, "one").await?;
        scene.until("the approval is acknowledged", |world| approved(world).as_deref() == Some("one")).await?;
        step_stands(scene, 2, 1).await?;
        // The same approval again approves nothing more.
        approve(scene, "one").await?;
        step_stands(scene, 2, 1).await?;

        approve(scene, "two").await?;
        scene.until("the approval is acknowledged", |world| approved(world).as_deref() == Some("two")).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    assert!(attempts.len() == 3 && attempts.iter().all(integ::oracle::Attempt::updated), "{attempts:#?}");
    assert_eq!(status(&ending.world()).active_rollouts.into_iter().next().map(|rollout| rollout.steps_passed), Some(2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_step_begins_after_the_soak_also_if_the_controller_is_restarted_meanwhile() -> anyhow::Result<()> {
    const SOAK: SignedDuration = SignedDuration::from_secs(4);
    let mut options = nodes(2);
    options.policy["maxUnavailable"] = json!(2);
    options.policy["strategy"] = json!({"canary": [{"nodes": 1, "soak": "4s"}]});
    let ending = run(options, async |scene| {
        scene.install().await?;
        scene.release();
        scene
            .until("the first node is done, and the other waits for the soak", |world| {
                updated(world) == 1
                    && status(world)
                        .active_rollouts
                        .into_iter()
                        .next()
                        .is_some_and(|rollout| rollout.step_done.is_some())
                    && wait_for(world, "CanaryStep", 1)
            })
            .await?;
        assert_eq!(begun(&scene.bed.recorder.so_far()?.end()), 1);
        scene.restart(Component::Controller).await?;
        scene.updated().await?;
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
