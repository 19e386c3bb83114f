//! One process of the control plane: started with its output in a log, watched until it is ready, and ended.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::reaper::{marked, search_path};

/// Interval of polling. Each poll is cheap on loopback.
const POLL: Duration = Duration::from_millis(50);

/// Number of lines of a log in an error.
const TAIL: usize = 20;

/// Reason why a component of the control plane did not start or ended.
#[derive(Debug, thiserror::Error)]
#[error("{part} {what}{advice}\nLast lines of {log}:\n{tail}", log = log.display(), advice = advice(tail))]
pub(super) struct Failure {
    part: &'static str,
    what: String,
    log: PathBuf,
    tail: String,
}

impl Failure {
    /// Returns true if another process took a port between its choice and its use. A start with other ports can
    /// succeed.
    pub(super) fn port_was_taken(&self) -> bool {
        self.tail.contains("address already in use")
    }
}

fn advice(tail: &str) -> &'static str {
    if tail.contains("no space left on device") {
        ". Make room under /tmp."
    } else if tail.contains("too many open files") {
        ". Raise the limit on open files (`ulimit -n`)."
    } else if tail.contains("address already in use") {
        ". Another program took its port; try again."
    } else {
        ". Run again with BRUPOP_KEEP=1 to keep the whole log."
    }
}

/// A running component of the control plane. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `binary` as a component of the test cluster `bed`, in that folder, with a cleared environment.
    pub(super) fn start(name: &'static str, binary: &Path, arguments: &[String], bed: &Path) -> anyhow::Result<Self> {
        let log = bed.join(format!("{name}.log"));
        let output = append(&log)?;
        let mut command = Command::new(binary);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", search_path())
            .env("HOME", bed)
            .env("TMPDIR", bed)
            // Collecting garbage less often costs some memory and saves a fifth of the processor time.
            .env("GOGC", "400")
            .current_dir(bed)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        marked(&mut command, bed);
        let child = command.into_std().spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Self { name, child, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `probe` returns `Ok`; reports its last error otherwise.
    pub(super) async fn ready(
        &mut self,
        patience: Duration,
        mut probe: impl AsyncFnMut() -> Result<(), String>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                return Err(self.failure(format!("ended ({status}) instead of getting ready")).into());
            }
            let seen = match tokio::time::timeout_at(deadline, probe()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(seen)) => seen,
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() >= deadline {
                let seconds = patience.as_secs();
                return Err(self.failure(format!("is not ready after {seconds} s: {seen}")).into());
            }
            sleep(POLL).await;
        }
    }

    /// Terminates the process, kills it after `grace`, and waits for its end.
    pub(super) async fn stop(&mut self, grace: Duration) -> anyhow::Result<()> {
        self.signal(Signal::SIGTERM)?;
        let deadline = Instant::now() + grace;
        while self.ended()?.is_none() {
            if Instant::now() >= deadline {
                tracing::debug!(name = self.name, "does not end; killing it");
                return self.kill();
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Kills the process and waits for its end, which takes milliseconds.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Exit status, if the process has ended.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        // The id belongs to this process until its end has been waited for.
        if self.ended()?.is_none() {
            kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?;
        }
        Ok(())
    }

    fn failure(&self, what: String) -> Failure {
        let tail =
            std::fs::read(&self.log).map(|bytes| last_lines(&String::from_utf8_lossy(&bytes))).unwrap_or_default();
        Failure { part: self.name, what, log: self.log.clone(), tail }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            tracing::warn!(name = self.name, %error, "cannot be killed");
        }
    }
}

fn append(log: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(log)
        .with_context(|| format!("cannot open {}", log.display()))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL);
    lines[from..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(240);

    fn shell(script: &str, bed: &Path) -> Process {
        let arguments = ["-c".to_owned(), script.to_owned()];
        Process::start("part", Path::new("/bin/sh"), &arguments, bed).unwrap()
    }

    #[tokio::test]
    async fn early_exit_error_has_exit_status_and_last_log_lines() {
        let bed = tempfile::tempdir().unwrap();
        let mut process = shell("seq 1 30; echo the disk is full; exit 3", bed.path());
        let error = process.ready(LONG, async || Err("no".to_owned())).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("part ended (exit status: 3)"), "{text}");
        assert!(text.contains("the disk is full"), "{text}");
        assert!(text.contains("BRUPOP_KEEP=1"), "{text}");
        assert_eq!(text.lines().count(), 2 + TAIL, "{text}");
        assert!(!error.downcast_ref::<Failure>().unwrap().port_was_taken());
    }

    #[tokio::test]
    async fn readiness_timeout_error_has_last_probe_error() {
        let bed = tempfile::tempdir().unwrap();
        let mut process = shell("exec sleep 1000", bed.path());
        let text =
            process.ready(Duration::ZERO, async || Err("503 etcd failed".to_owned())).await.unwrap_err().to_string();
        assert!(text.contains("not ready after 0 s: 503 etcd failed"), "{text}");
    }

    #[tokio::test]
    async fn port_in_use_failure_is_detected() {
        let bed = tempfile::tempdir().unwrap();
        let mut process = shell("echo listen tcp: bind: address already in use; exit 1", bed.path());
        let error = process.ready(LONG, async || Err(String::new())).await.unwrap_err();
        assert!(error.downcast_ref::<Failure>().unwrap().port_was_taken());
    }

    #[tokio::test]
    async fn process_that_ignores_sigterm_is_killed_after_grace_period() {
        let bed = tempfile::tempdir().unwrap();
        let mut process = shell("trap '' TERM; echo > deaf; exec sleep 1000", bed.path());
        let deaf = bed.path().join("deaf");
        process.ready(LONG, async || deaf.exists().then_some(()).ok_or_else(String::new)).await.unwrap();
        process.stop(Duration::ZERO).await.unwrap();
        assert!(process.ended().unwrap().is_some());
    }
}
