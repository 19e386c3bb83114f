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
mod recheck;
mod request;
mod verify;

use models::reason::FailureReason;
use models::shadow::{ArmedPhase, Rehearsal};
use semver::Version;

use super::fail::fail;
use super::next::{Next, Stop};
use super::permit_request::Rehearsed;
use super::report::report;
use super::turn::{Observed, Turn};
use crate::permit;
use crate::report::Finding;
use crate::situation::host_state;
use crate::staging::TRIES;
use activate::activate;
use reboot::reboot;
use recheck::{check_still_valid, is_armed_with, recheck_host};
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
    let rehearsal = Rehearsal { verified: true, ..request.rehearsal(&turn.boot.id, &version) };
    turn.boot.rehearsed = Some(Rehearsed { desired: turn.desired.clone(), rehearsal });
    Ok(Next::Again)
}

fn log_verified(turn: &Turn<'_>, version: &Version) {
    tracing::info!(attempt = turn.desired.attempt.attempt, %version, "permit verified");
}
