//! The notices of each receiver: which one is sent next, and when. Pure: the time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use models::backoff::{Backoff, Delays, equal_jitter};
use models::operator::{Notice, NoticeReceiver};
use models::plain::cut;
use planner::plan::TEST_NOTICE;
use planner::view::NoticeFacts;
use tokio::time::Instant;

use super::send::Outcome;

/// Shortest time between two requests to a receiver. Slack permits one message a second.
const SPACING: Duration = Duration::from_secs(1);

/// Pause after a failure, at first and at most.
const PAUSES: Delays = (Duration::from_secs(1), Duration::from_secs(300));

/// The longest time that a receiver's `Retry-After` is respected.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Attempts to send one notice, which take 20 to 40 minutes.
const ATTEMPTS: u32 = 16;

/// Failures in a row after which a receiver counts as unreachable.
const UNREACHABLE_AFTER: u32 = 3;

/// The reasons of the condition `NoticesSent`.
const SENT: &str = "AsExpected";
const UNUSABLE: &str = "ReceiverUnusable";
pub(super) const FAILING: &str = "ReceiverFails";

/// The text between the problems of two receivers, in the message of the condition.
const NEXT: &str = "; and ";

/// The state of a notice after an attempt to send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Sent,
    Again,
    GivenUp,
}

/// A receiver with the notices that wait for it.
struct Outbox {
    receiver: NoticeReceiver,
    /// The oldest first.
    pending: Vec<Notice>,
    /// The notice that is being sent.
    sending: Option<String>,
    backoff: Backoff,
    next: Instant,
    /// The problem of its settings, as last checked.
    unusable: Option<String>,
    /// The last failure, until it takes a notice.
    failing: Option<String>,
}

#[derive(Default)]
pub(super) struct Outboxes {
    all: BTreeMap<String, Outbox>,
    /// Notices that were sent or given up and that the status still has, by receiver and id.
    done: BTreeSet<(String, String)>,
    /// True until new receivers are checked.
    unchecked: bool,
}

/// Returns the recorded notices that wait for a receiver.
fn notices_for<'a>(name: &'a str, recorded: &'a [Notice]) -> impl Iterator<Item = &'a Notice> {
    recorded.iter().filter(move |notice| notice.receivers.iter().any(|receiver| receiver == name))
}

/// Returns the failure of a receiver in the message of a condition.
fn recorded_failure<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    message.split(NEXT).find_map(|problem| problem.strip_prefix(name)?.strip_prefix(": "))
}

impl Outboxes {
    /// Sets the receivers, the recorded notices, and the message of the condition while it is False since receivers fail. Returns whether there
    /// may be something to send, and the number of notices that were left out, by receiver: too many waited, or it is none any more.
    pub(super) fn want(
        &mut self,
        receivers: &[NoticeReceiver],
        recorded: &[Notice],
        failing: &str,
        now: Instant,
    ) -> (bool, Vec<(String, u64)>) {
        let (mut is_new, mut dropped) = (false, Vec::new());
        for (name, outbox) in self.all.iter().filter(|(name, _)| receivers.iter().all(|one| one.name != **name)) {
            dropped.push((name.clone(), u64::try_from(outbox.pending.len()).unwrap_or(u64::MAX)));
        }
        self.all.retain(|_, outbox| receivers.contains(&outbox.receiver));
        self.done.retain(|(name, id)| notices_for(name, recorded).any(|notice| notice.id == *id));
        for receiver in receivers {
            let name = &receiver.name;
            if !self.all.contains_key(name) {
                self.unchecked = true;
            }
            let outbox = self.all.entry(name.clone()).or_insert_with(|| Outbox {
                receiver: receiver.clone(),
                pending: Vec::new(),
                sending: None,
                backoff: Backoff::default(),
                next: now,
                // Of an earlier leader, or of the receiver as it was before: its first success ends it.
                failing: recorded_failure(failing, name).map(str::to_owned),
                unusable: None,
            });
            let is_done = |notice: &&Notice| self.done.contains(&(name.clone(), notice.id.clone()));
            let pending: Vec<Notice> = notices_for(name, recorded).filter(|notice| !is_done(notice)).cloned().collect();
            let has = |notices: &[Notice], id: &str| notices.iter().any(|notice| notice.id == id);
            let new = || pending.iter().filter(|notice| !has(&outbox.pending, &notice.id));
            is_new |= new().next().is_some();
            // A user tries what was corrected, and waits for it.
            if new().any(|notice| notice.event == TEST_NOTICE) {
                outbox.next = now;
            }
            let gone = outbox.pending.iter().filter(|notice| !has(&pending, &notice.id)).count();
            dropped.push((name.clone(), u64::try_from(gone).unwrap_or(u64::MAX)));
            outbox.pending = pending;
        }
        dropped.retain(|(_, count)| *count > 0);
        (is_new || self.unchecked, dropped)
    }

    /// Returns the notices to send now, at most one for each receiver, and the time of the next one.
    pub(super) fn due(&mut self, now: Instant) -> (Vec<(NoticeReceiver, Notice)>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None);
        for outbox in self.all.values_mut().filter(|outbox| outbox.sending.is_none()) {
            let Some(first) = outbox.pending.first() else { continue };
            if outbox.next <= now {
                outbox.sending = Some(first.id.clone());
                due.push((outbox.receiver.clone(), first.clone()));
            } else {
                next = Some(next.map_or(outbox.next, |next: Instant| next.min(outbox.next)));
            }
        }
        (due, next)
    }

    /// Records the outcome of an attempt. `random` is in [0, 1).
    pub(super) fn record(&mut self, name: &str, id: &str, outcome: Outcome, now: Instant, random: f64) -> Ended {
        let Some(outbox) = self.all.get_mut(name).filter(|outbox| outbox.sending.as_deref() == Some(id)) else {
            // The receiver was changed or removed in the meantime.
            return if outcome == Outcome::Sent { Ended::Sent } else { Ended::Again };
        };
        outbox.sending = None;
        outbox.next = now + SPACING;
        outbox.unusable = None;
        let ended = match outcome {
            Outcome::Sent => {
                outbox.failing = None;
                Ended::Sent
            }
            Outcome::Refused { message } => {
                outbox.failing = Some(message);
                Ended::GivenUp
            }
            Outcome::Retry { message, after, unusable } => {
                let pause = equal_jitter(outbox.backoff.next_delay(PAUSES), random);
                outbox.next = now + pause.max(after.unwrap_or_default().min(LONGEST_RETRY_AFTER)).max(SPACING);
                if unusable {
                    outbox.unusable = Some(message);
                } else if outbox.backoff.failures() >= UNREACHABLE_AFTER {
                    outbox.failing = Some(message);
                }
                if outbox.backoff.failures() < ATTEMPTS { Ended::Again } else { Ended::GivenUp }
            }
        };
        if ended != Ended::Again {
            outbox.backoff.reset();
            outbox.pending.retain(|notice| notice.id != id);
            self.done.insert((name.to_owned(), id.to_owned()));
        }
        ended
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn receivers(&self) -> impl Iterator<Item = &NoticeReceiver> {
        self.all.values().map(|outbox| &outbox.receiver)
    }

    /// Returns whether a receiver is new since the last call.
    pub(super) fn take_unchecked(&mut self) -> bool {
        std::mem::take(&mut self.unchecked)
    }

    /// Records the result of a check of a receiver's settings. Returns whether the state has changed.
    pub(super) fn checked(&mut self, name: &str, problem: Option<String>) -> bool {
        let before = self.facts().state;
        let Some(outbox) = self.all.get_mut(name) else { return false };
        outbox.unusable = problem;
        before != self.facts().state
    }

    pub(super) fn facts(&self) -> NoticeFacts {
        let failing =
            self.all.iter().filter_map(|(name, outbox)| Some(format!("{name}: {}", outbox.failing.as_ref()?)));
        // Each leader checks the Secret by itself, so only what fails is written in the form that is read from the condition again.
        let unusable = self.all.iter().filter_map(|(name, outbox)| {
            let problem = outbox.unusable.as_ref()?;
            Some(format!("{name} cannot be used: {problem}"))
        });
        let (failing, unusable): (Vec<String>, Vec<String>) = (failing.collect(), unusable.collect());
        let reason = match (failing.first(), unusable.first()) {
            (Some(_), _) => FAILING,
            (None, Some(_)) => UNUSABLE,
            (None, None) => SENT,
        };
        let texts = [failing, unusable].concat();
        let state = (texts.is_empty(), reason, cut(&texts.join(NEXT), 2000));
        NoticeFacts { done: self.done.clone(), state: (!self.all.is_empty()).then_some(state) }
    }
}
