//! Gathers facts, with as few host calls as the next decision needs.

use models::condition::{ConditionStatus, find_condition};
use models::shadow::HOST_REACHABLE;
use models::wire::ShadowView;
use tokio::time::Instant;

use super::moment::Moment;
use super::next::{Next, Stop};
use super::report::{put, report_if_possible};
use super::turn::Turn;
use crate::host::client::StatusAnswer;
use crate::report::{HostCondition, build_condition};
use crate::situation::Facts;

/// Returns the facts of the host; reads what is not known or out of date.
pub(super) async fn read_facts(turn: &mut Turn<'_>) -> Result<Facts, Stop> {
    let os = match &turn.boot.os {
        Some(os) => os.clone(),
        None => {
            let os = turn.clients.host.os().await?;
            turn.boot.outage.end();
            turn.boot.os.insert(os).clone()
        }
    };
    let may_be_armed = turn.boot.may_be_armed(&turn.view);
    if !turn.boot.status.is_recent(&turn.desired, may_be_armed) {
        read_status(turn).await?;
    }
    Ok(Facts { os, boot_id: turn.boot.id.clone(), status: turn.boot.status.get().cloned() })
}

pub(super) async fn read_status(turn: &mut Turn<'_>) -> Result<(), Stop> {
    let status = match turn.clients.host.update_status().await? {
        StatusAnswer::Busy => return Err(wait_while_busy(turn).await.into()),
        StatusAnswer::Uninitialized => None,
        StatusAnswer::Known(status) => Some(*status),
    };
    turn.boot.record_status(status, &turn.desired);
    Ok(())
}

/// Waits while the host runs a command. One that has been running for long is reported, if possible, and so is a host that answers again.
async fn wait_while_busy(turn: &mut Turn<'_>) -> Next {
    let next = turn.boot.wait_while_busy();
    let busy = turn.boot.busy_for_long(Instant::now()).map(HostCondition::busy);
    let reported = find_condition(&turn.view.status.conditions, HOST_REACHABLE);
    let was_unreachable = reported.is_some_and(|reported| reported.status == ConditionStatus::False);
    if let Some(condition) = busy.or(was_unreachable.then(|| turn.boot.settings.condition())) {
        let make = |view: &ShadowView| build_condition(&view.status, &condition, Moment::now().wall);
        report_if_possible(turn, async |turn| put(turn, make).await).await;
        // Staging, too, reports again once the host answers otherwise.
        turn.boot.tries.announced = false;
    }
    next
}
