//! The course of a scenario in virtual time.
//!
//! A turn plans and carries out until nothing is left to do at that moment. Between turns, events happen at their times:
//! agents react, hosts go down and boot, pods end and are replaced.
//!
//! A plan of 100,000 nodes takes too long to make thousands of them. So nodes about which nothing changes are asleep: they are
//! out of the view, and the policy of plans has numbers of nodes where it had percentages of all of them. Of those that wait,
//! the first ones of each class are awake, and more are woken and the plan is made again if it would begin with all of them.
//! And in a large fleet, the turns in between plan only the nodes that have changed and are under way.
//!
//! So a course of 5,000 nodes with 30 pods each takes seconds. While a canary step is due that is a percentage and another
//! number for each variant and architecture, all nodes are awake: with high percentages, such a course takes ten times as
//! long, and larger fleets are slow.

mod acts;
mod asleep;
mod classes;
#[cfg(test)]
mod clusters;
mod event;
mod events;
mod state;
mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use jiff::{SignedDuration, Timestamp};
use models::shadow::{Place, Step};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use self::classes::{Classes, in_numbers, is_plain};
use self::event::Event;
use self::state::{Draw, FRUITLESS, PAUSES, RunState};

pub(super) use self::state::Run;
use super::course::Course;
use super::pods::Pods;
use super::scenario::Scenario;
use crate::view::{ClusterView, NodeView};
use crate::wait::Wait;

impl<'a> Run<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let now = scenario.start;
        let members = &scenario.members;
        let policy = in_numbers(scenario);
        let classes = Classes::of(scenario, &policy);
        let awake = classes.awake();
        let index: HashMap<_, _> = members.iter().enumerate().map(|(index, member)| (member.name(), index)).collect();
        let view = first_view(scenario, &classes);
        let course =
            Course { start: now, end: now, nodes: vec![Default::default(); members.len()], ..Course::default() };
        let mut run = Self {
            scenario,
            policy,
            seed,
            now,
            states: members.iter().map(RunState::of).collect(),
            classes,
            slots: view.slots().filter_map(|slot| index.get(slot.node.as_str()).copied()).collect(),
            view,
            index,
            pods: Pods::of(scenario),
            faults: scenario.faults.clone(),
            events: BinaryHeap::new(),
            sent: 0,
            touched: awake,
            acted: BTreeSet::new(),
            refused: BTreeSet::new(),
            failed: BTreeSet::new(),
            wake: None,
            fruitful: 0,
            planned: None,
            budgets_changed: false,
            course,
            #[cfg(test)]
            away: None,
            #[cfg(test)]
            watch: None,
        };
        run.first_events();
        run
    }

    /// Begins what is under way at the beginning.
    fn first_events(&mut self) {
        for index in self.touched.clone() {
            self.answer_hooks(index);
            let node = &self.scenario.members[index].node;
            // The agent of a node that rests has reported.
            if !is_plain(node) {
                self.react(index);
            }
            // A host that goes down for its update comes back.
            if !self.states[index].up && matches!(node.step().map(Step::place), Some(Place::Away | Place::Booted)) {
                let boot = self.scenario.times.boot.draw(&mut self.rng(index, Draw::Host));
                self.at(boot, Event::Up(index));
            }
        }
        for template in &self.scenario.arriving {
            self.place(*template);
        }
        for (index, template) in &self.scenario.starting {
            let starts = self.scenario.pods[*template as usize].replaced.as_ref();
            let after = starts.map(|span| span.draw(&mut self.rng(*index, Draw::Pod))).unwrap_or_default();
            self.at(after, Event::PodReady(*index, 0, *template));
        }
    }

    /// Simulates until nothing is left to do, or to the horizon.
    pub(super) fn finish(mut self) -> Course {
        let limit = self.now + self.scenario.horizon;
        self.turn(true);
        while !self.is_over()
            && let Some(next) = self.next()
        {
            let fruitless = self.course.plans.saturating_sub(self.fruitful) > FRUITLESS;
            if next > limit || fruitless {
                self.course.cut = true;
                break;
            }
            self.go_on(next);
        }
        self.end()
    }

    /// Returns the time of the next plan of all awake nodes, if nothing happens before.
    fn due(&self) -> Option<Timestamp> {
        let (_, all) = self.pauses();
        let planned = self.planned.unwrap_or(self.now) + all;
        // What changed in between is planned with all others, at the latest.
        let changed = (!self.touched.is_empty()).then_some(planned);
        [self.wake, changed].into_iter().flatten().min().map(|due| due.max(planned))
    }

    /// Returns the time of the next turn; `None` if nothing is left to happen.
    fn next(&self) -> Option<Timestamp> {
        let (turn, _) = self.pauses();
        let event = self.events.peek().map(|Reverse((at, ..))| (*at).max(self.now + turn));
        [event, self.due()].into_iter().flatten().min()
    }

    /// Lets everything happen up to the next turn, and makes it.
    fn go_on(&mut self, next: Timestamp) {
        let (due, (_, all)) = (self.due(), self.pauses());
        let planned = self.planned.unwrap_or(self.now) + all;
        self.pass_time(next);
        let changed = !self.touched.is_empty() || (self.budgets_changed && !self.refused.is_empty());
        if due.is_some_and(|due| due <= next) || (changed && planned <= next) {
            self.turn(true);
        } else if changed {
            self.turn(false);
        }
    }

    /// Lets everything happen up to a time.
    fn pass_time(&mut self, to: Timestamp) {
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= to
        {
            if let Some(Reverse((at, _, event))) = self.events.pop() {
                self.now = at;
                self.happen(event);
            }
        }
        self.now = to;
    }

    /// Counts the nodes that are on the version that policy wants, and those that are not.
    fn end(mut self) -> Course {
        let waits = std::mem::take(&mut self.course.waits);
        let current =
            self.awake(&waits).filter(|(_, node, wait)| node.step().is_none() && *wait == Some(&Wait::UpToDate));
        self.course.current = current.count() + self.classes.resting();
        self.course.behind = self.classes.waiting();
        self.course.waits = waits;
        self.course.waits.retain(|_, wait| !matches!(wait, Wait::UpToDate));
        self.course
    }

    /// Returns the shortest times between two turns, and between two plans of all awake nodes.
    fn pauses(&self) -> (SignedDuration, SignedDuration) {
        let fits = PAUSES.iter().find(|(most, ..)| self.states.len() <= *most);
        let (_, turn, all) = fits.copied().unwrap_or((0, 1, 1));
        (SignedDuration::from_secs(turn), SignedDuration::from_secs(all))
    }

    /// Returns whether the last plan of all awake nodes has found that a node runs what the policy wants.
    fn is_up_to_date(&self, name: &str) -> bool {
        matches!(self.course.waits.get(name), Some(Wait::UpToDate))
    }

    /// Returns whether no node is left that may still be updated.
    fn is_over(&self) -> bool {
        if !self.events.is_empty() || !self.touched.is_empty() {
            return false;
        }
        let idle = self.view.nodes.values().all(|node| node.progress().is_none() && !node.facts.claimed());
        let left = self.course.waits.values().any(|wait| !matches!(wait, Wait::UpToDate));
        idle && ((self.classes.waiting() == 0 && !left) || self.course.freeze.is_some())
    }

    /// Returns a node that is awake.
    fn node(&self, index: usize) -> Option<&NodeView> {
        self.view.nodes.get(self.scenario.members[index].name())
    }

    fn node_mut(&mut self, index: usize) -> Option<&mut NodeView> {
        self.view.nodes.get_mut(self.scenario.members[index].name())
    }

    fn at(&mut self, after: SignedDuration, event: Event) {
        self.sent += 1;
        self.events.push(Reverse((self.now + after, self.sent, event)));
    }

    /// Returns a random number generator for the next draw of a node. What is drawn for one does not depend on others.
    fn rng(&mut self, index: usize, what: Draw) -> StdRng {
        let draws = &mut self.states[index].draws[what as usize];
        *draws += 1;
        let place = ((index as u64) << 33) | (u64::from(*draws) << 1) | what as u64;
        StdRng::seed_from_u64(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place)
    }
}

/// Returns the view at the beginning, with the nodes that are awake.
fn first_view(scenario: &Scenario, classes: &Classes<'_>) -> ClusterView {
    let mut view = ClusterView {
        leader_since: scenario.start.saturating_sub(SignedDuration::from_hours(1)).unwrap_or(scenario.start),
        budgets: scenario.budgets.clone(),
        ..scenario.base.clone()
    };
    let count = view.operator.as_ref().and_then(|operator| operator.status.rollout_count);
    view.history.highest = Some(count.unwrap_or(0));
    for index in classes.awake() {
        let member = &scenario.members[index];
        view.nodes.insert(member.name().to_owned(), member.view());
    }
    view
}
