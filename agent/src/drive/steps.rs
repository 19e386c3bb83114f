//! The steps that disrupt nothing: staging, disarming, and the refresh of an idle host.

use std::sync::Arc;
use std::time::Duration;

use models::agent_step::{Order, Situation};
use models::reason::FailureReason;
use models::shadow::HostState;
use models::wire::ShadowView;
use semver::Version;
use tokio::time::Instant;

use super::settings::Settled;
use super::{AgentError, Driver, Turn};
use crate::backoff::exponential;
use crate::host::command::Outcome;
use crate::host::types::{Command, UpdateState, UpdateStatus};
use crate::memory::OrderKey;
use crate::report::{Reach, Word};
use crate::settings::LATEST;
use crate::situation::{Facts, standing};
use crate::staging::{Next, TRIES, next, too_soon, until_next_look};

/// Refresh interval of an idle host if policy sets none.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);

/// Delay after a failed host command: the first and the maximum.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Delay before another refresh because the host chose another version: the first and the maximum.
const LOOK: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));

/// Delay after a command that the host's state, presumably changed by another client, did not allow.
const REFUSED: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Message while a disk may be armed without a record.
const PERHAPS_ARMED: &str = "the disk may be armed without a record; an image is downloaded again, which disarms it";

const LEFT_NO_TRACE: &str = "the host's command ended without a trace";

impl Driver<'_> {
    /// Reports a host with nothing requested and nothing armed, and refreshes when policy requires it.
    pub(super) async fn idle(
        &mut self,
        view: &Arc<ShadowView>,
        key: &OrderKey,
        facts: &Facts,
    ) -> Result<Turn, AgentError> {
        let settles = self.begin_settling(view);
        let word = Word::Reached(HostState::Idle);
        let told = self.tell(key, facts, &word, &self.settling.reach(), Turn::Wait).await;
        if told != Turn::Wait {
            return Ok(told);
        }
        self.memory.armed = None;
        let since = *self.looks.idle_since.get_or_insert_with(Instant::now);
        let mut waits = None;
        if settles {
            match self.settle(view, key, facts, &word).await? {
                Settled::Yes => {}
                Settled::Waits(until) => waits = until,
                Settled::Goes(turn) => return Ok(turn),
            }
        }
        let looks = &self.looks;
        let wait = until_next_look(self.interval(), looks.last.is_some(), looks.failures, looks.random);
        let by_policy = looks.last.unwrap_or(since) + wait;
        let due = looks.soon.map_or(by_policy, |soon| soon.min(by_policy));
        let now = Instant::now();
        if now < due {
            return Ok(Turn::At(waits.map_or(due, |until| until.min(due))));
        }
        // A client may have changed the settings since: each refresh by policy begins with them.
        if settles && by_policy <= now && self.settling.settled_before(by_policy) {
            self.settling.look_again();
            return Ok(Turn::Again);
        }
        self.look(key, facts).await
    }

    /// Reports a staged image that waits to be armed, and refreshes as often as policy requires, so that a withdrawn
    /// version is not booted. A refresh leaves the staged image as it is.
    pub(super) async fn staged(&mut self, key: &OrderKey, facts: &Facts, reach: &Reach) -> Result<Turn, AgentError> {
        let word = Word::Reached(HostState::StagedUpdate);
        let told = self.tell(key, facts, &word, reach, Turn::Wait).await;
        if told != Turn::Wait {
            return Ok(told);
        }
        // A restarted agent knows of no refresh; the previous one has refreshed to stage the image.
        let last = *self.looks.last.get_or_insert_with(Instant::now);
        let due = last + until_next_look(self.interval(), true, self.looks.failures, self.looks.random);
        if Instant::now() < due {
            return Ok(Turn::At(due));
        }
        self.look(key, facts).await
    }

    /// Returns the refresh interval of an idle host.
    pub(super) fn interval(&self) -> Duration {
        let view = self.views.newest();
        let policy = view.as_ref().and_then(|view| view.spec.host.as_ref()?.refresh_interval);
        policy.map_or(REFRESH_INTERVAL, |interval| interval.0)
    }

    async fn look(&mut self, key: &OrderKey, facts: &Facts) -> Result<Turn, AgentError> {
        if let Some(allowed) = too_soon(self.looks.asked, Instant::now()) {
            return Ok(Turn::At(allowed));
        }
        if let Some(turn) = self.read_status(key).await? {
            return Ok(turn);
        }
        if self.status.as_ref().is_some_and(|status| {
            !matches!(status.state, UpdateState::Idle | UpdateState::Available | UpdateState::Staged)
        }) {
            self.looks.last = Some(Instant::now());
            self.looks.soon = None;
            return Ok(Turn::Again);
        }
        let looked = match self.command(Command::Refresh, key).await {
            Outcome::Done(status) => Ok(status),
            // The reason is in the host's own record.
            Outcome::Failed(..) => Err(None),
            Outcome::Vanished(_) => Err(Some(LEFT_NO_TRACE.to_owned())),
            Outcome::NotStarted(message) | Outcome::Refused(message) => Err(Some(message)),
            Outcome::Busy => return Ok(self.held()),
            Outcome::Interrupted => return Ok(Turn::Again),
            Outcome::Host(error) if error.may_have_arrived() => Err(Some(error.to_string())),
            Outcome::Host(error) => return self.host_failed(key, error).await,
        };
        self.looks.last = Some(Instant::now());
        self.looks.soon = None;
        match looked {
            Ok(status) => {
                self.looks.failures = 0;
                self.learn_choice(&status, &facts.os.version);
            }
            Err(message) => {
                self.looks.failures = self.looks.failures.saturating_add(1);
                self.memory.refresh_failure = message;
            }
        }
        Ok(Turn::Again)
    }

    /// Brings the wanted version onto the inactive partition set.
    pub(super) async fn stage(
        &mut self,
        view: &Arc<ShadowView>,
        key: &OrderKey,
        facts: &Facts,
        found: &Situation,
    ) -> Result<Turn, AgentError> {
        let Some(wanted) = &key.version else { return Ok(Turn::Wait) };
        // A download takes long: the shadow must not show another boot for that time. The facts found before it are
        // reported with the outcome.
        if !self.tries.announced {
            let told = self.tell(key, facts, &Word::Standing(standing(found)), &self.reach(found), Turn::Wait).await;
            if told != Turn::Wait {
                return Ok(told);
            }
            self.tries.announced = true;
        }
        if let Some(turn) = self.settle_to_stage(view, key, facts, found, wanted).await? {
            return Ok(turn);
        }
        match next(self.status.as_ref(), self.memory.chosen.as_ref(), wanted, &self.tries) {
            Next::Fail(reason, message) => Ok(self.fail(key, facts, found, reason, message).await),
            Next::Refresh => {
                if let Some(allowed) = too_soon(self.looks.asked, Instant::now()) {
                    return Ok(Turn::At(allowed));
                }
                let outcome = self.command(Command::Refresh, key).await;
                if let Outcome::Done(_) = outcome {
                    self.looks.last = Some(Instant::now());
                    self.looks.failures = 0;
                    self.tries.looked = true;
                    if self.memory.chosen.as_ref() == Some(wanted) {
                        self.settling.shown();
                        self.looks.soon = None;
                        return Ok(Turn::Again);
                    }
                    self.tries.mismatch += 1;
                    return Ok(Turn::after(exponential(LOOK.0, LOOK.1, self.tries.mismatch - 1)));
                }
                self.failed(key, outcome, |tries| &mut tries.refresh).await
            }
            Next::Prepare => {
                let outcome = self.command(Command::Prepare, key).await;
                match outcome {
                    Outcome::Done(status) => {
                        if self.memory.prepared.as_ref() != Some(&key.attempt) {
                            self.wrong_image(&status);
                        }
                        Ok(Turn::Again)
                    }
                    outcome => {
                        if let Outcome::Refused(_) = outcome {
                            // The choice of the last refresh is used up.
                            self.memory.chosen = None;
                        }
                        self.failed(key, outcome, |tries| &mut tries.prepare).await
                    }
                }
            }
        }
    }

    /// Handles the settings that the download depends on; returns what to do first if they are not as requested.
    async fn settle_to_stage(
        &mut self,
        view: &Arc<ShadowView>,
        key: &OrderKey,
        facts: &Facts,
        found: &Situation,
        wanted: &Version,
    ) -> Result<Option<Turn>, AgentError> {
        if !self.begin_settling(view) || !self.settles_for(view, wanted) {
            return Ok(None);
        }
        if !self.tries.settled {
            self.settling.begin_order();
            self.tries.settled = true;
        }
        let word = Word::Standing(standing(found));
        match self.settle(view, key, facts, &word).await? {
            Settled::Goes(turn) => return Ok(Some(turn)),
            Settled::Yes => {}
            Settled::Waits(until) => {
                if let Some(message) = self.settings_refused() {
                    return Ok(Some(self.fail(key, facts, found, FailureReason::SettingsFailed, message).await));
                }
                let then = until.map_or(Turn::Wait, Turn::At);
                return Ok(Some(self.tell(key, facts, &word, &self.reach(found), then).await));
            }
        }
        let Some(lock) = self.locked_out(view, wanted) else { return Ok(None) };
        let message = format!(
            "another client set the host's version-lock to '{lock}', which does not let {wanted} in; set it back to '{LATEST}'"
        );
        Ok(Some(self.fail(key, facts, found, FailureReason::LockedByOther, message).await))
    }

    /// Handles a successful download of another version than wanted. After a refresh under this desired state that is
    /// the host's answer; otherwise a release has come since the last refresh, and another one is needed.
    fn wrong_image(&mut self, status: &UpdateStatus) {
        self.memory.chosen = None;
        let recorded = status.staged_version().map_or("nothing".to_owned(), ToString::to_string);
        let said = status.last.as_ref().map(|last| last.stderr.trim().to_owned()).unwrap_or_default();
        self.tries.message = format!("the host recorded {recorded} and said: {said}");
        tracing::warn!(message = ?self.tries.message, "the host wrote another image");
        if self.tries.looked {
            self.tries.wrong += 1;
        }
    }

    /// Disarms what this operator armed.
    pub(super) async fn deactivate(
        &mut self,
        key: &OrderKey,
        facts: &Facts,
        found: &Situation,
    ) -> Result<Turn, AgentError> {
        if self.tries.deactivate >= TRIES {
            let message = self.tries.message.clone();
            if found.order == Order::Stage {
                return Ok(self.fail(key, facts, found, FailureReason::DeactivateFailed, message).await);
            }
            // Disarming a withdrawn attempt is retried for ever, visibly. The report may fail: disarming comes first.
            let word = Word::Standing(standing(found));
            let _ = self.report(key, facts, &word, &Reach::DisarmFails(message)).await;
        }
        match self.command(Command::Deactivate, key).await {
            Outcome::Done(status) if status.state != UpdateState::Ready => {
                (self.memory.armed, self.memory.activated, self.memory.disarmed) = (None, None, true);
                self.ask = None;
                Ok(Turn::Again)
            }
            outcome => self.failed(key, outcome, |tries| &mut tries.deactivate).await,
        }
    }

    /// Clears the disk's boot flags by another download: without a record of an activation the host refuses to disarm,
    /// but the disk may be armed. Retried until it succeeds, and reported meanwhile.
    pub(super) async fn prepare_again(
        &mut self,
        key: &OrderKey,
        facts: &Facts,
        found: &Situation,
    ) -> Result<Turn, AgentError> {
        let last = &self.tries.message;
        let message = if last.is_empty() { PERHAPS_ARMED.to_owned() } else { format!("{PERHAPS_ARMED}: {last}") };
        // The report may fail: disarming comes first.
        let _ = self.report(key, facts, &Word::Standing(standing(found)), &Reach::DisarmFails(message)).await;
        // Only a refresh makes the choice that a download needs.
        let outcome = if facts.status.as_ref().is_some_and(|status| status.chosen.is_some()) {
            self.command(Command::Prepare, key).await
        } else if let Some(allowed) = too_soon(self.looks.asked, Instant::now()) {
            return Ok(Turn::At(allowed));
        } else {
            self.command(Command::Refresh, key).await
        };
        let outcome = match outcome {
            Outcome::Done(_) if self.memory.unconfirmed.is_none() => {
                tracing::info!("the disk's boot flags are cleared");
                (self.memory.armed, self.memory.activated, self.memory.disarmed) = (None, None, true);
                return Ok(Turn::Again);
            }
            Outcome::Done(status)
                if status.chosen.is_some() && status.last.as_ref().is_some_and(|last| last.is(Command::Refresh)) =>
            {
                return Ok(Turn::Again);
            }
            Outcome::Done(_) => Outcome::NotStarted("the host found nothing to download".to_owned()),
            outcome => outcome,
        };
        self.failed(key, outcome, |tries| &mut tries.prepare).await
    }

    /// Handles an unsuccessful command: counts it if it ran and failed, and returns when to continue.
    pub(super) async fn failed(
        &mut self,
        key: &OrderKey,
        outcome: Outcome,
        count: impl FnOnce(&mut crate::staging::Tries) -> &mut u32,
    ) -> Result<Turn, AgentError> {
        let message = match outcome {
            Outcome::Done(status) => format!("the host reports success, but its update state is {:?}", status.state),
            Outcome::Failed(_, message) | Outcome::NotStarted(message) => message,
            Outcome::Vanished(_) => LEFT_NO_TRACE.to_owned(),
            Outcome::Refused(_) => {
                self.tries.refused = self.tries.refused.saturating_add(1);
                return Ok(Turn::after(exponential(REFUSED.0, REFUSED.1, self.tries.refused - 1)));
            }
            Outcome::Busy => return Ok(self.held()),
            Outcome::Interrupted => return Ok(Turn::Again),
            // A host that answers everything but its commands is retried with growing delays, and not for ever. If the
            // command was carried out after all, the status will show it.
            Outcome::Host(error) if error.may_have_arrived() => error.to_string(),
            Outcome::Host(error) => return self.host_failed(key, error).await,
        };
        self.tries.message = message;
        let failures = count(&mut self.tries);
        *failures = failures.saturating_add(1);
        let failures = *failures;
        if failures >= TRIES && key.state != HostState::Idle {
            return Ok(Turn::Again);
        }
        Ok(Turn::after(exponential(RETRY.0, RETRY.1, failures - 1)))
    }
}

/// Describes a failure from the step table for a user.
pub(super) fn explain(reason: FailureReason, key: &OrderKey, facts: &Facts) -> String {
    let wanted = key.version.as_ref().map(ToString::to_string).unwrap_or_default();
    let runs = &facts.os.version;
    match reason {
        FailureReason::BootFellBack => format!("the host was armed with {wanted}, rebooted, and runs {runs} again"),
        FailureReason::RebootedByOther => format!("the host was rebooted before it was armed with {wanted}"),
        FailureReason::BootedOtherVersion => format!("the host was to boot {wanted} and runs {runs}"),
        FailureReason::DisarmedByOther => {
            format!("the host was armed with {wanted}, and another client disarmed it before it rebooted")
        }
        FailureReason::HostArmedByOther => "an image that we did not arm is armed".to_owned(),
        FailureReason::NotStaged => {
            let staged = facts.status.as_ref().and_then(UpdateStatus::staged_version);
            let staged = staged.map_or("nothing".to_owned(), ToString::to_string);
            format!("the host is to boot {wanted}, but has {staged} staged, or not surely whole")
        }
        other => other.to_string(),
    }
}
