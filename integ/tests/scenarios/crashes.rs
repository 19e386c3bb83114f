//! Crashes, power losses, an agent that is stopped, and a node that is lost, during updates.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use deploy::Component;
use integ::bed::TestClusterOptions;
use integ::host::faults::Transport;
use integ::host::{Command, Fault, Timings, Worker};
use models::condition::ConditionStatus;
use models::shadow::UPDATED;
use nix::sys::signal::Signal;
use rand::Rng as _;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use semver::Version;
use serde_json::json;

use crate::interfere::{
    PATIENCE, agent_on, blocked_drain, blocked_drain_of, finish_command, is_activate, is_armed, permit_of, released,
    signal, unblock, until_host, withdraw,
};
use crate::support::{LIMIT, ScenarioContext, is_on, nodes, other, run};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: tests of the agent's updates and of the controller have its parts"]
async fn power_loss_stopped_agent_and_lost_node_cost_no_version_and_no_second_reboot() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.deploy.controller_replicas = 2;
    options.deploy.apiserver_replicas = 2;
    let ending = run(options, async |ctx| {
        power_loss_before_arming_is_no_version_failure(ctx).await.context("power loss between permit and arming")?;
        agent_stopped_during_arming_disarms_host(ctx).await.context("agent that is stopped while its host is armed")?;
        drain_completes_without_the_other_node(ctx).await.context("loss of the other node during a drain")
    })
    .await?;
    // Each node three times; and the image that was armed for the stopped agent.
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots), (7, 6));
    Ok(())
}

async fn power_loss_before_arming_is_no_version_failure(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let target = blocked_drain(ctx).await?;
    let host = &ctx.bed.member(&target)?.host;
    // The host delays the command and never starts it.
    host.script(Fault::request("POST", "/actions/activate-update", Transport::Slow(Duration::from_secs(60))));
    unblock(ctx).await?;
    ctx.until("the permit is issued", |world| permit_of(world, &target).is_some()).await?;
    host.power_loss().await;
    ensure!(!is_armed(host));
    // The agent may not have asked the host yet; the next attempt's request is not delayed.
    host.clear_faults();
    released(ctx, &target).await?;
    let history = ctx.updated().await?;
    let results: Vec<_> = history.results(&target).into_iter().map(|(_, reason)| reason).collect();
    ensure!(results == ["RebootedByOther", UPDATED], "{results:?}");
    let mut charged = false;
    history.replay(|_, _, world| {
        charged |=
            world.shadows.values().flat_map(|s| &s.status.controller.record).any(|r| !r.version_failures.is_empty());
        charged |= world.operator_condition("Frozen").is_some_and(|c| c.status == ConditionStatus::True);
    });
    ensure!(!charged, "the version is not to blame");
    Ok(())
}

/// The desired state is withdrawn while its agent is stopped: it may not take effect.
async fn agent_stopped_during_arming_disarms_host(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let version = Version::new(1, 20, 6);
    let target = blocked_drain_of(ctx, &version).await?;
    let host = &ctx.bed.member(&target)?.host;
    host.script(Fault::command(Command::Activate, Worker::Waits));
    let before = host.log().iter().filter(|event| is_activate(event)).count();
    unblock(ctx).await?;
    let mut seen = 0;
    until_host(host, "the host is asked to arm", |event| {
        seen += usize::from(is_activate(event));
        seen > before
    })
    .await?;
    let agent = agent_on(ctx, &target).await?;
    signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
    withdraw(ctx, &target).await?;
    finish_command(host).await?;
    ensure!(is_armed(host), "the image is armed while the agent sleeps");
    let boot = host.snapshot().boot_id;
    let world = ctx.bed.recorder.so_far()?.end();
    ensure!(world.nodes[&target].claimed(), "a node that may still reboot is not released");

    signal(&[agent], Signal::SIGCONT);
    released(ctx, &target).await?;
    ensure!(host.snapshot().boot_id == boot, "the host was rebooted on a withdrawn order");
    ensure!(!is_armed(host), "the host was released with an image armed");
    let history = ctx.bed.wait_updated(&version, LIMIT).await?;
    let of_version = history.results(&target).into_iter().filter(|(to, _)| *to == version);
    let results: Vec<_> = of_version.map(|(_, reason)| reason).collect();
    ensure!(results == ["RebootTimedOut", UPDATED], "{results:?}");
    Ok(())
}

async fn drain_completes_without_the_other_node(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let version = Version::new(1, 20, 7);
    let target = blocked_drain_of(ctx, &version).await?;
    let other = other(&target);
    ctx.bed.member(other)?.host.power_off();
    unblock(ctx).await?;
    ctx.until("the node is updated", |world| is_on(world, &target, &version)).await?;
    ctx.bed.member(other)?.host.power_on();
    ctx.bed.wait_updated(&version, LIMIT).await?;
    Ok(())
}

/// Waits until the API server has made so many more changes, or the update to `version` has ended before.
pub(crate) async fn after_changes(ctx: &ScenarioContext, changes: usize, version: &Version) -> anyhow::Result<()> {
    let until = ctx.bed.recorder.so_far()?.changes().len() + changes;
    let reached = ctx.bed.wait("so many changes", PATIENCE, |history| history.changes().len() >= until);
    tokio::select! {
        reached = reached => reached.map(drop),
        updated = ctx.bed.wait_updated(version, PATIENCE) => updated.map(drop),
    }
}

/// Waits until a host has seen so many more events, or the update to `version` has ended before.
async fn after_events(ctx: &ScenarioContext, node: &str, events: usize, version: &Version) -> anyhow::Result<()> {
    let host = &ctx.bed.member(node)?.host;
    let until = host.log().len() + events;
    let mut seen = 0;
    let reached = until_host(host, "so many events", |_| {
        seen += 1;
        seen >= until
    });
    tokio::select! {
        reached = reached => reached,
        updated = ctx.bed.wait_updated(version, PATIENCE) => updated.map(drop),
    }
}

/// The API server is killed and started again.
#[tokio::test(flavor = "multi_thread")]
async fn updates_complete_after_random_kills_of_components_and_api_server() -> anyhow::Result<()> {
    const PODS: usize = 6;
    const PARTS: [Component; 3] = [Component::Controller, Component::Apiserver, Component::Agent];
    // Beside the numbers of these.
    const API_SERVER: usize = PARTS.len();
    const ROUNDS: u64 = 3;
    // More, if some part was never hit while there was something to interrupt.
    const MOST_ROUNDS: u64 = 8;
    let brief = Duration::from_millis(100);
    let timings = Timings { prepare: brief, activate: brief, shutdown: brief, ..Timings::instant() };
    let mut options = TestClusterOptions { timings, ..nodes(3) };
    // The recorder reads the changes during an outage from etcd's history.
    options.control_plane.watch_cache = false;
    let mut rounds = 0;
    let mut hits = [0_usize; PARTS.len() + 1];
    let ending = run(options, async |ctx| {
        ctx.shop_with(PODS, json!({"maxUnavailable": 3})).await?;
        ctx.install().await?;
        while rounds < ROUNDS || (rounds < MOST_ROUNDS && hits.contains(&0)) {
            let version = Version::new(1, 20, 5 + rounds);
            ctx.bed.releases.publish(version.clone());
            // Each once, and one of the operator's components twice.
            let mut kills = vec![0, 1, 2, API_SERVER, ctx.rng.random_range(0..PARTS.len())];
            kills.shuffle(&mut ctx.rng);
            for part in kills {
                let by_host = ctx.rng.random_bool(0.3);
                if by_host {
                    let node = format!("node-{}", ctx.rng.random_range(1..=3));
                    let events = ctx.rng.random_range(1..15);
                    after_events(ctx, &node, events, &version).await?;
                } else {
                    let changes = ctx.rng.random_range(1..80);
                    after_changes(ctx, changes, &version).await?;
                }
                let world = ctx.bed.recorder.so_far()?.end();
                let under_way = world.shadows.values().any(|shadow| shadow.status.controller.progress.is_some());
                if part == API_SERVER {
                    ctx.bed.control_plane.restart_apiserver().await?;
                } else {
                    let running = ctx.bed.processes_of(PARTS[part]);
                    let Some(process) = running.choose(&mut ctx.rng) else { continue };
                    signal(std::slice::from_ref(process), Signal::SIGKILL);
                }
                hits[part] += usize::from(under_way);
            }
            ctx.bed.wait_updated(&version, PATIENCE).await?;
            rounds += 1;
        }
        assert!(!hits.contains(&0), "kills of {PARTS:?} and the API server while an update was under way: {hits:?}");
        ctx.shop_is_ready(PODS).await
    })
    .await?;
    let updated = ending.history.attempts().iter().filter(|a| a.updated()).count();
    let wanted = 3 * usize::try_from(rounds)?;
    assert_eq!(updated, wanted);
    assert_eq!(ending.verdict.stats.reboots, wanted, "no host was rebooted twice for one version");
    Ok(())
}
