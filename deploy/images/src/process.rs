//! Other programs that are asked for facts.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

/// Runs a program in a folder and returns its output.
pub(crate) fn output(folder: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let what = || format!("{program} {}", arguments.join(" "));
    let done = Command::new(program).args(arguments).current_dir(folder).output().with_context(what)?;
    anyhow::ensure!(done.status.success(), "{}: {}", what(), String::from_utf8_lossy(&done.stderr).trim());
    String::from_utf8(done.stdout).with_context(what)
}

/// The cargo that runs this program, or that of the search path.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
