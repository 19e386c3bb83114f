//! The format of certificates and keys in the Secrets and in the ConfigMap of the agents: parsed into facts, and
//! serialised.

use std::collections::BTreeMap;
use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::ObjectMeta;
use models::names;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::certificate::{Certificate, bundle};
use super::facts::{Authorities, Id, Kept, Published};
use super::material::{Issuing, MaterialError, PermitKey};
use planner::view::Projection;

/// Certificate and key of the newest authority, and of a server.
pub(super) const CERTIFICATE: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
/// The authorities of a serving certificate that another client provides.
pub(super) const PROVIDED: &str = "ca.crt";
/// Certificate and key of the authority before the newest.
const BEFORE_CERTIFICATE: &str = "previous.crt";
const BEFORE_KEY: &str = "previous.key";
/// The certificates that stay published besides.
const KEPT: &str = "kept.json";
/// The signing key, and the one before it.
const SIGNING_KEY: &str = "key.pem";
const SIGNING_KEY_BEFORE: &str = "previous.pem";

/// Type of a Secret that cannot be without certificate and key.
const TLS: &str = "kubernetes.io/tls";

/// Id of foreign contents in the ConfigMap.
const FOREIGN: &str = "?";

/// One complete object: it is written back with all contents of other clients. A Secret must not be logged.
#[derive(Clone, PartialEq)]
pub(crate) struct Complete<K>(pub(crate) K);

pub(super) type SecretFacts = Complete<Secret>;
/// The ConfigMap of the agents.
pub(super) type TrustFacts = Complete<ConfigMap>;

impl<K> Projection for Complete<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + PartialEq + Debug + DeserializeOwned + Send + Sync + 'static,
{
    type Object = K;
    const BY_NAME: bool = true;
    const VERSION: fn(&Self) -> &str = |object| object.0.meta().resource_version.as_deref().unwrap_or_default();

    fn project(object: &K) -> Option<Self> {
        Some(Self(object.clone()))
    }
}

impl SecretFacts {
    /// Returns a field, if it is there, is text and is not empty: a Secret of type `kubernetes.io/tls` cannot be
    /// without its two.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        let bytes = self.0.data.as_ref()?.get(field)?;
        std::str::from_utf8(&bytes.0).ok().filter(|text| !text.trim().is_empty())
    }

    fn annotation(&self, name: &str) -> Option<String> {
        self.0.metadata.annotations.as_ref()?.get(name).cloned()
    }
}

impl TrustFacts {
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.0.data.as_ref()?.get(field).map(String::as_str)
    }

    /// Returns the published contents, by the ids of the certificates and of the keys.
    pub(super) fn published(&self, own_keys: &[(Id, Value)]) -> Published {
        let mut published = Published::default();
        let (certificates, clean) = Certificate::read_all(self.text(names::TRUST_CA_KEY).unwrap_or_default());
        published.authorities = certificates.into_iter().map(|certificate| certificate.id).collect();
        if !clean {
            published.authorities.insert(FOREIGN.to_owned());
        }
        if let Some(text) = self.text(names::TRUST_PERMIT_KEYS) {
            let keys: Option<Value> = serde_json::from_str(text).ok();
            let keys = keys.as_ref().and_then(|keys| keys.get("keys")?.as_array());
            // By its contents and not by the id that it claims itself.
            let id = |key: &Value| own_keys.iter().find(|(_, own)| own == key).map(|(id, _)| id.clone());
            published.keys = match keys {
                Some(keys) => keys.iter().map(|key| id(key).unwrap_or_else(|| FOREIGN.to_owned())).collect(),
                None => [FOREIGN.to_owned()].into(),
            };
        }
        let since = self.0.metadata.annotations.as_ref().and_then(|all| all.get(names::PUBLISHED_ANNOTATION));
        published.since = since.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        published
    }
}

/// Returns the ConfigMap to apply, at the version that was read.
pub(super) fn trust(
    namespace: &str,
    resource_version: Option<&str>,
    data: &BTreeMap<&str, String>,
    since: &BTreeMap<Id, Timestamp>,
) -> Result<Value, MaterialError> {
    // An apply ignores a version that is null.
    Ok(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": names::TRUST_CONFIG_MAP, "namespace": namespace, "resourceVersion": resource_version,
            "annotations": {names::PUBLISHED_ANNOTATION: serde_json::to_string(since)?},
        },
        "data": data,
    }))
}

/// Returns a list of keys as agents read it.
pub(super) fn jwks(keys: &[Value]) -> String {
    json!({"keys": keys}).to_string()
}

/// An authority that stays published, as in the Secret.
#[derive(Serialize, Deserialize)]
struct KeptText {
    certificate: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

/// The Secret of the authorities.
#[derive(Clone, Default)]
pub(super) struct Safe {
    pub(super) authorities: Authorities,
    /// The keys of those that issue, PEM, by the ids of their certificates.
    pub(super) keys: BTreeMap<Id, String>,
}

impl Safe {
    pub(super) fn read(secret: &SecretFacts) -> Result<Self, MaterialError> {
        let kept: Vec<KeptText> = secret.text(KEPT).map_or(Ok(Vec::new()), serde_json::from_str)?;
        let kept = kept.into_iter().map(|kept| {
            let authority = Certificate::first(&kept.certificate);
            let authority = authority.ok_or(MaterialError::Missing("a certificate that is kept"))?;
            Ok(Kept { authority, until: kept.until })
        });
        let mut keys = BTreeMap::new();
        let mut issuing = |certificate: &str, key: &str| -> Result<Option<Certificate>, MaterialError> {
            let Some(pem) = secret.text(certificate) else { return Ok(None) };
            let Issuing { certificate, key } = Issuing::load(pem, secret.text(key))?;
            keys.insert(certificate.id.clone(), key);
            Ok(Some(certificate))
        };
        let authorities = Authorities {
            newest: issuing(CERTIFICATE, KEY)?,
            before: issuing(BEFORE_CERTIFICATE, BEFORE_KEY)?,
            kept: kept.collect::<Result<_, MaterialError>>()?,
            carried: secret.annotation(names::ROTATE_CERTIFICATES_ANNOTATION),
        };
        Ok(Self { authorities, keys })
    }

    /// Returns all certificates in it, the newest first.
    pub(super) fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        let Authorities { newest, before, kept, .. } = &self.authorities;
        newest.iter().chain(before).chain(kept.iter().map(|kept| &kept.authority))
    }

    pub(super) fn issuer(&self, id: &Id) -> Option<Issuing> {
        let key = self.keys.get(id)?.clone();
        let certificate = self.certificates().find(|certificate| certificate.id == *id)?.clone();
        Some(Issuing { certificate, key })
    }

    pub(super) fn data(&self) -> Result<Contents, MaterialError> {
        let Authorities { newest, before, kept, carried } = &self.authorities;
        let mut data = BTreeMap::new();
        let mut put = |field: &str, text: &str| data.insert(field.to_owned(), text.to_owned());
        for (certificate, key, authority) in [(CERTIFICATE, KEY, newest), (BEFORE_CERTIFICATE, BEFORE_KEY, before)] {
            if let Some(issuing) = authority.as_ref().and_then(|authority| self.issuer(&authority.id)) {
                put(certificate, &issuing.certificate.pem);
                put(key, &issuing.key);
            }
        }
        if !kept.is_empty() {
            let text = |kept: &Kept| KeptText { certificate: kept.authority.pem.clone(), until: kept.until };
            put(KEPT, &serde_json::to_string(&kept.iter().map(text).collect::<Vec<_>>())?);
        }
        let carried = carried.clone().map(|value| (names::ROTATE_CERTIFICATES_ANNOTATION, value));
        Ok(Contents { data, carried })
    }
}

/// The new contents of a Secret of the operator.
pub(super) struct Contents {
    pub(super) data: BTreeMap<String, String>,
    /// The annotation that names the last request that was begun, and its value.
    pub(super) carried: Option<(&'static str, String)>,
}

/// Returns the Secret to write, and whether it replaces one that was seen, at whose version it is written. Contents of
/// other clients besides data stay.
pub(super) fn secret(name: &str, contents: Contents, existing: Option<Secret>) -> (Secret, bool) {
    let Contents { mut data, carried } = contents;
    let exists = existing.is_some();
    let mut secret = existing.unwrap_or_else(|| {
        let type_ = if data.contains_key(CERTIFICATE) { TLS } else { "Opaque" };
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        Secret { metadata, type_: Some(type_.to_owned()), ..Secret::default() }
    });
    if secret.type_.as_deref() == Some(TLS) {
        for field in [CERTIFICATE, KEY] {
            data.entry(field.to_owned()).or_default();
        }
    }
    secret.data = Some(data.into_iter().map(|(field, text)| (field, ByteString(text.into_bytes()))).collect());
    if let Some((annotation, value)) = carried {
        secret.metadata.annotations.get_or_insert_default().insert(annotation.to_owned(), value);
    }
    (secret, exists)
}

/// Returns whether a Secret of signing keys has one besides the newest.
pub(super) fn has_two_keys(secret: &SecretFacts) -> bool {
    secret.text(SIGNING_KEY_BEFORE).is_some()
}

/// The Secret of the signing keys.
#[derive(Default)]
pub(super) struct KeyRing {
    pub(super) newest: Option<PermitKey>,
    pub(super) before: Option<PermitKey>,
    pub(super) carried: Option<String>,
}

impl KeyRing {
    pub(super) fn read(secret: &SecretFacts) -> Result<Self, MaterialError> {
        let newest = secret.text(SIGNING_KEY).ok_or(MaterialError::Missing("key.pem"))?;
        Ok(Self {
            newest: Some(PermitKey::load(newest)?),
            before: secret.text(SIGNING_KEY_BEFORE).map(PermitKey::load).transpose()?,
            carried: secret.annotation(names::ROTATE_SIGNING_KEY_ANNOTATION),
        })
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &PermitKey> {
        [&self.newest, &self.before].into_iter().flatten()
    }

    pub(super) fn data(&self) -> Contents {
        let fields = [(SIGNING_KEY, &self.newest), (SIGNING_KEY_BEFORE, &self.before)];
        let data = fields.into_iter().filter_map(|(field, key)| Some((field.to_owned(), key.as_ref()?.pem.clone())));
        let carried = self.carried.clone().map(|value| (names::ROTATE_SIGNING_KEY_ANNOTATION, value));
        Contents { data: data.collect(), carried }
    }
}

/// Returns the text of the bundle with these certificates, out of `all`, each once.
pub(super) fn bundle_of<'a>(wanted: &Published, all: impl Iterator<Item = &'a Certificate>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    bundle(
        all.filter(|certificate| wanted.authorities.contains(&certificate.id) && seen.insert(certificate.id.clone())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn made() -> Issuing {
        Issuing::make(now()).unwrap()
    }

    fn written(contents: Contents) -> SecretFacts {
        Complete(secret("a", contents, None).0)
    }

    #[test]
    fn authority_secret_round_trips() {
        let (newest, before) = (made(), made());
        let keys = [&newest, &before].map(|issuing| (issuing.certificate.id.clone(), issuing.key.clone())).into();
        let kept = |until| Kept { authority: made().certificate, until };
        let authorities = Authorities {
            newest: Some(newest.certificate),
            before: Some(before.certificate),
            kept: vec![kept(Some(now())), kept(None)],
            carried: Some("1".into()),
        };
        let safe = Safe { authorities, keys };
        let read = Safe::read(&written(safe.data().unwrap())).unwrap();
        assert_eq!(read.authorities, safe.authorities);
        let ids = |safe: &Safe| safe.certificates().map(|c| c.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&read), ids(&safe));
        assert!(read.issuer(&ids(&safe)[1]).is_some() && read.issuer(&ids(&safe)[2]).is_none(), "two have keys");
    }

    #[test]
    fn secret_from_before_rotation_support_is_readable() {
        let issuing = made();
        let certificate = &issuing.certificate;
        let fields = [(CERTIFICATE, certificate.pem.as_str()), (KEY, issuing.key.as_str())];
        let data = fields.map(|(field, text)| (field.to_owned(), text.to_owned())).into();
        let read = Safe::read(&written(Contents { data, carried: None })).unwrap();
        let expected = Authorities { newest: Some(certificate.clone()), ..Authorities::default() };
        assert_eq!(read.authorities, expected);
    }

    #[test]
    fn secret_keeps_resource_version_type_and_foreign_annotations() {
        let mut existing = Secret { type_: Some(TLS.into()), ..Secret::default() };
        existing.metadata.resource_version = Some("7".into());
        existing.metadata.annotations = Some([("theirs".to_owned(), "x".to_owned())].into());
        let contents = Contents { data: BTreeMap::new(), carried: Some(("ours", "1".into())) };
        let (secret, exists) = secret("a", contents, Some(existing.clone()));
        assert!(exists);
        assert_eq!(
            (&secret.metadata.resource_version, &secret.type_),
            (&existing.metadata.resource_version, &existing.type_)
        );
        assert_eq!(secret.metadata.annotations.unwrap().len(), 2);
        // The type cannot be without them.
        assert_eq!(secret.data.unwrap().keys().collect::<Vec<_>>(), [CERTIFICATE, KEY]);
    }

    #[test]
    fn corrupt_secret_is_an_error_and_empty_field_is_absent() {
        let contents = |fields: &[(&str, &str)]| {
            let data = fields.iter().map(|(field, text)| ((*field).to_owned(), (*text).to_owned())).collect();
            written(Contents { data, carried: None })
        };
        assert!(Safe::read(&contents(&[(CERTIFICATE, "x"), (KEY, "x")])).is_err());
        assert!(Safe::read(&contents(&[(KEPT, "x")])).is_err());
        assert_eq!(Safe::read(&contents(&[(CERTIFICATE, ""), (KEY, "")])).unwrap().authorities, Authorities::default());
        assert!(KeyRing::read(&contents(&[(SIGNING_KEY, "x")])).is_err());
        assert!(KeyRing::read(&contents(&[])).is_err());
    }

    #[test]
    fn authority_with_mismatched_key_is_rejected() {
        let (ours, theirs) = (made(), made());
        let fields = [(CERTIFICATE, ours.certificate.pem.as_str()), (KEY, theirs.key.as_str())];
        let data = fields.map(|(field, text)| (field.to_owned(), text.to_owned())).into();
        let read = Safe::read(&written(Contents { data, carried: None }));
        assert!(matches!(read, Err(MaterialError::NoPair)));
    }

    #[test]
    fn foreign_content_in_trust_config_map_is_detected() {
        let certificate = made().certificate;
        let key = PermitKey::make().unwrap();
        let own = [(key.id.clone(), key.jwk().unwrap())];
        let mut other = PermitKey::make().unwrap().jwk().unwrap();
        other["kid"] = key.id.as_str().into();
        let published = |ca: &str, keys: &str| {
            let data = [(names::TRUST_CA_KEY, ca), (names::TRUST_PERMIT_KEYS, keys)];
            let data = data.map(|(field, text)| (field.to_owned(), text.to_owned())).into();
            let found = Complete(ConfigMap { data: Some(data), ..ConfigMap::default() }).published(&own);
            (found.authorities, found.keys)
        };
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<std::collections::BTreeSet<_>>();
        let (ca, ours) = (bundle([&certificate]), jwks(&[own[0].1.clone()]));
        assert_eq!(published(&ca, &ours), (ids(&[&certificate.id]), ids(&[&key.id])));
        assert_eq!(published(&format!("{ca}#"), "x"), (ids(&[&certificate.id, FOREIGN]), ids(&[FOREIGN])));
        assert_eq!(published("", &jwks(&[other])), (ids(&[]), ids(&[FOREIGN])), "another key under the operator's id");
    }

    #[test]
    fn trust_config_map_is_applied_with_read_resource_version() {
        let since = BTreeMap::from([("a".to_owned(), now())]);
        let map = trust("ns", Some("7"), &BTreeMap::from([("ca.crt", "x".to_owned())]), &since).unwrap();
        assert_eq!(map["metadata"]["resourceVersion"], "7");
        let read: ConfigMap = serde_json::from_value(map).unwrap();
        assert_eq!(Complete(read).published(&[]).since, since);
        let new = trust("ns", None, &BTreeMap::new(), &since).unwrap();
        assert_eq!(new["metadata"]["resourceVersion"], Value::Null);
    }
}
