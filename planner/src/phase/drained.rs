//! The pods of a drain, as several phases see them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::AtDeadline;
use models::reason::FailureReason;
use models::shadow::{
    DrainedPod, FirstPod, HistoryPosition, PodMove, Progress, RECORDED_BUDGETS, RECORDED_SERVICES, RefusingBudget,
    ReturnedOwner,
};
use models::time::{after, signed};

use super::blockers::{denied_since, refused_by};
use super::result::bounded;
use super::row::{Attempt, Turn, fail};
use crate::claims::ClaimField;
use crate::decision::Action;
use crate::drain::{DENIAL_RETRIED, Sorted, listed, unlisted};
use crate::survey::NodeContext;
use crate::view::{BudgetFacts, PodFacts};

/// The number of pods of a drain that a shadow lists.
pub const LISTED_PODS: usize = 1024;

/// The number of pods that a message names.
const NAMED_PODS: usize = 3;

/// The number of budgets that a shadow lists.
const REFUSING_BUDGETS: usize = 16;

/// The number of pods and owners that a shadow lists because they have kept a drain from its end.
const DRAIN_BLOCKERS: usize = 16;

/// The number of owners of pods that tolerate the cordon that a shadow lists.
const EVICTED_OWNERS: usize = 256;

/// The number of owners of pods that return without tolerating the cordon that a shadow lists.
const RETURNED_OWNERS: usize = 256;

/// The number of times that new pods of one owner that do not tolerate the cordon are evicted, although they were created after it. The
/// scheduler may have placed some before it observed the cordon; those that come after that bypass it.
const RETURNS: i64 = 2;

/// The least time for which each pod is asked within its budgets before any is deleted past them, where policy gives
/// guarded pods less. It yields to half of the drain's time where that is shorter.
const ASKED_FOR: Duration = Duration::from_secs(60);

/// Time after a cordon in which a scheduler that has not observed it may still choose the node for a new pod.
pub(super) const OBSERVED: Duration = Duration::from_secs(2);

/// Returns the first few of these names of pods, and the number of the others.
pub(super) fn first_few(names: &[String]) -> String {
    models::plain::some(names, NAMED_PODS)
}

/// Returns a pod as a shadow lists it, with what is known of it only before its eviction.
pub(super) fn drained_pod(ctx: &NodeContext<'_>, pod: &PodFacts) -> DrainedPod {
    let budgets = ctx.survey.budgets.over(pod).map(|budget| budget.name.clone());
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

/// Returns each owner once, and no more of them than a shadow lists.
pub(super) fn owners(uids: impl Iterator<Item = String>, limit: usize) -> Vec<String> {
    uids.collect::<BTreeSet<_>>().into_iter().take(limit).collect()
}

/// Returns the record of the attempt with the end of its drain.
pub(super) fn with_drain_ended(ctx: &Attempt<'_>) -> Progress {
    let rollout = ctx.progress.rollout.clone().map(|place| HistoryPosition { drain_ended: Some(ctx.now), ..place });
    Progress { rollout, ..ctx.progress.clone() }
}

/// Returns when the drain is given up, or what is left is deleted.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Timestamp {
    ctx.deadline(ctx.progress.since, ctx.group().drain.timeout)
}

/// Returns whether this UID is the pod's, or its owner's.
fn is_of(pod: &PodFacts, uid: &str) -> bool {
    pod.uid == uid || pod.controller_uid.as_deref() == Some(uid)
}

/// Returns the UIDs that an earlier drain has recorded.
fn recorded_blockers<'a>(ctx: &NodeContext<'a>) -> &'a [String] {
    ctx.node.record().map(|record| record.drain_blockers.as_slice()).unwrap_or_default()
}

/// Returns whether a pod has kept an earlier drain from its end, or others of its owner have.
fn kept_earlier_drain(ctx: &NodeContext<'_>, pod: &PodFacts) -> bool {
    recorded_blockers(ctx).iter().any(|uid| is_of(pod, uid))
}

/// Returns what an attempt that ends so leaves for the next drain to ask first: pods that did not leave, or owners whose pods came back.
/// Those that an earlier drain has recorded stay among them while they are on the node.
pub(super) fn drain_blockers(ctx: &Attempt<'_>, reason: FailureReason) -> Vec<String> {
    let recorded = recorded_blockers(ctx);
    let (Some(sorted), Some(drain)) = (ctx.sorted_pods(), ctx.drain_status()) else { return recorded.to_vec() };
    // A denial ends the drain early, while budgets let other pods go one after the other.
    let in_time = ctx.now < deadline(ctx);
    let was_refused = |pod: &PodFacts| match reason {
        FailureReason::DrainRefused if in_time => denied_since(ctx, pod).is_some(),
        _ => {
            let answer = ctx.node.blocked.get(&pod.uid);
            answer.is_some_and(|answer| !answer.accepted)
                || drain.blockers.iter().any(|blocker| pod.is_titled(&blocker.pod))
        }
    };
    let stayed = |pod: &PodFacts| match reason {
        FailureReason::DrainRefused | FailureReason::DrainTimedOut => was_refused(pod).then(|| pod.uid.clone()),
        FailureReason::PodsReturn => pod.controller_uid.clone().filter(|_| !listed(pod, drain)),
        _ => None,
    };
    let there = recorded.iter().filter(|uid| sorted.left().any(|pod| is_of(pod, uid))).cloned();
    let uids: BTreeSet<String> = there.chain(sorted.evictable.iter().copied().filter_map(stayed)).collect();
    uids.into_iter().take(DRAIN_BLOCKERS).collect()
}

/// Returns the pods to ask first and alone: those that a budget guards, those that may take longer to end than the drain may take, and those
/// that have kept an earlier drain from its end, so that no other pod leaves in vain once more.
pub(super) fn to_ask_first(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> Vec<FirstPod> {
    let drain = &ctx.group().drain;
    let guarded = |pod: &PodFacts| ctx.survey.budgets.beside(pod).any(|budget| budget.guards(pod));
    let is_asked = |pod: &PodFacts| drain.long_grace(pod).is_some() || kept_earlier_drain(ctx, pod) || guarded(pod);
    let asked = sorted.evictable.iter().filter(|pod| is_asked(pod));
    let outlasts = |pod: &&&PodFacts| pod.ends_by.is_some_and(|by| by > after(ctx.now, drain.timeout));
    let first = asked.chain(sorted.leaving.iter().filter(outlasts)).take(LISTED_PODS);
    first.map(|pod| FirstPod { uid: pod.uid.clone(), accepted: None, unguarded: !guarded(pod) }).collect()
}

/// Returns the pods that are asked first for such a reason and whose eviction was not accepted so far.
fn still_asked<'b>(
    ctx: &NodeContext<'_>,
    sorted: &Sorted<'b>,
    is_asked: impl Fn(&FirstPod) -> bool,
) -> impl Iterator<Item = &'b PodFacts> {
    let first = ctx.drain_status().map(|drain| drain.asked_first.as_slice()).unwrap_or_default();
    let first: HashSet<&str> = first.iter().filter(|pod| is_asked(pod)).map(|first| first.uid.as_str()).collect();
    sorted.evictable.iter().copied().filter(move |pod| first.contains(pod.uid.as_str())).collect::<Vec<_>>().into_iter()
}

/// Returns the guarded pods that are asked first and whose eviction was not accepted so far.
pub(super) fn still_guarded<'b>(ctx: &NodeContext<'_>, sorted: &Sorted<'b>) -> impl Iterator<Item = &'b PodFacts> {
    still_asked(ctx, sorted, |first| !first.unguarded)
}

/// Returns the budgets that keep the guarded pods that are asked first, each once.
pub(super) fn refusing_budgets<'a>(ctx: &NodeContext<'a>) -> Vec<&'a BudgetFacts> {
    let Some(sorted) = ctx.sorted_pods() else { return Vec::new() };
    let mut refusing = BTreeMap::new();
    for pod in still_guarded(ctx, &sorted) {
        let keeps = ctx.survey.budgets.over(pod).filter(|budget| !budget.lets_go(pod));
        refusing.extend(keeps.map(|budget| (budget.title(), budget)));
    }
    refusing.into_values().take(REFUSING_BUDGETS).collect()
}

/// Returns whether one of these budgets was asked in vain: the last answer about a pod of the node is its refusal. One with broken pods may let
/// the others go once all are healthy.
pub(super) fn was_asked_in_vain(ctx: &NodeContext<'_>, budget: &BudgetFacts) -> bool {
    let title = budget.title();
    let refuses = |pod: &PodFacts| refused_by(ctx, pod) == Some(title.as_str());
    !budget.is_unwell() && ctx.node.pods.iter().flatten().any(refuses)
}

/// Returns those of these budgets that were asked in vain.
pub(super) fn asked_in_vain(ctx: &NodeContext<'_>) -> Vec<RefusingBudget> {
    let asked = refusing_budgets(ctx).into_iter().filter(|budget| was_asked_in_vain(ctx, budget));
    asked.map(|budget| RefusingBudget { budget: budget.title(), revision: budget.revision.clone() }).collect()
}

/// Returns when the guarded pods that are asked first, and that a budget keeps, are given up: `guardedTimeout` after the last one whose eviction
/// was accepted, or after the claim. None is asked while the node is not cordoned.
pub(super) fn asked_until(ctx: &Attempt<'_>) -> Option<Timestamp> {
    let cordoned = ctx.facts().claims_in_effect().has(ClaimField::Cordon);
    let drain = ctx.drain_status().filter(|drain| cordoned && !drain.asked_first.is_empty())?;
    if refusing_budgets(ctx).is_empty() {
        return None;
    }
    let accepted = drain.asked_first.iter().filter_map(|first| first.accepted).max();
    let asked = accepted.unwrap_or(ctx.progress.since);
    let since = ctx.facts().claimed_since.map_or(asked, |claimed| claimed.max(asked));
    Some(ctx.deadline(since, ctx.group().drain.guarded_timeout))
}

/// Returns whether policy has what is left at the deadline deleted. A drill goes past no budget: nothing is urgent in it. Nor does a drain that is
/// found days later, as once the controller is scaled up again: no pod on it has been asked to leave for as long as policy says.
pub(super) fn forces(ctx: &Attempt<'_>) -> bool {
    let drain = &ctx.group().drain;
    let has_begun = || ctx.drain_status().is_some_and(|drain| drain.forced_since.is_some());
    let in_time = || has_begun() || !ctx.is_found_late(ctx.progress.since, drain.timeout);
    drain.at_deadline == AtDeadline::Force && !ctx.mode().is_drill() && in_time()
}

/// Returns whether an earlier turn has begun to delete what is left, past the drain's time: another leader, which gives the drain some of its
/// time again, goes on with it. Where policy has given the drain more time since, its pods are evicted again.
pub(super) fn is_forced(ctx: &Attempt<'_>) -> bool {
    let timed_out = after(ctx.progress.since, ctx.group().drain.timeout);
    forces(ctx) && ctx.drain_status().and_then(|drain| drain.forced_since).is_some_and(|forced| forced >= timed_out)
}

/// Returns when the order of the evictions ends where policy has what is left deleted: each pod is asked to leave, within its budgets, before
/// any is deleted past them.
pub(super) fn ordered_until(ctx: &Attempt<'_>) -> Option<Timestamp> {
    let drain = &ctx.group().drain;
    let rest = drain.guarded_timeout.max(ASKED_FOR).min(drain.timeout / 2);
    forces(ctx).then(|| after(deadline(ctx), -signed(rest)))
}

/// Returns when the drain ends if nothing changes, for users: pods that are given up before the deadline are a reason, unless policy deletes what
/// is left, and so is an eviction that is denied until then.
pub(super) fn ends_by(ctx: &Attempt<'_>) -> Timestamp {
    let asked_until = asked_until(ctx).filter(|_| !forces(ctx));
    let sorted = ctx.sorted_pods().filter(|_| !ctx.mode().is_dry());
    let denied = sorted.iter().flat_map(|sorted| &sorted.evictable).filter_map(|pod| denied_since(ctx, pod)).min();
    // Another leader ends the drain on an answer of its own, which may come later.
    let denied = denied.map(|since| after(since, DENIAL_RETRIED)).filter(|until| *until > ctx.now);
    asked_until.into_iter().chain(denied).fold(deadline(ctx), Timestamp::min)
}

/// Records which of the pods that are asked first have gone, or are about to.
pub(super) fn record_accepted(ctx: &NodeContext<'_>, sorted: &Sorted<'_>) -> Option<Action> {
    let drain = ctx.drain_status()?;
    let asked: HashSet<&str> = still_asked(ctx, sorted, |_| true).map(|pod| pod.uid.as_str()).collect();
    let goes = |first: &FirstPod| first.accepted.is_none() && !asked.contains(first.uid.as_str());
    if !drain.asked_first.iter().any(goes) {
        return None;
    }
    let mut status = ctx.controller_status();
    let drain = status.report.drain.get_or_insert_default();
    for first in drain.asked_first.iter_mut().filter(|first| goes(first)) {
        first.accepted = Some(ctx.now);
    }
    Some(Action::Status { status: Box::new(status), note: None })
}

/// Returns whether a pod was created once the cordon, as it is now, was observed. For any other one the scheduler may have chosen the node
/// before, and may bind it long after that: its volumes come first; or another client had uncordoned the node meanwhile.
pub(super) fn is_later_than_cordon(ctx: &NodeContext<'_>, pod: &PodFacts) -> bool {
    // Both times are cut to whole seconds.
    pod.created.zip(ctx.facts().claimed_since).is_none_or(|(created, cordoned)| created > after(cordoned, OBSERVED))
}

/// Records, before a pod is evicted, that it came after the drain began, and its owner if it tolerates the cordon:
/// only from then on is such a pod of this owner one that has come back. For pods that do not tolerate it, and that
/// were created after it, the number of times per owner is counted. One whose owner's pods came back to an earlier drain is asked first as well.
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
    // The drain is no further once they leave than before they came.
    drain.removed = drain.removed.saturating_add(i64::try_from(new.len()).unwrap_or(i64::MAX));
    let moved = drain.forced_since.map(|_| PodMove::Forced);
    let mut pods = drain.pods.to_vec();
    pods.extend(new.iter().map(|pod| DrainedPod { moved, ..drained_pod(ctx, pod) }));
    drain.pods = bounded(pods).into();
    let room = LISTED_PODS.saturating_sub(drain.asked_first.len());
    let again = new.iter().filter(|pod| kept_earlier_drain(ctx, pod)).take(room);
    drain.asked_first.extend(again.map(|pod| FirstPod { uid: pod.uid.clone(), accepted: None, unguarded: true }));
    let returned = new.iter().filter(|pod| !pod.tolerates_cordon && is_later_than_cordon(ctx, pod));
    let returned = returned.filter_map(|pod| pod.controller_uid.clone());
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
    let owned = |pod: &&PodFacts| {
        let returns = !pod.tolerates_cordon && is_later_than_cordon(ctx, pod);
        returns && pod.controller_uid.as_ref().is_some_and(too_often)
    };
    sorted.evictable.iter().copied().filter(owned).find(|pod| !listed(pod, drain))
}

pub(super) fn fail_for_returning_pod(pod: &PodFacts) -> Turn {
    let owner = pod.controller.as_deref().unwrap_or("its owner");
    let message = format!(
        "{} was put on the cordoned node by {owner}, as others before it, although it does not tolerate the cordon; \
         remove nodeName from the template of its pods",
        pod.title()
    );
    fail(FailureReason::PodsReturn, message)
}

/// The pods that the drain has listed and that are still on the node: the object, and not only its containers.
pub(super) fn remaining_listed<'a>(ctx: &NodeContext<'a>) -> impl Iterator<Item = &'a PodFacts> {
    let recorded = ctx.drain_status().map(|drain| &*drain.pods).unwrap_or_default();
    let recorded: HashSet<&str> = recorded.iter().map(|pod| pod.uid.as_str()).collect();
    ctx.node.pods.iter().flatten().filter(move |pod| recorded.contains(pod.uid.as_str()))
}

/// The number of listed pods that have left.
pub(super) fn pods_gone(ctx: &NodeContext<'_>) -> i64 {
    let listed = ctx.drain_status().map_or(0, |drain| drain.pods.len());
    i64::try_from(listed.saturating_sub(remaining_listed(ctx).count())).unwrap_or(i64::MAX)
}
