//! A version that fails, and a user who resumes the rollout.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::names::{CONTINUE_OTHERS_ANNOTATION, HOLD_ANNOTATION, RESUME_ANNOTATION};
use models::operator::{CONTAINED, FROZEN, Quarantined, frozen_since};
use models::reason::FailureReason;
use models::shadow::UPDATED;
use serde_json::json;

use crate::bed::{Boot, ControllerOptions, NEW, OLD, ScriptedCluster, other};

crate::cases![
    freeze_persists_until_resume_request_and_each_request_counts_once,
    other_kind_goes_on_after_request_and_failed_kind_is_held_until_resume
];

/// Waits until the rollout is frozen because this node, or any if none is named, failed, and all nodes are released.
async fn until_frozen_by(cluster: &ScriptedCluster, node: Option<&str>) -> anyhow::Result<Quarantined> {
    let quarantined = |world: &ClusterState| {
        let known = world.status().versions.into_iter().find(|known| known.version == NEW)?;
        known.quarantined.filter(|q| node.is_none_or(|node| q.nodes == [node]))
    };
    let world = cluster
        .until("the rollout is frozen, and every node is released", |world| {
            world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::True)
                && quarantined(world).is_some()
                && world.nodes.keys().all(|node| world.is_released(node))
                && world.status().slots.is_empty()
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

async fn freeze_persists_until_resume_request_and_each_request_counts_once(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({})).await?;
    for node in ["node-1", "node-2"] {
        cluster.fleet.script(node, |behaviour| behaviour.boot = Boot::FallsBack);
    }
    cluster.fleet.release(NEW);
    let first = until_frozen_by(cluster, None).await?.nodes.remove(0);
    let second = other(&first);
    cluster.until_event("Frozen", &["1.20.5", &first]).await?;
    cluster.until_metric("frozen", 1.0).await?;
    cluster.until_metric("quarantined_versions", 1.0).await?;

    cluster.delete_policy(&kube::api::DeleteParams::default()).await?;
    cluster.replace_controller().await?;
    cluster.create_policy(json!({})).await?;
    until_frozen_by(cluster, Some(&first)).await?;
    cluster.until("both nodes wait for it", |world| world.waiting("Quarantined") == 2).await?;

    cluster.fleet.script(&first, |behaviour| behaviour.boot = Boot::Runs);
    cluster.request(RESUME_ANNOTATION, "first").await?;
    // Resolved failures do not count again: the other node freezes the rollout now.
    until_frozen_by(cluster, Some(second)).await?;
    // A request that was carried out is not carried out again.
    cluster.request(RESUME_ANNOTATION, "first").await?;
    let world = cluster.planned().await?;
    assert_eq!(world.status().requests.and_then(|requests| requests.resume).as_deref(), Some("first"));
    until_frozen_by(cluster, Some(second)).await?;

    cluster.fleet.script(second, |behaviour| behaviour.boot = Boot::Runs);
    cluster.request(RESUME_ANNOTATION, "second").await?;
    cluster
        .until("the request is acknowledged", |world| {
            world.status().requests.is_some_and(|requests| requests.resume.as_deref() == Some("second"))
        })
        .await?;
    // Their back-offs end.
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.updated().await?;
    cluster
        .until("the rollout is not frozen", |world| {
            world.operator_condition(FROZEN).is_some_and(|c| c.status == ConditionStatus::False)
        })
        .await?;
    cluster.until_event("Resumed", &[]).await?;
    cluster.until_metric("frozen", 0.0).await?;
    cluster.until_metric("quarantined_versions", 0.0).await?;
    let history = cluster.recorder.so_far()?;
    for (node, nonce) in [(first.as_str(), "first"), (second, "second")] {
        let failures = history.end().record(node).version_failures;
        let resolved: Vec<_> = failures.into_iter().map(|failure| failure.resolved_by).collect();
        assert_eq!(resolved, [Some(nonce.to_owned())], "{node}");
        let mut ends: Vec<_> = history.results(node).into_iter().map(|(_, end)| end).collect();
        // One that was staged when the first failed.
        ends.retain(|end| end != "Quarantined");
        assert_eq!(ends, ["BootFellBack", UPDATED], "{node}");
    }
    Ok(())
}

async fn other_kind_goes_on_after_request_and_failed_kind_is_held_until_resume(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let hold = async |cluster: &ScriptedCluster, value: serde_json::Value| {
        for node in ["node-1", "node-2", "node-4"] {
            cluster.patch_node(node, json!({"metadata": {"annotations": {HOLD_ANNOTATION: value}}})).await?;
        }
        anyhow::Ok(())
    };
    for (node, arch) in [("node-1", "amd64"), ("node-2", "amd64"), ("node-3", "arm64"), ("node-4", "arm64")] {
        cluster.add_node(node, &[("kubernetes.io/arch", arch)]).await?;
    }
    hold(cluster, json!("the others")).await?;
    for node in ["node-3", "node-4"] {
        cluster.fleet.script(node, |behaviour| (behaviour.arch, behaviour.boot) = ("aarch64", Boot::FallsBack));
    }
    cluster.create_policy(json!({})).await?;
    cluster.start_controller(&ControllerOptions::default())?;
    cluster.reported().await?;
    cluster.fleet.release(NEW);
    until_frozen_by(cluster, Some("node-3")).await?;
    hold(cluster, json!(null)).await?;
    cluster.until("the other kind waits, too", |world| world.waiting("Frozen") == 2).await?;
    cluster.until_event("Frozen", &["1.20.5", "node-3", CONTINUE_OTHERS_ANNOTATION]).await?;

    let since = frozen_since(&cluster.now()?.status().versions).context("it is frozen")?.to_string();
    cluster.until_event("Frozen", &[&format!("{CONTINUE_OTHERS_ANNOTATION}={since}")]).await?;
    cluster.request(CONTINUE_OTHERS_ANNOTATION, "monday").await?;
    cluster.until_event("ContinueRefused", &["monday", &since]).await?;
    cluster.request(CONTINUE_OTHERS_ANNOTATION, &since).await?;
    cluster.until_event(CONTAINED, &["1.20.5 for aws-k8s-1.37 aarch64", "node-3", "Other nodes go on"]).await?;
    cluster.until_metric("frozen", 0.0).await?;
    cluster.until_metric("quarantined_versions", 1.0).await?;
    let runs = |world: &ClusterState, node: &str| {
        world.shadow(node).and_then(|shadow| shadow.status.agent.current_version.clone())
    };
    cluster
        .until("the other kind is updated", |world| {
            ["node-1", "node-2"].iter().all(|node| world.is_released(node) && runs(world, node) == Some(NEW))
        })
        .await?;
    cluster.replace_controller().await?;
    let world = cluster.until("the failed kind waits", |world| world.waiting("Quarantined") == 2).await?;
    let status = world.status();
    assert_eq!(status.requests.and_then(|requests| requests.continue_others).as_ref(), Some(&since));
    assert_eq!(world.operator_condition(FROZEN).context("it is recorded")?.reason, CONTAINED);
    for node in ["node-3", "node-4"] {
        assert_eq!(runs(&world, node), Some(OLD), "{node}");
    }
    assert!(cluster.recorder.so_far()?.results("node-4").iter().all(|(_, end)| end != UPDATED));

    for node in ["node-3", "node-4"] {
        cluster.fleet.script(node, |behaviour| behaviour.boot = Boot::Runs);
    }
    cluster.request(RESUME_ANNOTATION, "tuesday").await?;
    cluster.until_event("Resumed", &[]).await?;
    cluster.until("the one that has not failed is updated", |world| world.is_updated("node-4", &NEW)).await?;
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.updated().await?;
    cluster.until_metric("quarantined_versions", 0.0).await
}
