//! Disarming a host that this operator armed, or may have armed.

use models::agent_step::Desired;
use models::reason::FailureReason;
use tokio::time::Instant;

use super::command::{self, run_command};
use super::fail::fail;
use super::next::{Next, Stop};
use super::report::{report_if_possible, report_with};
use super::turn::{Observed, Turn};
use crate::host::command::Outcome;
use crate::host::types::{Command, UpdateState};
use crate::report::{Finding, HostCondition};
use crate::situation::host_state;
use crate::staging::TRIES;

/// Message while a disk may be armed without a record.
const PERHAPS_ARMED: &str = "the disk may be armed without a record; an image is downloaded again, which disarms it";

/// Disarms an image that this operator armed.
pub(super) async fn deactivate(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    if turn.boot.tries.deactivate.failures() >= TRIES {
        let message = turn.boot.tries.message.clone();
        if found.situation.desired == Desired::Stage {
            return fail(turn, found, FailureReason::DeactivateFailed, message).await;
        }
        // Disarming a withdrawn attempt is retried for ever, visibly.
        report_problem(turn, found, message).await;
    }
    match run_command(turn, Command::Deactivate).await {
        Outcome::Done(status) if status.state != UpdateState::Ready => {
            turn.boot.memory.disarm();
            turn.boot.permit_request = None;
            Ok(Next::Again)
        }
        outcome => command::retry(turn, outcome, |tries| &mut tries.deactivate),
    }
}

/// Clears the disk's boot flags by another download: without a record of an activation the host refuses to disarm, but
/// the disk may be armed. Retried until it succeeds, and reported meanwhile.
pub(super) async fn prepare_again(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    let last = &turn.boot.tries.message;
    let message = if last.is_empty() { PERHAPS_ARMED.to_owned() } else { format!("{PERHAPS_ARMED}: {last}") };
    report_problem(turn, found, message).await;
    // Only a refresh makes the choice that a download needs.
    let outcome = if found.facts.status.as_ref().is_some_and(|status| status.chosen.is_some()) {
        run_command(turn, Command::Prepare).await
    } else if let Some(allowed) = turn.boot.refreshes.too_soon(Instant::now()) {
        return Ok(Next::At(allowed));
    } else {
        run_command(turn, Command::Refresh).await
    };
    let outcome = match outcome {
        Outcome::Done(_) if turn.boot.memory.unconfirmed.is_none() => {
            tracing::info!("the disk's boot flags are cleared");
            turn.boot.memory.disarm();
            return Ok(Next::Again);
        }
        Outcome::Done(status)
            if status.chosen.is_some() && status.last.as_ref().is_some_and(|last| last.is(Command::Refresh)) =>
        {
            return Ok(Next::Again);
        }
        Outcome::Done(_) => Outcome::NotStarted("the host found nothing to download".to_owned()),
        outcome => outcome,
    };
    command::retry(turn, outcome, |tries| &mut tries.prepare)
}

/// Reports, if possible, that the host is not disarmed.
async fn report_problem(turn: &mut Turn<'_>, found: &Observed, message: String) {
    let finding = Finding::InProgress(host_state(&found.situation));
    let condition = HostCondition::problem("DeactivateFailed", message);
    report_if_possible(turn, async |turn| report_with(turn, &found.facts, &finding, &condition).await).await;
}
