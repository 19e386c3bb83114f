//! A node without an attempt: whatever an interrupted one has left is cleaned up before another one may begin. Its
//! beginning disrupts nothing.

use models::shadow::{Drill, HistoryPosition, HostState, Progress, Step};
use semver::Version;

use super::desired::{has_host_settings, withdraw};
use super::down::down_by;
use super::requests::acknowledged;
use super::status::{forget_claim, unblock, with_blocked_condition};
use super::{drill_request, verification};
use crate::decision::{Action, Decision, Note, Verdict};
use crate::gates;
use crate::survey::{NodeContext, ended, key};
use crate::wait::Wait;

/// Returns the attempt of a desired state without a record of it, to be withdrawn like a failed one.
pub(super) fn lost(ctx: &NodeContext<'_>) -> Option<Progress> {
    let spec = &ctx.shadow.spec;
    if spec.state == HostState::Idle {
        return None;
    }
    let (version, boot_id) = (spec.version.as_ref()?, spec.boot_id.clone()?);
    let rehearsed = spec.state == HostState::RehearsedUpdate;
    Some(Progress {
        boot_id,
        permit_issued: spec.permit.is_some() && !rehearsed,
        drill: rehearsed.then(|| Drill::of(&acknowledged(ctx).drill.unwrap_or_default())),
        disruptive: ctx.slot || ctx.facts().claimed(),
        ..ctx.new_progress(Step::Releasing, spec.attempt, version)
    })
}

/// Goes on with the attempt that the node's slot records, and its shadow does not: its Node object was deleted after the permit, and
/// its shadow with it, and its machine is registered again in another boot. The agent confirms that it is a host of this kind. In the
/// same boot nothing begins there until the machine would be back.
pub(super) fn continued(ctx: &NodeContext<'_>) -> Option<Decision> {
    let slot = ctx.permitted?;
    let until = ended::kept_until(ctx.view, ctx.policy, slot).filter(|until| *until > ctx.now)?;
    let wait = |wait| with_blocked_condition(ctx, Decision::wait(wait).waking_at(until));
    let Some(update) = ended::to_continue(ctx.node, slot) else {
        // Its machine may be on its way down, also while it is Ready.
        let is_down_by = || gates::not_ready(ctx).unwrap_or(Wait::DisarmPending);
        return (!ctx.facts().claimed()).then(|| wait(is_down_by()));
    };
    if let Some(silent) = gates::no_report(ctx) {
        return Some(wait(silent));
    }
    if key::kind(ctx.node) != (update.variant.as_str(), update.arch.as_str()) {
        return None;
    }
    let mut status = ctx.controller_status();
    let place = ctx.place(&update.version);
    status.report.progress = Some(Progress {
        // That in which its reboot was permitted shows that it is in another one.
        boot_id: update.boot_id.clone(),
        from: None,
        started: slot.since,
        disruptive: true,
        rollout: Some(HistoryPosition { boot_id: update.boot_id.clone(), drain_started: Some(slot.since), ..place }),
        ..ctx.new_progress(Step::Returning, update.attempt, &update.version)
    });
    unblock(&mut status);
    let message = format!(
        "the Node was deleted and registered again while its machine rebooted: attempt {} to {} goes on",
        update.attempt, update.version
    );
    let note = Note { warning: false, reason: "UpdateContinued", message };
    Some(Decision::act(Action::Status { status: Box::new(status), note: Some(note) }))
}

/// Cleans up after an interrupted attempt if nothing is under way, else checks if a new one may begin.
pub(super) fn decide(ctx: &NodeContext<'_>) -> Decision {
    if ctx.shadow.spec.state != HostState::Idle {
        return Decision::act(withdraw(ctx));
    }
    // Of an attempt that has ended, or whose record is gone. While the host may still reboot, hooks keep what they have set.
    if ctx.facts().hook_request.is_some() && (!ctx.facts().claimed() || ctx.facts().held()) {
        return Decision::act(Action::Hook { request: None });
    }
    // A held node in service keeps nothing.
    if ctx.facts().claimed()
        && !ctx.needs_release()
        && let Some(wait) = gates::held(ctx)
    {
        if ctx.shadow.pending_drill().is_some() {
            return drill_request::refuse_request(ctx, &wait);
        }
        // A held node stays out of service until the user removes the hold; its host's settings are restored.
        if !has_host_settings(ctx) {
            return Decision::act(withdraw(ctx));
        }
        return with_blocked_condition(ctx, Decision::wait(wait));
    }
    if ctx.facts().claimed() {
        // A claim without an attempt, for example from a shadow that was deleted or whose record a client removed,
        // or one that a user's hold has kept. An issued permit is not known any more, nor to an agent that was
        // restarted: the longest time that a host can take to go down has to pass, and a shutdown may take longer.
        let certain = down_by(ctx, None);
        if ctx.now >= certain {
            return match gates::not_ready(ctx) {
                None => Decision::act(Action::Release),
                Some(wait) => with_blocked_condition(ctx, Decision::wait(wait)),
            };
        }
        return with_blocked_condition(ctx, Decision::wait(Wait::DisarmPending).waking_at(certain));
    }
    if ctx.drain_status().is_some() {
        let mut status = ctx.controller_status();
        forget_claim(ctx, &mut status);
        return Decision::act(Action::Status { status: Box::new(status), note: None });
    }
    if !has_host_settings(ctx) {
        // The host gets the policy's settings before anything begins: an attempt keeps those that it began with.
        return Decision::act(withdraw(ctx));
    }
    let begun = verification::begin(ctx).or_else(|| drill_request::begin(ctx));
    let decision = with_blocked_condition(ctx, begun.unwrap_or_else(|| check_begin(ctx)));
    match gates::verification::unproven(ctx).map(|_| gates::verification::due(ctx)) {
        Some(due) if due > ctx.now => decision.waking_at(due),
        _ => decision,
    }
}

/// Checks that an attempt may begin.
fn check_begin(ctx: &NodeContext<'_>) -> Decision {
    match (gates::begin(ctx), ctx.version()) {
        (Some(wait), _) | (None, Err(wait)) => Decision::wait(wait),
        // The slot of the attempt that has ended is about to be removed: another one waits for its own.
        (None, Ok(_)) if ctx.slot => Decision::wait(ctx.view.status_write(ctx.now)),
        (None, Ok(version)) => Decision::of(Verdict::Candidate(version.clone())),
    }
}

/// The first write of an attempt. The desired state follows once it is recorded.
pub(crate) fn begin(ctx: &NodeContext<'_>, version: &Version) -> Action {
    let mut status = ctx.controller_status();
    let attempt = ctx.last_attempt().saturating_add(1);
    status.report.progress = Some(ctx.new_progress(Step::Staging, attempt, version));
    status.report.drain = None;
    unblock(&mut status);
    Action::Status { status: Box::new(status), note: None }
}

#[cfg(test)]
mod tests {
    use models::shadow::Permit;

    use super::*;
    use crate::fixtures::NEW;
    use crate::gates::testing::refusal_of;

    #[test]
    fn desired_state_without_a_record_is_an_attempt_in_the_boot_of_that_state() {
        for (sentence, state, permitted, permit_issued, is_drill) in [
            ("an update", HostState::StagedUpdate, false, false, false),
            ("an update with a permit", HostState::RebootedIntoUpdate, true, true, false),
            ("a drill, by whose permit no host reboots", HostState::RehearsedUpdate, true, false, true),
        ] {
            let found = refusal_of(lost, |view, _| {
                let spec = &mut view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().spec;
                (spec.state, spec.version, spec.boot_id) = (state, Some(NEW), Some("b0".into()));
                spec.permit = permitted.then(|| Permit { nonce: "n".into(), jws: "j".into() });
            });
            let found = found.unwrap();
            assert_eq!(found.boot_id, "b0", "{sentence}");
            assert_eq!((found.permit_issued, found.drill.is_some()), (permit_issued, is_drill), "{sentence}");
        }
        assert_eq!(refusal_of(lost, |_, _| {}), None, "no desired state");
    }
}
