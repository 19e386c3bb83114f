//! The two decisions about refreshes: the next action while staging, and the time of an idle host's next refresh.

use std::time::Duration;

use models::reason::FailureReason;
use semver::Version;
use tokio::time::Instant;

use crate::backoff::exponential;
use crate::host::types::{UpdateState, UpdateStatus};

/// Failures of one host command after which the attempt fails.
pub const TRIES: u32 = 3;

/// Refreshes while the host chooses another version than the target version. The host's files may lag behind its
/// settings for a moment, and a release may be on its way to the mirrors.
pub const LOOKS: u32 = 5;

/// Range of the random delay before the first refresh of an idle host after a boot or a start of the agent, so that a
/// fleet that was installed or rebooted at once does not call its mirrors at once.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(60);

/// Delay after the first failed refresh.
const RETRY_LOOK: Duration = Duration::from_secs(10);

/// Events in the attempt so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// True if the host was reported as it was before the first command.
    pub announced: bool,
    /// True if the host's settings were checked for this desired state, where policy requests any.
    pub settled: bool,
    /// Failed refreshes.
    pub refresh: u32,
    /// Refreshes that found another version.
    pub mismatch: u32,
    /// True if a refresh of this desired state was carried out.
    pub looked: bool,
    /// Failed downloads.
    pub prepare: u32,
    /// Downloads that wrote another version after a refresh of this desired state.
    pub wrong: u32,
    /// Failed activations.
    pub activate: u32,
    /// Failed deactivations.
    pub deactivate: u32,
    /// Refused reboots.
    pub reboot: u32,
    /// Commands that the host's state did not allow.
    pub refused: u32,
    /// The host's last message.
    pub message: String,
}

/// Next action of the step `Stage`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Check for updates.
    Refresh,
    /// Download.
    Prepare,
    /// Fail the attempt.
    Fail(FailureReason, String),
}

/// Returns the next action for `wanted`: `chosen` is the choice of this process's last refresh, if that succeeded.
pub fn next(status: Option<&UpdateStatus>, chosen: Option<&Version>, wanted: &Version, tries: &Tries) -> Next {
    let said = |fallback: &str| if tries.message.is_empty() { fallback.to_owned() } else { tries.message.clone() };
    if tries.wrong > 0 {
        return Next::Fail(FailureReason::WrongImageStaged, said("the host wrote another version, or nothing"));
    }
    if tries.prepare >= TRIES {
        return Next::Fail(FailureReason::PrepareFailed, said("the host failed to download the image"));
    }
    if tries.refresh >= TRIES {
        return Next::Fail(FailureReason::RefreshFailed, said("the host failed to check for updates"));
    }
    let offered = chosen == Some(wanted)
        && status.is_some_and(|status| {
            status.chosen.as_ref() == Some(wanted)
                && matches!(status.state, UpdateState::Available | UpdateState::Staged)
        });
    if offered {
        return Next::Prepare;
    }
    if tries.mismatch >= LOOKS {
        let offer = status.and_then(|status| status.chosen.as_ref()).map_or("nothing".to_owned(), Version::to_string);
        return Next::Fail(FailureReason::VersionNotOffered, format!("wanted {wanted}, the host offers {offer}"));
    }
    Next::Refresh
}

/// Minimum time between two refreshes, from one request to the next. Neither policy's interval nor the desired state is
/// signed, and each refresh calls the host's update repository, which another party runs.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the time until which a refresh has to wait because the last one was requested at `asked`, whatever its
/// outcome and desired state.
pub fn too_soon(asked: Option<Instant>, now: Instant) -> Option<Instant> {
    asked.map(|asked| asked + SHORTEST_INTERVAL).filter(|allowed| now < *allowed)
}

/// Returns the time from the last refresh (before the first one: from becoming idle) to an idle host's next one.
/// `random` is in [0, 1).
pub fn until_next_look(interval: Duration, looked_before: bool, failures: u32, random: f64) -> Duration {
    // Whatever policy requests.
    let interval = interval.max(SHORTEST_INTERVAL);
    match (looked_before, failures) {
        (false, _) => interval.min(FIRST_LOOK_WITHIN).mul_f64(random.clamp(0.0, 1.0)),
        (true, 0) => interval,
        (true, failures) => exponential(RETRY_LOOK, interval, failures - 1).min(interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::situation::tests::{NEW, OLD, facts};

    #[test]
    fn a_host_that_was_just_asked_and_chose_the_version_downloads_at_once() {
        let status = facts("b", OLD, Some("Available"), ("refresh", "Success")).status;
        let tries = Tries::default();
        assert_eq!(next(status.as_ref(), Some(&NEW), &NEW, &tries), Next::Prepare);
        assert_eq!(next(status.as_ref(), None, &NEW, &tries), Next::Refresh);
        assert_eq!(next(None, Some(&NEW), &NEW, &tries), Next::Refresh);
        // A failed refresh leaves Idle with the old choice.
        let failed = facts("b", OLD, Some("Idle"), ("refresh", "Failed")).status;
        assert_eq!(next(failed.as_ref(), Some(&NEW), &NEW, &tries), Next::Refresh);
    }

    #[test]
    fn a_version_that_is_not_offered_ends_the_attempt_after_a_few_looks() {
        let status = facts("b", OLD, Some("Available"), ("refresh", "Success")).status;
        let other = Version::new(1, 21, 0);
        let tries = Tries { mismatch: LOOKS - 1, ..Tries::default() };
        assert_eq!(next(status.as_ref(), Some(&NEW), &other, &tries), Next::Refresh);
        let tries = Tries { mismatch: LOOKS, ..Tries::default() };
        let Next::Fail(reason, message) = next(status.as_ref(), Some(&NEW), &other, &tries) else {
            panic!("it has to end");
        };
        assert_eq!(reason, FailureReason::VersionNotOffered);
        assert_eq!(message, "wanted 1.21.0, the host offers 1.20.5");
    }

    #[test]
    fn failures_end_the_attempt_with_what_the_host_said() {
        let status = facts("b", OLD, Some("Available"), ("prepare", "Failed")).status;
        let tries = Tries { prepare: TRIES, message: "out of space".into(), ..Tries::default() };
        assert_eq!(
            next(status.as_ref(), Some(&NEW), &NEW, &tries),
            Next::Fail(FailureReason::PrepareFailed, "out of space".into())
        );
        let tries = Tries { refresh: TRIES, ..Tries::default() };
        assert!(matches!(next(status.as_ref(), None, &NEW, &tries), Next::Fail(FailureReason::RefreshFailed, _)));
        let tries = Tries { wrong: 1, ..Tries::default() };
        assert!(matches!(next(status.as_ref(), None, &NEW, &tries), Next::Fail(FailureReason::WrongImageStaged, _)));
    }

    #[test]
    fn an_idle_host_looks_soon_after_a_boot_then_each_interval_and_sooner_after_a_failure() {
        let hour = Duration::from_secs(3600);
        assert_eq!(until_next_look(hour, false, 0, 0.5), Duration::from_secs(30));
        assert_eq!(until_next_look(Duration::from_secs(4), false, 0, 0.5), Duration::from_secs(2));
        assert_eq!(until_next_look(hour, true, 0, 0.5), hour);
        assert_eq!(until_next_look(hour, true, 1, 0.5), Duration::from_secs(10));
        assert_eq!(until_next_look(hour, true, 3, 0.5), Duration::from_secs(40));
        assert_eq!(until_next_look(hour, true, 30, 0.5), hour);
        assert_eq!(until_next_look(Duration::from_secs(1), true, 3, 0.5), Duration::from_secs(1));
        assert_eq!(until_next_look(Duration::ZERO, true, 0, 0.5), Duration::from_secs(1), "never without a pause");
    }

    #[test]
    fn two_looks_are_never_closer_than_a_second() {
        let asked = Instant::now();
        assert_eq!(too_soon(None, asked), None);
        assert_eq!(too_soon(Some(asked), asked), Some(asked + Duration::from_secs(1)));
        assert_eq!(too_soon(Some(asked), asked + Duration::from_millis(999)), Some(asked + Duration::from_secs(1)));
        assert_eq!(too_soon(Some(asked), asked + Duration::from_secs(1)), None);
    }
}
