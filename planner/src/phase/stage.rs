//! Staging, and the wait of a staged node for its turn. Both disrupt nothing.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{HostState, Progress, Step};

use super::claim::start_drain;
use super::desired::desired_state;
use super::drill;
use super::fail::{ended_from_outside, fail};
use super::status::{go_to, waiting_in_turn, with_blocked_condition};
use crate::decision::{Decision, Verdict};
use crate::gates;
use crate::survey::NodeContext;
use crate::survey::want;
use crate::wait::Wait;

/// Returns when the staging is given up.
pub(super) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Timestamp {
    ctx.deadline(progress.since, ctx.policy.stage)
}

/// Has the image staged, then waits for a slot.
pub(super) fn decide(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    let spec = &ctx.shadow.spec;
    if let Some(decision) = ended_from_outside(ctx, progress) {
        return decision;
    }
    if !ctx.policy.enabled && !ctx.slot {
        return fail(ctx, progress, FailureReason::Disabled, "updates were disabled");
    }
    let agent = &ctx.shadow.status.agent;
    if let Some(decision) = no_longer_wanted(ctx, progress) {
        return decision;
    }
    if spec.attempt < progress.attempt {
        return Decision::act(desired_state(ctx, HostState::StagedUpdate, progress));
    }
    if spec.attempt != progress.attempt || spec.state != HostState::StagedUpdate {
        return fail(ctx, progress, FailureReason::ProgressLost, "the desired state does not belong to this attempt");
    }
    if let Some((reason, message)) = ctx.agent_failure(progress.attempt) {
        return fail(ctx, progress, reason, message);
    }
    if ctx.has_reported() && agent.current_version.as_ref() == Some(&progress.version) {
        return fail(ctx, progress, FailureReason::UpdatedByOther, "the host runs the version already");
    }
    if !ctx.desired_in_this_boot() {
        // Rebooted by another client while nothing was disrupted: the same attempt continues in the new boot.
        return Decision::act(desired_state(ctx, HostState::StagedUpdate, progress));
    }
    if !ctx.is_staged() {
        if progress.step == Step::Staged {
            return Decision::act(go_to(ctx, progress, Step::Staging, |_| {}));
        }
        let deadline = deadline(ctx, progress);
        if ctx.now >= deadline {
            return fail(ctx, progress, FailureReason::StageTimedOut, "the host did not stage the image in time");
        }
        return Decision::wait(Wait::Staging).waking_at(deadline);
    }
    if let Some(wait) = gates::start(ctx) {
        return waiting_staged(ctx, progress, wait, true);
    }
    if ctx.slot {
        return start_drain(ctx, progress);
    }
    Decision { verdict: Verdict::WantsSlot, ..Decision::default() }
}

/// Returns the end of an attempt whose version policy or the host has given up before the drain.
pub(super) fn no_longer_wanted(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Decision> {
    let agent = &ctx.shadow.status.agent;
    let host = want::Host { policy: ctx.policy, known: &ctx.survey.known, agent, now: ctx.now };
    if let Some(message) = host.no_longer(&progress.version).filter(|_| !ctx.slot) {
        return Some(fail(ctx, progress, FailureReason::PolicyChanged, &message));
    }
    let wanted = ctx.node.want.as_ref().map(|want| &want.version);
    let message = wanted.and_then(|wanted| want::superseded(agent, &progress.version, wanted))?;
    Some(fail(ctx, progress, FailureReason::Superseded, &message))
}

/// Records the reason why a staged node waits, once. The findings of the last check stay until the next one:
/// `checked` is true if this was one.
pub(crate) fn waiting_staged(ctx: &NodeContext<'_>, progress: &Progress, wait: Wait, checked: bool) -> Decision {
    if let Some(drill) = progress.drill.as_ref().filter(|_| checked && wait.reason().is_check_finding()) {
        return drill::refuse(ctx, progress, drill, &wait);
    }
    if progress.step == Step::Staging {
        return Decision::act(go_to(ctx, progress, Step::Staged, |_| {}));
    }
    if checked { with_blocked_condition(ctx, Decision::wait(wait)) } else { waiting_in_turn(ctx, wait) }
}
