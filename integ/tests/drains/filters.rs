//! Choice of the pods to evict, and pods that would lose something by a drain.

use models::shadow::Step;
use serde_json::json;

use crate::fleet::Case;

crate::cases![
    deployment_pods_move_to_other_nodes_and_node_is_updated,
    bare_pod_blocks_update_before_cordon,
    bare_pod_is_evicted_if_policy_allows,
    bare_pod_prevents_eviction_of_other_pods,
    finished_bare_pod_does_not_block_drain_and_remains,
    pod_with_empty_dir_is_evicted_by_default,
    pod_with_empty_dir_blocks_update_if_policy_refuses,
    finished_pod_with_empty_dir_does_not_block_drain,
    daemon_set_pod_is_not_evicted,
    pod_of_custom_daemon_set_kind_is_evicted,
    mirror_pod_is_not_evicted,
    drain_waits_for_terminating_bare_pod,
    pods_to_evict_are_recorded_before_first_eviction,
    node_without_pods_is_updated,
];

async fn deployment_pods_move_to_other_nodes_and_node_is_updated(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 3, json!({})).await?;
    let before: Vec<String> = case.state()?.pods_on_node("web").iter().map(|pod| pod.uid.clone()).collect();
    assert!(!before.is_empty());
    case.start_update().await?;
    let end = case.updated().await?;
    // A pod that replaces one of them may come to the node once that is back.
    assert!(end.pods_of("web").iter().all(|pod| !before.contains(&pod.uid)) && !end.cordoned());
    case.until("three pods are Ready", |state| state.pods_of("web").iter().filter(|pod| pod.ready).count() == 3)
        .await?;
    Ok(())
}

async fn bare_pod_blocks_update_before_cordon(case: Case) -> anyhow::Result<()> {
    case.bare_pod("alone", &json!({})).await?;
    case.start_update().await?;
    let message = case.blocked("DrainRefused").await?;
    assert!(
        message.contains(&format!("{}/alone has no controller", case.namespace)) && message.contains("barePods"),
        "{message}"
    );
    let state = case.state()?;
    assert!(!state.cordoned() && state.pods_on_node("alone").len() == 1);
    case.kubectl_in_namespace(&["delete", "pod", "alone"]).await?;
    case.updated().await?;
    Ok(())
}

async fn bare_pod_is_evicted_if_policy_allows(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("evict-bare").await?;
    case.bare_pod("alone", &json!({})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.pods_of("alone").is_empty());
    Ok(())
}

async fn bare_pod_prevents_eviction_of_other_pods(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 2, json!({})).await?;
    case.bare_pod("alone", &json!({})).await?;
    case.start_update().await?;
    case.blocked("DrainRefused").await?;
    let state = case.state()?;
    assert!(state.pods_on_node("web").len() == 2 && !state.pods_on_node("web").iter().any(|pod| pod.terminating));
    case.kubectl_in_namespace(&["delete", "pod", "alone"]).await?;
    case.updated().await?;
    Ok(())
}

/// Ends a pod as its containers would by themselves.
async fn finish_pod(case: &Case, name: &str) -> anyhow::Result<()> {
    let patch = r#"{"status": {"phase": "Succeeded"}}"#;
    case.kubectl_in_namespace(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", patch]).await?;
    case.until("the pod has ended", |state| state.pods_of(name).iter().all(|pod| pod.finished)).await?;
    Ok(())
}

async fn finished_bare_pod_does_not_block_drain_and_remains(case: Case) -> anyhow::Result<()> {
    case.bare_pod("job", &json!({"spec": {"restartPolicy": "Never"}})).await?;
    finish_pod(&case, "job").await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert_eq!(end.pods_on_node("job").len(), 1, "a drain does not tidy up");
    Ok(())
}

async fn pod_with_empty_dir_is_evicted_by_default(case: Case) -> anyhow::Result<()> {
    case.deployment("cache", 1, json!({"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}})).await?;
    case.start_update().await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("cache").is_empty());
    Ok(())
}

async fn pod_with_empty_dir_blocks_update_if_policy_refuses(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("keep-data").await?;
    case.deployment("cache", 1, json!({"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}})).await?;
    case.start_update().await?;
    let message = case.blocked("DrainRefused").await?;
    assert!(message.contains("emptyDir"), "{message}");
    assert!(!case.state()?.cordoned());
    case.kubectl_in_namespace(&["delete", "deployment", "cache"]).await?;
    case.updated().await?;
    Ok(())
}

async fn finished_pod_with_empty_dir_does_not_block_drain(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("keep-data").await?;
    let spec = json!({"spec": {"restartPolicy": "Never", "volumes": [{"name": "cache", "emptyDir": {}}]}});
    case.bare_pod("job", &spec).await?;
    finish_pod(&case, "job").await?;
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}

async fn daemon_set_pod_is_not_evicted(case: Case) -> anyhow::Result<()> {
    case.apply(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "logs", "namespace": case.namespace},
        "spec": {
            "selector": {"matchLabels": {"app": "logs"}},
            "template": case.template("logs", &json!({})),
        },
    }))
    .await?;
    let state = case.until("its pod runs", |state| state.pods_on_node("logs").iter().any(|pod| pod.ready)).await?;
    let before = state.pods_on_node("logs")[0].uid.clone();
    case.start_update().await?;
    let rebooting = case.drained().await?;
    let pods = rebooting.pods_on_node("logs");
    assert!(pods.len() == 1 && pods[0].uid == before && !pods[0].terminating);
    case.updated().await?;
    Ok(())
}

async fn pod_of_custom_daemon_set_kind_is_evicted(case: Case) -> anyhow::Result<()> {
    let owner = json!([{
        "apiVersion": "apps.example.com/v1", "kind": "DaemonSet", "name": "better", "controller": true,
        "uid": "6ad5a9a2-5d0d-4c0c-8a4c-3f3cf7f3c111",
    }]);
    case.bare_pod("better", &json!({"metadata": {"ownerReferences": owner}})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.pods_of("better").is_empty());
    Ok(())
}

async fn mirror_pod_is_not_evicted(case: Case) -> anyhow::Result<()> {
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "digest"}}});
    case.bare_pod("static", &mirror).await?;
    case.start_update().await?;
    let rebooting = case.drained().await?;
    assert!(
        rebooting.pods_on_node("static").iter().all(|pod| !pod.terminating)
            && rebooting.pods_on_node("static").len() == 1
    );
    case.updated().await?;
    Ok(())
}

async fn drain_waits_for_terminating_bare_pod(case: Case) -> anyhow::Result<()> {
    // It has no controller, and does not end.
    let slow = json!({"metadata": {"annotations": {"sim/stop-after": "never"}}, "spec": {"terminationGracePeriodSeconds": 60}});
    case.bare_pod("alone", &slow).await?;
    case.kubectl_in_namespace(&["delete", "pod", "alone", "--wait=false"]).await?;
    case.start_update().await?;
    let state = case
        .until("the drain waits", |state| {
            state.step() == Some(Step::Draining) && state.pods_on_node("alone").iter().any(|pod| pod.terminating)
        })
        .await?;
    assert!(state.cordoned());
    case.kubectl_in_namespace(&["delete", "pod", "alone", "--force", "--grace-period=0"]).await?;
    let end = case.updated().await?;
    assert!(end.pods_of("alone").is_empty());
    Ok(())
}

async fn pods_to_evict_are_recorded_before_first_eviction(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 3, json!({})).await?;
    let before: Vec<String> = case.state()?.pods_on_node("web").iter().map(|pod| pod.uid.clone()).collect();
    case.start_update().await?;
    let state =
        case.until("the node leaves the balancer", |state| state.step() == Some(Step::LeavingLoadBalancer)).await?;
    let drain = state.drain().cloned().unwrap_or_default();
    let written: Vec<&str> = drain.pods.iter().map(|pod| pod.uid.as_str()).collect();
    assert!(before.iter().all(|uid| written.contains(&uid.as_str())), "{before:?} {written:?}");
    assert!(!state.pods_on_node("web").iter().any(|pod| pod.terminating));
    case.updated().await?;
    Ok(())
}

async fn node_without_pods_is_updated(case: Case) -> anyhow::Result<()> {
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}
