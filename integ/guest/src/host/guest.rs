//! A host on the machine that this process runs on, a virtual one: its update API, with a real disk, the kernel's boot
//! id, and a command that reboots.

pub mod flags;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use semver::Version;
use tokio::sync::{broadcast, mpsc};

use crate::machine::Power;

use super::core::Core;
use super::faults::Fault;
use super::hardware::Hardware;
use super::log::{Event, EventKind};
use super::releases::Releases;
use super::server::{Server, Stop};
use super::{HostOptions, Snapshot};

/// Options of a host on a real machine.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Options that a simulated host has too. Its version comes from the flags, and its releases from the folder; the
    /// settings are those of a new machine.
    pub host: HostOptions,
    /// The device with the boot flags.
    pub flags: PathBuf,
    /// The folder of the update repository: each image is a file `VERSION.img`.
    pub releases: PathBuf,
    /// The root device of set A.
    pub root_a: PathBuf,
    /// The root device of set B.
    pub root_b: PathBuf,
    /// The folder for settings and status. It has to survive a reboot.
    pub state: PathBuf,
    /// The file with the boot id.
    pub boot_id: PathBuf,
    /// The program that reboots the machine, and its arguments.
    pub reboot: Vec<String>,
    /// The group that may connect to the socket.
    pub socket_group: u32,
}

/// A host on a real machine. Its API is served until [`Guest::stop`], or until the runtime ends.
#[derive(Debug)]
pub struct Guest {
    core: Arc<Core>,
    server: Server,
    /// The folder of the update repository.
    releases: PathBuf,
}

impl Guest {
    /// Reads flags, state and releases, and serves the API.
    ///
    /// # Errors
    /// One of them cannot be read, the running set has no image, or the socket cannot be bound.
    pub fn start(mut options: GuestOptions) -> anyhow::Result<Self> {
        options.host.check_socket()?;
        let disk = flags::read(&options.flags)?;
        let version = disk.active_set().version.clone();
        options.host.version = version.with_context(|| format!("the running set {:?} has no image", disk.active))?;
        options.host.releases = Releases::of(images(&options.releases)?);
        let (host, releases) = (options.host.clone(), options.releases.clone());
        let hardware = Hardware::new(options)?;
        let (boot_id, new_boot) = (hardware.boot_id.clone(), hardware.new_boot);
        // The machine's power is not in this process: nothing receives orders.
        let core = Arc::new(Core::on(hardware, disk, host, mpsc::unbounded_channel().0));
        core.keep(&core.lock()).map_err(anyhow::Error::msg)?;
        core.machine.send_modify(|machine| {
            machine.boot_id.clone_from(&boot_id);
            machine.power = Power::Up;
        });
        if new_boot {
            // A fall-back shows in the versions of two boots; this process knows only its own.
            let version = core.options.version.clone();
            core.note(EventKind::Booted { boot_id, version, fell_back: false });
        }
        let server = Server::start(core.clone())?;
        Ok(Self { core, server, releases })
    }

    /// Subscribes to new events.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.core.log.subscribe()
    }

    /// Offers also the images that have appeared in the repository since.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn look_for_releases(&self) -> anyhow::Result<()> {
        for version in images(&self.releases)? {
            self.core.options.releases.publish(version);
        }
        Ok(())
    }

    /// The events of this process, in order.
    pub fn events(&self) -> Vec<Event> {
        self.core.log.all()
    }

    /// Injects a fault. A fault of a boot has no effect.
    pub fn script(&self, fault: Fault) {
        self.core.lock().script.add(fault);
    }

    /// Lets a command with [`super::Worker::Waits`] end.
    pub fn release_command(&self) {
        self.core.release();
    }

    /// Waits until no command holds the update lock.
    pub async fn lock_free(&self) {
        // The sender lives as long as this handle.
        let _ = self.core.locked.subscribe().wait_for(|locked| !locked).await;
    }

    /// The current state of the host.
    pub fn snapshot(&self) -> Snapshot {
        self.core.snapshot()
    }

    /// Ends the API server and removes its socket.
    pub async fn stop(self) {
        self.server.stop(&self.core, Stop::Clean).await;
    }
}

/// The versions of the images in a folder.
fn images(folder: &Path) -> anyhow::Result<Vec<Version>> {
    let reading = || format!("reading the releases in {}", folder.display());
    let mut versions = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(reading)? {
        let name = entry.with_context(reading)?.file_name();
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".img")) else { continue };
        match Version::parse(stem) {
            Ok(version) => versions.push(version),
            Err(error) => {
                tracing::debug!(%error, file = %name.display(), "image without a version in its name ignored");
            }
        }
    }
    Ok(versions)
}
