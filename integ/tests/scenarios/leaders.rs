//! Two controllers: one leads at a time, whatever happens to the other.

use std::sync::{Arc, Mutex, PoisonError};

use deploy::Component;
use futures::StreamExt as _;
use integ::bed::TestClusterOptions;
use integ::host::{Command, Fault, Host, Worker};
use integ::kubelet::PodProcess;
use integ::oracle::{ClusterState, Shadow};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use models::shadow::Step;
use nix::sys::signal::Signal;
use rand::Rng as _;
use semver::Version;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::crashes::{PATIENCE, after_changes};
use crate::interfere::{finish_command, poll, signal, unblock};
use crate::support::{NEW, ScenarioContext, nodes, run, step_of};

/// Options for so many nodes with two controllers.
pub(crate) fn two_controllers(count: usize) -> TestClusterOptions {
    let mut options = nodes(count);
    options.deploy.controller_replicas = 2;
    options
}

/// The process that holds the Lease.
pub(crate) async fn leader(ctx: &ScenarioContext) -> anyhow::Result<PodProcess> {
    let leases: Api<Lease> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    poll("a controller leads", async || {
        let lease = leases.get_opt(CONTROLLER).await?;
        let holder = lease.and_then(|l| l.spec).and_then(|s| s.holder_identity);
        Ok(ctx.bed.processes_of(Component::Controller).into_iter().find(|p| Some(&p.pod) == holder.as_ref()))
    })
    .await
}

/// Waits until another pod than this one leads.
async fn until_other_leader(ctx: &ScenarioContext, than: &PodProcess) -> anyhow::Result<PodProcess> {
    poll("another controller leads", async || {
        let now = leader(ctx).await?;
        Ok((now.pod != than.pod).then_some(now))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_leader_does_not_act_after_losing_lease() -> anyhow::Result<()> {
    const PODS: usize = 6;
    const ROUNDS: u64 = 3;
    let ending = run(two_controllers(3), async |ctx| {
        ctx.shop(PODS).await?;
        ctx.install().await?;
        for round in 0..ROUNDS {
            let version = Version::new(1, 20, 5 + round);
            ctx.bed.releases.publish(version.clone());
            let changes = ctx.rng.random_range(1..120);
            after_changes(ctx, changes, &version).await?;
            let old = leader(ctx).await?;
            signal(std::slice::from_ref(&old), Signal::SIGSTOP);
            until_other_leader(ctx, &old).await?;
            // The new leader has begun when the old one continues in the middle of its work.
            let changes = ctx.rng.random_range(1..30);
            after_changes(ctx, changes, &version).await?;
            signal(std::slice::from_ref(&old), Signal::SIGCONT);
            until_ended(ctx, &old).await?;
            ctx.bed.wait_updated(&version, PATIENCE).await?;
        }
        ctx.shop_is_ready(PODS).await
    })
    .await?;
    let wanted = 3 * usize::try_from(ROUNDS)?;
    assert_eq!(ending.history.attempts().iter().filter(|a| a.updated()).count(), wanted);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots), (wanted, wanted), "nothing was done twice");
    assert_eq!(stats.out_of_service, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_leader_with_stale_cache_grants_no_second_slot() -> anyhow::Result<()> {
    let ending = run(two_controllers(3), async |ctx| {
        ctx.guarded_shop(6).await?;
        ctx.install().await?;
        for member in &ctx.bed.members {
            member.host.script(Fault::command(Command::Prepare, Worker::Waits));
        }
        // All three are known to wait for the update before any begins, so that the leader's own node is not among the
        // first two, and its pod is not evicted.
        enable(ctx, false).await?;
        ctx.release();
        ctx.until("every host offers the release", |world| {
            let offers = |s: &Arc<Shadow>| {
                s.status.agent.updates.as_ref().is_some_and(|u| u.chosen_version.as_ref() == Some(&NEW))
            };
            world.shadows.values().filter(|s| offers(s)).count() == 3
        })
        .await?;
        enable(ctx, true).await?;
        poll("two hosts download", async || {
            let downloading = ctx.bed.members.iter().filter(|m| downloads(&m.host));
            Ok((downloading.count() == 2).then_some(()))
        })
        .await?;
        // It receives no more updates: it waits for two nodes to be staged, of which one may then have the only slot.
        let old = leader(ctx).await?;
        signal(std::slice::from_ref(&old), Signal::SIGSTOP);
        until_other_leader(ctx, &old).await?;
        for member in ctx.bed.members.iter().filter(|m| downloads(&m.host)) {
            finish_command(&member.host).await?;
        }
        ctx.until("the new leader drains a node", |world| {
            world.nodes.keys().any(|name| step_of(world, name) == Some(Step::Draining))
        })
        .await?;
        // It finds two staged nodes, and may not know yet that one of them has the slot.
        signal(std::slice::from_ref(&old), Signal::SIGCONT);
        until_ended(ctx, &old).await?;

        unblock(ctx).await?;
        let last =
            poll("the third host downloads", async || Ok(ctx.bed.members.iter().find(|m| downloads(&m.host)))).await?;
        finish_command(&last.host).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots, stats.out_of_service), (3, 3, 1));
    Ok(())
}

async fn enable(ctx: &ScenarioContext, enabled: bool) -> anyhow::Result<()> {
    let patch = json!({"spec": {"enabled": enabled}}).to_string();
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "patch", "bruo", "default", "--type=merge", "-p", &patch]).await?;
    Ok(())
}

/// Returns true if a host prepares an update.
fn downloads(host: &Host) -> bool {
    host.snapshot().running_command == Some(Command::Prepare)
}

/// Waits until a process has ended.
async fn until_ended(ctx: &ScenarioContext, process: &PodProcess) -> anyhow::Result<()> {
    poll("the old leader has ended itself", async || {
        Ok((!ctx.bed.processes().iter().any(|p| p.pid == process.pid)).then_some(()))
    })
    .await
}

/// The holders of the Lease, one after the other, each with its first revision. No holder is an empty name.
type Holders = Arc<Mutex<Vec<(u64, String)>>>;

/// Records the holders of the Lease, until the task is aborted.
async fn watch_holders(ctx: &ScenarioContext, holders: Holders) -> anyhow::Result<JoinHandle<()>> {
    let leases: Api<Lease> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    let params = WatchParams::default().fields(&format!("metadata.name={CONTROLLER}")).disable_bookmarks();
    let mut events = leases.watch(&params, "0").await?.boxed();
    Ok(tokio::spawn(async move {
        while let Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease))) = events.next().await {
            let revision = lease.metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or_default();
            let holder = lease.spec.and_then(|s| s.holder_identity).unwrap_or_default();
            let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
            if holders.last().is_none_or(|(_, last)| *last != holder) {
                holders.push((revision, holder));
            }
        }
    }))
}

/// The node of an operator's pod.
fn node_of(world: &ClusterState, pod: &str) -> Option<String> {
    world.pods.get(&(SYSTEM_NAMESPACE.to_owned(), pod.to_owned()))?.node.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_releases_lease_before_its_own_node_is_drained() -> anyhow::Result<()> {
    let holders = Holders::default();
    let ending = run(two_controllers(3), async |ctx| {
        ctx.install().await?;
        leader(ctx).await?;
        let watching = watch_holders(ctx, holders.clone()).await?;
        ctx.release();
        ctx.updated().await?;
        watching.abort();
        Ok(())
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 3);
    let holders = holders.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (mut first_drains, mut leaders_drained): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    ending.history.replay(|change, _, world| {
        let led_by = holders.iter().rev().find(|(revision, _)| *revision <= change.revision);
        for node in world.nodes.keys().filter(|node| step_of(world, node) == Some(Step::Draining)) {
            if first_drains.contains(node) {
                continue;
            }
            first_drains.push(node.clone());
            if led_by.and_then(|(_, pod)| node_of(world, pod)).as_ref() == Some(node) {
                leaders_drained.push(node.clone());
            }
        }
    });
    assert_eq!(first_drains.len(), 3);
    assert_eq!(leaders_drained, Vec::<String>::new(), "drained under a leader that ran there: {holders:?}");
    let released = holders.windows(3).any(|w| !w[0].1.is_empty() && w[1].1.is_empty() && w[2].1 != w[0].1);
    assert!(released, "the lease was released and not waited for: {holders:?}");
    Ok(())
}
