//! Decisions about a node without a slot that the download and the wait after it have in common. They disrupt nothing.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{HostState, Mode};

use super::desired::desired_state;
use super::end::{ended_by_host, ended_from_outside, timed_out};
use super::permits::rehearsal_request;
use super::row::{Attempt, Outcome, Turn, act, fail, stay};
use super::start::start_drain;
use crate::gates;
use crate::survey::want;
use crate::wait::Wait;

/// Returns when the staging is given up.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Timestamp {
    ctx.deadline(ctx.progress.since, ctx.policy.stage)
}

/// Returns when the step is given up; `None` for an update whose image is there: it waits without a limit.
pub(super) fn given_up_at(ctx: &Attempt<'_>) -> Option<Timestamp> {
    let has_image = ctx.mode() == Mode::Update && ctx.is_staged();
    (!has_image).then(|| deadline(ctx))
}

/// Returns whether the desired state is that the image is staged, and it is not.
pub(super) fn lacks_image(ctx: &Attempt<'_>) -> bool {
    ctx.shadow.spec.state == HostState::StagedUpdate && !ctx.is_staged()
}

/// Returns the end of the attempt, or the desired state that it begins with.
pub(super) fn ended_or_ordered(ctx: &Attempt<'_>) -> Option<Turn> {
    let (spec, progress) = (&ctx.shadow.spec, ctx.progress);
    if let Some(turn) = ended_from_outside(ctx) {
        return Some(turn);
    }
    let downloads = ctx.mode().downloads();
    // A host that has its image keeps it, as in a blackout: its node waits.
    let keeps = ctx.mode() == Mode::Update && ctx.is_staged() && spec.attempt == progress.attempt;
    if !ctx.policy.enabled && !ctx.slot && !keeps {
        return Some(fail(FailureReason::Disabled, "updates were disabled"));
    }
    if downloads && let Some(turn) = no_longer_wanted(ctx) {
        return Some(turn);
    }
    let drill = ctx.mode().is_drill();
    if drill && ctx.facts().boot_id != progress.boot_id {
        return Some(fail(FailureReason::RebootedByOther, "the node was rebooted during the drill"));
    }
    if let Some(turn) = ended_by_host(ctx) {
        return Some(turn);
    }
    if spec.attempt < progress.attempt {
        // A drill rehearses before anything is disrupted: an agent that does not know drills reports so then.
        let first = if downloads { HostState::StagedUpdate } else { HostState::RehearsedUpdate };
        return Some(act(desired_state(ctx, first)));
    }
    let staged = downloads && spec.state == HostState::StagedUpdate;
    if spec.attempt != progress.attempt || !(staged || (drill && spec.state == HostState::RehearsedUpdate)) {
        return Some(fail(FailureReason::ProgressLost, "the desired state does not belong to this attempt"));
    }
    if drill {
        return None;
    }
    if ctx.has_reported() && ctx.shadow.status.agent.current_version.as_ref() == Some(&progress.version) {
        return Some(fail(FailureReason::UpdatedByOther, "the host runs the version already"));
    }
    // Rebooted by another client while nothing was disrupted: the same attempt continues in the new boot.
    (!ctx.desired_in_this_boot()).then(|| act(desired_state(ctx, HostState::StagedUpdate)))
}

/// Begins the drain of a node that passes its gates and has a slot.
pub(super) fn asks_for_slot(ctx: &Attempt<'_>) -> Turn {
    if ctx.mode().is_drill() {
        if ctx.shadow.spec.state == HostState::StagedUpdate {
            return act(desired_state(ctx, HostState::RehearsedUpdate));
        }
        if rehearsal_request(ctx).is_none() {
            let deadline = deadline(ctx);
            if ctx.now < deadline {
                return stay(Wait::AwaitingAgent).waking_at(deadline);
            }
            let message =
                "no permit was requested in time: the agent does not answer, or it or the web API does not know drills";
            return timed_out(ctx, FailureReason::AgentSilent, message);
        }
    }
    if let Some(refused) = gates::start(ctx) {
        return Turn::of(Outcome::Refuse(refused));
    }
    if !ctx.slot {
        return Turn::of(Outcome::WantsSlot);
    }
    // Another one may have become NotReady since the slot was given.
    gates::control_plane_busy(ctx).map_or_else(|| start_drain(ctx), |wait| Turn::of(Outcome::Refuse(wait)))
}

/// Returns the end of an attempt whose version policy or the host has given up before the drain.
fn no_longer_wanted(ctx: &Attempt<'_>) -> Option<Turn> {
    if let Some(message) = ctx.host().no_longer(&ctx.progress.version) {
        return Some(fail(FailureReason::PolicyChanged, message));
    }
    if let Some(message) = passed_over(ctx) {
        return Some(fail(FailureReason::Superseded, message));
    }
    let wanted = ctx.node.want.as_ref().map(|want| &want.version);
    let message =
        wanted.and_then(|wanted| want::superseded(&ctx.shadow.status.agent, &ctx.progress.version, wanted))?;
    Some(fail(FailureReason::Superseded, message))
}

/// Returns that the host has chosen another version than that of the attempt, as its agent reports it, if policy refuses that one and has not had
/// the host locked yet. A host that has not refreshed since a release still shows the version before it.
fn passed_over(ctx: &Attempt<'_>) -> Option<String> {
    let version = &ctx.progress.version;
    let (reason, _) = ctx.agent_failure(ctx.progress)?;
    let is_other = matches!(reason, FailureReason::VersionNotOffered | FailureReason::WrongImageStaged);
    let wanted = ctx.node.want.as_ref().map(|want| &want.version);
    let is_next = matches!(wanted, Some(Err(Wait::Pinning { version: next })) if next == version);
    let is_locked = ctx.shadow.spec.host.as_ref().is_some_and(|host| host.version_lock.is_some());
    let message = || {
        format!("the host chose another version, which policy refuses; it is locked to {version} for the next attempt")
    };
    (is_other && is_next && !is_locked).then(message)
}
