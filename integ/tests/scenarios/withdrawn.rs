//! Withdrawn desired states and expired permits: none of them may take effect.

use std::time::Duration;

use deploy::Component;
use integ::host::{Command, Fault, Worker};
use models::names::HOLD_ANNOTATION;
use models::shadow::{HostState, UPDATED};
use nix::sys::signal::Signal;

use crate::interfere::{
    agent_on, blocked_drain, finish_command, is_activate, is_armed, permit_of, released,
    request_permit_with_stopped_controllers, resume_controllers, signal, unblock, until_host, withdraw,
};
use crate::support::{NEW, ScenarioContext, ScenarioResult, is_released, nodes, run, shadow_of};

/// The reasons of the ends of one node's attempts.
fn reasons(ending: &ScenarioResult, node: &str) -> Vec<String> {
    ending.history.results(node).into_iter().map(|(_, reason)| reason).collect()
}

/// Waits until the agent has confirmed that it carries out no desired state and that nothing of the operator is armed.
async fn confirmed(ctx: &ScenarioContext, node: &str) -> anyhow::Result<()> {
    ctx.until("the agent has confirmed the withdrawal", |world| {
        shadow_of(world, node).is_some_and(|shadow| {
            let agent = &shadow.status.agent;
            shadow.spec.state == HostState::Idle && agent.state == Some(HostState::Idle) && agent.armed.is_none()
        })
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: tests of the agent's permits"]
async fn resumed_agent_does_nothing_after_its_attempt_ended_without_permit() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        target = blocked_drain(ctx).await?;
        request_permit_with_stopped_controllers(ctx, &target).await?;
        let agent = agent_on(ctx, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        let hold = |value: &str| format!("{HOLD_ANNOTATION}{value}");
        ctx.kubectl(&["annotate", "node", &target, &hold("=test")]).await?;
        resume_controllers(ctx);
        // No permit was issued, so there is nothing to wait for: the silent agent does not delay the end of the
        // attempt.
        let world = ctx
            .until("the attempt has ended", |world| {
                shadow_of(world, &target).is_some_and(|shadow| shadow.step().is_none())
            })
            .await?;
        anyhow::ensure!(permit_of(&world, &target).is_none());

        let host = &ctx.bed.member(&target)?.host;
        let boot = host.snapshot().boot_id;
        signal(&[agent], Signal::SIGCONT);
        confirmed(ctx, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot && !host.log().iter().any(is_activate), "the agent acted");
        // The claim that the hold kept is the operator's again when the hold is removed, until it is released.
        ctx.until("the other node has had its turn", |world| {
            let slots = world.operator.as_ref().is_none_or(|operator| !operator.status.slots.is_empty());
            let updated = world.shadows.values().any(|s| s.status.agent.current_version == Some(NEW));
            updated && !slots
        })
        .await?;
        ctx.kubectl(&["annotate", "node", &target, &hold("-")]).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["Held", UPDATED]);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.permits, stats.arms, stats.reboots), (2, 2, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_permit_is_ignored_after_desired_state_is_withdrawn() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        target = blocked_drain(ctx).await?;
        request_permit_with_stopped_controllers(ctx, &target).await?;
        let agent = agent_on(ctx, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        resume_controllers(ctx);
        ctx.until("the permit is issued", |world| permit_of(world, &target).is_some()).await?;
        withdraw(ctx, &target).await?;

        let host = &ctx.bed.member(&target)?.host;
        let boot = host.snapshot().boot_id;
        signal(&[agent], Signal::SIGCONT);
        confirmed(ctx, &target).await?;
        released(ctx, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot, "the host was rebooted on a withdrawn order");
        anyhow::ensure!(!is_armed(host), "the host was released with an image armed");
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_stopped_during_arming_disarms_host_after_withdrawal() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        target = blocked_drain(ctx).await?;
        let host = &ctx.bed.member(&target)?.host;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(ctx).await?;
        until_host(host, "the host is asked to arm", is_activate).await?;
        let agent = agent_on(ctx, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        withdraw(ctx, &target).await?;
        finish_command(host).await?;
        anyhow::ensure!(is_armed(host), "the image is armed while the agent sleeps");
        let boot = host.snapshot().boot_id;
        let world = ctx.bed.recorder.so_far()?.end();
        anyhow::ensure!(world.nodes[&target].claimed(), "a node that may still reboot is not released");

        signal(&[agent], Signal::SIGCONT);
        released(ctx, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot, "the host was rebooted on a withdrawn order");
        anyhow::ensure!(!is_armed(host), "the host was released with an image armed");
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots), (3, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_killed_during_arming_disarms_host_after_restart_and_withdrawal() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        target = blocked_drain(ctx).await?;
        let member = ctx.bed.member(&target)?;
        let host = &member.host;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(ctx).await?;
        until_host(host, "the host is asked to arm", is_activate).await?;
        // Stopped first, so that nothing of the restarted agent arrives before the desired state is withdrawn.
        let agent = agent_on(ctx, &target).await?;
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        withdraw(ctx, &target).await?;
        finish_command(host).await?;
        let boot = host.snapshot().boot_id;
        signal(&[agent], Signal::SIGKILL);
        released(ctx, &target).await?;
        anyhow::ensure!(host.snapshot().boot_id == boot, "the host was rebooted on a withdrawn order");
        anyhow::ensure!(!is_armed(host), "the host was released with an image armed");
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}

/// Time after the last permit at which a node with a silent agent is released: the permit's life and the longest
/// shutdown.
const CERTAIN_TIMEOUT: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all: minutes"]
async fn resumed_agent_disarms_host_of_released_node_without_reboot() -> anyhow::Result<()> {
    let mut target = String::new();
    let ending = run(nodes(2), async |ctx| {
        target = blocked_drain(ctx).await?;
        let host = &ctx.bed.member(&target)?.host;
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(ctx).await?;
        until_host(host, "the host is asked to arm", is_activate).await?;
        let agents = ctx.bed.processes_of(Component::Agent);
        let agent = agent_on(ctx, &target).await?;
        anyhow::ensure!(agents.contains(&agent));
        signal(std::slice::from_ref(&agent), Signal::SIGSTOP);
        withdraw(ctx, &target).await?;
        finish_command(host).await?;
        let boot = host.snapshot().boot_id;
        ctx.bed.wait_state("the node is released", CERTAIN_TIMEOUT, |world| is_released(world, &target)).await?;
        anyhow::ensure!(is_armed(host), "there was no agent to disarm the host");
        signal(&[agent], Signal::SIGCONT);
        confirmed(ctx, &target).await?;
        anyhow::ensure!(
            !is_armed(host) && host.snapshot().boot_id == boot,
            "the agent has disarmed the host and no more"
        );
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(reasons(&ending, &target), ["RebootTimedOut", UPDATED]);
    assert_eq!(ending.verdict.stats.reboots, 2);
    Ok(())
}
