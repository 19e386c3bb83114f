//! A pod of the earlier operator beside this one.

use std::time::Duration;

use integ::bed::workload;
use integ::oracle::ClusterState;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use models::condition::ConditionStatus;
use models::earlier::COMPONENT_LABEL;
use models::operator::BLOCKED;
use models::shadow::{HostState, Step};
use serde_json::json;

use crate::bed::{ControllerOptions, SHOP, ScriptedCluster};
use crate::leaders::blocked_drain;

crate::cases![nothing_is_done_beside_earlier_operator_until_its_hosts_are_down_or_up_for_sure];

/// A pod of the earlier operator, in a namespace that no workload uses.
const POD: &str = "brupop-agent-x";
const NAMESPACE: &str = "default";
/// Longest shutdown of a host that it has told to reboot.
const SHUTDOWN: Duration = Duration::from_mins(10);

async fn create_earlier_pod(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": POD, "namespace": NAMESPACE, "labels": {COMPONENT_LABEL: "agent"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"example.com/no-node": "has-this"},
            "containers": [{"name": "agent", "image": "example.invalid/agent:1"}],
        },
    });
    workload::apply(&cluster.client, vec![pod]).await
}

/// Waits until the operator's resource and its count of reasons show the pause.
async fn paused(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let world = cluster
        .until("the operator reports the earlier one", |world| {
            let blocked = world.operator_condition(BLOCKED).filter(|c| c.status == ConditionStatus::True);
            blocked.is_some_and(|c| c.reason == "EarlierOperatorRunning")
                && world.waiting("EarlierOperatorRunning") == 2
        })
        .await?;
    let message = world.operator_condition(BLOCKED).map(|c| c.message.clone()).unwrap_or_default();
    anyhow::ensure!(message.contains(&format!("{NAMESPACE}/{POD}")), "{message}");
    Ok(())
}

/// Deletes the pod, and lets the time pass in which hosts may be going down yet.
async fn end(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    pods.delete(POD, &kube::api::DeleteParams::default()).await?;
    cluster
        .until("nodes wait for hosts of the earlier operator", |world| {
            let waits = |c: &models::condition::Condition| {
                c.status == ConditionStatus::Unknown && c.message.contains("waiting until")
            };
            world.operator_condition(BLOCKED).is_some_and(waits) && world.waiting("EarlierOperatorGone") == 2
        })
        .await?;
    cluster.pass(SHUTDOWN).await?;
    cluster
        .until("it is over", |world| {
            let over = world.operator_condition(BLOCKED).filter(|c| c.status == ConditionStatus::False);
            over.is_some_and(|over| over.reason == "EarlierOperatorGone")
        })
        .await
        .map(drop)
}

async fn nothing_is_done_beside_earlier_operator_until_its_hosts_are_down_or_up_for_sure(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    create_earlier_pod(cluster).await?;
    for node in ["node-1", "node-2"] {
        cluster.add_node(node, &[]).await?;
    }
    cluster.create_policy(json!({"deadlines": {"shutdown": "10m"}})).await?;
    cluster.start_controller(&ControllerOptions::default())?;
    paused(cluster).await?;
    let world = cluster.planned().await?;
    assert!(world.shadows.is_empty() && !world.nodes.values().any(|node| node.claimed()), "{:?}", world.shadows);
    end(cluster).await?;
    cluster.reported().await?;

    // It comes back during an attempt.
    let node = blocked_drain(cluster).await?;
    create_earlier_pod(cluster).await?;
    paused(cluster).await?;
    let pods = |world: &ClusterState| {
        world.evictable_on(&node).filter(|pod| pod.namespace == SHOP && !pod.terminating).count()
    };
    let before = pods(&cluster.now()?);
    cluster.unblock_shop().await?;
    cluster
        .until("the budget allows it", |world| {
            world.budgets.values().any(|b| b.namespace == SHOP && b.disruptions_allowed > 0)
        })
        .await?;
    let world = cluster.planned().await?;
    assert!(before > 0 && pods(&world) == before, "of {before} pods {} are left", pods(&world));
    assert_eq!((world.step(&node), world.status().slots.len()), (Some(Step::Draining), 1));
    assert_eq!(world.shadow(&node).map(|shadow| shadow.spec.state), Some(HostState::StagedUpdate));
    end(cluster).await?;
    cluster.updated().await?;
    cluster.recorder.so_far()?.ensure_updates(2)?;
    Ok(())
}
