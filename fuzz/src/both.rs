//! What two parts parse, each for itself, and have to understand alike. Part of the fuzzer and of the test that runs its inputs.

use controller::tls::certificate::{Certificate, bundle};

/// A target: its name, and what is run over an input.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: &[Target] = &[("trust_bundle", trust_bundle)];

/// The bundle of authorities, which a client may have provided: each agent trusts what the controller takes for an
/// authority, and both read all of what the controller publishes.
fn trust_bundle(data: &[u8]) {
    let trusted = |bundle: &[u8]| -> Vec<Vec<u8>> {
        agent::server::usable(bundle).iter().map(|certificate| certificate.to_vec()).collect()
    };
    let (all, _) = Certificate::read_all(&String::from_utf8_lossy(data));
    for certificate in &all {
        assert!(certificate.names().iter().all(|name| *name == name.to_ascii_lowercase()));
    }
    let anchors: Vec<&Certificate> = all.iter().filter(|certificate| certificate.is_anchor()).collect();
    let published = bundle(anchors.iter().copied());
    let (again, clean) = Certificate::read_all(&published);
    assert!(clean && again.iter().eq(anchors.iter().copied()), "what is published is not what was read: {published}");
    let known: Vec<Vec<u8>> = anchors.into_iter().map(|certificate| certificate.der().to_vec()).collect();
    let theirs = trusted(data);
    assert!(
        known.iter().all(|authority| theirs.contains(authority)),
        "an agent does not trust what the controller does"
    );
    assert_eq!(trusted(published.as_bytes()), known, "an agent reads something else than was published");
}
