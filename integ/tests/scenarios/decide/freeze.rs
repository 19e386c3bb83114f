//! A version that fails, and a user who resumes the rollout.

use anyhow::Context as _;
use deploy::Component;
use integ::host::{BootFault, Fault};
use models::condition::ConditionStatus;
use models::names::{OPERATOR_NAME, RESUME_ANNOTATION, SYSTEM_NAMESPACE};
use models::operator::{FROZEN, Quarantined};
use models::reason::FailureReason;
use serde_json::json;

use super::support::{annotate, is_released, record, status, until_event, until_metric};
use crate::policy::{create_policy, wait_for};
use crate::support::{NEW, ScenarioContext, nodes, run};

async fn resume(ctx: &ScenarioContext, nonce: &str) -> anyhow::Result<()> {
    annotate(ctx, &["bruo", OPERATOR_NAME], RESUME_ANNOTATION, nonce).await
}

/// Waits until the rollout is frozen because this node, or any if none is named, failed, and all nodes are released.
async fn until_frozen_by(ctx: &ScenarioContext, node: Option<&str>) -> anyhow::Result<Quarantined> {
    let quarantined = |world: &integ::oracle::ClusterState| {
        let known = status(world).versions.into_iter().find(|known| known.version == NEW)?;
        known.quarantined.filter(|q| node.is_none_or(|node| q.nodes == [node]))
    };
    let world = ctx
        .until("the rollout is frozen, and every node is released", |world| {
            world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::True)
                && quarantined(world).is_some()
                && world.nodes.keys().all(|node| is_released(world, node))
                && status(world).slots.is_empty()
        })
        .await?;
    let quarantined = quarantined(&world).context("just seen")?;
    assert_eq!(quarantined.reason, FailureReason::BootFellBack);
    assert_eq!(quarantined.nodes.len(), 1, "the first one that fails stops the rollout: {quarantined:?}");
    let frozen = world.operator_condition(FROZEN).context("just seen")?;
    for part in ["1.20.5", "BootFellBack", &quarantined.nodes[0], RESUME_ANNOTATION] {
        assert!(frozen.message.contains(part), "{part} in {frozen:?}");
    }
    Ok(quarantined)
}

#[tokio::test(flavor = "multi_thread")]
async fn freeze_persists_until_resume_request_and_each_request_counts_once() -> anyhow::Result<()> {
    let back_off = json!({"failurePolicy": {"backOff": "1s"}});
    let mut options = nodes(2);
    options.policy["failurePolicy"] = back_off["failurePolicy"].clone();
    let (mut first, mut second) = (String::new(), String::new());
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        // The first try of each host falls back; a second one would not.
        for member in &ctx.bed.members {
            member.host.script(Fault::boot(BootFault::NewImageFails));
        }
        ctx.release();
        first = until_frozen_by(ctx, None).await?.nodes.remove(0);
        second = super::support::other(&first).to_owned();
        until_event(ctx, SYSTEM_NAMESPACE, "Frozen", &["1.20.5", &first]).await?;
        until_metric(ctx, "frozen", "1").await?;
        until_metric(ctx, "quarantined_versions", "1").await?;

        ctx.restart(Component::Controller).await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", OPERATOR_NAME]).await?;
        ctx.until("the resource is gone", |world| world.operator.is_none()).await?;
        create_policy(ctx, &back_off).await?;
        until_frozen_by(ctx, Some(&first)).await?;
        ctx.until("both nodes wait for it", |world| wait_for(world, "Quarantined", 2)).await?;

        resume(ctx, "first").await?;
        ctx.until("the request is acknowledged, and the failure is resolved", |world| {
            let failures = record(world, &first).version_failures;
            status(world).requests.is_some_and(|requests| requests.resume.as_deref() == Some("first"))
                && failures.iter().all(|failure| failure.resolved_by.as_deref() == Some("first"))
        })
        .await?;
        // Resolved failures do not count again: the other node freezes the rollout now.
        until_frozen_by(ctx, Some(&second)).await?;
        // A request that was carried out is not carried out again.
        resume(ctx, "first").await?;
        ctx.renewals(2).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        assert_eq!(world.operator_condition(FROZEN).unwrap().status, ConditionStatus::True);

        resume(ctx, "second").await?;
        ctx.updated().await?;
        ctx.until_operator(FROZEN, ConditionStatus::False).await?;
        until_event(ctx, SYSTEM_NAMESPACE, "Resumed", &[]).await?;
        until_metric(ctx, "frozen", "0").await?;
        until_metric(ctx, "quarantined_versions", "0").await?;
        Ok(())
    })
    .await?;

    let world = ending.world();
    for (node, nonce) in [(&first, "first"), (&second, "second")] {
        let resolved: Vec<_> = record(&world, node).version_failures.into_iter().map(|f| f.resolved_by).collect();
        assert_eq!(resolved, [Some(nonce.to_owned())], "{node}");
    }
    let attempts = ending.history.attempts();
    let fell_back: Vec<_> = attempts.iter().filter(|a| a.result.as_deref() == Some("BootFellBack")).collect();
    assert_eq!(fell_back.iter().map(|a| &a.node).collect::<Vec<_>>(), [&first, &second], "{attempts:#?}");
    Ok(())
}
