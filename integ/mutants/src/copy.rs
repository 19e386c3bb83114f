//! The copy of the sources that the mutants are written into.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Another version is another package to cargo: what it compiles of the copy is kept beside that of the present sources.
const VERSION: &str = "0.4.0";

/// A copy of a workspace. A file that is the same keeps its time, so that only the changed ones are compiled.
pub struct Copy {
    pub source: PathBuf,
}

impl Copy {
    /// Copies the workspace at this root, without what is built, the history, and the files that are written later.
    pub fn of(root: &Path, to: PathBuf, later: &BTreeSet<PathBuf>) -> Result<Self> {
        fs::create_dir_all(&to)?;
        let copy = Self { source: to };
        let mut files = BTreeSet::new();
        list(root, Path::new(""), &mut files)?;
        let of_version = ["Cargo.toml", "Cargo.lock"].map(PathBuf::from);
        for file in files.iter().filter(|file| !later.contains(*file) && !of_version.contains(file)) {
            copy.write(file, &fs::read(root.join(file))?)?;
        }
        let mut there = BTreeSet::new();
        list(&copy.source, Path::new(""), &mut there)?;
        for file in there.difference(&files) {
            fs::remove_file(copy.source.join(file))?;
        }
        let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
        let version = manifest.lines().find(|line| line.starts_with("version = "));
        let version = version.context("Cargo.toml has no version")?;
        let new = format!("version = \"{VERSION}\"");
        ensure!(version != new, "the workspace has the version {VERSION} itself: its copy needs another one");
        let lock = fs::read_to_string(root.join("Cargo.lock"))?;
        copy.write(&of_version[0], manifest.replacen(version, &new, 1).as_bytes())?;
        copy.write(&of_version[1], locked(&lock, version, &new).as_bytes())?;
        Ok(copy)
    }

    /// Writes a file, if it differs.
    pub fn write(&self, file: &Path, content: &[u8]) -> Result<()> {
        let path = self.source.join(file);
        if fs::read(&path).is_ok_and(|present| present == content) {
            return Ok(());
        }
        fs::create_dir_all(path.parent().unwrap_or(&self.source))?;
        fs::write(&path, content).with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// Returns Cargo.lock with another version of the packages of the workspace, which have no source.
fn locked(lock: &str, version: &str, new: &str) -> String {
    let of_workspace = |package: &str| !package.contains("\nsource = ");
    let packages = lock
        .split("\n\n")
        .map(|package| if of_workspace(package) { package.replace(version, new) } else { package.to_owned() });
    packages.collect::<Vec<_>>().join("\n\n")
}

/// Adds the files of a folder, relative to the root.
fn list(root: &Path, folder: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        // The folder that cargo builds in is ignored by Git, and has a mark of its own under any name.
        let is_built = entry.file_name() == "target" || root.join(&path).join("CACHEDIR.TAG").exists();
        if entry.path().is_dir() && !is_built && path != Path::new(".git") {
            list(root, &path, files)?;
        } else if entry.path().is_file() && path != Path::new(".git") {
            files.insert(path);
        }
    }
    Ok(())
}
