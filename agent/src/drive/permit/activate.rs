//! Activates the staged image.

use semver::Version;

use super::recheck::is_armed_with;
use crate::drive::command::{self, run_command};
use crate::drive::next::{Next, Stop};
use crate::drive::turn::Turn;
use crate::host::command::Outcome;
use crate::host::types::{Command, UpdateState, UpdateStatus};
use crate::memory::Unconfirmed;

/// Activates the staged image. To be called only with a permit that was just verified.
pub(super) async fn activate(turn: &mut Turn<'_>, version: &Version) -> Result<Next, Stop> {
    tracing::info!(%version, attempt = turn.desired.attempt.attempt, "arming the host");
    // From here on an armed image counts as this operator's, whatever the answer.
    let before = turn.boot.status.get().and_then(UpdateStatus::timestamp).map(str::to_owned);
    let memory = &mut turn.boot.memory;
    let earlier = (memory.armed.clone(), memory.unconfirmed.clone());
    memory.armed = Some(turn.desired.attempt.clone());
    memory.unconfirmed.get_or_insert(Unconfirmed { before: before.clone() });
    let outcome = run_command(turn, Command::Activate).await;
    let memory = &mut turn.boot.memory;
    match &outcome {
        Outcome::Done(status) if status.state == UpdateState::Ready && is_armed_with(Some(status), version) => {
            memory.activated = Some(turn.desired.attempt.clone());
            return Ok(Next::Again);
        }
        // Only an armed image can be disarmed: the activation succeeded, and another client took it back before its record
        // was read. It is not repeated.
        Outcome::Vanished(Some(status)) if was_disarmed(status, before.as_deref()) => {
            memory.activated = Some(turn.desired.attempt.clone());
            return Ok(Next::Again);
        }
        Outcome::Refused(_) | Outcome::Busy => (memory.armed, memory.unconfirmed) = earlier,
        Outcome::Host(error) if !error.may_have_arrived() => (memory.armed, memory.unconfirmed) = earlier,
        _ => {}
    }
    command::retry(turn, outcome, |tries| &mut tries.activate)
}

/// Returns true if the host was disarmed after its last command that ended at `before`.
fn was_disarmed(status: &UpdateStatus, before: Option<&str>) -> bool {
    let last = status.last.as_ref();
    last.is_some_and(|last| last.is(Command::Deactivate) && last.succeeded && Some(last.timestamp.as_str()) != before)
}
