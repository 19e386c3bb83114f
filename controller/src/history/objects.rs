//! The calls about the objects of the history. Every write is guarded by the uid or the resourceVersion of what it was decided
//! on, or creates an object under a name that follows from its content.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta, PartialObjectMetaExt as _, TypeMeta};
use kube::{Resource as _, ResourceExt as _};
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistorySpec, BottlerocketRolloutHistoryStatus, HistoryPage,
    RecordedRollout, page_digest, page_name,
};
use models::names;
use planner::history::{OpenPage, row_id, summary};
use planner::view::{HistoryObject, RecordFacts};
use serde_json::{Value, json};

use crate::apply::{Applier, ApplyError, create_params, delete_this};
use crate::cache::Cache;

/// The most that the metadata of a page take as JSON, in bytes.
const METADATA: usize = 2048;

#[derive(Clone)]
pub(super) struct Objects(pub(super) Applier);

/// An object as the API server returned it, with the fields that this version does not know.
pub(super) struct Found {
    /// The object, or the reason for which this version cannot read it.
    pub(super) object: Result<BottlerocketRolloutHistory, serde_json::Error>,
    pub(super) spec: Value,
    pub(super) version: String,
}

impl Found {
    /// Returns the facts of a record; `None` for a page, and for what this version cannot read.
    pub(super) fn record(&self) -> Option<RecordFacts> {
        RecordFacts::of(self.object.as_ref().ok()?, &self.spec)
    }
}

fn found(mut object: DynamicObject) -> Found {
    object.types = Some(TypeMeta::resource::<BottlerocketRolloutHistory>());
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let version = object.metadata.resource_version.clone().unwrap_or_default();
    let object = serde_json::to_value(&object).and_then(serde_json::from_value);
    Found { object, spec, version }
}

fn metadata(name: &str, record: &str, kind: &str) -> ObjectMeta {
    let labels = [
        (names::APPLICATION_LABEL, names::APPLICATION),
        (names::HISTORY_LABEL, kind),
        (names::RECORD_LABEL, record),
        (names::OPERATOR_LABEL, names::OPERATOR_NAME),
    ];
    let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() }
}

impl Objects {
    pub(super) fn known(&self) -> &Cache<HistoryObject> {
        &self.0.caches.history
    }

    fn api(&self) -> Api<BottlerocketRolloutHistory> {
        Api::namespaced(self.0.client.clone(), &self.0.namespace)
    }

    /// The API of the objects with all of their fields.
    fn whole(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<BottlerocketRolloutHistory>(&());
        Api::namespaced_with(self.0.client.clone(), &self.0.namespace, &resource)
    }

    /// Takes what an own call returned into the cache, so that the next plan knows it.
    fn learned(&self, object: &BottlerocketRolloutHistory) {
        let meta: PartialObjectMeta<BottlerocketRolloutHistory> = object.metadata.clone().into_response_partial();
        self.known().written(&meta);
    }

    fn take(&self, object: DynamicObject) -> Found {
        let found = found(object);
        found.object.iter().for_each(|object| self.learned(object));
        found
    }

    /// Reads one object as a list of one, which RBAC permits.
    pub(super) async fn read(&self, name: &str) -> Result<Option<Found>, ApplyError> {
        let only = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = self.whole().list(&only).await.map_err(ApplyError::api("history_read"))?;
        Ok(found.items.into_iter().next().map(|object| self.take(object)))
    }

    /// Creates an object, or returns the one of that name.
    async fn create(
        &self,
        metadata: ObjectMeta,
        spec: BottlerocketRolloutHistorySpec,
        what: &'static str,
    ) -> Result<Found, ApplyError> {
        self.0.leadership.check()?;
        let types = Some(TypeMeta::resource::<BottlerocketRolloutHistory>());
        let object = DynamicObject { types, metadata, data: json!({"spec": spec}) };
        match self.whole().create(&create_params(), &object).await {
            Ok(created) => match self.take(created) {
                Found { object: Err(error), .. } => Err(ApplyError::api(what)(kube::Error::SerdeError(error))),
                found => Ok(found),
            },
            // The name follows from what it is: an earlier try, or another leader, was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let found = self.read(&object.name_any()).await?;
                let alive = |found: &BottlerocketRolloutHistory| found.metadata.deletion_timestamp.is_none();
                let found = found.filter(|found| found.object.as_ref().is_ok_and(alive));
                found.ok_or(ApplyError::Changed("an object of the history"))
            }
            Err(error) => Err(ApplyError::api(what)(error)),
        }
    }

    pub(super) async fn begin(&self, name: &str, rollout: RecordedRollout) -> Result<RecordFacts, ApplyError> {
        let spec = BottlerocketRolloutHistorySpec { record: name.to_owned(), rollout: Some(rollout), page: None };
        let found = self.create(metadata(name, name, names::RECORD), spec, "history_record").await?;
        found.record().ok_or(ApplyError::Changed("the record of a rollout"))
    }

    pub(super) async fn write_page(
        &self,
        record: &str,
        owner: String,
        page: HistoryPage,
    ) -> Result<OpenPage, ApplyError> {
        let mut metadata = metadata(&page_name(record, page.number), record, names::PAGE);
        metadata.owner_references = Some(vec![OwnerReference {
            api_version: BottlerocketRolloutHistory::api_version(&()).into_owned(),
            kind: BottlerocketRolloutHistory::kind(&()).into_owned(),
            name: record.to_owned(),
            uid: owner,
            ..OwnerReference::default()
        }]);
        let size = METADATA + serde_json::to_vec(&page).map_or(0, |text| text.len());
        metadata.annotations = Some(BTreeMap::from([(names::BYTES_ANNOTATION.to_owned(), size.to_string())]));
        let spec = BottlerocketRolloutHistorySpec { record: record.to_owned(), rollout: None, page: Some(page) };
        open(&self.create(metadata, spec, "history_page").await?)
    }

    /// Reads a page that its record does not name yet.
    pub(super) async fn read_page(&self, record: &str, number: i64) -> Result<OpenPage, ApplyError> {
        let found = self.read(&page_name(record, number)).await?;
        open(&found.ok_or(ApplyError::Changed("a page of the history"))?)
    }

    /// Applies the course of a record at the version that it was decided on.
    pub(super) async fn update(
        &self,
        record: &RecordFacts,
        status: &BottlerocketRolloutHistoryStatus,
    ) -> Result<RecordFacts, ApplyError> {
        self.0.leadership.check()?;
        let (name, version) = (&record.name, &record.resource_version);
        let body = self.0.body::<BottlerocketRolloutHistory>(name, version, "status", status);
        let params = PatchParams::apply(names::CONTROLLER_MANAGER).force();
        let written = self.api().patch_status(name, &params, &Patch::Apply(body)).await;
        let written = written.map_err(ApplyError::api("history_status"))?;
        self.learned(&written);
        RecordFacts::of(&written, &record.spec).ok_or(ApplyError::Changed("the record of a rollout"))
    }

    /// Deletes this very object.
    pub(super) async fn delete(&self, name: &str, uid: &str) -> Result<(), ApplyError> {
        self.0.leadership.check()?;
        delete_this(&self.api(), name, uid, DeleteParams::background(), "history_delete").await.map(|_| ())
    }
}

/// Returns what the record of a page will name of it.
fn open(found: &Found) -> Result<OpenPage, ApplyError> {
    let object = found.object.as_ref().ok();
    let page =
        object.and_then(|object| object.spec.page.as_ref()).ok_or(ApplyError::Changed("a page of the history"))?;
    let failed = |error| ApplyError::api("history_page")(kube::Error::SerdeError(error));
    let bytes = serde_json::to_vec(&found.spec).map_err(failed)?.len();
    Ok(OpenPage {
        number: page.number,
        summary: summary(page, page_digest(&found.spec).map_err(failed)?, bytes),
        rows: page.rows.iter().map(row_id).collect(),
    })
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;

    use super::*;

    /// The spec of a record with a field of another version.
    fn spec() -> Value {
        let rollout = json!({
            "number": 7, "operator": {"namespace": "n", "name": "default", "uid": "u"}, "revision": {}, "variant": "v", "arch": "a",
            "version": "1.21.0", "begun": "2026-01-01T00:00:00Z", "policy": "", "later": true,
        });
        json!({"record": "rollout-7-x", "rollout": rollout})
    }

    fn record(spec: &Value, phase: &str) -> Value {
        json!({
            "apiVersion": BottlerocketRolloutHistory::api_version(&()), "kind": BottlerocketRolloutHistory::kind(&()),
            "metadata": {"name": "rollout-7-x", "uid": "r", "resourceVersion": "1"}, "spec": spec,
            "status": {"phase": phase},
        })
    }

    /// Returns the objects of an API server that answers each call with this.
    fn objects(answer: Value) -> Objects {
        let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((_, reply)) = server.next_request().await {
                reply.send_response(Response::new(Body::from(answer.to_string().into_bytes())));
            }
        });
        Objects(Applier::of_leader(Client::new(service, "default")))
    }

    #[test]
    fn spec_that_the_end_of_a_record_signs_has_the_fields_of_another_version() {
        for (phase, expected) in [("Running", &spec()), ("Completed", &Value::Null)] {
            let found = found(serde_json::from_value(record(&spec(), phase)).unwrap());
            assert_eq!(found.record().map(|record| record.spec).as_ref(), Some(expected), "{phase}");
        }
    }

    #[tokio::test]
    async fn record_that_is_created_or_written_has_the_spec_that_the_api_server_stored() {
        let stored = spec();
        let objects = objects(record(&stored, "Running"));
        let rollout = serde_json::from_value(stored["rollout"].clone()).unwrap();
        let begun = objects.begin("rollout-7-x", rollout).await.unwrap();
        assert_eq!(begun.spec, stored);
        assert_eq!(objects.update(&begun, &begun.status).await.unwrap().spec, stored);
    }

    #[tokio::test]
    async fn created_record_that_cannot_be_read_is_a_failure_and_no_conflict() {
        let (rollout, mut changed) = (serde_json::from_value(spec()["rollout"].clone()).unwrap(), spec());
        changed["rollout"]["number"] = "seven".into();
        let error = objects(record(&changed, "Running")).begin("rollout-7-x", rollout).await.err().unwrap();
        assert!(matches!(error, ApplyError::Api { what: "history_record", .. }), "{error}");
    }
}
