//! Nodes after their update: the effect of the health of their pods.

use anyhow::Context as _;
use integ::bed::{TestClusterOptions, workload};
use integ::oracle::ClusterState;
use models::condition::{ConditionStatus, find_condition};
use models::reason::FailureReason;
use models::shadow::{BLOCKED, HEALTHY, Step};
use serde_json::{Value, json};

use crate::support::{
    EVENTS_OF_NODES, OLD, SHOP, ScenarioContext, condition_of, is_on, is_released, is_updated, nodes, other, record,
    run, shadow_of, status, step_of, until_event,
};

/// Options for so many nodes with these health checks after their update.
fn verified_with(count: usize, after: &Value) -> TestClusterOptions {
    let mut options = nodes(count);
    options.policy["health"]["after"] = after.clone();
    options
}

fn container() -> Value {
    json!([{"name": "app", "image": "example.invalid/app:1"}])
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}})
}

/// Creates a DaemonSet `driver` with a pod on each node. They are Ready; those created after a reboot never become so
/// by themselves.
async fn driver(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "driver", "namespace": SHOP},
        "spec": {
            "selector": {"matchLabels": {"app": "driver"}},
            "template": {
                "metadata": {"labels": {"app": "driver"}, "annotations": {"sim/never-ready": "true"}},
                "spec": {"containers": container()},
            },
        },
    });
    workload::apply(&ctx.bed.client, vec![namespace(), set]).await?;
    for member in &ctx.bed.members {
        annotate_driver(ctx, &member.name, "sim/never-ready=false").await?;
    }
    let nodes = ctx.bed.members.len();
    ctx.until("all pods are Ready", |world| {
        world.pods.values().filter(|pod| pod.namespace == SHOP && pod.ready).count() == nodes
    })
    .await?;
    Ok(())
}

/// The pod of the DaemonSet on a node.
fn driver_on(world: &ClusterState, node: &str) -> Option<String> {
    let on_node = |pod: &&integ::oracle::Pod| {
        pod.namespace == SHOP && pod.node.as_deref() == Some(node) && !pod.terminating && !pod.finished
    };
    world.pods.values().map(AsRef::as_ref).find(on_node).map(|pod| pod.name.clone())
}

/// Annotates the pod of the DaemonSet on a node.
async fn annotate_driver(ctx: &ScenarioContext, node: &str, annotation: &str) -> anyhow::Result<()> {
    let world = ctx.until("the node has a pod", |world| driver_on(world, node).is_some()).await?;
    let pod = driver_on(&world, node).context("just seen")?;
    ctx.kubectl(&["-n", SHOP, "annotate", "--overwrite", "pod", &pod, annotation]).await?;
    Ok(())
}

/// The next node that has begun.
async fn next_node(ctx: &ScenarioContext, done: &[String]) -> anyhow::Result<String> {
    let begun = |world: &ClusterState| {
        let names = world.nodes.keys().filter(|node| !done.contains(node));
        names
            .into_iter()
            .find(|node| step_of(world, node).is_some_and(|step| !matches!(step, Step::Staging | Step::Staged)))
            .cloned()
    };
    let world = ctx.until("another node has begun", |world| begun(world).is_some()).await?;
    begun(&world).context("just seen")
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_pod_on_updated_node_is_reported_without_freeze() -> anyhow::Result<()> {
    let ending = run(verified_with(2, &json!({"soak": "1s", "timeout": "3s"})), async |ctx| {
        ctx.install().await?;
        // Pods that stay pending before the first node has been updated, and that are never Ready.
        let mut broken = workload::deployment(SHOP, "broken", 2);
        broken["spec"]["template"]["metadata"]["annotations"] = json!({"sim/never-ready": "true"});
        broken["spec"]["template"]["spec"]["nodeSelector"] = json!({"example.com/updated": "true"});
        workload::apply(&ctx.bed.client, vec![namespace(), broken]).await?;
        ctx.release();
        let first = next_node(ctx, &[]).await?;
        ctx.kubectl(&["label", "node", &first, "example.com/updated=true"]).await?;
        let world = ctx
            .until("both nodes are updated", |world| is_updated(world, &first) && is_updated(world, other(&first)))
            .await?;
        let last = record(&world, &first).last.unwrap();
        assert!(last.message.contains("shop/broken-") && last.message.contains("2 pod(s)"), "{}", last.message);
        let healthy = condition_of(&world, &first, HEALTHY).unwrap();
        assert_eq!((healthy.status, healthy.reason.as_str()), (ConditionStatus::False, "PodsUnhealthy"));
        until_event(ctx, EVENTS_OF_NODES, "Updated", &["shop/broken-"]).await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    let world = ending.world();
    for node in world.nodes.keys() {
        let record = record(&world, node);
        assert_eq!((record.failures, record.version_failures, record.not_before), (0, vec![], None), "{node}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn daemon_set_failing_on_updated_nodes_freezes_rollout() -> anyhow::Result<()> {
    let mut done = Vec::new();
    let ending = run(verified_with(3, &json!({"soak": "1s", "timeout": "3s"})), async |ctx| {
        driver(ctx).await?;
        ctx.install().await?;
        ctx.release();
        for _ in 0..2 {
            done.push(next_node(ctx, &done).await?);
            if done.len() == 1 {
                ctx.until("the first node is updated, with a warning", |world| is_updated(world, &done[0])).await?;
                assert_eq!(record(&ctx.bed.recorder.so_far()?.end(), &done[0]).version_failures, []);
            }
        }
        ctx.until_operator("Frozen", ConditionStatus::True).await?;
        let world = ctx
            .until("the second node is released", |world| {
                is_released(world, &done[1]) && status(world).slots.is_empty()
            })
            .await?;
        let failed = record(&world, &done[1]);
        let message = failed.last.as_ref().unwrap().message.clone();
        assert!(message.contains("shop/driver-") && message.contains("fail on 1 other node(s)"), "{message}");
        let charged: Vec<_> = failed.version_failures.iter().map(|failure| failure.reason).collect();
        assert_eq!(charged, [FailureReason::SoakFailed]);
        ctx.renewals(2).await?;
        Ok(())
    })
    .await?;
    let world = ending.world();
    let third = world.nodes.keys().find(|node| !done.contains(node)).unwrap();
    assert!(is_on(&world, third, &OLD), "the third node was left alone");
    assert_eq!(record(&world, &done[0]).version_failures, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn health_check_ignores_pod_unhealthy_before_drain() -> anyhow::Result<()> {
    // Longer than a scenario may take: waiting for that pod would not end.
    let ending = run(verified_with(1, &json!({"soak": "1s", "timeout": "2h"})), async |ctx| {
        driver(ctx).await?;
        annotate_driver(ctx, "node-1", "sim/never-ready=true").await?;
        ctx.until("the pod is not Ready", |world| world.pods.values().all(|pod| pod.namespace != SHOP || !pod.ready))
            .await?;
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(1);
    let record = record(&ending.world(), "node-1");
    assert_eq!(record.unhealthy_before.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn health_check_waits_for_slow_pod_and_restarted_container() -> anyhow::Result<()> {
    let ending = run(verified_with(1, &json!({"soak": "2s", "timeout": "2h"})), async |ctx| {
        driver(ctx).await?;
        ctx.install().await?;
        ctx.release();
        let settling = |world: &ClusterState, word: &str| {
            condition_of(world, "node-1", BLOCKED).is_some_and(|blocked| {
                blocked.status == ConditionStatus::True
                    && blocked.reason == "Settling"
                    && blocked.message.contains(word)
            })
        };
        ctx.until("the node waits for the pod by name", |world| settling(world, "shop/driver-")).await?;
        ctx.renewals(2).await?;
        assert_eq!(step_of(&ctx.bed.recorder.so_far()?.end(), "node-1"), Some(Step::Verifying));
        annotate_driver(ctx, "node-1", "sim/restarts=1").await?;
        annotate_driver(ctx, "node-1", "sim/never-ready=false").await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(1);
    let world = ending.world();
    let conditions = &shadow_of(&world, "node-1").unwrap().status.conditions;
    assert_eq!(find_condition(conditions, HEALTHY).unwrap().reason, "Soaked");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_ready_check_blocks_update_of_node_with_unready_pod() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.policy["health"] = json!({"before": {"podsReady": true}, "after": {"soak": "1s", "podsReady": false}});
    let ending = run(options, async |ctx| {
        driver(ctx).await?;
        ctx.install().await?;
        annotate_driver(ctx, "node-1", "sim/never-ready=true").await?;
        ctx.until("the pod is not Ready", |world| world.pods.values().all(|pod| pod.namespace != SHOP || !pod.ready))
            .await?;
        ctx.release();
        ctx.until("the node waits for its pod, staged", |world| {
            step_of(world, "node-1") == Some(Step::Staged)
                && condition_of(world, "node-1", BLOCKED)
                    .is_some_and(|c| c.reason == "PodsNotReady" && c.message.contains("shop/driver-"))
        })
        .await?;
        assert_eq!(ctx.bed.recorder.so_far()?.max_out_of_service(), 0);
        annotate_driver(ctx, "node-1", "sim/never-ready=false").await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn max_unhealthy_nodes_blocks_updates_while_too_many_nodes_are_unready() -> anyhow::Result<()> {
    let mut options = nodes(3);
    options.policy["health"]["before"] = json!({"maxUnhealthyNodes": 1});
    // So that the budget alone would permit the third one.
    options.policy["maxUnavailable"] = json!(3);
    let expected = integ::oracle::Expectations { max_unavailable: Some(3), nothing_left: true };
    let off = ["node-1", "node-2"];
    let ending = crate::support::run_expecting(options, expected, async |ctx| {
        ctx.install().await?;
        for node in off {
            ctx.bed.member(node)?.host.power_off();
        }
        ctx.until("two nodes are not Ready", |world| off.iter().all(|node| !world.nodes[*node].ready)).await?;
        ctx.release();
        let world = ctx
            .until("the third node waits for them", |world| crate::policy::wait_for(world, "UnhealthyNodes", 1))
            .await?;
        assert!(!world.nodes["node-3"].claimed());
        for node in off {
            ctx.bed.member(node)?.host.power_on();
        }
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(3);
    Ok(())
}
