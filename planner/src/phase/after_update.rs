//! The wait of an updated node for its hooks. Like its verification, that of an update is not interrupted from outside. A node that is not
//! well once they have answered is verified again.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Mode, Progress, Step};
use models::time::after;

use super::boot::left_target;
use super::claim::return_to_service;
use super::comparison::blame;
use super::health::{LASTING, OTHER_CAUSES, began, counted, firing, read_owner};
use super::hooks::{deadline, still_awaited, unanswered};
use super::row::{Attempt, Outcome, Turn, act, fail, stay};
use super::unhealthy::{UnhealthyPod, pods_to_verify, unhealthy_pods};
use super::usable;
use super::verification::{after_drill, interrupted};
use super::verifying::held_cordoned;
use crate::decision::Action;
use crate::gates;
use crate::wait::Wait;

/// Awaits the hooks. The expressions are queried meanwhile, so that they have an answer by then.
pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    let questions = gates::questions(&ctx.group().after.checks, ctx.subject());
    await_hooks(ctx).querying(questions.filter(|_| !ctx.mode().is_drill()))
}

fn await_hooks(ctx: &Attempt<'_>) -> Turn {
    let ended = match ctx.mode() {
        Mode::Update => left_target(ctx),
        Mode::Drill { .. } => after_drill(ctx),
        Mode::Verification => interrupted(ctx),
    };
    let is_rebooted = ctx.facts().boot_id != ctx.progress.boot_id;
    let soon = after(ctx.progress.since, ctx.group().after.timeout);
    let is_early = matches!(ctx.mode(), Mode::Update) && !ctx.progress.soak_restarted && ctx.now <= soon;
    let is_up = ctx.facts().is_well() && !is_rebooted && ctx.progress.interrupted.is_none();
    let as_verified = ctx.mode().is_drill() || is_up;
    ended
        .or_else(|| return_to_service(ctx).map(act))
        .or_else(|| (is_early && is_rebooted).then(|| rebooted_early(ctx)))
        // A node that is not well meanwhile keeps its slot: to end its attempt now would let the next one go before the hooks allow it. The
        // failure of a hook then says less about it than a verification.
        .or_else(|| still_awaited(ctx).filter(|turn| as_verified || !matches!(turn.verdict, Outcome::Fail(..))))
        .or_else(|| as_verified.then(|| end_verified(ctx)).flatten())
        .unwrap_or_else(|| not_well(ctx, is_rebooted, soon))
}

/// Decides about a node that is not well and whose hooks are not awaited any more. Where its version is not to blame, it is verified again.
fn not_well(ctx: &Attempt<'_>, is_rebooted: bool, soon: Timestamp) -> Turn {
    // True once its hooks were asked before another verification.
    let again = ctx.progress.soak_restarted;
    // One reboot is nothing, and its pods may start slowly.
    let may_come_back = ctx.progress.interrupted.is_some_and(|boot| ctx.now < after(boot, ctx.policy.returning));
    // Hooks that are awaited again come after another verification: anything may be the cause by then.
    if !again && !may_come_back && fell_ill_early(ctx, soon) {
        return blame(ctx, FailureReason::SoakFailed, "the node did not stay well while its hooks were awaited");
    }
    // It may be rebooted again, which counts here alone.
    if ctx.progress.interrupted.is_some() && ctx.now < soon {
        return stay(Wait::Soaking { until: soon }).waking_at(soon);
    }
    // A hook that never answers makes no circle of verifications.
    let soak_restarted = again && unanswered(ctx).is_some();
    if soak_restarted && !is_rebooted {
        let message = format!("the node did not stay well while its hooks were awaited, {OTHER_CAUSES}");
        return fail(FailureReason::HealthUnknown, message);
    }
    // The soak had passed once: the node has the whole time of a verification again, in which one other boot is nothing.
    let verified =
        Progress { verifying_since: Some(ctx.now), soak_restarted, interrupted: None, ..ctx.progress.clone() };
    ctx.next_keeping_boot(Step::Verifying, verified)
}

/// Ends the attempt of a node that is up once its hooks have answered, or does what is left before that; `None` where it is not well.
fn end_verified(ctx: &Attempt<'_>) -> Option<Turn> {
    if !ctx.mode().is_drill() {
        // A new leader knows neither at first.
        let known_by = after(ctx.view.leader_since, LASTING);
        if let Some(wait) = unknown(ctx).filter(|_| ctx.now < known_by) {
            return Some(stay(wait).waking_at(known_by));
        }
        let hooks_end = deadline(ctx).unwrap_or(ctx.progress.since);
        match stays_well(ctx) {
            Ok(true) => {}
            Err(unread) if ctx.now < after(hooks_end, LASTING) => return Some(act(read_owner(ctx, unread.pod))),
            // A verification ends also where the pods of an owner cannot be read.
            Ok(false) | Err(_) => return None,
        }
    }
    if ctx.needs_release() {
        return Some(act(Action::Release));
    }
    Some(held_cordoned(ctx).unwrap_or_else(|| Turn::of(Outcome::Pass(unanswered(ctx)))))
}

/// Returns the wait for the pods and for the first answers to the expressions, while they are not known.
fn unknown(ctx: &Attempt<'_>) -> Option<Wait> {
    if pods_to_verify(ctx).is_none() {
        return Some(Wait::ReadingPods);
    }
    let quiet = gates::quiet(&ctx.group().after.checks, ctx.subject(), &ctx.view.expressions);
    quiet.err().filter(|wait| matches!(wait, Wait::ExpressionsPending { .. }))
}

/// Returns whether a node that is up is as well as it was at the end of its soak, or the pod whose owner has to be read for that.
fn stays_well<'a>(ctx: &Attempt<'a>) -> Result<bool, UnhealthyPod<'a>> {
    let Some(pods) = pods_to_verify(ctx) else { return Ok(false) };
    let mut unhealthy = unhealthy_pods(ctx, &pods);
    unhealthy.retain(|unhealthy| !unhealthy.pod.is_coming_up(ctx.now));
    // What was read while the hooks are awaited is not read again: the reads of several owners may take long.
    let counted = counted(ctx, &unhealthy, ctx.progress.since)?;
    Ok(counted.is_empty() && firing(ctx).is_empty() && usable::missing(ctx).is_empty())
}

/// Records that a node is in another boot soon after its soak. Once is nothing: it is verified again. A second time counts, unless others
/// are ill too.
fn rebooted_early(ctx: &Attempt<'_>) -> Turn {
    if ctx.progress.interrupted.is_some() && ctx.survey.unwell.open().is_none() {
        return blame(ctx, FailureReason::SoakFailed, "the node did not stay Ready in one boot");
    }
    let (boot_id, interrupted) = (ctx.facts().boot_id.clone(), Some(ctx.now));
    let mut status = ctx.controller_status();
    status.report.progress = Some(Progress { boot_id, interrupted, ..ctx.progress.clone() });
    act(Action::Status { status: Box::new(status), note: None })
}

/// Returns whether an updated node is not well since soon after its soak, and has not been for a while. Later than that anything may be the
/// cause.
fn fell_ill_early(ctx: &Attempt<'_>, soon: Timestamp) -> bool {
    let is_early = |began: Timestamp| began <= soon && after(began, LASTING) <= ctx.now;
    matches!(ctx.mode(), Mode::Update) && began(ctx.facts()).is_some_and(is_early)
}
