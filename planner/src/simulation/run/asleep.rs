//! The nodes that are out of the view: those that wait for their update behind others of their class, and those that are
//! updated and at rest.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use models::operator::{ActiveRollout, CountOrPercent};
use models::shadow::HostState;

use super::Run;
use crate::plan::{Plan, order_key};
use crate::policy::Policy;
use crate::simulation::scenario::Scenario;
use crate::view::NodeView;
use crate::wait::{Wait, in_order};

/// The number of nodes of a class that are woken at first.
const AHEAD: usize = 16;

/// Nodes that are alike: what lets one of them wait for others lets all of them wait.
struct Class {
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
    /// The number of nodes of each kind that are awake.
    awake_of: Vec<usize>,
    /// The nodes that are awake, by name: those of the view, with their indices.
    awake: BTreeMap<&'a str, usize>,
    /// Those of them that may fall asleep as soon as no canary step is due that is a share of them, in the order of their
    /// updates.
    counted: Vec<usize>,
}

impl<'a> Classes<'a> {
    /// Sorts the nodes of a scenario into classes. All are awake whose class does not decide about them, and those that a
    /// canary step counts.
    pub(super) fn of(scenario: &'a Scenario, policy: &Policy) -> Self {
        let members = &scenario.members;
        let groups: Vec<_> = members.iter().map(|member| scenario.policy.group_of(&member.node.facts)).collect();
        let (mut by_key, mut by_kind) = (HashMap::new(), HashMap::new());
        let mut classes = Vec::new();
        let mut of = Vec::with_capacity(members.len());
        for (member, group) in members.iter().zip(&groups) {
            let zone = if scenario.policy.one_zone_at_a_time { member.node.facts.zone() } else { "" };
            let host = (&member.host.runs, member.host.waits_for_wave, &*member.offered);
            let next = by_kind.len();
            let kind = *by_kind.entry(kind(&member.node)).or_insert(next);
            of.push(*by_key.entry((*group, zone, kind, host)).or_insert_with(|| {
                classes.push(Class { kind, waiting: VecDeque::new(), ahead: AHEAD });
                classes.len() - 1
            }));
        }
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_cached_key(|index| {
            let member = &members[*index];
            order_key(scenario.base.own_node.as_deref(), groups[*index], member.name(), &member.node)
        });
        let counts = policy.canary.iter().any(|step| matches!(step.nodes, CountOrPercent::Percent(_)));
        let awake_of = vec![0; by_kind.len()];
        let mut all = Self { awake_of, classes, of, awake: BTreeMap::new(), counted: Vec::new() };
        for index in order {
            let member = &members[index];
            let may_sleep = !scenario.exhaustive && is_plain(&member.node);
            if may_sleep && !counts {
                all.classes[all.of[index]].waiting.push_back(index);
            } else {
                all.wake(index, member.name());
                all.counted.extend(may_sleep.then_some(index));
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
            self.view.nodes.insert(member.name().to_owned(), member.view());
        }
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

    /// Takes the nodes out of the view that are updated and at rest, and those that wait behind others, while no canary step
    /// counts them.
    pub(super) fn fall_asleep(&mut self) {
        if self.scenario.exhaustive || self.is_canary_step_due() {
            return;
        }
        for index in std::mem::take(&mut self.classes.counted) {
            let wait = self.course.waits.get(self.scenario.members[index].name());
            // It is as it was at the beginning.
            let (true, Some(wait)) = (!self.acted.contains(&index) && !self.states[index].watched, wait) else {
                continue;
            };
            if *wait != Wait::UpToDate {
                self.classes.classes[self.classes.of[index]].waiting.push_back(index);
            } else if self.classes.awake_of[self.classes.kind_of(index)] < 2 {
                continue;
            }
            self.remove(index);
        }
        let acted = std::mem::take(&mut self.acted);
        for index in acted {
            // One of each kind shows what is offered.
            if !self.rests(index) || self.classes.awake_of[self.classes.kind_of(index)] < 2 {
                self.acted.insert(index);
                continue;
            }
            self.remove(index);
        }
    }

    /// Takes a node out of the view.
    fn remove(&mut self, index: usize) {
        let name = self.scenario.members[index].name();
        self.view.nodes.remove(name);
        self.states[index].watched = false;
        self.course.waits.remove(name);
        self.classes.sleep(index, name);
    }

    fn is_canary_step_due(&self) -> bool {
        let due = |rollout: &ActiveRollout| {
            let passed = usize::try_from(rollout.steps_passed).unwrap_or(0);
            rollout.ended.is_none() && passed < self.policy.canary.len()
        };
        self.view.operator.iter().flat_map(|operator| &operator.status.active_rollouts).any(due)
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

/// Returns the policy for plans of the nodes that are awake: with numbers of nodes for percentages, which are of all nodes. A
/// percentage stays in a canary step that is another number for each variant and architecture: all nodes are awake while one
/// is due, and a rollout that begins once nodes are asleep counts those that are awake.
pub(super) fn in_numbers(scenario: &Scenario) -> Policy {
    let mut policy = scenario.policy.clone();
    if scenario.exhaustive {
        return policy;
    }
    let (mut total, mut groups) = (0, vec![0; policy.groups.len()]);
    let mut kinds: HashMap<(&str, &str), usize> = HashMap::new();
    for node in scenario.members.iter().map(|member| &member.node).filter(|node| node.facts.labelled) {
        total += 1;
        if let Some(group) = policy.group_of(&node.facts) {
            groups[group] += 1;
        }
        *kinds.entry(kind(node)).or_default() += 1;
    }
    // Nodes whose agent has not reported are in no rollout.
    kinds.remove(&("", ""));
    let number_of = |share: &mut CountOrPercent, total: usize| {
        if let Some(number) = share.of(total).and_then(|number| u32::try_from(number).ok()) {
            *share = CountOrPercent::Count(number);
        }
    };
    number_of(&mut policy.max_unavailable, total);
    policy.pre_stage.iter_mut().for_each(|limit| number_of(limit, total));
    policy.all.before.max_unhealthy_nodes.iter_mut().for_each(|limit| number_of(limit, total));
    for (group, members) in policy.groups.iter_mut().zip(groups) {
        group.max_unavailable.iter_mut().for_each(|limit| number_of(limit, members));
        group.policy.before.max_unhealthy_nodes.iter_mut().for_each(|limit| number_of(limit, total));
    }
    for step in &mut policy.canary {
        let numbers: BTreeSet<_> = kinds.values().map(|total| step.nodes.of(*total)).collect();
        if let (1, Some(total)) = (numbers.len(), kinds.values().next()) {
            number_of(&mut step.nodes, *total);
        }
    }
    policy
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
