//! Withdrawn desired states and expired permits: none of them may take effect.

use std::time::Duration;

use anyhow::Context as _;
use deploy::Component;
use integ::host::{Command, Fault, Worker};
use models::names::HOLD_ANNOTATION;
use models::permit::PERMIT_LIFETIME;
use models::shadow::{HostState, UPDATED};
use nix::sys::signal::Signal;

use crate::interfere::{
    agent_on, ask_unheard, blocked_drain, continue_controllers, finish_command, is_activate, is_armed, permit_of,
    released, signal, unblock, until_host, withdraw,
};
use crate::support::{Ending, NEW, Scene, is_released, nodes, results, run, shadow_of};

/// The reasons of the ends of one node's attempts.
fn reasons(ending: &Ending, node: &str) -> Vec<String> {
    results(&ending.history, node).into_iter().map(|(_, reason)| reason).collect()
}

/// Waits until the agent has confirmed that it carries out no desired state and that nothing of the operator is armed.
async fn confirmed(scene: &Scene, node: &str) -> anyhow::Result<()> {
    scene
        .until("the agent has confirmed the withdrawal", |world| {
            shadow_of(world, node).is_some_and(|shadow| {
                let agent = &shadow.status.agent;
                shadow.spec.state == HostState::Idle && agent.state == Some(HostState::Idle) && agent.armed.is_none()
            })
        })
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_slept_through_the_withdrawal_of_an_order_without_a_permit_does_nothing_after_the_attempt()
-> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        ask_unheard(scene, &target).await?;
        let agent = agent_on(scene, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        let hold = |value: &str| format!("{HOLD_ANNOTATION}{value}");
        scene.kubectl(&["annotate", "node", &target, &hold("=test")]).await?;
        continue_controllers(scene);
        // No permit was issued, so there is nothing to wait for: the silent agent does not delay the end of the
        // attempt.
        let world = scene
            .until("the attempt has ended", |world| {
                shadow_of(world, &target).is_some_and(|shadow| shadow.step().is_none())
            })
            .await?;
        anyhow::ensure!(permit_of(&world, &target).is_none());

        let host = &scene.bed.member(&target)?.host;
        let boot = host.snapshot().boot_id;
        signal(&[agent], Signal::SIGCONT);
        confirmed(scene, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot && !host.log().iter().any(is_activate), "the agent acted");
        // The claim that the hold kept is the operator's again when the hold is removed, until it is released.
        scene
            .until("the other node has had its turn", |world| {
                let slots = world.operator.as_ref().is_none_or(|operator| !operator.status.slots.is_empty());
                let updated = world.shadows.values().any(|s| s.status.agent.current_version == Some(NEW));
                updated && !slots
            })
            .await?;
        scene.kubectl(&["annotate", "node", &target, &hold("-")]).await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["Held", UPDATED]);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.permits, stats.arms, stats.reboots), (2, 2, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_was_not_read_before_its_order_was_withdrawn_reboots_nothing() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        ask_unheard(scene, &target).await?;
        let agent = agent_on(scene, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        continue_controllers(scene);
        scene.until("the permit is issued", |world| permit_of(world, &target).is_some()).await?;
        withdraw(scene, &target).await?;

        let host = &scene.bed.member(&target)?.host;
        let boot = host.snapshot().boot_id;
        signal(&[agent], Signal::SIGCONT);
        confirmed(scene, &target).await?;
        released(scene, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot, "the host was rebooted on a withdrawn order");
        anyhow::ensure!(!is_armed(host), "the host was released with an image armed");
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_stalled_while_its_host_arms_disarms_when_the_order_is_gone() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        let host = &scene.bed.member(&target)?.host;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(scene).await?;
        until_host(host, "the host is asked to arm", is_activate).await?;
        let agent = agent_on(scene, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        withdraw(scene, &target).await?;
        finish_command(host).await?;
        anyhow::ensure!(is_armed(host), "the image is armed while the agent sleeps");
        let boot = host.snapshot().boot_id;
        let world = scene.bed.recorder.so_far()?.end();
        anyhow::ensure!(world.nodes[&target].claimed(), "a node that may still reboot is not released");

        signal(&[agent], Signal::SIGCONT);
        released(scene, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot, "the host was rebooted on a withdrawn order");
        anyhow::ensure!(!is_armed(host), "the host was released with an image armed");
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots), (3, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_while_its_host_arms_disarms_after_its_restart_when_the_order_is_gone() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        let member = scene.bed.member(&target)?;
        let host = &member.host;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(scene).await?;
        until_host(host, "the host is asked to arm", is_activate).await?;
        // Stopped first, so that nothing of the restarted agent arrives before the desired state is withdrawn.
        let agent = agent_on(scene, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        withdraw(scene, &target).await?;
        finish_command(host).await?;
        let boot = host.snapshot().boot_id;
        signal(&[agent], Signal::SIGKILL);
        released(scene, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot, "the host was rebooted on a withdrawn order");
        anyhow::ensure!(!is_armed(host), "the host was released with an image armed");
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_outlived_its_nonce_is_not_used_and_the_agent_asks_again() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        ask_unheard(scene, &target).await?;
        let agent = agent_on(scene, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        continue_controllers(scene);
        let world = scene.until("the permit is issued", |world| permit_of(world, &target).is_some()).await?;
        let first = permit_of(&world, &target).context("just seen")?.to_owned();
        // The test is about the passing of time itself.
        tokio::time::sleep(PERMIT_LIFETIME + Duration::from_secs(1)).await;
        let host = &scene.bed.member(&target)?.host;
        signal(&[agent], Signal::SIGCONT);
        until_host(host, "the host is asked to arm", is_activate).await?;
        // The host's log may be ahead of the recorder; that each arming had its own permit is counted below.
        scene
            .until("the agent has armed on another permit", |world| {
                permit_of(world, &target).is_some_and(|permit| permit != first.as_str())
            })
            .await?;
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), [UPDATED]);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.permits, stats.arms, stats.reboots), (3, 2, 2));
    Ok(())
}

/// Time after the last permit at which a node with a silent agent is released: the permit's life and the longest
/// shutdown.
const CERTAIN: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_agent_whose_node_was_released_disarms_and_reboots_nothing_when_it_comes_to_life() -> anyhow::Result<()>
{
    let mut target = String::new();
    let ending = run(nodes(2), async |scene| {
        target = blocked_drain(scene).await?;
        let host = &scene.bed.member(&target)?.host;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(scene).await?;
        until_host(host, "the host is asked to arm", is_activate).await?;
        let agents = scene.bed.processes_of(Component::Agent);
        let agent = agent_on(scene, &target).await?;
        anyhow::ensure!(agents.contains(&agent));
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        withdraw(scene, &target).await?;
        finish_command(host).await?;
        let boot = host.snapshot().boot_id;
        scene.bed.wait("the node is released", CERTAIN, |history| is_released(&history.end(), &target)).await?;
        anyhow::ensure!(is_armed(host), "no one was there to disarm the host");
        signal(&[agent], Signal::SIGCONT);
        confirmed(scene, &target).await?;
        anyhow::ensure!(
            !is_armed(host) && host.snapshot().boot_id == boot,
            "the agent has disarmed the host and no more"
        );
        scene.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}
