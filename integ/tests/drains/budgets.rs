//! PodDisruptionBudgets: respected at every revision, also when they change during a drain.

use serde_json::{Value, json};

use crate::fleet::Case;

crate::cases![
    drain_completes_with_pdb_max_unavailable_one,
    pdb_deleted_during_drain_unblocks_drain,
    pdb_created_during_drain_blocks_drain,
    pdb_tightened_during_drain_blocks_drain,
    pdb_relaxed_during_drain_unblocks_drain,
    pdb_that_never_allows_disruption_is_reported_before_cordon,
    guarded_pod_is_evicted_first_and_alone_once_its_pdb_opens,
    node_is_released_when_guarded_pod_stays_and_its_pdb_backs_off,
    pdb_of_broken_pods_is_reported_before_cordon,
    approved_eviction_that_deleted_no_pod_is_reported_with_its_times,
    pdb_that_kubernetes_cannot_count_is_reported_before_cordon,
    pdb_with_empty_selector_blocks_all_pods,
    blocked_pod_does_not_delay_eviction_of_other_pods,
    unready_pods_are_evicted_under_always_allow,
    unready_pods_are_evicted_under_if_healthy_budget_when_pdb_is_satisfied,
    unready_pods_remain_under_if_healthy_budget_when_pdb_is_not_satisfied,
    second_drain_waits_for_disruptions_that_first_one_waits_for,
];

async fn drain_completes_with_pdb_max_unavailable_one(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 4, json!({})).await?;
    case.budget("web", 4, json!({"maxUnavailable": 1})).await?;
    case.start_update().await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("web").is_empty());
    Ok(())
}

/// A drain that a budget blocks.
async fn until_drain_blocked(case: &Case) -> anyhow::Result<()> {
    let state = case.start_blocked_drain(2).await?;
    let budget = format!("{}/web", case.namespace);
    let named = state.drain().is_some_and(|drain| drain.blockers.iter().any(|b| b.budget.as_ref() == Some(&budget)));
    assert!(named, "{:?}", state.drain());
    Ok(())
}

async fn pdb_deleted_during_drain_unblocks_drain(case: Case) -> anyhow::Result<()> {
    until_drain_blocked(&case).await?;
    case.kubectl_in_namespace(&["delete", "pdb", "web"]).await?;
    case.updated().await?;
    Ok(())
}

async fn pdb_created_during_drain_blocks_drain(case: Case) -> anyhow::Result<()> {
    // System-critical pods are evicted last, so that there is time to create a budget for it.
    case.deployment_on_node("dns", 2, json!({"spec": {"priorityClassName": "system-cluster-critical"}})).await?;
    until_drain_blocked(&case).await?;
    case.budget("dns", 2, json!({"maxUnavailable": 0})).await?;
    case.unblock_drain().await?;
    let new = format!("{}/dns", case.namespace);
    let state = case
        .until("the new budget holds the drain up", |state| {
            state.drain().is_some_and(|drain| drain.blockers.iter().any(|b| b.budget.as_deref() == Some(new.as_str())))
        })
        .await?;
    assert!(state.pods_on_node("web").is_empty() && state.pods_on_node("dns").len() == 2);
    case.set_budget("dns", json!({"maxUnavailable": 1})).await?;
    case.updated().await?;
    Ok(())
}

async fn pdb_tightened_during_drain_blocks_drain(case: Case) -> anyhow::Result<()> {
    let slow = json!({"metadata": {"annotations": {"sim/ready-after": "3s"}}});
    case.deployment("web", 3, slow).await?;
    case.budget("web", 3, json!({"maxUnavailable": 1})).await?;
    case.start_update().await?;
    case.until("the first has gone", |state| state.pods_on_node("web").len() == 2).await?;
    case.set_budget("web", json!({"maxUnavailable": 0})).await?;
    let state = case.until_drain_blocked().await?;
    assert!(!state.pods_on_node("web").is_empty(), "what is left stays");
    case.set_budget("web", json!({"maxUnavailable": 1})).await?;
    case.updated().await?;
    Ok(())
}

async fn pdb_relaxed_during_drain_unblocks_drain(case: Case) -> anyhow::Result<()> {
    until_drain_blocked(&case).await?;
    case.unblock_drain().await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("web").is_empty());
    Ok(())
}

async fn pdb_that_never_allows_disruption_is_reported_before_cordon(case: Case) -> anyhow::Result<()> {
    case.set_drain_policy("wait").await?;
    case.deployment("web", 1, json!({})).await?;
    case.budget("web", 1, json!({"maxUnavailable": 0})).await?;
    case.start_update().await?;
    let message = case.blocked("BudgetNeverAllows").await?;
    assert!(message.contains(&format!("{}/web", case.namespace)), "{message}");
    assert!(!case.state()?.cordoned());
    case.set_budget("web", json!({"maxUnavailable": 1})).await?;
    case.updated().await?;
    Ok(())
}

/// A pod whose budget allows nothing although it is healthy, beside two that no budget guards.
async fn start_guarded_drain(case: &Case) -> anyhow::Result<()> {
    case.deployment_on_node("api", 2, json!({})).await?;
    case.deployment("web", 1, json!({})).await?;
    case.budget("web", 1, json!({"minAvailable": 1})).await?;
    case.start_update().await?;
    case.until_drain_blocked().await.map(drop)
}

async fn guarded_pod_is_evicted_first_and_alone_once_its_pdb_opens(case: Case) -> anyhow::Result<()> {
    start_guarded_drain(&case).await?;
    let all_stay = |state: &crate::state::CaseState<'_>| {
        let api = state.pods_on_node("api");
        api.len() == 2 && api.iter().all(|pod| !pod.terminating)
    };
    let state = case.state()?;
    assert!(state.cordoned() && all_stay(&state) && state.pods_on_node("web").len() == 1);
    // As the operator of a database does once it has switched the primary over.
    case.unblock_drain().await?;
    let state = case.until("the guarded pod has gone", |state| state.pods_on_node("web").is_empty()).await?;
    assert!(all_stay(&state));
    case.updated().await?;
    Ok(())
}

async fn node_is_released_when_guarded_pod_stays_and_its_pdb_backs_off(case: Case) -> anyhow::Result<()> {
    start_guarded_drain(&case).await?;
    let before: Vec<String> = case.state()?.pods_on_node("api").iter().map(|pod| pod.uid.clone()).collect();
    case.set_drain_policy("short-guarded").await?;
    let message = case.failed("GuardedPodsStayed").await?;
    let budget = format!("{}/web", case.namespace);
    assert!(message.contains(&budget), "{message}");
    let message = case.blocked("BudgetNeverAllows").await?;
    assert!(message.contains(&budget) && message.contains("asked again"), "{message}");
    let state = case.state()?;
    let after: Vec<String> = state.pods_on_node("api").iter().map(|pod| pod.uid.clone()).collect();
    assert!(before == after && !state.cordoned() && !state.is_charged());
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

async fn pdb_of_broken_pods_is_reported_before_cordon(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 2, json!({})).await?;
    case.block_with_pdb("web", 2).await?;
    case.set_drain_policy("default").await?;
    case.start_update().await?;
    let message = case.blocked("BudgetUnhealthy").await?;
    assert!(message.contains(&format!("{}/web", case.namespace)) && message.contains("1 more"), "{message}");
    let state = case.state()?;
    assert!(!state.cordoned() && state.pods_on_node("web").len() == 2);
    case.kubectl_in_namespace(&["delete", "pod", "web-without-a-node"]).await?;
    case.set_budget("web", json!({"minAvailable": 1})).await?;
    case.updated().await?;
    Ok(())
}

async fn approved_eviction_that_deleted_no_pod_is_reported_with_its_times(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 3, json!({})).await?;
    case.budget("web", 3, json!({"maxUnavailable": 1})).await?;
    let pod = case.state()?.pods_on_node("web").first().map(|pod| pod.title()).unwrap_or_default();
    // As the API server leaves it when the client of an eviction is killed in the middle of it.
    let approve = async |pods: Value| {
        let patch = json!({"status": {"disruptedPods": pods}}).to_string();
        case.kubectl_in_namespace(&["patch", "pdb", "web", "--subresource=status", "--type=merge", "-p", &patch]).await
    };
    let name = pod.rsplit('/').next().unwrap_or_default();
    let before = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(10);
    approve(json!({name: format!("{before:.0}")})).await?;
    case.start_update().await?;
    let message = case.blocked("BudgetUnhealthy").await?;
    let text = format!("the eviction of {pod} was approved at ");
    assert!(message.contains(&text) && message.contains("counts it as gone until "), "{message}");
    let state = case.state()?;
    assert!(!state.cordoned() && state.pods_on_node("web").len() == 3);
    approve(Value::Null).await?;
    case.updated().await?;
    Ok(())
}

async fn pdb_that_kubernetes_cannot_count_is_reported_before_cordon(case: Case) -> anyhow::Result<()> {
    // A pod whose controller has no scale.
    case.kubectl_in_namespace(&["create", "configmap", "owner"]).await?;
    let uid = case.kubectl_in_namespace(&["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"]).await?;
    let owner =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid.trim(), "controller": true});
    case.bare_pod("odd", &json!({"metadata": {"ownerReferences": [owner]}})).await?;
    case.apply(integ::bed::workload::budget(&case.namespace, "odd", json!({"maxUnavailable": 1}))).await?;
    case.start_update().await?;
    let message = case.blocked("BudgetSyncFailed").await?;
    let named = format!("{}/odd", case.namespace);
    assert!(message.contains(&named) && message.contains("scale"), "{message}");
    assert!(!case.state()?.cordoned());
    case.kubectl_in_namespace(&["delete", "pdb", "odd"]).await?;
    case.updated().await?;
    Ok(())
}

async fn pdb_with_empty_selector_blocks_all_pods(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("api", 1, json!({})).await?;
    case.deployment("web", 1, json!({})).await?;
    case.block_with_pdb("web", 1).await?;
    let everything: Value = json!({"selector": {"matchLabels": null}, "minAvailable": 2});
    case.set_budget("web", everything).await?;
    case.counted("web", 2).await?;
    case.start_update().await?;
    let state = case.until_drain_blocked().await?;
    assert!(state.pods_on_node("web").len() == 1 && state.pods_on_node("api").len() == 1);
    case.kubectl_in_namespace(&["delete", "pdb", "web"]).await?;
    case.updated().await?;
    Ok(())
}

async fn blocked_pod_does_not_delay_eviction_of_other_pods(case: Case) -> anyhow::Result<()> {
    case.deployment_on_node("api", 2, json!({})).await?;
    until_drain_blocked(&case).await?;
    let state = case.until("the others have gone", |state| state.pods_on_node("api").is_empty()).await?;
    assert_eq!(state.pods_on_node("web").len(), 2);
    case.unblock_drain().await?;
    case.updated().await?;
    Ok(())
}

/// Two pods that are never Ready beside so many healthy ones, and a budget that requires one healthy pod, with this
/// policy for unhealthy pods.
async fn unhealthy(case: &Case, policy: &str, healthy: usize) -> anyhow::Result<()> {
    let sick = json!({"metadata": {"labels": {"tier": "web"}, "annotations": {"sim/never-ready": "true"}}});
    case.deployment_on_node("sick", 2, sick).await?;
    if healthy > 0 {
        case.deployment_on_node("well", healthy, json!({"metadata": {"labels": {"tier": "web"}}})).await?;
    }
    case.allow_spare_nodes().await?;
    let mut budget = integ::bed::workload::budget(&case.namespace, "web", json!({"minAvailable": 1}));
    budget["spec"]["selector"] = json!({"matchLabels": {"tier": "web"}});
    budget["spec"]["unhealthyPodEvictionPolicy"] = json!(policy);
    case.apply(budget).await?;
    case.counted("web", healthy).await
}

async fn unready_pods_are_evicted_under_always_allow(case: Case) -> anyhow::Result<()> {
    unhealthy(&case, "AlwaysAllow", 0).await?;
    case.start_update().await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("sick").is_empty());
    Ok(())
}

async fn unready_pods_are_evicted_under_if_healthy_budget_when_pdb_is_satisfied(case: Case) -> anyhow::Result<()> {
    unhealthy(&case, "IfHealthyBudget", 2).await?;
    case.start_update().await?;
    case.updated().await?;
    let drained = case.drained().await?;
    assert!(drained.pods_on_node("sick").is_empty() && drained.pods_on_node("well").is_empty());
    Ok(())
}

async fn unready_pods_remain_under_if_healthy_budget_when_pdb_is_not_satisfied(case: Case) -> anyhow::Result<()> {
    unhealthy(&case, "IfHealthyBudget", 0).await?;
    case.let_drain_begin(&case.node).await?;
    case.start_update().await?;
    case.until_drain_blocked().await?;
    case.pass_deadline("short").await?;
    let message = case.failed("DrainTimedOut").await?;
    assert!(message.contains("sick-"), "{message}");
    let state = case.state()?;
    assert!(state.pods_on_node("sick").len() == 2 && !state.cordoned());
    Ok(())
}

async fn second_drain_waits_for_disruptions_that_first_one_waits_for(case: Case) -> anyhow::Result<()> {
    let second = case.second_node().await?;
    let spread = json!({"spec": {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": {"app": "web"}},
    }]}});
    // A pod for the second node alone: once it is there, the scheduler knows the node's label.
    let hostname = json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": second}}});
    case.deployment_on_node("first", 1, hostname).await?;
    case.kubectl_in_namespace(&["delete", "deployment", "first"]).await?;
    case.deployment("web", 4, spread).await?;
    let state = case.state()?;
    let on_second = state.pods_of("web").iter().filter(|pod| pod.node.as_deref() == Some(&second)).count();
    assert!(on_second > 0 && !state.pods_on_node("web").is_empty(), "they are on both nodes");
    case.block_with_pdb("web", 4).await?;
    case.let_drain_begin(&second).await?;
    case.start_update().await?;
    case.until_drain_blocked().await?;
    case.label_node(&second).await?;
    let state = case.until("the second one waits", |state| state.world.waiting("BudgetBusy") > 0).await?;
    assert!(state.world.nodes.get(&second).is_some_and(|node| !node.claimed()));
    case.set_budget("web", json!({"minAvailable": 3})).await?;
    case.updated().await?;
    case.until("the second node is updated", |state| {
        let shadow = state.world.nodes.get(&second).and_then(|node| state.world.shadow_of(node));
        shadow.is_some_and(|s| s.step().is_none() && s.status.agent.current_version == Some(crate::fleet::NEW))
    })
    .await?;
    Ok(())
}
