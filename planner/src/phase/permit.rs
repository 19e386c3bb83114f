//! The permit: the desired state to reboot, the agent's request, the check of the node, and the wait for the reboot.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Armed, DRAINED, DrainStatus, HostState, Progress, Step};

use super::claim::claim_due;
use super::desired::desired_state;
use super::fail::{ended_from_outside, fail};
use super::returning::{after_reboot, is_activated};
use super::status::go_to;
use crate::decision::{Action, Decision};
use crate::survey::NodeContext;
use crate::wait::Wait;

/// Returns when the reboot is given up.
pub(super) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Timestamp {
    ctx.deadline(progress.since, ctx.policy.reboot)
}

/// Requires the reboot of a drained node, answers its agent, and waits for the host to go down.
pub(super) fn decide(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    let spec = &ctx.shadow.spec;
    if ctx.facts().boot_id != progress.boot_id {
        return after_reboot(ctx, progress);
    }
    if let Some((reason, message)) = ctx.agent_failure(progress.attempt) {
        return fail(ctx, progress, reason, message);
    }
    if spec.permit.is_none()
        && let Some(decision) = ended_from_outside(ctx, progress)
    {
        return decision;
    }
    if spec.attempt != progress.attempt || spec.state == HostState::Idle {
        return fail(ctx, progress, FailureReason::ProgressLost, "the desired state does not belong to this attempt");
    }
    let deadline = deadline(ctx, progress);
    if ctx.now >= deadline {
        if is_activated(ctx, progress) && !ctx.facts().ready {
            // Armed, rebooted, and not seen since: an image that breaks the host's network looks just like this.
            let message = "the node has not been seen since its image was armed";
            return fail(ctx, progress, FailureReason::NotReadyAfterBoot, message);
        }
        let reason = if spec.permit.is_some() { FailureReason::RebootTimedOut } else { FailureReason::AgentSilent };
        return fail(ctx, progress, reason, "the host did not reboot in time");
    }
    // An agent that was restarted after it had armed the host also requests a permit, for the reboot alone.
    if let Some(claim) = claim_due(ctx, progress) {
        // Uncordoned during the attempt: pods that the scheduler placed here since would be lost.
        return claim.watching_pods().waking_at(deadline);
    }
    if spec.state == HostState::StagedUpdate {
        return Decision::act(desired_state(ctx, HostState::RebootedIntoUpdate, progress)).watching_pods();
    }
    let decision = match permit_request(ctx) {
        Some(armed) if spec.permit.as_ref().is_none_or(|permit| permit.nonce != armed.nonce) => {
            answer_request(ctx, progress, &armed.nonce)
        }
        _ if spec.permit.is_some() => Decision::wait(Wait::AwaitingReboot),
        _ => Decision::wait(Wait::AwaitingAgent),
    };
    decision.watching_pods().waking_at(deadline)
}

/// The agent's permit request, if it belongs to the current desired state and to the node's current boot.
pub(super) fn permit_request<'a>(ctx: &NodeContext<'a>) -> Option<&'a Armed> {
    let spec = &ctx.shadow.spec;
    ctx.shadow.status.agent.armed.as_ref().filter(|armed| {
        armed.attempt == spec.attempt
            && spec.boot_id.as_ref() == Some(&armed.boot_id)
            && armed.boot_id == ctx.facts().boot_id
            && spec.version.as_ref() == Some(&armed.version)
    })
}

/// Answers the agent's request with a permit if no pod came to the node since it was drained.
fn answer_request(ctx: &NodeContext<'_>, progress: &Progress, nonce: &str) -> Decision {
    let Some(sorted) = ctx.sorted_pods() else { return Decision::wait(Wait::ReadingPods) };
    if let Some(pod) = sorted.left().find(|pod| !pod.terminating) {
        let drain = ctx.drain_status().cloned().unwrap_or_default();
        if ctx.shadow.spec.permit.is_none() && !drain.restarted {
            // The scheduler had not observed the cordon yet, or the pod tolerates it. No permit is issued, so there
            // is time to drain it too, once.
            return Decision::act(go_to(ctx, progress, Step::Draining, |status| {
                ctx.set_condition(status, DRAINED, false, "Draining", "a pod was placed here during the cordon");
                status.report.drain = Some(DrainStatus { restarted: true, ..drain });
            }));
        }
        let message = format!("{} came to the drained node", pod.title());
        return fail(ctx, progress, FailureReason::PodsReturn, &message);
    }
    if !sorted.leaving.is_empty() {
        return Decision::wait(Wait::Draining { left: sorted.leaving.len() });
    }
    Decision::act(Action::Permit {
        nonce: nonce.to_owned(),
        rules: ctx.group().drain.rules_at(ctx.now),
        pods_stay: false,
    })
}
