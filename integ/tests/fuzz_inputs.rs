//! The inputs that are kept for what two parts parse; those of one part are run by its own unit tests.

#[path = "../../fuzz/src/both.rs"]
mod both;
#[path = "../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn controller_and_agent_parse_seed_bundles_identically() {
    seeds::hold("both", both::TARGETS);
}
