//! Endings of a drain: it is cleaned up, whatever happens during it.

use models::names::{RELEASE_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::shadow::Step;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::fleet::Case;

crate::cases![
    node_rebooted_by_other_client_during_drain_is_released,
    node_with_power_loss_during_drain_is_released,
    release_request_ends_attempt_without_back_off,
    node_deletion_during_drain_frees_slot,
    update_continues_when_stopped_agent_resumes_after_drain,
];

async fn node_rebooted_by_other_client_during_drain_is_released(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.member()?.host.foreign_reboot().await;
    case.failed("RebootedByOther").await?;
    assert!(!case.state()?.is_charged() && !case.state()?.cordoned());
    let record = case.state()?.shadow().and_then(|shadow| shadow.status.controller.record.clone());
    assert!(record.is_some_and(|record| record.not_before.is_some()), "the next attempt waits");
    case.unblock_drain().await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

async fn node_with_power_loss_during_drain_is_released(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.member()?.host.power_loss().await;
    case.failed("RebootedByOther").await?;
    assert!(!case.state()?.is_charged());
    case.unblock_drain().await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

fn signal(case: &Case, signal: Signal) -> anyhow::Result<()> {
    let agents = case.agents()?;
    anyhow::ensure!(!agents.is_empty(), "no agent runs on {}", case.node);
    for agent in agents {
        killpg(Pid::from_raw(i32::try_from(agent.pid)?), signal)?;
    }
    Ok(())
}

async fn update_continues_when_stopped_agent_resumes_after_drain(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    signal(&case, Signal::SIGSTOP)?;
    case.unblock_drain().await?;
    case.until("the node is drained", |state| state.step() == Some(Step::Rebooting)).await?;
    signal(&case, Signal::SIGCONT)?;
    case.updated().await?;
    Ok(())
}

async fn release_request_ends_attempt_without_back_off(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    let release = format!("{RELEASE_ANNOTATION}=now");
    case.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "brs", &shadow_name(&case.node), &release]).await?;
    // The next attempt may have begun by now: nothing makes it wait.
    let ended = case
        .until("the attempt ends with ReleaseRequested", |state| {
            state.last().is_some_and(|(last, _)| last == "ReleaseRequested")
        })
        .await?;
    assert!(!ended.is_charged());
    case.unblock_drain().await?;
    case.updated().await?;
    Ok(())
}

async fn node_deletion_during_drain_frees_slot(case: Case) -> anyhow::Result<()> {
    case.start_blocked_drain(1).await?;
    case.kubectl(&["delete", "node", &case.node]).await?;
    case.until("its slot is free and its shadow gone", |state| {
        !state.has_slot() && !state.world.shadows.contains_key(&shadow_name(&case.node))
    })
    .await?;
    // The kubelet's restart creates it again, under the same name.
    case.member()?.kubelet.register().await?;
    case.until("the node is back", |state| state.world.nodes.contains_key(&case.node)).await?;
    assert!(!case.state()?.cordoned());
    Ok(())
}
