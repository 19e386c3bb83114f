//! Requests of users about one node with plain kubectl: retry, release, hold.

use integ::host::{Command, Fault};
use models::condition::ConditionStatus;
use models::names::{HOLD_ANNOTATION, RELEASE_ANNOTATION, RETRY_ANNOTATION, shadow_name};
use models::shadow::{BLOCKED, ShadowRequests};
use serde_json::json;

use super::support::{
    EVENTS_OF_NODES, annotate, is_released, is_updated, last_reason, other, record, status, until_event,
};
use crate::interfere::{blocked_drain, unblock};
use crate::policy::wait_for;
use crate::support::{NEW, ScenarioContext, condition_of, nodes, run, shadow_of};

async fn send_request(ctx: &ScenarioContext, node: &str, request: &str, nonce: &str) -> anyhow::Result<()> {
    annotate(ctx, &["brs", &shadow_name(node)], request, nonce).await
}

fn requests(world: &integ::oracle::ClusterState, node: &str) -> ShadowRequests {
    record(world, node).requests.unwrap_or_default()
}

/// Returns true if a node's `Blocked` condition is true for this reason.
fn blocked_by(world: &integ::oracle::ClusterState, node: &str, reason: &str) -> bool {
    condition_of(world, node, BLOCKED).is_some_and(|c| c.status == ConditionStatus::True && c.reason == reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_retry_request_starts_one_attempt_during_back_off() -> anyhow::Result<()> {
    // Each attempt tries three times.
    const FAILURES: u32 = 6;
    let mut options = nodes(1);
    options.policy["failurePolicy"] = json!({"backOff": "1h"});
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        let host = &ctx.bed.member("node-1")?.host;
        host.script(Fault::fails(Command::Prepare, "the repository did not answer\n").times(FAILURES));
        ctx.release();
        let failed = async |times: i64| {
            ctx.until(&format!("the node has failed {times} time(s) and waits for an hour or more"), |world| {
                let record = record(world, "node-1");
                record.failures == times
                    && record.not_before.is_some()
                    && is_released(world, "node-1")
                    && blocked_by(world, "node-1", "BackOff")
            })
            .await
        };
        failed(1).await?;

        send_request(ctx, "node-1", RETRY_ANNOTATION, "one").await?;
        failed(2).await?;
        until_event(ctx, EVENTS_OF_NODES, "Retry", &[]).await?;
        send_request(ctx, "node-1", RETRY_ANNOTATION, "one").await?;
        ctx.renewals(2).await?;
        let world = failed(2).await?;
        assert_eq!(requests(&world, "node-1").retry.as_deref(), Some("one"));
        assert_eq!(shadow_of(&world, "node-1").unwrap().spec.attempt, 2, "the same word asks for nothing more");

        send_request(ctx, "node-1", RETRY_ANNOTATION, "two").await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let results: Vec<_> = attempts.iter().filter_map(|a| a.result.as_deref()).collect();
    assert_eq!(results, ["PrepareFailed", "PrepareFailed", "Updated"]);
    assert_eq!(requests(&ending.world(), "node-1").retry.as_deref(), Some("two"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn release_request_ends_attempt_without_failure_or_back_off() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["failurePolicy"] = json!({"backOff": "1h"});
    let mut target = String::new();
    let ending = run(options, async |ctx| {
        let node = blocked_drain(ctx).await?;
        send_request(ctx, &node, RELEASE_ANNOTATION, "one").await?;
        let world = ctx
            .until("the attempt was released", |world| {
                last_reason(world, &node).as_deref() == Some("ReleaseRequested") && !blocked_by(world, &node, "BackOff")
            })
            .await?;
        let record = record(&world, &node);
        assert_eq!(record.not_before, None);
        assert_eq!(record.last.map(|last| last.reason).as_deref(), Some("ReleaseRequested"));
        assert_eq!((record.failures, record.version_failures), (0, vec![]), "it counts against nothing");
        assert_eq!(requests(&world, &node).release.as_deref(), Some("one"));
        until_event(ctx, EVENTS_OF_NODES, "UpdateWithdrawn", &["ReleaseRequested"]).await?;

        unblock(ctx).await?;
        // The request that was carried out is still on the shadow, and ends no other attempt.
        ctx.updated().await?;
        target = node;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.results(&target), [(NEW, "ReleaseRequested".to_owned()), (NEW, "Updated".to_owned())]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_during_drain_keeps_cordon_and_frees_slot_without_failure() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        let node = blocked_drain(ctx).await?;
        ctx.kubectl(&["annotate", "node", &node, &format!("{HOLD_ANNOTATION}=the auditors are here")]).await?;
        let world = ctx
            .until("its attempt has ended, it says that it is held, and it stays cordoned", |world| {
                let ended = shadow_of(world, &node).is_some_and(|shadow| shadow.step().is_none());
                ended && world.nodes[&node].claimed() && blocked_by(world, &node, "Held") && wait_for(world, "Held", 1)
            })
            .await?;
        let charged = record(&world, &node);
        assert_eq!(last_reason(&world, &node).as_deref(), Some("Held"));
        assert_eq!((charged.failures, charged.not_before, charged.version_failures), (0, None, vec![]));

        unblock(ctx).await?;
        let next = other(&node);
        let world = ctx
            .until("the other node has its turn", |world| is_updated(world, next) && status(world).slots.is_empty())
            .await?;
        assert!(world.nodes[&node].claimed() && wait_for(&world, "Held", 1));
        assert_ne!(shadow_of(&world, &node).unwrap().status.agent.current_version, Some(NEW));

        ctx.kubectl(&["annotate", "node", &node, &format!("{HOLD_ANNOTATION}-")]).await?;
        ctx.updated().await?;
        target = node;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.results(&target), [(NEW, "Held".to_owned()), (NEW, "Updated".to_owned())]);
    assert!(condition_of(&ending.world(), &target, BLOCKED).is_none_or(|c| c.status != ConditionStatus::True));
    Ok(())
}
