//! The claim on a node that is out of service.

use models::reason::FailureReason;
use models::shadow::Mode;

use super::end::{ended_before_permit, ended_by_host};
use super::row::{Attempt, Claims, Outcome, Turn, act, fail, stay};
use crate::claims::{ClaimField, ClaimFields, recorded};
use crate::decision::{Action, Note};
use crate::gates;
use crate::policy::Policy;
use crate::wait::Wait;

/// The number of times that a claim that a client removed during the update is repeated: the cordon, and the other fields.
const RECLAIMS: u32 = 3;

/// Returns the fields to claim on a node.
fn fields_to_claim(claims: Claims, policy: &Policy) -> ClaimFields {
    let policy = |field: &ClaimField| match field {
        ClaimField::Cordon => true,
        ClaimField::Balancer => policy.leave_load_balancer.is_some() && claims == Claims::Everything,
        ClaimField::ScaleDown | ClaimField::DoNotDisrupt => policy.protect_from_autoscalers,
    };
    ClaimField::ALL.into_iter().filter(|field| claims != Claims::Nothing && policy(field)).collect()
}

/// Returns the write that returns a node to service for its verification, and while the hooks of its update are awaited after it. What
/// protects it from autoscalers stays claimed: none removes it before it has proven its version, or while it soaks after a drill, which may
/// have emptied it.
pub(super) fn return_to_service(ctx: &Attempt<'_>) -> Option<Action> {
    if !ctx.needs_release() {
        return None;
    }
    let claims = ctx.facts().claims;
    let protection: ClaimFields = [ClaimField::ScaleDown, ClaimField::DoNotDisrupt].into_iter().collect();
    let kept = if ctx.policy.protect_from_autoscalers { claims.and(protection) } else { ClaimFields::default() };
    let unowned = ctx.facts().unowned.and(recorded(&ctx.shadow.status));
    if kept.is_empty() || !unowned.is_empty() {
        return Some(Action::Release);
    }
    (kept != claims).then_some(Action::Claim { fields: kept, note: None })
}

/// Returns the write that protects a node from autoscalers whose update goes on under another Node object: what was claimed went with the
/// first one. It is not cordoned again.
pub(super) fn protect(ctx: &Attempt<'_>) -> Option<Action> {
    if !ctx.policy.protect_from_autoscalers || ctx.node.claims_made.stripped >= RECLAIMS {
        return None;
    }
    let facts = ctx.facts();
    let fields: ClaimFields = [ClaimField::ScaleDown, ClaimField::DoNotDisrupt].into_iter().collect();
    let fields = fields.without(facts.set_otherwise).without(facts.set_by_others);
    let missing = fields.without(facts.claims);
    (!missing.is_empty()).then(|| Action::Claim { fields, note: not_kept(ctx, missing) })
}

/// Returns the Event about fields that another client has removed, with the last claim of them.
fn not_kept(ctx: &Attempt<'_>, missing: ClaimFields) -> Option<Note> {
    let made = ctx.node.claims_made;
    let removed = missing.and(made.fields).without(ClaimFields::CORDON);
    if removed.is_empty() || made.stripped + 1 < RECLAIMS {
        return None;
    }
    let names: Vec<_> = removed.iter().map(ClaimField::name).collect();
    let then = if removed.has(ClaimField::Balancer) {
        "load balancers may send connections to the node while it is drained"
    } else {
        "an autoscaler may remove the node"
    };
    let message = format!(
        "another client has removed {} from the node again and again; set for the last time, and without it {then}",
        names.join(", ")
    );
    Some(Note { warning: true, reason: "ClaimNotKept", message })
}

/// Returns the end of a drain whose node was not claimed in time.
pub(super) fn not_claimed(ctx: &Attempt<'_>) -> Turn {
    fail(FailureReason::DrainTimedOut, unclaimed(ctx))
}

/// Returns the fields that the step claims and the node lacks, as part of a message.
pub(super) fn unclaimed(ctx: &Attempt<'_>) -> String {
    let missing = to_claim(ctx).without(ctx.facts().claims_in_effect());
    if missing.has(ClaimField::Cordon) {
        return "the node could not be cordoned".to_owned();
    }
    let names: Vec<_> = missing.iter().map(ClaimField::name).collect();
    format!("{} could not be set on the node: see the controller's log", names.join(", "))
}

/// Returns the fields that the step claims, without those that another client has set otherwise.
fn to_claim(ctx: &Attempt<'_>) -> ClaimFields {
    fields_to_claim(ctx.phase.claims, ctx.policy).without(ctx.facts().set_otherwise)
}

/// Returns the claim that is due, if the node does not have it.
pub(super) fn claim_due(ctx: &Attempt<'_>) -> Option<Turn> {
    let (facts, made) = (ctx.facts(), ctx.node.claims_made);
    let fields = to_claim(ctx);
    let missing = fields.without(facts.claims_in_effect());
    let removed = missing.and(made.fields);
    let uncordoned = removed.has(ClaimField::Cordon);
    let times = made.uncordoned.saturating_add(1);
    if uncordoned && times > RECLAIMS && ctx.shadow.spec.permit.is_none() {
        let message = format!("another client uncordoned the node {times} times; hold it to keep it out of updates");
        return Some(fail(FailureReason::Uncordoned, message));
    }
    // A client removes the others again and again: it is not worth an update.
    let given_up = if made.stripped < RECLAIMS { ClaimFields::default() } else { removed.without(ClaimFields::CORDON) };
    if missing.without(given_up).is_empty() {
        return None;
    }
    let note = not_kept(ctx, missing.without(given_up));
    let note = if uncordoned && !facts.unschedulable {
        let message = format!(
            "another client uncordoned a node whose update is under way; cordoned again ({times} of {RECLAIMS})"
        );
        Some(Note { warning: true, reason: "Uncordoned", message }.with(note))
    } else {
        note
    };
    Some(act(Action::Claim { fields, note }))
}

/// Returns the end of an attempt whose node is out of service and not drained yet.
pub(super) fn ended_during_drain(ctx: &Attempt<'_>) -> Option<Turn> {
    if let Some(turn) = ended_before_permit(ctx) {
        return Some(turn);
    }
    if ctx.facts().boot_id != ctx.progress.boot_id {
        return Some(fail(FailureReason::RebootedByOther, "the node was rebooted during the drain"));
    }
    if let Some(turn) = ended_by_host(ctx) {
        return Some(turn);
    }
    // A missing image is staged again meanwhile, as after a restart of the agent: the drain's end waits for it.
    if ctx.slot || ctx.view.operator.is_none() {
        return None;
    }
    // The resource is new and its slots are being rebuilt; nothing is disrupted without one.
    Some(stay(Wait::Queued { position: 0, behind: None }))
}

/// Returns the end of an attempt whose node is out of service and from which no pod has been evicted: also the brake of its rollout
/// ends it, and another node of the control plane.
pub(super) fn ended_before_eviction(ctx: &Attempt<'_>) -> Option<Turn> {
    let braked = || gates::braked(ctx).filter(|_| ctx.mode() == Mode::Update);
    let refused = || braked().or_else(|| gates::control_plane_busy(ctx));
    ended_during_drain(ctx).or_else(|| Some(Turn::of(Outcome::Refuse(refused()?))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn policy_and_phase_choose_the_fields_to_claim() {
        let policy = Policy { leave_load_balancer: Some(Duration::from_secs(30)), ..Policy::default() };
        let bare = Policy { leave_load_balancer: None, protect_from_autoscalers: false, ..Policy::default() };
        let all: ClaimFields = ClaimField::ALL.into_iter().collect();
        for (claims, expected, expected_bare) in [
            (Claims::Nothing, ClaimFields::default(), ClaimFields::default()),
            (Claims::KeepsConnections, all.without([ClaimField::Balancer].into_iter().collect()), ClaimFields::CORDON),
            (Claims::Everything, all, ClaimFields::CORDON),
        ] {
            assert_eq!(fields_to_claim(claims, &policy), expected, "{claims:?}");
            assert_eq!(fields_to_claim(claims, &bare), expected_bare, "{claims:?}");
        }
    }
}
