//! Windows, and images that are downloaded ahead of them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::{ClusterState, History, Object};
use integ::rollout_history::objects;
use jiff::{SignedDuration, Timestamp, ToSpan as _, tz::TimeZone};
use kube::api::ListParams;
use models::condition::ConditionStatus;
use models::history::EntryKind;
use models::operator::WINDOW_OPEN;
use models::shadow::{HostState, Step};
use serde_json::{Value, json};

use crate::bed::{NEW, OLD, ScriptedCluster, closed_schedule, open_schedule, other, poll};
use crate::leaders::until_drain_blocked;

crate::cases![
    images_are_staged_before_window_opens_and_what_has_started_is_completed_when_it_closes,
    urgent_version_passes_closed_window_and_soak_with_event_and_history,
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

/// Windows that follow each other without a pause, on a day on which nothing starts.
fn blackout(now: Timestamp) -> anyhow::Result<Value> {
    let today = now.to_zoned(TimeZone::UTC).date();
    let (from, to) = (today.checked_sub(1.day())?, today.checked_add(1.day())?);
    let mut schedule = open_schedule();
    schedule["blackouts"] = json!([{"from": from.to_string(), "to": to.to_string()}]);
    Ok(schedule)
}

async fn images_are_staged_before_window_opens_and_what_has_started_is_completed_when_it_closes(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    const SHORTLY_BEFORE: Duration = Duration::from_mins(20);
    let policy = json!({"strategy": {"preStage": {}}, "schedule": closed_schedule(&cluster.time)});
    cluster.start(2, policy).await?;
    cluster.shop(4, json!({"minAvailable": 4})).await?;
    cluster.block_shop().await?;
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
    let opens = world.status().next_window.unwrap_or_default();
    let ahead = Duration::try_from(opens.duration_since(cluster.time.now()))?;
    cluster.pass(ahead.saturating_sub(SHORTLY_BEFORE)).await?;
    let world = cluster.planned().await?;
    assert_eq!((world.status().next_window, world.waiting("WindowClosed")), (Some(opens), 2));
    assert!(!is_any_node_claimed(cluster)?, "a download takes no node out of service");
    cluster.pass(SHORTLY_BEFORE).await?;
    let node = until_drain_blocked(cluster).await?;
    let next = other(&node);

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
    let history = cluster.recorder.so_far()?;
    assert_eq!(slots_outside_window(&history), [0; 0]);
    history.ensure_updates(2).context("one for each, in a window")?;
    Ok(())
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
    cluster.patch_operator("kubectl-patch", json!({"spec": {"version": {"urgent": urgent}}})).await?;
    cluster.updated().await?;
    cluster.until_event("UrgentVersion", &["CVE-2026-1234", &until, "1.20.5"]).await?;
    let entry = poll("the history has an entry of the urgent version", async || {
        let records = objects(&cluster.client).list(&ListParams::default()).await?.items;
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
    history.ensure_updates(2)?;
    Ok(())
}
