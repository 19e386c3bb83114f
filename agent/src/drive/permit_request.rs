//! A permit that was requested, and one of a drill that was verified.

use std::time::Duration;

use models::backoff::{Backoff, Delays, equal_jitter};
use models::permit::PERMIT_LIFETIME;
use models::shadow::Rehearsal;
use models::wire::ShadowView;
use rand::random;
use semver::Version;
use tokio::time::Instant;

use super::moment::Moment;
use crate::desired_state::DesiredState;
use crate::permit::new_nonce;

/// Additional delay after an unanswered nonce, from the second nonce on. After the first nonce, its lifetime is delay
/// enough.
const UNANSWERED: Delays = (Duration::from_secs(5), Duration::from_secs(60));

/// A nonce that was sent for a desired state.
#[derive(Clone, Debug)]
pub(super) struct PermitRequest {
    pub(super) desired: DesiredState,
    pub(super) nonce: String,
    /// Time taken before it was first sent.
    sent: Moment,
    /// The nonces sent before it, which were not answered.
    pub(super) before: Backoff,
    /// Earliest time of the next one, whichever clock ended this one: a wall clock that jumps causes no more of them.
    pub(super) next: Instant,
    /// The last permit refused for it, so that each is logged once.
    pub(super) refused: String,
}

impl PermitRequest {
    pub(super) fn new(desired: &DesiredState, before: Backoff, sent: Moment) -> Self {
        let next = sent.monotonic + PERMIT_LIFETIME + equal_jitter(before.delay(UNANSWERED), random());
        Self { desired: desired.clone(), nonce: new_nonce(), sent, before, next, refused: String::new() }
    }

    /// Returns true if the nonce is still valid, by both clocks. To be checked right before each act on its permit: the
    /// process may have been stopped since, or the machine suspended.
    pub(super) fn is_fresh(&self, now: Moment) -> bool {
        now.since(self.sent) < PERMIT_LIFETIME
    }

    /// Returns the time by which the nonce is over at the latest.
    pub(super) fn expiry(&self) -> Instant {
        self.sent.monotonic + PERMIT_LIFETIME
    }

    /// Returns the report of this request in a drill.
    pub(super) fn rehearsal(&self, boot_id: &str, version: &Version) -> Rehearsal {
        Rehearsal {
            attempt: self.desired.attempt.attempt,
            boot_id: boot_id.to_owned(),
            version: version.clone(),
            nonce: self.nonce.clone(),
            verified: false,
        }
    }

    /// Returns true if the shadow has a permit for this nonce, by its unsigned fields.
    pub(super) fn is_answered_in(&self, view: &ShadowView) -> bool {
        view.spec.permit.as_ref().is_some_and(|permit| permit.nonce == self.nonce)
    }
}

/// A rehearsal permit that was verified, and the desired state that it is for.
#[derive(Clone, Debug)]
pub(super) struct Rehearsed {
    pub(super) desired: DesiredState,
    pub(super) rehearsal: Rehearsal,
}

#[cfg(test)]
mod tests {
    use models::shadow::{HostState, Permit};

    use super::*;
    use crate::drive::moment::tests::later;
    use crate::situation::tests::view;

    fn request(before: u32) -> PermitRequest {
        let desired = DesiredState::of(&view(HostState::RebootedIntoUpdate));
        PermitRequest::new(&desired, Backoff::after(before), Moment::now())
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

    /// Returns true if the nonce is valid so many milliseconds after it was sent, by each clock.
    fn is_fresh_after(monotonic: u64, wall: i64) -> bool {
        let request = request(0);
        request.is_fresh(later(request.sent, Duration::from_millis(monotonic), wall))
    }

    #[test]
    fn nonce_expires_after_permit_lifetime() {
        assert!(is_fresh_after(0, 0));
        assert!(is_fresh_after(29_999, 29_999));
        assert!(!is_fresh_after(30_000, 30_000));
    }

    #[test]
    fn nonce_expires_while_machine_is_suspended() {
        assert!(is_fresh_after(1_000, 29_999));
        assert!(!is_fresh_after(1_000, 30_000));
        assert!(!is_fresh_after(0, 3_600_000));
    }

    #[test]
    fn wall_clock_that_is_set_back_neither_extends_nor_ends_nonce() {
        assert!(is_fresh_after(29_999, -3_600_000));
        assert!(!is_fresh_after(30_000, -3_600_000));
    }

    #[test]
    fn nonce_ended_by_wall_clock_is_followed_by_another_at_its_usual_time() {
        let request = request(0);
        let jumped = later(request.sent, Duration::from_secs(1), 3_600_000);
        assert!(!request.is_fresh(jumped) && jumped.monotonic < request.next);
        assert_eq!(request.next, request.sent.monotonic + PERMIT_LIFETIME);
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
