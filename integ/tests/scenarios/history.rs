//! The history of rollouts: compared row by row with the oracle's own record of the run, under kills of every leader.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use integ::rollout_history::{Recorded, ensure_rows_equal_run, objects, with_phases};
use kube::api::ListParams;
use models::history::{EntryKind, RolloutPhase};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::commands::{output_text, plugin};
use crate::interfere::{PATIENCE, poll, signal};
use crate::support::{NEW, SHOP, ScenarioContext};

/// Has the controller remove the records of ended rollouts, with their pages.
pub(crate) async fn remove_ended(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.policy(&json!({"rolloutHistory": {"records": 0}})).await?;
    poll("no record of an ended rollout is left", async || {
        Ok(objects(&ctx.bed.client).list_metadata(&ListParams::default()).await?.items.is_empty().then_some(()))
    })
    .await
}

/// Waits until so many rollouts are recorded as completed.
pub(crate) async fn until_recorded(ctx: &ScenarioContext, number: usize) -> anyhow::Result<()> {
    until_phases(ctx, "the rollouts are recorded as completed", &vec![RolloutPhase::Completed; number]).await.map(drop)
}

/// Waits until there are records with exactly these phases, in the order of their numbers.
async fn until_phases(ctx: &ScenarioContext, what: &str, phases: &[RolloutPhase]) -> anyhow::Result<Vec<Recorded>> {
    poll(what, async || with_phases(&ctx.bed.client, phases).await).await
}

/// The boots of each host, in their order.
fn boots(ctx: &ScenarioContext) -> BTreeMap<String, Vec<String>> {
    let mut boots = BTreeMap::new();
    for member in &ctx.bed.members {
        let mut order: Vec<String> = member.host.log().into_iter().map(|event| event.boot_id).collect();
        order.dedup();
        boots.insert(member.name.clone(), order);
    }
    boots
}

/// Kills every controller as soon as anything about the history has changed, so often.
async fn kill_after_changes(ctx: &ScenarioContext, kills: usize) -> anyhow::Result<()> {
    let state = async || -> anyhow::Result<(BTreeSet<String>, Vec<String>)> {
        let objects = objects(&ctx.bed.client).list_metadata(&ListParams::default()).await?.items;
        let versions = objects.into_iter().filter_map(|object| object.metadata.resource_version).collect();
        let world = ctx.bed.recorder.now()?;
        let waiting = world.shadows.values().flat_map(|shadow| {
            let results = &shadow.status.controller.results;
            results.iter().map(|result| format!("{} {}", shadow.name, result.attempt)).collect::<Vec<_>>()
        });
        Ok((versions, waiting.collect()))
    };
    let mut before = state().await?;
    for _ in 0..kills {
        let changed = poll("the history changes", async || {
            let now = state().await?;
            let over = !now.0.is_empty() && recorded_phase(ctx).await? != Some(RolloutPhase::Running);
            Ok((now != before || over).then_some((now, over)))
        })
        .await?;
        if changed.1 {
            return Ok(());
        }
        signal(&ctx.bed.processes_of(deploy::Component::Controller), Signal::SIGKILL);
        before = changed.0;
    }
    Ok(())
}

async fn recorded_phase(ctx: &ScenarioContext) -> anyhow::Result<Option<RolloutPhase>> {
    let objects = objects(&ctx.bed.client).list(&ListParams::default()).await?.items;
    let record = objects.into_iter().find(|object| object.spec.rollout.is_some());
    Ok(record.map(|record| record.status.map_or(RolloutPhase::Running, |status| status.phase)))
}

/// Rolls a release out to so many nodes while every controller is killed after each change of the history, and compares that with the run.
pub(crate) async fn equals_the_run_although_controllers_are_killed(
    ctx: &ScenarioContext,
    nodes: i64,
) -> anyhow::Result<()> {
    ctx.release();
    kill_after_changes(ctx, 12).await?;
    ctx.bed.wait_updated(&NEW, PATIENCE).await?;
    let all = until_phases(ctx, "the rollout is recorded as completed", &[RolloutPhase::Completed]).await?;
    let verified = plugin(ctx, &["history", "--verify"]).await?;
    ensure!(verified.status.success(), "{}", output_text(&verified));
    let record = &all[0];
    let history = ctx.bed.recorder.so_far()?;
    ensure_rows_equal_run(&record.rows, &history, &boots(ctx), SHOP)?;
    let kinds = record.kinds();
    let ends = (kinds.first(), kinds.last());
    ensure!(ends == (Some(&EntryKind::Begun), Some(&EntryKind::Completed)), "{kinds:?}");
    let world = history.end();
    let mut left = world.shadows.values().flat_map(|shadow| &shadow.status.controller.results);
    ensure!(left.all(|result| record.rows.iter().any(|row| row.result == **result)), "not all are on pages");
    let pods: usize = record.rows.iter().map(|row| row.result.pods.len()).sum();
    ensure!((record.status.nodes, record.status.pods) == (nodes, i64::try_from(pods)?), "{:?}", record.status);
    ensure!(pods > 0 && record.rows.iter().all(|row| row.result.rollout == record.rollout.number), "{:?}", record.rows);
    Ok(())
}
