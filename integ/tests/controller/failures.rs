//! Failures of hosts.

use std::time::Duration;

use integ::oracle::Object;
use models::condition::{ConditionStatus, find_condition};
use models::shadow::UPDATED;
use serde_json::json;

use crate::bed::{NEW, ScriptedCluster};

crate::cases![failed_download_is_retried_without_disruption];

async fn failed_download_is_retried_without_disruption(cluster: &mut ScriptedCluster) -> anyhow::Result<()> {
    cluster.start(1, json!({"failurePolicy": {"backOff": "1h"}})).await?;
    cluster.fleet.script("node-1", |node| node.downloads = false);
    cluster.fleet.release(NEW);
    cluster
        .until("the first attempt is given up and the next one is not due yet", |world| {
            let record = world.record("node-1");
            record.failures == 1
                && world.step("node-1").is_none()
                && record.not_before.is_some()
                && record.last.is_some_and(|last| last.reason == "PrepareFailed")
        })
        .await?;
    cluster.fleet.script("node-1", |node| node.downloads = true);
    let world = cluster.planned().await?;
    assert_eq!(world.step("node-1"), None, "the back-off has not passed");
    let touched = cluster.recorder.so_far()?.changes().iter().any(|change| match &change.object {
        Object::Node(node) => node.claimed(),
        Object::Operator(operator) => !operator.status.slots.is_empty(),
        _ => false,
    });
    assert!(!touched, "a node that cannot download is neither cordoned nor given a slot");
    cluster.pass(Duration::from_hours(1)).await?;
    let world = cluster.updated().await?;
    let attempts = cluster.recorder.so_far()?.attempts();
    let results: Vec<_> = attempts.iter().filter_map(|a| a.result.as_deref()).collect();
    assert_eq!(results, ["PrepareFailed", UPDATED]);
    let record = world.record("node-1");
    assert_eq!((record.failures, record.version_failures.len()), (0, 0), "a success clears the node's failures");
    let frozen = find_condition(&world.status().conditions, "Frozen").map(|condition| condition.status);
    assert_ne!(frozen, Some(ConditionStatus::True));
    Ok(())
}
