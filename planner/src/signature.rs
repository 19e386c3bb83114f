//! The key that a signature names.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;

#[derive(Deserialize)]
struct Header {
    kid: Option<String>,
}

/// Returns the id of the key that a JWS was signed with, as its header claims. Nothing is verified.
pub fn signed_by(jws: &str) -> Option<String> {
    let (header, _) = jws.split_once('.')?;
    let header = BASE64_URL_SAFE_NO_PAD.decode(header).ok()?;
    serde_json::from_slice::<Header>(&header).ok()?.kid
}
