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

pub use commit::{Commit, origin};
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
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let homes = [variable("CARGO_HOME"), std::env::home_dir().map(|home| home.join(".cargo"))];
    let targets = [variable("CARGO_TARGET_DIR"), Some(root.join("target"))];
    let unreadable = || format!("{} cannot be read", root.display());
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(root).with_context(unreadable)? {
        let member = entry.with_context(unreadable)?;
        if member.path().join("Cargo.toml").is_file() {
            // Of a source file, and of a file beside the package.
            sources.extend(["src", ".."].map(|below| Path::new(&member.file_name()).join(below)));
        }
    }
    let mut folders = below([Some(root.to_owned())], &sources);
    folders.extend(below(homes, &["registry", "git"]));
    folders.extend(below(targets, &["release", "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]));
    // Not the whole toolchain: that of a distribution is in /usr.
    folders.extend(below([Some(toolchain::sysroot(root)?)], &["lib/rustlib"]));
    Ok(folders)
}

/// Returns what a program can name in folders, also as they are without symbolic links. The folders alone would be found
/// in correct programs: `/src` is a part of `/cargo/registry/src`.
fn below(folders: impl IntoIterator<Item = Option<PathBuf>>, names: &[impl AsRef<Path>]) -> Vec<PathBuf> {
    let all = folders.into_iter().flatten().flat_map(|folder| [folder.canonicalize().ok(), Some(folder)]).flatten();
    let may_be_named = |folder: &Path| folder.parent().is_none() || NAMES.iter().any(|name| folder == Path::new(name));
    let all = all.filter(|folder| folder.is_absolute() && !may_be_named(folder));
    all.flat_map(|folder| names.iter().map(move |name| folder.join(name))).collect()
}

fn created(epoch: u64) -> anyhow::Result<String> {
    let seconds = i64::try_from(epoch).context("the time of the images is too late")?;
    Ok(jiff::Timestamp::from_second(seconds).context("the time of the images is too late")?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_with_short_names_are_found_where_they_are_named_alone() {
        let correct = "/cargo/registry/src/index.crates.io-1/kube-runtime-3.0.0/src/controller/mod.rs controller/src/main.rs \
                       /brupop/agent/src/main.rs /target/release/build/a/out /rustc/59807616/library/core/src/lib.rs";
        let program = |text: &str| Program { bytes: text.as_bytes().to_vec(), architecture: "amd64" };
        for folder in ["/src", "/opt", "/", "/brupop", "/cargo", "/target"] {
            let some = || [Some(PathBuf::from(folder))];
            let mut folders = below(some(), &["controller/src", "agent/src", "agent/.."]);
            folders.extend(below(some(), &["registry", "git"]));
            folders.extend(below(some(), &["release", "x86_64-unknown-linux-gnu"]));
            program(correct).names_none_of(&folders).unwrap();
            for wrong in ["agent/src/main.rs", "agent/../a.txt", "registry/src/a", "release/build/a/out"] {
                let refused = program(&format!("{folder}/{wrong}")).names_none_of(&folders).is_err();
                assert_eq!(refused, matches!(folder, "/src" | "/opt"), "{folder}/{wrong}");
            }
        }
    }

    #[test]
    fn sources_and_built_files_of_this_checkout_and_of_this_toolchain_are_refused() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let folders = machine_folders(root).unwrap();
        let toolchain = toolchain::sysroot(root).unwrap().join("lib/rustlib/src/rust/library/core/src/cell.rs");
        for (place, is_refused) in [
            (root.join("agent/src/main.rs"), true),
            (root.join("deploy/../LICENSE-MIT"), true),
            (root.join("target/release/build/a/out/b.rs"), true),
            (toolchain, true),
            ("/rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/core/src/cell.rs".into(), false),
        ] {
            let bytes = place.to_str().unwrap().as_bytes().to_vec();
            let found = Program { bytes, architecture: "amd64" }.names_none_of(&folders);
            assert_eq!(found.is_err(), is_refused, "{place:?}");
        }
    }
}
