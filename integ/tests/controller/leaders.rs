//! Leaders that follow one another, and whose clocks are wrong.

use anyhow::ensure;
use integ::oracle::{Attempt, ClusterState};
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use models::shadow::{Progress, Step};
use serde_json::{Value, json};

use crate::bed::{ControllerOptions, NEW, ScriptedCluster};

crate::cases![next_leader_continues_drain_of_killed_one, clock_skew_of_leaders_affects_no_time,];

fn progress(world: &ClusterState, node: &str) -> Option<Progress> {
    world.shadow(node)?.status.controller.progress.clone()
}

/// Brings a node into a drain that a budget blocks, and returns its name.
pub(crate) async fn blocked_drain(cluster: &ScriptedCluster) -> anyhow::Result<String> {
    cluster.shop(4, json!({"minAvailable": 4})).await?;
    cluster.block_shop().await?;
    cluster.fleet.release(NEW);
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

async fn next_leader_continues_drain_of_killed_one(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(2, json!({})).await?;
    let node = blocked_drain(cluster).await?;
    let before = progress(&cluster.now()?, &node);
    cluster.replace_controller().await?;
    cluster.planned().await?;
    assert_eq!(progress(&cluster.now()?, &node), before, "the drain goes on");
    cluster.unblock_shop().await?;
    cluster.updated().await?;
    let attempts = cluster.recorder.so_far()?.attempts();
    assert!(attempts.len() == 2 && attempts.iter().all(Attempt::updated), "{attempts:#?}");
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
    let (now, near) = (cluster.time.now(), SignedDuration::from_secs(3));
    for (path, time) in &times {
        ensure!(began - near <= *time && *time <= now + near, "{path} = {time}, not in {began}..{now}");
    }
    Ok(times.len())
}

async fn clock_skew_of_leaders_affects_no_time(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let began = cluster.time.now();
    for node in ["node-1", "node-2"] {
        cluster.add_node(node, &[]).await?;
    }
    cluster.create_policy(json!({})).await?;
    cluster.start_controller(&ControllerOptions { skew: -SKEW, ..ControllerOptions::default() })?;
    cluster.reported().await?;
    let node = blocked_drain(cluster).await?;
    let before = progress(&cluster.now()?, &node);
    ensure_times_within(cluster, began).await?;
    // To this one the previous one's drain began ten hours ago.
    cluster.controller()?.stop().await?;
    let next = ControllerOptions { identity: "controller-2".to_owned(), skew: SKEW, ..ControllerOptions::default() };
    cluster.start_controller(&next)?;
    cluster.planned().await?;
    let after = progress(&cluster.now()?, &node);
    ensure!(before.is_some() && before == after, "the drain goes on: {before:?} {after:?}");
    cluster.unblock_shop().await?;
    cluster.updated().await?;
    let seen = ensure_times_within(cluster, began).await?;
    // A start and an end of each attempt at least, and an Event of each.
    ensure!(seen > 8, "only {seen} times");
    Ok(())
}
