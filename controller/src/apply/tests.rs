//! Requests as they are sent: each carries the preconditions that guard it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use models::operator::{BottlerocketUpdateOperatorStatus, Slot};
use models::permit::SettingsClaims;
use models::shadow::{BottlerocketShadowSpec, ControllerStatus, DrainStatus, HostPolicy, HostState, OwnerBefore};
use serde_json::{Value, json};

use super::{Applier, ApplyError, Evicted, Removal};
use crate::eviction::Meaning;
use crate::leader::Leadership;
use planner::plan::{Action, Eviction, Note};
use planner::view::{ClusterView, Compared, NodeFacts, NodeView, OperatorFacts, OwnerHealth, ShadowFacts};

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: Value,
}

/// Returns an applier whose calls are recorded; each is answered with what it sent.
fn applier() -> (Applier, Arc<Mutex<Vec<Call>>>) {
    applier_answering(|call| call.body.clone())
}

/// Returns an applier whose API server keeps every claim on a Node, whatever is sent.
fn applier_that_leaves_claims() -> (Applier, Arc<Mutex<Vec<Call>>>) {
    applier_answering(|_| {
        json!({
            "metadata": {
                "name": "a", "uid": "node-uid", "resourceVersion": "42",
                "annotations": {
                    models::names::SCALE_DOWN_ANNOTATION: "true", models::names::DO_NOT_DISRUPT_ANNOTATION: "true",
                },
            },
            "spec": {"unschedulable": true},
        })
    })
}

/// Returns an applier whose calls are recorded, and answered by `respond`.
pub(super) fn applier_answering(respond: impl Fn(&Call) -> Value + Send + 'static) -> (Applier, Arc<Mutex<Vec<Call>>>) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
    let log = calls.clone();
    tokio::spawn(async move {
        while let Some((request, reply)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or(Value::Null);
            let call = Call {
                method: parts.method.to_string(),
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                body,
            };
            let answer = if call.path.ends_with("/eviction") {
                json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201})
            } else {
                let mut answer = respond(&call);
                if answer.get("spec").is_none() {
                    answer["spec"] = json!({"attempt": 0});
                }
                answer
            };
            log.lock().unwrap().push(call);
            // Only a Status has a code.
            let code = answer["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(200);
            let answer = Body::from(answer.to_string().into_bytes());
            reply.send_response(Response::builder().status(code).body(answer).unwrap());
        }
    });
    (Applier::of_leader(kube::Client::new(service, "default")), calls)
}

fn node() -> NodeView {
    NodeView {
        facts: NodeFacts {
            name: "a".into(),
            uid: "node-uid".into(),
            resource_version: "41".into(),
            ..NodeFacts::default()
        },
        shadow: Some(Box::new(ShadowFacts {
            node: "a".into(),
            uid: "shadow-uid".into(),
            resource_version: "42".into(),
            owner_uid: Some("node-uid".into()),
            ..ShadowFacts::default()
        })),
        ..NodeView::default()
    }
}

async fn call_of(action: Action) -> Call {
    let (applier, calls) = applier();
    applier.carry_out(&node(), action).await.unwrap();
    let calls = calls.lock().unwrap();
    assert_eq!(calls.len(), 1, "{calls:#?}");
    calls[0].clone()
}

async fn evicted(applier: &Applier, pod: Eviction, how: Removal) -> Evicted {
    applier.remove_pod("a".into(), pod, how, 7).await
}

async fn call_about(pod: Eviction, how: Removal) -> Call {
    let (applier, calls) = applier();
    let evicted = evicted(&applier, pod, how).await;
    assert_eq!((evicted.node.as_str(), evicted.uid.as_str(), evicted.request), ("a", "pod-uid", 7));
    assert_eq!(evicted.means, Meaning::Leaves, "{}", evicted.message);
    let calls = calls.lock().unwrap();
    assert_eq!(calls.len(), 1, "{calls:#?}");
    calls[0].clone()
}

#[tokio::test]
async fn status_apply_carries_resource_version_of_decision() {
    let status = Action::Status { status: Box::new(ControllerStatus::default()), note: None };
    let call = call_of(status).await;
    assert!(call.path.ends_with("/bottlerocketshadows/brs-a/status"), "{call:?}");
    assert_eq!(call.body["metadata"]["resourceVersion"], "42");
    assert!(call.query.contains("fieldManager=brupop-controller"), "{call:?}");
}

#[tokio::test]
async fn record_of_silence_carries_resource_version_of_decision() {
    let (applier, calls) = applier();
    let condition = json!({
        "type": "HostReachable", "status": "Unknown", "reason": "AgentSilent", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let condition = serde_json::from_value(condition).unwrap();
    applier.record_silence(&node().shadow.unwrap(), &condition).await.unwrap();
    let calls = calls.lock().unwrap();
    assert!(calls.len() == 1 && calls[0].path.ends_with("/bottlerocketshadows/brs-a/status"), "{calls:?}");
    assert_eq!(calls[0].body["metadata"]["resourceVersion"], "42");
}

#[tokio::test]
async fn spec_write_carries_uid_and_resource_version() {
    let call = call_of(Action::Spec { spec: Box::new(BottlerocketShadowSpec::default()) }).await;
    assert_eq!((call.method.as_str(), call.path.ends_with("/brs-a")), ("PATCH", true));
    assert_eq!(call.body["metadata"]["uid"], "shadow-uid");
    assert_eq!(call.body["metadata"]["resourceVersion"], "42");
}

/// A desired state without settings needs no key; one with settings is not written without a key.
#[tokio::test]
async fn host_settings_are_signed_once_for_their_node() {
    let asks = |version_lock: Option<&str>| HostPolicy {
        version_lock: version_lock.map(str::to_owned),
        ..HostPolicy::default()
    };
    let with_host =
        |host| Action::Spec { spec: Box::new(BottlerocketShadowSpec { host: Some(host), ..Default::default() }) };
    let call = call_of(with_host(asks(None))).await;
    assert_eq!(call.body["spec"]["host"].get("signature"), None);

    let (applier, calls) = self::applier();
    let mut stages = with_host(asks(Some("1.20.5")));
    let Action::Spec { spec } = &mut stages else { unreachable!() };
    spec.state = HostState::StagedUpdate;
    let refused = applier.carry_out(&node(), stages).await;
    assert!(matches!(refused, Err(ApplyError::NoKey)), "{refused:?}");
    assert!(calls.lock().unwrap().is_empty());
    // Withdrawing a desired state needs no key: the host's settings wait for one, its node does not.
    applier.carry_out(&node(), with_host(asks(Some("1.20.5")))).await.unwrap();
    let signed: HostPolicy = serde_json::from_value(calls.lock().unwrap()[0].body["spec"]["host"].clone()).unwrap();
    assert_eq!(signed, asks(Some("1.20.5")));

    let (mut applier, calls) = self::applier();
    applier.signer = crate::tls::Signer::with_a_new_key();
    applier.carry_out(&node(), with_host(asks(Some("1.20.5")))).await.unwrap();
    let host: HostPolicy = serde_json::from_value(calls.lock().unwrap()[0].body["spec"]["host"].clone()).unwrap();
    let signature = host.signature.clone().unwrap();
    let claims: SettingsClaims = applier.signer.read(&signature);
    assert_eq!(Some(claims), SettingsClaims::of("node-uid", &asks(Some("1.20.5"))));

    applier.carry_out(&node(), with_host(host)).await.unwrap();
    assert_eq!(calls.lock().unwrap()[1].body["spec"]["host"]["signature"], json!(signature), "signed already");
}

#[tokio::test]
async fn pod_deletion_carries_observed_uid() {
    let pod = Eviction { namespace: "shop".into(), name: "p".into(), uid: "pod-uid".into() };
    let call = call_about(pod, Removal { grace: Some(0), delete: true, dry_run: false }).await;
    assert_eq!((call.method.as_str(), call.path.as_str()), ("DELETE", "/api/v1/namespaces/shop/pods/p"));
    assert_eq!(call.body["preconditions"]["uid"], "pod-uid");
    assert_eq!(call.body["gracePeriodSeconds"], 0);
}

#[tokio::test]
async fn refused_deletion_of_a_pod_is_read_like_a_refused_eviction() {
    let right = "pods \"p\" is forbidden: User \"brupop\" cannot delete resource \"pods\" in API group \"\" in the \
                 namespace \"shop\"";
    let webhook = "admission webhook \"w\" denied the request: keep it";
    for (sentence, code, message, expected) in [
        ("for want of a right", 403, right, Meaning::Denied),
        ("a webhook denies it, by a code of its own", 403, webhook, Meaning::Denied),
        ("a webhook denies it", 400, webhook, Meaning::Denied),
        ("a policy denies it", 422, "ValidatingAdmissionPolicy denied the request", Meaning::Denied),
        ("it is gone", 404, "not found", Meaning::Leaves),
        ("another pod has its name", 409, "the UID in the precondition does not match", Meaning::OtherPod),
        ("the server is busy", 429, "too many requests", Meaning::Retry(std::time::Duration::from_secs(1))),
        ("it is broken", 500, "etcdserver: request timed out", Meaning::Retry(std::time::Duration::from_secs(2))),
    ] {
        let (applier, _) = applier_answering(
            move |_| json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}),
        );
        let pod = Eviction { namespace: "shop".into(), name: "p".into(), uid: "pod-uid".into() };
        let answer = evicted(&applier, pod, Removal { delete: true, ..Removal::default() }).await;
        assert_eq!(answer.means, expected, "{sentence}");
        assert!(answer.message.starts_with(message), "{sentence}: {}", answer.message);
        assert_eq!(answer.message.contains("force.yaml"), message == right, "{sentence}: {}", answer.message);
    }
}

/// managedFields were reset while the node was claimed, so that releasing the claim removed nothing.
#[tokio::test]
async fn claim_fields_left_after_release_are_removed_only_if_recorded() {
    for (sentence, condition, preexisting, removed) in [
        ("the operator owns all of it", "True", vec![], json!({"spec": {"unschedulable": null}, "keys": true})),
        ("a user had cordoned it", "True", vec!["spec.unschedulable"], json!({"spec": null, "keys": true})),
        ("nothing was ever claimed", "False", vec![], Value::Null),
    ] {
        let (applier, calls) = applier_that_leaves_claims();
        let mut node = node();
        let status = &mut node.shadow.as_mut().unwrap().status;
        status.conditions = serde_json::from_value(json!([{
            "type": models::shadow::CORDONED, "status": condition, "reason": "Updating", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]))
        .unwrap();
        let preexisting = preexisting.into_iter().map(str::to_owned).collect();
        status.controller.drain = Some(DrainStatus { preexisting, ..DrainStatus::default() });
        applier.carry_out(&node, Action::Release).await.unwrap();
        let calls = calls.lock().unwrap();
        let removal = calls.get(1).map_or(Value::Null, |call| call.body.clone());
        if removed == Value::Null {
            assert_eq!(calls.len(), 1, "{sentence}: {calls:#?}");
            continue;
        }
        assert_eq!(removal["spec"], removed["spec"], "{sentence}");
        assert_eq!(removal["metadata"]["annotations"][models::names::SCALE_DOWN_ANNOTATION], Value::Null, "{sentence}");
        assert!(removal["metadata"]["annotations"].get(models::names::SCALE_DOWN_ANNOTATION).is_some(), "{sentence}");
        assert_eq!(removal["metadata"]["resourceVersion"], "42", "{sentence}: it is guarded by what was just read");
    }
}

#[tokio::test]
async fn claim_and_release_carry_uid_and_resource_version_without_force() {
    for (action, unschedulable) in [
        (Action::Claim { fields: planner::claims::ClaimFields::CORDON, note: None }, json!(true)),
        (Action::Release, Value::Null),
    ] {
        let call = call_of(action).await;
        assert_eq!(call.path, "/api/v1/nodes/a");
        assert_eq!(call.body["metadata"]["uid"], "node-uid");
        assert_eq!(call.body["metadata"]["resourceVersion"], "41");
        assert_eq!(call.body["spec"]["unschedulable"], unschedulable);
        assert!(!call.query.contains("force=true"), "{call:?}");
    }
}

/// An apply owns the fields that it names, and the API server removes those that it owned and does not name: so only
/// the label is there.
#[tokio::test]
async fn label_is_applied_under_separate_field_manager_without_force() {
    let (applier, calls) = applier();
    applier.label(&node().facts).await.unwrap();
    let call = calls.lock().unwrap()[0].clone();
    assert_eq!((call.method.as_str(), call.path.as_str()), ("PATCH", "/api/v1/nodes/a"));
    let expected = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "a", "uid": "node-uid", "resourceVersion": "41",
            "labels": {"bottlerocket.aws/updater-interface-version": "2.0.0"},
        },
    });
    assert_eq!(call.body, expected);
    assert!(call.query.contains("fieldManager=brupop-labels") && !call.query.contains("force=true"), "{call:?}");
}

/// In a dry run it asks the API server to persist nothing.
#[tokio::test]
async fn eviction_carries_observed_pod_uid() {
    for dry_run in [false, true] {
        let pod = Eviction { namespace: "shop".into(), name: "web-1".into(), uid: "pod-uid".into() };
        let call = call_about(pod, Removal { dry_run, ..Removal::default() }).await;
        assert_eq!(call.path, "/api/v1/namespaces/shop/pods/web-1/eviction");
        assert_eq!(call.query.contains("dryRun=All"), dry_run, "{call:?}");
        assert!(dry_run || !call.query.contains("dryRun"), "{call:?}");
        // The key is `deleteOptions`; the client's own `evict` writes another one, which the server ignores.
        assert_eq!(call.body["deleteOptions"]["preconditions"]["uid"], "pod-uid");
    }
}

#[tokio::test]
async fn slots_are_written_with_resource_version_of_plan() {
    let (applier, calls) = applier();
    let operator = OperatorFacts { uid: "op".into(), resource_version: "43".into(), ..OperatorFacts::default() };
    let view = ClusterView { operator: Some(operator), ..ClusterView::default() };
    let slot = Slot { uid: "node-uid".into(), node: "a".into(), since: jiff::Timestamp::now(), update: None };
    let status = BottlerocketUpdateOperatorStatus { slots: vec![slot], ..Default::default() };
    applier.write_operator(&view, &status).await.unwrap();
    let call = calls.lock().unwrap()[0].clone();
    assert!(call.path.ends_with("/bottlerocketupdateoperators/default/status"), "{call:?}");
    assert_eq!(call.body["metadata"]["resourceVersion"], "43");
    assert_eq!(call.body["status"]["slots"][0]["uid"], "node-uid");
}

#[tokio::test]
async fn event_has_operator_time_and_repetitions_form_a_series() {
    let (applier, calls) = applier();
    let node = node();
    let note = |message: &str| Note { warning: true, reason: "DrainBlocked", message: message.into() };
    let at = |minutes: i64| {
        let noon: jiff::Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        noon + jiff::SignedDuration::from_mins(minutes)
    };
    for (message, minutes) in [("a", 0), ("a", 5), ("b", 6), ("a", 10), ("a", 17)] {
        applier.recorder.publish(&super::event::node(&node.facts), &note(message), at(minutes)).await.unwrap();
    }
    let calls = calls.lock().unwrap().clone();
    let seen: Vec<_> = calls
        .iter()
        .map(|call| {
            let time = call.body.get("eventTime").unwrap_or(&call.body["series"]["lastObservedTime"]);
            (call.method.as_str(), time.as_str().unwrap(), call.body["series"]["count"].as_i64())
        })
        .collect();
    let expected = [
        ("POST", "2026-11-21T12:00:00.000000Z", None),
        ("PATCH", "2026-11-21T12:05:00.000000Z", Some(2)),
        ("POST", "2026-11-21T12:06:00.000000Z", None),
        ("PATCH", "2026-11-21T12:10:00.000000Z", Some(3)),
        ("POST", "2026-11-21T12:17:00.000000Z", None),
    ];
    assert_eq!(seen, expected);
    assert_eq!(calls[0].path, "/apis/events.k8s.io/v1/namespaces/default/events");
    assert_eq!(calls[0].body["regarding"]["uid"], "node-uid");
    assert_eq!(calls[1].path.rsplit('/').next(), calls[0].body["metadata"]["name"].as_str());
}

#[tokio::test]
async fn controller_without_lease_writes_nothing() {
    let (mut applier, calls) = applier();
    applier.leadership = Leadership::over();
    for delete in [false, true] {
        let pod = Eviction { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        let means = evicted(&applier, pod, Removal { delete, ..Removal::default() }).await.means;
        assert!(matches!(means, Meaning::Retry(_)), "{means:?}");
    }
    for action in [
        Action::Claim { fields: planner::claims::ClaimFields::CORDON, note: None },
        Action::Release,
        Action::Permit { nonce: "n".into(), rules: Default::default(), pods_stay: false },
    ] {
        assert!(applier.carry_out(&node(), action).await.is_err());
    }
    assert!(applier.create_shadow("a", "uid", Default::default()).await.is_err());
    assert!(applier.delete_shadow("a", "uid").await.is_err());
    assert!(applier.label(&node().facts).await.is_err());
    assert!(calls.lock().unwrap().is_empty());
}

/// The claim is carried out and its answer lost; the first read after that is lost too.
#[tokio::test(start_paused = true)]
async fn action_without_response_ends_and_its_node_is_reread() {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        let (mut unanswered, mut reads) = (Vec::new(), 0);
        while let Some((request, reply)) = handle.next_request().await {
            let only = |name: &str| request.uri().query() == Some(&format!("&fieldSelector=metadata.name%3D{name}"));
            let item = match (request.method().as_str(), request.uri().path()) {
                ("GET", "/api/v1/nodes") if only("a") => {
                    reads += 1;
                    json!({"metadata": {"name": "a", "uid": "node-uid", "resourceVersion": "42"},
                        "spec": {"unschedulable": true}})
                }
                ("GET", _) if only("brs-a") => json!({"metadata": {"name": "brs-a", "uid": "shadow-uid",
                    "resourceVersion": "42"}, "spec": {"attempt": 0}}),
                _ => Value::Null,
            };
            let answer = if item.is_null() { item } else { json!({"metadata": {}, "items": [item]}) };
            if answer.is_null() || reads == 1 {
                unanswered.push(reply);
                continue;
            }
            reply.send_response(Response::new(Body::from(answer.to_string().into_bytes())));
        }
    });
    let (mut applier, _) = applier();
    let client = kube::Client::new(service, "default");
    applier.client = crate::client::limited(client, crate::calls::Calls::default(), applier.metrics.clone());
    let result = applier.act(&node(), Action::Claim { fields: planner::claims::ClaimFields::CORDON, note: None }).await;
    assert!(result.as_ref().is_err_and(ApplyError::is_unknown), "{result:?}");
    let known = applier.caches.nodes.get("a").map(|node| (node.resource_version, node.unschedulable));
    assert_eq!(known, Some(("42".to_owned(), true)), "what came of it is known before anything else is decided");
}

#[tokio::test(start_paused = true)]
async fn permit_is_abandoned_when_live_check_gets_no_response() {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        while let Some(request) = handle.next_request().await {
            unanswered.push(request);
        }
    });
    let (mut applier, _) = applier();
    applier.client = kube::Client::new(service, "default");
    let mut view = node();
    let shadow = view.shadow.as_mut().unwrap();
    (shadow.spec.version, shadow.spec.boot_id) = (Some(semver::Version::new(1, 20, 5)), Some("b".into()));
    shadow.spec.state = HostState::RebootedIntoUpdate;
    let action = Action::Permit { nonce: "n".into(), rules: Default::default(), pods_stay: false };
    assert!(matches!(applier.carry_out(&view, action).await, Err(ApplyError::Late)));
}

#[tokio::test]
async fn pods_of_owner_are_counted_across_all_pages() {
    let pod = |owner: &str, node: &str, ready: &str| {
        json!({
            "metadata": {"name": "p", "namespace": "shop", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": owner, "controller": true}]},
            "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        })
    };
    let pages = Mutex::new(vec![
        json!({"metadata": {}, "items": [pod("owner", "updated", "False"), pod("owner", "elsewhere", "False")]}),
        json!({"metadata": {"continue": "next"}, "items": [pod("owner", "old", "True"), pod("other", "old", "False")]}),
    ]);
    let (applier, calls) = applier_answering(move |_| pages.lock().unwrap().pop().unwrap());
    let labels = [("app".to_owned(), "web".to_owned()), ("hash".to_owned(), "1".to_owned())].into();
    let nodes = [("old".to_owned(), Compared::NotUpdated), ("updated".to_owned(), Compared::Updated)].into();
    let health = applier.read_owner("owner", "shop", &labels, &nodes).await.unwrap();
    let read_at = health.read_at;
    assert_eq!(health, OwnerHealth { read_at, updated_failing: 1, others_healthy: 1, ..OwnerHealth::default() });
    let calls = calls.lock().unwrap();
    assert!(calls.len() == 2 && calls.iter().all(|call| call.path == "/api/v1/namespaces/shop/pods"), "{calls:?}");
    assert!(calls[0].query.contains("labelSelector=app%3Dweb%2Chash%3D1"), "{}", calls[0].query);
    assert!(calls[1].query.contains("continue=next"), "{}", calls[1].query);
}

#[tokio::test]
async fn replica_set_is_read_for_the_time_of_its_creation_only_where_none_of_its_pods_is_healthy() {
    let pod = |node: &str, ready: &str| {
        json!({
            "metadata": {"name": "p", "namespace": "shop", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "web", "controller": true}]},
            "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        })
    };
    let set = |uid: &str| {
        json!({
            "metadata": {"name": "web-1", "namespace": "shop", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"selector": {}},
        })
    };
    let at: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    for (sentence, ready, set, created) in [
        ("none is Ready", "False", set("web"), Some(at)),
        ("one on a node that is not compared is Ready", "True", set("web"), None),
        ("another ReplicaSet has its name", "False", set("new"), None),
    ] {
        let pods = json!({"metadata": {}, "items": [pod("a", "False"), pod("b", ready)]});
        let (applier, calls) = applier_answering(move |call| match call.path.as_str() {
            "/api/v1/namespaces/shop/pods" => pods.clone(),
            _ => set.clone(),
        });
        let health = applier.read_owner("web", "shop", &BTreeMap::new(), &BTreeMap::new()).await.unwrap();
        assert_eq!(health.created, created, "{sentence}");
        let is_read = calls.lock().unwrap().iter().any(|call| call.path.ends_with("/shop/replicasets/web-1"));
        assert_eq!(is_read, ready == "False", "{sentence}");
    }
}

#[tokio::test]
async fn replica_set_lacks_pods_only_where_it_shows_that() {
    let set = |uid: &str, wanted: i32, has: i32| {
        json!({
            "metadata": {"name": "web-1", "namespace": "shop", "uid": uid},
            "spec": {"replicas": wanted, "selector": {}}, "status": {"replicas": has},
        })
    };
    let mut ends = set("web", 2, 0);
    ends["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let status = |code: u16, reason: &str| {
        let mut answer = json!({"kind": "Status", "status": "Failure", "message": "no"});
        (answer["code"], answer["reason"]) = (json!(code), json!(reason));
        answer
    };
    for (sentence, answer, lacks) in [
        ("it has fewer than it wants", set("web", 2, 1), Some(true)),
        ("it has as many", set("web", 2, 2), Some(false)),
        ("a rollout has replaced it", set("web", 0, 0), Some(false)),
        ("it is being deleted", ends, Some(false)),
        ("another one has its name", set("new", 2, 0), Some(false)),
        ("it is gone", status(404, "NotFound"), Some(false)),
        ("it may not be read", status(403, "Forbidden"), Some(false)),
        ("the API server is overloaded", status(429, "TooManyRequests"), None),
        ("the API server is away", status(503, "ServiceUnavailable"), None),
        ("it is not read in time", status(504, "Timeout"), None),
        ("what it is cannot be read", json!({"spec": "none"}), None),
    ] {
        let (applier, calls) = applier_answering(move |_| answer.clone());
        let read = applier.read_replica_set(&OwnerBefore { name: "shop/web-1".into(), uid: "web".into() }).await;
        assert_eq!(read.is_ok(), lacks.is_some(), "{sentence}: {read:?}");
        if let Ok(health) = read {
            let expected = OwnerHealth { read_at: health.read_at, lacks_pods: lacks, ..OwnerHealth::default() };
            assert_eq!(health, expected, "{sentence}");
        }
        let calls = calls.lock().unwrap();
        let paths: Vec<_> = calls.iter().map(|call| call.path.as_str()).collect();
        assert_eq!(paths, ["/apis/apps/v1/namespaces/shop/replicasets/web-1"], "{sentence}");
    }
}
