//! The permit: the desired state to reboot, the agent's request, the check of the node, and the wait for the reboot. A drill
//! ends with a permit that is signed as a rehearsal, once the agent has verified it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{CORDONED, DRAINED, DrainStatus, HostState, Mode, Progress, Step};
use models::time::after;

use super::boot::{after_reboot, limit_of};
use super::claim::{claim_due, return_to_service};
use super::desired::desired_state;
use super::drained::{is_later_than_cordon, to_ask_first};
use super::end::{ended_before_permit, ended_by_host, timed_out};
use super::permits::{permit_request, rehearsal_request};
use super::row::{Attempt, Outcome, Turn, act, fail, stay};
use crate::decision::Action;
use crate::gates;
use crate::wait::Wait;

/// Returns when the reboot is given up.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Timestamp {
    ctx.deadline(ctx.progress.since, ctx.policy.reboot)
}

/// Requires the reboot of a drained node, answers its agent, and waits for the host to go down.
pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    let (spec, drill) = (&ctx.shadow.spec, ctx.mode().is_drill());
    if drill && let Some(turn) = ended_before_permit(ctx) {
        return turn;
    }
    let another_boot = ctx.facts().boot_id != ctx.progress.boot_id;
    if another_boot && !drill {
        return after_reboot(ctx);
    }
    if another_boot {
        return fail(FailureReason::RebootedByOther, "the node was rebooted during the drill");
    }
    if let Some(turn) = ended_by_host(ctx) {
        return turn;
    }
    if !drill
        && spec.permit.is_none()
        && let Some(turn) = ended_before_permit(ctx)
    {
        return turn;
    }
    let requires = if drill { spec.state == HostState::RehearsedUpdate } else { spec.state != HostState::Idle };
    if spec.attempt != ctx.progress.attempt || !requires {
        return fail(FailureReason::ProgressLost, "the desired state does not belong to this attempt");
    }
    if drill && is_rehearsed(ctx) {
        return back_in_service(ctx);
    }
    let deadline = deadline(ctx);
    if ctx.now >= deadline {
        return too_late(ctx);
    }
    // An agent that was restarted after it had armed the host also requests a permit, for the reboot alone.
    if let Some(claim) = claim_due(ctx) {
        // Uncordoned during the attempt: pods that the scheduler placed here since would be lost.
        return claim.waking_at(deadline);
    }
    if spec.state == HostState::StagedUpdate {
        return act(desired_state(ctx, HostState::RebootedIntoUpdate));
    }
    let turn = match requested_nonce(ctx) {
        Some(nonce) if spec.permit.as_ref().is_none_or(|permit| permit.nonce != *nonce) => answer(ctx, nonce),
        Some(_) if drill => stay(Wait::AwaitingRehearsal),
        _ if spec.permit.is_some() && !drill => stay(Wait::AwaitingReboot),
        _ => stay(Wait::AwaitingAgent),
    };
    turn.waking_at(deadline)
}

/// Returns the nonce of the agent's request for a permit of this attempt.
fn requested_nonce<'a>(ctx: &Attempt<'a>) -> Option<&'a str> {
    if ctx.mode().is_drill() {
        return rehearsal_request(ctx).map(|request| request.nonce.as_str());
    }
    permit_request(ctx).map(|armed| armed.nonce.as_str())
}

fn too_late(ctx: &Attempt<'_>) -> Turn {
    let limit = limit_of(ctx.policy.reboot, "reboot");
    let permit = ctx.shadow.spec.permit.as_ref();
    let unanswered = requested_nonce(ctx).filter(|nonce| permit.is_none_or(|permit| permit.nonce != **nonce));
    let held = unanswered.and_then(|_| held_back(ctx));
    if permit.is_none() && unanswered.is_some() {
        if let Some(wait) = held {
            return Turn::of(Outcome::Refuse(wait));
        }
        let message =
            format!("the agent has requested a permit, and none could be written {limit}: see the controller's log");
        return fail(FailureReason::AgentSilent, message);
    }
    if ctx.mode().is_drill() {
        return timed_out(ctx, FailureReason::AgentSilent, &format!("the agent has not verified its permit {limit}"));
    }
    if permit.is_none() {
        return timed_out(ctx, FailureReason::AgentSilent, &format!("the agent requested no permit {limit}"));
    }
    // The host may still reboot by its earlier permit: the end is that of a reboot that did not come.
    let held =
        held.map_or_else(String::new, |wait| format!("; its last request for a permit was not answered: {wait}"));
    let message = format!("the node was not seen in another boot {limit}{held}");
    timed_out(ctx, FailureReason::RebootTimedOut, &message)
}

/// Returns whether the agent has verified its rehearsal permit.
fn is_rehearsed(ctx: &Attempt<'_>) -> bool {
    let verified = rehearsal_request(ctx).filter(|request| request.verified);
    let permit = ctx.shadow.spec.permit.as_ref();
    let answered = verified.is_some_and(|request| permit.is_some_and(|permit| permit.nonce == request.nonce));
    answered && ctx.caught_up() && ctx.shadow.status.agent.state == Some(HostState::RehearsedUpdate)
}

/// Returns the node of a drill to service, and has it verified.
fn back_in_service(ctx: &Attempt<'_>) -> Turn {
    if let Some(action) = return_to_service(ctx) {
        return act(action);
    }
    let verifying = Progress { verifying_since: Some(ctx.now), ..ctx.progress.clone() };
    ctx.next_with(Step::Verifying, verifying, |status| {
        for condition in [CORDONED, DRAINED] {
            ctx.set_condition(status, condition, false, "Rehearsed", "back in service after the drill");
        }
    })
}

/// Returns the reason why the reboot of a drained node is not permitted now: another node of the control plane is out of service, or
/// a budget keeps a pod that the reboot ends. Both may have become so since the node got its slot.
fn held_back(ctx: &Attempt<'_>) -> Option<Wait> {
    if ctx.mode() != Mode::Update {
        return None;
    }
    gates::control_plane_busy(ctx).or_else(|| gates::reboot_budget(ctx, &BTreeSet::new()))
}

/// Answers the agent's request with a permit if no pod came to the node since it was drained, and nothing else holds it back.
fn answer(ctx: &Attempt<'_>, nonce: &str) -> Turn {
    let Some(sorted) = ctx.sorted_pods() else { return stay(Wait::ReadingPods) };
    let mode = ctx.mode();
    if mode == Mode::Update && ctx.permitted.is_none() && ctx.view.operator.is_some() {
        // Without the Node object, its slot alone says that the host may reboot into the version.
        return stay(ctx.view.status_write(ctx.now));
    }
    let come = sorted.left().find(|pod| !pod.terminating || mode.is_drill());
    if let Some(pod) = come.filter(|_| !mode.is_dry()) {
        let drain = ctx.drain_status().cloned().unwrap_or_default();
        let overdue = |cordoned| ctx.now >= after(cordoned, ctx.group().drain.timeout);
        let late = is_later_than_cordon(ctx, pod) || ctx.facts().claimed_since.is_some_and(overdue);
        if ctx.shadow.spec.permit.is_none() && !(late && drain.restarted) {
            // The scheduler had not observed the cordon yet, or the pod tolerates it. No permit is issued, so there
            // is time to drain it too: once, and, for as long as a drain may take, for each that was chosen for the node before its cordon.
            let restarted = drain.restarted || late;
            let drain = DrainStatus { restarted, forced_since: None, asked_first: to_ask_first(ctx, &sorted), ..drain };
            return ctx.next(Step::Draining, |status| {
                ctx.set_condition(status, DRAINED, false, "Draining", "a pod was placed here during the cordon");
                status.report.drain = Some(drain);
            });
        }
        let owner = pod.controller.as_ref();
        let owner = owner.map_or_else(|| ", which has no owner,".to_owned(), |owner| format!(" of {owner}"));
        return fail(FailureReason::PodsReturn, format!("{}{owner} came to the drained node", pod.title()));
    }
    if !mode.is_drill() && !sorted.leaving.is_empty() {
        return stay(Wait::Draining { left: sorted.leaving.len() });
    }
    if let Some(wait) = held_back(ctx) {
        return stay(wait);
    }
    let rules = ctx.group().drain.rules_at(ctx.now);
    act(Action::Permit { nonce: nonce.to_owned(), rules, pods_stay: mode.is_dry() })
}
