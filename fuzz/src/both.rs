//! What two parts read, each for itself, and have to understand alike. Part of the fuzzer and of the test that runs its inputs.

/// The targets by name.
pub(crate) const TARGETS: &[models::FuzzTarget] = &[("trust_bundle", trust_bundle)];

/// The bundle of authorities, which a client may have provided: what the controller takes for an authority each agent trusts,
/// and what the controller publishes of it, both read whole.
fn trust_bundle(data: &[u8]) {
    let (known, published) = controller::fuzzing::authorities(&String::from_utf8_lossy(data));
    let trusted = agent::fuzzing::trusted(data);
    assert!(
        known.iter().all(|authority| trusted.contains(authority)),
        "an agent does not trust what the controller does"
    );
    assert_eq!(
        agent::fuzzing::trusted(published.as_bytes()),
        known,
        "an agent reads something else than was published"
    );
    assert_eq!(controller::fuzzing::authorities(&published).0, known, "what was published is not read again");
}
