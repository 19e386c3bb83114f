//! Verification of permits.
//!
//! A permit is valid if a trusted key signed it, every claim matches this attempt, host and boot, and its nonce is the
//! one that this process sent. How long a nonce is valid is in `drive/permit_request.rs`. So a compromised web API can
//! withhold a permit, and nothing else.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use models::permit::{PermitClaims, REHEARSAL_AUDIENCE, RehearsalClaims};
use models::shadow::HostPolicy;

use crate::statement::{StatementError, open};

/// Verifies a permit: `keys` is the trusted JWKS, `expected` the claims of this attempt, host, boot and nonce.
pub(crate) fn verify(jws: &str, keys: &str, expected: &PermitClaims) -> Result<(), StatementError> {
    check(open(jws, keys)?, expected)
}

/// Verifies a rehearsal permit: `expected` are the claims that a permit for the reboot would have. A permit for a reboot is
/// none.
pub(crate) fn verify_rehearsal(jws: &str, keys: &str, expected: &PermitClaims) -> Result<(), StatementError> {
    let RehearsalClaims { aud, node_uid, boot_id, attempt, rehearsed, nonce, host } = open(jws, keys)?;
    if aud != REHEARSAL_AUDIENCE {
        return Err(StatementError::Other("purpose"));
    }
    check(PermitClaims { node_uid, boot_id, attempt, version: rehearsed, nonce, host }, expected)
}

fn check(claims: PermitClaims, expected: &PermitClaims) -> Result<(), StatementError> {
    let PermitClaims { node_uid, boot_id, attempt, version, nonce, host } = claims;
    let checks = [
        ("node", node_uid == expected.node_uid),
        ("boot", boot_id == expected.boot_id),
        ("attempt", attempt == expected.attempt),
        ("version", version == expected.version),
        ("nonce", nonce == expected.nonce),
        ("host policy", same_policy(host.as_ref(), expected.host.as_ref())),
    ];
    checks.iter().find(|(_, same)| !same).map_or(Ok(()), |(what, _)| Err(StatementError::Other(what)))
}

/// Returns true if a permit was issued under this policy; a new signature of the same policy makes no difference.
fn same_policy(one: Option<&HostPolicy>, other: Option<&HostPolicy>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.asks_as(other),
        (one, other) => one == other,
    }
}

/// Generates a nonce of 16 random bytes.
pub(crate) fn new_nonce() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>())
}

#[cfg(test)]
mod tests {
    use models::permit::SettingsClaims;
    use semver::Version;

    use super::*;
    use crate::statement::tests::signer;

    fn claims() -> PermitClaims {
        PermitClaims {
            node_uid: "uid-1".into(),
            boot_id: "boot-1".into(),
            attempt: 3,
            version: Version::new(1, 20, 5),
            nonce: "n1".into(),
            host: None,
        }
    }

    #[test]
    fn matching_permit_is_accepted() {
        let signer = signer("k1");
        assert_eq!(verify(&signer.sign(&claims()), &signer.keys(), &claims()), Ok(()));
    }

    #[test]
    fn permit_with_any_other_claim_is_rejected() {
        let signer = signer("k1");
        type Change = fn(&mut PermitClaims);
        let changes: [(&str, Change); 6] = [
            ("node", |c| c.node_uid = "uid-2".into()),
            ("boot", |c| c.boot_id = "boot-2".into()),
            ("attempt", |c| c.attempt = 2),
            ("version", |c| c.version = Version::new(1, 20, 6)),
            ("nonce", |c| c.nonce = "n0".into()),
            ("host policy", |c| c.host = Some(HostPolicy { ignore_waves: Some(true), ..HostPolicy::default() })),
        ];
        for (what, change) in changes {
            let mut other = claims();
            change(&mut other);
            assert_eq!(verify(&signer.sign(&other), &signer.keys(), &claims()), Err(StatementError::Other(what)));
        }
    }

    #[test]
    fn rehearsal_permit_is_refused_for_a_reboot_and_reboot_permit_in_a_drill() {
        let signer = signer("k1");
        let rehearsal = signer.sign(&RehearsalClaims::of(claims()));
        let reboot = signer.sign(&claims());
        let other_purpose = Err(StatementError::Other("purpose"));
        assert_eq!(verify_rehearsal(&rehearsal, &signer.keys(), &claims()), Ok(()));
        assert_eq!(verify(&rehearsal, &signer.keys(), &claims()), other_purpose);
        assert_eq!(verify_rehearsal(&reboot, &signer.keys(), &claims()), other_purpose);
        // The fields of a rehearsal permit do not suffice: it has to name its purpose.
        let unnamed = RehearsalClaims { aud: String::new(), ..RehearsalClaims::of(claims()) };
        assert_eq!(verify_rehearsal(&signer.sign(&unnamed), &signer.keys(), &claims()), other_purpose);
        let older = RehearsalClaims { nonce: "n0".into(), ..RehearsalClaims::of(claims()) };
        let older = verify_rehearsal(&signer.sign(&older), &signer.keys(), &claims());
        assert_eq!(older, Err(StatementError::Other("nonce")));
    }

    #[test]
    fn permit_comparison_ignores_signature_of_host_policy() {
        let signer = signer("k1");
        let with = |signature: &str| {
            let policy = HostPolicy { version_lock: Some("1.20.5".into()), ..HostPolicy::default() };
            PermitClaims { host: Some(HostPolicy { signature: Some(signature.into()), ..policy }), ..claims() }
        };
        assert_eq!(verify(&signer.sign(&with("a")), &signer.keys(), &with("b")), Ok(()));
        assert!(verify(&signer.sign(&claims()), &signer.keys(), &with("b")).is_err());
    }

    #[test]
    fn settings_statement_is_not_accepted_as_permit() {
        let signer = signer("k1");
        let asks = HostPolicy { version_lock: Some("1.20.5".into()), ..HostPolicy::default() };
        let jws = signer.sign(&SettingsClaims::of("uid-1", &asks).unwrap());
        assert_eq!(verify(&jws, &signer.keys(), &claims()), Err(StatementError::Other("purpose")));
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(new_nonce(), new_nonce());
        assert_eq!(new_nonce().len(), 22);
    }
}
