//! The end of a drain that does not end by itself.

use anyhow::Context as _;
use models::shadow::Step;
use serde_json::{Value, json};

use crate::fleet::Case;

crate::cases![
    drain_blocked_by_pdb_times_out_without_version_failure,
    retry_request_drains_released_node_again,
    pods_are_deleted_at_deadline_if_pdb_never_allows_disruption,
    pod_terminating_past_deadline_is_force_deleted,
    skip_terminating_after_reboots_node_with_terminating_pod,
    drain_skips_stopped_pod_with_finalizer_after_grace_period,
    forced_deletion_emits_event,
    drain_waits_for_volumes_if_policy_asks,
    drain_waits_for_volumes_only_until_deadline,
    drain_does_not_wait_for_volumes_by_default,
    drain_of_not_ready_node_times_out_without_forced_deletion,
];

async fn drain_blocked_by_pdb_times_out_without_version_failure(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(2).await?;
    case.pass_deadline("short").await?;
    let message = case.failed("DrainTimedOut").await?;
    assert!(message.contains(&format!("{}/web-", case.namespace)), "{message}");
    let state = case.state()?;
    assert!(!state.is_charged() && !state.cordoned() && state.pods_on_node("web").len() == 2);
    case.blocked("BackOff").await?;
    Ok(())
}

async fn retry_request_drains_released_node_again(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.pass_deadline("short").await?;
    case.failed("DrainTimedOut").await?;
    // The second drain has no short deadline: after a second missed one it would wait for hours.
    case.set_drain_policy("default").await?;
    case.unblock_drain().await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

async fn pods_are_deleted_at_deadline_if_pdb_never_allows_disruption(case: Case) -> anyhow::Result<()> {
    // Without it, the drain would not begin.
    case.set_drain_policy("force-later").await?;
    case.deployment("web", 2, json!({})).await?;
    case.budget("web", 2, json!({"maxUnavailable": 0})).await?;
    case.start_update().await?;
    case.until_drain_blocked().await?;
    case.pass_deadline("force").await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("web").is_empty());
    Ok(())
}

async fn pod_terminating_past_deadline_is_force_deleted(case: Case) -> anyhow::Result<()> {
    // A stuck volume keeps it terminating past its grace period.
    let stuck =
        json!({"metadata": {"annotations": {"sim/stop-after": "never"}}, "spec": {"terminationGracePeriodSeconds": 2}});
    case.deployment("web", 1, stuck).await?;
    case.start_update().await?;
    case.until("the pod terminates", |state| state.pods_on_node("web").iter().all(|pod| pod.terminating)).await?;
    case.pass_deadline("force").await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("web").is_empty());
    Ok(())
}

async fn skip_terminating_after_reboots_node_with_terminating_pod(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("impatient").await?;
    // A stuck volume keeps it terminating past its grace period.
    let stuck =
        json!({"metadata": {"annotations": {"sim/stop-after": "never"}}, "spec": {"terminationGracePeriodSeconds": 1}});
    case.deployment("web", 1, stuck).await?;
    let pod = case.state()?.pods_on_node("web")[0].uid.clone();
    case.start_update().await?;
    let state = case.drained().await?;
    assert!(state.pods_on_node("web").iter().any(|left| left.uid == pod && left.terminating), "it is still there");
    let conditions = &state.shadow().context("it has one")?.status.conditions;
    let drained = models::condition::true_condition(conditions, models::shadow::DRAINED).context("it is drained")?;
    assert!(drained.reason == "PodsLeft" && drained.message.contains("/web-"), "{drained:?}");
    case.updated().await?;
    Ok(())
}

async fn drain_skips_stopped_pod_with_finalizer_after_grace_period(case: Case) -> anyhow::Result<()> {
    let kept = json!({"metadata": {"finalizers": ["example.com/keeps"]}, "spec": {"terminationGracePeriodSeconds": 3}});
    case.deployment("web", 1, kept).await?;
    let pod = case.state()?.pods_on_node("web")[0].uid.clone();
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.pods_on_node("web").iter().any(|left| left.uid == pod && left.terminating), "it is still there");
    Ok(())
}
/// Messages of the Events about the node under test.
pub(crate) async fn events(case: &Case, reason: &str) -> anyhow::Result<Vec<String>> {
    let selector = format!("reason={reason},involvedObject.name={}", case.node);
    let found = case.kubectl(&["-n", "default", "get", "events", "--field-selector", &selector, "-o", "json"]).await?;
    let found: Value = serde_json::from_str(&found)?;
    let items = found["items"].as_array().cloned().unwrap_or_default();
    Ok(items.iter().filter_map(|event| event["message"].as_str().map(str::to_owned)).collect())
}

async fn forced_deletion_emits_event(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("evict-bare").await?;
    case.bare_pod("alone", &json!({"metadata": {"labels": {"app": "alone"}}})).await?;
    case.block_with_pdb("alone", 1).await?;
    case.start_update().await?;
    case.until_drain_blocked().await?;
    case.pass_deadline("force-bare").await?;
    case.updated().await?;
    let forced = case.when(|s| s.status.controller.drain.as_ref().is_some_and(|drain| drain.forced_since.is_some()))?;
    assert_eq!(forced.context("the deletion was recorded")?.step(), Some(Step::Draining));
    let message = events(&case, "DrainForced").await?;
    assert!(message.iter().any(|message| message.contains(&format!("{}/alone", case.namespace))), "{message:?}");
    Ok(())
}

/// Reports that the kubelet uses a volume, as it does until it is unmounted.
async fn set_volumes_in_use(case: &Case, names: &[&str]) -> anyhow::Result<()> {
    let patch = json!({"status": {"volumesInUse": names}}).to_string();
    case.kubectl(&["patch", "node", &case.node, "--subresource=status", "--type=merge", "-p", &patch]).await.map(drop)
}

async fn drain_waits_for_volumes_if_policy_asks(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("volumes").await?;
    case.deployment("db", 1, json!({})).await?;
    set_volumes_in_use(&case, &["kubernetes.io/csi/example.com^db"]).await?;
    case.start_update().await?;
    let state = case
        .until("the detachment is awaited", |state| {
            state.pods_on_node("db").is_empty() && state.world.waiting("DetachingVolumes") > 0
        })
        .await?;
    assert_eq!(state.step(), Some(Step::Draining));
    set_volumes_in_use(&case, &[]).await?;
    case.updated().await?;
    Ok(())
}

async fn drain_waits_for_volumes_only_until_deadline(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("volumes").await?;
    set_volumes_in_use(&case, &["kubernetes.io/csi/example.com^db"]).await?;
    case.start_update().await?;
    case.pass_deadline("volumes-short").await?;
    case.updated().await?;
    Ok(())
}

async fn drain_does_not_wait_for_volumes_by_default(case: Case) -> anyhow::Result<()> {
    set_volumes_in_use(&case, &["kubernetes.io/csi/example.com^db"]).await?;
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}

async fn drain_of_not_ready_node_times_out_without_forced_deletion(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({"metadata": {"finalizers": ["example.com/keeps"]}})).await?;
    case.block_with_pdb("web", 1).await?;
    case.start_update().await?;
    case.until_drain_blocked().await?;
    // As the node controller sets it when a kubelet is silent; the kubelet here is paused, so that it does not correct
    // it.
    case.member()?.kubelet.pause();
    let patch = json!({"status": {"conditions": [{
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
    }]}});
    case.kubectl(&["patch", "node", &case.node, "--subresource=status", "--type=strategic", "-p", &patch.to_string()])
        .await?;
    case.pass_deadline("force").await?;
    let message = case.failed("DrainTimedOut").await?;
    assert!(message.contains("not Ready"), "{message}");
    let state = case.state()?;
    assert!(state.pods_on_node("web").iter().all(|pod| !pod.terminating) && !state.is_charged());
    case.member()?.kubelet.resume();
    Ok(())
}
