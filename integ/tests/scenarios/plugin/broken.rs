//! A version that does not boot, a damaged installation, and its end.

use integ::host::{BootFault, Fault};
use models::condition::ConditionStatus;
use semver::Version;

use super::*;

/// It is found and explained, and ends a watch.
pub(super) async fn rollout_is_frozen(w: &mut Walk<'_>) -> Result<()> {
    w.ok("doctor", &["Result:    all is well"]).await?;
    w.policy(&json!({"strategy": {"preStage": null}})).await?;
    for member in &w.bed.members {
        member.host.script(Fault::boot(BootFault::NewImageFails));
    }
    w.bed.releases.publish(Version::new(1, 20, 7));
    w.until_operator("Frozen", ConditionStatus::True).await?;
    let command = "kubectl brupop resume --failures 1.20.7";
    w.exits("watch --until=completed", FROZEN, &["Frozen: failed too often: 1.20.7", command]).await?;
    let skip = "To skip 1.20.7, first: kubectl brupop quarantine 1.20.7. To try again: kubectl brupop resume";
    w.ok("status --wide", &["Frozen:    failed too often: 1.20.7", skip, command]).await?;
    // The node that has failed is released first.
    poll("the version is the reason of the node", async || {
        let commands = w.json("explain node-1").await?["commands"].clone();
        let is_at = |at: usize, command: &str| commands[at].as_str().is_some_and(|found| found.starts_with(command));
        Ok((is_at(0, "kubectl brupop quarantine 1.20.7  # ") && is_at(1, command)).then_some(()))
    })
    .await?;
    w.ok("doctor", &["WARNING    Frozen: "]).await.map(drop)
}

pub(super) async fn installation_is_damaged(w: &mut Walk<'_>) -> Result<()> {
    for line in [
        "kubectl delete networkpolicy -n brupop-system brupop-apiserver",
        "kubectl patch clusterrole brupop-controller --type=json -p '[{\"op\":\"remove\",\"path\":\"/rules/0\"}]'",
        "kubectl label node node-2 --overwrite bottlerocket.aws/updater-interface-version=1.0.0",
    ] {
        shell(w, line).await?;
    }
    let parts = [
        "ERROR      RightsMissing: clusterrole/brupop-controller: it lacks rights that this version needs: get nodes",
        "WARNING    Missing: networkpolicy/brupop-system/brupop-apiserver",
        "WARNING    WrongLabel: node/node-2",
    ];
    w.fails("doctor", &parts).await?;
    let found = w.json("doctor").await?;
    ensure!(found["errors"].as_i64() >= Some(1) && found["findings"][0]["severity"] == "Error", "{found:#}");
    Ok(())
}

pub(super) async fn bundle_has_all_that_helps_and_no_secret(w: &mut Walk<'_>) -> Result<()> {
    let bundle = w.path("bundle.tar.gz");
    let line = format!("support-bundle -o {bundle}");
    w.ok(&line, &["written: ", "left out: Secrets are not read"]).await?;
    w.fails(&line, &["cannot be created"]).await?;
    let content = shell(w, &format!("tar -xzOf {bundle}")).await?;
    for part in ["\"node-1\"", "RightsMissing", "BottlerocketRolloutHistory", "\"kubernetes\"", "UpdateFailed"] {
        ensure!(content.contains(part), "{part} is not in the bundle");
    }
    ensure!(!content.contains("PRIVATE KEY") && !content.contains("last-applied-configuration\":"), "a secret");
    let secrets = w.kubectl(&["get", "secrets", "-n", SYSTEM_NAMESPACE, "-o", "json"]).await?;
    let secrets: Value = serde_json::from_str(&secrets)?;
    for secret in secrets["items"].as_array().into_iter().flatten() {
        for value in secret["data"].as_object().into_iter().flatten().filter_map(|(_, value)| value.as_str()) {
            ensure!(value.len() < 16 || !content.contains(value), "{} is in the bundle", secret["metadata"]["name"]);
        }
    }
    let part = w.path("part.tar.gz");
    let missing = "missing: nodes.json: you need the right to list nodes";
    w.ok(&format!("support-bundle -o {part} --as reader"), &[missing]).await?;
    let content = shell(w, &format!("tar -xzOf {part}")).await?;
    ensure!(content.contains("brs-node-1") && content.contains("Missing, because it could not be read"), "{content}");
    Ok(())
}

pub(super) async fn definition_of_another_operators_objects_stays(w: &mut Walk<'_>) -> Result<()> {
    // As after a takeover that has not ended.
    let shadow = "apiVersion: brupop.bottlerocket.aws/v3\nkind: BottlerocketShadow\nmetadata: {name: brs-other, \
                  namespace: default}\nspec: {attempt: 0}";
    w.apply(shadow).await?;
    let stays = "CustomResourceDefinition bottlerocketshadows.brupop.bottlerocket.aws stays: deleting it would delete 1 \
                 of its objects outside of brupop-system, such as default/brs-other";
    w.ok("uninstall --dry-run", &[stays]).await?;
    w.ok("uninstall --yes", &[stays]).await?;
    let left = w.kubectl(&["get", "brs", "--all-namespaces", "-o", "name"]).await?;
    ensure!(left.trim() == "bottlerocketshadow.brupop.bottlerocket.aws/brs-other", "{left}");

    w.kubectl(&["delete", "brs", "-n", "default", "brs-other"]).await?;
    w.ok("uninstall --yes", &[]).await?;
    let left = w.kubectl(&["get", "crd", "-o", "name"]).await?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}
