//! Crashes, power losses and reboots by other clients during an update.

use std::time::Duration;

use deploy::Component;
use integ::bed::TestClusterOptions;
use integ::host::faults::Transport;
use integ::host::{Fault, Timings};
use models::condition::ConditionStatus;
use models::shadow::UPDATED;
use nix::sys::signal::Signal;
use rand::Rng as _;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use semver::Version;
use serde_json::json;

use crate::interfere::{blocked_drain, is_armed, permit_of, released, signal, unblock, until_host};
use crate::support::{NEW, ScenarioContext, ScenarioResult, nodes, run};

/// Longest duration of an update that is interrupted during evictions. The API server counts a pod against its budget
/// before it deletes it; where the caller's death cancels the request in between, the budget is one pod short until
/// Kubernetes resets it two minutes later, and the drain is rightly blocked meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Asserts that a node's first attempt failed for a reason that is not charged to the version, and a later one did not.
fn assert_rebooted_by_other_then_updated(ending: &ScenarioResult, node: &str) {
    let attempts = ending.history.attempts();
    let results: Vec<_> = attempts.iter().filter(|a| a.node == node).map(|a| a.result.as_deref()).collect();
    assert_eq!(results, [Some("RebootedByOther"), Some(UPDATED)]);
    // It was never charged to the version.
    let mut charged = false;
    let world = ending.history.replay(|_, _, world| {
        charged |=
            world.shadows.values().flat_map(|s| &s.status.controller.record).any(|r| !r.version_failures.is_empty());
        charged |= world.operator_condition("Frozen").is_some_and(|c| c.status == ConditionStatus::True);
    });
    assert!(!charged, "the version is not to blame");
    assert!(world.nodes.values().all(|n| !n.claimed()));
}

#[tokio::test(flavor = "multi_thread")]
async fn power_loss_between_permit_and_arming_is_no_version_failure() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        target = blocked_drain(ctx).await?;
        let host = &ctx.bed.member(&target)?.host;
        // The host delays the command and never starts it.
        host.script(Fault::request("POST", "/actions/activate-update", Transport::Slow(Duration::from_secs(60))));
        unblock(ctx).await?;
        ctx.until("the permit is issued", |world| permit_of(world, &target).is_some()).await?;
        host.power_loss().await;
        anyhow::ensure!(!is_armed(host));
        // The agent may not have asked the host yet; the next attempt's request is not delayed.
        host.clear_faults();
        released(ctx, &target).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_rebooted_by_other_then_updated(&ending, &target);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.permits, stats.arms, stats.reboots), (3, 2, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn single_node_with_operator_is_updated() -> anyhow::Result<()> {
    const PODS: usize = 2;
    let ending = run(TestClusterOptions::default(), async |ctx| {
        ctx.shop_with(PODS, json!({"maxUnavailable": "100%"})).await?;
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        ctx.shop_is_ready(PODS).await
    })
    .await?;
    let attempts = ending.history.attempts();
    assert!(attempts.len() == 1 && attempts[0].updated(), "{attempts:#?}");
    let replicas = deploy::Options::default();
    let own = usize::from(replicas.controller_replicas) + usize::from(replicas.apiserver_replicas);
    assert_eq!(ending.verdict.stats.evictions, own + PODS, "each pod that was there was evicted once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_complete_after_api_server_restarts() -> anyhow::Result<()> {
    const PODS: usize = 4;
    let mut options = nodes(2);
    // The recorder reads the changes during the outage from etcd's history.
    options.control_plane.watch_cache = false;
    let ending = run(options, async |ctx| {
        ctx.shop_with(PODS, json!({"maxUnavailable": 2})).await?;
        ctx.install().await?;
        ctx.release();
        for _ in 0..2 {
            let changes = ctx.rng.random_range(1..60);
            after_changes(ctx, changes, &NEW).await?;
            ctx.bed.control_plane.restart_apiserver().await?;
        }
        ctx.bed.wait_updated(&NEW, PATIENCE).await?;
        ctx.shop_is_ready(PODS).await
    })
    .await?;
    assert_eq!(ending.history.attempts().iter().filter(|a| a.updated()).count(), 2);
    assert_eq!(ending.verdict.stats.reboots, 2);
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

#[tokio::test(flavor = "multi_thread")]
async fn updates_complete_after_random_component_kills() -> anyhow::Result<()> {
    const PODS: usize = 6;
    const PARTS: [Component; 3] = [Component::Controller, Component::Apiserver, Component::Agent];
    const ROUNDS: u64 = 4;
    // More, if some component was never hit while there was something to interrupt.
    const MOST_ROUNDS: u64 = 8;
    let brief = Duration::from_millis(100);
    let timings = Timings { prepare: brief, activate: brief, shutdown: brief, ..Timings::instant() };
    let mut rounds = 0;
    let mut hits = [0_usize; PARTS.len()];
    let ending = run(TestClusterOptions { timings, ..nodes(3) }, async |ctx| {
        ctx.shop_with(PODS, json!({"maxUnavailable": 3})).await?;
        ctx.install().await?;
        while rounds < ROUNDS || (rounds < MOST_ROUNDS && hits.contains(&0)) {
            let version = Version::new(1, 20, 5 + rounds);
            ctx.bed.releases.publish(version.clone());
            // Each component once, and one of them twice.
            let mut kills = vec![0, 1, 2, ctx.rng.random_range(0..PARTS.len())];
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
                let running = ctx.bed.processes_of(PARTS[part]);
                if let Some(process) = running.choose(&mut ctx.rng) {
                    signal(std::slice::from_ref(process), Signal::SIGKILL);
                    hits[part] += usize::from(under_way);
                }
            }
            ctx.bed.wait_updated(&version, PATIENCE).await?;
            rounds += 1;
        }
        assert!(!hits.contains(&0), "kills of {PARTS:?} while an update was under way: {hits:?}");
        ctx.shop_is_ready(PODS).await
    })
    .await?;
    let updated = ending.history.attempts().iter().filter(|a| a.updated()).count();
    let wanted = 3 * usize::try_from(rounds)?;
    assert_eq!(updated, wanted);
    assert_eq!(ending.verdict.stats.reboots, wanted, "no host was rebooted twice for one version");
    Ok(())
}
