use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher::Event;
use models::names::{
    HOOK_ANSWER_PREFIX, HOOKS_ANNOTATION, JOB_AFTER_ANNOTATION, JOB_ATTEMPT_ANNOTATION, JOB_NODE_ANNOTATION,
    JOB_NUMBER_ANNOTATION, JOB_PHASE_ANNOTATION, JOB_REQUEST_ANNOTATION,
};
use models::operator::BottlerocketUpdateOperator;
use serde_json::{Value, json};
use watches::Sink as _;

use super::*;
use crate::jobs::acts::create;
use crate::jobs::decide::{NewRun, Phase};
use crate::jobs::object::KEPT;

const JOBS: &str = "/apis/batch/v1/namespaces/shop/jobs";
/// A namespace behind a webhook that hangs.
const HANGS: &str = "/apis/batch/v1/namespaces/hangs/jobs";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

/// An API server with the Lease, and with the namespace `shop`.
#[derive(Default)]
struct Server {
    lease: Value,
    /// Those of hooks.
    jobs: Vec<Value>,
    pods: Vec<Value>,
    /// The notes of Events.
    notes: Vec<String>,
    /// The code and the reason of its answer to each list and creation of Jobs, if it refuses them.
    refusal: Option<(u16, &'static str)>,
    /// The time that a creation of a Job takes.
    slow: Duration,
    /// The node whose Jobs a webhook fails for.
    broken: Option<&'static str>,
    /// The paths of the creations of Jobs.
    created: Vec<String>,
}

type Stored = Arc<Mutex<Server>>;

/// The Lease as a leader leaves it whose Jobs are in `shop`.
fn lease_of_earlier() -> Value {
    let mut lease: Lease = serde_json::from_value(json!({"metadata": {"name": CONTROLLER}})).unwrap();
    record(&mut lease, &BTreeSet::from(["shop".to_owned()]));
    serde_json::to_value(lease).unwrap()
}

/// A server with these Jobs, and with the Lease of such a leader.
fn server_with(jobs: Vec<Value>) -> Stored {
    Arc::new(Mutex::new(Server { lease: lease_of_earlier(), jobs, ..Server::default() }))
}

/// The resource of an operator whose hook `ceph` has Jobs in `shop`.
fn operator() -> BottlerocketUpdateOperator {
    let job = json!({"namespace": "shop", "before": "set"});
    serde_json::from_value(json!({
        "metadata": {"name": OPERATOR_NAME, "uid": "1", "resourceVersion": "1"},
        "spec": {"hooks": [{"name": "ceph", "before": {"timeout": "1m"}, "job": job}]},
    }))
    .unwrap()
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
            let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
            let path = parts.uri.path();
            if parts.method == Method::POST && path.ends_with("/jobs") {
                stored.lock().unwrap().created.push(path.to_owned());
                let slow = stored.lock().unwrap().slow;
                sleep(if path == HANGS { Duration::from_secs(35) } else { slow }).await;
            }
            let Server { lease, jobs, pods, notes, refusal, broken, .. } = &mut *stored.lock().unwrap();
            let is_broken = broken.is_some_and(|node| sent["metadata"]["annotations"][JOB_NODE_ANNOTATION] == node);
            let refused = refusal.filter(|_| path == JOBS);
            let answer = match (&parts.method, path, refused) {
                (_, _, Some((code, reason))) => {
                    json!({"kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code})
                }
                (&Method::GET, JOBS, _) => {
                    json!({"apiVersion": "batch/v1", "kind": "JobList", "metadata": {}, "items": jobs.clone()})
                }
                (&Method::PATCH, "/apis/batch/v1/namespaces/shop/jobs/ceph-1", _) => {
                    jobs[0]["spec"]["ttlSecondsAfterFinished"] = sent["spec"]["ttlSecondsAfterFinished"].clone();
                    jobs[0].clone()
                }
                (&Method::GET, "/api/v1/namespaces/shop/pods", _) => {
                    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods.clone()})
                }
                (&Method::POST, JOBS, _) if is_broken => {
                    json!({"kind": "Status", "status": "Failure", "message": "failed calling webhook", "code": 500})
                }
                (&Method::POST, JOBS, _) => sent,
                (&Method::POST, HANGS, _) => {
                    json!({"kind": "Status", "status": "Failure", "message": "no answer", "code": 504})
                }
                (&Method::GET, path, _) if path.ends_with("/podtemplates/unset") => {
                    json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "unset"}, "template": {}})
                }
                (_, path, _) if path.starts_with(EVENTS) => {
                    notes.push(sent["note"].as_str().unwrap_or("the same again").to_owned());
                    sent
                }
                (method, "/apis/coordination.k8s.io/v1/namespaces/brupop-system/leases/brupop-controller", _) => {
                    if *method == Method::PUT {
                        *lease = sent;
                    }
                    lease.clone()
                }
                (&Method::PATCH, "/api/v1/nodes/a", _) => {
                    let mut annotations = sent["metadata"]["annotations"].clone();
                    annotations.as_object_mut().unwrap().retain(|_, value| !value.is_null());
                    node_a("2", &annotations)
                }
                other => panic!("{other:?}"),
            };
            // Only a Status has a code.
            let code = answer["code"].as_u64().map_or(200, |code| u16::try_from(code).unwrap());
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    HookJobs::new(Applier::of_leader(Client::new(service, "default")), Awaited::default())
}

fn known(stored: &Stored) -> Vec<String> {
    let lease: Lease = serde_json::from_value(stored.lock().unwrap().lease.clone()).unwrap();
    recorded(&lease).into_iter().collect()
}

#[tokio::test]
async fn later_leader_knows_the_namespace_of_a_hook_that_policy_has_dropped_until_all_is_taken_back_there() {
    let lease = json!({"metadata": {"name": CONTROLLER, "resourceVersion": "1", "annotations": {"other": "a"}}});
    let stored: Stored = Arc::new(Mutex::new(Server { lease, ..Server::default() }));
    let mut first = leader(&stored);
    first.applier.caches.operator.written(&operator());
    first.round().await;
    assert_eq!(known(&stored), ["shop"]);

    stored.lock().unwrap().jobs.push(job_before());
    let mut second = leader(&stored);
    assert!(matches!(second.round().await, Pace::Busy), "the Job runs");
    assert_eq!(known(&stored), ["shop"]);
    stored.lock().unwrap().jobs.clear();
    assert!(matches!(second.round().await, Pace::Resting), "nothing is left");
    assert!(matches!(second.round().await, Pace::Idle));
    assert_eq!(known(&stored), Vec::<String>::new());
    assert_eq!(stored.lock().unwrap().lease["metadata"]["annotations"], json!({"other": "a"}));
}

#[tokio::test]
async fn answer_of_a_hook_that_policy_has_dropped_is_removed() {
    let mut job = job_before();
    job["spec"]["ttlSecondsAfterFinished"] = KEPT.into();
    job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let stored = server_with(vec![job]);
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
    let stored = server_with(vec![job]);
    let mut leader = leader(&stored);
    leader.round().await;
    assert_eq!((leader.unknown(), leader.open), (BTreeSet::from(["a".to_owned()]), true));
    stored.lock().unwrap().jobs.clear();
    leader.round().await;
    assert_eq!((leader.unknown(), leader.open), (BTreeSet::new(), false));
}

#[tokio::test]
async fn node_whose_attempt_cannot_be_read_is_left_alone() {
    let leader = leader(&server_with(Vec::new()));
    let shadow = json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {"name": "brs-a", "namespace": "brupop-system", "uid": "u", "resourceVersion": "1"},
        "spec": {"attempt": 0}, "status": {"record": {"failures": 1, "notBefore": "9999-12-31T23:59:59Z"}},
    });
    leader.applier.caches.shadows.take(0, Event::Apply(serde_json::from_value(shadow).unwrap()));
    assert_eq!(leader.unknown(), BTreeSet::from(["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn failure_to_take_back_is_shown_once_with_its_job_and_reason() {
    let complete = json!([{"type": "Complete", "status": "True"}]);
    let failed = json!([{"type": "Failed", "status": "True", "lastTransitionTime": "9000-01-01T00:00:00Z"}]);
    let (mut before, mut after) = (job_before(), job_before());
    before["metadata"]["annotations"][JOB_AFTER_ANNOTATION] = "unset".into();
    before["status"] = json!({"conditions": complete});
    after["metadata"]["name"] = "ceph-2".into();
    for (name, value) in [(JOB_PHASE_ANNOTATION, "after"), (JOB_NUMBER_ANNOTATION, "1")] {
        after["metadata"]["annotations"][name] = value.into();
    }
    after["spec"]["ttlSecondsAfterFinished"] = KEPT.into();
    after["status"] = json!({"conditions": failed});
    let stored = server_with(vec![before, after]);
    stored.lock().unwrap().pods.push(json!({"metadata": {}, "status": {"phase": "Failed", "message": "HEALTH_WARN"}}));
    let mut leader = leader(&stored);
    leader.applier.caches.nodes.written(&serde_json::from_value(node_a("1", &json!({}))).unwrap());
    for _ in 0..2 {
        leader.round().await;
        // The Event is written meanwhile.
        sleep(Duration::from_secs(1)).await;
    }
    let note = "what hook ceph has prepared is not taken back, retrying: shop/ceph-2: HEALTH_WARN";
    assert_eq!(stored.lock().unwrap().notes, [note]);
    assert!(leader.failures.is_empty(), "nothing waits for it");
}

/// A Job for this node in this namespace.
fn new_run(node: &str, namespace: &str) -> NewRun {
    NewRun {
        hook: "ceph".into(),
        node: node.into(),
        version: None,
        attempt: "1/1".into(),
        request: None,
        number: 1,
        phase: Phase::After,
        namespace: namespace.into(),
        template: "unset".into(),
        after: None,
        on_node: false,
        limit: Duration::from_mins(1),
    }
}

/// Jobs for so many nodes in this namespace.
fn new_runs(count: usize, namespace: &str) -> Vec<Act> {
    (0..count).map(|number| Act::Create(new_run(&format!("{namespace}-{number:02}"), namespace))).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_of_many_nodes_are_created_side_by_side_behind_a_slow_webhook() {
    let stored = server_with(Vec::new());
    stored.lock().unwrap().slow = Duration::from_secs(5);
    let mut leader = leader(&stored);
    let (began, mut acts) = (Instant::now(), new_runs(50, "shop"));
    while !(acts.is_empty() && leader.under_way.is_empty()) {
        leader.carry_out(&mut acts).await;
        assert!(leader.under_way.len() <= AT_A_TIME);
    }
    let took = began.elapsed().as_secs();
    assert!((25..=30).contains(&took), "{took} s for 50 Jobs, each of which takes 5 s");
    assert_eq!(stored.lock().unwrap().created.len(), 50);
}

#[tokio::test(start_paused = true)]
async fn namespace_whose_jobs_cannot_be_created_in_time_delays_no_other_and_is_tried_less_often() {
    let stored = server_with(Vec::new());
    let mut leader = leader(&stored);
    let created = |path: &str| stored.lock().unwrap().created.iter().filter(|created| *created == path).count();
    let mut acts = new_runs(40, "hangs");
    acts.extend(new_runs(12, "shop"));
    let began = Instant::now();
    leader.carry_out(&mut acts).await;
    assert_eq!((created(HANGS), created(JOBS), began.elapsed().as_secs()), (AT_A_TIME, 12, PERIOD.as_secs()));
    // The acts under way end without an answer. From then on one is tried after each pause.
    while began.elapsed() < Duration::from_mins(5) {
        leader.carry_out(&mut acts).await;
        sleep(PERIOD).await;
    }
    assert!((3..=6).contains(&(created(HANGS) - AT_A_TIME)), "{} tries", created(HANGS));
    assert!(leader.under_way.len() <= 1);
}

#[tokio::test(start_paused = true)]
async fn node_whose_job_fails_each_time_keeps_no_other_from_its_try() {
    let stored = server_with(Vec::new());
    stored.lock().unwrap().broken = Some("a");
    let mut leader = leader(&stored);
    let [broken, other] = ["a", "b"].map(|node| Act::Create(new_run(node, "shop")));
    leader.carry_out(&mut vec![broken.clone()]).await;
    sleep(PERIOD).await;
    let mut acts = vec![broken, other];
    leader.carry_out(&mut acts).await;
    assert_eq!(acts, [], "one is tried at a time, and the next one once that has succeeded");
    assert_eq!(stored.lock().unwrap().created.len(), 3);
}

#[tokio::test]
async fn job_exists_where_the_conflict_is_about_it_and_another_conflict_is_no_failure() {
    let new = new_run("a", "shop");
    for (reason, exists) in [("AlreadyExists", true), ("Conflict", false)] {
        let stored = server_with(Vec::new());
        stored.lock().unwrap().refusal = Some((409, reason));
        let mut leader = leader(&stored);
        assert_eq!(create(&leader.applier, &new).await.is_ok(), exists, "{reason}");
        let mut acts = vec![Act::Create(new.clone())];
        assert!(leader.carry_out(&mut acts).await, "{reason}: looked at again at once");
        assert!(leader.failures.is_empty(), "{reason}: without a warning");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_any_more_once_jobs_can_be_listed_again() {
    let mut job = job_before();
    job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let stored = server_with(vec![job]);
    stored.lock().unwrap().refusal = Some((403, "Forbidden"));
    let mut leader = leader(&stored);
    leader.applier.caches.operator.written(&operator());
    let asked = node_a("1", &json!({HOOKS_ANNOTATION: "BeforeDrain/1/1"}));
    leader.applier.caches.nodes.written(&serde_json::from_value(asked).unwrap());
    // The third failure is followed by a pause of eight seconds.
    for pause in [2, 4, 7, 2] {
        leader.round().await;
        sleep(Duration::from_secs(pause)).await;
    }
    let note = "no Job can be run for hook ceph, retrying: hook_jobs failed: no (403)";
    assert_eq!(stored.lock().unwrap().notes, [note]);
    stored.lock().unwrap().refusal = None;
    leader.applier.caches.nodes.written(&serde_json::from_value(node_a("2", &json!({}))).unwrap());
    leader.round().await;
    assert_eq!(stored.lock().unwrap().jobs[0]["spec"]["ttlSecondsAfterFinished"], KEPT);
}
