//! The host's own settings: made what policy asks, where it asks and its signature says so, and put back afterwards.
//!
//! ```text
//!  signed? ──► read ──► decide ──► report, acknowledged ──► stage, commit ──► read again ──► looks for updates, until
//!                                                                                            one shows that it counts
//! ```
//!
//! It is done only under `Idle`, or before a download, and never while an image is armed. Where policy asks for nothing and
//! nothing of the operator is to be put back, no settings call is made at all.

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

/// How often a policy that is signed with a key we do not have is looked at again: the keys arrive as a file.
const KEYS_POLL: Duration = Duration::from_secs(5);

/// Waits after a change that the host refused: the first and the longest. What a host refuses once it mostly refuses again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Waits before the host looks again because its tools do not seem to know the settings yet: the first and the longest.
const LOOK: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));

/// What keeps the settings from being what policy asks, for the condition `HostReachable`.
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

/// Whether the settings have to be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Now.
    #[default]
    Due,
    /// Not before then; without a time, not before something else is asked.
    Waiting(Option<Instant>),
    /// They were, then, and are as they should be, or another client's.
    Settled(Instant),
}

/// What the next looks for updates have to show.
#[derive(Clone, Debug)]
struct Awaited {
    expected: Expected,
    /// What to commit once more if they do not.
    change: Change,
    /// How many did not.
    looks: u32,
}

/// How far the settings are what policy asks.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// What is asked, with its signature, and nothing else of the policy.
    asked: HostPolicy,
    state: State,
    hindrance: Option<Hindrance>,
    /// The host's settings when they were last read.
    seen: HostSettings,
    /// Changes that failed in a row, and the last message.
    failures: u32,
    message: String,
    /// A change that may be committed without its files being written: it has to be committed again.
    unapplied: Change,
    awaited: Option<Awaited>,
    /// Whether a change was committed once more because no look showed it. Once has to do: the host may simply not offer
    /// the version.
    reapplied: bool,
}

impl Settling {
    /// What the condition says of it.
    pub(super) fn reach(&self) -> Reach {
        match &self.hindrance {
            None => Reach::Answered,
            Some(Hindrance { reason, message }) => Reach::Settings { reason, message: message.clone() },
        }
    }

    /// A look has shown that the settings count.
    pub(super) fn shown(&mut self) {
        self.awaited = None;
    }

    /// Whether the settings were last looked at before then.
    pub(super) fn settled_before(&self, then: Instant) -> bool {
        matches!(self.state, State::Settled(at) if at < then)
    }

    /// Has the settings looked at again, unless that is being waited with.
    pub(super) fn look_again(&mut self) {
        if let State::Settled(_) = self.state {
            self.state = State::Due;
        }
    }

    /// Has the settings looked at for a new order, which has all its tries.
    pub(super) fn begin_order(&mut self) {
        if self.failures > 0 {
            self.failures = 0;
            self.state = State::Due;
        }
        self.look_again();
    }
}

/// What became of the settings.
pub(super) enum Settled {
    /// They are as they should be, or another client's.
    Yes,
    /// They are not, and there is nothing to do until then, or until something else is asked.
    Waits(Option<Instant>),
    /// Something was done about them; this comes next.
    Goes(Turn),
}

/// What a shadow asks of the settings, with its signature, and nothing else of the policy.
fn asks(view: &ShadowView) -> HostPolicy {
    view.spec.host.as_ref().filter(|host| host.asks_settings()).map_or_else(HostPolicy::default, |host| HostPolicy {
        refresh_interval: None,
        disarm_in_boot: None,
        ..host.clone()
    })
}

impl Driver<'_> {
    /// Takes note of what is asked. Says whether there is anything to do about it: where nothing is asked and nothing of
    /// ours has to be put back, no settings call is to be made.
    pub(super) fn begin_settling(&mut self, view: &ShadowView) -> bool {
        let asked = asks(view);
        let record = self.record(view);
        if self.settling.asked != asked {
            let lock = Asked::of(Some(&asked)).ok().and_then(|asked| asked.lock);
            // What we set before this process began may not have reached the host's tools.
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

    /// Whether a download of `wanted` may begin with the settings being seen to: not where policy asks for another version
    /// meanwhile, or has stopped to ask for the lock that the download needs. Those settings wait for `Idle`.
    pub(super) fn settles_for(&self, view: &ShadowView, wanted: &Version) -> bool {
        match Asked::of(Some(&self.settling.asked)) {
            Ok(Asked { lock: Some(lock), .. }) => lock == *wanted,
            Ok(Asked { lock: None, waves }) => {
                waves && self.record(view).applied.is_none_or(|set| set.version_lock.is_none())
            }
            Err(_) => true,
        }
    }

    /// A lock that another client set and that does not let this version in.
    pub(super) fn locked_out(&self, view: &ShadowView, wanted: &Version) -> Option<String> {
        let lock = self.settling.seen.version_lock.as_ref()?;
        let ours = self.record(view).applied.is_some_and(|set| set.version_lock.is_some());
        (!ours && !lets_in(lock, wanted)).then(|| lock.clone())
    }

    /// The host's refusal, once it has refused often enough for an attempt to be given up.
    pub(super) fn settings_refused(&self) -> Option<String> {
        (self.settling.failures >= TRIES).then(|| self.settling.message.clone())
    }

    fn record(&self, view: &ShadowView) -> FoundSettings {
        self.memory.settings.clone().or_else(|| view.status.report.host.clone()).unwrap_or_default()
    }

    /// Brings the settings one step nearer to what policy asks. `word` is what a report says of the order meanwhile.
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
        // The table says what is done about an armed image; the settings wait.
        if let Some(turn) = self.read_status(key).await? {
            return Ok(Settled::Goes(turn));
        }
        let state = self.status.as_ref().map(|status| &status.state);
        if matches!(state, Some(UpdateState::Ready | UpdateState::Unknown(_))) {
            return Ok(Settled::Goes(Turn::Again));
        }
        // Any client that comes after a crash has to know what was found and what is ours.
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
            // The report may have taken its time: the change is decided again, on settings as they are now.
            return Ok(Settled::Goes(Turn::Again));
        }
        self.change_settings(key, change, facts.status.as_ref()).await.map(Settled::Goes)
    }

    /// What may be done: what is asked, if the controller signed it for this node.
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

    /// A change that is committed without its files being written is made once more, unless a client undid it meanwhile.
    fn with_unapplied(&mut self, change: Change, now: &HostSettings) -> Change {
        if !change.is_empty() {
            return change;
        }
        if !self.settling.unapplied.is_in(now) {
            self.settling.unapplied = Change::default();
        }
        self.settling.unapplied.clone()
    }

    /// One transaction. What it came to is seen when the settings are read again.
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
        // A name of its own, so that nothing that a client, or an earlier try, left pending is committed with it.
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
        // Whatever becomes of the answer: what was chosen before is not chosen any more.
        self.memory.chosen = None;
        let offered = before.map(|status| status.available.clone()).unwrap_or_default();
        let lock = change.version_lock.as_ref().or(self.settling.seen.version_lock.as_ref());
        let expected =
            Expected { lock: lock.and_then(|lock| exact(lock)), offered_before: change.ignore_waves.map(|_| offered) };
        self.settling.awaited = Some(Awaited { expected, change: change.clone(), looks: 0 });
        // A whole fleet may be told of the same pin at once, and each look asks its mirrors.
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

    /// A settings call got no answer that can be used. Whether the host answers anything else its status shows, which is
    /// read again first.
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

    /// Learns from a look for updates that succeeded whether the host's tools know the settings, and says when to look
    /// again if they do not.
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
            // Their files may never have been written: a commit whose answer was lost says nothing of it.
            settling.reapplied = true;
            settling.unapplied = awaited.change.clone();
            settling.state = State::Due;
            awaited.looks = 0;
        }
        self.looks.soon = Some(Instant::now() + exponential(LOOK.0, LOOK.1, awaited.looks.saturating_sub(1)));
        settling.awaited = Some(awaited);
    }
}
