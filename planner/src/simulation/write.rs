//! Actions as the API server and the controller carry them out.

use jiff::Timestamp;
use models::shadow::{HostState, OwnerBefore, Permit, is_agent_condition};

use crate::claims::{ClaimField, ClaimFields};
use crate::decision::Action;
use crate::drain;
use crate::rules::Rules;
use crate::view::{LeaseObservations, NodeView, OwnerHealth};

/// Applies a write to a node and its shadow. Returns any other action, which is not a write.
///
/// `cordoned` is true if a user has cordoned the node as well, so that it stays cordoned after its release.
pub(super) fn write(node: &mut NodeView, action: Action, cordoned: bool) -> Option<Action> {
    match (action, &mut node.shadow) {
        (Action::Status { status, .. }, Some(shadow)) => {
            shadow.status.controller = status.report;
            shadow.status.conditions.retain(|condition| is_agent_condition(&condition.type_));
            shadow.status.conditions.extend(status.conditions);
        }
        (Action::Spec { spec }, Some(shadow)) => {
            shadow.spec = *spec;
            shadow.generation += 1;
        }
        (Action::Claim { fields, .. }, _) => {
            node.facts.claims = fields;
            node.facts.unschedulable = fields.has(ClaimField::Cordon) || cordoned;
        }
        (Action::Release, _) => {
            node.facts.claims = ClaimFields::default();
            node.facts.unschedulable = cordoned;
        }
        (Action::Hook { request }, _) => node.facts.hook_request = request,
        (action, _) => return Some(action),
    }
    None
}

/// Issues a permit, or in a drill, whose pods may stay, a rehearsal permit, unless the last check finds a pod on the node that
/// has to leave, or the node in another boot.
pub(super) fn permit(node: &mut NodeView, nonce: String, rules: Rules, pods_stay: bool) {
    let Some(shadow) = &mut node.shadow else { return };
    let drain = shadow.status.controller.drain.as_ref();
    let pods_stay = pods_stay && shadow.spec.state == HostState::RehearsedUpdate;
    let empty = pods_stay || drain::sort(node.pods.as_deref().unwrap_or_default(), rules, drain).empty();
    let claimed = !node.facts.claims.is_empty();
    if empty && claimed && shadow.spec.boot_id.as_ref() == Some(&node.facts.boot_id) {
        shadow.spec.permit = Some(Permit { nonce, jws: String::new() });
        shadow.generation += 1;
    }
}

/// Observes the node's Lease, which its kubelet renews while it runs.
pub(super) fn read_lease(node: &mut NodeView, kubelet_runs: bool, now: Timestamp) {
    let before = node.lease.and_then(|lease| lease.renewed);
    let renewed = if kubelet_runs { now } else { before.unwrap_or(Timestamp::UNIX_EPOCH) };
    node.lease = Some(LeaseObservations::add(node.lease, Some(renewed), now));
}

/// Reads a ReplicaSet. The pods of all are created again.
pub(super) fn read_replica_set(node: &mut NodeView, set: OwnerBefore, now: Timestamp) {
    let health = OwnerHealth { read_at: now, lacks_pods: Some(false), ..OwnerHealth::default() };
    node.owners.insert(set.uid, health);
}
