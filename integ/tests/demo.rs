//! The demo as users run it: it succeeds, and its summary lists every node.

use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// Runs the demo to its end and returns the summary, which lists so many nodes.
fn demo(arguments: &[&str], nodes: usize) -> anyhow::Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_brupop-demo")).args(arguments).stdin(Stdio::null()).output()?;
    let stdout = String::from_utf8(output.stdout)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}:\n{stdout}\n{stderr}", output.status);
    // The rollout comes first, as a line for every change, and then the table of results.
    let (_, summary) = stdout.split_once("RESULT").with_context(|| format!("no summary:\n{stdout}"))?;
    for number in 1..=nodes {
        ensure!(summary.contains(&format!("node-{number}")), "node-{number} is missing:\n{stdout}");
    }
    Ok(summary.to_owned())
}

#[test]
fn demo_completes_successfully() -> anyhow::Result<()> {
    let summary = demo(&[], 3)?;
    ensure!(summary.contains("every node is on 1.20.5") && !summary.contains("FAIL"), "{summary}");
    Ok(())
}

#[test]
fn demo_with_failed_boot_ends_as_expected() -> anyhow::Result<()> {
    let summary = demo(&["--fault", "boot", "--nodes", "2", "--pods", "4"], 2)?;
    ensure!(summary.contains("froze the rollout") && !summary.contains("FAIL"), "{summary}");
    Ok(())
}
