//! Drains during which the operator, or another node, goes away.

use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};

use crate::interfere::{blocked_drain, poll, unblock};
use crate::support::{is_updated, nodes, other, run};

/// Deletes everything but the shadows: as when the workloads are deleted by mistake, and restored by the next apply.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: the controller's tests have its half"]
async fn drain_continues_after_operator_is_deleted_and_reinstalled() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        let target = blocked_drain(ctx).await?;
        for namespace in [SYSTEM_NAMESPACE, AGENT_NAMESPACE] {
            ctx.kubectl(&["-n", namespace, "delete", "deployments,daemonsets", "--all"]).await?;
        }
        poll("no part of it is left", async || Ok(ctx.bed.processes().is_empty().then_some(()))).await?;
        let world = ctx.bed.recorder.now()?;
        assert!(world.nodes[&target].claimed(), "there was no operator to release the node");
        ctx.bed.install().await?;
        unblock(ctx).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.world().nodes.values().all(|node| !node.claimed()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_completes_when_only_other_node_loses_power() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.deploy.controller_replicas = 2;
    options.deploy.apiserver_replicas = 2;
    let ending = run(options, async |ctx| {
        let target = blocked_drain(ctx).await?;
        let other = other(&target);
        ctx.bed.member(other)?.host.power_off();
        unblock(ctx).await?;
        ctx.until("the node is updated", |world| is_updated(world, &target)).await?;
        ctx.bed.member(other)?.host.power_on();
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert!(ending.world().nodes.values().all(|node| !node.claimed()));
    Ok(())
}
