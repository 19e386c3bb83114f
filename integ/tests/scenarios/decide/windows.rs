//! Windows and blackouts that change during a rollout.

use std::collections::BTreeSet;

use integ::oracle::{History, Object};
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use models::condition::ConditionStatus;
use models::operator::WINDOW_OPEN;
use models::shadow::Step;
use serde_json::{Value, json};

use super::support::{is_updated, other, status, until_metric};
use crate::interfere::{blocked_drain, unblock};
use crate::policy::wait_for;
use crate::support::{OLD, nodes, run, shadow_of, step_of};

/// A window that opens in twelve hours.
pub(super) fn closed_schedule() -> Value {
    let hour = (Timestamp::now().to_zoned(TimeZone::UTC).hour() + 12) % 24;
    json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "1h"}], "blackouts": []})
}

/// Windows that follow each other without a pause.
pub(super) fn open_schedule() -> Value {
    json!({"windows": [{"cron": "0 * * * *", "duration": "2h"}], "blackouts": []})
}

/// The same windows, on a day on which nothing starts.
fn blackout() -> anyhow::Result<Value> {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let (from, to) = (today.checked_sub(1.day())?, today.checked_add(1.day())?);
    let mut schedule = open_schedule();
    schedule["blackouts"] = json!([{"from": from.to_string(), "to": to.to_string()}]);
    Ok(schedule)
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
async fn closed_window_completes_running_update_and_blocks_new_ones() -> anyhow::Result<()> {
    let mut options = nodes(2);
    options.policy["strategy"] = json!({"preStage": {}});
    let ending = run(options, async |ctx| {
        let node = blocked_drain(ctx).await?;
        let next = other(&node);
        ctx.until_step(next, Step::Staged).await?;

        ctx.policy(&json!({"schedule": closed_schedule()})).await?;
        let world = ctx
            .until("the staged node waits for the window, and the operator says when it opens", |world| {
                wait_for(world, "WindowClosed", 1)
                    && world.operator_condition(WINDOW_OPEN).is_some_and(|c| c.status == ConditionStatus::False)
                    && status(world).next_window.is_some_and(|at| at > Timestamp::now())
            })
            .await?;
        assert_eq!(world.operator_condition(WINDOW_OPEN).unwrap().reason, "Closed");
        assert_eq!(step_of(&world, &node), Some(Step::Draining), "what has started is not taken back");
        until_metric(ctx, "window_open", "0").await?;

        unblock(ctx).await?;
        ctx.until("the running update has ended", |world| {
            is_updated(world, &node) && status(world).slots.is_empty() && wait_for(world, "WindowClosed", 1)
        })
        .await?;

        ctx.policy(&json!({"schedule": blackout()?})).await?;
        let world = ctx.until("the node waits for the blackout's end", |world| wait_for(world, "Blackout", 1)).await?;
        assert_eq!(world.operator_condition(WINDOW_OPEN).unwrap().reason, "Blackout");
        assert_eq!(step_of(&world, next), Some(Step::Staged), "it keeps its image");
        assert_eq!(shadow_of(&world, next).unwrap().status.agent.current_version, Some(OLD));
        assert!(status(&world).slots.is_empty() && !world.nodes[next].claimed());

        ctx.policy(&json!({"schedule": open_schedule()})).await?;
        ctx.updated().await?;
        ctx.until_operator(WINDOW_OPEN, ConditionStatus::True).await?;
        Ok(())
    })
    .await?;
    assert_eq!(slots_granted_outside_window(&ending.history), [0; 0]);
    ending.assert_updates(2);
    Ok(())
}
