//! The parts of a program that its toolchain brings: the C library, the compiler's library and the Rust standard library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::component::{Component, cargo_purl};
use crate::process::output;

fn rustc(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    output(root, &std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()), arguments)
}

/// Returns the folder of the Rust toolchain.
pub(crate) fn sysroot(root: &Path) -> anyhow::Result<PathBuf> {
    Ok(rustc(root, &["--print", "sysroot"])?.trim().into())
}

/// The crates that the standard library links, with their licenses. The distribution has them in a web page only
/// (`share/doc/rust/COPYRIGHT-library.html`), without adler2 and compiler_builtins. Beside the libraries of these crates are others, for tests and macros, and
/// with the component rustc-dev those of the compiler.
const STD_CRATES: [(&str, &str); 11] = [
    ("addr2line", "Apache-2.0 OR MIT"),
    ("adler2", "0BSD OR MIT OR Apache-2.0"),
    ("cfg-if", "MIT OR Apache-2.0"),
    ("compiler_builtins", COMPILER_BUILTINS),
    ("gimli", "MIT OR Apache-2.0"),
    ("hashbrown", "MIT OR Apache-2.0"),
    ("libc", "MIT OR Apache-2.0"),
    ("memchr", "Unlicense OR MIT"),
    ("miniz_oxide", "MIT OR Zlib OR Apache-2.0"),
    ("object", "Apache-2.0 OR MIT"),
    ("rustc-demangle", "MIT OR Apache-2.0"),
];

/// In part LLVM's compiler-rt and musl's mathematics.
const COMPILER_BUILTINS: &str = "MIT AND Apache-2.0 WITH LLVM-exception AND (MIT OR Apache-2.0)";

/// A toolchain that programs for a target are built with.
pub(crate) struct Toolchain<'a> {
    root: &'a Path,
    triple: &'a str,
    /// The C compiler, which also links.
    cc: String,
}

impl<'a> Toolchain<'a> {
    pub(crate) fn new(root: &'a Path, triple: &'a str) -> Self {
        let architecture = triple.split('-').next().unwrap_or_default();
        // The same choice as in build.sh.
        let cc = if architecture == std::env::consts::ARCH {
            "cc".to_owned()
        } else {
            format!("{architecture}-linux-gnu-gcc")
        };
        Self { root, triple, cc }
    }

    /// Returns everything that every program has from the toolchain.
    pub(crate) fn components(&self) -> anyhow::Result<Vec<Component>> {
        let mut components = vec![self.glibc()?, self.libgcc()?, self.rust_std()?];
        components.extend(self.std_crates()?);
        Ok(components)
    }

    fn glibc(&self) -> anyhow::Result<Component> {
        let library = self.library("libc.a")?;
        let package = DistributionPackage::of(self.root, &library);
        let mut texts = vec![self.root.join("deploy/images/LICENSE-LGPL-2.1")];
        texts.extend(package.iter().flat_map(|package| package.notices.clone()));
        // The header of the library that is linked, which is not always that of this machine.
        let define = |name: &str| -> anyhow::Result<String> {
            let header = output(self.root, &self.cc, &["-E", "-dM", "-include", "features.h", "-x", "c", "/dev/null"])?;
            let value = header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            value.map(|value| value.trim().to_owned()).with_context(|| format!("the C library defines no {name}"))
        };
        let version = format!("{}.{}", define("__GLIBC__")?, define("__GLIBC_MINOR__")?);
        Ok(Component { texts, ..part("glibc", version, "LGPL-2.1-or-later", package) })
    }

    fn libgcc(&self) -> anyhow::Result<Component> {
        let library = self.library("libgcc_eh.a")?;
        let package = DistributionPackage::of(self.root, &library);
        // Clang has no such option, and takes the library from the folder of a GCC, whose name is the version.
        let version = output(self.root, &self.cc, &["-dumpfullversion"])
            .ok()
            .or_else(|| Some(library.parent()?.file_name()?.to_str()?.to_owned()));
        let version = version.context("the version of libgcc is not known")?.trim().to_owned();
        Ok(part("libgcc", version, "GPL-3.0-or-later WITH GCC-exception-3.1", package))
    }

    fn rust_std(&self) -> anyhow::Result<Component> {
        let asked = rustc(self.root, &["--version"])?;
        let version = asked.split_whitespace().nth(1).with_context(|| format!("rustc --version: {asked}"))?.to_owned();
        let licenses = sysroot(self.root)?.join("share/doc/rust/licenses");
        let texts = [licenses.join("Unicode-3.0.txt"), self.root.join("LICENSE-APACHE")];
        let mut std = part("rust-std", version.clone(), "(MIT OR Apache-2.0) AND Unicode-3.0", None);
        std.texts.extend(texts.into_iter().filter(|text| text.is_file()));
        std.purl = Some(format!("pkg:github/rust-lang/rust@{version}"));
        std.origin = Some(asked.trim().to_owned());
        Ok(std)
    }

    /// Returns the crates that the standard library is built from: those that have a library in the toolchain, with the
    /// versions in the names of their sources. Libraries without such names have no known version.
    fn std_crates(&self) -> anyhow::Result<Vec<Component>> {
        let folder = rustc(self.root, &["--print", "target-libdir", "--target", self.triple])?;
        let folder = Path::new(folder.trim());
        let unreadable = || format!("{} cannot be read", folder.display());
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(folder).with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(name) = library_name(&file) else { continue };
            if name == "std" {
                // It has code of what it links, also of a crate that is not in the list yet.
                found.extend(std_sources(&std::fs::read(&path).with_context(unreadable)?));
            } else if let Some((name, _)) = STD_CRATES.iter().find(|(known, _)| known.replace('-', "_") == name) {
                let mut sources = std_sources(&std::fs::read(&path).with_context(unreadable)?);
                sources.retain(|(source, _)| source == name);
                let unknown = sources.is_empty().then(|| ((*name).to_owned(), String::new()));
                found.extend(sources.into_iter().chain(unknown));
            }
        }
        anyhow::ensure!(!found.is_empty(), "{} has no libraries of the Rust standard library", folder.display());
        found.into_iter().map(|(name, version)| self.std_crate(&name, version)).collect()
    }

    fn std_crate(&self, name: &str, version: String) -> anyhow::Result<Component> {
        let known = STD_CRATES.iter().find(|(known, _)| *known == name);
        let license = known.map_or("NOASSERTION", |(_, license)| license);
        let mut texts = Vec::new();
        if license == COMPILER_BUILTINS {
            let licenses = sysroot(self.root)?.join("share/doc/rust/licenses");
            texts.extend(["MIT.txt", "LLVM-exception.txt"].map(|text| licenses.join(text)));
            texts.retain(|text| text.is_file());
            texts.push(self.root.join("LICENSE-APACHE"));
        }
        let purl = Some(cargo_purl(name, &version));
        Ok(Component { texts, purl, within: Some("rust-std"), ..part(name, version, license, None) })
    }

    /// Returns the file that the linker takes for a library.
    fn library(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = output(self.root, &self.cc, &[&format!("-print-file-name={name}")])?;
        std::fs::canonicalize(path.trim()).with_context(|| format!("{} has no {name}", self.cc))
    }
}

fn part(name: &str, version: String, license: &str, package: Option<DistributionPackage>) -> Component {
    let (purl, origin) = package.map(|package| (package.purl, package.shown)).unzip();
    Component { name: name.to_owned(), version, license: license.to_owned(), purl, origin, ..Component::default() }
}

/// Returns the name in the file name of a Rust library, such as `cfg_if` in `libcfg_if-0ce073fff809ec38.rlib`.
fn library_name(file: &str) -> Option<&str> {
    Some(file.strip_prefix("lib")?.strip_suffix(".rlib")?.rsplit_once('-')?.0)
}

/// Returns name and version of the crates of the standard library whose sources a file names.
pub fn std_sources(file: &[u8]) -> BTreeSet<(String, String)> {
    let text = String::from_utf8_lossy(file);
    let folders = text.split("/rust/deps/").skip(1).filter_map(|rest| rest.split_once('/'));
    let crates = folders.filter_map(|(folder, _)| folder.rsplit_once('-'));
    let is_version = |text: &str| text.split('.').count() == 3 && text.split('.').all(|n| n.parse::<u32>().is_ok());
    crates.filter(|(_, version)| is_version(version)).map(|(name, version)| (name.into(), version.into())).collect()
}

/// A package of the distribution of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DistributionPackage {
    purl: String,
    /// Name and version, and the sources that it is built from.
    shown: String,
    /// Files with its licenses.
    notices: Vec<PathBuf>,
}

impl DistributionPackage {
    /// Finds the package that a file is from; none where neither dpkg nor rpm knows it.
    fn of(root: &Path, file: &Path) -> Option<Self> {
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let file = file.to_str()?;
        let ask = |program: &str, arguments: &[&str]| output(root, program, arguments).ok();
        if let Some(owner) = ask("dpkg-query", &["--search", file]) {
            let package = owner.split(": ").next()?;
            let format = "--showformat=${Package} ${Version} ${Architecture} ${source:Package} ${source:Version}";
            return Self::debian(&release, &ask("dpkg-query", &["--show", format, package])?);
        }
        let format = "%{NAME} %{VERSION}-%{RELEASE} %{ARCH} %{SOURCERPM}";
        let facts = ask("rpm", &["--query", "--queryformat", format, "--file", file])?;
        let notices = ask("rpm", &["--query", "--licensefiles", "--file", file]).unwrap_or_default();
        Self::rpm(&release, &facts, &notices)
    }

    fn debian(release: &str, facts: &str) -> Option<Self> {
        let [name, version, architecture, source, source_version] = words(facts)?;
        let purl = purl("deb", release, [name, version, architecture, source]);
        let notice = PathBuf::from(format!("/usr/share/doc/{name}/copyright"));
        Some(Self {
            purl,
            shown: format!("package {name} {version} of {source} {source_version}"),
            notices: std::iter::once(notice).filter(|notice| notice.is_file()).collect(),
        })
    }

    fn rpm(release: &str, facts: &str, notices: &str) -> Option<Self> {
        let [name, version, architecture, source] = words(facts)?;
        Some(Self {
            purl: purl("rpm", release, [name, version, architecture, source]),
            shown: format!("package {name} {version} of {source}"),
            notices: notices.lines().map(PathBuf::from).filter(|notice| notice.is_file()).collect(),
        })
    }
}

fn words<const N: usize>(text: &str) -> Option<[&str; N]> {
    text.split_whitespace().collect::<Vec<_>>().try_into().ok()
}

/// Returns the package URL of a package of a distribution, with the sources that scanners look up.
fn purl(kind: &str, release: &str, [name, version, architecture, source]: [&str; 4]) -> String {
    let value = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map_or("unknown", |value| value.trim_matches(['"', '\'']))
    };
    let (id, release) = (value("ID"), value("VERSION_ID"));
    let encoded = |text: &str| text.replace('+', "%2B");
    format!(
        "pkg:{kind}/{id}/{}@{}?arch={architecture}&distro={id}-{release}&upstream={}",
        encoded(name),
        encoded(version),
        encoded(source)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn std_crates_are_those_that_libraries_name() {
        let library = b"\0/rust/deps/addr2line-0.25.1/src/lib.rs\0/rust/deps/gimli-0.32.3ab08clang src/\
                        /rust/deps/rustc-demangle-0.1.27/src/v0.rs /rust/deps/addr2line-0.25.1/src/unit.rs \xff/rust/deps/x";
        let expected = [("addr2line", "0.25.1"), ("rustc-demangle", "0.1.27")];
        assert_eq!(std_sources(library), expected.map(|(name, version)| (name.into(), version.into())).into());
    }

    #[test]
    fn libraries_have_names() {
        assert_eq!(library_name("libcfg_if-0ce073fff809ec38.rlib"), Some("cfg_if"));
        assert_eq!(
            (library_name("libcfg_if-0ce073fff809ec38.rmeta"), library_name("librustc-stable_rt.asan.a")),
            (None, None)
        );
    }

    #[test]
    fn licenses_of_std_crates_are_known() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let crates = Toolchain::new(root, &triple).std_crates().unwrap();
        let unknown: Vec<_> = crates.iter().filter(|component| component.license == "NOASSERTION").collect();
        assert!(unknown.is_empty(), "add them to STD_CRATES: {unknown:?}");
        // Each has a library. Their sources are named by none, and so by no program.
        for name in ["adler2", "compiler_builtins"] {
            assert!(crates.iter().any(|component| component.name == name), "{name}: {crates:?}");
        }
        assert_eq!(crates.len(), STD_CRATES.len(), "each has one version: {crates:?}");
    }

    #[test]
    fn packages_of_debian_and_fedora_are_named() {
        let facts = "libc6-dev 2.36-9+deb12u14 amd64 glibc 2.36-9+deb12u14";
        let debian = DistributionPackage::debian("NAME=\"D\"\nVERSION_ID=\"12\"\nID=debian\n", facts).unwrap();
        assert_eq!(
            debian.purl,
            "pkg:deb/debian/libc6-dev@2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12&upstream=glibc"
        );
        assert_eq!(debian.shown, "package libc6-dev 2.36-9+deb12u14 of glibc 2.36-9+deb12u14");
        let facts = "glibc-static 2.41-5.fc42 x86_64 glibc-2.41-5.fc42.src.rpm";
        let fedora = DistributionPackage::rpm("ID=fedora\nVERSION_ID=42\n", facts, "/no/such/COPYING\n").unwrap();
        assert_eq!(
            fedora.purl,
            "pkg:rpm/fedora/glibc-static@2.41-5.fc42?arch=x86_64&distro=fedora-42&upstream=glibc-2.41-5.fc42.src.rpm"
        );
        assert!(fedora.notices.is_empty());
        assert_eq!(DistributionPackage::rpm("", "file /usr/lib64/libc.a is not owned by any package", ""), None);
    }
}
