//! The pods of a node, and the budgets that count them: checked for the first candidates only, since pods are watched on
//! few nodes.

use std::collections::BTreeSet;
use std::time::Duration;

use models::operator::{AtDeadline, GuardedPods, MarkedPods};
use models::shadow::{Progress, Step};
use models::time::after;

use super::Obstacle;
use crate::drain::{self, Fate, Sorted};
use crate::rules::Refusal;
use crate::survey::{NodeContext, budgets};
use crate::view::{BudgetFacts, DaemonSetState, PodFacts};
use crate::wait::Wait;

/// The time after the end of its grace period after which a pod counts as one that does not end.
const STUCK_AFTER: Duration = Duration::from_secs(60);

pub(crate) fn are_known(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    ctx.node.pods.is_none().then_some(Obstacle::Unknown(Wait::ReadingPods))
}

pub(super) fn pods<'a>(ctx: &NodeContext<'a>) -> &'a [PodFacts] {
    ctx.node.pods.as_deref().unwrap_or_default()
}

fn sorted<'a>(ctx: &NodeContext<'a>) -> Sorted<'a> {
    drain::sort(pods(ctx), ctx.group().drain.rules, None)
}

/// Returns the pods that a drain would treat like this.
pub(super) fn with_fate<'a>(ctx: &NodeContext<'a>, is_such: fn(Fate) -> bool) -> impl Iterator<Item = &'a PodFacts> {
    let rules = ctx.group().drain.rules;
    pods(ctx).iter().filter(move |pod| is_such(drain::fate(pod, rules, None)))
}

pub(crate) fn daemon_sets_exist(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    daemon_sets(pods(ctx))
}

pub(crate) fn may_be_evicted(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    // Sorted only where one is named.
    let refused = with_fate(ctx, |fate| matches!(fate, Fate::Refused(_))).next().is_some();
    if refused { refusal(&sorted(ctx).refused).map(Obstacle::Refused) } else { None }
}

/// Returns whether policy has a pod that does not leave deleted at the deadline. A drill deletes none; one that evicts none waits for none.
fn forces(ctx: &NodeContext<'_>) -> bool {
    ctx.group().drain.at_deadline == AtDeadline::Force && (!ctx.mode().is_drill() || ctx.mode().is_dry())
}

/// Returns whether policy waits for pods that a budget guards.
pub(crate) fn waits(ctx: &NodeContext<'_>) -> bool {
    ctx.group().drain.guarded_pods == GuardedPods::Wait
}

/// Returns a budget that keeps a pod on the node, or lets a static one not end. A pod that no budget lets go is deleted at the
/// deadline, where policy requires it, unless policy waits for guarded pods; nothing is done to a static pod then.
pub(crate) fn budgets_allow(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    if forces(ctx) && !waits(ctx) {
        return static_budget(ctx).map(Obstacle::Refused);
    }
    budget_refusal(ctx, with_fate(ctx, |fate| fate == Fate::Goes).chain(static_pods(ctx)))?;
    budget_refusal(ctx, sorted(ctx).evictable.into_iter().chain(static_pods(ctx))).map(Obstacle::Refused)
}

/// Returns the static pods of the node. They are not evicted, but end with the reboot all the same.
fn static_pods<'a>(ctx: &NodeContext<'a>) -> impl Iterator<Item = &'a PodFacts> {
    pods(ctx).iter().filter(|pod| pod.mirror && !pod.finished)
}

/// Returns the wait for a budget over a static pod, which the reboot ends.
fn static_budget(ctx: &NodeContext<'_>) -> Option<Wait> {
    budget_refusal(ctx, static_pods(ctx))
}

/// Returns the pods that other nodes delete past their deadlines: those of nodes that have begun to, and of those that may begin in the same plan.
/// Of several that wait for guarded pods, the first one by name begins, unless a write about another one is under way.
pub(super) fn deleted_beside<'a>(ctx: &NodeContext<'a>) -> impl Iterator<Item = &'a PodFacts> {
    let (view, survey, now, own) = (ctx.view, ctx.survey, ctx.now, &ctx.facts().name);
    let deletes = move |other: &NodeContext<'a>| {
        let update = other.node.update().filter(|update| update.step == Step::Draining);
        let (name, drain) = (&other.facts().name, &other.group().drain);
        let has_begun = || other.drain_status().is_some_and(|drain| drain.forced_since.is_some());
        let goes_first = || !waits(other) || name < own || view.busy.contains(name);
        let begins = |update: &Progress| goes_first() && now >= other.deadline(update.since, drain.timeout);
        let forces = name != own && drain.at_deadline == AtDeadline::Force;
        forces && update.is_some_and(|update| has_begun() || begins(update))
    };
    let others = survey.nodes.iter().filter_map(move |node| NodeContext::of(view, survey, node, now)).filter(deletes);
    others.flat_map(|other| drain::sort(pods(&other), other.group().drain.rules, other.drain_status()).evictable)
}

/// Returns the wait of a node with a pod that a budget guards: nodes without one come first.
pub(crate) fn guarded(ctx: &NodeContext<'_>) -> Option<Wait> {
    let guards = |pod: &PodFacts| ctx.survey.budgets.beside(pod).find(|budget| budget.guards(pod));
    let guarded = |pod: &'_ PodFacts| guards(pod).map(|budget| (pod.title(), budget.title()));
    let first = with_fate(ctx, |fate| fate == Fate::Goes).filter_map(guarded).min();
    first.map(|(pod, budget)| Wait::GuardedPods { pod, budget })
}

/// Returns the pods of the node that a drain would evict and that may take longer to end than the drain may take, each with its grace
/// period. Most of them end sooner.
pub(crate) fn long_graces(ctx: &NodeContext<'_>) -> Vec<String> {
    let drain = &ctx.group().drain;
    let text = |pod: &PodFacts| {
        let grace = u64::try_from(drain.long_grace(pod)?).ok()?;
        Some(format!("{} (a grace period of {})", pod.title(), models::duration::Duration::from_secs(grace)))
    };
    let mut pods: Vec<String> = with_fate(ctx, |fate| fate == Fate::Goes).filter_map(text).collect();
    pods.sort_unstable();
    pods
}

/// Returns pods that were deleted and do not end: the drain would wait for them until its deadline, unless policy leaves them to
/// the reboot or deletes them then. A grace period of days is mostly over in a minute; a pod that has used more of it than a drain may
/// take, and has more than that left, would keep the drain from its end in any case.
pub(crate) fn none_terminates(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    let drain = &ctx.group().drain;
    // Past the deadline a forced drain may take as long again.
    let drains_for = if forces(ctx) { drain.timeout.saturating_mul(2) } else { drain.timeout };
    let outlasts = |pod: &PodFacts| {
        let lasts = pod.deleted_at().is_some_and(|deleted| after(deleted, drain.timeout) <= ctx.now);
        lasts && pod.ends_by.is_some_and(|by| by > after(ctx.now, drains_for))
    };
    let is_ended = drain.skip_terminating_after.is_some() || forces(ctx);
    let past_grace = |pod: &PodFacts| pod.ends_by.is_some_and(|by| after(by, STUCK_AFTER) <= ctx.now);
    let stuck = |pod: &&PodFacts| outlasts(pod) || (!is_ended && past_grace(pod));
    // The drain does not wait for pods that a finalizer keeps after their containers have ended, nor for those that it leaves alone.
    let leaves = |pod: &&PodFacts| pod.terminating && !pod.finished && pod.is_of_workload();
    let stuck: Vec<&PodFacts> = pods(ctx).iter().filter(leaves).filter(stuck).collect();
    let first = stuck.iter().min_by_key(|pod| (&pod.namespace, &pod.name))?;
    Some(Obstacle::Refused(Wait::PodsTerminating { pod: first.title(), count: stuck.len() }))
}

/// Returns pods that autoscalers are not to move, where policy waits for them.
pub(crate) fn none_is_marked(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    marked(ctx, with_fate(ctx, |fate| fate == Fate::Goes)).map(Obstacle::Refused)
}

/// Returns the wait for those of these pods that autoscalers are not to move, where policy waits for them.
pub(crate) fn marked<'a>(ctx: &NodeContext<'_>, pods: impl Iterator<Item = &'a PodFacts>) -> Option<Wait> {
    if ctx.group().drain.marked_pods == MarkedPods::Evict {
        return None;
    }
    let marked: Vec<&PodFacts> = pods.filter(|pod| pod.marked).collect();
    let first = marked.iter().min_by_key(|pod| (&pod.namespace, &pod.name))?;
    Some(Wait::MarkedPods { pod: first.title(), count: marked.len() })
}

pub(crate) fn are_ready(ctx: &NodeContext<'_>) -> Option<Obstacle> {
    if ctx.group().before.pods_ready { not_ready(pods(ctx)).map(Obstacle::Refused) } else { None }
}

/// Returns why these refused pods prevent any drain of a node.
pub(crate) fn refusal(refused: &[(&PodFacts, Refusal)]) -> Option<Wait> {
    let (first, why) = refused.first()?;
    Some(Wait::DrainRefused { why: *why, pod: first.title(), count: refused.len() })
}

/// Returns the obstacle while it is not known that the DaemonSets of its pods exist. Checked before any change.
fn daemon_sets(pods: &[PodFacts]) -> Option<Obstacle> {
    let of_a_set = || pods.iter().filter(|pod| pod.daemon_set.is_some());
    if of_a_set().any(|pod| pod.daemon_set_state == DaemonSetState::Unknown) {
        return Some(Obstacle::Unknown(Wait::ReadingPods));
    }
    let unread: Vec<_> = of_a_set().filter(|pod| pod.daemon_set_state == DaemonSetState::Unreadable).collect();
    let first = unread.first()?;
    let wait = Wait::DrainRefused { why: Refusal::Unread, pod: first.title(), count: unread.len() };
    Some(Obstacle::Refused(wait))
}

/// Returns a budget that would keep one of these pods on the node.
pub(super) fn budget_refusal<'a>(
    ctx: &NodeContext<'_>,
    mut evictable: impl Iterator<Item = &'a PodFacts>,
) -> Option<Wait> {
    evictable.find_map(|pod| kept_by_budget(ctx, pod, pod.mirror))
}

/// Returns a budget that would keep a pod on the node: one that cannot be counted, or whose pods are broken; one that guards it, where
/// policy waits for that, it was asked in vain or the pod is one that the reboot ends; or several over one pod, which the eviction API refuses. Where
/// policy waits and would delete the pod at the deadline, a budget that is not counted so far keeps it, too; so does, in any case, one that counts no
/// pods over one without a controller, or over one that came back. A broken pod that may go is no reason to wait.
pub(super) fn kept_by_budget(ctx: &NodeContext<'_>, pod: &PodFacts, by_reboot: bool) -> Option<Wait> {
    if pod.pending {
        return None;
    }
    let waits = waits(ctx);
    let protects = waits && forces(ctx);
    let guarding: Vec<_> = ctx.survey.budgets.over(pod).collect();
    if guarding.len() > 1 {
        let budgets: BTreeSet<_> = guarding.into_iter().map(BudgetFacts::title).collect();
        return Some(Wait::MultipleBudgets { pod: pod.title(), budgets: budgets.into_iter().collect() });
    }
    let guard = guarding.into_iter().next()?;
    // With `maxUnavailable` or a percentage it never counts them, and no eviction would go through.
    let counts_none = pod.controller_uid.is_none() && !guard.stale;
    let unknown = guard.unknown_for(pod).filter(|_| (protects || counts_none || by_reboot) && !pod.mirror);
    if unknown.is_none() && guard.lets_go(pod) {
        return None;
    }
    let (title, budget) = (pod.title(), guard.title());
    if let Some(message) = guard.sync_error.as_deref().or(unknown) {
        return Some(Wait::BudgetSyncFailed { pod: title, budget, message: message.to_owned() });
    }
    if guard.lacks() > 0 {
        let eviction = ctx.view.unfinished_eviction(guard, ctx.now);
        return Some(Wait::BudgetUnhealthy { pod: title, budget, count: guard.lacks(), eviction });
    }
    let until = budgets::asked_from(&ctx.survey.budget_back_offs, guard, ctx.now);
    let refused = guard.guards(pod) && (waits || by_reboot || until.is_some());
    let until = until.filter(|_| !waits && !by_reboot);
    refused.then_some(Wait::BudgetNeverAllows { pod: title, budget, until, by_reboot })
}

/// Returns pods on the node that are not Ready. Finished and terminating ones do not count.
fn not_ready(pods: &[PodFacts]) -> Option<Wait> {
    let bad: Vec<_> = pods.iter().filter(|pod| !pod.ready && !pod.finished && !pod.terminating).collect();
    let first = bad.first()?;
    Some(Wait::PodsNotReady { pod: first.title(), count: bad.len() })
}

#[cfg(test)]
mod tests;
