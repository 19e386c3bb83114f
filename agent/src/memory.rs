//! State that this process observed and caused in the running boot. A restarted agent continues without it; with it,
//! fewer facts are in doubt.

use models::shadow::{BottlerocketShadowSpec, FoundSettings, HostState};
use models::wire::ShadowView;
use semver::Version;

use crate::host::types::{Command, UpdateState, UpdateStatus};

/// One attempt on one shadow. A re-created shadow counts its attempts from the start, hence the uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptKey {
    /// The shadow's uid.
    pub uid: String,
    /// The attempt.
    pub attempt: i64,
}

/// A desired state, as far as it determines host commands. A changed permit or policy makes no other desired state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OrderKey {
    /// The attempt.
    pub attempt: AttemptKey,
    /// The state to reach.
    pub state: HostState,
    /// The target version.
    pub version: Option<Version>,
    /// The boot that it applies to.
    pub boot_id: Option<String>,
}

impl OrderKey {
    /// Returns the desired state of a shadow.
    pub fn of(view: &ShadowView) -> Self {
        let BottlerocketShadowSpec { state, version, attempt, boot_id, host: _, permit: _ } = &view.spec;
        Self {
            attempt: AttemptKey { uid: view.metadata.uid.clone(), attempt: *attempt },
            state: *state,
            version: version.clone(),
            boot_id: boot_id.clone(),
        }
    }
}

/// State that this process observed and caused in the running boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The attempt whose image this process saw written whole, with no prepare failed since.
    pub prepared: Option<AttemptKey>,
    /// True once this process saw a prepare as the host's last command: earlier reports of the image are then out of
    /// date.
    pub saw_prepare: bool,
    /// The attempt for which this process requested an activation.
    pub armed: Option<AttemptKey>,
    /// The attempt that this process saw armed.
    pub activated: Option<AttemptKey>,
    /// An activation, from this process or the previous one, after which the host has recorded nothing yet that clears
    /// or sets the disk's boot flags.
    pub unconfirmed: Option<Unconfirmed>,
    /// True if an activation of the previous process has been taken into account, or can no longer be checked.
    pub inherited: bool,
    /// True if this process disarmed the host and has not reported it yet.
    pub disarmed: bool,
    /// True if this process requested a refresh.
    pub asked_to_refresh: bool,
    /// The host's choice at that refresh; absent if it failed or nothing was chosen.
    pub chosen: Option<Version>,
    /// Reason of a failed refresh of which the host has no record.
    pub refresh_failure: Option<String>,
    /// The report's entry for the host's settings; absent while this process has not read them, and the stored entry
    /// remains.
    pub settings: Option<FoundSettings>,
}

/// An activation whose effect on the disk is unknown. Its worker may have died between changing the disk's flags and
/// recording it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// End time of the host's last command before it, as the host writes it.
    pub before: Option<String>,
}

impl Memory {
    /// Takes over, once, that the previous process reported that it was about to arm. Whether it did cannot be known,
    /// unless the host's last command disarmed. Returns true if anything changed.
    pub fn inherit(&mut self, status: Option<&UpdateStatus>) -> bool {
        if std::mem::replace(&mut self.inherited, true) {
            return false;
        }
        let last = status.and_then(|status| status.last.as_ref());
        if self.unconfirmed.is_some() || last.is_some_and(|last| last.is(Command::Deactivate) && last.succeeded()) {
            return false;
        }
        self.unconfirmed = Some(Unconfirmed { before: last.map(|last| last.timestamp.clone()) });
        true
    }

    /// Learns from a status that was just read, under this desired state.
    pub fn learn(&mut self, status: &UpdateStatus, order: &OrderKey) {
        let Some(last) = &status.last else { return };
        let newer = |unconfirmed: &Unconfirmed| unconfirmed.before.as_deref() != Some(last.timestamp.as_str());
        let cleared = last.is(Command::Deactivate) || (last.is(Command::Prepare) && !wrote_nothing(&last.stderr));
        if last.succeeded() && cleared && self.unconfirmed.as_ref().is_some_and(newer) {
            self.unconfirmed = None;
        }
        if last.is(Command::Refresh) {
            let found = last.succeeded() && status.state != UpdateState::Idle;
            self.chosen = status.chosen.clone().filter(|_| found && self.asked_to_refresh);
            self.refresh_failure = None;
        }
        if last.is(Command::Prepare) {
            self.saw_prepare = true;
            let whole = last.succeeded()
                && order.version.as_ref().is_some_and(|wanted| {
                    status.staged_version() == Some(wanted) && !wrote_another(&last.stderr, wanted)
                });
            if whole && matches!(status.state, UpdateState::Staged) {
                self.prepared = Some(order.attempt.clone());
            } else if !whole {
                self.prepared = None;
            }
        }
    }
}

/// Returns true if a prepare's output shows that it wrote another version than `wanted`, or nothing. The host records
/// the version chosen at its last refresh, but the downloader chooses again; only its output may show that.
pub fn wrote_another(stderr: &str, wanted: &Version) -> bool {
    const STARTING: &str = "Starting update to ";
    wrote_nothing(stderr)
        || stderr.lines().any(|line| {
            line.split_once(STARTING).is_some_and(|(_, rest)| {
                let word = rest.split_whitespace().next().unwrap_or_default().trim_start_matches('v');
                let named =
                    Version::parse(word).or_else(|_| Version::parse(word.trim_end_matches(['.', ',', ';', '"'])));
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
    use serde_json::json;

    use super::*;

    fn order(attempt: i64) -> OrderKey {
        OrderKey {
            attempt: AttemptKey { uid: "s".into(), attempt },
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
    fn a_prepare_is_judged_by_its_own_words_where_it_has_any() {
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
    fn an_image_is_trusted_until_a_prepare_fails() {
        let mut memory = Memory::default();
        memory.learn(&status("Staged", "1.20.5", "prepare", "Success", ""), &order(1));
        assert_eq!(memory.prepared, Some(order(1).attempt));
        memory.learn(&status("Staged", "1.20.5", "refresh", "Failed", ""), &order(1));
        assert_eq!(memory.prepared, Some(order(1).attempt));
        memory.learn(&status("Staged", "1.20.5", "prepare", "Failed", "out of space"), &order(1));
        assert_eq!(memory.prepared, None);
    }

    #[test]
    fn an_image_of_another_version_is_not_trusted() {
        for status in [
            status("Staged", "1.20.6", "prepare", "Success", ""),
            status("Staged", "1.20.5", "prepare", "Success", "Starting update to 1.20.6"),
            status("Staged", "1.20.5", "prepare", "Success", "No update required"),
            status("Staged", "1.20.5", "activate", "Failed", ""),
        ] {
            let mut memory = Memory::default();
            memory.learn(&status, &order(1));
            assert_eq!(memory.prepared, None, "{status:?}");
        }
    }

    #[test]
    fn only_a_look_that_succeeded_and_was_ours_chooses() {
        let mut memory = Memory::default();
        let good = status("Available", "1.20.5", "refresh", "Success", "");
        memory.learn(&good, &order(1));
        assert_eq!(memory.chosen, None, "another client's look may be old");
        memory.asked_to_refresh = true;
        memory.learn(&good, &order(1));
        assert_eq!(memory.chosen, Some(Version::new(1, 20, 5)));
        // A failed refresh leaves the old choice in the host's answer.
        memory.learn(&status("Idle", "1.20.5", "refresh", "Failed", "no network"), &order(1));
        assert_eq!(memory.chosen, None);
        memory.learn(&status("Idle", "1.20.5", "refresh", "Success", ""), &order(1));
        assert_eq!(memory.chosen, None);
    }
}
