//! Statements that the controller signs: JWS in compact form, ES256, by a key in the trusted JWKS. Their claims are
//! checked in [`crate::permit`] and [`crate::settings`].

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reason to reject a statement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StatementError {
    #[error("there is no signed statement")]
    Missing,
    #[error("it is no signed statement with a key id")]
    Malformed,
    #[error("it is not signed with ES256")]
    Algorithm,
    #[error("its key '{0}' is not trusted here, or not yet")]
    UnknownKey(String),
    #[error("its signature is wrong")]
    Forged,
    #[error("it is for another {0}")]
    Other(&'static str),
}

impl StatementError {
    /// Returns true if the same statement may become valid later, when the trusted keys have arrived.
    pub(crate) const fn may_pass(&self) -> bool {
        matches!(self, Self::UnknownKey(_))
    }
}

/// Reads a statement that is signed by one of `keys`, the trusted JWKS.
pub(crate) fn open<T: DeserializeOwned + Clone>(jws: &str, keys: &str) -> Result<T, StatementError> {
    let header = decode_header(jws).map_err(|_| StatementError::Malformed)?;
    if header.alg != Algorithm::ES256 {
        return Err(StatementError::Algorithm);
    }
    let kid = header.kid.ok_or(StatementError::Malformed)?;
    let key = find_key(keys, &kid).ok_or(StatementError::UnknownKey(kid))?;
    let mut validation = Validation::new(Algorithm::ES256);
    // There are no times, and the reader of a statement compares its subject claim by claim.
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    decode::<T>(jws, &key, &validation).map(|read| read.claims).map_err(|error| match error.kind() {
        // The signature is valid, so the controller signed it for another purpose.
        ErrorKind::Json(_) => StatementError::Other("purpose"),
        _ => StatementError::Forged,
    })
}

/// Returns the uid of the node that the agent's token is bound to. It is the agent's own token, so its signature is not
/// checked.
pub(crate) fn node_uid(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.trim().split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&payload).ok()?;
    let uid = claims.get("kubernetes.io")?.get("node")?.get("uid")?.as_str()?;
    (!uid.is_empty()).then(|| uid.to_owned())
}

/// Finds a key in a JWKS. Keys of other kinds are ignored.
fn find_key(keys: &str, kid: &str) -> Option<DecodingKey> {
    let set: Value = serde_json::from_str(keys).ok()?;
    let key = set.get("keys")?.as_array()?.iter().find(|key| key.get("kid").and_then(Value::as_str) == Some(kid))?;
    let key: Jwk = serde_json::from_value(key.clone()).ok()?;
    DecodingKey::from_jwk(&key).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde::{Deserialize, Serialize};

    use super::*;

    pub(crate) struct Signer {
        kid: &'static str,
        pub(crate) key: EncodingKey,
        jwk: Value,
    }

    pub(crate) fn signer(kid: &'static str) -> Signer {
        let pair = rcgen::KeyPair::generate().unwrap();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(kid.to_owned());
        Signer { kid, key, jwk: serde_json::to_value(jwk).unwrap() }
    }

    impl Signer {
        pub(crate) fn sign<T: Serialize>(&self, claims: &T) -> String {
            let header = Header { kid: Some(self.kid.to_owned()), ..Header::new(Algorithm::ES256) };
            encode(&header, claims, &self.key).unwrap()
        }

        pub(crate) fn keys(&self) -> String {
            // A key of an unknown kind comes first and must not matter.
            serde_json::json!({"keys": [{"kty": "QUANTUM", "kid": "x"}, self.jwk]}).to_string()
        }
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Claims {
        attempt: i64,
    }

    const CLAIMS: Claims = Claims { attempt: 3 };

    fn read(jws: &str, keys: &str) -> Result<Claims, StatementError> {
        open(jws, keys)
    }

    #[test]
    fn statement_signed_by_trusted_key_is_accepted() {
        let signer = signer("k1");
        assert_eq!(read(&signer.sign(&CLAIMS), &signer.keys()), Ok(CLAIMS));
    }

    #[test]
    fn statement_with_wrong_key_or_changed_payload_is_rejected_as_forged() {
        let (trusted, other) = (signer("k1"), signer("k1"));
        assert_eq!(read(&other.sign(&CLAIMS), &trusted.keys()), Err(StatementError::Forged));
        let jws = trusted.sign(&CLAIMS);
        let mut parts: Vec<&str> = jws.split('.').collect();
        let other = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&Claims { attempt: 4 }).unwrap());
        parts[1] = &other;
        assert_eq!(read(&parts.join("."), &trusted.keys()), Err(StatementError::Forged));
    }

    #[test]
    fn malformed_statement_or_other_algorithm_is_rejected() {
        let signer = signer("k1");
        let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::HS256) };
        // The public key used as a shared secret, which is what an attacker has.
        let jws = encode(&header, &CLAIMS, &EncodingKey::from_secret(signer.jwk.to_string().as_bytes())).unwrap();
        assert_eq!(read(&jws, &signer.keys()), Err(StatementError::Algorithm));
        let none =
            format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"k1"}"#), jws.split('.').nth(1).unwrap());
        assert_eq!(read(&none, &signer.keys()), Err(StatementError::Malformed));
        for garbage in ["", ".", "a.b.c", "..", "\u{0}"] {
            assert_eq!(read(garbage, &signer.keys()), Err(StatementError::Malformed), "{garbage:?}");
        }
    }

    #[test]
    fn unknown_key_is_retryable() {
        let (old, new) = (signer("k1"), signer("k2"));
        let error = read(&new.sign(&CLAIMS), &old.keys()).unwrap_err();
        assert_eq!(error, StatementError::UnknownKey("k2".into()));
        assert!(error.may_pass());
        for keys in ["", "{}", "[]", r#"{"keys": 5}"#] {
            assert_eq!(read(&new.sign(&CLAIMS), keys), Err(StatementError::UnknownKey("k2".into())), "{keys}");
        }
    }

    #[test]
    fn node_uid_is_read_from_bound_token() {
        let token = |claims: &str| format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims));
        let bound = token(r#"{"kubernetes.io":{"node":{"name":"a","uid":"u-1"},"pod":{"name":"p"}}}"#);
        assert_eq!(node_uid(&bound).as_deref(), Some("u-1"));
        for other in [token(r#"{"kubernetes.io":{"pod":{}}}"#), token("{}"), token("x"), String::new(), "a.!.c".into()]
        {
            assert_eq!(node_uid(&other), None, "{other}");
        }
    }
}
