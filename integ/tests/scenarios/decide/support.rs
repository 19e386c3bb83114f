//! What these scenarios share: looks at Events and metrics, which are in no history of the server, and at records.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use integ::oracle::World;
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperatorStatus;
use models::shadow::Record;
use serde_json::Value;

use crate::interfere::poll;
use crate::support::{NEW, Scene, shadow_of};

/// Where Events about Nodes are.
pub(crate) const EVENTS_OF_NODES: &str = "default";

/// What the operator's resource says.
pub(crate) fn status(world: &World) -> BottlerocketUpdateOperatorStatus {
    world.operator.as_ref().map(|operator| operator.status.clone()).unwrap_or_default()
}

/// What is remembered of a node's attempts.
pub(crate) fn record(world: &World, node: &str) -> Record {
    shadow_of(world, node).and_then(|shadow| shadow.status.controller.record.clone()).unwrap_or_default()
}

/// Why a node's last attempt ended.
pub(crate) fn last_reason(world: &World, node: &str) -> Option<String> {
    record(world, node).last.map(|last| last.reason)
}

/// Whether a node has no attempt under way, and nothing of ours on it.
pub(crate) fn is_given_back(world: &World, node: &str) -> bool {
    shadow_of(world, node).is_some_and(|shadow| shadow.step().is_none()) && !world.nodes[node].claimed()
}

/// Whether a node runs [`NEW`], and is given back.
pub(crate) fn is_updated(world: &World, node: &str) -> bool {
    is_given_back(world, node)
        && shadow_of(world, node).is_some_and(|shadow| shadow.status.agent.current_version == Some(NEW))
}

/// The other one of two nodes.
pub(crate) fn other(node: &str) -> &'static str {
    if node == "node-1" { "node-2" } else { "node-1" }
}

/// Annotates an object in the operator's namespace, as the documentation tells people to.
pub(crate) async fn annotate(scene: &Scene, object: &[&str], annotation: &str, value: &str) -> anyhow::Result<()> {
    let annotation = format!("{annotation}={value}");
    let arguments = [&["-n", SYSTEM_NAMESPACE, "annotate", "--overwrite"], object, &[&annotation]].concat();
    scene.kubectl(&arguments).await?;
    Ok(())
}

/// Waits until there is an Event with this reason whose text has all of these in it.
pub(crate) async fn until_event(scene: &Scene, namespace: &str, reason: &str, words: &[&str]) -> anyhow::Result<()> {
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
pub(crate) async fn until_metric(scene: &Scene, series: &str, value: &str) -> anyhow::Result<()> {
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
