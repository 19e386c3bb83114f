//! PodDisruptionBudgets: respected at every revision, also when they change during a drain.

use serde_json::{Value, json};

use crate::fleet::Case;

crate::cases![
    a_budget_lets_one_go_at_a_time_and_all_go_in_the_end,
    a_budget_in_percent_is_respected,
    a_budget_that_is_deleted_in_mid_drain_holds_no_one_up_any_more,
    a_budget_that_is_made_in_mid_drain_is_respected,
    a_budget_that_is_tightened_in_mid_drain_is_respected,
    a_budget_that_is_loosened_in_mid_drain_lets_the_drain_end,
    a_budget_that_could_never_allow_the_drain_is_named_before_the_node_is_touched,
    a_budget_that_selects_everything_holds_up_everything,
    a_budget_that_selects_nothing_holds_no_one_up,
    a_blocked_pod_does_not_hold_back_the_others,
    two_budgets_on_one_pod_are_named_before_the_node_is_touched,
    pods_that_are_not_ready_go_where_their_budget_always_allows_it,
    pods_that_are_not_ready_go_where_enough_others_are_healthy,
    pods_that_are_not_ready_stay_where_their_budget_misses_healthy_ones,
    two_nodes_that_are_drained_at_once_share_a_budget,
    a_pod_that_becomes_ready_elsewhere_frees_the_budget,
];

async fn a_budget_lets_one_go_at_a_time_and_all_go_in_the_end(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 4, json!({})).await?;
    case.budget("web", 4, json!({"maxUnavailable": 1})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty());
    Ok(())
}

async fn a_budget_in_percent_is_respected(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 4, json!({})).await?;
    case.budget("web", 4, json!({"minAvailable": "60%"})).await?;
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}

/// A drain that a budget blocks.
async fn held_up(case: &Case) -> anyhow::Result<()> {
    let look = case.drain_held_up(2).await?;
    let budget = format!("{}/web", case.namespace);
    assert_eq!(look.drain().and_then(|drain| drain.blockers[0].budget.as_deref()), Some(budget.as_str()));
    Ok(())
}

async fn a_budget_that_is_deleted_in_mid_drain_holds_no_one_up_any_more(case: Case) -> anyhow::Result<()> {
    held_up(&case).await?;
    case.here(&["delete", "pdb", "web"]).await?;
    case.updated().await?;
    Ok(())
}

async fn a_budget_that_is_made_in_mid_drain_is_respected(case: Case) -> anyhow::Result<()> {
    // System-critical pods are evicted last, so that there is time to create a budget for it.
    case.deployment_at_home("dns", 2, json!({"spec": {"priorityClassName": "system-cluster-critical"}})).await?;
    held_up(&case).await?;
    case.budget("dns", 2, json!({"maxUnavailable": 0})).await?;
    case.let_go().await?;
    let new = format!("{}/dns", case.namespace);
    let look = case
        .until("the new budget holds the drain up", |look| {
            look.drain().is_some_and(|drain| drain.blockers.iter().any(|b| b.budget.as_deref() == Some(new.as_str())))
        })
        .await?;
    assert!(look.at_home("web").is_empty() && look.at_home("dns").len() == 2);
    case.set_budget("dns", json!({"maxUnavailable": 1})).await?;
    case.updated().await?;
    Ok(())
}

async fn a_budget_that_is_tightened_in_mid_drain_is_respected(case: Case) -> anyhow::Result<()> {
    let slow = json!({"metadata": {"annotations": {"sim/ready-after": "3s"}}});
    case.deployment("web", 3, slow).await?;
    case.budget("web", 3, json!({"maxUnavailable": 1})).await?;
    case.start_update().await?;
    case.until("the first has gone", |look| look.at_home("web").len() == 2).await?;
    case.set_budget("web", json!({"maxUnavailable": 0})).await?;
    let look = case.held_up().await?;
    assert!(!look.at_home("web").is_empty(), "what is left stays");
    case.set_budget("web", json!({"maxUnavailable": 1})).await?;
    case.updated().await?;
    Ok(())
}

async fn a_budget_that_is_loosened_in_mid_drain_lets_the_drain_end(case: Case) -> anyhow::Result<()> {
    held_up(&case).await?;
    case.let_go().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty());
    Ok(())
}

async fn a_budget_that_could_never_allow_the_drain_is_named_before_the_node_is_touched(
    case: Case,
) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.budget("web", 1, json!({"maxUnavailable": 0})).await?;
    case.start_update().await?;
    let said = case.blocked("BudgetNeverAllows").await?;
    assert!(said.contains(&format!("{}/web", case.namespace)), "{said}");
    assert!(!case.look()?.cordoned());
    case.set_budget("web", json!({"maxUnavailable": 1})).await?;
    case.updated().await?;
    Ok(())
}

async fn a_budget_that_selects_everything_holds_up_everything(case: Case) -> anyhow::Result<()> {
    case.deployment_at_home("api", 1, json!({})).await?;
    case.deployment("web", 1, json!({})).await?;
    case.guard("web", 1).await?;
    let everything: Value = json!({"selector": {"matchLabels": null}, "minAvailable": 2});
    case.set_budget("web", everything).await?;
    case.counted("web", 2).await?;
    case.start_update().await?;
    let look = case.held_up().await?;
    assert!(look.at_home("web").len() == 1 && look.at_home("api").len() == 1);
    case.here(&["delete", "pdb", "web"]).await?;
    case.updated().await?;
    Ok(())
}

async fn a_budget_that_selects_nothing_holds_no_one_up(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.budget("other", 0, json!({"maxUnavailable": 0})).await?;
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}

async fn a_blocked_pod_does_not_hold_back_the_others(case: Case) -> anyhow::Result<()> {
    case.deployment_at_home("api", 2, json!({})).await?;
    held_up(&case).await?;
    let look = case.until("the others have gone", |look| look.at_home("api").is_empty()).await?;
    assert_eq!(look.at_home("web").len(), 2);
    case.let_go().await?;
    case.updated().await?;
    Ok(())
}

async fn two_budgets_on_one_pod_are_named_before_the_node_is_touched(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.budget("web", 1, json!({"maxUnavailable": 1})).await?;
    let mut second = integ::bed::workload::budget(&case.namespace, "web", json!({"maxUnavailable": 1}));
    second["metadata"]["name"] = json!("second");
    case.apply(second).await?;
    case.counted("second", 1).await?;
    case.start_update().await?;
    let said = case.blocked("MultipleBudgets").await?;
    let both = ["second", "web"].map(|name| format!("{}/{name}", case.namespace));
    assert!(both.iter().all(|name| said.contains(name)), "{said}");
    let look = case.look()?;
    assert!(!look.cordoned() && look.at_home("web").len() == 1);
    case.here(&["delete", "pdb", "second"]).await?;
    case.updated().await?;
    Ok(())
}

/// Two pods that are never Ready beside so many healthy ones, and a budget that requires one healthy pod, with this
/// policy for unhealthy pods.
async fn unhealthy(case: &Case, policy: &str, healthy: usize) -> anyhow::Result<()> {
    let sick = json!({"metadata": {"labels": {"tier": "web"}, "annotations": {"sim/never-ready": "true"}}});
    case.deployment_at_home("sick", 2, sick).await?;
    if healthy > 0 {
        case.deployment_at_home("well", healthy, json!({"metadata": {"labels": {"tier": "web"}}})).await?;
    }
    case.open_elsewhere().await?;
    let mut budget = integ::bed::workload::budget(&case.namespace, "web", json!({"minAvailable": 1}));
    budget["spec"]["selector"] = json!({"matchLabels": {"tier": "web"}});
    budget["spec"]["unhealthyPodEvictionPolicy"] = json!(policy);
    case.apply(budget).await?;
    case.counted("web", healthy).await
}

async fn pods_that_are_not_ready_go_where_their_budget_always_allows_it(case: Case) -> anyhow::Result<()> {
    unhealthy(&case, "AlwaysAllow", 0).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("sick").is_empty());
    Ok(())
}

async fn pods_that_are_not_ready_go_where_enough_others_are_healthy(case: Case) -> anyhow::Result<()> {
    unhealthy(&case, "IfHealthyBudget", 2).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("sick").is_empty() && end.at_home("well").is_empty());
    Ok(())
}

async fn pods_that_are_not_ready_stay_where_their_budget_misses_healthy_ones(case: Case) -> anyhow::Result<()> {
    case.under("short").await?;
    unhealthy(&case, "IfHealthyBudget", 0).await?;
    case.start_update().await?;
    let said = case.failed("DrainTimedOut").await?;
    assert!(said.contains("sick-"), "{said}");
    let look = case.look()?;
    assert!(look.at_home("sick").len() == 2 && !look.cordoned());
    Ok(())
}

async fn two_nodes_that_are_drained_at_once_share_a_budget(case: Case) -> anyhow::Result<()> {
    let second = case.second_node().await?;
    let spread = json!({"spec": {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": {"app": "web"}},
    }]}});
    case.deployment("web", 4, spread).await?;
    let look = case.look()?;
    let on_second = look.pods_of("web").iter().filter(|pod| pod.node.as_deref() == Some(&second)).count();
    assert!(on_second > 0 && !look.at_home("web").is_empty(), "they are on both nodes");
    case.guard("web", 4).await?;
    case.start_update().await?;
    case.begin(&second).await?;
    case.until("both drains are held up", |look| {
        let held_up = |name: &str| {
            let shadow = look.world.nodes.get(name).and_then(|node| look.world.shadow_of(node));
            let drain = shadow.and_then(|shadow| shadow.status.controller.drain.as_ref());
            drain.is_some_and(|drain| !drain.blockers.is_empty())
        };
        held_up(&case.node) && held_up(&second)
    })
    .await?;
    case.set_budget("web", json!({"minAvailable": 3})).await?;
    case.updated().await?;
    case.until("the second node is updated", |look| {
        let shadow = look.world.nodes.get(&second).and_then(|node| look.world.shadow_of(node));
        shadow.is_some_and(|s| s.step().is_none() && s.status.agent.current_version == Some(crate::fleet::NEW))
    })
    .await?;
    Ok(())
}

async fn a_pod_that_becomes_ready_elsewhere_frees_the_budget(case: Case) -> anyhow::Result<()> {
    let slow = json!({"metadata": {"annotations": {"sim/ready-after": "2s"}}});
    case.deployment("web", 2, slow).await?;
    case.budget("web", 2, json!({"minAvailable": 1})).await?;
    case.start_update().await?;
    let end = case.updated().await?;
    assert!(end.at_home("web").is_empty());
    Ok(())
}
