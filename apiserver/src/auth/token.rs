//! The bearer token: taken from the header, never shown.

use std::fmt;

use actix_web::http::header::{AUTHORIZATION, HeaderMap};
use jiff::Timestamp;
use jsonwebtoken::dangerous::insecure_decode_claims;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::refusal::Refusal;

/// Maximum length of a token, in bytes. Those of service accounts have one to two thousand.
const LONGEST: usize = 8 * 1024;

/// SHA-256 of a token, which caches keep in its place.
pub(crate) type TokenDigest = [u8; 32];

/// A bearer token. It is never printed, not even by its `Debug`.
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Reads the token of a request: exactly one `Authorization` header with the scheme `Bearer`.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut all = headers.get_all(AUTHORIZATION);
        let header = match (all.next(), all.next()) {
            (Some(header), None) => header,
            (None, _) => return Err(Refusal::NoToken),
            (Some(_), Some(_)) => return Err(Refusal::MalformedToken),
        };
        let text = header.to_str().map_err(|_| Refusal::MalformedToken)?;
        let (scheme, token) = text.split_once(' ').ok_or(Refusal::MalformedToken)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Refusal::NoToken);
        }
        let token = token.trim_matches(' ');
        let allowed = |c: u8| c.is_ascii_alphanumeric() || b"-._~+/=".contains(&c);
        if token.is_empty() || token.len() > LONGEST || !token.bytes().all(allowed) {
            return Err(Refusal::MalformedToken);
        }
        Ok(Self(token.to_owned()))
    }

    /// Returns the token itself, for the TokenReview.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    pub(crate) fn digest(&self) -> TokenDigest {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// Returns the expiry that the token states. It is unverified before the cluster has accepted the token; it only
    /// ever shortens the time that a result is cached.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        #[derive(Deserialize)]
        struct Claims {
            exp: Option<i64>,
        }
        let claims: Claims = insecure_decode_claims(&self.0).ok()?;
        Timestamp::from_second(claims.exp?).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use actix_web::http::header::HeaderValue;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    /// Returns a token of any text.
    pub(crate) fn of(text: String) -> Token {
        Token(text)
    }

    fn token(name: &str, expires: i64) -> Token {
        let payload = URL_SAFE_NO_PAD.encode(format!(r#"{{"exp":{expires},"name":"{name}"}}"#));
        Token(format!("e30.{payload}.c2ln"))
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn read(values: &[&str]) -> Result<String, Refusal> {
        Token::from_headers(&headers(values)).map(|token| token.0)
    }

    #[test]
    fn token_is_read_from_single_bearer_header() {
        assert_eq!(read(&["Bearer a.b.c"]).unwrap(), "a.b.c");
        assert_eq!(read(&["bearer  a.b.c "]).unwrap(), "a.b.c");
        assert_eq!(read(&[]), Err(Refusal::NoToken));
        assert_eq!(read(&["Basic dTpw"]), Err(Refusal::NoToken));
        assert_eq!(read(&["Bearer"]), Err(Refusal::MalformedToken));
        assert_eq!(read(&["Bearer  "]), Err(Refusal::MalformedToken));
        assert_eq!(read(&["Bearer a b"]), Err(Refusal::MalformedToken));
        assert_eq!(read(&["Bearer a,b"]), Err(Refusal::MalformedToken));
        assert_eq!(read(&["Bearer a.b.c", "Bearer a.b.c"]), Err(Refusal::MalformedToken));
    }

    #[test]
    fn oversized_token_is_rejected() {
        assert!(read(&[&format!("Bearer {}", "a".repeat(LONGEST))]).is_ok());
        assert_eq!(read(&[&format!("Bearer {}", "a".repeat(LONGEST + 1))]), Err(Refusal::MalformedToken));
    }

    #[test]
    fn token_debug_output_is_redacted() {
        assert!(!format!("{:?}", Token("secret".into())).contains("secret"));
    }

    #[test]
    fn expiry_is_read_from_token_if_present() {
        assert_eq!(token("a", 1_700_000_000).expires(), Some(Timestamp::from_second(1_700_000_000).unwrap()));
        assert_eq!(Token("opaque".into()).expires(), None);
        assert_eq!(Token("a.!!.c".into()).expires(), None);
        assert_eq!(token("a", i64::MAX).expires(), None);
    }
}
