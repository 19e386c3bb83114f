//! A version that passes a closed window and the soak of a canary step, and the freshness of the fleet before and after.

use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ListParams};
use models::condition::ConditionStatus;
use models::history::{BottlerocketRolloutHistory, EntryKind, HistoryEntry};
use models::names::SYSTEM_NAMESPACE;
use models::operator::WINDOW_OPEN;
use serde_json::json;

use super::support::{status, until_event, until_metric};
use super::windows::{closed_schedule, slots_granted_outside_window};
use crate::policy::wait_for;
use crate::support::{NEW, ScenarioContext, nodes, run};

/// The first entry of this kind in the history.
async fn entry(ctx: &ScenarioContext, kind: EntryKind) -> anyhow::Result<Option<HistoryEntry>> {
    let api: Api<BottlerocketRolloutHistory> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    let records = api.list(&ListParams::default()).await?.items;
    let entries = records.into_iter().flat_map(|record| record.status.unwrap_or_default().entries);
    Ok(entries.into_iter().find(|entry| entry.kind == kind))
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_version_passes_closed_window_and_soak_with_event_and_history() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["schedule"] = closed_schedule();
    options.policy["strategy"] = json!({"canary": [{"nodes": 1, "soak": "24h"}]});
    options.policy["freshness"] = json!({"target": "336h"});
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        let world = ctx
            .until("both nodes wait for the window, and are behind within the target", |world| {
                wait_for(world, "WindowClosed", 2)
                    && status(world).freshness.is_some_and(|fleet| fleet.nodes_behind == 2)
            })
            .await?;
        let before = status(&world).freshness.unwrap();
        let seen = status(&world).versions.iter().find(|known| known.version == NEW).map(|known| known.first_seen);
        assert_eq!((before.nodes_within_target, before.oldest_node.as_deref()), (Some(2), Some("node-1")));
        assert_eq!(before.oldest_since, seen);
        until_metric(ctx, "nodes_behind", "2").await?;

        let until =
            Timestamp::now().checked_add(SignedDuration::from_hours(1))?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let urgent = json!({"from": NEW.to_string(), "reason": "CVE-2026-1234", "until": until});
        ctx.policy(&json!({"version": {"urgent": urgent}})).await?;
        ctx.updated().await?;
        until_event(ctx, SYSTEM_NAMESPACE, "UrgentVersion", &["CVE-2026-1234", &until, "1.20.5"]).await?;
        let urgent = entry(ctx, EntryKind::Urgent).await?.expect("an entry of the history");
        assert_eq!(urgent.field_manager.as_deref(), Some("kubectl-patch"));
        assert!(urgent.message.contains("CVE-2026-1234"), "{}", urgent.message);

        let world = ctx
            .until("no node is behind", |world| {
                status(world).freshness.is_some_and(|fleet| {
                    (fleet.nodes_within_target, fleet.nodes_behind, fleet.oldest_node) == (Some(2), 0, None)
                })
            })
            .await?;
        let window = world.operator_condition(WINDOW_OPEN).unwrap();
        assert_eq!(
            (window.status, window.reason.as_str()),
            (ConditionStatus::False, "Closed"),
            "the schedule is as it is"
        );
        until_metric(ctx, "freshness_ratio", "1").await?;
        Ok(())
    })
    .await?;
    assert_ne!(slots_granted_outside_window(&ending.history), [0; 0], "the window has been closed all the time");
    ending.assert_updates(2);
    Ok(())
}
