//! Crashes, power losses and reboots by other clients during an update.

use std::time::Duration;

use anyhow::Context as _;
use deploy::Component;
use integ::bed::BedOptions;
use integ::host::faults::Transport;
use integ::host::{Command, Fault, Timings, Worker};
use integ::oracle::Attempt;
use models::condition::ConditionStatus;
use models::shadow::UPDATED;
use nix::sys::signal::Signal;
use rand::Rng as _;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use semver::Version;
use serde_json::json;

use crate::interfere::{
    agent_on, ask_unheard, blocked_drain, continue_controllers, finish_command, is_activate, is_armed, permit_of, poll,
    released, signal, unblock, until_host,
};
use crate::support::{Ending, NEW, Scene, is_released, last_reason, nodes, operator_condition, run, shadow_of};

/// Longest duration of an update that is interrupted during evictions. The API server counts a pod against its budget
/// before it deletes it; where the caller's death cancels the request in between, the budget is one pod short until
/// Kubernetes resets it two minutes later, and the drain is rightly blocked meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Asserts that a node's first attempt failed for a reason that is not charged to the version, and a later one did not.
fn assert_rebooted_by_other_and_updated_later(ending: &Ending, node: &str) {
    let attempts = ending.history.attempts();
    let results: Vec<_> = attempts.iter().filter(|a| a.node == node).map(|a| a.result.as_deref()).collect();
    assert_eq!(results, [Some("RebootedByOther"), Some(UPDATED)]);
    // It was never charged to the version.
    let mut charged = false;
    let world = ending.history.replay(|_, _, world| {
        charged |=
            world.shadows.values().flat_map(|s| &s.status.controller.record).any(|r| !r.version_failures.is_empty());
        charged |= operator_condition(world, "Frozen").is_some_and(|c| c.status == ConditionStatus::True);
    });
    assert!(!charged, "the version is not to blame");
    assert!(world.nodes.values().all(|n| !n.claimed()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_another_client_reboots_in_mid_drain_is_released_and_updated_later() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        scene.bed.member(&target)?.host.foreign_reboot().await;
        let world = scene
            .until("the attempt has failed and the node is released", |world| {
                last_reason(world, &target).as_deref() == Some("RebootedByOther") && is_released(world, &target)
            })
            .await?;
        let shadow = shadow_of(&world, &target).context("just seen")?;
        anyhow::ensure!(shadow.status.controller.record.as_ref().is_some_and(|r| r.not_before.is_some()));
        unblock(scene).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_rebooted_by_other_and_updated_later(&ending, &target);
    assert_eq!(ending.verdict.stats.reboots, 2, "the third reboot was not ours");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_before_the_permit_is_not_charged_to_the_version() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        ask_unheard(scene, &target).await?;
        let host = &scene.bed.member(&target)?.host;
        let boot = host.snapshot().boot_id;
        host.power_loss().await;
        // Until the new boot is known, a controller would still issue a permit for the old one.
        scene.until("the new boot is known", |world| world.nodes[&target].boot_id != boot).await?;
        continue_controllers(scene);
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_rebooted_by_other_and_updated_later(&ending, &target);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.permits, stats.arms, stats.reboots), (2, 2, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_between_the_permit_and_the_arming_is_not_charged_to_the_version() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        let host = &scene.bed.member(&target)?.host;
        // The host delays the command and never starts it.
        host.script(Fault::request("POST", "/actions/activate-update", Transport::Slow(Duration::from_secs(10))));
        unblock(scene).await?;
        scene.until("the permit is issued", |world| permit_of(world, &target).is_some()).await?;
        host.power_loss().await;
        anyhow::ensure!(!is_armed(host));
        released(scene, &target).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_rebooted_by_other_and_updated_later(&ending, &target);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.permits, stats.arms, stats.reboots), (3, 2, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_after_it_armed_the_host_asks_again_and_reboots_it() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        let host = &scene.bed.member(&target)?.host;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(scene).await?;
        until_host(host, "the host is asked to arm", is_activate).await?;
        let agent = agent_on(scene, &target).await?;
        signal(&[agent], Signal::SIGKILL);
        finish_command(host).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    assert!(attempts.len() == 2 && attempts.iter().all(Attempt::updated), "{attempts:#?}");
    let stats = &ending.verdict.stats;
    assert_eq!(
        (stats.permits, stats.arms, stats.reboots),
        (3, 2, 2),
        "armed once, with one permit more for the reboot"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_socket_went_stale_is_restarted_and_updates_its_host() -> anyhow::Result<()> {
    let ending = run(nodes(1), async |scene| {
        scene.install().await?;
        let member = scene.bed.member("node-1")?;
        let before = agent_on(scene, "node-1").await?;
        member.host.restart_api(true).await;
        // The container still holds the deleted socket, so only a new one helps.
        scene.release();
        poll("the agent has ended itself and runs again", async || {
            let now = agent_on(scene, "node-1").await?;
            Ok((now.pid != before.pid).then_some(now))
        })
        .await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    assert!(attempts.len() == 1 && attempts[0].updated(), "{attempts:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_on_a_single_node_survives_the_drain_of_that_node() -> anyhow::Result<()> {
    const PODS: usize = 2;
    let ending = run(BedOptions::default(), async |scene| {
        scene.shop_with(PODS, json!({"maxUnavailable": "100%"})).await?;
        scene.install().await?;
        scene.release();
        scene.updated().await?;
        scene.shop_is_ready(PODS).await
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
async fn a_restart_of_the_api_server_in_mid_update_heals_by_itself() -> anyhow::Result<()> {
    const PODS: usize = 4;
    let mut options = nodes(2);
    // The recorder reads the changes during the outage from etcd's history.
    options.control_plane.watch_cache = false;
    let ending = run(options, async |scene| {
        scene.shop_with(PODS, json!({"maxUnavailable": 2})).await?;
        scene.install().await?;
        scene.release();
        for _ in 0..2 {
            let changes = scene.chance.random_range(1..60);
            after_changes(scene, changes, &NEW).await?;
            scene.bed.control_plane.restart_apiserver().await?;
        }
        scene.bed.wait_updated(&NEW, PATIENCE).await?;
        scene.shop_is_ready(PODS).await
    })
    .await?;
    assert_eq!(ending.history.attempts().iter().filter(|a| a.updated()).count(), 2);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

/// Waits until the API server has made so many more changes, or the update to `version` has ended before.
pub(crate) async fn after_changes(scene: &Scene, changes: usize, version: &Version) -> anyhow::Result<()> {
    let until = scene.bed.recorder.so_far()?.changes().len() + changes;
    let reached = scene.bed.wait("so many changes", PATIENCE, |history| history.changes().len() >= until);
    tokio::select! {
        reached = reached => reached.map(drop),
        updated = scene.bed.wait_updated(version, PATIENCE) => updated.map(drop),
    }
}

/// Waits until a host has seen so many more events, or the update to `version` has ended before.
async fn after_events(scene: &Scene, node: &str, events: usize, version: &Version) -> anyhow::Result<()> {
    let host = &scene.bed.member(node)?.host;
    let until = host.log().len() + events;
    let mut seen = 0;
    let reached = until_host(host, "so many events", |_| {
        seen += 1;
        seen >= until
    });
    tokio::select! {
        reached = reached => reached,
        updated = scene.bed.wait_updated(version, PATIENCE) => updated.map(drop),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_part_is_killed_at_whatever_moment_the_update_ends_right() -> anyhow::Result<()> {
    const PODS: usize = 6;
    const PARTS: [Component; 3] = [Component::Controller, Component::Apiserver, Component::Agent];
    const ROUNDS: u64 = 4;
    // More, if some component was never hit while there was something to interrupt.
    const MOST_ROUNDS: u64 = 8;
    let brief = Duration::from_millis(100);
    let timings = Timings { prepare: brief, activate: brief, shutdown: brief, ..Timings::instant() };
    let mut rounds = 0;
    let mut hits = [0_usize; PARTS.len()];
    let ending = run(BedOptions { timings, ..nodes(3) }, async |scene| {
        scene.shop_with(PODS, json!({"maxUnavailable": 3})).await?;
        scene.install().await?;
        while rounds < ROUNDS || (rounds < MOST_ROUNDS && hits.contains(&0)) {
            let version = Version::new(1, 20, 5 + rounds);
            scene.bed.releases.publish(version.clone());
            // Each component once, and one of them twice.
            let mut kills = vec![0, 1, 2, scene.chance.random_range(0..PARTS.len())];
            kills.shuffle(&mut scene.chance);
            for part in kills {
                let by_host = scene.chance.random_bool(0.3);
                if by_host {
                    let node = format!("node-{}", scene.chance.random_range(1..=3));
                    let events = scene.chance.random_range(1..15);
                    after_events(scene, &node, events, &version).await?;
                } else {
                    let changes = scene.chance.random_range(1..80);
                    after_changes(scene, changes, &version).await?;
                }
                let world = scene.bed.recorder.so_far()?.end();
                let under_way = world.shadows.values().any(|shadow| shadow.status.controller.progress.is_some());
                let running = scene.bed.processes_of(PARTS[part]);
                if let Some(process) = running.choose(&mut scene.chance) {
                    signal(std::slice::from_ref(process), Signal::SIGKILL);
                    hits[part] += usize::from(under_way);
                }
            }
            scene.bed.wait_updated(&version, PATIENCE).await?;
            rounds += 1;
        }
        assert!(!hits.contains(&0), "kills of {PARTS:?} while an update was under way: {hits:?}");
        scene.shop_is_ready(PODS).await
    })
    .await?;
    let updated = ending.history.attempts().iter().filter(|a| a.updated()).count();
    let wanted = 3 * usize::try_from(rounds)?;
    assert_eq!(updated, wanted);
    assert_eq!(ending.verdict.stats.reboots, wanted, "no host was rebooted twice for one version");
    Ok(())
}
