//! Keys and certificates as values.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use x509_parser::extensions::ParsedExtension;

/// How long the certificate authority is good for.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long a serving certificate is good for. It is renewed after two thirds of that.
const LEAF_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Certificates are good from a little before they are made: clocks differ.
const BACKDATE: Duration = Duration::from_secs(3600);

/// Why a key or certificate is of no use.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// A field is missing or no text.
    #[error("the field {0} is missing or is no text")]
    Missing(&'static str),
    /// It does not parse, or could not be made.
    #[error("the certificate or its key is no use")]
    Certificate(#[from] rcgen::Error),
    /// The signing key is no use.
    #[error("the signing key is no use")]
    Signing(#[from] jsonwebtoken::errors::Error),
    /// The public keys cannot be written down.
    #[error("the public keys cannot be written down")]
    Json(#[from] serde_json::Error),
    /// A date is out of range.
    #[error("a date is out of range")]
    Date,
}

fn date(at: Timestamp, ahead: SignedDuration) -> Result<time::OffsetDateTime, MaterialError> {
    let at = at.checked_add(ahead).map_err(|_| MaterialError::Date)?;
    time::OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| MaterialError::Date)
}

fn signed(span: Duration) -> SignedDuration {
    SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX)
}

fn params(
    names: Vec<String>,
    common: &str,
    now: Timestamp,
    life: Duration,
) -> Result<CertificateParams, MaterialError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params.not_before = date(now, -signed(BACKDATE))?;
    params.not_after = date(now, signed(life))?;
    Ok(params)
}

/// The certificate authority that agents trust for the web API, and for nothing else.
pub(super) struct Authority {
    certificate: String,
    key: String,
}

impl Authority {
    /// Makes one.
    pub(super) fn make(now: Timestamp) -> Result<Self, MaterialError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params(Vec::new(), "Bottlerocket update operator", now, AUTHORITY_LIFE)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Self { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// Takes one that was made before.
    pub(super) fn load(certificate: Option<&str>, key: Option<&str>) -> Result<Self, MaterialError> {
        let certificate = certificate.ok_or(MaterialError::Missing("tls.crt"))?;
        let key = key.ok_or(MaterialError::Missing("tls.key"))?;
        Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned() })
    }

    /// Whether it issued a certificate, by the identifiers of the keys in both.
    pub(super) fn issued(&self, leaf: &str) -> bool {
        let issuer = key_identifiers(leaf).and_then(|ids| ids.issuer);
        issuer.is_some() && issuer == key_identifiers(&self.certificate).and_then(|ids| ids.own)
    }

    /// Its certificate, PEM.
    pub(super) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// As it stands in a Secret.
    pub(super) fn data(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("tls.crt".into(), self.certificate.clone()), ("tls.key".into(), self.key.clone())])
    }

    /// Issues a serving certificate, as it stands in a Secret.
    pub(super) fn issue(&self, names: Vec<String>, now: Timestamp) -> Result<BTreeMap<String, String>, MaterialError> {
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let common = names.first().cloned().unwrap_or_default();
        let mut params = params(names, &common, now, LEAF_LIFE)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&key, &issuer)?;
        Ok(BTreeMap::from([("tls.crt".into(), leaf.pem()), ("tls.key".into(), key.serialize_pem())]))
    }
}

/// The identifiers of keys that a certificate names.
struct KeyIdentifiers {
    own: Option<Vec<u8>>,
    issuer: Option<Vec<u8>>,
}

fn key_identifiers(pem: &str) -> Option<KeyIdentifiers> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let mut ids = KeyIdentifiers { own: None, issuer: None };
    for extension in certificate.extensions() {
        match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => ids.own = Some(id.0.to_vec()),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                ids.issuer = id.key_identifier.as_ref().map(|id| id.0.to_vec());
            }
            _ => {}
        }
    }
    Some(ids)
}

/// When a certificate made `now` is renewed.
pub(super) fn default_renewal(now: Timestamp) -> Timestamp {
    now.checked_add(signed(LEAF_LIFE * 2 / 3)).unwrap_or(Timestamp::MAX)
}

/// When a certificate is renewed: after two thirds of its life. `None` if it cannot be read.
pub(super) fn renew_at(pem: &str) -> Option<Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let validity = pem.parse_x509().ok()?.validity().clone();
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    Timestamp::from_second(from + (to - from) / 3 * 2).ok()
}

/// The key that signs gos and statements of settings.
pub(super) struct GoKey {
    pem: String,
    signing: EncodingKey,
    id: String,
}

impl GoKey {
    /// Makes one.
    pub(super) fn make() -> Result<Self, MaterialError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Self::load(Some(&pair.serialize_pem()))
    }

    /// Takes one that was made before.
    pub(super) fn load(pem: Option<&str>) -> Result<Self, MaterialError> {
        let pem = pem.ok_or(MaterialError::Missing("key.pem"))?;
        let pair = KeyPair::from_pem(pem)?;
        // The id is a digest of the public key, so that a key is never taken for another one.
        let id = Sha256::digest(pair.public_key_raw()).iter().take(8).map(|b| format!("{b:02x}")).collect();
        Ok(Self { signing: EncodingKey::from_ec_pem(pem.as_bytes())?, pem: pem.to_owned(), id })
    }

    /// As it stands in a Secret.
    pub(super) fn data(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("key.pem".into(), self.pem.clone())])
    }

    /// The public half, as agents read it.
    pub(super) fn jwks(&self) -> Result<String, MaterialError> {
        let mut key = Jwk::from_encoding_key(&self.signing, Algorithm::ES256)?;
        key.common.key_id = Some(self.id.clone());
        Ok(serde_json::to_string(&JwkSet { keys: vec![key] })?)
    }

    /// Signs claims.
    pub(super) fn sign(&self, claims: &impl Serialize) -> Result<String, MaterialError> {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::ES256) };
        Ok(jsonwebtoken::encode(&header, claims, &self.signing)?)
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{DecodingKey, Validation};
    use models::go::GoClaims;

    use super::*;

    impl GoKey {
        /// What was signed, verified with the published key.
        pub(crate) fn read<T: serde::de::DeserializeOwned + Clone>(
            &self,
            jws: &str,
        ) -> Result<T, jsonwebtoken::errors::Error> {
            let mut validation = Validation::new(Algorithm::ES256);
            validation.required_spec_claims.clear();
            validation.validate_exp = false;
            validation.validate_aud = false;
            let set: JwkSet = serde_json::from_str(&self.jwks().unwrap()).unwrap();
            let public = DecodingKey::from_jwk(&set.keys[0]).unwrap();
            jsonwebtoken::decode::<T>(jws, &public, &validation).map(|d| d.claims)
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    #[test]
    fn what_was_made_is_loaded_again() {
        let made = Authority::make(now()).unwrap();
        let data = made.data();
        let loaded =
            Authority::load(data.get("tls.crt").map(String::as_str), data.get("tls.key").map(String::as_str)).unwrap();
        assert_eq!(loaded.certificate(), made.certificate());
        let leaf = loaded.issue(vec!["brupop-apiserver.brupop-system.svc".into()], now()).unwrap();
        let renewal = renew_at(&leaf["tls.crt"]).unwrap();
        assert!(renewal > now() && renewal <= default_renewal(now()));
        assert!(loaded.issued(&leaf["tls.crt"]) && !Authority::make(now()).unwrap().issued(&leaf["tls.crt"]));
    }

    #[test]
    fn a_broken_secret_is_an_error_that_says_so() {
        assert!(matches!(Authority::load(None, Some("x")), Err(MaterialError::Missing("tls.crt"))));
        assert!(matches!(Authority::load(Some("x"), Some("x")), Err(MaterialError::Certificate(_))));
        assert!(matches!(GoKey::load(Some("x")), Err(MaterialError::Certificate(_))));
    }

    #[test]
    fn a_go_verifies_with_the_published_key_and_no_other() {
        let claims = GoClaims {
            node_uid: "n".into(),
            boot_id: "b".into(),
            attempt: 1,
            version: semver::Version::new(1, 20, 5),
            nonce: "x".into(),
            host: None,
        };
        let key = GoKey::load(GoKey::make().unwrap().data().get("key.pem").map(String::as_str)).unwrap();
        let jws = key.sign(&claims).unwrap();
        assert_eq!(key.read::<GoClaims>(&jws).unwrap(), claims);
        assert!(GoKey::make().unwrap().read::<GoClaims>(&jws).is_err());
    }
}
