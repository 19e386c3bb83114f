//! Windows, and images that are downloaded ahead of them.

use std::collections::BTreeSet;
use std::time::Duration;

use integ::oracle::{Attempt, ClusterState, History, Object};
use jiff::{SignedDuration, Timestamp, ToSpan as _, tz::TimeZone};
use kube::api::{Api, ListParams, Patch, PatchParams};
use models::condition::ConditionStatus;
use models::history::{BottlerocketRolloutHistory, EntryKind};
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::{BottlerocketUpdateOperator, WINDOW_OPEN};
use models::shadow::{HostState, Step};
use semver::Version;
use serde_json::{Value, json};

use crate::bed::{Held, NEW, OLD, ScriptedCluster, closed_schedule, open_schedule, other, poll};
use crate::leaders::blocked_drain;

crate::cases![
    images_are_staged_before_window_and_updates_start_when_it_opens,
    staged_image_lost_by_reboot_is_staged_again_before_cordon,
    staged_image_of_withdrawn_release_is_not_booted,
    closed_window_completes_running_update_and_blocks_new_ones,
    urgent_version_passes_closed_window_and_soak_with_event_and_history,
    version_of_the_targeted_line_is_taken_once_it_is_old_enough,
];

const NODES: [&str; 2] = ["node-1", "node-2"];

/// True if any node ever had a cordon of the operator or a slot.
fn is_any_node_claimed(cluster: &ScriptedCluster) -> anyhow::Result<bool> {
    Ok(cluster.recorder.so_far()?.changes().iter().any(|change| match &change.object {
        Object::Node(node) => node.claimed(),
        Object::Operator(operator) => !operator.status.slots.is_empty(),
        _ => false,
    }))
}

/// The revisions at which a node got a slot although the operator's status had no open window.
fn slots_outside_window(history: &History) -> Vec<u64> {
    let mut held = BTreeSet::new();
    let mut all = Vec::new();
    for change in history.changes() {
        let Object::Operator(operator) = &change.object else { continue };
        let condition = models::condition::find_condition(&operator.status.conditions, WINDOW_OPEN);
        let now: BTreeSet<_> = operator.status.slots.iter().map(|slot| slot.uid.clone()).collect();
        if !now.is_subset(&held) && condition.is_none_or(|c| c.status != ConditionStatus::True) {
            all.push(change.revision);
        }
        held = now;
    }
    all
}

/// Checks that both nodes were updated by one attempt each, and in an open window.
fn ensure_updated_in_window(cluster: &ScriptedCluster) -> anyhow::Result<()> {
    let history = cluster.recorder.so_far()?;
    assert_eq!(slots_outside_window(&history), [0; 0]);
    let attempts = history.attempts();
    anyhow::ensure!(attempts.len() == 2 && attempts.iter().all(Attempt::updated), "{attempts:#?}");
    Ok(())
}

/// Lets two nodes download while the window is closed, and returns the time at which it opens.
async fn staged(cluster: &mut ScriptedCluster) -> anyhow::Result<Timestamp> {
    let policy = json!({"strategy": {"preStage": {}}, "schedule": closed_schedule(&cluster.time)});
    cluster.start(2, policy).await?;
    cluster.fleet.release(NEW);
    let world = cluster
        .until("both nodes have their image and wait for the window", |world| {
            let status = world.status();
            NODES.iter().all(|node| world.step(node) == Some(Step::Staged))
                && world.waiting("WindowClosed") == 2
                && status.counts.is_some_and(|counts| counts.staged == 2)
                && status.next_window.is_some()
        })
        .await?;
    assert!(world.shadows.values().all(|shadow| shadow.status.agent.state == Some(HostState::StagedUpdate)));
    assert!(!is_any_node_claimed(cluster)?, "a download takes no node out of service");
    Ok(world.status().next_window.unwrap_or_default())
}

async fn images_are_staged_before_window_and_updates_start_when_it_opens(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const SHORTLY_BEFORE: Duration = Duration::from_mins(20);
    let opens = staged(cluster).await?;
    let ahead = Duration::try_from(opens.duration_since(cluster.time.now()))?;
    cluster.pass(ahead.saturating_sub(SHORTLY_BEFORE)).await?;
    let world = cluster.planned().await?;
    assert_eq!((world.status().next_window, world.waiting("WindowClosed")), (Some(opens), 2));
    assert!(!is_any_node_claimed(cluster)?);
    cluster.pass(SHORTLY_BEFORE).await?;
    cluster.updated().await?;
    ensure_updated_in_window(cluster)
}

async fn staged_image_lost_by_reboot_is_staged_again_before_cordon(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    staged(cluster).await?;
    cluster.fleet.script("node-1", |node| node.held = Some(Held::Download));
    cluster.fleet.reboot("node-1");
    cluster
        .until("the image is to be staged again", |world| {
            let boot = world.shadow("node-1").and_then(|shadow| shadow.spec.boot_id.as_deref());
            boot == Some("node-1-boot-2") && world.step("node-1") == Some(Step::Staging)
        })
        .await?;

    // The download does not progress while the window is open: the other node gets the slot, this one is left alone.
    cluster.policy(&json!({"schedule": open_schedule()})).await?;
    let world = cluster
        .until("the other node is updated", |world| world.is_updated("node-2", &NEW) && world.status().slots.is_empty())
        .await?;
    assert_eq!(world.step("node-1"), Some(Step::Staging));
    assert!(!world.nodes["node-1"].claimed());
    assert_eq!(world.shadow("node-1").and_then(|shadow| shadow.status.agent.current_version.clone()), Some(OLD));
    cluster.fleet.script("node-1", |node| node.held = None);
    cluster.updated().await?;
    cluster.recorder.so_far()?.replay(|change, _, world| {
        if let Object::Node(node) = &change.object
            && node.claimed()
            && let Some(shadow) = world.shadow_of(node)
            && shadow.step() == Some(Step::Draining)
        {
            let agent = &shadow.status.agent;
            let staged = agent.state == Some(HostState::StagedUpdate) && agent.boot_id.as_ref() == Some(&node.boot_id);
            assert!(staged, "{} is cordoned at {} without its image: {agent:?}", node.name, change.revision);
        }
    });
    // The other boot ended no attempt.
    ensure_updated_in_window(cluster)
}

async fn staged_image_of_withdrawn_release_is_not_booted(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    const NEWER: Version = Version::new(1, 20, 6);
    staged(cluster).await?;
    cluster.fleet.retract(&NEW);
    let world = cluster
        .until("the attempts end without the nodes having been touched", |world| {
            NODES
                .iter()
                .all(|node| world.step(node).is_none() && world.last_reason(node).as_deref() == Some("Superseded"))
        })
        .await?;
    assert!(!is_any_node_claimed(cluster)?);
    for node in NODES {
        let record = world.record(node);
        assert_eq!((record.failures, record.not_before, record.version_failures), (0, None, vec![]), "{node}");
    }
    cluster.fleet.release(NEWER);
    cluster.policy(&json!({"schedule": open_schedule()})).await?;
    let on_newer = |world: &ClusterState| NODES.iter().all(|node| world.is_updated(node, &NEWER));
    cluster.until("both nodes are updated", on_newer).await?;
    let history = cluster.recorder.so_far()?;
    for node in NODES {
        let reasons: Vec<_> = history.results(node).into_iter().map(|(_, reason)| reason).collect();
        assert_eq!(reasons, ["Superseded", models::shadow::UPDATED], "{node}");
    }
    assert_eq!(cluster.verdict().await?.stats.reboots, 2, "no host booted the version that was withdrawn");
    Ok(())
}

/// Windows that follow each other without a pause, on a day on which nothing starts.
fn blackout(now: Timestamp) -> anyhow::Result<Value> {
    let today = now.to_zoned(TimeZone::UTC).date();
    let (from, to) = (today.checked_sub(1.day())?, today.checked_add(1.day())?);
    let mut schedule = open_schedule();
    schedule["blackouts"] = json!([{"from": from.to_string(), "to": to.to_string()}]);
    Ok(schedule)
}

async fn closed_window_completes_running_update_and_blocks_new_ones(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({"strategy": {"preStage": {}}})).await?;
    let node = blocked_drain(cluster).await?;
    let next = other(&node);
    cluster.until_step(next, Step::Staged).await?;

    cluster.policy(&json!({"schedule": closed_schedule(&cluster.time)})).await?;
    let now = cluster.time.now();
    let closed = |world: &ClusterState, reason: &str| {
        world.operator_condition(WINDOW_OPEN).is_some_and(|c| c.status == ConditionStatus::False && c.reason == reason)
    };
    let world = cluster
        .until("the staged node waits for the window, and the operator says when it opens", |world| {
            world.waiting("WindowClosed") == 1
                && closed(world, "Closed")
                && world.status().next_window.is_some_and(|at| at > now)
        })
        .await?;
    assert_eq!(world.step(&node), Some(Step::Draining), "what has started is not taken back");
    cluster.until_metric("window_open", 0.0).await?;
    cluster.unblock_shop().await?;
    cluster
        .until("the running update has ended", |world| {
            world.is_updated(&node, &NEW) && world.status().slots.is_empty() && world.waiting("WindowClosed") == 1
        })
        .await?;

    cluster.policy(&json!({"schedule": blackout(cluster.time.now())?})).await?;
    let world = cluster
        .until("the node waits for the blackout's end", |world| {
            world.waiting("Blackout") == 1 && closed(world, "Blackout")
        })
        .await?;
    assert_eq!(world.step(next), Some(Step::Staged), "it keeps its image");
    assert_eq!(world.shadow(next).and_then(|shadow| shadow.status.agent.current_version.clone()), Some(OLD));
    assert!(world.status().slots.is_empty() && !world.nodes[next].claimed());

    cluster.policy(&json!({"schedule": open_schedule()})).await?;
    let world = cluster.updated().await?;
    assert_eq!(world.operator_condition(WINDOW_OPEN).map(|condition| condition.status), Some(ConditionStatus::True));
    ensure_updated_in_window(cluster)
}

async fn urgent_version_passes_closed_window_and_soak_with_event_and_history(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let policy = json!({
        "schedule": closed_schedule(&cluster.time),
        "strategy": {"canary": [{"nodes": 1, "soak": "24h"}]},
        "freshness": {"target": "336h"},
    });
    cluster.start(2, policy).await?;
    cluster.fleet.release(NEW);
    let world = cluster
        .until("both nodes wait for the window, and are behind within the target", |world| {
            let behind = world.status().freshness.is_some_and(|fleet| fleet.nodes_behind == 2);
            behind && world.waiting("WindowClosed") == 2
        })
        .await?;
    let (status, before) = (world.status(), world.status().freshness.unwrap_or_default());
    let seen = status.versions.iter().find(|known| known.version == NEW).map(|known| known.first_seen);
    assert_eq!((before.nodes_within_target, before.oldest_node.as_deref()), (Some(2), Some("node-1")));
    assert!(seen.is_some() && before.oldest_since == seen, "{before:?}");
    cluster.until_metric("nodes_behind", 2.0).await?;

    let until = cluster.time.now().checked_add(SignedDuration::from_hours(1))?.strftime("%Y-%m-%dT%H:%M:%SZ");
    let until = until.to_string();
    let urgent = json!({"from": NEW.to_string(), "reason": "CVE-2026-1234", "until": until});
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let user = PatchParams { field_manager: Some("kubectl-patch".to_owned()), ..PatchParams::default() };
    operators.patch(OPERATOR_NAME, &user, &Patch::Merge(json!({"spec": {"version": {"urgent": urgent}}}))).await?;
    cluster.updated().await?;
    cluster.until_event("UrgentVersion", &["CVE-2026-1234", &until, "1.20.5"]).await?;
    let histories: Api<BottlerocketRolloutHistory> = Api::namespaced(cluster.client.clone(), SYSTEM_NAMESPACE);
    let entry = poll("the history has an entry of the urgent version", async || {
        let records = histories.list(&ListParams::default()).await?.items;
        let mut entries = records.into_iter().flat_map(|record| record.status.unwrap_or_default().entries);
        Ok(entries.find(|entry| entry.kind == EntryKind::Urgent))
    })
    .await?;
    assert_eq!(entry.field_manager.as_deref(), Some("kubectl-patch"));
    assert!(entry.message.contains("CVE-2026-1234"), "{}", entry.message);

    let world = cluster
        .until("no node is behind", |world| {
            world.status().freshness.is_some_and(|fleet| {
                (fleet.nodes_within_target, fleet.nodes_behind, fleet.oldest_node) == (Some(2), 0, None)
            })
        })
        .await?;
    let window = world.operator_condition(WINDOW_OPEN).map(|window| (window.status, window.reason.as_str()));
    assert_eq!(window, Some((ConditionStatus::False, "Closed")), "the schedule is as it is");
    cluster.until_metric("freshness_ratio", 1.0).await?;
    let history = cluster.recorder.so_far()?;
    assert_ne!(slots_outside_window(&history), [0; 0], "the window has been closed all the time");
    let attempts = history.attempts();
    assert!(attempts.len() == 2 && attempts.iter().all(Attempt::updated), "{attempts:#?}");
    Ok(())
}

async fn version_of_the_targeted_line_is_taken_once_it_is_old_enough(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.start(2, json!({"version": {"target": "1.20", "minimumAge": "24h"}})).await?;
    // As many newer ones of another line as an agent reports.
    (0..62).for_each(|patch| cluster.fleet.release(Version::new(1, 21, patch)));
    cluster.until("the others are known", |world| world.status().versions.len() == 62).await?;
    cluster.fleet.release(NEW);
    let world = cluster.until("both nodes wait for its age", |world| world.waiting("TooYoung") == 2).await?;
    let since = |world: &ClusterState| {
        world.status().versions.iter().find(|known| known.version == NEW).map(|known| known.first_seen)
    };
    let seen = since(&world);
    assert!(seen.is_some(), "{:?}", world.status().versions);
    cluster.pass(Duration::from_hours(23)).await?;
    cluster.replace_controller().await?;
    let world = cluster.planned().await?;
    assert_eq!((world.waiting("TooYoung"), since(&world)), (2, seen), "another leader goes on from the status");
    cluster.pass(Duration::from_hours(1)).await?;
    cluster.updated().await.map(drop)
}
