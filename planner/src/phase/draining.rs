//! The drain: pods are evicted, and the phase ends when they have left.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{ArmedPhase, DRAINED, FirstPod, HostState, PodMove, Step};
use models::time::after;

use super::blockers::{BLOCKED_AFTER, denied_since, name_blockers, name_none};
use super::claim::{claim_due, ended_during_drain};
use super::drained::{
    asked_until, deadline, fail_for_returning_pod, first_few, forces, is_forced, ordered_until, pods_gone,
    record_accepted, record_new, refusing_budgets, remaining_listed, returning_pod, still_guarded, was_asked_in_vain,
    with_drain_ended,
};
use super::dry_run;
use super::overdue::{delete_remaining, drain_timed_out, kept_by};
use super::permits::{permit_request, rehearsal_request};
use super::result::mark_moved;
use super::row::{Attempt, Outcome, Turn, act, fail, stay};
use crate::decision::{Eviction, Evictions, Note};
use crate::drain::{DENIAL_RETRIED, ENDED, Sorted, denied_for_good, listed, unlisted};
use crate::gates;
use crate::survey::NodeContext;
use crate::view::{BudgetFacts, PodFacts};
use crate::wait::Wait;

/// Names the first pods, and counts the others.
fn named(pods: &[&PodFacts]) -> String {
    first_few(&pods.iter().map(|pod| pod.title()).collect::<Vec<_>>())
}

/// Continues the drain of a node that is out of service.
pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    if let Some(turn) = ended_during_drain(ctx) {
        return turn;
    }
    if ctx.mode().is_dry() {
        return dry_run::decide(ctx);
    }
    let policy = &ctx.group().drain;
    let claim = claim_due(ctx);
    let sorted = ctx.sorted_pods();
    let deadline = deadline(ctx);
    let drained = claim.is_none() && is_still_staged(ctx) && sorted.as_ref().is_some_and(Sorted::empty);
    if let Some(message) = sorted.as_ref().and_then(|sorted| final_denial(ctx, sorted, deadline)) {
        return fail(FailureReason::DrainRefused, message);
    }
    let asked_until = asked_until(ctx);
    // While a claim is due, no pod is asked.
    let given_up = claim.is_none() && asked_until.is_some_and(|until| ctx.now >= until.min(deadline));
    if given_up && !forces(ctx) {
        return guarded_pods_stayed(ctx, sorted.as_ref());
    }
    // A kubelet that is silent ends no pod: without its object a second one would run beside it.
    let may_force = forces(ctx) && claim.is_none() && ctx.policy.present && ctx.facts().ready;
    let to_delete = sorted.as_ref().filter(|left| may_force && left.refused.is_empty() && !left.empty());
    if let Some(sorted) = to_delete.filter(|_| ctx.now >= deadline || is_forced(ctx)) {
        return delete_remaining(ctx, sorted, deadline);
    }
    if ctx.now >= deadline && !drained {
        return drain_timed_out(ctx, claim.is_none(), sorted.as_ref());
    }
    if let Some(claim) = claim {
        return claim.waking_at(deadline);
    }
    let Some(mut sorted) = sorted else { return stay(Wait::ReadingPods).waking_at(deadline) };
    if sorted.empty() {
        if !is_still_staged(ctx) {
            return name_none(ctx, Wait::AgentNotSynced).waking_at(deadline);
        }
        let volumes = detaching_volumes(ctx);
        if policy.wait_for_volumes && volumes > 0 && ctx.now < deadline {
            return name_none(ctx, Wait::DetachingVolumes { count: volumes }).waking_at(deadline);
        }
        return end_drain(ctx, &sorted);
    }
    if let Some(pod) = returning_pod(ctx, &sorted) {
        return fail_for_returning_pod(pod);
    }
    let kept = kept_arrivals(ctx, &mut sorted);
    if let Some(refused) = gates::refusal(&sorted.refused) {
        return fail(FailureReason::DrainRefused, refused.to_string());
    }
    if let Some(wait) = kept.filter(|_| has_evicted_none(ctx, &sorted)) {
        return Turn::of(Outcome::Refuse(wait));
    }
    if let Some(action) = record_new(ctx, &sorted).or_else(|| record_accepted(ctx, &sorted)) {
        return act(action).waking_at(deadline);
    }
    // Where policy deletes at the deadline what is left, the others are not kept for longer.
    let first = ctx.drain_status().map(|drain| drain.asked_first.as_slice()).filter(|_| !given_up).unwrap_or_default();
    let ordered_until = ordered_until(ctx);
    let in_order = ordered_until.is_none_or(|until| ctx.now < until);
    let changes = [asked_until, ordered_until].into_iter().flatten().filter(|until| *until > ctx.now);
    changes.fold(evict(ctx, &sorted, in_order.then_some(first)).waking_at(deadline), Turn::waking_at)
}

/// Takes the pods that came after the drain began and that policy keeps on the node from those that are left: refused ones, and marked ones
/// where policy waits for these. Returns why they may not be evicted.
fn kept_arrivals(ctx: &Attempt<'_>, sorted: &mut Sorted<'_>) -> Option<Wait> {
    let recorded = ctx.drain_status()?;
    let refused = std::mem::take(&mut sorted.refused).into_iter();
    let (before, came): (Vec<_>, Vec<_>) = refused.partition(|(pod, _)| listed(pod, recorded));
    sorted.refused = before;
    let marked = gates::marked(ctx, unlisted(&sorted.evictable, recorded));
    let refusals = came.iter().filter_map(|(pod, why)| Some((*pod, gates::refusal(&[(*pod, *why)])?.to_string())));
    sorted.kept = refusals.collect();
    if marked.is_some() {
        let (kept, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut sorted.evictable).into_iter().partition(|pod| pod.marked && !listed(pod, recorded));
        let marks = kept.into_iter().filter_map(|pod| Some((pod, gates::marked(ctx, iter::once(pod))?.to_string())));
        sorted.kept.extend(marks);
        sorted.evictable = others;
    }
    gates::refusal(&came).or(marked)
}

/// Returns whether no pod has left, and none is about to.
fn has_evicted_none(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> bool {
    // An earlier leader may have got the answers.
    let leaves = ctx.drain_status().is_some_and(|drain| {
        let asked = drain.asked_first.iter().any(|first| first.accepted.is_some());
        asked || sorted.leaving.iter().any(|pod| listed(pod, drain))
    });
    let accepted = ctx.node.blocked.values().any(|answer| answer.accepted);
    pods_gone(ctx) == 0 && ctx.node.in_flight.is_empty() && !accepted && !leaves
}

/// Ends the attempt of a node whose guarded pods have stayed: no pod was evicted but those asked first, unless they came once the node
/// was drained.
fn guarded_pods_stayed(ctx: &Attempt<'_>, sorted: Option<&Sorted<'_>>) -> Turn {
    if ctx.progress.rollout.as_ref().is_some_and(|place| place.drain_ended.is_some()) {
        return drain_timed_out(ctx, true, sorted);
    }
    let pods: Vec<_> = sorted.into_iter().flat_map(|sorted| still_guarded(ctx, sorted)).collect();
    let (unwell, well): (Vec<&BudgetFacts>, Vec<&BudgetFacts>) =
        refusing_budgets(ctx).into_iter().partition(|budget| budget.is_unwell());
    let (asked, others): (Vec<&BudgetFacts>, Vec<&BudgetFacts>) =
        well.into_iter().partition(|budget| was_asked_in_vain(ctx, budget));
    let kept = sorted.filter(|_| !others.is_empty()).map(|sorted| kept_by(ctx, sorted)).unwrap_or_default();
    let refuse = |budgets: &[&BudgetFacts], why: &str| {
        let titles: Vec<_> = budgets.iter().map(|budget| budget.title()).collect();
        (!titles.is_empty())
            .then(|| format!("the PodDisruptionBudget(s) {} allow no disruption {why}", titles.join(", ")))
    };
    let asked = refuse(&asked, "although they were asked");
    let unwell = refuse(&unwell, "while pods of them are not healthy or cannot be counted");
    let others = refuse(&others, "but the last eviction was not refused by them");
    let message = format!(
        "still on the node: {}; {}, and no pod but those asked first was evicted{kept}",
        named(&pods),
        asked.into_iter().chain(unwell).chain(others).collect::<Vec<_>>().join("; ")
    );
    fail(FailureReason::GuardedPodsStayed, message)
}

/// Returns the denial of an eviction that ends the drain, with its pod: one that was retried for long enough, or that there is
/// no more time to retry. What was denied is not deleted past the denial then.
fn final_denial(ctx: &NodeContext<'_>, sorted: &Sorted<'_>, deadline: Timestamp) -> Option<String> {
    if ctx.drain_status().is_some_and(|drain| drain.forced_since.is_some()) {
        return None;
    }
    sorted.evictable.iter().find_map(|pod| {
        let answer = ctx.node.blocked.get(&pod.uid).filter(|answer| answer.denied_since.is_some())?;
        let is_final = denied_for_good(denied_since(ctx, pod)?, ctx.now) || ctx.now >= deadline;
        is_final.then(|| format!("{} cannot be evicted: {}", pod.title(), answer.message))
    })
}

/// Evicts the pods that are due, and names those that do not leave.
fn evict(ctx: &NodeContext<'_>, sorted: &Sorted<'_>, first: Option<&[FirstPod]>) -> Turn {
    let policy = &ctx.group().drain;
    let blocked = |uid: &str| ctx.node.blocked.get(uid);
    let waits_for_answer = |pod: &PodFacts| ctx.node.in_flight.contains_key(&pod.uid);
    let denied = sorted.evictable.iter().filter_map(|pod| denied_since(ctx, pod)).min();
    let is_denied = |pod: &PodFacts| denied_since(ctx, pod).is_some();
    // While one of those that are asked may not leave at all, no other pod leaves in vain.
    let denies = sorted.first_to_go(first).any(is_denied);
    let asked = sorted.first_to_go(first).filter(|pod| !denies || is_denied(pod));
    let due = asked.filter(|pod| !waits_for_answer(pod));
    let due = due.filter(|pod| blocked(&pod.uid).is_none_or(|b| b.retry_at <= ctx.now));
    let evictions =
        Evictions { pods: due.map(Eviction::of).collect(), grace: policy.grace, delete: false, dry_run: false };
    let (decision, changes) = name_blockers(ctx, sorted);
    let retries = sorted.first_to_go(first).filter(|pod| !waits_for_answer(pod)).filter_map(|p| blocked(&p.uid));
    let retry = retries.map(|b| b.retry_at).filter(|at| *at > ctx.now).min();
    // A pod that has ended is waited for no longer than its grace period, and others as policy requires.
    let given_up = |pod: &&PodFacts| {
        let by = pod.ends_by?;
        let ended = pod.finished.then(|| after(by, ENDED));
        [ended, policy.skip_terminating_after.map(|skip| after(by, skip))].into_iter().flatten().min()
    };
    let given_up = sorted.leaving.iter().filter_map(given_up).min();
    // An eviction that is sent now and not answered is named then.
    let unanswered = (!evictions.pods.is_empty()).then(|| after(ctx.now, BLOCKED_AFTER));
    let denied = denied.map(|since| after(since, DENIAL_RETRIED)).filter(|at| *at > ctx.now);
    let wakes = [retry, changes, unanswered, given_up, denied].into_iter().flatten();
    wakes.fold(decision.evicting(evictions), Turn::waking_at)
}

/// Returns whether the image is staged for this attempt and boot, also if the agent has to reboot and waits for its
/// permit: it confirms no desired state while it waits.
fn is_still_staged(ctx: &NodeContext<'_>) -> bool {
    let (spec, agent) = (&ctx.shadow.spec, &ctx.shadow.status.agent);
    ctx.is_staged()
        || rehearsal_request(ctx).is_some()
        || (spec.state == HostState::RebootedIntoUpdate
            && spec.permit.is_none()
            && permit_request(ctx).is_some_and(|armed| armed.phase == ArmedPhase::Arming)
            && agent.state == Some(HostState::StagedUpdate))
}

/// Returns how many volumes the node has beyond those that the pods on it claim: the pods of a drained node stay,
/// and their volumes with them.
fn detaching_volumes(ctx: &NodeContext<'_>) -> usize {
    let staying = ctx.node.pods.iter().flatten().filter(|pod| !pod.finished);
    let claims = staying.flat_map(|pod| pod.volume_claims.iter().map(|claim| (&pod.namespace, claim)));
    ctx.facts().volumes.saturating_sub(claims.collect::<BTreeSet<_>>().len())
}

/// Returns, as the end of a message, the budgets of the pods that came back and that the reboot waits for, if there are any.
fn budgets_of_returned(ctx: &Attempt<'_>, sorted: &Sorted<'_>) -> Option<String> {
    let waits = !ctx.group().drain.rules_at(ctx.now).past_budgets;
    let returned = sorted.returned.iter().filter(|_| waits);
    let budgets: BTreeSet<String> =
        returned.flat_map(|pod| ctx.survey.budgets.over(pod)).map(BudgetFacts::title).collect();
    let names = first_few(&budgets.into_iter().collect::<Vec<_>>());
    (!names.is_empty())
        .then(|| format!("; the reboot waits until their PodDisruptionBudgets allow a disruption ({names})"))
}

/// Ends the drain. Pods that are left to the reboot are named: those that have been waited for long enough, with an
/// Event, and those that tolerate the cordon and came back, with an Event where budgets count them. The number of volumes that are still attached at
/// the deadline of a drain that waits for them is recorded with an Event, too.
fn end_drain(ctx: &Attempt<'_>, sorted: &Sorted<'_>) -> Turn {
    // Others have ended by themselves.
    let stuck: Vec<_> = remaining_listed(ctx).filter(|pod| pod.terminating).collect();
    let stuck = (!stuck.is_empty())
        .then(|| format!("left to the reboot because their deletion does not complete: {}", named(&stuck)));
    let budgets = budgets_of_returned(ctx, sorted);
    let returned = (!sorted.returned.is_empty()).then(|| {
        let pods = named(&sorted.returned);
        format!(
            "left to the reboot because they tolerate the cordon and came back after their eviction: {pods}{}",
            budgets.as_deref().unwrap_or_default()
        )
    });
    let volumes = if ctx.group().drain.wait_for_volumes { detaching_volumes(ctx) } else { 0 };
    let attached = (volumes > 0).then(|| format!("{volumes} volume(s) are still attached at the drain's deadline"));
    let left: Vec<_> = stuck.iter().chain(&returned).chain(&attached).map(String::as_str).collect();
    let (reason, message) = match left[..] {
        [] => ("Drained", "all pods to evict have left the node".to_owned()),
        _ if stuck.is_none() && returned.is_none() => ("VolumesAttached", left.join("; ")),
        _ => ("PodsLeft", left.join("; ")),
    };
    let warning = stuck.is_some() || attached.is_some();
    let note = (warning || budgets.is_some()).then(|| Note { warning, reason, message: message.clone() });
    let rebooting = ctx.next_with(Step::Rebooting, with_drain_ended(ctx), |status| {
        ctx.set_condition(status, DRAINED, true, reason, &message);
        if let Some(drain) = &mut status.report.drain {
            (drain.removed, drain.blockers) = (pods_gone(ctx), Vec::new());
            for first in &mut drain.asked_first {
                first.accepted.get_or_insert(ctx.now);
            }
            let left = |pod: &PodFacts| pod.terminating.then_some(PodMove::LeftToReboot);
            mark_moved(ctx, Arc::make_mut(&mut drain.pods), left);
        }
    });
    rebooting.noting(note)
}
