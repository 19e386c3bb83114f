//! Writes of statuses, reads of the pods of owners, and evictions, that get no answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use models::operator::BottlerocketUpdateOperatorStatus;
use models::shadow::{ControllerReport, ControllerStatus, DrainStatus};
use planner::plan::{Action, Eviction, Note};
use planner::view::{ClusterView, NodeFacts, NodeView, OperatorFacts, ShadowFacts};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::tests::{Call, applier_answering};
use super::{Applier, ApplyError, Removal};
use crate::eviction::Meaning;

/// Returns an answer that is a failure.
fn failure(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message})
}

/// Returns an applier whose API server has this object, carries out writes of its status or does not, and gives up on their
/// answers. It refuses the first reads with these codes.
fn applier_without_answers(object: Value, carries_out: bool, refusals: Vec<u16>) -> (Applier, Arc<Mutex<Vec<Call>>>) {
    let (stored, refusals) = (Mutex::new(Value::Null), Mutex::new(refusals.into_iter()));
    let refused = move || refusals.lock().unwrap().next();
    applier_answering(move |call| match call.method.as_str() {
        "PATCH" => {
            if carries_out {
                *stored.lock().unwrap() = call.body["status"].clone();
            }
            failure(504, "etcdserver: request timed out")
        }
        "GET" => {
            if let Some(code) = refused() {
                return failure(code, "not now");
            }
            if call.path == "/api/v1/nodes" {
                return json!({"metadata": {}, "items": []});
            }
            let mut found = object.clone();
            found["status"] = stored.lock().unwrap().clone();
            json!({"metadata": {}, "items": [found]})
        }
        _ => call.body.clone(),
    })
}

/// Returns the reasons of the Events that were published, once nothing is under way.
async fn published(calls: &Mutex<Vec<Call>>) -> Vec<Value> {
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let calls = calls.lock().unwrap();
    calls.iter().filter(|call| call.method == "POST").map(|call| call.body["reason"].clone()).collect()
}

/// Returns a status of the fleet with an Event, the view that it was decided on, and the object that it is written to.
fn frozen() -> (BottlerocketUpdateOperatorStatus, ClusterView, Value) {
    let frozen = json!([{
        "type": "Frozen", "status": "True", "reason": "Frozen", "message": "1.20.5 failed on a",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    let conditions = serde_json::from_value(frozen).unwrap();
    let status = BottlerocketUpdateOperatorStatus { conditions, ..BottlerocketUpdateOperatorStatus::default() };
    let operator = OperatorFacts { uid: "op".into(), resource_version: "43".into(), ..OperatorFacts::default() };
    let view = ClusterView { operator: Some(operator), ..ClusterView::default() };
    (status, view, json!({"metadata": {"name": "default", "uid": "op", "resourceVersion": "44"}, "spec": {}}))
}

#[tokio::test(start_paused = true)]
async fn status_of_the_fleet_that_was_written_without_an_answer_has_its_events() {
    let (status, view, object) = frozen();
    // The API server is overloaded, has not loaded a right, or cannot verify a token.
    let at_first = vec![429, 403, 401, 503, 429];
    for (carries_out, refusals, events) in [
        (true, vec![], vec![json!("Frozen")]),
        (true, at_first.clone(), vec![json!("Frozen")]),
        (false, vec![], vec![]),
        (false, at_first, vec![]),
    ] {
        let (applier, calls) = applier_without_answers(object.clone(), carries_out, refusals);
        let written = applier.write_operator(&view, &status).await;
        assert_eq!(written.is_ok(), carries_out, "{written:?}");
        assert_eq!(published(&calls).await, events);
    }
}

#[tokio::test(start_paused = true)]
async fn read_after_a_write_without_an_answer_is_given_up_after_a_minute_of_refusals_and_not_for_want_of_an_answer() {
    let (status, view, object) = frozen();
    for (sentence, code, limits) in [
        ("the right to read is gone", 403, 60..=65),
        ("the API server stays overloaded", 429, 60..=65),
        ("the definition is gone", 404, 0..=0),
        ("the API server is away for some minutes", 503, 200..=300),
    ] {
        let (applier, _) = applier_without_answers(object.clone(), true, vec![code; 50]);
        let began = Instant::now();
        let written = applier.write_operator(&view, &status).await;
        let took = began.elapsed().as_secs();
        assert!(limits.contains(&took), "{sentence}: {took} s");
        assert_eq!(written.is_ok(), code == 503, "{sentence}: {written:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn status_of_a_node_that_was_written_without_an_answer_has_its_event() {
    let facts = ShadowFacts {
        node: "a".into(),
        uid: "shadow-uid".into(),
        resource_version: "42".into(),
        ..ShadowFacts::default()
    };
    let facts = Some(Box::new(facts));
    let node = NodeView {
        facts: NodeFacts { name: "a".into(), uid: "node-uid".into(), ..NodeFacts::default() },
        shadow: facts,
        ..NodeView::default()
    };
    let drain = Some(DrainStatus { removed: 1, ..DrainStatus::default() });
    let report = ControllerReport { drain, ..ControllerReport::default() };
    let status = ControllerStatus { report, conditions: Vec::new() };
    let object =
        json!({"metadata": {"name": "brs-a", "uid": "shadow-uid", "resourceVersion": "43"}, "spec": {"attempt": 0}});
    for (carries_out, events) in [(true, vec![json!("Draining")]), (false, vec![])] {
        let (applier, calls) = applier_without_answers(object.clone(), carries_out, vec![]);
        let note = Some(Note { warning: false, reason: "Draining", message: "one pod is evicted".into() });
        let written = applier.act(&node, Action::Status { status: Box::new(status.clone()), note }).await;
        let is_unknown = written.as_ref().is_err_and(ApplyError::is_unknown);
        assert_eq!((written.is_ok(), is_unknown), (carries_out, !carries_out), "{written:?}");
        assert_eq!(published(&calls).await, events);
    }
}

/// Pods that were counted before say nothing alone.
#[tokio::test]
async fn pods_of_an_owner_are_known_only_once_all_their_pages_are_read() {
    let page = json!({"metadata": {"continue": "next"}, "items": []});
    for (sentence, answers) in [
        ("the API server is overloaded", vec![failure(429, "not now")]),
        ("the API server is away for the second page", vec![page.clone(), failure(503, "not now")]),
        ("the second page has expired", vec![page, failure(410, "expired")]),
        ("the right to read them is gone", vec![failure(403, "forbidden")]),
        ("they cannot be read", vec![json!({"items": "none"})]),
    ] {
        let answers = Mutex::new(answers.into_iter());
        let (applier, _) = applier_answering(move |_| answers.lock().unwrap().next().unwrap());
        let read = applier.read_owner("owner", "shop", &BTreeMap::new(), &BTreeMap::new()).await;
        assert!(read.is_err(), "{sentence}: {read:?}");
    }
}

/// Returns an applier whose connections break.
fn applier_without_connection() -> Applier {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((_, reply)) = handle.next_request().await {
            reply.send_error(std::io::Error::other("connection reset"));
        }
    });
    Applier::of_leader(kube::Client::new(service, "default"))
}

#[tokio::test]
async fn eviction_or_deletion_without_an_answer_is_logged_with_its_node_and_a_pod_that_was_gone_is_not_evicted() {
    let log = tempfile::NamedTempFile::new().unwrap();
    // With one subscriber alone, a line of the log that another test reaches first is disabled for this one too.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.reopen().unwrap()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let broken = applier_without_connection();
    let (deletes, _) = applier_answering(|_| json!({"metadata": {"name": "web-0"}}));
    let (finds_none, _) = applier_answering(
        |_| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": "not found"}),
    );
    let cases = [
        (&broken, false, false, "eviction got no answer"),
        (&broken, true, false, "eviction got no answer"),
        (&deletes, true, true, "pod evicted"),
        (&finds_none, true, true, "pod was gone"),
    ];
    for (seen, (applier, delete, leaves, expected)) in cases.into_iter().enumerate() {
        let pod = Eviction { namespace: "shop".into(), name: "web-0".into(), uid: "pod-uid".into() };
        let answer = applier.remove_pod("a".into(), pod, Removal { delete, ..Removal::default() }, 7).await;
        assert_eq!(answer.means == Meaning::Leaves, leaves, "{}", answer.message);
        let all = std::fs::read_to_string(log.path()).unwrap();
        let about: Vec<&str> = all.lines().filter(|line| line.contains("web-0")).skip(seen).collect();
        assert!(matches!(about[..], [line] if line.contains(expected)), "{expected}: {about:?}");
        let fields = format!("node=\"a\" namespace=\"shop\" pod=\"web-0\" past_budgets={delete}");
        assert!(about[0].contains(&fields), "{about:?}");
    }
}
