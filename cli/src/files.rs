//! Files that are read and written as a whole, some of which only their owner may read.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use anyhow::Context as _;

/// Creates a file; an error if it exists.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().create_new(true))
}

pub(crate) fn read_text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

pub(crate) fn write_text(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// Writes a text into a file, and replaces an existing one.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = open(path, OpenOptions::new().create(true).truncate(true))?;
    // The mode of an existing file is its own so far.
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(MODE))?;
    io::Write::write_all(&mut file, text.as_bytes())
}

#[cfg(unix)]
const MODE: u32 = 0o600;

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, MODE);
    options.write(true).open(path)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn written_files_are_readable_by_their_owner_alone_also_existing_ones() {
        let folder = std::env::temp_dir().join(format!("brupop-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (fresh, existing) = (folder.join("fresh"), folder.join("existing"));
        std::fs::write(&existing, "longer than the text").unwrap();
        std::fs::set_permissions(&existing, PermissionsExt::from_mode(0o644)).unwrap();
        for path in [&fresh, &existing] {
            write_private(path, "text").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "text");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, MODE, "{}", path.display());
        }
        assert!(create_private(&fresh).is_err(), "it exists");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
