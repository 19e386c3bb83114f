//! The lists of `CONTRIBUTING.md`, compared with the tree by things that are there already. Each file of the programs that
//! names one is in its list, so that the list has each place of another one. Each file of a list names one, or the item
//! that the list names beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The lists, by their headings, each with words by which files name things of its kind, and nothing else.
const LISTS: [(&str, &str); 10] = [
    // At the end what facts are read from: a label, and a kind of objects.
    (
        "Add a reason for which a node waits",
        "BudgetUnhealthy BudgetUsedUp Deleting DisarmPending MultipleBudgets NotOffered ReadingPods TooYoung \
         PRIORITY_LABEL csi_nodes csinodes",
    ),
    // Some names here, and among the fields, are of the patch of the next version.
    ("Add a step", "Planning PlannedUpdate Step::AfterUpdate"),
    ("Add a way in which an attempt ends", "HookRefused NotStaged PrepareFailed"),
    // Of the policy, of a shadow, and of a Node.
    (
        "Add a field to a resource",
        "cordoned_nodes cordonedNodes guarded_timeout ignore_unavailable_after \
         novelty: agent_novelty controller_novelty controllerNovelty SCALE_DOWN_ANNOTATION ClaimField::ScaleDown",
    ),
    (
        "Add a request",
        "TEST_NOTICES_ANNOTATION rotate_signing_key rotate-signing-key \
         RELEASE_ANNOTATION pending_release acknowledge_release",
    ),
    ("Add a command to the plugin", "SupportBundle Preflight TestNotices"),
    (
        "Add a metric, an alert or a panel",
        "freshness_ratio web_api_ready updates_total brupop_controller_updates_total \
         refusals_total brupop_apiserver_refusals_total BrupopApprovalWanted",
    ),
    ("Add a reason of `HostReachable`", "SocketMissing HOST_BUSY"),
    ("Add an event of notices", "NodesBlocked"),
    ("Add a value to the chart", "podMonitor prometheusPort aggregateRoles"),
];

/// Folders of what an installation consists of.
const PROGRAMS: [&str; 12] = [
    "agent/src",
    "apiserver/src",
    "aws/src",
    "cli/src",
    "controller/src",
    "deploy/src",
    "models/src",
    "planner/src",
    "ports/src",
    "watches/src",
    "deploy/chart/templates",
    "deploy/monitoring",
];

#[test]
fn lists_of_the_contributor_guide_name_each_file_in_which_their_examples_are() {
    let text = guide().unwrap();
    let headings: Vec<_> = sections(&text).map(|(heading, _)| heading).collect();
    assert_eq!(headings, LISTS.map(|(heading, _)| heading));
    let faults = faults(&text, &programs().unwrap());
    assert!(faults.is_empty(), "CONTRIBUTING.md: {faults:#?}");
}

#[test]
fn path_that_a_list_lacks_or_that_is_out_of_date_is_found() {
    let (text, programs) = (guide().unwrap(), programs().unwrap());
    for (path, instead, expected) in [
        ("`cli/src/requests/pin.rs`", "", "cli/src/requests/pin.rs has NotOffered, and is not in it"),
        ("`cli/src/cluster/read.rs`", "the plugin", "cli/src/cluster/read.rs has csi_nodes, and is not in it"),
        ("`planner/src/survey/want.rs`", "`planner/src/survey/no.rs`", "planner/src/survey/no.rs leads to no file"),
        ("`planner/src/plan/tests/stage.rs`", "`planner/src/fnv.rs`", "planner/src/fnv.rs has no example"),
    ] {
        assert!(text.contains(path), "{path}");
        let found = faults(&text.replace(path, instead), &programs);
        let expected = format!("Add a reason for which a node waits: {expected}");
        assert!(found.contains(&expected), "{expected}: {found:#?}");
    }
}

/// Returns the faults of all lists.
fn faults(guide: &str, programs: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut all = Vec::new();
    for ((heading, list), (_, words)) in sections(guide).zip(LISTS) {
        let words: Vec<&str> = words.split(' ').collect();
        all.extend(faults_of(list, &words, programs).into_iter().map(|fault| format!("{heading}: {fault}")));
    }
    all
}

fn faults_of(list: &str, words: &[&str], programs: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let (paths, mut faults) = paths_of(list);
    for (file, text) in programs {
        if !file.ancestors().any(|path| paths.contains_key(path)) {
            let found = words.iter().filter(|word| has_word(text, word));
            faults.extend(found.map(|word| format!("{} has {word}, and is not in it", file.display())));
        }
    }
    // Files in the root are about the whole.
    for (path, beside) in paths.iter().filter(|(path, _)| path.components().count() > 1) {
        let Ok(mut text) = std::fs::read_to_string(root().join(path)) else { continue };
        text.extend(programs.get(path).map(String::as_str));
        let is_example = words.iter().any(|word| has_word(&text, item(word)));
        if !is_example && !beside.iter().any(|span| !is_path(span) && text.contains(item(span))) {
            faults.push(format!("{} has no example", path.display()));
        }
    }
    faults
}

/// Returns the last name of a path to an item.
fn item(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or_default()
}

/// Returns the files and folders that a list names, each with the code before and after it; and the names that lead
/// nowhere. A short name is of a file in the folder that was named last, or in one above it.
fn paths_of(list: &str) -> (BTreeMap<PathBuf, Vec<&str>>, Vec<String>) {
    let spans: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    let (mut paths, mut faults) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    let mut folders = vec![PathBuf::new()];
    for (at, span) in spans.iter().enumerate().filter(|(_, span)| is_path(span)) {
        let candidates = folders.iter().rev().flat_map(|folder| folder.ancestors());
        let Some(path) = candidates.map(|folder| folder.join(span)).find(|path| root().join(path).exists()) else {
            faults.push(format!("{span} leads to no file"));
            continue;
        };
        let folder = if root().join(&path).is_dir() { Some(path.as_path()) } else { path.parent() };
        folders.extend(folder.map(Path::to_path_buf));
        let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter_map(|at| spans.get(at).copied());
        paths.entry(path).or_default().extend(beside);
    }
    (paths, faults)
}

fn is_path(span: &str) -> bool {
    let is_file = Path::new(span).extension().is_some_and(|end| end == "rs" || end == "txt" || end == "yaml");
    let is_plain = span.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'));
    is_plain && (is_file || span.contains('/')) && !span.starts_with('/') && !span.ends_with('/')
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, rest) = text.split_at(at);
        !before.ends_with(is_part) && rest.strip_prefix(word).is_none_or(|after| !after.starts_with(is_part))
    })
}

/// The files of the programs that are written by hand, without tests, and with what the patch of the next version adds.
fn programs() -> std::io::Result<BTreeMap<PathBuf, String>> {
    let (mut files, mut tests) = (BTreeMap::<PathBuf, String>::new(), Vec::new());
    let folders = PROGRAMS.into_iter().map(|folder| files_under(Path::new(folder)));
    for path in folders.collect::<Result<Vec<_>, _>>()?.concat() {
        let text = std::fs::read_to_string(root().join(&path))?;
        let is_root = path.file_stem().is_some_and(|name| name == "mod" || name == "lib" || name == "main");
        let folder = if is_root { path.with_file_name("") } else { path.with_extension("") };
        let (code, modules) = without_tests(&text);
        tests.extend(modules.into_iter().map(|module| folder.join(module)));
        if !text.lines().take(3).any(|line| line.contains("do not edit")) {
            files.insert(path, code);
        }
    }
    for change in std::fs::read_to_string(root().join("integ/next/next.patch"))?.split("diff --git a/").skip(1) {
        let path = change.split(' ').next().unwrap_or_default();
        let added = change.lines().filter_map(|line| line.strip_prefix('+'));
        files.entry(path.into()).or_default().extend(added.flat_map(|line| ["\n", line]));
    }
    let is_of_cases = |path: &Path| path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("_cases"));
    let is_test = |path: &Path| is_of_cases(path) || tests.iter().any(|test| path.with_extension("").starts_with(test));
    files.retain(|path, _| !is_test(path));
    Ok(files)
}

/// Returns the code before the unit tests in a file, and the modules that it declares for tests alone.
fn without_tests(text: &str) -> (String, Vec<&str>) {
    let (mut code, mut modules, mut of_tests) = (String::new(), Vec::new(), false);
    for line in text.lines() {
        let module = line.trim().rsplit_once("mod ").filter(|_| of_tests);
        match module.map(|(_, name)| name.strip_suffix(';')) {
            Some(None) => break,
            Some(Some(name)) => modules.push(name),
            None => code.extend([line, "\n"]),
        }
        of_tests = matches!(line.trim(), "#[cfg(test)]" | "#[cfg(any(test, fuzzing))]");
    }
    (code, modules)
}

/// Returns the headings of the lists, each with its text.
fn sections(guide: &str) -> impl Iterator<Item = (&str, &str)> {
    let lists = guide.split("\n### ").skip(1).filter_map(|list| list.split("\n## ").next());
    lists.filter_map(|list| list.split_once('\n'))
}

fn guide() -> std::io::Result<String> {
    std::fs::read_to_string(root().join("CONTRIBUTING.md"))
}

/// The files under a folder, by their paths from the root.
fn files_under(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join(folder))? {
        let path = folder.join(entry?.file_name());
        if root().join(&path).is_dir() {
            files.extend(files_under(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
