//! PodDisruptionBudgets that block a drain.

use anyhow::Context as _;
use integ::bed::workload;
use integ::oracle::ClusterState;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use models::condition::ConditionStatus;
use models::shadow::{BLOCKED, Step};
use serde_json::json;

use crate::bed::{NEW, SHOP, ScriptedCluster, other};

crate::cases![
    blocked_drain_is_reported_in_shadow_event_status_and_metric_while_other_node_updates,
    at_most_one_node_waits_for_disruptions_beyond_those_that_a_pdb_allows,
];

async fn blocked_drain_is_reported_in_shadow_event_status_and_metric_while_other_node_updates(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.expectations.max_unavailable = Some(2);
    cluster.start_beside_proven(2, json!({"maxUnavailable": 2})).await?;
    workload::apply(&cluster.client, vec![workload::service(SHOP, "web")]).await?;
    cluster.shop(1, json!({"minAvailable": 1})).await?;
    cluster.block_shop().await?;
    let world = cluster.now()?;
    let pod = world.pods.values().find(|pod| pod.namespace == SHOP && pod.ready).context("no pod")?.clone();
    let home = pod.node.clone().unwrap_or_default();
    cluster.fleet.release(NEW);
    let blocked =
        |world: &ClusterState| world.condition(&home, BLOCKED).filter(|c| c.status == ConditionStatus::True).cloned();
    let world = cluster
        .until("the drain is blocked and the other node is updated", |world| {
            let counts = world.status().counts;
            blocked(world).is_some_and(|condition| condition.reason == "DrainBlocked")
                && world.is_updated(other(&home), &NEW)
                && world.waiting("DrainBlocked") == 1
                && counts.is_some_and(|counts| (counts.blocked, counts.updating) == (1, 1))
        })
        .await?;
    let drain = world.shadow(&home).and_then(|shadow| shadow.status.controller.drain.clone()).context("no drain")?;
    let blockers: Vec<_> = drain.blockers.iter().map(|b| (b.pod.as_str(), b.budget.as_deref())).collect();
    assert_eq!(blockers, [(pod.title().as_str(), Some("shop/web"))]);
    // What is known of the pod only before its eviction.
    let listed = drain
        .pods
        .iter()
        .find(|listed| pod.title() == format!("{}/{}", listed.namespace, listed.name))
        .context("not listed")?;
    let shown = Api::<Pod>::namespaced(cluster.client.clone(), SHOP).get(&pod.name).await?;
    assert_eq!(listed.ip, shown.status.and_then(|status| status.pod_ip));
    assert_eq!(listed.owner.as_deref(), Some("Deployment/web"));
    assert_eq!((&listed.budgets[..], &listed.services[..]), (&["web".to_owned()][..], &["web".to_owned()][..]));
    assert_eq!(listed.moved, None);
    let message = blocked(&world).context("just seen")?.message;
    assert!(message.contains(&pod.title()) && message.contains("shop/web"), "{message}");
    cluster.until_event("DrainBlocked", &[&pod.title(), "shop/web"]).await?;
    cluster.until_metric(r#"nodes_waiting{reason="DrainBlocked"}"#, 1.0).await?;
    let world = cluster.planned().await?;
    assert_eq!(world.step(&home), Some(Step::Draining), "it still waits");
    assert!(world.pods.values().any(|now| now.title() == pod.title() && now.ready));

    cluster.unblock_shop().await?;
    cluster.updated().await?;
    cluster
        .until("no node waits", |world| {
            blocked(world).is_none()
                && world.status().waiting.is_empty()
                && world.status().counts.is_some_and(|counts| counts.blocked == 0)
        })
        .await?;
    cluster.recorder.so_far()?.ensure_updates(2).context("one for each")?;
    Ok(())
}

async fn at_most_one_node_waits_for_disruptions_beyond_those_that_a_pdb_allows(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NODES: usize = 5;
    cluster.expectations.max_unavailable = Some(NODES);
    cluster.start_beside_proven(NODES, json!({"maxUnavailable": NODES, "strategy": {"preStage": {}}})).await?;
    cluster.shop(NODES, json!({"maxUnavailable": 1})).await?;
    cluster.fleet.release(NEW);
    cluster.updated().await?;
    let mut most = 0;
    cluster.recorder.so_far()?.replay(|_, _, world| {
        let leaves = |node: &&String| {
            let evictable = |pod: &integ::oracle::Pod| {
                pod.namespace == SHOP && pod.node.as_ref() == Some(*node) && !pod.terminating
            };
            world.step(node) == Some(Step::Draining) && world.pods.values().any(|pod| evictable(pod))
        };
        most = most.max(world.nodes.keys().filter(leaves).count());
    });
    assert!((1..=2).contains(&most), "{most} nodes were in their drain with pods of the budget");
    Ok(())
}
