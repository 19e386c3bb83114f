//! The brake of a rollout: updates that end one after the other without a proof stop it, whatever their reasons.
//!
//! Trouble of every node looks like that of one node after the other: an agent that requests no permit, a budget that never
//! opens. Nothing but proof shows that it is not.

use jiff::Timestamp;
use models::operator::{LedgerNode, RolloutLedger};
use models::reason::Proof;

use crate::policy::Policy;
use crate::view::NodeView;
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
}

/// Returns the number of ends in a row that brake a rollout among so many nodes. One alone has its back-off.
pub(crate) fn limit(policy: &Policy, total: usize) -> usize {
    match total {
        0 | 1 => usize::MAX,
        total => policy.max_consecutive_failures.min(total - 1).max(1),
    }
}

/// Ends the pause of a brake where a user requests to try one of the nodes again.
pub(crate) fn end_pause<'a>(ledger: &mut RolloutLedger, mut nodes: impl Iterator<Item = &'a NodeView>, now: Timestamp) {
    let Some(until) = ledger.braked_until.as_mut().filter(|until| **until > now) else { return };
    if nodes.any(|node| node.shadow.as_ref().is_some_and(|shadow| shadow.pending_retry().is_some())) {
        *until = now;
    }
}

impl Brake {
    /// Returns whether it is this node that goes alone, or is tried.
    pub(crate) fn is_of(&self, node: &str) -> bool {
        match &self.wait {
            Wait::Braked { trial: alone, .. } | Wait::FirstNode { node: alone } => alone.as_deref() == Some(node),
            _ => false,
        }
    }
}

/// Returns what lets the first node of a rollout go alone, until one is proven or accepted by a user.
pub(crate) fn first(ledger: &RolloutLedger, under_way: &[String]) -> Option<Brake> {
    let node = under_way.first().cloned();
    let room = usize::from(node.is_none());
    (ledger.good() == 0).then_some(Brake { wait: Wait::FirstNode { node }, room, wake: None })
}

/// Returns the brake of a rollout, if it is braked. `under_way` are its nodes with a slot, or out of service.
pub(crate) fn of(
    policy: &Policy,
    ledger: &RolloutLedger,
    total: usize,
    under_way: &[String],
    now: Timestamp,
) -> Option<Brake> {
    let until = ledger.braked_until?;
    if ledger.row.len() < limit(policy, total) {
        // Policy allows more now.
        return None;
    }
    let named = |named: &LedgerNode| named.to_string();
    let nodes: Vec<String> = ledger.row.iter().rev().take(NAMED).map(named).collect();
    let count = ledger.row.len();
    let braked =
        |until, trial: Option<&String>| Wait::Braked { count, nodes: nodes.clone(), until, trial: trial.cloned() };
    // No further node goes to a version that others run without a proof: one of them has to show that it is good.
    if ledger.row.iter().any(|node| node.proof != Proof::Free) {
        return Some(Brake { wait: braked(None, None), room: 0, wake: None });
    }
    if let Some(first) = under_way.first() {
        return Some(Brake { wait: braked(None, Some(first)), room: 0, wake: None });
    }
    let room = usize::from(now >= until);
    Some(Brake { wait: braked(Some(until), None), room, wake: Some(until).filter(|until| *until > now) })
}
