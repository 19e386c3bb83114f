//! A policy that changes, or is deleted, during a rollout.

use std::time::Duration;

use integ::bed::BedOptions;
use integ::host::Timings;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::shadow::{HostState, Step};
use serde_json::json;

use super::support::{is_released, is_updated, last_reason, other, record};
use crate::interfere::{blocked_drain, permit_of, unblock};
use crate::policy::{create_policy, wait_for};
use crate::support::{NEW, OLD, nodes, run, shadow_of, status, step_of};

/// Two nodes, of which the one without a slot is staged all the same.
pub(super) fn both_have_their_image() -> BedOptions {
    let mut options = nodes(2);
    options.policy["strategy"] = json!({"preStage": {}});
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_excluded_in_mid_rollout_is_given_up_where_no_node_is_touched_and_finished_where_one_is()
-> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(both_have_their_image(), async |scene| {
        let node = blocked_drain(scene).await?;
        let staged = other(&node);
        scene.until_step(staged, Step::Staged).await?;

        scene.policy(&json!({"version": {"exclude": ["1.20.5"]}})).await?;
        let world = scene
            .until("the staged node's attempt is given up", |world| {
                is_released(world, staged)
                    && shadow_of(world, staged).is_some_and(|shadow| shadow.spec.state == HostState::Idle)
                    && last_reason(world, staged).as_deref() == Some("PolicyChanged")
                    && wait_for(world, "Excluded", 1)
            })
            .await?;
        let charged = record(&world, staged);
        assert_eq!(
            (charged.failures, charged.not_before, charged.version_failures),
            (0, None, vec![]),
            "no one's fault"
        );
        assert_eq!(step_of(&world, &node), Some(Step::Draining), "who has started keeps its version");

        unblock(scene).await?;
        let world = scene.until("the running update has ended", |world| is_updated(world, &node)).await?;
        assert_eq!(shadow_of(&world, staged).unwrap().status.agent.current_version, Some(OLD));
        scene.policy(&json!({"version": {"exclude": null}})).await?;
        scene.updated().await?;
        target = staged.to_owned();
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let results = |of_target: bool| -> Vec<_> {
        attempts.iter().filter(|a| (a.node == target) == of_target).map(|a| a.result.as_deref()).collect()
    };
    assert_eq!(results(true), [Some("PolicyChanged"), Some("Updated")]);
    assert_eq!(results(false), [Some("Updated")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_resource_a_node_past_its_permit_goes_on_and_no_other_starts_until_there_is_a_new_one()
-> anyhow::Result<()> {
    let mut options = both_have_their_image();
    // Long enough to delete the resource meanwhile.
    options.timings = Timings { boot: Duration::from_secs(5), ..Timings::instant() };
    let mut target = String::new();
    let ending = run(options, async |scene| {
        let node = blocked_drain(scene).await?;
        let staged = other(&node);
        scene.until_step(staged, Step::Staged).await?;
        unblock(scene).await?;
        scene.until("the node has its permit", |world| permit_of(world, &node).is_some()).await?;
        scene.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", OPERATOR_NAME]).await?;
        // Without a policy the soak is a minute, as documented.
        let world = scene
            .until("the node is back and watched, and the other one's attempt is given up", |world| {
                step_of(world, &node) == Some(Step::Monitoring)
                    && !world.nodes[&node].claimed()
                    && shadow_of(world, &node).is_some_and(|s| s.status.agent.current_version == Some(NEW))
                    && last_reason(world, staged).as_deref() == Some("Disabled")
                    && is_released(world, staged)
            })
            .await?;
        assert!(world.operator.is_none());
        assert_eq!(shadow_of(&world, staged).unwrap().spec.state, HostState::Idle);
        scene.renewals(2).await?;
        let world = scene.bed.recorder.so_far()?.end();
        assert!(is_released(&world, staged), "nothing starts");

        create_policy(scene, &json!({})).await?;
        scene.updated().await?;
        target = node;
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let results = |of_target: bool| -> Vec<_> {
        attempts.iter().filter(|a| (a.node == target) == of_target).map(|a| a.result.as_deref()).collect()
    };
    assert_eq!(results(true), [Some("Updated")]);
    assert_eq!(results(false), [Some("Disabled"), Some("Updated")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_is_made_again_during_a_reboot_gets_the_slot_of_the_node() -> anyhow::Result<()> {
    let mut options = both_have_their_image();
    // Long enough to delete the resource and to create it again meanwhile.
    options.timings = Timings { boot: Duration::from_secs(5), ..Timings::instant() };
    let mut target = String::new();
    let ending = run(options, async |scene| {
        let node = blocked_drain(scene).await?;
        scene.until_step(other(&node), Step::Staged).await?;
        unblock(scene).await?;
        scene.until("the node has its permit", |world| permit_of(world, &node).is_some()).await?;
        scene.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", OPERATOR_NAME]).await?;
        create_policy(scene, &json!({})).await?;
        scene
            .until("the new resource names the slot", |world| status(world).slots.iter().any(|slot| slot.node == node))
            .await?;
        scene.updated().await?;
        target = node;
        Ok(())
    })
    .await?;
    let of_target = |attempt: &&integ::oracle::Attempt| attempt.node == target;
    let attempts = ending.history.attempts();
    let results: Vec<_> = attempts.iter().filter(of_target).map(|attempt| attempt.result.as_deref()).collect();
    assert_eq!(results, [Some("Updated")]);
    Ok(())
}
