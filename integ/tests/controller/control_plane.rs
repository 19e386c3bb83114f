//! Nodes of the control plane, one of which is registered again while its machine is down.

use std::time::Duration;

use integ::bed::prove;
use integ::oracle::{ClusterState, Field};
use models::names::CONTROL_PLANE_LABEL;
use models::reason::Proof;
use models::shadow::Step;
use serde_json::json;

use crate::bed::{Boot, ControllerOptions, NEW, ScriptedCluster};

crate::cases![control_plane_node_that_is_registered_again_goes_on_under_another_leader_and_holds_the_others];

/// The label of the control plane is not there any more when it is back: a kubelet may not set it itself.
async fn control_plane_node_that_is_registered_again_goes_on_under_another_leader_and_holds_the_others(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const NAMES: [&str; 3] = ["cp-1", "cp-2", "cp-3"];
    cluster.expectations.max_unavailable = Some(3);
    for name in NAMES {
        cluster.add_node(name, &[]).await?;
        cluster.patch_node(name, json!({"metadata": {"labels": {CONTROL_PLANE_LABEL: ""}}})).await?;
        cluster.fleet.script(name, |node| node.boot = Boot::Never);
    }
    cluster.create_policy(json!({"maxUnavailable": "100%", "ignoreUnavailableAfter": "1m"})).await?;
    // So that none of them is the first one on the version.
    prove(&cluster.client, &NEW).await?;
    // One is not Ready, for longer than `ignoreUnavailableAfter`.
    cluster.fleet.script("cp-3", |node| node.ready = false);
    cluster.until("one is not Ready", |world| world.nodes.get("cp-3").is_some_and(|node| !node.ready)).await?;
    cluster.pass(Duration::from_hours(2)).await?;
    cluster.start_controller(&ControllerOptions::default())?;
    cluster.reported().await?;
    cluster.fleet.release(NEW);
    cluster.until("the others wait for it", |world| world.waiting("ControlPlaneBusy") == 2).await?;
    assert!(cluster.now()?.nodes.values().all(|node| !node.claimed()));
    cluster.fleet.script("cp-3", |node| node.ready = true);
    let down = |world: &ClusterState| {
        let is_down = |name: &&str| {
            world.step(name) == Some(Step::Rebooting) && world.nodes.get(*name).is_some_and(|node| node.shutting_down)
        };
        NAMES.into_iter().find(is_down)
    };
    let world = cluster.until("a host is down by its permit", |world| down(world).is_some()).await?;
    let node = down(&world).unwrap_or_default();
    let earlier = world.nodes[node].uid.clone();
    cluster.deregister(node).await?;
    cluster.replace_controller().await?;
    cluster.pass(Duration::from_mins(10)).await?;
    let slots = cluster.planned().await?.status().slots;
    assert!(slots.iter().map(|slot| &slot.uid).eq([&earlier]), "its machine is waited for: {slots:?}");

    for name in NAMES {
        cluster.fleet.script(name, |node| node.boot = Boot::default());
    }
    cluster.boot_and_register(node).await?;
    cluster.until_event("UpdateContinued", &["1.20.5 goes on"]).await?;
    let world = cluster.updated().await?;
    assert_eq!(world.record(node).proof.map(|place| place.proof), Some(Proof::Proven));
    assert_ne!(world.nodes[node].uid, earlier);
    let label = Field::Label(CONTROL_PLANE_LABEL.to_owned());
    assert!(!world.nodes[node].fields.contains_key(&label), "nothing has set its label again");
    cluster.recorder.so_far()?.replay(|change, _, world| {
        let slots = world.status().slots;
        assert!(slots.len() <= 1, "slots of two at {}: {slots:?}", change.revision);
    });
    Ok(())
}
