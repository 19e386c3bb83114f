//! The node in another boot, until it is Ready on the target version.

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{ArmedPhase, CORDONED, ControllerStatus, DRAINED, HostState, Progress, Step};

use super::fail::fail;
use super::status::go_to;
use crate::decision::{Action, Decision};
use crate::survey::NodeContext;
use crate::wait::Wait;

/// Returns when the node is no longer waited for.
pub(super) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Timestamp {
    ctx.deadline(progress.since, ctx.policy.returning)
}

/// Continues an attempt whose node is in another boot than the one that the desired state was for.
pub(super) fn after_reboot(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if ctx.runs_target(progress) {
        if !ctx.facts().ready {
            return not_ready_yet(ctx, progress);
        }
        if ctx.needs_release() {
            return Decision::act(Action::Release);
        }
        let verifying = Progress { verifying_since: progress.verifying_since.or(Some(ctx.now)), ..progress.clone() };
        return Decision::act(go_to(ctx, &verifying, Step::Verifying, |status| {
            let message = format!("back on {}", progress.version);
            ctx.set_condition(status, CORDONED, false, "Updated", &message);
            ctx.set_condition(status, DRAINED, false, "Updated", &message);
        }));
    }
    // Not the target version: the agent knows how far it had come.
    if let Some((reason, message)) = ctx.agent_failure(progress.attempt) {
        return fail(ctx, progress, reason, message);
    }
    if ctx.shadow.spec.state == HostState::StagedUpdate && !is_activated(ctx, progress) {
        // No reboot was requested from its agent, which has nothing to report.
        return fail(
            ctx,
            progress,
            FailureReason::RebootedByOther,
            "the node was rebooted before its update was to boot",
        );
    }
    not_ready_yet(ctx, progress)
}

fn not_ready_yet(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if progress.step != Step::Returning {
        // Keeps the boot that the desired state was for: it shows that the node is in another one.
        let returning = |status: &mut ControllerStatus| {
            if let Some(p) = &mut status.report.progress {
                p.boot_id.clone_from(&progress.boot_id);
            }
        };
        return Decision::act(go_to(ctx, progress, Step::Returning, returning));
    }
    let deadline = deadline(ctx, progress);
    if ctx.now < deadline {
        return Decision::wait(Wait::AwaitingReady).waking_at(deadline);
    }
    if ctx.runs_target(progress) {
        return fail(ctx, progress, FailureReason::NotReadyAfterBoot, "the node is not Ready on the new version");
    }
    let (reason, message) = if is_activated(ctx, progress) {
        (FailureReason::BootFellBack, "the node came back on another version and its agent is silent")
    } else {
        (FailureReason::RebootedByOther, "the node was rebooted before it was armed and its agent is silent")
    };
    fail(ctx, progress, reason, message)
}

/// Returns whether the agent has reported the image of this attempt as armed.
pub(super) fn is_activated(ctx: &NodeContext<'_>, progress: &Progress) -> bool {
    let armed = ctx.shadow.status.agent.armed.as_ref();
    armed.is_some_and(|a| a.attempt == progress.attempt && a.phase == ArmedPhase::Activated)
}
