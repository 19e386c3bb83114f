//! A version that fails, and a user who resumes the rollout.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::names::{CONTINUE_OTHERS_ANNOTATION, HOLD_ANNOTATION, RESUME_ANNOTATION};
use models::operator::{CONTAINED, FROZEN, frozen_since};
use models::reason::FailureReason;
use models::shadow::UPDATED;
use semver::Version;
use serde_json::json;

use crate::bed::{Boot, ControllerOptions, NEW, OLD, ScriptedCluster};

crate::cases![freeze_holds_the_failed_kind_alone_after_a_request_and_persists_until_each_failure_is_resumed];

/// Waits until the rollout is frozen because this node alone failed, and all nodes are released.
async fn until_frozen_by(cluster: &ScriptedCluster, node: &str) -> anyhow::Result<()> {
    let quarantined = |world: &ClusterState| {
        let known = world.status().versions.into_iter().filter(|known| known.version == NEW);
        known.filter_map(|known| known.quarantined).find(|quarantined| quarantined.nodes == [node])
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
    let frozen = world.operator_condition(FROZEN).context("just seen")?;
    for part in ["1.20.5", "BootFellBack", node, RESUME_ANNOTATION] {
        assert!(frozen.message.contains(part), "{part} in {frozen:?}");
    }
    Ok(())
}

fn runs(world: &ClusterState, node: &str) -> Option<Version> {
    world.shadow(node)?.status.agent.current_version.clone()
}

/// Both nodes of one kind fall back in their first update.
async fn freeze_holds_the_failed_kind_alone_after_a_request_and_persists_until_each_failure_is_resumed(
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
    until_frozen_by(cluster, "node-3").await?;
    cluster.until_metric("frozen", 1.0).await?;
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
    assert_eq!(["node-3", "node-4"].map(|node| runs(&world, node)), [Some(OLD), Some(OLD)]);

    cluster.fleet.script("node-3", |behaviour| behaviour.boot = Boot::Runs);
    cluster.request(RESUME_ANNOTATION, "first").await?;
    // Resolved failures do not count again: the other node freezes the rollout now.
    until_frozen_by(cluster, "node-4").await?;
    // A request that was carried out is not carried out again.
    cluster.request(RESUME_ANNOTATION, "first").await?;
    let world = cluster.planned().await?;
    assert_eq!(world.status().requests.and_then(|requests| requests.resume).as_deref(), Some("first"));
    until_frozen_by(cluster, "node-4").await?;
    cluster.delete_policy(&kube::api::DeleteParams::default()).await?;
    cluster.replace_controller().await?;
    cluster.create_policy(json!({})).await?;
    until_frozen_by(cluster, "node-4").await?;
    cluster.until("both nodes wait for it", |world| world.waiting("Quarantined") == 2).await?;

    cluster.fleet.script("node-4", |behaviour| behaviour.boot = Boot::Runs);
    cluster.request(RESUME_ANNOTATION, "second").await?;
    cluster
        .until("the request is acknowledged", |world| {
            world.status().requests.is_some_and(|requests| requests.resume.as_deref() == Some("second"))
        })
        .await?;
    // The back-offs end.
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.updated().await?;
    cluster.until_operator(FROZEN, ConditionStatus::False).await?;
    cluster.until_event("Resumed", &[]).await?;
    cluster.until_metric("frozen", 0.0).await?;
    cluster.until_metric("quarantined_versions", 0.0).await?;
    let history = cluster.recorder.so_far()?;
    for (node, nonce) in [("node-3", "first"), ("node-4", "second")] {
        let failures = history.end().record(node).version_failures;
        let resolved: Vec<_> = failures.into_iter().map(|failure| failure.resolved_by).collect();
        assert_eq!(resolved, [Some(nonce.to_owned())], "{node}");
        let mut ends: Vec<_> = history.results(node).into_iter().map(|(_, end)| end).collect();
        // One that was staged when the other failed.
        ends.retain(|end| end != "Quarantined");
        assert_eq!(ends, ["BootFellBack", UPDATED], "{node}");
    }
    Ok(())
}
