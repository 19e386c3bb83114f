//! Leaders that follow one another, and whose clocks are wrong.

use anyhow::{Context as _, ensure};
use futures::TryStreamExt as _;
use integ::bed::workload;
use integ::oracle::ClusterState;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use models::names::{COMPONENT_LABEL, CONTROLLER, INTERFACE_LABEL, SYSTEM_NAMESPACE};
use models::shadow::{Progress, Step};
use serde_json::{Value, json};

use crate::bed::{ControllerOptions, LIMIT, NEW, ScriptedCluster};

crate::cases![
    leader_hands_its_lease_over_before_its_own_node_is_drained,
    stopped_leader_releases_lease_and_standby_with_another_clock_continues_its_drain,
];

fn progress(world: &ClusterState, node: &str) -> Option<Progress> {
    world.shadow(node)?.status.controller.progress.clone()
}

/// Brings a node into a drain that a budget blocks, and returns its name.
pub(crate) async fn blocked_drain(cluster: &ScriptedCluster) -> anyhow::Result<String> {
    cluster.shop(4, json!({"minAvailable": 4})).await?;
    cluster.block_shop().await?;
    cluster.fleet.release(NEW);
    until_drain_blocked(cluster).await
}

/// Waits until a budget blocks the drain of a node, and returns its name.
pub(crate) async fn until_drain_blocked(cluster: &ScriptedCluster) -> anyhow::Result<String> {
    let blocked = |world: &ClusterState| {
        let drained = world.shadows.values().find(|shadow| {
            let drain = shadow.status.controller.drain.as_ref();
            shadow.step() == Some(Step::Draining) && drain.is_some_and(|drain| !drain.blockers.is_empty())
        });
        drained.map(|shadow| shadow.node().to_owned())
    };
    let world = cluster.until("a drain is blocked", |world| blocked(world).is_some()).await?;
    Ok(blocked(&world).unwrap_or_default())
}

/// Stops the first controller, and returns the holders of its Lease until this one has it. No holder is an empty name.
async fn holders_until(cluster: &mut ScriptedCluster, next: &str) -> anyhow::Result<Vec<String>> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let version = leases.get(CONTROLLER).await?.metadata.resource_version.unwrap_or_default();
    let params = WatchParams::default().fields(&format!("metadata.name={CONTROLLER}"));
    let mut events = std::pin::pin!(leases.watch(&params, &version).await?);
    cluster.controllers()[0].stop().await?;
    let seen = async {
        let mut holders = Vec::new();
        while holders.last().is_none_or(|holder| holder != next) {
            match events.try_next().await?.context("the watch has ended")? {
                WatchEvent::Modified(lease) => {
                    holders.push(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default());
                }
                WatchEvent::Bookmark(_) => {}
                other => anyhow::bail!("{other:?}"),
            }
        }
        holders.dedup();
        Ok(holders)
    };
    tokio::time::timeout(LIMIT, seen).await.context("nothing follows the stopped leader")?
}

/// Creates the pod of a controller on a node.
async fn create_pod_of(cluster: &ScriptedCluster, identity: &str, node: &str) -> anyhow::Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": identity, "namespace": SYSTEM_NAMESPACE, "labels": {COMPONENT_LABEL: CONTROLLER}},
        "spec": {
            "nodeName": node,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "controller", "image": "example.invalid/controller:1",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    workload::apply(&cluster.client, vec![pod]).await?;
    let key = (SYSTEM_NAMESPACE.to_owned(), identity.to_owned());
    let ready = |world: &ClusterState| world.pods.get(&key).is_some_and(|pod| pod.ready);
    cluster.until("the pod of a controller is Ready", ready).await.map(drop)
}

async fn leader_hands_its_lease_over_before_its_own_node_is_drained(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    for (identity, node) in [("controller-1", "node-1"), ("controller-2", "node-2")] {
        cluster.add_node(node, &[]).await?;
        create_pod_of(cluster, identity, node).await?;
    }
    // The node of the standby is not under the operator.
    cluster.patch_node("node-2", json!({"metadata": {"labels": {INTERFACE_LABEL: null}}})).await?;
    cluster.create_policy(json!({"drain": {"barePods": "Evict"}})).await?;
    for (identity, node) in [("controller-1", "node-1"), ("controller-2", "node-2")] {
        let (identity, node) = (identity.to_owned(), Some(node.to_owned()));
        cluster.start_controller(&ControllerOptions { identity, node, ..ControllerOptions::default() })?;
        cluster.until_ready().await?;
        cluster.reported().await?;
    }
    cluster.fleet.release(NEW);
    cluster.until("the node is updated", |world| world.is_updated("node-1", &NEW)).await?;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let lease = leases.get(CONTROLLER).await?;
    assert_eq!(lease.spec.and_then(|spec| spec.holder_identity).as_deref(), Some("controller-2"));
    let annotation = "brupop.bottlerocket.aws/handed-over-for";
    let next = lease.metadata.annotations.as_ref().and_then(|all| all.get(annotation));
    assert_eq!(next.map(String::as_str), Some("node-1"), "the next leader knows why");
    Ok(())
}

/// The error of a wrong clock.
const SKEW: SignedDuration = SignedDuration::from_hours(5);

/// Fields with times that the operator has not written, or that are to come.
const NO_PAST: [&str; 3] = ["metadata", "firstEstimate", "estimatedCompletion"];

/// Collects every time in an object, with its path.
fn collect_times(value: &Value, path: &str, times: &mut Vec<(String, Timestamp)>) {
    match value {
        Value::String(text) => times.extend(text.parse().ok().map(|time| (path.to_owned(), time))),
        Value::Array(items) => items.iter().for_each(|item| collect_times(item, path, times)),
        Value::Object(fields) => {
            for (key, value) in fields.iter().filter(|(key, _)| !NO_PAST.contains(&key.as_str())) {
                collect_times(value, &format!("{path}.{key}"), times);
            }
        }
        _ => {}
    }
}

/// Checks that every time that the operator has written is within the case, and returns their number.
async fn ensure_times_within(cluster: &ScriptedCluster, began: Timestamp) -> anyhow::Result<usize> {
    let mut times = Vec::new();
    for (group, version, kind, plural, namespace) in [
        ("brupop.bottlerocket.aws", "v3", "BottlerocketShadow", "bottlerocketshadows", SYSTEM_NAMESPACE),
        (
            "brupop.bottlerocket.aws",
            "v1",
            "BottlerocketUpdateOperator",
            "bottlerocketupdateoperators",
            SYSTEM_NAMESPACE,
        ),
        ("coordination.k8s.io", "v1", "Lease", "leases", SYSTEM_NAMESPACE),
        ("events.k8s.io", "v1", "Event", "events", "default"),
    ] {
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), namespace, &resource);
        for object in api.list(&ListParams::default()).await?.items {
            if kind != "Event" || object.data["reportingController"] == CONTROLLER {
                collect_times(&object.data, kind, &mut times);
            }
        }
    }
    // The clock is corrected by half of what the first request took; the skew is hours.
    let (now, near) = (cluster.time.now(), SignedDuration::from_mins(2));
    for (path, time) in &times {
        ensure!(began - near <= *time && *time <= now + near, "{path} = {time}, not in {began}..{now}");
    }
    Ok(times.len())
}

async fn stopped_leader_releases_lease_and_standby_with_another_clock_continues_its_drain(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let began = cluster.time.now();
    let slow = ControllerOptions { skew: -SKEW, ..ControllerOptions::default() };
    cluster.start_with(2, json!({}), &slow).await?;
    let node = blocked_drain(cluster).await?;
    let before = progress(&cluster.now()?, &node);
    ensure_times_within(cluster, began).await?;
    // To this one the previous one's drain began ten hours ago.
    let next = "controller-2";
    let standby = ControllerOptions { identity: next.to_owned(), skew: SKEW, ..ControllerOptions::default() };
    cluster.start_controller(&standby)?;
    let holders = holders_until(cluster, next).await?;
    ensure!(holders.ends_with(&[String::new(), next.to_owned()]), "it was released and not waited for: {holders:?}");
    cluster.planned().await?;
    let after = progress(&cluster.now()?, &node);
    ensure!(before.is_some() && before == after, "the drain goes on: {before:?} {after:?}");
    cluster.unblock_shop().await?;
    cluster.updated().await?;
    cluster.recorder.so_far()?.ensure_updates(2)?;
    let seen = ensure_times_within(cluster, began).await?;
    // A start and an end of each attempt at least, and an Event of each.
    ensure!(seen > 8, "only {seen} times");
    Ok(())
}
