//! Certificates in Secrets and in the ConfigMap: parsed, named by a digest, and verified as by an agent.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::pem;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};

/// Identifies a certificate or a public key: a digest of it.
pub(super) type Id = String;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    pub(super) id: Id,
    /// The certificate as it was found, PEM.
    pub(super) pem: String,
    der: CertificateDer<'static>,
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// Returns the hexadecimal digits of the beginning of a digest, enough to distinguish contents.
pub(super) fn digest(bytes: &[u8]) -> Id {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

impl Certificate {
    /// Parses one from a text that begins with its first line.
    fn read(pem: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
        let validity = certificate.validity();
        let time = |at: i64| Timestamp::from_second(at).ok();
        let (from, until) = (time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?);
        Some(Self { id: digest(&der), pem: pem.to_owned(), der, from, until })
    }

    /// Parses all of a text, and returns whether there is nothing else in it: a block that is no certificate, or other
    /// text.
    pub fn read_all(text: &str) -> (Vec<Self>, bool) {
        let (blocks, clean) = pem::certificates(text);
        let found: Vec<_> = blocks.iter().filter_map(|block| Self::read(block)).collect();
        let clean = clean && found.len() == blocks.len();
        (found, clean)
    }

    pub(super) fn first(text: &str) -> Option<Self> {
        Self::read_all(text).0.into_iter().next()
    }

    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Returns whether it can be trusted as an authority.
    pub fn is_anchor(&self) -> bool {
        RootCertStore::empty().add(self.der.clone()).is_ok()
    }

    /// Returns the names that it is valid for, in lower case.
    pub fn names(&self) -> Vec<String> {
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&self.der) else { return Vec::new() };
        let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
        let name = |name: &x509_parser::extensions::GeneralName<'_>| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        };
        names.value.general_names.iter().filter_map(name).collect()
    }
}

pub fn bundle<'a>(certificates: impl IntoIterator<Item = &'a Certificate>) -> String {
    certificates.into_iter().map(|certificate| format!("{}\n", certificate.pem.trim())).collect()
}

/// Returns whether an agent that trusts `anchors` accepts the certificate `chain[0]` for `name` at that time.
pub(super) fn accepts(
    anchors: &[&Certificate],
    chain: &[Certificate],
    name: &str,
    at: Timestamp,
) -> Result<(), rustls::Error> {
    let fail = |what: &str| rustls::Error::General(what.to_owned());
    let mut roots = RootCertStore::empty();
    for anchor in anchors {
        roots.add(anchor.der.clone())?;
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| fail(&error.to_string()))?;
    let (leaf, between) = chain.split_first().ok_or_else(|| fail("no certificate"))?;
    let between: Vec<_> = between.iter().map(|certificate| certificate.der.clone()).collect();
    let name = ServerName::try_from(name.to_owned()).map_err(|error| fail(&error.to_string()))?;
    let seconds = u64::try_from(at.as_second()).unwrap_or_default();
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    verifier.verify_server_cert(&leaf.der, &between, &name, &[], time).map(|_| ())
}

/// Returns whether a key belongs to a certificate, and a server can use both.
pub(super) fn is_pair(chain: &[Certificate], key: &str) -> bool {
    let Ok(key) = PrivateKeyDer::from_pem_slice(key.as_bytes()) else { return false };
    let chain = chain.iter().map(|certificate| certificate.der.clone()).collect();
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).is_ok_and(|pair| pair.keys_match().is_ok())
}

#[cfg(test)]
impl Certificate {
    /// Returns one as the rules know it: without its contents.
    pub(super) fn named(id: &str, from: Timestamp, until: Timestamp) -> Self {
        Self { id: id.to_owned(), pem: String::new(), der: CertificateDer::from(Vec::<u8>::new()), from, until }
    }
}

#[cfg(test)]
mod tests {
    use super::super::material::Issuing;
    use super::*;

    const HOST: &str = "brupop-apiserver.brupop-system.svc";

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn made() -> (Issuing, Certificate) {
        let made = Issuing::make(now()).unwrap();
        let certificate = made.certificate.clone();
        (made, certificate)
    }

    #[test]
    fn ca_bundle_yields_valid_certificates_and_detects_other_content() {
        let ((_, one), (_, other)) = (made(), made());
        let text = bundle([&one, &other]);
        assert_eq!(Certificate::read_all(&text), (vec![one.clone(), other.clone()], true));
        let (begin, end) = (pem::BEGIN, pem::END);
        let broken = format!("{begin}\n!!\n{end}");
        for text in [
            format!("{text}junk"),
            format!("# a comment\n{text}"),
            format!("{}\n{broken}\n{}", one.pem, other.pem),
            format!("{text}{begin}\nMIIB"),
        ] {
            assert_eq!(Certificate::read_all(&text), (vec![one.clone(), other.clone()], false), "{text}");
        }
        assert_eq!(Certificate::read_all(""), (vec![], true));
    }

    #[test]
    fn certificate_is_accepted_only_from_trusted_ca_for_its_name_while_valid() {
        let ((ours, our), (_, other)) = (made(), made());
        let issued = ours.issue(vec![HOST.into()], now()).unwrap();
        let chain = Certificate::read_all(&issued["tls.crt"]).0;
        let later = now() + jiff::SignedDuration::from_hours(24 * 365);
        // All authorities of the operator have one subject: each has to be tried.
        for (sentence, anchors, name, at, accepted) in [
            ("its issuer alone", vec![&our], HOST, now(), true),
            ("its issuer behind another", vec![&other, &our], HOST, now(), true),
            ("another one alone", vec![&other], HOST, now(), false),
            ("for another name", vec![&our], "example.com", now(), false),
            ("after its end", vec![&our], HOST, later, false),
        ] {
            assert_eq!(accepts(&anchors, &chain, name, at).is_ok(), accepted, "{sentence}");
        }
    }

    #[test]
    fn key_of_other_certificate_is_not_a_pair() {
        let (ours, _) = made();
        let (one, other) =
            (ours.issue(vec![HOST.into()], now()).unwrap(), ours.issue(vec![HOST.into()], now()).unwrap());
        let chain = Certificate::read_all(&one["tls.crt"]).0;
        assert!(is_pair(&chain, &one["tls.key"]));
        assert!(!is_pair(&chain, &other["tls.key"]) && !is_pair(&chain, "") && !is_pair(&[], &one["tls.key"]));
    }
}
