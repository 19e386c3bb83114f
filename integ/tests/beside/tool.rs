//! Common parts of the scenarios with a tool that applies from Git.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use integ::bed::merge;
use integ::control_plane::audit::{Reader, requests};
use integ::oracle::settled_audit;
use integ::pages;
use models::names::OPERATOR_NAME;
use serde_json::{Value, json};

use crate::commands::{output_text, plugin};
use crate::support::ScenarioContext;

/// The page about these tools.
pub(crate) const PAGE: &str = "docs/how-to/gitops.md";
/// Files of the repository.
pub(crate) const DEFINITIONS: &str = "brupop/definitions.yaml";
pub(crate) const POLICY: &str = "brupop/policy.yaml";

/// The definitions, with the page's annotations, as a file.
pub(crate) fn definitions() -> Result<String> {
    let mut text = String::new();
    for mut definition in deploy::crds::all()? {
        for line in pages::text(PAGE, "The definitions")?.lines() {
            let (name, value) = line.split_once(": ").context("an annotation")?;
            merge(&mut definition, &json!({"metadata": {"annotations": {name: value}}}));
        }
        text += &format!("---\n{definition}\n");
    }
    Ok(text)
}

/// The other objects of the installation without its policy, as a file.
pub(crate) fn installation(ctx: &ScenarioContext) -> Result<String> {
    let others = ["BottlerocketUpdateOperator", "CustomResourceDefinition"];
    let mut objects = deploy::objects(&ctx.bed.options.deploy)?;
    objects.retain(|object| !others.iter().any(|kind| object["kind"] == *kind));
    Ok(objects.iter().map(|object| format!("---\n{object}\n")).collect())
}

/// The names of the operator's definitions that the cluster has.
pub(crate) async fn served(ctx: &ScenarioContext) -> Result<Vec<String>> {
    let names = ctx.kubectl(&["get", "customresourcedefinitions", "-o", "name"]).await?;
    Ok(names.lines().filter(|name| name.contains("brupop.bottlerocket.aws")).map(str::to_owned).collect())
}

/// The policy below a heading of the page, with what makes a test quick.
pub(crate) fn policy(heading: &str, quick: &Value) -> Result<Value> {
    let mut policy: Value = serde_saphyr::from_str(&pages::yaml(PAGE, heading)?)?;
    merge(&mut policy["spec"], quick);
    Ok(policy)
}

/// Runs a command of the plugin, which has to succeed, and returns what it prints.
pub(crate) async fn brupop(ctx: &ScenarioContext, line: &str) -> Result<String> {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let output = plugin(ctx, &arguments).await?;
    ensure!(output.status.success(), "{line}: {}", output_text(&output));
    Ok(output_text(&output))
}

/// The plugin's warning about a field that the source of a tool may have.
pub(crate) fn maybe(manager: &str, field: &str) -> String {
    format!("the field manager {manager} applies this object: if its source has {field}, it reverts this")
}

/// The policy's `spec`, as it is.
pub(crate) async fn spec(ctx: &ScenarioContext) -> Result<Value> {
    Ok(ctx.policies().get(OPERATOR_NAME).await?.data["spec"].clone())
}

/// The policy's annotations.
pub(crate) async fn annotated(ctx: &ScenarioContext) -> Result<BTreeMap<String, String>> {
    Ok(ctx.policies().get(OPERATOR_NAME).await?.metadata.annotations.unwrap_or_default())
}

/// The writes of a tool from some time on.
pub(crate) struct Writes {
    audit: Reader,
    agent: &'static str,
}

impl Writes {
    /// Begins with the next write.
    pub(crate) async fn begin(ctx: &ScenarioContext, agent: &'static str) -> Result<Self> {
        let mut audit = ctx.bed.control_plane.audit();
        settled_audit(&mut audit, &ctx.bed.client).await?;
        Ok(Self { audit, agent })
    }

    /// Fails if the tool has changed any object that is not its own, or has not even compared one.
    pub(crate) async fn ensure_none(&mut self, ctx: &ScenarioContext) -> Result<()> {
        let records = settled_audit(&mut self.audit, &ctx.bed.client).await?;
        let own = ["toolkit.fluxcd.io", "argoproj.io"];
        let all: Vec<_> = requests(&records).filter(|record| record.user_agent.starts_with(self.agent)).collect();
        ensure!(!all.is_empty(), "{} has sent no request", self.agent);
        let writes: Vec<String> = all
            .iter()
            .filter(|record| record.is_write() && !record.uri.contains("dryRun=All") && record.resource != "events")
            .filter(|record| !own.iter().any(|group| record.group.ends_with(group)))
            .map(|record| format!("{} {} {}/{}", record.verb, record.what(), record.namespace, record.name))
            .collect();
        ensure!(writes.is_empty(), "{} writes: {writes:#?}", self.agent);
        Ok(())
    }
}
