//! Nodes that have proven a version and are not Ready any more. One of them keeps a canary step from being passed.
//! After three minutes their proofs no longer count, also where a repair then replaces the nodes: that holds a step,
//! and brakes the rollout. While their share is larger than that of the nodes without the version, they count against
//! the budgets for a day: the next ones may end like them. Their proofs count again once the nodes have
//! been well for their soak, and for an hour unless those without the version were not Ready as often in it. The soak
//! of a step begins again then.
//!
//! The proof of a node that is Ready and under pressure counts for ten minutes. Such a node is in service: it takes no
//! room in the budgets, and what is over before counts for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::{ActiveRollout, LedgerNode, NOT_READY, RolloutLedger, UNDER_PRESSURE};
use models::time::{after, signed};

use super::key::is_member;
use super::ledger::{self, LOST, Memory, is_proven};
use super::unavailable::{FALLEN_FOR, comes_or_goes};
use super::unwell::{LONGEST, comparison_nodes, was_taken_down, was_taken_out};
use crate::policy::Policy;
use crate::view::{ClusterView, NodeFacts, NodeView};

/// Time for which a node has to be not Ready to count.
const LASTING: Duration = Duration::from_secs(60);

/// Time after which the proof of a node under pressure does not count any more. Kubelets show pressure for five minutes after its end
/// (`evictionPressureTransitionPeriod`): one that has removed unused images in time has shown it for less.
const PRESSED: Duration = Duration::from_secs(10 * 60);

/// One in so many proven nodes shows that something is wrong.
const SHARE: usize = 20;

/// Time within which nodes are Ready again that were not for one cause, as after an outage of the control plane.
const AT_ONCE: Duration = Duration::from_secs(60 * 60);

/// Time for which nodes that were not Ready have to be well, at the least, to count again, where they are evidence in that time. Of nodes that panic
/// every few hours, few are down at once; half of those that panic every two hours were down in the last one.
const STEADY: Duration = Duration::from_secs(60 * 60);

/// The proven nodes of a rollout that are not Ready or under pressure.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Fallen {
    /// Those that have not been Ready for a minute.
    pub(crate) nodes: Vec<String>,
    /// Those whose proof does not count any more.
    pub(crate) lost: Vec<String>,
    /// The time at which another one counts, if it is not well until then, or one is proven again, if it stays well.
    pub(crate) wake: Option<Timestamp>,
}

/// Returns the proven nodes of a rollout that have not been Ready for a minute, and those that have not been, or were under pressure, for long
/// enough to be lost. A shortage from before the rollout says nothing.
pub(crate) fn of(view: &ClusterView, rollout: &ActiveRollout, now: Timestamp) -> Fallen {
    let (mut fallen, mut down, mut ill) = (Fallen::default(), Vec::new(), Vec::new());
    for node in view.nodes.values().filter(|node| !node.facts.is_well() && is_proven(node, rollout)) {
        let facts = &node.facts;
        let not_ready = facts.not_ready_since.filter(|_| !facts.ready);
        let pressed = facts.pressure_since.filter(|since| facts.ready && *since >= rollout.started);
        let at = |since: Option<Timestamp>, span: Duration| since.map(|since| after(since, span));
        let ends = [at(not_ready, LASTING), at(not_ready, LOST), at(pressed, PRESSED)];
        fallen.wake = ends.into_iter().chain([fallen.wake]).flatten().filter(|at| *at > now).min();
        let [lasts, is_lost, is_pressed] = ends.map(|at| at.map(|at| at <= now));
        if !facts.ready && lasts != Some(false) {
            fallen.nodes.push(facts.name.clone());
        }
        let is_down = is_lost == Some(true) && is_down_by_itself(facts);
        down.extend(is_down.then_some(node));
        ill.extend((is_down || is_pressed == Some(true)).then_some(node));
    }
    // Each is compared with what is like it: others under pressure excuse no node that is not Ready.
    let ill = if ill.len() > down.len() { ill_alone(view, rollout, ill) } else { Vec::new() };
    let lost = down_alone(view, rollout, down).into_iter().chain(ill);
    let lost: BTreeSet<&String> = lost.map(|node| &node.facts.name).collect();
    fallen.lost = lost.into_iter().cloned().collect();
    fallen
}

/// Returns the ledger of a rollout as its nodes show it now, and those that have fallen: a repair may be about to replace them, and with them
/// what they show about the version.
pub(super) fn followed(
    (view, policy): (&ClusterView, &Policy),
    rollout: &ActiveRollout,
    memory: Memory,
    now: Timestamp,
) -> (RolloutLedger, Fallen) {
    let least = if keeps_falling(view, rollout, now) { STEADY } else { LOST };
    let counts_from = |named: &LedgerNode, node: &NodeView| {
        let least = if named.reason == NOT_READY { least } else { LOST };
        ledger::counts_from(node, policy, rollout, least)
    };
    let is_back = |named: &LedgerNode, node: &NodeView| counts_from(named, node).is_some_and(|from| from <= now);
    let (mut ledger, mut fallen) = (ledger::of(view, rollout, memory, is_back), of(view, rollout, now));
    for name in &fallen.lost {
        let is_ready = view.nodes.get(name).is_some_and(|node| node.facts.ready);
        let end = if is_ready { UNDER_PRESSURE } else { NOT_READY };
        ledger.fall((name, end), |name| ledger::is_gone(view, name));
    }
    let named = ledger.nodes.iter().filter(|named| named.has_fallen());
    let again = named.filter_map(|named| counts_from(named, view.nodes.get(&named.node)?));
    fallen.wake = again.filter(|at| *at > now).chain(fallen.wake).min();
    (ledger, fallen)
}

/// Returns whether the nodes that had proven the version of a rollout and were not Ready, those that are back included, are evidence about it
/// among all that were not Ready within an hour. The others are compared over that hour, too: else what happens to all nodes in turn would look
/// like the version.
fn keeps_falling(view: &ClusterView, rollout: &ActiveRollout, now: Timestamp) -> bool {
    let named = rollout.ledger.iter().flat_map(|ledger| &ledger.nodes).filter(|named| named.reason == NOT_READY);
    let nodes = named.filter_map(|named| view.nodes.get(&named.node)).filter(|node| is_proven(node, rollout)).collect();
    let begun = after(now, -signed(STEADY)).max(rollout.started);
    let is_recent = |at: Timestamp| at > begun && at <= now;
    let has_fallen = |facts: &NodeFacts| {
        // One that has joined meanwhile was not Ready before either.
        let has_joined = facts.created.is_some_and(is_recent);
        let was_down = is_down(facts, rollout.started, now)? || facts.ready_since.is_some_and(is_recent);
        (!has_joined).then_some(was_down)
    };
    !evidence(view, rollout, nodes, has_fallen).is_empty()
}

/// Returns whether a node is not Ready, and no other client had cordoned it before, as a drain does.
fn is_down_by_itself(facts: &NodeFacts) -> bool {
    !facts.ready && !was_taken_out(facts)
}

/// Returns those of the proven nodes that are not Ready, if that is evidence about the version of a rollout. Dead machines
/// may stay for weeks: the others are compared for as long as the first of these has been down.
fn down_alone<'a>(view: &ClusterView, rollout: &ActiveRollout, down: Vec<&'a NodeView>) -> Vec<&'a NodeView> {
    let first = down.iter().filter_map(|node| node.facts.not_ready_since).min().unwrap_or(rollout.started);
    evidence(view, rollout, down, |facts| is_down(facts, rollout.started, first))
}

/// Returns those of the proven nodes that are not Ready or under pressure, if that is evidence in the same way. A node that is out of service
/// for its update says nothing: without its pods it is short of nothing, and others may be short because of them.
fn ill_alone<'a>(view: &ClusterView, rollout: &ActiveRollout, ill: Vec<&'a NodeView>) -> Vec<&'a NodeView> {
    let first = ill.iter().filter_map(|node| node.facts.ill_since()).min().unwrap_or(rollout.started);
    let is_out = |facts: &NodeFacts| view.nodes.get(&facts.name).is_some_and(NodeView::disrupted);
    evidence(view, rollout, ill, |facts| {
        let is_ill = (!facts.is_well()).then(|| facts.ill_since());
        fell_lately(is_ill, rollout.started, first).filter(|_| !is_out(facts))
    })
}

/// Returns whether a node is not Ready; `None` where it says nothing.
fn is_down(facts: &NodeFacts, since: Timestamp, fell: Timestamp) -> Option<bool> {
    fell_lately((!facts.ready).then_some(facts.not_ready_since), since, fell)
}

/// Returns whether something has happened to a node, with the time at which it did, as far as that is known; `None` where it says nothing: it
/// was before `since`, or more than a day before `fell`, the time of those that it is compared with.
fn fell_lately(happened: Option<Option<Timestamp>>, since: Timestamp, fell: Timestamp) -> Option<bool> {
    let is_old = |at: Timestamp| at < since || after(at, LONGEST) < fell;
    (!happened.flatten().is_some_and(is_old)).then_some(happened.is_some())
}

/// Returns whether a node without the version is to get it, or may be on its way already.
fn is_next(node: &NodeView) -> bool {
    node.facts.labelled && !node.facts.held() && !comes_or_goes(node)
}

/// Returns whether the first of the proven nodes fell more than a day after the end of their rollout. Machines fail in the course of
/// weeks, and a node that never gets the version would show each time that it is the cause.
fn is_late(nodes: &[&NodeView], rollout: &ActiveRollout) -> bool {
    let fell = nodes.iter().filter_map(|node| node.facts.ill_since()).min();
    let ended = rollout.record.as_ref().and_then(|record| record.ended);
    fell.zip(ended).is_some_and(|(fell, ended)| fell > after(ended, LONGEST))
}

/// Returns whether a node is of the kind of a rollout, and runs another version.
fn is_without(node: &NodeView, rollout: &ActiveRollout) -> bool {
    is_member(node, rollout) && !ledger::runs(node, rollout)
}

/// Returns the same for a Ready node that is not under the operator, whose kind its Node names.
fn is_unmanaged_other(facts: &NodeFacts, rollout: &ActiveRollout) -> bool {
    let kind = (facts.variant(), facts.arch());
    let is_of_kind = kind == (Some(rollout.variant.as_str()), Some(rollout.arch.as_str()));
    facts.ready && is_of_kind && facts.os_version().is_some_and(|running| running != rollout.version)
}

/// Returns whether the reboot of a node was permitted: what happens to it then may be that reboot, and says nothing.
fn is_permitted(node: &NodeView) -> bool {
    let has_permit = node.shadow.as_ref().is_some_and(|shadow| shadow.spec.permit.is_some());
    node.update().is_some_and(|progress| progress.permit_issued || has_permit)
}

/// Returns the proven nodes to which something has happened, if that is evidence about the version of a rollout: they
/// are at least one in twenty, and it has happened to less than half that share of the nodes without the version. Those that a
/// permit, a user or a drain has taken down say nothing. Zones are left out in which it has happened to at least two, and at least
/// half, of the nodes without the version, of any kind.
fn evidence<'a>(
    view: &ClusterView,
    rollout: &ActiveRollout,
    mut nodes: Vec<&'a NodeView>,
    has_happened: impl Fn(&NodeFacts) -> Option<bool>,
) -> Vec<&'a NodeView> {
    if nodes.is_empty() {
        return nodes;
    }
    let mut zones: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for facts in comparison_nodes(view).filter(|facts| facts.os_version().as_ref() != Some(&rollout.version)) {
        let Some(happened) = has_happened(facts) else { continue };
        let (all, ill) = zones.entry(facts.zone()).or_default();
        *all += 1;
        *ill += usize::from(happened);
    }
    let has_failed = |zone: &str| zones.get(zone).is_some_and(|(all, ill)| *ill >= 2 && *ill * 2 >= *all);
    nodes.retain(|node| !has_failed(node.facts.zone()));
    let (mut proven, mut others, mut ill) = (0, 0, 0);
    let mut count = |facts: &NodeFacts, is_permitted: bool| {
        let is_taken = is_permitted || was_taken_down(facts);
        if let Some(happened) = has_happened(facts).filter(|happened| !(*happened && is_taken)) {
            others += 1;
            ill += usize::from(happened);
        }
    };
    // Of the nodes that do not get the version, the Ready ones are compared, too. One that is down may be so for causes of its own.
    let is_late = is_late(&nodes, rollout);
    for node in view.nodes.values().filter(|node| !has_failed(node.facts.zone())) {
        if is_proven(node, rollout) {
            proven += 1;
        } else if (is_next(node) || (node.facts.ready && !is_late)) && is_without(node, rollout) {
            count(&node.facts, is_permitted(node));
        }
    }
    let unmanaged = view.unmanaged.values().filter(|facts| !is_late && is_unmanaged_other(facts, rollout));
    unmanaged.filter(|facts| !has_failed(facts.zone())).for_each(|facts| count(facts, false));
    if nodes.len() * SHARE < proven || nodes.len() * others <= 2 * ill * proven {
        nodes.clear();
    }
    nodes
}

/// Returns the latest time in the soak of a canary step at which a proven node became Ready again, as after a reboot
/// that no leader saw, where the nodes of one hour are evidence about the version. Times to come are ignored: the clock
/// of a kubelet may be ahead.
pub(crate) fn ready_again(view: &ClusterView, rollout: &ActiveRollout, now: Timestamp) -> Option<Timestamp> {
    let begun = rollout.step_done.filter(|_| rollout.urgent_until.is_none())?;
    let back_at = |facts: &NodeFacts| facts.ready_since.filter(|at| facts.ready && *at > begun && *at <= now);
    let proven = view.nodes.values().filter(|node| back_at(&node.facts).is_some() && is_proven(node, rollout));
    let mut back: Vec<&NodeView> = proven.collect();
    let last = back.iter().filter_map(|node| back_at(&node.facts)).max()?;
    let is_recent = |at: Timestamp| after(at, AT_ONCE) >= last;
    back.retain(|node| back_at(&node.facts).is_some_and(is_recent));
    let is_back = |facts: &NodeFacts| {
        // One that has joined meanwhile was not Ready before either.
        let has_joined = facts.created.is_some_and(is_recent);
        let was_down = is_down(facts, begun, last)? || back_at(facts).is_some_and(is_recent);
        (!has_joined).then_some(was_down)
    };
    let is_evidence = !evidence(view, rollout, back, is_back).is_empty();
    is_evidence.then_some(last)
}

/// Returns the node with which the soak of a canary step began again, where it did: the last proven one that became Ready again.
pub fn began_again<'a>(view: &'a ClusterView, rollout: &ActiveRollout) -> Option<&'a str> {
    let is_cause =
        |facts: &NodeFacts| facts.ready && facts.ready_since.is_some() && facts.ready_since == rollout.step_done;
    let cause = view.nodes.values().find(|node| is_cause(&node.facts) && is_proven(node, rollout))?;
    Some(&cause.facts.name)
}

/// Returns the proven nodes of all running rollouts that have become not Ready by themselves in the last day, where they are at least two of a
/// rollout and one in twenty, and of its nodes without the version less than half that share is not Ready.
pub(crate) fn suspects(view: &ClusterView, now: Timestamp) -> BTreeSet<&str> {
    let fell = |at: Timestamp| after(at, FALLEN_FOR) > now;
    let has_fallen = |node: &&NodeView| is_down_by_itself(&node.facts) && node.facts.not_ready_since.is_some_and(fell);
    let down: Vec<&NodeView> = view.nodes.values().filter(has_fallen).collect();
    let mut suspects = BTreeSet::new();
    let rollouts = view.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
    for rollout in rollouts.filter(|rollout| rollout.ended.is_none()) {
        let fallen: Vec<&NodeView> = down.iter().copied().filter(|node| is_proven(node, rollout)).collect();
        let fallen = down_alone(view, rollout, fallen);
        if fallen.len() >= 2 {
            suspects.extend(fallen.iter().map(|node| node.facts.name.as_str()));
        }
    }
    suspects
}

#[cfg(test)]
mod tests;
