//! Containers as local processes: start, lookup and end.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use tokio::process::{Child, Command};

use crate::control_plane::marked;

/// A running process of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProcess {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid.
    pub uid: String,
    /// The container's name.
    pub container: String,
    /// The id of the process and of its process group.
    pub pid: u32,
    /// The container's image.
    pub image: String,
}

/// The processes of one boot of a node. Once closed it starts no more, as on a machine without power.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    state: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    closed: bool,
    containers: BTreeMap<u32, PodProcess>,
    /// Probes: ended with the rest, but not containers.
    helpers: Vec<u32>,
}

/// Command, arguments and environment of a process.
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: PathBuf,
    pub(crate) log: Option<PathBuf>,
}

impl Processes {
    /// Starts a container's process and sets the pid in `who`.
    pub(crate) fn start(&self, bed: &Path, launch: &Launch, mut who: PodProcess) -> Result<Child> {
        let mut state = self.state.lock();
        let (child, pid) = spawn(&state, bed, launch)?;
        who.pid = pid;
        state.containers.insert(pid, who);
        Ok(child)
    }

    /// Starts a probe.
    pub(crate) fn start_helper(&self, bed: &Path, launch: &Launch) -> Result<Child> {
        let mut state = self.state.lock();
        let (child, pid) = spawn(&state, bed, launch)?;
        state.helpers.push(pid);
        Ok(child)
    }

    /// Waits for a process to end, ends its remaining children, and removes it from the list.
    pub(crate) async fn wait(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let pid = child.id();
        let status = child.wait().await;
        if let Some(pid) = pid {
            signal_group(pid, Signal::SIGKILL);
            self.forget(pid);
        }
        status
    }

    pub(crate) fn forget(&self, pid: u32) {
        let mut state = self.state.lock();
        state.containers.remove(&pid);
        state.helpers.retain(|p| *p != pid);
    }

    pub(crate) fn list(&self) -> Vec<PodProcess> {
        self.state.lock().containers.values().cloned().collect()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Ends every process at once, and starts none from now on.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for pid in state.containers.keys().chain(&state.helpers) {
            signal_group(*pid, Signal::SIGKILL);
        }
        state.containers.clear();
        state.helpers.clear();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.close();
    }
}

fn spawn(state: &Running, bed: &Path, launch: &Launch) -> Result<(Child, u32)> {
    if state.closed {
        bail!("the machine does not run");
    }
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).env_clear().envs(launch.env.iter().map(|(k, v)| (k, v)));
    command.current_dir(&launch.directory).stdin(Stdio::null()).kill_on_drop(true);
    marked(&mut command, bed);
    match &launch.log {
        Some(path) => {
            let log =
                File::options().create(true).append(true).open(path).with_context(|| path.display().to_string())?;
            command.stderr(log.try_clone()?).stdout(log);
        }
        None => {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
    }
    let child = command.spawn().with_context(|| format!("cannot start {}", launch.program.display()))?;
    let pid = child.id().context("the process ended before it had an id")?;
    Ok((child, pid))
}

/// Signals a process and its children. A group that has ended needs no signal.
pub(crate) fn signal_group(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        let _ = killpg(Pid::from_raw(pid), signal);
    }
}
