//! The steps that take the host down, each with the controller's permit.
//!
//! ```text
//!  arm:           report Arming + nonce ──► verify the permit ──► last check ──► activate
//!                        ▲                                                          │
//!                        │ 30 s over: another nonce                                 ▼
//!  reboot_armed:  report Activated + nonce ──► verify the permit ──► re-check ──► last check ──► reboot
//!                                                                    the host
//!  rehearse:      report the nonce ─────► verify the rehearsal permit ──► report that it was verified
//! ```
//!
//! Each function starts from the beginning in every turn: the desired state, the boot, the permit and its age are checked
//! again until nothing is left to wait for. So the last check before an act always belongs to the same turn as the act.

mod activate;
mod reboot;
mod request;
mod verify;

use models::reason::FailureReason;
use models::shadow::{ArmedPhase, Rehearsal};
use semver::Version;
use tokio::time::Instant;

use super::facts::read_status;
use super::fail::fail;
use super::report::report;
use super::turn::{Next, Observed, Stop, Turn};
use crate::boot;
use crate::desired_state::DesiredState;
use crate::host::types::UpdateStatus;
use crate::permit;
use crate::report::Finding;
use crate::situation::host_state;
use crate::staging::TRIES;
use activate::activate;
use reboot::reboot;
pub(super) use request::PermitRequest;
use request::{Purpose, request_permit};
use verify::verify_permit;

pub(super) async fn arm(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    let Some(version) = turn.desired.version.clone() else { return Ok(Next::Wait) };
    if turn.boot.tries.activate.failures() >= TRIES {
        let message = turn.boot.tries.message.clone();
        return fail(turn, found, FailureReason::ActivateFailed, message).await;
    }
    let (request, view) = request_permit(turn, found, &version, Purpose::Reboot(ArmedPhase::Arming)).await?;
    verify_permit(turn, &view, &request, permit::verify)?;
    check_still_valid(turn, &request)?;
    log_verified(turn, &version);
    activate(turn, &version).await
}

/// Reboots into the image that this agent armed.
pub(super) async fn reboot_armed(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    let Some(version) = turn.desired.version.clone() else { return Ok(Next::Wait) };
    // The step table knows that this operator armed the image; its version is checked here.
    if !is_armed_with(found.facts.status.as_ref(), &version) {
        let message = "the host is armed with another version than the desired one".to_owned();
        return fail(turn, found, FailureReason::WrongImageStaged, message).await;
    }
    if turn.boot.tries.reboot.failures() >= TRIES {
        let message = turn.boot.tries.message.clone();
        return fail(turn, found, FailureReason::RebootRefused, message).await;
    }
    let (request, view) = request_permit(turn, found, &version, Purpose::Reboot(ArmedPhase::Activated)).await?;
    verify_permit(turn, &view, &request, permit::verify)?;
    recheck_host(turn, &version).await?;
    check_still_valid(turn, &request)?;
    log_verified(turn, &version);
    reboot(turn).await
}

/// A rehearsal permit that was verified, and the desired state that it is for.
#[derive(Clone, Debug)]
pub(in crate::drive) struct Rehearsed {
    desired: DesiredState,
    rehearsal: Rehearsal,
}

/// Requests and verifies the permit of a drill, as that of a reboot, and reports it. Nothing is called on the host.
pub(super) async fn rehearse(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    let Some(version) = turn.desired.version.clone() else { return Ok(Next::Wait) };
    let state = host_state(&found.situation);
    if let Some(done) = turn.boot.rehearsed.clone().filter(|done| done.desired == turn.desired) {
        report(turn, found, &Finding::Rehearsal(done.rehearsal, state)).await?;
        return Ok(Next::Wait);
    }
    let (request, view) = request_permit(turn, found, &version, Purpose::Rehearsal).await?;
    verify_permit(turn, &view, &request, permit::verify_rehearsal)?;
    check_still_valid(turn, &request)?;
    tracing::info!(attempt = turn.desired.attempt.attempt, %version, "rehearsal permit verified; the host is not rebooted");
    let rehearsal = Rehearsal { verified: true, ..request.rehearsal(turn, &version) };
    turn.boot.rehearsed = Some(Rehearsed { desired: turn.desired.clone(), rehearsal });
    Ok(Next::Again)
}

fn log_verified(turn: &Turn<'_>, version: &Version) {
    tracing::info!(attempt = turn.desired.attempt.attempt, %version, "permit verified");
}

/// Reads the host again and ends the turn if it is not armed any more. Another client may have disarmed it since: a
/// drained node is not rebooted into the version that it runs.
async fn recheck_host(turn: &mut Turn<'_>, version: &Version) -> Result<(), Stop> {
    read_status(turn).await?;
    if is_armed_with(turn.boot.status.get(), version) { Ok(()) } else { Err(Next::Again.into()) }
}

/// Ends the turn if the desired state was withdrawn, another boot runs, or the nonce has expired: the last check before
/// an act. The reads before it take time, and a process that was stopped meanwhile finds any of these.
fn check_still_valid(turn: &Turn<'_>, request: &PermitRequest) -> Result<(), Next> {
    let same_boot = boot::read(&turn.clients.config.boot_id_file).is_ok_and(|running| running == turn.boot.id);
    if turn.is_current() && same_boot && request.is_fresh(Instant::now()) { Ok(()) } else { Err(Next::Again) }
}

/// Returns true if the host's next boot uses this version.
fn is_armed_with(status: Option<&UpdateStatus>, version: &Version) -> bool {
    let staging = status.and_then(|status| status.staging.as_ref());
    staging.is_some_and(|staging| staging.next_to_boot && staging.version.as_ref() == Some(version))
}
