//! What a kubelet and the processes on a machine see of that machine: its file system, whether it is powered, and which
//! boot of which operating system it runs. The simulated host makes it, the simulated kubelet lives on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// Whether the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// It runs.
    Up,
    /// A shutdown was ordered; the kubelet may delay it for as long as its graceful node shutdown takes.
    ShuttingDown,
    /// It does not run: nothing on it does, and no process on it may answer.
    Down,
}

/// The facts about a machine that change with a reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// Whether it runs.
    pub power: Power,
    /// The running (or last) boot, as in `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// What `os-release` calls the running image, e.g. `Bottlerocket OS 1.20.0 (aws-k8s-1.30)`: Kubernetes' `osImage`.
    pub os_image: String,
}

/// One machine as the kubelet on it sees it.
#[derive(Clone, Debug)]
pub struct Machine {
    name: String,
    root: PathBuf,
    state: watch::Receiver<MachineState>,
    shutdown_released: Arc<Notify>,
}

impl Machine {
    /// A machine whose file system stands under `root` and whose state `state` follows. `shutdown_released` is told when
    /// the kubelet no longer delays a shutdown.
    pub fn new(
        name: impl Into<String>,
        root: PathBuf,
        state: watch::Receiver<MachineState>,
        shutdown_released: Arc<Notify>,
    ) -> Self {
        Self { name: name.into(), root, state, shutdown_released }
    }

    /// The machine's name, which is also its Node's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the machine's `/` stands on the machine that runs the test bed. Host paths of pods are resolved below it:
    /// the host API's socket is `<root>/run/api.sock`, the boot id `<root>/proc/sys/kernel/random/boot_id`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The state now and each change of it.
    pub fn state(&self) -> watch::Receiver<MachineState> {
        self.state.clone()
    }

    /// Tells the machine that a shutdown in progress is no longer delayed (systemd's inhibitor lock is let go).
    pub fn release_shutdown(&self) {
        self.shutdown_released.notify_one();
    }
}
