//! Progress of the host's settings towards what policy requests.

use std::time::Duration;

use models::backoff::{Backoff, Delays};
use models::shadow::{FoundSettings, HostPolicy};
use models::wire::ShadowView;
use semver::Version;
use tokio::time::Instant;

use crate::host::settings::{HostSettings, SettingsChange, parse_lock};
use crate::host::types::UpdateStatus;
use crate::report::HostCondition;
use crate::settings::{Expected, RequestedSettings};
use crate::staging::{MOST_REFRESHES, TRIES};
use crate::statement::StatementError;

/// Delay after a refused change. The host mostly refuses the same change again.
const FAILED: Delays = (Duration::from_secs(1), Duration::from_secs(300));

/// Delay before another refresh while the host's tools do not seem to use the settings yet.
const NOT_SHOWN: Delays = (Duration::from_millis(500), Duration::from_secs(8));

/// Refreshes after a change of the waves alone that show the same offers as before: mostly no version is in its waves,
/// and a whole fleet has the change at once. Between them is the longest of the delays, for files that are late.
const MOST_SAME_OFFERS: u32 = 2;

/// Returns the requested settings of a shadow with their signature, and nothing else of the policy.
pub(super) fn requested_in(view: &ShadowView) -> HostPolicy {
    view.spec.host.as_ref().filter(|host| host.asks_settings()).map_or_else(HostPolicy::default, |host| HostPolicy {
        refresh_interval: None,
        disarm_in_boot: None,
        ..host.clone()
    })
}

/// Creates the condition of a host whose settings the controller did not sign.
pub(super) fn unsigned(error: &StatementError) -> HostCondition {
    let message = format!("the host's settings are left as they are: spec.host is not signed for this host: {error}");
    HostCondition::problem("SettingsUnsigned", message)
}

/// Creates the condition of a host that does not change its settings.
pub(super) fn not_changed(message: &str) -> HostCondition {
    HostCondition::problem("SettingsFailed", format!("the host's settings cannot be changed: {message}"))
}

fn locked_by_other(lock: &str) -> HostCondition {
    let message = format!(
        "another client set the host's version-lock to '{lock}'; it is left alone until it is set back to 'latest'"
    );
    HostCondition::problem("LockedByOther", message)
}

/// Time at which the settings have to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reading {
    #[default]
    Due,
    /// Not before this time; without a time, not before the request changes.
    Waits(Option<Instant>),
    /// Read at this time, and found as requested or as another client's.
    Done(Instant),
}

/// Result that the next refreshes have to show.
#[derive(Clone, Debug)]
struct Awaited {
    expected: Expected,
    /// The change to commit once more if they do not show it.
    change: SettingsChange,
    /// Refreshes that did not.
    refreshes: Backoff,
}

#[derive(Debug, Default)]
pub(super) struct SettingsProgress {
    /// The requested settings with their signature, and nothing else of the policy.
    pub(super) policy: HostPolicy,
    pub(super) reading: Reading,
    /// Reason why the settings are not what policy requests.
    problem: Option<HostCondition>,
    /// The host's settings when they were last read.
    pub(super) seen: HostSettings,
    /// Consecutive failed changes, and the last message.
    backoff: Backoff,
    message: String,
    /// A change that may be committed without its files being written: it has to be committed again.
    pub(super) unapplied: SettingsChange,
    awaited: Option<Awaited>,
    /// True if a change was committed once more because no refresh showed it. Done once only: the host may simply not
    /// offer the version.
    committed_again: bool,
}

impl SettingsProgress {
    /// Returns the content of `HostReachable` for the settings.
    pub(super) fn condition(&self) -> HostCondition {
        self.problem.clone().unwrap_or(HostCondition::answered())
    }

    /// Returns the host's refusal once it has refused often enough to fail an attempt.
    pub(super) fn refusal(&self) -> Option<String> {
        (self.backoff.failures() >= TRIES).then(|| self.message.clone())
    }

    /// Returns true if the last change failed, or was not answered.
    pub(super) fn is_failing(&self) -> bool {
        self.backoff.failures() > 0
    }

    /// Returns true if the settings were last read before `then`.
    pub(super) fn read_before(&self, then: Instant) -> bool {
        matches!(self.reading, Reading::Done(at) if at < then)
    }

    /// Makes a read due, unless a delay is running.
    pub(super) fn read_again(&mut self) {
        if let Reading::Done(_) = self.reading {
            self.reading = Reading::Due;
        }
    }

    /// Makes a read due for a new desired state, which starts with all its tries.
    pub(super) fn begin_desired_state(&mut self) {
        if self.backoff.failures() > 0 {
            self.backoff.reset();
            self.reading = Reading::Due;
        }
        self.read_again();
    }

    /// Records that a refresh has shown the settings to be used.
    pub(super) fn shown(&mut self) {
        self.awaited = None;
    }

    /// Learns from a successful refresh whether the host's tools use the settings. If they do not, returns the delay
    /// before another refresh.
    pub(super) fn learn_choice(&mut self, status: &UpdateStatus, running: &Version) -> Option<Duration> {
        let mut awaited = self.awaited.take()?;
        if self.problem.is_some() || awaited.expected.is_shown(status, running) {
            return None;
        }
        let mut delay = awaited.refreshes.next_delay(NOT_SHOWN);
        if awaited.change.version_lock.is_none() && awaited.expected.is_offered_as_before(status) {
            if awaited.refreshes.failures() >= MOST_SAME_OFFERS {
                tracing::info!("the host's offers are the same after the change of its waves");
                return None;
            }
            delay = NOT_SHOWN.1;
        } else if awaited.refreshes.failures() >= MOST_REFRESHES {
            if self.committed_again || awaited.change.version_lock.is_none() {
                let version_lock = awaited.expected.lock.as_ref().map(tracing::field::display);
                tracing::warn!(version_lock, "the host chooses another version than its settings require");
                return None;
            }
            // Their files may never have been written: a commit whose answer was lost does not show it.
            self.committed_again = true;
            self.unapplied = awaited.change.clone();
            self.reading = Reading::Due;
            awaited.refreshes.reset();
            delay = NOT_SHOWN.0;
        }
        self.awaited = Some(awaited);
        Some(delay)
    }

    /// Begins another request, if it is one. Returns true if there is anything to set or to restore.
    pub(super) fn begin_request(&mut self, policy: HostPolicy, record: &FoundSettings) -> bool {
        if self.policy != policy {
            let lock = RequestedSettings::of(&policy).ok().and_then(|requested| requested.lock);
            // Settings of a previous process may not have reached the host's tools.
            let awaited = lock.is_some().then(|| Awaited {
                expected: Expected { lock, offered_before: None },
                change: record.applied.as_ref().map_or_else(SettingsChange::default, |set| SettingsChange {
                    version_lock: set.version_lock.clone(),
                    ignore_waves: set.ignore_waves,
                }),
                refreshes: Backoff::default(),
            });
            let problem = self.problem.take();
            *self = Self { policy, awaited, problem, ..Self::default() };
        }
        let is_needed = self.policy.asks_settings() || record.applied.is_some() || !self.unapplied.is_empty();
        if !is_needed {
            self.problem = None;
        }
        is_needed
    }

    /// Returns the requested settings, or the requested lock if it is no version.
    pub(super) fn requested(&self) -> Result<RequestedSettings, String> {
        RequestedSettings::of(&self.policy)
    }

    /// Waits because of a problem with the request. Returns true if it is a new one.
    pub(super) fn wait(&mut self, problem: HostCondition, until: Option<Instant>) -> bool {
        self.reading = Reading::Waits(until);
        if self.problem.as_ref() == Some(&problem) {
            return false;
        }
        let (reason, message) = problem.reason();
        tracing::warn!(reason, detail = ?message, "the host's settings are left unchanged");
        self.problem = Some(problem);
        true
    }

    /// Repeats a change that is committed without its files being written, unless a client reverted it meanwhile.
    pub(super) fn with_unapplied(&mut self, change: SettingsChange, now: &HostSettings) -> SettingsChange {
        if !change.is_empty() {
            return change;
        }
        if !self.unapplied.is_in(now) {
            self.unapplied = SettingsChange::default();
        }
        self.unapplied.clone()
    }

    /// Records the host's settings and what was decided about them. Returns true if the condition has changed.
    pub(super) fn record_reading(
        &mut self,
        seen: HostSettings,
        record: &FoundSettings,
        change: &SettingsChange,
        now: Instant,
    ) -> bool {
        let problem = match &record.conflicting_lock {
            Some(lock) => Some(locked_by_other(lock)),
            None => self.refusal().map(|message| not_changed(&message)).filter(|_| !change.is_empty()),
        };
        let is_new = self.problem != problem;
        (self.seen, self.problem) = (seen, problem);
        if change.is_empty() {
            self.backoff.reset();
            self.reading = Reading::Done(now);
        }
        is_new
    }

    /// Expects that a refresh shows this change. `offered` are the versions that the host offers before it.
    pub(super) fn await_change(&mut self, change: &SettingsChange, offered: Vec<Version>) {
        let lock = change.version_lock.as_ref().or(self.seen.version_lock.as_ref());
        let expected = Expected {
            lock: lock.and_then(|lock| parse_lock(lock)),
            offered_before: change.ignore_waves.map(|_| offered),
        };
        self.awaited = Some(Awaited { expected, change: change.clone(), refreshes: Backoff::default() });
    }

    pub(super) fn committed(&mut self) {
        self.unapplied = SettingsChange::default();
        self.backoff.reset();
    }

    /// Records a change that failed, and waits before the next try.
    pub(super) fn fail(&mut self, message: String, now: Instant) {
        self.reading = Reading::Waits(Some(now + self.backoff.next_delay(FAILED)));
        if self.backoff.failures() >= TRIES {
            self.problem = Some(not_changed(&message));
        }
        self.message = message;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::situation::tests::{NEW, OLD, facts};

    fn locked_to(version: &str) -> HostPolicy {
        HostPolicy { version_lock: Some(version.into()), ..HostPolicy::default() }
    }

    fn lock(version: &str) -> SettingsChange {
        SettingsChange { version_lock: Some(version.into()), ignore_waves: None }
    }

    #[test]
    fn rejected_settings_change_is_retried_and_reported_after_three_failures() {
        let now = Instant::now();
        let mut progress = SettingsProgress::default();
        for refusals in 1..=TRIES {
            assert_eq!((progress.refusal(), progress.condition()), (None, HostCondition::answered()));
            progress.fail("no".into(), now);
            let delay = Duration::from_secs(1 << (refusals - 1));
            assert_eq!(progress.reading, Reading::Waits(Some(now + delay)));
        }
        assert_eq!(progress.refusal().as_deref(), Some("no"));
        assert_eq!(progress.condition().reason().0, "SettingsFailed");
        progress.begin_desired_state();
        assert_eq!((progress.refusal(), progress.reading), (None, Reading::Due));
    }

    #[test]
    fn new_desired_state_does_not_end_wait_for_signature() {
        let mut progress = SettingsProgress::default();
        let problem = unsigned(&StatementError::Missing);
        assert!(progress.wait(problem.clone(), None));
        assert!(!progress.wait(problem, None), "it is logged once");
        progress.begin_desired_state();
        assert_eq!(progress.reading, Reading::Waits(None));
    }

    #[test]
    fn lock_not_shown_by_refreshes_is_committed_once_more() {
        let status = facts("b", OLD, Some("Available"), ("refresh", "Success")).status.unwrap();
        let other = Version::new(1, 19, 0);
        let mut progress = SettingsProgress::default();
        progress.begin_request(locked_to("1.19.0"), &FoundSettings::default());
        progress.await_change(&lock("1.19.0"), Vec::new());
        for round in 0..2 {
            for _ in 1..MOST_REFRESHES {
                assert!(progress.learn_choice(&status, &OLD).is_some());
                assert!(progress.unapplied.is_empty());
            }
            assert_eq!(progress.learn_choice(&status, &OLD), (round == 0).then_some(NOT_SHOWN.0));
            let seen = HostSettings { version_lock: Some("1.19.0".into()), ignore_waves: None };
            let again = progress.with_unapplied(SettingsChange::default(), &seen);
            assert_eq!(again, if round == 0 { lock("1.19.0") } else { SettingsChange::default() });
            progress.committed();
        }
        assert_eq!(progress.learn_choice(&status, &other), None, "nothing is awaited any more");
    }

    #[test]
    fn change_of_waves_alone_that_changes_no_offer_ends_with_the_second_refresh() {
        let status = facts("b", OLD, Some("Available"), ("refresh", "Success")).status.unwrap();
        let waves = |version_lock| SettingsChange { version_lock, ignore_waves: Some(true) };
        for (change, delays) in [
            (waves(None), [Some(NOT_SHOWN.1), None]),
            (waves(Some("latest".into())), [Some(NOT_SHOWN.0), Some(NOT_SHOWN.0 * 2)]),
        ] {
            let mut progress = SettingsProgress::default();
            progress.await_change(&change, status.available.clone());
            assert_eq!([(); 2].map(|()| progress.learn_choice(&status, &OLD)), delays, "{change:?}");
            assert!(progress.unapplied.is_empty(), "it is not committed again");
        }
    }

    #[test]
    fn refresh_showing_lock_ends_wait() {
        let status = facts("b", OLD, Some("Available"), ("refresh", "Success")).status.unwrap();
        let mut progress = SettingsProgress::default();
        progress.await_change(&lock(&NEW.to_string()), Vec::new());
        assert_eq!(progress.learn_choice(&status, &OLD), None);
    }
}
