//! A drain during which the other node goes away.

use crate::interfere::{blocked_drain, unblock};
use crate::support::{is_updated, nodes, other, run};

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
