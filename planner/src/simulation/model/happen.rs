//! The effects of actions.

use std::sync::Arc;

use jiff::Timestamp;
use models::time::after;

use super::machine;
use super::moves::{LEASE, Move, is_outstanding};
use super::state::{Controller, Object, State};
use super::write::{What, Write};
use super::{World, judge, pod};
use crate::claims::{ClaimField, ClaimFields};
use crate::fixtures::set_ready;
use crate::hold::Hold;
use crate::view::LeaseObservations;

/// Returns the state after it.
pub(super) fn after_move(before: &State, world: &World, happens: &Move) -> State {
    let mut state = before.clone();
    state.faults += u8::from(happens.is_fault());
    match happens {
        Move::TimePasses(to) | Move::IsDelayed(to) => {
            state.now = *to;
            state.waited = if is_outstanding(before) { state.waited + 1 } else { 0 };
        }
        Move::ComesFirst(node) => (state.first, state.turns) = (*node, state.turns + 1),
        Move::Rests => {
            state.breaks(judge::rest(&state));
            return state;
        }
        Move::PlanIsRefused(_, text) => state.breaks(Some(("lint", text.clone()))),
        Move::Sends(index, write) => send(&mut state, world, *index, write),
        Move::SendsLate(index, write) => {
            state.breaks(judge::decision(&state, world, &state.controllers[*index], write));
            if let What::Operator(_) = write.what {
                state.controllers[*index].remember(write, state.now);
            }
            state.late.push(write.clone());
        }
        Move::Arrives(index) => {
            let write = state.late.remove(*index);
            write.arrive(&mut state, true);
        }
        _ => happen_to_machine(&mut state, world, happens),
    }
    // A write that would be refused has no effect, whenever it arrives.
    let mut late = std::mem::take(&mut state.late);
    late.retain(|late| !late.is_refused(&state));
    state.late = late;
    let mut controllers = std::mem::take(&mut state.controllers);
    for controller in controllers.iter_mut().filter(|controller| controller.leads) {
        controller.observe(&state.truth, &state.operator, state.now);
    }
    state.controllers = controllers;
    state.breaks(judge::always(&state, world));
    state
}

fn send(state: &mut State, world: &World, index: usize, write: &Arc<Write>) {
    state.breaks(judge::decision(state, world, &state.controllers[index], write));
    state.controllers[index].remember(write, state.now);
    if let Some(left) = &mut state.controllers[index].deposed {
        *left -= 1;
    }
    write.arrive(state, false);
    let mut controllers = std::mem::take(&mut state.controllers);
    controllers[index].read_back(write, &state.truth, &state.operator);
    state.controllers = controllers;
}

fn happen_to_machine(state: &mut State, world: &World, happens: &Move) {
    match *happens {
        Move::AgentSteps(node) => machine::step(state, node, true),
        Move::ReportIsSwallowed(node) => machine::step(state, node, false),
        Move::GoesDown(node) => machine::goes_down(state, node),
        Move::Boots(node) => machine::boots(state, node, world.bounds.boots),
        Move::FallsBack(node) => machine::boots(state, node, false),
        Move::KubeletReports(node) => machine::kubelet_reports(state, node),
        Move::UserReboots(node) => {
            state.change_machine(node, |machine| machine.taken |= machine.host.armed);
            machine::boots(state, node, world.bounds.boots);
        }
        Move::LingersInShutdown(node) => {
            state.change_machine(node, |machine| machine.lingers = true);
            not_ready(state, node);
        }
        Move::NotReadyIsSeen(node) => not_ready(state, node),
        Move::AgentStops(node) => state.change_machine(node, |machine| machine.agent_runs = false),
        Move::AgentStarts(node) => {
            let reported = state.truth[node].shadow.as_ref().map(|shadow| shadow.value.status.agent.clone());
            state.change_machine(node, |machine| {
                // Another process, which begins with what the web API has.
                (machine.agent_runs, machine.host.asked) = (true, None);
                machine.agent = reported.unwrap_or_default();
            });
        }
        Move::ShowsEarlier(node, index) => state.change_machine(node, |machine| {
            machine.shown = Some(machine.earlier[index].clone());
        }),
        Move::ShowsPresent(node) => state.change_machine(node, |machine| machine.shown = None),
        Move::ReportIsRepeated(node) => {
            if let Some(report) = state.machine(node).reported.clone() {
                state.change_shadow(node, |shadow| shadow.status.agent = (*report).clone());
            }
        }
        Move::ReportsAgain(node) => {
            let report = state.machine(node).agent.clone();
            state.change_shadow(node, |shadow| shadow.status.agent = report);
        }
        Move::Lies(node, lie) => machine::lies(state, node, lie),
        Move::ReleaseIsWithdrawn => {
            for node in 0..state.machines.len() {
                state.change_machine(node, |machine| machine.offered = vec![super::NEWER, super::OLD]);
            }
        }
        _ => happen_to_objects(state, world, happens),
    }
}

fn not_ready(state: &mut State, node: usize) {
    let now = state.now;
    state.change_node(node, |facts| set_ready(facts, false, now));
}

fn happen_to_objects(state: &mut State, world: &World, happens: &Move) {
    let now = state.now;
    match *happens {
        Move::PodEnds(node) => state.change_pods(node, |pods| pods.retain(|pod| !pod.terminating)),
        Move::PodIsBound(node) => {
            let name = format!("bound{}", state.faults);
            state.change_pods(node, |pods| pods.push(pod(node, &name)));
        }
        Move::HookAnswers(node) => state.change_node(node, |facts| {
            facts.hook_answers.extend(facts.hook_request.clone().map(|request| ("slow".into(), request)));
        }),
        Move::UserCordons(node) => {
            state.cordoned[node] = true;
            state.change_node(node, |facts| {
                (facts.unschedulable, facts.cordoned_since) = (true, facts.cordoned_since.or(Some(now)));
            });
        }
        Move::UserHolds(node) => state.change_node(node, |facts| facts.hold = Some(Hold::default())),
        Move::UserAnnotates(node) => state.change_node(node, |facts| {
            facts.set_otherwise = ClaimFields::from_iter([ClaimField::ScaleDown]);
        }),
        Move::UserEditsPolicy(policy) => {
            let mut facts = state.operator.value.clone();
            facts.generation = i64::try_from(policy).unwrap();
            facts.spec = world.specs[policy].clone();
            state.operator = state.operator.written(facts);
        }
        Move::NodeIsDeleted(node) => {
            // The shadow goes with it.
            (state.truth[node].node, state.truth[node].shadow, state.cordoned[node]) = (None, None, false);
        }
        Move::Registers(node) => registers(state, node),
        Move::EarlierOperatorComes => state.earlier_operator = true,
        Move::EarlierOperatorLeaves => state.earlier_operator = false,
        _ => happen_to_controller(state, world, happens),
    }
}

/// Has the kubelet register its Node again.
fn registers(state: &mut State, node: usize) {
    let machine = state.machine(node);
    let mut facts = super::node(node).facts;
    facts.uid.push('+');
    (facts.boot_id, facts.os_image) = (machine.boot_id.clone(), machine.os_image.clone());
    state.truth[node].node = Some(Object::new(facts, 1_000_000));
}

fn happen_to_controller(state: &mut State, world: &World, happens: &Move) {
    let now = state.now;
    match *happens {
        Move::CatchesUp(index, kind) => state.controllers[index].behind[kind as usize] = false,
        Move::FallsBehind(index, kind) => state.controllers[index].behind[kind as usize] = true,
        Move::Notices(index) => state.controllers[index] = Controller::new(state, false),
        Move::Crashes(index) | Move::LeasePasses(index) => {
            state.now = after(now, LEASE);
            let other = 1 - index;
            state.controllers[other] = Controller::leader(state, &world.bounds);
            if let Move::Crashes(_) = happens {
                state.controllers[index] = Controller::new(state, false);
            } else {
                state.controllers[index].deposed = Some(1);
            }
        }
        Move::ReadsLease(index, node) => {
            let machine = state.machine(node);
            let renewed = if machine.up { state.now } else { Timestamp::UNIX_EPOCH };
            let memory = &mut state.controllers[index].memory[node];
            memory.lease = Some(LeaseObservations::add(memory.lease, Some(renewed), now));
        }
        _ => unreachable!("{happens:?}"),
    }
}
