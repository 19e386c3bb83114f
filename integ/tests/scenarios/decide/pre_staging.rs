//! Images that are downloaded ahead of the window.

use integ::bed::TestClusterOptions;
use integ::oracle::{History, Object};
use models::shadow::{HostState, Step};
use semver::Version;
use serde_json::json;

use super::support::status;
use super::windows::{closed_schedule, open_schedule};
use crate::policy::wait_for;
use crate::support::{ScenarioContext, nodes, run, shadow_of, step_of};

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

#[tokio::test(flavor = "multi_thread")]
async fn staged_image_superseded_by_newer_release_is_not_booted() -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    let ending = run(options(), async |ctx| {
        until_staged(ctx).await?;
        ctx.bed.releases.publish(NEWER);
        ctx.until("both nodes have the newer image", |world| {
            ["node-1", "node-2"].iter().all(|node| {
                step_of(world, node) == Some(Step::Staged)
                    && shadow_of(world, node).is_some_and(|shadow| shadow.spec.version == Some(NEWER))
            })
        })
        .await?;
        ctx.policy(&json!({"schedule": open_schedule()})).await?;
        ctx.bed.wait_updated(&NEWER, crate::support::LIMIT).await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 2, "each host is rebooted once");
    Ok(())
}
