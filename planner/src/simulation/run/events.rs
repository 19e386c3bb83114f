//! Events: agents react, hosts go down and boot, pods end and are replaced.

use std::sync::Arc;

use jiff::SignedDuration;
use models::shadow::{ArmedPhase, HostState};
use rand::Rng as _;

use super::event::Event;
use super::state::{Draw, Run};
use crate::simulation::pods::Place;
use crate::simulation::scenario::{Fault, FaultEffect};
use crate::view::PodFacts;
use crate::wait::Wait;

impl Run<'_> {
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Agent(index) => self.agent(index),
            Event::Down(index) => self.goes_down(index),
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

    /// Lets the agent of a node react to its desired state.
    pub(super) fn react(&mut self, index: usize) {
        let state = &self.states[index];
        if !state.up {
            return;
        }
        let spec = self.node(index).and_then(|node| Some(&node.shadow.as_ref()?.spec));
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
    pub(super) fn fails(&mut self, index: usize, effect: FaultEffect) -> bool {
        if self.faults.is_empty() {
            return false;
        }
        let version = self.node(index).and_then(|node| node.progress()).map(|progress| progress.version.clone());
        let hits = |fault: &&Fault| {
            fault.effect == effect
                && (fault.version.is_none() || fault.version == version)
                && (fault.members.is_empty() || fault.members.contains(&index))
        };
        let rates: Vec<f64> = self.faults.iter().filter(hits).map(|fault| fault.rate).collect();
        rates.into_iter().any(|rate| self.rng(index, Draw::Host).random_bool(rate.clamp(0.0, 1.0)))
    }

    fn agent(&mut self, index: usize) {
        let spec = self.node(index).and_then(|node| Some(&node.shadow.as_ref()?.spec));
        let stages = spec.is_some_and(|spec| spec.state == HostState::StagedUpdate);
        let reboots = spec.is_some_and(|spec| spec.state == HostState::RebootedIntoUpdate);
        let state = &self.states[index];
        if !state.up || state.host.cleared || (stages && state.downloads_until.is_some_and(|until| self.now < until)) {
            return;
        }
        let before_boot = reboots && state.host.staged.is_some();
        let downloads = !(stages && state.host.staged.is_none() && self.fails(index, FaultEffect::DownloadFails));
        if before_boot && self.fails(index, FaultEffect::NoPermitRequested) {
            return;
        }
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

    fn goes_down(&mut self, index: usize) {
        (self.states[index].up, self.states[index].schedulable) = (false, false);
        let now = self.now;
        if let Some(node) = self.node_mut(index) {
            (node.facts.ready, node.facts.not_ready_since) = (false, Some(now));
        }
        self.touched.insert(index);
        #[cfg(test)]
        self.delete_node(index);
        let boot = self.scenario.times.boot.draw(&mut self.rng(index, Draw::Host));
        self.at(boot, Event::Up(index));
    }

    fn boots(&mut self, index: usize) {
        #[cfg(test)]
        let registered_again = self.return_node(index);
        let boots = !self.fails(index, FaultEffect::DoesNotBoot);
        let ready = !self.fails(index, FaultEffect::NeverReady);
        let sick = self.fails(index, FaultEffect::PodsNotReady);
        let has_devices = !self.fails(index, FaultEffect::DevicesMissing);
        let state = &mut self.states[index];
        let recovers = std::mem::replace(&mut state.sick, sick) && !sick;
        let member = &self.scenario.members[index];
        let Some(node) = self.view.nodes.get_mut(member.name()) else { return };
        state.host.boot(node, boots);
        #[cfg(test)]
        if registered_again {
            super::clusters::register_again(node);
            state.watched = false;
        }
        node.facts.allocatable = if has_devices { member.node.facts.allocatable.clone() } else { Arc::default() };
        node.facts.ready = ready;
        node.facts.ready_since = ready.then_some(self.now);
        node.facts.not_ready_since = node.facts.not_ready_since.filter(|_| !ready);
        (state.up, state.schedulable) = (ready, ready && !node.facts.unschedulable);
        self.touched.insert(index);
        if sick || recovers {
            self.pods.set_ready(index, recovers);
            self.edit_pods(index, |pods| pods.iter_mut().for_each(|pod| pod.ready = recovers));
        }
        self.react(index);
    }

    /// Changes the facts about the pods of a node, if they are watched.
    fn edit_pods(&mut self, index: usize, change: impl FnOnce(&mut Vec<PodFacts>)) {
        if !self.states[index].watched {
            return;
        }
        let Some(pods) = self.node_mut(index).and_then(|node| node.pods.as_mut()) else { return };
        change(pods);
        if self.scenario.exhaustive || !self.waits_whatever_pods_do(index) {
            self.touched.insert(index);
        }
    }

    /// Returns whether what happens to the pods of a node lets nothing begin on it now: it soaks, or its drain waits for
    /// further ones.
    fn waits_whatever_pods_do(&self, index: usize) -> bool {
        match self.course.waits.get(self.scenario.members[index].name()) {
            Some(Wait::Soaking { until }) => *until > self.now,
            Some(Wait::Draining { .. }) => self.pods.more_leave(index),
            _ => false,
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

    /// Places a pod of this template on a node that takes it.
    pub(super) fn place(&mut self, template: u32) {
        let states = &self.states;
        let replaced = self.scenario.pods[template as usize].replaced.as_ref();
        let (target, serial) = match self.pods.place(template, self.now, |member| states[member].schedulable) {
            Place::Node(target, serial) => (target, serial),
            Place::Elsewhere => {
                // It is no node's: the draw is that of the first.
                let after = replaced.map(|span| span.draw(&mut self.rng(0, Draw::Pod))).unwrap_or_default();
                return self.at(after, Event::PodReadyElsewhere(template));
            }
            Place::Nowhere => return,
        };
        if self.states[target].watched
            && let Some(facts) = self.pods.last(target, self.scenario.members[target].name())
        {
            self.edit_pods(target, |pods| pods.push(facts));
        }
        if let Some(span) = replaced {
            let after = span.draw(&mut self.rng(target, Draw::Pod));
            self.at(after, Event::PodReady(target, serial, template));
        }
    }
}
