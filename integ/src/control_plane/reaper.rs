//! Clean-up of a test cluster. Every process of it has the folder of the test cluster in its environment, and a small
//! separate process, the reaper, holds the other end of a pipe from the program that started it. However that program
//! ends, also by SIGKILL, the pipe closes, and the reaper ends all marked processes and removes the folder.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::process::Command;

/// Environment variable of every process of a test cluster; its value is the folder of the test cluster.
pub const RUN_DIRECTORY_VARIABLE: &str = "BRUPOP_RUN_DIRECTORY";

/// Marks a process as part of the test cluster in `bed` and puts it into its own process group, so that a Ctrl-C in the
/// terminal reaches only the program that started the test cluster. Call it after the command's environment is cleared.
pub fn marked<'a>(command: &'a mut Command, bed: &Path) -> &'a mut Command {
    command.env(RUN_DIRECTORY_VARIABLE, bed).process_group(0)
}

/// The ids of all running processes that are marked as parts of the test cluster `bed`.
pub fn processes_of(bed: &Path) -> io::Result<Vec<u32>> {
    let mark = [RUN_DIRECTORY_VARIABLE, "=", &bed.to_string_lossy()].concat();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The process has ended meanwhile or belongs to another user.
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else {
            continue;
        };
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// The reaper's script. `$1` is the mark, `$2` the folder, or empty to keep it. A stopped process gets its SIGTERM
/// before its SIGCONT, so that it does nothing else in between; a process that has not ended after about a second is
/// killed. Processes started meanwhile are found by the next round.
const SCRIPT: &str = r#"
trap '' HUP INT TERM QUIT
while read -r line; do :; done
marked() { grep -lszxF "$1" /proc/[0-9]*/environ; }
signal() {
  for file in $processes; do
    pid=${file#/proc/}
    kill -s "$1" "${pid%/environ}" 2>/dev/null
  done
}
round=0
while processes=$(marked "$1"); [ -n "$processes" ] && [ $round -lt 400 ]; do
  if [ $round -eq 0 ]; then signal TERM; signal CONT
  elif [ $round -ge 20 ]; then signal KILL
  fi
  round=$((round + 1))
  sleep 0.05 2>/dev/null || sleep 1
done
[ -z "$2" ] || rm -rf -- "$2" 2>/dev/null || { sleep 1; rm -rf -- "$2"; }
"#;

/// Longest wait for the reaper in an orderly stop. It needs a tenth of a second, and a second more where a process has
/// to be killed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The folder of a test cluster and its reaper.
#[derive(Debug)]
pub(super) struct RunDirectory {
    folder: PathBuf,
    reaper: Child,
}

impl RunDirectory {
    /// Creates a private folder with a short path (the sockets below it must be shorter than 108 characters), and its
    /// reaper.
    pub(super) fn make(keep: bool) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("brupop-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in("/tmp")
            .context("cannot make a folder under /tmp")?;
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", SCRIPT, "reaper"])
            .arg(format!("{RUN_DIRECTORY_VARIABLE}={}", folder.path().display()))
            .arg(if keep { Path::new("") } else { folder.path() })
            .env_clear()
            .env("PATH", search_path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let reaper = command.spawn().context("cannot start `sh`, which cleans up after the test bed")?;
        Ok(Self { folder: folder.keep(), reaper })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.reaper.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                tracing::warn!(bed = %self.folder.display(), "the reaper is still at work");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The search path for processes with a cleared environment.
pub(super) fn search_path() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(bed: &Path, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        marked(&mut command, bed);
        command.into_std().spawn().unwrap()
    }

    #[test]
    fn dropped_run_directory_kills_processes_that_ignore_sigterm_or_are_stopped() {
        let bed = RunDirectory::make(false).unwrap();
        let folder = bed.folder().to_owned();
        let mut stubborn = sleeper(&folder, "trap '' TERM; echo > $BRUPOP_RUN_DIRECTORY/deaf; sleep 1000");
        let mut stopped = sleeper(&folder, "kill -s STOP $$");
        while !folder.join("deaf").exists() {
            std::thread::yield_now();
        }
        assert!(processes_of(&folder).unwrap().len() >= 2);
        drop(bed);
        assert!(!folder.exists());
        assert!(!stubborn.wait().unwrap().success());
        assert!(!stopped.wait().unwrap().success());
        assert_eq!(processes_of(&folder).unwrap(), Vec::<u32>::new());
    }

    #[test]
    fn dropped_run_directory_keeps_processes_of_other_directories() {
        let (one, other) = (RunDirectory::make(false).unwrap(), RunDirectory::make(false).unwrap());
        let mut process = sleeper(other.folder(), "sleep 1000");
        drop(one);
        assert!(process.try_wait().unwrap().is_none());
        drop(other);
        assert!(!process.wait().unwrap().success());
    }

    #[test]
    fn run_directory_is_kept_when_requested() {
        let bed = RunDirectory::make(true).unwrap();
        let folder = bed.folder().to_owned();
        drop(bed);
        assert!(folder.exists());
        std::fs::remove_dir(folder).unwrap();
    }
}
