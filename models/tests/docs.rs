//! Texts in `docs/` about the shared rules, compared with the code; the links of all pages; and the tests that pages name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

#[test]
fn documented_step_table_matches_agent() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/agent-steps.md");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, rest) = text.split_once("<!-- table:begin -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- table:end -->").unwrap();
    let expected = models::agent_step::table_markdown();
    assert!(table == expected, "docs/agent-steps.md is stale; between its markers belongs:\n{expected}");
}

#[test]
fn documented_files_and_tests_exist() {
    let root = root();
    let mut missing = Vec::new();
    for page in pages().unwrap() {
        let text = std::fs::read_to_string(&page).unwrap();
        // A path from the root to a source file, and perhaps an item in it: `planner/src/lint.rs::lint`.
        for quoted in text.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains(char::is_whitespace)) {
            let (file, item) = quoted.split_once("::").unwrap_or((quoted, ""));
            let is_source = !file.contains('*') && file.ends_with(".rs");
            if !is_source || !root.join(file.split('/').next().unwrap_or_default()).is_dir() {
                continue;
            }
            let source = std::fs::read_to_string(root.join(file)).ok();
            if !source.is_some_and(|source| source.contains(item.rsplit("::").next().unwrap_or_default())) {
                missing.push(format!("{}: {quoted}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn links_between_pages_lead_to_files_and_headings() {
    let pages = pages().unwrap();
    let anchors: BTreeMap<PathBuf, BTreeSet<String>> =
        pages.iter().map(|page| (page.clone(), headings(&std::fs::read_to_string(page).unwrap()))).collect();
    let mut broken = Vec::new();
    for page in &pages {
        for link in links(&std::fs::read_to_string(page).unwrap()) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { plain(&page.with_file_name(file)) };
            let found = match anchors.get(&target) {
                Some(anchors) => anchor.is_empty() || anchors.contains(anchor),
                None => anchor.is_empty() && target.exists(),
            };
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn each_promise_names_a_page_and_a_test_that_exist() {
    let text = std::fs::read_to_string(docs().join("promises.md")).unwrap();
    let (mut promises, mut wrong) = (0, Vec::new());
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [promise, page, test] = cells[..] else {
            wrong.push(format!("not three columns: {line}"));
            continue;
        };
        if promise == "promise" || promise == "---" {
            continue;
        }
        promises += 1;
        let is_page = |link: &String| docs().join(link.split('#').next().unwrap_or_default()).is_file();
        if !matches!(&links(page)[..], [link] if is_page(link)) {
            wrong.push(format!("no such page: {line}"));
        }
        let quoted = test.strip_prefix('`').and_then(|test| test.strip_suffix('`'));
        if !quoted.and_then(|test| test.split_once(' ')).is_some_and(|(binary, path)| test_exists(binary, path)) {
            wrong.push(format!("no such test: {line}"));
        }
    }
    assert!(promises >= 120, "{promises} promises");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_alert_is_listed_in_its_page() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (alerts, metrics) = (read("deploy/monitoring/alerts.yaml"), read("docs/metrics.md"));
    let alerts: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 20, "{alerts:?}");
    let has_row = |alert: &&&str| {
        let name = format!("[`{alert}`](runbook/{alert}.md)");
        metrics.lines().any(|line| line.starts_with('|') && line.contains(&name))
    };
    let missing: Vec<_> = alerts.iter().filter(|alert| !has_row(alert)).collect();
    assert!(missing.is_empty(), "docs/metrics.md has no row of {missing:?}");
}

/// A page that is cut off, and what a merge or a patch leaves.
#[test]
fn each_page_ends_with_a_sentence_a_list_a_table_or_a_block() {
    let (marks, closing) = (["@@", "<<<<<<<", ">>>>>>>"], ["```", "<!-- table:end -->"]);
    let mut wrong = Vec::new();
    for page in pages().unwrap() {
        let text = std::fs::read_to_string(&page).unwrap();
        let last = text.lines().next_back().unwrap_or_default();
        let ends = last.ends_with(['.', '|']) || last.starts_with("- [") || closing.contains(&last);
        let marked = text.lines().find(|line| marks.iter().any(|mark| line.starts_with(mark)));
        wrong.extend(marked.or((!ends).then_some(last)).map(|line| format!("{}: {line}", page.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// zsh takes a note beside a command for words of it. On a line of its own, it only says that `#` is no command, unless the note ends
/// that command, or opens a quote.
#[test]
fn notes_of_commands_are_lines_of_their_own_without_words_of_a_shell() {
    let (mut notes, mut wrong) = (0, Vec::new());
    for page in pages().unwrap() {
        let text = std::fs::read_to_string(&page).unwrap();
        for line in text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).flat_map(str::lines) {
            let note = line.trim_start().strip_prefix('#');
            notes += usize::from(note.is_some());
            let is_wrong = note.map_or(line.contains(" #"), |note| note.contains(|c: char| ";&|<>()$`'\"".contains(c)));
            wrong.extend(is_wrong.then(|| format!("{}: {line}", page.display())));
        }
    }
    assert!(notes > 20 && wrong.is_empty(), "{notes} notes: {wrong:#?}");
}

/// Each page is a chapter of the book, once.
#[test]
fn summary_of_the_book_has_every_page() {
    let summary = docs().join("SUMMARY.md");
    let mut chapters: Vec<PathBuf> = Vec::new();
    for link in links(&std::fs::read_to_string(&summary).unwrap()) {
        chapters.push(plain(&summary.with_file_name(link)));
    }
    chapters.sort();
    let mut pages = pages().unwrap();
    pages.retain(|page| page.starts_with(docs()) && *page != summary);
    pages.sort();
    assert_eq!(chapters, pages);
}

/// Checks the book that `make docs` has built: `BRUPOP_BOOK` is the folder of the site.
#[test]
#[ignore = "it needs the book: make docs"]
fn links_of_the_book_lead_to_files_and_headings() {
    let site = plain(Path::new(&std::env::var("BRUPOP_BOOK").expect("BRUPOP_BOOK is the folder of the site")));
    let pages = files_under(&site, "html").unwrap();
    let chapters = files_under(&docs(), "md").unwrap().len() - 1;
    assert!(pages.len() > chapters, "{} pages in {}", pages.len(), site.display());
    let texts: BTreeMap<PathBuf, String> =
        pages.into_iter().map(|page| (page.clone(), std::fs::read_to_string(page).unwrap())).collect();
    let mut broken = Vec::new();
    for (page, text) in &texts {
        let attributes = [" href=\"", " src=\""].into_iter().flat_map(|name| text.split(name).skip(1));
        for link in attributes.filter_map(|rest| rest.split('"').next()) {
            if link.contains(':') || link.starts_with("//") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { plain(&page.with_file_name(file)) };
            let has_anchor = || texts.get(&target).is_some_and(|text| text.contains(&format!("id=\"{anchor}\"")));
            if !target.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

fn root() -> PathBuf {
    plain(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
}

fn docs() -> PathBuf {
    root().join("docs")
}

/// All pages: those of `docs`, and those in the root of the repository.
fn pages() -> std::io::Result<Vec<PathBuf>> {
    let mut pages = files_under(&docs(), "md")?;
    pages.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(|page| root().join(page)));
    Ok(pages)
}

fn files_under(folder: &Path, extension: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_under(&path, extension)?);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns whether this binary has a test of this path, by the rules of `integ/plant/plant.py`: the function is defined in
/// the file of one of the modules above it.
fn test_exists(binary: &str, path: &str) -> bool {
    if binary == "controller" && is_fault_plan(path) {
        return true;
    }
    let Some((folder, root)) = sources_of(binary) else { return false };
    let mut modules: Vec<&str> = path.split("::").collect();
    let function = modules.pop().unwrap_or_default();
    let files = (1..=modules.len()).flat_map(|depth| {
        let base = folder.join(modules[..depth].iter().collect::<PathBuf>());
        [base.with_extension("rs"), base.join("mod.rs")]
    });
    files.chain([root]).any(|file| std::fs::read_to_string(file).is_ok_and(|source| defines(&source, function)))
}

/// Returns the folder of the modules of a test binary, and the file at their root. The binary of unit tests is their folder.
fn sources_of(binary: &str) -> Option<(PathBuf, PathBuf)> {
    if binary.ends_with("/src") {
        let folder = root().join(binary);
        let file = ["lib.rs", "main.rs"].map(|name| folder.join(name)).into_iter().find(|file| file.is_file())?;
        return Some((folder, file));
    }
    let packages = folders_in(&root());
    let nested: Vec<PathBuf> = packages.iter().flat_map(|package| folders_in(package)).collect();
    packages.into_iter().chain(nested).map(|package| package.join("tests")).find_map(|tests| {
        let folder = tests.join(binary);
        let single = tests.join(format!("{binary}.rs"));
        let sources = [(folder.join("main.rs"), folder), (single, tests)];
        sources.into_iter().find(|(file, _)| file.is_file()).map(|(file, folder)| (folder, file))
    })
}

fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Returns whether this names a fault at a write of the controller; such tests have no function of their own.
fn is_fault_plan(path: &str) -> bool {
    let folder = root().join("integ/tests/controller");
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    let Some((write, fault)) = path.strip_prefix("faults::at::").and_then(|plan| plan.split_once("::")) else {
        return false;
    };
    let words = |line: &str| line.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    let name = format!("=> \"{fault}\",");
    read("faults/writes.txt").lines().any(|line| words(line.trim_end_matches(" ?")) == write)
        && read("bed/faults.rs").lines().any(|line| line.trim_start().starts_with("Self::") && line.ends_with(&name))
}

fn defines(source: &str, function: &str) -> bool {
    source.match_indices(&format!("fn {function}")).any(|(at, found)| {
        let is_inside_a_word = source[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        !is_inside_a_word && source[at + found.len()..].trim_start().starts_with(['(', '<'])
    })
}

/// The path without `.` and `..`, also of what does not exist.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

/// The text outside of fenced blocks.
fn prose(text: &str) -> String {
    let mut in_block = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of links and pictures that are in the repository.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    // Code in a line has no links; the text of a link may have code.
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let targets = targets.map(|target| target.split_whitespace().collect::<String>());
    targets.filter(|target| !target.contains(':') && !target.contains('`')).collect()
}

/// The anchors of the headings, as Git hosts and mdBook make them: two equal ones get a number.
fn headings(text: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    let prose = prose(text);
    let titles = prose.lines().filter(|line| line.starts_with('#'));
    for title in titles.filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')) {
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect();
        let count = counts.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor.clone() } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}
