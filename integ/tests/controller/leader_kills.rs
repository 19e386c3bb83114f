//! The leader killed at every step of an update.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use models::names::{HOOK_ANSWER_PREFIX, RELEASE_ANNOTATION};
use models::shadow::{HostState, Step, UPDATED};
use serde_json::json;

use crate::bed::{Boot, Held, NEW, ScriptedCluster, closed_schedule, open_schedule, other};

crate::cases![update_completes_after_leader_kill_at_each_step];

/// Kills the leader while a node is in a step, in which the case holds it, and waits until the next one has planned.
async fn kill_leader_in(
    cluster: &mut ScriptedCluster,
    node: &str,
    step: Step,
    killed: &mut BTreeSet<&'static str>,
) -> anyhow::Result<()> {
    cluster.until_step(node, step).await?;
    cluster.replace_controller().await?;
    let world = cluster.planned().await?;
    anyhow::ensure!(world.step(node) == Some(step), "{node} is in {:?} after {step:?}", world.step(node));
    killed.insert(step.as_str());
    Ok(())
}

/// Has the hook answer its request of this step.
async fn answer_hook(cluster: &ScriptedCluster, node: &str, step: Step) -> anyhow::Result<()> {
    let request =
        |node: &integ::oracle::Node| node.hook_request().filter(|request| request.starts_with(step.as_str())).cloned();
    let world = cluster.until("the hook is asked", |world| request(&world.nodes[node]).is_some()).await?;
    let answer = request(&world.nodes[node]).context("just seen")?;
    let annotation = format!("{HOOK_ANSWER_PREFIX}storage");
    cluster.patch_node(node, json!({"metadata": {"annotations": {annotation: answer}}})).await
}

/// Waits until a node has its permit, which its held agent does not use.
async fn until_permitted(cluster: &ScriptedCluster, node: &str) -> anyhow::Result<()> {
    let permitted =
        |shadow: &integ::oracle::Shadow| shadow.spec.permit.is_some() && shadow.status.agent.armed.is_some();
    cluster.until("the node has its permit", |world| world.shadow(node).is_some_and(permitted)).await.map(drop)
}

async fn update_completes_after_leader_kill_at_each_step(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const LEAVE: Duration = Duration::from_mins(4);
    const SOAK: Duration = Duration::from_mins(10);
    const BOTH: [&str; 2] = ["node-1", "node-2"];
    let hold =
        |cluster: &ScriptedCluster, node: &str, held| cluster.fleet.script(node, |behaviour| behaviour.held = held);
    let mut killed = BTreeSet::new();
    let policy = json!({
        "strategy": {"preStage": {}},
        "schedule": closed_schedule(&cluster.time),
        "hooks": [{"name": "storage", "before": {}, "after": {}}],
        "loadBalancer": {"leaveBeforeDrain": "4m"},
        "health": {"after": {"soak": "10m", "timeout": "1h"}},
    });
    cluster.start(2, policy).await?;
    cluster.shop(4, json!({"minAvailable": 4})).await?;
    cluster.block_shop().await?;
    BOTH.iter().for_each(|node| hold(cluster, node, Some(Held::Download)));
    cluster.fleet.release(NEW);
    kill_leader_in(cluster, "node-1", Step::Staging, &mut killed).await?;
    BOTH.iter().for_each(|node| hold(cluster, node, None));
    kill_leader_in(cluster, "node-1", Step::Staged, &mut killed).await?;
    cluster.until_step("node-2", Step::Staged).await?;
    BOTH.iter().for_each(|node| hold(cluster, node, Some(Held::Activation)));
    cluster.policy(&json!({"schedule": open_schedule()})).await?;

    let in_turn =
        |world: &integ::oracle::ClusterState| BOTH.into_iter().find(|node| world.step(node) == Some(Step::BeforeDrain));
    let world = cluster.until("a node has the slot", |world| in_turn(world).is_some()).await?;
    let first = in_turn(&world).context("just seen")?;
    kill_leader_in(cluster, first, Step::BeforeDrain, &mut killed).await?;
    answer_hook(cluster, first, Step::BeforeDrain).await?;
    kill_leader_in(cluster, first, Step::LeavingLoadBalancer, &mut killed).await?;
    cluster.pass(LEAVE).await?;
    kill_leader_in(cluster, first, Step::Draining, &mut killed).await?;
    cluster.fleet.script(first, |behaviour| behaviour.boot = Boot::NotReady);
    cluster.unblock_shop().await?;
    until_permitted(cluster, first).await?;
    kill_leader_in(cluster, first, Step::Rebooting, &mut killed).await?;
    hold(cluster, first, None);
    kill_leader_in(cluster, first, Step::Returning, &mut killed).await?;
    cluster.fleet.script(first, |behaviour| behaviour.ready = true);
    kill_leader_in(cluster, first, Step::Verifying, &mut killed).await?;
    cluster.pass(SOAK).await?;
    kill_leader_in(cluster, first, Step::AfterUpdate, &mut killed).await?;
    answer_hook(cluster, first, Step::AfterUpdate).await?;
    let released = other(first);
    answer_hook(cluster, released, Step::BeforeDrain).await?;
    cluster.policy(&json!({"hooks": null, "loadBalancer": null, "health": {"after": {"soak": "1s"}}})).await?;
    // A user has it released after its permit.
    until_permitted(cluster, released).await?;
    cluster.request_of_node(released, RELEASE_ANNOTATION, "now").await?;
    kill_leader_in(cluster, released, Step::Releasing, &mut killed).await?;
    let withdrawn = |shadow: &integ::oracle::Shadow| shadow.spec.state == HostState::Idle;
    cluster.until("the permit is withdrawn", |world| world.shadow(released).is_some_and(withdrawn)).await?;
    hold(cluster, released, None);
    cluster.outlive_permit(released).await?;
    cluster.updated().await?;

    assert_eq!(killed, Step::ALL.iter().copied().map(Step::as_str).collect());
    let history = cluster.recorder.so_far()?;
    assert_eq!(history.results(first), [(NEW, UPDATED.to_owned())]);
    assert_eq!(history.results(released), ["ReleaseRequested", UPDATED].map(|end| (NEW, end.to_owned())));
    let stats = cluster.verdict().await?.stats;
    assert_eq!((stats.reboots, stats.out_of_service), (2, 1), "nothing was done twice");
    Ok(())
}
