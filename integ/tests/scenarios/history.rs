//! The history of rollouts: compared row by row with the oracle's own record of the run, under kills of every leader.

use std::collections::{BTreeMap, BTreeSet};

use integ::bed::workload;
use integ::rollout_history::{Recorded, ensure_rows_equal_run, objects, with_phases};
use kube::api::ListParams;
use models::history::{EntryKind, RolloutPhase};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::crashes::PATIENCE;
use crate::interfere::{poll, signal};
use crate::leaders::two_controllers;
use crate::plugin::{output_text, plugin};
use crate::support::{NEW, SHOP, ScenarioContext, run};

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

#[tokio::test(flavor = "multi_thread")]
async fn history_equals_the_run_although_controllers_are_killed_after_each_of_its_writes() -> anyhow::Result<()> {
    const PODS: usize = 6;
    let (mut all, mut order) = (Vec::new(), BTreeMap::new());
    let ending = run(two_controllers(3), async |ctx| {
        ctx.shop_with(PODS, json!({"maxUnavailable": 3})).await?;
        workload::apply(&ctx.bed.client, vec![workload::service(SHOP, "web")]).await?;
        ctx.install().await?;
        ctx.reported().await?;
        ctx.release();
        kill_after_changes(ctx, 12).await?;
        ctx.bed.wait_updated(&NEW, PATIENCE).await?;
        all = until_phases(ctx, "the rollout is recorded as completed", &[RolloutPhase::Completed]).await?;
        order = boots(ctx);
        let verified = plugin(ctx, &["history", "--verify"]).await?;
        anyhow::ensure!(verified.status.success(), "{}", output_text(&verified));
        Ok(())
    })
    .await?;
    let record = &all[0];
    ensure_rows_equal_run(&record.rows, &ending.history, &order, SHOP)?;
    let kinds = record.kinds();
    assert_eq!((kinds.first(), kinds.last()), (Some(&EntryKind::Begun), Some(&EntryKind::Completed)), "{kinds:?}");
    let world = ending.world();
    let left = world.shadows.values().flat_map(|shadow| &shadow.status.controller.results);
    assert!(left.clone().all(|result| record.rows.iter().any(|row| row.result == **result)), "all are on pages");
    let pods: usize = record.rows.iter().map(|row| row.result.pods.len()).sum();
    assert_eq!((record.status.nodes, record.status.pods), (3, i64::try_from(pods)?));
    assert!(pods > 0 && record.rows.iter().all(|row| row.result.rollout == record.rollout.number));
    Ok(())
}
