//! The verification: the node, its pods and the expressions have to stay healthy for the soak.

use models::reason::FailureReason;
use models::shadow::{HostState, Mode, Progress, Step};

use super::boot::{is_desired, left_target};
use super::claim::{protect, return_to_service};
use super::desired::withdraw;
use super::health::{blame_first, check_health, was_verified};
use super::hooks::{AFTER_UPDATE, awaited};
use super::row::{Attempt, Outcome, Turn, act, fail};
use super::verification::{after_drill, interrupted};
use crate::decision::Action;
use crate::gates;

/// Verifies a node that is back in service.
pub(super) fn decide(ctx: &Attempt<'_>) -> Turn {
    let ended = match ctx.mode() {
        Mode::Update => None,
        Mode::Drill { .. } => Some(after_drill(ctx)),
        Mode::Verification => Some(interrupted(ctx)),
    };
    if let Some(ended) = ended {
        return ended.or_else(|| check_health(ctx)).unwrap_or_else(|| finish(ctx));
    }
    // It is withdrawn once the node is verified, which has to stay well until its attempt has ended.
    let desired = is_desired(ctx);
    if let Some(action) = return_to_service(ctx) {
        return act(action);
    }
    if let Some(ended) = left_target(ctx) {
        return ended;
    }
    if ctx.facts().boot_id != ctx.progress.boot_id {
        // Once is nothing: the soak begins again when the node is Ready. A second time counts, unless others are ill too.
        if ctx.progress.soak_restarted && ctx.survey.unwell.open().is_none() {
            return blame_first(ctx, FailureReason::SoakFailed, "the node did not stay Ready in one boot");
        }
        let again = Progress { soak_restarted: true, ..ctx.progress.clone() };
        return ctx.next_with(Step::Returning, again, |_| {});
    }
    if let Some(soaks) = check_health(ctx) {
        return protect(ctx).filter(|_| !desired).map_or(soaks, act);
    }
    let withdraws = desired && ctx.shadow.spec.state != HostState::Idle;
    let verified = if withdraws { act(withdraw(ctx)) } else { finish(ctx) };
    // They are checked once more after these writes.
    verified.querying(gates::questions(&ctx.group().after.checks, ctx.subject()))
}

/// Ends the attempt of a verified node, or goes on to its hooks. What is still claimed is released first. An update whose hooks are awaited
/// keeps it until they have answered: an autoscaler could remove the node before it has proven its version.
fn finish(ctx: &Attempt<'_>) -> Turn {
    let is_awaited = awaited(ctx.policy, AFTER_UPDATE).next().is_some();
    if ctx.needs_release() && !(is_awaited && ctx.mode() == Mode::Update) {
        return act(Action::Release);
    }
    if let Some(ended) = held_cordoned(ctx) {
        return ended;
    }
    if is_awaited {
        let again = Progress { soak_restarted: was_verified(ctx), ..ctx.progress.clone() };
        return ctx.next_with(Step::AfterUpdate, again, |_| {});
    }
    Turn::of(Outcome::Pass(None))
}

/// Returns the end of an update whose node a user holds with the operator's cordon: it has been verified without workloads.
pub(super) fn held_cordoned(ctx: &Attempt<'_>) -> Option<Turn> {
    let message = "the node is held with its cordon, so that no workload has shown that it is well on the version";
    ctx.is_held_cordoned().then(|| fail(FailureReason::Held, message))
}
