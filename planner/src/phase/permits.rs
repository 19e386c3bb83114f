//! The requests of agents for permits.

use models::shadow::{Armed, HostState, Rehearsal};

use crate::survey::NodeContext;

/// The agent's permit request, if it belongs to the current desired state and to the node's current boot.
pub(super) fn permit_request<'a>(ctx: &NodeContext<'a>) -> Option<&'a Armed> {
    let spec = &ctx.shadow.spec;
    ctx.shadow.status.agent.armed.as_ref().filter(|armed| {
        armed.attempt == spec.attempt
            && spec.boot_id.as_ref() == Some(&armed.boot_id)
            && armed.boot_id == ctx.facts().boot_id
            && spec.version.as_ref() == Some(&armed.version)
    })
}

/// The agent's request for a rehearsal permit, if it belongs to the current desired state and to the node's current boot.
pub(super) fn rehearsal_request<'a>(ctx: &NodeContext<'a>) -> Option<&'a Rehearsal> {
    let spec = &ctx.shadow.spec;
    ctx.shadow.status.agent.rehearsal.as_ref().filter(|request| {
        spec.state == HostState::RehearsedUpdate
            && request.attempt == spec.attempt
            && spec.boot_id.as_ref() == Some(&request.boot_id)
            && request.boot_id == ctx.facts().boot_id
            && spec.version.as_ref() == Some(&request.version)
    })
}
