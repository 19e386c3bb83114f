//! Calls that did not change the host's settings.

use tokio::time::Instant;

use crate::drive::next::{Next, Stop};
use crate::drive::turn::Turn;
use crate::host::client::HostError;

/// Handles a settings call without a usable answer. The status, which is read again first, shows whether the host
/// answers at all.
pub(super) fn unanswered(turn: &mut Turn<'_>, error: HostError) -> Stop {
    if !error.may_have_arrived() {
        return error.into();
    }
    turn.boot.status.expire();
    failed(turn, error.to_string()).into()
}

pub(super) fn failed(turn: &mut Turn<'_>, message: String) -> Next {
    tracing::warn!(detail = ?message, "the host does not change its settings");
    turn.boot.settings.fail(message, Instant::now());
    Next::Again
}
