//! Shared parts of the policy scenarios: reads of status, Events, metrics and hosts' settings.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use integ::host::{EventKind, Host, VersionLock};
use integ::oracle::{ClusterState, History};
use models::condition::{Condition, ConditionStatus};
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use models::shadow::BLOCKED;

use crate::interfere::poll;
use crate::support::{ScenarioContext, condition_of};

pub(super) use crate::support::{
    EVENTS_OF_NODES, is_on, is_released, is_updated, last_reason, other, record, status, until_event,
};

/// Number of nodes that wait for a reason, by the operator's status.
pub(super) fn waiting(world: &ClusterState, reason: &str) -> i64 {
    let counts = world.operator.iter().flat_map(|operator| &operator.status.waiting);
    counts.filter(|count| count.reason == reason).map(|count| count.nodes).sum()
}

/// The `Blocked` condition of a node, while it is true.
pub(super) fn blocked<'a>(world: &'a ClusterState, node: &str) -> Option<&'a Condition> {
    condition_of(world, node, BLOCKED).filter(|condition| condition.status == ConditionStatus::True)
}

/// Returns true if a node is blocked for this reason.
pub(super) fn blocked_for(world: &ClusterState, node: &str, reason: &str) -> bool {
    blocked(world, node).is_some_and(|condition| condition.reason == reason)
}

/// The calls about its settings that a host received, as `METHOD path`, without the query.
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

/// The version lock of a host.
pub(super) fn lock_of(host: &Host) -> Option<VersionLock> {
    host.snapshot().settings.version_lock
}

/// Asserts that no settings were ever requested of a host without the controller's signature.
pub(super) fn assert_signed(history: &History) {
    history.replay(|change, _, world| {
        for shadow in world.shadows.values() {
            let asked = shadow.spec.host.as_ref().filter(|host| host.asks_settings());
            let signed = asked.is_none_or(|host| host.signature.is_some());
            assert!(signed, "revision {}: {} asks for settings unsigned", change.revision, shadow.name);
        }
    });
}

/// Annotates an object in the operator's namespace, as documented for users.
pub(super) async fn annotate(
    ctx: &ScenarioContext,
    object: &[&str],
    annotation: &str,
    value: &str,
) -> anyhow::Result<()> {
    let annotation = format!("{annotation}={value}");
    let arguments = [&["-n", SYSTEM_NAMESPACE, "annotate", "--overwrite"], object, &[&annotation]].concat();
    ctx.kubectl(&arguments).await?;
    Ok(())
}

/// Waits until the controller exports a series with this value.
pub(super) async fn until_metric(ctx: &ScenarioContext, series: &str, value: &str) -> anyhow::Result<()> {
    let line = format!("brupop_controller_{series} {value}");
    let mut last = String::new();
    let found = poll(&format!("the metric {line}"), async || {
        // The leader may be changing from one pod to another.
        last = metrics(ctx).await.unwrap_or_else(|error| format!("{error:#}"));
        Ok(last.lines().any(|found| found == line).then_some(()))
    })
    .await;
    found.with_context(|| format!("the last answer: {}", last.chars().take(4000).collect::<String>()))
}

async fn metrics(ctx: &ScenarioContext) -> anyhow::Result<String> {
    let selector = format!("app.kubernetes.io/component={CONTROLLER}");
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.phase} {.status.podIP}{'\\n'}{end}";
    let pods = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "pods", "-l", &selector, "-o", path]).await?;
    // One that was evicted may be there for a while.
    let runs = pods.lines().find_map(|pod| pod.split_once(" Running "));
    let (_, address) = runs.with_context(|| format!("no pod runs: {pods}"))?;
    let address: Ipv4Addr = address.parse().with_context(|| format!("no address yet: {pods}"))?;
    // A pod of the test cluster is 10.x.y.z for Kubernetes, and its process listens on 127.x.y.z.
    let [_, bed, node, pod] = address.octets();
    let url = format!("http://{}:8080/metrics", Ipv4Addr::new(127, bed, node, pod));
    Ok(reqwest::get(url).await?.error_for_status()?.text().await?)
}
