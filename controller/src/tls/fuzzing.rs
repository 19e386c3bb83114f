//! The fuzz target for the parsers of certificates and keys.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::ObjectMeta;
use models::names;
use serde::Deserialize;
use serde_json::Value;

use super::certificate::{Certificate, is_pair};
use super::provided::provided;
use super::store::{CERTIFICATE, Complete, Contents, KEY, KeyRing, PROVIDED, Safe, secret};

/// The host name of the web API for agents.
const HOST: &str = "brupop-apiserver.brupop-system.svc";

/// A Secret and a ConfigMap of the same contents, as text.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Fields {
    data: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// The contents of the Secrets and of the ConfigMap: a parsed one is written so that it parses to the same value, a key
/// matches its own certificate alone, and unknown contents are reported as foreign.
pub(crate) fn secrets(data: &[u8]) {
    let Ok(Fields { data, annotations }) = serde_json::from_slice::<Fields>(data) else { return };
    let metadata = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
    let bytes = data.iter().map(|(field, text)| (field.clone(), ByteString(text.clone().into_bytes())));
    let found = Complete(Secret { data: Some(bytes.collect()), metadata: metadata.clone(), ..Secret::default() });
    let written = |contents: Contents| Complete(secret("a", contents, None).0);

    if let Ok(safe) = Safe::read(&found) {
        let again = safe.data().and_then(|contents| Safe::read(&written(contents)));
        let again = again.ok().map(|again| again.authorities);
        assert_eq!(again.as_ref(), Some(&safe.authorities), "authorities that were read are lost");
        for issuing in safe.keys.keys().filter_map(|id| safe.issuer(id)) {
            let certificate = std::slice::from_ref(&issuing.certificate);
            assert!(is_pair(certificate, &issuing.key), "an authority without its key");
        }
    }
    let map = Complete(ConfigMap { data: Some(data), metadata, ..ConfigMap::default() });
    let mut own = Vec::new();
    if let Ok(ring) = KeyRing::read(&found) {
        let again = KeyRing::read(&written(ring.data())).unwrap_or_default();
        assert!(ring.keys().map(|key| &key.id).eq(again.keys().map(|key| &key.id)), "keys that were read are lost");
        own.extend(ring.keys().filter_map(|key| Some((key.id.clone(), key.jwk().ok()?))));
    }
    let known: BTreeSet<_> = own.iter().map(|(id, _)| id.clone()).collect();
    let foreign = map.published(&[]).keys;
    assert!(foreign.len() <= 1, "a key without an owner is known: {foreign:?}");
    let published = map.published(&own).keys;
    assert!(published.difference(&known).all(|id| foreign.contains(id)), "{published:?} of {known:?}");
    let listed: Value =
        map.text(names::TRUST_PERMIT_KEYS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let foreign_key = |key: &Value| own.iter().all(|(_, own)| own != key);
    if listed["keys"].as_array().is_some_and(|keys| keys.iter().any(foreign_key)) {
        assert!(!published.is_subset(&known), "the key of another is taken for the operator's");
    }

    for second in [0, 1_800_000_000, 253_402_207_200] {
        let now = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
        let Ok(anchors) = provided(Some(&found), &[HOST.to_owned()], now) else { continue };
        assert!(
            !anchors.is_empty() && anchors.iter().all(Certificate::is_anchor),
            "no authority that agents could trust"
        );
        let (chain, key) = (found.text(CERTIFICATE).unwrap_or_default(), found.text(KEY).unwrap_or_default());
        assert!(is_pair(&Certificate::read_all(chain).0, key) && found.text(PROVIDED).is_some(), "half a pair");
    }
}
