//! The requests for drills that have not begun.

use models::reason::FailureReason;
use models::shadow::{Drill, HistoryPosition, Progress, Step};

use super::drill::end_request;
use super::requests::acknowledge_drill;
use super::status::unblock;
use crate::decision::{Action, Decision, Verdict};
use crate::gates;
use crate::survey::NodeContext;
use crate::wait::Wait;

/// Begins the drill that is requested for an idle node, or ends the request with the reason against it. A moment's reason,
/// such as a report that the agent is about to make, is waited for.
pub(super) fn begin(ctx: &NodeContext<'_>) -> Option<Decision> {
    let mut drill = Drill::of(ctx.shadow.pending_drill()?);
    let current = ctx.shadow.status.agent.current_version.as_ref().ok_or(Wait::NoReport);
    let version = if drill.download { ctx.version() } else { current };
    let version = match gates::begin(ctx).map_or(version, Err) {
        Ok(version) => version,
        Err(wait @ (Wait::AgentNotSynced | Wait::DisarmPending | Wait::NoReport | Wait::Pinning { .. })) => {
            return Some(Decision::wait(wait));
        }
        // The report may be of an earlier boot.
        Err(wait @ Wait::HostNotUsable { .. }) if !ctx.caught_up() => return Some(Decision::wait(wait)),
        Err(refused) => return Some(refuse_request(ctx, &refused)),
    };
    // The slot of the attempt that has ended is about to be removed.
    if ctx.slot {
        return Some(Decision::wait(ctx.view.status_write(ctx.now)));
    }
    drill.refused.clear();
    let mut status = ctx.controller_status();
    let attempt = ctx.last_attempt().saturating_add(1);
    // A place in no rollout.
    let rollout = Some(HistoryPosition { boot_id: ctx.facts().boot_id.clone(), ..HistoryPosition::default() });
    status.report.progress =
        Some(Progress { drill: Some(drill), rollout, ..ctx.new_progress(Step::Staging, attempt, version) });
    status.report.drain = None;
    acknowledge_drill(ctx, &mut status);
    unblock(&mut status);
    let action = Action::Status { status: Box::new(status), note: None };
    Some(Decision::of(Verdict::Drill(action)))
}

/// Ends the request for a drill before it has begun, if there is one.
pub(super) fn refuse_request(ctx: &NodeContext<'_>, wait: &Wait) -> Decision {
    let Some(request) = ctx.shadow.pending_drill() else { return Decision::wait(wait.clone()) };
    Decision::act(end_request(ctx, request, wait.as_str(), &wait.to_string()))
}

/// Ends the request for a drill that has not begun, since a user requests the release of the node; `None` if there is none.
pub(super) fn release_request(ctx: &NodeContext<'_>) -> Option<Decision> {
    let reason = FailureReason::ReleaseRequested.as_str();
    let end = end_request(ctx, ctx.shadow.pending_drill()?, reason, "a user requested the release of the node");
    Some(Decision::act(end))
}
