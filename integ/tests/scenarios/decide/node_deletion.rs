//! A node deleted at every step of its update.

use std::time::Duration;

use anyhow::Context as _;
use integ::bed::workload;
use integ::host::{BootFault, Command, Fault, Worker};
use integ::oracle::ClusterState;
use models::names::{PRIORITY_LABEL, RELEASE_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::shadow::Step;
use serde_json::json;

use crate::interfere::{finish_command, is_activate, until_host};
use crate::support::{NEW, SHOP, ScenarioContext, is_on, nodes, run, shadow_of, step_of};

/// The nodes to delete, each named after its step, in the order in which they get the slot.
const NODES_TO_DELETE: [(&str, Step); 8] = [
    ("leaving", Step::LeavingLoadBalancer),
    ("draining", Step::Draining),
    ("rebooting", Step::Rebooting),
    ("verifying", Step::Verifying),
    ("returning", Step::Returning),
    ("releasing", Step::Releasing),
    ("staged", Step::Staged),
    ("staging", Step::Staging),
];

/// Adds the nodes, the first with the highest priority.
async fn add_nodes_to_delete(ctx: &mut ScenarioContext) -> anyhow::Result<()> {
    for (place, (name, _)) in NODES_TO_DELETE.iter().enumerate() {
        ctx.bed.options.labels.insert(PRIORITY_LABEL.to_owned(), (100 - place).to_string());
        ctx.bed.add_node(name).await?;
    }
    ctx.reported().await
}

/// Creates a pod on one node whose budget is used up by another pod of it without a node.
async fn protect_pod(ctx: &ScenarioContext, node: &str) -> anyhow::Result<()> {
    let mut objects = workload::web(SHOP, 1, json!(1));
    objects.truncate(1);
    for (name, host) in [("web", node), ("elsewhere", "no-such-node")] {
        let mut deployment = workload::deployment(SHOP, name, 1);
        let template = &mut deployment["spec"]["template"];
        template["metadata"]["labels"]["tier"] = json!("guarded");
        template["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": host});
        objects.push(deployment);
    }
    let selector = json!({"selector": {"matchLabels": {"tier": "guarded"}}, "maxUnavailable": 1});
    objects.push(workload::budget(SHOP, "web", selector));
    workload::apply(&ctx.bed.client, objects).await?;
    ctx.until("the pod is Ready, and its budget knows both", |world| {
        world.budgets.values().any(|b| b.namespace == SHOP && (b.current_healthy, b.desired_healthy) == (1, 1))
    })
    .await?;
    Ok(())
}

/// The step of a node at the revision of its deletion.
fn at_deletion(ctx: &ScenarioContext, node: &str) -> anyhow::Result<Option<Step>> {
    let mut before = None;
    let mut at = None;
    ctx.bed.recorder.so_far()?.replay(|_, _, world| {
        if world.nodes.contains_key(node) {
            before = step_of(world, node);
        } else {
            at = at.or(before.take());
        }
    });
    Ok(at)
}

/// Deletes a node, checks its step, and waits until nothing is left of it.
async fn delete(ctx: &ScenarioContext, node: &str, step: Step) -> anyhow::Result<()> {
    let world = ctx.until_step(node, step).await?;
    let uid = world.nodes[node].uid.clone();
    ctx.kubectl(&["delete", "node", node]).await?;
    let owned =
        |world: &ClusterState| world.shadows.values().any(|s| s.owner.as_ref().is_some_and(|(_, owner)| *owner == uid));
    let slotted =
        |world: &ClusterState| world.operator.iter().flat_map(|o| &o.status.slots).any(|slot| slot.uid == uid);
    ctx.until(&format!("nothing is left of {node}"), |world| {
        !world.nodes.contains_key(node) && !owned(world) && !slotted(world)
    })
    .await?;
    let at = at_deletion(ctx, node)?;
    anyhow::ensure!(at == Some(step), "{node} was in {at:?} when it was deleted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: nine nodes"]
async fn node_deletion_at_any_step_leaves_nothing_and_rollout_continues() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.timings.boot = Duration::from_millis(300);
    // All are staged ahead of time, so that the slot goes by priority, and each is verified for long enough to be
    // deleted meanwhile.
    options.policy["strategy"] = json!({"preStage": {}});
    options.policy["schedule"] = json!({"blackouts": [{"from": "2020-01-01", "to": "2099-12-31"}]});
    options.policy["health"]["after"]["soak"] = json!("10m");
    let ending = run(options, async |ctx| {
        // The operator's own pods stay on node-1, which has no priority and is the leader's: it is last.
        ctx.install().await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment", "--timeout=240s"]).await?;
        add_nodes_to_delete(ctx).await?;
        protect_pod(ctx, "draining").await?;
        let host = |name: &str| ctx.bed.member(name).map(|member| member.host.clone());
        host("staging")?.script(Fault::command(Command::Prepare, Worker::Waits));
        for name in ["rebooting", "releasing"] {
            host(name)?.script(Fault::command(Command::Activate, Worker::Waits));
        }
        ctx.release();
        ctx.until("all are staged but the one that is held", |world| {
            NODES_TO_DELETE.iter().all(|(name, _)| {
                step_of(world, name) == Some(if *name == "staging" { Step::Staging } else { Step::Staged })
            })
        })
        .await?;
        delete(ctx, "staging", Step::Staging).await?;
        finish_command(&host("staging")?).await?;
        delete(ctx, "staged", Step::Staged).await?;
        ctx.policy(&json!({"schedule": null, "loadBalancer": {"leaveBeforeDrain": "4m"}})).await?;
        delete(ctx, "leaving", Step::LeavingLoadBalancer).await?;
        ctx.policy(&json!({"loadBalancer": null})).await?;
        delete(ctx, "draining", Step::Draining).await?;

        // The host's command continues after its node is deleted, and must not end in a reboot.
        until_host(&host("rebooting")?, "the host is asked to arm", is_activate).await?;
        let boot = host("rebooting")?.snapshot().boot_id;
        delete(ctx, "rebooting", Step::Rebooting).await?;
        finish_command(&host("rebooting")?).await?;

        delete(ctx, "verifying", Step::Verifying).await?;

        ctx.until_step("returning", Step::Verifying).await?;
        // Its machine goes down and does not come back, so that it stays in this step.
        host("returning")?.script(Fault::boot(BootFault::NeverComesBack));
        host("returning")?.foreign_reboot().await;
        delete(ctx, "returning", Step::Returning).await?;

        until_host(&host("releasing")?, "the host is asked to arm", is_activate).await?;
        let annotation = format!("{RELEASE_ANNOTATION}=now");
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "brs", &shadow_name("releasing"), &annotation]).await?;
        delete(ctx, "releasing", Step::Releasing).await?;
        finish_command(&host("releasing")?).await?;

        ctx.policy(&json!({"health": {"after": {"soak": "1s"}}})).await?;
        ctx.until("the node that is left is updated", |world| {
            is_on(world, "node-1", &NEW) && world.operator.as_ref().is_some_and(|o| o.status.slots.is_empty())
        })
        .await?;
        for name in ["rebooting", "releasing"] {
            let now = host(name)?.snapshot();
            anyhow::ensure!(now.running_version != NEW, "{name} was rebooted after its node was gone");
        }
        anyhow::ensure!(host("rebooting")?.snapshot().boot_id == boot);
        Ok(())
    })
    .await?;
    let world = ending.world();
    assert_eq!(world.nodes.keys().map(String::as_str).collect::<Vec<_>>(), ["node-1"]);
    assert_eq!(world.shadows.len(), 1);
    assert!(shadow_of(&world, "node-1").context("its shadow")?.step().is_none());
    assert_eq!(ending.verdict.stats.reboots, 3, "verifying, returning and node-1");
    Ok(())
}
