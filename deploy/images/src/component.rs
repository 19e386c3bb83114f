//! The parts of a program.

use std::path::PathBuf;

/// A part of a program that has a license of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Component {
    /// Name.
    pub(crate) name: String,
    /// Version; empty: unknown.
    pub(crate) version: String,
    /// SPDX expression of the license, or `NOASSERTION`.
    pub(crate) license: String,
    /// SHA-256 of the archive in the registry; absent: a crate of this project, or a part of the toolchain.
    pub(crate) checksum: Option<String>,
    /// Folder of the sources; absent: a part of the toolchain.
    pub(crate) folder: Option<PathBuf>,
    /// Files with the licenses of a part of the toolchain.
    pub(crate) texts: Vec<PathBuf>,
    /// Package URL, which scanners look up.
    pub(crate) purl: Option<String>,
    /// Package of the distribution, or another name of what was built.
    pub(crate) origin: Option<String>,
    /// Name of the component that has this one inside; absent: the program itself.
    pub(crate) within: Option<&'static str>,
}

/// Returns the package URL of a crate of crates.io.
pub(crate) fn cargo_purl(name: &str, version: &str) -> String {
    let version = if version.is_empty() { String::new() } else { format!("@{}", version.replace('+', "%2B")) };
    format!("pkg:cargo/{name}{version}")
}
