//! Windows and blackouts that change in the middle of a rollout.

use std::collections::BTreeSet;

use integ::oracle::{History, Object};
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use models::condition::ConditionStatus;
use models::operator::WINDOW_OPEN;
use models::shadow::Step;
use serde_json::{Value, json};

use super::midway::both_have_their_image;
use super::support::{is_updated, other, status, until_metric};
use crate::interfere::{blocked_drain, unblock};
use crate::policy::wait_for;
use crate::support::{OLD, operator_condition, run, shadow_of, step_of};

/// A window that is half a day away.
pub(super) fn shut() -> Value {
    let hour = (Timestamp::now().to_zoned(TimeZone::UTC).hour() + 12) % 24;
    json!({"windows": [{"cron": format!("0 {hour} * * *"), "duration": "1h"}], "blackouts": []})
}

/// Windows that follow each other without a pause.
pub(super) fn open() -> Value {
    json!({"windows": [{"cron": "0 * * * *", "duration": "2h"}], "blackouts": []})
}

/// The same windows, on a day on which nothing starts.
fn blackout() -> anyhow::Result<Value> {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let (from, to) = (today.checked_sub(1.day())?, today.checked_add(1.day())?);
    let mut schedule = open();
    schedule["blackouts"] = json!([{"from": from.to_string(), "to": to.to_string()}]);
    Ok(schedule)
}

/// The revisions at which a node was given a slot although the operator itself said that no window is open.
pub(super) fn slots_given_while_shut(history: &History) -> Vec<u64> {
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
async fn when_the_window_closes_the_running_update_ends_and_no_other_starts_until_one_opens_and_no_blackout_is()
-> anyhow::Result<()> {
    let ending = run(both_have_their_image(), async |scene| {
        let node = blocked_drain(scene).await?;
        let next = other(&node);
        scene.until_step(next, Step::Staged).await?;

        scene.policy(&json!({"schedule": shut()})).await?;
        let world = scene
            .until("the staged node waits for the window, and the operator says when it opens", |world| {
                wait_for(world, "WindowClosed", 1)
                    && operator_condition(world, WINDOW_OPEN).is_some_and(|c| c.status == ConditionStatus::False)
                    && status(world).next_window.is_some_and(|at| at > Timestamp::now())
            })
            .await?;
        assert_eq!(operator_condition(&world, WINDOW_OPEN).unwrap().reason, "Closed");
        assert_eq!(step_of(&world, &node), Some(Step::Draining), "what has started is not taken back");
        until_metric(scene, "window_open", "0").await?;

        unblock(scene).await?;
        scene
            .until("the running update has ended", |world| {
                is_updated(world, &node) && status(world).slots.is_empty() && wait_for(world, "WindowClosed", 1)
            })
            .await?;

        scene.policy(&json!({"schedule": blackout()?})).await?;
        let world =
            scene.until("the node waits for the blackout's end", |world| wait_for(world, "Blackout", 1)).await?;
        assert_eq!(operator_condition(&world, WINDOW_OPEN).unwrap().reason, "Blackout");
        assert_eq!(step_of(&world, next), Some(Step::Staged), "it keeps its image");
        assert_eq!(shadow_of(&world, next).unwrap().status.agent.current_version, Some(OLD));
        assert!(status(&world).slots.is_empty() && !world.nodes[next].claimed());

        scene.policy(&json!({"schedule": open()})).await?;
        scene.updated().await?;
        scene.until_operator(WINDOW_OPEN, ConditionStatus::True).await?;
        Ok(())
    })
    .await?;
    assert_eq!(slots_given_while_shut(&ending.history), [0; 0]);
    ending.assert_updates(2);
    Ok(())
}
