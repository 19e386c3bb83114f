//! The top-level modules of each product crate form layers: none depends on one above it.

#![expect(clippy::unwrap_used, reason = "only tests are here")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The modules of each crate, the lowest layer first. Modules joined by `/` share a layer: they depend on one another.
const CRATES: [(&str, &str); 9] = [
    (
        "models",
        "backoff condition time duration listen log names earlier pem plain reason resource_version schema shadow wire permit \
         history/operator agent_step",
    ),
    (
        "planner",
        "annotations hold claims hooks expressions rules signature wait view pause standby policy revisions history drain plan lint simulation",
    ),
    (
        "controller",
        "clock config cache caches earlier calls decisions eviction managed_fields writes metrics client http owners \
         expressions leader surroundings notices tls migrate apply history estimates definitions driver replica fuzzing",
    ),
    (
        "apiserver",
        // A refused token is a problem, and is counted.
        "clock config etag limit streams body connections shadow agents/auth/cluster/metrics/problem heads store tls follow \
         write resume app access_log routes server fuzzing",
    ),
    (
        "agent",
        "boot alive process config desired_state refreshes statement permit host settings memory situation staging views server \
         report stream drive fuzzing",
    ),
    ("aws", "config facts holds decide cloud record cluster run"),
    (
        "deploy",
        "options object budget pod monitoring controller apiserver agent network namespaces crds reference admission policy \
         rights aws takeover openapi waiting yaml installation chart files",
    ),
    ("deploy/images", "process commit digest reference program component toolchain crates licenses sbom layer layout"),
    (
        "cli",
        "clock files near page terminal connect call write timeline history cluster advice forecast simulate plan completion rights marks status \
         explain watch uninstall preflight install doctor bundle swap takeover requests",
    ),
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

/// Returns the names that a text has after `crate::`, its comments and unit tests left out. (`super::` leads out of no
/// module: a file at the top names its siblings through `crate::` as well.)
fn named(text: &str) -> BTreeSet<String> {
    let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String = shipped.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let names = code.split("crate::").skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        Some(group) => group.split('}').next().unwrap_or_default().split(',').map(str::trim).collect(),
        None => vec![rest],
    });
    names
        .filter(|name| !name.is_empty())
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect())
        .collect()
}

fn check(name: &str, layers: &str) {
    let layer_of = |module: &str| layers.split(' ').position(|layer| layer.split('/').any(|other| other == module));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    let mut seen = BTreeSet::new();
    for file in files(&source) {
        let inner = file.strip_prefix(&source).unwrap().with_extension("");
        let parts: Vec<_> = inner.iter().map(|part| part.to_str().unwrap()).collect();
        let only_tests = parts.contains(&"tests")
            || parts[1..].iter().any(|part| matches!(*part, "simulation" | "faults"))
            || parts.last().is_some_and(|last| last.ends_with("cases") || *last == "fixtures");
        if matches!(parts[..], ["lib" | "main"]) || only_tests {
            continue;
        }
        let own = layer_of(parts[0]);
        assert!(own.is_some(), "{name}: {} has no place among the layers", parts[0]);
        let text = std::fs::read_to_string(&file).unwrap();
        let mut names = named(&text);
        assert!(
            !(parts.len() == 1 && text.contains("\nuse super::")),
            "{} names modules through super",
            file.display()
        );
        // Compiled for unit tests alone.
        names.remove("fixtures");
        for other in names {
            let below = layer_of(&other).is_some_and(|layer| Some(layer) <= own);
            assert!(below, "{} depends on '{other}'", file.display());
        }
        seen.insert(parts[0].to_owned());
    }
    let modules = layers.split([' ', '/']).count();
    assert_eq!(seen.len(), modules, "{name}: every layer is a module");
}

#[test]
fn modules_do_not_depend_on_higher_layers() {
    for (name, layers) in CRATES {
        check(name, layers);
    }
}
