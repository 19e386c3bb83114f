use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::Event;
use models::names::{
    HOOK_ANSWER_PREFIX, JOB_ATTEMPT_ANNOTATION, JOB_NODE_ANNOTATION, JOB_NUMBER_ANNOTATION, JOB_PHASE_ANNOTATION,
    JOB_REQUEST_ANNOTATION,
};
use models::operator::BottlerocketUpdateOperator;
use serde_json::Value;
use watches::Sink as _;

use super::*;

/// The Lease, and the Jobs of hooks in the namespace `shop`.
type Stored = Arc<Mutex<(Value, Vec<Value>)>>;

/// The Lease as a leader leaves it whose Jobs are in `shop`.
fn lease_of_earlier() -> Value {
    let mut lease: Lease = serde_json::from_value(json!({"metadata": {"name": CONTROLLER}})).unwrap();
    record(&mut lease, &BTreeSet::from(["shop".to_owned()]));
    serde_json::to_value(lease).unwrap()
}

/// A Job before the drain of the node `a`.
fn job_before() -> Value {
    let annotations = json!({JOB_PHASE_ANNOTATION: "before", JOB_NODE_ANNOTATION: "a", JOB_ATTEMPT_ANNOTATION: "1/1",
        JOB_NUMBER_ANNOTATION: "0", JOB_REQUEST_ANNOTATION: "BeforeDrain/1/1"});
    let meta = json!({"name": "ceph-1", "namespace": "shop", "uid": "1", "resourceVersion": "1",
        "labels": {HOOK_LABEL: "ceph"}, "annotations": annotations});
    json!({"metadata": meta, "spec": {"template": {}}})
}

fn node_a(version: &str, annotations: &Value) -> Value {
    json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": version, "annotations": annotations}})
}

fn leader(stored: &Stored) -> HookJobs {
    let stored = stored.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let stored = stored.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let (lease, jobs) = &mut *stored.lock().unwrap();
            let answer = match (&parts.method, parts.uri.path()) {
                (&Method::GET, "/apis/batch/v1/namespaces/shop/jobs") => {
                    json!({"apiVersion": "batch/v1", "kind": "JobList", "metadata": {}, "items": jobs.clone()})
                }
                (method, "/apis/coordination.k8s.io/v1/namespaces/brupop-system/leases/brupop-controller") => {
                    if *method == Method::PUT {
                        *lease = serde_json::from_slice(&body).unwrap();
                    }
                    lease.clone()
                }
                (&Method::PATCH, "/api/v1/nodes/a") => {
                    let mut patch: Value = serde_json::from_slice(&body).unwrap();
                    let annotations = patch["metadata"]["annotations"].as_object_mut().unwrap();
                    annotations.retain(|_, value| !value.is_null());
                    node_a("2", &patch["metadata"]["annotations"])
                }
                other => panic!("{other:?}"),
            };
            Ok::<_, Infallible>(Response::new(Body::from(answer.to_string().into_bytes())))
        }
    });
    HookJobs::new(Applier::of_leader(Client::new(service, "default")), Awaited::default())
}

fn known(stored: &Stored) -> Vec<String> {
    let lease: Lease = serde_json::from_value(stored.lock().unwrap().0.clone()).unwrap();
    recorded(&lease).into_iter().collect()
}

#[tokio::test]
async fn later_leader_knows_the_namespace_of_a_hook_that_policy_has_dropped_until_all_is_taken_back_there() {
    let lease = json!({"metadata": {"name": CONTROLLER, "resourceVersion": "1", "annotations": {"other": "a"}}});
    let stored: Stored = Arc::new(Mutex::new((lease, Vec::new())));
    let mut first = leader(&stored);
    let job = json!({"namespace": "shop", "before": "set"});
    let operator: BottlerocketUpdateOperator = serde_json::from_value(json!({
        "metadata": {"name": OPERATOR_NAME, "uid": "1", "resourceVersion": "1"},
        "spec": {"hooks": [{"name": "ceph", "before": {"timeout": "1m"}, "job": job}]},
    }))
    .unwrap();
    first.applier.caches.operator.written(&operator);
    first.round().await;
    assert_eq!(known(&stored), ["shop"]);

    stored.lock().unwrap().1.push(job_before());
    let mut second = leader(&stored);
    assert!(matches!(second.round().await, Pace::Busy), "the Job runs");
    assert_eq!(known(&stored), ["shop"]);
    stored.lock().unwrap().1.clear();
    assert!(matches!(second.round().await, Pace::Resting), "nothing is left");
    assert!(matches!(second.round().await, Pace::Idle));
    assert_eq!(known(&stored), Vec::<String>::new());
    assert_eq!(stored.lock().unwrap().0["metadata"]["annotations"], json!({"other": "a"}));
}

#[tokio::test]
async fn answer_of_a_hook_that_policy_has_dropped_is_removed() {
    let mut job = job_before();
    job["spec"]["ttlSecondsAfterFinished"] = KEPT.into();
    job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let stored: Stored = Arc::new(Mutex::new((lease_of_earlier(), vec![job])));
    let mut leader = leader(&stored);
    let answered = node_a("1", &json!({(format!("{HOOK_ANSWER_PREFIX}ceph")): "BeforeDrain/1/1"}));
    leader.applier.caches.nodes.written(&serde_json::from_value(answered).unwrap());
    leader.round().await;
    assert_eq!(leader.applier.caches.nodes.get("a").unwrap().hook_answers, BTreeMap::new());
}

#[tokio::test]
async fn node_of_a_job_that_cannot_be_read_is_left_alone_until_that_is_gone() {
    let mut job = job_before();
    job["metadata"]["annotations"] = json!({});
    job["spec"]["template"]["metadata"] = json!({"annotations": {JOB_NODE_ANNOTATION: "a"}});
    let stored: Stored = Arc::new(Mutex::new((lease_of_earlier(), vec![job])));
    let mut leader = leader(&stored);
    leader.round().await;
    assert_eq!((leader.unknown(), leader.open), (BTreeSet::from(["a".to_owned()]), true));
    stored.lock().unwrap().1.clear();
    leader.round().await;
    assert_eq!((leader.unknown(), leader.open), (BTreeSet::new(), false));
}

#[tokio::test]
async fn node_whose_attempt_cannot_be_read_is_left_alone() {
    let leader = leader(&Arc::new(Mutex::new((lease_of_earlier(), Vec::new()))));
    let shadow = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {"name": "brs-a", "namespace": "brupop-system", "uid": "u", "resourceVersion": "1"},
        "spec": {"attempt": 0}, "status": {"record": {"failures": 1, "notBefore": "9999-12-31T23:59:59Z"}},
    });
    leader.applier.caches.shadows.take(0, Event::Apply(serde_json::from_value(shadow).unwrap()));
    assert_eq!(leader.unknown(), BTreeSet::from(["a".to_owned()]));
}
