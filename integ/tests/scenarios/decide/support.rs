//! What the scenarios of the policy share: looks at what stands in status, Events and metrics, and at hosts' settings.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use integ::host::{EventKind, Host, VersionLock};
use integ::oracle::{History, World};
use models::condition::{Condition, ConditionStatus};
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperatorStatus;
use models::shadow::{BLOCKED, Record};
use semver::Version;
use serde_json::Value;

use crate::interfere::poll;
use crate::support::{NEW, Scene, condition_of, shadow_of};

/// How many nodes wait for a reason, as the operator's status has it.
pub(super) fn waiting(world: &World, reason: &str) -> i64 {
    let counts = world.operator.iter().flat_map(|operator| &operator.status.waiting);
    counts.filter(|count| count.reason == reason).map(|count| count.nodes).sum()
}

/// The `Blocked` condition of a node, while it holds.
pub(super) fn blocked<'a>(world: &'a World, node: &str) -> Option<&'a Condition> {
    condition_of(world, node, BLOCKED).filter(|condition| condition.status == ConditionStatus::True)
}

/// Whether a node is blocked for this reason.
pub(super) fn blocked_for(world: &World, node: &str, reason: &str) -> bool {
    blocked(world, node).is_some_and(|condition| condition.reason == reason)
}

/// Whether a node runs this version, has no attempt under way and nothing of ours on it.
pub(super) fn is_on(world: &World, node: &str, version: &Version) -> bool {
    world.nodes.get(node).is_some_and(|node| !node.claimed())
        && shadow_of(world, node).is_some_and(|shadow| {
            shadow.status.agent.current_version.as_ref() == Some(version) && shadow.step().is_none()
        })
}

/// The calls about its settings that a host was asked for, as `METHOD path`, without the query.
pub(super) fn settings_calls(host: &Host) -> Vec<String> {
    let about_settings = |path: &str| path.starts_with("/settings") || path.starts_with("/tx");
    host.log()
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Call { method, path, .. } if about_settings(&path) => {
                Some(format!("{method} {}", path.split('?').next().unwrap_or_default()))
            }
            _ => None,
        })
        .collect()
}

/// The calls among [`settings_calls`] that change something.
pub(super) fn settings_changes(host: &Host) -> Vec<String> {
    settings_calls(host).into_iter().filter(|call| !call.starts_with("GET ")).collect()
}

/// The version lock that a host has.
pub(super) fn lock_of(host: &Host) -> Option<VersionLock> {
    host.snapshot().settings.version_lock
}

/// How the attempts of a node ended, each as the version and the result.
pub(super) fn results(history: &History, node: &str) -> Vec<(Version, String)> {
    let attempts = history.attempts().into_iter().filter(|attempt| attempt.node == node);
    attempts.map(|attempt| (attempt.to, attempt.result.unwrap_or_default())).collect()
}

/// Asserts that nothing was ever asked of a host's settings without the controller's signature.
pub(super) fn assert_signed(history: &History) {
    history.replay(|change, _, world| {
        for shadow in world.shadows.values() {
            let asked = shadow.spec.host.as_ref().filter(|host| host.asks_settings());
            let signed = asked.is_none_or(|host| host.signature.is_some());
            assert!(signed, "revision {}: {} asks for settings unsigned", change.revision, shadow.name);
        }
    });
}

/// Where Events about Nodes are.
pub(super) const EVENTS_OF_NODES: &str = "default";

/// What the operator's resource says.
pub(super) fn status(world: &World) -> BottlerocketUpdateOperatorStatus {
    world.operator.as_ref().map(|operator| operator.status.clone()).unwrap_or_default()
}

/// What is remembered of a node's attempts.
pub(super) fn record(world: &World, node: &str) -> Record {
    shadow_of(world, node).and_then(|shadow| shadow.status.controller.record.clone()).unwrap_or_default()
}

/// Why a node's last attempt ended.
pub(super) fn last_reason(world: &World, node: &str) -> Option<String> {
    record(world, node).last.map(|last| last.reason)
}

/// Whether a node has no attempt under way, and nothing of ours on it.
pub(super) fn is_given_back(world: &World, node: &str) -> bool {
    shadow_of(world, node).is_some_and(|shadow| shadow.step().is_none()) && !world.nodes[node].claimed()
}

/// Whether a node runs [`NEW`], and is given back.
pub(super) fn is_updated(world: &World, node: &str) -> bool {
    is_on(world, node, &NEW)
}

/// The other one of two nodes.
pub(super) fn other(node: &str) -> &'static str {
    if node == "node-1" { "node-2" } else { "node-1" }
}

/// Annotates an object in the operator's namespace, as the documentation tells people to.
pub(super) async fn annotate(scene: &Scene, object: &[&str], annotation: &str, value: &str) -> anyhow::Result<()> {
    let annotation = format!("{annotation}={value}");
    let arguments = [&["-n", SYSTEM_NAMESPACE, "annotate", "--overwrite"], object, &[&annotation]].concat();
    scene.kubectl(&arguments).await?;
    Ok(())
}

/// Waits until there is an Event with this reason whose text has all of these in it.
pub(super) async fn until_event(scene: &Scene, namespace: &str, reason: &str, words: &[&str]) -> anyhow::Result<()> {
    poll(&format!("an Event {reason} with {words:?}"), async || {
        let events = scene.kubectl(&["-n", namespace, "get", "events", "-o", "json"]).await?;
        let events: Value = serde_json::from_str(&events)?;
        let is_it = |event: &Value| {
            let text = event["message"].as_str().unwrap_or_default();
            event["reason"] == reason && words.iter().all(|word| text.contains(word))
        };
        Ok(events["items"].as_array().is_some_and(|events| events.iter().any(is_it)).then_some(()))
    })
    .await
}

/// Waits until the controller exports a series with this value.
pub(super) async fn until_metric(scene: &Scene, series: &str, value: &str) -> anyhow::Result<()> {
    let line = format!("brupop_controller_{series} {value}");
    poll(&format!("the metric {line}"), async || {
        // The controller may be on its way from one pod to the next.
        let text = metrics(scene).await.unwrap_or_default();
        Ok(text.lines().any(|found| found == line).then_some(()))
    })
    .await
}

/// All series of the controller.
async fn metrics(scene: &Scene) -> anyhow::Result<String> {
    let selector = format!("app.kubernetes.io/component={CONTROLLER}");
    let path = "jsonpath={.items[0].status.podIP}";
    let address: Ipv4Addr = scene
        .kubectl(&["-n", SYSTEM_NAMESPACE, "get", "pods", "-l", &selector, "-o", path])
        .await?
        .parse()
        .context("no address yet")?;
    // A pod of the bed is 10.x.y.z to Kubernetes, and its process listens on 127.x.y.z.
    let [_, bed, node, pod] = address.octets();
    let url = format!("http://{}:8080/metrics", Ipv4Addr::new(127, bed, node, pod));
    Ok(reqwest::get(url).await?.error_for_status()?.text().await?)
}
