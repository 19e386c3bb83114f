//! Interference with an update: holding it at a known point, and stopping, continuing and killing the operator's
//! components.

use std::time::Duration;

use anyhow::Context as _;
use deploy::Component;
use integ::host::faults::Transport;
use integ::host::{Event, EventKind, Fault, Host};
use integ::kubelet::PodProcess;
use integ::oracle::ClusterState;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{Patch, PatchParams};
use models::shadow::{ArmedPhase, HostState};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use semver::Version;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};

use crate::support::{LIMIT, SHOP, ScenarioContext, is_released, shadow_of};

/// Longest duration of an update that is interrupted during evictions. The API server counts a pod against its budget
/// before it deletes it; where the caller's death cancels the request in between, the budget is one pod short until
/// Kubernetes resets it two minutes later, and the drain is rightly blocked meanwhile.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Delay of a host's status response to an agent where a scenario needs the time to act: longer than a busy machine
/// takes to see the desired state and to stop a process, shorter than the agent's timeout.
const AGENT_WAITS: Duration = Duration::from_secs(10);

/// The pause between two polls: twice the time that a poll takes, within these bounds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Sends a signal to processes of pods. One that has ended needs none.
pub(crate) fn signal(processes: &[PodProcess], signal: Signal) {
    for process in processes {
        if let Ok(pid) = i32::try_from(process.pid) {
            let _ = killpg(Pid::from_raw(pid), signal);
        }
    }
}

/// The agent's process on a node, once it runs.
pub(crate) async fn agent_on(ctx: &ScenarioContext, node: &str) -> anyhow::Result<PodProcess> {
    let kubelet = &ctx.bed.member(node)?.kubelet;
    let image = deploy::image(Component::Agent, &ctx.bed.options.deploy);
    poll(&format!("an agent runs on {node}"), async || {
        Ok(kubelet.processes().into_iter().find(|process| process.image == image))
    })
    .await
}

/// Polls until there is a result, for what neither the API server's history nor a host's log shows.
pub(crate) async fn poll<T>(what: &str, mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let began = Instant::now();
        if let Some(found) = look().await? {
            return Ok(found);
        }
        anyhow::ensure!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        // One that runs a program leaves the processors to what it waits for.
        let pause = 2 * began.elapsed();
        tokio::time::sleep(pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
    }
}

/// Waits until a host has seen an event.
pub(crate) async fn until_host(host: &Host, what: &str, mut seen: impl FnMut(&Event) -> bool) -> anyhow::Result<()> {
    let mut live = host.subscribe();
    if host.log().iter().any(&mut seen) {
        return Ok(());
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        match timeout_at(deadline, live.recv()).await.with_context(|| format!("not within {PATIENCE:?}: {what}"))? {
            Ok(event) if seen(&event) => return Ok(()),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => anyhow::bail!("the host has ended before: {what}"),
        }
    }
}

/// Returns true for a request to arm the staged image.
pub(crate) fn is_activate(event: &Event) -> bool {
    is_call(event, "/actions/activate-update")
}

/// Returns true for a request for an action.
pub(crate) fn is_call(event: &Event, action: &str) -> bool {
    matches!(&event.kind, EventKind::Call { method, path, .. } if method == "POST" && path == action)
}

/// Lets a waiting command end, and returns when it has.
pub(crate) async fn finish_command(host: &Host) -> anyhow::Result<()> {
    poll("the host's command ends", async || {
        // The host may have answered the request before it began to wait.
        host.release_command();
        Ok(host.snapshot().running_command.is_none().then_some(()))
    })
    .await
}

/// Returns true if a host's next boot takes another image than the running one.
pub(crate) fn is_armed(host: &Host) -> bool {
    let disk = host.snapshot().disk;
    disk.next() != Some(disk.active)
}

/// Starts the update and blocks it in the drain: a budget lets none of the workload's pods go. Returns the node.
pub(crate) async fn blocked_drain(ctx: &ScenarioContext) -> anyhow::Result<String> {
    ctx.guarded_shop(2 * ctx.bed.members.len()).await?;
    ctx.install().await?;
    release_into_blocked_drain(ctx).await
}

/// The same with an existing workload and operator.
pub(crate) async fn release_into_blocked_drain(ctx: &ScenarioContext) -> anyhow::Result<String> {
    ctx.release();
    until_drain_is_blocked(ctx).await
}

/// The same for another version, after a drain that was unblocked.
pub(crate) async fn blocked_drain_of(ctx: &ScenarioContext, version: &Version) -> anyhow::Result<String> {
    ctx.spread_shop().await?;
    ctx.guarded_shop(2 * ctx.bed.members.len()).await?;
    ctx.bed.releases.publish(version.clone());
    until_drain_is_blocked(ctx).await
}

async fn until_drain_is_blocked(ctx: &ScenarioContext) -> anyhow::Result<String> {
    let world = ctx.until("a drain is blocked by the budget", |world| blocked_node(world).is_some()).await?;
    blocked_node(&world).context("just seen")
}

fn blocked_node(world: &ClusterState) -> Option<String> {
    let blocked = |name: &&String| {
        shadow_of(world, name)
            .and_then(|shadow| shadow.status.controller.drain.as_ref())
            .is_some_and(|drain| !drain.blockers.is_empty())
    };
    world.nodes.keys().find(blocked).cloned()
}

/// Unblocks the drain of [`blocked_drain`].
pub(crate) async fn unblock(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(ctx.bed.client.clone(), SHOP);
    let open = json!({"spec": {"minAvailable": 0}});
    budgets.patch("web", &PatchParams::default(), &Patch::Merge(open)).await?;
    Ok(())
}

/// Brings the update of the node of [`blocked_drain`] to where its agent has requested a permit that is not issued: the
/// controllers are stopped, and have to be continued.
pub(crate) async fn request_permit_with_stopped_controllers(ctx: &ScenarioContext, node: &str) -> anyhow::Result<()> {
    // A new desired state makes the agent read its host's status first. While it waits for the response the controllers
    // are stopped.
    let slow = Fault::request("GET", "/updates/status", Transport::Slow(AGENT_WAITS));
    ctx.bed.member(node)?.host.script(slow);
    unblock(ctx).await?;
    ctx.until("the node is ordered to reboot", |world| {
        shadow_of(world, node).is_some_and(|shadow| shadow.spec.state == HostState::RebootedIntoUpdate)
    })
    .await?;
    signal(&ctx.bed.processes_of(Component::Controller), Signal::SIGSTOP);
    let world = ctx.until("the agent requests a permit", |world| asks(world, node)).await?;
    anyhow::ensure!(permit_of(&world, node).is_none(), "the controllers were stopped too late, the permit is issued");
    Ok(())
}

/// Continues stopped controllers.
pub(crate) fn resume_controllers(ctx: &ScenarioContext) {
    signal(&ctx.bed.processes_of(Component::Controller), Signal::SIGCONT);
}

/// Returns true if the agent of a node requests a permit.
fn asks(world: &ClusterState, node: &str) -> bool {
    shadow_of(world, node).is_some_and(|shadow| {
        let armed = shadow.status.agent.armed.as_ref();
        armed.is_some_and(|a| a.attempt == shadow.spec.attempt && a.phase == ArmedPhase::Arming)
    })
}

/// The nonce of a permit.
pub(crate) fn permit_of<'a>(world: &'a ClusterState, node: &str) -> Option<&'a str> {
    shadow_of(world, node)?.permit_nonce()
}

/// Sets the deadline from the desired state to reboot to the new boot.
pub(crate) async fn reboot_deadline(ctx: &ScenarioContext, limit: &str) -> anyhow::Result<()> {
    ctx.policy(&json!({"deadlines": {"reboot": limit}})).await
}

/// Lets the desired state to reboot be withdrawn after its permit, by its deadline. Later attempts have time again.
pub(crate) async fn withdraw(ctx: &ScenarioContext, node: &str) -> anyhow::Result<()> {
    reboot_deadline(ctx, "1s").await?;
    ctx.until("the order is withdrawn", |world| {
        shadow_of(world, node).is_some_and(|shadow| shadow.spec.state == HostState::Idle)
    })
    .await?;
    reboot_deadline(ctx, "30m").await
}

/// Waits until a node has no attempt under way and nothing of the operator on it.
pub(crate) async fn released(ctx: &ScenarioContext, node: &str) -> anyhow::Result<ClusterState> {
    ctx.until("the node is released", |world| is_released(world, node)).await
}
