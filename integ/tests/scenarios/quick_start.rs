//! The quick start, run from its page as it stands, on a cluster of one node, which the operator itself runs on.

use anyhow::ensure;
use integ::bed::TestClusterOptions;
use models::names::{INTERFACE_LABEL, INTERFACE_VERSION};
use serde_json::json;

use crate::commands::{output_text, plugin, shell};
use crate::support::run;

const PAGE: &str = include_str!("../../../docs/quick-start.md");

#[tokio::test(flavor = "multi_thread")]
async fn quick_start_updates_a_cluster_of_one_node_by_the_commands_of_its_page() -> anyhow::Result<()> {
    const PODS: usize = 2;
    // The registry of the page; the tag is that of the plugin's version.
    let registry = Some("registry.example/brupop".to_owned());
    let deploy = deploy::Options { registry, ..deploy::Options::default() };
    let options = TestClusterOptions { labelled: false, deploy, ..TestClusterOptions::default() };
    let ending = run(options, async |ctx| {
        ctx.shop_with(PODS, json!({"maxUnavailable": "100%"})).await?;
        ctx.release();
        let blocks: Vec<&str> = PAGE.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        let label = format!("{INTERFACE_LABEL}={INTERFACE_VERSION}");
        ensure!(blocks.iter().filter(|block| block.contains(&label)).count() == 1, "the label is set once: {blocks:?}");
        for block in blocks {
            shell(ctx, &block.replace("NODE", "node-1")).await?;
            if block.contains("brupop install") {
                ctx.policy(&json!({"version": {"refreshInterval": "5s"}, "health": {"after": {"soak": "2s"}}})).await?;
            }
            // The host's offer is what there is to watch for.
            if block.contains(&label) {
                ctx.reported().await?;
            }
        }
        ctx.updated().await?;
        // Defaults of the API server in what the plugin has installed are no options of the user's own.
        ctx.kubectl(&["delete", "pdb", "-n", "brupop-system", "brupop-controller"]).await?;
        let found = output_text(&plugin(ctx, &["doctor"]).await?);
        ensure!(found.contains("kubectl brupop install --registry registry.example/brupop"), "{found}");
        ctx.shop_is_ready(PODS).await
    })
    .await?;
    ending.assert_updates(1);
    // The plugin installs the default number of replicas.
    let replicas = deploy::Options::default();
    let own = usize::from(replicas.controller_replicas) + usize::from(replicas.apiserver_replicas);
    assert_eq!(ending.verdict.stats.evictions, own + PODS, "each pod that was there was evicted once");
    Ok(())
}
