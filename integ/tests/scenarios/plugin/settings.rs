//! The operator is installed, its settings are changed, and at the end it is uninstalled.

use models::condition::ConditionStatus;

use super::refusals::grant_documented_rights;
use super::*;
use crate::uninstall::everything;

pub(super) async fn installation_leaves_existing_policy_alone(w: &mut Walk<'_>) -> Result<()> {
    grant_documented_rights(w).await?;
    // The operator's own pods are on the second node, which is updated last.
    w.kubectl(&["taint", "nodes", "node-1", "example.com/last=:NoSchedule"]).await?;
    let before = everything(w).await?;
    w.write("install", &["install --dry-run"]).await?;
    let after = everything(w).await?;
    ensure!(before == after, "{:?}", before.symmetric_difference(&after).collect::<Vec<_>>());
    w.write("install", &["install"]).await?;
    w.kubectl(&["taint", "nodes", "node-1", "example.com/last-"]).await?;
    w.reported().await?;
    w.until_operator("Enabled", ConditionStatus::False).await?;
    w.write("install", &["install --enable"]).await?;
    let [spec, _] = w.written().await?;
    ensure!(spec["enabled"] == json!(false), "{spec}");
    w.until_operator("Enabled", ConditionStatus::False).await?;
    // The documented roles are enough for all that follows.
    w.user = Some("operator@example.com");
    Ok(())
}

pub(super) async fn settings_are_changed_and_dry_runs_change_none(w: &mut Walk<'_>) -> Result<()> {
    w.policy(&json!({
        "strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]}, "failurePolicy": {"backOff": "1h"},
        "health": {"after": {"soak": "1s"}}, "version": {"refreshInterval": "1s"}, "deadlines": {"shutdown": "5s"},
    }))
    .await?;
    w.until_operator("Enabled", ConditionStatus::False).await?;
    let lines = ["pause --as viewer", "hold node-1 --as viewer", "drill node-1 --as viewer"];
    w.write("refused", &lines).await?;
    w.rehearse("pin", &["pin newest", "pin 1.99", "pin 1.20.5", "pin v1.20.5"]).await?;
    let lines = ["quarantine 1.20.4", "quarantine 1.20.4", "quarantine 1.20 --lift", "quarantine 1.20.4 --lift"];
    w.rehearse("quarantine", &lines).await?;
    let lines = ["hold nod-1", "hold node-1 --for 2h --reason audit", "hold node-1", "unhold node-1", "unhold node-1"];
    w.rehearse("hold", &lines).await?;
    w.rehearse("pause-resume", &["pause", "resume", "pause", "drill node-1", "resume"]).await?;

    let before = w.written().await?;
    w.ok("pause --dry-run=client", &["paused (dry run): ", r#"{"spec":{"enabled":false}}"#]).await?;
    w.ok("pin 1.99 --dry-run", &["no node is offered a version for it"]).await?;
    let right = "you need the right to patch bottlerocketupdateoperators in brupop-system";
    w.fails("pause --as viewer", &[right]).await?;
    w.fails("quarantine 1.20.5 --as viewer --as-group people", &[right]).await?;
    w.ok("status --as viewer", &["node-1", "node-2"]).await?;
    w.ok("history --as viewer", &["REVISION"]).await?;
    ensure!(w.written().await? == before, "something was written: {before:?}");
    Ok(())
}

pub(super) async fn operator_is_uninstalled(w: &mut Walk<'_>) -> Result<()> {
    // No node moves, neither for this nor when it is undone.
    w.ok(&format!("pin {NEW}"), &["the target is 1.20.5"]).await?;
    w.write("undo", &["undo"]).await?;
    w.user = None;
    let archive = format!("support-bundle -o {}", w.path("bundle.tar.gz"));
    w.write("support-bundle", &[&archive, &archive]).await?;
    let lines = ["uninstall --dry-run", "uninstall", "uninstall --yes", "uninstall --yes"];
    w.write("uninstall", &lines).await
}
