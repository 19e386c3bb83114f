//! Nodes after their update: the effect of the health of their pods.

use std::time::Duration;

use integ::bed::{merge, workload};
use integ::oracle::{ClusterState, Field};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::{Api, Resource as _};
use models::condition::ConditionStatus;
use models::names::{DO_NOT_DISRUPT_ANNOTATION, PRIORITY_LABEL, SCALE_DOWN_ANNOTATION};
use models::reason::FailureReason;
use models::shadow::{BLOCKED, Step};
use serde_json::{Value, json};

use crate::bed::{NEW, OLD, PodRule, SHOP, ScriptedCluster, closed_schedule, open_schedule};

crate::cases![
    daemon_set_failing_on_updated_nodes_freezes_rollout,
    pressure_in_the_soak_begins_it_again,
    daemon_set_that_fails_on_other_nodes_too_is_not_waited_for,
];

/// Waits until a node of these is verified.
async fn until_verified(cluster: &ScriptedCluster, nodes: &[&str]) -> anyhow::Result<String> {
    let next = |world: &ClusterState| nodes.iter().find(|node| world.step(node) == Some(Step::Verifying)).copied();
    let world = cluster.until("a node is verified", |world| next(world).is_some()).await?;
    Ok(next(&world).unwrap_or_default().to_owned())
}

/// Creates a DaemonSet `driver` with a pod on each node, as its controller would.
pub(crate) async fn driver(cluster: &ScriptedCluster, nodes: &[&str]) -> anyhow::Result<()> {
    let template = json!({
        "metadata": {"labels": {"app": "driver"}},
        "spec": {"containers": [{"name": "app", "image": "example.invalid/app:1"}]},
    });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "driver", "namespace": SHOP},
        "spec": {"selector": {"matchLabels": {"app": "driver"}}, "template": template},
    });
    let set: DaemonSet = cluster.create(Api::namespaced(cluster.client.clone(), SHOP), set).await?;
    let owner = set.controller_owner_ref(&());
    let pods = nodes.iter().map(|node| {
        let mut pod: Value = template.clone();
        let metadata = json!({"name": format!("driver-{node}"), "namespace": SHOP, "ownerReferences": [owner]});
        merge(&mut pod, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}}));
        pod
    });
    workload::apply(&cluster.client, pods.collect()).await?;
    cluster.until("all pods are Ready", |world| world.ready_pods(SHOP) == nodes.len()).await?;
    // Kubelets write whole seconds: a pod that ceases to be Ready within two of its start would pass for one that has never been.
    cluster.pass(Duration::from_secs(10)).await
}

async fn daemon_set_failing_on_updated_nodes_freezes_rollout(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const TIMEOUT: Duration = Duration::from_mins(10);
    cluster.start(3, json!({"health": {"after": {"soak": "1m", "timeout": "10m"}}})).await?;
    driver(cluster, &["node-1", "node-2", "node-3"]).await?;
    let fails = PodRule { app: "driver".to_owned(), node: None, version: Some(NEW) };
    cluster.fleet.pods(fails);
    cluster.fleet.release(NEW);
    let mut verified: Vec<String> = Vec::new();
    for _ in 0..2 {
        let next = |world: &ClusterState| {
            let mut names = world.nodes.keys().filter(|name| !verified.contains(name));
            // The pod's failure is stored after the Node's return.
            let runs = |name: &str| world.pods.values().any(|pod| pod.name == format!("driver-{name}") && pod.ready);
            names.find(|name| world.step(name) == Some(Step::Verifying) && !runs(name)).cloned()
        };
        let world = cluster.until("another node is verified", |world| next(world).is_some()).await?;
        verified.extend(next(&world));
        // The controller's own watch may be behind the one that this waits on.
        cluster.planned().await?;
        cluster.pass(TIMEOUT).await?;
        if verified.len() == 1 {
            let first = &verified[0];
            let world = cluster.until("the first node is updated", |world| world.is_updated(first, &NEW)).await?;
            assert_eq!(world.record(first).version_failures, []);
        }
    }
    let second = &verified[1];
    let world = cluster
        .until("the second node is released, and the rollout frozen", |world| {
            let frozen = world.operator_condition("Frozen").is_some_and(|c| c.status == ConditionStatus::True);
            frozen && world.is_released(second) && world.status().slots.is_empty()
        })
        .await?;
    let failed = world.record(second);
    let message = failed.last.map(|last| last.message).unwrap_or_default();
    assert!(message.contains("shop/driver-") && message.contains("fail on 1 other node(s)"), "{message}");
    let charged: Vec<_> = failed.version_failures.iter().map(|failure| failure.reason).collect();
    assert_eq!(charged, [FailureReason::SoakFailed]);
    let world = cluster.planned().await?;
    assert_eq!(world.record(&verified[0]).version_failures, []);
    let third = world.nodes.keys().find(|name| !verified.contains(name)).cloned().unwrap_or_default();
    assert!(world.is_updated(&third, &OLD), "the third node was left alone");
    Ok(())
}

/// Returns whether a node has the annotations that keep autoscalers from removing it.
fn is_protected(world: &ClusterState, node: &str) -> bool {
    let fields = &world.nodes[node].fields;
    let has = |name: &str| fields.contains_key(&Field::Annotation(name.to_owned()));
    has(SCALE_DOWN_ANNOTATION) && has(DO_NOT_DISRUPT_ANNOTATION)
}

async fn pressure_in_the_soak_begins_it_again(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(1, json!({"health": {"after": {"soak": "10m", "timeout": "30m"}}})).await?;
    cluster.fleet.release(NEW);
    let node = until_verified(cluster, &["node-1"]).await?;
    let world = cluster.planned().await?;
    assert!(is_protected(&world, &node) && !world.nodes[&node].claimed(), "in service, and protected from autoscalers");
    cluster.pass(Duration::from_mins(9)).await?;
    cluster.fleet.script(&node, |node| node.pressure = Some("DiskPressure"));
    let blocked = |world: &ClusterState| world.condition(&node, BLOCKED).cloned();
    let named = |world: &ClusterState| blocked(world).is_some_and(|blocked| blocked.message.contains("DiskPressure"));
    cluster.until("the pressure is named", named).await?;
    cluster.fleet.script(&node, |node| node.pressure = None);
    cluster.until("it is over", |world| !named(world)).await?;
    cluster.pass(Duration::from_mins(7)).await?;
    let world = cluster.planned().await?;
    assert_eq!(world.step(&node), Some(Step::Verifying), "well for 16 minutes of 17, and not for ten in a row");
    cluster.pass(Duration::from_mins(3)).await?;
    let world = cluster.updated().await?;
    assert!(!is_protected(&world, &node), "nothing is left");
    Ok(())
}

async fn daemon_set_that_fails_on_other_nodes_too_is_not_waited_for(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let after = json!({"soak": "5m", "timeout": "1h"});
    let closed = closed_schedule(&cluster.time);
    cluster.start(3, json!({"health": {"after": after}, "schedule": closed, "strategy": {"preStage": {}}})).await?;
    driver(cluster, &["node-1", "node-2", "node-3"]).await?;
    // The first node's own pod is well until the reboot, so that nothing but the others excuses it.
    cluster.patch_node("node-1", json!({"metadata": {"labels": {PRIORITY_LABEL: "1"}}})).await?;
    for (node, version) in [(Some("node-2"), None), (Some("node-3"), None), (None, Some(NEW))] {
        let (app, node) = ("driver".to_owned(), node.map(str::to_owned));
        cluster.fleet.pods(PodRule { app, node, version });
    }
    cluster.until("the other pods fail", |world| world.ready_pods(SHOP) == 1).await?;
    cluster.fleet.release(NEW);
    // The first node that has its image would be the first to go.
    cluster.until_step("node-1", Step::Staged).await?;
    cluster.policy(&json!({"schedule": open_schedule()})).await?;
    let all = ["node-1", "node-2", "node-3"];
    for node in all {
        let world = cluster.planned().await?;
        let rest: Vec<&str> = all.into_iter().filter(|name| !world.is_updated(name, &NEW)).collect();
        let name = until_verified(cluster, &rest).await?;
        assert!(node != "node-1" || name == node, "{name} has gone first");
        cluster.planned().await?;
        // The other pods are looked at once the node has been ill for a moment.
        cluster.pass(Duration::from_mins(2)).await?;
        let progress = |world: &ClusterState| world.shadow(&name).and_then(|s| s.status.controller.progress.clone());
        let soaks = |world: &ClusterState| progress(world).is_some_and(|progress| progress.interrupted.is_none());
        cluster.until("it soaks", soaks).await?;
        cluster.pass(Duration::from_mins(5)).await?;
        cluster.until("it is updated after its soak", |world| world.is_updated(&name, &NEW)).await?;
    }
    cluster.updated().await.map(drop)
}
