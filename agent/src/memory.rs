//! State that this process observed and caused in the running boot. A restarted agent continues without it; with it,
//! fewer facts are in doubt.

use models::shadow::FoundSettings;
use semver::Version;

use crate::desired_state::{AttemptId, DesiredState};
use crate::host::types::{Command, CommandRecord, UpdateState, UpdateStatus};

/// State that this process observed and caused in the running boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The attempt whose image this process saw written whole, or took over from an earlier attempt, with no prepare since
    /// that may have changed it.
    pub(crate) prepared: Option<AttemptId>,
    /// The version that a later attempt need not download again: this process saw its image written whole, and each command that
    /// it has seen on the host since then was its own refresh.
    pub(crate) whole: Option<Version>,
    /// End time of the last command that was judged for the image, as the host writes it.
    pub(crate) judged: Option<String>,
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

    /// Records that this process is about to request a prepare, which may change the image and leave no record.
    pub(crate) fn begin_prepare(&mut self) {
        (self.prepared, self.whole) = (None, None);
    }

    /// Records that the last command in this status is a refresh of this process, which leaves the image as it is.
    pub(crate) fn end_refresh(&mut self, status: &UpdateStatus) {
        self.judged = status.timestamp().map(str::to_owned);
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
        self.saw_prepare |= last.is(Command::Prepare);
        if self.judged.as_ref() != Some(&last.timestamp) {
            self.judge_image(status, last);
        }
        // After a refresh that failed, the host still shows the choice of an earlier one.
        let chosen = if last.is(Command::Refresh) { &self.chosen } else { &status.chosen };
        let wanted = desired.version.as_ref();
        let is_whole = wanted.is_some()
            && [self.whole.as_ref(), status.staged_version(), chosen.as_ref()].iter().all(|it| *it == wanted);
        if is_whole && status.state == UpdateState::Staged {
            self.prepared = Some(desired.attempt.clone());
        }
    }

    /// Judges the image by a command that has ended since the last read, other than a refresh of this process. The host shows
    /// its last command alone: a prepare that failed may have come before another client's.
    fn judge_image(&mut self, status: &UpdateStatus, last: &CommandRecord) {
        self.judged = Some(last.timestamp.clone());
        let prepared = last.is(Command::Prepare);
        if prepared {
            self.prepared = None;
        }
        let written = status.staged_version().filter(|_| prepared && last.succeeded);
        self.whole = written.filter(|version| !wrote_another(&last.stderr, version)).cloned();
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

    /// A status of the wanted version, whose last command ended at `time`.
    fn staged(time: &str, kind: &str, outcome: &str) -> UpdateStatus {
        let mut status = status("Staged", "1.20.5", kind, outcome, "");
        status.last.as_mut().unwrap().timestamp = time.into();
        status
    }

    #[test]
    fn staged_image_is_trusted_until_prepare_fails() {
        let mut memory = Memory::default();
        memory.learn(&staged("t1", "prepare", "Success"), &desired(1));
        assert_eq!(memory.prepared, Some(desired(1).attempt));
        memory.learn(&staged("t2", "refresh", "Failed"), &desired(1));
        assert_eq!(memory.prepared, Some(desired(1).attempt), "also after another client's refresh");
        memory.learn(&staged("t3", "prepare", "Failed"), &desired(1));
        assert_eq!(memory.prepared, None);
    }

    #[test]
    fn later_attempt_takes_over_the_image_after_own_refreshes_alone() {
        let mut memory = Memory { requested_refresh: true, ..Memory::default() };
        let idle = DesiredState { state: HostState::Idle, version: None, boot_id: None, ..desired(1) };
        let refresh = |memory: &mut Memory, time: &str, outcome: &str| {
            let status = staged(time, "refresh", outcome);
            memory.end_refresh(&status);
            memory.learn(&status, &idle);
            status
        };
        // The end of a download whose attempt was withdrawn.
        memory.learn(&staged("t1", "prepare", "Success"), &idle);
        assert_eq!(memory.prepared, None, "there is no attempt");
        refresh(&mut memory, "t2", "Failed");
        let own = refresh(&mut memory, "t3", "Success");
        memory.learn(&own, &desired(2));
        assert_eq!(memory.prepared, Some(desired(2).attempt));

        let after = |change: &dyn Fn(&mut Memory, &mut UpdateStatus)| {
            let (mut memory, mut status) = (memory.clone(), own.clone());
            change(&mut memory, &mut status);
            memory.learn(&status, &desired(3));
            memory.prepared == Some(desired(3).attempt)
        };
        assert!(after(&|_, _| {}));
        for (kind, outcome) in
            [("refresh", "Success"), ("prepare", "Failed"), ("activate", "Failed"), ("deactivate", "Success")]
        {
            let is_trusted = after(&|memory, status| {
                memory.learn(&staged("t4", kind, outcome), &idle);
                *status = refresh(memory, "t5", "Success");
            });
            assert!(!is_trusted, "another client's {kind}: {outcome}");
        }
        assert!(!after(&|memory, _| memory.begin_prepare()), "a prepare without a record");
        assert!(!after(&|_, status| status.staging = None), "the host has lost it");
        assert!(!after(&|_, status| status.state = UpdateState::Ready), "it is armed");
        assert!(!after(&|_, status| status.chosen = Some(Version::new(1, 21, 0))), "the host chooses another one");
        assert!(
            !after(&|memory, status| *status = refresh(memory, "t5", "Failed")),
            "it is not known to be offered still"
        );
    }

    #[test]
    fn old_record_of_a_prepare_is_no_record_of_the_one_after_it() {
        let mut memory = Memory::default();
        let before = staged("t1", "prepare", "Success");
        memory.learn(&before, &desired(1));
        memory.begin_prepare();
        memory.learn(&before, &desired(1));
        assert_eq!(memory.prepared, None, "it has left no record");
        memory.learn(&staged("t2", "prepare", "Success"), &desired(1));
        assert_eq!(memory.prepared, Some(desired(1).attempt));
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
