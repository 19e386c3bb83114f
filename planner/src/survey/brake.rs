//! The brake of a rollout: updates that end one after the other without a proof stop it, whatever their reasons.
//!
//! Trouble of every node looks like that of one node after the other: an agent that requests no permit, a budget that never
//! opens. Nothing but proof shows that it is not.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use models::operator::{ActiveRollout, BrakeLimit, LedgerNode, MAX_FAILURES, RolloutLedger};

use super::key::is_member;
use crate::policy::{Policy, WindowState};
use crate::view::ClusterView;
use crate::wait::Wait;

/// The number of nodes that the reason names.
const NAMED: usize = 3;

/// A brake, or the start of a rollout, in which one node goes alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Brake {
    /// The reason why others wait.
    pub(crate) wait: Wait,
    /// The number of nodes that may get a slot.
    pub(crate) room: usize,
    /// The time at which that changes, where it is known.
    pub(crate) wake: Option<Timestamp>,
    /// The nodes that have ended without a proof, the last one at the end. Others are tried before them.
    pub(crate) row: Vec<String>,
}

/// The number of ends in a row that brake a rollout of many nodes, unless policy has another one.
const DEFAULT_LIMIT: usize = 3;

/// Returns the number of ends in a row that brake a rollout among so many nodes: fewer than all of them, so that not each has to end
/// so. One alone has its back-off, and the greatest number of policy switches the brake off.
pub(crate) fn limit(policy: &Policy, total: usize) -> usize {
    match (policy.max_consecutive_failures, total) {
        (Some(limit), _) if limit >= MAX_FAILURES as usize => usize::MAX,
        (Some(limit), 0 | 1) => limit,
        (None, 0 | 1) => usize::MAX,
        (limit, total) => limit.unwrap_or(DEFAULT_LIMIT).min(total - 1),
    }
}

/// Returns the number of ends that brake a rollout with this ledger, by the numbers of nodes of its kind and of those that it has had to update.
pub(crate) fn limit_among(
    view: &ClusterView,
    policy: &Policy,
    ledger: &RolloutLedger,
    of_kind: (usize, usize),
) -> BrakeLimit {
    limit_of(policy, ledger.judged_among(nodes(view, ledger, of_kind)))
}

/// Returns the number of ends that brake a rollout, as far as the ledger of a braked one shows it: among as many nodes as there were then.
pub fn recorded_limit(policy: &Policy, ledger: &RolloutLedger) -> BrakeLimit {
    limit_of(policy, ledger.judged_among(usize::MAX))
}

fn limit_of(policy: &Policy, nodes: usize) -> BrakeLimit {
    let ends = limit(policy, nodes);
    // A share of none would be nothing.
    if nodes == 0 { ends.into() } else { BrakeLimit { ends, nodes } }
}

/// Returns the number of nodes that limits how many ends brake a rollout. Nodes of the row that are gone, or no longer
/// under the operator, count as if they were there, so that deleting nodes neither lifts a brake nor causes one. Since
/// others may have replaced them, the number is at most that of the nodes that the rollout has had to update.
fn nodes(view: &ClusterView, ledger: &RolloutLedger, (total, base): (usize, usize)) -> usize {
    let is_there = |end: &&LedgerNode| view.nodes.get(&end.node).is_some_and(|node| node.facts.labelled);
    let gone = ledger.row.iter().filter(|end| !is_there(end)).count();
    total.saturating_add(gone).min(base).max(total)
}

/// Returns whether a window of the nodes of a rollout has opened since the operator's status was last written.
pub(crate) fn window_opens(view: &ClusterView, policy: &Policy, rollout: &ActiveRollout, now: Timestamp) -> bool {
    let next = view.operator.as_ref().and_then(|operator| operator.status.next_window).filter(|next| *next <= now);
    let Some(before) = next.and_then(|next| next.checked_sub(SignedDuration::from_secs(1)).ok()) else { return false };
    let members = view.nodes.values().filter(|node| node.facts.labelled && is_member(node, rollout));
    let groups: BTreeSet<Option<usize>> = members.map(|node| policy.group_of(&node.facts)).collect();
    groups.into_iter().any(|group| {
        let schedule = &group.map_or(&policy.all, |index| &policy.groups[index].policy).schedule;
        let is_open = |at| matches!(schedule.at(at), WindowState::Open { .. });
        is_open(now) && !is_open(before)
    })
}

/// Ends the pause of a brake where a window opens, or a user requests to try one of the nodes that wait for it.
pub(crate) fn end_pause(ledger: &mut RolloutLedger, window_opens: bool, is_retried: bool, now: Timestamp) {
    let Some(until) = ledger.braked_until.as_mut().filter(|until| **until > now) else { return };
    if window_opens || is_retried {
        *until = now;
    }
}

impl Brake {
    /// Returns whether it is this node that goes alone, or is tried.
    pub(crate) fn is_of(&self, node: &str) -> bool {
        match &self.wait {
            Wait::Braked { trial: alone, .. } | Wait::FirstNode { node: alone, .. } => alone.as_deref() == Some(node),
            _ => false,
        }
    }
}

/// A node that has a slot for a rollout, or is out of service for it, and that may come to the version.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Busy {
    pub(crate) node: String,
    /// The time of its slot; `None` without one.
    pub(crate) since: Option<Timestamp>,
    /// True if its attempt has ended: its host may still reboot by the permit.
    pub(crate) ended: bool,
}

/// Returns what lets the first node of a rollout go alone, until one is proven or accepted by a user.
pub(crate) fn first(ledger: &RolloutLedger, under_way: &[Busy]) -> Option<Brake> {
    let find = |ended: bool| under_way.iter().find(|busy| busy.ended == ended).map(|busy| busy.node.clone());
    let (wait, room) = (Wait::FirstNode { node: find(false), not_back: find(true) }, usize::from(under_way.is_empty()));
    (ledger.good() == 0).then_some(Brake { wait, room, wake: None, row: Vec::new() })
}

/// Returns the brake of a rollout, if it is braked. `runs` says of an end whether its node may run the version without a proof.
pub(crate) fn of(
    ledger: &RolloutLedger,
    under_way: &[Busy],
    runs: impl Fn(&LedgerNode) -> bool,
    now: Timestamp,
) -> Option<Brake> {
    let until = ledger.braked_until?;
    let nodes: Vec<String> = ledger.row.iter().rev().take(NAMED).map(ToString::to_string).collect();
    let count = ledger.row.len();
    let fallen = ledger.row.iter().filter(|end| end.has_fallen()).count();
    let braked = |until, trial| Wait::Braked { count, fallen, nodes: nodes.clone(), until, trial };
    let row = || ledger.row.iter().map(|end| end.node.clone()).collect();
    let none = |wait| Some(Brake { wait, room: 0, wake: None, row: row() });
    // No further node goes to a version that others may run without a proof: one of them has to show that it is good.
    if ledger.row.iter().any(runs) {
        return none(braked(None, None));
    }
    if let Some(trial) = under_way.iter().find(|busy| !busy.ended && busy.since.is_some_and(|since| since >= until)) {
        return none(braked(None, Some(trial.node.clone())));
    }
    // Those that were under way before are finished first.
    let room = usize::from(now >= until && under_way.is_empty());
    Some(Brake { wait: braked(Some(until), None), room, wake: Some(until).filter(|until| *until > now), row: row() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{cluster, node, t};

    #[test]
    fn braked_rollout_wakes_at_the_end_of_its_pause() {
        let ledger = RolloutLedger { braked_until: Some(t(100)), ..RolloutLedger::default() };
        for (now, wake) in [(50, Some(t(100))), (100, None), (150, None)] {
            assert_eq!(of(&ledger, &[], |_| false, t(now)).unwrap().wake, wake, "{now} s");
        }
    }

    #[test]
    fn limit_of_ends_has_the_number_of_nodes_that_it_is_among() {
        let (view, policy) = cluster(vec![node("a")], &[]);
        assert_eq!(limit_among(&view, &policy, &RolloutLedger::default(), (3, 3)).nodes, 3);
        let braked = RolloutLedger { braked_until: Some(t(100)), braked_among: Some(2), ..RolloutLedger::default() };
        assert_eq!(recorded_limit(&policy, &braked), BrakeLimit { ends: 1, nodes: 2 });
    }
}
