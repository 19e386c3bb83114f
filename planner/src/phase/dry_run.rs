//! The drain of a drill without evictions: the API server is asked about each pod.

use models::plain::cut;
use models::reason::FailureReason;
use models::shadow::{Blocker, DRAINED, Drill, MOST_REFUSED, Progress, Step};
use models::time::after;

use super::claim::{claim_due, not_claimed};
use super::drained::{deadline, record_new, with_drain_ended};
use super::row::{Attempt, Outcome, Turn, act, fail, stay};
use crate::decision::{Eviction, Evictions};
use crate::drain::DENIAL_RETRIED;
use crate::gates;
use crate::view::{Blocked, PodFacts};
use crate::wait::Wait;

/// The number of pods that a message names.
const NAMED: usize = 3;

/// Asks the API server, for each pod of the claimed node once, whether it may be evicted. No pod is.
pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    let deadline = deadline(ctx);
    let timed_out = |message: &str| fail(FailureReason::DrainTimedOut, message);
    if let Some(claim) = claim_due(ctx) {
        return if ctx.now >= deadline { not_claimed(ctx) } else { claim.waking_at(deadline) };
    }
    let Some(sorted) = ctx.sorted_pods() else {
        let late = ctx.now >= deadline;
        let wait = || stay(Wait::ReadingPods).waking_at(deadline);
        return if late {
            timed_out("the pods on the node could not be read: see the controller's log")
        } else {
            wait()
        };
    };
    if let Some(refused) = gates::refusal(&sorted.refused) {
        return Turn::of(Outcome::Refuse(refused));
    }
    // Pods that came after the node was chosen are listed before they are asked about, as in a drain.
    if let Some(action) = record_new(ctx, &sorted).filter(|_| ctx.now < deadline) {
        return act(action);
    }
    // A refusal without a budget, as of a webhook or of an API server under load, may be one for a moment.
    let asks_until = |answer: &Blocked| after(answer.since, DENIAL_RETRIED).min(deadline);
    let answered = |pod: &&&PodFacts| {
        let answer = ctx.node.blocked.get(&pod.uid);
        let stays = |answer: &Blocked| answer.budget.is_some() || ctx.now >= asks_until(answer);
        answer.is_some_and(|answer| answer.accepted || stays(answer))
    };
    let left: Vec<&PodFacts> = sorted.evictable.iter().filter(|pod| !answered(pod)).copied().collect();
    if left.is_empty() {
        return end_dry_run(ctx, &sorted.evictable);
    }
    if ctx.now >= deadline {
        let named = left.iter().take(NAMED).map(|pod| pod.title()).collect::<Vec<_>>().join(", ");
        // A pod that is to be asked about once more has an answer.
        let last = left.iter().find_map(|pod| Some((pod, &ctx.node.blocked.get(&pod.uid)?.message)));
        let last =
            last.map_or_else(String::new, |(pod, message)| format!("; the last answer for {}: {message}", pod.title()));
        return timed_out(&format!("the API server has not answered for {} pod(s): {named}{last}", left.len()));
    }
    let retry = |pod: &PodFacts| ctx.node.blocked.get(&pod.uid).map(|answer| answer.retry_at.min(asks_until(answer)));
    let due = left.iter().filter(|pod| !ctx.node.in_flight.contains_key(&pod.uid));
    let due = due.filter(|pod| retry(pod).is_none_or(|at| at <= ctx.now));
    let pods = due.map(|pod| Eviction::of(pod)).collect();
    let evictions = Evictions { pods, grace: ctx.group().drain.grace, delete: false, dry_run: true };
    let next = left.iter().filter_map(|pod| retry(pod)).filter(|at| *at > ctx.now).min();
    let turn = stay(Wait::Draining { left: left.len() }).evicting(evictions);
    turn.waking_at(next.unwrap_or(deadline)).waking_at(deadline)
}

/// Records the answers of the API server. A refusal ends nothing: the rest of the update is rehearsed too.
fn end_dry_run(ctx: &Attempt<'_>, pods: &[&PodFacts]) -> Turn {
    let refusal = |pod: &&PodFacts| {
        let answer = ctx.node.blocked.get(&pod.uid).filter(|answer| !answer.accepted)?;
        let Blocked { budget, message, since, denied_since, .. } = answer.clone();
        Some(Blocker { pod: pod.title(), budget, message: cut(&message, 512), since, denied_since })
    };
    let mut refused: Vec<_> = pods.iter().filter_map(refusal).collect();
    let message = format!("{} pod(s) were asked about, {} are refused; none was evicted", pods.len(), refused.len());
    refused.truncate(MOST_REFUSED);
    let drill = ctx.progress.drill.clone().map(|drill| Drill { refused, ..drill });
    ctx.next_with(Step::Rebooting, Progress { drill, ..with_drain_ended(ctx) }, |status| {
        ctx.set_condition(status, DRAINED, false, "Rehearsed", &message);
    })
}
