//! Runs of the plugin and of documented command lines.

use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use integ::bed::Programs;
use tokio::process::Command;

use crate::support::ScenarioContext;

/// Runs the plugin as the user of a kubeconfig, in a terminal of so many columns.
pub(crate) async fn plugin_in(kubeconfig: &Path, columns: usize, arguments: &[&str]) -> Result<Output> {
    let output = Command::new(Programs::find()?.plugin)
        // As on many developers' machines: errors are for people all the same.
        .env("RUST_BACKTRACE", "1")
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .env("COLUMNS", columns.to_string())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    Ok(output)
}

/// The same as the user of a kubeconfig.
pub(crate) async fn plugin_as(kubeconfig: &Path, arguments: &[&str]) -> Result<Output> {
    plugin_in(kubeconfig, 120, arguments).await
}

/// Runs `kubectl-brupop` as an administrator.
pub(crate) async fn plugin(ctx: &ScenarioContext, arguments: &[&str]) -> Result<Output> {
    plugin_as(ctx.bed.control_plane.kubeconfig(), arguments).await
}

/// Returns what a command has printed, the standard output first.
pub(crate) fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs lines in a shell, from the root of the repository, as an administrator, with kubectl and the plugin.
pub(crate) async fn shell(ctx: &ScenarioContext, line: &str) -> Result<String> {
    let kubectl = ctx.bed.control_plane.kubectl_command();
    let folder = Path::new(kubectl.as_std().get_program()).parent().context("kubectl has a folder")?;
    let plugin = Programs::find()?.plugin;
    let plugin = plugin.parent().context("the plugin has a folder")?;
    let path = format!("{}:{}:{}", folder.display(), plugin.display(), std::env::var("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-ec", line])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("PATH", path)
        .env("KUBECONFIG", ctx.bed.control_plane.kubeconfig())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "{line}: {}", output_text(&output));
    Ok(output_text(&output))
}
