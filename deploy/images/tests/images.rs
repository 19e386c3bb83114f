//! The OCI images as they are written: their form, what is in them, and that the programs start with nothing else.
//!
//! By default the image of the agent that the other tests run is written and checked; `make test-images` checks all that
//! `make images` wrote.

#![expect(clippy::unwrap_used, reason = "only tests are here")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use images::{Commit, LICENSES, Options, Program, SBOM, machine_folders, pack, std_sources};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Folder with archives that were written before.
const WRITTEN: &str = "BRUPOP_IMAGES";
/// The agent as it ships.
const AGENT: &str = "BRUPOP_AGENT_BIN";

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Parts of the toolchain that every program is linked with.
const TOOLCHAIN: [&str; 3] = ["glibc", "libgcc", "rust-std"];

/// Files of an archive by name, with their headers.
type Files = BTreeMap<String, (tar::Header, Vec<u8>)>;

struct Image {
    /// Everything in the archive.
    archive: Files,
    manifest: Value,
    config: Value,
    /// The archive of the layer, not compressed.
    layer: Vec<u8>,
    /// Everything in the layer.
    files: Files,
}

fn options(output: &Path) -> Options {
    Options {
        root: ROOT.into(),
        output: output.to_owned(),
        registry: None,
        tag: concat!("v", env!("CARGO_PKG_VERSION")).into(),
        revision: Some("0123abc".into()),
        epoch: 1_800_000_000,
    }
}

fn unpack(archive: &[u8]) -> Files {
    let mut archive = tar::Archive::new(archive);
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (name, (entry.header().clone(), content))
    });
    entries.collect()
}

fn digest(content: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(content))
}

fn json(content: &[u8]) -> Value {
    serde_json::from_slice(content).unwrap()
}

/// Returns the blob of a descriptor, if it is what the descriptor says.
fn blob<'a>(archive: &'a Files, descriptor: &Value, media_type: &str) -> &'a [u8] {
    let named = descriptor["digest"].as_str().unwrap();
    let (_, content) = &archive[&named.replace("sha256:", "blobs/sha256/")];
    assert_eq!(named, digest(content));
    assert_eq!(descriptor["size"], content.len());
    assert_eq!(descriptor["mediaType"], format!("application/vnd.oci.image.{media_type}"));
    content
}

impl Image {
    fn read(path: &Path) -> Self {
        let archive = unpack(&std::fs::read(path).unwrap());
        let index = json(&archive["index.json"].1);
        assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
        let manifest = json(blob(&archive, &index["manifests"][0], "manifest.v1+json"));
        let config = json(blob(&archive, &manifest["config"], "config.v1+json"));
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 1);
        let mut layer = Vec::new();
        let compressed = blob(&archive, &manifest["layers"][0], "layer.v1.tar+gzip");
        flate2::read::GzDecoder::new(compressed).read_to_end(&mut layer).unwrap();
        let files = unpack(&layer);
        Self { archive, manifest, config, layer, files }
    }

    fn program(&self) -> &str {
        self.config["config"]["Entrypoint"][0].as_str().unwrap().trim_start_matches('/')
    }

    fn text(&self, file: &str) -> &str {
        std::str::from_utf8(&self.files[file].1).unwrap()
    }

    /// Returns name and version of everything that has a relation to a part of the program, in the list of the image.
    fn related(&self, part: &str, relation: &str) -> BTreeSet<(String, String)> {
        let list = json(&self.files[SBOM].1);
        let relations = list["relationships"].as_array().unwrap().iter();
        let related: BTreeSet<_> = relations
            .filter(|entry| text(entry, "spdxElementId").starts_with(part) && entry["relationshipType"] == relation)
            .map(|entry| text(entry, "relatedSpdxElement"))
            .collect();
        let packages = list["packages"].as_array().unwrap().iter();
        let packages: BTreeMap<_, _> = packages.map(|package| (text(package, "SPDXID"), package)).collect();
        assert_eq!(packages.len(), list["packages"].as_array().unwrap().len(), "each has an identifier of its own");
        let name_and_version = |id: &String| (text(packages[id], "name"), version(packages[id]));
        related.iter().map(name_and_version).collect()
    }

    /// Returns name and version of everything that the image says that its program is linked from.
    fn listed(&self) -> BTreeSet<(String, String)> {
        self.related("SPDXRef-Program", "STATIC_LINK")
    }

    /// Returns the crates that the image says are in the Rust standard library.
    fn in_std(&self) -> BTreeSet<(String, String)> {
        self.related("SPDXRef-rust-std-", "CONTAINS")
    }
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap().to_owned()
}

/// Returns the version of a package in the list; empty where it is not known.
fn version(package: &Value) -> String {
    package["versionInfo"].as_str().unwrap_or_default().to_owned()
}

/// The images to check, in a folder that is removed when the tests have ended.
static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| {
    if let Some(folder) = std::env::var_os(WRITTEN) {
        let archives = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let images: Vec<_> = archives.map(|archive| Image::read(&archive)).collect();
        assert!(!images.is_empty(), "`make images` wrote none");
        return images;
    }
    let Some(agent) = std::env::var_os(AGENT) else {
        println!("no image was checked: {AGENT} names no agent as it ships");
        return Vec::new();
    };
    let folder = tempfile::tempdir().unwrap();
    vec![Image::read(&pack(&options(folder.path()), Path::new(&agent)).unwrap().archive)]
});

#[test]
fn archive_is_an_oci_layout_without_other_blobs() {
    for image in IMAGES.iter() {
        assert_eq!(json(&image.archive["oci-layout"].1)["imageLayoutVersion"], "1.0.0");
        assert_eq!(image.archive.len(), 5, "layout, index, manifest, configuration and layer");
        assert_eq!(image.manifest["schemaVersion"], 2);
        assert_eq!(image.config["rootfs"]["diff_ids"], serde_json::json!([digest(&image.layer)]));
        assert_eq!((&image.config["os"], &image.config["rootfs"]["type"]), (&"linux".into(), &"layers".into()));
    }
}

#[test]
fn names_and_user_are_those_of_the_manifests() {
    let manifest = |name| std::fs::read_to_string(Path::new(ROOT).join("deploy/manifests").join(name)).unwrap();
    let manifests = ["brupop.yaml", "aws.yaml"].map(manifest).join("\n---\n");
    for image in IMAGES.iter() {
        let index = json(&image.archive["index.json"].1);
        let annotations = &index["manifests"][0]["annotations"];
        let name = text(annotations, "io.containerd.image.name");
        assert!(name.ends_with(&format!(
            "/{}:{}",
            image.program(),
            text(annotations, "org.opencontainers.image.ref.name")
        )));
        let image_of = |document: &&str| document.contains(&format!("image: {}:", image.program()));
        let Some(workload) = manifests.split("\n---\n").find(image_of) else {
            assert_eq!(image.program(), "kubectl-brupop", "only the plugin runs elsewhere");
            continue;
        };
        if std::env::var_os(WRITTEN).is_none() {
            // The kubelet completes the name in the same way.
            assert!(
                workload.contains(&format!("image: {}\n", name.trim_start_matches("docker.io/library/"))),
                "{name}"
            );
        }
        let (user, group) = image.config["config"]["User"].as_str().unwrap().split_once(':').unwrap();
        for line in [format!("runAsUser: {user}\n"), format!("runAsGroup: {group}\n")] {
            assert!(workload.contains(&line), "{line}");
        }
    }
}

#[test]
fn labels_tell_where_an_image_is_from() {
    for image in IMAGES.iter() {
        let labels = &image.config["config"]["Labels"];
        let label = |name: &str| text(labels, &format!("org.opencontainers.image.{name}"));
        assert_eq!(label("title"), image.program());
        assert_eq!(label("version"), env!("CARGO_PKG_VERSION"));
        assert_eq!(label("created"), text(&image.config, "created"));
        assert!(!label("description").is_empty());
        let revision = labels["org.opencontainers.image.revision"].as_str();
        assert!(revision != Some("") && (revision.is_some() || Commit::of(Path::new(ROOT)).is_err()), "{revision:?}");
        let licenses = label("licenses");
        for package in json(&image.files[SBOM].1)["packages"].as_array().unwrap() {
            let license = text(package, "licenseDeclared");
            for word in license.split([' ', '(', ')']).filter(|word| *word != "NOASSERTION") {
                assert!(licenses.contains(word), "{license} of {} is not in {licenses}", package["name"]);
            }
        }
        assert!(licenses.contains("LGPL-2.1-or-later"));
        assert_eq!(&image.manifest["annotations"], labels);
    }
}

#[test]
fn layer_has_program_licenses_and_list_alone() {
    for image in IMAGES.iter() {
        assert_eq!(image.files.keys().collect::<Vec<_>>(), [image.program(), LICENSES, SBOM]);
        for (name, (header, _)) in &image.files {
            let mode = if name == image.program() { 0o555 } else { 0o444 };
            assert_eq!((header.mode().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (mode, 0, 0), "{name}");
            assert_eq!((header.username().unwrap(), header.groupname().unwrap()), (Some(""), Some("")), "{name}");
        }
    }
}

#[test]
fn program_is_static_and_names_no_folder_of_this_machine() {
    for image in IMAGES.iter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(image.program());
        std::fs::write(&path, &image.files[image.program()].1).unwrap();
        let program = Program::read(&path).unwrap();
        assert_eq!(program.architecture, image.config["architecture"]);
        program.names_none_of(&machine_folders(Path::new(ROOT)).unwrap()).unwrap();
    }
}

/// Returns the crates whose sources a program names, in the places of its panics.
fn named(program: &[u8]) -> BTreeSet<(String, String)> {
    let place = regex::bytes::Regex::new(r"/registry/src/[^/]+/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[^/]*)/").unwrap();
    let part = |found: &regex::bytes::Captures<'_>, n: usize| String::from_utf8(found[n].to_vec()).unwrap();
    place.captures_iter(program).map(|found| (part(&found, 1), part(&found, 2))).collect()
}

/// Returns the crates that a program can be linked from, whatever its features: those that its package depends on other
/// than for tests and builds, without procedural macros.
fn reachable(program: &str, architecture: &str) -> BTreeSet<(String, String)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let arguments = ["metadata", "--locked", "--format-version=1", "--manifest-path", manifest, "--filter-platform"];
    let triple = format!("{architecture}-unknown-linux-gnu");
    let output = Command::new(cargo).args(arguments).arg(triple).output().unwrap();
    let metadata = json(&output.stdout);
    let packages: BTreeMap<_, _> =
        metadata["packages"].as_array().unwrap().iter().map(|package| (text(package, "id"), package)).collect();
    let has = |package: &Value, kind: &str, name: Option<&str>| {
        let targets = package["targets"].as_array().unwrap();
        targets.iter().any(|target| target["kind"][0] == kind && name.is_none_or(|name| target["name"] == name))
    };
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let mut found = BTreeSet::new();
    let mut left: Vec<_> = packages.iter().filter(|(_, package)| has(package, "bin", Some(program))).collect();
    while let Some((id, package)) = left.pop() {
        if has(package, "proc-macro", None) || !found.insert((text(package, "name"), text(package, "version"))) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id.as_str()).unwrap();
        let normal = |dep: &&Value| dep["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null());
        let deps = node["deps"].as_array().unwrap().iter().filter(normal);
        left.extend(deps.map(|dep| packages.get_key_value(&text(dep, "pkg")).unwrap()));
    }
    found
}

#[test]
fn list_has_the_linked_crates_and_no_others() {
    for image in IMAGES.iter() {
        let listed = image.listed();
        let named = named(&image.files[image.program()].1);
        assert!(named.len() > 20, "the program names few crates: {named:?}");
        let missing: Vec<_> = named.difference(&listed).collect();
        assert!(missing.is_empty(), "linked and not listed: {missing:?}");
        let reachable =
            reachable(image.program(), if image.config["architecture"] == "arm64" { "aarch64" } else { "x86_64" });
        let crates: BTreeSet<_> =
            listed.iter().filter(|(name, _)| !TOOLCHAIN.contains(&name.as_str())).cloned().collect();
        let excess: Vec<_> = crates.difference(&reachable).collect();
        assert!(excess.is_empty(), "listed and not linked: {excess:?}");
        assert_eq!(listed.len(), crates.len() + TOOLCHAIN.len());
        let packages = json(&image.files[SBOM].1)["packages"].as_array().unwrap().len();
        let (named, in_std) = (std_sources(&image.files[image.program()].1), image.in_std());
        assert!(named.is_subset(&in_std), "{named:?} {in_std:?}");
        assert_eq!(packages, 1 + listed.len() + in_std.len(), "each is linked or in the standard library");
    }
}

/// Returns the static C library that programs are linked with.
fn c_library(arm64: bool) -> PathBuf {
    let (architecture, own) = (if arm64 { "aarch64" } else { "x86_64" }, arm64 == cfg!(target_arch = "aarch64"));
    let cc = if own { "cc".to_owned() } else { format!("{architecture}-linux-gnu-gcc") };
    let output = Command::new(cc).arg("-print-file-name=libc.a").output().unwrap();
    std::fs::canonicalize(String::from_utf8(output.stdout).unwrap().trim()).unwrap()
}

/// Returns true for a file from a package of the distribution.
fn is_packaged(file: &Path) -> bool {
    let knows = |program: &str, option: &str| {
        Command::new(program).arg(option).arg(file).output().is_ok_and(|done| done.status.success())
    };
    knows("dpkg-query", "-S") || knows("rpm", "-qf")
}

#[test]
fn list_names_the_package_that_has_the_c_library() {
    for image in IMAGES.iter() {
        let list = json(&image.files[SBOM].1);
        let packages = list["packages"].as_array().unwrap();
        let glibc = packages.iter().find(|package| package["name"] == "glibc").unwrap();
        let version = text(glibc, "versionInfo");
        assert!(version.starts_with("2."), "{version}");
        if is_packaged(&c_library(image.config["architecture"] == "arm64")) {
            let purl = text(&glibc["externalRefs"][0], "referenceLocator");
            assert!(purl.starts_with("pkg:") && purl.contains(&format!("@{version}")), "{purl}");
            assert!(text(glibc, "sourceInfo").starts_with("package "));
        }
    }
}

#[test]
fn list_has_checksums_and_licenses() {
    let lock = std::fs::read_to_string(Path::new(ROOT).join("Cargo.lock")).unwrap();
    for image in IMAGES.iter() {
        for package in json(&image.files[SBOM].1)["packages"].as_array().unwrap() {
            let (name, version) = (text(package, "name"), version(package));
            assert!(!text(package, "licenseDeclared").is_empty(), "{name}");
            if package["downloadLocation"] != "NOASSERTION" {
                let checksum = text(&package["checksums"][0], "checksumValue");
                let begin = lock
                    .split("[[package]]")
                    .find(|block| block.starts_with(&format!("\nname = \"{name}\"\nversion = \"{version}\"\n")));
                assert!(begin.unwrap().contains(&checksum), "{name}");
            }
        }
    }
}

#[test]
fn licenses_have_a_text_for_each_linked_crate() {
    for image in IMAGES.iter() {
        let separator = format!("\n{}\n[", "=".repeat(100));
        let mut parts = image.text(LICENSES).split(&separator);
        let list = parts.next().unwrap();
        let texts: Vec<_> = parts.map(|part| part.split_once("]\n").unwrap().1.trim()).collect();
        for (name, version) in image.listed() {
            let begins =
                |line: &&str| [": ", " ("].iter().any(|end| line.starts_with(&format!("{name} {version}{end}")));
            let line = list.lines().find(begins);
            let line = line.unwrap_or_else(|| unreachable!("{name} {version} has no license"));
            let numbers: Vec<_> = line.split('[').skip(1).map(|number| number.trim_end_matches(']')).collect();
            let longest = numbers.iter().map(|number| texts[number.parse::<usize>().unwrap() - 1].len()).max();
            assert!(name == "libgcc" || longest > Some(200), "{name}: {line}");
        }
    }
}

#[test]
fn packing_twice_gives_the_same_bytes() {
    for image in IMAGES.iter() {
        let written = [0o755, 0o700].map(|mode| {
            let folder = tempfile::tempdir().unwrap();
            let program = folder.path().join(image.program());
            std::fs::write(&program, &image.files[image.program()].1).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
            let packed = pack(&options(&folder.path().join("out")), &program).unwrap();
            (std::fs::read(packed.archive).unwrap(), packed.digest)
        });
        assert!(written[0] == written[1], "{} and {}", written[0].1, written[1].1);
    }
}

/// Runs a program in nothing but its image, as the user of the image where this machine allows it.
fn run(image: &Image, arguments: &[&str]) -> Option<Output> {
    if image.config["architecture"] != if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" } {
        return None;
    }
    let root = tempfile::tempdir().unwrap();
    for (name, (header, content)) in &image.files {
        let path = root.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(header.mode().unwrap())).unwrap();
    }
    std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let user = image.config["config"]["User"].as_str().unwrap();
    let folder = root.path().to_str().unwrap();
    let ways = [
        vec!["chroot".to_owned(), format!("--userspec={user}"), folder.to_owned()],
        vec!["unshare".to_owned(), "--map-root-user".to_owned(), format!("--root={folder}")],
    ];
    ways.iter().find_map(|way| {
        let program = format!("/{}", image.program());
        let output = Command::new(&way[0]).args(&way[1..]).arg(program).args(arguments).output().ok()?;
        let refused = String::from_utf8_lossy(&output.stderr).starts_with(&format!("{}: ", way[0]));
        (!refused).then_some(output)
    })
}

#[test]
fn program_starts_in_nothing_but_its_image() {
    for image in IMAGES.iter() {
        let Some(output) = run(image, &["--help"]) else {
            println!(
                "{} was not started: it is for another machine, or this one allows neither chroot nor user namespaces",
                image.program()
            );
            continue;
        };
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("Usage:"), "{output:?}");
        let output = run(image, &["--no-such-option"]).unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--no-such-option"), "{output:?}");
    }
}
