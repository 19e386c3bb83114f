//! The drain: pods are evicted, and the phase ends when they have left.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use models::operator::AtDeadline;
use models::reason::FailureReason;
use models::shadow::{
    ArmedPhase, Blocker, DRAINED, DrainedPod, HostState, PodMove, Progress, RECORDED_BUDGETS, RECORDED_SERVICES,
    ReturnedOwner, RolloutPlace, Step,
};

use super::LISTED_PODS;
use super::blockers::{BLOCKED_AFTER, blockers, blockers_changed};
use super::claim::{claim_due, ended_during_drain};
use super::drill;
use super::fail::fail;
use super::overdue::{delete_remaining, drain_timed_out};
use super::permit::permit_request;
use super::result::{bounded, mark_moved};
use super::status::go_to;
use crate::drain::{ENDED, Sorted, listed, unlisted};
use models::time::after;

use crate::decision::{Action, Decision, Eviction, Evictions, Note};
use crate::gates;
use crate::survey::NodeContext;
use crate::view::PodFacts;
use crate::wait::Wait;

/// The number of owners of pods that tolerate the cordon that a shadow lists.
const EVICTED_OWNERS: usize = 256;

/// The number of owners of pods that return without tolerating the cordon that a shadow lists.
const RETURNED_OWNERS: usize = 256;

/// The number of times that new pods of one owner that do not tolerate the cordon are evicted. The scheduler may have
/// placed some before it observed the cordon; those that come after that bypass it.
const RETURNS: i64 = 2;

/// The number of pods that a message names.
const NAMED_PODS: usize = 3;

/// Returns a pod as a shadow lists it, with what is known of it only before its eviction.
pub(super) fn drained_pod(ctx: &NodeContext<'_>, pod: &PodFacts) -> DrainedPod {
    let budgets = ctx.view.budgets.iter().filter(|budget| budget.selects(pod)).map(|budget| budget.name.clone());
    let services = ctx.view.services.iter().filter(|service| service.selects(pod)).map(|service| service.name.clone());
    DrainedPod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ip: pod.ip.clone(),
        owner: pod.top_owner.clone().or_else(|| pod.controller.as_ref().map(|owner| owner.replacen(' ', "/", 1))),
        budgets: budgets.take(RECORDED_BUDGETS).collect(),
        services: services.take(RECORDED_SERVICES).collect(),
        moved: None,
    }
}

/// Returns the owners of those pods that may come back to the cordoned node after their eviction.
fn tolerating_owners<'a>(pods: impl Iterator<Item = &'a PodFacts>) -> impl Iterator<Item = String> {
    pods.filter(|pod| pod.tolerates_cordon).filter_map(|pod| pod.controller_uid.clone())
}

/// Names the first pods, and counts the others.
fn named(pods: &[&PodFacts]) -> String {
    let names: Vec<_> = pods.iter().take(NAMED_PODS).map(|pod| pod.title()).collect();
    let more = match pods.len().saturating_sub(NAMED_PODS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", names.join(", "))
}

/// Returns each owner once, and no more of them than a shadow lists.
pub(super) fn owners(uids: impl Iterator<Item = String>, limit: usize) -> Vec<String> {
    uids.collect::<BTreeSet<_>>().into_iter().take(limit).collect()
}

/// Returns when the drain is given up, or what is left is deleted.
pub(super) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Timestamp {
    ctx.deadline(progress.since, ctx.group().drain.timeout)
}

/// Continues the drain of a node that is out of service.
pub(super) fn decide(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if let Some(decision) = ended_during_drain(ctx, progress) {
        return decision;
    }
    let policy = &ctx.group().drain;
    let claim = claim_due(ctx, progress);
    let sorted = ctx.sorted_pods();
    let deadline = deadline(ctx, progress);
    let drained = claim.is_none() && is_still_staged(ctx) && sorted.as_ref().is_some_and(Sorted::empty);
    if ctx.now >= deadline && !drained {
        // A kubelet that is silent ends no pod: without its object a second one would run beside it.
        let forced =
            claim.is_none() && policy.at_deadline == AtDeadline::Force && ctx.policy.present && ctx.facts().ready;
        // A drill goes past no budget: nothing is urgent in it.
        let forced = forced && progress.drill.is_none();
        let refused = sorted.as_ref().is_some_and(|s| !s.refused.is_empty());
        return match &sorted {
            Some(sorted) if forced && !refused && !sorted.empty() => delete_remaining(ctx, progress, sorted, deadline),
            sorted => drain_timed_out(ctx, progress, claim.is_none(), sorted.as_ref()),
        };
    }
    if let Some(claim) = claim {
        return claim.waking_at(deadline);
    }
    let Some(sorted) = sorted else { return Decision::wait(Wait::ReadingPods).waking_at(deadline) };
    if sorted.empty() {
        if !is_still_staged(ctx) {
            return Decision::wait(Wait::AgentNotSynced).waking_at(deadline);
        }
        let volumes = detaching_volumes(ctx);
        if policy.wait_for_volumes && volumes > 0 && ctx.now < deadline {
            return Decision::wait(Wait::DetachingVolumes { count: volumes }).waking_at(deadline);
        }
        return Decision::act(end_drain(ctx, progress, &sorted));
    }
    if let Some(refused) = gates::refusal(&sorted) {
        return fail(ctx, progress, FailureReason::DrainRefused, &refused.to_string());
    }
    if let Some(pod) = returning_pod(ctx, &sorted) {
        return fail_for_returning_pod(ctx, progress, pod);
    }
    if let Some(action) = record_new(ctx, &sorted) {
        return Decision::act(action).waking_at(deadline);
    }
    let fatal = |pod: &PodFacts| ctx.node.blocked.get(&pod.uid).filter(|answer| answer.fatal);
    if let Some((pod, fatal)) = sorted.evictable.iter().find_map(|pod| Some((pod, fatal(pod)?))) {
        let message = format!("{} cannot be evicted: {}", pod.title(), fatal.message);
        return fail(ctx, progress, FailureReason::DrainRefused, &message);
    }
    evict(ctx, &sorted).waking_at(deadline)
}

/// Evicts the pods that are due, and names those that do not leave.
fn evict(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> Decision {
    let policy = &ctx.group().drain;
    let blocked = |uid: &str| ctx.node.blocked.get(uid);
    let waits_for_answer = |pod: &PodFacts| ctx.node.in_flight.contains_key(&pod.uid);
    let due = sorted.first_to_go().filter(|pod| !waits_for_answer(pod));
    let due = due.filter(|pod| blocked(&pod.uid).is_none_or(|b| b.retry_at <= ctx.now));
    let evictions =
        Evictions { pods: due.map(Eviction::of).collect(), grace: policy.grace, delete: false, dry_run: false };
    let left = sorted.evictable.len() + sorted.leaving.len();
    let (blockers, changes) = blockers(ctx, sorted);
    let wait = match blockers.first() {
        Some(Blocker { pod, budget, message, .. }) => {
            Wait::DrainBlocked { pod: pod.clone(), budget: budget.clone(), message: message.clone(), left }
        }
        None => Wait::Draining { left },
    };
    let decision = match blockers_changed(ctx, blockers, &wait) {
        Some(action) => Decision::act(action),
        None => Decision::wait(wait),
    };
    let retries = sorted.first_to_go().filter(|pod| !waits_for_answer(pod)).filter_map(|p| blocked(&p.uid));
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
    let wakes = [retry, changes, unanswered, given_up].into_iter().flatten();
    wakes.fold(decision.evicting(evictions), Decision::waking_at)
}

/// Returns whether the image is staged for this attempt and boot, also if the agent has to reboot and waits for its
/// permit: it confirms no desired state while it waits.
fn is_still_staged(ctx: &NodeContext<'_>) -> bool {
    let (spec, agent) = (&ctx.shadow.spec, &ctx.shadow.status.agent);
    ctx.is_staged()
        || drill::request(ctx).is_some()
        || (spec.state == HostState::RebootedIntoUpdate
            && spec.permit.is_none()
            && permit_request(ctx).is_some_and(|armed| armed.phase == ArmedPhase::Arming)
            && agent.state == Some(HostState::StagedUpdate))
}

/// Records, before a pod is evicted, that it came after the drain began, and its owner if it tolerates the cordon:
/// only from then on is such a pod of this owner one that has come back. For pods that do not tolerate it, and that
/// the scheduler may have placed before it observed the cordon, the number of times per owner is counted.
pub(super) fn record_new(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> Option<Action> {
    let recorded = ctx.drain_status()?;
    let new: Vec<_> = unlisted(&sorted.evictable, recorded).collect();
    let new = if recorded.pods.len() + new.len() > LISTED_PODS { Vec::new() } else { new };
    let evicted = tolerating_owners(sorted.evictable.iter().copied()).chain(recorded.evicted_owners.iter().cloned());
    let evicted = owners(evicted, EVICTED_OWNERS);
    if new.is_empty() && evicted == recorded.evicted_owners {
        return None;
    }
    let mut status = ctx.controller_status();
    let drain = status.report.drain.get_or_insert_default();
    drain.evicted_owners = evicted;
    let moved = drain.forced_since.map(|_| PodMove::Forced);
    let mut pods = drain.pods.to_vec();
    pods.extend(new.iter().map(|pod| DrainedPod { moved, ..drained_pod(ctx, pod) }));
    drain.pods = bounded(pods).into();
    let returned = new.iter().filter(|pod| !pod.tolerates_cordon).filter_map(|pod| pod.controller_uid.clone());
    for uid in owners(returned, RETURNED_OWNERS) {
        if let Some(owner) = drain.returned_owners.iter_mut().find(|owner| owner.uid == uid) {
            owner.times += 1;
        } else if drain.returned_owners.len() < RETURNED_OWNERS {
            drain.returned_owners.push(ReturnedOwner { uid, times: 1 });
        }
    }
    Some(Action::Status { status: Box::new(status), note: None })
}

/// Returns a new pod of an owner that has put pods on the cordoned node too often for the scheduler to be the
/// cause, and that would do so for ever.
pub(super) fn returning_pod<'b>(ctx: &NodeContext<'_>, sorted: &Sorted<'b>) -> Option<&'b PodFacts> {
    let drain = ctx.drain_status()?;
    let too_often =
        |uid: &String| drain.returned_owners.iter().any(|owner| owner.uid == *uid && owner.times >= RETURNS);
    let owned = |pod: &&PodFacts| !pod.tolerates_cordon && pod.controller_uid.as_ref().is_some_and(too_often);
    sorted.evictable.iter().copied().filter(owned).find(|pod| !listed(pod, drain))
}

pub(super) fn fail_for_returning_pod(ctx: &NodeContext<'_>, progress: &Progress, pod: &PodFacts) -> Decision {
    let owner = pod.controller.as_deref().unwrap_or("its owner");
    let message = format!(
        "{} was put on the cordoned node by {owner}, as others before it, although it does not tolerate the cordon; \
         remove nodeName from the template of its pods",
        pod.title()
    );
    fail(ctx, progress, FailureReason::PodsReturn, &message)
}

/// Returns how many volumes the node has beyond those that the pods on it claim: the pods of a drained node stay,
/// and their volumes with them.
fn detaching_volumes(ctx: &NodeContext<'_>) -> usize {
    let staying = ctx.node.pods.iter().flatten().filter(|pod| !pod.finished);
    let claims = staying.flat_map(|pod| pod.volume_claims.iter().map(|claim| (&pod.namespace, claim)));
    ctx.facts().volumes.saturating_sub(claims.collect::<BTreeSet<_>>().len())
}

/// The pods that the drain has listed and that are still on the node: the object, and not only its containers.
fn remaining_listed<'a>(ctx: &NodeContext<'a>) -> impl Iterator<Item = &'a PodFacts> {
    let recorded = ctx.drain_status().map(|drain| &*drain.pods).unwrap_or_default();
    let recorded: HashSet<&str> = recorded.iter().map(|pod| pod.uid.as_str()).collect();
    ctx.node.pods.iter().flatten().filter(move |pod| recorded.contains(pod.uid.as_str()))
}

/// The number of listed pods that have left.
pub(super) fn pods_gone(ctx: &NodeContext<'_>) -> i64 {
    let listed = ctx.drain_status().map_or(0, |drain| drain.pods.len());
    i64::try_from(listed.saturating_sub(remaining_listed(ctx).count())).unwrap_or(i64::MAX)
}

/// Ends the drain. Pods that are left to the reboot are named: those that have been waited for long enough, with an
/// Event, and those that tolerate the cordon and came back.
fn end_drain(ctx: &NodeContext<'_>, progress: &Progress, sorted: &Sorted<'_>) -> Action {
    let stuck: Vec<_> = remaining_listed(ctx).collect();
    let stuck = (!stuck.is_empty())
        .then(|| format!("left to the reboot because their deletion does not complete: {}", named(&stuck)));
    let returned = (!sorted.returned.is_empty()).then(|| {
        let pods = named(&sorted.returned);
        format!("left to the reboot because they tolerate the cordon and came back after their eviction: {pods}")
    });
    let left: Vec<_> = stuck.iter().chain(&returned).map(String::as_str).collect();
    let (reason, message) = match left[..] {
        [] => ("Drained", "all pods to evict have left the node".to_owned()),
        _ => ("PodsLeft", left.join("; ")),
    };
    let place = progress.rollout.clone().map(|place| RolloutPlace { drain_ended: Some(ctx.now), ..place });
    let progress = Progress { rollout: place, ..progress.clone() };
    let next = if progress.drill.is_some() { Step::RehearsingReboot } else { Step::Rebooting };
    let mut action = go_to(ctx, &progress, next, |status| {
        ctx.set_condition(status, DRAINED, true, reason, &message);
        if let Some(drain) = &mut status.report.drain {
            (drain.removed, drain.blockers) = (pods_gone(ctx), Vec::new());
            mark_moved(ctx, Arc::make_mut(&mut drain.pods), |_| Some(PodMove::LeftToReboot));
        }
    });
    if let (Action::Status { note, .. }, Some(_)) = (&mut action, stuck) {
        *note = Some(Note { warning: true, reason: "PodsLeft", message });
    }
    action
}
