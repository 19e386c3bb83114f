//! The machine below the API of a real host: its disk, the files that outlive its API server, and its power.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use semver::Version;
use serde::{Deserialize, Serialize};

use super::disk::{Disk, SetName};
use super::guest::{GuestOptions, flags};
use super::settings::{SettingsStore, UpdatesSettings};
use super::state::UpdateStatus;

/// Size of one write to a root device, in bytes.
const CHUNK: usize = 1024 * 1024;

/// The state that a restart of the API server does not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The data store.
    pub(super) settings: SettingsStore,
    pub(super) boot: KeptBoot,
}

/// The files under `/run` and `/etc`, which a reboot removes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptBoot {
    /// The status file.
    pub(super) status: Option<UpdateStatus>,
    /// The tools' configuration.
    pub(super) effective: UpdatesSettings,
}

/// The file with the kept state.
#[derive(Serialize, Deserialize)]
struct KeptFile {
    boot_id: String,
    #[serde(flatten)]
    kept: Kept,
}

/// A command to reboot that failed.
#[derive(Debug)]
pub(super) struct RebootFailure {
    /// Exit code, or the number of the signal that ended the command.
    pub(super) code: i32,
    pub(super) stderr: String,
}

/// A real machine.
#[derive(Debug)]
pub(super) struct Hardware {
    options: GuestOptions,
    pub(super) boot_id: String,
    /// True in the first process of this boot.
    pub(super) new_boot: bool,
    /// The kept state as it was read or last written.
    kept: Mutex<Option<Kept>>,
}

impl Hardware {
    /// The machine in this boot, with the state that it kept.
    pub(super) fn new(options: GuestOptions) -> anyhow::Result<Self> {
        let boot_id = std::fs::read_to_string(&options.boot_id)
            .with_context(|| format!("reading the boot id from {}", options.boot_id.display()))?;
        let boot_id = boot_id.trim().to_owned();
        std::fs::create_dir_all(&options.state).with_context(|| format!("making {}", options.state.display()))?;
        let path = file(&options);
        let mut new_boot = true;
        let kept = match std::fs::read(&path) {
            Ok(content) => {
                let file: KeptFile =
                    serde_json::from_slice(&content).with_context(|| format!("reading {}", path.display()))?;
                new_boot = file.boot_id != boot_id;
                Some(of_boot(file, &boot_id))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        Ok(Self { options, boot_id, new_boot, kept: Mutex::new(kept) })
    }

    /// The kept state; `None` on a new machine.
    pub(super) fn kept(&self) -> Option<Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the state, if it has changed, and returns when it is on the disk.
    pub(super) fn keep(&self, kept: Kept) -> Result<(), String> {
        let mut last = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(&kept) {
            let file = KeptFile { boot_id: self.boot_id.clone(), kept: kept.clone() };
            self.replace(&file).map_err(|error| format!("{error:#}"))?;
            *last = Some(kept);
        }
        Ok(())
    }

    /// Writes a temporary file and renames it: after a power cut there is the old state or the new one.
    fn replace(&self, kept: &KeptFile) -> anyhow::Result<()> {
        let path = file(&self.options);
        let fresh = path.with_extension("new");
        let write = || -> anyhow::Result<()> {
            let mut file = File::create(&fresh)?;
            file.write_all(&serde_json::to_vec(kept)?)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)?;
            Ok(File::open(&self.options.state)?.sync_all()?)
        };
        write().with_context(|| format!("writing {}", path.display()))
    }

    pub(super) fn read_flags(&self) -> Result<Disk, String> {
        flags::read(&self.options.flags).map_err(|error| format!("{error:#}"))
    }

    pub(super) fn write_flags(&self, disk: &Disk) -> Result<(), String> {
        flags::write(&self.options.flags, disk).map_err(|error| format!("{error:#}"))
    }

    /// Writes the image of a version to a set, and returns when all of it is on the disk. The set has been cleared.
    pub(super) fn write_image(&self, set: SetName, version: &Version) -> Result<(), String> {
        let image = self.options.releases.join(format!("{version}.img"));
        let device = match set {
            SetName::A => &self.options.root_a,
            SetName::B => &self.options.root_b,
        };
        copy(&image, device).map_err(|error| format!("{error:#}"))
    }

    /// Runs the command that reboots the machine, and returns when it has accepted.
    pub(super) fn reboot(&self) -> Result<(), RebootFailure> {
        let cannot_start = |stderr: String| RebootFailure { code: 1, stderr };
        let Some((program, arguments)) = self.options.reboot.split_first() else {
            return Err(cannot_start("no command to reboot with".to_owned()));
        };
        let ended = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).output();
        let output = ended.map_err(|error| cannot_start(format!("{program}: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        let code = output.status.code().or(output.status.signal()).unwrap_or(1);
        Err(RebootFailure { code, stderr: String::from_utf8_lossy(&output.stderr).into_owned() })
    }

    /// Lets the group of the API's clients connect to the socket.
    pub(super) fn admit_group(&self, socket: &Path) -> anyhow::Result<()> {
        let group = self.options.socket_group;
        chown(socket, None, Some(group)).with_context(|| format!("giving {} to group {group}", socket.display()))?;
        std::fs::set_permissions(socket, Permissions::from_mode(0o660))
            .with_context(|| format!("setting the mode of {}", socket.display()))
    }
}

fn file(options: &GuestOptions) -> PathBuf {
    options.state.join("host.json")
}

/// Drops of the kept state what a reboot removes, if it is of an earlier boot.
fn of_boot(file: KeptFile, boot_id: &str) -> Kept {
    let KeptFile { boot_id: earlier, mut kept } = file;
    if earlier != boot_id {
        kept.settings.forget_pending();
        kept.boot = KeptBoot { status: None, effective: kept.settings.committed().clone() };
    }
    kept
}

fn copy(image: &Path, device: &Path) -> anyhow::Result<()> {
    let mut from = File::open(image).with_context(|| format!("opening {}", image.display()))?;
    let to = OpenOptions::new().write(true).open(device);
    let mut to = to.with_context(|| format!("opening {}", device.display()))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let length = from.read(&mut chunk).with_context(|| format!("reading {}", image.display()))?;
        let Some(read) = chunk.get(..length).filter(|read| !read.is_empty()) else { break };
        to.write_all(read).with_context(|| format!("writing {}", device.display()))?;
    }
    to.sync_all().with_context(|| format!("writing {}", device.display()))
}
