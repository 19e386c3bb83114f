//! The operator's label of a node, removed and set again.

use integ::bed::TestClusterOptions;
use integ::host::{UpdatesSettings, VersionLock};
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION};
use semver::Version;
use serde_json::json;

use crate::support::{NEW, ScenarioContext, is_on, is_updated, nodes, run, shadow_of};

/// The node whose label is set and removed; another one never has it.
const NODE: &str = "node-1";

/// Options of a test cluster without labelled nodes.
fn unlabelled() -> TestClusterOptions {
    TestClusterOptions { labelled: false, ..nodes(2) }
}

/// Labels the node and waits until its agent has reported.
async fn join(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.kubectl(&["label", "node", NODE, &format!("{INTERFACE_LABEL}={INTERFACE_VERSION}")]).await?;
    ctx.until("the agent of the node has reported", |world| {
        shadow_of(world, NODE).is_some_and(|shadow| {
            let agent = &shadow.status.agent;
            agent.boot_id.as_deref() == Some(world.nodes[NODE].boot_id.as_str()) && agent.updates.is_some()
        })
    })
    .await?;
    Ok(())
}

/// Removes the label.
async fn leave(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.kubectl(&["label", "node", NODE, &format!("{INTERFACE_LABEL}-")]).await.map(drop)
}

/// Checks that the settings are restored when the node has its label again, since the agent's pod is removed with it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: it waits for several rollouts"]
async fn unlabelled_pinned_node_keeps_settings_record_until_relabelled() -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    let mut options = unlabelled();
    options.policy["version"]["target"] = json!(NEW.to_string());
    let ending = run(options, async |ctx| {
        ctx.bed.install().await?;
        let host = &ctx.bed.member(NODE)?.host;
        join(ctx).await?;
        ctx.release();
        ctx.until("the node is updated", |world| is_updated(world, NODE)).await?;
        anyhow::ensure!(host.snapshot().settings.version_lock == Some(VersionLock::to(&NEW)));
        leave(ctx).await?;
        ctx.until("the settings are withdrawn", |world| {
            shadow_of(world, NODE).is_some_and(|s| s.spec.host.as_ref().is_some_and(|host| !host.asks_settings()))
        })
        .await?;
        ctx.policy(&json!({"version": {"target": null}})).await?;
        ctx.bed.releases.publish(NEWER);
        ctx.renewals(2).await?;
        join(ctx).await?;
        ctx.until("it is updated to the newest release", |world| is_on(world, NODE, &NEWER)).await?;
        anyhow::ensure!(host.snapshot().settings == UpdatesSettings::defaults(42), "{:?}", host.snapshot().settings);
        // No settings are left to restore.
        leave(ctx).await?;
        ctx.until("nothing is left of the node", |world| {
            let agent =
                |pod: &integ::oracle::Pod| pod.name.starts_with("brupop-agent") && pod.node.as_deref() == Some(NODE);
            world.shadows.is_empty() && !world.nodes[NODE].claimed() && !world.pods.values().any(|pod| agent(pod))
        })
        .await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}
