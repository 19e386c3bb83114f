//! Shared parts of the policy scenarios: reads of status, Events, metrics and hosts' settings.

use std::net::Ipv4Addr;

use anyhow::Context as _;
use integ::host::{EventKind, Host, VersionLock};
use integ::oracle::{ClusterState, History};
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};

use crate::interfere::poll;
use crate::support::ScenarioContext;

pub(super) use crate::support::{is_on, is_updated, last_reason, other, record, status, until_event};

/// Number of nodes that wait for a reason, by the operator's status.
pub(super) fn waiting(world: &ClusterState, reason: &str) -> i64 {
    let counts = world.operator.iter().flat_map(|operator| &operator.status.waiting);
    counts.filter(|count| count.reason == reason).map(|count| count.nodes).sum()
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
