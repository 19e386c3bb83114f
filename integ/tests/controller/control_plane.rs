//! Nodes of the control plane.

use integ::bed::prove;
use integ::oracle::{ClusterState, Field, Node};
use models::names::CONTROL_PLANE_LABEL;
use serde_json::json;

use crate::bed::{Boot, ControllerOptions, NEW, ScriptedCluster};

crate::cases![
    control_plane_nodes_go_one_at_a_time_while_all_others_are_ready_under_any_percentage,
    control_plane_node_that_is_registered_again_without_its_label_holds_the_others,
];

/// Starts so many nodes of the control plane, none of which is the first one on the version.
async fn add_control_plane(cluster: &mut ScriptedCluster, names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        cluster.add_node(name, &[]).await?;
        // A kubelet may not set this label itself.
        cluster.patch_node(name, json!({"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}})).await?;
    }
    cluster.create_policy(json!({"maxUnavailable": "100%", "ignoreUnavailableAfter": "1m"})).await?;
    prove(&cluster.client, &NEW).await
}

async fn control_plane_node_that_is_registered_again_without_its_label_holds_the_others(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.expectations.max_unavailable = Some(3);
    let names = ["cp-1", "cp-2", "cp-3"];
    add_control_plane(cluster, &names).await?;
    cluster.start_controller(&ControllerOptions::default())?;
    cluster.reported().await?;
    for name in names {
        cluster.fleet.script(name, |node| node.boot = Boot::Never);
    }
    cluster.fleet.release(NEW);
    let down =
        |world: &ClusterState| names.into_iter().find(|name| world.nodes.get(*name).is_some_and(|n| n.shutting_down));
    let world = cluster.until("a host is down by its permit", |world| down(world).is_some()).await?;
    let node = down(&world).unwrap_or_default();
    for name in names {
        cluster.fleet.script(name, |node| node.boot = Boot::default());
    }
    cluster.deregister(node).await?;
    cluster.boot_and_register(node).await?;
    cluster.updated().await?;
    assert!(!is_of_control_plane(&cluster.now()?.nodes[node]), "nothing has set its label again");
    cluster.recorder.so_far()?.replay(|change, _, world| {
        let slots = world.status().slots;
        assert!(slots.len() <= 1, "slots of two at {}: {slots:?}", change.revision);
    });
    Ok(())
}

fn is_of_control_plane(node: &Node) -> bool {
    node.fields.contains_key(&Field::Label(CONTROL_PLANE_LABEL.to_owned()))
}

async fn control_plane_nodes_go_one_at_a_time_while_all_others_are_ready_under_any_percentage(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.expectations.max_unavailable = Some(4);
    cluster.add_node("worker-1", &[]).await?;
    add_control_plane(cluster, &["cp-1", "cp-2", "cp-3"]).await?;
    cluster.fleet.script("cp-3", |node| node.ready = false);
    cluster.until("one of them is not Ready", |world| world.nodes.get("cp-3").is_some_and(|node| !node.ready)).await?;
    cluster.pass(std::time::Duration::from_hours(2)).await?;
    cluster.start_controller(&ControllerOptions::default())?;
    cluster.reported().await?;
    cluster.fleet.release(NEW);
    cluster
        .until("the worker is updated, and the others wait for the one that is not Ready", |world| {
            world.is_updated("worker-1", &NEW) && world.waiting("ControlPlaneBusy") == 2
        })
        .await?;
    let claimed = |world: &ClusterState| -> usize {
        world.nodes.values().filter(|node| is_of_control_plane(node) && node.claimed()).count()
    };
    assert_eq!(claimed(&cluster.now()?), 0);
    cluster.fleet.script("cp-3", |node| node.ready = true);
    cluster.updated().await?;
    let mut most = 0;
    cluster.recorder.so_far()?.replay(|_, _, world| most = most.max(claimed(world)));
    assert_eq!(most, 1, "never two at once");
    Ok(())
}
