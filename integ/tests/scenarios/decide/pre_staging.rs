//! Images that are downloaded ahead of the window.

use integ::bed::TestClusterOptions;
use integ::host::{Command, EventKind, Fault, Worker};
use integ::oracle::{History, Object};
use jiff::{Timestamp, ToSpan as _, Unit, tz::TimeZone};
use models::shadow::{HostState, Step};
use semver::Version;
use serde_json::{Value, json};

use super::support::{is_updated, last_reason, record, status};
use super::windows::{closed_schedule, open_schedule, slots_granted_outside_window};
use crate::interfere::{finish_command, is_call, until_host};
use crate::policy::wait_for;
use crate::support::{NEW, OLD, ScenarioContext, nodes, run, shadow_of, step_of};

/// Two nodes that download ahead of a window that opens in twelve hours.
fn options() -> TestClusterOptions {
    let mut options = nodes(2);
    options.policy["strategy"] = json!({"preStage": {}});
    options.policy["schedule"] = closed_schedule();
    options
}

/// Lets both nodes download while the window is shut.
async fn until_staged(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.install().await?;
    ctx.release();
    let world = ctx
        .until("both nodes have their image and wait for the window", |world| {
            ["node-1", "node-2"].iter().all(|node| step_of(world, node) == Some(Step::Staged))
                && wait_for(world, "WindowClosed", 2)
                && status(world).counts.is_some_and(|counts| counts.staged == 2)
        })
        .await?;
    assert!(world.shadows.values().all(|shadow| shadow.status.agent.state == Some(HostState::StagedUpdate)));
    assert!(!is_any_node_claimed(&ctx.bed.recorder.so_far()?), "a download takes no node out of service");
    Ok(())
}

/// Returns true if any node ever had a cordon of the operator or a slot.
fn is_any_node_claimed(history: &History) -> bool {
    history.changes().iter().any(|change| match &change.object {
        Object::Node(node) => node.claimed(),
        Object::Operator(operator) => !operator.status.slots.is_empty(),
        _ => false,
    })
}

/// A window that opens at the next full minute that is some seconds away, and that minute.
fn opens_soon() -> anyhow::Result<(Value, Timestamp)> {
    let ahead = Timestamp::now().checked_add(10.seconds())?.to_zoned(TimeZone::UTC);
    let at = ahead.round(jiff::ZonedRound::new().smallest(Unit::Minute).mode(jiff::RoundMode::Ceil))?;
    let cron = format!("{} {} * * *", at.minute(), at.hour());
    Ok((json!({"windows": [{"cron": cron, "duration": "1h"}]}), at.timestamp()))
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_staged_before_window_and_updates_start_when_it_opens() -> anyhow::Result<()> {
    let ending = run(options(), async |ctx| {
        until_staged(ctx).await?;
        let (window, at) = opens_soon()?;
        ctx.policy(&json!({"schedule": window})).await?;
        ctx.until("the operator says when it opens", |world| status(world).next_window == Some(at)).await?;
        assert!(!is_any_node_claimed(&ctx.bed.recorder.so_far()?));
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(slots_granted_outside_window(&ending.history), [0; 0]);
    ending.assert_updates(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_image_lost_by_reboot_is_staged_again_before_cordon() -> anyhow::Result<()> {
    let ending = run(options(), async |ctx| {
        until_staged(ctx).await?;
        let host = &ctx.bed.member("node-1")?.host;
        let boot = host.snapshot().boot_id;
        host.script(Fault::command(Command::Prepare, Worker::Waits));
        host.foreign_reboot().await;
        host.booted_after(&boot).await;
        until_host(host, "the image is staged again", |event| {
            event.boot_id != boot && is_call(event, "/actions/prepare-update")
        })
        .await?;

        // The download does not progress while the window is open: the other node gets the slot, this one is left
        // alone.
        ctx.policy(&json!({"schedule": open_schedule()})).await?;
        let world = ctx
            .until("the other node is updated", |world| is_updated(world, "node-2") && status(world).slots.is_empty())
            .await?;
        assert_eq!(step_of(&world, "node-1"), Some(Step::Staging));
        assert!(!world.nodes["node-1"].claimed() && !world.nodes["node-1"].boot_id.is_empty());
        assert_eq!(shadow_of(&world, "node-1").unwrap().status.agent.current_version, Some(OLD));
        let staged = |event: &integ::host::Event| {
            matches!(&event.kind, EventKind::CommandFinished { command: Command::Prepare, ok: true, .. })
        };
        assert_eq!(host.log().iter().filter(|event| staged(event)).count(), 1, "the one that the reboot wiped");

        finish_command(host).await?;
        ctx.updated().await?;
        let boots: Vec<_> = host.log().into_iter().filter(staged).map(|event| event.boot_id).collect();
        assert!(boots.len() == 2 && boots[0] == boot && boots[1] != boot, "staged in each boot: {boots:?}");
        Ok(())
    })
    .await?;

    ending.history.replay(|change, _, world| {
        if let Object::Node(node) = &change.object
            && node.claimed()
            && let Some(shadow) = world.shadow_of(node)
            && shadow.step() == Some(Step::Draining)
        {
            let agent = &shadow.status.agent;
            let staged = agent.state == Some(HostState::StagedUpdate) && agent.boot_id.as_ref() == Some(&node.boot_id);
            assert!(staged, "{} is cordoned at {} without its image: {agent:?}", node.name, change.revision);
        }
    });
    let attempts = ending.history.attempts();
    assert_eq!(attempts.len(), 2, "the other boot ended no attempt: {attempts:#?}");
    assert!(attempts.iter().all(integ::oracle::Attempt::updated), "{attempts:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_image_of_withdrawn_release_is_not_booted() -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    let ending = run(options(), async |ctx| {
        until_staged(ctx).await?;
        ctx.bed.releases.withdraw(&NEW);
        let world = ctx
            .until("the attempts end without the nodes having been touched", |world| {
                ["node-1", "node-2"].iter().all(|node| {
                    step_of(world, node).is_none() && last_reason(world, node).as_deref() == Some("Superseded")
                })
            })
            .await?;
        assert!(!is_any_node_claimed(&ctx.bed.recorder.so_far()?));
        for node in ["node-1", "node-2"] {
            let record = record(&world, node);
            assert_eq!((record.failures, record.not_before, record.version_failures), (0, None, vec![]), "{node}");
        }
        ctx.bed.releases.publish(NEWER);
        ctx.policy(&json!({"schedule": open_schedule()})).await?;
        ctx.bed.wait_updated(&NEWER, crate::support::LIMIT).await?;
        Ok(())
    })
    .await?;
    for node in ["node-1", "node-2"] {
        let reasons: Vec<_> = ending.history.results(node).into_iter().map(|(_, reason)| reason).collect();
        assert_eq!(reasons, ["Superseded", models::shadow::UPDATED], "{node}");
    }
    assert_eq!(ending.verdict.stats.reboots, 2, "no host booted the version that was withdrawn");
    Ok(())
}
