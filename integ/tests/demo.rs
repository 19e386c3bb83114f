//! The demo as users run it: it succeeds, and its summary lists every node.

use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// Runs the demo to its end and returns the summary.
fn demo(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_brupop-demo")).args(arguments).stdin(Stdio::null()).output()?;
    let stdout = String::from_utf8(output.stdout)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}:\n{stdout}\n{stderr}", output.status);
    // The rollout comes first, as a line for every change, and then the table of results.
    let (_, summary) = stdout.split_once("RESULT").with_context(|| format!("no summary:\n{stdout}"))?;
    for node in ["node-1", "node-2", "node-3"] {
        ensure!(summary.contains(node), "{node} is missing:\n{stdout}");
    }
    Ok(summary.to_owned())
}

#[test]
fn demo_completes_successfully() -> anyhow::Result<()> {
    let summary = demo(&[])?;
    ensure!(summary.contains("every node is on 1.20.5") && !summary.contains("FAIL"), "{summary}");
    Ok(())
}

#[test]
fn demo_with_failed_boot_ends_as_expected() -> anyhow::Result<()> {
    let summary = demo(&["--fault", "boot"])?;
    ensure!(summary.contains("froze the rollout") && !summary.contains("FAIL"), "{summary}");
    Ok(())
}
