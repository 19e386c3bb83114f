//! `kubectl brupop explain`: every check of one node, and what changes its state next.

mod objects;
mod report;
mod text;

use std::collections::BTreeSet;

use anyhow::bail;
use clap::Args;
use kube::Client;
use models::names;

use crate::cluster::Cluster;
use crate::near::near;
use crate::page::Page;
use crate::shell::for_cluster;
use crate::terminal::Format;

#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    /// Name of the node, or of its shadow (brs-NODE).
    #[arg(value_name = "NODE")]
    node: String,
    /// `wide` for text in full, `json` or `yaml` for programs (docs/plugin.md).
    #[arg(long, short, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn explain(client: &Client, namespace: &str, options: &ExplainOptions) -> anyhow::Result<Page> {
    let wanted = |cluster: &Cluster| find(cluster, &options.node).into_iter().collect::<BTreeSet<_>>();
    let cluster = Cluster::read_now(client, namespace, wanted).await?;
    let Some(name) = find(&cluster, &options.node) else { bail!("{}", unknown(&cluster, &options.node)) };
    let now = crate::clock::now();
    let objects = objects::evaluate(client, &cluster, &name, now).await;
    let explanation = report::Explanation { objects, ..report::explain(&cluster, &name, now) };
    Format::show(options.output, &explanation, |width| text::render(&explanation, width))
}

/// Returns the node of a name, with the prefixes that kubectl prints and that shadows have.
fn find(cluster: &Cluster, name: &str) -> Option<String> {
    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
    let exists = |name: &str| {
        let node = cluster.nodes.as_ref().is_some_and(|nodes| nodes.contains_key(name));
        node || cluster.shadows.contains_key(name)
    };
    [name, names::node_of_shadow(name)].into_iter().find(|name| exists(name)).map(str::to_owned)
}

/// Returns the error for a name that no node has.
fn unknown(cluster: &Cluster, name: &str) -> String {
    let all = cluster.nodes.iter().flatten().map(|(name, _)| name.as_str());
    let all: BTreeSet<&str> = all.chain(cluster.shadows.keys().map(String::as_str)).collect();
    match near(name, all.into_iter()).join(" or ").as_str() {
        "" => format!("there is no node {name}: {}", for_cluster("kubectl get nodes")),
        near => format!("there is no node {name}; did you mean {near}?"),
    }
}

#[cfg(test)]
mod tests;
