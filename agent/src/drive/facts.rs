//! Gathers facts, with as few host calls as the next decision needs.

use std::time::Duration;

use models::shadow::HostState;
use models::wire::ShadowView;
use tokio::time::Instant;

use super::{AgentError, Driver, Trouble, Turn};
use crate::backoff::exponential;
use crate::host::client::{HostError, StatusAnswer};
use crate::host::command::{Outcome, carry_out};
use crate::host::types::{Command, UpdateStatus};
use crate::memory::OrderKey;
use crate::report::Reach;
use crate::situation::Facts;
use crate::stream::chain;

/// Delay while another command runs on the host: the first and the maximum.
const BUSY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// Delay after a failed call: the first and the maximum.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Time without an answer from the host before it is reported. A restart of its API server takes 5 s and is not
/// reported.
const TELL_AFTER: Duration = Duration::from_secs(8);

/// Time that the socket may be dead before the agent exits. A restart of the host's API server takes 5 s (systemd's
/// RestartSec); a socket that is dead for several times as long does not come back under this mount.
const SOCKET_DEAD: Duration = Duration::from_secs(30);

impl Driver<'_> {
    /// Reads what is needed and returns the facts of the host, or what to wait for.
    pub(super) async fn facts(&mut self, view: &ShadowView, key: &OrderKey) -> Result<Result<Facts, Turn>, AgentError> {
        let os = match &self.os {
            Some(os) => os.clone(),
            None => match self.host.os().await {
                Ok(os) => {
                    self.trouble = None;
                    self.os.insert(os).clone()
                }
                Err(error) => return self.host_failed(key, error).await.map(Err),
            },
        };
        if !self.status_counts(view, key)
            && let Some(turn) = self.read_status(key).await?
        {
            return Ok(Err(turn));
        }
        Ok(Ok(Facts { os, boot_id: self.boot_id.clone(), status: self.status.clone() }))
    }

    /// Returns true if the last status read is recent enough for this desired state. A new desired state needs a new
    /// read, except `Idle` where nothing of the operator is armed: it requires no host call.
    fn status_counts(&mut self, view: &ShadowView, key: &OrderKey) -> bool {
        if self.status_of.as_ref() == Some(key) {
            return true;
        }
        let armed = view.status.report.armed.as_ref().is_some_and(|armed| armed.boot_id == self.boot_id);
        if self.status_of.is_some()
            && key.state == HostState::Idle
            && !armed
            && self.memory.armed.is_none()
            && self.memory.unconfirmed.is_none()
        {
            self.status_of = Some(key.clone());
            return true;
        }
        false
    }

    /// Reads the update status; returns what to wait for if there is none now.
    pub(super) async fn read_status(&mut self, key: &OrderKey) -> Result<Option<Turn>, AgentError> {
        match self.host.update_status().await {
            Ok(StatusAnswer::Busy) => Ok(Some(self.busy())),
            Ok(StatusAnswer::Uninitialized) => {
                self.saw(None, key);
                Ok(None)
            }
            Ok(StatusAnswer::Known(status)) => {
                self.saw(Some(*status), key);
                Ok(None)
            }
            Err(error) => self.host_failed(key, error).await.map(Some),
        }
    }

    fn saw(&mut self, status: Option<UpdateStatus>, key: &OrderKey) {
        self.trouble = None;
        self.busy = 0;
        if let Some(status) = &status {
            self.memory.learn(status, key);
        }
        self.status = status;
        self.status_of = Some(key.clone());
    }

    /// Waits while the host runs a command, of this agent or another client.
    pub(super) fn busy(&mut self) -> Turn {
        self.trouble = None;
        self.status_of = None;
        let wait = exponential(BUSY.0, BUSY.1, self.busy);
        self.busy = self.busy.saturating_add(1);
        Turn::after(wait)
    }

    /// Waits after the host refused a command because another one runs. The status shows when that has ended; otherwise
    /// the command is retried with back-off.
    pub(super) fn held(&mut self) -> Turn {
        let _ = self.busy();
        let wait = exponential(RETRY.0, RETRY.1, self.held);
        self.held = self.held.saturating_add(1);
        Turn::after(wait)
    }

    /// Runs a command while the desired state is unchanged, and learns from its outcome.
    pub(super) async fn command(&mut self, command: Command, key: &OrderKey) -> Outcome {
        let before = self.status.as_ref().and_then(UpdateStatus::timestamp).map(str::to_owned);
        let asked_before = self.memory.asked_to_refresh;
        if command == Command::Refresh {
            self.memory.asked_to_refresh = true;
            self.looks.asked = Some(Instant::now());
        }
        // Wherever this future is dropped, the status from before the command is out of date.
        self.status_of = None;
        let views = self.views;
        let stands = || views.newest().is_some_and(|view| OrderKey::of(&view) == *key);
        tracing::info!(command = command.name(), "host command");
        let outcome = carry_out(&self.host, command, before.as_deref(), stands).await;
        if !matches!(outcome, Outcome::Busy) {
            self.held = 0;
        }
        match &outcome {
            Outcome::Done(status) | Outcome::Failed(status, _) => self.saw(Some(status.clone()), key),
            Outcome::Vanished(StatusAnswer::Known(status)) => self.saw(Some((**status).clone()), key),
            Outcome::Vanished(_) => self.saw(None, key),
            Outcome::Refused(_) | Outcome::Busy | Outcome::NotStarted(_) => {
                self.memory.asked_to_refresh = asked_before;
                self.trouble = None;
            }
            Outcome::Interrupted | Outcome::Host(_) => {}
        }
        match &outcome {
            Outcome::Done(_) => tracing::info!(command = command.name(), "host command succeeded"),
            Outcome::Host(error) => tracing::warn!(command = command.name(), error = chain(error), "host command"),
            Outcome::Failed(_, message) | Outcome::NotStarted(message) | Outcome::Refused(message) => {
                tracing::warn!(command = command.name(), ?message, "host command failed");
            }
            Outcome::Vanished(_) => tracing::warn!(command = command.name(), "host command left no trace"),
            Outcome::Interrupted | Outcome::Busy => {}
        }
        outcome
    }

    /// Handles a host that does not answer: retries with back-off, reports it after [`TELL_AFTER`], and gives up on a
    /// dead socket.
    pub(super) async fn host_failed(&mut self, key: &OrderKey, error: HostError) -> Result<Turn, AgentError> {
        let now = Instant::now();
        self.status_of = None;
        let trouble = self.trouble.get_or_insert(Trouble { since: now, dead_since: None, calls: 0 });
        trouble.calls = trouble.calls.saturating_add(1);
        trouble.dead_since = error.socket_is_dead().then(|| trouble.dead_since.unwrap_or(now));
        let calls = trouble.calls;
        let lasted = now - trouble.since;
        let dead_for = trouble.dead_since.map(|since| now - since);
        tracing::warn!(error = chain(&error), calls, "the host does not answer");
        if lasted >= TELL_AFTER {
            let reach = Reach::Unreachable { reason: error.reason(), message: error.to_string() };
            self.tell_unreachable(key, &reach).await;
        }
        match dead_for {
            Some(dead_for) if dead_for >= SOCKET_DEAD => Err(AgentError::SocketDead(dead_for, error)),
            _ => Ok(Turn::after(exponential(RETRY.0, RETRY.1, calls - 1))),
        }
    }
}
