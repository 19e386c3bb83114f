//! Requests a permit: sends a nonce in an acknowledged report, until the shadow has a permit for it.

use std::sync::Arc;
use std::time::Duration;

use models::backoff::{Backoff, Delays, equal_jitter};
use models::permit::PERMIT_LIFETIME;
use models::shadow::{Armed, ArmedPhase, Rehearsal};
use models::wire::ShadowView;
use rand::random;
use semver::Version;
use tokio::time::Instant;

use super::recheck_host;
use crate::desired_state::DesiredState;
use crate::drive::report::report;
use crate::drive::turn::{Next, Observed, Stop, Turn};
use crate::permit::new_nonce;
use crate::report::Finding;
use crate::situation::host_state;

/// Additional delay after an unanswered nonce, from the second nonce on. After the first nonce, its lifetime is delay
/// enough.
const UNANSWERED: Delays = (Duration::from_secs(5), Duration::from_secs(60));

/// Use of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The host is armed, or rebooted.
    Reboot(ArmedPhase),
    /// A drill: the permit is verified and not used.
    Rehearsal,
}

/// A nonce that was sent for a desired state.
#[derive(Clone, Debug)]
pub(in crate::drive) struct PermitRequest {
    desired: DesiredState,
    pub(in crate::drive) nonce: String,
    /// Time taken before it was first sent.
    sent: Instant,
    /// The nonces sent before it, which were not answered.
    before: Backoff,
    /// Earliest time of the next one.
    next: Instant,
    /// The last permit refused for it, so that each is logged once.
    pub(super) refused: String,
}

impl PermitRequest {
    fn new(desired: &DesiredState, before: Backoff, sent: Instant) -> Self {
        let next = sent + PERMIT_LIFETIME + equal_jitter(before.delay(UNANSWERED), random());
        Self { desired: desired.clone(), nonce: new_nonce(), sent, before, next, refused: String::new() }
    }

    /// Returns true if the nonce is still valid. To be checked right before each act on its permit: the monotonic clock
    /// runs on while a process is stopped.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now < self.expiry()
    }

    pub(super) fn expiry(&self) -> Instant {
        self.sent + PERMIT_LIFETIME
    }

    /// Returns the report of this request in a drill.
    pub(super) fn rehearsal(&self, turn: &Turn<'_>, version: &Version) -> Rehearsal {
        Rehearsal {
            attempt: turn.desired.attempt.attempt,
            boot_id: turn.boot.id.clone(),
            version: version.clone(),
            nonce: self.nonce.clone(),
            verified: false,
        }
    }

    /// Returns true if the shadow has a permit for this nonce, by its unsigned fields.
    fn is_answered_in(&self, view: &ShadowView) -> bool {
        view.spec.permit.as_ref().is_some_and(|permit| permit.nonce == self.nonce)
    }
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
        Purpose::Rehearsal => Finding::Rehearsal(request.rehearsal(turn, version), host_state(&found.situation)),
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
        return Ok(PermitRequest::new(&turn.desired, Backoff::default(), Instant::now()));
    };
    if last.is_fresh(Instant::now()) {
        return Ok(last);
    }
    if Instant::now() < last.next {
        let next = Next::At(last.next);
        turn.boot.permit_request = Some(last);
        return Err(next.into());
    }
    // The image armed when the last nonce was sent may have been disarmed since.
    if purpose == Purpose::Reboot(ArmedPhase::Activated) {
        recheck_host(turn, version).await?;
    }
    last.before.count();
    Ok(PermitRequest::new(&turn.desired, last.before, Instant::now()))
}

#[cfg(test)]
mod tests {
    use models::shadow::{HostState, Permit};

    use super::*;
    use crate::situation::tests::view;

    fn request(before: u32) -> PermitRequest {
        let desired = DesiredState::of(&view(HostState::RebootedIntoUpdate));
        PermitRequest::new(&desired, Backoff::after(before), Instant::now())
    }

    #[test]
    fn new_nonce_follows_after_expiry_and_growing_random_delay() {
        let extra = |before| {
            let request = request(before);
            request.next - request.expiry()
        };
        assert_eq!(extra(0), Duration::ZERO);
        for (before, longest) in [(1, 5), (2, 10), (3, 20), (9, 60)] {
            let longest = Duration::from_secs(longest);
            assert!((longest / 2..=longest).contains(&extra(before)), "after {before} nonces");
        }
    }

    #[test]
    fn nonce_expires_after_permit_lifetime() {
        let request = request(0);
        assert!(request.is_fresh(request.sent));
        assert!(request.is_fresh(request.sent + PERMIT_LIFETIME - Duration::from_millis(1)));
        assert!(!request.is_fresh(request.sent + PERMIT_LIFETIME));
    }

    #[test]
    fn permit_answers_only_request_with_its_nonce() {
        let request = request(0);
        let mut view = view(HostState::RebootedIntoUpdate);
        assert!(!request.is_answered_in(&view));
        view.spec.permit = Some(Permit { nonce: "another".into(), jws: String::new() });
        assert!(!request.is_answered_in(&view));
        view.spec.permit = Some(Permit { nonce: request.nonce.clone(), jws: String::new() });
        assert!(request.is_answered_in(&view));
    }
}
