//! Scenarios on real nodes: virtual machines that really drain, shut down, and boot another image. `make test-vm` runs them;
//! under emulation they take minutes, so `make test` does not.

mod fleet;
mod network;
mod recording;
mod support;

use anyhow::ensure;
use integ::oracle::Expectations;
use integ::vm::{BOOT, BROKEN, UPDATED};
use models::condition::ConditionStatus;
use models::operator::FROZEN;
use serde_json::json;

use crate::support::{Scenario, run};

/// One machine is the whole cluster: controller, web API and agent run on the node that they update.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs virtual machines: make test-vm"]
async fn cluster_of_one_node_updates_itself_and_falls_back_from_an_image_that_does_not_boot() -> anyhow::Result<()> {
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    let history = run(1, expectations, async |ctx: &mut Scenario| {
        // On a single node an evicted pod has no other node: a budget that kept one of them would block for ever.
        ctx.shop(2, json!("100%")).await?;
        let mounted = ctx.cluster.guests[0].shell("findmnt -no SOURCE /").await?;
        let kernel = ctx.cluster.guests[0].shell("cat /proc/sys/kernel/random/boot_id").await?;
        ctx.cluster.install_by_readme().await?;
        ctx.promises_of_the_manifests_hold("vm-1").await?;

        // A restarted host API has another socket, and the agent's container still has the old one. The agent ends itself after
        // ten minutes.
        let restart =
            "systemctl restart host-api; until test -S /run/api.sock; do sleep 1; done; kill $(pidof -s brupop-agent)";
        ctx.cluster.guests[0].shell(restart).await?;
        ctx.agent_is_restarted("vm-1").await?;

        ctx.cluster.publish(&UPDATED).await?;
        ctx.until("the kubelet says that its node shuts down", BOOT, |world| world.nodes["vm-1"].shutting_down).await?;
        ctx.updated(&UPDATED).await?;
        ctx.promises_of_the_manifests_hold("vm-1").await?;
        let node = ctx.cluster.kubectl("get node vm-1 -o jsonpath={.status.nodeInfo}").await?;
        let boot = ctx.cluster.guests[0].shell("cat /proc/sys/kernel/random/boot_id").await?;
        ensure!(boot != kernel && node.contains(&boot), "another boot: {kernel}, {boot}, {node}");
        ensure!(node.contains("Bottlerocket OS 1.20.5"), "the image of set B runs: {node}");
        let other = ctx.cluster.guests[0].shell("findmnt -no SOURCE /").await?;
        ensure!(!mounted.is_empty() && !other.is_empty() && mounted != other, "the other disk: {mounted}, {other}");
        ctx.shop_is_ready(2).await?;

        ctx.cluster.publish(&BROKEN).await?;
        // Two boots: of the image that does not boot, and the fall back.
        ctx.until("the rollout is frozen", 2 * BOOT, |world| {
            let frozen = world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::True);
            frozen && world.operator.as_ref().is_some_and(|operator| operator.status.slots.is_empty())
        })
        .await?;
        ctx.updated(&UPDATED).await?;
        let booted = ctx.cluster.guests[0].booted();
        let tried = booted.starts_with(&["root-a", "root-b", "root-a"].map(str::to_owned));
        ensure!(tried && booted.last().is_some_and(|set| set == "root-b"), "the sets that were booted: {booted:?}");
        let shown = ctx.brupop("status").await?;
        ensure!(shown.contains("Frozen:") && shown.contains("BootFellBack on vm-1"), "{shown}");

        let gone = ctx.brupop("uninstall --yes").await?;
        ensure!(gone.contains("the operator is uninstalled"), "{gone}");
        Ok(())
    })
    .await?;
    let results = history.results("vm-1");
    assert_eq!(results, [(UPDATED, "Updated".to_owned()), (BROKEN, "BootFellBack".to_owned())]);
    Ok(())
}
