//! The pods that keep a drain from its end, as the shadow and the `Blocked` condition name them.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use models::condition::{find_condition, true_condition};
use models::plain::cut;
use models::shadow::{BLOCKED, Blocker};

use super::row::{Turn, act, stay};
use super::status::unblock;
use crate::drain::{DENIAL_RETRIED, Sorted};
use models::time::after;

use crate::decision::{Action, Note};
use crate::survey::NodeContext;
use crate::view::PodFacts;
use crate::wait::{HAS_UNTIL, RETRIED_UNTIL, UnfinishedEviction, Wait};

/// The number of blockers that a shadow names.
const BLOCKERS: usize = 8;

/// The time for which an eviction is refused, or not answered, before the pod is named as a blocker of the drain: a
/// budget that allows it after a moment blocks nothing.
pub(super) const BLOCKED_AFTER: Duration = Duration::from_secs(5);

/// The time that a pod whose eviction was accepted may stay beyond its grace period before it is named as well. One for whose end others wait
/// is named so long after its eviction was accepted.
const NAMED_AFTER: Duration = Duration::from_secs(30);

/// The time for which a drain past its deadline waits for a pod that it has deleted before the pod is named, however long its grace period is.
const NAMED_AFTER_DEADLINE: Duration = Duration::from_secs(5 * 60);

/// The time after which a pod that has left is recorded, where nothing else about a blocked drain has changed.
const WRITTEN_AFTER: Duration = Duration::from_secs(60);

/// A pod that does not leave.
struct Staying<'a> {
    pod: &'a PodFacts,
    budget: Option<&'a String>,
    /// `None` for one that is being deleted.
    message: Option<&'a str>,
    since: Timestamp,
    denied_since: Option<Timestamp>,
    /// The time from which it is named.
    named_at: Timestamp,
    /// The eviction that uses up its budget.
    eviction: Option<UnfinishedEviction>,
}

impl Staying<'_> {
    fn blocker(&self) -> Blocker {
        let message = match (&self.eviction, self.message) {
            // The API server says only how many pods it counts.
            (Some(eviction), _) => eviction.to_string(),
            (None, Some(message)) => message.to_owned(),
            (None, None) => match self.pod.ends_by.filter(|by| *by > self.since) {
                Some(by) => format!("{HAS_UNTIL} {by:.0} to end"),
                None => format!("it is being deleted and was to have ended by {}", self.since),
            },
        };
        Blocker {
            pod: self.pod.title(),
            budget: self.budget.cloned(),
            message: cut(&message, 512),
            since: self.since,
            denied_since: self.denied_since,
        }
    }
}

/// Returns since when what is left is deleted, as policy requires.
fn forced_since(ctx: &NodeContext<'_>) -> Option<Timestamp> {
    ctx.drain_status()?.forced_since
}

/// Returns the blocker that an earlier leader, or this one, has recorded for a pod.
fn recorded<'a>(ctx: &NodeContext<'a>, pod: &PodFacts) -> Option<&'a Blocker> {
    ctx.drain_status()?.blockers.iter().find(|blocker| pod.is_titled(&blocker.pod))
}

/// Returns since when the eviction of a pod has been denied, if the last answer to it was a denial. An earlier leader may have got
/// the first one.
pub(super) fn denied_since(ctx: &NodeContext<'_>, pod: &PodFacts) -> Option<Timestamp> {
    let before = recorded(ctx, pod).and_then(|blocker| blocker.denied_since);
    match ctx.node.blocked.get(&pod.uid) {
        Some(answer) => answer.denied_since.map(|since| before.map_or(since, |before| before.min(since))),
        None => before,
    }
}

/// Returns the budget that refuses the eviction of a pod, if the last answer to it was its refusal. An earlier leader may have got it.
pub(super) fn refused_by<'a>(ctx: &NodeContext<'a>, pod: &PodFacts) -> Option<&'a str> {
    let budget = match ctx.node.blocked.get(&pod.uid) {
        Some(answer) => &answer.budget,
        None => &recorded(ctx, pod)?.budget,
    };
    budget.as_deref()
}

/// Returns a pod to evict that has not gone, as far as anything is known about its eviction.
fn not_evicted<'a>(ctx: &NodeContext<'a>, pod: &'a PodFacts) -> Option<Staying<'a>> {
    let denied_since = denied_since(ctx, pod);
    let staying = |budget, message, since, named_at| Staying {
        pod,
        budget,
        message: Some(message),
        since,
        denied_since,
        named_at,
        eviction: None,
    };
    // A pod that an earlier leader has named stays named until there is another answer; past the deadline, to its deletion.
    let answer = ctx.node.blocked.get(&pod.uid).filter(|answer| answer.deleted || forced_since(ctx).is_none());
    match (answer, recorded(ctx, pod)) {
        (Some(b), _) if b.accepted => {
            let message = if b.deleted {
                "its deletion was accepted, but it is not being deleted"
            } else {
                "its eviction was accepted, but it is not being deleted"
            };
            Some(staying(None, message, b.since, after(b.since, NAMED_AFTER)))
        }
        (Some(b), before) => {
            let since = before.map_or(b.since, |before| before.since.min(b.since));
            let budget = b.budget.as_deref().and_then(|title| ctx.survey.budgets.titled(title));
            let eviction = budget.and_then(|budget| ctx.view.unfinished_eviction(budget, ctx.now));
            let staying = staying(b.budget.as_ref(), &b.message, since, after(since, BLOCKED_AFTER));
            Some(Staying { eviction, ..staying })
        }
        (None, Some(b)) => Some(staying(b.budget.as_ref(), &b.message, b.since, ctx.now)),
        (None, None) => {
            let sent = ctx.node.in_flight.get(&pod.uid)?;
            let message = if sent.deletes {
                "the API server has not answered its deletion"
            } else {
                "the API server has not answered its eviction"
            };
            Some(staying(None, message, sent.since, after(sent.since, BLOCKED_AFTER)))
        }
    }
}

/// Returns whether two records of a pod that does not leave say the same.
fn same(a: &Blocker, b: &Blocker) -> bool {
    // The pod and the times of one eviction stay the same.
    let unfinished =
        |blocker: &'_ Blocker| UnfinishedEviction::is_in(&blocker.message).then(|| blocker.message.clone());
    (&a.pod, &a.budget, a.denied_since, unfinished(a)) == (&b.pod, &b.budget, b.denied_since, unfinished(b))
}

/// Returns the pods (uid) for whose end others wait, each with the time at which its eviction was accepted: those that are asked first and alone.
fn waited_for<'a>(ctx: &NodeContext<'a>, sorted: &Sorted<'_>) -> BTreeMap<&'a str, Timestamp> {
    let first = ctx.drain_status().map(|drain| drain.asked_first.as_slice()).unwrap_or_default();
    let first: BTreeMap<&str, _> = first.iter().map(|first| (first.uid.as_str(), first.accepted)).collect();
    // Once the order of the evictions is over, the others are asked beside them.
    let asked = |uid: &str| {
        first.contains_key(uid) || ctx.node.blocked.contains_key(uid) || ctx.node.in_flight.contains_key(uid)
    };
    let others_wait = sorted.evictable.iter().any(|pod| !asked(&pod.uid));
    first.into_iter().filter(|_| others_wait).filter_map(|(uid, accepted)| Some((uid, accepted?))).collect()
}

/// The pods that do not leave, as the shadow names them, and the time at which that changes without another event.
/// A pod that is held back for a moment only, or was until a moment ago, changes nothing.
fn blockers(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> (Vec<Blocker>, Option<Timestamp>) {
    let stored = ctx.drain_status().map(|d| d.blockers.as_slice()).unwrap_or_default();
    let (forced, waited_for) = (forced_since(ctx), waited_for(ctx, sorted));
    let leaving = sorted.leaving.iter().filter_map(|pod| {
        let by = pod.ends_by?;
        let late = after(by, NAMED_AFTER);
        // It is named within its grace period where it holds more up than itself.
        let (since, named_at) = match (forced, waited_for.get(pod.uid.as_str())) {
            (Some(forced), _) => (forced, after(forced, NAMED_AFTER_DEADLINE)),
            (None, Some(accepted)) => (*accepted, after(*accepted, NAMED_AFTER)),
            (None, None) => (by, late),
        };
        Some(Staying {
            pod,
            budget: None,
            message: None,
            since: if by > ctx.now { since } else { by },
            denied_since: None,
            named_at: named_at.min(late),
            eviction: None,
        })
    });
    let kept = sorted.kept.iter().map(|(pod, why)| Staying {
        pod,
        budget: None,
        message: Some(why.as_str()),
        since: recorded(ctx, pod).map_or(ctx.now, |known| known.since),
        denied_since: None,
        named_at: ctx.now,
        eviction: None,
    });
    let known: Vec<_> =
        sorted.evictable.iter().filter_map(|pod| not_evicted(ctx, pod)).chain(leaving).chain(kept).collect();
    let next = known.iter().map(|pod| pod.named_at).filter(|at| *at > ctx.now).min();
    let due = known.iter().filter(|pod| pod.named_at <= ctx.now);
    let named: Vec<_> = due.take(BLOCKERS).map(Staying::blocker).collect();
    let fewer = named.len() < stored.len() && named.iter().all(|b| stored.iter().any(|s| same(b, s)));
    let accepted = ctx.node.blocked.values().filter(|b| b.accepted).map(|b| after(b.since, BLOCKED_AFTER)).max();
    match accepted.filter(|until| fewer && *until > ctx.now) {
        Some(until) => (stored.to_vec(), Some(next.map_or(until, |next| next.min(until)))),
        None => (named, next),
    }
}

/// Returns the wait for the pods of a drain that are left, or the write that names those that do not leave, and the time at which that changes
/// without another event.
pub(super) fn name_blockers(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> (Turn, Option<Timestamp>) {
    let to_go = sorted.evictable.len() + sorted.leaving.len();
    let left = to_go + sorted.kept.len();
    let (blockers, changes) = blockers(ctx, sorted);
    let wait = match blockers.first() {
        Some(Blocker { pod, budget, message, denied_since, .. }) => {
            let message = match denied_since {
                Some(since) => {
                    let until = after(*since, DENIAL_RETRIED);
                    let what = if forced_since(ctx).is_some() { "deletion" } else { "eviction" };
                    format!("the API server denies its {what}, {RETRIED_UNTIL} {until:.0}: {message}")
                }
                None => message.clone(),
            };
            Wait::DrainBlocked { pod: pod.clone(), budget: budget.clone(), message, left }
        }
        None => Wait::Draining { left },
    };
    (recorded_wait(ctx, blockers, wait, to_go), changes)
}

/// Returns this wait of a drain that no pod keeps from its end, or the write that removes those that were named.
pub(super) fn name_none(ctx: &NodeContext<'_>, wait: Wait) -> Turn {
    recorded_wait(ctx, Vec::new(), wait, 0)
}

/// Returns the wait of a drain once its blockers are recorded, and the write that records them before.
fn recorded_wait(ctx: &NodeContext<'_>, blockers: Vec<Blocker>, wait: Wait, left: usize) -> Turn {
    match blockers_changed(ctx, blockers, &wait, left) {
        Some(action) => act(action),
        None => stay(wait),
    }
}

/// Writes which pods block the drain when that has changed, and the `Blocked` condition and its Event with it. A drain that goes on is blocked since
/// fewer pods were left than ever before: others may come for as long as it lasts.
fn blockers_changed(ctx: &NodeContext<'_>, wanted: Vec<Blocker>, wait: &Wait, left: usize) -> Option<Action> {
    let stored = ctx.drain_status();
    let (named, removed) = stored.map_or((&[][..], 0), |drain| (drain.blockers.as_slice(), drain.removed));
    // One that has ended is waited for no more, whenever its object is deleted.
    let listed = stored.map_or(0, |drain| drain.pods.len());
    let gone = i64::try_from(listed.saturating_sub(left)).unwrap_or(i64::MAX);
    let goes_on = gone > removed;
    let since = true_condition(&ctx.shadow.status.conditions, BLOCKED).map(|blocked| blocked.last_transition_time);
    // A pod that leaves is worth a write only once in a while: the number of those that have left is written with the blockers.
    let is_due = goes_on && wait.blocks() && since.is_some_and(|since| after(since, WRITTEN_AFTER) <= ctx.now);
    if !is_due && named.len() == wanted.len() && named.iter().zip(&wanted).all(|(a, b)| same(a, b)) {
        return None;
    }
    let mut status = ctx.controller_status();
    let drain = status.report.drain.get_or_insert_default();
    // Where none was named, the block begins now, with what is left: pods that came before are no arrivals to it.
    let fewest = if named.is_empty() { gone } else { gone.max(removed) };
    (drain.blockers, drain.removed) = (wanted, fewest);
    let reason = wait.as_str();
    let known = find_condition(&status.conditions, BLOCKED).is_some_and(|c| c.reason == reason);
    if goes_on || !wait.blocks() {
        unblock(&mut status);
    }
    if wait.blocks() {
        ctx.set_condition(&mut status, BLOCKED, true, reason, &wait.to_string());
    }
    let note = (wait.blocks() && !known).then(|| Note { warning: true, reason, message: wait.to_string() });
    Some(Action::Status { status: Box::new(status), note })
}
