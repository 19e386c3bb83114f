//! The checks of what leads a node to its reboot: the permit and the desired state (S2, S3), the record in its slot (S12) and a usable
//! policy (S13).

use models::operator::Slot;
use models::reason::Proof;
use models::shadow::{BottlerocketShadowSpec, HostState, Mode, Place, Step};

use super::breach::{Broken, broken};
use crate::claims::ClaimField;
use crate::decision::Action;
use crate::phase::Phase;
use crate::policy::Policy;
use crate::survey::key::kind;
use crate::survey::{control_plane, ended};
use crate::view::{ClusterView, NodeView};

/// S12 again: no reboot is permitted before the slot records that it may be. Without the Node object, nothing else would say so. S1:
/// nor that of a node of the control plane while another one is out of service.
pub(super) fn check_permit(view: &ClusterView, node: &NodeView, action: &Action) -> Option<Broken> {
    let Action::Permit { .. } = action else { return None };
    node.update()?;
    if let Some(other) = control_plane::in_the_way(view, &node.facts) {
        return broken("S1", format!("its reboot is permitted while {other} of the control plane is out of service"));
    }
    let recorded = |slot: &Slot| slot.update.as_ref().is_some_and(|update| update.permitting_since.is_some());
    let own = view.slots().any(|slot| slot.uid == node.facts.uid && recorded(slot));
    if own || view.operator.is_none() {
        None
    } else {
        broken("S12", "its reboot is permitted before its slot records it")
    }
}

/// S12 again: an update goes on after its reboot, without a record of it, only where the node's slot records that the reboot may have
/// been permitted, for this attempt and in another boot.
pub(super) fn check_continued(view: &ClusterView, node: &NodeView, action: &Action) -> Option<Broken> {
    let next = action.next_progress().filter(|next| next.mode() == Mode::Update)?;
    if node.progress().is_some() || !matches!(next.step.place(), Place::Away | Place::Booted | Place::Back) {
        return None;
    }
    let continued = |slot: &Slot| {
        let update = ended::to_continue(node, slot).filter(|_| slot.uid == node.facts.uid);
        update.is_some_and(|update| (update.attempt, &update.version) == (next.attempt, &next.version))
    };
    if view.slots().any(continued) {
        return None;
    }
    broken("S12", format!("attempt {} goes on in {:?}, which no slot of the node records", next.attempt, next.step))
}

/// S12 again: no node proves a version while a user holds it with the operator's cordon.
pub(super) fn check_proof(node: &NodeView, action: &Action) -> Option<Broken> {
    let Action::Status { status, .. } = action else { return None };
    let proof = status.report.record.as_ref()?.proof.as_ref().filter(|proof| proof.proof == Proof::Proven)?;
    let is_new = node.record().and_then(|record| record.proof.as_ref()) != Some(proof);
    if is_new && node.facts.held() && node.facts.claims.has(ClaimField::Cordon) {
        return broken("S12", format!("{} is proven although no workload can come to the node", proof.version));
    }
    None
}

/// S13: without a usable policy no attempt goes on towards its reboot, and to a version that the policy excludes none is permitted,
/// unless one is already.
pub(super) fn check_stopped(policy: &Policy, node: &NodeView, action: &Action) -> Option<Broken> {
    let shadow = node.shadow.as_ref()?;
    if shadow.spec.permit.is_some() {
        return None;
    }
    let permits = matches!(action, Action::Permit { .. });
    // A node that is registered again goes on in `Rebooting` after a permit of its earlier shadow.
    let goes_on = |next: Step| {
        let leads = matches!(next.place(), Place::Leaving | Place::Away);
        leads && node.step().is_some_and(|step| step != next)
    };
    let is_before = node.step().is_some_and(|step| matches!(step.place(), Place::Waiting | Place::Leaving));
    let leads = match action {
        Action::Permit { .. } => true,
        // One that is there already may be signed again.
        Action::Spec { spec } => {
            let requires = |spec: &BottlerocketShadowSpec| spec.state == HostState::RebootedIntoUpdate;
            requires(spec) && !requires(&shadow.spec)
        }
        Action::Claim { .. } => is_before && !node.facts.claimed(),
        action => action.next_step().is_some_and(goes_on),
    };
    if !policy.is_usable() && leads {
        return broken("S13", "its attempt goes on without a usable policy");
    }
    let version = &node.update().filter(|_| permits)?.version;
    let (variant, arch) = kind(node);
    let rule = policy.exclude.iter().find(|exclusion| exclusion.covers(variant, arch, version))?;
    broken("S13", format!("its reboot to {version} is permitted, which the policy excludes ({rule})"))
}

/// S2 and S3: the desired state to reboot names the node's current boot and comes after the drain.
pub(super) fn check_reboot(node: &NodeView, action: &Action) -> Option<Broken> {
    let Action::Spec { spec } = action else { return None };
    if spec.state != HostState::RebootedIntoUpdate {
        return None;
    }
    if spec.boot_id.as_deref() != Some(node.facts.boot_id.as_str()) {
        return broken("S2", "the desired reboot is for another boot");
    }
    let progress = node.progress();
    if !progress.is_some_and(|p| p.step == Step::Rebooting && p.attempt == spec.attempt && p.disruptive) {
        return broken("S3", "the desired reboot comes before the drain");
    }
    None
}

/// S2 again: no drill requires a reboot, goes to a step of one, or permits one; and no update gets a rehearsal's exceptions.
pub(super) fn check_drill(node: &NodeView, action: &Action) -> Option<Broken> {
    let progress = node.progress()?;
    let drill = progress.drill.as_ref();
    let state = node.shadow.as_ref()?.spec.state;
    match action {
        Action::Spec { spec } if drill.is_some() && spec.state == HostState::RebootedIntoUpdate => {
            broken("S2", "a drill requires a reboot")
        }
        Action::Spec { spec } if drill.is_none() && spec.state == HostState::RehearsedUpdate => {
            broken("S2", "an update requires a rehearsal")
        }
        Action::Status { .. } if drill.is_some() => {
            let next = Phase::of_step(action.next_step()?)?;
            if (next.of)(progress.mode()) { None } else { broken("S2", "a drill goes to a step of a reboot") }
        }
        Action::Permit { .. } if drill.is_some() && state != HostState::RehearsedUpdate => {
            broken("S2", "a drill permits a reboot")
        }
        Action::Permit { pods_stay: true, .. } if drill.is_none_or(|drill| drill.evict) => {
            broken("S3", "a permit is issued with pods on the node")
        }
        _ => None,
    }
}
