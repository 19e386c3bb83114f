//! The modules of the planner form layers: none depends on one above it.

#![expect(clippy::unwrap_used, reason = "only tests are here")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The modules, each below those that follow it.
const LAYERS: [&str; 12] = [
    "annotations",
    "claims",
    "expressions",
    "rules",
    "signature",
    "wait",
    "view",
    "standby",
    "policy",
    "drain",
    "plan",
    "lint",
];

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Returns the modules that a text names after `crate::`, its unit tests left out. (`super::` leads out of no module: a
/// file at the top names its siblings through `crate::` as well.)
fn named(text: &str) -> BTreeSet<String> {
    let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let names = shipped.split("crate::").skip(1);
    names.map(|rest| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect()).collect()
}

#[test]
fn no_module_depends_on_one_above_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = BTreeSet::new();
    for file in files(&source) {
        let inner = file.strip_prefix(&source).unwrap().with_extension("");
        let module = inner.iter().next().unwrap().to_str().unwrap().to_owned();
        let only_tests = file.to_str().unwrap().ends_with("cases.rs")
            || matches!(inner.file_name().unwrap().to_str().unwrap(), "simulation" | "fixtures" | "tests");
        if module == "lib" || only_tests {
            continue;
        }
        let own = LAYERS.iter().position(|layer| *layer == module);
        let own = own.unwrap_or_else(|| panic!("{module} has no place among the layers"));
        let text = std::fs::read_to_string(&file).unwrap();
        let mut names = named(&text);
        let at_the_top = inner.components().count() == 1;
        assert!(!(at_the_top && text.contains("\nuse super::")), "{} names modules through super", file.display());
        // Compiled for unit tests alone.
        names.remove("fixtures");
        for name in names {
            let other = LAYERS.iter().position(|layer| *layer == name);
            assert!(other.is_some_and(|other| other <= own), "{} depends on {name}", file.display());
        }
        seen.insert(module);
    }
    assert_eq!(seen.len(), LAYERS.len(), "every layer is a module");
}
