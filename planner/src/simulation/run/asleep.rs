//! The nodes that are out of the view: those that wait for their update behind others of their class, and those that are
//! updated and at rest.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use models::shadow::HostState;

use super::Run;
use crate::plan::{Plan, order_key};
use crate::simulation::scenario::Scenario;
use crate::view::{NodeView, UnlistedNodes};
use crate::wait::{Wait, in_order};

/// The number of nodes of a class that are woken at first.
const AHEAD: usize = 16;

/// The variant and the architecture of nodes.
type Kind = (String, String);

/// Nodes that are alike: what lets one of them wait for others lets all of them wait.
struct Class {
    group: Option<usize>,
    /// The index of their variant and architecture.
    kind: usize,
    /// Those that are asleep, in the order of their updates.
    waiting: VecDeque<usize>,
    /// The number to keep awake.
    ahead: usize,
}

/// The facts of a class, from a plan of the nodes that are awake.
#[derive(Clone, Default)]
struct Seen {
    /// One that has not begun waits, and so do those that are asleep.
    waits: bool,
    /// One is up to date.
    up_to_date: bool,
    /// One has something to do.
    begins: bool,
}

/// All classes, and the nodes that are awake.
pub(super) struct Classes<'a> {
    classes: Vec<Class>,
    /// The class of each node.
    of: Vec<usize>,
    kinds: Vec<Kind>,
    /// The number of nodes of each kind that are awake.
    awake_of: Vec<usize>,
    /// The nodes that are awake, by name: those of the view, with their indices.
    awake: BTreeMap<&'a str, usize>,
}

impl<'a> Classes<'a> {
    /// Sorts the nodes of a scenario into classes. All are awake whose class does not decide about them.
    pub(super) fn of(scenario: &'a Scenario) -> Self {
        let members = &scenario.members;
        let groups: Vec<_> = members.iter().map(|member| scenario.policy.group_of(&member.node.facts)).collect();
        let (mut by_key, mut by_kind) = (HashMap::new(), HashMap::new());
        let (mut classes, mut kinds) = (Vec::new(), Vec::new());
        let mut of = Vec::with_capacity(members.len());
        for (member, group) in members.iter().zip(&groups) {
            let zone = if scenario.policy.one_zone_at_a_time { member.node.facts.zone() } else { "" };
            let host = (&member.host.runs, member.host.waits_for_wave, &*member.offered);
            let kind = *by_kind.entry(kind(&member.node)).or_insert_with_key(|(variant, arch)| {
                kinds.push(((*variant).to_owned(), (*arch).to_owned()));
                kinds.len() - 1
            });
            of.push(*by_key.entry((*group, zone, kind, host)).or_insert_with(|| {
                classes.push(Class { group: *group, kind, waiting: VecDeque::new(), ahead: AHEAD });
                classes.len() - 1
            }));
        }
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_cached_key(|index| {
            let member = &members[*index];
            order_key(scenario.base.own_node.as_deref(), groups[*index], member.name(), &member.node)
        });
        let mut all = Self { awake_of: vec![0; kinds.len()], classes, of, kinds, awake: BTreeMap::new() };
        for index in order {
            let member = &members[index];
            if !scenario.exhaustive && is_plain(&member.node) {
                all.classes[all.of[index]].waiting.push_back(index);
            } else {
                all.wake(index, member.name());
            }
        }
        all
    }

    fn kind_of(&self, index: usize) -> usize {
        self.classes[self.of[index]].kind
    }

    /// Puts a node among those that are awake.
    fn wake(&mut self, index: usize, name: &'a str) {
        self.awake.insert(name, index);
        let kind = self.kind_of(index);
        self.awake_of[kind] += 1;
    }

    fn sleep(&mut self, index: usize, name: &str) {
        self.awake.remove(name);
        let kind = self.kind_of(index);
        self.awake_of[kind] -= 1;
    }

    /// Returns the nodes that are awake.
    pub(super) fn awake(&self) -> BTreeSet<usize> {
        self.awake.values().copied().collect()
    }

    /// Returns the number of nodes that wait for their update and are asleep.
    pub(super) fn waiting(&self) -> usize {
        self.classes.iter().map(|class| class.waiting.len()).sum()
    }

    /// Returns the number of nodes that are asleep and do not wait: they are updated, or need no update.
    pub(super) fn resting(&self) -> usize {
        self.of.len() - self.awake.len() - self.waiting()
    }

    /// Lets fewer nodes be awake. A burst, as at the beginning, needs more of them than the time after it.
    pub(super) fn calm(&mut self) {
        for class in &mut self.classes {
            class.ahead = (class.ahead - class.ahead / 8).max(AHEAD);
        }
    }

    /// Counts the nodes that are asleep.
    pub(super) fn unlisted(&self) -> UnlistedNodes {
        let mut unlisted = UnlistedNodes::default();
        for class in self.classes.iter().filter(|class| !class.waiting.is_empty()) {
            *unlisted.groups.entry(class.group).or_default() += class.waiting.len();
            *unlisted.kinds.entry(self.kinds[class.kind].clone()).or_default() += class.waiting.len();
        }
        unlisted
    }
}

impl Run<'_> {
    /// Returns the nodes that are awake, each with its index and the reason for which it waits, if it is among these.
    pub(super) fn awake<'w>(
        &'w self,
        waits: &'w BTreeMap<String, Wait>,
    ) -> impl Iterator<Item = (usize, &'w NodeView, Option<&'w Wait>)> {
        let mut wait_of = in_order(waits);
        // Both are ordered by name.
        let nodes = self.view.nodes.iter().zip(self.classes.awake.values());
        nodes.map(move |((name, node), index)| (*index, node, wait_of(name)))
    }

    /// Keeps enough nodes of each class awake that wait for their update.
    pub(super) fn wake_ahead(&mut self) {
        if self.classes.waiting() == 0 {
            return;
        }
        let mut idle = vec![0; self.classes.classes.len()];
        for (index, node, wait) in self.awake(&self.course.waits) {
            idle[self.classes.of[index]] += usize::from(node.progress().is_none() && wait != Some(&Wait::UpToDate));
        }
        for (class, idle) in idle.into_iter().enumerate() {
            let missing = self.classes.classes[class].ahead.saturating_sub(idle);
            self.awaken(class, missing);
        }
    }

    fn awaken(&mut self, class: usize, number: usize) {
        for _ in 0..number {
            let Some(index) = self.classes.classes[class].waiting.pop_front() else { return };
            let member = &self.scenario.members[index];
            self.classes.wake(index, member.name());
            for number in self.unlisted(index) {
                *number = number.saturating_sub(1);
            }
            self.view.nodes.insert(member.name().to_owned(), member.view());
        }
    }

    /// Returns the numbers in which a node counts while it is out of the view.
    fn unlisted(&mut self, index: usize) -> [&mut usize; 2] {
        let class = &self.classes.classes[self.classes.of[index]];
        let UnlistedNodes { groups, kinds, .. } = &mut self.view.unlisted;
        let kind = self.classes.kinds[class.kind].clone();
        [groups.entry(class.group).or_default(), kinds.entry(kind).or_default()]
    }

    /// Wakes more nodes of the classes of which this plan leaves none to wait. Returns true if there were any.
    pub(super) fn wake_more(&mut self, made: &Plan) -> bool {
        if self.classes.waiting() == 0 {
            return false;
        }
        let mut woken = false;
        for (class, seen) in self.seen(made).into_iter().enumerate() {
            let Class { waiting, ahead, .. } = &mut self.classes.classes[class];
            if seen.waits || waiting.is_empty() {
                continue;
            }
            if seen.up_to_date && !seen.begins && self.now == self.scenario.start {
                // Nodes that are alike are all up to date: they need not be updated at all.
                waiting.clear();
                continue;
            }
            let number = *ahead;
            *ahead = number.saturating_mul(2);
            self.awaken(class, number);
            woken = true;
        }
        woken
    }

    /// Returns what a plan shows of each class.
    fn seen(&self, made: &Plan) -> Vec<Seen> {
        let mut all = vec![Seen::default(); self.classes.classes.len()];
        for (index, node, wait) in self.awake(&made.waits) {
            let seen = &mut all[self.classes.of[index]];
            match wait {
                Some(Wait::UpToDate) => seen.up_to_date = true,
                Some(_) => seen.waits = seen.waits || (node.progress().is_none() && is_plain(node)),
                None => seen.begins = true,
            }
        }
        all
    }

    /// Takes the nodes out of the view that are updated and at rest.
    pub(super) fn fall_asleep(&mut self) {
        if self.scenario.exhaustive {
            return;
        }
        let acted = std::mem::take(&mut self.acted);
        for index in acted {
            // One of each kind shows what is offered.
            if !self.rests(index) || self.classes.awake_of[self.classes.kind_of(index)] < 2 {
                self.acted.insert(index);
                continue;
            }
            let name = self.scenario.members[index].name();
            self.view.nodes.remove(name);
            self.states[index].watched = false;
            self.course.waits.remove(name);
            self.classes.sleep(index, name);
            for number in self.unlisted(index) {
                *number += 1;
            }
            let (variant, arch) = self.classes.kinds[self.classes.kind_of(index)].clone();
            let runs = self.states[index].host.runs.clone();
            *self.view.unlisted.updated.entry((variant, arch, runs)).or_default() += 1;
        }
    }

    /// Returns whether a node is updated, and nothing is left to do about it.
    fn rests(&self, index: usize) -> bool {
        // One with sick pods shows that the version breaks them.
        let Some(node) = self.node(index).filter(|_| !self.states[index].sick) else { return false };
        let caught_up = node.shadow.as_ref().is_some_and(|shadow| {
            let agent = &shadow.status.agent;
            agent.observed_generation == Some(shadow.generation) && agent.state == Some(HostState::Idle)
        });
        caught_up
            && node.progress().is_none()
            && !node.facts.claimed()
            && node.facts.ready
            && self.is_up_to_date(&node.facts.name)
    }
}

/// Returns the variant and the architecture of a node.
fn kind(node: &NodeView) -> (&str, &str) {
    let agent = node.shadow.as_ref().map(|shadow| &shadow.status.agent);
    (
        agent.and_then(|agent| agent.variant.as_deref()).unwrap_or_default(),
        agent.and_then(|agent| agent.arch.as_deref()).unwrap_or_default(),
    )
}

/// Returns whether nothing about an idle node sets it apart from others of its class.
pub(super) fn is_plain(node: &NodeView) -> bool {
    let facts = &node.facts;
    let Some(shadow) = &node.shadow else { return false };
    let agent = &shadow.status.agent;
    let rests = node.progress().is_none() && !facts.claimed() && shadow.spec.state == HostState::Idle;
    let usual = facts.labelled && facts.ready && !facts.unschedulable && !facts.held() && !facts.deleting;
    let reported = agent.boot_id.as_deref() == Some(facts.boot_id.as_str())
        && agent.state == Some(HostState::Idle)
        && agent.updates.as_ref().is_some_and(|updates| updates.refresh_failure.is_none());
    let clean = node.record().is_none_or(|record| record.failures == 0 && record.version_failures.is_empty());
    let requests = [shadow.pending_retry(), shadow.pending_release(), shadow.pending_drill()];
    rests
        && usual
        && reported
        && clean
        && requests.iter().all(Option::is_none)
        && !shadow.deleting
        && facts.pressure.is_none()
        && node.agent_missing.is_none()
}

#[cfg(test)]
mod tests {
    use models::shadow::{Record, ShadowRequests};

    use super::*;
    use crate::fixtures::node;

    #[test]
    fn request_that_was_carried_out_sets_no_node_apart() {
        let mut asked = node("a");
        let shadow = asked.shadow.as_mut().unwrap();
        (shadow.retry, shadow.release, shadow.drill) = (Some("1".into()), Some("2".into()), Some("3 evict".into()));
        assert!(!is_plain(&asked));
        let mut done = ShadowRequests { retry: Some("1".into()), release: Some("2".into()), drill: None };
        for (drill, plain) in [(None, false), (Some("2 evict".to_owned()), false), (Some("3 evict".to_owned()), true)] {
            done.drill = drill;
            let record = Record { requests: Some(done.clone()), ..Record::default() };
            asked.shadow.as_mut().unwrap().status.controller.record = Some(record);
            assert_eq!(is_plain(&asked), plain, "{done:?}");
        }
    }
}
