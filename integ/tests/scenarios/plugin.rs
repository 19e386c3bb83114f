//! Runs of the plugin and of documented command lines, for the scenarios.

use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context as _, ensure};

use crate::support::ScenarioContext;

/// Exit codes of the plugin.
pub(crate) const OK: i32 = 0;
pub(crate) const FAILED: i32 = 1;
pub(crate) const UNACKNOWLEDGED: i32 = 3;

/// Runs `kubectl-brupop` as an administrator.
pub(crate) async fn plugin(ctx: &ScenarioContext, arguments: &[&str]) -> anyhow::Result<Output> {
    plugin_as(ctx.bed.control_plane.kubeconfig(), arguments).await
}

/// Runs the plugin as the user of a kubeconfig.
pub(crate) async fn plugin_as(kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<Output> {
    let program = integ::bed::Programs::find()?.plugin;
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .env("COLUMNS", "120")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    Ok(output)
}

/// Returns what a command has printed, the standard output first.
pub(crate) fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the plugin, and asserts its exit code and parts of its output.
pub(crate) async fn brupop(ctx: &ScenarioContext, line: &str, code: i32, parts: &[&str]) -> anyhow::Result<String> {
    let arguments: Vec<&str> = line.split(' ').collect();
    let output = plugin(ctx, &arguments).await?;
    let text = output_text(&output);
    ensure!(output.status.code() == Some(code), "{line}: exit code {:?}: {text}", output.status.code());
    for part in parts {
        ensure!(text.contains(part), "{line}: no '{part}' in: {text}");
    }
    Ok(text)
}

/// Runs lines in a shell, from the root of the repository, as an administrator, with kubectl and the plugin.
pub(crate) async fn shell(ctx: &ScenarioContext, line: &str) -> anyhow::Result<String> {
    let kubectl = ctx.bed.control_plane.kubectl_command();
    let folder = std::path::Path::new(kubectl.as_std().get_program()).parent().context("kubectl has a folder")?;
    let plugin = integ::bed::Programs::find()?.plugin;
    let plugin = plugin.parent().context("the plugin has a folder")?;
    let path = format!("{}:{}:{}", folder.display(), plugin.display(), std::env::var("PATH").unwrap_or_default());
    let output = tokio::process::Command::new("bash")
        .args(["-ec", line])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("PATH", path)
        .env("KUBECONFIG", ctx.bed.control_plane.kubeconfig())
        .kill_on_drop(true)
        .output()
        .await?;
    anyhow::ensure!(output.status.success(), "{line}: {}", output_text(&output));
    Ok(output_text(&output))
}
