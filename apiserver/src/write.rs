//! The write of a report: compared with the state that it is based on, and applied to exactly that state.
//!
//! ```text
//!   this replica's copy ── etag equal? ── yes ──► apply with its resource version ──► done
//!          │ no                                      │ 409: the object has changed
//!          ▼                                         ▼
//!   read live ───────────── etag equal? ◄────────────┘
//!                             │ no, and the copy is live
//!                             ▼
//!                           stale: 412
//! ```
//!
//! The etag leaves the controller status out, so a change of that costs another try and never a refusal.

use std::sync::Arc;

use crate::auth::identity::{AgentIdentity, owns};
use crate::body::Report;
use crate::cluster::{CallError, Cluster};
use crate::refusal::Refusal;
use crate::shadow::Shadow;
use crate::store::{Seen, Store};

/// Number of conflicts of an apply before the agent has to retry. The controller writes a few times in a step, not
/// continuously.
const TRIES: usize = 6;

/// Outcome of a report.
#[derive(Debug, PartialEq)]
pub(crate) enum Written {
    /// Stored in the cluster, in this object.
    Applied(Arc<Shadow>),
    /// It was stored already.
    Unchanged(Arc<Shadow>),
    /// It is based on another state than the cluster's, which is this.
    Stale(Arc<Shadow>),
}

/// No shadow to show or write.
#[derive(Debug)]
pub(crate) enum AccessError {
    /// The node has none.
    NoShadow,
    /// It exists, and is not this agent's.
    Refused(Refusal),
    /// The cluster did not answer.
    Call(CallError),
}

/// A report that was not written.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// There is nothing to write to.
    Access(AccessError),
    /// The API server does not accept the report.
    Invalid(CallError),
    /// The API server did not write it.
    Call(CallError),
    /// The API server got the write, and its outcome is unknown.
    Unknown(CallError),
    /// The object changed at every try.
    Contended,
}

/// Reads the agent's shadow live.
pub(crate) async fn live(cluster: &Cluster, store: &Store, agent: &AgentIdentity) -> Result<Arc<Shadow>, AccessError> {
    let shadow = cluster.shadow(&agent.shadow_name()).await.map_err(AccessError::Call)?;
    let shadow = Arc::new(shadow.ok_or(AccessError::NoShadow)?);
    owns(agent, &shadow).map_err(AccessError::Refused)?;
    store.learn(&shadow);
    Ok(shadow)
}

/// Returns the agent's shadow as this replica knows it, if that is certain: otherwise the replica may be behind, and a
/// live read is needed.
pub(crate) fn cached(store: &Store, agent: &AgentIdentity) -> Option<Arc<Shadow>> {
    match store.get(&agent.shadow_name()) {
        Seen::Present(shadow) => owns(agent, &shadow).is_ok().then_some(shadow),
        Seen::Unknown | Seen::Absent | Seen::Unreadable => None,
    }
}

/// Writes a report that is based on a state with one of the etags.
pub(crate) async fn write_status(
    cluster: &Cluster,
    store: &Store,
    agent: &AgentIdentity,
    if_match: &[&str],
    report: &Report,
) -> Result<Written, WriteError> {
    let matches = |shadow: &Shadow| if_match.contains(&shadow.view.etag.as_str());
    // This replica's copy is as good as a live one if its state is the one that the agent saw: an apply with its
    // resource version fails if it is not the newest.
    let mut copy = cached(store, agent).filter(|shadow| matches(shadow));
    for _ in 0..TRIES {
        let from_cache = copy.take();
        let is_live = from_cache.is_none();
        let base = match from_cache {
            Some(shadow) => shadow,
            None => live(cluster, store, agent).await.map_err(WriteError::Access)?,
        };
        if !matches(&base) {
            return Ok(Written::Stale(base));
        }
        if !report.lossy && base.view.status == report.status {
            // An acknowledgement is about the cluster and never about a copy: the agent reboots a host on the strength
            // of it.
            if !is_live {
                continue;
            }
            return Ok(Written::Unchanged(base));
        }
        match cluster.apply_status(&base, &report.applied).await {
            Ok(shadow) => {
                let shadow = Arc::new(shadow);
                store.learn(&shadow);
                return Ok(Written::Applied(shadow));
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => {
                return Err(match error.code() {
                    Some(404) => WriteError::Access(AccessError::NoShadow),
                    _ if error.is_invalid() => WriteError::Invalid(error),
                    _ if error.outcome_is_unknown() => WriteError::Unknown(error),
                    _ => WriteError::Call(error),
                });
            }
        }
    }
    Err(WriteError::Contended)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use super::*;
    use crate::auth::identity::tests::agent;
    use crate::body::parse;
    use crate::cluster::tests::{Fake, failure, fake};
    use crate::shadow::tests::{shadow, stored};
    use crate::store::tests::store;

    const GET: &str = "/apis/brupop.bottlerocket.aws/v3/namespaces/brupop-system/bottlerocketshadows/brs-a";
    const APPLY: &str = "/apis/brupop.bottlerocket.aws/v3/namespaces/brupop-system/bottlerocketshadows/brs-a/status";

    /// A cluster with one shadow, and other clients' changes to it before each apply.
    fn cluster(object: Value, before: Vec<fn(&mut Value)>) -> Fake {
        let state = Mutex::new((object, before.into_iter()));
        fake(move |request| {
            let mut state = state.lock().unwrap();
            let (object, before) = &mut *state;
            match (request.method.as_str(), request.path.as_str()) {
                ("GET", GET) if object.is_null() => failure(404, "NotFound"),
                ("GET", GET) => (200, object.clone()),
                ("PATCH", APPLY) => {
                    if let Some(change) = before.next() {
                        change(object);
                    }
                    if object.is_null() {
                        return failure(404, "NotFound");
                    }
                    if request.body["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                        return failure(409, "Conflict");
                    }
                    let record = object["status"]["record"].take();
                    object["status"] = request.body["status"].clone();
                    if !record.is_null() {
                        object["status"]["record"] = record;
                    }
                    touch(object);
                    (200, object.clone())
                }
                _ => failure(405, "MethodNotAllowed"),
            }
        })
    }

    fn touch(object: &mut Value) {
        let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }

    fn controller_writes(object: &mut Value) {
        let failures = object["status"]["record"]["failures"].as_i64().unwrap_or_default();
        object["status"]["record"] = json!({"failures": failures + 1});
        touch(object);
    }

    fn order_changes(object: &mut Value) {
        object["metadata"]["generation"] = json!(2);
        touch(object);
    }

    fn successor(object: &mut Value) {
        *object = stored("successor", 90, 1, json!({"state": "Idle"}));
    }

    fn idle() -> Value {
        stored("u", 5, 1, json!({"state": "Idle"}))
    }

    fn etag_of(generation: i64, status: Value) -> String {
        shadow("u", 5, generation, status).view.etag
    }

    fn idle_etag() -> String {
        etag_of(1, json!({"state": "Idle"}))
    }

    fn staged() -> Report {
        parse(br#"{"state": "StagedUpdate", "observedGeneration": 1}"#).unwrap()
    }

    async fn write(fake: &Fake, store: &Store, etag: &str, report: &Report) -> Result<Written, WriteError> {
        write_status(&fake.cluster, store, &agent(), &[etag], report).await
    }

    fn calls(fake: &Fake) -> Vec<String> {
        fake.requests().into_iter().map(|r| r.method).collect()
    }

    #[tokio::test]
    async fn report_makes_one_apply_with_cached_resource_version() {
        let (fake, store) = (cluster(idle(), vec![]), store(vec![idle()]));
        let Ok(Written::Applied(shadow)) = write(&fake, &store, &idle_etag(), &staged()).await else { panic!() };
        assert_eq!(shadow.resource_version(), "6");
        assert_eq!(serde_json::to_value(&shadow.view.status).unwrap()["state"], "StagedUpdate");
        let requests = fake.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(
            requests[0].body,
            json!({
                "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
                "metadata": {"name": "brs-a", "namespace": "brupop-system", "resourceVersion": "5"},
                "status": {"state": "StagedUpdate", "observedGeneration": 1},
            })
        );
        assert!(requests[0].query.contains("fieldManager=brupop-agent") && requests[0].query.contains("force=true"));
        assert_eq!(cached(&store, &agent()).unwrap().resource_version(), "6", "the next report builds on this one");
    }

    #[tokio::test]
    async fn report_replaces_fields_that_cannot_be_read() {
        let unreadable = json!({"state": "Idle", "updates": {"lastRefresh": "9999-12-31T23:59:59Z"}});
        let unreadable = stored("u", 5, 1, unreadable);
        let (fake, store) = (cluster(unreadable.clone(), vec![]), store(vec![unreadable]));
        let Ok(Written::Applied(shadow)) = write(&fake, &store, &idle_etag(), &staged()).await else { panic!() };
        assert_eq!(serde_json::to_value(&shadow.view.status).unwrap()["state"], "StagedUpdate");
    }

    #[tokio::test]
    async fn controller_status_change_does_not_reject_report() {
        let fake = cluster(idle(), vec![controller_writes, controller_writes, controller_writes]);
        let store = store(vec![idle()]);
        assert!(matches!(write(&fake, &store, &idle_etag(), &staged()).await, Ok(Written::Applied(_))));
        assert_eq!(calls(&fake), ["PATCH", "GET", "PATCH", "GET", "PATCH", "GET", "PATCH"]);
    }

    #[tokio::test]
    async fn desired_state_change_during_write_rejects_report_with_new_state() {
        let (fake, store) = (cluster(idle(), vec![order_changes]), store(vec![idle()]));
        let Ok(Written::Stale(shadow)) = write(&fake, &store, &idle_etag(), &staged()).await else { panic!() };
        assert_eq!(shadow.view.metadata.generation, 2);
        assert_eq!(calls(&fake), ["PATCH", "GET"]);
    }

    #[tokio::test]
    async fn stale_cache_is_refreshed_before_report_is_rejected() {
        let ahead = stored("u", 8, 2, json!({"state": "Idle"}));
        let (fake, store) = (cluster(ahead, vec![]), store(vec![idle()]));
        let etag = etag_of(2, json!({"state": "Idle"}));
        assert!(matches!(write(&fake, &store, &etag, &staged()).await, Ok(Written::Applied(_))));
        assert_eq!(calls(&fake), ["GET", "PATCH"]);
    }

    #[tokio::test]
    async fn missing_shadow_is_read_live_before_not_found() {
        let (fake, store) = (cluster(idle(), vec![]), store(vec![]));
        assert!(matches!(write(&fake, &store, &idle_etag(), &staged()).await, Ok(Written::Applied(_))));
        let fake = cluster(Value::Null, vec![]);
        let result = write(&fake, &store, &idle_etag(), &staged()).await;
        assert!(matches!(result, Err(WriteError::Access(AccessError::NoShadow))));
        assert_eq!(calls(&fake), ["GET"]);
    }

    #[tokio::test]
    async fn stale_report_is_checked_live_and_rejected_without_write() {
        let (fake, store) = (cluster(idle(), vec![]), store(vec![idle()]));
        let Ok(Written::Stale(shadow)) = write(&fake, &store, "0123", &staged()).await else { panic!() };
        assert_eq!(shadow.view.etag, idle_etag());
        assert_eq!(calls(&fake), ["GET"]);
    }

    #[tokio::test]
    async fn unchanged_report_is_acknowledged_by_live_read_without_write() {
        let (fake, store) = (cluster(idle(), vec![]), store(vec![idle()]));
        let same = parse(br#"{"state": "Idle"}"#).unwrap();
        assert!(matches!(write(&fake, &store, &idle_etag(), &same).await, Ok(Written::Unchanged(_))));
        assert_eq!(calls(&fake), ["GET"]);
    }

    #[tokio::test]
    async fn stale_cache_does_not_acknowledge_unchanged_report() {
        let newer = stored("u", 8, 1, json!({"state": "StagedUpdate"}));
        let (fake, store) = (cluster(newer, vec![]), store(vec![idle()]));
        let same = parse(br#"{"state": "Idle"}"#).unwrap();
        assert!(matches!(write(&fake, &store, &idle_etag(), &same).await, Ok(Written::Stale(_))));
    }

    #[tokio::test]
    async fn report_for_deleted_shadow_is_not_written_to_successor() {
        let (fake, store) = (cluster(idle(), vec![successor]), store(vec![idle()]));
        let Ok(Written::Stale(shadow)) = write(&fake, &store, &idle_etag(), &staged()).await else { panic!() };
        assert_eq!(shadow.uid(), "successor");
    }

    #[tokio::test]
    async fn shadow_recreated_for_other_node_rejects_report() {
        let fake = cluster(
            idle(),
            vec![|object| {
                successor(object);
                object["metadata"]["ownerReferences"][0]["uid"] = json!("node-2");
            }],
        );
        let result = write(&fake, &store(vec![idle()]), &idle_etag(), &staged()).await;
        assert!(matches!(result, Err(WriteError::Access(AccessError::Refused(Refusal::AgentTokenForOldNode)))));
    }

    #[tokio::test]
    async fn write_retries_are_bounded_under_contention() {
        let fake = cluster(idle(), vec![controller_writes; 100]);
        let result = write(&fake, &store(vec![idle()]), &idle_etag(), &staged()).await;
        assert!(matches!(result, Err(WriteError::Contended)));
        assert_eq!(fake.requests().iter().filter(|r| r.method == "PATCH").count(), TRIES);
    }

    #[tokio::test]
    async fn schema_rejection_and_outage_are_distinct_errors() {
        let store = store(vec![idle()]);
        let refusing = fake(|_| failure(422, "Invalid"));
        assert!(matches!(write(&refusing, &store, &idle_etag(), &staged()).await, Err(WriteError::Invalid(_))));
        let (code, mut answer) = failure(500, "");
        answer["message"] = json!(
            "failed to create typed patch object (brupop-system/brs-a; brupop.bottlerocket.aws/v3, Kind=BottlerocketShadow): \
             .status.x: field not declared in schema"
        );
        let older = fake(move |_| (code, answer.clone()));
        assert!(matches!(write(&older, &store, &idle_etag(), &staged()).await, Err(WriteError::Invalid(_))));
        let failing = fake(|_| failure(500, "InternalError"));
        assert!(matches!(write(&failing, &store, &idle_etag(), &staged()).await, Err(WriteError::Call(_))));
        let broken = fake(|_| failure(503, "ServiceUnavailable"));
        assert!(matches!(write(&broken, &store, &idle_etag(), &staged()).await, Err(WriteError::Call(_))));
        assert_eq!(broken.requests().len(), 1, "the agent tries again, not this server");
        let unfinished = fake(|_| failure(504, "Timeout"));
        assert!(matches!(write(&unfinished, &store, &idle_etag(), &staged()).await, Err(WriteError::Unknown(_))));
    }
}
