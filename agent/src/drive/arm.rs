//! The steps that take the host down: request a permit, arm, report, reboot.
//!
//! ```text
//!  report Arming + nonce ──► permit for the nonce ──► activate ──► report Activated ──► reboot
//!        ▲                                                          │
//!        └──────────── 30 s over: another nonce ◄───────────────────┘
//! ```
//!
//! Each arrow is a separate turn of the loop, and each turn checks everything again: the desired state, the boot, the
//! permit and its age. So the last check before an act always belongs to the same turn as the act.

use std::time::Duration;

use models::agent_step::Situation;
use models::permit::{PERMIT_LIFETIME, PermitClaims};
use models::reason::FailureReason;
use models::shadow::{Armed, ArmedPhase};
use models::wire::ShadowView;
use tokio::time::Instant;

use super::put::Put;
use super::{AgentError, Driver, Turn};
use crate::backoff::{exponential, random};
use crate::boot;
use crate::host::client::{HostError, Posted};
use crate::host::command::Outcome;
use crate::host::types::{Command, UpdateState, UpdateStatus};
use crate::memory::{OrderKey, Unconfirmed};
use crate::permit::{is_fresh, new_nonce, verify};
use crate::report::Word;
use crate::situation::Facts;
use crate::staging::TRIES;
use crate::statement::StatementError;
use crate::stream::chain;

/// Additional delay after an unanswered nonce, from the second nonce on: the first and the maximum. After the first
/// nonce, its lifetime is delay enough.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Interval of re-checks of a permit whose key is not trusted yet: the keys arrive as a file.
const KEYS_POLL: Duration = Duration::from_secs(2);

/// Delay after a refused reboot: the first and the maximum. Short, because a permit is short-lived.
const REBOOT_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// A nonce that was sent.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    key: OrderKey,
    nonce: String,
    /// Taken before it was first sent.
    sent: Instant,
    /// Number of nonces sent before it.
    before: u32,
    /// Earliest time of the next one.
    again: Instant,
    /// The last permit refused for it, so that each is logged once.
    refused: String,
}

impl Ask {
    fn new(key: &OrderKey, before: u32) -> Self {
        let sent = Instant::now();
        let extra = match before {
            0 => Duration::ZERO,
            n => exponential(ASK_AGAIN.0, ASK_AGAIN.1, n - 1).mul_f64(0.5 + random() / 2.0),
        };
        let again = sent + PERMIT_LIFETIME + extra;
        Self { key: key.clone(), nonce: new_nonce(), sent, before, again, refused: String::new() }
    }

    /// Returns true if `nonce` is this one.
    pub(super) fn asked(&self, nonce: &str) -> bool {
        self.nonce == nonce
    }

    fn is_fresh(&self) -> bool {
        is_fresh(self.sent, Instant::now())
    }

    fn expires(&self) -> Turn {
        Turn::At(self.sent + PERMIT_LIFETIME)
    }
}

impl Driver<'_> {
    /// Arms the staged image, or reboots into the image that this agent armed (`ready`), with the controller's permit.
    pub(super) async fn arm(
        &mut self,
        key: &OrderKey,
        facts: &Facts,
        found: &Situation,
        ready: bool,
    ) -> Result<Turn, AgentError> {
        let Some(version) = key.version.clone() else { return Ok(Turn::Wait) };
        // The step table knows that this operator armed the image; its version is checked here.
        let armed_rightly = |status: &UpdateStatus| {
            status.staging.as_ref().is_some_and(|s| s.next_to_boot && s.version.as_ref() == Some(&version))
        };
        if ready && !facts.status.as_ref().is_some_and(armed_rightly) {
            let message = "the host is armed with another version than the desired one".to_owned();
            return Ok(self.fail(key, facts, found, FailureReason::WrongImageStaged, message).await);
        }
        if self.tries.activate >= TRIES && !ready {
            let message = self.tries.message.clone();
            return Ok(self.fail(key, facts, found, FailureReason::ActivateFailed, message).await);
        }
        if self.tries.reboot >= TRIES && ready {
            let message = self.tries.message.clone();
            return Ok(self.fail(key, facts, found, FailureReason::RebootRefused, message).await);
        }
        let ask = match self.ask.take() {
            Some(ask) if ask.key == *key && ask.is_fresh() => ask,
            Some(ask) if ask.key == *key && Instant::now() < ask.again => {
                let again = ask.again;
                self.ask = Some(ask);
                return Ok(Turn::At(again));
            }
            Some(ask) if ask.key == *key => {
                // The image armed when the last nonce was sent may have been disarmed since.
                if ready {
                    if let Some(turn) = self.read_status(key).await? {
                        return Ok(turn);
                    }
                    if !self.status.as_ref().is_some_and(armed_rightly) {
                        return Ok(Turn::Again);
                    }
                }
                Ask::new(key, ask.before.saturating_add(1))
            }
            _ => Ask::new(key, 0),
        };
        self.ask = Some(ask.clone());
        let phase = if ready { ArmedPhase::Activated } else { ArmedPhase::Arming };
        let armed = Armed {
            attempt: key.attempt.attempt,
            boot_id: facts.boot_id.clone(),
            version: version.clone(),
            phase,
            nonce: ask.nonce.clone(),
        };
        let acknowledged = match self.report(key, facts, &Word::Armed(armed), &self.reach(found)).await {
            Put::Acknowledged(view) => view,
            Put::Moved => return Ok(Turn::Again),
            Put::Later(turn) => return Ok(turn),
        };
        let Some(newest) = self.views.newest() else { return Ok(Turn::Again) };
        // The answer to the report and the newest view must both have this desired state, and the permit this nonce.
        if OrderKey::of(&acknowledged) != *key || OrderKey::of(&newest) != *key {
            return Ok(Turn::Again);
        }
        if !answers(&newest, &ask) {
            return Ok(ask.expires());
        }
        if ready && !answers(&acknowledged, &ask) {
            return Ok(Turn::Again);
        }
        if let Some(turn) = self.refuse(&newest, facts, &ask) {
            return Ok(turn);
        }
        // Another client may have disarmed the host since: a drained node is not rebooted into the version that it
        // runs.
        if ready {
            if let Some(turn) = self.read_status(key).await? {
                return Ok(turn);
            }
            if !self.status.as_ref().is_some_and(armed_rightly) {
                return Ok(Turn::Again);
            }
        }
        // The last check before the act: a process that was stopped meanwhile finds an expired permit, or another boot.
        let same_boot = boot::read(&self.config.boot_id_file).is_ok_and(|boot_id| boot_id == facts.boot_id);
        if !same_boot || !ask.is_fresh() {
            return Ok(Turn::Again);
        }
        if ready { self.reboot(key).await } else { self.activate(key, &version).await }
    }

    /// Verifies the permit that answers the nonce; if it is refused, returns what to wait for.
    fn refuse(&mut self, view: &ShadowView, facts: &Facts, ask: &Ask) -> Option<Turn> {
        let why = match self.judge(view, facts, ask) {
            Ok(()) => return None,
            Err(why) => why,
        };
        let permit = view.spec.permit.as_ref().map_or("", |permit| permit.jws.as_str());
        if let Some(ask) = &mut self.ask
            && ask.refused != permit
        {
            tracing::warn!(error = chain(&why), "the permit is refused");
            permit.clone_into(&mut ask.refused);
        }
        let expiry = ask.sent + PERMIT_LIFETIME;
        Some(if why.may_pass() { Turn::At(expiry.min(Instant::now() + KEYS_POLL)) } else { Turn::At(expiry) })
    }

    fn judge(&self, view: &ShadowView, facts: &Facts, ask: &Ask) -> Result<(), StatementError> {
        let permit = view.spec.permit.as_ref().ok_or(StatementError::Missing)?;
        // Without a node in the agent's own token there is nothing to compare the permit with.
        let node_uid = self.server.node_uid().ok_or(StatementError::Other("node"))?;
        let expected = PermitClaims {
            node_uid,
            boot_id: facts.boot_id.clone(),
            attempt: view.spec.attempt,
            version: view.spec.version.clone().ok_or(StatementError::Other("version"))?,
            nonce: ask.nonce.clone(),
            host: view.spec.host.clone(),
        };
        verify(&permit.jws, &self.server.permit_keys(), &expected)
    }

    async fn activate(&mut self, key: &OrderKey, version: &semver::Version) -> Result<Turn, AgentError> {
        // From here on an armed image counts as this operator's, whatever the answer.
        let before = self.status.as_ref().and_then(UpdateStatus::timestamp).map(str::to_owned);
        let earlier = (self.memory.armed.clone(), self.memory.unconfirmed.clone());
        self.memory.armed = Some(key.attempt.clone());
        self.memory.unconfirmed.get_or_insert(Unconfirmed { before });
        let outcome = self.command(Command::Activate, key).await;
        match &outcome {
            Outcome::Done(status) => {
                let right = status.state == UpdateState::Ready
                    && status.staging.as_ref().is_some_and(|s| s.next_to_boot && s.version.as_ref() == Some(version));
                if right {
                    self.memory.activated = Some(key.attempt.clone());
                    return Ok(Turn::Again);
                }
            }
            Outcome::Refused(_) | Outcome::Busy => (self.memory.armed, self.memory.unconfirmed) = earlier,
            Outcome::Host(error) if !error.may_have_arrived() => {
                (self.memory.armed, self.memory.unconfirmed) = earlier;
            }
            _ => {}
        }
        self.failed(key, outcome, |tries| &mut tries.activate).await
    }

    async fn reboot(&mut self, key: &OrderKey) -> Result<Turn, AgentError> {
        tracing::info!("rebooting the host");
        let message = match self.host.reboot().await {
            Ok(Posted::Accepted) => return Ok(self.await_reboot()),
            // A missing answer may have been cut off by the shutdown.
            Err(error @ (HostError::Cut(_) | HostError::Timeout(_))) => {
                tracing::info!(error = chain(&error), "reboot requested");
                return Ok(self.await_reboot());
            }
            // The number is the signal that ended the host's command, which the shutdown itself sends.
            Ok(Posted::Failed(message)) if message.contains("exit code: 15") => {
                tracing::info!(?message, "reboot requested");
                return Ok(self.await_reboot());
            }
            Ok(Posted::Refused(message) | Posted::Failed(message)) => message,
            Ok(Posted::Busy) => "the host is busy".to_owned(),
            Err(error @ HostError::BadAnswer { .. }) => error.to_string(),
            Err(error) => return self.host_failed(key, error).await,
        };
        tracing::warn!(?message, "the host refuses to reboot");
        self.tries.message = message;
        self.tries.reboot += 1;
        Ok(Turn::after(exponential(REBOOT_RETRY.0, REBOOT_RETRY.1, self.tries.reboot - 1)))
    }

    fn await_reboot(&mut self) -> Turn {
        self.rebooting = Some(Instant::now());
        Turn::Again
    }
}

/// Returns true if the shadow has a permit for this nonce, by its unsigned fields.
fn answers(view: &ShadowView, ask: &Ask) -> bool {
    view.spec.permit.as_ref().is_some_and(|permit| permit.nonce == ask.nonce)
}
