//! Records, pages and keys as a cluster or a bundle has them, with every field, also those that this version does not know.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use models::history::{BottlerocketRolloutHistory, page_name};
use models::names;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::rollouts::{find, name, pages_named};
use crate::call::{call, get_one, if_there, list, list_metadata};

/// Form of a bundle that this version writes and reads.
const FORM: u32 = 1;

/// Records, their pages and the public keys in one file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Bundle {
    pub(super) form: u32,
    pub(super) records: Vec<Value>,
    pub(super) pages: Vec<Value>,
    /// JWK by key id.
    pub(super) keys: BTreeMap<String, Value>,
}

impl Bundle {
    pub(super) fn parse(value: Value) -> anyhow::Result<Self> {
        let form = value.get("form").and_then(Value::as_u64).context("the file is no bundle: it has no form")?;
        ensure!(form == u64::from(FORM), "the bundle has the form {form}, and this version reads the form {FORM}");
        serde_json::from_value(value).context("the bundle is incomplete")
    }

    fn objects(&self) -> impl Iterator<Item = &Value> {
        self.records.iter().chain(&self.pages)
    }
}

pub(super) enum Source<'a> {
    Cluster { client: &'a Client, namespace: &'a str },
    Bundle(Bundle),
}

impl Source<'_> {
    fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<BottlerocketRolloutHistory>(&()))
    }

    /// Returns the records, the oldest first.
    pub(super) async fn records(&self) -> anyhow::Result<Vec<Value>> {
        let mut records = match self {
            Self::Cluster { client, namespace } => {
                let params = ListParams::default().labels(&format!("{}={}", names::HISTORY_LABEL, names::RECORD));
                let found = if_there(list(&Self::api(client, namespace), params).await)?.unwrap_or_default();
                found.into_iter().map(whole).collect::<Result<_, _>>()?
            }
            Self::Bundle(bundle) => bundle.records.clone(),
        };
        records.sort_by_key(|record: &Value| {
            (record.pointer("/spec/rollout/number").and_then(Value::as_i64), name(record).to_owned())
        });
        Ok(records)
    }

    /// Returns the names of all objects, each with the value of the label that distinguishes records and pages. If a
    /// bundle has a name twice, it is the first object of that name, as for [`Self::object`].
    pub(super) async fn listed(&self) -> anyhow::Result<BTreeMap<String, Option<String>>> {
        let mut all = BTreeMap::new();
        match self {
            Self::Cluster { client, namespace } => {
                let api = Self::api(client, namespace);
                let listed = list_metadata(&api, |meta| {
                    let label = meta.labels.and_then(|mut labels| labels.remove(names::HISTORY_LABEL));
                    all.insert(meta.name.unwrap_or_default(), label);
                });
                if_there(listed.await)?;
            }
            Self::Bundle(bundle) => {
                for object in bundle.objects() {
                    let label = object["metadata"]["labels"][names::HISTORY_LABEL].as_str().map(str::to_owned);
                    all.entry(name(object).to_owned()).or_insert(label);
                }
            }
        }
        Ok(all)
    }

    pub(super) async fn object(&self, wanted: &str) -> anyhow::Result<Option<Value>> {
        match self {
            Self::Cluster { client, namespace } => {
                get_one(&Self::api(client, namespace), wanted).await?.map(whole).transpose()
            }
            Self::Bundle(bundle) => Ok(bundle.objects().find(|object| name(object) == wanted).cloned()),
        }
    }

    /// Returns the pages that a record names and that still exist, by number.
    pub(super) async fn pages(&self, record: &Value) -> anyhow::Result<BTreeMap<i64, Value>> {
        let existing = self.listed().await?;
        let mut pages = BTreeMap::new();
        for (number, _) in pages_named(record) {
            let page = page_name(name(record), number);
            if existing.contains_key(&page)
                && let Some(page) = self.object(&page).await?
            {
                pages.insert(number, page);
            }
        }
        Ok(pages)
    }

    pub(super) async fn keys(&self) -> anyhow::Result<BTreeMap<String, Value>> {
        match self {
            Self::Cluster { client, namespace } => {
                let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), namespace);
                let right = format!("get configmaps {} in {namespace}", names::HISTORY_KEYS);
                let found = if_there(call(&right, maps.get(names::HISTORY_KEYS)).await)?;
                Ok(keys_in(&json!({"data": found.and_then(|map| map.data).unwrap_or_default()})))
            }
            Self::Bundle(bundle) => Ok(bundle.keys.clone()),
        }
    }

    /// Returns all objects with the keys, or those of one rollout.
    pub(super) async fn export(&self, only: Option<&str>) -> anyhow::Result<Bundle> {
        let mut bundle = Bundle { form: FORM, keys: self.keys().await?, ..Bundle::default() };
        let records = self.records().await?;
        if let Some(id) = only {
            let record = find(&records, id)?;
            bundle.pages.extend(self.pages(record).await?.into_values());
            bundle.records.push(record.clone());
            return Ok(bundle);
        }
        // Also what no record names: a verification has to find it.
        for object in self.listed().await?.into_keys() {
            if !records.iter().any(|record| name(record) == object) {
                bundle.pages.extend(self.object(&object).await?);
            }
        }
        bundle.records = records;
        Ok(bundle)
    }
}

/// Returns an object with every field but `managedFields`, which are about its writers and not part of a digest.
fn whole(mut object: DynamicObject) -> anyhow::Result<Value> {
    object.metadata.managed_fields = None;
    serde_json::to_value(object).context("an object is no JSON")
}

/// Returns the keys in a JWKS, in a ConfigMap, in a bundle, or in an object by key id.
pub(super) fn keys_in(value: &Value) -> BTreeMap<String, Value> {
    let keys = value.get("keys").or(value.get("data")).unwrap_or(value);
    let parsed = |key: &Value| match key {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| key.clone()),
        other => other.clone(),
    };
    match keys {
        Value::Array(keys) => {
            let id = |key: &Value| key["kid"].as_str().unwrap_or_default().to_owned();
            keys.iter().map(|key| (id(key), key.clone())).collect()
        }
        Value::Object(keys) => keys.iter().map(|(id, key)| (id.clone(), parsed(key))).collect(),
        _ => BTreeMap::new(),
    }
}
