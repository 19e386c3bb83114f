//! The end of a drain that does not end by itself.

use anyhow::Context as _;
use models::shadow::{DRAINED, Step};
use serde_json::{Value, json};

use crate::fleet::Case;

crate::cases![
    drain_blocked_by_pdb_times_out_without_version_failure_and_begins_again_at_a_retry,
    skip_terminating_after_reboots_node_with_terminating_pod,
    forced_deletion_emits_event,
    drain_waits_for_volumes_only_until_deadline,
];

/// Pods with a grace period of so many seconds that do not end, as where a volume is stuck.
pub(crate) fn never_stopping_pods(seconds: u32) -> Value {
    json!({
        "metadata": {"annotations": {"sim/stop-after": "never"}},
        "spec": {"terminationGracePeriodSeconds": seconds},
    })
}

async fn drain_blocked_by_pdb_times_out_without_version_failure_and_begins_again_at_a_retry(
    case: Case,
) -> anyhow::Result<()> {
    case.start_blocked_drain(2).await?;
    case.pass_deadline("short").await?;
    let message = case.failed("DrainTimedOut").await?;
    assert!(message.contains(&format!("{}/web-", case.namespace)), "{message}");
    let state = case.state()?;
    assert!(!state.is_charged() && state.pods_on_node("web").len() == 2);
    case.waits("BackOff", &[]).await?;
    // The second drain has no short deadline: after a second missed one it would wait for hours.
    case.set_drain_policy("default").await?;
    case.unblock_drain().await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

async fn skip_terminating_after_reboots_node_with_terminating_pod(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("impatient").await?;
    case.deployment("web", 1, never_stopping_pods(1)).await?;
    let pod = case.state()?.pods_on_node("web")[0].uid.clone();
    case.start_update().await?;
    let state = case.drained().await?;
    assert!(state.pods_on_node("web").iter().any(|left| left.uid == pod && left.terminating), "it is still there");
    let drained = state.condition(DRAINED).context("it is drained")?;
    assert!(drained.reason == "PodsLeft" && drained.message.contains("/web-"), "{drained:?}");
    case.updated().await?;
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

/// Pods that their budgets never let go, some of which do not end when they are deleted.
async fn forced_deletion_emits_event(case: Case) -> anyhow::Result<()> {
    // Without its `Force`, the drain would not begin.
    case.set_drain_policy("evict-bare").await?;
    case.deployment("web", 2, never_stopping_pods(2)).await?;
    case.budget("web", 2, json!({"maxUnavailable": 0})).await?;
    case.bare_pod("alone", &json!({})).await?;
    case.block_with_pdb("alone", 1).await?;
    case.start_update().await?;
    case.until_drain_blocked().await?;
    case.pass_deadline("force-bare").await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("web").is_empty() && drained.pods_on_node("alone").is_empty());
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

async fn drain_waits_for_volumes_only_until_deadline(case: Case) -> anyhow::Result<()> {
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
    case.pass_deadline("volumes-short").await?;
    case.updated().await?;
    Ok(())
}
