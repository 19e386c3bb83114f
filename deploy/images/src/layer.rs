//! The one layer of an image.

use flate2::{Compression, GzBuilder};

use crate::digest::sha256;

/// The file with the licenses.
pub const LICENSES: &str = "licenses.txt";
/// The file with the list of what the program is linked from. Scanners know the ending.
pub const SBOM: &str = "sbom.spdx.json";

/// Files as a compressed archive.
pub(crate) struct Layer {
    pub(crate) compressed: Vec<u8>,
    /// SHA-256 of the archive before its compression.
    pub(crate) diff_id: String,
}

impl Layer {
    /// Packs files, each a name, a mode and content. All belong to root, and no user may write them.
    pub(crate) fn new(epoch: u64, files: &[(&str, u32, &[u8])]) -> anyhow::Result<Self> {
        let archive = archive(epoch, files)?;
        // A header without a time and without the name of a system.
        let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
        std::io::Write::write_all(&mut encoder, &archive)?;
        Ok(Self { compressed: encoder.finish()?, diff_id: sha256(&archive) })
    }
}

/// Returns files as an archive without anything of the machine that made it.
pub(crate) fn archive(epoch: u64, files: &[(&str, u32, &[u8])]) -> anyhow::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, mode, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(epoch);
        builder.append_data(&mut header, name, *content)?;
    }
    Ok(builder.into_inner()?)
}
