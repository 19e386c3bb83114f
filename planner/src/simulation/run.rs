//! The course of a scenario in virtual time.
//!
//! A turn plans and carries out until nothing is left to do at that moment. Between turns, events happen at their times:
//! agents react, hosts go down and boot, pods end and are replaced.
//!
//! A plan of 100,000 nodes takes too long to make thousands of them. So nodes about which nothing changes are asleep: they are
//! out of the view, which has their numbers ([`crate::view::UnlistedNodes`]). Of those that wait, the first ones of each class
//! are awake, and more are woken and the plan is made again if it would begin with all of them. And in a large fleet, the
//! turns in between plan only the nodes that have changed and are under way.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use models::shadow::{ArmedPhase, HostState, Step, UPDATED};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::course::{Course, Freeze};
use super::host::Host;
use super::pods::{Place, Pods};
use super::scenario::{Fault, FaultEffect, Scenario};
use crate::drain;
use crate::lint::lint;
use crate::plan::{Action, Plan, Quarantine, order_key, plan};
use crate::view::{Answer, ClusterView, NodeView};
use crate::wait::Wait;

/// The shortest times between two turns, and between two plans of all awake nodes, in seconds, by the number of nodes up to
/// which they hold. The larger the fleet, the less a few seconds count.
const PAUSES: [(usize, i64, i64); 4] = [(250, 1, 1), (2000, 2, 2), (20_000, 5, 10), (usize::MAX, 10, 30)];

/// The number of nodes of a class that are woken at first.
const AHEAD: usize = 16;

/// The highest number of plans of one turn: a plan that always has something to do would not end otherwise.
const ROUNDS: usize = 64;

/// The number of plans after which a simulation ends if no node has gone on to another step: nothing will.
const FRUITLESS: u64 = 20_000;

/// Times after which a staged node whose pods prevented its drain is checked again: at first as the controller does it, and
/// then ever less often, since nothing but the events of the simulation changes its pods.
const CHECK_AGAIN: SignedDuration = SignedDuration::from_secs(60);
const CHECK_AGAIN_LIMIT: SignedDuration = SignedDuration::from_hours(12);

/// An event on a node, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Agent(usize),
    Down(usize),
    Up(usize),
    /// Node, and serial and template of the pod.
    PodEnds(usize, u32, u32),
    PodReady(usize, u32, u32),
    /// A pod of this template on a node that is not under the operator.
    PodReadyElsewhere(u32),
}

/// The subject of a random draw.
#[derive(Clone, Copy)]
enum Draw {
    Host,
    Pod,
}

/// A node.
struct State {
    host: Host,
    class: usize,
    awake: bool,
    /// The view that it sleeps with, where it differs from its beginning.
    view: Option<Box<NodeView>>,
    /// True if it takes pods.
    schedulable: bool,
    up: bool,
    /// The version breaks its pods.
    sick: bool,
    /// The end of the download under way.
    downloads_until: Option<Timestamp>,
    /// Time after which it is checked again where its pods prevent its drain.
    check_again: SignedDuration,
    /// The numbers of draws so far: for its host, and for its pods.
    draws: [u32; 2],
}

/// Nodes that are alike: what lets one of them wait for others lets all of them wait.
#[derive(Default)]
struct Class {
    group: Option<usize>,
    kind: (String, String),
    /// Those that are asleep, in the order of their updates.
    waiting: VecDeque<usize>,
    /// The number to keep awake.
    ahead: usize,
}

pub(super) struct Run<'a> {
    scenario: &'a Scenario,
    seed: u64,
    now: Timestamp,
    view: ClusterView,
    states: Vec<State>,
    classes: Vec<Class>,
    index: HashMap<&'a str, usize>,
    pods: Pods<'a>,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    sent: u64,
    /// Nodes that have changed since they were planned.
    touched: BTreeSet<usize>,
    /// Nodes about which something was written, until they fall asleep.
    acted: BTreeSet<usize>,
    /// Nodes with a failure that counts.
    failed: BTreeSet<usize>,
    wake: Option<Timestamp>,
    /// The number of plans up to the last step of a node.
    fruitful: u64,
    /// Time of the last plan of all awake nodes.
    planned: Option<Timestamp>,
    budgets_changed: bool,
    course: Course,
}

impl<'a> Run<'a> {
    pub(super) fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let now = scenario.start;
        let mut view = ClusterView {
            leader_since: now.saturating_sub(SignedDuration::from_hours(1)).unwrap_or(now),
            budgets: scenario.budgets.clone(),
            ..scenario.base.clone()
        };
        let count = view.operator.as_ref().and_then(|operator| operator.status.rollout_count);
        view.history.highest = Some(count.unwrap_or(0));
        let policy = &scenario.policy;
        let members = &scenario.members;
        let groups: Vec<Option<usize>> = members.iter().map(|member| policy.group_of(&member.node.facts)).collect();
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_cached_key(|index| {
            let member = &members[*index];
            order_key(scenario.base.own_node.as_deref(), groups[*index], member.name(), &member.node)
        });
        let mut classes: Vec<Class> = Vec::new();
        let mut by_key = HashMap::new();
        let mut states: Vec<State> = members
            .iter()
            .zip(&groups)
            .map(|(member, group)| {
                let facts = &member.node.facts;
                let zone = if policy.one_zone_at_a_time { facts.zone() } else { "" };
                let host = (&member.host.runs, member.host.waits_for_wave, &*member.offered);
                let key = (*group, zone, kind(&member.node), host);
                let class = *by_key.entry(key).or_insert_with(|| {
                    classes.push(Class { group: *group, kind: kind(&member.node), ahead: AHEAD, ..Class::default() });
                    classes.len() - 1
                });
                State {
                    host: member.host.clone(),
                    class,
                    awake: false,
                    view: None,
                    schedulable: facts.ready && !facts.unschedulable,
                    up: facts.ready,
                    sick: false,
                    downloads_until: None,
                    check_again: CHECK_AGAIN,
                    draws: [0, 0],
                }
            })
            .collect();
        for index in order {
            let member = &members[index];
            if !scenario.exhaustive && is_plain(&member.node) {
                let class = &mut classes[states[index].class];
                class.waiting.push_back(index);
                *view.unlisted.groups.entry(class.group).or_default() += 1;
                *view.unlisted.kinds.entry(class.kind.clone()).or_default() += 1;
            } else {
                states[index].awake = true;
                view.nodes.insert(member.name().to_owned(), member.view());
            }
        }
        let awake = (0..states.len()).filter(|index| states[*index].awake).collect();
        let course =
            Course { start: now, end: now, nodes: vec![Default::default(); members.len()], ..Course::default() };
        let mut run = Self {
            scenario,
            seed,
            now,
            view,
            states,
            classes,
            index: members.iter().enumerate().map(|(index, member)| (member.name(), index)).collect(),
            pods: Pods::of(scenario),
            events: BinaryHeap::new(),
            sent: 0,
            touched: awake,
            acted: BTreeSet::new(),
            failed: BTreeSet::new(),
            wake: None,
            fruitful: 0,
            planned: None,
            budgets_changed: false,
            course,
        };
        for index in run.touched.clone() {
            // The agent of a node that rests has reported.
            if !is_plain(&members[index].node) {
                run.react(index);
            }
            // A host that goes down for its update comes back.
            if !run.states[index].up && matches!(members[index].node.step(), Some(Step::Rebooting | Step::Returning)) {
                let boot = scenario.times.boot.draw(&mut run.rng(index, Draw::Host));
                run.at(boot, Event::Up(index));
            }
        }
        for template in &scenario.arriving {
            run.place(*template);
        }
        for (index, template) in &scenario.starting {
            let starts = scenario.pods[*template as usize].replaced.clone();
            let after = starts.map(|span| span.draw(&mut run.rng(*index, Draw::Pod))).unwrap_or_default();
            run.at(after, Event::PodReady(*index, 0, *template));
        }
        run
    }

    /// Simulates until nothing is left to do, or to the horizon.
    pub(super) fn finish(mut self) -> Course {
        let limit = self.now + self.scenario.horizon;
        self.turn(true);
        while !self.is_over() {
            let (turn, all) = self.pauses();
            let planned = self.planned.unwrap_or(self.now) + all;
            // What changed in between is planned with all others, at the latest.
            let changed = (!self.touched.is_empty()).then_some(planned);
            let due = [self.wake, changed].into_iter().flatten().min().map(|due| due.max(planned));
            let event = self.events.peek().map(|Reverse((at, ..))| (*at).max(self.now + turn));
            let Some(next) = [event, due].into_iter().flatten().min() else { break };
            let fruitless = self.course.plans.saturating_sub(self.fruitful) > FRUITLESS;
            if next > limit || fruitless {
                self.course.cut = true;
                break;
            }
            while let Some(Reverse((at, ..))) = self.events.peek()
                && *at <= next
            {
                if let Some(Reverse((at, _, event))) = self.events.pop() {
                    self.now = at;
                    self.happen(event);
                }
            }
            self.now = next;
            let refused = self.budgets_changed && self.view.nodes.values().any(|node| !node.blocked.is_empty());
            if due.is_some_and(|due| due <= next) || planned <= next && !self.touched.is_empty() || refused {
                self.turn(true);
            } else if !self.touched.is_empty() {
                self.turn(false);
            }
        }
        let awake = self.view.nodes.iter().filter(|(name, node)| node.progress().is_none() && self.is_up_to_date(name));
        let awake = awake.count();
        let waiting: usize = self.classes.iter().map(|class| class.waiting.len()).sum();
        let away = self.states.iter().filter(|state| !state.awake).count();
        self.course.current = awake + away.saturating_sub(waiting);
        self.course.waits.retain(|_, wait| !matches!(wait, Wait::UpToDate));
        let asleep: usize = self.classes.iter().map(|class| class.waiting.len()).sum();
        self.course.behind = asleep;
        self.course
    }

    /// Returns the shortest times between two turns, and between two plans of all awake nodes.
    fn pauses(&self) -> (SignedDuration, SignedDuration) {
        let fits = PAUSES.iter().find(|(most, ..)| self.states.len() <= *most);
        let (_, turn, all) = fits.copied().unwrap_or((0, 1, 1));
        (SignedDuration::from_secs(turn), SignedDuration::from_secs(all))
    }

    /// Returns whether each turn plans all awake nodes until nothing is left to do.
    fn is_exact(&self) -> bool {
        self.scenario.exhaustive || self.states.len() <= PAUSES[0].0
    }

    /// Returns whether the last plan of all awake nodes has found that a node runs what the policy wants.
    fn is_up_to_date(&self, name: &str) -> bool {
        matches!(self.course.waits.get(name), Some(Wait::UpToDate))
    }

    /// Returns whether no node is left that may still be updated.
    fn is_over(&self) -> bool {
        let waiting = self.classes.iter().any(|class| !class.waiting.is_empty());
        let idle = self.view.nodes.values().all(|node| node.progress().is_none() && !node.facts.claimed());
        if !idle || !self.events.is_empty() {
            return false;
        }
        let left = self.course.waits.values().any(|wait| !matches!(wait, Wait::UpToDate));
        (!waiting && !left) || self.course.freeze.is_some()
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

    /// Lets the agent of a node react to its desired state.
    fn react(&mut self, index: usize) {
        let state = &self.states[index];
        if !state.up {
            return;
        }
        let name = self.scenario.members[index].name();
        let spec = self.view.nodes.get(name).and_then(|node| Some(&node.shadow.as_ref()?.spec));
        let downloads =
            spec.is_some_and(|spec| spec.state == HostState::StagedUpdate && state.host.staged != spec.version);
        let times = &self.scenario.times;
        let after = if downloads { &times.download } else { &times.agent }.draw(&mut self.rng(index, Draw::Host));
        if downloads {
            self.states[index].downloads_until = Some(self.now + after);
        }
        self.at(after, Event::Agent(index));
    }

    /// Returns whether a fault of this effect hits this node's attempt.
    fn fails(&mut self, index: usize, effect: FaultEffect) -> bool {
        let name = self.scenario.members[index].name();
        let version =
            self.view.nodes.get(name).and_then(|node| node.progress().map(|progress| progress.version.clone()));
        let hits = |fault: &&Fault| fault.effect == effect && (fault.version.is_none() || fault.version == version);
        let rates: Vec<f64> = self.scenario.faults.iter().filter(hits).map(|fault| fault.rate).collect();
        rates.into_iter().any(|rate| self.rng(index, Draw::Host).random_bool(rate.clamp(0.0, 1.0)))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Agent(index) => self.agent(index),
            Event::Down(index) => {
                self.states[index].up = false;
                self.states[index].schedulable = false;
                if let Some(node) = self.view.nodes.get_mut(self.scenario.members[index].name()) {
                    node.facts.ready = false;
                }
                self.touched.insert(index);
                let boot = self.scenario.times.boot.draw(&mut self.rng(index, Draw::Host));
                self.at(boot, Event::Up(index));
            }
            Event::Up(index) => self.boots(index),
            Event::PodEnds(index, serial, template) => self.pod_ends(index, serial, template),
            Event::PodReadyElsewhere(template) => {
                self.pods.count(template, 1);
                self.budgets_changed = true;
            }
            Event::PodReady(index, serial, template) => {
                let sick = self.states[index].sick;
                if !sick && let Some(place) = self.pods.becomes_ready(index, serial, template) {
                    self.edit_pods(index, |pods| pods[place].ready = true);
                    self.budgets_changed = true;
                }
            }
        }
    }

    fn agent(&mut self, index: usize) {
        let stages = {
            let member = &self.scenario.members[index];
            let node = self.view.nodes.get(member.name());
            node.and_then(|node| Some(node.shadow.as_ref()?.spec.state)) == Some(HostState::StagedUpdate)
        };
        let state = &self.states[index];
        if !state.up || state.host.cleared || (stages && state.downloads_until.is_some_and(|until| self.now < until)) {
            return;
        }
        let downloads =
            !(stages && self.states[index].host.staged.is_none() && self.fails(index, FaultEffect::DownloadFails));
        let member = &self.scenario.members[index];
        let Some(node) = self.view.nodes.get_mut(member.name()) else { return };
        let host = &mut self.states[index].host;
        host.agent_step(node, &member.offered, downloads, self.now);
        let (cleared, asked) = (host.cleared, host.asked);
        let armed = node.shadow.as_ref().and_then(|shadow| shadow.status.agent.armed.as_ref());
        let phase = armed.map(|armed| armed.phase);
        self.touched.insert(index);
        if !cleared && phase == Some(ArmedPhase::Activated) {
            // It goes on with the permit that it has.
            let after = self.scenario.times.agent.draw(&mut self.rng(index, Draw::Host));
            self.at(after, Event::Agent(index));
        } else if let (false, Some(_), Some(asked)) = (cleared, phase, asked) {
            // It requests another permit when this one comes too late.
            let until = models::time::after(asked, models::permit::PERMIT_LIFETIME);
            self.at(until.duration_since(self.now).max(SignedDuration::from_secs(1)), Event::Agent(index));
        }
        if cleared {
            let shutdown = self.scenario.times.shutdown.draw(&mut self.rng(index, Draw::Host));
            self.at(shutdown, Event::Down(index));
        }
    }

    fn boots(&mut self, index: usize) {
        let boots = !self.fails(index, FaultEffect::DoesNotBoot);
        let ready = !self.fails(index, FaultEffect::NeverReady);
        self.states[index].sick = self.fails(index, FaultEffect::PodsNotReady);
        let sick = self.states[index].sick;
        let name = self.scenario.members[index].name();
        let Some(node) = self.view.nodes.get_mut(name) else { return };
        let state = &mut self.states[index];
        state.host.boot(node, boots);
        node.facts.ready = ready;
        (state.up, state.schedulable) = (ready, ready && !node.facts.unschedulable);
        self.touched.insert(index);
        if sick {
            self.pods.set_ready(index, false);
            self.edit_pods(index, |pods| pods.iter_mut().for_each(|pod| pod.ready = false));
        }
        self.react(index);
    }

    /// Changes the facts about the pods of a node, if they are watched.
    fn edit_pods(&mut self, index: usize, change: impl FnOnce(&mut Vec<crate::view::PodFacts>)) {
        let name = self.scenario.members[index].name();
        if let Some(pods) = self.view.nodes.get_mut(name).and_then(|node| node.pods.as_mut()) {
            change(pods);
            self.touched.insert(index);
        }
    }

    fn pod_ends(&mut self, index: usize, serial: u32, template: u32) {
        let Some(place) = self.pods.remove(index, serial, template) else { return };
        self.edit_pods(index, |pods| {
            pods.swap_remove(place);
        });
        if self.scenario.pods[template as usize].replaced.is_some() {
            self.place(template);
        }
    }

    fn place(&mut self, template: u32) {
        let states = &self.states;
        let replaced = self.scenario.pods[template as usize].replaced.as_ref();
        let (target, serial) = match self.pods.place(template, |member| states[member].schedulable) {
            Place::Node(target, serial) => (target, serial),
            Place::Elsewhere => {
                // It is no node's: the draw is that of the first.
                let after = replaced.map(|span| span.draw(&mut self.rng(0, Draw::Pod))).unwrap_or_default();
                return self.at(after, Event::PodReadyElsewhere(template));
            }
            Place::Nowhere => return,
        };
        let name = self.scenario.members[target].name();
        if let Some(facts) = self.pods.last(target, name) {
            self.edit_pods(target, |pods| pods.push(facts));
        }
        if let Some(span) = replaced {
            let after = span.draw(&mut self.rng(target, Draw::Pod));
            self.at(after, Event::PodReady(target, serial, template));
        }
    }

    /// Plans and carries out until nothing is left to do now.
    fn turn(&mut self, all: bool) {
        if all {
            let exact = self.is_exact();
            for _ in 0..ROUNDS {
                self.show_budgets();
                let plan = self.plan_all();
                self.planned = Some(self.now);
                let hand_over = plan.hand_over;
                if hand_over {
                    // Another replica leads from now on, on a node whose turn was before.
                    self.view.own_node = None;
                }
                if !self.carry_out(plan, true) && !hand_over {
                    break;
                }
                if !exact {
                    self.plan_changed();
                    // More may be left to do.
                    self.wake = Some(self.now);
                    break;
                }
            }
            self.fall_asleep();
        } else {
            self.plan_changed();
        }
    }

    /// Shows the budgets as they are now. The controller tries again at once where one has changed.
    fn show_budgets(&mut self) {
        if std::mem::take(&mut self.budgets_changed) {
            self.view.budgets = self.pods.budgets();
            let now = self.now;
            for answer in self.view.nodes.values_mut().flat_map(|node| node.blocked.values_mut()) {
                answer.retry_at = answer.retry_at.min(now);
            }
        }
    }

    /// Plans all awake nodes. Where nodes that are asleep might be in the plan too, they are woken, and it is made again.
    fn plan_all(&mut self) -> Plan {
        loop {
            self.wake_ahead();
            let mut made = self.make();
            if !self.wake_more(&made) {
                self.course.waits = std::mem::take(&mut made.waits);
                // A burst, as at the beginning, needs more of them than the time after it.
                for class in &mut self.classes {
                    class.ahead = (class.ahead - class.ahead / 8).max(AHEAD);
                }
                self.touched.clear();
                self.wake = made.wake;
                return made;
            }
        }
    }

    fn make(&mut self) -> Plan {
        let policy = &self.scenario.policy;
        let mut made = plan(&self.view, policy, self.now);
        self.course.findings.extend(lint(&self.view, policy, &mut made));
        self.course.plans += 1;
        made
    }

    /// Plans the nodes alone that have changed and are under way, until they rest. What the whole fleet decides waits for the
    /// next plan of all.
    fn plan_changed(&mut self) {
        self.show_budgets();
        for _ in 0..ROUNDS {
            let slots: BTreeSet<&str> = self.view.slots().map(|slot| slot.uid.as_str()).collect();
            let alone = |node: &NodeView| {
                let begins = node.step() == Some(Step::Staging)
                    && node.shadow.as_ref().is_some_and(|shadow| shadow.spec.state != HostState::StagedUpdate);
                node.past_staging() || begins || (node.progress().is_some() && slots.contains(node.facts.uid.as_str()))
            };
            let names = self.touched.iter().map(|index| self.scenario.members[*index].name());
            let chosen: Vec<&str> = names.filter(|name| self.view.nodes.get(*name).is_some_and(alone)).collect();
            if chosen.is_empty() {
                return;
            }
            let failed = self.failed.iter().map(|index| self.scenario.members[*index].name());
            let with_failed: BTreeSet<&str> = chosen.iter().copied().chain(failed).collect();
            let mut others = std::mem::take(&mut self.view.nodes);
            for name in with_failed {
                self.view.nodes.extend(others.remove_entry(name));
            }
            let mut made = plan(&self.view, &self.scenario.policy, self.now);
            self.course.plans += 1;
            others.append(&mut self.view.nodes);
            self.view.nodes = others;
            let chosen: BTreeSet<String> = chosen.into_iter().map(str::to_owned).collect();
            made.actions.retain(|name, _| chosen.contains(name));
            made.evictions.retain(|name, _| chosen.contains(name));
            for name in &chosen {
                self.touched.remove(&self.index[name.as_str()]);
            }
            self.wake = [self.wake, made.wake].into_iter().flatten().min();
            if !self.carry_out(made, false) {
                return;
            }
        }
    }

    /// Keeps enough nodes of each class awake that wait for their update.
    fn wake_ahead(&mut self) {
        if self.classes.iter().all(|class| class.waiting.is_empty()) {
            return;
        }
        let mut idle = vec![0; self.classes.len()];
        for (name, node) in &self.view.nodes {
            if node.progress().is_none() && !self.is_up_to_date(name) {
                idle[self.states[self.index[name.as_str()]].class] += 1;
            }
        }
        for (class, idle) in idle.into_iter().enumerate() {
            let missing = self.classes[class].ahead.saturating_sub(idle);
            self.awaken(class, missing);
        }
    }

    fn awaken(&mut self, class: usize, number: usize) {
        for _ in 0..number {
            let Some(index) = self.classes[class].waiting.pop_front() else { return };
            let member = &self.scenario.members[index];
            self.unlist(index, -1, None);
            self.states[index].awake = true;
            let view = self.states[index].view.take().map_or_else(|| member.view(), |view| *view);
            self.view.nodes.insert(member.name().to_owned(), view);
        }
    }

    /// Counts a node among those that are out of the view, or no longer.
    fn unlist(&mut self, index: usize, change: isize, updated: Option<(String, String, semver::Version)>) {
        let class = &self.classes[self.states[index].class];
        let unlisted = &mut self.view.unlisted;
        let numbers =
            [unlisted.groups.entry(class.group).or_default(), unlisted.kinds.entry(class.kind.clone()).or_default()];
        for number in numbers {
            *number = number.saturating_add_signed(change);
        }
        if let Some(key) = updated {
            *unlisted.updated.entry(key).or_default() += 1;
        }
    }

    /// Wakes more nodes of the classes of which this plan leaves none to wait. Returns true if there were any.
    fn wake_more(&mut self, made: &Plan) -> bool {
        let mut left = vec![false; self.classes.len()];
        for (name, wait) in &made.waits {
            let node = &self.view.nodes[name.as_str()];
            let waits = node.progress().is_none() && is_plain(node) && !matches!(wait, Wait::UpToDate);
            left[self.states[self.index[name.as_str()]].class] |= waits;
        }
        let mut woken = false;
        for (class, left) in left.into_iter().enumerate() {
            if left || self.classes[class].waiting.is_empty() {
                continue;
            }
            let current = |name: &String| self.states[self.index[name.as_str()]].class == class;
            let up_to_date = made.waits.iter().any(|(name, wait)| matches!(wait, Wait::UpToDate) && current(name));
            let begins = made.actions.keys().any(current);
            if up_to_date && !begins && self.now == self.scenario.start {
                // Nodes that are alike are all up to date: they need not be updated at all.
                self.classes[class].waiting.clear();
                continue;
            }
            let number = self.classes[class].ahead;
            self.classes[class].ahead = number.saturating_mul(2);
            self.awaken(class, number);
            woken = true;
        }
        woken
    }

    /// Takes the nodes out of the view that are updated and at rest.
    fn fall_asleep(&mut self) {
        if self.scenario.exhaustive {
            return;
        }
        let rests = |index: &usize| {
            // One with sick pods shows that the version breaks them.
            let node = self.view.nodes.get(self.scenario.members[*index].name()).filter(|_| !self.states[*index].sick);
            node.is_some_and(|node| {
                let caught_up = node.shadow.as_ref().is_some_and(|shadow| {
                    let agent = &shadow.status.agent;
                    agent.observed_generation == Some(shadow.generation) && agent.state == Some(HostState::Idle)
                });
                self.is_up_to_date(&node.facts.name)
                    && caught_up
                    && node.progress().is_none()
                    && !node.facts.claimed()
                    && node.facts.ready
            })
        };
        let resting: Vec<usize> = self.acted.iter().copied().filter(rests).collect();
        self.acted.retain(|index| !resting.contains(index) && self.states[*index].awake);
        for index in resting {
            let kind = &self.classes[self.states[index].class].kind;
            // One of each kind shows what is offered.
            let of_kind = |state: &&State| state.awake && self.classes[state.class].kind == *kind;
            if self.states.iter().filter(of_kind).nth(1).is_none() {
                continue;
            }
            let (variant, arch) = kind.clone();
            let name = self.scenario.members[index].name();
            self.view.nodes.remove(name);
            self.course.waits.remove(name);
            self.unlist(index, 1, Some((variant, arch, self.states[index].host.runs.clone())));
            self.states[index].awake = false;
        }
    }

    /// Carries out a plan. Returns true if anything was done after which there may be more to do now.
    fn carry_out(&mut self, made: Plan, all: bool) -> bool {
        let mut changed = false;
        for query in &made.expressions {
            // What they will return cannot be known.
            let quiet = Answer::Quiet { since: self.view.leader_since };
            changed |= self.view.expressions.insert(query.clone(), quiet).is_none();
        }
        if let (true, Some(status), Some(operator)) = (all, made.status, &mut self.view.operator)
            && operator.status != status
        {
            self.touched.extend(
                status
                    .slots
                    .iter()
                    .filter(|slot| !operator.status.slots.contains(slot))
                    .filter_map(|slot| self.index.get(slot.node.as_str())),
            );
            operator.status = status;
            changed = true;
        }
        for (name, wait) in made.refused {
            if let Some(node) = self.view.nodes.get_mut(&name)
                && node.refused.as_ref().is_none_or(|refused| refused.again_at <= self.now)
            {
                let pause = &mut self.states[self.index[name.as_str()]].check_again;
                node.refused = Some(crate::view::Refused { wait, again_at: self.now + *pause });
                *pause = (*pause * 2).min(CHECK_AGAIN_LIMIT);
            }
        }
        changed |= self.watch_pods(&made.pods, all);
        for (name, evictions) in made.evictions {
            self.evict(&name, &evictions);
        }
        for (name, action) in made.actions {
            changed |= self.act(&name, action);
        }
        if all {
            let disrupted = self.view.nodes.values().filter(|node| node.disrupted()).count();
            self.course.peak = self.course.peak.max(disrupted);
            self.freeze();
        }
        changed
    }

    fn freeze(&mut self) {
        if self.course.freeze.is_some() || self.failed.is_empty() {
            return;
        }
        let quarantine = Quarantine::of(&self.view, self.scenario.policy.max_failures);
        if let Some(version) = quarantine.frozen_by() {
            let updated = self.course.updated();
            self.course.freeze = Some(Freeze { version: version.clone(), at: self.course.second(self.now), updated });
        }
    }

    fn watch_pods(&mut self, wanted: &BTreeSet<String>, all: bool) -> bool {
        let mut changed = false;
        if all {
            for (name, node) in &mut self.view.nodes {
                if node.pods.is_some() && !wanted.contains(name) {
                    node.pods = None;
                    node.blocked.clear();
                }
            }
        }
        for name in wanted {
            let index = self.index[name.as_str()];
            if let Some(node) = self.view.nodes.get_mut(name).filter(|node| node.pods.is_none()) {
                node.pods = Some(self.pods.watch(index, name));
                self.touched.insert(index);
                changed = true;
            }
        }
        changed
    }

    /// Evicts pods. The planner sends the requests about one budget one after the other; each is answered within the same
    /// second, so that all that are due follow here at once.
    fn evict(&mut self, name: &str, evictions: &crate::plan::Evictions) {
        let index = self.index[name];
        let mut uids: Vec<String> = evictions.pods.iter().map(|pod| pod.uid.clone()).collect();
        if let Some(node) = self.view.nodes.get(name).filter(|_| !evictions.delete) {
            let rules = self.scenario.policy.for_node(&node.facts).drain.rules_at(self.now);
            let drain = node.shadow.as_ref().and_then(|shadow| shadow.status.controller.drain.as_ref());
            let sorted = drain::sort(node.pods.as_deref().unwrap_or_default(), rules, drain);
            let due = |uid: &String| node.blocked.get(uid).is_none_or(|blocked| blocked.retry_at <= self.now);
            uids.extend(sorted.first_to_go().map(|pod| pod.uid.clone()).filter(due));
        }
        for uid in uids {
            let node = self.view.nodes.get(name);
            let place = node.and_then(|node| node.pods.as_ref()?.iter().position(|pod| pod.uid == uid));
            let Some(place) = place else { continue };
            let pod = self.pods.on(index)[place];
            let ends = self.now + self.pods.template(pod).leaves.draw(&mut self.rng(index, Draw::Pod));
            self.answer(index, name, place, evictions.delete, ends);
        }
    }

    fn answer(&mut self, index: usize, name: &str, place: usize, delete: bool, ends: Timestamp) {
        let now = self.now;
        let Some(node) = self.view.nodes.get_mut(name) else { return };
        let Some(facts) = node.pods.as_mut().and_then(|pods| pods.get_mut(place)) else { return };
        match self.pods.evict(index, place, delete, ends) {
            super::pods::Answer::Gone => {}
            super::pods::Answer::Leaves(ends) => {
                (facts.terminating, facts.ready, facts.ends_by) = (true, false, Some(ends));
                node.blocked.remove(&facts.uid);
                self.course.evictions += 1;
                self.course.nodes[index].evicted += 1;
                self.budgets_changed = true;
                self.touched.insert(index);
                if let Some((serial, template)) = self.pods.key(index, place) {
                    let after = ends.duration_since(now);
                    self.at(after, Event::PodEnds(index, serial, template));
                }
            }
            super::pods::Answer::Refused(budget) => {
                let budget = self.pods.budget(budget);
                let title = format!("{}/{}", budget.namespace, budget.name);
                *self.course.refusals.entry(title.clone()).or_default() += 1;
                let since = node.blocked.get(&facts.uid).map_or(now, |before| before.since);
                let refused = models::time::between(since, now);
                let pause = drain::eviction_pause(drain::BLOCKED_RETRY, refused);
                let answer = crate::view::Blocked {
                    budget: Some(title),
                    message: String::new(),
                    since,
                    retry_at: models::time::after(now, pause),
                    fatal: false,
                    accepted: false,
                    deleted: false,
                };
                node.blocked.insert(facts.uid.clone(), answer);
            }
        }
    }

    /// Carries out one action. Returns true if there may be more to do for its node now.
    fn act(&mut self, name: &str, action: Action) -> bool {
        let index = self.index[name];
        let Some(node) = self.view.nodes.get_mut(name) else { return false };
        let before = node.step();
        let cordoned = self.scenario.members[index].node.facts.cordoned_by_others();
        self.touched.insert(index);
        self.acted.insert(index);
        match super::write::write(node, action, cordoned) {
            Some(Action::Permit { nonce, rules, pods_stay }) => super::write::permit(node, nonce, rules, pods_stay),
            Some(Action::ReadLease) => super::write::read_lease(node, self.states[index].up, self.now),
            Some(Action::ReadOwner { owner, nodes, .. }) => self.read_owner(name, &owner, &nodes),
            _ => {}
        }
        let Some(node) = self.view.nodes.get_mut(name) else { return false };
        self.states[index].schedulable = node.facts.ready && self.states[index].up && !node.facts.unschedulable;
        let after = node.step();
        if before != after {
            let last = node.record().and_then(|record| record.last.as_ref()).map(|last| last.reason.as_str());
            self.course.step(index, before, after, last, self.now);
            self.fruitful = self.course.plans;
            if after.is_none() && last != Some(UPDATED) {
                self.failed.insert(index);
            }
            // Results go to the history, which has no part in this.
            if let Some(shadow) = &mut node.shadow {
                shadow.status.controller.results.clear();
            }
        }
        let shadow = node.shadow.as_ref();
        let unseen = shadow.is_some_and(|s| s.status.agent.observed_generation != Some(s.generation));
        if self.states[index].schedulable {
            for template in std::mem::take(&mut self.pods.homeless) {
                self.place(template);
            }
        }
        if unseen {
            self.react(index);
        }
        // What its agent has to see first is planned when it has.
        !unseen
    }

    fn read_owner(&mut self, name: &str, owner: &String, nodes: &BTreeMap<String, crate::view::Compared>) {
        let mut health = crate::view::OwnerHealth::default();
        for (other, compared) in nodes {
            let pods = self.index.get(other.as_str()).map_or_else(Vec::new, |index| self.pods.watch(*index, other));
            for pod in pods.iter().filter(|pod| pod.controller_uid.as_ref() == Some(owner)) {
                health.count(pod, Some(*compared), self.now);
            }
        }
        if let Some(node) = self.view.nodes.get_mut(name) {
            node.owners.insert(owner.clone(), health);
        }
    }
}

/// Returns the variant and the architecture of a node.
fn kind(node: &NodeView) -> (String, String) {
    let agent = node.shadow.as_ref().map(|shadow| &shadow.status.agent);
    let part = |part: fn(&models::shadow::AgentReport) -> &Option<String>| {
        agent.and_then(|a| part(a).clone()).unwrap_or_default()
    };
    (part(|agent| &agent.variant), part(|agent| &agent.arch))
}

/// Returns whether nothing about an idle node sets it apart from others of its class.
fn is_plain(node: &NodeView) -> bool {
    let facts = &node.facts;
    let Some(shadow) = &node.shadow else { return false };
    let agent = &shadow.status.agent;
    let rests = node.progress().is_none() && !facts.claimed() && shadow.spec.state == HostState::Idle;
    let usual = facts.labelled && facts.ready && !facts.unschedulable && !facts.held() && !facts.deleting;
    let reported = agent.boot_id.as_deref() == Some(facts.boot_id.as_str())
        && agent.state == Some(HostState::Idle)
        && agent.updates.as_ref().is_some_and(|updates| updates.refresh_failure.is_none());
    let clean = node.record().is_none_or(|record| record.failures == 0 && record.version_failures.is_empty());
    let requests = shadow.retry.is_some() || shadow.release.is_some() || shadow.drill.is_some() || shadow.deleting;
    rests && usual && reported && clean && !requests && facts.pressure.is_none() && node.agent_missing.is_none()
}
