//! The record of what is to be taken back: the ConfigMap `brupop-aws`, with an entry for each instance. It outlives the Node
//! and this process, and is written before anything is done at AWS.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use models::limits;
use models::names::{APPLICATION, APPLICATION_LABEL, AWS};
use serde_json::json;
use tokio::time::timeout;

use crate::facts::Entry;

/// Deadline of a read of the record.
const READ: Duration = Duration::from_secs(10);

/// A failed read or write of the record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("the API server has not answered in time")]
    NoAnswer(#[from] tokio::time::error::Elapsed),
    #[error("the call of the API server failed")]
    Api(#[from] kube::Error),
    #[error("entry {0} of the ConfigMap cannot be written")]
    Entry(String, #[source] serde_json::Error),
}

/// The record, as this process last read or wrote it.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Version of the ConfigMap; absent while there is none.
    version: Option<String>,
    data: BTreeMap<String, String>,
    entries: BTreeMap<String, Entry>,
}

impl Record {
    pub(crate) fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Reads the record. An entry that cannot be read, as one of another version, is logged and stays.
    pub(crate) async fn read(api: &Api<ConfigMap>) -> Result<Self, RecordError> {
        Ok(timeout(READ, api.get_opt(AWS)).await??.map(Self::of).unwrap_or_default())
    }

    fn of(map: ConfigMap) -> Self {
        let (mut entries, data) = (BTreeMap::new(), map.data.unwrap_or_default());
        for (instance, text) in &data {
            match serde_json::from_str(text) {
                Ok(entry) => drop(entries.insert(instance.clone(), entry)),
                Err(error) => tracing::error!(instance, text, %error, "an entry of the record cannot be read"),
            }
        }
        Self { version: map.metadata.resource_version, data, entries }
    }

    /// Writes the record with these changes, unless another process has written it since it was read.
    pub(crate) async fn write(
        &mut self,
        api: &Api<ConfigMap>,
        changes: impl IntoIterator<Item = (String, Option<Entry>)>,
    ) -> Result<(), RecordError> {
        let mut data = self.data.clone();
        for (instance, entry) in changes {
            match entry.map(|entry| serde_json::to_string(&entry)).transpose() {
                Ok(Some(text)) => data.insert(instance, text),
                Ok(None) => data.remove(&instance),
                Err(error) => return Err(RecordError::Entry(instance, error)),
            };
        }
        // An apply ignores a version that is null.
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": AWS, "labels": {APPLICATION_LABEL: APPLICATION}, "resourceVersion": self.version},
            "data": data,
        });
        let params = PatchParams::apply(AWS).force();
        *self = Self::of(timeout(limits::WRITE, api.patch(AWS, &params, &Patch::Apply(body))).await??);
        Ok(())
    }
}
