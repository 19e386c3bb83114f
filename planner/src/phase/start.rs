//! The start of the disruption: the pods to evict are recorded, then the node is claimed. Whatever is awaited before the first eviction, the
//! gates are checked again after it.

use std::time::Duration;

use jiff::Timestamp;
use models::shadow::{CORDONED, DRAINED, DrainStatus, HistoryPosition, Mode, Progress, Step};
use models::time::after;

use super::drained::{LISTED_PODS, drained_pod, first_few, owners, to_ask_first};
use super::hooks::{self, BEFORE_DRAIN};
use super::result::bounded;
use super::row::{Attempt, Outcome, Turn, stay};
use super::usable;
use crate::claims::ClaimField;
use crate::decision::Note;
use crate::expressions::Check;
use crate::gates::{self, Obstacle};
use crate::view::{OWNER_WAIT, PodFacts};
use crate::wait::Wait;

/// Time that the first answers to the expressions that are compared may take; a query has at most as much.
const FIRST_ANSWERS: Duration = Duration::from_secs(60);

/// The number of owners of unhealthy pods that a shadow lists.
const UNHEALTHY_OWNERS: usize = 256;

/// The step after the hooks.
pub(super) fn first_of_drain(ctx: &Attempt<'_>) -> Step {
    if ctx.policy.leave_load_balancer.is_some() { Step::LeavingLoadBalancer } else { Step::Draining }
}

/// Reason and message of the condition `Drained` before the drain has ended.
const fn draining(mode: Mode) -> (&'static str, &'static str) {
    if mode.is_dry() { ("Rehearsing", "no pod is evicted") } else { ("Draining", "pods are being evicted") }
}

/// Returns the turn of a claimed node that its gates keep from its first eviction, now that they were checked again. What may end by
/// itself is waited for until this time; by anything else the node returns to service.
pub(super) fn kept_back(ctx: &Attempt<'_>, obstacle: Option<Obstacle>, until: Timestamp) -> Option<Turn> {
    let obstacle = obstacle?;
    // A drill ends with what an update would wait for.
    let ends_drill = ctx.mode().is_drill() && matches!(obstacle, Obstacle::Refused(_));
    let waits = obstacle.may_end() && ctx.now < until && !ends_drill;
    let wait = obstacle.into_wait();
    if !waits {
        return Some(Turn::of(Outcome::Refuse(wait)));
    }
    Some(stay(wait).querying(gates::questions(&ctx.group().before.checks, ctx.subject())).waking_at(until))
}

/// Goes on to the drain of a claimed node, or to the wait before it.
pub(super) fn begin_drain(ctx: &Attempt<'_>, step: Step) -> Turn {
    ctx.next(step, |status| {
        let (reason, message) = draining(ctx.mode());
        ctx.set_condition(status, DRAINED, false, reason, message);
        // Budgets may have changed since the node was claimed.
        if let (Some(drain), Some(sorted)) = (&mut status.report.drain, ctx.sorted_pods()) {
            drain.asked_first = to_ask_first(ctx, &sorted);
        }
    })
}

/// Names the attempt, for users.
fn purpose(progress: &Progress) -> String {
    match progress.mode() {
        Mode::Drill { evict: true, .. } => "a drill, without a reboot".to_owned(),
        Mode::Drill { .. } => "a drill, without an eviction or a reboot".to_owned(),
        Mode::Update | Mode::Verification => format!("the update to {}", progress.version),
    }
}

/// Names the pods that may take longer to end than the drain may take: they are asked first.
fn named_first(ctx: &Attempt<'_>) -> String {
    let long = gates::long_graces(ctx);
    if long.is_empty() || ctx.mode().is_dry() {
        return String::new();
    }
    let timeout = models::duration::Duration(ctx.group().drain.timeout);
    format!("; evicted first and alone, since they may outlast the drain's timeout of {timeout}: {}", first_few(&long))
}

/// Begins the drain of a node with a slot: records the pods to evict before anything is changed.
pub(super) fn start_drain(ctx: &Attempt<'_>) -> Turn {
    let policy = ctx.group();
    let (subject, drill) = (ctx.subject(), ctx.mode().is_drill());
    let compared: &[Check] = if drill { &[] } else { &policy.after.checks };
    let queries = || gates::questions(&policy.before.checks, subject).chain(gates::own_questions(compared, subject));
    let (Some(on_node), Some(sorted)) = (&ctx.node.pods, ctx.sorted_pods()) else {
        return stay(Wait::ReadingPods).keeping_slot().watching_pods().querying(queries());
    };
    match gates::before_drain(ctx) {
        None => {}
        // The slot is kept while the node is only being checked.
        Some(Obstacle::Unknown(wait)) => return stay(wait).keeping_slot().watching_pods().querying(queries()),
        Some(Obstacle::Refused(refused)) => {
            return Turn::of(Outcome::Refuse(refused)).watching_pods().querying(queries());
        }
    }
    // These answers are compared with those after the update. They refuse no drain, and are waited for no longer than this.
    let slot = ctx.view.slots().find(|slot| slot.uid == ctx.facts().uid);
    let answered = slot.map_or(ctx.now, |slot| after(slot.since, FIRST_ANSWERS));
    if let Some(pending) = gates::own_pending(compared, subject, &ctx.view.expressions).filter(|_| ctx.now < answered) {
        // A query that fails is sent once more, whatever the interval is.
        let again = slot.map_or(ctx.now, |slot| after(slot.since, FIRST_ANSWERS / 2));
        let asked = stay(pending).keeping_slot().watching_pods().querying(queries()).asking_since(again);
        return asked.waking_at(if ctx.now < again { again } else { answered });
    }
    // The API server is about to name the owners. If it does not, the node waits no longer than this.
    if sorted.evictable.iter().any(|pod| pod.owner_pending) {
        let named = after(ctx.now, OWNER_WAIT);
        return stay(Wait::ReadingPods).keeping_slot().watching_pods().waking_at(named);
    }
    let pods: Vec<_> =
        sorted.evictable.iter().chain(&sorted.leaving).take(LISTED_PODS).map(|pod| drained_pod(ctx, pod)).collect();
    let pods = bounded(pods).into();
    // One that is coming up, as on the node to which the drain of another has moved it, says nothing about its owner.
    let is_ill = |pod: &&PodFacts| pod.is_unhealthy(ctx.now) && !pod.is_coming_up(ctx.now);
    let stays = |pod: &&PodFacts| !pod.is_done() && !pod.is_replaced(on_node) && !pod.terminating;
    let unhealthy = on_node.iter().filter(is_ill).filter(stays);
    let recorded = unhealthy.flat_map(|pod| [pod.recorded_as().cloned(), pod.replica()]).flatten();
    let unhealthy_before = owners(recorded, UNHEALTHY_OWNERS);
    let preexisting: Vec<String> = ctx.facts().set_by_others.iter().map(|field| field.name().to_owned()).collect();
    let progress = ctx.progress;
    let asks_hooks = hooks::awaited(ctx.policy, BEFORE_DRAIN).next().is_some();
    let first = if asks_hooks { Step::BeforeDrain } else { first_of_drain(ctx) };
    let purpose = purpose(progress);
    let place = progress.rollout.clone().unwrap_or_else(|| ctx.place(&progress.version));
    let rollout = Some(HistoryPosition { drain_started: Some(ctx.now), ..place });
    let next = ctx.next_with(first, Progress { disruptive: true, rollout, ..progress.clone() }, |status| {
        let message = format!("cordoned for {purpose}");
        let set_by_others = ctx.facts().set_by_others.has(ClaimField::Cordon);
        let reason = if set_by_others { "CordonedBefore" } else { "Updating" };
        ctx.set_condition(status, CORDONED, true, reason, &message);
        let awaiting = ("AwaitingHooks", "no pod is evicted before the hooks have answered");
        let (reason, message) = if asks_hooks { awaiting } else { draining(ctx.mode()) };
        ctx.set_condition(status, DRAINED, false, reason, message);
        let asked_first = to_ask_first(ctx, &sorted);
        let drain = DrainStatus { pods, asked_first, preexisting, ..DrainStatus::default() };
        if drill {
            // No evidence about an update: the version that runs may have made these pods unhealthy.
            status.report.drain = Some(DrainStatus { unhealthy_before, ..drain });
        } else {
            status.report.drain = Some(drain);
            let record = status.report.record.get_or_insert_default();
            record.before = Some(usable::facts(ctx));
            record.unhealthy_before = unhealthy_before;
        }
    });
    next.watching_pods().noting(Some(Note {
        warning: false,
        reason: if drill { "DrillStarted" } else { "UpdateStarted" },
        message: format!("draining for {purpose} (attempt {}){}", progress.attempt, named_first(ctx)),
    }))
}

#[cfg(test)]
mod tests {
    use models::shadow::Drill;

    use super::*;
    use crate::fixtures::{NEW, progress};

    #[test]
    fn attempt_is_named_by_what_it_does_to_the_node() {
        let drill = |evict| Progress { drill: Some(Drill { evict, ..Drill::default() }), ..progress(Step::Staged, 0) };
        assert_eq!(purpose(&progress(Step::Staged, 0)), format!("the update to {NEW}"));
        assert_eq!(purpose(&drill(true)), "a drill, without a reboot");
        assert_eq!(purpose(&drill(false)), "a drill, without an eviction or a reboot");
    }
}
