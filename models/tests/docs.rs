//! Texts in `docs/` about the shared rules, compared with the code.

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
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.chain(["README.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    let mut missing = Vec::new();
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
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
