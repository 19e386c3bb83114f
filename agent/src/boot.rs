//! The id of the running boot.

use std::path::Path;

use anyhow::Context as _;

/// Maximum length of a boot id that the shadow can hold.
const LONGEST: usize = 64;

/// Reads the id that the kernel gives the running boot.
pub(crate) fn read(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).context("cannot read the boot id")?;
    let id = text.trim();
    let is_id = !id.is_empty() && id.len() <= LONGEST && !id.contains(char::is_whitespace);
    anyhow::ensure!(is_id, "the boot id file holds no boot id");
    Ok(id.to_owned())
}
