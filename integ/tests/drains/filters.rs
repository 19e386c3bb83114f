//! Choice of the pods to evict, and pods that would lose something by a drain.

use models::shadow::Step;
use serde_json::json;

use crate::fleet::Case;

crate::cases![
    deployment_pods_move_to_other_nodes_and_node_is_updated,
    bare_pod_blocks_update_before_cordon,
    pod_with_empty_dir_blocks_update_if_policy_refuses,
    drain_waits_for_terminating_bare_pod,
    pods_to_evict_are_recorded_before_first_eviction,
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
