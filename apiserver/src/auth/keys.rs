//! The cluster's public keys, and the checks of a token before any call to the cluster. Pure.
//!
//! A token that is garbage, forged, expired or made for another client ends here, so that it never reaches the API
//! server. A token that passes is not yet valid: the TokenReview checks that the pod still exists.

use std::collections::{HashMap, HashSet};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use models::names::TOKEN_AUDIENCE;
use serde::Deserialize;
use serde_json::Value;

use crate::refusal::Refusal;

/// Tolerated difference between the clocks of this server and the API server before a token that is valid there is
/// refused here. The TokenReview decides on its expiry.
const LEEWAY: SignedDuration = SignedDuration::from_secs(60);
/// Maximum number of keys taken from a set. A cluster publishes one, or two while it changes them.
const MOST_KEYS: usize = 64;

/// Keys that a cluster publishes for the tokens that it issues (RFC 7517). They include the keys of all issuers that it
/// accepts, so the issuer is left to the TokenReview: a token may name any, a signature cannot be invented.
pub(crate) struct ClusterKeys {
    keys: HashMap<String, (DecodingKey, Algorithm)>,
    /// Ids of keys of kinds that cannot be used here, such as those of P-521.
    unusable: HashSet<String>,
}

/// Result of checking a token with the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyVerdict {
    /// Signed by the cluster, for this audience, of an agent, and not expired.
    Signed {
        /// Uid of the agent's node, if the token names it.
        node: Option<String>,
    },
    /// It is refused.
    Refused(Refusal),
    /// It is signed by a key that is not among these, which may be outdated.
    UnknownKey,
    /// It names a key that the cluster publishes, and that cannot be used here. Nothing else speaks against it.
    UnusableKey,
}

impl ClusterKeys {
    /// Reads the API server's answer to `/openid/v1/jwks`. Of keys of unknown kinds, only the ids are kept.
    pub(crate) fn read(set: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_str(set).context("the key set is not understood")?;
        let (mut keys, mut unusable) = (HashMap::new(), HashSet::new());
        for key in set.keys.into_iter().take(MOST_KEYS) {
            let id = id_of(&key);
            match usable(key) {
                Some((id, key)) => drop(keys.insert(id, key)),
                None => unusable.extend(id),
            }
        }
        ensure!(!keys.is_empty(), "the key set has no key that can be used");
        unusable.retain(|id| !keys.contains_key(id));
        Ok(Self { keys, unusable })
    }

    /// Checks a token with the keys; `agent` is the user name of the only service account whose tokens are accepted.
    pub(crate) fn judge(&self, token: &str, agent: &str, now: Timestamp) -> KeyVerdict {
        match self.check(token, agent, now) {
            Ok(node) => KeyVerdict::Signed { node },
            Err(verdict) => verdict,
        }
    }

    fn check(&self, token: &str, agent: &str, now: Timestamp) -> Result<Option<String>, KeyVerdict> {
        let malformed = || KeyVerdict::Refused(Refusal::MalformedToken);
        // Read before the signature is checked, only to distinguish garbage from a token of another key.
        let stated: Claims = jsonwebtoken::dangerous::insecure_decode_claims(token).map_err(|_| malformed())?;
        // The algorithm of another key may be unknown here.
        match named_key(token) {
            Some(id) if self.unusable.contains(&id) => {
                stated.check(agent, now).map_err(KeyVerdict::Refused)?;
                return Err(KeyVerdict::UnusableKey);
            }
            Some(id) if !self.keys.contains_key(&id) => return Err(KeyVerdict::UnknownKey),
            Some(_) | None => {}
        }
        let header = decode_header(token).map_err(|_| malformed())?;
        let (key, algorithm) = header.kid.and_then(|id| self.keys.get(&id)).ok_or(KeyVerdict::UnknownKey)?;
        // The key determines the algorithm, never the token: one of another algorithm is refused below.
        let mut validation = Validation::new(*algorithm);
        // The claims are compared below, by this server's clock.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_aud = false;
        let claims =
            decode::<Claims>(token, key, &validation).map_err(|_| KeyVerdict::Refused(Refusal::Forged))?.claims;
        claims.check(agent, now).map_err(KeyVerdict::Refused)?;
        Ok(claims.bound.and_then(|bound| bound.node).map(|node| node.uid))
    }
}

/// The registered claims that are checked (RFC 7519, 4.1).
#[derive(Clone, Deserialize)]
struct Claims {
    sub: Option<String>,
    aud: Option<Audience>,
    exp: Option<i64>,
    nbf: Option<i64>,
    #[serde(rename = "kubernetes.io")]
    bound: Option<Bound>,
}

/// Kubernetes' claim of the objects that a token is bound to.
#[derive(Clone, Deserialize)]
struct Bound {
    node: Option<BoundNode>,
}

#[derive(Clone, Deserialize)]
struct BoundNode {
    uid: String,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Claims {
    fn check(&self, agent: &str, now: Timestamp) -> Result<(), Refusal> {
        let ours = match &self.aud {
            Some(Audience::One(one)) => one == TOKEN_AUDIENCE,
            Some(Audience::Many(many)) => many.iter().any(|one| one == TOKEN_AUDIENCE),
            None => false,
        };
        if !ours {
            return Err(Refusal::WrongAudience);
        }
        // A token with a time that is out of range is never valid.
        let at = |seconds: i64| Timestamp::from_second(seconds).map_err(|_| Refusal::Expired);
        let expires = at(self.exp.ok_or(Refusal::Expired)?)?;
        if now.duration_since(expires) >= LEEWAY {
            return Err(Refusal::Expired);
        }
        match self.nbf.map(at).transpose()? {
            Some(from) if from.duration_since(now) > LEEWAY => return Err(Refusal::NotYetValid),
            _ => {}
        }
        // Any client in the cluster may have a token made for this audience. A service account's has its user name as
        // subject.
        if self.sub.as_deref() == Some(agent) { Ok(()) } else { Err(Refusal::OtherAccount) }
    }
}

/// Returns the id of the key that a token names, of whatever algorithm it is.
fn named_key(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Header {
        kid: String,
    }
    let (signed, _) = token.rsplit_once('.')?;
    let (header, _) = signed.rsplit_once('.')?;
    let header = URL_SAFE_NO_PAD.decode(header).ok()?;
    serde_json::from_slice::<Header>(&header).ok().map(|header| header.kid)
}

/// Returns the id of a key, of whatever kind it is, unless it is not for signatures.
fn id_of(key: &Value) -> Option<String> {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    text("kid").filter(|_| text("use").is_none_or(|use_| use_ == "sig")).map(str::to_owned)
}

/// Returns a key with its id and its algorithm, if it can be used.
fn usable(key: Value) -> Option<(String, (DecodingKey, Algorithm))> {
    let key: Jwk = serde_json::from_value(key).ok()?;
    if key.common.public_key_use.as_ref().is_some_and(|use_| *use_ != PublicKeyUse::Signature) {
        return None;
    }
    let algorithm = match (&key.common.key_algorithm, &key.algorithm) {
        (Some(KeyAlgorithm::RS256) | None, AlgorithmParameters::RSA(_)) => Algorithm::RS256,
        (Some(KeyAlgorithm::RS384), AlgorithmParameters::RSA(_)) => Algorithm::RS384,
        (Some(KeyAlgorithm::RS512), AlgorithmParameters::RSA(_)) => Algorithm::RS512,
        (Some(KeyAlgorithm::ES256) | None, AlgorithmParameters::EllipticCurve(curve))
            if curve.curve == EllipticCurve::P256 =>
        {
            Algorithm::ES256
        }
        (Some(KeyAlgorithm::ES384) | None, AlgorithmParameters::EllipticCurve(curve))
            if curve.curve == EllipticCurve::P384 =>
        {
            Algorithm::ES384
        }
        _ => return None,
    };
    let decoding = DecodingKey::from_jwk(&key).ok()?;
    Some((key.common.key_id?, (decoding, algorithm)))
}

#[cfg(test)]
pub(crate) mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_700_000_000;
    const ISSUER: &str = "https://kubernetes.default.svc";
    const AUDIENCE: &str = "brupop-apiserver";
    pub(crate) const AGENT: &str = "system:serviceaccount:brupop-agents:brupop-agent";

    /// A cluster that issues tokens.
    pub(crate) struct Issuer {
        id: &'static str,
        key: EncodingKey,
    }

    impl Issuer {
        pub(crate) fn new(id: &'static str) -> Self {
            let pair = rcgen::KeyPair::generate().unwrap();
            Self { id, key: EncodingKey::from_ec_der(&pair.serialize_der()) }
        }

        pub(crate) fn jwk(&self) -> Value {
            let mut jwk = Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap();
            jwk.common.key_id = Some(self.id.to_owned());
            serde_json::to_value(jwk).unwrap()
        }

        pub(crate) fn sign(&self, claims: &Value) -> String {
            let header = Header { kid: Some(self.id.to_owned()), ..Header::new(Algorithm::ES256) };
            encode(&header, claims, &self.key).unwrap()
        }
    }

    /// Claims of an agent's token. The name distinguishes tokens.
    pub(crate) fn claims(name: &str, expires: i64) -> Value {
        json!({"iss": ISSUER, "aud": [AUDIENCE], "exp": expires, "nbf": expires - 600, "sub": AGENT, "jti": name,
            "kubernetes.io": {"node": {"name": name, "uid": format!("uid of {name}")}}})
    }

    fn set(issuers: &[&Issuer]) -> String {
        // A key of an unknown kind, and one that is not for signatures, come first and must not matter.
        let mut keys = vec![json!({"kty": "QUANTUM", "kid": "k"})];
        keys.extend(issuers.iter().map(|issuer| issuer.jwk()));
        json!({"keys": keys}).to_string()
    }

    fn keys(issuers: &[&Issuer]) -> ClusterKeys {
        ClusterKeys::read(&set(issuers)).unwrap()
    }

    fn judge(keys: &ClusterKeys, token: &str) -> KeyVerdict {
        keys.judge(token, AGENT, Timestamp::from_second(NOW).unwrap())
    }

    fn good() -> Value {
        claims("a", NOW + 600)
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = good();
        claims[name] = value;
        claims
    }

    #[test]
    fn valid_cluster_token_is_accepted() {
        let issuer = Issuer::new("k");
        let keys = keys(&[&Issuer::new("other"), &issuer]);
        let signed = KeyVerdict::Signed { node: Some("uid of a".into()) };
        assert_eq!(judge(&keys, &issuer.sign(&good())), signed);
        let bound = with("kubernetes.io", json!({"pod": {"uid": "p"}}));
        assert_eq!(judge(&keys, &issuer.sign(&bound)), KeyVerdict::Signed { node: None });
        assert_eq!(judge(&keys, &issuer.sign(&with("aud", json!(AUDIENCE)))), signed);
        assert_eq!(judge(&keys, &issuer.sign(&with("aud", json!(["x", AUDIENCE])))), signed);
        assert_eq!(judge(&keys, &issuer.sign(&with("nbf", Value::Null))), signed);
    }

    #[test]
    fn token_with_other_audience_account_or_time_is_rejected() {
        let issuer = Issuer::new("k");
        let keys = keys(&[&issuer]);
        let minute = LEEWAY.as_secs();
        for (claims, refusal) in [
            (with("aud", json!(["https://kubernetes.default.svc"])), Refusal::WrongAudience),
            (with("aud", json!([])), Refusal::WrongAudience),
            (with("aud", Value::Null), Refusal::WrongAudience),
            (with("sub", json!("system:serviceaccount:other:brupop-agent")), Refusal::OtherAccount),
            (with("sub", Value::Null), Refusal::OtherAccount),
            (with("exp", json!(NOW - minute)), Refusal::Expired),
            (with("exp", Value::Null), Refusal::Expired),
            (with("exp", json!(i64::MAX)), Refusal::Expired),
            (with("nbf", json!(NOW + minute + 1)), Refusal::NotYetValid),
        ] {
            assert_eq!(judge(&keys, &issuer.sign(&claims)), KeyVerdict::Refused(refusal), "{claims}");
        }
        assert_eq!(
            judge(&keys, &issuer.sign(&with("exp", json!(NOW - minute + 1)))),
            KeyVerdict::Signed { node: Some("uid of a".into()) },
            "clocks differ"
        );
    }

    #[test]
    fn token_not_signed_by_cluster_is_rejected() {
        let (ours, theirs) = (Issuer::new("k"), Issuer::new("k"));
        let keys = keys(&[&ours]);
        assert_eq!(
            judge(&keys, &theirs.sign(&good())),
            KeyVerdict::Refused(Refusal::Forged),
            "another key of that name"
        );

        let token = ours.sign(&good());
        let mut parts: Vec<&str> = token.split('.').collect();
        let changed = URL_SAFE_NO_PAD.encode(claims("b", NOW + 600).to_string());
        parts[1] = &changed;
        assert_eq!(judge(&keys, &parts.join(".")), KeyVerdict::Refused(Refusal::Forged), "another payload");

        // The public key used as a shared secret, which is what an attacker has.
        let header = Header { kid: Some("k".into()), ..Header::new(Algorithm::HS256) };
        let secret = EncodingKey::from_secret(ours.jwk().to_string().as_bytes());
        let hmac = encode(&header, &good(), &secret).unwrap();
        assert_eq!(judge(&keys, &hmac), KeyVerdict::Refused(Refusal::Forged), "another algorithm");

        let unsigned = |header: Value| format!("{}.{}.", URL_SAFE_NO_PAD.encode(header.to_string()), changed);
        assert_eq!(
            judge(&keys, &unsigned(json!({"alg": "none", "kid": "k"}))),
            KeyVerdict::Refused(Refusal::MalformedToken),
            "no algorithm"
        );
        assert_eq!(
            judge(&keys, &unsigned(json!({"alg": "ES256", "kid": "k"}))),
            KeyVerdict::Refused(Refusal::Forged),
            "no signature"
        );
    }

    #[test]
    fn malformed_tokens_are_rejected() {
        let keys = keys(&[&Issuer::new("k")]);
        for garbage in ["", ".", "..", "a", "a.b.c", "e30.e30.e30", "\u{0}.\u{0}.\u{0}", &"a.".repeat(1000)] {
            assert_eq!(judge(&keys, garbage), KeyVerdict::Refused(Refusal::MalformedToken), "{garbage:?}");
        }
    }

    #[test]
    fn unknown_key_differs_from_forgery_and_issuer_claim_is_ignored() {
        let (old, new) = (Issuer::new("old"), Issuer::new("new"));
        let keys = keys(&[&old]);
        assert_eq!(judge(&keys, &new.sign(&good())), KeyVerdict::UnknownKey);
        let elsewhere = with("iss", json!("https://elsewhere"));
        assert_eq!(judge(&keys, &new.sign(&elsewhere)), KeyVerdict::UnknownKey);
        assert_eq!(judge(&keys, &Issuer::new("old").sign(&elsewhere)), KeyVerdict::Refused(Refusal::Forged));
        assert_eq!(judge(&keys, &old.sign(&elsewhere)), KeyVerdict::Signed { node: Some("uid of a".into()) });
    }

    /// A key of P-521, with which an API server may sign, too.
    pub(crate) fn long_key(id: &str) -> Value {
        json!({"kty": "EC", "crv": "P-521", "kid": id, "alg": "ES512", "use": "sig", "x": "AA", "y": "AA"})
    }

    /// A token that names such a key.
    pub(crate) fn long_token(id: &str, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.c2ln", part(&json!({"alg": "ES512", "kid": id})), part(claims))
    }

    #[test]
    fn token_of_a_published_key_that_cannot_be_used_here_is_no_forgery() {
        let issuer = Issuer::new("k");
        let mut encryption = long_key("other");
        encryption["use"] = json!("enc");
        let set = json!({"keys": [long_key("long"), encryption, issuer.jwk()]}).to_string();
        let keys = ClusterKeys::read(&set).unwrap();
        assert_eq!(judge(&keys, &long_token("long", &good())), KeyVerdict::UnusableKey);
        for (id, claims, refusal) in [
            ("long", with("aud", json!(["https://kubernetes.default.svc"])), Refusal::WrongAudience),
            ("long", with("exp", json!(NOW - 600)), Refusal::Expired),
            ("long", json!([]), Refusal::MalformedToken),
            ("k", good(), Refusal::MalformedToken),
        ] {
            assert_eq!(judge(&keys, &long_token(id, &claims)), KeyVerdict::Refused(refusal), "{id}: {claims}");
        }
        for id in ["other", "unpublished"] {
            assert_eq!(judge(&keys, &long_token(id, &good())), KeyVerdict::UnknownKey, "{id}");
        }
        let signed = KeyVerdict::Signed { node: Some("uid of a".into()) };
        assert_eq!(judge(&keys, &issuer.sign(&good())), signed);
    }

    #[test]
    fn invalid_or_empty_key_set_is_an_error() {
        const NO_KEY: &str = "the key set has no key that can be used";
        for (text, no_key) in [("", false), ("[]", false), ("{}", false), (r#"{"keys": []}"#, true), (&set(&[]), true)]
        {
            let error = ClusterKeys::read(text).err().unwrap().to_string();
            let expected = if no_key { NO_KEY } else { "the key set is not understood" };
            assert_eq!(error, expected, "{text}");
        }
        let mut encryption = Issuer::new("k").jwk();
        encryption["use"] = json!("enc");
        let set = json!({"keys": [encryption]}).to_string();
        assert_eq!(ClusterKeys::read(&set).err().unwrap().to_string(), NO_KEY, "a key for something else");
    }
}
