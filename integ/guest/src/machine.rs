//! A machine as its kubelet and processes see it: its file system, its power state, and the boot and operating system
//! that it runs. The simulated host creates it; the kubelet stand-in runs on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Notify, watch};

/// Power state of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Running.
    Up,
    /// Shutting down; the kubelet may delay the shutdown for as long as its graceful node shutdown takes.
    ShuttingDown,
    /// Off: nothing runs on the machine, and no process on it may answer.
    Down,
}

/// The facts about a machine that change with a reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineState {
    /// Power state.
    pub power: Power,
    /// The running (or last) boot, as in `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Name of the running image in `os-release`, e.g. `Bottlerocket OS 1.20.0 (aws-k8s-1.30)`: Kubernetes' `osImage`.
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
    /// Creates a machine with its file system under `root` and the state in `state`. `shutdown_released` is notified
    /// when the kubelet no longer delays a shutdown.
    pub fn new(
        name: impl Into<String>,
        root: PathBuf,
        state: watch::Receiver<MachineState>,
        shutdown_released: Arc<Notify>,
    ) -> Self {
        Self { name: name.into(), root, state, shutdown_released }
    }

    /// The name of the machine and of its Node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder of the machine's `/` on the machine that runs the test bed. Host paths of pods are resolved below it:
    /// the host API's socket is `<root>/run/api.sock`, the boot id `<root>/proc/sys/kernel/random/boot_id`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The current state and each change of it.
    pub fn state(&self) -> watch::Receiver<MachineState> {
        self.state.clone()
    }

    /// Releases a shutdown in progress (systemd's inhibitor lock).
    pub fn release_shutdown(&self) {
        self.shutdown_released.notify_one();
    }
}
