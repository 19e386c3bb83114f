//! The screens of the commands that read, from an installation to the end of its first rollout, and the view of users with
//! plain kubectl.

use super::snapshots::{table_without_ages, until_counts};
use super::*;

/// A fleet for `simulate`.
const FLEET: &str = "
start: 2026-01-01T00:00:00Z
horizon: 72h
policy: {maxUnavailable: 2, schedule: {windows: [{cron: \"0 2 * * *\", duration: 1h}]}}
nodes:
- {count: 9, version: 1.20.0, zones: [a, b], name: a-node-whose-name-takes-a-good-part-of-a-narrow-terminal}
versions: [1.20.5]
workloads:
- {name: shop/web, replicas: 20, budget: {maxUnavailable: 1}}
";

pub(super) async fn before_installation(w: &mut Walk<'_>) -> Result<()> {
    w.take("preflight", "preflight").await
}

pub(super) async fn all_is_well(w: &mut Walk<'_>) -> Result<()> {
    // The operator's own pods are on the last node, which is updated last.
    w.kubectl(&["taint", "nodes", "node-1", "node-2", "example.com/last=:NoSchedule"]).await?;
    w.install().await?;
    w.kubectl(&["taint", "nodes", "node-1", "node-2", "example.com/last-"]).await?;
    w.take("doctor", "doctor").await?;
    w.take("doctor-nowhere", "doctor -n nowhere").await?;
    w.take("takeover-preflight", "takeover preflight").await?;
    w.take("takeover-settings", "takeover settings").await?;
    let fleet = w.file("fleet.yaml", FLEET)?;
    w.take("simulate", &format!("simulate -f {fleet} --courses 5")).await
}

/// A version is there that nodes may not take yet.
pub(super) async fn updates_are_disabled(w: &mut Walk<'_>) -> Result<()> {
    w.policy(&json!({"enabled": false, "version": {"target": NEW.to_string()}})).await?;
    w.release();
    for node in ["node-1", "node-2", "node-3"] {
        until_reason(w, node, json!("Disabled")).await?;
    }
    until_counts(w, 0, 0).await?;
    w.until("all nodes are recorded as behind", |world| {
        world.status().freshness.is_some_and(|fleet| fleet.nodes_behind == 3)
    })
    .await?;
    w.take("status-disabled", "status").await?;
    w.take("explain-disabled", "explain node-1").await?;
    w.take("plan-disabled", "plan").await?;
    let enabled = w.file("enabled.json", &json!({"spec": {"version": {"target": NEW.to_string()}}}).to_string())?;
    w.take("plan-with-policy", &format!("plan --policy {enabled}")).await
}

/// Another one is updated.
pub(super) async fn one_node_is_drained_and_one_is_held(w: &mut Walk<'_>) -> Result<()> {
    w.hold("node-2", "=").await?;
    w.hold("node-3", "=").await?;
    w.policy(&json!({"enabled": true})).await?;
    w.until("the first node is updated", |world| is_updated(world, "node-1")).await?;
    w.guarded_shop(3).await?;
    until_reason(w, "node-1", json!(null)).await?;
    w.hold("node-2", "-").await?;
    until_reason(w, "node-2", json!("DrainBlocked")).await?;
    until_reason(w, "node-3", json!("Held")).await?;
    until_counts(w, 1, 1).await?;
    w.take("status-draining", "status").await?;
    w.take("explain-up-to-date", "explain node-1").await?;
    w.take("explain-draining", "explain node-2").await?;
    w.take("explain-held", "explain node-3").await?;
    w.take("explain-unknown", "explain node-4").await?;
    w.take("undo-dry-run", "undo --dry-run").await?;
    let explained = w.json("explain node-3").await?;
    ensure!(explained["commands"][0] == "kubectl brupop unhold node-3", "{explained:#}");
    Ok(())
}

pub(super) async fn one_node_waits_for_its_turn(w: &mut Walk<'_>) -> Result<()> {
    w.hold("node-3", "-").await?;
    let explained = poll("the node waits for its turn", async || {
        let explained = w.json("explain brs-node-3").await?;
        Ok((explained["waits"]["reason"] == "Queued").then_some(explained))
    })
    .await?;
    let first = explained["checks"].as_array().into_iter().flatten().find(|check| check["result"] == "Waits");
    ensure!(first.is_some_and(|check| check["name"] == "HasTurn"), "{explained:#}");
    // The screen and its form for programs name the same.
    let text = w.ok("status", &["1 DrainBlocked (the update): node-2"]).await?;
    ensure!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    let status = w.json("status").await?;
    ensure!(status["rollouts"][0]["nodes"] == 3 && status["policy"]["state"] == "InForce", "{status:#}");
    ensure!(status["notRead"] == json!([]) && status["problems"] == json!([]), "{status:#}");
    w.ok("status -o name", &["node/node-1\nnode/node-2\nnode/node-3\n"]).await?;
    w.ok("status --html", &["<th scope=\"row\">node-2</th>", "DrainBlocked", "</html>\n"]).await?;
    w.hold("node-3", "=").await?;
    until_reason(w, "node-3", json!("Held")).await
}

pub(super) async fn watch_goes_on_with_the_api_server_and_ends_with_the_rollout(w: &mut Walk<'_>) -> Result<()> {
    let path = w.path("watch");
    let out = std::fs::File::create(&path)?;
    let mut watch = Command::new(Programs::find()?.plugin)
        .args(["watch", "--until=completed"])
        .env("KUBECONFIG", w.bed.control_plane.kubeconfig())
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .kill_on_drop(true)
        .spawn()?;
    let printed = || std::fs::read_to_string(&path).unwrap_or_default();
    let until_printed = async |part: &str| {
        let found = poll(&format!("'{part}' is printed"), async || Ok(printed().contains(part).then_some(()))).await;
        found.with_context(|| format!("printed: {}", printed()))
    };
    until_printed("DrainBlocked").await?;
    w.bed.control_plane.restart_apiserver().await?;
    until_printed("connection lost").await?;
    until_printed("connected again").await?;
    // The evicted pod goes to the first node.
    w.kubectl(&["taint", "nodes", "node-3", "example.com/last=:NoSchedule"]).await?;
    unblock(w).await?;
    w.hold("node-3", "-").await?;
    w.updated().await?;
    let ended = tokio::time::timeout(LIMIT, watch.wait()).await.context("the watch does not end")??;
    ensure!(ended.code() == Some(OK), "exit code {ended}: {}", printed());
    let updated = |node: &str| printed().lines().any(|line| line.contains(&format!(" {node} 1.20.5 Idle")));
    ensure!(updated("node-2") && updated("node-3"), "{}", printed());
    Ok(())
}

pub(super) async fn all_nodes_are_updated(w: &mut Walk<'_>) -> Result<()> {
    crate::history::until_recorded(w, 1).await?;
    for node in ["node-1", "node-2", "node-3"] {
        until_reason(w, node, json!(null)).await?;
    }
    until_counts(w, 3, 0).await?;
    w.take("status-updated", "status").await?;
    w.take("watch-updated", "watch --until=completed").await?;
    w.take("plan-updated", "plan").await?;
    w.take("history", "history").await?;
    w.take("history-rollout", "history 1").await
}

pub(super) async fn kubectl_shows_state_of_nodes_and_operator(w: &mut Walk<'_>) -> Result<()> {
    for line in ["get brs", "get brs -o wide", "get bruo"] {
        let arguments: Vec<&str> = ["-n", SYSTEM_NAMESPACE].into_iter().chain(line.split(' ')).collect();
        let table = w.kubectl(&arguments).await?;
        w.keep("kubectl", &format!("$ kubectl {line}\n{}", table_without_ages(&table)));
    }
    // `kubectl get brupop` shows both kinds, and `explain` describes them.
    let both = w.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "brupop"]).await?;
    ensure!(both.contains("brs-node-1") && both.contains("/default"), "{both}");
    let explained = w.kubectl(&["explain", "brs.spec.bootId"]).await?;
    ensure!(explained.contains("boot"), "{explained}");
    Ok(())
}
