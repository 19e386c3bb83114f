//! A drill: an update of one node without the image being armed and without a reboot, as a user requests it.
//!
//! ```text
//!  request ─► Staging ─► (Staged) ─► (BeforeDrain) ─┬─► RehearsingDrain ──────────────┬─► RehearsingReboot ─► Verifying
//!                                                   └─► (LeavingLoadBalancer) Draining ┘        ─► (AfterUpdate) ─► result
//!                                                         with `evict`
//! ```
//!
//! It passes the gates of an update, holds a slot, claims the node, and has its agent request and verify a permit, which is
//! signed as a rehearsal. Its desired state is `RehearsedUpdate` before anything is disrupted: an agent that does not know
//! drills reports so then. Whatever refuses it ends it, with the reason as its result; it waits for a slot alone. It counts
//! against no version and puts no back-off on the node.

use std::time::Duration;

use jiff::Timestamp;
use models::condition::find_condition;
use models::plain::cut;
use models::reason::FailureReason;
use models::shadow::{
    Blocker, CORDONED, DRAINED, DRILL_PASSED, Drill, DrillResult, EVICTIONS_REFUSED, HOST_REACHABLE, HostState,
    MOST_REFUSED, Progress, Rehearsal, RolloutPlace, Step, UNSUPPORTED_STATE,
};
use models::time::after;

use super::claim::{claim_due, ended_during_drain};
use super::desired::{desired_state, withdraw};
use super::drain::{deadline as drain_deadline, pods_gone, record_new};
use super::fail::{ended_from_outside, may_reboot};
use super::permit::deadline as permit_deadline;
use super::release::forget_claim;
use super::requests::{acknowledge_drill, acknowledge_release};
use super::result::keep_result;
use super::stage::no_longer_wanted;
use super::status::{go_to, unblock};
use super::{stage, verify};
use crate::decision::{Action, Decision, Eviction, Evictions, Note, Verdict};
use crate::gates;
use crate::survey::NodeContext;
use crate::view::{Blocked, PodFacts};
use crate::wait::Wait;

/// The number of refused pods that a message names.
const NAMED: usize = 3;

/// Time from the first refusal without a budget, as of a webhook or of an API server under load, for which a dry run asks about
/// a pod again.
const ASKS_AGAIN: Duration = Duration::from_secs(60);

/// Begins the drill that is requested for an idle node, or ends the request with the reason against it. A moment's reason,
/// such as a report that the agent is about to make, is waited for.
pub(super) fn begin(ctx: &NodeContext<'_>) -> Option<Decision> {
    let mut drill = Drill::of(ctx.shadow.pending_drill()?);
    let current = ctx.shadow.status.agent.current_version.as_ref().ok_or(Wait::NoReport);
    let version = if drill.download { ctx.version() } else { current };
    let version = match gates::begin_drill(ctx, drill.download).map_or(version, Err) {
        Ok(version) => version,
        Err(wait @ (Wait::AgentNotSynced | Wait::DisarmPending | Wait::NoReport | Wait::Pinning { .. })) => {
            return Some(Decision::wait(wait));
        }
        Err(refused) => return Some(refuse_request(ctx, &refused)),
    };
    // The slot of the attempt that has ended is about to be removed.
    if ctx.slot {
        return Some(Decision::wait(Wait::Acting));
    }
    drill.refused.clear();
    let mut status = ctx.controller_status();
    let attempt = ctx.last_attempt().saturating_add(1);
    // A place in no rollout.
    let rollout = Some(RolloutPlace { boot_id: ctx.facts().boot_id.clone(), ..RolloutPlace::default() });
    status.report.progress =
        Some(Progress { drill: Some(drill), rollout, ..ctx.new_progress(Step::Staging, attempt, version) });
    status.report.drain = None;
    acknowledge_drill(ctx, &mut status);
    unblock(&mut status);
    let action = Action::Status { status: Box::new(status), note: None };
    Some(Decision { verdict: Verdict::Drill(action), ..Decision::default() })
}

/// Ends the request for a drill before it has begun, if there is one.
pub(super) fn refuse_request(ctx: &NodeContext<'_>, wait: &Wait) -> Decision {
    let Some(request) = ctx.shadow.pending_drill() else { return Decision::wait(wait.clone()) };
    end_request(ctx, request, wait.as_str(), &wait.to_string())
}

/// Ends the request for a drill that has not begun, since a user requests the release of the node; `None` if there is none.
pub(super) fn release_request(ctx: &NodeContext<'_>) -> Option<Decision> {
    let reason = FailureReason::ReleaseRequested.as_str();
    Some(end_request(ctx, ctx.shadow.pending_drill()?, reason, "a user requested the release of the node"))
}

fn end_request(ctx: &NodeContext<'_>, request: &str, result: &str, message: &str) -> Decision {
    let mut status = ctx.controller_status();
    acknowledge_drill(ctx, &mut status);
    acknowledge_release(ctx, &mut status);
    let found = result_of(ctx, &Drill::of(request), None, result, message);
    let note = note_of(&found);
    status.report.record.get_or_insert_default().drill = Some(found);
    Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
}

/// Has the agent take on the desired state, after the download if one is requested, then waits for a slot.
pub(super) fn before_drain(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill) -> Decision {
    let spec = &ctx.shadow.spec;
    let end = |reason: FailureReason, message: &str| end(ctx, progress, drill, reason.as_str(), message);
    if let Some(decision) = ended_from_outside(ctx, progress) {
        return decision;
    }
    if !ctx.policy.enabled && !ctx.slot {
        return end(FailureReason::Disabled, "updates were disabled");
    }
    if drill.download
        && let Some(decision) = no_longer_wanted(ctx, progress)
    {
        return decision;
    }
    if let Some(decision) = ended_by_host(ctx, progress, drill) {
        return decision;
    }
    if spec.attempt < progress.attempt {
        let first = if drill.download { HostState::StagedUpdate } else { HostState::RehearsedUpdate };
        return Decision::act(desired_state(ctx, first, progress));
    }
    let downloads = drill.download && spec.state == HostState::StagedUpdate;
    if spec.attempt != progress.attempt || !(downloads || spec.state == HostState::RehearsedUpdate) {
        return end(FailureReason::ProgressLost, "the desired state does not belong to this attempt");
    }
    if downloads && ctx.is_staged() {
        return Decision::act(desired_state(ctx, HostState::RehearsedUpdate, progress));
    }
    if downloads || request(ctx).is_none() {
        let deadline = stage::deadline(ctx, progress);
        return match (ctx.now >= deadline, downloads) {
            (true, true) => end(FailureReason::StageTimedOut, "the host did not stage the image in time"),
            (true, false) => end(
                FailureReason::AgentSilent,
                "no permit was requested in time: the agent does not answer, or it or the web API does not know drills",
            ),
            (false, true) => Decision::wait(Wait::Staging).waking_at(deadline),
            (false, false) => Decision::wait(Wait::AwaitingAgent).waking_at(deadline),
        };
    }
    if let Some(wait) = gates::start_drill(ctx, drill.download) {
        return refuse(ctx, progress, drill, &wait);
    }
    if ctx.slot {
        return super::claim::start_drain(ctx, progress);
    }
    Decision { verdict: Verdict::WantsSlot, ..Decision::default() }
}

/// Asks the API server, for each pod of the claimed node once, whether it may be evicted. No pod is.
pub(super) fn rehearse_drain(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill) -> Decision {
    if let Some(decision) = ended_during_drain(ctx, progress).or_else(|| ended_by_host(ctx, progress, drill)) {
        return decision;
    }
    let deadline = drain_deadline(ctx, progress);
    let timed_out = |message: &str| end(ctx, progress, drill, FailureReason::DrainTimedOut.as_str(), message);
    if let Some(claim) = claim_due(ctx, progress) {
        let late = ctx.now >= deadline;
        return if late { timed_out("the node could not be cordoned") } else { claim.waking_at(deadline) };
    }
    let since = ctx.facts().claimed_since.map_or(progress.since, |claimed| claimed.max(progress.since));
    let until = after(since, ctx.policy.leave_load_balancer.unwrap_or_default());
    if ctx.now < until {
        return Decision::wait(Wait::LeavingLoadBalancer { until }).waking_at(until);
    }
    let Some(sorted) = ctx.sorted_pods() else {
        let late = ctx.now >= deadline;
        let wait = || Decision::wait(Wait::ReadingPods).waking_at(deadline);
        return if late { timed_out("the pods on the node could not be read") } else { wait() };
    };
    if let Some(refused) = gates::refusal(&sorted) {
        return refuse(ctx, progress, drill, &refused);
    }
    // Pods that came after the node was chosen are listed before they are asked about, as in a drain.
    if let Some(action) = record_new(ctx, &sorted).filter(|_| ctx.now < deadline) {
        return Decision::act(action);
    }
    let asks_until = |answer: &Blocked| after(answer.since, ASKS_AGAIN).min(deadline);
    let answered = |pod: &&&PodFacts| {
        let answer = ctx.node.blocked.get(&pod.uid);
        let stays = |answer: &Blocked| answer.fatal || answer.budget.is_some() || ctx.now >= asks_until(answer);
        answer.is_some_and(|answer| answer.accepted || stays(answer))
    };
    let left: Vec<&PodFacts> = sorted.evictable.iter().filter(|pod| !answered(pod)).copied().collect();
    if left.is_empty() {
        return Decision::act(end_dry_run(ctx, progress, drill, &sorted.evictable));
    }
    if ctx.now >= deadline {
        let named = left.iter().take(NAMED).map(|pod| pod.title()).collect::<Vec<_>>().join(", ");
        return timed_out(&format!("the API server has not answered for {} pod(s): {named}", left.len()));
    }
    let retry = |pod: &PodFacts| ctx.node.blocked.get(&pod.uid).map(|answer| answer.retry_at.min(asks_until(answer)));
    let due = left.iter().filter(|pod| !ctx.node.in_flight.contains_key(&pod.uid));
    let due = due.filter(|pod| retry(pod).is_none_or(|at| at <= ctx.now));
    let pods = due.map(|pod| Eviction::of(pod)).collect();
    let evictions = Evictions { pods, grace: ctx.group().drain.grace, delete: false, dry_run: true };
    let next = left.iter().filter_map(|pod| retry(pod)).filter(|at| *at > ctx.now).min();
    let decision = Decision::wait(Wait::Draining { left: left.len() }).evicting(evictions);
    decision.waking_at(next.unwrap_or(deadline)).waking_at(deadline)
}

/// Records the answers of the API server. A refusal ends nothing: the rest of the update is rehearsed too.
fn end_dry_run(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill, pods: &[&PodFacts]) -> Action {
    let refusal = |pod: &&PodFacts| {
        let answer = ctx.node.blocked.get(&pod.uid).filter(|answer| !answer.accepted)?;
        let (budget, message, since) = (answer.budget.clone(), cut(&answer.message, 512), answer.since);
        Some(Blocker { pod: pod.title(), budget, message, since })
    };
    let mut refused: Vec<_> = pods.iter().filter_map(refusal).collect();
    let message = format!("{} pod(s) were asked about, {} are refused; none was evicted", pods.len(), refused.len());
    refused.truncate(MOST_REFUSED);
    let place = progress.rollout.clone().map(|place| RolloutPlace { drain_ended: Some(ctx.now), ..place });
    let drill = Some(Drill { refused, ..drill.clone() });
    go_to(ctx, &Progress { rollout: place, drill, ..progress.clone() }, Step::RehearsingReboot, |status| {
        ctx.set_condition(status, DRAINED, false, "Rehearsed", &message);
    })
}

/// The agent's request for a rehearsal permit, if it belongs to the current desired state and to the node's current boot.
pub(super) fn request<'a>(ctx: &NodeContext<'a>) -> Option<&'a Rehearsal> {
    let spec = &ctx.shadow.spec;
    ctx.shadow.status.agent.rehearsal.as_ref().filter(|request| {
        spec.state == HostState::RehearsedUpdate
            && request.attempt == spec.attempt
            && spec.boot_id.as_ref() == Some(&request.boot_id)
            && request.boot_id == ctx.facts().boot_id
            && spec.version.as_ref() == Some(&request.version)
    })
}

/// Answers the agent's request with a rehearsal permit, and waits until the agent has verified it.
pub(super) fn rehearse_reboot(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill) -> Decision {
    let spec = &ctx.shadow.spec;
    let end = |reason: FailureReason, message: &str| end(ctx, progress, drill, reason.as_str(), message);
    if let Some(decision) = ended_from_outside(ctx, progress).or_else(|| ended_by_host(ctx, progress, drill)) {
        return decision;
    }
    if spec.attempt != progress.attempt || spec.state != HostState::RehearsedUpdate {
        return end(FailureReason::ProgressLost, "the desired state does not belong to this attempt");
    }
    let request = request(ctx);
    let answered = request.is_some_and(|r| spec.permit.as_ref().is_some_and(|permit| permit.nonce == r.nonce));
    let reached = ctx.caught_up() && ctx.shadow.status.agent.state == Some(HostState::RehearsedUpdate);
    if answered && reached && request.is_some_and(|request| request.verified) {
        if ctx.needs_release() {
            return Decision::act(Action::Release);
        }
        let verifying = Progress { verifying_since: Some(ctx.now), ..progress.clone() };
        return Decision::act(go_to(ctx, &verifying, Step::Verifying, |status| {
            for condition in [CORDONED, DRAINED] {
                ctx.set_condition(status, condition, false, "Rehearsed", "back in service after the drill");
            }
        }));
    }
    let deadline = permit_deadline(ctx, progress);
    if ctx.now >= deadline {
        return end(FailureReason::AgentSilent, "the agent has not verified its permit in time");
    }
    if let Some(claim) = claim_due(ctx, progress) {
        return claim.waking_at(deadline);
    }
    let decision = match request {
        Some(request) if !answered => answer(ctx, progress, drill, &request.nonce),
        Some(_) => Decision::wait(Wait::AwaitingRehearsal),
        None => Decision::wait(Wait::AwaitingAgent),
    };
    decision.waking_at(deadline)
}

/// Answers the agent's request. After a real drain no pod may be left, as before the permit of a reboot.
fn answer(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill, nonce: &str) -> Decision {
    let Some(sorted) = ctx.sorted_pods() else { return Decision::wait(Wait::ReadingPods) };
    if let Some(pod) = sorted.left().next().filter(|_| drill.evict) {
        let message = format!("{} came to the drained node", pod.title());
        return end(ctx, progress, drill, FailureReason::PodsReturn.as_str(), &message);
    }
    let rules = ctx.group().drain.rules_at(ctx.now);
    Decision::act(Action::Permit { nonce: nonce.to_owned(), rules, pods_stay: !drill.evict })
}

/// Withdraws the desired state of a drill whose node is back in service, and watches its health for the soak.
pub(super) fn verify(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill) -> Decision {
    if let Some(decision) = ended_from_outside(ctx, progress) {
        return decision;
    }
    let end = |reason: FailureReason, message: &str| end(ctx, progress, drill, reason.as_str(), message);
    if ctx.facts().boot_id != progress.boot_id {
        return end(FailureReason::RebootedByOther, "the node was rebooted during the drill");
    }
    if ctx.shadow.spec.state != HostState::Idle {
        return Decision::act(withdraw(ctx));
    }
    if ctx.needs_release() {
        return Decision::act(Action::Release);
    }
    if !ctx.facts().ready {
        return end(FailureReason::SoakFailed, "the node did not stay Ready");
    }
    let until = after(progress.since, ctx.group().after.soak);
    verify::check_health(ctx, progress, until).unwrap_or_else(|| verify::finish(ctx, progress))
}

/// Ends a drill that went through, with its result.
pub(super) fn pass(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill) -> Decision {
    let pods = ctx.drain_status().map_or(0, |drain| drain.pods.len());
    let (result, message) = match drill.refused.first() {
        Some(first) => {
            let budget = first
                .budget
                .as_ref()
                .map_or_else(|| "the API server".to_owned(), |budget| format!("PodDisruptionBudget {budget}"));
            let more = if drill.refused.len() < MOST_REFUSED { "" } else { "at least " };
            let of = format!("{more}{} of {pods} pod(s) would not be evicted now", drill.refused.len());
            (EVICTIONS_REFUSED, format!("{of}: {budget} refuses {}: {}", first.pod, first.message))
        }
        None if drill.evict => (DRILL_PASSED, format!("{pods} pod(s) were evicted, and the node stayed healthy")),
        None => (DRILL_PASSED, format!("{pods} pod(s) may be evicted now, and the node stayed healthy")),
    };
    let mut status = ctx.controller_status();
    let found = result_of(ctx, drill, Some(progress), result, &message);
    let note = note_of(&found);
    status.report.record.get_or_insert_default().drill = Some(found);
    keep_result(ctx, &mut status, progress, result, &message, Vec::new());
    status.report.progress = None;
    forget_claim(ctx, &mut status);
    unblock(&mut status);
    Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
}

/// Ends a drill because of a reason for which an update would wait.
pub(super) fn refuse(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill, wait: &Wait) -> Decision {
    end(ctx, progress, drill, wait.as_str(), &wait.to_string())
}

/// Ends a drill early: recorded first, then withdrawn, then released. Neither the version nor the node is charged.
pub(super) fn end(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill, result: &str, message: &str) -> Decision {
    let mut status = ctx.controller_status();
    let found = result_of(ctx, drill, Some(progress), result, message);
    let note = note_of(&found);
    status.report.record.get_or_insert_default().drill = Some(found);
    keep_result(ctx, &mut status, progress, result, message, Vec::new());
    let permit_issued = may_reboot(ctx, progress);
    status.report.progress =
        Some(Progress { step: Step::Releasing, since: ctx.now, permit_issued, ..progress.clone() });
    acknowledge_release(ctx, &mut status);
    unblock(&mut status);
    Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
}

/// Returns the end of a drill whose agent or host cannot go on with it.
fn ended_by_host(ctx: &NodeContext<'_>, progress: &Progress, drill: &Drill) -> Option<Decision> {
    let end = |reason: FailureReason, message: &str| Some(end(ctx, progress, drill, reason.as_str(), message));
    if ctx.facts().boot_id != progress.boot_id {
        return end(FailureReason::RebootedByOther, "the node was rebooted during the drill");
    }
    if let Some((reason, message)) = ctx.agent_failure(progress.attempt) {
        return end(reason, message);
    }
    let spec = &ctx.shadow.spec;
    let asked = spec.state == HostState::RehearsedUpdate && spec.attempt == progress.attempt;
    let condition = find_condition(&ctx.shadow.status.conditions, HOST_REACHABLE);
    let unsupported = condition.filter(|condition| asked && condition.reason == UNSUPPORTED_STATE)?;
    let message = format!("the agent or the web API does not know drills: {}", unsupported.message);
    end(FailureReason::UnsupportedState, &message)
}

fn result_of(
    ctx: &NodeContext<'_>,
    drill: &Drill,
    progress: Option<&Progress>,
    result: &str,
    message: &str,
) -> DrillResult {
    let place = progress.and_then(|progress| progress.rollout.clone()).unwrap_or_default();
    // Before it has begun, a drain that is recorded is another one.
    let listed = ctx.drain_status().filter(|_| progress.is_some()).map_or(0, |drain| drain.pods.len());
    let pods =
        if drill.evict && progress.is_some() { pods_gone(ctx) } else { i64::try_from(listed).unwrap_or(i64::MAX) };
    DrillResult {
        drill: drill.clone(),
        attempt: progress.map(|progress| progress.attempt),
        version: progress.map(|progress| progress.version.clone()),
        result: result.to_owned(),
        message: cut(message, 1024),
        started: progress.map_or(ctx.now, |progress| progress.started),
        drain_started: place.drain_started,
        drain_ended: place.drain_ended,
        soak_started: progress.and_then(|progress| progress.verifying_since),
        ended: ctx.now,
        pods,
    }
}

fn note_of(found: &DrillResult) -> Note {
    let passed = found.result == DRILL_PASSED;
    let reason = if passed { "DrillPassed" } else { "DrillFailed" };
    let message = format!("drill: {}: {}", found.result, found.message);
    Note { warning: !passed, reason, message }
}

/// Returns when the step under way of a drill is given up, where it is one of its own.
pub(super) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Timestamp {
    if progress.step == Step::RehearsingDrain { drain_deadline(ctx, progress) } else { permit_deadline(ctx, progress) }
}
