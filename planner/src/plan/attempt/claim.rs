//! The start of the disruption: the pods to evict are recorded, the node is claimed, and leaves its load balancers.

use models::reason::FailureReason;
use models::shadow::{CORDONED, DRAINED, DrainStatus, Progress, RolloutPlace, Step};

use super::LISTED_PODS;
use super::drain::{self, drained_pod, owners};
use super::fail::{ended_from_outside, fail};
use super::hooks;
use super::result::bounded;
use super::stage::waiting_staged;
use super::status::go_to;
use crate::claims::{ClaimField, ClaimFields};
use models::time::after;

use crate::plan::context::NodeContext;
use crate::plan::{Action, Decision, Note, Wait, gates};
use crate::policy::Policy;
use crate::view::OWNER_WAIT;

/// The number of owners of unhealthy pods that a shadow lists.
const UNHEALTHY_OWNERS: usize = 256;

/// The number of times that a claim that a client removed during the update is repeated.
const RECLAIMS: u32 = 3;

/// Returns the fields to claim on a node at this step.
fn fields_to_claim(step: Option<Step>, policy: &Policy) -> ClaimFields {
    match step {
        // In an unknown step nothing is released before the attempt has ended.
        Some(
            Step::BeforeDrain
            | Step::LeavingLoadBalancer
            | Step::Draining
            | Step::RehearsingDrain
            | Step::Rebooting
            | Step::RehearsingReboot
            | Step::Returning
            | Step::Unknown,
        ) => {
            let policy = |field: &ClaimField| match field {
                ClaimField::Cordon => true,
                // Connections go on while hooks are awaited.
                ClaimField::Balancer => policy.leave_load_balancer.is_some() && step != Some(Step::BeforeDrain),
                ClaimField::ScaleDown | ClaimField::DoNotDisrupt => policy.protect_from_autoscalers,
            };
            ClaimField::ALL.into_iter().filter(policy).collect()
        }
        Some(Step::Staging | Step::Staged | Step::Verifying | Step::AfterUpdate | Step::Releasing) | None => {
            ClaimFields::default()
        }
    }
}

/// Reason and message of the condition `Drained` from this step on, before the drain has ended.
const fn draining(step: Step) -> (&'static str, &'static str) {
    match step {
        Step::BeforeDrain => ("AwaitingHooks", "no pod is evicted before the hooks have answered"),
        Step::RehearsingDrain => ("Rehearsing", "no pod is evicted"),
        _ => ("Draining", "pods are being evicted"),
    }
}

/// The step after the hooks.
fn first_of_drain(ctx: &NodeContext<'_>, progress: &Progress) -> Step {
    match &progress.drill {
        Some(drill) if !drill.evict => Step::RehearsingDrain,
        _ if ctx.policy.leave_load_balancer.is_some() => Step::LeavingLoadBalancer,
        _ => Step::Draining,
    }
}

/// Goes on to the drain of a node whose hooks have answered.
pub(super) fn begin_drain(ctx: &NodeContext<'_>, progress: &Progress) -> Action {
    let first = first_of_drain(ctx, progress);
    go_to(ctx, progress, first, |status| {
        let (reason, message) = draining(first);
        ctx.set_condition(status, DRAINED, false, reason, message);
    })
}

/// Names the attempt, for users.
fn purpose(progress: &Progress) -> String {
    match &progress.drill {
        Some(drill) if drill.evict => "a drill, without a reboot".to_owned(),
        Some(_) => "a drill, without an eviction or a reboot".to_owned(),
        None => format!("the update to {}", progress.version),
    }
}

/// Begins the drain of a node with a slot: records the pods to evict before anything is changed.
pub(super) fn start_drain(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    let policy = ctx.group();
    let queries = || gates::queries(&policy.before.expressions, &ctx.facts().name);
    let (Some(on_node), Some(sorted)) = (&ctx.node.pods, ctx.sorted_pods()) else {
        return Decision::wait(Wait::ReadingPods).keeping_slot().watching_pods().querying(queries());
    };
    match gates::before_drain(ctx) {
        None => {}
        Some(gates::Obstacle::Unknown(wait)) => {
            return Decision::wait(wait).keeping_slot().watching_pods().querying(queries());
        }
        Some(gates::Obstacle::Refused(refused)) => {
            return waiting_staged(ctx, progress, refused, true).watching_pods().querying(queries());
        }
    }
    // The API server is about to name the owners. If it does not, the node waits no longer than this.
    if sorted.evictable.iter().any(|pod| pod.owner_pending) {
        let until = after(ctx.now, OWNER_WAIT);
        return Decision::wait(Wait::ReadingPods).keeping_slot().watching_pods().waking_at(until);
    }
    let pods: Vec<_> =
        sorted.evictable.iter().chain(&sorted.leaving).take(LISTED_PODS).map(|pod| drained_pod(ctx, pod)).collect();
    let pods = bounded(pods).into();
    let unhealthy = on_node.iter().filter(|pod| pod.is_unhealthy(ctx.now) && !pod.finished && !pod.terminating);
    let unhealthy_before = owners(unhealthy.filter_map(|pod| pod.controller_uid.clone()), UNHEALTHY_OWNERS);
    let preexisting: Vec<String> = ctx.facts().set_by_others.iter().map(|field| field.name().to_owned()).collect();
    let asks_hooks = hooks::awaited(ctx.policy, Step::BeforeDrain).next().is_some();
    let first = if asks_hooks { Step::BeforeDrain } else { first_of_drain(ctx, progress) };
    let purpose = purpose(progress);
    let place = progress.rollout.clone().unwrap_or_else(|| ctx.place(&progress.version));
    let rollout = Some(RolloutPlace { drain_started: Some(ctx.now), ..place });
    let mut action = go_to(ctx, &Progress { disruptive: true, rollout, ..progress.clone() }, first, |status| {
        let message = format!("cordoned for {purpose}");
        let set_by_others = ctx.facts().set_by_others.has(ClaimField::Cordon);
        let reason = if set_by_others { "CordonedBefore" } else { "Updating" };
        ctx.set_condition(status, CORDONED, true, reason, &message);
        let (reason, message) = draining(first);
        ctx.set_condition(status, DRAINED, false, reason, message);
        status.report.drain = Some(DrainStatus { pods, preexisting, ..DrainStatus::default() });
        let record = status.report.record.get_or_insert_default();
        // A drill forgets no owner that was unhealthy before the last update: that is evidence about its version.
        let before = if progress.drill.is_some() { std::mem::take(&mut record.unhealthy_before) } else { Vec::new() };
        record.unhealthy_before = owners(before.into_iter().chain(unhealthy_before), UNHEALTHY_OWNERS);
    });
    if let Action::Status { note, .. } = &mut action {
        *note = Some(Note {
            warning: false,
            reason: if progress.drill.is_some() { "DrillStarted" } else { "UpdateStarted" },
            message: format!("draining for {purpose} (attempt {})", progress.attempt),
        });
    }
    Decision::act(action).watching_pods()
}

/// Waits before the drain of a cordoned node that has left the balancer: open connections may end by themselves.
pub(super) fn leave_load_balancer(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if let Some(decision) = ended_during_drain(ctx, progress) {
        return decision;
    }
    let deadline = drain::deadline(ctx, progress);
    if let Some(claim) = claim_due(ctx, progress) {
        if ctx.now >= deadline {
            return fail(ctx, progress, FailureReason::DrainTimedOut, "the node could not be cordoned");
        }
        return claim.waking_at(deadline);
    }
    // The claim may be later than the step: the Node records its time.
    let since = ctx.facts().claimed_since.map_or(progress.since, |claimed| claimed.max(progress.since));
    let until = after(since, ctx.policy.leave_load_balancer.unwrap_or_default());
    if ctx.now < until {
        return Decision::wait(Wait::LeavingLoadBalancer { until }).waking_at(until);
    }
    Decision::act(go_to(ctx, progress, Step::Draining, |_| {}))
}

/// Returns the claim that is due, if the node does not have it.
pub(super) fn claim_due(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Decision> {
    let facts = ctx.facts();
    let fields = fields_to_claim(Some(progress.step), ctx.policy).without(facts.set_otherwise);
    if fields.without(facts.claims).is_empty() && facts.unschedulable {
        return None;
    }
    let made = ctx.node.claims_made;
    let cordoned = facts.unschedulable && facts.claims.has(ClaimField::Cordon);
    if made > RECLAIMS && cordoned {
        // A client removes the rest again and again: it is not worth an update.
        return None;
    }
    if made > RECLAIMS && ctx.shadow.spec.permit.is_none() {
        let message = format!("another client uncordoned the node {made} times; hold it to keep it out of updates");
        return Some(fail(ctx, progress, FailureReason::Uncordoned, &message));
    }
    let note = (made > 0 && !facts.unschedulable).then(|| Note {
        warning: true,
        reason: "Uncordoned",
        message: format!(
            "another client uncordoned a node whose update is under way; cordoned again ({made} of {RECLAIMS})"
        ),
    });
    Some(Decision::act(Action::Claim { fields, note }))
}

/// Returns the end of an attempt whose node is out of service and not drained yet.
pub(super) fn ended_during_drain(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Decision> {
    if let Some(decision) = ended_from_outside(ctx, progress) {
        return Some(decision);
    }
    if ctx.facts().boot_id != progress.boot_id {
        return Some(fail(ctx, progress, FailureReason::RebootedByOther, "the node was rebooted during the drain"));
    }
    if let Some((reason, message)) = ctx.agent_failure(progress.attempt) {
        return Some(fail(ctx, progress, reason, message));
    }
    // A missing image is staged again meanwhile, as after a restart of the agent: the drain's end waits for it.
    if ctx.slot || ctx.view.operator.is_none() {
        return None;
    }
    // The resource is new and its slots are being rebuilt; nothing is disrupted without one.
    Some(Decision::wait(Wait::Queued { position: 0, behind: None }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn node_is_claimed_from_leaving_load_balancer_until_returning() {
        let policy = Policy { leave_load_balancer: Some(Duration::from_secs(30)), ..Policy::default() };
        let bare = Policy { leave_load_balancer: None, protect_from_autoscalers: false, ..Policy::default() };
        for (step, everything) in [
            (None, false),
            (Some(Step::Staging), false),
            (Some(Step::Staged), false),
            (Some(Step::LeavingLoadBalancer), true),
            (Some(Step::Draining), true),
            (Some(Step::RehearsingDrain), true),
            (Some(Step::Rebooting), true),
            (Some(Step::RehearsingReboot), true),
            (Some(Step::Returning), true),
            (Some(Step::Verifying), false),
            (Some(Step::Releasing), false),
        ] {
            let expected: ClaimFields =
                if everything { ClaimField::ALL.into_iter().collect() } else { ClaimFields::default() };
            assert_eq!(fields_to_claim(step, &policy), expected, "{step:?}");
            assert_eq!(
                fields_to_claim(step, &bare),
                if everything { ClaimFields::CORDON } else { ClaimFields::default() },
                "{step:?}"
            );
        }
    }
}
