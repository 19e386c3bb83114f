//! Reporting: builds the agent status and writes it until it is acknowledged.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::agent_step::{Boot, Order, Situation};
use models::reason::FailureReason;
use models::shadow::Failure;
use models::wire::{AgentStatus, ShadowView};

use super::{Driver, Turn};
use crate::backoff::{full_jitter, random};
use crate::memory::OrderKey;
use crate::report::{Reach, Shortened, Word, build, build_unreachable, differs};
use crate::server::Written;
use crate::situation::{Facts, standing};
use crate::stream::chain;

/// Delay after a failed write, as upper limits: the first and the maximum.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Number of immediate rebuilds of a report because the shadow changed meanwhile.
const REBUILDS: u32 = 4;

/// Outcome of a report.
pub(super) enum Put {
    /// It is stored in the shadow, which is now this one.
    Acknowledged(Arc<ShadowView>),
    /// The desired state has changed.
    Moved,
    /// It was not stored, or the outcome is unknown: retry after this turn.
    Later(Turn),
}

impl Driver<'_> {
    /// Reports under the desired state `key`; writes nothing if nothing has changed.
    pub(super) async fn report(&mut self, key: &OrderKey, facts: &Facts, word: &Word, reach: &Reach) -> Put {
        let memory = self.memory.clone();
        let make = |view: &ShadowView| {
            build(&view.status, view.metadata.generation, facts, &memory, word, reach, Timestamp::now())
        };
        let put = self.put(key, make).await;
        if let (Put::Acknowledged(_), Word::Armed(_)) = (&put, word) {
            self.memory.inherited = true;
        }
        if let Put::Acknowledged(view) = &put
            && (view.status.report.armed.is_none() || matches!(word, Word::Armed(_)))
        {
            self.memory.disarmed = false;
        }
        put
    }

    async fn put(&mut self, key: &OrderKey, make: impl Fn(&ShadowView) -> AgentStatus) -> Put {
        for _ in 0..REBUILDS {
            let Some(view) = self.views.newest().filter(|view| OrderKey::of(view) == *key) else {
                return Put::Moved;
            };
            if self.inherit(&view) {
                return Put::Moved;
            }
            let new = make(&view);
            let shortened = self.shortened.as_ref().filter(|(streams, _)| *streams == self.views.streams());
            if !differs(&view.status, &new) || shortened.is_some_and(|(_, kept)| kept.covers(&view.status, &new)) {
                return Put::Acknowledged(view);
            }
            match self.server.put_status(&view.etag, &new).await {
                Ok(Written::Stored(answer)) => {
                    self.put_failures = 0;
                    self.shortened =
                        Shortened::of(&new, &answer.status).map(|shortened| (self.views.streams(), shortened));
                    tracing::info!(state = ?new.report.state, armed = ?new.report.armed.map(|a| a.phase), "reported");
                    self.views.answered((*answer).clone(), &view.etag);
                    return Put::Acknowledged(Arc::new(*answer));
                }
                Ok(Written::Stale(answer)) => {
                    tracing::debug!("the shadow changed under the report");
                    self.views.answered(*answer, &view.etag);
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "the report did not arrive");
                    break;
                }
            }
        }
        let wait = full_jitter(RETRY.0, RETRY.1, self.put_failures, random());
        self.put_failures = self.put_failures.saturating_add(1);
        Put::Later(Turn::after(wait))
    }

    /// Reports, then returns `then`.
    pub(super) async fn tell(&mut self, key: &OrderKey, facts: &Facts, word: &Word, reach: &Reach, then: Turn) -> Turn {
        match self.report(key, facts, word, reach).await {
            Put::Acknowledged(_) => then,
            Put::Moved => Turn::Again,
            Put::Later(turn) => turn,
        }
    }

    /// Reports once, if possible, that the host does not answer.
    pub(super) async fn tell_unreachable(&mut self, key: &OrderKey, reach: &Reach) {
        let _ = self.put(key, |view| build_unreachable(&view.status, reach, Timestamp::now())).await;
    }

    /// Fails the attempt.
    pub(super) async fn fail(
        &mut self,
        key: &OrderKey,
        facts: &Facts,
        found: &Situation,
        reason: FailureReason,
        message: String,
    ) -> Turn {
        tracing::warn!(%reason, ?message, "the attempt failed");
        let failure =
            Failure { attempt: key.attempt.attempt, step: key.state, reason, message, time: Timestamp::now() };
        let judges_a_boot = found.order == Order::Reboot && found.boot == Boot::Other;
        let word = Word::Failed { failure, state: standing(found), judges_a_boot };
        self.tell(key, facts, &word, &self.reach(found), Turn::Again).await
    }
}
