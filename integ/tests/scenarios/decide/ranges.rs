//! Ranges of versions, and versions that have to be known for some time.

use anyhow::Context as _;
use integ::host::VersionLock;
use integ::oracle::ClusterState;
use jiff::{SignedDuration, Timestamp};
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::shadow::UPDATED;
use semver::Version;
use serde_json::json;

use super::support::{assert_signed, lock_of, status, waiting};
use crate::support::{LIMIT, NEW, OLD, ScenarioContext, nodes, run};

const FIRST: Version = Version::new(1, 20, 4);
const NEXT_MINOR: Version = Version::new(1, 21, 0);

#[tokio::test(flavor = "multi_thread")]
async fn version_range_selects_newest_version_not_excluded() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["version"]["target"] = json!("1.22");
    options.policy["version"]["exclude"] = json!(["1.20.5", "1.19"]);
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        for version in [FIRST, NEW, NEXT_MINOR] {
            ctx.bed.releases.publish(version);
        }
        ctx.until("no host is offered a version in the range", |world| waiting(world, "NotOffered") == 2).await?;

        ctx.policy(&json!({"version": {"target": "v1.20"}})).await?;
        ctx.bed.wait_updated(&FIRST, LIMIT).await?;
        for member in &ctx.bed.members {
            assert_eq!(lock_of(&member.host), Some(VersionLock::to(&FIRST)), "{}", member.name);
        }

        ctx.policy(&json!({"version": {"target": ">=1.20, <1.21", "exclude": ["1.20.4"]}})).await?;
        ctx.updated().await?;

        ctx.policy(&json!({"version": {"target": ">=1.21, <1.20"}})).await?;
        ctx.until_operator(models::operator::DEGRADED, models::condition::ConditionStatus::True).await?;
        let world = ctx.bed.recorder.so_far()?.end();
        let degraded = world.operator_condition(models::operator::DEGRADED).context("just seen")?;
        assert!(
            degraded.message.contains("spec.version.target") && degraded.message.contains(">=1.20, <1.23"),
            "{degraded:?}"
        );
        Ok(())
    })
    .await?;
    for node in ["node-1", "node-2"] {
        let expected = [FIRST, NEW].map(|version| (version, UPDATED.to_owned()));
        assert_eq!(ending.history.results(node), expected, "{node}");
    }
    assert_signed(&ending.history);
    Ok(())
}

/// Waits until the operator knows a version.
async fn until_known(ctx: &ScenarioContext, version: &Version) -> anyhow::Result<ClusterState> {
    let knows = |world: &ClusterState| status(world).versions.iter().any(|known| known.version == *version);
    ctx.until(&format!("{version} is known"), knows).await
}

/// Backdates a version, so that it has been known for two hours.
async fn make_old_enough(ctx: &ScenarioContext, version: &Version) -> anyhow::Result<()> {
    let world = until_known(ctx, version).await?;
    let index = status(&world).versions.iter().position(|known| known.version == *version).context("just seen")?;
    let since = Timestamp::now() - SignedDuration::from_hours(2);
    let patch = json!([
        {"op": "test", "path": format!("/status/versions/{index}/version"), "value": version},
        {"op": "replace", "path": format!("/status/versions/{index}/firstSeen"), "value": since},
    ]);
    let patch = patch.to_string();
    let arguments =
        ["-n", SYSTEM_NAMESPACE, "patch", "bruo", OPERATOR_NAME, "--subresource=status", "--type=json", "-p", &patch];
    ctx.kubectl(&arguments).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn minimum_age_selects_newest_version_old_enough() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["version"]["minimumAge"] = json!("1h");
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.bed.releases.publish(FIRST);
        until_known(ctx, &FIRST).await?;
        ctx.release();
        until_known(ctx, &NEW).await?;
        ctx.until("no version is old enough", |world| waiting(world, "TooYoung") == 2).await?;
        assert!(ctx.bed.members.iter().all(|member| member.host.snapshot().running_version == OLD));

        make_old_enough(ctx, &FIRST).await?;
        ctx.bed.wait_updated(&FIRST, LIMIT).await?;
        ctx.until("the hosts' locks are put back and the nodes wait for the newer version", |world| {
            waiting(world, "TooYoung") == 2
                && world.shadows.values().all(|shadow| {
                    shadow.status.agent.host.is_none()
                        && shadow.spec.host.as_ref().is_some_and(|host| !host.asks_settings())
                })
        })
        .await?;
        for member in &ctx.bed.members {
            assert_eq!(lock_of(&member.host), Some(VersionLock::latest()), "{}", member.name);
        }

        make_old_enough(ctx, &NEW).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    for node in ["node-1", "node-2"] {
        let expected = [FIRST, NEW].map(|version| (version, UPDATED.to_owned()));
        assert_eq!(ending.history.results(node), expected, "{node}");
    }
    assert_signed(&ending.history);
    Ok(())
}
