//! The certificate authorities that the agents trust.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use models::pem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// Returns the certificates in a text; `None` for each block that is none.
pub(super) fn read(text: &str) -> Vec<Option<Certificate>> {
    let (blocks, _) = pem::certificates(text);
    blocks.iter().map(|block| certificate(block)).collect()
}

fn certificate(block: &str) -> Option<Certificate> {
    let base64: String = block.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
    let der = BASE64_STANDARD.decode(base64).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
    let time = |at: i64| Timestamp::from_second(at).ok();
    let validity = certificate.validity();
    Some(Certificate { from: time(validity.not_before.timestamp())?, until: time(validity.not_after.timestamp())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_of_each_certificate_is_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
        let found = read(&format!("{pem}{pem}"));
        assert_eq!(found.len(), 2);
        let first = found[0].as_ref().unwrap();
        assert!(first.from < first.until && found[0] == found[1], "{first:?}");
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(read(broken), [None]);
        assert!(read("").is_empty());
    }
}
