//! The id of the running boot.

use std::path::Path;

/// An error while reading the boot id.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootIdError {
    /// The file cannot be read.
    #[error("cannot read the boot id")]
    Read(#[source] std::io::Error),
    /// The file holds no boot id.
    #[error("the boot id file holds no boot id")]
    Malformed,
}

/// Maximum length of a boot id that the shadow can hold.
const LONGEST: usize = 64;

/// Reads the id that the kernel gives the running boot.
pub(crate) fn read(file: &Path) -> Result<String, BootIdError> {
    let text = std::fs::read_to_string(file).map_err(BootIdError::Read)?;
    let id = text.trim();
    if id.is_empty() || id.len() > LONGEST || id.contains(char::is_whitespace) {
        return Err(BootIdError::Malformed);
    }
    Ok(id.to_owned())
}
