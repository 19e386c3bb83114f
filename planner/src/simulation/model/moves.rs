//! Actions: all that may happen next in a state.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use models::permit::PERMIT_LIFETIME;
use models::shadow::Step;
use models::time::after;

use super::machine::{self, Lie};
use super::state::{Kind, State};
use super::write::{What, Write};
use super::{START, World};

/// The number of times that time passes before what may take any time happens.
const PATIENCE: u8 = 6;

/// The time after which the Lease of a controller that does not renew it passes to another one.
pub(super) const LEASE: Duration = Duration::from_secs(15);

/// A time in which whatever is under way has gone on.
const LONG: Duration = Duration::from_mins(10);

/// One thing that happens.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    // The course of the operator and its cluster without faults.
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
    // Ends of faults, and other things that may take any time.
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
pub(super) fn is_outstanding(state: &State) -> bool {
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
    // The scheduler sees a cordon within moments, and not after the live check before a permit.
    let checked = state.late.iter().any(|late| late.node == node && matches!(late.what, What::Permit(_)));
    let permitted = shadow.value.spec.permit.is_some() || state.machine(node).permitted.is_some();
    let is_over = shadow.value.status.controller.progress.as_ref().is_none_or(|p| p.step == Step::Releasing);
    if facts.unschedulable && !permitted && !checked && !is_over {
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

    pub(super) fn is_fault(&self) -> bool {
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
