//! The history of rollouts: compared row by row with the oracle's own record of the run, under kills of every leader, and
//! where the API server refuses it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use integ::bed::workload;
use integ::oracle::Attempt;
use kube::Api;
use kube::api::ListParams;
use models::condition::ConditionStatus;
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistoryStatus, EntryKind, HistoryRow, LARGEST_OBJECT,
    RecordedRollout, RolloutPhase, page_digest, record_name,
};
use models::names::{APPROVE_STEP_ANNOTATION, INTERFACE_LABEL, OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::HISTORY_RECORDED;
use models::shadow::{PodMove, UPDATED};
use nix::sys::signal::Signal;
use semver::Version;
use serde_json::json;

use crate::crashes::PATIENCE;
use crate::interfere::{poll, signal};
use crate::leaders::two_controllers;
use crate::plugin::{output_text, plugin};
use crate::policy::create_policy;
use crate::support::{NEW, SHOP, ScenarioContext, ScenarioResult, is_updated, nodes, run, status};

/// A record with its pages.
#[derive(Debug)]
struct Recorded {
    name: String,
    rollout: RecordedRollout,
    status: BottlerocketRolloutHistoryStatus,
    rows: Vec<HistoryRow>,
}

impl Recorded {
    fn kinds(&self) -> Vec<EntryKind> {
        self.status.entries.iter().map(|entry| entry.kind).collect()
    }

    fn manager(&self, kind: EntryKind) -> Option<&str> {
        self.status.entries.iter().find(|entry| entry.kind == kind)?.field_manager.as_deref()
    }
}

fn api(ctx: &ScenarioContext) -> Api<BottlerocketRolloutHistory> {
    Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE)
}

/// Returns all records by their numbers. Each page has to be the one that its record names.
async fn recorded(ctx: &ScenarioContext) -> anyhow::Result<Vec<Recorded>> {
    let objects = api(ctx).list(&ListParams::default()).await?.items;
    let mut all = Vec::new();
    for object in &objects {
        let size = serde_json::to_vec(object)?.len();
        anyhow::ensure!(i64::try_from(size)? <= LARGEST_OBJECT, "{size} bytes");
        let Some(rollout) = object.spec.rollout.clone() else { continue };
        let name = object.metadata.name.clone().context("a name")?;
        anyhow::ensure!(name == record_name(&rollout), "{name}");
        let status = object.status.clone().unwrap_or_default();
        let mut rows = Vec::new();
        for (number, summary) in (1..).zip(&status.pages) {
            let of = |page: &&BottlerocketRolloutHistory| {
                page.spec.record == name && page.spec.page.as_ref().is_some_and(|page| page.number == number)
            };
            let page = objects.iter().find(of).with_context(|| format!("page {number} of {name}"))?;
            anyhow::ensure!(page_digest(&page.spec)? == summary.digest, "the digest of page {number} of {name}");
            rows.extend(page.spec.page.iter().flat_map(|page| page.rows.clone()));
        }
        all.push(Recorded { name, rollout, status, rows });
    }
    all.sort_by_key(|recorded| recorded.rollout.number);
    Ok(all)
}

/// Has the controller remove the records of ended rollouts, with their pages.
pub(crate) async fn remove_ended(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.policy(&json!({"rolloutHistory": {"records": 0}})).await?;
    poll("no record of an ended rollout is left", async || {
        Ok(api(ctx).list_metadata(&ListParams::default()).await?.items.is_empty().then_some(()))
    })
    .await
}

/// Waits until so many rollouts are recorded as completed.
pub(crate) async fn until_recorded(ctx: &ScenarioContext, number: usize) -> anyhow::Result<()> {
    until_phases(ctx, "the rollouts are recorded as completed", &vec![RolloutPhase::Completed; number]).await.map(drop)
}

/// Waits until there are records with exactly these phases, in the order of their numbers.
async fn until_phases(ctx: &ScenarioContext, what: &str, phases: &[RolloutPhase]) -> anyhow::Result<Vec<Recorded>> {
    poll(what, async || {
        let all = recorded(ctx).await?;
        let found: Vec<_> = all.iter().map(|recorded| recorded.status.phase).collect();
        Ok((found == phases).then_some(all))
    })
    .await
}

/// Facts about an attempt that both the oracle and the history know.
type Compared = (String, i64, Option<Version>, Version, Option<String>, usize);

/// Asserts that the rows are the attempts that the oracle saw, each with its boots and its pods.
fn assert_rows_equal_run(rows: &[HistoryRow], ending: &ScenarioResult, boots: &BTreeMap<String, Vec<String>>) {
    let oracle =
        |a: &Attempt| (a.node.clone(), a.attempt, a.from.clone(), a.to.clone(), a.result.clone(), a.pods_moved);
    let history = |row: &HistoryRow| {
        let r = &row.result;
        (row.node.clone(), r.attempt, r.from.clone(), r.to.clone(), Some(r.result.clone()), r.pods.len())
    };
    let mut expected: Vec<Compared> = ending.history.attempts().iter().map(oracle).collect();
    let mut found: Vec<Compared> = rows.iter().map(history).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let mut pods = BTreeMap::new();
    ending.history.replay(|_, _, world| {
        pods.extend(world.pods.values().map(|pod| (pod.uid.clone(), (pod.node.clone(), pod.name.clone()))));
    });
    for row in rows {
        let order = &boots[&row.node];
        let place = |boot: &String| order.iter().position(|known| known == boot);
        let (before, after) = (place(&row.result.boot_before), place(&row.result.boot_after));
        if row.result.result == UPDATED {
            assert!(before.is_some() && before < after, "{row:?} of {order:?}");
            let times = [row.result.drain_started, row.result.drain_ended, row.result.soak_started];
            assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{row:?}");
        }
        for pod in row.result.pods.iter() {
            let (node, name) = &pods[&pod.uid];
            assert_eq!((node.as_deref(), name), (Some(row.node.as_str()), &pod.name), "the oracle saw it on that node");
            assert!(pod.ip.is_some() && pod.moved == Some(PodMove::Evicted), "{pod:?}");
            // Those of the operator itself are moved, too.
            if pod.namespace == SHOP {
                assert_eq!(pod.owner.as_deref(), Some("Deployment/web"), "{pod:?}");
                assert_eq!((&pod.budgets[..], &pod.services[..]), (&["web".to_owned()][..], &["web".to_owned()][..]));
            }
        }
    }
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
        let objects = api(ctx).list_metadata(&ListParams::default()).await?.items;
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
    let objects = api(ctx).list(&ListParams::default()).await?.items;
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
    assert_rows_equal_run(&record.rows, &ending, &order);
    let kinds = record.kinds();
    assert_eq!((kinds.first(), kinds.last()), (Some(&EntryKind::Begun), Some(&EntryKind::Completed)), "{kinds:?}");
    let world = ending.world();
    assert!(world.shadows.values().all(|shadow| shadow.status.controller.results.is_empty()), "all are on pages");
    let pods: usize = record.rows.iter().map(|row| row.result.pods.len()).sum();
    assert_eq!((record.status.nodes, record.status.pods), (3, i64::try_from(pods)?));
    assert!(pods > 0 && record.rows.iter().all(|row| row.result.rollout == record.rollout.number));
    Ok(())
}

/// Passes a canary step with a pause in between, by the hands of kubectl users.
async fn canary_with_pause(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.until("one node is updated, and the step waits for approval", |world| {
        world.operator_condition("Progressing").is_some_and(|c| c.reason == "AwaitingApproval")
    })
    .await?;
    ctx.policy(&json!({"enabled": false})).await?;
    ctx.until_operator("Enabled", ConditionStatus::False).await?;
    poll("the pause is recorded", async || {
        Ok(recorded(ctx).await?[0].kinds().contains(&EntryKind::Paused).then_some(()))
    })
    .await?;
    ctx.policy(&json!({"enabled": true})).await?;
    let approval = format!("{APPROVE_STEP_ANNOTATION}=1");
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "bruo", OPERATOR_NAME, &approval]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_are_told_apart_and_late_node_belongs_to_a_follow_up() -> anyhow::Result<()> {
    let late = "node-3";
    let label = format!("{INTERFACE_LABEL}=2.0.0");
    let mut all = Vec::new();
    let ending = run(nodes(3), async |ctx| {
        ctx.install().await?;
        ctx.reported().await?;
        ctx.kubectl(&["label", "node", late, &format!("{INTERFACE_LABEL}-")]).await?;
        ctx.policy(&json!({"strategy": {"canary": [{"nodes": 1, "approval": "Manual"}]}})).await?;
        ctx.release();
        canary_with_pause(ctx).await?;
        until_phases(ctx, "the first rollout is completed", &[RolloutPhase::Completed]).await?;

        ctx.kubectl(&["label", "node", late, &label]).await?;
        ctx.until("the late node is updated", |world| is_updated(world, late)).await?;
        let two = [RolloutPhase::Completed; 2];
        until_phases(ctx, "its rollout is another one", &two).await?;

        let uid = async || -> anyhow::Result<String> {
            let path = ["-n", SYSTEM_NAMESPACE, "get", "bruo", OPERATOR_NAME, "-o", "jsonpath={.metadata.uid}"];
            ctx.kubectl(&path).await
        };
        let before = uid().await?;
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", OPERATOR_NAME]).await?;
        create_policy(ctx, &json!({})).await?;
        anyhow::ensure!(uid().await? != before);
        let next = Version::new(1, 20, 6);
        ctx.bed.releases.publish(next.clone());
        ctx.bed.wait_updated(&next, PATIENCE).await?;
        let three = [RolloutPhase::Completed; 3];
        let records = until_phases(ctx, "the history outlives the operator's resource", &three).await?;
        anyhow::ensure!(status(&ctx.bed.recorder.now()?).rollout_count == Some(3));
        refuses_changes(ctx, &records[0].name).await?;
        undo_names_version_before_and_it_moves_nodes_back(ctx).await?;
        let four = [RolloutPhase::Completed; 4];
        all = until_phases(ctx, "the way back is a rollout too", &four).await?;

        ctx.policy(&json!({"rolloutHistory": {"records": 1}})).await?;
        poll("the oldest ones are removed, with their pages", async || {
            let objects = api(ctx).list(&ListParams::default()).await?.items;
            let newest = all[3].name.as_str();
            Ok(objects.iter().all(|object| object.spec.record == newest).then_some(()))
        })
        .await
    })
    .await?;
    ending.assert_updates(9);
    let [first, second, third, back] = &all[..] else { panic!("{all:?}") };
    let numbers = [first, second, third, back].map(|record| (record.rollout.number, record.rollout.first));
    assert_eq!(numbers, [(1, None), (2, Some(1)), (3, None), (4, None)]);
    assert_eq!((&back.rollout.version, back.rows.len()), (&NEW, 3), "all nodes moved back");
    let steps: Vec<_> = first.rows.iter().map(|row| row.result.step).collect();
    assert_eq!(steps, [1, 0], "the second node came after the last step");
    assert_eq!(second.rows.iter().map(|row| row.node.as_str()).collect::<Vec<_>>(), [late]);
    let expected = [
        EntryKind::Begun,
        EntryKind::Paused,
        EntryKind::Resumed,
        EntryKind::Approved,
        EntryKind::StepPassed,
        EntryKind::Completed,
    ];
    assert_eq!(first.kinds(), expected);
    assert_eq!(first.manager(EntryKind::Paused), Some("kubectl-patch"));
    assert_eq!(first.manager(EntryKind::Approved), Some("kubectl-annotate"));
    assert!(first.rollout.policy.contains("canary") && first.rollout.steps.len() == 1, "{:?}", first.rollout);
    assert_ne!(first.rollout.operator.uid, third.rollout.operator.uid);
    Ok(())
}

/// Returns to a revision that moves no node, and then to the version that `undo` names for that.
async fn undo_names_version_before_and_it_moves_nodes_back(ctx: &ScenarioContext) -> anyhow::Result<()> {
    ctx.policy(&json!({"version": {"exclude": ["9.9.9"]}})).await?;
    for arguments in [&["undo", "--dry-run"][..], &["undo"]] {
        let printed = poll("the policy has a revision before the last", async || {
            let text = output_text(&plugin(ctx, arguments).await?);
            Ok((!text.contains("no last revision")).then_some(text))
        })
        .await?;
        let pin = format!(
            "most nodes ran {NEW} before; to move them back to it: kubectl brupop pin {NEW} -n {SYSTEM_NAMESPACE}"
        );
        anyhow::ensure!(printed.contains(&pin), "{printed}");
    }
    ctx.policy(&json!({"version": {"target": NEW.to_string()}})).await?;
    ctx.bed.wait_updated(&NEW, PATIENCE).await?;
    Ok(())
}

/// The record of an ended rollout and its page cannot be changed by anybody.
async fn refuses_changes(ctx: &ScenarioContext, record: &str) -> anyhow::Result<()> {
    let page = format!("{record}-p001");
    for (object, subresource, patch) in [
        (record, None, json!({"spec": {"rollout": {"number": 9}}})),
        (record, None, json!({"spec": null})),
        (record, Some("status"), json!({"status": {"nodes": 9}})),
        (record, Some("status"), json!({"status": null})),
        (page.as_str(), None, json!({"spec": {"page": {"rows": []}}})),
    ] {
        let patch = patch.to_string();
        let mut arguments = vec!["-n", SYSTEM_NAMESPACE, "patch", "brh", object, "--type=merge", "-p", patch.as_str()];
        let subresource = subresource.map(|name: &str| format!("--subresource={name}"));
        arguments.extend(subresource.as_deref());
        anyhow::ensure!(ctx.kubectl(&arguments).await.is_err(), "{object} was changed by {patch}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_history_is_told_delays_no_update_and_is_written_later() -> anyhow::Result<()> {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "no-history", "namespace": SYSTEM_NAMESPACE},
        "spec": {"hard": {"count/bottlerocketrollouthistories.brupop.bottlerocket.aws": "0"}},
    });
    let (mut all, mut order) = (Vec::new(), BTreeMap::new());
    let ending = run(nodes(2), async |ctx| {
        ctx.shop(2).await?;
        workload::apply(&ctx.bed.client, vec![workload::service(SHOP, "web")]).await?;
        ctx.install().await?;
        ctx.reported().await?;
        workload::apply(&ctx.bed.client, vec![quota]).await?;
        ctx.release();
        ctx.updated().await?;
        let told = ctx.until_operator(HISTORY_RECORDED, ConditionStatus::False).await?;
        anyhow::ensure!(told.reason == "WriteFailed" && told.message.contains("no-history"), "{told:?}");
        anyhow::ensure!(recorded(ctx).await?.is_empty());
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "resourcequota", "no-history"]).await?;
        all = until_phases(ctx, "what waited is recorded", &[RolloutPhase::Completed]).await?;
        ctx.until_operator(HISTORY_RECORDED, ConditionStatus::True).await?;
        order = boots(ctx);
        Ok(())
    })
    .await?;
    assert_rows_equal_run(&all[0].rows, &ending, &order);
    Ok(())
}
