//! The next step of one node, from idle to its release. Each phase of an update has a file, in this order:
//!
//! `idle` → `stage` → `claim` (the start of the disruption) → `drain` (with `blockers`, and `overdue` past the
//! deadline) → `permit` (requested, checked, issued) → `returning` → `verify`; `fail` and `release` end an attempt in any
//! of them. `desired`, `result` and `status` make the writes that several phases need.
//! `hooks` has the waits for other controllers, `drill` the phases of a drill.

mod blockers;
mod claim;
mod desired;
mod drain;
mod drill;
mod fail;
mod hooks;
mod idle;
mod overdue;
mod permit;
mod release;
mod requests;
mod result;
mod returning;
mod stage;
mod status;
mod verify;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{HostState, Progress, Step};

use self::desired::signed_again;
use self::fail::{fail, may_reboot};
use self::status::with_blocked_condition;
use crate::decision::Decision;
use crate::survey::NodeContext;

pub(super) use idle::begin;
pub(super) use stage::waiting_staged;
pub(super) use status::waiting_in_turn;

/// The number of pods of a drain that a shadow lists.
pub const LISTED_PODS: usize = 1024;

/// Decides the next step.
pub(crate) fn decide(ctx: &NodeContext<'_>) -> Decision {
    let progress = ctx.node.progress();
    // Before any request: its answer would be a write with the forged attempt in it.
    if let Some(progress) = progress.filter(|progress| is_unbacked(ctx, progress)) {
        return end_unbacked(ctx, progress);
    }
    if let Some(action) = requests::resume(ctx).or_else(|| requests::retry(ctx)) {
        return Decision::act(action);
    }
    if ctx.shadow.pending_release().is_some() {
        return match progress.filter(|progress| progress.step != Step::Releasing) {
            Some(progress) => {
                fail(ctx, progress, FailureReason::ReleaseRequested, "a user requested the release of the node")
            }
            None => drill::release_request(ctx).unwrap_or_else(|| Decision::act(requests::nothing_to_release(ctx))),
        };
    }
    let Some(progress) = progress else { return idle::decide(ctx) };
    if let Some(action) = signed_again(ctx, progress) {
        let decision = Decision::act(action);
        let calm = matches!(progress.step, Step::Staging | Step::Staged);
        return if calm { decision } else { decision.watching_pods() };
    }
    let decision = match (progress.step, &progress.drill) {
        (Step::Staging | Step::Staged, Some(drill)) => drill::before_drain(ctx, progress, drill),
        (Step::RehearsingDrain, Some(drill)) => drill::rehearse_drain(ctx, progress, drill).watching_pods(),
        (Step::RehearsingReboot, Some(drill)) => drill::rehearse_reboot(ctx, progress, drill).watching_pods(),
        (Step::Verifying, Some(drill)) => drill::verify(ctx, progress, drill).watching_pods(),
        (Step::Rebooting | Step::Returning, Some(_)) | (Step::RehearsingDrain | Step::RehearsingReboot, None) => {
            fail(ctx, progress, FailureReason::ProgressLost, "its step is none of a drill, or of an update")
        }
        (step, _) => of_update(ctx, progress, step),
    };
    with_blocked_condition(ctx, hooks::with_request(ctx, progress, decision))
}

/// Decides the next step of an update, or one that a drill has in common with it.
fn of_update(ctx: &NodeContext<'_>, progress: &Progress, step: Step) -> Decision {
    match step {
        Step::Staging | Step::Staged => stage::decide(ctx, progress),
        Step::BeforeDrain => hooks::before_drain(ctx, progress).watching_pods(),
        Step::LeavingLoadBalancer => claim::leave_load_balancer(ctx, progress).watching_pods(),
        Step::Draining => drain::decide(ctx, progress).watching_pods(),
        // Pods are watched from the drain to the end of the verification without a break, so that they are listed once.
        Step::Rebooting => permit::decide(ctx, progress).watching_pods(),
        Step::Returning => returning::after_reboot(ctx, progress).watching_pods(),
        Step::Verifying => verify::decide(ctx, progress).watching_pods(),
        Step::AfterUpdate => hooks::after_update(ctx, progress).watching_pods(),
        Step::Releasing => release::decide(ctx, progress),
        // Releasing the node is safe after any step: the release waits for a permit that was issued.
        Step::RehearsingDrain | Step::RehearsingReboot | Step::Unknown => {
            fail(ctx, progress, FailureReason::ProgressLost, "its step is one of another version of the controller")
        }
    }
}

/// Returns when the step under way is given up; `None` where it has no time limit.
pub(crate) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Option<Timestamp> {
    match progress.step {
        Step::Staging => Some(stage::deadline(ctx, progress)),
        Step::BeforeDrain | Step::AfterUpdate => hooks::deadline(ctx, progress),
        Step::LeavingLoadBalancer | Step::Draining => Some(drain::deadline(ctx, progress)),
        Step::Rebooting => Some(permit::deadline(ctx, progress)),
        Step::Returning => Some(returning::deadline(ctx, progress)),
        Step::Verifying => Some(verify::deadline(ctx, progress)),
        Step::RehearsingDrain | Step::RehearsingReboot => Some(drill::deadline(ctx, progress)),
        Step::Staged | Step::Releasing | Step::Unknown => None,
    }
}

/// Returns whether a step that disrupts the node has neither a slot nor a claim, which the controller records
/// before it. Without the operator's resource there are no slots, and after the reboot no claim either: then the
/// desired state of the shadow decides, and once that is withdrawn, its attempt and the version that runs.
fn is_unbacked(ctx: &NodeContext<'_>, progress: &Progress) -> bool {
    let spec = &ctx.shadow.spec;
    let runs = progress.drill.is_some() || ctx.runs_target(progress);
    let verified = spec.state == HostState::Idle && spec.attempt == progress.attempt && runs;
    let needs_either = match progress.step {
        Step::BeforeDrain
        | Step::LeavingLoadBalancer
        | Step::Draining
        | Step::RehearsingDrain
        | Step::Rebooting
        | Step::RehearsingReboot
        | Step::Unknown => true,
        Step::Returning => ctx.view.operator.is_some(),
        Step::Verifying | Step::AfterUpdate => ctx.view.operator.is_some() && !verified,
        Step::Staging | Step::Staged | Step::Releasing => false,
    };
    needs_either && !ctx.slot && !ctx.facts().claimed() && !ctx.node.has_rebooted_as_desired()
}

/// Ends an attempt that is not the controller's own: it counts against the budget only if its host may still
/// act on a permit.
fn end_unbacked(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    let disruptive = may_reboot(ctx, progress);
    let progress = Progress { disruptive, ..progress.clone() };
    fail(ctx, &progress, FailureReason::ProgressLost, "neither a slot nor a claim on the node backs its step")
}
