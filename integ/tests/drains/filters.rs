//! Obstacles that keep a node from its cordon, and pods that a drain waits for.

use models::names::HOLD_ANNOTATION;
use models::shadow::Step;
use serde_json::json;

use crate::deadlines::never_stopping_pods;
use crate::fleet::Case;

crate::cases![node_that_may_not_be_drained_waits_before_its_cordon_and_says_why, drain_waits_for_terminating_bare_pod,];

/// One after the other: each obstacle is there before the one ahead of it is taken away.
async fn node_that_may_not_be_drained_waits_before_its_cordon_and_says_why(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("keep-data").await?;
    case.bare_pod("alone", &json!({})).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}=audit")]).await?;
    case.start_update().await?;
    case.waits("Held", &[]).await?;

    case.kubectl(&["cordon", &case.node]).await?;
    case.kubectl(&["annotate", "node", &case.node, &format!("{HOLD_ANNOTATION}-")]).await?;
    let state = case.waits("Cordoned", &["cordonedNodes"]).await?;
    assert!(state.step().is_none() && state.pods_on_node("alone").len() == 1);

    case.kubectl(&["uncordon", &case.node]).await?;
    case.waits("DrainRefused", &[&format!("{}/alone has no controller", case.namespace), "barePods"]).await?;

    case.deployment("cache", 1, json!({"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}})).await?;
    case.kubectl_in_namespace(&["delete", "pod", "alone"]).await?;
    case.waits("DrainRefused", &["emptyDir"]).await?;
    case.kubectl_in_namespace(&["delete", "deployment", "cache"]).await?;
    assert!(!case.updated().await?.cordoned());
    Ok(())
}

async fn drain_waits_for_terminating_bare_pod(case: Case) -> anyhow::Result<()> {
    case.bare_pod("alone", &never_stopping_pods(60)).await?;
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
