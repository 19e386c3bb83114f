//! The live check before a permit, on a Node and pods that differ from those that the decision was made on.

use models::names::{CONTROL_PLANE_LABEL, CONTROLLER_MANAGER, HOLD_ANNOTATION, INTERFACE_LABEL, INTERFACE_VERSION};
use models::permit::{PermitClaims, REHEARSAL_AUDIENCE, RehearsalClaims};
use models::shadow::{BottlerocketShadowSpec, DrainStatus, HostState};
use semver::Version;
use serde_json::{Value, json};

use super::ApplyError;
use crate::apply::tests::applier_answering;
use crate::tls::Signer;
use planner::plan::Action;
use planner::rules::Rules;
use planner::view::{NodeFacts, NodeView, ShadowFacts};

const BOOT: &str = "boot-1";

/// The path of the budgets of [`pod`].
const BUDGETS: &str = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets";

/// Returns a Node that passes the check.
fn node() -> Value {
    json!({
        "metadata": {
            "name": "a", "uid": "node-uid", "resourceVersion": "41",
            "labels": {INTERFACE_LABEL: INTERFACE_VERSION},
            "managedFields": [{"manager": CONTROLLER_MANAGER, "operation": "Apply", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}],
        },
        "spec": {"unschedulable": true},
        "status": {"nodeInfo": {"bootID": BOOT}},
    })
}

/// Returns a pod of a workload on the node.
fn pod() -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "shop", "uid": "p-1", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "w-1", "controller": true}]},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running"},
    })
}

/// Returns the view that the plan was made on, whatever the cluster has now: desired state reboot, and an agent that
/// requests a permit.
fn decided_on() -> NodeView {
    let spec = BottlerocketShadowSpec {
        state: HostState::RebootedIntoUpdate,
        version: Some(Version::new(1, 20, 5)),
        attempt: 3,
        boot_id: Some(BOOT.into()),
        ..BottlerocketShadowSpec::default()
    };
    NodeView {
        facts: NodeFacts { name: "a".into(), uid: "node-uid".into(), ..NodeFacts::default() },
        shadow: Some(Box::new(ShadowFacts {
            node: "a".into(),
            uid: "shadow-uid".into(),
            resource_version: "42".into(),
            owner_uid: Some("node-uid".into()),
            spec,
            ..ShadowFacts::default()
        })),
        ..NodeView::default()
    }
}

/// Requests a permit with this state of the cluster; returns the result and the desired states that were written.
async fn issue_permit(node: Value, pods: Vec<Value>, signer: &Signer) -> (Result<(), ApplyError>, Vec<Value>) {
    issue_permit_under(HostState::RebootedIntoUpdate, false, node, pods, signer).await
}

/// The same under this desired state, where pods may stay or not.
async fn issue_permit_under(
    state: HostState,
    pods_stay: bool,
    node: Value,
    pods: Vec<Value>,
    signer: &Signer,
) -> (Result<(), ApplyError>, Vec<Value>) {
    issue_permit_beside(None, state, pods_stay, node, pods, signer).await
}

/// The same in a cluster whose control plane has these Nodes; `None` where they are not to be read.
async fn issue_permit_beside(
    control_plane: Option<Value>,
    state: HostState,
    pods_stay: bool,
    node: Value,
    pods: Vec<Value>,
    signer: &Signer,
) -> (Result<(), ApplyError>, Vec<Value>) {
    let (mut applier, calls) = applier_answering(move |call| match call.path.as_str() {
        "/api/v1/nodes/a" => node.clone(),
        "/api/v1/nodes" => {
            assert_eq!(call.query, "&labelSelector=node-role.kubernetes.io%2Fcontrol-plane");
            control_plane.clone().unwrap()
        }
        "/api/v1/pods" => {
            assert_eq!(call.query, "&fieldSelector=spec.nodeName%3Da");
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
        }
        BUDGETS => json!({"metadata": {}, "items": []}),
        _ => call.body.clone(),
    });
    applier.signer = signer.clone();
    let action = Action::Permit { nonce: "n-1".into(), rules: Rules::default(), pods_stay };
    let mut view = decided_on();
    view.shadow.as_mut().unwrap().spec.state = state;
    let result = applier.carry_out(&view, action).await.map(|_| ());
    let calls = calls.lock().unwrap();
    (result, calls.iter().filter(|call| call.method != "GET").map(|call| call.body.clone()).collect())
}

#[tokio::test]
async fn drained_node_gets_permit_for_its_boot_attempt_and_nonce() {
    let signer = Signer::with_a_new_key();
    // A hold whose time is over is none.
    let mut held_before = node();
    held_before["metadata"]["annotations"] = json!({HOLD_ANNOTATION: "until=2026-01-01T00:00:00Z"});
    // A static pod goes with the node.
    let mut of_the_node = pod();
    of_the_node["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    for (node, left_there) in [(node(), vec![]), (node(), vec![of_the_node]), (held_before, vec![])] {
        let (result, written) = issue_permit(node, left_there, &signer).await;
        result.unwrap();
        assert_eq!(written.len(), 1, "{written:#?}");
        assert_eq!(written[0]["metadata"]["uid"], "shadow-uid");
        assert_eq!(written[0]["metadata"]["resourceVersion"], "42");
        let claims: PermitClaims = signer.read(written[0]["spec"]["permit"]["jws"].as_str().unwrap());
        let wanted = PermitClaims {
            node_uid: "node-uid".into(),
            boot_id: BOOT.into(),
            attempt: 3,
            version: Version::new(1, 20, 5),
            nonce: "n-1".into(),
            host: None,
        };
        assert_eq!(claims, wanted);
    }
}

#[tokio::test]
async fn drill_gets_rehearsal_permit_alone_and_with_pods_on_the_node_only_if_they_stay() {
    let signer = Signer::with_a_new_key();
    let rehearsed = HostState::RehearsedUpdate;
    for (pods_stay, pods) in [(true, vec![pod()]), (true, vec![]), (false, vec![])] {
        let (result, written) = issue_permit_under(rehearsed, pods_stay, node(), pods, &signer).await;
        result.unwrap();
        let claims: RehearsalClaims = signer.read(written[0]["spec"]["permit"]["jws"].as_str().unwrap());
        assert_eq!((claims.aud.as_str(), claims.nonce.as_str(), claims.attempt), (REHEARSAL_AUDIENCE, "n-1", 3));
    }
    // `pods_stay` has an effect in a drill alone.
    for (state, pods_stay) in [(rehearsed, false), (HostState::RebootedIntoUpdate, true)] {
        let (result, written) = issue_permit_under(state, pods_stay, node(), vec![pod()], &signer).await;
        assert!(matches!(result, Err(ApplyError::NoPermit(_))), "{state:?}: {result:?}");
        assert!(written.is_empty(), "{state:?}: {written:#?}");
    }
    let mut uncordoned = node();
    uncordoned["spec"] = json!({});
    let (result, _) = issue_permit_under(rehearsed, true, uncordoned, vec![], &signer).await;
    assert!(matches!(result, Err(ApplyError::NoPermit(_))), "{result:?}");
    for state in [HostState::Idle, HostState::StagedUpdate, HostState::Unknown] {
        let (result, written) = issue_permit_under(state, false, node(), vec![], &signer).await;
        assert!(matches!(result, Err(ApplyError::Changed(_))) && written.is_empty(), "{state:?}: {result:?}");
    }
}

#[tokio::test]
async fn no_permit_is_issued_when_live_check_fails() {
    let signer = Signer::with_a_new_key();
    let with = |pointer: &str, value: Value| {
        let mut node = node();
        *node.pointer_mut(pointer).unwrap() = value;
        (node, vec![])
    };
    let mut held = node();
    held["metadata"]["annotations"] = json!({HOLD_ANNOTATION: "mine"});
    let mut held_for_long = node();
    held_for_long["metadata"]["annotations"] = json!({HOLD_ANNOTATION: "until=9999-01-01T00:00:00Z reason=audit"});
    let mut leaving = node();
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (sentence, (node, pods)) in [
        ("a pod is on the node", (node(), vec![pod()])),
        ("another Node has its name", with("/metadata/uid", json!("node-2"))),
        ("it is in another boot", with("/status/nodeInfo/bootID", json!("boot-2"))),
        ("it does not report its boot", with("/status", json!({}))),
        ("another client uncordoned it", with("/spec", json!({}))),
        ("the cordon is another client's", with("/metadata/managedFields/0/manager", json!("kubectl-cordon"))),
        ("it has left the operator", with("/metadata/labels", json!({}))),
        ("another client holds it", (held, vec![])),
        ("another client holds it for some time", (held_for_long, vec![])),
        ("it is being deleted", (leaving, vec![])),
    ] {
        let (result, written) = issue_permit(node, pods, &signer).await;
        assert!(matches!(result, Err(ApplyError::NoPermit(_) | ApplyError::Changed(_))), "{sentence}: {result:?}");
        assert!(written.is_empty(), "{sentence}: {written:#?}");
    }
}

/// A pod came back after the eviction of its owner's pods, or is static. The plan was made on what the watch of budgets had shown.
#[tokio::test]
async fn permit_requires_that_budgets_let_the_pods_go_now_that_the_reboot_ends() {
    let signer = Signer::with_a_new_key();
    let mut came_back = pod();
    came_back["metadata"]["labels"] = json!({"app": "web"});
    came_back["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    came_back["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    let mut of_the_node = came_back.clone();
    of_the_node["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let budget = |name: &str, app: &str, allowed: i32| {
        json!({
            "metadata": {"name": name, "namespace": "shop", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2 + allowed,
                "desiredHealthy": 2, "expectedPods": 3},
        })
    };
    let list = |items: Vec<Value>| json!({"metadata": {}, "items": items});
    let failure =
        json!({"kind": "Status", "status": "Failure", "message": "etcdserver: request timed out", "code": 500});
    let kept = Some("the PodDisruptionBudget shop/web allows no disruption of shop/p");
    let (within, past) = (Rules::default(), Rules { past_budgets: true, ..Rules::default() });
    let (used_up, other) = (budget("web", "web", 0), budget("db", "db", 0));
    for (sentence, pod, rules, budgets, refusal) in [
        ("it allows one disruption", &came_back, within, list(vec![budget("web", "web", 1)]), None),
        ("another pod was evicted a moment ago", &came_back, within, list(vec![used_up.clone()]), kept),
        ("another budget has nothing left", &came_back, within, list(vec![other]), None),
        ("two select it", &came_back, within, list(vec![budget("web", "web", 1), budget("all", "web", 1)]), kept),
        ("policy goes past budgets", &came_back, past, list(vec![used_up.clone()]), None),
        ("they cannot be read", &came_back, within, failure, Some("etcdserver: request timed out")),
        ("a static pod, which ends whatever policy says", &of_the_node, past, list(vec![used_up]), kept),
    ] {
        let pods = json!({"metadata": {}, "items": [pod]});
        let (mut applier, calls) = applier_answering(move |call| match call.path.as_str() {
            "/api/v1/nodes/a" => node(),
            "/api/v1/pods" => pods.clone(),
            BUDGETS => budgets.clone(),
            _ => call.body.clone(),
        });
        applier.signer = signer.clone();
        let mut view = decided_on();
        let drain = DrainStatus { evicted_owners: vec!["w-1".into()], ..DrainStatus::default() };
        view.shadow.as_mut().unwrap().status.controller.drain = Some(drain);
        let action = Action::Permit { nonce: "n-1".into(), rules, pods_stay: false };
        let error = applier.carry_out(&view, action).await.err().map(|error| error.text());
        assert_eq!(error.is_some(), refusal.is_some(), "{sentence}: {error:?}");
        assert!(error.is_none_or(|error| error.contains(refusal.unwrap_or_default())), "{sentence}: {refusal:?}");
        let written = calls.lock().unwrap().iter().filter(|call| call.method != "GET").count();
        assert_eq!(written, usize::from(refusal.is_none()), "{sentence}");
    }
}

#[tokio::test]
async fn permit_requires_signing_key() {
    let (result, written) = issue_permit(node(), vec![], &Signer::default()).await;
    assert!(matches!(result, Err(ApplyError::NoKey)), "{result:?}");
    assert!(written.is_empty());
}

#[tokio::test]
async fn no_permit_is_issued_beside_pod_of_earlier_operator() {
    let signer = Signer::with_a_new_key();
    // A pod of a DaemonSet is no reason against a permit otherwise.
    let mut agent = pod();
    agent["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
    let (result, _) = issue_permit(node(), vec![agent.clone()], &signer).await;
    result.unwrap();
    agent["metadata"]["labels"] = json!({"brupop.bottlerocket.aws/component": "agent"});
    let (result, written) = issue_permit(node(), vec![agent.clone()], &signer).await;
    let refused = matches!(&result, Err(ApplyError::NoPermit(why)) if why.contains("shop/p of the earlier operator"));
    assert!(refused && written.is_empty(), "{result:?} {written:?}");
    agent["status"]["phase"] = json!("Succeeded");
    let (result, _) = issue_permit(node(), vec![agent], &signer).await;
    result.unwrap();
}

/// The watch of Nodes may show one as Ready that has lost its power together with the API server that the watch is connected to.
#[tokio::test]
async fn control_plane_node_gets_permit_only_while_all_others_are_ready_now() {
    let signer = Signer::with_a_new_key();
    let mut own = node();
    own["metadata"]["labels"][CONTROL_PLANE_LABEL] = json!("");
    let named = |name: &str, ready: &str| {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        json!({"metadata": {"name": name}, "status": {"conditions": conditions}})
    };
    let of = |others: Vec<Value>| {
        let mut own = own.clone();
        // The node itself is about to reboot.
        own["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
        let items: Vec<Value> = std::iter::once(own).chain(others).collect();
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items})
    };
    let failure =
        json!({"kind": "Status", "status": "Failure", "message": "etcdserver: request timed out", "code": 500});
    let (ready, down) = (named("cp-2", "True"), named("cp-3", "Unknown"));
    let silent = json!({"metadata": {"name": "cp-3"}});
    for (sentence, all, refusal) in [
        ("all others are Ready", of(vec![ready.clone()]), None),
        ("it has no other", of(vec![]), None),
        ("one has lost its power", of(vec![ready.clone(), down]), Some("cp-3 of the control plane is not Ready")),
        ("one was never Ready", of(vec![ready, silent]), Some("cp-3 of the control plane is not Ready")),
        ("they cannot be read", failure, Some("etcdserver: request timed out")),
    ] {
        let reboots = HostState::RebootedIntoUpdate;
        let (result, written) = issue_permit_beside(Some(all), reboots, false, own.clone(), vec![], &signer).await;
        let error = result.err().map(|error| error.text());
        assert_eq!(error.is_some(), refusal.is_some(), "{sentence}: {error:?}");
        assert!(error.is_none_or(|error| error.contains(refusal.unwrap_or_default())), "{sentence}: {refusal:?}");
        assert_eq!(written.len(), usize::from(refusal.is_none()), "{sentence}: {written:#?}");
    }
    // A drill reboots no host.
    let (result, _) = issue_permit_beside(None, HostState::RehearsedUpdate, false, own.clone(), vec![], &signer).await;
    result.unwrap();
}
