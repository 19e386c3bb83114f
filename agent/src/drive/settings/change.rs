//! One change of the host's settings.

use tokio::time::Instant;

use super::failure::{failed, unanswered};
use crate::drive::next::{Next, Stop};
use crate::drive::settings_progress::requested_in;
use crate::drive::turn::Turn;
use crate::host::client::Posted;
use crate::host::settings::SettingsChange;
use crate::permit::new_nonce;

/// Makes one change in one transaction. Its result shows when the settings are read again.
pub(super) async fn change(turn: &mut Turn<'_>, change: SettingsChange) -> Result<Next, Stop> {
    if !is_current(turn) {
        return Ok(Next::Again);
    }
    // A unique name, so that nothing that a client or an earlier try left pending is committed with it.
    let transaction = format!("brupop-{}", new_nonce());
    let SettingsChange { version_lock, ignore_waves } = &change;
    tracing::info!(version_lock = version_lock.as_deref(), ignore_waves, "changing the host's settings");
    match turn.clients.host.stage_settings(&transaction, &change).await {
        Ok(Posted::Accepted) => {}
        Ok(Posted::Refused(message) | Posted::Failed(message)) => return Ok(failed(turn, message)),
        Ok(Posted::Busy) => return Ok(turn.boot.wait_for_lock()),
        Err(error) => return Err(unanswered(turn, error)),
    }
    if !is_current(turn) {
        return Ok(Next::Again);
    }
    // Whatever the answer, the earlier choice is no longer valid.
    turn.boot.memory.chosen = None;
    let offered = turn.boot.status.get().map(|status| status.available.clone()).unwrap_or_default();
    turn.boot.settings.await_change(&change, offered);
    match turn.clients.host.commit_settings(&transaction).await {
        Ok(Posted::Accepted) => {
            turn.boot.settings.committed();
            turn.boot.refreshes.hasten(turn.refresh_interval(), Instant::now());
            Ok(Next::Again)
        }
        Ok(Posted::Refused(_)) => Ok(failed(turn, "the host lost the change before its commit".to_owned())),
        Ok(Posted::Failed(message)) => {
            turn.boot.settings.unapplied = change;
            Ok(failed(turn, message))
        }
        Ok(Posted::Busy) => Ok(turn.boot.wait_for_lock()),
        Err(error) => Err(unanswered(turn, error)),
    }
}

/// Returns true if the newest shadow still has the desired state and the settings that the change was decided for.
fn is_current(turn: &Turn<'_>) -> bool {
    let newest = turn.clients.views.newest();
    turn.is_current() && newest.is_some_and(|view| requested_in(&view) == turn.boot.settings.policy)
}
