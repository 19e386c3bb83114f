//! The answers to what was sent, and what the leader remembers of them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use models::backoff::{Backoff, Delays};
use models::resource_version::newer;
use models::time::{after, between};
use planner::drain::{BLOCKED_RETRY, eviction_pause};
use planner::view::{Blocked, ClusterView, Failing, LeaseObservations, Refused};
use planner::wait::Wait;
use tokio::time::Instant;

use super::Driver;
use super::memory::{Ended, RefusedCheck};
use super::retry::Target;
use crate::apply::{ApplyError, Evicted, Learned};
use crate::eviction::Meaning;

/// Time for an accepted eviction to show in the watch before it is requested again.
const ACCEPTED: Duration = Duration::from_secs(30);

/// Pause for a node whose pods prevent a drain.
const REFUSED: Delays = (Duration::from_secs(60), Duration::from_secs(15 * 60));

impl Driver {
    /// Records the refused candidates, so that they are checked again after a pause that grows.
    pub(super) fn remember_refused(&mut self, view: &ClusterView, refused: BTreeMap<String, Wait>, now: Timestamp) {
        let generation = view.operator.as_ref().map(|operator| operator.generation);
        for (name, wait) in refused {
            let last = &mut self.memory.entry(name).or_default().refused;
            let mut backoff = match last {
                // The node's pods are watched, since there are slots enough.
                Some(last) if last.what.again_at > now && last.generation == generation => {
                    last.what.wait = wait;
                    continue;
                }
                Some(last) => last.backoff,
                None => Backoff::default(),
            };
            let what = Refused { wait, again_at: after(now, backoff.next_delay(REFUSED)) };
            *last = Some(RefusedCheck { what, backoff, generation });
        }
    }

    pub(super) fn record(&mut self, ended: Ended) {
        match ended {
            Ended::Write(target, result) => self.record_write(target, result),
            Ended::Eviction(evicted) => self.record_eviction(evicted),
        }
    }

    /// Records the answer to an eviction, or its timeout. The answer to a request that was given up meanwhile is
    /// ignored.
    pub(super) fn record_eviction(&mut self, evicted: Evicted) {
        let Some(memory) = self.memory.get_mut(&evicted.node) else { return };
        if memory.in_flight.get(&evicted.uid).is_none_or(|sent| sent.request != evicted.request) {
            return;
        }
        let Some(sent) = memory.in_flight.remove(&evicted.uid) else { return };
        let now = self.applier.leadership.now();
        let namespace = evicted.namespace;
        let (accepted, denied, budget, retry) = match evicted.means {
            Meaning::Leaves | Meaning::OtherPod => (true, false, None, ACCEPTED),
            Meaning::Blocked { budget, retry } => (false, false, budget.map(|b| format!("{namespace}/{b}")), retry),
            Meaning::Retry(retry) => (false, false, None, retry),
            Meaning::Denied => (false, true, None, BLOCKED_RETRY),
        };
        if let Some(budget) = &budget {
            let last = self.refused_at.entry(budget.clone()).or_default();
            match sent.budgets.get(budget) {
                Some(before) if newer(before, last) => last.clone_from(before),
                Some(_) => {}
                // For a budget created meanwhile any version is new.
                None => last.clear(),
            }
        }
        let (message, deleted) = (evicted.message, sent.what.deletes);
        let before = memory.blocked.get(&evicted.uid);
        let since = before.filter(|old| old.accepted == accepted).map_or(sent.what.since, |old| old.since);
        let kind = (accepted, deleted, denied, budget.is_some());
        let is_alike =
            |old: &&Blocked| (old.accepted, old.deleted, old.denied_since.is_some(), old.budget.is_some()) == kind;
        // A denial has little time to end.
        let first = if denied { now } else { sent.what.since };
        let alike_since = before.filter(is_alike).map_or(first, |old| old.alike_since);
        let denied_since = denied.then_some(alike_since);
        let retry = if accepted { retry } else { eviction_pause(retry, between(alike_since, now)) };
        let retry_at = after(now, retry);
        let answer = Blocked { budget, message, since, alike_since, retry_at, denied_since, accepted, deleted };
        memory.blocked.insert(evicted.uid, answer);
    }

    /// Counts and logs the failure of a write.
    fn report_failure(&mut self, target: &Target, error: &ApplyError, now: Instant) {
        self.applier.metrics.rejected(error.what(), error.code());
        let (node, text) = match target {
            Target::Node(node) => (Some(node), "action failed"),
            Target::Shadow(node) => (Some(node), "a shadow could not be created or deleted"),
            Target::Label(node) => (Some(node), "a node could not be labelled"),
            Target::Revision(node) => (Some(node), "a shadow could not be labelled with its revision"),
            Target::Silence(node) => (Some(node), "the silence of an agent could not be written"),
            Target::History => (None, "the revisions of the policy could not be written"),
            Target::Operator => (None, "the operator's status could not be written"),
        };
        // Another client wrote in between: nothing is wrong, and the decision is made again. Shadows are created and
        // deleted by the controller alone.
        let is_conflict = error.code() == Some(409) && !matches!(target, Target::Shadow(_));
        let is_news = !is_conflict && self.writes.is_news(target, error, now);
        let error = error as &dyn std::error::Error;
        if is_news {
            tracing::warn!(node, error, "{text}");
        } else {
            tracing::debug!(node, error, "{text}");
        }
    }

    /// Records whether a write that is no node's can be made. A passing failure changes nothing.
    fn record_shared(&mut self, target: &Target, error: Option<&ApplyError>) {
        let failing = match target {
            Target::Operator => &mut self.status_failing,
            Target::History => &mut self.revisions_failing,
            Target::Node(_) | Target::Shadow(_) | Target::Label(_) | Target::Revision(_) | Target::Silence(_) => return,
        };
        match error {
            None => *failing = None,
            Some(error) if error.is_lasting() => {
                let since = failing.as_ref().map(|failing| failing.since);
                let since = since.unwrap_or_else(|| self.applier.leadership.now());
                *failing = Some(Failing { since, error: error.text() });
            }
            Some(_) => {}
        }
    }

    /// Records the end of a write and what was learned from it.
    pub(super) fn record_write(&mut self, target: Target, result: Result<Learned, ApplyError>) {
        let now = Instant::now();
        self.writes.end(target.clone(), result.as_ref().err(), now);
        if let Err(error) = &result {
            self.report_failure(&target, error, now);
        }
        self.record_shared(&target, result.as_ref().err());
        let Target::Node(node) = target else { return };
        match result {
            Ok(learned) => {
                let memory = self.memory.entry(node).or_default();
                let ended = memory.failing.as_ref().is_some_and(|it| it.writes_status == memory.writes_status);
                memory.failing.take_if(|_| ended);
                memory.claims = learned.claimed.unwrap_or(memory.claims);
                memory.owners.extend(learned.owner);
                if let Some((renewed, now)) = learned.lease {
                    memory.lease = Some(LeaseObservations::add(memory.lease, renewed, now));
                }
            }
            Err(error) if error.is_lasting() => {
                let now = self.applier.leadership.now();
                let shadow = self.applier.caches.shadows.get(&node);
                let step = shadow.and_then(|shadow| Some(shadow.status.controller.progress.as_ref()?.step));
                self.memory.entry(node).or_default().failed(step, error.text(), now);
            }
            Err(_) => {}
        }
    }
}
