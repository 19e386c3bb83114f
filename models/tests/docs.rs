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
