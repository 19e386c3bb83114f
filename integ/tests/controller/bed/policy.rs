//! Schedules, and names of nodes.

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::Time;

/// A window of an hour that opens in eleven to twelve hours.
pub(crate) fn closed_schedule(time: &Time) -> Value {
    let hour = (time.now().to_zoned(TimeZone::UTC).hour() + 12) % 24;
    json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "1h"}], "blackouts": []})
}

/// Windows that follow each other without a pause.
pub(crate) fn open_schedule() -> Value {
    json!({"windows": [{"cron": "0 * * * *", "duration": "2h"}], "blackouts": []})
}

/// The other one of two nodes.
pub(crate) fn other(node: &str) -> &'static str {
    if node == "node-1" { "node-2" } else { "node-1" }
}
