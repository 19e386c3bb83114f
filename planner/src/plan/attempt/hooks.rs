//! Hooks: other controllers are asked by an annotation on the Node, before the drain and after the update, and answer by
//! another one. The end of the attempt, for any reason, removes the request.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Progress, Step};

use super::claim::{begin_drain, claim_due, ended_during_drain};
use super::fail::{ended_from_outside, fail};
use super::{drill, verify};
use crate::hooks::{self, HookAnswer};
use crate::plan::context::NodeContext;
use crate::plan::{Action, Decision, Note, Verdict, Wait, gates};
use crate::policy::{Hook, HookWait, Policy};
use models::time::after;

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
    awaited(ctx.policy, progress.step).map(|(_, wait)| deadline_of(ctx, progress, wait)).max()
}

/// Returns when a hook is no longer waited for. A change of the policy begins its time again: it may have added the hook, or
/// made the time shorter.
fn deadline_of(ctx: &NodeContext<'_>, progress: &Progress, wait: HookWait) -> Timestamp {
    let changed = ctx.view.operator.as_ref().and_then(|operator| operator.spec_changed);
    let since = changed.map_or(progress.since, |changed| changed.min(ctx.now).max(progress.since));
    ctx.deadline(since, wait.timeout)
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
    still_awaited(ctx, progress).unwrap_or_else(|| checked_again(ctx, progress))
}

/// Begins the drain if the node still passes the gates that it had passed before its hooks were asked; returns it to service
/// otherwise.
fn checked_again(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    let until = after(deadline(ctx, progress).unwrap_or(progress.since), ctx.group().drain.timeout);
    match gates::after_hooks(ctx) {
        None => Decision::act(with_note(begin_drain(ctx, progress), unanswered(ctx, progress))),
        Some(gates::Obstacle::Unknown(wait)) if ctx.now < until => {
            let queries = gates::queries(&ctx.group().before.expressions, &ctx.facts().name);
            Decision::wait(wait).querying(queries).waking_at(until)
        }
        Some(gates::Obstacle::Unknown(refused) | gates::Obstacle::Refused(refused)) => match &progress.drill {
            Some(drill) => drill::refuse(ctx, progress, drill, &refused),
            None => fail(ctx, progress, FailureReason::GateRefused, &refused.to_string()),
        },
    }
}

/// Sets the request of a drained node again if another client has removed it: to a hook, its removal means that the attempt is
/// over. An answer to it shows that a hook was asked.
pub(super) fn with_request(ctx: &NodeContext<'_>, progress: &Progress, decision: Decision) -> Decision {
    let keeps_request = matches!(
        progress.step,
        Step::LeavingLoadBalancer
            | Step::Draining
            | Step::RehearsingDrain
            | Step::Rebooting
            | Step::RehearsingReboot
            | Step::Returning
            | Step::Verifying
    );
    if !keeps_request || !matches!(decision.verdict, Verdict::Wait(_)) {
        return decision;
    }
    let Some(request) = hooks::request(&Progress { step: Step::BeforeDrain, ..progress.clone() }) else {
        return decision;
    };
    let facts = ctx.facts();
    if facts.hook_request.as_ref() == Some(&request) || !hooks::was_read(&facts.hook_answers, &request) {
        return decision;
    }
    Decision { verdict: Verdict::Act(Action::Hook { request: Some(request) }), ..decision }
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
    still_awaited(ctx, progress).unwrap_or_else(|| match verify::record(ctx, progress) {
        Decision { verdict: Verdict::Act(action), .. } => Decision::act(with_note(action, unanswered(ctx, progress))),
        decision => decision,
    })
}

/// Sets the request and checks the answers. Returns what is left to do, or the failure of the attempt; `None` once no answer
/// is waited for any more.
fn still_awaited(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Decision> {
    let request = hooks::request(progress)?;
    let mut open = Vec::new();
    let mut until: Option<Timestamp> = None;
    for (name, wait) in awaited(ctx.policy, progress.step) {
        let deadline = deadline_of(ctx, progress, wait);
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

/// Adds an Event to a write of the status. One that it has keeps its reason, and gets the text too.
fn with_note(action: Action, note: Option<Note>) -> Action {
    match (action, note) {
        (Action::Status { status, note: Some(own) }, Some(note)) => {
            let message = format!("{}; {}", own.message, note.message);
            Action::Status { status, note: Some(Note { warning: true, message, ..own }) }
        }
        (Action::Status { status, note: None }, note) => Action::Status { status, note },
        (action, _) => action,
    }
}
