//! A policy that changes, or is deleted, during a rollout.

use std::time::Duration;

use integ::bed::TestClusterOptions;
use integ::host::Timings;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::shadow::{HostState, Step};
use serde_json::json;

use super::support::{is_released, is_updated, last_reason, other, record};
use crate::interfere::{blocked_drain, permit_of, unblock};
use crate::policy::{create_policy, wait_for};
use crate::support::{NEW, OLD, nodes, run, shadow_of, status, step_of};

/// Two nodes, of which the one without a slot is staged all the same.
pub(super) fn two_prestaged_nodes() -> TestClusterOptions {
    let mut options = nodes(2);
    options.policy["strategy"] = json!({"preStage": {}});
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn excluding_version_ends_staged_attempt_and_completes_running_update() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(two_prestaged_nodes(), async |ctx| {
        let node = blocked_drain(ctx).await?;
        let staged = other(&node);
        ctx.until_step(staged, Step::Staged).await?;

        ctx.policy(&json!({"version": {"exclude": ["1.20.5"]}})).await?;
        let world = ctx
            .until("the staged node's attempt is given up", |world| {
                is_released(world, staged)
                    && shadow_of(world, staged).is_some_and(|shadow| shadow.spec.state == HostState::Idle)
                    && last_reason(world, staged).as_deref() == Some("PolicyChanged")
                    && wait_for(world, "Excluded", 1)
            })
            .await?;
        let charged = record(&world, staged);
        assert_eq!(
            (charged.failures, charged.not_before, charged.version_failures),
            (0, None, vec![]),
            "it counts against nothing"
        );
        assert_eq!(step_of(&world, &node), Some(Step::Draining), "who has started keeps its version");

        unblock(ctx).await?;
        let world = ctx.until("the running update has ended", |world| is_updated(world, &node)).await?;
        assert_eq!(shadow_of(&world, staged).unwrap().status.agent.current_version, Some(OLD));
        ctx.policy(&json!({"version": {"exclude": null}})).await?;
        ctx.updated().await?;
        target = staged.to_owned();
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let results = |of_target: bool| -> Vec<_> {
        attempts.iter().filter(|a| (a.node == target) == of_target).map(|a| a.result.as_deref()).collect()
    };
    assert_eq!(results(true), [Some("PolicyChanged"), Some("Updated")]);
    assert_eq!(results(false), [Some("Updated")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_resource_deletion_keeps_permitted_update_and_blocks_new_starts() -> anyhow::Result<()> {
    let mut options = two_prestaged_nodes();
    // Long enough to delete the resource meanwhile.
    options.timings = Timings { boot: Duration::from_secs(5), ..Timings::instant() };
    let mut target = String::new();
    let ending = run(options, async |ctx| {
        let node = blocked_drain(ctx).await?;
        let staged = other(&node);
        ctx.until_step(staged, Step::Staged).await?;
        unblock(ctx).await?;
        ctx.until("the node has its permit", |world| permit_of(world, &node).is_some()).await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", OPERATOR_NAME]).await?;
        // Without a policy the soak is a minute, as documented.
        let world = ctx
            .until("the node is back and being verified, and the other one's attempt is given up", |world| {
                step_of(world, &node) == Some(Step::Verifying)
                    && !world.nodes[&node].claimed()
                    && shadow_of(world, &node).is_some_and(|s| s.status.agent.current_version == Some(NEW))
                    && last_reason(world, staged).as_deref() == Some("Disabled")
                    && is_released(world, staged)
            })
            .await?;
        assert!(world.operator.is_none());
        assert_eq!(shadow_of(&world, staged).unwrap().spec.state, HostState::Idle);
        ctx.renewals(2).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        assert!(is_released(&world, staged), "nothing starts");

        create_policy(ctx, &json!({})).await?;
        ctx.updated().await?;
        target = node;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let results = |of_target: bool| -> Vec<_> {
        attempts.iter().filter(|a| (a.node == target) == of_target).map(|a| a.result.as_deref()).collect()
    };
    assert_eq!(results(true), [Some("Updated")]);
    assert_eq!(results(false), [Some("Disabled"), Some("Updated")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_operator_resource_records_slot_of_rebooting_node() -> anyhow::Result<()> {
    let mut options = two_prestaged_nodes();
    // Long enough to delete the resource and to create it again meanwhile.
    options.timings = Timings { boot: Duration::from_secs(5), ..Timings::instant() };
    let mut target = String::new();
    let ending = run(options, async |ctx| {
        let node = blocked_drain(ctx).await?;
        ctx.until_step(other(&node), Step::Staged).await?;
        unblock(ctx).await?;
        ctx.until("the node has its permit", |world| permit_of(world, &node).is_some()).await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", OPERATOR_NAME]).await?;
        create_policy(ctx, &json!({})).await?;
        ctx.until("the new resource names the slot", |world| status(world).slots.iter().any(|slot| slot.node == node))
            .await?;
        ctx.updated().await?;
        target = node;
        Ok(())
    })
    .await?;
    let of_target = |attempt: &&integ::oracle::Attempt| attempt.node == target;
    let attempts = ending.history.attempts();
    let results: Vec<_> = attempts.iter().filter(of_target).map(|attempt| attempt.result.as_deref()).collect();
    assert_eq!(results, [Some("Updated")]);
    Ok(())
}
