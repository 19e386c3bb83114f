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

crate::cases![
    rollout_whose_hook_is_silent_on_every_node_is_braked_until_a_user_resumes_it,
    braked_rollout_tries_one_node_after_a_pause_or_at_the_request_of_a_user,
    rollout_that_is_braked_by_nodes_on_the_version_tries_none_until_one_of_them_proves_it,
];

/// Returns whether the hook of a node has been asked before its drain.
fn is_asked(world: &ClusterState, node: &str) -> bool {
    world.step(node) == Some(Step::BeforeDrain) && world.nodes[node].hook_request().is_some()
}

/// Waits until another node than these awaits its hook, and returns it.
async fn next_asked(cluster: &ScriptedCluster, before: &BTreeSet<String>) -> anyhow::Result<String> {
    let asked = |world: &ClusterState| {
        let mut nodes = world.nodes.keys().filter(|node| !before.contains(*node));
        nodes.find(|node| is_asked(world, node)).cloned()
    };
    let world = cluster.until("another node awaits its hook", |world| asked(world).is_some()).await?;
    asked(&world).context("just seen")
}

/// Lets the hook of a node be silent for too long.
async fn times_out(cluster: &ScriptedCluster, node: &str) -> anyhow::Result<()> {
    cluster.pass(Duration::from_mins(11)).await?;
    cluster
        .until("its update has ended", |world| {
            world.last_reason(node).as_deref() == Some("HookTimedOut") && world.is_released(node)
        })
        .await
        .map(drop)
}

async fn braked_rollout_tries_one_node_after_a_pause_or_at_the_request_of_a_user(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let hooks = json!([{"name": "storage", "before": {"timeout": "10m", "onTimeout": "Fail"}}]);
    cluster.start(5, json!({"hooks": hooks})).await?;
    cluster.fleet.release(NEW);
    let mut ended: BTreeSet<String> = BTreeSet::new();
    for _ in 0..3 {
        let node = next_asked(cluster, &ended).await?;
        times_out(cluster, &node).await?;
        ended.insert(node);
    }
    // The pause begins with the write that takes the last slot back.
    let pauses = |world: &ClusterState| {
        let rollouts = world.status().active_rollouts;
        world.status().slots.is_empty() && rollouts.iter().any(ActiveRollout::is_braked)
    };
    cluster.until("the others wait for it", |world| pauses(world) && world.waiting("Braked") > 0).await?;
    // The first pause is of ten minutes.
    cluster.pass(Duration::from_mins(11)).await?;
    let tried = next_asked(cluster, &ended).await?;
    times_out(cluster, &tried).await?;
    ended.insert(tried);
    let world =
        cluster.until("the last one waits for it", |world| pauses(world) && world.waiting("Braked") > 0).await?;
    let last = world.nodes.keys().find(|node| !ended.contains(*node)).context("one is left")?.clone();
    cluster.request_of_node(&last, RETRY_ANNOTATION, "now").await?;
    assert_eq!(next_asked(cluster, &ended).await?, last, "the request ends the pause");
    cluster.policy(&json!({"hooks": null})).await?;
    // It proves the version, which lifts the brake.
    cluster.until("it is updated", |world| world.is_updated(&last, &NEW)).await?;
    cluster.until_operator(BRAKED, ConditionStatus::False).await?;
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.updated().await.map(drop)
}

async fn rollout_that_is_braked_by_nodes_on_the_version_tries_none_until_one_of_them_proves_it(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.expectations.max_unavailable = Some(3);
    let hooks = json!([{"name": "storage", "after": {"timeout": "10m", "onTimeout": "Fail"}}]);
    cluster.start_beside_proven(4, json!({"maxUnavailable": 3, "hooks": hooks})).await?;
    cluster.fleet.release(NEW);
    let on_the_version = |world: &ClusterState| -> Vec<String> {
        world.nodes.keys().filter(|node| world.step(node) == Some(Step::AfterUpdate)).cloned().collect()
    };
    let world = cluster.until("three await their hooks", |world| on_the_version(world).len() == 3).await?;
    let unproven = on_the_version(&world);
    cluster.pass(Duration::from_mins(11)).await?;
    cluster.until_operator(BRAKED, ConditionStatus::True).await?;
    cluster.until("all have ended", |world| world.status().slots.is_empty()).await?;
    for _ in 0..3 {
        cluster.pass(Duration::from_hours(7)).await?;
        cluster
            .until("they are verified again, and await their hooks", |world| on_the_version(world).len() == 3)
            .await?;
        let world = cluster.planned().await?;
        let spared = world.nodes.keys().find(|node| !unproven.contains(node)).context("one is left")?;
        assert!(!world.nodes[spared].claimed() && !world.is_updated(spared, &NEW), "{spared} is not tried");
        assert_eq!(world.waiting("Braked"), 1);
        cluster.pass(Duration::from_mins(11)).await?;
        let ended = |world: &ClusterState| unproven.iter().all(|node| world.step(node).is_none());
        cluster.until("their verifications have ended", ended).await?;
    }
    cluster.policy(&json!({"hooks": null})).await?;
    cluster.pass(Duration::from_mins(61)).await?;
    cluster.until_operator(BRAKED, ConditionStatus::False).await?;
    cluster.updated().await.map(drop)
}

async fn rollout_whose_hook_is_silent_on_every_node_is_braked_until_a_user_resumes_it(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.expectations.max_unavailable = Some(4);
    let hooks = json!([{"name": "storage", "before": {"timeout": "10m", "onTimeout": "Fail"}}]);
    cluster.start(4, json!({"maxUnavailable": 4, "hooks": hooks})).await?;
    cluster.fleet.release(NEW);
    let mut ended: BTreeSet<String> = BTreeSet::new();
    let asked = |world: &ClusterState| {
        let mut nodes = world.nodes.keys();
        nodes.find(|node| is_asked(world, node)).cloned()
    };
    for _ in 0..3 {
        let world = cluster.until("a node awaits its hook", |world| asked(world).is_some()).await?;
        let node = asked(&world).context("just seen")?;
        times_out(cluster, &node).await?;
        assert!(ended.insert(node), "each node once: {ended:?}");
    }
    let braked = cluster.until_operator(BRAKED, ConditionStatus::True).await?;
    assert!(
        braked.message.contains("HookTimedOut") && braked.message.contains(RESUME_ANNOTATION),
        "{}",
        braked.message
    );
    cluster.until_event("Braked", &["1.20.5", "HookTimedOut"]).await?;
    cluster.until_metric("braked", 1.0).await?;
    let world = cluster.until("the fourth node waits for it", |world| world.waiting("Braked") > 0).await?;
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
    cluster.until("the fourth node is updated", |world| world.is_updated(&spared, &NEW)).await?;
    // The back-offs of the others end.
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.updated().await?;
    cluster.until_metric("braked", 0.0).await
}
