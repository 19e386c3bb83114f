//! Failures of hosts.

use deploy::Component;
use integ::bed::TestClusterOptions;
use integ::host::{BootFault, Command, Fault};
use integ::oracle::Object;
use models::condition::ConditionStatus;
use models::reason::FailureReason;
use models::shadow::UPDATED;
use semver::Version;
use serde_json::json;

use crate::interfere::is_activate;
use crate::support::{NEW, OLD, nodes, run, shadow_of};

#[tokio::test(flavor = "multi_thread")]
async fn boot_fallback_freezes_rollout_across_controller_restart_and_newer_release() -> anyhow::Result<()> {
    let newer = Version::new(1, 20, 6);
    let ending = run(nodes(3), async |ctx| {
        ctx.install().await?;
        for member in &ctx.bed.members {
            member.host.script(Fault::boot(BootFault::NewImageFails));
        }
        ctx.release();
        let frozen = ctx.until_operator("Frozen", ConditionStatus::True).await?;
        assert!(frozen.message.contains("1.20.5"), "{frozen:?}");
        ctx.until("every node is released", |world| {
            world.shadows.values().all(|s| s.step().is_none())
                && world.nodes.values().all(|n| !n.claimed() && n.ready)
                && world.operator.as_ref().is_some_and(|o| o.status.slots.is_empty())
        })
        .await?;

        // Neither a new controller nor a newer release changes that.
        ctx.restart(Component::Controller).await?;
        ctx.bed.releases.publish(newer.clone());
        ctx.until("every agent offers the newer release", |world| {
            world
                .shadows
                .values()
                .all(|s| s.status.agent.updates.as_ref().is_some_and(|u| u.chosen_version.as_ref() == Some(&newer)))
        })
        .await?;
        ctx.policy(&json!({"failurePolicy": {"backOff": "1s"}})).await?;
        ctx.until("the new controller has seen the changed policy and all three nodes wait", |world| {
            world.operator.as_ref().is_some_and(|o| {
                o.status.observed_generation == Some(2)
                    && o.status.waiting.iter().any(|w| w.reason == "Frozen" && w.nodes == 3)
            })
        })
        .await?;
        Ok(())
    })
    .await?;

    let attempts = ending.history.attempts();
    let tried: Vec<_> = attempts.iter().filter(|a| a.result.as_deref() == Some("BootFellBack")).collect();
    assert_eq!(tried.len(), 1, "one node tried it: {attempts:#?}");
    assert_eq!(ending.verdict.stats.permits, 1, "no other node was rebooted");
    let world = ending.world();
    for (name, node) in &world.nodes {
        let shadow = shadow_of(&world, name).unwrap();
        assert!(!node.claimed() && node.ready);
        assert_eq!(shadow.status.agent.current_version, Some(OLD));
        let failures = shadow.status.controller.record.iter().flat_map(|r| &r.version_failures);
        let reasons: Vec<_> = failures.map(|f| (f.version.clone(), f.reason)).collect();
        let expected = if *name == tried[0].node { vec![(NEW, FailureReason::BootFellBack)] } else { vec![] };
        assert_eq!(reasons, expected, "{name}");
    }
    assert_eq!(world.operator_condition("Frozen").unwrap().status, ConditionStatus::True);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_download_is_retried_without_disruption() -> anyhow::Result<()> {
    // Each attempt tries three times: the first attempt fails, the second one succeeds at its second try.
    const FAILURES: u32 = 4;
    let ending = run(nodes(1), async |ctx| {
        ctx.install().await?;
        let host = &ctx.bed.member("node-1")?.host;
        host.script(Fault::fails(Command::Prepare, "Metadata error: the repository did not answer\n").times(FAILURES));
        ctx.release();
        ctx.until("the first attempt is given up and the next one is not due yet", |world| {
            shadow_of(world, "node-1").is_some_and(|s| {
                let record = s.status.controller.record.as_ref();
                record.is_some_and(|r| {
                    r.failures == 1
                        && r.not_before.is_some()
                        && r.last.as_ref().is_some_and(|l| {
                            l.reason == "PrepareFailed" && l.message.contains("the repository did not answer")
                        })
                })
            })
        })
        .await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;

    let attempts = ending.history.attempts();
    let results: Vec<_> = attempts.iter().filter_map(|a| a.result.as_deref()).collect();
    assert_eq!(results, ["PrepareFailed", UPDATED]);
    // Until the second attempt only the host was affected.
    let second = attempts[1].started;
    let touched = ending.history.changes().iter().filter(|c| c.at < second).any(|c| match &c.object {
        Object::Node(node) => node.claimed(),
        Object::Operator(operator) => !operator.status.slots.is_empty(),
        _ => false,
    });
    assert!(!touched, "a node that cannot download is neither cordoned nor given a slot");
    let world = ending.world();
    let record = shadow_of(&world, "node-1").unwrap().status.controller.record.clone().unwrap();
    assert_eq!((record.failures, record.version_failures.len()), (0, 0), "a success clears the node's failures");
    assert_ne!(world.operator_condition("Frozen").unwrap().status, ConditionStatus::True);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_booted_after_failed_first_arming() -> anyhow::Result<()> {
    let mut options = TestClusterOptions { ..nodes(1) };
    options.policy["failurePolicy"] = json!({"backOff": "1s"});
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        let host = &ctx.bed.member("node-1")?.host;
        host.script(Fault::fails(Command::Activate, "the partition table is busy\n"));
        ctx.release();
        ctx.updated().await?;
        let tries = host.log().iter().filter(|event| is_activate(event)).count();
        assert!(tries >= 2, "the fault was there to be met: {tries}");
        Ok(())
    })
    .await?;
    let last = ending.history.attempts().pop().unwrap();
    assert!(last.updated(), "{last:?}");
    assert_eq!(ending.verdict.stats.arms, 1, "armed once, by the try that succeeded");
    assert_eq!(ending.verdict.stats.reboots, 1);
    Ok(())
}
