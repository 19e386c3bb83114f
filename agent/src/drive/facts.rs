//! Gathers facts, with as few host calls as the next decision needs.

use super::next::Stop;
use super::turn::Turn;
use crate::host::client::StatusAnswer;
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
        StatusAnswer::Busy => return Err(turn.boot.wait_while_busy().into()),
        StatusAnswer::Uninitialized => None,
        StatusAnswer::Known(status) => Some(*status),
    };
    turn.boot.record_status(status, &turn.desired);
    Ok(())
}
