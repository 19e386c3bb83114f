//! Notices: messages about rollouts, sent by webhook. No turn of the leader waits for them.
//!
//! ```text
//! plan records notices in the operator's status ──► want ──► sent, one at a time to each receiver
//!        ▲                                                              │
//!        └── facts (in the next view): those sent or given up ◄── wakes the driver
//! ```
//!
//! A notice stays in the status until it is sent or given up, so another leader sends it again rather than not at all.

mod format;
mod outbox;
mod send;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use models::condition::false_condition;
use models::operator::{BottlerocketUpdateOperatorStatus, NOTICES_SENT, Notice, NoticeReceiver};
use parking_lot::Mutex;
use planner::policy;
use planner::view::NoticeFacts;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::apply::Applier;
use crate::metrics::NoticeResult;
use outbox::{Ended, FAILING, Outboxes};
use send::{Outcome, Secret};

/// Interval at which the Secret is checked: a mistake is to be seen before the first notice.
const CHECK_PERIOD: Duration = Duration::from_secs(30);

/// Sends notices until it is dropped.
pub struct Notices {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

struct Shared {
    outboxes: Mutex<Outboxes>,
    /// Notified when there may be something to send.
    wanted: Notify,
    applier: Applier,
    /// The folder with the content of the Secret `brupop-notices`.
    folder: Option<PathBuf>,
}

impl Notices {
    /// Starts, with the folder of the Secret `brupop-notices`. The driver is woken when a notice was sent or given up.
    pub fn start(applier: Applier, folder: Option<PathBuf>) -> Self {
        let (outboxes, wanted) = (Mutex::default(), Notify::new());
        let shared = Arc::new(Shared { outboxes, wanted, applier, folder });
        Self { _task: JoinSet::from_iter([run(shared.clone())]), shared }
    }

    /// Sets the receivers of the policy in force, and the operator's recorded status: its notices, and its condition
    /// `NoticesSent`. Called after each plan.
    pub fn want(&self, policy: Option<&policy::Notices>, status: Option<&BottlerocketUpdateOperatorStatus>) {
        let receivers = policy.map_or(&[][..], |policy| &policy.receivers);
        for receiver in receivers {
            self.shared.applier.metrics.expect_notices(&receiver.name);
        }
        let recorded = status.and_then(|status| status.notices.as_ref()).map_or(&[][..], |notices| &notices.pending);
        let failing = status.and_then(|status| false_condition(&status.conditions, NOTICES_SENT));
        let failing =
            failing.filter(|condition| condition.reason == FAILING).map_or("", |condition| &condition.message);
        let (is_new, dropped) = self.shared.outboxes.lock().want(receivers, recorded, failing, Instant::now());
        for (receiver, count) in dropped {
            tracing::warn!(
                receiver,
                count,
                "notices dropped: too many wait for this receiver, or policy has it no more"
            );
            self.shared.applier.metrics.notices(&receiver, NoticeResult::Dropped, count);
        }
        if is_new {
            self.shared.wanted.notify_one();
        }
    }

    /// Returns what was sent or given up, and the state of the receivers.
    pub fn facts(&self) -> NoticeFacts {
        self.shared.outboxes.lock().facts()
    }
}

impl Shared {
    fn secret(&self) -> Secret<'_> {
        Secret { folder: self.folder.as_deref(), namespace: &self.applier.namespace }
    }

    fn record(&self, receiver: &str, notice: &Notice, outcome: Outcome) {
        let Notice { id, event, .. } = notice;
        self.applier.metrics.notices(
            receiver,
            if outcome == Outcome::Sent { NoticeResult::Sent } else { NoticeResult::Failed },
            1,
        );
        let why = outcome.message().map(str::to_owned).unwrap_or_default();
        match self.outboxes.lock().record(receiver, id, outcome, Instant::now(), rand::random()) {
            Ended::Sent => tracing::info!(receiver, event, id, "notice sent"),
            Ended::Again => tracing::debug!(receiver, event, id, reason = why, "notice not sent yet"),
            Ended::GivenUp => {
                tracing::warn!(receiver, event, id, reason = why, "notice given up");
                self.applier.metrics.notices(receiver, NoticeResult::Dropped, 1);
            }
        }
        self.applier.caches.notify();
    }

    /// Checks what the Secret has for each receiver.
    async fn check(&self) {
        let receivers: Vec<NoticeReceiver> = self.outboxes.lock().receivers().cloned().collect();
        for receiver in receivers {
            let found = self.secret().target(&receiver).await.err();
            if self.outboxes.lock().checked(&receiver.name, found.clone()) {
                if let Some(problem) = found {
                    tracing::warn!(receiver = receiver.name, reason = problem, "receiver of notices not usable");
                }
                self.applier.caches.notify();
            }
        }
    }
}

async fn run(shared: Arc<Shared>) {
    let mut under_way = FuturesUnordered::new();
    let mut check_at = Instant::now();
    loop {
        if check_at <= Instant::now() || shared.outboxes.lock().take_unchecked() {
            shared.check().await;
            check_at = Instant::now() + CHECK_PERIOD;
        }
        let has_receivers = !shared.outboxes.lock().is_empty();
        let (due, next) = shared.outboxes.lock().due(Instant::now());
        for (receiver, notice) in due {
            under_way.push(one(shared.clone(), receiver, notice));
        }
        tokio::select! {
            Some((receiver, notice, outcome)) = under_way.next() => shared.record(&receiver, &notice, outcome),
            () = shared.wanted.notified() => {}
            () = tokio::time::sleep_until(next.map_or(check_at, |next| next.min(check_at))), if has_receivers => {}
        }
    }
}

async fn one(shared: Arc<Shared>, receiver: NoticeReceiver, notice: Notice) -> (String, Notice, Outcome) {
    let outcome = match shared.applier.leadership.check() {
        Ok(()) => send::send(&shared.secret(), &receiver, &notice, shared.applier.leadership.clock()).await,
        // The next leader sends it.
        Err(lost) => Outcome::retry(lost.to_string()),
    };
    (receiver.name, notice, outcome)
}
