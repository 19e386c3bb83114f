//! Two controllers: one leads at a time, whatever happens to the other.

use anyhow::Context as _;
use deploy::Component;
use integ::bed::workload;
use integ::kubelet::PodProcess;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use nix::sys::signal::Signal;
use rand::Rng as _;
use semver::Version;
use serde_json::json;

use crate::crashes::after_changes;
use crate::history;
use crate::interfere::{PATIENCE, poll, signal};
use crate::support::{SHOP, ScenarioContext, nodes, run};

/// The process that holds the Lease.
async fn leader(ctx: &ScenarioContext) -> anyhow::Result<PodProcess> {
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
#[ignore = "make test-all: leaders are killed at each step and each write of the history by other tests"]
async fn history_is_complete_and_nothing_done_twice_although_leaders_are_killed_and_stopped() -> anyhow::Result<()> {
    const NODES: usize = 3;
    const PODS: usize = 6;
    const STOPS: u64 = 2;
    let mut options = nodes(NODES);
    options.deploy.controller_replicas = 2;
    let ending = run(options, async |ctx| {
        ctx.shop_with(PODS, json!({"maxUnavailable": 3})).await?;
        workload::apply(&ctx.bed.client, vec![workload::service(SHOP, "web")]).await?;
        ctx.install().await?;
        history::equals_the_run_although_controllers_are_killed(ctx, 3)
            .await
            .context("every controller is killed after each change of the history")?;
        for stop in 1..=STOPS {
            let version = Version::new(1, 20, 5 + stop);
            stopped_leader_does_not_act_after_losing_lease(ctx, &version)
                .await
                .with_context(|| format!("the leader is stopped during the rollout of {version}"))?;
        }
        ctx.shop_is_ready(PODS).await
    })
    .await?;
    let wanted = NODES * usize::try_from(1 + STOPS)?;
    assert_eq!(ending.history.attempts().iter().filter(|a| a.updated()).count(), wanted);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots), (wanted, wanted), "nothing was done twice");
    assert_eq!(stats.out_of_service, 1);
    Ok(())
}

async fn stopped_leader_does_not_act_after_losing_lease(
    ctx: &mut ScenarioContext,
    version: &Version,
) -> anyhow::Result<()> {
    ctx.bed.releases.publish(version.clone());
    let changes = ctx.rng.random_range(1..120);
    after_changes(ctx, changes, version).await?;
    let old = leader(ctx).await?;
    signal(std::slice::from_ref(&old), Signal::SIGSTOP);
    until_other_leader(ctx, &old).await?;
    // The new leader has begun when the old one continues in the middle of its work.
    let changes = ctx.rng.random_range(1..30);
    after_changes(ctx, changes, version).await?;
    signal(std::slice::from_ref(&old), Signal::SIGCONT);
    until_ended(ctx, &old).await?;
    ctx.bed.wait_updated(version, PATIENCE).await?;
    Ok(())
}

/// Waits until a process has ended.
async fn until_ended(ctx: &ScenarioContext, process: &PodProcess) -> anyhow::Result<()> {
    poll("the old leader has ended itself", async || {
        Ok((!ctx.bed.processes().iter().any(|p| p.pid == process.pid)).then_some(()))
    })
    .await
}
