//! Whether a go is for us, now.
//!
//! A go counts when its signature is by a key that we trust, every claim is what this very order, host and boot say, and
//! its nonce is the one that this process sent less than [`GO_LIFETIME`] ago. So a web API that lies can withhold a go, and
//! nothing else.

use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use models::go::{GO_LIFETIME, GoClaims};
use serde_json::Value;

/// Why a go is not acted on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GoError {
    /// It is no JWS in compact form with a key id.
    #[error("the go is no signed statement with a key id")]
    Malformed,
    /// It is signed otherwise than with ES256.
    #[error("the go is not signed with ES256")]
    Algorithm,
    /// Its key is not among those we trust, or not yet.
    #[error("the go's key '{0}' is not trusted here, or not yet")]
    UnknownKey(String),
    /// Its signature is wrong.
    #[error("the go's signature is wrong")]
    Forged,
    /// It speaks of something else.
    #[error("the go is for another {0}")]
    Other(&'static str),
}

impl GoError {
    /// Whether the same go may become good later, when the trusted keys have arrived.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::UnknownKey(_))
    }
}

/// Checks a go: `keys` is the trusted JWKS, `expected` what this order, host, boot and nonce are.
///
/// # Errors
///
/// With the first thing that is wrong.
pub fn verify(jws: &str, keys: &str, expected: &GoClaims) -> Result<(), GoError> {
    let header = decode_header(jws).map_err(|_| GoError::Malformed)?;
    if header.alg != Algorithm::ES256 {
        return Err(GoError::Algorithm);
    }
    let kid = header.kid.ok_or(GoError::Malformed)?;
    let key = find_key(keys, &kid).ok_or(GoError::UnknownKey(kid))?;
    let mut validation = Validation::new(Algorithm::ES256);
    // A go has no times and no audience: its nonce says for whom and for how long it is good.
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let GoClaims { node_uid, boot_id, attempt, version, nonce, host } =
        decode::<GoClaims>(jws, &key, &validation).map_err(|_| GoError::Forged)?.claims;
    let checks = [
        ("node", node_uid == expected.node_uid),
        ("boot", boot_id == expected.boot_id),
        ("attempt", attempt == expected.attempt),
        ("version", version == expected.version),
        ("nonce", nonce == expected.nonce),
        ("host policy", host == expected.host),
    ];
    checks.iter().find(|(_, same)| !same).map_or(Ok(()), |(what, _)| Err(GoError::Other(what)))
}

/// Whether a nonce that was sent at `sent` still counts. To be asked again right before each act on its go: the monotonic
/// clock runs on while a process is stopped.
pub fn is_fresh(sent: Instant, now: Instant) -> bool {
    now.saturating_duration_since(sent) < GO_LIFETIME
}

/// Makes a nonce: 16 random bytes.
pub fn new_nonce() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>())
}

/// The uid of the node that our own token is bound to. The token is ours, so its signature is not ours to check.
pub fn node_uid(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.trim().split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    let uid = claims.get("kubernetes.io")?.get("node")?.get("uid")?.as_str()?;
    (!uid.is_empty()).then(|| uid.to_owned())
}

/// Finds a key in a JWKS. Keys of other kinds beside it do no harm.
fn find_key(keys: &str, kid: &str) -> Option<DecodingKey> {
    let set: Value = serde_json::from_str(keys).ok()?;
    let key = set.get("keys")?.as_array()?.iter().find(|key| key.get("kid").and_then(Value::as_str) == Some(kid))?;
    let key: Jwk = serde_json::from_value(key.clone()).ok()?;
    DecodingKey::from_jwk(&key).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jsonwebtoken::{EncodingKey, Header, encode};
    use models::shadow::HostPolicy;
    use semver::Version;

    use super::*;

    struct Signer {
        kid: &'static str,
        key: EncodingKey,
        jwk: Value,
    }

    fn signer(kid: &'static str) -> Signer {
        let pair = rcgen::KeyPair::generate().unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(kid.to_owned());
        Signer { kid, key, jwk: serde_json::to_value(jwk).unwrap() }
    }

    impl Signer {
        fn sign(&self, claims: &GoClaims) -> String {
            let header = Header { kid: Some(self.kid.to_owned()), ..Header::new(Algorithm::ES256) };
            encode(&header, claims, &self.key).unwrap()
        }

        fn keys(&self) -> String {
            // A key of a kind that nobody knows stands first and must not matter.
            serde_json::json!({"keys": [{"kty": "QUANTUM", "kid": "x"}, self.jwk]}).to_string()
        }
    }

    fn claims() -> GoClaims {
        GoClaims {
            node_uid: "uid-1".into(),
            boot_id: "boot-1".into(),
            attempt: 3,
            version: Version::new(1, 20, 5),
            nonce: "n1".into(),
            host: None,
        }
    }

    #[test]
    fn a_go_for_us_is_accepted() {
        let signer = signer("k1");
        assert_eq!(verify(&signer.sign(&claims()), &signer.keys(), &claims()), Ok(()));
    }

    #[test]
    fn a_go_for_anything_else_is_refused() {
        let signer = signer("k1");
        type Change = fn(&mut GoClaims);
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
            assert_eq!(verify(&signer.sign(&other), &signer.keys(), &claims()), Err(GoError::Other(what)));
        }
    }

    #[test]
    fn a_forged_go_is_refused() {
        let (ours, theirs) = (signer("k1"), signer("k1"));
        assert_eq!(verify(&theirs.sign(&claims()), &ours.keys(), &claims()), Err(GoError::Forged));
        let jws = ours.sign(&claims());
        let mut parts: Vec<&str> = jws.split('.').collect();
        let other = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&GoClaims { attempt: 4, ..claims() }).unwrap());
        parts[1] = &other;
        assert_eq!(verify(&parts.join("."), &ours.keys(), &GoClaims { attempt: 4, ..claims() }), Err(GoError::Forged));
    }

    #[test]
    fn a_go_that_is_not_signed_with_our_algorithm_is_refused() {
        let signer = signer("k1");
        let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::HS256) };
        // The public key used as a shared secret, which is what an attacker has.
        let jws = encode(&header, &claims(), &EncodingKey::from_secret(signer.jwk.to_string().as_bytes())).unwrap();
        assert_eq!(verify(&jws, &signer.keys(), &claims()), Err(GoError::Algorithm));
        let none =
            format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"k1"}"#), jws.split('.').nth(1).unwrap());
        assert_eq!(verify(&none, &signer.keys(), &claims()), Err(GoError::Malformed));
        for garbage in ["", ".", "a.b.c", "..", "\u{0}"] {
            assert_eq!(verify(garbage, &signer.keys(), &claims()), Err(GoError::Malformed), "{garbage:?}");
        }
    }

    #[test]
    fn a_key_that_is_not_known_yet_means_wait() {
        let (old, new) = (signer("k1"), signer("k2"));
        let error = verify(&new.sign(&claims()), &old.keys(), &claims()).unwrap_err();
        assert_eq!(error, GoError::UnknownKey("k2".into()));
        assert!(error.may_pass());
        for keys in ["", "{}", "[]", r#"{"keys": 5}"#] {
            assert_eq!(verify(&new.sign(&claims()), keys, &claims()), Err(GoError::UnknownKey("k2".into())), "{keys}");
        }
    }

    #[test]
    fn a_nonce_counts_for_its_lifetime_and_not_a_moment_longer() {
        let sent = Instant::now();
        assert!(is_fresh(sent, sent));
        assert!(is_fresh(sent, sent + GO_LIFETIME - Duration::from_millis(1)));
        assert!(!is_fresh(sent, sent + GO_LIFETIME));
        assert_ne!(new_nonce(), new_nonce());
        assert_eq!(new_nonce().len(), 22);
    }

    #[test]
    fn the_node_is_the_one_that_our_own_token_is_bound_to() {
        let token = |claims: &str| format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims));
        let bound = token(r#"{"kubernetes.io":{"node":{"name":"a","uid":"u-1"},"pod":{"name":"p"}}}"#);
        assert_eq!(node_uid(&bound).as_deref(), Some("u-1"));
        for other in [token(r#"{"kubernetes.io":{"pod":{}}}"#), token("{}"), token("x"), String::new(), "a.!.c".into()]
        {
            assert_eq!(node_uid(&other), None, "{other}");
        }
    }
}
