//! Other programs that are asked for facts.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

/// Variables of git's hooks. With them, git reads and changes another repository than that of its folder.
const REPOSITORY: [&str; 6] =
    ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"];

/// Returns the command that runs a program in a folder.
pub(crate) fn command(folder: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    for variable in REPOSITORY {
        command.env_remove(variable);
    }
    command
}

/// Runs a program in a folder and returns its output.
pub(crate) fn output(folder: &Path, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let what = || format!("{program} {}", arguments.join(" "));
    let done = command(folder, program).args(arguments).output().with_context(what)?;
    anyhow::ensure!(done.status.success(), "{}: {}", what(), String::from_utf8_lossy(&done.stderr).trim());
    String::from_utf8(done.stdout).with_context(what)
}

/// The cargo that runs this program, or that of the search path.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
