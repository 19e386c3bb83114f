//! The results of drills. A drill passes the gates and the phases of an update, has its agent request and verify a permit that
//! is signed as a rehearsal, and is recorded apart: it counts against no version and puts no back-off on the node.

use models::plain::cut;
use models::reason::EndEvent;
use models::shadow::{ControllerStatus, DRILL_PASSED, Drill, DrillResult, EVICTIONS_REFUSED, MOST_REFUSED};

use super::drained::pods_gone;
use super::requests::{acknowledge_drill, acknowledge_release};
use super::result::{keep_result, release};
use super::row::Attempt;
use super::status::{forget_claim, unblock};
use crate::decision::{Action, Note};
use crate::survey::NodeContext;

/// Ends a drill that went through, with its result.
pub(super) fn passed(ctx: &Attempt<'_>, drill: &Drill) -> (Box<ControllerStatus>, Note) {
    let pods = ctx.drain_status().map_or(0, |drain| drain.pods.len());
    let (result, message) = match drill.refused.first() {
        Some(first) => {
            let budget = first
                .budget
                .as_ref()
                .map_or_else(|| "the API server".to_owned(), |budget| format!("PodDisruptionBudget {budget}"));
            let more = if drill.refused.len() < MOST_REFUSED { "" } else { "at least " };
            let of = format!("{more}{} of {pods} pod(s) would not be evicted now", drill.refused.len());
            (EVICTIONS_REFUSED, format!("{of}: {budget} refuses {}: {}", first.pod, first.message))
        }
        None if drill.evict => (DRILL_PASSED, format!("{pods} pod(s) were evicted, and the node stayed healthy")),
        None => (DRILL_PASSED, format!("{pods} pod(s) may be evicted now, and the node stayed healthy")),
    };
    let mut status = ctx.controller_status();
    let note = record(ctx, &mut status, drill, Some(ctx), (result, &message));
    keep_result(ctx, &mut status, result, &message, Vec::new());
    status.report.progress = None;
    forget_claim(ctx, &mut status);
    unblock(&mut status);
    (Box::new(status), note)
}

/// Ends a drill early: recorded first, then withdrawn, then released. Neither the version nor the node is charged.
pub(super) fn end(ctx: &Attempt<'_>, result: &str, message: &str) -> Action {
    let mut status = ctx.controller_status();
    let drill = ctx.progress.drill.clone().unwrap_or_default();
    let note = record(ctx, &mut status, &drill, Some(ctx), (result, message));
    keep_result(ctx, &mut status, result, message, Vec::new());
    release(ctx, &mut status);
    Action::Status { status: Box::new(status), note: Some(note) }
}

/// Ends the request for a drill that has not begun.
pub(super) fn end_request(ctx: &NodeContext<'_>, request: &str, result: &str, message: &str) -> Action {
    let mut status = ctx.controller_status();
    acknowledge_drill(ctx, &mut status);
    acknowledge_release(ctx, &mut status);
    let note = record(ctx, &mut status, &Drill::of(request), None, (result, message));
    Action::Status { status: Box::new(status), note: Some(note) }
}

/// Records the result of a drill, of which there is no `attempt` before it has begun. Returns its Event.
fn record(
    ctx: &NodeContext<'_>,
    status: &mut ControllerStatus,
    drill: &Drill,
    attempt: Option<&Attempt<'_>>,
    (result, message): (&str, &str),
) -> Note {
    let progress = attempt.map(|attempt| attempt.progress);
    let place = progress.and_then(|progress| progress.rollout.clone()).unwrap_or_default();
    // Before it has begun, a drain that is recorded is another one.
    let listed = ctx.drain_status().filter(|_| progress.is_some()).map_or(0, |drain| drain.pods.len());
    let pods =
        if drill.evict && progress.is_some() { pods_gone(ctx) } else { i64::try_from(listed).unwrap_or(i64::MAX) };
    let found = DrillResult {
        drill: drill.clone(),
        attempt: progress.map(|progress| progress.attempt),
        version: progress.map(|progress| progress.version.clone()),
        result: result.to_owned(),
        message: cut(message, 1024),
        started: progress.map_or(ctx.now, |progress| progress.started),
        drain_started: place.drain_started,
        drain_ended: place.drain_ended,
        soak_started: progress.and_then(|progress| progress.verifying_since),
        ended: ctx.now,
        pods,
    };
    let event = EndEvent::of_drill(result);
    let message = format!("drill: {result}: {}", found.message);
    status.report.record.get_or_insert_default().drill = Some(found);
    Note { warning: event.is_warning(), reason: event.as_str(), message }
}
