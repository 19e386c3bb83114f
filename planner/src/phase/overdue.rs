//! A drain past its deadline: what is left is deleted, or the attempt ends, as policy requires.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Blocker, DrainStatus, PodMove};

use super::blockers::name_blockers;
use super::claim::{not_claimed, unclaimed};
use super::drained::{fail_for_returning_pod, first_few, record_new, returning_pod};
use super::result::mark_moved;
use super::row::{Attempt, Turn, act, fail};
use crate::claims::ClaimField;
use crate::drain::{Sorted, denied_for_good};
use models::time::{after, between};

use crate::decision::{Action, Eviction, Evictions, Note};
use crate::gates;
use crate::view::{Blocked, PodFacts};
use crate::wait::Wait;

/// The time that the deletion of what is left may take, beyond the grace periods of the pods, before the drain fails.
const FORCE_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Continues after the deadline without the pods that do not leave, as policy allows: they are recorded first, then
/// deleted, each under its uid; those that have outlived their own grace period without it. Where policy waits for guarded pods, no deletion begins
/// while a budget keeps one of them.
pub(super) fn delete_remaining(ctx: &Attempt<'_>, sorted: &Sorted<'_>, deadline: Timestamp) -> Turn {
    if let Some(pod) = returning_pod(ctx, sorted) {
        return fail_for_returning_pod(pod);
    }
    if let Some(action) = record_new(ctx, sorted) {
        return act(action);
    }
    let drain = ctx.drain_status().cloned().unwrap_or_default();
    let names: Vec<_> = sorted.left().map(PodFacts::title).collect();
    let Some(forced) = drain.forced_since else {
        if let Some(kept) = gates::undeletable(ctx, &sorted.evictable) {
            let left = first_few(&names);
            let why = "nothing is deleted past a budget, since spec.drain.guardedPods is Wait";
            return fail(FailureReason::DrainTimedOut, format!("still on the node: {left}; {why}: {kept}"));
        }
        let past = if gates::waits_for_guarded(ctx) { "which no budget keeps" } else { "past all budgets" };
        let taken = Duration::from_secs(between(ctx.progress.since, ctx.now).as_secs());
        let message = format!(
            "the drain has taken {}: deleting what is left, {past}, as policy requires: {}",
            models::duration::Duration(taken),
            names.join(", ")
        );
        let mut status = ctx.controller_status();
        let mut drain = DrainStatus { forced_since: Some(ctx.now), ..drain };
        // Those that have left by now were evicted, and so were those whose grace period goes on.
        let ends = |pod: &PodFacts| pod.ends_by.is_some_and(|by| by > ctx.now);
        mark_moved(ctx, Arc::make_mut(&mut drain.pods), |pod| (!ends(pod)).then_some(PodMove::Forced));
        status.report.drain = Some(drain);
        let note = Some(Note { warning: true, reason: "DrainForced", message });
        return act(Action::Status { status: Box::new(status), note });
    };
    let final_denial =
        |last: &&Blocked| last.deleted && last.denied_since.is_some_and(|since| denied_for_good(since, ctx.now));
    let refused = sorted.left().find_map(|pod| ctx.node.blocked.get(&pod.uid).filter(final_denial));
    if let Some(refused) = refused {
        let message = format!("what is left may not be deleted: {}", refused.message);
        return fail(FailureReason::DrainTimedOut, message);
    }
    let limit = deleted_by(ctx, sorted, forced.max(deadline));
    if ctx.now >= limit {
        return fail(FailureReason::DrainTimedOut, format!("{}{}", after_deletion(ctx, sorted), kept_by(ctx, sorted)));
    }
    let sent = |pod: &PodFacts| ctx.node.in_flight.get(&pod.uid).is_some_and(|sent| sent.deletes);
    let due = |pod: &&PodFacts| {
        !sent(pod) && ctx.node.blocked.get(&pod.uid).is_none_or(|b| !b.deleted || b.retry_at <= ctx.now)
    };
    let overdue = |pod: &&PodFacts| pod.ends_by.is_some_and(|at| at <= ctx.now);
    let now: Vec<_> = sorted.left().filter(|pod| overdue(pod) && due(pod)).map(Eviction::of).collect();
    let evictions = if now.is_empty() {
        let first = sorted.left().filter(|pod| !pod.terminating && due(pod)).map(Eviction::of);
        Evictions { pods: first.collect(), grace: ctx.group().drain.grace, delete: true, dry_run: false }
    } else {
        Evictions { pods: now, grace: Some(0), delete: true, dry_run: false }
    };
    let next = sorted.left().filter_map(|pod| pod.ends_by).filter(|at| *at > ctx.now).min().unwrap_or(limit);
    let retry = sorted.left().filter_map(|pod| ctx.node.blocked.get(&pod.uid)).map(|b| b.retry_at).min();
    let (decision, changes) = name_blockers(ctx, sorted);
    let wakes = [Some(next), Some(limit), changes, retry.filter(|at| *at > ctx.now)].into_iter().flatten();
    wakes.fold(decision.evicting(evictions), Turn::waking_at)
}

/// Returns when the deletion of what is left, which began at a time, is given up: the pods have their grace periods, but none has more than the
/// time of the drain once more. One that asks for a week would hold its node, and the slot, for that long.
fn deleted_by(ctx: &Attempt<'_>, sorted: &Sorted<'_>, began: Timestamp) -> Timestamp {
    let graceful = sorted.left().filter_map(|pod| pod.ends_by).max().unwrap_or(began);
    after(graceful.clamp(began, after(began, ctx.group().drain.timeout)), FORCE_LIMIT)
}

/// Returns the pods that are left, by whether the API server has accepted their deletion.
fn after_deletion(ctx: &Attempt<'_>, sorted: &Sorted<'_>) -> String {
    let is_deleted = |pod: &&PodFacts| {
        let last = ctx.node.blocked.get(&pod.uid);
        pod.terminating || last.is_some_and(|last| last.deleted && last.accepted)
    };
    let (deleted, others): (Vec<&PodFacts>, Vec<&PodFacts>) = sorted.left().partition(is_deleted);
    let parts = [(" although deleted", deleted), (", deletion not accepted", others)];
    let parts = parts.into_iter().filter(|(_, pods)| !pods.is_empty()).map(|(why, pods)| {
        let names: Vec<_> = pods.into_iter().map(PodFacts::title).collect();
        format!("still on the node{why}: {}", names.join(", "))
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// Returns, as the end of a message, what keeps the first pod that is left and that the shadow names or policy refuses
/// to evict. Empty where there is no such pod.
pub(super) fn kept_by(ctx: &Attempt<'_>, sorted: &Sorted<'_>) -> String {
    let named = ctx.drain_status().map(|drain| drain.blockers.as_slice()).unwrap_or_default();
    let is_left = |blocker: &&Blocker| sorted.left().any(|pod| pod.is_titled(&blocker.pod));
    let Some(Blocker { pod, budget, message, .. }) = named.iter().find(is_left).cloned() else {
        return gates::refusal(&sorted.refused).map_or_else(String::new, |refused| format!("; {refused}"));
    };
    format!("; {}", Wait::DrainBlocked { pod, budget, message, left: sorted.left().count() })
}

/// Returns the first few of the pods that are left: before others those that were asked to leave, and are being deleted or were refused.
fn first_left(ctx: &Attempt<'_>, sorted: &Sorted<'_>) -> Vec<String> {
    let named = ctx.drain_status().map(|drain| drain.blockers.as_slice()).unwrap_or_default();
    let was_asked = |pod: &PodFacts| {
        let is_refused = ctx.node.blocked.contains_key(&pod.uid);
        pod.terminating || is_refused || named.iter().any(|blocker| pod.is_titled(&blocker.pod))
    };
    let mut left: Vec<&PodFacts> = sorted.left().collect();
    left.sort_by_key(|pod| !was_asked(pod));
    left.into_iter().take(3).map(PodFacts::title).collect()
}

/// Returns the end of a drain at its deadline. While a claim is due, no pod is evicted: the message has what is not claimed, too.
pub(super) fn drain_timed_out(ctx: &Attempt<'_>, claimed: bool, sorted: Option<&Sorted<'_>>) -> Turn {
    let cordoned = ctx.facts().claims_in_effect().has(ClaimField::Cordon);
    if !claimed && (!cordoned || sorted.is_some_and(Sorted::empty)) {
        return not_claimed(ctx);
    }
    let left = sorted.map(|sorted| first_left(ctx, sorted)).unwrap_or_default();
    let (reason, message) = match sorted {
        None => (
            FailureReason::DrainTimedOut,
            "the pods on the node could not be read: see the controller's log".to_owned(),
        ),
        Some(_) if left.is_empty() && ctx.caught_up() => {
            (FailureReason::NotStaged, "the staged image is gone".to_owned())
        }
        Some(_) if left.is_empty() => {
            let trouble = gates::host_trouble(ctx);
            (FailureReason::AgentSilent, format!("the agent has not confirmed the desired state{trouble}"))
        }
        Some(sorted) => {
            let silent = if ctx.facts().ready { "" } else { ", which is not Ready" };
            let kept = kept_by(ctx, sorted);
            let lacks = if claimed { String::new() } else { format!("; {}", unclaimed(ctx)) };
            (FailureReason::DrainTimedOut, format!("still on the node{silent}: {}{kept}{lacks}", left.join(", ")))
        }
    };
    fail(reason, message)
}
