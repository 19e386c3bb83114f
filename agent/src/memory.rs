//! State that this process observed and caused in the running boot. A restarted agent continues without it; with it,
//! fewer facts are in doubt.

use models::shadow::FoundSettings;
use semver::Version;

use crate::desired_state::{AttemptId, DesiredState};
use crate::host::types::{Command, UpdateState, UpdateStatus};

/// State that this process observed and caused in the running boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The attempt whose image this process saw written whole, with no prepare failed since.
    pub(crate) prepared: Option<AttemptId>,
    /// True once this process saw a prepare as the host's last command: earlier reports of the image are then out of
    /// date.
    pub(crate) saw_prepare: bool,
    /// The attempt for which this process requested an activation.
    pub(crate) armed: Option<AttemptId>,
    /// The attempt that this process saw armed.
    pub(crate) activated: Option<AttemptId>,
    /// An activation, from this process or the previous one, after which the host has recorded nothing yet that clears
    /// or sets the disk's boot flags.
    pub(crate) unconfirmed: Option<Unconfirmed>,
    /// True if an activation of the previous process has been taken into account, or can no longer be checked.
    pub(crate) took_over: bool,
    /// True if this process disarmed the host and has not reported it yet.
    pub(crate) disarmed: bool,
    /// True if this process requested a refresh.
    pub(crate) requested_refresh: bool,
    /// The host's choice at that refresh; absent if it failed or nothing was chosen.
    pub(crate) chosen: Option<Version>,
    /// A failed refresh of which the host has no record.
    pub(crate) refresh_failure: Option<UnrecordedFailure>,
    /// The report's entry for the host's settings; absent while this process has not read them, and the stored entry
    /// remains.
    pub(crate) settings: Option<FoundSettings>,
}

/// An activation whose effect on the disk is unknown. Its worker may have died between changing the disk's flags and
/// recording it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unconfirmed {
    /// End time of the host's last command before it, as the host writes it.
    pub(crate) before: Option<String>,
}

/// A failed command of which the host has no record: the record that it shows is of a command before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnrecordedFailure {
    pub(crate) message: String,
    /// End time of the host's last command before it, as the host writes it.
    pub(crate) before: Option<String>,
}

impl Memory {
    /// Takes over, once, that the previous process reported that it was about to arm. Whether it did cannot be known,
    /// unless the host's last command disarmed. Returns true if anything changed.
    pub(crate) fn take_over(&mut self, status: Option<&UpdateStatus>) -> bool {
        if std::mem::replace(&mut self.took_over, true) {
            return false;
        }
        let last = status.and_then(|status| status.last.as_ref());
        if self.unconfirmed.is_some() || last.is_some_and(|last| last.is(Command::Deactivate) && last.succeeded) {
            return false;
        }
        self.unconfirmed = Some(Unconfirmed { before: last.map(|last| last.timestamp.clone()) });
        true
    }

    /// Records that this process disarmed the host.
    pub(crate) fn disarm(&mut self) {
        (self.armed, self.activated, self.disarmed) = (None, None, true);
    }

    /// Learns from a status that was just read, under this desired state.
    pub(crate) fn learn(&mut self, status: &UpdateStatus, desired: &DesiredState) {
        let Some(last) = &status.last else { return };
        let newer = |unconfirmed: &Unconfirmed| unconfirmed.before.as_deref() != Some(last.timestamp.as_str());
        let cleared = last.is(Command::Deactivate) || (last.is(Command::Prepare) && !wrote_nothing(&last.stderr));
        if last.succeeded && cleared && self.unconfirmed.as_ref().is_some_and(newer) {
            self.unconfirmed = None;
        }
        if last.is(Command::Refresh) {
            let found = last.succeeded && status.state != UpdateState::Idle;
            self.chosen = status.chosen.clone().filter(|_| found && self.requested_refresh);
            self.refresh_failure.take_if(|failure| failure.before.as_ref() != Some(&last.timestamp));
        }
        if last.is(Command::Prepare) {
            self.saw_prepare = true;
            let whole = last.succeeded
                && desired.version.as_ref().is_some_and(|wanted| {
                    status.staged_version() == Some(wanted) && !wrote_another(&last.stderr, wanted)
                });
            if whole && matches!(status.state, UpdateState::Staged) {
                self.prepared = Some(desired.attempt.clone());
            } else if !whole {
                self.prepared = None;
            }
        }
    }
}

/// Returns true if a prepare's output shows that it wrote another version than `wanted`, or nothing. The host records
/// the version chosen at its last refresh, but the downloader chooses again; only its output may show that.
pub(crate) fn wrote_another(stderr: &str, wanted: &Version) -> bool {
    const STARTING: &str = "Starting update to ";
    wrote_nothing(stderr)
        || stderr.lines().any(|line| {
            line.split_once(STARTING).is_some_and(|(_, rest)| {
                let named = rest.split_whitespace().next().unwrap_or_default().trim_start_matches('v');
                let named =
                    Version::parse(named).or_else(|_| Version::parse(named.trim_end_matches(['.', ',', ';', '"'])));
                named.is_ok_and(|named| named != *wanted)
            })
        })
}

/// Returns true if a prepare's output shows that it wrote nothing.
fn wrote_nothing(stderr: &str) -> bool {
    stderr.contains("No update required")
}

#[cfg(test)]
mod tests {
    use models::shadow::HostState;
    use serde_json::json;

    use super::*;

    fn desired(attempt: i64) -> DesiredState {
        DesiredState {
            attempt: AttemptId { uid: "s".into(), attempt },
            state: HostState::StagedUpdate,
            version: Some(Version::new(1, 20, 5)),
            boot_id: Some("b".into()),
        }
    }

    fn status(state: &str, staged: &str, kind: &str, outcome: &str, stderr: &str) -> UpdateStatus {
        UpdateStatus::read(&json!({
            "update_state": state, "chosen_update": {"version": "1.20.5"},
            "staging_partition": {"image": {"version": staged}, "next_to_boot": false},
            "most_recent_command": {"cmd_type": kind, "cmd_status": outcome, "timestamp": "t", "exit_status": 0, "stderr": stderr}
        }))
        .unwrap()
    }

    #[test]
    fn prepare_output_reveals_other_version() {
        let wanted = Version::new(1, 20, 5);
        for good in [
            "",
            "Starting update to 1.20.5",
            "x\nStarting update to 1.20.5\ndone",
            "Starting update to v1.20.5.",
            "Starting update to it",
        ] {
            assert!(!wrote_another(good, &wanted), "{good}");
        }
        for bad in [
            "Starting update to 1.21.0",
            "12:00 Starting update to 1.20.50 now",
            "No update required",
            "a\nNo update required\n",
        ] {
            assert!(wrote_another(bad, &wanted), "{bad}");
        }
    }

    #[test]
    fn staged_image_is_trusted_until_prepare_fails() {
        let mut memory = Memory::default();
        memory.learn(&status("Staged", "1.20.5", "prepare", "Success", ""), &desired(1));
        assert_eq!(memory.prepared, Some(desired(1).attempt));
        memory.learn(&status("Staged", "1.20.5", "refresh", "Failed", ""), &desired(1));
        assert_eq!(memory.prepared, Some(desired(1).attempt));
        memory.learn(&status("Staged", "1.20.5", "prepare", "Failed", "out of space"), &desired(1));
        assert_eq!(memory.prepared, None);
    }

    #[test]
    fn staged_image_of_other_version_is_not_trusted() {
        for status in [
            status("Staged", "1.20.6", "prepare", "Success", ""),
            status("Staged", "1.20.5", "prepare", "Success", "Starting update to 1.20.6"),
            status("Staged", "1.20.5", "prepare", "Success", "No update required"),
            status("Staged", "1.20.5", "activate", "Failed", ""),
        ] {
            let mut memory = Memory::default();
            memory.learn(&status, &desired(1));
            assert_eq!(memory.prepared, None, "{status:?}");
        }
    }

    #[test]
    fn refresh_that_failed_without_a_record_counts_until_the_host_records_another() {
        let failure = UnrecordedFailure { message: "no worker".into(), before: Some("t".into()) };
        let mut memory = Memory { refresh_failure: Some(failure.clone()), ..Memory::default() };
        let mut found = status("Available", "1.20.5", "refresh", "Success", "");
        memory.learn(&found, &desired(1));
        assert_eq!(memory.refresh_failure, Some(failure), "the record is of the refresh before it");
        found.last.as_mut().unwrap().timestamp = "later".into();
        memory.learn(&found, &desired(1));
        assert_eq!(memory.refresh_failure, None);
    }

    #[test]
    fn only_own_successful_refresh_sets_chosen_version() {
        let mut memory = Memory::default();
        let good = status("Available", "1.20.5", "refresh", "Success", "");
        memory.learn(&good, &desired(1));
        assert_eq!(memory.chosen, None, "another client's refresh may be old");
        memory.requested_refresh = true;
        memory.learn(&good, &desired(1));
        assert_eq!(memory.chosen, Some(Version::new(1, 20, 5)));
        // A failed refresh leaves the old choice in the host's answer.
        memory.learn(&status("Idle", "1.20.5", "refresh", "Failed", "no network"), &desired(1));
        assert_eq!(memory.chosen, None);
        memory.learn(&status("Idle", "1.20.5", "refresh", "Success", ""), &desired(1));
        assert_eq!(memory.chosen, None);
    }
}
