//! Windows and blackouts that change during a rollout.

use std::collections::BTreeSet;

use integ::oracle::{History, Object};
use jiff::{Timestamp, tz::TimeZone};
use models::condition::ConditionStatus;
use models::operator::WINDOW_OPEN;
use serde_json::{Value, json};

use super::support::status;
use crate::policy::wait_for;
use crate::support::{nodes, run, shadow_of};

/// A window that opens in twelve hours.
pub(super) fn closed_schedule() -> Value {
    let hour = (Timestamp::now().to_zoned(TimeZone::UTC).hour() + 12) % 24;
    json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "1h"}], "blackouts": []})
}

/// Windows that follow each other without a pause.
pub(super) fn open_schedule() -> Value {
    json!({"windows": [{"cron": "0 * * * *", "duration": "2h"}], "blackouts": []})
}

/// The revisions at which a node got a slot although the operator's status had no open window.
pub(super) fn slots_granted_outside_window(history: &History) -> Vec<u64> {
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

#[tokio::test(flavor = "multi_thread")]
async fn no_update_starts_shortly_before_window_closes() -> anyhow::Result<()> {
    // The window has been open since the last full hour but one, and ends in two to three hours.
    let hour = (Timestamp::now().to_zoned(TimeZone::UTC).hour() + 23) % 24;
    let schedule = |stop: &str| json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "4h"}], "stopStartingBefore": stop});
    let mut options = nodes(1);
    options.policy["schedule"] = schedule("3h");
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        let world = ctx
            .until("the node waits for the next window", |world| {
                wait_for(world, "WindowClosed", 1) && status(world).next_window.is_some()
            })
            .await?;
        let next = status(&world).next_window.unwrap();
        assert!(next > Timestamp::now() + jiff::SignedDuration::from_hours(12), "{next} is tomorrow's");
        assert_eq!(shadow_of(&world, "node-1").unwrap().spec.attempt, 0);

        ctx.policy(&json!({"schedule": schedule("1h")})).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(slots_granted_outside_window(&ending.history), [0; 0]);
    ending.assert_updates(1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_open_in_their_time_zone() -> anyhow::Result<()> {
    const ZONE: &str = "Asia/Tokyo";
    // Open for six hours from the last full hour but one in Tokyo, which is nine hours ahead of UTC all year.
    let hour = (Timestamp::now().in_tz(ZONE)?.hour() + 23) % 24;
    let window =
        |zone: &str| json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "6h", "timeZone": zone}]});
    let mut options = nodes(1);
    options.policy["schedule"] = window("UTC");
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        ctx.release();
        let world = ctx
            .until("the window is closed by the clock of UTC", |world| {
                wait_for(world, "WindowClosed", 1) && status(world).next_window.is_some()
            })
            .await?;
        let next = status(&world).next_window.unwrap();
        assert_eq!((next.to_zoned(TimeZone::UTC).hour(), next.to_zoned(TimeZone::UTC).minute()), (hour, 0));

        ctx.policy(&json!({"schedule": window(ZONE)})).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;
    assert_eq!(slots_granted_outside_window(&ending.history), [0; 0]);
    ending.assert_updates(1);
    Ok(())
}
