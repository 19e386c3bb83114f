//! The `enabled` switch, and the operator's resource as a whole.

use integ::bed::TestClusterOptions;
use integ::oracle::ClusterState;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::shadow::{HostState, Step};
use serde_json::{Value, json};

use crate::support::{NEW, OLD, SHOP, ScenarioContext, is_updated, nodes, other, run, shadow_of, status, step_of};

/// Returns true if every agent has reported that its host offers [`NEW`].
fn known(world: &ClusterState) -> bool {
    world.shadows.len() == world.nodes.len()
        && world
            .shadows
            .values()
            .all(|s| s.status.agent.updates.as_ref().is_some_and(|u| u.chosen_version.as_ref() == Some(&NEW)))
}

/// Returns true if the operator's status counts so many nodes that wait for this reason.
pub(crate) fn wait_for(world: &ClusterState, reason: &str, nodes: i64) -> bool {
    world.operator.as_ref().is_some_and(|o| o.status.waiting.iter().any(|w| w.reason == reason && w.nodes == nodes))
}

/// Sets up a budget on one of two nodes that allows no eviction, so that the update of that node is blocked in its
/// drain.
async fn until_drain_blocked(ctx: &ScenarioContext) -> anyhow::Result<(String, &'static str)> {
    ctx.guarded_shop(2).await?;
    ctx.install().await?;
    ctx.release();
    let world = ctx
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
async fn relax_pdb(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let freed = json!({"spec": {"minAvailable": 0}}).to_string();
    ctx.kubectl(&["-n", SHOP, "patch", "pdb", "web", "--type=merge", "-p", &freed]).await?;
    Ok(())
}

/// Creates the operator's resource: the test cluster's own policy with a change.
pub(crate) async fn create_policy(ctx: &ScenarioContext, change: &Value) -> anyhow::Result<()> {
    let mut spec = TestClusterOptions::default().policy;
    spec["enabled"] = json!(true);
    for (key, value) in change.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let operator = json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
        "metadata": {"name": OPERATOR_NAME, "namespace": SYSTEM_NAMESPACE},
        "spec": spec,
    });
    integ::bed::workload::apply(&ctx.bed.client, vec![operator]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_policy_blocks_updates_until_enabled() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["enabled"] = json!(false);
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        let world =
            ctx.until("both nodes wait for the switch", |world| known(world) && wait_for(world, "Disabled", 2)).await?;
        assert!(world.shadows.values().all(|s| s.spec.attempt == 0 && s.step().is_none()));
        assert!(!ctx.bed.members.iter().any(|m| m.host.snapshot().running_version != OLD));
        ctx.policy(&json!({"enabled": true})).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.attempts().len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn disabling_policy_completes_running_update_and_blocks_others() -> anyhow::Result<()> {
    let mut stuck = String::new();
    let ending = run(nodes(2), async |ctx| {
        let (node, other) = until_drain_blocked(ctx).await?;
        ctx.policy(&json!({"enabled": false})).await?;
        ctx.until("the other node's staging is called off", |world| {
            step_of(world, other).is_none() && shadow_of(world, other).is_some_and(|s| s.spec.state == HostState::Idle)
        })
        .await?;
        relax_pdb(ctx).await?;
        ctx.until("the running update has ended, and the other node waits for the switch", |world| {
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
async fn no_update_starts_without_operator_resource() -> anyhow::Result<()> {
    let options = TestClusterOptions { policy: Value::Null, ..nodes(2) };
    let ending = run(options, async |ctx| {
        ctx.bed.install().await?;
        ctx.until("every agent has reported", |world| {
            world.shadows.len() == 2 && world.shadows.values().all(|s| s.status.agent.boot_id.is_some())
        })
        .await?;
        // By default hosts check for updates once an hour. A disabled policy lets them check each second; once they
        // know the release, it is deleted again, and with it the reason that updates are disabled.
        create_policy(ctx, &json!({"enabled": false})).await?;
        ctx.release();
        ctx.until("both nodes wait for the switch", |world| known(world) && wait_for(world, "Disabled", 2)).await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", "default"]).await?;
        ctx.renewals(2).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        assert!(world.operator.is_none());
        assert!(world.shadows.values().all(|s| s.spec.attempt == 0 && s.step().is_none()));
        create_policy(ctx, &json!({})).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.attempts().len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_resource_deletion_ends_attempt_before_permit_until_recreated() -> anyhow::Result<()> {
    let mut stuck = String::new();
    let ending = run(nodes(2), async |ctx| {
        let (node, _) = until_drain_blocked(ctx).await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", "default"]).await?;
        ctx.until("every node is released", |world| {
            world.operator.is_none()
                && world.nodes.values().all(|n| !n.claimed())
                && world.shadows.values().all(|s| s.step().is_none() && s.spec.state == HostState::Idle)
        })
        .await?;
        relax_pdb(ctx).await?;
        ctx.renewals(2).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        assert!(world.shadows.values().all(|s| s.step().is_none() && s.status.agent.current_version == Some(OLD)));
        let last = shadow_of(&world, &node).and_then(|s| s.status.controller.record.clone()).and_then(|r| r.last);
        assert_eq!(last.map(|l| l.reason).as_deref(), Some("Disabled"));
        create_policy(ctx, &json!({})).await?;
        ctx.updated().await?;
        stuck = node;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let of_node: Vec<_> = attempts.iter().filter(|a| a.node == stuck).map(|a| a.result.as_deref()).collect();
    assert_eq!(of_node, [Some("Disabled"), Some("Updated")]);
    Ok(())
}
