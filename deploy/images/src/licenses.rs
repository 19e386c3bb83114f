//! The licenses of everything that a program is linked from, as one text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::component::Component;

/// Beginnings of the names of files with a license, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// Bytes of the shortest license; a shorter file only names some, or is a notice.
const SHORTEST: usize = 200;

const NOTE: &str = "\
glibc is linked statically. The LGPL grants you the right to exchange it: the sources of this program, and the command
that links it (`make images`), are what its project publishes.
The exception in the license of libgcc sets no terms for programs that the compiler links.";

/// Returns the list of the components with the license of each, and each distinct text once.
pub(crate) fn text(program: &str, root: &Path, components: &[Component]) -> anyhow::Result<String> {
    let mut texts = Texts::default();
    let mut list = String::new();
    for component in components {
        let Component { name, version, license, origin, within, .. } = component;
        let numbers: BTreeSet<_> = of(root, component)?.iter().map(|text| texts.number(text)).collect();
        let numbers: Vec<_> = numbers.iter().map(|number| format!("[{number}]")).collect();
        let within = within.map(|whole| format!(" in {whole}")).unwrap_or_default();
        let origin = origin.as_ref().map(|origin| format!(" ({origin})")).unwrap_or_default();
        let version = if version.is_empty() { String::new() } else { format!(" {version}") };
        writeln!(list, "{name}{version}{within}{origin}: {license} {}", numbers.join(""))?;
    }
    let mut all =
        format!("{program} is linked from these. The numbers are those of the texts below.\n\n{list}\n{NOTE}\n");
    for (index, text) in texts.all.iter().enumerate() {
        write!(all, "\n{:=<100}\n[{}]\n\n{}\n", "", index + 1, text.trim_end())?;
    }
    Ok(all)
}

/// Returns one SPDX expression with the licenses of everything.
pub(crate) fn expression(components: &[Component]) -> String {
    let known = components.iter().map(|component| component.license.as_str()).filter(|known| *known != "NOASSERTION");
    let normal = known.map(|license| {
        let mut choices: Vec<_> = license.split(" OR ").collect();
        if choices.len() > 1 && !license.contains(['(', ')']) && !license.contains(" AND ") {
            // The sequence makes no difference.
            choices.sort_unstable();
        }
        choices.join(" OR ")
    });
    let distinct: BTreeSet<_> = normal.collect();
    let compound = |license: &str| license.contains(" OR ") || license.contains(" AND ");
    let parts = distinct.iter().map(|part| if compound(part) { format!("({part})") } else { part.clone() });
    parts.collect::<Vec<_>>().join(" AND ")
}

/// Distinct texts; spaces and the ends of lines make no difference.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    numbers: BTreeMap<String, usize>,
}

impl Texts {
    fn number(&mut self, text: &str) -> usize {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        *self.numbers.entry(words).or_insert_with(|| {
            self.all.push(text.replace('\r', ""));
            self.all.len()
        })
    }
}

/// Returns the texts of a component's license.
fn of(root: &Path, component: &Component) -> anyhow::Result<Vec<String>> {
    let Component { name, version, license, checksum, folder, .. } = component;
    let mut files = component.texts.clone();
    match folder {
        Some(folder) if checksum.is_some() => collect(folder, &mut files)?,
        Some(_) => files.extend(["LICENSE-APACHE", "LICENSE-MIT"].map(|file| root.join(file))),
        None => {}
    }
    let mut texts = files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    texts.retain(|text| !text.trim().is_empty());
    // The exception sets no terms for what the compiler links, and the Unlicense none at all.
    let terms = !license.contains("GCC-exception") && !license.contains("Unlicense") && license != "NOASSERTION";
    if terms && texts.iter().all(|text| text.len() < SHORTEST) {
        // Some crates are published without the text that they name.
        let (apache, mit) = (license.contains("Apache-2.0"), license.split(" OR ").any(|choice| choice == "MIT"));
        anyhow::ensure!(apache || mit, "{name} {version} ({license}) has no text of its license");
        texts.push(read(&root.join(if apache { "LICENSE-APACHE" } else { "LICENSE-MIT" }))?);
        if let Some(text) = texts.last_mut().filter(|_| !apache) {
            let of = |line: &str| match line.starts_with("Copyright") {
                true => format!("Copyright (c) the authors of {name}"),
                false => line.to_owned(),
            };
            *text = text.lines().map(of).collect::<Vec<_>>().join("\n");
        }
    }
    Ok(texts)
}

fn read(file: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Adds the files with licenses in a folder and in those below it, sorted.
fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let unreadable = || format!("{} cannot be read", folder.display());
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(unreadable)? {
        entries.push(entry.with_context(unreadable)?.path());
    }
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, found)?;
        } else if is_license(&path) {
            found.push(path);
        }
    }
    Ok(())
}

fn is_license(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let code = ["rs", "html", "toml"].iter().any(|end| path.extension().is_some_and(|extension| extension == *end));
    !code && NAMES.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn license_files_are_found_by_their_names() {
        for name in ["LICENSE", "LICENSE-MIT", "Licence.txt", "COPYING", "UNLICENSE", "license.md", "NOTICE"] {
            assert!(is_license(Path::new(name)), "{name}");
        }
        for name in ["README.md", "license.rs", "lib.rs", "unlicensed-names.toml"] {
            assert!(!is_license(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn same_text_is_written_once() {
        let mut texts = Texts::default();
        assert_eq!([texts.number("a  b\r\n"), texts.number("c"), texts.number("a\nb")], [1, 2, 1]);
        assert_eq!(texts.all, ["a  b\n", "c"]);
    }

    fn component(license: &str, folder: &Path) -> Component {
        Component {
            name: "a".into(),
            version: "1.0.0".into(),
            license: license.into(),
            checksum: Some("aa".into()),
            folder: Some(folder.to_owned()),
            ..Component::default()
        }
    }

    #[test]
    fn short_notice_is_kept() {
        let (root, folder) = (Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), tempfile::tempdir().unwrap());
        std::fs::write(folder.path().join("LICENSE"), "word ".repeat(100)).unwrap();
        std::fs::write(folder.path().join("NOTICE"), "Copyright 2026 A\n").unwrap();
        let texts = of(root, &component("MIT", folder.path())).unwrap();
        assert_eq!((texts.len(), texts[1].as_str()), (2, "Copyright 2026 A\n"));
        // It is no license.
        std::fs::remove_file(folder.path().join("LICENSE")).unwrap();
        assert!(of(root, &component("ISC", folder.path())).is_err());
    }

    #[test]
    fn expression_has_each_license_once() {
        let licenses = ["MIT OR Apache-2.0", "Apache-2.0 OR MIT", "ISC", "ISC AND (Apache-2.0 OR MIT)", "NOASSERTION"];
        let components = licenses.map(|license| component(license, Path::new("a")));
        assert_eq!(expression(&components), "(Apache-2.0 OR MIT) AND ISC AND (ISC AND (Apache-2.0 OR MIT))");
    }

    #[test]
    fn component_without_any_text_is_an_error() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut component = component("ISC", &root.join(".ci"));
        assert!(of(root, &component).is_err());
        component.license = "MIT".into();
        let texts = of(root, &component).unwrap();
        assert!(
            texts[0].contains("Permission is hereby granted") && texts[0].contains("Copyright (c) the authors of a\n")
        );
        assert_eq!(texts[0].matches("Copyright").count(), 1, "that of this project is not theirs");
        component.license = "MIT OR Apache-2.0".into();
        assert!(of(root, &component).is_ok_and(|texts| texts[0].contains("Apache License")));
    }
}
