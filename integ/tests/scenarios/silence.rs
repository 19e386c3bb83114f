//! Silence that is visible: an agent that is stuck or has lost the web API is seen with the time of the last contact, and
//! restarted by the kubelet or not.

use std::time::Duration;

use integ::oracle::ClusterState;
use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus};
use models::shadow::HOST_REACHABLE;
use nix::sys::signal::Signal;

use crate::interfere::{agent_on, poll, signal};
use crate::support::{ScenarioContext, condition_of, controller_metrics, run, silent_fleet};

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

/// Waits until the silence since then of node-1 is seen: in its shadow and in the metrics, with the time of the last contact.
async fn seen(ctx: &ScenarioContext, since: Timestamp) -> anyhow::Result<()> {
    let is_silent = |c: &Condition| c.status == ConditionStatus::Unknown && c.reason == "AgentNotReady";
    let world = ctx.until("the silence is recorded", |world| reachable(world, "node-1").is_some_and(is_silent)).await?;
    let contact = poll("the silence is exported", async || metric(ctx, SILENT_SINCE).await).await?;
    anyhow::ensure!(metric(ctx, r#"agents{state="Silent"}"#).await? == Some(1.0));
    let contact = Timestamp::from_second(contact as i64)?;
    // The controller has the API server's clock, in seconds.
    let known = since - Duration::from_secs(2);
    anyhow::ensure!(contact >= known, "last contact {contact}, silent since {since}");
    let message = &reachable(&world, "node-1").map(|c| c.message.clone()).unwrap_or_default();
    let named = message.split("since ").nth(1).and_then(|rest| rest.get(..=rest.find('Z')?));
    let named: Timestamp = named.unwrap_or_default().parse()?;
    anyhow::ensure!(named >= known && named <= Timestamp::now() + Duration::from_secs(2), "{message}");
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
async fn stopped_agent_is_seen_before_the_kubelet_restarts_it() -> anyhow::Result<()> {
    run(silent_fleet(2), async |ctx| {
        ctx.install().await?;
        heard(ctx, &["node-1", "node-2"]).await?;
        let agent = agent_on(ctx, "node-1").await?;
        let since = Timestamp::now();
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        seen(ctx, since).await?;
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
        seen(ctx, since).await?;
        ctx.bed.divert(None);
        heard(ctx, &["node-1"]).await?;
        anyhow::ensure!(agent_on(ctx, "node-1").await?.pid == agent.pid, "an agent that waits is healthy");
        Ok(())
    })
    .await?;
    Ok(())
}
