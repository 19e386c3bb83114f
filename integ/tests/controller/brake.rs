//! A rollout whose updates end one after the other without a proof, and a user who resumes it.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::{ClusterState, Object};
use models::condition::ConditionStatus;
use models::names::{RESUME_ANNOTATION, RETRY_ANNOTATION};
use models::operator::{ActiveRollout, BRAKED};
use models::shadow::Step;
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![rollout_whose_hook_is_silent_is_braked_and_tries_one_node_after_a_pause_until_a_user_resumes_it];

/// Waits until another node than these awaits its hook, lets that be silent for too long, and returns the node.
async fn next_times_out(cluster: &ScriptedCluster, before: &BTreeSet<String>) -> anyhow::Result<String> {
    let asked = |world: &ClusterState| {
        let is_asked =
            |node: &&String| world.step(node) == Some(Step::BeforeDrain) && world.nodes[*node].hook_request().is_some();
        world.nodes.keys().filter(|node| !before.contains(*node)).find(is_asked).cloned()
    };
    let world = cluster.until("another node awaits its hook", |world| asked(world).is_some()).await?;
    let node = asked(&world).context("just seen")?;
    cluster.pass(Duration::from_mins(11)).await?;
    cluster
        .until("its update has ended", |world| {
            world.last_reason(&node).as_deref() == Some("HookTimedOut") && world.is_released(&node)
        })
        .await?;
    Ok(node)
}

async fn rollout_whose_hook_is_silent_is_braked_and_tries_one_node_after_a_pause_until_a_user_resumes_it(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.expectations.max_unavailable = Some(6);
    let hooks = json!([{"name": "storage", "before": {"timeout": "10m", "onTimeout": "Fail"}}]);
    cluster.start(6, json!({"maxUnavailable": 6, "hooks": hooks})).await?;
    cluster.fleet.release(NEW);
    let mut ended: BTreeSet<String> = BTreeSet::new();
    for _ in 0..3 {
        let node = next_times_out(cluster, &ended).await?;
        ended.insert(node);
    }
    let braked = cluster.until_operator(BRAKED, ConditionStatus::True).await?;
    assert!(
        braked.message.contains("HookTimedOut") && braked.message.contains(RESUME_ANNOTATION),
        "{}",
        braked.message
    );
    cluster.until_event("Braked", &["1.20.5", "HookTimedOut"]).await?;
    cluster.until_metric("braked", 1.0).await?;
    // The pause begins with the write that takes the last slot back.
    let pauses = |world: &ClusterState| {
        let rollouts = world.status().active_rollouts;
        let is_braked = world.status().slots.is_empty() && rollouts.iter().any(ActiveRollout::is_braked);
        is_braked && world.waiting("Braked") > 0
    };
    cluster.until("the others wait for it", pauses).await?;
    // The first pause is of ten minutes.
    cluster.pass(Duration::from_mins(11)).await?;
    let tried = next_times_out(cluster, &ended).await?;
    ended.insert(tried);
    // A request for one of the two that are left ends the next pause.
    let world = cluster.until("the others wait for it again", pauses).await?;
    let node = world.nodes.keys().find(|node| !ended.contains(*node)).context("two are left")?;
    cluster.request_of_node(node, RETRY_ANNOTATION, "now").await?;
    let tried = next_times_out(cluster, &ended).await?;
    ended.insert(tried);
    let world = cluster.until("the last one waits for it", pauses).await?;
    let spared = world.nodes.keys().find(|node| !ended.contains(*node)).context("one is left")?.clone();
    cluster.recorder.so_far()?.replay(|change, _, world| {
        // An attempt that has ended holds no other back.
        let waits = |step: Step| matches!(step, Step::Staging | Step::Staged | Step::Releasing);
        let going = world.nodes.keys().filter(|node| world.step(node).is_some_and(|step| !waits(step)));
        let going: Vec<&String> = going.collect();
        assert!(going.len() <= 1, "until one has proven the version, one goes alone: {going:?} at {}", change.revision);
        let cordons = matches!(&change.object, Object::Node(node) if node.name == spared && node.claimed());
        assert!(!cordons, "{spared} is left in service");
    });

    cluster.policy(&json!({"hooks": null})).await?;
    cluster.request(RESUME_ANNOTATION, "now").await?;
    cluster.until_operator(BRAKED, ConditionStatus::False).await?;
    cluster.until_event("BrakeReleased", &[]).await?;
    cluster.until("the last node is updated", |world| world.is_updated(&spared, &NEW)).await?;
    // The back-offs of the others end.
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.updated().await?;
    cluster.until_metric("braked", 0.0).await
}
