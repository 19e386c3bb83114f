//! The whole output of the plugin's commands that write, in the order of a rollout that meets a blocked drain and an image
//! that does not boot: each first as a dry run of the API server where it has one, then for real.

use integ::host::{BootFault, Fault};
use integ::oracle::Expectations;
use models::condition::ConditionStatus;
use models::names::HOLD_ANNOTATION;
use models::operator::FROZEN;
use serde_json::json;

use crate::interfere::unblock;
use crate::plugin_snapshots::{Snapshots, folder, until_reason};
use crate::plugin_writes::grant_documented_rights;
use crate::policy::wait_for;
use crate::support::{ScenarioContext, is_released, is_updated, nodes, run_expecting, status};

/// Waits until the first canary step waits for its approval.
async fn until_step_waits(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.until("the canary step waits for approval", |world| {
        let mut rollouts = status(world).active_rollouts.into_iter();
        rollouts.any(|rollout| rollout.step_done.is_some() && !rollout.approved) && wait_for(world, "CanaryStep", 1)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_writing_commands_is_that_of_the_snapshots() -> anyhow::Result<()> {
    let mut shots = Snapshots::default();
    let taken = &mut shots;
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: false };
    run_expecting(nodes(2), expectations, async |ctx| {
        grant_documented_rights(ctx).await?;
        // The operator's own pods are on the second node, which is updated last.
        ctx.kubectl(&["taint", "nodes", "node-1", "example.com/last=:NoSchedule"]).await?;
        taken.write(ctx, "install", &["install --dry-run", "install", "install --enable"]).await?;
        ctx.kubectl(&["taint", "nodes", "node-1", "example.com/last-"]).await?;
        ctx.reported().await?;
        ctx.policy(&json!({
            "strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]}, "failurePolicy": {"backOff": "1h"},
            "health": {"after": {"soak": "1s"}},
        }))
        .await?;
        ctx.until_operator("Enabled", ConditionStatus::False).await?;

        taken
            .write(ctx, "refused", &["pause --as viewer", "hold node-1 --as viewer", "drill node-1 --as viewer"])
            .await?;
        taken.rehearse_and_write(ctx, "pin", &["pin newest", "pin 1.99", "pin 1.20.5", "pin v1.20.5"]).await?;
        let lines = ["quarantine 1.20.4", "quarantine 1.20.4", "quarantine 1.20 --lift", "quarantine 1.20.4 --lift"];
        taken.rehearse_and_write(ctx, "quarantine", &lines).await?;
        let lines =
            ["hold nod-1", "hold node-1 --for 2h --reason audit", "hold node-1", "unhold node-1", "unhold node-1"];
        taken.rehearse_and_write(ctx, "hold", &lines).await?;
        let lines = ["pause", "resume", "pause", "drill node-1", "resume"];
        taken.rehearse_and_write(ctx, "pause-resume", &lines).await?;
        taken.rehearse_and_write(ctx, "drill", &["drill node-1", "drill node-1 --evict", "drill node-9"]).await?;
        taken.rehearse_and_write(ctx, "nothing-to-do", &["approve", "retry node-1", "release node-1"]).await?;

        // Each node has pods that may not be evicted.
        ctx.guarded_shop(4).await?;
        ctx.kubectl(&["annotate", "node", "node-2", &format!("{HOLD_ANNOTATION}=")]).await?;
        ctx.release();
        until_reason(ctx, "node-1", json!("DrainBlocked")).await?;
        taken.rehearse_and_write(ctx, "release", &["release node-1 --wait=false"]).await?;
        until_reason(ctx, "node-1", json!("DrainBlocked")).await?;
        unblock(ctx).await?;
        ctx.until("the first node is updated", |world| is_updated(world, "node-1")).await?;
        ctx.kubectl(&["annotate", "node", "node-2", &format!("{HOLD_ANNOTATION}-")]).await?;
        until_step_waits(ctx).await?;

        // The image does not boot on the other node.
        ctx.bed.member("node-2")?.host.script(Fault::boot(BootFault::NewImageFails));
        taken.rehearse_and_write(ctx, "approve", &["approve 2", "approve 1", "approve"]).await?;
        ctx.until("the rollout is frozen and the node is released", |world| {
            world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::True)
                && is_released(world, "node-2")
                && status(world).slots.is_empty()
        })
        .await?;
        let lines = ["resume", "resume --failures 1.20.4", "resume --failures 1.20.5", "resume --failures 1.20.5"];
        taken.rehearse_and_write(ctx, "resume-failures", &lines).await?;
        until_reason(ctx, "node-2", json!("BackOff")).await?;
        taken.rehearse_and_write(ctx, "retry", &["retry node-2"]).await?;
        ctx.until("it is updated", |world| is_updated(world, "node-2") && status(world).slots.is_empty()).await?;

        taken.write(ctx, "undo", &["undo"]).await?;
        let archive = format!("support-bundle -o {}/bundle.tar.gz", folder(ctx));
        taken.write(ctx, "support-bundle", &[&archive, &archive]).await?;
        taken
            .write(ctx, "uninstall", &["uninstall --dry-run", "uninstall", "uninstall --yes", "uninstall --yes"])
            .await?;
        Ok(())
    })
    .await?;
    shots.compare()
}
