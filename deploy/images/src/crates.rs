//! The crates that a program is linked from, as cargo knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

use crate::component::{Component, cargo_purl};
use crate::process::{cargo, output};
use crate::toolchain::Toolchain;

/// The package that a program is built from.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    root: PathBuf,
    triple: String,
    name: String,
    pub(crate) version: String,
    pub(crate) license: String,
    pub(crate) description: String,
    known: BTreeMap<(String, String), Component>,
}

/// Finds the package of this project that has the program.
pub(crate) fn package(root: &Path, program: &str, triple: &str) -> anyhow::Result<Package> {
    let metadata =
        output(root, &cargo(), &["metadata", "--locked", "--format-version=1", "--filter-platform", triple])?;
    let metadata: Value = serde_json::from_str(&metadata).context("the output of cargo metadata")?;
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock cannot be read")?;
    let (packages, checksums) =
        (metadata["packages"].as_array().context("cargo metadata has no packages")?, checksums(&lock));
    let own = packages.iter().find(|package| package["source"].is_null() && has_program(package, program));
    let own = own.with_context(|| format!("no package of this project has the program {program}"))?;
    let mut known = BTreeMap::new();
    for package in packages {
        let component = component(package, &checksums)?;
        known.insert((component.name.clone(), component.version.clone()), component);
    }
    let description = own["description"].as_str().unwrap_or(program).to_owned();
    let Component { name, version, license, .. } = component(own, &checksums)?;
    Ok(Package { root: root.to_owned(), triple: triple.to_owned(), name, version, license, description, known })
}

fn has_program(package: &Value, program: &str) -> bool {
    let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    targets.iter().any(|target| target["name"] == program && target["kind"][0] == "bin")
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> anyhow::Result<Component> {
    let text = |field: &str| package[field].as_str().map(str::to_owned);
    let name = text("name").context("a package without a name")?;
    let version = text("version").with_context(|| format!("{name} has no version"))?;
    // An old way to write OR.
    let license = text("license").unwrap_or_default().replace('/', " OR ");
    let folder = text("manifest_path").and_then(|path| Path::new(&path).parent().map(Path::to_path_buf));
    let checksum = checksums.get(&(name.clone(), version.clone())).cloned();
    let purl = checksum.as_ref().map(|_| cargo_purl(&name, &version));
    Ok(Component { name, version, license, checksum, folder, purl, ..Component::default() })
}

/// Returns the checksums in a Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let blocks = lock.split("[[package]]").map(|block| {
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    });
    blocks.flatten().collect()
}

impl Package {
    /// Returns everything that the program is linked from, sorted.
    pub(crate) fn linked(&self) -> anyhow::Result<Vec<Component>> {
        // The features of this program alone; build scripts and procedural macros are not linked.
        let tree = ["tree", "--locked", "--edges=normal,no-proc-macro", "--prefix=none", "--format={p}", "--no-dedupe"];
        let tree = [&tree[..], &["--package", &self.name, "--target", &self.triple]].concat();
        let mut linked = BTreeSet::new();
        for line in output(&self.root, &cargo(), &tree)?.lines().filter(|line| !line.is_empty()) {
            let mut words = line.split(' ');
            let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let key = (name.to_owned(), version.trim_start_matches('v').to_owned());
            linked.insert(self.known.get(&key).with_context(|| format!("cargo metadata has no {line}"))?.clone());
        }
        let mut linked: Vec<_> = linked.into_iter().collect();
        linked.extend(Toolchain::new(&self.root, &self.triple).components()?);
        Ok(linked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_name_and_version() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"aa\"\n\n\
                    [[package]]\nname = \"a\"\nversion = \"2.0.0\"\nchecksum = \"bb\"\ndependencies = [\n \"own\",\n]\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let key = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let expected = [(key("a", "1.0.0"), "aa".to_owned()), (key("a", "2.0.0"), "bb".to_owned())];
        assert_eq!(checksums(lock), expected.into());
    }
}
