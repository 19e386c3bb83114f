//! Leaders that keep the history of rollouts alone on a real API server.

mod fleet;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistoryStatus, LARGEST_OBJECT, RolloutPhase, page_name,
};
use models::names::HISTORY_KEY_SECRET;
use serde_json::json;

use self::fleet::{Fleet, Id, Leader, ago, result, uid};
use crate::{MANY, control_plane_of_definitions, node_name, on_shared, plugin_command, until};

/// Puts one result on each of these nodes, and on the first of them one more.
async fn updated(fleet: &Fleet, rollout: i64, nodes: &[&str], minutes: i64) -> anyhow::Result<Vec<Id>> {
    let mut ids = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        fleet.node(node).await?;
        let last = if index == 0 { 2 } else { 1 };
        let results: Vec<_> = (1..=last).map(|attempt| result(rollout, attempt, minutes, 2)).collect();
        fleet.results(node, &results).await?;
        ids.extend((1..=last).map(|attempt| (uid(node), attempt)));
    }
    Ok(ids)
}

/// Checks the whole history of the rollout 1, of which these are the results.
async fn history_is_complete(fleet: &Fleet, mut expected: Vec<Id>) -> anyhow::Result<()> {
    expected.sort();
    let verified = fleet.completed(1).await?;
    ensure!(verified.rows == expected, "{:?} for {expected:?}", verified.rows);
    ensure!(fleet.waiting().await? == 0, "results are on no page");
    let secrets: Vec<_> = fleet.api::<Secret>().list(&ListParams::default()).await?.items;
    ensure!(secrets.iter().map(ResourceExt::name_any).eq([HISTORY_KEY_SECRET]), "{secrets:?}");
    ensure!(fleet.keys().await?.len() == 1, "one public key");
    fleet.sizes().await?;
    let answers: BTreeSet<_> = fleet.written().iter().filter_map(|write| write.code).collect();
    ensure!(answers.is_subset(&[200, 201, 409].into()), "{:?}", fleet.written());
    Ok(())
}

/// Has leaders record a rollout whose first page is due while it runs, each ended after so many writes. Returns their number:
/// 2 if none was ended before it was done.
async fn record_under_kills(client: &Client, writes: usize) -> anyhow::Result<usize> {
    let mut fleet = Fleet::new(client, &format!("kills-{writes}")).await?;
    fleet.rollout(1, RolloutPhase::Running).await?;
    let mut expected = updated(&fleet, 1, &["a", "b"], 30).await?;
    let first = fleet
        .led_until(writes, async |fleet| {
            let record = fleet.record(1).await?.and_then(|record| record.status);
            Ok(record.is_some_and(|status| status.pages.len() == 1))
        })
        .await?;
    expected.extend(updated(&fleet, 1, &["c", "d"], 0).await?);
    fleet.rollout(1, RolloutPhase::Completed).await?;
    let second = fleet.led_until(writes, async |fleet| fleet.has_ended(1).await).await?;
    let written = fleet.written();
    history_is_complete(&fleet, expected).await.with_context(|| format!("{writes} writes: {written:?}"))?;
    // The key, its public part, the record, its beginning, a page with two shadows, which it names, the last page, and the end.
    ensure!(written.len() == 10, "a write is repeated: {written:?}");
    Ok(first + second)
}

#[test]
fn historian_killed_after_any_write_loses_and_duplicates_no_result() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let mut writes = 1;
        while record_under_kills(&control_plane.client(), writes).await? > 2 {
            writes += 1;
        }
        ensure!(writes > 7, "a leader writes eight times until the first page is named: {writes}");
        Ok(())
    })
}

/// Has a leader end at this write, which arrives when the next leader has recorded the rollout. Returns false if there are
/// fewer.
async fn record_before_late_write(client: &Client, number: usize) -> anyhow::Result<bool> {
    let mut fleet = Fleet::new(client, &format!("late-{number}")).await?;
    let expected = updated(&fleet, 1, &["a", "b"], 30).await?;
    fleet.rollout(1, RolloutPhase::Completed).await?;
    let arrive = fleet.leaders.hold();
    let mut leader = fleet.lead(number).await?;
    until("the leader ends", async || Ok(*leader.lead.killed.borrow_and_update() || fleet.has_ended(1).await?)).await?;
    drop(leader);
    if fleet.written().len() < number {
        return Ok(false);
    }
    fleet.led_until(usize::MAX, async |fleet| fleet.has_ended(1).await).await?;
    let state = async || -> anyhow::Result<Vec<_>> {
        let objects = fleet.api::<BottlerocketRolloutHistory>().list(&ListParams::default()).await?.items;
        Ok(objects.into_iter().map(|object| (object.name_any(), object.resource_version())).collect())
    };
    let before = state().await?;
    arrive.send_replace(true);
    until("the late write is answered", async || Ok(fleet.written()[number - 1].code.is_some())).await?;
    let write = &fleet.written()[number - 1];
    ensure!(state().await? == before, "the history is changed by {write:?}");
    history_is_complete(&fleet, expected).await.with_context(|| format!("{write:?}"))?;
    Ok(true)
}

#[test]
fn late_write_of_earlier_leader_changes_no_history() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let mut number = 1;
        while record_before_late_write(&control_plane.client(), number).await? {
            number += 1;
        }
        ensure!(number > 6, "the key, its public part, the record, its beginning, the page, and the end: {number}");
        Ok(())
    })
}

#[test]
fn two_leaders_at_once_make_one_history() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let client = control_plane.client();
        for round in 0..5 {
            let mut fleet = Fleet::new(&client, &format!("two-{round}")).await?;
            let leaders = [fleet.lead(usize::MAX).await?, fleet.lead(usize::MAX).await?];
            let known = async |leader: &Leader, results: usize| {
                let count = || {
                    leader.caches.shadows.read(|shadows| {
                        shadows.values().map(|shadow| shadow.status.controller.results.len()).sum::<usize>()
                    })
                };
                until("the leader knows the results", async || Ok(count() == results)).await
            };
            fleet.rollout(1, RolloutPhase::Running).await?;
            let mut expected = updated(&fleet, 1, &["a", "b", "c", "d"], 30).await?;
            until("the first results are on pages", async || Ok(fleet.waiting().await? == 0)).await?;
            let late = updated(&fleet, 1, &["e", "f", "g", "h"], 0).await?;
            for leader in &leaders {
                known(leader, late.len()).await?;
            }
            expected.extend(late);
            fleet.rollout(1, RolloutPhase::Completed).await?;
            fleet.until_ended(1).await?;
            history_is_complete(&fleet, expected).await.with_context(|| format!("{:?}", fleet.written()))?;
        }
        Ok(())
    })
}

/// Runs a rollout with one result to its end.
async fn rollout(fleet: &Fleet, number: i64) -> anyhow::Result<()> {
    let node = format!("node-{number}");
    fleet.rollout(number, RolloutPhase::Running).await?;
    fleet.node(&node).await?;
    fleet.results(&node, &[result(number, 1, 30, 1)]).await?;
    until("it is on a page", async || Ok(fleet.waiting().await? == 0)).await?;
    fleet.rollout(number, RolloutPhase::Completed).await
}

/// Checks that the plugin shows and verifies two rollouts, also from a bundle, without a cluster.
async fn plugin_verifies_two_rollouts(kubeconfig: &Path, namespace: &str) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (bundle, html) = (path("bundle.json"), path("rollout.html"));
    let nowhere = folder.path().join("kubeconfig");
    let nowhere = nowhere.as_path();
    let verified = "(Completed): signed with the key";
    for (kubeconfig, arguments, succeeds, expected) in [
        (kubeconfig, vec!["9"], false, "there is no rollout 9"),
        (kubeconfig, vec!["1", "-o", "yaml"], true, "kind: List"),
        (kubeconfig, vec!["--verify"], true, verified),
        (kubeconfig, vec!["--export", &bundle], true, "records: 2, pages: 2, keys: 2"),
        (nowhere, vec!["--bundle", &bundle, "--verify"], true, verified),
        (nowhere, vec!["2", "--bundle", &bundle, "--html", &html], true, ""),
    ] {
        let mut command = plugin_command(kubeconfig)?;
        let output = command.args(["history", "-n", namespace]).args(&arguments).output().await?;
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8_lossy(&text);
        ensure!(output.status.success() == succeeds && text.contains(expected), "{arguments:?}: {text}");
    }
    ensure!(std::fs::read_to_string(&html)?.contains("checkout-production"), "the page shows the pods");
    Ok(())
}

#[test]
fn public_keys_are_kept_for_records_and_broken_key_is_reported_and_kept() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let mut fleet = Fleet::new(&control_plane.client(), "keys").await?;
        let leader = fleet.lead(usize::MAX).await?;
        let secrets = fleet.api::<Secret>();
        let published = async |fleet: &Fleet| anyhow::Ok(fleet.keys().await?.into_keys().collect::<BTreeSet<_>>());

        until("the key is made before any rollout", async || Ok(published(&fleet).await?.len() == 1)).await?;
        rollout(&fleet, 1).await?;
        fleet.until_ended(1).await?;
        secrets.delete(HISTORY_KEY_SECRET, &DeleteParams::default()).await?;
        rollout(&fleet, 2).await?;
        fleet.until_ended(2).await?;
        let first = fleet.completed(1).await?.key;
        let second = fleet.completed(2).await?.key;
        ensure!(first != second, "a new key");
        ensure!(published(&fleet).await? == [first.clone(), second.clone()].into(), "both are published");
        plugin_verifies_two_rollouts(control_plane.kubeconfig(), &fleet.namespace).await?;

        fleet.limits(json!({"records": 1})).await?;
        until("the first record is removed", async || Ok(fleet.record(1).await?.is_none())).await?;
        ensure!(published(&fleet).await?.contains(&first), "keys are withdrawn at the end of a rollout");
        rollout(&fleet, 3).await?;
        fleet.until_ended(3).await?;
        fleet.completed(3).await?;
        ensure!(published(&fleet).await? == [second].into(), "the first one is withdrawn");

        let broken = json!({"data": {"key.pem": ByteString(b"broken".to_vec())}});
        secrets.patch(HISTORY_KEY_SECRET, &PatchParams::default(), &Patch::Merge(broken)).await?;
        let before = fleet.secret().await?;
        rollout(&fleet, 4).await?;
        until("the broken key is reported", async || {
            let state = leader.history.facts().state;
            Ok(state.is_some_and(|(recorded, reason, _)| !recorded && reason == "WriteFailed"))
        })
        .await?;
        ensure!(fleet.secret().await? == before, "it is not overwritten");
        ensure!(!fleet.has_ended(4).await?, "it is not signed");
        secrets.delete(HISTORY_KEY_SECRET, &DeleteParams::default()).await?;
        fleet.until_ended(4).await?;
        fleet.completed(4).await?;
        until("the history is written again", async || {
            Ok(leader.history.facts().state.is_some_and(|(recorded, ..)| recorded))
        })
        .await?;
        Ok(())
    })
}

#[test]
fn rollout_is_recorded_while_the_key_cannot_be_read() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let mut fleet = Fleet::new(&control_plane.client(), "unread").await?;
        let answer = fleet.leaders.hold_secrets();
        let leader = fleet.lead(usize::MAX).await?;
        rollout(&fleet, 1).await?;
        until("what is missing is reported", async || {
            let state = leader.history.facts().state;
            Ok(state.is_some_and(|(recorded, _, message)| !recorded && message.contains(HISTORY_KEY_SECRET)))
        })
        .await?;
        ensure!(!fleet.has_ended(1).await?, "it is not signed");
        answer.send_replace(true);
        fleet.until_ended(1).await?;
        fleet.completed(1).await?;
        Ok(())
    })
}

fn ended(at: Timestamp) -> BottlerocketRolloutHistoryStatus {
    BottlerocketRolloutHistoryStatus { phase: RolloutPhase::Completed, ended: Some(at), ..Default::default() }
}

/// Waits until there are exactly these objects.
async fn left(fleet: &Fleet, what: &str, expected: &[String]) -> anyhow::Result<()> {
    let expected: BTreeSet<_> = expected.iter().cloned().collect();
    until(what, async || Ok(fleet.objects().await? == expected)).await.with_context(|| format!("not {expected:?}"))
}

#[test]
fn oldest_history_is_removed_beyond_each_limit() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let client = control_plane.client();
        let page = |record: &String, number: i64| page_name(record, number);

        let mut fleet = Fleet::new(&client, "by-number").await?;
        let mut records = Vec::new();
        for number in 9..=11 {
            records.push(fleet.recorded(number, &fleet.operator, ended(ago(30)), 2, 1).await?);
        }
        fleet.limits(json!({"records": 2})).await?;
        let leader = fleet.lead(usize::MAX).await?;
        let mut expected: Vec<_> = records[1..].iter().flat_map(|r| [r.clone(), page(r, 1), page(r, 2)]).collect();
        left(&fleet, "the oldest record is removed with its pages", &expected).await?;
        fleet.limits(json!({"records": 0})).await?;
        left(&fleet, "all are removed", &[]).await?;
        drop(leader);

        let mut fleet = Fleet::new(&client, "by-age").await?;
        let day = 24 * 60;
        let old = fleet.recorded(1, &fleet.operator, ended(ago(181 * day)), 2, 1).await?;
        let young = fleet.recorded(2, &fleet.operator, ended(ago(179 * day)), 1, 1).await?;
        let before = fleet.record(1).await?;
        let leader = fleet.lead(usize::MAX).await?;
        left(&fleet, "old pages are removed", &[old.clone(), young.clone(), page(&young, 1)]).await?;
        ensure!(fleet.record(1).await? == before, "the record stays, with the digests of its pages");
        fleet.limits(json!({"maxAge": "1h"})).await?;
        left(&fleet, "another limit holds at once", &[old, young]).await?;
        drop(leader);

        let mut fleet = Fleet::new(&client, "by-size").await?;
        // By their names, 10 comes before 9.
        let first = fleet.recorded(9, &fleet.operator, ended(ago(30)), 4, 600).await?;
        let second = fleet.recorded(10, &fleet.operator, ended(ago(30)), 3, 600).await?;
        let sizes: Vec<_> = fleet.record(9).await?.and_then(|r| r.status).context("a status")?.pages;
        ensure!(sizes.iter().all(|page| (200_000..LARGEST_OBJECT).contains(&page.bytes)), "{sizes:?}");
        let before = fleet.record(9).await?;
        fleet.limits(json!({"maxMebibytes": 1})).await?;
        let _leader = fleet.lead(usize::MAX).await?;
        let kept = usize::try_from((1 << 20) / sizes[0].bytes)?;
        expected = vec![first.clone(), second.clone()];
        let pages = (1..=4).map(|number| page(&first, number)).chain((1..=3).map(|number| page(&second, number)));
        expected.extend(pages.skip(7 - kept));
        left(&fleet, "the oldest pages are removed", &expected).await?;
        ensure!(fleet.record(9).await? == before, "the record stays, with the digests of its pages");
        Ok(())
    })
}

#[test]
fn running_record_of_other_operator_is_ended_as_stopped() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let mut fleet = Fleet::new(&control_plane.client(), "foreign").await?;
        let running = BottlerocketRolloutHistoryStatus::default();
        let name = fleet.recorded(1, "b0f0c0de-0000-4000-8000-000000000000", running, 1, 1).await?;
        // A rollout of the same number.
        fleet.rollout(1, RolloutPhase::Running).await?;
        let _leader = fleet.lead(usize::MAX).await?;
        until("the record of the other operator has ended", async || {
            let status = fleet.api::<BottlerocketRolloutHistory>().get(&name).await?.status;
            Ok(status.is_some_and(|status| status.phase != RolloutPhase::Running))
        })
        .await?;
        let verified = fleet.verify(&name, RolloutPhase::Stopped).await?;
        ensure!(verified.status.pages.len() == 1, "{:?}", verified.status);
        until("the operator's own record begins", async || Ok(fleet.record(1).await?.is_some())).await?;
        ensure!(!fleet.has_ended(1).await?);
        Ok(())
    })
}

/// Number of the results that wait at once.
const AT_ONCE: usize = 100;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-history runs it"]
async fn history_of_5000_nodes_with_30_pods_is_complete_and_keeps_its_limits() -> anyhow::Result<()> {
    let control_plane = control_plane_of_definitions().await?;
    let mut fleet = Fleet::new(&control_plane.client(), "large").await?;
    fleet.limits(json!({"maxMebibytes": 1024})).await?;
    fleet.rollout(1, RolloutPhase::Running).await?;
    let leader = fleet.lead(usize::MAX).await?;
    let names: Vec<_> = (0..MANY).map(node_name).collect();
    let begun = std::time::Instant::now();
    let waiting = || {
        let waits = |shadow: &&planner::view::ShadowFacts| !shadow.status.controller.results.is_empty();
        leader.caches.shadows.read(|shadows| shadows.values().filter(waits).count())
    };
    for batch in names.chunks(AT_ONCE / 2) {
        let fleet = &fleet;
        futures::stream::iter(batch)
            .map(async |node| {
                fleet.node(node).await?;
                fleet.results(node, &[result(1, 1, 0, 30)]).await
            })
            .buffer_unordered(16)
            .try_collect::<()>()
            .await?;
        until("most of them are on pages", async || Ok(waiting() <= AT_ONCE / 2)).await?;
    }
    // Too few for a page.
    until("the leader knows the last results", async || Ok(waiting() == fleet.waiting().await?)).await?;
    fleet.rollout(1, RolloutPhase::Completed).await?;
    fleet.until_ended(1).await?;
    let took = begun.elapsed();
    let mut expected: Vec<Id> = names.iter().map(|node| (uid(node), 1)).collect();
    expected.sort();
    let verified = fleet.completed(1).await?;
    ensure!(verified.rows == expected, "{} rows", verified.rows.len());
    ensure!(verified.status.pods == 30 * 5_000 && fleet.waiting().await? == 0);
    let (objects, largest, whole) = fleet.sizes().await?;
    println!(
        "{MANY} nodes with 30 pods: {objects} objects, the largest {largest} bytes, {whole} bytes in all, {took:?}"
    );
    ensure!(i64::try_from(largest)? < LARGEST_OBJECT, "{largest} bytes");

    let record = fleet.record(1).await?;
    fleet.limits(json!(null)).await?;
    let limit = 48 << 20;
    let mut last = usize::MAX;
    until("nothing more is removed", async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = fleet.objects().await?.len();
        Ok(now < objects && std::mem::replace(&mut last, now) == now)
    })
    .await?;
    let (objects, _, whole) = fleet.sizes().await?;
    println!("default limit: {objects} objects, {whole} bytes in all");
    ensure!(whole <= limit && whole + 2 * largest > limit, "{whole} bytes");
    ensure!(fleet.record(1).await? == record, "the record stays");
    control_plane.stop().await
}
