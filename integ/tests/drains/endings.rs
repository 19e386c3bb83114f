//! Endings of a drain: it is cleaned up, whatever happens during it.

use integ::host::{Command, Fault, Worker};
use models::names::{INTERFACE_LABEL, RELEASE_ANNOTATION, SYSTEM_NAMESPACE, shadow_name};
use models::shadow::Step;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::json;

use crate::fleet::Case;

crate::cases![
    a_node_that_another_client_reboots_in_mid_drain_is_released,
    a_node_whose_host_loses_power_in_mid_drain_is_released,
    an_agent_killed_in_mid_drain_is_not_missed,
    a_release_request_ends_the_attempt_and_it_is_tried_again_without_a_back_off,
    a_node_that_loses_its_label_in_mid_drain_is_released_and_forgotten,
    a_node_that_is_deleted_in_mid_drain_holds_no_slot,
    a_host_that_cannot_be_armed_at_first_still_runs_the_new_image_in_the_end,
    a_drain_that_ends_while_the_agent_is_away_goes_on_when_it_is_back,
];

async fn a_node_that_another_client_reboots_in_mid_drain_is_released(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.member()?.host.foreign_reboot().await;
    case.failed("RebootedByOther").await?;
    assert!(!case.look()?.is_charged() && !case.look()?.cordoned());
    case.let_go().await?;
    case.retry().await?;
    case.updated().await?;
    Ok(())
}

async fn a_node_whose_host_loses_power_in_mid_drain_is_released(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.member()?.host.power_loss().await;
    case.failed("RebootedByOther").await?;
    assert!(!case.look()?.is_charged());
    case.let_go().await?;
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

async fn an_agent_killed_in_mid_drain_is_not_missed(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    signal(&case, Signal::SIGKILL)?;
    case.let_go().await?;
    case.updated().await?;
    Ok(())
}

async fn a_drain_that_ends_while_the_agent_is_away_goes_on_when_it_is_back(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    signal(&case, Signal::SIGSTOP)?;
    case.let_go().await?;
    case.until("the node is drained", |look| look.step() == Some(Step::Rebooting)).await?;
    signal(&case, Signal::SIGCONT)?;
    case.updated().await?;
    Ok(())
}

async fn a_release_request_ends_the_attempt_and_it_is_tried_again_without_a_back_off(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    let release = format!("{RELEASE_ANNOTATION}=now");
    case.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "brs", &shadow_name(&case.node), &release]).await?;
    // The next attempt may have begun by now: nothing makes it wait.
    let ended = case
        .until("the attempt ends with ReleaseRequested", |look| {
            look.last().is_some_and(|(last, _)| last == "ReleaseRequested")
        })
        .await?;
    assert!(!ended.is_charged());
    case.let_go().await?;
    case.updated().await?;
    Ok(())
}

async fn a_node_that_loses_its_label_in_mid_drain_is_released_and_forgotten(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.kubectl(&["label", "node", &case.node, &format!("{INTERFACE_LABEL}-")]).await?;
    let end = case.until("its shadow is gone", |look| look.shadow().is_none()).await?;
    assert!(!end.node().claimed() && !end.cordoned());
    Ok(())
}

async fn a_node_that_is_deleted_in_mid_drain_holds_no_slot(case: Case) -> anyhow::Result<()> {
    case.drain_held_up(1).await?;
    case.kubectl(&["delete", "node", &case.node]).await?;
    case.until("its slot is free and its shadow gone", |look| {
        !look.has_slot() && !look.world.shadows.contains_key(&shadow_name(&case.node))
    })
    .await?;
    // The kubelet's restart creates it again, under the same name.
    case.member()?.kubelet.register().await?;
    case.until("the node is back", |look| look.world.nodes.contains_key(&case.node)).await?;
    assert!(!case.look()?.cordoned());
    Ok(())
}

async fn a_host_that_cannot_be_armed_at_first_still_runs_the_new_image_in_the_end(case: Case) -> anyhow::Result<()> {
    case.deployment("web", 1, json!({})).await?;
    case.member()?.host.script(Fault::command(
        Command::Activate,
        Worker::Exits { status: 1, stderr: "no".to_owned(), overwrote: false },
    ));
    case.start_update().await?;
    case.updated().await?;
    Ok(())
}
