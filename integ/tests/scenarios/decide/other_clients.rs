//! Hosts that another client updates or rolls back.

use std::time::Duration;

use integ::host::{Command, Host, UpdatesSettings, VersionLock};
use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::shadow::{Record, Step, UPDATED};
use nix::sys::signal::Signal;
use serde_json::json;

use super::support::{is_on, waiting};
use crate::interfere::{agent_on, blocked_drain, signal, unblock};
use crate::support::{EVENTS_OF_NODES, NEW, OLD, nodes, run, shadow_of, step_of, until_event};

/// The controller's record of a node.
fn record(world: &ClusterState, node: &str) -> Record {
    shadow_of(world, node).and_then(|shadow| shadow.status.controller.record.clone()).unwrap_or_default()
}

/// The reason of the node's last attempt.
fn last(world: &ClusterState, node: &str) -> Option<String> {
    record(world, node).last.map(|last| last.reason)
}

/// Installs this version as another client: chooses, downloads and arms it, reboots, and leaves the lock set.
async fn another_client_installs(host: &Host, lock: VersionLock) -> anyhow::Result<()> {
    host.foreign_settings(UpdatesSettings { version_lock: Some(lock), ..UpdatesSettings::default() });
    for command in [Command::Refresh, Command::Prepare, Command::Activate] {
        other_client_commands(host, command).await?;
        host.lock_free().await;
    }
    host.foreign_reboot().await;
    Ok(())
}

/// Sends a command until the host takes it: the agent may be using the host.
async fn other_client_commands(host: &Host, command: Command) -> anyhow::Result<()> {
    crate::interfere::poll("the host takes a command", async || {
        host.lock_free().await;
        Ok(host.foreign(command).await.ok())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn update_by_other_client_ends_attempt_without_failure() -> anyhow::Result<()> {
    let (mut first, mut other) = (String::new(), "");
    let mut options = nodes(2);
    options.policy["strategy"] = json!({"preStage": {}});
    let ending = run(options, async |ctx| {
        first = blocked_drain(ctx).await?;
        other = crate::support::other(&first);
        ctx.until_step(other, Step::Staged).await?;
        let host = &ctx.bed.member(other)?.host;
        // All of it between two checks of the agent: one in the middle would end the attempt as `HostArmedByOther`.
        signal(&[agent_on(ctx, other).await?], Signal::SIGSTOP);
        other_client_commands(host, Command::Activate).await?;
        host.lock_free().await;
        host.foreign_reboot().await;
        let world = ctx
            .until("the attempt is ended, and the node is as it should be", |world| {
                last(world, other).as_deref() == Some("UpdatedByOther") && is_on(world, other, &NEW)
            })
            .await?;
        let record = record(&world, other);
        assert_eq!((record.failures, record.not_before, record.version_failures.len()), (0, None, 0));
        until_event(ctx, EVENTS_OF_NODES, "UpdateWithdrawn", &[]).await?;
        unblock(ctx).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.history.results(other), [(NEW, "UpdatedByOther".to_owned())]);
    assert_eq!(ending.history.results(&first), [(NEW, UPDATED.to_owned())]);
    assert_ne!(ending.world().operator_condition("Frozen").unwrap().status, ConditionStatus::True);
    assert_eq!(
        (ending.verdict.stats.arms, ending.verdict.stats.reboots),
        (1, 1),
        "the other ones were not the operator's"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_by_other_client_is_reported_without_version_failure() -> anyhow::Result<()> {
    const NODE: &str = "node-1";
    let back = || VersionLock::to(&OLD);
    let unlock = || UpdatesSettings { version_lock: Some(VersionLock::latest()), ..UpdatesSettings::default() };
    let mut options = nodes(1);
    options.timings.boot = Duration::from_millis(300);
    options.policy["health"]["after"]["soak"] = json!("10m");
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        let host = ctx.bed.member(NODE)?.host.clone();
        ctx.release();
        // While it is verified. To an agent that had not reported this boot, the host would have fallen back.
        ctx.until("the boot into the update is reported", |world| {
            let armed = shadow_of(world, NODE).is_some_and(|shadow| shadow.status.agent.armed.is_some());
            step_of(world, NODE) == Some(Step::Verifying) && !armed
        })
        .await?;
        another_client_installs(&host, back()).await?;
        let world = ctx
            .until("the attempt is ended and the node released", |world| {
                last(world, NODE).as_deref() == Some("BootedOtherVersion") && is_on(world, NODE, &OLD)
            })
            .await?;
        let failure = record(&world, NODE);
        assert_eq!(failure.version_failures, [], "the version is not to blame");
        assert!(failure.not_before.is_some(), "the client that did that is given time");
        until_event(ctx, EVENTS_OF_NODES, "UpdateFailed", &[]).await?;
        assert_ne!(world.operator_condition("Frozen").unwrap().status, ConditionStatus::True);

        // Once the lock is removed, it is updated again.
        ctx.policy(&json!({"health": {"after": {"soak": "1s"}}})).await?;
        host.foreign_settings(unlock());
        ctx.updated().await?;

        // While no attempt is under way: nothing fails, and the shadow reports it.
        another_client_installs(&host, back()).await?;
        let world = ctx.until("the agent tells what runs", |world| is_on(world, NODE, &OLD)).await?;
        assert_eq!((record(&world, NODE).failures, last(&world, NODE).as_deref()), (0, Some(UPDATED)));
        assert_eq!(step_of(&world, NODE), None);
        ctx.until("and why it stays so", |world| waiting(world, "NotChosen") == 1).await?;
        host.foreign_settings(unlock());
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    let ended = ["BootedOtherVersion", UPDATED, UPDATED].map(|result| (NEW, result.to_owned()));
    assert_eq!(ending.history.results(NODE), ended);
    assert_eq!(ending.verdict.stats.reboots, 3);
    Ok(())
}
