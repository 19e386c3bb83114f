//! The `enabled` switch, and the operator's resource as a whole.

use integ::bed::BedOptions;
use integ::oracle::World;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::shadow::{HostState, Step};
use serde_json::{Value, json};

use crate::support::{NEW, OLD, SHOP, Scene, is_updated, nodes, other, run, shadow_of, status, step_of};

/// Returns true if every agent has reported that its host offers [`NEW`].
fn known(world: &World) -> bool {
    world.shadows.len() == world.nodes.len()
        && world
            .shadows
            .values()
            .all(|s| s.status.agent.updates.as_ref().is_some_and(|u| u.chosen_version.as_ref() == Some(&NEW)))
}

/// Returns true if the operator's status counts so many nodes that wait for this reason.
pub(crate) fn wait_for(world: &World, reason: &str, nodes: i64) -> bool {
    world.operator.as_ref().is_some_and(|o| o.status.waiting.iter().any(|w| w.reason == reason && w.nodes == nodes))
}

/// Sets up a budget on one of two nodes that allows no eviction, so that the update of that node is blocked in its
/// drain.
async fn stuck_in_a_drain(scene: &Scene) -> anyhow::Result<(String, &'static str)> {
    scene.guarded_shop(2).await?;
    scene.install().await?;
    scene.release();
    let world = scene
        .until("a node drains and cannot", |world| {
            world.shadows.values().any(|s| s.status.controller.drain.as_ref().is_some_and(|d| !d.blockers.is_empty()))
        })
        .await?;
    let node = world.shadows.values().find(|s| s.step() == Some(Step::Draining)).map(|s| s.node().to_owned());
    let node = node.unwrap_or_default();
    let other = other(&node);
    Ok((node, other))
}

/// Lets the budget allow everything.
async fn free_the_budget(scene: &Scene) -> anyhow::Result<()> {
    let freed = json!({"spec": {"minAvailable": 0}}).to_string();
    scene.kubectl(&["-n", SHOP, "patch", "pdb", "web", "--type=merge", "-p", &freed]).await?;
    Ok(())
}

/// Creates the operator's resource: the test cluster's own policy with a change.
pub(crate) async fn create_policy(scene: &Scene, change: &Value) -> anyhow::Result<()> {
    let mut spec = BedOptions::default().policy;
    for (key, value) in change.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let operator = json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
        "metadata": {"name": OPERATOR_NAME, "namespace": SYSTEM_NAMESPACE},
        "spec": spec,
    });
    integ::bed::workload::apply(&scene.bed.client, vec![operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_updates_are_switched_off_nothing_starts_and_it_starts_when_they_are_switched_on() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["enabled"] = json!(false);
    let ending = run(options, async |scene| {
        scene.install().await?;
        scene.release();
        let world = scene
            .until("both nodes wait for the switch", |world| known(world) && wait_for(world, "Disabled", 2))
            .await?;
        assert!(world.shadows.values().all(|s| s.spec.attempt == 0 && s.step().is_none()));
        assert!(!scene.bed.members.iter().any(|m| m.host.snapshot().running_version != OLD));
        scene.policy(&json!({"enabled": true})).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.attempts().len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_update_ends_after_updates_are_switched_off_and_no_other_starts() -> anyhow::Result<()> {
    let mut stuck = String::new();
    let ending = run(nodes(2), async |scene| {
        let (node, other) = stuck_in_a_drain(scene).await?;
        scene.policy(&json!({"enabled": false})).await?;
        scene
            .until("the other node's staging is called off", |world| {
                step_of(world, other).is_none()
                    && shadow_of(world, other).is_some_and(|s| s.spec.state == HostState::Idle)
            })
            .await?;
        free_the_budget(scene).await?;
        scene
            .until("the running update has ended, and the other node waits for the switch", |world| {
                is_updated(world, &node) && status(world).slots.is_empty() && wait_for(world, "Disabled", 1)
            })
            .await?;
        stuck = node;
        Ok(())
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 1);
    let updated: Vec<_> = ending.history.attempts().into_iter().filter(integ::oracle::Attempt::updated).collect();
    assert_eq!(updated.len(), 1);
    assert_eq!(updated[0].node, stuck);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_operators_resource_nothing_starts_until_it_is_created() -> anyhow::Result<()> {
    let options = BedOptions { policy: Value::Null, ..nodes(2) };
    let ending = run(options, async |scene| {
        scene.bed.install().await?;
        scene
            .until("every agent has reported", |world| {
                world.shadows.len() == 2 && world.shadows.values().all(|s| s.status.agent.boot_id.is_some())
            })
            .await?;
        // By default hosts check for updates once an hour. A disabled policy lets them check each second; once they
        // know the release, it is deleted again, and with it the reason that updates are disabled.
        create_policy(scene, &json!({"enabled": false})).await?;
        scene.release();
        scene.until("both nodes wait for the switch", |world| known(world) && wait_for(world, "Disabled", 2)).await?;
        scene.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", "default"]).await?;
        scene.renewals(2).await?;
        let world = scene.bed.recorder.so_far()?.end();
        assert!(world.operator.is_none());
        assert!(world.shadows.values().all(|s| s.spec.attempt == 0 && s.step().is_none()));
        create_policy(scene, &json!({})).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.attempts().len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_before_its_permit_is_released_when_the_operators_resource_is_deleted_and_starts_again_with_a_new_one()
-> anyhow::Result<()> {
    let mut stuck = String::new();
    let ending = run(nodes(2), async |scene| {
        let (node, _) = stuck_in_a_drain(scene).await?;
        scene.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", "default"]).await?;
        scene
            .until("every node is released", |world| {
                world.operator.is_none()
                    && world.nodes.values().all(|n| !n.claimed())
                    && world.shadows.values().all(|s| s.step().is_none() && s.spec.state == HostState::Idle)
            })
            .await?;
        free_the_budget(scene).await?;
        scene.renewals(2).await?;
        let world = scene.bed.recorder.so_far()?.end();
        assert!(world.shadows.values().all(|s| s.step().is_none() && s.status.agent.current_version == Some(OLD)));
        let last = shadow_of(&world, &node).and_then(|s| s.status.controller.record.clone()).and_then(|r| r.last);
        assert_eq!(last.map(|l| l.reason).as_deref(), Some("Disabled"));
        create_policy(scene, &json!({})).await?;
        scene.updated().await?;
        stuck = node;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let of_node: Vec<_> = attempts.iter().filter(|a| a.node == stuck).map(|a| a.result.as_deref()).collect();
    assert_eq!(of_node, [Some("Disabled"), Some("Updated")]);
    Ok(())
}
