//! The recorder and the audit log on a real control plane.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use semver::Version;
use serde_json::{Value, json};

use super::facts::Kind;
use super::hosts::HostLog;
use super::report::Property;
use super::scenario::{APISERVER, CONTROLLER};
use super::*;
use crate::control_plane::tests::until;
use crate::control_plane::{ControlPlane, Options};
use crate::host::{Host, HostOptions, Releases, client};

/// Ends a test that would hang; no test measures time.
const LONG: Duration = Duration::from_secs(240);

async fn install(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in [BottlerocketShadow::crd(), BottlerocketUpdateOperator::crd()] {
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names::SYSTEM_NAMESPACE}});
    let namespace = serde_json::from_value(namespace).unwrap();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
}

fn shadow(node: &str, uid: &str) -> BottlerocketShadow {
    serde_json::from_value(json!({
        "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "metadata": {"name": names::shadow_name(node), "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]},
        "spec": {"attempt": 0, "state": "Idle"},
    }))
    .unwrap()
}

fn at<K: kube::Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_ref().unwrap().parse().unwrap()
}

async fn node(client: &Client, name: &str) -> Node {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {names::INTERFACE_LABEL: "2.0.0"}}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap()
}

async fn apply(client: &Client, manager: &str, name: &str, mut content: Value) -> Node {
    let nodes: Api<Node> = Api::all(client.clone());
    content["apiVersion"] = "v1".into();
    content["kind"] = "Node".into();
    nodes.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(content)).await.unwrap()
}

fn revisions(history: &History, kind: Kind) -> BTreeSet<u64> {
    let of = |change: &&Change| change.object.key().0 == kind;
    history.changes().iter().filter(of).map(|change| change.revision).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorder_misses_no_revision_after_late_crd_install_or_apiserver_restart() {
    let mut bed = ControlPlane::start(Options::default()).await.unwrap();
    let client = bed.client();
    let recorder = Recorder::start(client.clone()).await.unwrap();

    // A resource that appears later, and objects that change and are deleted before any watch can be open.
    install(&client).await;
    let shadows: Api<BottlerocketShadow> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let mut made = BTreeSet::new();
    let first =
        until("the first shadow", async || shadows.create(&PostParams::default(), &shadow("a", "u")).await.ok()).await;
    made.insert(at(&first));
    for attempt in 1..=20 {
        let patch = Patch::Merge(json!({"spec": {"attempt": attempt}}));
        made.insert(at(&shadows.patch("brs-a", &PatchParams::default(), &patch).await.unwrap()));
    }
    shadows.delete("brs-a", &DeleteParams::default()).await.unwrap();
    let second = shadows.create(&PostParams::default(), &shadow("a", "v")).await.unwrap();
    made.insert(at(&second));

    // An outage: changes before the recorder reconnects are not missed either.
    bed.restart_apiserver().await.unwrap();
    let client = bed.client();
    let shadows: Api<BottlerocketShadow> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    for attempt in 1..=20 {
        let patch = Patch::Merge(json!({"spec": {"attempt": attempt}}));
        let patched =
            until("the server is back", async || shadows.patch("brs-a", &PatchParams::default(), &patch).await.ok())
                .await;
        made.insert(at(&patched));
    }
    let nodes_made: BTreeSet<u64> = BTreeSet::from([at(&node(&client, "a").await), at(&node(&client, "b").await)]);

    let history = recorder.finish().await.unwrap();
    let seen = revisions(&history, Kind::Shadow);
    assert!(made.is_subset(&seen), "missed: {:?}", made.difference(&seen));
    assert!(nodes_made.is_subset(&revisions(&history, Kind::Node)));
    let deletions: Vec<u64> = history
        .changes()
        .iter()
        .filter(|change| change.gone && change.object.key().0 == Kind::Shadow)
        .map(|change| change.revision)
        .collect();
    assert_eq!(deletions.len(), 1);
    let before = made.range(..deletions[0]).count();
    assert_eq!(before, 21, "the deletion stands where it was made: {deletions:?} in {made:?}");
    assert!(history.changes().windows(2).all(|two| two[0].revision < two[1].revision), "one total order");
    let end = history.end();
    assert_eq!(end.shadows["brs-a"].uid, second.uid().unwrap());
    assert_eq!(end.shadows["brs-a"].spec.attempt, 20);
    assert_eq!(end.nodes.len(), 2);
    bed.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injected_violations_are_detected_on_real_api_server() {
    let bed = ControlPlane::start(Options::default()).await.unwrap();
    let admin = bed.client();
    let recorder = Recorder::start(bed.client()).await.unwrap();
    install(&admin).await;
    let masters = &["system:masters"];
    let controller = bed.client_as(CONTROLLER, masters).unwrap();
    let web_api = bed.client_as(APISERVER, masters).unwrap();

    let uid = node(&admin, "a").await.uid().unwrap();
    let b = node(&admin, "b").await.uid().unwrap();
    let shadows: Api<BottlerocketShadow> = Api::namespaced(controller.clone(), names::SYSTEM_NAMESPACE);
    until("the shadow", async || shadows.create(&PostParams::default(), &shadow("a", &uid)).await.ok()).await;

    // A correct run: a budget, a slot, a claim, a release, a report.
    let resource = kube::api::ApiResource::erase::<BottlerocketUpdateOperator>(&());
    let operators: Api<DynamicObject> = Api::namespaced_with(controller.clone(), names::SYSTEM_NAMESPACE, &resource);
    let operator = json!({"apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
        "metadata": {"name": "default"}, "spec": {}});
    let operator: DynamicObject = serde_json::from_value(operator).unwrap();
    until("the operator's resource", async || operators.create(&PostParams::default(), &operator).await.ok()).await;
    let slots = |uids: &[(&str, &str)]| {
        let slots: Vec<Value> =
            uids.iter().map(|(uid, node)| json!({"uid": uid, "node": node, "since": "2026-01-01T00:00:00Z"})).collect();
        Patch::Merge(json!({"status": {"slots": slots}}))
    };
    operators.patch_status("default", &PatchParams::default(), &slots(&[(&uid, "a")])).await.unwrap();
    apply(&controller, "brupop-controller", "a", json!({"spec": {"unschedulable": true}})).await;
    let released = apply(&controller, "brupop-controller", "a", json!({"metadata": {"name": "a"}})).await;
    let theirs: Api<BottlerocketShadow> = Api::namespaced(web_api.clone(), names::SYSTEM_NAMESPACE);
    let report = json!({"apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
        "status": {"state": "Idle", "observedGeneration": 1}});
    theirs.patch_status("brs-a", &PatchParams::apply("brupop-agent").force(), &Patch::Apply(report)).await.unwrap();
    let mut reader = bed.audit();
    let mut audit = settled_audit(&mut reader, &admin).await.unwrap();
    let history = recorder
        .wait_until("the slot, the release and the report", LONG, |history| {
            // Each kind has a watch of its own.
            let end = history.end();
            end.operator.is_some_and(|operator| !operator.status.slots.is_empty())
                && revisions(history, Kind::Node).contains(&at(&released))
                && end.shadows.get("brs-a").is_some_and(|shadow| shadow.status.agent.state.is_some())
        })
        .await
        .unwrap();
    let verdict = judge(&history, &[], &audit, &Expectations::default());
    assert_eq!(verdict.violations, [], "nothing is wrong yet");
    assert_eq!((verdict.stats.out_of_service, verdict.stats.node_writes), (1, 2));

    // S1: a second slot.
    operators.patch_status("default", &PatchParams::default(), &slots(&[(&uid, "a"), (&b, "b")])).await.unwrap();
    // S4: a user's label is removed.
    apply(&admin, "kubectl", "a", json!({"metadata": {"labels": {"zone": "1"}}})).await;
    let nodes: Api<Node> = Api::all(controller.clone());
    let gone = Patch::Merge(json!({"metadata": {"labels": {"zone": null}}}));
    nodes
        .patch("a", &PatchParams { field_manager: Some("brupop-controller".into()), ..PatchParams::default() }, &gone)
        .await
        .unwrap();
    // S5: the controller reports for the agent.
    let forged = Patch::Merge(json!({"status": {"state": "RebootedIntoUpdate"}}));
    shadows.patch_status("brs-a", &PatchParams::default(), &forged).await.unwrap();
    // S6: an eviction without a uid, from a node without a claim.
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart"}, "spec": {
        "nodeName": "b", "containers": [{"name": "cart", "image": "cart"}]}});
    let pod = serde_json::from_value(pod).unwrap();
    until("the pod", async || pods.create(&PostParams::default(), &pod).await.ok()).await;
    let pods: Api<Pod> = Api::namespaced(controller.clone(), "default");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "cart"}});
    let _: Value = pods.create_subresource("eviction", "cart", &PostParams::default(), &eviction).await.unwrap();

    let history = recorder.finish().await.unwrap();
    audit.extend(settled_audit(&mut reader, &admin).await.unwrap());
    let verdict = judge(&history, &[], &audit, &Expectations::default());
    let violated: BTreeSet<Property> = verdict.violations.iter().map(|violation| violation.property).collect();
    assert_eq!(violated, BTreeSet::from([Property::S1, Property::S4, Property::S5, Property::S6]), "{verdict}");
    assert_eq!(verdict.violations.len(), 4, "{verdict}");
    assert!(verdict.to_string().contains("'1' of kubectl was removed"), "{verdict}");
    bed.stop().await.unwrap();
}

/// Updates the host through its API as a compromised agent would: without a permit and without waiting.
async fn update_without_permit(host: &Host) {
    let boot = host.snapshot().boot_id;
    for path in ["/actions/refresh-updates", "/actions/prepare-update", "/actions/activate-update", "/actions/reboot"] {
        until(path, async || {
            let reply = client::call(&host.socket(), "POST", path, None).await.ok()?;
            (reply.status == 204).then_some(())
        })
        .await;
    }
    tokio::time::timeout(LONG, host.booted_after(&boot)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injected_violations_in_host_logs_and_records_are_detected() {
    let bed = ControlPlane::start(Options::default()).await.unwrap();
    let admin = bed.client();
    let recorder = Recorder::start(bed.client()).await.unwrap();
    install(&admin).await;
    let controller = bed.client_as(CONTROLLER, &["system:masters"]).unwrap();
    let shadows: Api<BottlerocketShadow> = Api::namespaced(controller.clone(), names::SYSTEM_NAMESPACE);
    let folder = tempfile::tempdir().unwrap();
    let releases = Releases::of([Version::new(1, 20, 0), Version::new(1, 20, 5)]);
    let options = HostOptions::new("a", folder.path(), Version::new(1, 20, 0), releases);
    let host = Host::start(options).await.unwrap();
    let mut uids = Vec::new();
    for name in ["a", "b"] {
        let uid = node(&admin, name).await.uid().unwrap();
        until("the shadow", async || shadows.create(&PostParams::default(), &shadow(name, &uid)).await.ok()).await;
        uids.push(uid);
    }
    let nodes: Api<Node> = Api::all(admin.clone());
    let boot = json!({"status": {"nodeInfo": {"bootID": host.snapshot().boot_id, "architecture": "", "containerRuntimeVersion": "",
        "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
        "systemUUID": ""}}});
    nodes.patch_status("a", &PatchParams::default(), &Patch::Merge(boot)).await.unwrap();
    let resource = kube::api::ApiResource::erase::<BottlerocketUpdateOperator>(&());
    let operators: Api<DynamicObject> = Api::namespaced_with(controller.clone(), names::SYSTEM_NAMESPACE, &resource);
    let operator = json!({"apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator",
        "metadata": {"name": "default"}, "spec": {"maxUnavailable": 2, "strategy": {"canary": [{"nodes": 1}]}}});
    let operator: DynamicObject = serde_json::from_value(operator).unwrap();
    until("the operator's resource", async || operators.create(&PostParams::default(), &operator).await.ok()).await;
    let slot = |number: usize, name: &str| json!({"uid": uids[number], "node": name, "since": "2026-01-01T00:00:00Z"});
    let slots = |slots: Vec<Value>| Patch::Merge(json!({"status": {"slots": slots}}));
    operators.patch_status("default", &PatchParams::default(), &slots(vec![slot(0, "a")])).await.unwrap();
    apply(&controller, "brupop-controller", "a", json!({"spec": {"unschedulable": true}})).await;

    // S3: a permit while a pod is on the node.
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cart"}, "spec": {
        "nodeName": "a", "containers": [{"name": "cart", "image": "cart"}]}});
    let pod = serde_json::from_value(pod).unwrap();
    until("the pod", async || pods.create(&PostParams::default(), &pod).await.ok()).await;
    let permit = json!({"spec": {"state": "RebootedIntoUpdate", "version": "1.20.5", "attempt": 1, "bootId": "another boot",
        "permit": {"nonce": "n-1", "jws": "x"}}});
    let permit = Patch::Merge(permit);
    shadows.patch("brs-a", &PatchParams::default(), &permit).await.unwrap();
    // S12: another permit, with the place of the canary step used up.
    shadows.patch("brs-b", &PatchParams::default(), &permit).await.unwrap();
    // S8: a node starts after the failures of a version have used up the failure budget.
    let failure = json!({"version": "1.20.5", "variant": "v", "arch": "x86_64", "reason": "BootFellBack",
        "time": "2026-01-01T00:00:00Z"});
    let failed = Patch::Merge(json!({"status": {"record": {"failures": 1, "versionFailures": [failure]}}}));
    shadows.patch_status("brs-a", &PatchParams::default(), &failed).await.unwrap();
    operators.patch_status("default", &PatchParams::default(), &slots(vec![slot(0, "a"), slot(1, "b")])).await.unwrap();
    // S9: the node is released; S7 and S2: its host is armed and rebooted all the same, without a permit of its boot.
    apply(&controller, "brupop-controller", "a", json!({"metadata": {"name": "a"}})).await;
    update_without_permit(&host).await;

    let history = recorder.finish().await.unwrap();
    let audit = settled_audit(&mut bed.audit(), &admin).await.unwrap();
    let logs = [HostLog::of("a", &host.log())];
    let verdict = judge(&history, &logs, &audit, &Expectations::default());
    let violated: BTreeSet<Property> = verdict.violations.iter().map(|violation| violation.property).collect();
    let planted = [Property::S2, Property::S3, Property::S7, Property::S8, Property::S9, Property::S12];
    assert_eq!(violated, BTreeSet::from(planted), "{verdict}");
    assert_eq!(verdict.violations.len(), planted.len(), "{verdict}");
    bed.stop().await.unwrap();
}
