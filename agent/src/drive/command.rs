//! Host commands: runs one, learns from its outcome, and schedules the next try of one that failed.

use std::time::Duration;

use models::backoff::{Backoff, Delays};
use models::failures::with_causes;
use models::shadow::HostState;
use tokio::time::Instant;

use super::boot_state::BootState;
use super::moment::Moment;
use super::next::{Next, Stop};
use super::turn::Turn;
use crate::host::command::{Outcome, carry_out};
use crate::host::types::{Command, UpdateStatus};
use crate::staging::{TRIES, Tries};

/// Delay after a failed host command.
const FAILED: Delays = (Duration::from_secs(1), Duration::from_secs(60));

/// Delay after a command that the host's state, presumably changed by another client, did not allow.
const REFUSED: Delays = (Duration::from_millis(200), Duration::from_secs(10));

/// Runs a command while the desired state is unchanged, and learns from its outcome.
pub(super) async fn run_command(turn: &mut Turn<'_>, command: Command) -> Outcome {
    let before = turn.boot.status.get().and_then(UpdateStatus::timestamp).map(str::to_owned);
    let requested_before = turn.boot.memory.requested_refresh;
    match command {
        Command::Refresh => {
            turn.boot.memory.requested_refresh = true;
            turn.boot.refreshes.requested = Some(Instant::now());
        }
        Command::Prepare => turn.boot.memory.begin_prepare(),
        Command::Activate | Command::Deactivate => {}
    }
    turn.boot.busy_since.get_or_insert(Moment::now());
    // Wherever this future is dropped, the status from before the command is out of date.
    turn.boot.status.expire();
    tracing::info!(command = command.name(), "host command started");
    let host = &turn.clients.host;
    let outcome =
        carry_out(host, command, before.as_deref(), || turn.is_current(), async || turn.withdrawn().await).await;
    log(command, &outcome);
    if !matches!(outcome, Outcome::Busy) {
        turn.boot.locked.reset();
    }
    match &outcome {
        Outcome::Done(status) | Outcome::Failed(status, _) => {
            if command == Command::Refresh {
                turn.boot.memory.end_refresh(status);
            }
            turn.boot.record_status(Some(status.clone()), &turn.desired);
        }
        Outcome::Vanished(status) => turn.boot.record_status(status.clone(), &turn.desired),
        Outcome::Refused(_) | Outcome::Busy | Outcome::NotStarted(_) => {
            turn.boot.memory.requested_refresh = requested_before;
            turn.boot.outage.end();
        }
        Outcome::Interrupted | Outcome::StillRuns | Outcome::Host(_) | Outcome::Unread(_) => {}
    }
    outcome
}

fn log(command: Command, outcome: &Outcome) {
    let command = command.name();
    match outcome {
        Outcome::Done(_) => tracing::info!(command, "host command succeeded"),
        Outcome::Failed(_, message) | Outcome::NotStarted(message) | Outcome::Refused(message) => {
            tracing::warn!(command, detail = ?message, "host command failed");
        }
        Outcome::Vanished(_) => tracing::warn!(command, "host command left no record"),
        Outcome::Interrupted => tracing::info!(command, "host command not followed: the desired state has changed"),
        Outcome::StillRuns => tracing::warn!(command, "host command still runs, and is not followed any more"),
        Outcome::Host(error) => tracing::warn!(command, error = with_causes(error), "host command got no answer"),
        Outcome::Unread(error) => {
            tracing::warn!(command, error = with_causes(error), "end of the host command could not be read");
        }
        Outcome::Busy => tracing::debug!(command, "host command not started: another one runs"),
    }
}

/// Returns the message of a command that failed, or when to continue if it was not tried.
pub(super) fn failure(boot: &mut BootState, outcome: Outcome) -> Result<String, Stop> {
    match outcome {
        Outcome::Done(status) => Ok(format!("the host reports success, but its update state is {:?}", status.state)),
        Outcome::Failed(_, message) | Outcome::NotStarted(message) | Outcome::Refused(message) => Ok(message),
        Outcome::Vanished(_) => Ok("the host's command ended without a record".to_owned()),
        Outcome::Busy => Err(boot.wait_for_lock().into()),
        Outcome::Interrupted | Outcome::StillRuns => Err(Next::Again.into()),
        // A host that answers everything but its commands is retried with growing delays, and not for ever. If the
        // command was carried out after all, the status will show it.
        Outcome::Host(error) | Outcome::Unread(error) if error.may_have_arrived() => Ok(error.to_string()),
        Outcome::Host(error) | Outcome::Unread(error) => Err(error.into()),
    }
}

/// Handles an unsuccessful command: counts it if it ran and failed, and returns when to continue.
pub(super) fn retry(
    turn: &mut Turn<'_>,
    outcome: Outcome,
    backoff: impl FnOnce(&mut Tries) -> &mut Backoff,
) -> Result<Next, Stop> {
    let boot = &mut turn.boot;
    if let Outcome::Refused(_) = outcome {
        return Ok(Next::after(boot.tries.refused.next_delay(REFUSED)));
    }
    boot.tries.message = failure(boot, outcome)?;
    let backoff = backoff(&mut boot.tries);
    let delay = backoff.next_delay(FAILED);
    if backoff.failures() >= TRIES && turn.desired.state != HostState::Idle {
        return Ok(Next::Again);
    }
    Ok(Next::after(delay))
}
