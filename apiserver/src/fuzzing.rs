//! The fuzz targets: each parser of outside input, and the invariants that hold for any input. The unit tests run them over
//! the inputs that are kept (`fuzz/`), the fuzzer over its own; no program contains them.

use actix_web::http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use jiff::Timestamp;
use serde_json::Value;

use crate::auth::keys::{ClusterKeys, KeyVerdict};
use crate::auth::token::Token;
use crate::body;
use crate::etag::{etag, parse_if_match};
use crate::tls::{CertificateSlot, read_pair};

/// A target: its name, and what is run over an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("status_bodies", status_bodies),
    ("bearer_tokens", bearer_tokens),
    ("cluster_keys", cluster_keys),
    ("if_match", if_match),
    ("serving_pairs", serving_pairs),
];

/// Counts fields of `raw` that are not in `kept`, the largest ones only; the kept ones have to be unchanged.
fn dropped(raw: &Value, kept: &Value) -> u64 {
    match (raw, kept) {
        (Value::Object(raw), Value::Object(kept)) => {
            assert!(kept.keys().all(|key| raw.contains_key(key)), "a field was made up");
            let fields = raw.iter().map(|(key, value)| match kept.get(key) {
                Some(kept) if key == "conditions" => conditions(value, kept),
                Some(kept) => dropped(value, kept),
                None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => 0,
                None if key == "conditions" => value.as_array().map_or(1, |all| all.len() as u64),
                None => 1,
            });
            fields.sum()
        }
        (Value::Array(raw), Value::Array(kept)) => {
            assert_eq!(raw.len(), kept.len(), "an element was lost");
            raw.iter().zip(kept).map(|(raw, kept)| dropped(raw, kept)).sum()
        }
        (raw, kept) => {
            assert_eq!(raw, kept, "a value was changed");
            0
        }
    }
}

/// Conditions of unknown types are dropped whole.
fn conditions(raw: &Value, kept: &Value) -> u64 {
    let (Value::Array(raw), Value::Array(kept)) = (raw, kept) else { return dropped(raw, kept) };
    let known: Vec<&Value> = raw.iter().filter(|condition| condition["type"] == "HostReachable").collect();
    assert_eq!(known.len(), kept.len(), "a condition was lost");
    let within: u64 = known.iter().zip(kept).map(|(raw, kept)| dropped(raw, kept)).sum();
    (raw.len() - known.len()) as u64 + within
}

/// Reports: dropped fields are counted, kept ones are unchanged, and none of them is the controller's.
fn status_bodies(data: &[u8]) {
    let Ok(report) = body::parse(data) else { return };
    let Ok(raw) = serde_json::from_slice::<Value>(data) else { return };
    assert_eq!(dropped(&raw, &report.applied), report.dropped, "what was dropped was not counted");
    for field in ["progress", "drain", "record", "results", "spec", "metadata", "status", "kind", "apiVersion"] {
        assert!(report.applied.get(field).is_none(), "{field} came through");
    }
    let again = body::parse(report.applied.to_string().as_bytes());
    assert!(again.is_ok(), "what was kept is no report: {again:?}");
    let Ok(again) = again else { return };
    assert_eq!((&again.applied, again.dropped), (&report.applied, 0), "what was kept is not kept");
    assert!(report.lossy || again.status == report.status);
    let tag = etag("u", 1, &report.status);
    assert!(tag.is_ok_and(|tag| tag.len() == 32), "no etag");
}

/// The header with the token: an accepted one is printable and not too long, and is never printed.
fn bearer_tokens(data: &[u8]) {
    let mut headers = HeaderMap::new();
    for value in data.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(AUTHORIZATION, value);
        }
    }
    let Ok(token) = Token::from_headers(&headers) else { return };
    let text = token.expose();
    assert!(!text.is_empty() && text.len() <= 8 * 1024 && text.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(text.len() < 8 || !format!("{token:?}").contains(text), "a token shows itself");
    assert_eq!(token.digest(), token.digest());
    let _ = token.expires();
    if let Ok(keys) = ClusterKeys::read(KEYS) {
        let verdict = keys.judge(text, AGENT, Timestamp::UNIX_EPOCH);
        assert!(!matches!(verdict, KeyVerdict::Signed { .. }), "a forged token passes");
    }
}

const AGENT: &str = "system:serviceaccount:brupop-agents:brupop-agent";

/// A public key whose private key does not exist.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","alg":"ES256","use":"sig",
    "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

/// The key set that the cluster publishes.
fn cluster_keys(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(keys) = ClusterKeys::read(&text) else { return };
    let verdict = keys.judge("e30.e30.c2ln", AGENT, Timestamp::UNIX_EPOCH);
    assert!(!matches!(verdict, KeyVerdict::Signed { .. }), "an unsigned token passes");
}

/// `If-Match`, and the resource version that a stream begins at.
fn if_match(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for tag in parse_if_match(&text) {
        assert!(text.contains(tag) && !tag.contains(','));
    }
    let current = "0123456789abcdef0123456789abcdef";
    let list = format!("{text},\"{current}\"");
    assert!(parse_if_match(&list).contains(&current), "the current etag is lost in a list");
    if models::resource_version::is_valid(&text) {
        assert!(text.bytes().all(|byte| byte.is_ascii_digit()), "no resource version: {text}");
    }
}

/// The files of the serving certificate, here in one: an accepted pair matches, and serves only while it is valid.
fn serving_pairs(data: &[u8]) {
    let Ok((pair, validity)) = read_pair(data, data) else { return };
    assert!(pair.keys_match().is_ok() && !pair.cert.is_empty(), "an incomplete pair");
    let slot = CertificateSlot::default();
    slot.set(pair, validity);
    let second = jiff::SignedDuration::from_secs(1);
    let (from, until) = (validity.from, validity.until);
    let moments = [Timestamp::MIN, from, until, Timestamp::MAX];
    let beside = moments.into_iter().flat_map(|at| [at.checked_sub(second), at.checked_add(second)]).flatten();
    for at in moments.into_iter().chain(beside) {
        assert_eq!(slot.serves(at).is_ok(), from <= at && at < until, "good from {from} until {until}, at {at}");
    }
}

#[cfg(test)]
#[path = "../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn stored_fuzz_inputs_satisfy_all_invariants() {
    seeds::hold("apiserver", TARGETS);
}
