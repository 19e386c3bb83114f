//! Writes: what guards them at the API server, and their effects.

use std::fmt;
use std::sync::Arc;

use models::operator::BottlerocketUpdateOperatorStatus;
use models::shadow::{BottlerocketShadowSpec, HostState};

use super::digest::Digest;
use super::state::{Object, State, decisive};
use super::{NAMES, judge, view};
use crate::decision::{Action, Evictions};
use crate::plan::ShadowChange;
use crate::simulation::write as simulated;
use crate::view::{NodeView, ShadowFacts};

/// A write, as the controller sends it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    /// An action about a node, but a permit.
    Action(Action),
    /// A desired state with a permit, whose live check was passed.
    Permit(BottlerocketShadowSpec),
    Evict(Evictions),
    Shadow(ShadowChange),
    Operator(Box<BottlerocketUpdateOperatorStatus>),
}

/// A write with its precondition.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) node: usize,
    pub(super) what: What,
    /// The uid and the version of the object that it was decided on; `None` where the API server compares neither.
    pub(super) guard: Option<(String, u32)>,
    pub(super) digest: Digest,
}

impl PartialEq for Write {
    fn eq(&self, other: &Self) -> bool {
        (self.node, &self.what, &self.guard) == (other.node, &other.what, &other.guard)
    }
}

impl Write {
    pub(super) fn new(node: usize, what: What, guard: Option<(String, u32)>) -> Arc<Self> {
        let digest = Digest::of(|digester| {
            digester.add((node, guard.is_some()));
            match &what {
                What::Action(Action::Status { status, .. }) => {
                    digester.json(&(&status.report.progress, &status.report.drain, &status.report.record));
                }
                What::Action(Action::Spec { spec }) => digester.json(spec),
                What::Action(Action::Claim { fields, .. }) => digester.add(format!("claim {fields:?}")),
                What::Action(Action::Hook { request }) => digester.add(("hook", request)),
                What::Action(_) => digester.add("release"),
                What::Permit(spec) => digester.json(spec),
                What::Evict(evictions) => digester.add(format!("{evictions:?}")),
                What::Shadow(change) => digester.add(format!("{change:?}")),
                What::Operator(status) => digester.json(&decisive(status)),
            }
        });
        Arc::new(Self { node, what, guard, digest })
    }

    /// Returns whether the API server refuses it: its object was written, deleted or created again since the decision.
    pub(super) fn is_refused(&self, state: &State) -> bool {
        let truth = &state.truth[self.node];
        let is_other = |now: Option<(&String, u32)>| {
            self.guard.as_ref().is_some_and(|(uid, version)| now != Some((uid, *version)))
        };
        match &self.what {
            What::Operator(_) => is_other(Some((&state.operator.value.uid, state.operator.version))),
            What::Action(Action::Claim { .. } | Action::Release | Action::Hook { .. }) => {
                is_other(truth.node.as_ref().map(|node| (&node.value.uid, node.version)))
            }
            What::Action(_) | What::Permit(_) => {
                is_other(truth.shadow.as_ref().map(|shadow| (&shadow.value.uid, shadow.version)))
            }
            What::Evict(evictions) => {
                !truth.pods.value.iter().any(|pod| evictions.pods.iter().any(|eviction| eviction.uid == pod.uid))
            }
            What::Shadow(ShadowChange::Create { .. }) => truth.shadow.is_some(),
            What::Shadow(ShadowChange::Delete { uid, .. }) => {
                truth.shadow.as_ref().is_none_or(|shadow| shadow.value.uid != *uid)
            }
        }
    }

    /// Carries it out.
    pub(super) fn arrive(&self, state: &mut State, is_late: bool) {
        state.breaks(judge::arrival(state, self, is_late));
        let node = self.node;
        if let What::Action(Action::Claim { .. } | Action::Release) = &self.what {
            let has_slot = state.truth[node].node.as_ref().is_some_and(|node| judge::has_slot(state, &node.value.uid));
            state.change_machine(node, |machine| machine.orphaned = is_late && !has_slot);
        }
        match &self.what {
            What::Operator(status) => {
                let mut facts = state.operator.value.clone();
                facts.status = (**status).clone();
                state.operator = state.operator.written(facts);
            }
            What::Action(action) => {
                if let Action::Spec { spec } = action
                    && spec.state == HostState::Idle
                    && judge::is_soaked(state, node)
                {
                    state.change_machine(node, |machine| machine.verified = true);
                }
                carry_out(state, node, action.clone());
            }
            What::Permit(spec) => carry_out(state, node, Action::Spec { spec: Box::new(spec.clone()) }),
            What::Evict(evictions) => state.change_pods(node, |pods| {
                for pod in pods.iter_mut().filter(|pod| evictions.pods.iter().any(|eviction| eviction.uid == pod.uid)) {
                    pod.terminating = true;
                }
            }),
            What::Shadow(ShadowChange::Delete { .. }) => state.truth[node].shadow = None,
            What::Shadow(ShadowChange::Create { uid, host, .. }) => {
                let spec = BottlerocketShadowSpec { host: Some((**host).clone()), ..BottlerocketShadowSpec::default() };
                let shadow = ShadowFacts {
                    node: NAMES[node].into(),
                    uid: format!("shadow of {uid}"),
                    generation: 1,
                    owner_uid: Some(uid.clone()),
                    spec,
                    ..ShadowFacts::default()
                };
                state.truth[node].shadow = Some(Object::new(shadow, 0));
            }
        }
    }
}

/// Returns the view of a node as it is.
pub(super) fn node_as_it_is(state: &State, node: usize) -> Option<NodeView> {
    let truth = &state.truth[node];
    Some(NodeView { pods: Some(truth.pods.value.clone()), ..view::node_of(truth)? })
}

fn carry_out(state: &mut State, node: usize, action: Action) {
    let Some(mut view) = node_as_it_is(state, node) else { return };
    let before = view.shadow.as_ref().map(|shadow| (shadow.spec.clone(), shadow.generation));
    simulated::write(&mut view, action, state.cordoned[node]);
    state.change_node(node, |facts| *facts = view.facts);
    let Some(shadow) = view.shadow else { return };
    if let Some(before) = before.filter(|(spec, _)| *spec != shadow.spec) {
        state.change_machine(node, |machine| {
            machine.earlier.push(Arc::new(before));
            let many = machine.earlier.len().saturating_sub(view::KEPT);
            machine.earlier.drain(..many);
        });
    }
    state.change_shadow(node, |facts| *facts = *shadow);
}

/// Makes the write of a permit, if the live check of the controller's `issue_permit` finds nothing against it.
pub(super) fn permit(state: &State, node: usize, action: &Action, decided_on: &ShadowFacts) -> Option<What> {
    let Action::Permit { nonce, rules, pods_stay } = action else { return None };
    let mut live = node_as_it_is(state, node)?;
    let facts = &live.facts;
    let may = !facts.held() && facts.labelled && facts.unschedulable && !state.earlier_operator;
    live.shadow = Some(Box::new(decided_on.clone()));
    simulated::permit(&mut live, nonce.clone(), *rules, *pods_stay);
    let mut spec = live.shadow?.spec;
    let own = spec.permit.as_mut().filter(|permit| may && permit.nonce == *nonce && permit.jws.is_empty())?;
    own.jws = signature(&live.facts.uid, spec.boot_id.as_deref()?, spec.attempt, spec.version.as_ref()?, nonce);
    (spec.state == HostState::RebootedIntoUpdate).then_some(What::Permit(spec))
}

/// The signature of a permit, which only the controller can make: what it covers.
pub(super) fn signature(uid: &str, boot_id: &str, attempt: i64, version: &semver::Version, nonce: &str) -> String {
    format!("{uid} {boot_id} {attempt} {version} {nonce}")
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES[self.node];
        match &self.what {
            What::Operator(status) => {
                let slots: Vec<_> = status.slots.iter().map(|slot| slot.node.as_str()).collect();
                write!(f, "operator's status with slots of [{}]", slots.join(", "))
            }
            What::Action(Action::Status { status, .. }) => match &status.report.progress {
                Some(progress) => write!(f, "step {:?} of attempt {} of {name}", progress.step, progress.attempt),
                None => write!(f, "end of the attempt of {name}"),
            },
            What::Action(Action::Spec { spec }) => {
                write!(f, "desired state {:?} of {name}, attempt {}", spec.state, spec.attempt)
            }
            What::Action(Action::Claim { .. }) => write!(f, "claim of {name}"),
            What::Action(Action::Release) => write!(f, "release of {name}"),
            What::Action(Action::Hook { request: Some(_) }) => write!(f, "request to the hooks of {name}"),
            What::Action(Action::Hook { request: None }) => write!(f, "end of the request to the hooks of {name}"),
            What::Action(other) => write!(f, "{other:?} of {name}"),
            What::Permit(spec) => write!(f, "permit of {name}, attempt {}", spec.attempt),
            What::Evict(evictions) => {
                let pods: Vec<_> = evictions.pods.iter().map(|pod| pod.uid.as_str()).collect();
                write!(f, "eviction of {} from {name}", pods.join(", "))
            }
            What::Shadow(ShadowChange::Create { .. }) => write!(f, "creation of the shadow of {name}"),
            What::Shadow(ShadowChange::Delete { .. }) => write!(f, "deletion of the shadow of {name}"),
        }
    }
}
