//! The boot flags on a raw device: one block with [`Disk`] as JSON, the rest of it zeros.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail, ensure};

use crate::host::disk::{Disk, SetName};

/// Size of the block, in bytes. The JSON fits in its first sector, which a disk writes whole or not at all.
const BLOCK: usize = 4096;

/// Size of a disk for the flags, in bytes.
const DEVICE: u64 = 64 * 1024;

/// Reads the flags.
///
/// # Errors
/// The device cannot be read, is empty, or was written in part.
pub fn read(device: &Path) -> anyhow::Result<Disk> {
    let mut block = Vec::with_capacity(BLOCK);
    let file = File::open(device).with_context(|| format!("opening {}", device.display()))?;
    let limit = u64::try_from(BLOCK).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut block).with_context(|| format!("reading {}", device.display()))?;
    let end = block.iter().position(|byte| *byte == 0).unwrap_or(block.len());
    let (json, padding) = block.split_at(end);
    ensure!(!json.is_empty(), "{} has no boot flags: it is empty", device.display());
    let torn =
        || format!("{} has no whole boot flags: it was written in part, or by another program", device.display());
    if padding.iter().any(|byte| *byte != 0) {
        bail!(torn());
    }
    serde_json::from_slice(json).with_context(torn)
}

/// Writes the flags, and returns when they are on the disk.
///
/// # Errors
/// The device cannot be written.
pub fn write(device: &Path, disk: &Disk) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).open(device).with_context(|| format!("opening {}", device.display()))?;
    put(file, disk).with_context(|| format!("writing {}", device.display()))
}

/// Makes the file of a new disk with these flags.
///
/// # Errors
/// The file cannot be written.
pub fn create(path: &Path, disk: &Disk) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
    let file = file.with_context(|| format!("making {}", path.display()))?;
    file.set_len(DEVICE).with_context(|| format!("making {}", path.display()))?;
    put(file, disk).with_context(|| format!("writing {}", path.display()))
}

fn put(mut file: File, disk: &Disk) -> anyhow::Result<()> {
    let mut block = serde_json::to_vec(disk)?;
    // A zero after the JSON ends it.
    ensure!(block.len() < BLOCK, "the boot flags have {} bytes", block.len());
    block.resize(BLOCK, 0);
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&block)?;
    Ok(file.sync_all()?)
}

/// Chooses the set to boot as GRUB does, which spends one of its tries.
///
/// # Errors
/// No set boots, or the device cannot be read or written.
pub fn boot(device: &Path) -> anyhow::Result<SetName> {
    let mut disk = read(device)?;
    let Some(set) = disk.boot() else { bail!("no partition set boots: {}", serde_json::to_string(&disk)?) };
    write(device, &disk)?;
    Ok(set)
}

/// Marks the running set successful, at the end of a good boot.
///
/// # Errors
/// The device cannot be read or written.
pub fn mark_successful(device: &Path) -> anyhow::Result<()> {
    let mut disk = read(device)?;
    disk.mark_successful_boot();
    write(device, &disk)
}

#[cfg(test)]
mod tests {
    use semver::Version;

    use super::*;

    fn new_disk() -> (tempfile::TempDir, std::path::PathBuf, Disk) {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("flags");
        let disk = Disk::installed(Version::new(1, 20, 0));
        create(&device, &disk).unwrap();
        (folder, device, disk)
    }

    /// A disk whose set B is armed.
    fn armed(device: &Path) -> Disk {
        let mut disk = read(device).unwrap();
        disk.write_inactive(Version::new(1, 20, 5));
        disk.upgrade_to_inactive().unwrap();
        write(device, &disk).unwrap();
        disk
    }

    #[test]
    fn flags_are_read_as_written_from_padded_device() {
        let (_folder, device, disk) = new_disk();
        assert_eq!(read(&device).unwrap(), disk);
        let armed = armed(&device);
        assert_eq!(read(&device).unwrap(), armed);
        // Shorter flags leave nothing of longer ones.
        write(&device, &disk).unwrap();
        assert_eq!(read(&device).unwrap(), disk);
        assert_eq!(std::fs::metadata(&device).unwrap().len(), DEVICE);
    }

    #[test]
    fn flags_of_long_versions_fit_one_sector() {
        let version = Version::parse("100.200.300-aws.k8s.1.37.12345678+abcdef0123456789").unwrap();
        let mut disk = Disk::installed(version.clone());
        disk.write_inactive(version);
        assert!(serde_json::to_vec(&disk).unwrap().len() < 512);
    }

    #[test]
    fn empty_and_torn_devices_are_one_clear_error() {
        let (_folder, device, disk) = new_disk();
        let json = serde_json::to_vec(&disk).unwrap();
        let mut followed = json.clone();
        followed.extend_from_slice(b"\0rest");
        let torn = "has no whole boot flags";
        for (content, expected) in [
            (Vec::new(), "has no boot flags"),
            (vec![0; 65536], "has no boot flags"),
            (json[..json.len() / 2].to_vec(), torn),
            (b"{}".to_vec(), torn),
            (followed, torn),
        ] {
            std::fs::write(&device, &content).unwrap();
            let before = std::fs::read(&device).unwrap();
            for result in [read(&device).map(drop), boot(&device).map(drop), mark_successful(&device)] {
                let error = format!("{:#}", result.unwrap_err());
                assert!(error.contains(expected) && error.contains("flags"), "{error}");
            }
            assert_eq!(std::fs::read(&device).unwrap(), before);
        }
    }

    #[test]
    fn boot_spends_try_and_falls_back() {
        let (_folder, device, _) = new_disk();
        armed(&device);
        assert_eq!(boot(&device).unwrap(), SetName::B);
        let tried = read(&device).unwrap();
        assert_eq!((tried.active, tried.b.tries_left), (SetName::B, 0));
        // Nothing marked it successful.
        assert_eq!(boot(&device).unwrap(), SetName::A);
        assert_eq!(read(&device).unwrap().active, SetName::A);
    }

    #[test]
    fn successful_boot_is_kept() {
        let (_folder, device, _) = new_disk();
        armed(&device);
        assert_eq!(boot(&device).unwrap(), SetName::B);
        mark_successful(&device).unwrap();
        assert_eq!(boot(&device).unwrap(), SetName::B);
        assert_eq!(boot(&device).unwrap(), SetName::B);
    }

    #[test]
    fn disk_without_bootable_set_is_an_error() {
        let (_folder, device, mut disk) = new_disk();
        disk.a.successful = false;
        write(&device, &disk).unwrap();
        assert!(format!("{:#}", boot(&device).unwrap_err()).starts_with("no partition set boots"));
        assert_eq!(read(&device).unwrap(), disk);
    }
}
