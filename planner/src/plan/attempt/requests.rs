//! One-shot requests of users: annotations on a shadow, each carried out once and then acknowledged.

use models::shadow::ControllerStatus;

use super::desired::{disarm_in_boot, withdraw_and_disarm};
use crate::plan::context::NodeContext;
use crate::plan::requests::{has_unresolved_failures, pending_resume};
use crate::plan::{Action, Note};

fn acknowledge(status: &mut ControllerStatus, retry: Option<&String>, release: Option<&String>) {
    let requests = status.report.record.get_or_insert_default().requests.get_or_insert_default();
    if let Some(retry) = retry {
        requests.retry = Some(retry.clone());
    }
    if let Some(release) = release {
        requests.release = Some(release.clone());
    }
}

/// Returns the write that settles a node's failures of versions, if a `resume` requests it.
pub(super) fn resume(ctx: &NodeContext<'_>) -> Option<Action> {
    let asked = pending_resume(ctx.view.operator.as_ref()?)?;
    if !has_unresolved_failures(ctx.shadow) {
        return None;
    }
    let mut status = ctx.controller_status();
    for failure in &mut status.report.record.get_or_insert_default().version_failures {
        failure.resolved_by.get_or_insert_with(|| asked.clone());
    }
    Some(Action::Status { status: Box::new(status), note: None })
}

fn acknowledged(ctx: &NodeContext<'_>) -> models::shadow::ShadowRequests {
    ctx.shadow.status.controller.record.as_ref().and_then(|r| r.requests.clone()).unwrap_or_default()
}

/// The value of a `retry` that is not acknowledged yet.
fn pending_retry<'a>(ctx: &NodeContext<'a>) -> Option<&'a String> {
    ctx.shadow.retry.as_ref().filter(|asked| Some(*asked) != acknowledged(ctx).retry.as_ref())
}

/// Carries out a `retry`: an image that another client armed may be disarmed, in this boot; then the back-off ends.
pub(super) fn retry(ctx: &NodeContext<'_>) -> Option<Action> {
    let asked = pending_retry(ctx)?;
    if ctx.is_armed_by_other() && disarm_in_boot(ctx).is_none() && !ctx.facts().boot_id.is_empty() {
        return Some(withdraw_and_disarm(ctx));
    }
    let mut status = ctx.controller_status();
    acknowledge(&mut status, Some(asked), None);
    status.report.record.get_or_insert_default().not_before = None;
    let note = Note { warning: false, reason: "Retry", message: "retry requested: the back-off is over".to_owned() };
    Some(Action::Status { status: Box::new(status), note: Some(note) })
}

/// The value of a `release` that is not acknowledged yet.
pub(super) fn pending_release<'a>(ctx: &NodeContext<'a>) -> Option<&'a String> {
    ctx.shadow.release.as_ref().filter(|asked| Some(*asked) != acknowledged(ctx).release.as_ref())
}

/// Acknowledges a `release` of a node that is not claimed.
pub(super) fn nothing_to_release(ctx: &NodeContext<'_>) -> Option<Action> {
    let asked = pending_release(ctx)?;
    let mut status = ctx.controller_status();
    acknowledge(&mut status, None, Some(asked));
    Some(Action::Status { status: Box::new(status), note: None })
}

/// Writes the acknowledgement of a `release` into the status that ends the attempt.
pub(super) fn acknowledge_release(ctx: &NodeContext<'_>, status: &mut ControllerStatus) {
    if let Some(asked) = pending_release(ctx) {
        acknowledge(status, None, Some(asked));
    }
}
