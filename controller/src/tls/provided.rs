//! A serving certificate that another client provides, such as cert-manager: validated as by the agents.

use jiff::Timestamp;

use super::certificate::{Certificate, accepts, is_pair};
use super::store::{CERTIFICATE, KEY, PROVIDED, SecretFacts};

/// A problem with certificates and keys. None of them removes what agents trust already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("the Secret {name} cannot be used ({error}); delete it to have a new one made")]
    Invalid { name: &'static str, error: String },
    #[error("the Secret brupop-apiserver-tls has no tls.crt and tls.key, which you have to provide")]
    NoCertificate,
    #[error("tls.key of the Secret brupop-apiserver-tls cannot be used, or does not belong to its tls.crt")]
    NoPair,
    #[error("the Secret brupop-apiserver-tls has no ca.crt with the authorities that agents are to trust")]
    NoAuthority,
    #[error("agents would refuse the certificate of the Secret brupop-apiserver-tls: {0}")]
    Refused(String),
    #[error("the certificate of the Secret brupop-apiserver-tls is valid from {from} to {until} and not now")]
    OutOfTime { from: Timestamp, until: Timestamp },
}

/// Returns the authorities of a provided certificate with which agents accept it under these names. One that has
/// expired, or is not valid yet, is judged as if it were.
pub(super) fn provided(
    secret: Option<&SecretFacts>,
    hosts: &[String],
    now: Timestamp,
) -> Result<Vec<Certificate>, Problem> {
    let secret = secret.ok_or(Problem::NoCertificate)?;
    let (chain, _) = Certificate::read_all(secret.text(CERTIFICATE).ok_or(Problem::NoCertificate)?);
    let leaf = chain.first().ok_or(Problem::NoCertificate)?;
    if !is_pair(&chain, secret.text(KEY).ok_or(Problem::NoCertificate)?) {
        return Err(Problem::NoPair);
    }
    let (mut anchors, _) = Certificate::read_all(secret.text(PROVIDED).unwrap_or_default());
    anchors.retain(Certificate::is_anchor);
    if anchors.is_empty() {
        return Err(Problem::NoAuthority);
    }
    let trusted: Vec<&Certificate> = anchors.iter().collect();
    // The first name is the one that agents are installed with; the others are for clients that use the full name.
    if let Some(host) = hosts.first() {
        let at = now.clamp(leaf.from, leaf.until);
        accepts(&trusted, &chain, host, at).map_err(|error| Problem::Refused(error.to_string()))?;
    }
    Ok(anchors)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::Secret;

    use super::super::material::Issuing;
    use super::super::store::Complete;
    use super::*;

    const HOST: &str = "brupop-apiserver.brupop-system.svc";

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn judge(fields: &BTreeMap<String, String>, at: Timestamp) -> Result<usize, Problem> {
        let data = fields.iter().map(|(field, text)| (field.clone(), ByteString(text.clone().into_bytes()))).collect();
        let secret = Complete(Secret { data: Some(data), ..Secret::default() });
        provided(Some(&secret), &[HOST.to_owned()], at).map(|anchors| anchors.len())
    }

    #[test]
    fn unacceptable_provided_certificate_is_rejected_with_reason() {
        let (issuer, other) = (Issuing::make(now()).unwrap(), Issuing::make(now()).unwrap());
        let mut good = issuer.issue(vec![HOST.into()], now()).unwrap();
        good.insert(PROVIDED.into(), issuer.certificate.pem.clone());
        let with = |field: &str, text: &str| {
            let mut fields = good.clone();
            fields.insert(field.into(), text.into());
            fields
        };
        let foreign = other.issue(vec![HOST.into()], now()).unwrap();
        let mut misnamed = issuer.issue(vec!["example.com".into()], now()).unwrap();
        misnamed.insert(PROVIDED.into(), issuer.certificate.pem.clone());
        let late = now() + jiff::SignedDuration::from_hours(24 * 365);

        assert_eq!(judge(&good, now()), Ok(1));
        assert_eq!(judge(&good, late), Ok(1), "expired, and still its authority is the right one");
        let both = format!("{}{}junk", issuer.certificate.pem, other.certificate.pem);
        assert_eq!(judge(&with(PROVIDED, &both), now()), Ok(2), "the next one is beside it");
        assert_eq!(judge(&with(CERTIFICATE, ""), now()), Err(Problem::NoCertificate));
        assert_eq!(judge(&with(CERTIFICATE, "junk"), now()), Err(Problem::NoCertificate));
        assert_eq!(judge(&with(KEY, &foreign[KEY]), now()), Err(Problem::NoPair));
        assert_eq!(judge(&with(PROVIDED, ""), now()), Err(Problem::NoAuthority));
        assert_eq!(judge(&with(PROVIDED, "junk"), now()), Err(Problem::NoAuthority));
        let refused = |fields: &_| matches!(judge(fields, now()), Err(Problem::Refused(_)));
        assert!(refused(&with(PROVIDED, &other.certificate.pem)), "another authority");
        assert!(refused(&misnamed), "another name");
    }
}
