//! Actions: all that may happen next in a state, and its effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::permit::PERMIT_LIFETIME;
use models::time::after;

use super::machine::{self, Lie};
use super::state::{Controller, Kind, Object, State};
use super::write::{What, Write};
use super::{NAMES, START, World, judge, pod};
use crate::claims::{ClaimField, ClaimFields};
use crate::hold::Hold;
use crate::view::LeaseObservations;

/// The number of times that time passes before what may take any time happens.
const PATIENCE: u8 = 6;

/// The time after which the Lease of a controller that does not renew it passes to another one.
const LEASE: Duration = Duration::from_secs(15);

/// A time in which whatever is under way has gone on.
const LONG: Duration = Duration::from_mins(10);

/// One thing that happens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    // What the operator and its cluster do without faults.
    Sends(usize, Arc<Write>),
    ReadsLease(usize, usize),
    AgentSteps(usize),
    GoesDown(usize),
    Boots(usize),
    KubeletReports(usize),
    PodEnds(usize),
    TimePasses(Timestamp),
    ComesFirst(usize),
    Rests,
    // What ends a fault, or may take any time.
    Arrives(usize),
    CatchesUp(usize, Kind),
    Notices(usize),
    NotReadyIsSeen(usize),
    HookAnswers(usize),
    ShowsPresent(usize),
    ReportsAgain(usize),
    AgentStarts(usize),
    Registers(usize),
    EarlierOperatorLeaves,
    // Faults.
    SendsLate(usize, Arc<Write>),
    FallsBehind(usize, Kind),
    LeasePasses(usize),
    Crashes(usize),
    IsDelayed(Timestamp),
    FallsBack(usize),
    LingersInShutdown(usize),
    UserReboots(usize),
    UserCordons(usize),
    UserHolds(usize),
    UserAnnotates(usize),
    UserEditsPolicy(usize),
    ReleaseIsWithdrawn,
    AgentStops(usize),
    NodeIsDeleted(usize),
    PodIsBound(usize),
    EarlierOperatorComes,
    ReportIsSwallowed(usize),
    ReportIsRepeated(usize),
    ShowsEarlier(usize, usize),
    Lies(usize, Lie),
    // A finding of the plan validator.
    PlanIsRefused(usize, String),
}

/// All that may happen next.
#[derive(Default)]
struct Next {
    /// Happens before time passes, unless it is delayed.
    soon: Vec<Move>,
    /// May take any time.
    sometime: Vec<Move>,
    faults: Vec<Move>,
    wake: Option<Timestamp>,
}

impl Next {
    fn wakes(&mut self, at: Option<Timestamp>) {
        self.wake = [self.wake, at].into_iter().flatten().min();
    }
}

/// Returns all that may happen next.
pub(super) fn next(state: &State, world: &World) -> Vec<Move> {
    if state.broken.is_some() {
        return Vec::new();
    }
    let mut next = Next::default();
    for index in 0..state.controllers.len() {
        of_controller(state, world, index, &mut next);
    }
    for node in 0..state.truth.len() {
        of_machine(state, node, &mut next);
        of_objects(state, node, &mut next);
        faults_of_machine(state, node, &mut next);
        faults_of_objects(state, node, &mut next);
    }
    of_cluster(state, world, &mut next);
    let Next { soon, sometime, faults, wake } = next;
    let is_early = wake.is_some_and(|wake| wake > state.now && wake < after(START, world.bounds.span));
    let is_early = is_early && (sometime.is_empty() || state.waited < PATIENCE);
    let passes = is_early && gone_by(state).is_none_or(|gone| wake <= Some(gone));
    let may_fail = state.faults < world.bounds.faults;
    let rests = soon.is_empty() && sometime.is_empty() && wake.is_none_or(|wake| wake > after(state.now, LONG));
    let mut moves = in_turn(state, world, soon);
    moves.extend(rests.then_some(Move::Rests));
    if let Some(wake) = wake.filter(|_| passes) {
        if moves.is_empty() || rests {
            moves.push(Move::TimePasses(wake));
        } else if may_fail {
            moves.push(Move::IsDelayed(wake));
        }
    }
    moves.extend(sometime);
    if may_fail {
        moves.extend(faults);
    }
    moves
}

/// Returns whether something is outstanding that may take any time.
fn is_outstanding(state: &State) -> bool {
    let mut next = Next::default();
    for (index, controller) in state.controllers.iter().enumerate().filter(|(_, controller)| controller.leads) {
        if controller.deposed.is_some() || controller.behind.contains(&true) {
            next.sometime.push(Move::Notices(index));
        }
    }
    for node in 0..state.truth.len() {
        of_machine(state, node, &mut next);
        of_objects(state, node, &mut next);
    }
    !next.sometime.is_empty() || !state.late.is_empty() || state.earlier_operator
}

/// Returns the time by which the next host that goes down is gone.
fn gone_by(state: &State) -> Option<Timestamp> {
    state.machines.iter().filter_map(|machine| machine::gone_by(&machine.value)).min()
}

/// Returns what the node whose turn it is does, and the turns of others as long as they may come first.
fn in_turn(state: &State, world: &World, soon: Vec<Move>) -> Vec<Move> {
    let Some(turns) = world.bounds.turns else { return soon };
    let nodes = state.truth.len();
    let rank = |node: usize| (node + nodes - state.first) % nodes;
    let mut waiting: Vec<usize> = soon.iter().filter_map(Move::node).collect();
    waiting.sort_unstable_by_key(|node| rank(*node));
    waiting.dedup();
    let turn = waiting.first().copied();
    let mut moves = soon;
    moves.retain(|happens| happens.node().is_none_or(|node| Some(node) == turn));
    if state.turns < turns {
        moves.extend(waiting.into_iter().skip(1).map(Move::ComesFirst));
    }
    moves
}

fn of_controller(state: &State, world: &World, index: usize, next: &mut Next) {
    let controller = &state.controllers[index];
    if !controller.leads {
        return;
    }
    let choices = controller.choices(state, world);
    if let Some(finding) = choices.findings.first() {
        next.sometime.push(Move::PlanIsRefused(index, format!("{}: {}", finding.property, finding.text)));
    }
    let leads = controller.deposed.is_none();
    for write in choices.writes {
        if leads {
            next.faults.push(Move::SendsLate(index, write.clone()));
            next.soon.push(Move::Sends(index, write));
        } else if controller.deposed > Some(0) {
            next.sometime.push(Move::Sends(index, write));
        }
    }
    for kind in Kind::ALL {
        if controller.behind[kind as usize] {
            next.sometime.push(Move::CatchesUp(index, kind));
        } else if leads {
            next.faults.push(Move::FallsBehind(index, kind));
        }
    }
    if leads {
        next.soon.extend(choices.reads.into_iter().map(|node| Move::ReadsLease(index, node)));
        if gone_by(state).is_none_or(|gone| after(state.now, LEASE) <= gone) {
            next.faults.extend([Move::LeasePasses(index), Move::Crashes(index)]);
        }
        next.wakes(choices.wake.filter(|wake| *wake > state.now));
    } else {
        next.sometime.push(Move::Notices(index));
    }
}

fn of_machine(state: &State, node: usize, next: &mut Next) {
    let machine = state.machine(node);
    if let Some(after) = machine::agent_step(state, node) {
        next.soon.push(Move::AgentSteps(node));
        if after.agent != machine.agent {
            next.faults.push(Move::ReportIsSwallowed(node));
        }
    }
    if machine.permitted.is_some() && machine.up {
        let list = if machine.lingers { &mut next.sometime } else { &mut next.soon };
        list.push(Move::GoesDown(node));
        if !machine.lingers {
            next.faults.push(Move::LingersInShutdown(node));
        }
    }
    if !machine.up {
        next.soon.push(Move::Boots(node));
    }
    if machine::kubelet_has_news(state, node) {
        next.soon.push(Move::KubeletReports(node));
    }
    let asked = machine.host.asked.filter(|_| machine.agent_runs && machine.up && machine.permitted.is_none());
    next.wakes(asked.map(|asked| after(asked, PERMIT_LIFETIME)).filter(|at| *at > state.now));
    if machine.up && machine.agent_runs && machine::is_reported_otherwise(state, node) {
        next.sometime.push(Move::ReportsAgain(node));
    }
    if machine.shown.is_some() {
        next.sometime.push(Move::ShowsPresent(node));
    }
    if !machine.agent_runs && machine.up {
        next.sometime.push(Move::AgentStarts(node));
    }
}

fn of_objects(state: &State, node: usize, next: &mut Next) {
    let (truth, machine) = (&state.truth[node], state.machine(node));
    if truth.pods.value.iter().any(|pod| pod.terminating) {
        next.soon.push(Move::PodEnds(node));
    }
    let Some(facts) = &truth.node else { return next.sometime.push(Move::Registers(node)) };
    let facts = &facts.value;
    if !machine.up && facts.ready {
        next.sometime.push(Move::NotReadyIsSeen(node));
    }
    if facts.hook_request.is_some() && facts.hook_answers.get("slow") != facts.hook_request.as_ref() {
        next.sometime.push(Move::HookAnswers(node));
    }
}

fn of_cluster(state: &State, world: &World, next: &mut Next) {
    next.sometime.extend((0..state.late.len()).map(Move::Arrives));
    if state.earlier_operator {
        next.sometime.push(Move::EarlierOperatorLeaves);
    } else {
        next.faults.push(Move::EarlierOperatorComes);
    }
    if state.operator.value.generation == 0 {
        next.faults.extend([world.excluding, world.invalid].map(Move::UserEditsPolicy));
    }
    if state.machine(0).offered.contains(&super::NEW) {
        next.faults.push(Move::ReleaseIsWithdrawn);
    }
}

fn faults_of_machine(state: &State, node: usize, next: &mut Next) {
    let machine = state.machine(node);
    let faults = &mut next.faults;
    if !machine.up {
        return faults.extend(machine.host.armed.then_some(Move::FallsBack(node)));
    }
    faults.push(Move::UserReboots(node));
    if machine.agent_runs {
        faults.push(Move::AgentStops(node));
    }
    if machine.shown.is_none() {
        faults.extend((0..machine.earlier.len()).map(|index| Move::ShowsEarlier(node, index)));
    }
}

fn faults_of_objects(state: &State, node: usize, next: &mut Next) {
    let truth = &state.truth[node];
    let Some(facts) = truth.node.as_ref().map(|node| &node.value) else { return };
    let faults = &mut next.faults;
    faults.push(Move::NodeIsDeleted(node));
    if !facts.held() {
        faults.push(Move::UserHolds(node));
    }
    if !state.cordoned[node] {
        faults.push(Move::UserCordons(node));
    }
    if !facts.claimed() && facts.set_otherwise.is_empty() {
        faults.push(Move::UserAnnotates(node));
    }
    let Some(shadow) = &truth.shadow else { return };
    // Between the live check and the write of the permit, which take 15 s at most, none is bound to a cordoned node.
    let checked = state.late.iter().any(|late| late.node == node && matches!(late.what, What::Permit(_)));
    if facts.unschedulable && shadow.value.spec.permit.is_none() && !checked {
        faults.push(Move::PodIsBound(node));
    }
    if state.machine(node).reported.is_some() {
        faults.push(Move::ReportIsRepeated(node));
    }
    if shadow.value.status.controller.progress.is_some() {
        faults.extend(Lie::ALL.map(|lie| Move::Lies(node, lie)));
    }
}

impl Move {
    /// Returns the node whose turn it is part of; `None` if it belongs to none.
    fn node(&self) -> Option<usize> {
        match self {
            Self::Sends(_, write) if !matches!(write.what, What::Operator(_)) => Some(write.node),
            Self::ReadsLease(_, node)
            | Self::AgentSteps(node)
            | Self::GoesDown(node)
            | Self::Boots(node)
            | Self::KubeletReports(node)
            | Self::PodEnds(node) => Some(*node),
            _ => None,
        }
    }

    fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::SendsLate(..)
                | Self::FallsBehind(..)
                | Self::LeasePasses(_)
                | Self::Crashes(_)
                | Self::IsDelayed(_)
                | Self::FallsBack(_)
                | Self::LingersInShutdown(_)
                | Self::UserReboots(_)
                | Self::UserCordons(_)
                | Self::UserHolds(_)
                | Self::UserAnnotates(_)
                | Self::UserEditsPolicy(_)
                | Self::ReleaseIsWithdrawn
                | Self::AgentStops(_)
                | Self::NodeIsDeleted(_)
                | Self::PodIsBound(_)
                | Self::EarlierOperatorComes
                | Self::ReportIsSwallowed(_)
                | Self::ReportIsRepeated(_)
                | Self::ShowsEarlier(..)
                | Self::Lies(..)
        )
    }
}

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
    // What would be refused has no effect, whenever it arrives.
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
    state.change_node(node, |facts| (facts.ready, facts.not_ready_since) = (false, Some(now)));
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
            // Its shadow goes with it.
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
    let mut facts = world_node(node);
    facts.uid.push('+');
    (facts.boot_id, facts.os_image) = (machine.boot_id.clone(), machine.os_image.clone());
    state.truth[node].node = Some(Object::new(facts, 1_000_000));
}

fn world_node(node: usize) -> crate::view::NodeFacts {
    super::node(node).facts
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

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: &usize| NAMES[*node];
        match self {
            Self::Sends(index, write) => write!(f, "controller {index} writes: {write}"),
            Self::SendsLate(index, write) => write!(f, "controller {index} sends, and it does not arrive yet: {write}"),
            Self::ReadsLease(index, node) => write!(f, "controller {index} reads the Lease of {}", name(node)),
            Self::AgentSteps(node) => write!(f, "the agent of {} takes a step and reports", name(node)),
            Self::GoesDown(node) => write!(f, "the host {} goes down by its permit", name(node)),
            Self::Boots(node) => write!(f, "the host {} boots", name(node)),
            Self::KubeletReports(node) => write!(f, "the kubelet of {} reports its boot", name(node)),
            Self::PodEnds(node) => write!(f, "the evicted pods of {} end", name(node)),
            Self::TimePasses(_) => write!(f, "time passes to the next moment at which anything is due"),
            Self::Rests => write!(f, "nothing is left to do for a while"),
            Self::ComesFirst(node) => write!(f, "(it is the turn of {})", name(node)),
            Self::Arrives(index) => write!(f, "late write {index} arrives"),
            Self::CatchesUp(index, kind) => write!(f, "controller {index} sees its {kind:?} as they are"),
            Self::Notices(index) => write!(f, "controller {index} notices that it does not lead any more"),
            Self::NotReadyIsSeen(node) => write!(f, "{} is seen not to be Ready", name(node)),
            Self::HookAnswers(node) => write!(f, "the hook of {} answers", name(node)),
            Self::ShowsPresent(node) => write!(f, "the web API shows {} its desired state", name(node)),
            Self::ReportsAgain(node) => write!(f, "the agent of {} finds another report than its own, and repeats it", name(node)),
            Self::AgentStarts(node) => write!(f, "the agent of {} starts", name(node)),
            Self::Registers(node) => write!(f, "{} is registered again", name(node)),
            Self::EarlierOperatorLeaves => write!(f, "the last pod of the earlier operator ends"),
            Self::FallsBehind(index, kind) => write!(f, "FAULT: controller {index} sees nothing new of its {kind:?}"),
            Self::LeasePasses(index) => {
                write!(f, "FAULT: the Lease passes from controller {index}, which goes on for a write")
            }
            Self::Crashes(index) => write!(f, "FAULT: controller {index} crashes, and the other one leads"),
            Self::IsDelayed(_) => write!(f, "FAULT: nothing happens until the next moment at which anything is due"),
            Self::FallsBack(node) => write!(f, "FAULT: the host {} falls back to its old version", name(node)),
            Self::LingersInShutdown(node) => write!(f, "FAULT: the shutdown of {} takes long", name(node)),
            Self::UserReboots(node) => write!(f, "FAULT: a user reboots {}", name(node)),
            Self::UserCordons(node) => write!(f, "FAULT: a user cordons {}", name(node)),
            Self::UserHolds(node) => write!(f, "FAULT: a user holds {}", name(node)),
            Self::UserAnnotates(node) => write!(f, "FAULT: a user sets scale-down-disabled of {} to false", name(node)),
            Self::UserEditsPolicy(policy) => write!(f, "FAULT: a user edits the policy to that of number {policy}"),
            Self::ReleaseIsWithdrawn => write!(f, "FAULT: another release takes the place of the new one"),
            Self::AgentStops(node) => write!(f, "FAULT: the agent of {} stops", name(node)),
            Self::NodeIsDeleted(node) => write!(f, "FAULT: the Node {} is deleted", name(node)),
            Self::PodIsBound(node) => write!(f, "FAULT: a pod is bound to {}", name(node)),
            Self::EarlierOperatorComes => write!(f, "FAULT: a pod of the earlier operator appears"),
            Self::ReportIsSwallowed(node) => {
                write!(f, "FAULT: the agent of {} takes a step, and the web API keeps its report", name(node))
            }
            Self::ReportIsRepeated(node) => write!(f, "FAULT: the web API repeats an earlier report of {}", name(node)),
            Self::ShowsEarlier(node, index) => {
                write!(f, "FAULT: the web API shows {} an earlier desired state, {index}", name(node))
            }
            Self::Lies(node, lie) => write!(f, "FAULT: the web API reports of {}: {lie:?}", name(node)),
            Self::PlanIsRefused(index, text) => write!(f, "the plan validator refuses a plan of controller {index}: {text}"),
        }
    }
}
