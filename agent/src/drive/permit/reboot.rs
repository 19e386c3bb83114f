//! Reboots the host.

use std::time::Duration;

use models::backoff::Delays;
use models::failures::with_causes;
use tokio::time::Instant;

use crate::drive::next::{Next, Stop};
use crate::drive::turn::Turn;
use crate::host::client::{HostError, Posted};

/// Delay after a refused reboot. Short, because a permit is short-lived.
const REFUSED: Delays = (Duration::from_secs(1), Duration::from_secs(5));

/// Requests the reboot. To be called only with a permit that was just verified.
pub(super) async fn reboot(turn: &mut Turn<'_>) -> Result<Next, Stop> {
    let attempt = turn.desired.attempt.attempt;
    tracing::info!(attempt, "rebooting the host");
    let message = match turn.clients.host.reboot().await {
        Ok(Posted::Accepted) => return Ok(await_reboot(turn)),
        // A missing answer may have been cut off by the shutdown.
        Err(error @ (HostError::Cut(_) | HostError::Timeout(_))) => {
            tracing::info!(attempt, error = with_causes(&error), "reboot requested; the answer is missing");
            return Ok(await_reboot(turn));
        }
        // The number is the signal that ended the host's command, which the shutdown itself sends.
        Ok(Posted::Failed(message)) if message.contains("exit code: 15") => {
            tracing::info!(attempt, detail = ?message, "reboot requested; its command was ended by a signal");
            return Ok(await_reboot(turn));
        }
        Ok(Posted::Refused(message) | Posted::Failed(message)) => message,
        Ok(Posted::Busy) => "the host is busy".to_owned(),
        Err(error @ HostError::BadAnswer { .. }) => error.to_string(),
        Err(error) => return Err(error.into()),
    };
    tracing::warn!(attempt, detail = ?message, "the host refuses to reboot");
    turn.boot.tries.message = message;
    Ok(Next::after(turn.boot.tries.reboot.next_delay(REFUSED)))
}

fn await_reboot(turn: &mut Turn<'_>) -> Next {
    turn.boot.reboot_requested = Some(Instant::now());
    Next::Again
}
