//! The next action while staging, and the events of an attempt that it depends on.

use models::backoff::Backoff;
use models::reason::FailureReason;
use semver::Version;

use crate::host::types::{UpdateState, UpdateStatus};

/// Failures of one host command after which an attempt fails.
pub(crate) const TRIES: u32 = 3;

/// Refreshes while the host chooses another version than the target version. The host's files may lag behind its
/// settings for a moment, and a release may be on its way to the mirrors.
pub(crate) const MOST_REFRESHES: u32 = 5;

/// Events in the attempt so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    /// True if the host was reported as it was before the first command.
    pub(crate) announced: bool,
    /// True if the host's settings were checked for this desired state, where policy requests any.
    pub(crate) settled: bool,
    pub(crate) refresh: Backoff,
    /// Refreshes that found another version.
    pub(crate) mismatch: Backoff,
    /// True if a refresh of this desired state was carried out.
    pub(crate) refreshed: bool,
    pub(crate) prepare: Backoff,
    /// True if a download wrote another version after a refresh of this desired state.
    pub(crate) wrong_image: bool,
    pub(crate) activate: Backoff,
    pub(crate) deactivate: Backoff,
    pub(crate) reboot: Backoff,
    /// Commands that the host's state did not allow.
    pub(crate) refused: Backoff,
    pub(crate) message: String,
}

/// Next action of the step `Stage`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StagingAction {
    Refresh,
    Prepare,
    Fail(FailureReason, String),
}

/// Returns the next action for `wanted`: `chosen` is the choice of this process's last refresh, if that succeeded.
pub(crate) fn next_action(
    status: Option<&UpdateStatus>,
    chosen: Option<&Version>,
    wanted: &Version,
    tries: &Tries,
) -> StagingAction {
    for (has_failed, reason, message) in [
        (tries.wrong_image, FailureReason::WrongImageStaged, "the host wrote another version, or nothing"),
        (tries.prepare.failures() >= TRIES, FailureReason::PrepareFailed, "the host failed to download the image"),
        (tries.refresh.failures() >= TRIES, FailureReason::RefreshFailed, "the host failed to check for updates"),
    ] {
        if has_failed {
            let message = if tries.message.is_empty() { message } else { &tries.message };
            return StagingAction::Fail(reason, message.to_owned());
        }
    }
    let offered = chosen == Some(wanted)
        && status.is_some_and(|status| {
            status.chosen.as_ref() == Some(wanted)
                && matches!(status.state, UpdateState::Available | UpdateState::Staged)
        });
    if offered {
        return StagingAction::Prepare;
    }
    if tries.mismatch.failures() >= MOST_REFRESHES {
        let offer = status.and_then(|status| status.chosen.as_ref()).map_or("nothing".to_owned(), Version::to_string);
        let message = format!("wanted {wanted}, the host offers {offer}");
        return StagingAction::Fail(FailureReason::VersionNotOffered, message);
    }
    StagingAction::Refresh
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::situation::tests::{NEW, OLD, facts};

    #[test]
    fn download_starts_after_own_refresh_chose_version() {
        let status = facts("b", OLD, Some("Available"), ("refresh", "Success")).status;
        let tries = Tries::default();
        assert_eq!(next_action(status.as_ref(), Some(&NEW), &NEW, &tries), StagingAction::Prepare);
        assert_eq!(next_action(status.as_ref(), None, &NEW, &tries), StagingAction::Refresh);
        assert_eq!(next_action(None, Some(&NEW), &NEW, &tries), StagingAction::Refresh);
        // A failed refresh leaves Idle with the old choice.
        let failed = facts("b", OLD, Some("Idle"), ("refresh", "Failed")).status;
        assert_eq!(next_action(failed.as_ref(), Some(&NEW), &NEW, &tries), StagingAction::Refresh);
    }

    #[test]
    fn version_not_offered_fails_attempt_after_refresh_limit() {
        let status = facts("b", OLD, Some("Available"), ("refresh", "Success")).status;
        let other = Version::new(1, 21, 0);
        let tries = Tries { mismatch: Backoff::after(MOST_REFRESHES - 1), ..Tries::default() };
        assert_eq!(next_action(status.as_ref(), Some(&NEW), &other, &tries), StagingAction::Refresh);
        let tries = Tries { mismatch: Backoff::after(MOST_REFRESHES), ..Tries::default() };
        let StagingAction::Fail(reason, message) = next_action(status.as_ref(), Some(&NEW), &other, &tries) else {
            panic!("it has to end");
        };
        assert_eq!(reason, FailureReason::VersionNotOffered);
        assert_eq!(message, "wanted 1.21.0, the host offers 1.20.5");
    }

    #[test]
    fn repeated_host_failures_end_attempt_with_their_reason() {
        let status = facts("b", OLD, Some("Available"), ("prepare", "Failed")).status;
        let tries = Tries { prepare: Backoff::after(TRIES), message: "out of space".into(), ..Tries::default() };
        assert_eq!(
            next_action(status.as_ref(), Some(&NEW), &NEW, &tries),
            StagingAction::Fail(FailureReason::PrepareFailed, "out of space".into())
        );
        let tries = Tries { refresh: Backoff::after(TRIES), ..Tries::default() };
        assert!(matches!(
            next_action(status.as_ref(), None, &NEW, &tries),
            StagingAction::Fail(FailureReason::RefreshFailed, _)
        ));
        let tries = Tries { wrong_image: true, ..Tries::default() };
        assert!(matches!(
            next_action(status.as_ref(), None, &NEW, &tries),
            StagingAction::Fail(FailureReason::WrongImageStaged, _)
        ));
    }
}
