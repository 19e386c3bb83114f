//! The host's settings: set to what policy requests, where the controller signed it, and restored afterwards.
//!
//! ```text
//!  signed? ──► read ──► decide ──► report, acknowledged ──► stage, commit ──► read again ──► refresh until one
//!                                                                                           shows the change
//! ```
//!
//! Done only under `Idle` or before a download, and never while an image is armed. Where policy requests nothing and
//! there is nothing to restore, no settings call is made.

use std::time::Duration;

use models::shadow::{FoundSettings, HostPolicy};
use models::wire::ShadowView;
use semver::Version;
use tokio::time::Instant;

use super::put::Put;
use super::{AgentError, Driver, Turn};
use crate::backoff::{exponential, random};
use crate::host::client::{Committed, HostError, Posted};
use crate::host::types::{UpdateState, UpdateStatus};
use crate::memory::OrderKey;
use crate::permit::new_nonce;
use crate::report::{Reach, Word};
use crate::settings::{Asked, Change, Decision, Expected, HostSettings, decide, exact, lets_in, verify};
use crate::situation::Facts;
use crate::staging::{LOOKS, TRIES, until_next_look};
use crate::statement::StatementError;

/// Interval of re-checks of a policy whose key is not trusted yet: the keys arrive as a file.
const KEYS_POLL: Duration = Duration::from_secs(5);

/// Delay after a refused change: the first and the maximum. The host mostly refuses the same change again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Delay before another refresh while the host's tools do not seem to use the settings yet: the first and the maximum.
const LOOK: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));

/// Reason why the settings are not what policy requests, for the condition `HostReachable`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hindrance {
    reason: &'static str,
    message: String,
}

impl Hindrance {
    fn unsigned(why: &StatementError) -> Self {
        let message = format!("what spec.host asks of the host's settings is not obeyed: {why}");
        Self { reason: "SettingsUnsigned", message }
    }

    fn failed(message: &str) -> Self {
        Self { reason: "SettingsFailed", message: format!("the host's settings cannot be changed: {message}") }
    }

    fn locked(lock: &str) -> Self {
        let message = format!(
            "another client set the host's version-lock to '{lock}'; it is left alone until it is set back to 'latest'"
        );
        Self { reason: "LockedByOther", message }
    }
}

/// Time at which the settings have to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Now.
    #[default]
    Due,
    /// Not before this time; without a time, not before the request changes.
    Waiting(Option<Instant>),
    /// Read at this time, and found as requested or as another client's.
    Settled(Instant),
}

/// Result that the next refreshes have to show.
#[derive(Clone, Debug)]
struct Awaited {
    expected: Expected,
    /// The change to commit once more if they do not show it.
    change: Change,
    /// Number of refreshes that did not.
    looks: u32,
}

/// Progress of the settings towards what policy requests.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// The requested settings with their signature, and nothing else of the policy.
    asked: HostPolicy,
    state: State,
    hindrance: Option<Hindrance>,
    /// The host's settings when they were last read.
    seen: HostSettings,
    /// Consecutive failed changes, and the last message.
    failures: u32,
    message: String,
    /// A change that may be committed without its files being written: it has to be committed again.
    unapplied: Change,
    awaited: Option<Awaited>,
    /// True if a change was committed once more because no refresh showed it. Done once only: the host may simply not
    /// offer the version.
    reapplied: bool,
}

impl Settling {
    /// Returns the content of `HostReachable` for the settings.
    pub(super) fn reach(&self) -> Reach {
        match &self.hindrance {
            None => Reach::Answered,
            Some(Hindrance { reason, message }) => Reach::Settings { reason, message: message.clone() },
        }
    }

    /// Records that a refresh has shown the settings to be used.
    pub(super) fn shown(&mut self) {
        self.awaited = None;
    }

    /// Returns true if the settings were last read before `then`.
    pub(super) fn settled_before(&self, then: Instant) -> bool {
        matches!(self.state, State::Settled(at) if at < then)
    }

    /// Makes the settings due, unless a delay is running.
    pub(super) fn look_again(&mut self) {
        if let State::Settled(_) = self.state {
            self.state = State::Due;
        }
    }

    /// Makes the settings due for a new desired state, which starts with all its tries.
    pub(super) fn begin_order(&mut self) {
        if self.failures > 0 {
            self.failures = 0;
            self.state = State::Due;
        }
        self.look_again();
    }
}

/// Outcome for the settings.
pub(super) enum Settled {
    /// They are as requested, or another client's.
    Yes,
    /// They are not, and there is nothing to do until this time, or until the request changes.
    Waits(Option<Instant>),
    /// A change was made; this turn comes next.
    Goes(Turn),
}

/// Returns the requested settings of a shadow with their signature, and nothing else of the policy.
fn asks(view: &ShadowView) -> HostPolicy {
    view.spec.host.as_ref().filter(|host| host.asks_settings()).map_or_else(HostPolicy::default, |host| HostPolicy {
        refresh_interval: None,
        disarm_in_boot: None,
        ..host.clone()
    })
}

impl Driver<'_> {
    /// Records the request. Returns true if there is anything to do: where nothing is requested and nothing has to be
    /// restored, no settings call is made.
    pub(super) fn begin_settling(&mut self, view: &ShadowView) -> bool {
        let asked = asks(view);
        let record = self.record(view);
        if self.settling.asked != asked {
            let lock = Asked::of(Some(&asked)).ok().and_then(|asked| asked.lock);
            // Settings of a previous process may not have reached the host's tools.
            let awaited = lock.is_some().then(|| Awaited {
                expected: Expected { lock, offered_before: None },
                change: record.applied.as_ref().map_or_else(Change::default, |set| Change {
                    version_lock: set.version_lock.clone(),
                    ignore_waves: set.ignore_waves,
                }),
                looks: 0,
            });
            let hindrance = self.settling.hindrance.take();
            self.settling = Settling { asked, awaited, hindrance, ..Settling::default() };
        }
        let anything =
            self.settling.asked.asks_settings() || record.applied.is_some() || !self.settling.unapplied.is_empty();
        if !anything {
            self.settling.hindrance = None;
            if record != FoundSettings::default() {
                self.memory.settings = Some(FoundSettings::default());
            }
        }
        anything
    }

    /// Returns true if the settings are handled before a download of `wanted`: not if policy meanwhile requests another
    /// version, or no longer requests the lock that the download needs. Those settings wait for `Idle`.
    pub(super) fn settles_for(&self, view: &ShadowView, wanted: &Version) -> bool {
        match Asked::of(Some(&self.settling.asked)) {
            Ok(Asked { lock: Some(lock), .. }) => lock == *wanted,
            Ok(Asked { lock: None, waves }) => {
                waves && self.record(view).applied.is_none_or(|set| set.version_lock.is_none())
            }
            Err(_) => true,
        }
    }

    /// Returns a lock that another client set and that does not allow this version.
    pub(super) fn locked_out(&self, view: &ShadowView, wanted: &Version) -> Option<String> {
        let lock = self.settling.seen.version_lock.as_ref()?;
        let ours = self.record(view).applied.is_some_and(|set| set.version_lock.is_some());
        (!ours && !lets_in(lock, wanted)).then(|| lock.clone())
    }

    /// Returns the host's refusal once it has refused often enough to fail an attempt.
    pub(super) fn settings_refused(&self) -> Option<String> {
        (self.settling.failures >= TRIES).then(|| self.settling.message.clone())
    }

    fn record(&self, view: &ShadowView) -> FoundSettings {
        self.memory.settings.clone().or_else(|| view.status.report.host.clone()).unwrap_or_default()
    }

    /// Brings the settings one step closer to what policy requests. `word` is what a report states of the attempt
    /// meanwhile.
    pub(super) async fn settle(
        &mut self,
        view: &ShadowView,
        key: &OrderKey,
        facts: &Facts,
        word: &Word,
    ) -> Result<Settled, AgentError> {
        match self.settling.state {
            State::Settled(_) => return Ok(Settled::Yes),
            State::Waiting(until) if until.is_none_or(|until| Instant::now() < until) => {
                return Ok(Settled::Waits(until));
            }
            State::Waiting(_) | State::Due => {}
        }
        let asked = match self.permitted() {
            Ok(asked) => asked,
            Err((hindrance, until)) => {
                self.settling.state = State::Waiting(until);
                let told = self.settling.hindrance.as_ref() == Some(&hindrance);
                if told {
                    return Ok(Settled::Waits(until));
                }
                tracing::warn!(reason = hindrance.reason, message = ?hindrance.message, "no setting is touched");
                self.settling.hindrance = Some(hindrance);
                return Ok(Settled::Goes(Turn::Again));
            }
        };
        let now = match self.host.settings().await {
            Ok(now) => now,
            Err(error) => return self.settings_unanswered(key, error).await.map(Settled::Goes),
        };
        self.trouble = None;
        let Decision { record, change } = decide(&asked, &now, &self.record(view));
        let change = self.with_unapplied(change, &now);
        let hindrance = match &record.conflicting_lock {
            Some(lock) => Some(Hindrance::locked(lock)),
            None => self.settings_refused().map(|message| Hindrance::failed(&message)).filter(|_| !change.is_empty()),
        };
        let news = self.settling.hindrance != hindrance || self.memory.settings.as_ref() != Some(&record);
        self.settling.seen = now;
        self.settling.hindrance = hindrance;
        self.memory.settings = Some(record.clone());
        if change.is_empty() {
            self.settling.failures = 0;
            self.settling.state = State::Settled(Instant::now());
            return Ok(if news { Settled::Goes(Turn::Again) } else { Settled::Yes });
        }
        // The step table decides about an armed image; the settings wait.
        if let Some(turn) = self.read_status(key).await? {
            return Ok(Settled::Goes(turn));
        }
        let state = self.status.as_ref().map(|status| &status.state);
        if matches!(state, Some(UpdateState::Ready | UpdateState::Unknown(_))) {
            return Ok(Settled::Goes(Turn::Again));
        }
        // Any client that comes after a crash has to know what was found and what this operator set.
        let says = |view: &ShadowView| view.status.report.host.clone().unwrap_or_default() == record;
        let reported = says(view);
        let facts = Facts { status: self.status.clone(), ..facts.clone() };
        let acknowledged = match self.report(key, &facts, word, &self.settling.reach()).await {
            Put::Acknowledged(view) => view,
            Put::Moved => return Ok(Settled::Goes(Turn::Again)),
            Put::Later(turn) => return Ok(Settled::Goes(turn)),
        };
        if !says(&acknowledged) {
            let message = "the web API did not keep what was reported of them".to_owned();
            return Ok(Settled::Goes(self.settings_failed(message)));
        }
        if !reported {
            // The report may have taken time: the change is decided again, from the current settings.
            return Ok(Settled::Goes(Turn::Again));
        }
        self.change_settings(key, change, facts.status.as_ref()).await.map(Settled::Goes)
    }

    /// Returns the requested settings, if the controller signed them for this node.
    fn permitted(&self) -> Result<Asked, (Hindrance, Option<Instant>)> {
        let host = &self.settling.asked;
        if host.asks_settings() {
            let again = Some(Instant::now() + KEYS_POLL);
            let Some(node_uid) = self.server.node_uid() else {
                return Err((Hindrance::unsigned(&StatementError::Other("node")), again));
            };
            if let Err(why) = verify(host, &node_uid, &self.server.permit_keys()) {
                return Err((Hindrance::unsigned(&why), again.filter(|_| why.may_pass())));
            }
        }
        Asked::of(Some(host))
            .map_err(|text| (Hindrance::failed(&format!("spec.host asks for '{text}', which is no version")), None))
    }

    /// Repeats a change that is committed without its files being written, unless a client reverted it meanwhile.
    fn with_unapplied(&mut self, change: Change, now: &HostSettings) -> Change {
        if !change.is_empty() {
            return change;
        }
        if !self.settling.unapplied.is_in(now) {
            self.settling.unapplied = Change::default();
        }
        self.settling.unapplied.clone()
    }

    /// Runs one transaction. Its result shows when the settings are read again.
    async fn change_settings(
        &mut self,
        key: &OrderKey,
        change: Change,
        before: Option<&UpdateStatus>,
    ) -> Result<Turn, AgentError> {
        let stands =
            |driver: &Self, view: &ShadowView| OrderKey::of(view) == *key && asks(view) == driver.settling.asked;
        let stands = |driver: &Self| driver.views.newest().is_some_and(|view| stands(driver, &view));
        if !stands(self) {
            return Ok(Turn::Again);
        }
        // A unique name, so that nothing that a client or an earlier try left pending is committed with it.
        let transaction = format!("brupop-{}", new_nonce());
        tracing::info!(?change, "changing the host's settings");
        match self.host.stage_settings(&transaction, &change).await {
            Ok(Posted::Accepted) => {}
            Ok(Posted::Refused(message) | Posted::Failed(message)) => return Ok(self.settings_failed(message)),
            Ok(Posted::Busy) => return Ok(self.held()),
            Err(error) => return self.settings_unanswered(key, error).await,
        }
        if !stands(self) {
            return Ok(Turn::Again);
        }
        // Whatever the answer, the earlier choice is no longer valid.
        self.memory.chosen = None;
        let offered = before.map(|status| status.available.clone()).unwrap_or_default();
        let lock = change.version_lock.as_ref().or(self.settling.seen.version_lock.as_ref());
        let expected =
            Expected { lock: lock.and_then(|lock| exact(lock)), offered_before: change.ignore_waves.map(|_| offered) };
        self.settling.awaited = Some(Awaited { expected, change: change.clone(), looks: 0 });
        // A whole fleet may get the same pin at once, and each refresh calls its mirrors.
        self.looks.soon = Some(Instant::now() + until_next_look(self.interval(), false, 0, random()));
        match self.host.commit_settings(&transaction).await {
            Ok(Committed::Yes) => {
                self.settling.unapplied = Change::default();
                self.settling.failures = 0;
                Ok(Turn::Again)
            }
            Ok(Committed::NothingPending) => {
                Ok(self.settings_failed("the host lost the change before its commit".into()))
            }
            Ok(Committed::Failed(message)) => {
                self.settling.unapplied = change;
                Ok(self.settings_failed(message))
            }
            Err(error) => self.settings_unanswered(key, error).await,
        }
    }

    /// Handles a settings call without a usable answer. The status, which is read again first, shows whether the host
    /// answers at all.
    async fn settings_unanswered(&mut self, key: &OrderKey, error: HostError) -> Result<Turn, AgentError> {
        if !error.may_have_arrived() {
            return self.host_failed(key, error).await;
        }
        self.status_of = None;
        Ok(self.settings_failed(error.to_string()))
    }

    fn settings_failed(&mut self, message: String) -> Turn {
        tracing::warn!(?message, "the host does not change its settings");
        let settling = &mut self.settling;
        settling.failures = settling.failures.saturating_add(1);
        settling.state = State::Waiting(Some(Instant::now() + exponential(RETRY.0, RETRY.1, settling.failures - 1)));
        if settling.failures >= TRIES {
            settling.hindrance = Some(Hindrance::failed(&message));
        }
        settling.message = message;
        Turn::Again
    }

    /// Learns from a successful refresh whether the host's tools use the settings, and schedules another if they do
    /// not.
    pub(super) fn learn_choice(&mut self, status: &UpdateStatus, running: &Version) {
        let settling = &mut self.settling;
        let Some(mut awaited) = settling.awaited.take() else { return };
        if settling.hindrance.is_some() || awaited.expected.is_shown(status, running) {
            return;
        }
        awaited.looks += 1;
        if awaited.looks >= LOOKS {
            if settling.reapplied || awaited.change.version_lock.is_none() {
                tracing::warn!(expected = ?awaited.expected, "the host still chooses otherwise than its settings say");
                return;
            }
            // Their files may never have been written: a commit whose answer was lost does not show it.
            settling.reapplied = true;
            settling.unapplied = awaited.change.clone();
            settling.state = State::Due;
            awaited.looks = 0;
        }
        self.looks.soon = Some(Instant::now() + exponential(LOOK.0, LOOK.1, awaited.looks.saturating_sub(1)));
        settling.awaited = Some(awaited);
    }
}
