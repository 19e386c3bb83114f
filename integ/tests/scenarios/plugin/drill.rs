//! Drills of real nodes, by the plugin and by a plain annotation: what they show, what they move, and that no host is armed
//! or rebooted.

use integ::host::EventKind;
use integ::oracle::{Attempt, ClusterState};
use models::names::{DRILL_ANNOTATION, shadow_name};
use models::shadow::{DrillResult, Step};

use super::*;
use crate::support::{EVENTS_OF_NODES, OLD, SHOP, record, step_of, until_event};

/// The result of the last drill of a node.
fn drill_of(world: &ClusterState, node: &str) -> Result<DrillResult> {
    record(world, node).drill.context("no drill has ended")
}

/// Asserts that no call has changed a host, that none was rebooted, and that no node was updated.
fn no_host_was_changed(w: &Walk<'_>) -> Result<()> {
    for member in &w.bed.members {
        let changed = member.host.log().into_iter().find(|event| match &event.kind {
            EventKind::Call { method, path, .. } if method == "POST" => {
                ["activate", "reboot", "prepare"].iter().any(|act| path.contains(act))
            }
            _ => false,
        });
        ensure!(changed.is_none(), "{}: {changed:?}", member.name);
    }
    let history = w.bed.recorder.so_far()?;
    let world = history.end();
    ensure!(world.nodes.keys().all(|node| record(&world, node).last.is_none()), "an update has ended");
    ensure!(!history.attempts().iter().any(Attempt::updated), "{:?}", history.attempts());
    Ok(())
}

/// The pods of the workload, by UID, with their nodes.
fn pods(world: &ClusterState) -> Vec<(String, Option<String>)> {
    let pods = world.pods.values().filter(|pod| pod.namespace == SHOP && !pod.finished && !pod.terminating);
    let mut pods: Vec<_> = pods.map(|pod| (pod.uid.clone(), pod.node.clone())).collect();
    pods.sort();
    pods
}

async fn annotate(ctx: &ScenarioContext, node: &str, value: &str) -> Result<()> {
    let annotation = format!("{DRILL_ANNOTATION}={value}");
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "--overwrite", "brs", &shadow_name(node), &annotation]).await?;
    Ok(())
}

pub(super) async fn nothing_runs_on_the_nodes(w: &mut Walk<'_>) -> Result<()> {
    w.rehearse("drill", &["drill node-1", "drill node-1 --evict", "drill node-9"]).await?;
    w.rehearse("nothing-to-do", &["approve", "retry node-1", "release node-1"]).await?;
    let reason = "node-1: it is not in back-off";
    w.ok("retry node-1 -o name", &["bottlerocketshadow.brupop.bottlerocket.aws/brs-node-1", reason]).await.map(drop)
}

pub(super) async fn refusing_budget_is_named_and_no_pod_is_moved(w: &mut Walk<'_>) -> Result<()> {
    w.guarded_shop(4).await?;
    let before = pods(&w.until("the pods run", |world| pods(world).len() >= 4).await?);
    w.ok("drill node-1 --dry-run=client", &["asked to begin a drill (dry run)", DRILL_ANNOTATION]).await?;
    let parts = [
        "Drill of node-1, without evictions: EvictionsRefused",
        "PodDisruptionBudget shop/web",
        "REFUSED POD",
        "Drain (dry run)",
        "Rehearsal permit",
        "Soak",
    ];
    w.exits("drill node-1", NOT_PASSED, &parts).await?;
    until_event(w, EVENTS_OF_NODES, "DrillFailed", &["EvictionsRefused"]).await?;
    let world = w.until("the node is released", |world| is_released(world, "node-1")).await?;
    ensure!(pods(&world) == before, "pods were moved: {:?}, {before:?}", pods(&world));
    let found = drill_of(&world, "node-1")?;
    ensure!(found.drill.refused.iter().all(|pod| pod.budget.as_deref() == Some("shop/web")), "{found:?}");
    ensure!(!found.drill.refused.is_empty() && found.soak_started.is_some(), "{found:?}");

    // Nothing refuses on a node whose pods no budget guards, and the result is for programs too.
    w.kubectl(&["-n", SHOP, "delete", "pdb", "web"]).await?;
    let text = w.ok("drill node-1 -o json", &[]).await?;
    let (start, end) = (text.find('{').context("JSON")?, text.rfind('}').context("JSON")?);
    let json: Value = serde_json::from_str(&text[start..=end])?;
    ensure!(json["result"] == "Passed" && json["version"] == OLD.to_string(), "{json}");
    until_event(w, EVENTS_OF_NODES, "DrillPassed", &["Passed"]).await?;

    // All are in the history, and named as drills.
    poll("the drills are recorded", async || {
        let text = w.ok("history", &[]).await?;
        Ok((text.matches("(drill)").count() == 4 && text.matches("Completed").count() == 4).then_some(()))
    })
    .await?;
    let parts = ["Drill on", "no host was rebooted", "EvictionsRefused", "node-1"];
    w.ok("history 3 -o wide", &parts).await?;
    w.ok("history --verify", &[]).await.map(drop)
}

pub(super) async fn evictions_move_pods_and_the_node_is_released(w: &mut Walk<'_>) -> Result<()> {
    w.shop(4).await?;
    let shop = |world: &ClusterState| pods(world).into_iter().filter(|(_, node)| node.is_some()).collect::<Vec<_>>();
    let before = shop(&w.until("the pods run", |world| shop(world).len() == 4).await?);
    let here = before.iter().filter(|(_, node)| node.as_deref() == Some("node-1")).count();
    let parts = ["Drill of node-1, with evictions: Passed", "pod(s) were evicted"];
    w.ok("drill node-1 --evict", &parts).await?;
    let world = w.until("the node is released", |world| is_released(world, "node-1")).await?;
    let stay = shop(&world).iter().filter(|pod| before.contains(pod)).count();
    ensure!(stay == before.len() - here, "{here} pods were there: {before:?}, {:?}", shop(&world));
    ensure!(!world.nodes["node-1"].claimed() && record(&world, "node-1").last.is_none(), "it is claimed");
    no_host_was_changed(w)?;
    // Before the next drill: the oracle would take its dry run of an eviction for the reason why a pod is deleted later.
    w.spread_shop().await?;
    w.shop(4).await
}

pub(super) async fn drill_by_annotation_ends_with_a_release_or_a_hold(w: &mut Walk<'_>) -> Result<()> {
    w.policy(&json!({"health": {"after": {"soak": "10m"}}})).await?;
    annotate(w, "node-2", "by-hand-1").await?;
    w.until_step("node-2", Step::Verifying).await?;
    w.ok("status", &["Verifying (drill)"]).await?;
    w.ok("explain node-2", &["a drill without evictions: the host is not rebooted"]).await?;
    w.fails("drill node-2", &["a drill of it is under way"]).await?;
    w.ok("release node-2", &["released"]).await?;
    // Its release ends it, and the node is as before.
    let world = w.until("the drill has ended", |world| is_released(world, "node-2")).await?;
    let found = drill_of(&world, "node-2")?;
    ensure!((&*found.result, &*found.drill.request) == ("ReleaseRequested", "by-hand-1"), "{found:?}");

    // Not waited for in full: the drill goes on.
    let soaking = ["still waits", "the end of its verification"];
    w.exits("drill node-2 --timeout=15s", UNACKNOWLEDGED, &soaking).await?;
    w.ok("hold node-2", &["held"]).await?;
    w.until("the hold ends it", |world| {
        drill_of(world, "node-2").is_ok_and(|found| found.result == "Held") && step_of(world, "node-2").is_none()
    })
    .await?;
    w.ok("unhold node-2", &[]).await?;
    w.policy(&json!({"health": {"after": {"soak": "1s"}}})).await?;

    // The reason of a gate ends a request at once.
    w.policy(&json!({"enabled": false})).await?;
    w.exits("drill node-2", NOT_PASSED, &["Disabled", "updates are disabled"]).await?;
    w.policy(&json!({"enabled": true})).await?;
    no_host_was_changed(w)
}
