//! The pods that keep a drain from its end, as the shadow and the `Blocked` condition name them.

use std::time::Duration;

use jiff::Timestamp;
use models::condition::find_condition;
use models::plain::cut;
use models::shadow::{BLOCKED, Blocker};

use super::drain::pods_gone;
use super::status::unblock;
use crate::drain::Sorted;
use models::time::after;

use crate::plan::context::NodeContext;
use crate::plan::{Action, Note, Wait};
use crate::view::PodFacts;

/// The number of blockers that a shadow names.
const BLOCKERS: usize = 8;

/// The time for which an eviction is refused, or not answered, before the pod is named as a blocker of the drain: a
/// budget that allows it after a moment blocks nothing.
pub(super) const BLOCKED_AFTER: Duration = Duration::from_secs(5);

/// The time that a pod whose eviction was accepted may stay beyond its grace period before it is named as well.
const NAMED_AFTER: Duration = Duration::from_secs(30);

/// The pods that do not leave, as the shadow names them, and the time at which that changes without another event.
/// A pod that is held back for a moment only, or was until a moment ago, changes nothing.
pub(super) fn blockers(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> (Vec<Blocker>, Option<Timestamp>) {
    let stored = ctx.drain_status().map(|d| d.blockers.as_slice()).unwrap_or_default();
    let blocker = |pod: &PodFacts, budget: Option<&String>, message: &str, since| Blocker {
        pod: pod.title(),
        budget: budget.cloned(),
        message: cut(message, 512),
        since,
    };
    // A pod that an earlier leader has named stays named until there is another answer.
    let named_before = |pod: &PodFacts| stored.iter().find(|b| b.pod == pod.title());
    let staying = sorted.evictable.iter().filter_map(|pod| match ctx.node.blocked.get(&pod.uid) {
        Some(b) if b.accepted => {
            let message = "its eviction was accepted, but it is not being deleted";
            Some((blocker(pod, None, message, b.since), after(b.since, NAMED_AFTER)))
        }
        Some(b) => {
            let since = named_before(pod).map_or(b.since, |before| before.since.min(b.since));
            Some((blocker(pod, b.budget.as_ref(), &b.message, since), after(since, BLOCKED_AFTER)))
        }
        None => named_before(pod).map(|before| (before.clone(), ctx.now)).or_else(|| {
            let sent = ctx.node.in_flight.get(&pod.uid)?;
            let message = "the API server has not answered its eviction";
            Some((blocker(pod, None, message, sent.since), after(sent.since, BLOCKED_AFTER)))
        }),
    });
    let leaving = sorted.leaving.iter().filter_map(|pod| {
        let by = pod.ends_by?;
        let message = format!("it is being deleted and was to have ended by {by}");
        Some((blocker(pod, None, &message, by), after(by, NAMED_AFTER)))
    });
    let known: Vec<_> = staying.chain(leaving).collect();
    let next = known.iter().map(|(_, named_at)| *named_at).filter(|at| *at > ctx.now).min();
    let mut named: Vec<_> = known.into_iter().filter(|(_, at)| *at <= ctx.now).map(|(blocker, _)| blocker).collect();
    named.truncate(BLOCKERS);
    let same = |a: &Blocker, b: &Blocker| (&a.pod, &a.budget) == (&b.pod, &b.budget);
    let fewer = named.len() < stored.len() && named.iter().all(|b| stored.iter().any(|s| same(b, s)));
    let accepted = ctx.node.blocked.values().filter(|b| b.accepted).map(|b| after(b.since, BLOCKED_AFTER)).max();
    match accepted.filter(|until| fewer && *until > ctx.now) {
        Some(until) => (stored.to_vec(), Some(next.map_or(until, |next| next.min(until)))),
        None => (named, next),
    }
}

/// Writes which pods block the drain when that has changed, and the `Blocked` condition and its Event with it.
pub(super) fn blockers_changed(ctx: &NodeContext<'_>, wanted: Vec<Blocker>, wait: &Wait) -> Option<Action> {
    let stored = ctx.drain_status().map(|d| d.blockers.as_slice()).unwrap_or_default();
    let same = stored.len() == wanted.len()
        && stored.iter().zip(&wanted).all(|(a, b)| (&a.pod, &a.budget) == (&b.pod, &b.budget));
    // The number of pods that have left is written with it: a pod that leaves is not worth a write.
    if same {
        return None;
    }
    let mut status = ctx.controller_status();
    let drain = status.report.drain.get_or_insert_default();
    (drain.blockers, drain.removed) = (wanted, pods_gone(ctx));
    let reason = wait.as_str();
    let known = find_condition(&status.conditions, BLOCKED).is_some_and(|c| c.reason == reason);
    if wait.blocks() {
        ctx.set_condition(&mut status, BLOCKED, true, reason, &wait.to_string());
    } else {
        unblock(&mut status);
    }
    let note = (wait.blocks() && !known).then(|| Note { warning: true, reason, message: wait.to_string() });
    Some(Action::Status { status: Box::new(status), note })
}
