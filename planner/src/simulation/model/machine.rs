//! Hosts, their agents, and the web API between them and the API server.

use std::sync::Arc;

use models::permit::SHUTDOWN_LIMIT;
use models::shadow::{AgentReport, Armed, ArmedPhase, BottlerocketShadowSpec, HostState};
use models::time::after;

use super::state::{Machine, State, Verified};
use super::write::signature;
use super::{NAMES, NEW, judge};
use crate::fixtures::set_ready;
use crate::view::{NodeFacts, NodeView, ShadowFacts};

/// An untrue agent status that a hostile web API writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    Staged,
    Rebooted,
    NeverArmed,
    RequestsPermit,
}

impl Lie {
    pub(super) const ALL: [Self; 4] = [Self::Staged, Self::Rebooted, Self::NeverArmed, Self::RequestsPermit];

    fn change(self, agent: &mut AgentReport, spec: &BottlerocketShadowSpec, generation: i64) {
        agent.observed_generation = Some(generation);
        match self {
            Self::Staged => agent.state = Some(HostState::StagedUpdate),
            Self::Rebooted => {
                (agent.state, agent.armed) = (Some(HostState::RebootedIntoUpdate), None);
                agent.current_version.clone_from(&spec.version);
            }
            Self::NeverArmed => (agent.state, agent.armed) = (Some(HostState::Idle), None),
            Self::RequestsPermit => {
                let (Some(boot_id), Some(version)) = (spec.boot_id.clone(), spec.version.clone()) else { return };
                let (attempt, nonce, phase) = (spec.attempt, "forged".into(), ArmedPhase::Arming);
                agent.armed = Some(Armed { attempt, boot_id, version, phase, nonce });
            }
        }
    }
}

/// The outcome of a step of an agent: its machine, and whether anything has changed.
pub(super) fn agent_step(state: &State, node: usize) -> Option<Machine> {
    let before = state.machine(node);
    let mut machine = before.clone();
    let shadow = state.truth[node].shadow.as_ref()?;
    if !machine.up || !machine.agent_runs || machine.permitted.is_some() {
        return None;
    }
    let (mut spec, generation) = match &machine.shown {
        Some(shown) => (shown.0.clone(), shown.1),
        None => (shadow.value.spec.clone(), shadow.value.generation),
    };
    let uid = shadow.value.owner_uid.clone()?;
    let verified = spec.permit.take().filter(|permit| is_signed(&spec, &uid, &permit.nonce, &permit.jws));
    spec.permit = verified;
    let facts = NodeFacts { name: NAMES[node].into(), boot_id: machine.boot_id.clone(), ..NodeFacts::default() };
    let mut own = ShadowFacts { spec, generation, ..ShadowFacts::default() };
    own.status.agent = std::mem::take(&mut machine.agent);
    let mut view = NodeView { facts, shadow: Some(Box::new(own)), ..NodeView::default() };
    let offered = machine.offered.clone();
    machine.host.agent_step(&mut view, &offered, true, state.now);
    let own = view.shadow?;
    machine.agent = own.status.agent;
    if machine.host.cleared {
        // The call that reboots the host.
        machine.host.cleared = false;
        let spec = own.spec;
        let (boot_id, attempt, version) = (spec.boot_id?, spec.attempt, spec.version?);
        machine.permitted = Some((Verified { node_uid: uid, boot_id, attempt, version }, state.now));
    }
    let same = machine.host == before.host && machine.agent == before.agent && machine.permitted == before.permitted;
    (!same).then_some(machine)
}

/// Returns whether the API server has another report than the agent's last one.
pub(super) fn is_reported_otherwise(state: &State, node: usize) -> bool {
    state.truth[node].shadow.as_ref().is_some_and(|shadow| shadow.value.status.agent != state.machine(node).agent)
}

fn is_signed(spec: &BottlerocketShadowSpec, uid: &str, nonce: &str, jws: &str) -> bool {
    let (Some(boot_id), Some(version)) = (&spec.boot_id, &spec.version) else { return false };
    jws == signature(uid, boot_id, spec.attempt, version, nonce)
}

/// Carries out a step of an agent. Its report reaches the API server, unless a hostile web API swallows it and says that it has.
pub(super) fn step(state: &mut State, node: usize, reaches: bool) {
    let Some(mut machine) = agent_step(state, node) else { return };
    if machine.host.armed && !state.machine(node).host.armed {
        state.breaks(judge::activation(state, node, &machine));
    }
    let (before, report) = (&state.machine(node).agent, machine.agent.clone());
    if report != *before {
        machine.reported = Some(Arc::new(before.clone()));
    }
    state.change_machine(node, |own| *own = machine);
    if reaches {
        state.change_shadow(node, |shadow| shadow.status.agent = report);
    }
}

/// Ends the host by the permit that its agent has verified.
pub(super) fn goes_down(state: &mut State, node: usize) {
    state.breaks(judge::reboot(state, node));
    state.change_machine(node, |machine| {
        machine.up = false;
        machine.taken |= machine.permitted.is_some() && machine.host.armed;
        machine.verified = false;
    });
}

/// Boots the host, into the version that is armed unless that does not boot.
pub(super) fn boots(state: &mut State, node: usize, into_armed: bool) {
    let reported = state.truth[node].shadow.as_ref().map(|shadow| shadow.value.status.agent.clone());
    state.change_machine(node, |machine| {
        let facts = NodeFacts { os_image: machine.os_image.clone(), ..NodeFacts::default() };
        let mut view = NodeView { facts, ..NodeView::default() };
        machine.host.boot(&mut view, into_armed);
        (machine.boot_id, machine.os_image) = (view.facts.boot_id, view.facts.os_image);
        (machine.up, machine.permitted, machine.lingers) = (true, None, false);
        machine.taken &= machine.host.runs == NEW;
        // The new process begins with what the web API has of it.
        machine.agent = reported.unwrap_or_default();
        (machine.agent_runs, machine.shown) = (true, None);
    });
}

/// Has the kubelet report the boot that runs.
pub(super) fn kubelet_reports(state: &mut State, node: usize) {
    let now = state.now;
    let (boot_id, os_image) = (state.machine(node).boot_id.clone(), state.machine(node).os_image.clone());
    state.change_node(node, |facts| {
        (facts.boot_id, facts.os_image) = (boot_id, os_image);
        // A Node that was not seen to go down shows no time.
        if !facts.ready {
            set_ready(facts, true, now);
        }
    });
    state.change_machine(node, |machine| machine.ready_since = now);
}

/// Returns whether the kubelet has something to report.
pub(super) fn kubelet_has_news(state: &State, node: usize) -> bool {
    let machine = state.machine(node);
    let facts = state.truth[node].node.as_ref().map(|node| &node.value);
    machine.up && !machine.lingers && facts.is_some_and(|facts| facts.boot_id != machine.boot_id || !facts.ready)
}

/// Writes what no agent has reported.
pub(super) fn lies(state: &mut State, node: usize, lie: Lie) {
    state.change_shadow(node, |shadow| {
        let (spec, generation) = (shadow.spec.clone(), shadow.generation);
        lie.change(&mut shadow.status.agent, &spec, generation);
    });
}

/// Returns the time by which a host that goes down is gone.
pub(super) fn gone_by(machine: &Machine) -> Option<jiff::Timestamp> {
    let (_, at) = machine.permitted.as_ref().filter(|_| machine.up && !machine.lingers)?;
    Some(after(*at, SHUTDOWN_LIMIT))
}
