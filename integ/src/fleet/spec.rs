//! The description of a fleet, which its process reads from a file.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semver::Version;
use serde::{Deserialize, Serialize};

use crate::host::{HostOptions, Releases, Timings};

/// First address of the nodes: 172.16.0.0/12 has a million, which nothing dials.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([172, 16, 0, 1]);

/// Share of a reboot that is the shutdown; the rest is the boot.
const SHUTDOWN: u32 = 5;

/// A fleet and the times of its hosts and pods.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FleetSpec {
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Folder of the hosts' and agents' files. Its path has to be short: there are Unix sockets below it.
    pub folder: PathBuf,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of nodes, the first ones, whose agents run.
    pub agents: usize,
    /// The version that the hosts run at first.
    pub old: Version,
    /// The version that they are offered.
    pub new: Version,
    /// Duration of a download.
    pub download: Duration,
    /// Duration of a reboot: from the call to the host until it is up again.
    pub reboot: Duration,
    /// Time from the binding of a pod until it is Ready.
    pub start: Duration,
    /// Time that a pod takes to end.
    pub termination: Duration,
    /// The kubelets end their pods when their hosts shut down, as they do where a grace period is configured. Otherwise their
    /// containers end with the host, and are restarted after its boot.
    pub graceful: bool,
}

impl FleetSpec {
    /// Reads it from a file.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(file)?)?)
    }

    /// Writes it to a file.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        Ok(std::fs::write(file, serde_json::to_vec(self)?)?)
    }

    /// Name of the node with this number, from 0.
    pub fn node(number: usize) -> String {
        format!("fleet-{number:05}")
    }

    /// Address of the node with this number.
    pub(super) fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::from(FIRST_ADDRESS + u32::try_from(number).unwrap_or_default())
    }

    /// Folder with the trust of all agents.
    pub(super) fn trust(&self) -> PathBuf {
        self.folder.join("trust")
    }

    /// Options of the host with this number.
    pub(super) fn host(&self, number: usize, releases: &Releases) -> HostOptions {
        let root = self.folder.join(number.to_string());
        let mut options = HostOptions::new(Self::node(number), root, self.old.clone(), releases.clone());
        let shutdown = self.reboot / SHUTDOWN;
        options.timings = Timings {
            refresh: Duration::from_millis(500),
            prepare: self.download,
            activate: Duration::from_millis(200),
            deactivate: Duration::from_millis(200),
            shutdown,
            boot: self.reboot - shutdown,
            api_restart: Duration::from_secs(1),
        };
        options
    }
}
