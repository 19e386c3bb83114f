//! The programs as OCI images: each a static program, the licenses and the list of what it is linked from, and nothing
//! else. The same program, sources and options give the same bytes.

mod commit;
mod component;
mod crates;
mod digest;
mod layer;
mod layout;
mod licenses;
mod process;
mod program;
mod reference;
mod sbom;
mod toolchain;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub use commit::{Commit, FIXED_EPOCH, origin};
pub use layer::{LICENSES, SBOM};
pub use layout::USER;
pub use program::Program;
pub use reference::qualified;
pub use toolchain::std_sources;

/// Options of all images of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The repository's root.
    pub root: PathBuf,
    /// Folder that the archives are written to.
    pub output: PathBuf,
    /// Registry and path in front of the images' names, such as `registry.example/brupop`; absent: bare names.
    pub registry: Option<String>,
    /// Tag of the images.
    pub tag: String,
    /// Commit that the programs were built from, if it is known.
    pub revision: Option<String>,
    /// Seconds since 1970 of everything in the images that has a time.
    pub epoch: u64,
}

/// An image that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Full name with the tag.
    pub reference: String,
    /// Digest of the manifest, by which a registry knows the image.
    pub digest: String,
    /// Bytes of the program.
    pub program: usize,
    /// Bytes of all blobs, which is what a node downloads.
    pub download: usize,
    /// The archive.
    pub archive: PathBuf,
}

/// Writes the image of a program as an OCI layout in a tar archive, `OUTPUT/PROGRAM.tar`.
pub fn pack(options: &Options, path: &Path) -> anyhow::Result<Packed> {
    let name = path.file_name().and_then(|name| name.to_str()).context("the program's file has no name")?;
    let reference = qualified(options.registry.as_deref(), name, &options.tag)?;
    let program = Program::read(path)?;
    program.names_none_of(&machine_folders(&options.root)?)?;
    let package = crates::package(&options.root, name, program.triple())?;
    let components = package.linked()?;
    let created = created(options.epoch)?;
    let licenses = licenses::expression(&components);
    let subject =
        sbom::Subject { name, package: &package, licenses: &licenses, created: &created, program: &program.bytes };
    let layer = layer::Layer::new(
        options.epoch,
        &[
            (name, 0o555, &program.bytes),
            (LICENSES, 0o444, licenses::text(name, &options.root, &components)?.as_bytes()),
            (SBOM, 0o444, sbom::document(&subject, &components)?.as_bytes()),
        ],
    )?;
    let image = layout::Image {
        name,
        title: &package.description,
        version: &package.version,
        licenses: &licenses,
        revision: options.revision.as_deref(),
        created: &created,
        architecture: program.architecture,
        reference: &reference,
        tag: &options.tag,
    };
    let layout = image.layout(&layer)?;
    let archive = options.output.join(format!("{name}.tar"));
    layout.write(&archive, options.epoch)?;
    Ok(Packed { reference, digest: layout.digest(), program: program.bytes.len(), download: layout.size(), archive })
}

/// Folders that programs name in place of those of the machine that built them (`build.sh`).
const NAMES: [&str; 3] = ["/brupop", "/cargo", "/target"];

/// Returns the folders of this machine that no program may name: with them, the same sources in another folder would be
/// another image.
pub fn machine_folders(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let variables = ["CARGO_HOME", "CARGO_TARGET_DIR"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let home = std::env::home_dir().map(|home| home.join(".cargo"));
    // Not the whole toolchain: that of a distribution is in /usr.
    let std = toolchain::sysroot(root)?.join("lib/rustlib");
    let folders = variables.chain(home).chain([root.to_owned(), std]);
    // Also as they are without symbolic links.
    let folders = folders.flat_map(|folder| [folder.canonicalize().ok(), Some(folder)]).flatten();
    Ok(folders.filter(|folder| folder.is_absolute() && !NAMES.iter().any(|name| folder == Path::new(name))).collect())
}

fn created(epoch: u64) -> anyhow::Result<String> {
    let seconds = i64::try_from(epoch).context("the time of the images is too late")?;
    Ok(jiff::Timestamp::from_second(seconds).context("the time of the images is too late")?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_with_sources_of_this_toolchain_is_refused() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let sysroot = toolchain::sysroot(root).unwrap();
        let place = |folder: &str| Program {
            bytes: format!("{folder}/library/core/src/cell.rs").into_bytes(),
            architecture: "amd64",
        };
        let folders = machine_folders(root).unwrap();
        assert!(place(&format!("{}/lib/rustlib/src/rust", sysroot.display())).names_none_of(&folders).is_err());
        assert!(place("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860").names_none_of(&folders).is_ok());
    }
}
