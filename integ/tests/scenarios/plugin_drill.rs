//! Drills of real nodes, by the plugin and by a plain annotation: what they show, what they move, and that no host is armed
//! or rebooted.

use anyhow::{Context as _, ensure};
use integ::host::EventKind;
use integ::oracle::ClusterState;
use models::names::{DRILL_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::shadow::{DrillResult, Step};
use serde_json::{Value, json};

use crate::interfere::poll;
use crate::plugin::{FAILED, OK, UNACKNOWLEDGED, brupop, output_text, plugin};
use crate::support::{
    EVENTS_OF_NODES, OLD, SHOP, ScenarioContext, is_released, nodes, record, run, step_of, until_event,
};

/// Exit code of a drill that did not pass.
const NOT_PASSED: i32 = 7;

/// The result of the last drill of a node.
fn drill_of(world: &ClusterState, node: &str) -> anyhow::Result<DrillResult> {
    record(world, node).drill.context("no drill has ended")
}

/// The calls to the host of a node that change it.
fn changes(ctx: &ScenarioContext, node: &str) -> anyhow::Result<Vec<String>> {
    let log = ctx.bed.member(node)?.host.log();
    let calls = log.into_iter().filter_map(|event| match event.kind {
        EventKind::Call { method, path, .. } if method == "POST" => Some(path),
        _ => None,
    });
    Ok(calls.filter(|path| ["activate", "reboot", "prepare"].iter().any(|act| path.contains(act))).collect())
}

/// The pods of the workload, by name, with their nodes.
fn pods(world: &ClusterState) -> Vec<(String, Option<String>)> {
    let pods = world.pods.values().filter(|pod| pod.namespace == SHOP && !pod.finished && !pod.terminating);
    let mut pods: Vec<_> = pods.map(|pod| (pod.uid.clone(), pod.node.clone())).collect();
    pods.sort();
    pods
}

async fn annotate(ctx: &ScenarioContext, node: &str, value: &str) -> anyhow::Result<()> {
    let annotation = format!("{DRILL_ANNOTATION}={value}");
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "--overwrite", "brs", &shadow_name(node), &annotation]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_drill_names_refusing_budget_and_changes_no_pod_and_no_host() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        ctx.guarded_shop(4).await?;
        ctx.install().await?;
        let before = pods(&ctx.until("the pods run", |world| pods(world).len() >= 4).await?);

        brupop(ctx, "drill node-1 --dry-run=client", OK, &["asked to begin a drill (dry run)", DRILL_ANNOTATION])
            .await?;
        brupop(ctx, "drill node-1 --dry-run=server", OK, &["(server dry run)"]).await?;
        brupop(ctx, "drill node-9", FAILED, &["there is no node node-9"]).await?;
        let parts = [
            "Drill of node-1, without evictions: EvictionsRefused",
            "PodDisruptionBudget shop/web",
            "REFUSED POD",
            "Drain (dry run)",
            "Rehearsal permit",
            "Soak",
        ];
        brupop(ctx, "drill node-1", NOT_PASSED, &parts).await?;
        until_event(ctx, EVENTS_OF_NODES, "DrillFailed", &["EvictionsRefused"]).await?;
        let world = ctx.until("the node is released", |world| is_released(world, "node-1")).await?;
        ensure!(pods(&world) == before, "pods were moved: {:?}, {before:?}", pods(&world));
        let found = drill_of(&world, "node-1")?;
        ensure!(found.drill.refused.iter().all(|pod| pod.budget.as_deref() == Some("shop/web")), "{found:?}");
        ensure!(!found.drill.refused.is_empty() && found.soak_started.is_some(), "{found:?}");

        // Nothing refuses on a node whose pods no budget guards, and the result is for programs too.
        ctx.kubectl(&["-n", SHOP, "delete", "pdb", "web"]).await?;
        let text = brupop(ctx, "drill node-1 -o json", OK, &[]).await?;
        let start = text.find('{').context("JSON")?;
        let json: Value = serde_json::from_str(
            text[start..].rsplit_once('}').map(|(json, _)| json.to_owned() + "}").context("JSON")?.as_str(),
        )?;
        ensure!(json["result"] == "Passed" && json["version"] == OLD.to_string(), "{json}");
        until_event(ctx, EVENTS_OF_NODES, "DrillPassed", &["Passed"]).await?;

        // Both are in the history, and named as drills.
        poll("the drills are recorded", async || {
            let text = output_text(&plugin(ctx, &["history"]).await?);
            let recorded = text.matches("(drill)").count();
            Ok((recorded == 2 && text.matches("Completed").count() == 2).then_some(()))
        })
        .await?;
        brupop(ctx, "history 1 -o wide", OK, &["Drill on", "no host was rebooted", "EvictionsRefused", "node-1"])
            .await?;
        brupop(ctx, "history --verify", OK, &[]).await?;

        // The reason of a gate ends a request at once.
        ctx.policy(&json!({"enabled": false})).await?;
        brupop(ctx, "drill node-2", NOT_PASSED, &["Disabled", "updates are disabled"]).await?;
        for node in ["node-1", "node-2"] {
            ensure!(changes(ctx, node)?.is_empty(), "{node}: {:?}", changes(ctx, node)?);
        }
        Ok(())
    })
    .await?;
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots), (0, 0));
    assert!(ending.history.attempts().is_empty() || ending.history.attempts().iter().all(|a| !a.updated()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn drill_with_evictions_moves_pods_and_releases_the_node() -> anyhow::Result<()> {
    let ending = run(nodes(2), async |ctx| {
        ctx.shop(4).await?;
        ctx.install().await?;
        let before = pods(&ctx.until("the pods run", |world| pods(world).len() == 4).await?);
        let here = before.iter().filter(|(_, node)| node.as_deref() == Some("node-1")).count();
        let parts = ["Drill of node-1, with evictions: Passed", "pod(s) were evicted"];
        brupop(ctx, "drill node-1 --evict", OK, &parts).await?;
        let world = ctx.until("the node is released", |world| is_released(world, "node-1")).await?;
        let stay = pods(&world).iter().filter(|pod| before.contains(pod)).count();
        ensure!(stay == before.len() - here, "{here} pods were there: {before:?}, {:?}", pods(&world));
        ensure!(!world.nodes["node-1"].claimed() && record(&world, "node-1").last.is_none());
        ensure!(changes(ctx, "node-1")?.is_empty(), "{:?}", changes(ctx, "node-1")?);

        // A plain annotation does the same. Its release ends it, and the node is as before.
        ctx.policy(&json!({"health": {"after": {"soak": "10m"}}})).await?;
        annotate(ctx, "node-2", "by-hand-1").await?;
        ctx.until_step("node-2", Step::Verifying).await?;
        brupop(ctx, "status", OK, &["Verifying (drill)"]).await?;
        brupop(ctx, "explain node-2", OK, &["a drill without evictions: the host is not rebooted"]).await?;
        brupop(ctx, "drill node-2", FAILED, &["a drill of it is under way"]).await?;
        brupop(ctx, "release node-2", OK, &["released"]).await?;
        let world = ctx.until("the drill has ended", |world| is_released(world, "node-2")).await?;
        let found = drill_of(&world, "node-2")?;
        ensure!(
            (found.result.as_str(), found.drill.request.as_str()) == ("ReleaseRequested", "by-hand-1"),
            "{found:?}"
        );

        // Not waited for in full: the drill goes on.
        let soaking = ["still waits", "the soak, with the node back in service"];
        brupop(ctx, "drill node-2 --timeout=15s", UNACKNOWLEDGED, &soaking).await?;
        brupop(ctx, "hold node-2", OK, &["held"]).await?;
        ctx.until("the hold ends it", |world| {
            drill_of(world, "node-2").is_ok_and(|found| found.result == "Held") && step_of(world, "node-2").is_none()
        })
        .await?;
        brupop(ctx, "unhold node-2", OK, &[]).await?;
        Ok(())
    })
    .await?;
    assert_eq!((ending.verdict.stats.arms, ending.verdict.stats.reboots), (0, 0));
    Ok(())
}
