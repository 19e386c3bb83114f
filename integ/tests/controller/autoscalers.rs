//! Nodes that an autoscaler removes, and the protection of those that are updated.

use std::time::Duration;

use integ::oracle::{ClusterState, Field, Object};
use models::names::{DO_NOT_DISRUPT_ANNOTATION, SCALE_DOWN_ANNOTATION};
use models::shadow::Step;
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![
    node_that_an_autoscaler_removes_is_left_alone_and_holds_no_other,
    updated_node_is_protected_from_autoscalers_until_it_is_verified,
];

async fn node_that_an_autoscaler_removes_is_left_alone_and_holds_no_other(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start_beside_proven(2, json!({})).await?;
    let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"});
    cluster.patch_node("node-1", json!({"spec": {"unschedulable": true, "taints": [taint]}})).await?;
    cluster.fleet.release(NEW);
    cluster
        .until("the other node is updated, and this one waits", |world| {
            world.is_updated("node-2", &NEW) && world.waiting("BeingRemoved") == 1
        })
        .await?;
    let touched = cluster
        .recorder
        .so_far()?
        .changes()
        .iter()
        .any(|change| matches!(&change.object, Object::Node(node) if node.name == "node-1" && node.claimed()));
    assert!(!touched, "it is left alone");
    // The autoscaler keeps it after all.
    cluster.patch_node("node-1", json!({"spec": {"unschedulable": null, "taints": null}})).await?;
    cluster.updated().await.map(drop)
}

fn is_protected(world: &ClusterState) -> bool {
    let fields = &world.nodes["node-1"].fields;
    [SCALE_DOWN_ANNOTATION, DO_NOT_DISRUPT_ANNOTATION]
        .iter()
        .all(|name| fields.contains_key(&Field::Annotation((*name).to_owned())))
}

async fn updated_node_is_protected_from_autoscalers_until_it_is_verified(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(1, json!({"health": {"after": {"soak": "10m"}}})).await?;
    cluster.fleet.release(NEW);
    let world = cluster.until_step("node-1", Step::Verifying).await?;
    assert!(is_protected(&world) && !world.nodes["node-1"].claimed(), "in service, and protected");
    cluster.pass(Duration::from_mins(10)).await?;
    let world = cluster.updated().await?;
    assert!(!is_protected(&world), "nothing is left");
    Ok(())
}
