//! Classes of nodes that are alike, and what plans of a part of the nodes are made with.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use models::operator::CountOrPercent;
use models::shadow::HostState;

use crate::plan::order_key;
use crate::policy::Policy;
use crate::simulation::scenario::Scenario;
use crate::survey::key::kind;
use crate::view::{NodeView, OperatorFacts};

/// The number of nodes of a class that are woken at first.
const AHEAD: usize = 16;

/// Nodes that are alike: what lets one of them wait for others lets all of them wait.
pub(super) struct Class {
    /// The index of their variant and architecture.
    pub(super) kind: usize,
    /// Those that are asleep, in the order of their updates.
    pub(super) waiting: VecDeque<usize>,
    /// The number to keep awake.
    pub(super) ahead: usize,
}

/// The facts of a class, from a plan of the nodes that are awake.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// One that has not begun waits, and so do those that are asleep.
    pub(super) waits: bool,
    /// One is up to date.
    pub(super) up_to_date: bool,
    /// One has something to do.
    pub(super) begins: bool,
}

/// All classes, and the nodes that are awake.
pub(super) struct Classes<'a> {
    pub(super) classes: Vec<Class>,
    /// The class of each node.
    pub(super) of: Vec<usize>,
    /// The number of nodes of each kind that are awake.
    pub(super) awake_of: Vec<usize>,
    /// The nodes that are awake, by name: those of the view, with their indices.
    pub(super) awake: BTreeMap<&'a str, usize>,
    /// Those of them that may fall asleep as soon as no canary step is due that is a share of them, in the order of their
    /// updates.
    pub(super) counted: Vec<usize>,
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
            // A node that has just joined stays so: with those that are awake it is ordered by the time of each plan.
            order_key(scenario.base.own_node.as_deref(), groups[*index], member.name(), &member.node, scenario.start)
        });
        let counts = policy.canary.iter().any(|step| matches!(step.nodes, CountOrPercent::Percent(_)));
        let awake_of = vec![0; by_kind.len()];
        let mut all = Self { awake_of, classes, of, awake: BTreeMap::new(), counted: Vec::new() };
        for index in order {
            let member = &members[index];
            let may_sleep = !scenario.exhaustive
                && is_plain(&member.node)
                && !has_fallen(scenario.base.operator.as_ref(), member.name());
            if may_sleep && !counts {
                all.classes[all.of[index]].waiting.push_back(index);
            } else {
                all.wake(index, member.name());
                all.counted.extend(may_sleep.then_some(index));
            }
        }
        all
    }

    pub(super) fn kind_of(&self, index: usize) -> usize {
        self.classes[self.of[index]].kind
    }

    /// Puts a node among those that are awake.
    pub(super) fn wake(&mut self, index: usize, name: &'a str) {
        self.awake.insert(name, index);
        let kind = self.kind_of(index);
        self.awake_of[kind] += 1;
    }

    pub(super) fn sleep(&mut self, index: usize, name: &str) {
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

    /// Lowers the number of nodes that may be awake. A burst, as at the beginning, needs more of them than the time after it.
    pub(super) fn keep_fewer_awake(&mut self) {
        for class in &mut self.classes {
            class.ahead = (class.ahead - class.ahead / 8).max(AHEAD);
        }
    }
}

/// Returns whether the ledger of a rollout names a node that had proven the version and was not well any more: it counts again once it has been
/// well for its soak.
pub(super) fn has_fallen(operator: Option<&OperatorFacts>, node: &str) -> bool {
    let rollouts = operator.into_iter().flat_map(|operator| &operator.status.active_rollouts);
    let mut named = rollouts.filter_map(|rollout| rollout.ledger.as_ref()).flat_map(|ledger| &ledger.nodes);
    named.any(|named| named.node == node && named.has_fallen())
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
        if let Ok(number) = u32::try_from(share.of(total)) {
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
        let numbers: BTreeSet<_> = kinds.keys().map(|kind| step.nodes.rounded_up(base_of(scenario, *kind))).collect();
        if let (1, Some(number)) = (numbers.len(), numbers.first())
            && let Ok(number) = u32::try_from(*number)
        {
            step.nodes = CountOrPercent::Count(number);
        }
    }
    policy
}

/// Returns the number of nodes of which a canary step is a share for this variant and architecture. Where fewer are left than at its
/// beginning, it is a share of these, unless its places are used up.
fn base_of(scenario: &Scenario, own: (&str, &str)) -> usize {
    let rollouts = scenario.base.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
    let mut rollouts = rollouts.filter(|rollout| rollout.ended.is_none() && (&*rollout.variant, &*rollout.arch) == own);
    let members = || scenario.members.iter().filter(|member| member.node.facts.labelled && kind(&member.node) == own);
    let newest = members().flat_map(|member| member.offered.iter()).max();
    let left = members().filter(|member| newest.is_some_and(|newest| member.host.runs < *newest)).count();
    let ledger = rollouts.next().and_then(|rollout| rollout.ledger.as_ref()).filter(|ledger| ledger.base > 0);
    ledger.map_or(left, |ledger| {
        let number = |count: i64| usize::try_from(count).unwrap_or(usize::MAX);
        let nodes = number(ledger.used()).saturating_add(left);
        let is_full = ledger.due > 0 && ledger.used() >= ledger.due;
        if is_full { number(ledger.base) } else { number(ledger.base).min(nodes) }
    })
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
        && facts.removed_by.is_none()
        && node.agent_missing.is_none()
}
