//! Waves: releases that reach one host later than another.

use anyhow::Context as _;
use integ::host::UpdatesSettings;
use jiff::{SignedDuration, Timestamp};
use models::shadow::UPDATED;
use semver::Version;
use serde_json::json;

use super::support::{assert_signed, is_on, settings_calls, waiting};
use crate::support::{LIMIT, NEW, OLD, ScenarioContext, nodes, run, shadow_of};

/// The node of the later wave, and its place in the waves. All others are at 42.
const LATE: (&str, u32) = ("node-3", 1000);

/// Releases a version to hosts below 500 at once, and to the others at `second`.
fn release_in_waves(ctx: &ScenarioContext, version: &Version, second: Timestamp) {
    ctx.bed.releases.publish_in_waves(version.clone(), [(500, Timestamp::UNIX_EPOCH), (2048, second)]);
}

/// Waits until the nodes of the first wave run a version and the other one waits for its wave.
async fn until_first_wave(ctx: &ScenarioContext, version: &Version) -> anyhow::Result<()> {
    let world = ctx
        .until("the first wave is updated, and the other node waits for its wave", |world| {
            ["node-1", "node-2"].iter().all(|node| is_on(world, node, version)) && waiting(world, "WaveNotCome") == 1
        })
        .await?;
    let late = shadow_of(&world, LATE.0).context("just seen")?;
    anyhow::ensure!(late.step().is_none() && late.status.agent.current_version.as_ref() < Some(version));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_waits_for_its_wave_unless_waves_are_ignored() -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    let ending = run(nodes(3), async |ctx| {
        let late = ctx.bed.member(LATE.0)?.host.clone();
        late.foreign_settings(UpdatesSettings { seed: Some(LATE.1), ..UpdatesSettings::default() });
        ctx.install().await?;
        let tomorrow = Timestamp::now() + SignedDuration::from_hours(24);
        release_in_waves(ctx, &NEW, tomorrow);
        until_first_wave(ctx, &NEW).await?;
        anyhow::ensure!(late.snapshot().running_version == OLD);
        release_in_waves(ctx, &NEW, Timestamp::UNIX_EPOCH);
        ctx.updated().await?;

        release_in_waves(ctx, &NEWER, tomorrow);
        until_first_wave(ctx, &NEWER).await?;
        for member in &ctx.bed.members {
            let calls = settings_calls(&member.host);
            anyhow::ensure!(calls.is_empty(), "by default waves rule, also over {}: {calls:?}", member.name);
        }
        ctx.policy(&json!({"version": {"ignoreWaves": true}})).await?;
        ctx.bed.wait_updated(&NEWER, LIMIT).await?;
        anyhow::ensure!(late.snapshot().settings.ignore_waves == Some(true));

        ctx.policy(&json!({"version": {"ignoreWaves": false}})).await?;
        ctx.until("every host's setting is put back", |world| {
            world.shadows.values().all(|shadow| {
                shadow.status.agent.host.is_none()
                    && shadow.spec.host.as_ref().is_some_and(|host| !host.asks_settings())
            })
        })
        .await?;
        for member in &ctx.bed.members {
            let seed = if member.name == LATE.0 { LATE.1 } else { 42 };
            anyhow::ensure!(member.host.snapshot().settings == UpdatesSettings::defaults(seed), "{}", member.name);
        }
        Ok(())
    })
    .await?;
    for node in ["node-1", "node-2", LATE.0] {
        assert_eq!(ending.history.results(node), [NEW, NEWER].map(|version| (version, UPDATED.to_owned())), "{node}");
    }
    assert_signed(&ending.history);
    Ok(())
}
