//! The beginning of an attempt, which disrupts nothing.

use models::shadow::{Progress, Step};
use semver::Version;

use super::status::unblock;
use crate::plan::context::NodeContext;
use crate::plan::{Action, Decision, Verdict, gates};

/// Checks that an attempt may begin.
pub(super) fn decide(ctx: &NodeContext<'_>) -> Decision {
    match (gates::begin(ctx), ctx.version()) {
        (Some(wait), _) | (None, Err(wait)) => Decision::wait(wait),
        (None, Ok(version)) => Decision { verdict: Verdict::Candidate(version.clone()), ..Decision::default() },
    }
}

/// The first write of an attempt. The desired state follows once it is recorded.
pub(in crate::plan) fn begin(ctx: &NodeContext<'_>, version: &Version) -> Action {
    let mut status = ctx.controller_status();
    status.report.progress = Some(Progress {
        step: Step::Staging,
        since: ctx.now,
        attempt: ctx.last_attempt().saturating_add(1),
        boot_id: ctx.facts().boot_id.clone(),
        version: version.clone(),
        from: ctx.shadow.status.agent.current_version.clone(),
        started: ctx.now,
        permit_issued: false,
        soak_restarted: false,
        watched_since: None,
        disruptive: false,
    });
    status.report.drain = None;
    unblock(&mut status);
    Action::Status { status: Box::new(status), note: None }
}
