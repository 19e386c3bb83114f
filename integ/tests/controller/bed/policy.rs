//! Schedules, and what the operator's resource shows.

use std::time::Duration;

use anyhow::Context as _;
use integ::oracle::ClusterState;
use jiff::tz::TimeZone;
use kube::Api;
use kube::api::DeleteParams;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperator;
use serde_json::{Value, json};

use super::{LIMIT, ScriptedCluster, Time};

/// A window of an hour that opens in eleven to twelve hours.
pub(crate) fn closed_schedule(time: &Time) -> Value {
    let hour = (time.now().to_zoned(TimeZone::UTC).hour() + 12) % 24;
    json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "1h"}], "blackouts": []})
}

/// Windows that follow each other without a pause.
pub(crate) fn open_schedule() -> Value {
    json!({"windows": [{"cron": "0 * * * *", "duration": "2h"}], "blackouts": []})
}

/// Number of nodes that wait for a reason, by the operator's status.
pub(crate) fn waiting(world: &ClusterState, reason: &str) -> i64 {
    world.status().waiting.iter().filter(|count| count.reason == reason).map(|count| count.nodes).sum()
}

/// The other one of two nodes.
pub(crate) fn other(node: &str) -> &'static str {
    if node == "node-1" { "node-2" } else { "node-1" }
}
}
