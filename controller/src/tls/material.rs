//! Keys and certificates as values.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use models::time::{after, signed};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use serde::Serialize;

use super::certificate::{Certificate, Id, digest, is_pair};

/// Lifetime of a certificate authority. The next one is made after two thirds of it.
pub(super) const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Lifetime of a serving certificate. It is renewed after two thirds of it.
pub(super) const LEAF_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Certificates are valid from a little before they are made: clocks differ.
const BACKDATE: Duration = Duration::from_secs(3600);

#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    #[error("{0} is missing or is not text")]
    Missing(&'static str),
    /// The certificate or its key does not parse, or could not be made.
    #[error("the certificate or its key is invalid")]
    Certificate(#[from] rcgen::Error),
    #[error("the key does not belong to the certificate")]
    NoPair,
    #[error("the signing key is invalid")]
    Signing(#[from] jsonwebtoken::errors::Error),
    #[error("it cannot be read or written as JSON")]
    Json(#[from] serde_json::Error),
    #[error("a date is out of range")]
    Date,
}

fn date(at: Timestamp, ahead: SignedDuration) -> Result<time::OffsetDateTime, MaterialError> {
    let at = at.checked_add(ahead).map_err(|_| MaterialError::Date)?;
    time::OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| MaterialError::Date)
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

/// A certificate authority that agents trust for the web API, and for nothing else, with its key.
#[derive(Clone)]
pub(super) struct Issuing {
    pub(super) certificate: Certificate,
    /// PEM.
    pub(super) key: String,
}

impl Issuing {
    pub(super) fn make(now: Timestamp) -> Result<Self, MaterialError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params(Vec::new(), "Bottlerocket update operator", now, AUTHORITY_LIFE)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self::load(&params.self_signed(&key)?.pem(), Some(&key.serialize_pem()))
    }

    pub(super) fn load(certificate: &str, key: Option<&str>) -> Result<Self, MaterialError> {
        let key = key.ok_or(MaterialError::Missing("the key of an authority"))?;
        Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        let certificate =
            Certificate::first(certificate).ok_or(MaterialError::Missing("the certificate of an authority"))?;
        // Its certificates would verify with nothing that is published.
        if !is_pair(std::slice::from_ref(&certificate), key) {
            return Err(MaterialError::NoPair);
        }
        Ok(Self { certificate, key: key.to_owned() })
    }

    /// Issues a serving certificate, as it is in a Secret. It is valid no longer than its issuer.
    pub(super) fn issue(&self, names: Vec<String>, now: Timestamp) -> Result<BTreeMap<String, String>, MaterialError> {
        let issuer = Issuer::from_ca_cert_pem(&self.certificate.pem, KeyPair::from_pem(&self.key)?)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let common = names.first().cloned().unwrap_or_default();
        let mut params = params(names, &common, now, LEAF_LIFE)?;
        params.not_after = params.not_after.min(date(self.certificate.until, SignedDuration::ZERO)?);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&key, &issuer)?;
        Ok(BTreeMap::from([("tls.crt".into(), leaf.pem()), ("tls.key".into(), key.serialize_pem())]))
    }
}

/// Returns the time at which a certificate of the operator was issued.
pub(super) fn issued(from: Timestamp) -> Timestamp {
    after(from, BACKDATE)
}

/// A key that signs permits and statements of settings.
#[derive(Clone)]
pub(crate) struct PermitKey {
    /// As in a Secret.
    pub(crate) pem: String,
    signing: EncodingKey,
    /// The key id in what it signs.
    pub(crate) id: Id,
}

impl PermitKey {
    pub(crate) fn make() -> Result<Self, MaterialError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Self::load(&pair.serialize_pem())
    }

    pub(crate) fn load(pem: &str) -> Result<Self, MaterialError> {
        let pair = KeyPair::from_pem(pem)?;
        // The id is a digest of the public key, so that a key is never taken for another one.
        let id = digest(pair.public_key_raw());
        Ok(Self { signing: EncodingKey::from_ec_pem(pem.as_bytes())?, pem: pem.to_owned(), id })
    }

    /// Returns the public key, as agents read it in the list of keys.
    pub(crate) fn jwk(&self) -> Result<serde_json::Value, MaterialError> {
        let mut key = Jwk::from_encoding_key(&self.signing, Algorithm::ES256)?;
        key.common.key_id = Some(self.id.clone());
        Ok(serde_json::to_value(key)?)
    }

    pub(crate) fn sign(&self, claims: &impl Serialize) -> Result<String, MaterialError> {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::ES256) };
        Ok(jsonwebtoken::encode(&header, claims, &self.signing)?)
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{DecodingKey, Validation};
    use models::permit::PermitClaims;
    use planner::signature::signed_by;

    use super::super::plan::renewal;
    use super::*;

    impl PermitKey {
        /// Returns the signed claims, verified with the published key.
        pub(crate) fn read<T: serde::de::DeserializeOwned + Clone>(
            &self,
            jws: &str,
        ) -> Result<T, jsonwebtoken::errors::Error> {
            let mut validation = Validation::new(Algorithm::ES256);
            validation.required_spec_claims.clear();
            validation.validate_exp = false;
            validation.validate_aud = false;
            let jwk: Jwk = serde_json::from_value(self.jwk().unwrap()).unwrap();
            let public = DecodingKey::from_jwk(&jwk).unwrap();
            jsonwebtoken::decode::<T>(jws, &public, &validation).map(|d| d.claims)
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    #[test]
    fn generated_authority_is_loaded_and_issues_certificates() {
        let made = Issuing::make(now()).unwrap();
        let loaded = Issuing::load(&made.certificate.pem, Some(&made.key)).unwrap();
        let names = vec!["brupop-apiserver.brupop-system.svc".to_owned()];
        let leaf = Certificate::first(&loaded.issue(names.clone(), now()).unwrap()["tls.crt"]).unwrap();
        assert_eq!((issued(leaf.from), leaf.names()), (now(), names));
        let renewed = renewal(leaf.from, leaf.until);
        let days = |days: i64| now() + SignedDuration::from_hours(24 * days);
        assert!(days(59) < renewed && renewed < days(60), "{renewed}");
    }

    #[test]
    fn certificate_does_not_outlive_its_issuer() {
        let made = Issuing::make(now()).unwrap();
        let late = made.certificate.until - SignedDuration::from_hours(24);
        let leaf = made.issue(vec!["a.b.svc".into()], late).unwrap();
        assert_eq!(Certificate::first(&leaf["tls.crt"]).unwrap().until, made.certificate.until);
    }

    #[test]
    fn invalid_key_material_is_an_error() {
        assert!(matches!(Issuing::load("x", None), Err(MaterialError::Missing(_))));
        assert!(matches!(Issuing::load("x", Some("x")), Err(MaterialError::Certificate(_))));
        assert!(matches!(PermitKey::load("x"), Err(MaterialError::Certificate(_))));
    }

    #[test]
    fn permit_verifies_only_with_published_key() {
        let claims = PermitClaims {
            node_uid: "n".into(),
            boot_id: "b".into(),
            attempt: 1,
            version: semver::Version::new(1, 20, 5),
            nonce: "x".into(),
            host: None,
        };
        let key = PermitKey::load(&PermitKey::make().unwrap().pem).unwrap();
        let jws = key.sign(&claims).unwrap();
        assert_eq!(signed_by(&jws).as_ref(), Some(&key.id));
        assert_eq!(key.read::<PermitClaims>(&jws).unwrap(), claims);
        assert!(PermitKey::make().unwrap().read::<PermitClaims>(&jws).is_err());
    }
}
