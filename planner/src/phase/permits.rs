//! The requests of agents for permits.

use models::shadow::{Armed, HostState, Rehearsal};
use semver::Version;

use crate::survey::NodeContext;

/// Returns whether a request belongs to the current desired state and to the node's current boot.
fn is_current(ctx: &NodeContext<'_>, attempt: i64, boot_id: &str, version: &Version) -> bool {
    let spec = &ctx.shadow.spec;
    (attempt, Some(boot_id), Some(version)) == (spec.attempt, spec.boot_id.as_deref(), spec.version.as_ref())
        && boot_id == ctx.facts().boot_id
}

/// The agent's current permit request.
pub(super) fn permit_request<'a>(ctx: &NodeContext<'a>) -> Option<&'a Armed> {
    let armed = ctx.shadow.status.agent.armed.as_ref();
    armed.filter(|armed| is_current(ctx, armed.attempt, &armed.boot_id, &armed.version))
}

/// The agent's current request for a rehearsal permit.
pub(super) fn rehearsal_request<'a>(ctx: &NodeContext<'a>) -> Option<&'a Rehearsal> {
    let request = ctx.shadow.status.agent.rehearsal.as_ref();
    request.filter(|request| {
        ctx.shadow.spec.state == HostState::RehearsedUpdate
            && is_current(ctx, request.attempt, &request.boot_id, &request.version)
    })
}
