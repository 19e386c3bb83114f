//! The serving certificate: read from two files, replaced live, and always as a matching pair.
//!
//! The files are compared by their bytes each second. kubelet swaps a whole directory at once, yet a swap can fall
//! between the two reads; a key that does not match the certificate is detected, and the next second tries again. Until
//! there is a first pair, handshakes fail and the server is not ready; nor is it while the pair in service is expired
//! or not yet valid.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::time::{MissedTickBehavior, interval};

use crate::metrics::Metrics;

/// Validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

impl Validity {
    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let time = |at: i64| Timestamp::from_second(at).ok();
        let validity = certificate.validity();
        Some(Self { from: time(validity.not_before.timestamp())?, until: time(validity.not_after.timestamp())? })
    }

    fn holds(self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }
}

/// The certificate in service.
#[derive(Default)]
pub(crate) struct CertificateSlot(RwLock<Option<(Arc<CertifiedKey>, Validity)>>);

impl CertificateSlot {
    /// Returns the certificate and key for the next handshake.
    pub(crate) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().as_ref().map(|(pair, _)| pair.clone())
    }

    /// Checks that clients accept it now; otherwise returns the reason.
    pub(crate) fn serves(&self, now: Timestamp) -> Result<(), &'static str> {
        match *self.0.read() {
            None => Err("there is no certificate yet"),
            Some((_, Validity { from, .. })) if now < from => Err("the certificate is not valid yet"),
            Some((_, Validity { until, .. })) if until <= now => Err("the certificate has expired"),
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn set(&self, pair: CertifiedKey, validity: Validity) {
        *self.0.write() = Some((Arc::new(pair), validity));
    }
}

impl fmt::Debug for CertificateSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertificateSlot(present: {})", self.current().is_some())
    }
}

impl ResolvesServerCert for CertificateSlot {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current()
    }
}

/// Returns the TLS provider.
pub(crate) fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// Returns the server side of TLS 1.2 and 1.3 with a slot's certificate.
pub(crate) fn server_config(slot: Arc<CertificateSlot>) -> Result<ServerConfig, rustls::Error> {
    Ok(ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(slot))
}

const NO_PAIR: &str = "tls.key cannot be used, or does not belong to tls.crt";

/// Reads a certificate with its chain, and its key, both PEM.
pub(crate) fn read_pair(certificate: &[u8], key: &[u8]) -> anyhow::Result<(CertifiedKey, Validity)> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
    let chain = chain.context("tls.crt is not a list of PEM certificates")?;
    let leaf = chain.first().context("tls.crt has no certificate")?;
    let validity = Validity::of(leaf).context("the certificate of tls.crt has no readable validity period")?;
    let key = PrivateKeyDer::from_pem_slice(key).context("tls.key is not a PEM private key")?;
    let pair = CertifiedKey::from_der(chain, key, &provider()).context(NO_PAIR)?;
    // `from_der` accepts a key whose public key it cannot determine; with this provider there is none.
    pair.keys_match().context(NO_PAIR)?;
    Ok((pair, validity))
}

/// Keeps a slot in line with its directory.
pub(crate) struct CertificateWatch {
    directory: PathBuf,
    slot: Arc<CertificateSlot>,
    metrics: Metrics,
    /// The two files in service, as read.
    serving: Option<[Vec<u8>; 2]>,
    /// The last logged problem, so that each is logged once.
    logged: Option<String>,
}

impl CertificateWatch {
    pub(crate) fn new(directory: PathBuf, slot: Arc<CertificateSlot>, metrics: Metrics) -> Self {
        Self { directory, slot, metrics, serving: None, logged: None }
    }

    /// Checks the files once. Whatever it finds, a pair in service stays until there is another, and a valid one until
    /// there is another valid one.
    pub(crate) async fn check(&mut self, now: Timestamp) {
        let Err(error) = self.renew(now).await else {
            self.logged = None;
            return;
        };
        let text = error.to_string();
        if self.logged.as_ref() != Some(&text) {
            let error = &*error as &dyn std::error::Error;
            tracing::warn!(error, serving = self.serving.is_some(), "there is no new certificate");
            self.logged = Some(text);
        }
    }

    async fn renew(&mut self, now: Timestamp) -> anyhow::Result<()> {
        let read = |name: &str| tokio::fs::read(self.directory.join(name));
        let files = async { io::Result::Ok([read("tls.crt").await?, read("tls.key").await?]) };
        let files = files.await.context("tls.crt or tls.key cannot be read")?;
        if self.serving.as_ref() == Some(&files) {
            return Ok(());
        }
        let (pair, validity) = read_pair(&files[0], &files[1])?;
        let Validity { from, until } = validity;
        ensure!(
            validity.holds(now) || self.slot.serves(now).is_err(),
            "the certificate of tls.crt is valid from {from} until {until}, which is not now"
        );
        self.slot.set(pair, validity);
        self.metrics.certificate.set(1);
        self.metrics.certificate_expiry.set(until.as_second());
        self.metrics.certificate_swaps.inc();
        tracing::info!(first = self.serving.is_none(), %until, "a certificate was put into service");
        self.serving = Some(files);
        Ok(())
    }

    /// Checks for ever, at this interval.
    pub(crate) async fn run(mut self, every: Duration) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.check(crate::clock::now()).await;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A temporary directory, removed at the end.
    pub(crate) struct Directory(pub(crate) PathBuf);

    impl Directory {
        pub(crate) fn new() -> Self {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let name = format!("brupop-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(crate) fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.join(name), text).unwrap();
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A certificate for localhost and its key, PEM.
    pub(crate) fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    /// The same, valid from the beginning of one year to that of another.
    pub(crate) fn pair_for(from: i32, until: i32) -> (String, String) {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(until, 1, 1));
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn watch(directory: &Directory) -> CertificateWatch {
        CertificateWatch::new(directory.0.clone(), Arc::default(), Metrics::new().unwrap())
    }

    fn serves(watch: &CertificateWatch, certificate: &str) -> bool {
        let expected = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        watch.slot.current().is_some_and(|pair| pair.cert[0] == expected)
    }

    #[tokio::test]
    async fn certificate_is_loaded_when_both_files_exist() {
        let (directory, (certificate, key)) = (Directory::new(), pair());
        let mut watch = watch(&directory);
        watch.check(crate::clock::now()).await;
        assert!(watch.slot.current().is_none());
        directory.write("tls.crt", &certificate);
        watch.check(crate::clock::now()).await;
        assert!(watch.slot.current().is_none());
        directory.write("tls.key", &key);
        watch.check(crate::clock::now()).await;
        assert!(serves(&watch, &certificate));
        assert_eq!(watch.metrics.certificate.get(), 1);
    }

    #[tokio::test]
    async fn certificate_is_replaced_only_with_matching_key() {
        let (directory, old, new) = (Directory::new(), pair(), pair());
        let mut watch = watch(&directory);
        directory.write("tls.crt", &old.0);
        directory.write("tls.key", &old.1);
        watch.check(crate::clock::now()).await;
        directory.write("tls.crt", &new.0);
        watch.check(crate::clock::now()).await;
        assert!(serves(&watch, &old.0), "the new certificate waits for its key");
        directory.write("tls.key", &new.1);
        watch.check(crate::clock::now()).await;
        assert!(serves(&watch, &new.0));
    }

    #[tokio::test]
    async fn current_certificate_is_kept_when_files_are_missing_or_corrupt() {
        let (directory, (certificate, key)) = (Directory::new(), pair());
        let mut watch = watch(&directory);
        directory.write("tls.crt", &certificate);
        directory.write("tls.key", &key);
        watch.check(crate::clock::now()).await;
        for text in ["", "no PEM", "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"] {
            directory.write("tls.crt", text);
            watch.check(crate::clock::now()).await;
            assert!(serves(&watch, &certificate), "{text:?}");
        }
        std::fs::remove_file(directory.0.join("tls.key")).unwrap();
        watch.check(crate::clock::now()).await;
        assert!(serves(&watch, &certificate));
    }

    #[tokio::test]
    async fn certificate_outside_validity_is_not_served_and_does_not_replace_valid_one() {
        let now: Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        let (directory, mut seen) = (Directory::new(), Vec::new());
        let mut watch = watch(&directory);
        seen.push(watch.slot.serves(now));
        for (from, until) in [(2025, 2026), (2027, 2028), (2026, 2027)] {
            let (certificate, key) = pair_for(from, until);
            directory.write("tls.crt", &certificate);
            directory.write("tls.key", &key);
            watch.check(now).await;
            seen.push(watch.slot.serves(now));
        }
        let expected = [
            Err("there is no certificate yet"),
            Err("the certificate has expired"),
            Err("the certificate is not valid yet"),
            Ok(()),
        ];
        assert_eq!(seen, expected);
        let ends: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(watch.metrics.certificate_expiry.get(), ends.as_second());
        assert!(watch.slot.serves(ends).is_err());

        // An expired or future one replaces nothing valid until that is invalid.
        let (certificate, key) = pair_for(2027, 2028);
        directory.write("tls.crt", &certificate);
        directory.write("tls.key", &key);
        watch.check(now).await;
        assert_eq!(watch.slot.serves(now), Ok(()));
        watch.check(ends).await;
        assert!(serves(&watch, &certificate) && watch.slot.serves(ends).is_ok());
    }

    #[tokio::test]
    async fn unchanged_files_do_not_count_as_renewal() {
        let (directory, (certificate, key)) = (Directory::new(), pair());
        let mut watch = watch(&directory);
        directory.write("tls.crt", &certificate);
        directory.write("tls.key", &key);
        for _ in 0..3 {
            watch.check(crate::clock::now()).await;
        }
        assert_eq!(watch.metrics.certificate_swaps.get(), 1);
    }
}
