//! A pod of the earlier operator beside this operator: nothing is done until it is gone.

use integ::bed::workload;
use integ::oracle::ClusterState;
use models::condition::{Condition, ConditionStatus};
use models::earlier::{COMPONENT_LABEL, NAMESPACE};
use models::operator::BLOCKED;
use models::shadow::{HostState, Step};
use serde_json::json;

use crate::interfere::{release_into_blocked_drain, unblock};
use crate::plugin::{output_text, plugin};
use crate::support::{SHOP, ScenarioContext, nodes, run, shadow_of, status, step_of};

/// The name of the pod.
const POD: &str = "brupop-agent-x";

/// The reason of the condition and of each node.
const REASON: &str = "EarlierOperatorRunning";

/// The reason of both while hosts that it told to reboot may still be going down.
const GONE: &str = "EarlierOperatorGone";

/// Creates a pod of the earlier operator's agent.
pub(crate) async fn create_earlier_pod(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": POD, "namespace": NAMESPACE, "labels": {COMPONENT_LABEL: "agent"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "agent", "image": "example.invalid/agent:1"}],
        },
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    workload::apply(&ctx.bed.client, vec![namespace, pod]).await
}

async fn delete_earlier_pod(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.kubectl(&["-n", NAMESPACE, "delete", "pod", POD]).await?;
    Ok(())
}

/// Waits until the operator's resource and its count of reasons show the pause.
async fn paused(ctx: &ScenarioContext, nodes: i64) -> anyhow::Result<ClusterState> {
    let world = ctx
        .until("the operator reports the earlier one", |world| {
            let blocked = world.operator_condition(BLOCKED);
            blocked.is_some_and(|c| c.status == ConditionStatus::True && c.reason == REASON)
                && status(world).waiting.iter().any(|waiting| waiting.reason == REASON && waiting.nodes == nodes)
        })
        .await?;
    let message = world.operator_condition(BLOCKED).map(|c| c.message.clone()).unwrap_or_default();
    anyhow::ensure!(message.contains(&format!("{NAMESPACE}/{POD}")), "{message}");
    Ok(world)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_beside_earlier_operator_until_its_last_pod_is_gone() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        create_earlier_pod(ctx).await?;
        ctx.release();
        ctx.bed.install().await?;
        paused(ctx, 2).await?;
        let shown = output_text(&plugin(ctx, &["status"]).await?);
        anyhow::ensure!(shown.contains("Paused: ") && shown.contains(POD), "{shown}");
        ctx.renewals(2).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        anyhow::ensure!(world.shadows.is_empty(), "a shadow was created: {:?}", world.shadows);
        anyhow::ensure!(!world.nodes.values().any(|node| node.claimed()));

        delete_earlier_pod(ctx).await?;
        ctx.until("nodes wait for hosts of the earlier operator", |world| {
            let waits = |c: &Condition| c.status == ConditionStatus::Unknown && c.message.contains("waiting until");
            world.operator_condition(BLOCKED).is_some_and(waits)
                && status(world).waiting.iter().any(|waiting| waiting.reason == GONE && waiting.nodes == 2)
        })
        .await?;
        ctx.updated().await?;
        let over = ctx.until_operator(BLOCKED, ConditionStatus::False).await?;
        anyhow::ensure!(over.reason == GONE, "{over:?}");
        Ok(())
    })
    .await?;
    ending.assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_is_paused_beside_earlier_operator_and_then_continues() -> anyhow::Result<()> {
    let ending = run(nodes(1), async |ctx| {
        ctx.guarded_shop(4).await?;
        ctx.install().await?;
        let node = release_into_blocked_drain(ctx).await?;
        create_earlier_pod(ctx).await?;
        paused(ctx, 1).await?;
        let pods = |world: &ClusterState| {
            let there = |pod: &&integ::oracle::Pod| {
                pod.namespace == SHOP && pod.node.as_deref() == Some(node.as_str()) && !pod.terminating
            };
            world.pods.values().filter(|pod| there(&pod.as_ref())).count()
        };
        let before = pods(&ctx.bed.recorder.so_far()?.end());
        anyhow::ensure!(before > 0, "no pod is left to evict");
        unblock(ctx).await?;
        ctx.renewals(3).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        anyhow::ensure!(pods(&world) == before, "pods were evicted: {} of {before} are left", pods(&world));
        anyhow::ensure!(step_of(&world, &node) == Some(Step::Draining), "{:?}", step_of(&world, &node));
        anyhow::ensure!(shadow_of(&world, &node).is_some_and(|shadow| shadow.spec.state == HostState::StagedUpdate));
        anyhow::ensure!(status(&world).slots.len() == 1, "the slot is kept: {:?}", status(&world).slots);

        delete_earlier_pod(ctx).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    ending.assert_updates(1);
    Ok(())
}
