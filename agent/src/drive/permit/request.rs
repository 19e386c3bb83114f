//! Requests a permit: sends a nonce in an acknowledged report, until the shadow has a permit for it.

use std::sync::Arc;

use models::backoff::Backoff;
use models::shadow::{Armed, ArmedPhase};
use models::wire::ShadowView;
use semver::Version;

use super::recheck::recheck_host;
use crate::desired_state::DesiredState;
use crate::drive::moment::Moment;
use crate::drive::next::{Next, Stop};
use crate::drive::permit_request::PermitRequest;
use crate::drive::report::report;
use crate::drive::turn::{Observed, Turn};
use crate::report::Finding;
use crate::situation::host_state;

/// Use of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The host is armed, or rebooted.
    Reboot(ArmedPhase),
    /// A drill: the permit is verified and not used.
    Rehearsal,
}

/// Reports that the image is about to be armed, or is armed, or that a drill rehearses it, with the nonce of a valid request.
/// Returns the request, and the newest shadow once it has a permit for it.
pub(super) async fn request_permit(
    turn: &mut Turn<'_>,
    found: &Observed,
    version: &Version,
    purpose: Purpose,
) -> Result<(PermitRequest, Arc<ShadowView>), Stop> {
    let request = current_request(turn, version, purpose).await?;
    turn.boot.permit_request = Some(request.clone());
    let finding = match purpose {
        Purpose::Reboot(phase) => Finding::Armed(Armed {
            attempt: turn.desired.attempt.attempt,
            boot_id: found.facts.boot_id.clone(),
            version: version.clone(),
            phase,
            nonce: request.nonce.clone(),
        }),
        Purpose::Rehearsal => {
            Finding::Rehearsal(request.rehearsal(&turn.boot.id, version), host_state(&found.situation))
        }
    };
    let acknowledged = report(turn, found, &finding).await?;
    let newest = turn.clients.views.newest().ok_or(Next::Again)?;
    // The answer to the report and the newest view must both have this desired state, and the permit this nonce.
    if [&acknowledged, &newest].iter().any(|view| DesiredState::of(view) != turn.desired) {
        return Err(Next::Again.into());
    }
    if !request.is_answered_in(&newest) {
        return Err(Next::At(request.expiry()).into());
    }
    if purpose == Purpose::Reboot(ArmedPhase::Activated) && !request.is_answered_in(&acknowledged) {
        return Err(Next::Again.into());
    }
    Ok((request, newest))
}

/// Returns the request that was sent before, or another one if its time has come.
async fn current_request(turn: &mut Turn<'_>, version: &Version, purpose: Purpose) -> Result<PermitRequest, Stop> {
    let Some(mut last) = turn.boot.permit_request.take().filter(|last| last.desired == turn.desired) else {
        return Ok(PermitRequest::new(&turn.desired, Backoff::default(), Moment::now()));
    };
    let now = Moment::now();
    if last.is_fresh(now) {
        return Ok(last);
    }
    if now.monotonic < last.next {
        let next = Next::At(last.next);
        turn.boot.permit_request = Some(last);
        return Err(next.into());
    }
    // The image armed when the last nonce was sent may have been disarmed since.
    if purpose == Purpose::Reboot(ArmedPhase::Activated) {
        recheck_host(turn, version).await?;
    }
    last.before.count();
    Ok(PermitRequest::new(&turn.desired, last.before, Moment::now()))
}
