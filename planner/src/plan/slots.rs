//! The budget: the number of nodes that may be out of service in total, in each group, and in how many zones.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::Slot;
use models::shadow::Step;

use super::survey::Survey;
use super::{Action, Verdict, Wait};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// The free part of the budget.
#[derive(Clone)]
pub(super) struct Budget<'a> {
    free: usize,
    groups: Vec<Option<usize>>,
    /// The zones that nodes are out of service in, each with one of these nodes, where only one zone may be.
    zones: Option<BTreeMap<&'a str, &'a str>>,
    /// The reason why nothing is free, if it is nodes that are out of service without the operator.
    used_up: Option<Wait>,
}

/// The number of nodes of each group, and of those out of service. Index 0 is all nodes.
fn of_groups<'a>(
    view: &'a ClusterView,
    policy: &Policy,
    groups: &BTreeMap<&str, usize>,
    out: impl Fn(&'a NodeView) -> bool,
) -> Vec<(usize, usize)> {
    let mut counts = vec![(0, 0); policy.groups.len() + 1];
    for (name, node) in &view.nodes {
        let own = groups.get(name.as_str()).map(|group| group + 1);
        for index in std::iter::once(0).chain(own) {
            counts[index].0 += usize::from(node.facts.labelled);
            counts[index].1 += usize::from(out(node));
        }
    }
    counts
}

impl<'a> Budget<'a> {
    /// The budget less disrupted nodes, nodes with a slot, and nodes that are out of service without the operator.
    pub(super) fn of(view: &'a ClusterView, survey: &Survey<'_>, slots: &[Slot]) -> Self {
        let policy = survey.policy;
        let held: BTreeSet<&str> = slots.iter().map(|slot| slot.uid.as_str()).collect();
        let ours = |node: &NodeView| held.contains(node.facts.uid.as_str()) || node.disrupted();
        let out = |node: &NodeView| ours(node) || (node.facts.labelled && !node.facts.ready && !node.facts.deleting);
        let counts = of_groups(view, policy, &survey.groups, out);
        // A slot of a deleted node counts until it is released.
        let here = view.nodes.values().filter(|node| held.contains(node.facts.uid.as_str())).count();
        let gone = held.len().saturating_sub(here);
        let limit = policy.max_unavailable.of(survey.total).unwrap_or(1);
        let groups = policy.groups.iter().zip(&counts[1..]).map(|(group, (total, out))| {
            let limit = group.max_unavailable.as_ref()?.of(*total).unwrap_or(1);
            Some(limit.saturating_sub(*out))
        });
        let zones = policy.one_zone_at_a_time.then(|| {
            view.nodes.values().filter(|n| ours(n)).map(|n| (n.facts.zone(), n.facts.name.as_str())).collect()
        });
        let free = limit.saturating_sub(counts[0].1 + gone);
        let others: Vec<&NodeView> = view.nodes.values().filter(|node| out(node) && !ours(node)).collect();
        let first = others.first().filter(|_| others.len() >= limit);
        let used_up =
            first.map(|first| Wait::BudgetUsedUp { node: first.facts.name.clone(), count: others.len(), limit });
        Self { free, groups: groups.collect(), zones, used_up }
    }

    /// Sets the budget to zero.
    pub(super) fn close(&mut self) {
        self.free = 0;
    }

    /// The reason why nothing is free, if nodes that the operator does not disrupt have used the budget up.
    pub(super) fn used_up(&self) -> Option<&Wait> {
        self.used_up.as_ref()
    }

    /// The number of nodes that may still be taken in total.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// The reason why this node may not be taken although there is room in total.
    pub(super) fn refusal(&self, survey: &Survey<'_>, node: &NodeView) -> Option<Wait> {
        if let Some(group) = survey.groups.get(node.facts.name.as_str())
            && self.groups[*group] == Some(0)
        {
            return Some(Wait::GroupFull { group: survey.policy.groups[*group].name.clone() });
        }
        let (zone, other) = self.zones.as_ref()?.iter().find(|(zone, _)| **zone != node.facts.zone())?;
        Some(Wait::ZoneBusy { zone: (*zone).to_owned(), node: (*other).to_owned() })
    }

    /// Takes a node out of the budget.
    pub(super) fn take(&mut self, survey: &Survey<'_>, node: &'a NodeView) {
        self.free = self.free.saturating_sub(1);
        if let Some(group) = survey.groups.get(node.facts.name.as_str())
            && let Some(free) = &mut self.groups[*group]
        {
            *free = free.saturating_sub(1);
        }
        if let Some(zones) = &mut self.zones {
            zones.entry(node.facts.zone()).or_insert(&node.facts.name);
        }
    }
}

/// Returns whether a node that is not disrupted yet uses a slot: it waits for one, or has one and begins its drain. The
/// slot has to outlast the write that begins it, since until then nothing else records that the node is taken.
pub(super) fn makes_use(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::WantsSlot | Verdict::Wait(Wait::ReadingPods) => true,
        Verdict::Act(Action::Status { status, .. }) => {
            let progress = status.report.progress.as_ref();
            progress.is_some_and(|p| matches!(p.step, Step::LeavingBalancer | Step::Draining))
        }
        Verdict::Act(_) | Verdict::Wait(_) | Verdict::Candidate(_) => false,
    }
}

/// The nodes (uid) whose slot a write of the slots removes or replaces.
pub fn retracted(before: &[Slot], after: &[Slot]) -> BTreeSet<String> {
    before.iter().filter(|slot| !after.contains(slot)).map(|slot| slot.uid.clone()).collect()
}

/// The nodes (uid) that have a slot and have not begun. An earlier leader may have a write under way that removes the
/// slot, so a new leader records it again.
pub fn not_begun(view: &ClusterView) -> BTreeSet<String> {
    let begun = |node: &&NodeView| node.facts.claimed() || node.past_staging();
    let begun: BTreeSet<&str> = view.nodes.values().filter(begun).map(|node| node.facts.uid.as_str()).collect();
    let slots = view.operator.iter().flat_map(|operator| &operator.status.slots);
    slots.filter(|slot| !begun.contains(slot.uid.as_str())).map(|slot| slot.uid.clone()).collect()
}

/// The slots that stay: recorded ones of nodes that are under way or disrupted, and those of nodes that have lost
/// theirs and have a claim, or have rebooted as requested. The status of a shadow alone gives no slot: other clients
/// than the controller may have written it.
pub(super) fn kept(
    view: &ClusterView,
    held: &BTreeMap<&str, &Slot>,
    wants_slot: &BTreeSet<&str>,
    now: Timestamp,
) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for (name, node) in &view.nodes {
        let uid = node.facts.uid.as_str();
        // While a write about the node is under way, it may be the one that begins its drain.
        let busy = view.busy.contains(name);
        let keeps = node.disrupted() || node.past_staging() || busy || wants_slot.contains(name.as_str());
        match held.get(uid) {
            Some(slot) if keeps => slots.push((*slot).clone()),
            None if (node.disrupted() && node.facts.claimed()) || node.has_rebooted_as_desired() => {
                slots.push(Slot { uid: uid.to_owned(), node: name.clone(), since: now });
            }
            _ => {}
        }
    }
    slots
}

#[cfg(test)]
mod tests {
    use crate::claims::Parts;
    use std::sync::Arc;

    use models::operator::CountOrPercent;

    use super::*;
    use crate::fixtures::{cluster, node, progress, t};
    use crate::policy::{Group, GroupPolicy};

    #[test]
    fn a_budget_that_others_have_used_up_names_one_of_them() {
        let mut nodes: Vec<_> = (0..4).map(|number| node(&format!("n{number}"))).collect();
        (nodes[1].facts.ready, nodes[3].facts.ready) = (false, false);
        let (view, _) = cluster(nodes, &[]);
        for (limit, used_up) in [
            (1, Some(Wait::BudgetUsedUp { node: "n1".into(), count: 2, limit: 1 })),
            (2, Some(Wait::BudgetUsedUp { node: "n1".into(), count: 2, limit: 2 })),
            (3, None),
        ] {
            let policy = Policy { present: true, max_unavailable: CountOrPercent::Count(limit), ..Policy::default() };
            let survey = Survey::of(&view, &policy, t(0));
            assert_eq!(Budget::of(&view, &survey, &[]).used_up(), used_up.as_ref(), "{limit}");
        }
    }

    /// Ten nodes, `n0` to `n9`, in zones `a` (even) and `b` (odd); the first four are in group `db`.
    fn world(policy: &Policy, down: &[&str], ours: &[&str], slots: &[&str]) -> (usize, Vec<Option<Wait>>) {
        let nodes = (0..10).map(|number| {
            let mut node = node(&format!("n{number}"));
            let zone = if number % 2 == 0 { "a" } else { "b" };
            let mut labels = BTreeMap::from([(models::names::ZONE_LABEL.to_owned(), zone.to_owned())]);
            if number < 4 {
                labels.insert("tier".into(), "db".into());
            }
            node.facts.labels = Arc::new(labels);
            node.facts.ready = !down.contains(&node.facts.name.as_str());
            if ours.contains(&node.facts.name.as_str()) {
                node.facts.claims = Parts::USUAL;
            }
            node
        });
        let (view, _) = cluster(nodes.collect(), slots);
        let survey = Survey::of(&view, policy, t(0));
        let budget = Budget::of(&view, &survey, &view.operator.as_ref().unwrap().status.slots);
        let refusals = ["n0", "n1", "n9"].map(|name| budget.refusal(&survey, &view.nodes[name]));
        (budget.free(), refusals.into())
    }

    fn policy(limit: &str, group_limit: Option<&str>, one_zone: bool) -> Policy {
        let share = |text: &str| match text.parse() {
            Ok(count) => CountOrPercent::Count(count),
            Err(_) => CountOrPercent::Percent(text.into()),
        };
        let group = Group {
            name: "db".into(),
            selector: serde_json::from_str(r#"{"matchLabels": {"tier": "db"}}"#).unwrap(),
            max_unavailable: group_limit.map(share),
            policy: GroupPolicy::default(),
        };
        Policy {
            present: true,
            max_unavailable: share(limit),
            one_zone_at_a_time: one_zone,
            groups: vec![group],
            ..Policy::default()
        }
    }

    #[test]
    fn every_node_that_is_out_of_service_uses_the_budget_up() {
        for (sentence, limit, down, ours, slots, free) in [
            ("nothing is out", "1", vec![], vec![], vec![], 1),
            ("a percentage rounds down", "25%", vec![], vec![], vec![], 2),
            ("and is never below one", "1%", vec![], vec![], vec![], 1),
            ("a node of ours is out", "2", vec![], vec!["n5"], vec!["n5"], 1),
            ("a claim without a slot counts", "2", vec![], vec!["n5"], vec![], 1),
            ("a slot without a claim counts", "2", vec![], vec![], vec!["n5"], 1),
            ("a node that is NotReady for another reason counts", "2", vec!["n8"], vec![], vec![], 1),
            ("a node of ours that is NotReady counts once", "2", vec!["n5"], vec!["n5"], vec!["n5"], 1),
            ("a slot of a node that is gone counts", "2", vec![], vec![], vec!["gone"], 1),
            ("more than the budget is none left", "1", vec!["n7", "n8"], vec!["n5"], vec![], 0),
        ] {
            assert_eq!(world(&policy(limit, None, false), &down, &ours, &slots).0, free, "{sentence}");
        }
    }

    #[test]
    fn a_group_has_a_budget_of_its_own_besides() {
        let full = || Some(Wait::GroupFull { group: "db".into() });
        for (sentence, limit, out, refusals) in [
            ("no limit of its own", None, vec!["n1"], [None, None, None]),
            ("one of one is out", Some("1"), vec!["n1"], [full(), full(), None]),
            ("a percentage is of the group's nodes", Some("50%"), vec!["n1"], [None, None, None]),
            ("two of two are out", Some("50%"), vec!["n1", "n2"], [full(), full(), None]),
            ("a node outside the group is none of its", Some("1"), vec!["n8"], [None, None, None]),
        ] {
            let (_, got) = world(&policy("5", limit, false), &[], &out, &[]);
            assert_eq!(got, refusals, "{sentence}");
        }
    }

    #[test]
    fn only_one_zone_is_out_of_service_at_a_time_where_policy_asks() {
        let busy = |zone: &str| Some(Wait::ZoneBusy { zone: zone.into(), node: "n8".into() });
        for (sentence, one_zone, out, down, refusals) in [
            ("not asked for", false, vec!["n8"], vec![], [None, None, None]),
            ("no zone is", true, vec![], vec![], [None, None, None]),
            ("zone a is", true, vec!["n8"], vec![], [None, busy("a"), busy("a")]),
            ("a node that is down without us blocks no zone", true, vec![], vec!["n8"], [None, None, None]),
        ] {
            let (_, got) = world(&policy("5", None, one_zone), &down, &out, &[]);
            assert_eq!(got, refusals, "{sentence}");
        }
    }

    /// A node for each reason why it keeps a slot, and for none.
    fn one_each() -> ClusterView {
        let mut claimed = node("claimed");
        claimed.facts.claims = Parts::USUAL;
        let mut draining = node("draining");
        draining.shadow.as_mut().unwrap().status.controller.progress = Some(progress(Step::Draining, 0));
        let (mut view, _) = cluster(vec![claimed, draining, node("busy"), node("wanting"), node("idle")], &[]);
        view.busy.insert("busy".into());
        view
    }

    #[test]
    fn a_slot_stays_while_its_node_is_out_of_service_or_may_be_about_to_be() {
        let view = one_each();
        let recorded: Vec<Slot> = view
            .nodes
            .values()
            .map(|node| Slot { uid: node.facts.uid.clone(), node: node.facts.name.clone(), since: t(0) })
            .collect();
        let names = |slots: Vec<Slot>| slots.into_iter().map(|slot| slot.node).collect::<Vec<_>>();
        let held = recorded.iter().map(|slot| (slot.uid.as_str(), slot)).collect();
        let kept_of = |held| names(kept(&view, held, &["wanting"].into(), t(9)));
        assert_eq!(kept_of(&held), ["busy", "claimed", "draining", "wanting"]);
        assert_eq!(kept_of(&BTreeMap::new()), ["claimed"], "a status alone gives no slot");
    }

    #[test]
    fn a_node_with_a_slot_has_begun_with_its_claim_or_its_drain() {
        let mut view = one_each();
        let slots = view.nodes.values().map(|node| Slot {
            uid: node.facts.uid.clone(),
            node: node.facts.name.clone(),
            since: t(0),
        });
        view.operator.as_mut().unwrap().status.slots = slots.collect();
        let expected = ["busy", "idle", "wanting"].map(|name| format!("uid-{name}"));
        assert_eq!(not_begun(&view), expected.into());
    }
}
