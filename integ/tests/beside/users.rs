//! Users who drain, cordon and scale with `kubectl` in the middle of updates, and another operator that scales a workload to zero and back.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use integ::oracle::{ClusterState, Field};
use models::shadow::Step;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::scripted::bed::{Held, NEW, SHOP, ScriptedCluster};
use crate::scripted::on_stage;

/// Environment variable with the seed of a run to repeat.
const SEED: &str = "BRUPOP_SEED";
/// Number of nodes, and of pods.
const NODES: usize = 5;
/// Number of actions of users while the nodes are updated.
const ACTIONS: usize = 40;

/// Runs `kubectl` as an administrator, and returns what it prints.
async fn kubectl(cluster: &ScriptedCluster, arguments: &[&str]) -> anyhow::Result<String> {
    let output = cluster.stage.control_plane.kubectl_command().args(arguments).output().await?;
    ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has another operator scale the workload.
async fn scale(cluster: &ScriptedCluster, pods: usize) -> anyhow::Result<()> {
    kubectl(cluster, &["-n", SHOP, "scale", "deployment/web", &format!("--replicas={pods}")]).await.map(drop)
}

/// Starts `kubectl drain` as users run it. It goes on while the test does.
fn drain(cluster: &ScriptedCluster, node: &str) -> anyhow::Result<Child> {
    let mut command = cluster.stage.control_plane.kubectl_command();
    command.args(["drain", node, "--ignore-daemonsets", "--delete-emptydir-data"]).kill_on_drop(true);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    Ok(command.spawn()?)
}

/// The node whose drain a budget blocks.
async fn blocked(cluster: &ScriptedCluster) -> anyhow::Result<String> {
    let blocked = |world: &ClusterState| {
        let drained = world.shadows.values().find(|shadow| {
            let drain = shadow.status.controller.drain.as_ref();
            shadow.step() == Some(Step::Draining) && drain.is_some_and(|drain| !drain.blockers.is_empty())
        });
        drained.map(|shadow| shadow.node().to_owned())
    };
    let world = cluster.until("a drain is blocked", |world| blocked(world).is_some()).await?;
    blocked(&world).context("just seen")
}

/// One action of a user or of another operator, which may be anywhere in the middle of an update.
async fn act(cluster: &ScriptedCluster, rng: &mut StdRng, drains: &mut Vec<Child>) -> anyhow::Result<String> {
    let node = format!("node-{}", rng.random_range(1..=NODES));
    let what = match rng.random_range(0..6) {
        0 => {
            kubectl(cluster, &["cordon", &node]).await?;
            format!("cordon {node}")
        }
        1 | 2 => {
            kubectl(cluster, &["uncordon", &node]).await?;
            format!("uncordon {node}")
        }
        3 => {
            drains.push(drain(cluster, &node)?);
            format!("drain {node}")
        }
        4 => {
            scale(cluster, 0).await?;
            "scale to zero".to_owned()
        }
        _ => {
            scale(cluster, NODES).await?;
            "scale back".to_owned()
        }
    };
    sleep(Duration::from_millis(rng.random_range(0..400))).await;
    Ok(what)
}

/// Ends what users do, and lets time pass until every node is updated: back-offs of drains that they have disturbed end.
async fn comes_to_rest(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    scale(cluster, NODES).await?;
    for number in 1..=NODES {
        kubectl(cluster, &["uncordon", &format!("node-{number}")]).await?;
    }
    for _ in 0..12 {
        if let Ok(updated) = timeout(Duration::from_secs(10), cluster.updated()).await {
            return updated.map(drop);
        }
        cluster.pass(Duration::from_mins(30)).await?;
    }
    cluster.updated().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn rollout_ends_among_users_who_drain_cordon_and_scale_at_any_moment() -> anyhow::Result<()> {
    let seed = match std::env::var(SEED) {
        Ok(text) => text.parse().with_context(|| format!("{SEED} is no number"))?,
        Err(_) => rand::random::<u64>(),
    };
    let mut rng = StdRng::seed_from_u64(seed);
    on_stage(async |cluster| {
        cluster.start(NODES, json!({})).await?;
        cluster.shop(NODES, json!({"maxUnavailable": 1})).await?;
        cluster.fleet.release(NEW);
        let (mut drains, mut done) = (Vec::new(), Vec::new());
        let result = async {
            for _ in 0..ACTIONS {
                done.push(act(cluster, &mut rng, &mut drains).await?);
            }
            drains.clear();
            comes_to_rest(cluster).await
        };
        let result = result.await;
        result.with_context(|| format!("{SEED}={seed} repeats the choices: {}", done.join(", ")))
    })
    .await
}

/// A user drains the node that the operator drains, and cordons it; both leave no trace on the Node, as the pages say.
#[tokio::test(flavor = "multi_thread")]
async fn user_drains_the_node_that_is_drained_and_finds_it_in_service_after_its_update() -> anyhow::Result<()> {
    on_stage(async |cluster| {
        cluster.start(2, json!({})).await?;
        cluster.shop(4, json!({"minAvailable": 4})).await?;
        cluster.block_shop().await?;
        cluster.fleet.release(NEW);
        let node = blocked(cluster).await?;
        let mut drain = drain(cluster, &node)?;
        sleep(Duration::from_secs(2)).await;
        ensure!(drain.try_wait()?.is_none(), "the budget holds kubectl up as it does the operator");
        let text = kubectl(cluster, &["cordon", &node]).await?;
        ensure!(text.contains("already cordoned"), "{text}");
        for other in ["node-1", "node-2"] {
            cluster.fleet.script(other, |behaviour| behaviour.held = Some(Held::Activation));
        }
        cluster.unblock_shop().await?;
        cluster.until_step(&node, Step::Rebooting).await?;
        ensure!(drain.wait().await?.success(), "kubectl has drained the node");
        // A user goes on by hand, and drains again: there is nothing to do.
        kubectl(cluster, &["drain", &node, "--ignore-daemonsets"]).await?;
        for other in ["node-1", "node-2"] {
            cluster.fleet.script(other, |behaviour| behaviour.held = None);
        }
        let world = cluster.updated().await?;
        let cordoned = world.nodes.values().filter(|node| node.fields.contains_key(&Field::Unschedulable)).count();
        ensure!(cordoned == 0, "the pages say that such a cordon does not last");
        cluster.recorder.so_far()?.ensure_updates(2)?;
        Ok(())
    })
    .await
}

/// The other operator scales to zero while a budget blocks the drain, and back while the node is down.
#[tokio::test(flavor = "multi_thread")]
async fn workload_that_is_scaled_to_zero_in_a_drain_and_back_in_the_reboot_costs_no_attempt() -> anyhow::Result<()> {
    const PODS: usize = 4;
    on_stage(async |cluster| {
        cluster.start(2, json!({})).await?;
        cluster.shop(PODS, json!({"minAvailable": PODS})).await?;
        cluster.block_shop().await?;
        cluster.fleet.script("node-1", |behaviour| behaviour.held = Some(Held::Activation));
        cluster.fleet.script("node-2", |behaviour| behaviour.held = Some(Held::Activation));
        cluster.fleet.release(NEW);
        let node = blocked(cluster).await?;
        scale(cluster, 0).await?;
        cluster.until_step(&node, Step::Rebooting).await?;
        scale(cluster, PODS).await?;
        cluster.until("the pods are on the other node", |world| world.ready_pods(SHOP) == PODS).await?;
        for other in ["node-1", "node-2"] {
            cluster.fleet.script(other, |behaviour| behaviour.held = None);
        }
        cluster.until("the node is updated", |world| world.is_updated(&node, &NEW)).await?;
        // The other node is drained, and its budget blocks it again.
        let second = blocked(cluster).await?;
        ensure!(second != node, "{node} is updated");
        scale(cluster, 0).await?;
        cluster.updated().await?;
        scale(cluster, PODS).await?;
        cluster.recorder.so_far()?.ensure_updates(2)?;
        Ok(())
    })
    .await
}
