//! The leader killed at every step of an update.

use std::collections::BTreeSet;
use std::time::Duration;

use integ::host::{Command, Fault, Host, Worker};
use integ::oracle::ClusterState;
use models::names::{RELEASE_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::shadow::{HostState, Step, UPDATED};
use nix::sys::signal::Signal;
use semver::Version;

use crate::crashes::PATIENCE;
use crate::interfere::{finish_command, is_activate, poll, release_into_blocked_drain, signal, unblock, until_host};
use crate::leaders::{leader, two_controllers};
use crate::support::{NEW, ScenarioContext, other, run, shadow_of, step_of};

const BOTH: [&str; 2] = ["node-1", "node-2"];

/// The steps in which a leader was killed.
type Killed = BTreeSet<&'static str>;

/// Kills the leader while a node is in a step, in which the scenario holds it.
async fn kill_leader_in(ctx: &ScenarioContext, node: &str, step: Step, killed: &mut Killed) -> anyhow::Result<()> {
    ctx.until_step(node, step).await?;
    let process = leader(ctx).await?;
    signal(std::slice::from_ref(&process), Signal::SIGKILL);
    poll("the leader is gone", async || Ok((!ctx.bed.processes().iter().any(|p| p.pid == process.pid)).then_some(())))
        .await?;
    let at = step_of(&ctx.bed.recorder.so_far()?.end(), node);
    anyhow::ensure!(at == Some(step), "{node} was in {at:?} when the leader was killed, not in {step:?}");
    killed
        .extend(BOTH.iter().filter_map(|node| step_of(&ctx.bed.recorder.so_far().ok()?.end(), node)).map(Step::as_str));
    Ok(())
}

/// Waits until a host prepares an update.
async fn until_downloading(host: &Host) -> anyhow::Result<()> {
    poll("the host downloads", async || Ok((host.snapshot().running_command == Some(Command::Prepare)).then_some(())))
        .await
}

/// The node that is in a step.
async fn node_in(ctx: &ScenarioContext, step: Step) -> anyhow::Result<&'static str> {
    let find = |world: &ClusterState| BOTH.into_iter().find(|node| step_of(world, node) == Some(step));
    let world = ctx.until(&format!("a node is in {step:?}"), |world| find(world).is_some()).await?;
    find(&world).ok_or_else(|| anyhow::anyhow!("just seen"))
}

#[tokio::test(flavor = "multi_thread")]
async fn update_completes_after_leader_kill_at_each_step() -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    let mut killed = Killed::new();
    let (mut first, mut released) = ("", "");
    let mut options = two_controllers(2);
    options.timings.boot = Duration::from_secs(4);
    options.policy["health"]["after"]["soak"] = serde_json::json!("3s");
    options.policy["loadBalancer"] = serde_json::json!({"leaveBeforeDrain": "4m"});
    let ending = run(options, async |ctx| {
        ctx.guarded_shop(4).await?;
        ctx.install().await?;
        for member in &ctx.bed.members {
            member.host.script(Fault::command(Command::Prepare, Worker::Waits));
        }
        ctx.release();
        for member in &ctx.bed.members {
            until_downloading(&member.host).await?;
        }
        kill_leader_in(ctx, "node-1", Step::Staging, &mut killed).await?;
        for member in &ctx.bed.members {
            finish_command(&member.host).await?;
        }
        let leaving = node_in(ctx, Step::LeavingLoadBalancer).await?;
        kill_leader_in(ctx, leaving, Step::LeavingLoadBalancer, &mut killed).await?;
        ctx.policy(&serde_json::json!({"loadBalancer": null})).await?;
        first = if release_into_blocked_drain(ctx).await? == "node-1" { "node-1" } else { "node-2" };
        let other = other(first);
        kill_leader_in(ctx, other, Step::Staged, &mut killed).await?;
        anyhow::ensure!(killed.contains("Draining"), "{first} is held in its drain meanwhile");
        let host = ctx.bed.member(first)?.host.clone();
        host.script(Fault::command(Command::Activate, Worker::Waits));
        unblock(ctx).await?;
        until_host(&host, "the host is asked to arm", is_activate).await?;
        kill_leader_in(ctx, first, Step::Rebooting, &mut killed).await?;
        finish_command(&host).await?;
        kill_leader_in(ctx, first, Step::Verifying, &mut killed).await?;
        ctx.bed.wait_updated(&NEW, PATIENCE).await?;

        // A user requests the release of the next one after its permit, and then a client reboots one that is
        // verified.
        for member in &ctx.bed.members {
            member.host.script(Fault::command(Command::Activate, Worker::Waits));
        }
        ctx.bed.releases.publish(NEWER);
        released = node_in(ctx, Step::Rebooting).await?;
        let host = ctx.bed.member(released)?.host.clone();
        poll("the host arms", async || Ok((host.snapshot().running_command == Some(Command::Activate)).then_some(())))
            .await?;
        let annotation = format!("{RELEASE_ANNOTATION}=now");
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "brs", &shadow_name(released), &annotation]).await?;
        kill_leader_in(ctx, released, Step::Releasing, &mut killed).await?;
        ctx.until("the order is withdrawn", |world| {
            shadow_of(world, released).is_some_and(|shadow| shadow.spec.state == HostState::Idle)
        })
        .await?;
        finish_command(&host).await?;
        let other = crate::support::other(released);
        let host = ctx.bed.member(other)?.host.clone();
        poll("the other host arms", async || {
            Ok((host.snapshot().running_command == Some(Command::Activate)).then_some(()))
        })
        .await?;
        finish_command(&host).await?;
        ctx.until_step(other, Step::Verifying).await?;
        host.foreign_reboot().await;
        kill_leader_in(ctx, other, Step::Returning, &mut killed).await?;
        ctx.bed.wait_updated(&NEWER, PATIENCE).await?;
        ctx.shop_is_ready(4).await
    })
    .await?;
    // The waits for hooks have a scenario of their own (`hooks`).
    let of_update = Step::ALL
        .into_iter()
        .filter(|step| !step.is_of_drills_alone() && !matches!(step, Step::BeforeDrain | Step::AfterUpdate));
    assert_eq!(killed, of_update.map(Step::as_str).collect::<Killed>());
    for node in BOTH {
        let all = ending.history.results(node);
        let withdrawn = (node == released).then_some((NEWER, "ReleaseRequested"));
        let expected = [(NEW, UPDATED)].into_iter().chain(withdrawn).chain([(NEWER, UPDATED)]);
        let expected: Vec<_> = expected.map(|(version, end)| (version, end.to_owned())).collect();
        assert_eq!(all, expected, "{node}; {first} was first");
    }
    let stats = &ending.verdict.stats;
    assert_eq!((stats.arms, stats.reboots, stats.out_of_service), (5, 4, 1), "nothing was done twice");
    Ok(())
}
