//! Versions that policy chooses, by the hosts' own version lock.

use integ::host::{UpdatesSettings, VersionLock};
use models::shadow::UPDATED;
use semver::Version;
use serde_json::json;

use super::support::{assert_signed, settings_calls};
use crate::support::{NEW, ScenarioContext, nodes, run, shadow_of};

const BOTH: [&str; 2] = ["node-1", "node-2"];

/// Waits until every node runs `version`, and asserts that its host is locked to it.
async fn pinned(ctx: &ScenarioContext, version: &Version) -> anyhow::Result<()> {
    ctx.bed.wait_updated(version, crate::support::LIMIT).await?;
    for member in &ctx.bed.members {
        let snapshot = member.host.snapshot();
        anyhow::ensure!(snapshot.running_version == *version, "{} runs {}", member.name, snapshot.running_version);
        let lock = snapshot.settings.version_lock;
        anyhow::ensure!(lock == Some(VersionLock::to(version)), "{} is locked to {lock:?}", member.name);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: tests of planner and agent have its parts"]
async fn pinned_version_upgrades_and_downgrades_and_unpinning_restores_host_settings() -> anyhow::Result<()> {
    const FIRST: Version = Version::new(1, 20, 1);
    const PINNED: Version = Version::new(1, 20, 4);
    let ending = run(nodes(2), async |ctx| {
        ctx.install().await?;
        ctx.bed.releases.publish(FIRST);
        ctx.bed.wait_updated(&FIRST, crate::support::LIMIT).await?;
        for member in &ctx.bed.members {
            let calls = settings_calls(&member.host);
            anyhow::ensure!(calls.is_empty(), "the default policy asks for no setting of {}: {calls:?}", member.name);
        }

        ctx.policy(&json!({"version": {"target": "1.20.4"}})).await?;
        ctx.until("both nodes wait for a version that no host offers", |world| world.waiting("NotOffered") == 2)
            .await?;
        ctx.bed.releases.publish(PINNED);
        ctx.release();
        pinned(ctx, &PINNED).await?;

        ctx.policy(&json!({"version": {"target": "1.20.1"}})).await?;
        pinned(ctx, &FIRST).await?;

        ctx.policy(&json!({"version": {"target": null}})).await?;
        ctx.until("what was found is put back", |world| {
            BOTH.iter().all(|node| {
                shadow_of(world, node).is_some_and(|shadow| {
                    shadow.status.agent.host.is_none()
                        && shadow.spec.host.as_ref().is_some_and(|host| !host.asks_settings())
                })
            })
        })
        .await?;
        ctx.updated().await?;
        for member in &ctx.bed.members {
            anyhow::ensure!(member.host.snapshot().settings == UpdatesSettings::defaults(42), "{}", member.name);
        }
        Ok(())
    })
    .await?;
    let all = [FIRST, PINNED, FIRST, NEW].map(|version| (version, UPDATED.to_owned()));
    for node in BOTH {
        assert_eq!(ending.history.results(node), all, "{node}");
    }
    assert_signed(&ending.history);
    assert_eq!(ending.verdict.stats.reboots, 8);
    Ok(())
}
