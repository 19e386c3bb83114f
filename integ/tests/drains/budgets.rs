//! PodDisruptionBudgets: respected at every revision, also when they change during a drain.

use integ::bed::workload;
use serde_json::json;

use crate::fleet::Case;
use crate::state::CaseState;

crate::cases![
    drain_completes_with_pdb_max_unavailable_one,
    drain_follows_budgets_that_are_relaxed_created_and_deleted_during_it,
    budgets_that_hold_a_drain_up_are_reported_before_the_cordon,
    node_is_released_when_guarded_pod_stays_and_its_pdb_backs_off,
];

async fn drain_completes_with_pdb_max_unavailable_one(case: Case) -> anyhow::Result<()> {
    const PODS: usize = 4;
    case.deployment("web", PODS, json!({})).await?;
    case.budget("web", PODS, json!({"maxUnavailable": 1})).await?;
    let before = case.state()?.uids_on_node("web");
    assert_eq!(before.len(), PODS);
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(case.drained().await?.pods_on_node("web").is_empty());
    // A pod that replaces one of them may come to the node once that is back.
    assert!(end.pods_of("web").iter().all(|pod| !before.contains(&pod.uid)) && !end.cordoned());
    let ready = |state: &CaseState<'_>| state.pods_of("web").iter().filter(|pod| pod.ready).count();
    case.until("as many pods are Ready as before", |state| ready(state) == PODS).await?;
    Ok(())
}

async fn drain_follows_budgets_that_are_relaxed_created_and_deleted_during_it(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("api", 2, json!({})).await?;
    // System-critical pods are evicted last, so that there is time to create a budget for them.
    case.deployment_on_node("dns", 2, json!({"spec": {"priorityClassName": "system-cluster-critical"}})).await?;
    let state = case.start_blocked_drain(2).await?;
    let budget = format!("{}/web", case.namespace);
    let named = state.drain().is_some_and(|drain| drain.blockers.iter().any(|b| b.budget.as_ref() == Some(&budget)));
    assert!(named, "{:?}", state.drain());
    let state = case.until("pods without a budget have gone", |state| state.pods_on_node("api").is_empty()).await?;
    let dns = state.pods_on_node("dns");
    assert!(state.pods_on_node("web").len() == 2 && dns.len() == 2 && dns.iter().all(|pod| !pod.terminating));

    case.budget("dns", 2, json!({"maxUnavailable": 0})).await?;
    case.unblock_drain().await?;
    let new = format!("{}/dns", case.namespace);
    let state = case
        .until("the new budget holds the drain up", |state| {
            state.drain().is_some_and(|drain| drain.blockers.iter().any(|b| b.budget.as_deref() == Some(new.as_str())))
        })
        .await?;
    assert!(state.pods_on_node("web").is_empty() && state.pods_on_node("dns").len() == 2);
    case.kubectl_in_namespace(&["delete", "pdb", "dns"]).await?;
    case.updated().await?;
    assert!(case.drained().await?.pods_on_node("dns").is_empty());
    Ok(())
}

/// One after the other: each budget is there before the one ahead of it lets its pods go.
async fn budgets_that_hold_a_drain_up_are_reported_before_the_cordon(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("wait").await?;
    case.deployment_on_node("web", 2, json!({})).await?;
    case.deployment_on_node("sick", 2, json!({"metadata": {"annotations": {"sim/never-ready": "true"}}})).await?;
    case.allow_spare_nodes().await?;
    case.budget("web", 2, json!({"minAvailable": 2})).await?;
    case.start_update().await?;
    let web = format!("{}/web", case.namespace);
    case.waits("BudgetNeverAllows", &[&web]).await?;

    // One more that no node takes is broken.
    case.block_with_pdb("web", 2).await?;
    case.waits("BudgetUnhealthy", &[&web, "1 more"]).await?;

    // As the API server leaves it when the client of an eviction is killed in the middle of it.
    let pod = case.state()?.pods_on_node("web").first().map(|pod| pod.title()).unwrap_or_default();
    let name = pod.rsplit('/').next().unwrap_or_default();
    let before = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(10);
    let patch = json!({"status": {"disruptedPods": {name: format!("{before:.0}")}}}).to_string();
    case.kubectl_in_namespace(&["patch", "pdb", "web", "--subresource=status", "--type=merge", "-p", &patch]).await?;
    case.kubectl_in_namespace(&["delete", "pod", "web-without-a-node"]).await?;
    let approved = format!("the eviction of {pod} was approved at ");
    case.waits("BudgetUnhealthy", &[&approved, "counts it as gone until "]).await?;

    // A pod whose controller has no scale.
    case.kubectl_in_namespace(&["create", "configmap", "owner"]).await?;
    let uid = case.kubectl_in_namespace(&["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"]).await?;
    let owner =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid.trim(), "controller": true});
    case.bare_pod("odd", &json!({"metadata": {"ownerReferences": [owner]}})).await?;
    case.apply(workload::budget(&case.namespace, "odd", json!({"maxUnavailable": 1}))).await?;
    let failed = ["wait", "pdb", "odd", "--for=condition=DisruptionAllowed=False", "--timeout=300s"];
    case.kubectl_in_namespace(&failed).await?;
    case.kubectl_in_namespace(&["delete", "pdb", "web"]).await?;
    case.waits("BudgetSyncFailed", &[&format!("{}/odd", case.namespace), "scale"]).await?;

    // Pods that are not Ready stay for as long as their budget guards such ones, too.
    case.apply(workload::budget(&case.namespace, "sick", json!({"minAvailable": 1}))).await?;
    case.until("the budget of sick pods is counted", |state| {
        let budget = state.world.budgets.get(&(state.namespace.clone(), "sick".to_owned()));
        budget.is_some_and(|budget| budget.desired_healthy == 1)
    })
    .await?;
    case.kubectl_in_namespace(&["delete", "pdb", "odd"]).await?;
    case.waits("BudgetUnhealthy", &[&format!("{}/sick", case.namespace)]).await?;
    let state = case.state()?;
    assert!(state.pods_on_node("web").len() == 2 && state.pods_on_node("sick").len() == 2);
    case.set_budget("sick", json!({"unhealthyPodEvictionPolicy": "AlwaysAllow"})).await?;
    case.updated().await?;
    assert!(case.drained().await?.pods_on_node("sick").is_empty());
    Ok(())
}

/// A pod whose budget allows nothing although it is healthy, beside two that no budget guards.
async fn node_is_released_when_guarded_pod_stays_and_its_pdb_backs_off(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("api", 2, json!({})).await?;
    case.deployment("web", 1, json!({})).await?;
    case.budget("web", 1, json!({"minAvailable": 1})).await?;
    let before = case.state()?.uids_on_node("api");
    case.start_update().await?;
    let state = case.until_drain_blocked().await?;
    assert!(state.cordoned() && state.pods_on_node("web").len() == 1);
    case.set_drain_policy("short-guarded").await?;
    let message = case.failed("GuardedPodsStayed").await?;
    let budget = format!("{}/web", case.namespace);
    assert!(message.contains(&budget), "{message}");
    case.waits("BudgetNeverAllows", &[&budget, "asked again"]).await?;
    let state = case.state()?;
    let after = state.uids_on_node("api");
    assert!(before == after && !state.is_charged(), "the guarded pod was asked first and alone");
    // The operator's status is written after the node's.
    case.until("the budget's first back-off is counted", |state| {
        let back_offs = state.world.status().budget_back_offs;
        back_offs.iter().any(|back_off| back_off.budget == budget && back_off.times == 1)
    })
    .await?;
    // A budget that opens, or is changed, is over its back-off.
    case.unblock_drain().await?;
    case.updated().await?;
    Ok(())
}
