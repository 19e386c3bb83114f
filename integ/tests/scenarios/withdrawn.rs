//! A desired state that is withdrawn while its agent is stopped: it may not take effect.

use integ::host::{Command, Fault, Worker};
use models::shadow::UPDATED;
use nix::sys::signal::Signal;

use crate::interfere::{
    agent_on, blocked_drain, finish_command, is_activate, is_armed, released, signal, unblock, until_host, withdraw,
};
use crate::support::{nodes, run};

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
    let reasons: Vec<_> = ending.history.results(&target).into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, ["RebootTimedOut", UPDATED]);
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots), (3, 2));
    Ok(())
}
