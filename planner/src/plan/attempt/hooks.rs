//! Hooks: other controllers are asked by an annotation on the Node, before the drain and after the update, and answer by
//! another one. The end of the attempt, for any reason, removes the request.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Progress, Step};

use super::claim::{begin_drain, claim_due, ended_during_drain};
use super::fail::{ended_from_outside, fail};
use super::verify;
use crate::hooks::{self, HookAnswer};
use crate::plan::context::NodeContext;
use crate::plan::{Action, Decision, Note, Wait};
use crate::policy::{Hook, HookWait, Policy};

/// Returns the hooks that this step awaits, with their limits.
pub(super) fn awaited(policy: &Policy, step: Step) -> impl Iterator<Item = (&str, HookWait)> {
    let wait = move |hook: &Hook| match step {
        Step::BeforeDrain => hook.before,
        Step::AfterUpdate => hook.after,
        _ => None,
    };
    policy.hooks.iter().filter_map(move |hook| Some((hook.name.as_str(), wait(hook)?)))
}

/// Returns when the last of the hooks is no longer waited for.
pub(super) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Timestamp> {
    awaited(ctx.policy, progress.step).map(|(_, wait)| ctx.deadline(progress.since, wait.timeout)).max()
}

/// Awaits the hooks of a claimed node, and begins its drain.
pub(super) fn before_drain(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if let Some(decision) = ended_during_drain(ctx, progress) {
        return decision;
    }
    if let Some(deadline) = deadline(ctx, progress).filter(|deadline| ctx.now < *deadline)
        && let Some(claim) = claim_due(ctx, progress)
    {
        return claim.waking_at(deadline);
    }
    still_awaited(ctx, progress)
        .unwrap_or_else(|| Decision::act(with_note(begin_drain(ctx, progress), unanswered(ctx, progress))))
}

/// Awaits the hooks of an updated node, and ends its attempt. Like its verification, that of an update is not interrupted
/// from outside.
pub(super) fn after_update(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if progress.drill.is_some()
        && let Some(decision) = ended_from_outside(ctx, progress)
    {
        return decision;
    }
    if ctx.needs_release() {
        return Decision::act(Action::Release);
    }
    still_awaited(ctx, progress).unwrap_or_else(|| verify::record(ctx, progress))
}

/// Sets the request and checks the answers. Returns what is left to do, or the failure of the attempt; `None` once no answer
/// is waited for any more.
fn still_awaited(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Decision> {
    let request = hooks::request(progress)?;
    let mut open = Vec::new();
    let mut until: Option<Timestamp> = None;
    for (name, wait) in awaited(ctx.policy, progress.step) {
        let deadline = ctx.deadline(progress.since, wait.timeout);
        match hooks::answer(&ctx.facts().hook_answers, name, &request) {
            HookAnswer::Done => {}
            HookAnswer::Refused(reason) => {
                let message = format!("hook {name} refused the request {request}: {reason}");
                return Some(fail(ctx, progress, FailureReason::HookRefused, &message));
            }
            HookAnswer::Missing if ctx.now < deadline => {
                open.push(name.to_owned());
                until = Some(until.map_or(deadline, |until| until.min(deadline)));
            }
            HookAnswer::Missing if wait.continues => {}
            HookAnswer::Missing => {
                let message = format!("hook {name} has not answered the request {request} by {deadline:.0}");
                return Some(fail(ctx, progress, FailureReason::HookTimedOut, &message));
            }
        }
    }
    let until = until?;
    let decision = if ctx.facts().hook_request.as_ref() == Some(&request) {
        Decision::wait(Wait::AwaitingHook { hooks: open, request, until })
    } else {
        Decision::act(Action::Hook { request: Some(request) })
    };
    Some(decision.waking_at(until))
}

/// The Event about the hooks without whose answer the attempt goes on, if there are any.
fn unanswered(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Note> {
    let request = hooks::request(progress)?;
    let missing = |name: &&str| hooks::answer(&ctx.facts().hook_answers, name, &request) == HookAnswer::Missing;
    let late: Vec<&str> = awaited(ctx.policy, progress.step).map(|(name, _)| name).filter(missing).collect();
    (!late.is_empty()).then(|| Note {
        warning: true,
        reason: FailureReason::HookTimedOut.as_str(),
        message: format!("going on without an answer of hook(s) {} to the request {request}", late.join(", ")),
    })
}

/// Adds an Event to a write of the status.
fn with_note(action: Action, note: Option<Note>) -> Action {
    match action {
        Action::Status { status, note: other } => Action::Status { status, note: note.or(other) },
        action => action,
    }
}
