//! Hooks: other controllers are asked by an annotation on the Node, before the drain and after the update, and answer by
//! another one. The end of the attempt, for any reason, removes the request.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Place, Progress, Step};

use super::row::{Attempt, Awaited, Turn, act, fail, stay};
use crate::decision::{Action, Decision, Note, Verdict};
use crate::hooks::{self, HookAnswer};
use crate::policy::{HookWait, Policy};
use crate::wait::Wait;

/// The hooks that are awaited before a drain.
pub(super) const BEFORE_DRAIN: Awaited = |hook| hook.before;

/// The hooks that are awaited after an update.
pub(super) const AFTER_UPDATE: Awaited = |hook| hook.after;

/// Returns the hooks that are awaited, with their limits.
pub(super) fn awaited(policy: &Policy, asks: Awaited) -> impl Iterator<Item = (&str, HookWait)> {
    policy.hooks.iter().filter_map(move |hook| Some((hook.name.as_str(), asks(hook)?)))
}

/// Returns when the last of the hooks is no longer waited for.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Option<Timestamp> {
    awaited(ctx.policy, ctx.phase.hooks?).map(|(_, wait)| deadline_of(ctx, wait)).max()
}

/// Returns when a hook is no longer waited for. A change of the policy begins its time again: it may have added the hook, or
/// made the time shorter.
fn deadline_of(ctx: &Attempt<'_>, wait: HookWait) -> Timestamp {
    let began = ctx.progress.since;
    let since = ctx.policy_changed().map_or(began, |changed| changed.max(began));
    ctx.deadline(since, wait.timeout)
}

/// Returns the request to the hooks in a step of this attempt.
pub(super) fn request_of(ctx: &Attempt<'_>, step: Step) -> Option<String> {
    hooks::request(&Progress { step, ..ctx.progress.clone() })
}

/// Sets the request of a drained node again if another client has removed it: to a hook, its removal means that the attempt is
/// over. An answer to it shows that a hook was asked.
pub(super) fn with_request(ctx: &Attempt<'_>, decision: Decision) -> Decision {
    let between = matches!(ctx.phase.step.place(), Place::Leaving | Place::Away | Place::Booted | Place::Back);
    if !between || ctx.phase.hooks.is_some() || !matches!(decision.verdict, Verdict::Wait(_)) {
        return decision;
    }
    let facts = ctx.facts();
    // A node that is verified again after its hooks have answered keeps their last request.
    let requests = [Step::AfterUpdate, Step::BeforeDrain].map(|step| request_of(ctx, step));
    if requests.contains(&facts.hook_request) {
        return decision;
    }
    match requests.into_iter().flatten().find(|request| hooks::was_read(&facts.hook_answers, request)) {
        Some(request) => Decision { verdict: Verdict::Act(Action::Hook { request: Some(request) }), ..decision },
        None => decision,
    }
}

/// Sets the request and checks the answers. Returns what is left to do, or the failure of the attempt; `None` once no answer
/// is waited for any more.
pub(super) fn still_awaited(ctx: &Attempt<'_>) -> Option<Turn> {
    let request = hooks::request(ctx.progress)?;
    let mut open = Vec::new();
    let mut until: Option<Timestamp> = None;
    for (name, wait) in awaited(ctx.policy, ctx.phase.hooks?) {
        let deadline = deadline_of(ctx, wait);
        match hooks::answer(&ctx.facts().hook_answers, name, &request) {
            HookAnswer::Done => {}
            HookAnswer::Refused(reason) => {
                let message = format!("hook {name} refused the request {request}: {reason}");
                return Some(fail(FailureReason::HookRefused, message));
            }
            HookAnswer::Missing if ctx.now < deadline => {
                open.push(name.to_owned());
                until = Some(until.map_or(deadline, |until| until.min(deadline)));
            }
            HookAnswer::Missing if wait.continues => {}
            HookAnswer::Missing if ctx.facts().hook_request.as_ref() != Some(&request) => {
                return Some(not_asked(ctx, &request));
            }
            HookAnswer::Missing => {
                let message = format!("hook {name} has not answered the request {request} by {deadline:.0}");
                return Some(fail(FailureReason::HookTimedOut, message));
            }
        }
    }
    let until = until?;
    let decision = if ctx.facts().hook_request.as_ref() == Some(&request) {
        stay(Wait::AwaitingHook { hooks: open, request, until })
    } else {
        act(Action::Hook { request: Some(request) })
    };
    Some(decision.waking_at(until))
}

/// Returns the end of an attempt whose request is not on the Node: its hooks are not to blame for the missing answer.
fn not_asked(ctx: &Attempt<'_>, request: &str) -> Turn {
    let message = format!("the request {request} was not on the Node at the deadline: see the controller's log");
    let drains = ctx.phase.step == Step::BeforeDrain;
    fail(if drains { FailureReason::DrainTimedOut } else { FailureReason::HookTimedOut }, message)
}

/// The Event about the hooks without whose answer the attempt goes on, if there are any.
pub(super) fn unanswered(ctx: &Attempt<'_>) -> Option<Note> {
    let request = hooks::request(ctx.progress)?;
    let missing = |name: &&str| hooks::answer(&ctx.facts().hook_answers, name, &request) == HookAnswer::Missing;
    let late: Vec<&str> = awaited(ctx.policy, ctx.phase.hooks?).map(|(name, _)| name).filter(missing).collect();
    (!late.is_empty()).then(|| Note {
        warning: true,
        reason: FailureReason::HookTimedOut.as_str(),
        message: format!("going on without an answer of hook(s) {} to the request {request}", late.join(", ")),
    })
}
