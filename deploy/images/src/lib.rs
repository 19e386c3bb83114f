//! The programs as OCI images: each a static program, the licenses and the list of what it is linked from, and nothing
//! else. The same program, sources and options give the same bytes.

mod crates;
mod digest;
mod layer;
mod layout;
mod licenses;
mod process;
mod program;
mod sbom;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub use layer::{LICENSES, SBOM};
pub use layout::{USER, qualified};
pub use program::Program;

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
    let program = Program::read(path)?;
    program.names_none_of(&machine_folders(&options.root))?;
    let package = crates::package(&options.root, name, program.triple())?;
    let components = package.linked()?;
    let created = created(options.epoch)?;
    let subject = sbom::Subject { name, package: &package, created: &created, program: &program.bytes };
    let layer = layer::Layer::new(
        options.epoch,
        &[
            (name, 0o555, &program.bytes),
            (LICENSES, 0o444, licenses::text(name, &options.root, &components)?.as_bytes()),
            (SBOM, 0o444, sbom::document(&subject, &components)?.as_bytes()),
        ],
    )?;
    let reference = qualified(options.registry.as_deref(), name, &options.tag);
    let image = layout::Image {
        name,
        title: &package.description,
        version: &package.version,
        license: &package.license,
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

/// Returns the folders of this machine that no program may name: with them, the same sources in another folder would be
/// another image.
fn machine_folders(root: &Path) -> Vec<PathBuf> {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = std::env::home_dir().map(|home| home.join(".cargo"));
    [std::fs::canonicalize(root).ok(), cargo, home].into_iter().flatten().collect()
}

fn created(epoch: u64) -> anyhow::Result<String> {
    let seconds = i64::try_from(epoch).context("the time of the images is too late")?;
    Ok(jiff::Timestamp::from_second(seconds).context("the time of the images is too late")?.to_string())
}
