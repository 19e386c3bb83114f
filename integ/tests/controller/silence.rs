//! Silence that is visible: agents without a sign of life, and a web API without pods.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use jiff::{SignedDuration, Timestamp};
use models::condition::{Condition, ConditionStatus};
use models::operator::DEGRADED;
use models::shadow::{BLOCKED, HOST_REACHABLE, UPDATED};
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![silent_agents_and_web_api_without_pods_are_reported_and_block_updates];

const NODES: [&str; 2] = ["node-1", "node-2"];

/// Silence of this length has to be seen.
const SILENCE: Duration = Duration::from_mins(1);

/// The metric with the last contact of agents that have reported before.
const SILENT_SINCE: &str = r#"agent_silent_since_timestamp_seconds{reported="true"}"#;

fn reachable<'a>(world: &'a ClusterState, node: &str) -> Option<&'a Condition> {
    world.condition(node, HOST_REACHABLE)
}

/// Waits until every agent has reported again.
async fn heard(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    let heard =
        |world: &ClusterState, node: &str| reachable(world, node).is_some_and(|c| c.status == ConditionStatus::True);
    cluster.until("every agent has reported", |world| NODES.iter().all(|node| heard(world, node))).await?;
    cluster.until_metric(r#"agents{state="Connected"}"#, 2.0).await
}

/// Waits until the silence of all agents is seen: in their shadows and in the metrics, with the time of the last contact,
/// which is not before `since`.
async fn seen(cluster: &mut ScriptedCluster, since: Timestamp, reason: &str, series: &str) -> anyhow::Result<()> {
    let is_silent = |c: &Condition| c.status == ConditionStatus::Unknown && c.reason == reason;
    let world = cluster
        .until("the silence is recorded", |world| {
            NODES.iter().all(|node| reachable(world, node).is_some_and(is_silent))
        })
        .await?;
    cluster.until_metric(r#"agents{state="Silent"}"#, 2.0).await?;
    let exported = cluster.metric(series).await?.context("the last contact is not exported")?;
    let mut contacts = vec![Timestamp::from_second(exported as i64)?];
    for node in NODES {
        let message = &reachable(&world, node).context("just seen")?.message;
        let named = message.split("since ").nth(1).and_then(|rest| rest.get(..=rest.find('Z')?));
        contacts.push(named.with_context(|| message.clone())?.parse()?);
    }
    // The controller has the API server's clock, in seconds, corrected by half of what a request took.
    let near = SignedDuration::from_secs(20);
    let now = cluster.time.now();
    assert!(contacts.iter().all(|at| since - near <= *at && *at <= now), "{contacts:?}, silent since {since}");
    Ok(())
}

async fn silent_agents_and_web_api_without_pods_are_reported_and_block_updates(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({"enabled": false})).await?;
    cluster.fleet.release(NEW);
    heard(cluster).await?;

    let since = cluster.time.now();
    cluster.stop_web_api().await?;
    // Time passes once the controller knows.
    cluster.until_metric("web_api_ready", 0.0).await?;
    cluster.pass(SILENCE).await?;
    seen(cluster, since, "WebApiNotReady", "web_api_silent_since_timestamp_seconds").await?;
    let degraded = cluster.until_operator(DEGRADED, ConditionStatus::True).await?;
    assert_eq!(degraded.reason, "WebApiNotReady");
    cluster.start_web_api().await?;
    heard(cluster).await?;
    cluster.until_metric("web_api_ready", 1.0).await?;
    cluster.until_operator(DEGRADED, ConditionStatus::False).await?;

    // Agents that are connected again soon after an outage of the web API are not silent.
    cluster.pass(SILENCE).await?;
    let since = cluster.time.now();
    let alive = |cluster: &ScriptedCluster, alive: bool| {
        for node in NODES {
            cluster.fleet.script(node, |behaviour| (behaviour.agent, behaviour.agent_ready) = (alive, alive));
        }
    };
    alive(cluster, false);
    cluster.until_metric(r#"agents{state="Connecting"}"#, 2.0).await?;
    cluster.pass(SILENCE).await?;
    seen(cluster, since, "AgentNotReady", SILENT_SINCE).await?;
    cluster
        .until("both nodes wait for their agents", |world| {
            NODES.iter().all(|node| world.condition(node, BLOCKED).is_some_and(|c| c.reason == "AgentNotReady"))
        })
        .await?;
    cluster.policy(&json!({"enabled": true})).await?;
    let waits = |world: &ClusterState| {
        world.status().waiting.iter().any(|wait| (wait.reason.as_str(), wait.nodes) == ("AgentNotReady", 2))
    };
    let world = cluster.until("the operator says why both nodes wait", waits).await?;
    assert_eq!(world.operator_condition(DEGRADED).map(|c| c.reason.as_str()), Some("AsExpected"));

    alive(cluster, true);
    heard(cluster).await?;
    let world = cluster.updated().await?;
    for node in NODES {
        let results = cluster.recorder.so_far()?.results(node);
        let reasons: Vec<_> = results.iter().map(|(_, reason)| reason.as_str()).collect();
        assert_eq!(reasons, [UPDATED], "{node} was tried without its agent");
        assert!(world.condition(node, BLOCKED).is_none_or(|c| c.status == ConditionStatus::False), "{node}");
    }
    Ok(())
}
