//! A fleet without updates: what an idle one costs, and silence that is visible. An agent that is stuck or has lost the web API
//! is seen with the time of the last contact, and restarted by the kubelet or not.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use deploy::Component;
use integ::oracle::ClusterState;
use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus};
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use models::shadow::HOST_REACHABLE;
use nix::sys::signal::Signal;

use crate::interfere::{agent_on, poll, signal};
use crate::requests::idle_cluster_causes_only_lease_writes_and_open_watches;
use crate::support::{ScenarioContext, condition_of, controller_metrics, nodes, run};

const NODES: [&str; 2] = ["node-1", "node-2"];

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

/// Waits until the silence since then of these nodes, of which node-1 is one, is seen: in their shadows and in the metrics, with the
/// time of the last contact.
async fn seen(ctx: &ScenarioContext, since: Timestamp, nodes: &[&str]) -> anyhow::Result<()> {
    let is_silent = |c: &Condition| c.status == ConditionStatus::Unknown && c.reason == "AgentNotReady";
    let all_silent = |world: &ClusterState| nodes.iter().all(|node| reachable(world, node).is_some_and(is_silent));
    let world = ctx.until("the silence is recorded", all_silent).await?;
    let contact = poll("the silence is exported", async || metric(ctx, SILENT_SINCE).await).await?;
    exported(ctx, "Silent", nodes.len()).await?;
    let contact = Timestamp::from_second(contact as i64)?;
    // The controller has the API server's clock, in seconds.
    let known = since - Duration::from_secs(2);
    ensure!(contact >= known, "last contact {contact}, silent since {since}");
    let message = &reachable(&world, "node-1").map(|c| c.message.clone()).unwrap_or_default();
    let named = message.split("since ").nth(1).and_then(|rest| rest.get(..=rest.find('Z')?));
    let named: Timestamp = named.unwrap_or_default().parse()?;
    ensure!(named >= known && named <= Timestamp::now() + Duration::from_secs(2), "{message}");
    Ok(())
}

/// Waits until so many agents are exported in this state.
async fn exported(ctx: &ScenarioContext, state: &str, agents: usize) -> anyhow::Result<()> {
    let series = format!("agents{{state=\"{state}\"}}");
    poll(&format!("{agents} agents are exported as {state}"), async || {
        Ok((metric(ctx, &series).await? == Some(agents as f64)).then_some(()))
    })
    .await
}

/// Waits until every agent has reported again.
async fn heard(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let heard =
        |world: &ClusterState, node: &str| reachable(world, node).is_some_and(|c| c.status == ConditionStatus::True);
    ctx.until("every agent has reported again", |world| NODES.iter().all(|node| heard(world, node))).await?;
    exported(ctx, "Connected", NODES.len()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_cluster_causes_only_lease_writes_and_silent_agents_are_seen() -> anyhow::Result<()> {
    let mut options = nodes(NODES.len());
    options.deploy.controller_replicas = 2;
    run(options, async |ctx| {
        let began = Timestamp::now();
        ctx.shop(2).await?;
        ctx.install().await?;
        idle_cluster_causes_only_lease_writes_and_open_watches(ctx, began).await.context("nothing happens")?;
        // The metrics of the fleet are those of the leader.
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "scale", "deployment", CONTROLLER, "--replicas=1"]).await?;
        poll("one controller is left", async || {
            Ok((ctx.bed.processes_of(Component::Controller).len() == 1).then_some(()))
        })
        .await?;
        heard(ctx).await?;
        stopped_agent_is_seen_before_the_kubelet_restarts_it(ctx).await.context("an agent is stopped")?;
        agents_without_the_web_api_are_seen_and_not_restarted(ctx).await.context("agents have no web API")
    })
    .await?;
    Ok(())
}

async fn stopped_agent_is_seen_before_the_kubelet_restarts_it(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let agent = agent_on(ctx, "node-1").await?;
    let since = Timestamp::now();
    signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
    seen(ctx, since, &["node-1"]).await?;
    ensure!(agent_on(ctx, "node-1").await?.pid == agent.pid, "it was not restarted before it was seen");
    ctx.bed
        .wait_state("the agent is restarted and reports", RESTARTED, |world| {
            reachable(world, "node-1").is_some_and(|c| c.status == ConditionStatus::True)
        })
        .await?;
    heard(ctx).await?;
    ensure!(agent_on(ctx, "node-1").await?.pid != agent.pid, "the kubelet has restarted it");
    Ok(())
}

async fn agents_without_the_web_api_are_seen_and_not_restarted(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let agent = agent_on(ctx, "node-1").await?;
    let since = Timestamp::now();
    // The way from agents to the web API leads nowhere.
    let closed = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    ctx.bed.divert(Some(closed));
    ctx.restart(Component::Apiserver).await?;
    seen(ctx, since, &NODES).await?;
    ctx.bed.divert(None);
    heard(ctx).await?;
    ensure!(agent_on(ctx, "node-1").await?.pid == agent.pid, "an agent that waits is healthy");
    Ok(())
}
