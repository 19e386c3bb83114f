//! Silence that is visible: an agent that is stuck, one that is dead, and a web API without replicas are seen within two
//! minutes, with the time of the last contact.

use std::time::Duration;

use integ::oracle::ClusterState;
use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus};
use models::shadow::HOST_REACHABLE;
use models::time::between;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::interfere::{agent_on, poll, signal};
use crate::support::{ScenarioContext, condition_of, controller_metrics, run, silent_fleet};

/// Time within which silence has to be seen.
const SEEN: Duration = Duration::from_secs(120);

/// Time within which the kubelet restarts an agent without a sign of life: its liveness probe is patient.
const RESTARTED: Duration = Duration::from_secs(300);

/// The metric with the last contact of agents that have reported before.
const SILENT_SINCE: &str = r#"agent_silent_since_timestamp_seconds{reported="true"}"#;

/// The value of a metric of the controller.
async fn metric(ctx: &ScenarioContext, series: &str) -> anyhow::Result<Option<f64>> {
    let text = controller_metrics(ctx).await?;
    let value = text.lines().find_map(|line| line.strip_prefix(&format!("brupop_controller_{series} ")));
    Ok(value.map(str::parse).transpose()?)
}

fn reachable<'a>(world: &'a ClusterState, node: &str) -> Option<&'a Condition> {
    condition_of(world, node, HOST_REACHABLE)
}

fn is_silent(world: &ClusterState, node: &str, reason: &str) -> bool {
    reachable(world, node).is_some_and(|c| c.status == ConditionStatus::Unknown && c.reason == reason)
}

/// Waits until the silence since then of these nodes is seen: in their shadows and in the metrics, which agree on the time
/// of the last contact.
async fn seen(
    ctx: &ScenarioContext,
    since: Timestamp,
    nodes: &[&str],
    reason: &str,
    metric_of_time: &str,
) -> anyhow::Result<()> {
    let world =
        ctx.until("the silence is recorded", |world| nodes.iter().all(|node| is_silent(world, node, reason))).await?;
    let contact = poll("the silence is exported", async || metric(ctx, metric_of_time).await).await?;
    anyhow::ensure!(metric(ctx, r#"agents{state="Silent"}"#).await? == Some(nodes.len() as f64));
    let took = between(since, Timestamp::now());
    anyhow::ensure!(took <= SEEN, "it took {took:?}");
    let contact = Timestamp::from_second(contact as i64)?;
    // The controller has the API server's clock, in seconds.
    let known = since - Duration::from_secs(2);
    anyhow::ensure!(contact >= known, "last contact {contact}, silent since {since}");
    for node in nodes {
        let message = &reachable(&world, node).map(|c| c.message.clone()).unwrap_or_default();
        let named = message.split("since ").nth(1).and_then(|rest| rest.get(..=rest.find('Z')?));
        let named: Timestamp = named.unwrap_or_default().parse()?;
        anyhow::ensure!(named >= known && named <= Timestamp::now() + Duration::from_secs(2), "{message}");
    }
    Ok(())
}

/// Waits until every agent has reported again.
async fn heard(ctx: &ScenarioContext, nodes: &[&str]) -> anyhow::Result<()> {
    let heard =
        |world: &ClusterState, node: &str| reachable(world, node).is_some_and(|c| c.status == ConditionStatus::True);
    ctx.until("every agent has reported again", |world| nodes.iter().all(|node| heard(world, node))).await?;
    poll("all agents are exported as connected", async || {
        let connected = metric(ctx, r#"agents{state="Connected"}"#).await?;
        Ok((connected == Some(nodes.len() as f64)).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_agent_is_seen_within_two_minutes_and_restarted_by_the_kubelet() -> anyhow::Result<()> {
    run(silent_fleet(2), async |ctx| {
        ctx.install().await?;
        heard(ctx, &["node-1", "node-2"]).await?;
        let agent = agent_on(ctx, "node-1").await?;
        let since = Timestamp::now();
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        seen(ctx, since, &["node-1"], "AgentNotReady", SILENT_SINCE).await?;
        anyhow::ensure!(agent_on(ctx, "node-1").await?.pid == agent.pid, "it was not restarted before it was seen");
        ctx.bed
            .wait_state("the agent is restarted and reports", RESTARTED, |world| {
                reachable(world, "node-1").is_some_and(|c| c.status == ConditionStatus::True)
            })
            .await?;
        heard(ctx, &["node-1", "node-2"]).await?;
        anyhow::ensure!(agent_on(ctx, "node-1").await?.pid != agent.pid, "the kubelet has restarted it");
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_agent_is_seen_within_two_minutes() -> anyhow::Result<()> {
    run(silent_fleet(1), async |ctx| {
        ctx.install().await?;
        heard(ctx, &["node-1"]).await?;
        // As with an image that cannot be pulled, its next pod does not start.
        let container =
            |env: Value| json!({"spec": {"template": {"spec": {"containers": [{"name": "agent", "env": [env]}]}}}});
        let missing = json!({"configMapKeyRef": {"name": "missing", "key": "missing"}});
        let since = Timestamp::now();
        let patch = async |patch: Value| {
            ctx.kubectl(&["-n", "brupop-agents", "patch", "ds/brupop-agent", "-p", &patch.to_string()]).await
        };
        patch(container(json!({"name": "MISSING", "valueFrom": missing}))).await?;
        seen(ctx, since, &["node-1"], "AgentNotReady", SILENT_SINCE).await?;
        patch(container(json!({"name": "MISSING", "$patch": "delete"}))).await?;
        heard(ctx, &["node-1"]).await
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn web_api_without_replicas_is_seen_within_two_minutes() -> anyhow::Result<()> {
    run(silent_fleet(2), async |ctx| {
        ctx.install().await?;
        heard(ctx, &["node-1", "node-2"]).await?;
        let scale = async |replicas: &str| {
            ctx.kubectl(&["-n", "brupop-system", "scale", "deployment/brupop-apiserver", replicas]).await
        };
        let since = Timestamp::now();
        scale("--replicas=0").await?;
        seen(ctx, since, &["node-1", "node-2"], "WebApiNotReady", "web_api_silent_since_timestamp_seconds").await?;
        anyhow::ensure!(metric(ctx, "web_api_ready").await? == Some(0.0));
        scale("--replicas=1").await?;
        heard(ctx, &["node-1", "node-2"]).await?;
        anyhow::ensure!(metric(ctx, "web_api_ready").await? == Some(1.0));
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_without_the_web_api_is_seen_and_not_restarted() -> anyhow::Result<()> {
    run(silent_fleet(1), async |ctx| {
        ctx.install().await?;
        heard(ctx, &["node-1"]).await?;
        let agent = agent_on(ctx, "node-1").await?;
        let since = Timestamp::now();
        // The way from agents to the web API leads nowhere.
        let closed = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
        ctx.bed.divert(Some(closed));
        ctx.restart(deploy::Component::Apiserver).await?;
        seen(ctx, since, &["node-1"], "AgentNotReady", SILENT_SINCE).await?;
        ctx.bed.divert(None);
        heard(ctx, &["node-1"]).await?;
        anyhow::ensure!(agent_on(ctx, "node-1").await?.pid == agent.pid, "an agent that waits is healthy");
        Ok(())
    })
    .await?;
    Ok(())
}
