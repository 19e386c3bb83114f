//! Drains: rights that are missing, a user's uncordon, and a node that waits behind one.

use std::time::Duration;

use integ::bed::workload;
use integ::oracle::{ClusterState, Field};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Resource as _;
use kube::api::{Api, DeleteParams};
use models::condition::ConditionStatus;
use models::names::HOLD_ANNOTATION;
use models::shadow::{BLOCKED, Step};
use serde_json::{Value, json};

use crate::bed::{NEW, SHOP, ScriptedCluster, other};
use crate::leaders::blocked_drain;

crate::cases![
    forced_deletion_needs_delete_permission,
    node_uncordoned_by_user_during_drain_is_cordoned_again_with_event,
    node_whose_hold_ends_is_queued_behind_a_blocked_drain,
    marked_pods_keep_their_nodes_in_service_until_they_end_or_policy_evicts_them,
];

/// Waits until the drain of a node is blocked by a budget.
pub(crate) async fn until_drain_blocked(cluster: &ScriptedCluster, node: &str) -> anyhow::Result<()> {
    let blocked = |world: &ClusterState| {
        let drain = world.shadow(node).and_then(|shadow| shadow.status.controller.drain.as_ref());
        world.step(node) == Some(Step::Draining) && drain.is_some_and(|drain| !drain.blockers.is_empty())
    };
    cluster.until("the drain is blocked", blocked).await.map(drop)
}

/// Runs `kubectl` as an administrator.
async fn kubectl(cluster: &ScriptedCluster, arguments: &[&str]) -> anyhow::Result<()> {
    let output = cluster.stage.control_plane.kubectl_command().args(arguments).output().await?;
    anyhow::ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn forced_deletion_needs_delete_permission(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/manifests/force.yaml");
    const TIMEOUT: Duration = Duration::from_mins(10);
    let drain = json!({"drain": {"timeout": "10m", "atDeadline": "Force"}, "failurePolicy": {"backOff": "1h"}});
    cluster.start(1, drain).await?;
    let node = blocked_drain(cluster).await?;
    cluster.pass(TIMEOUT).await?;
    cluster.until_event("DrainForced", &["shop/web-"]).await?;
    // The installation gives no right to delete pods.
    cluster
        .until("the drain fails and says what is missing", |world| {
            world.record(&node).last.is_some_and(|last| {
                last.reason == "DrainTimedOut" && last.message.contains("deploy/manifests/force.yaml")
            })
        })
        .await?;
    kubectl(cluster, &["apply", "--server-side", "-f", MANIFEST]).await?;
    let updated = async {
        cluster.until("the node is released", |world| world.is_released(&node)).await?;
        cluster.pass(Duration::from_hours(1)).await?;
        until_drain_blocked(cluster, &node).await?;
        cluster.pass(TIMEOUT).await?;
        cluster.updated().await
    };
    let updated = updated.await;
    kubectl(cluster, &["delete", "-f", MANIFEST]).await?;
    updated.map(drop)
}

async fn node_uncordoned_by_user_during_drain_is_cordoned_again_with_event(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(1, json!({})).await?;
    let node = blocked_drain(cluster).await?;
    cluster.patch_node(&node, json!({"spec": {"unschedulable": null}})).await?;
    cluster.until_event("Uncordoned", &["1 of 3"]).await?;
    let world = cluster
        .until("the node is cordoned again", |world| {
            world.nodes[&node].claimed() && world.nodes[&node].fields.contains_key(&Field::Unschedulable)
        })
        .await?;
    assert_eq!(world.step(&node), Some(Step::Draining), "the same attempt goes on");
    cluster.unblock_shop().await?;
    cluster.updated().await?;
    assert_eq!(cluster.recorder.so_far()?.attempts().len(), 1);
    Ok(())
}

async fn node_whose_hold_ends_is_queued_behind_a_blocked_drain(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(2, json!({})).await?;
    let next = other(&blocked_drain(cluster).await?);
    // The image is staged again behind the drain; a node that waits for its turn is not blocked.
    for (hold, reason) in [(json!("audit"), Some("Held")), (Value::Null, None)] {
        cluster.patch_node(next, json!({"metadata": {"annotations": {HOLD_ANNOTATION: hold}}})).await?;
        let blocked = |world: &ClusterState| {
            let blocked = world.condition(next, BLOCKED).filter(|blocked| blocked.status == ConditionStatus::True);
            blocked.map(|blocked| blocked.reason.clone())
        };
        cluster
            .until(&format!("the node is blocked by {reason:?}"), |world| blocked(world).as_deref() == reason)
            .await?;
    }
    cluster.unblock_shop().await?;
    cluster.updated().await.map(drop)
}

async fn marked_pods_keep_their_nodes_in_service_until_they_end_or_policy_evicts_them(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({"drain": {"markedPods": "Wait"}})).await?;
    // An object that no controller creates pods for: those below are all that there are.
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ci", "namespace": SHOP}});
    let owner: ConfigMap = cluster.create(Api::namespaced(cluster.client.clone(), SHOP), owner).await?;
    let runner = |node: &str, mark: &str, value: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("runner-{node}"), "namespace": SHOP, "annotations": {mark: value},
                "ownerReferences": [owner.controller_owner_ref(&())]},
            "spec": {"nodeName": node, "containers": [{"name": "app", "image": "example.invalid/app:1"}]}})
    };
    let runners = vec![
        runner("node-1", "karpenter.sh/do-not-disrupt", "true"),
        runner("node-2", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ];
    workload::apply(&cluster.client, runners).await?;
    cluster.until("both run", |world| world.ready_pods(SHOP) == 2).await?;
    cluster.planned().await?;
    cluster.fleet.release(NEW);
    cluster.until("both nodes wait", |world| world.waiting("MarkedPods") == 2).await?;
    cluster.pass(Duration::from_hours(8)).await?;
    let world = cluster.planned().await?;
    for node in ["node-1", "node-2"] {
        let blocked = world.condition(node, BLOCKED).map(|blocked| blocked.message.clone()).unwrap_or_default();
        assert!(blocked.contains(&format!("shop/runner-{node}")), "{blocked}");
    }
    cluster.recorder.so_far()?.replay(|_, _, world| {
        assert!(world.nodes.values().all(|node| !node.claimed()), "none is cordoned");
    });
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), SHOP);
    pods.delete("runner-node-1", &DeleteParams::default()).await?;
    let world = cluster.until("its node is updated", |world| world.is_updated("node-1", &NEW)).await?;
    assert_eq!((world.ready_pods(SHOP), world.nodes["node-2"].claimed()), (1, false));
    cluster.policy(&json!({"drain": {"markedPods": "Evict"}})).await?;
    let world = cluster.updated().await?;
    assert_eq!(world.ready_pods(SHOP), 0, "the other is evicted");
    Ok(())
}
