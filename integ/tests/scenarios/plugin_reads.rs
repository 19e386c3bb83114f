//! The commands of the plugin that read: status, explain, watch, doctor and support-bundle.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use integ::host::{BootFault, Fault};
use integ::oracle::Expectations;
use models::condition::ConditionStatus;
use models::names::{HOLD_ANNOTATION, SYSTEM_NAMESPACE};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::interfere::{blocked_drain, poll, unblock};
use crate::plugin::{FAILED, OK, brupop, output_text, plugin, shell};
use crate::support::{LIMIT, ScenarioContext, nodes, other, run, run_expecting};

/// Exit code of `watch` when failures have frozen the rollout.
const FROZEN: i32 = 4;

/// Users: one that may read the operator's namespace alone, and one without any right.
const ROLES: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: brupop-system}
rules:
- {apiGroups: [brupop.bottlerocket.aws], resources: ["*"], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: brupop-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}]
"#;

/// Runs the plugin, and returns what it prints as JSON.
async fn json(ctx: &ScenarioContext, line: &str) -> anyhow::Result<Value> {
    let arguments: Vec<&str> = line.split(' ').chain(["-o", "json"]).collect();
    let output = plugin(ctx, &arguments).await?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("{line}: {}", output_text(&output)))
}

/// Starts the plugin, whose output goes into a file.
fn start(ctx: &ScenarioContext, line: &str, output: &std::path::Path) -> anyhow::Result<Child> {
    let out = std::fs::File::create(output)?;
    let child = Command::new(integ::bed::Programs::find()?.plugin)
        .args(line.split(' '))
        .env("KUBECONFIG", ctx.bed.control_plane.kubeconfig())
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

/// Waits for a text in a file.
async fn until_printed(path: &std::path::Path, part: &str) -> anyhow::Result<()> {
    let printed = || std::fs::read_to_string(path).unwrap_or_default();
    poll(&format!("'{part}' is printed"), async || Ok(printed().contains(part).then_some(())))
        .await
        .with_context(|| format!("printed: {}", printed()))
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_explains_waiting_and_draining_nodes_and_watches_the_rollout_to_its_end() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let printed = folder.path().join("watch");
    run(nodes(2), async |ctx| {
        let draining = blocked_drain(ctx).await?;
        let waiting = other(&draining);

        // The screen and its form for programs name the same.
        let text = brupop(ctx, "status", OK, &["Updates:   enabled", "Window:    always open"]).await?;
        for part in [format!("1 DrainBlocked (the update): {draining}"), format!("1 Queued (its turn): {waiting}")] {
            ensure!(text.contains(&part), "no '{part}' in: {text}");
        }
        ensure!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        let status = json(ctx, "status").await?;
        ensure!(status["rollouts"][0]["nodes"] == 2 && status["policy"]["state"] == "InForce", "{status:#}");
        ensure!(
            status["notRead"] == serde_json::json!([]) && status["problems"] == serde_json::json!([]),
            "{status:#}"
        );
        brupop(ctx, "status -o name", OK, &["node/node-1\nnode/node-2\n"]).await?;
        brupop(ctx, "status --color=always", OK, &["\u{1b}[32mUpdates:\u{1b}[0m"]).await?;

        // The reason of each node, every check, and what comes next.
        let parts = ["WAITS   ", "DrainBlocked", "(in ", "kubectl describe pdb web -n shop", "kubectl brupop release "];
        brupop(ctx, &format!("explain {draining}"), OK, &parts).await?;
        let explained = json(ctx, &format!("explain brs-{waiting}")).await?;
        ensure!(explained["waits"]["reason"] == "Queued", "{explained:#}");
        let turn = |check: &&Value| check["result"] == "Waits";
        let first = explained["checks"].as_array().into_iter().flatten().find(turn).cloned().unwrap_or_default();
        ensure!(first["name"] == "HasTurn", "{explained:#}");
        ctx.kubectl(&["annotate", "node", waiting, &format!("{HOLD_ANNOTATION}=")]).await?;
        let held = async || {
            let explained = json(ctx, &format!("explain {waiting}")).await?;
            Ok((explained["commands"][0] == format!("kubectl brupop unhold {waiting}")).then_some(()))
        };
        poll("the held node is explained", held).await?;
        brupop(ctx, "explain node-3", FAILED, &["there is no node node-3; did you mean node-1 or node-2?"]).await?;

        // With fewer rights less is seen, and the missing ones are named.
        shell(ctx, &format!("kubectl apply -f - <<'END'\n{ROLES}END")).await?;
        let parts = ["Not read:  you need the right to list nodes", "DrainBlocked", "node-1", "node-2"];
        brupop(ctx, "status --as reader", OK, &parts).await?;
        brupop(ctx, &format!("explain {draining} --as reader"), OK, &["DrainBlocked", "Not read:"]).await?;
        let right = "you need the right to watch bottlerocket";
        brupop(ctx, "watch --as reader", FAILED, &[right]).await?;
        let right = "you need the right to get bottlerocketupdateoperators in brupop-system";
        for command in ["status", "explain node-1", "watch"] {
            brupop(ctx, &format!("{command} --as guest"), FAILED, &[right]).await?;
        }
        brupop(ctx, "__complete -- explain node-", OK, &["node-1\nnode-2\n:4\n"]).await?;

        // It goes on when the API server is back, and ends with the rollout.
        let mut watch = start(ctx, "watch --until=completed", &printed)?;
        until_printed(&printed, "DrainBlocked").await?;
        ctx.bed.control_plane.restart_apiserver().await?;
        until_printed(&printed, "connection lost").await?;
        until_printed(&printed, "connected again").await?;
        ctx.kubectl(&["annotate", "node", waiting, &format!("{HOLD_ANNOTATION}-")]).await?;
        unblock(ctx).await?;
        ctx.updated().await?;
        let ended = tokio::time::timeout(LIMIT, watch.wait()).await.context("the watch does not end")??;
        let text = std::fs::read_to_string(&printed)?;
        ensure!(ended.code() == Some(OK), "exit code {ended}: {text}");
        let updated = |node: &str| text.lines().any(|line| line.contains(&format!(" {node} 1.20.5 Idle")));
        ensure!(updated("node-1") && updated("node-2"), "{text}");
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_finds_what_is_wrong_and_bundles_it_without_secrets() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    run_expecting(nodes(2), expectations, async |ctx| {
        ctx.install().await?;
        brupop(ctx, "doctor", OK, &["objects of the installation", "Result:    all is well"]).await?;

        // A frozen rollout: found, explained, and an end of the watch.
        for member in &ctx.bed.members {
            member.host.script(Fault::boot(BootFault::NewImageFails));
        }
        ctx.release();
        ctx.until_operator("Frozen", ConditionStatus::True).await?;
        brupop(ctx, "watch --until=completed", FROZEN, &["Frozen: failed too often: 1.20.5", "kubectl brupop resume --failures 1.20.5"]).await?;
        brupop(ctx, "status", OK, &["Frozen:    failed too often: 1.20.5", "kubectl brupop resume --failures 1.20.5"]).await?;
        // The node that has failed is released first.
        poll("the version is the reason of the node", async || {
            let explained = json(ctx, "explain node-1").await?;
            Ok((explained["commands"][0] == "kubectl brupop resume --failures 1.20.5").then_some(()))
        })
        .await?;
        brupop(ctx, "doctor", OK, &["WARNING    Frozen: "]).await?;

        // An installation that was damaged.
        for line in [
            "kubectl delete networkpolicy -n brupop-system brupop-apiserver",
            "kubectl patch clusterrole brupop-controller --type=json -p '[{\"op\":\"remove\",\"path\":\"/rules/0\"}]'",
            "kubectl label node node-2 --overwrite bottlerocket.aws/updater-interface-version=1.0.0",
        ] {
            shell(ctx, line).await?;
        }
        let parts = [
            "ERROR      RightsMissing: clusterrole/brupop-controller: it lacks rights that this version needs: get nodes",
            "WARNING    Missing: networkpolicy/brupop-system/brupop-apiserver",
            "WARNING    WrongLabel: node/node-2",
        ];
        brupop(ctx, "doctor", FAILED, &parts).await?;
        let diagnosis = json(ctx, "doctor").await?;
        ensure!(diagnosis["errors"].as_i64() >= Some(1) && diagnosis["findings"][0]["severity"] == "Error", "{diagnosis:#}");

        // Everything that helps, and no secret.
        let bundle = folder.path().join("bundle.tar.gz");
        let line = format!("support-bundle -o {}", bundle.display());
        brupop(ctx, &line, OK, &["written: ", "left out: Secrets are not read"]).await?;
        brupop(ctx, &line, FAILED, &["cannot be created"]).await?;
        let content = shell(ctx, &format!("tar -xzOf {}", bundle.display())).await?;
        for part in ["\"node-1\"", "RightsMissing", "BottlerocketRolloutHistory", "\"kubernetes\"", "UpdateFailed"] {
            ensure!(content.contains(part), "{part} is not in the bundle");
        }
        ensure!(!content.contains("PRIVATE KEY") && !content.contains("last-applied-configuration\":"), "a secret");
        let secrets = ctx.kubectl(&["get", "secrets", "-n", SYSTEM_NAMESPACE, "-o", "json"]).await?;
        let secrets: Value = serde_json::from_str(&secrets)?;
        for secret in secrets["items"].as_array().into_iter().flatten() {
            for value in secret["data"].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str()) {
                ensure!(value.len() < 16 || !content.contains(value), "{} is in the bundle", secret["metadata"]["name"]);
            }
        }
        shell(ctx, &format!("kubectl apply -f - <<'END'\n{ROLES}END")).await?;
        let part = folder.path().join("part.tar.gz");
        let line = format!("support-bundle -o {} --as reader", part.display());
        brupop(ctx, &line, OK, &["missing: nodes.json: you need the right to list nodes"]).await?;
        let content = shell(ctx, &format!("tar -xzOf {}", part.display())).await?;
        ensure!(content.contains("brs-node-1") && content.contains("Missing, because it could not be read"), "{content}");
        Ok(())
    })
    .await?;
    Ok(())
}
