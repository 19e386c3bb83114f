//! The whole fleet: who is next, within the budget.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::Slot;
use models::shadow::{Step, VersionFailure};
use semver::Version;

use super::attempt::{Case, refusal};
use super::{Action, Decision, Plan, Quarantine, Verdict, Wait, report};
use crate::drain::filter;
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// How many candidates beyond the free slots have their pods looked at, so that one with a pod in the way gives its turn
/// to the next at once.
const MARGIN: usize = 2;

/// Whether a node is, or may be, out of service because of us.
fn disrupted(node: &NodeView) -> bool {
    node.facts.claimed
        || node.shadow.as_ref().and_then(|s| s.status.controller.progress.as_ref()).is_some_and(|p| p.disruptive)
}

/// Makes the plan.
pub fn plan(view: &ClusterView, policy: &Policy, now: Timestamp) -> Plan {
    let quarantine = Quarantine::of(view, policy.max_failures);
    let held: BTreeMap<&str, &Slot> =
        view.operator.iter().flat_map(|o| &o.status.slots).map(|slot| (slot.uid.as_str(), slot)).collect();
    let mut plan = Plan::default();
    let mut candidates: Vec<(&str, Version)> = Vec::new();
    let mut wanting: Vec<&str> = Vec::new();
    let mut beginning = 0;
    let mut wants_slot: BTreeSet<&str> = BTreeSet::new();
    let mut pending: Vec<(&str, Vec<VersionFailure>)> = Vec::new();

    for (name, node) in &view.nodes {
        let decision = match case(view, policy, &quarantine, now, node, &held) {
            Some(case) => case.decide(),
            None if node.facts.labelled => Decision::wait(Wait::NoShadow),
            None => Decision::wait(Wait::NotLabelled),
        };
        if decision.pods {
            plan.pods.insert(name.clone());
        }
        plan.wake = earliest(plan.wake, decision.wake);
        let busy = view.busy.contains(name);
        if let Verdict::Act(Action::Status { status, .. }) = &decision.verdict
            && let Some(record) = &status.report.record
        {
            pending.push((name, record.version_failures.clone()));
        }
        if makes_use_of_slot(&decision.verdict) {
            wants_slot.insert(name);
        }
        match decision.verdict {
            Verdict::WantsSlot => {
                wanting.push(name);
            }
            verdict if busy => {
                // Its first write may be under way, and is not seen yet.
                beginning += usize::from(matches!(verdict, Verdict::Candidate(_)));
                plan.waits.insert(name.clone(), Wait::Acting);
            }
            Verdict::Act(action) => {
                plan.actions.insert(name.clone(), action);
            }
            Verdict::Wait(wait) => {
                plan.waits.insert(name.clone(), wait);
            }
            Verdict::Candidate(version) => candidates.push((name, version)),
        }
    }

    // A failure whose record is about to be written counts already: nothing starts beside the write that freezes.
    let freezes = Quarantine::with(view, policy.max_failures, &pending).frozen_by().cloned();
    let freezes = freezes.filter(|_| quarantine.frozen_by().is_none());
    if let Some(version) = &freezes {
        let starting: Vec<_> = plan.actions.iter().filter(|(_, a)| Plan::starts(a)).map(|(n, _)| n.clone()).collect();
        for name in starting {
            plan.actions.remove(&name);
            plan.waits.insert(name, Wait::Frozen { version: version.clone() });
        }
    }

    let ordered = |a: &&str, b: &&str| order(view, a).cmp(&order(view, b));
    wanting.sort_by(ordered);
    candidates.sort_by(|(a, _), (b, _)| ordered(a, b));

    // The budget: what we disrupt, and what is out of service without us.
    let total = view.nodes.values().filter(|n| n.facts.labelled).count();
    let budget = policy.max_unavailable.of(total).unwrap_or(1);
    let mut slots = kept_slots(view, &held, &wants_slot, now);
    let mut in_use: BTreeSet<String> = slots.iter().map(|slot| slot.uid.clone()).collect();
    for node in view.nodes.values() {
        let out_without_us = node.facts.labelled && !node.facts.ready && !node.facts.deleting;
        if disrupted(node) || out_without_us {
            in_use.insert(node.facts.uid.clone());
        }
    }
    let free = if freezes.is_some() { 0 } else { budget.saturating_sub(in_use.len()) };

    let mut given = 0;
    let mut looked_at = 0;
    let mut in_the_way = 0;
    for (position, name) in wanting.iter().enumerate() {
        let Some(node) = view.nodes.get(*name) else { continue };
        if held.contains_key(node.facts.uid.as_str()) {
            continue; // it has one already, and its pods are being read
        }
        let mut wait = Wait::Queued { position };
        if looked_at < free + MARGIN && free > 0 {
            looked_at += 1;
            plan.pods.insert((*name).to_owned());
            match &node.pods {
                None => wait = Wait::ReadingPods,
                Some(pods) => match refusal(&filter::sort(pods, None, &view.own_namespace)) {
                    Some(refused) => {
                        wait = refused;
                        looked_at -= 1;
                        in_the_way += 1;
                    }
                    None if given < free && view.operator.is_some() => {
                        given += 1;
                        slots.push(Slot { uid: node.facts.uid.clone(), node: (*name).to_owned(), since: now });
                        wait = Wait::Queued { position: 0 };
                    }
                    None => {}
                },
            }
        }
        if view.busy.contains(*name) {
            plan.waits.insert((*name).to_owned(), Wait::Acting);
            continue;
        }
        let waiting = case(view, policy, &quarantine, now, node, &held).and_then(|case| {
            let progress = case.shadow.status.controller.progress.as_ref()?;
            // A node whose turn is about to come need not be told that it waits.
            let passes_through = free > 0 && matches!(wait, Wait::ReadingPods | Wait::Queued { position: 0 });
            (!passes_through).then(|| case.waiting_staged(progress, wait.clone()))
        });
        match waiting.map(|d| d.verdict) {
            Some(Verdict::Act(action)) => {
                plan.actions.insert((*name).to_owned(), action);
            }
            _ => {
                plan.waits.insert((*name).to_owned(), wait);
            }
        }
    }

    // Staging disrupts nothing, but without pre-staging it passes the same gates as a start: for the free slots, and as
    // many nodes again.
    let staging =
        view.nodes.values().filter(|n| step_of(n).is_some_and(|s| matches!(s, Step::Staging | Step::Staged))).count();
    // A staged node that cannot be drained gives way: it does not count.
    let room = (2 * free + in_the_way).saturating_sub(staging + beginning);
    for (position, (name, version)) in candidates.iter().enumerate() {
        let case = view.nodes.get(*name).and_then(|node| case(view, policy, &quarantine, now, node, &held));
        match case {
            Some(case) if position < room => {
                plan.actions.insert((*name).to_owned(), case.begin(version));
            }
            _ => {
                plan.waits.insert((*name).to_owned(), Wait::Queued { position: position + wanting.len() });
            }
        }
    }

    if let Some(operator) = &view.operator {
        let unchanged = operator.status.slots.len() == slots.len()
            && operator.status.slots.iter().zip(&slots).all(|(a, b)| a.uid == b.uid);
        let mut status = report::status(view, policy, &quarantine, &plan, now);
        status.slots = if unchanged { operator.status.slots.clone() } else { slots.clone() };
        plan.slots = (!unchanged).then_some(slots);
        plan.status = Some(status);
    }
    plan
}

fn case<'a>(
    view: &'a ClusterView,
    policy: &'a Policy,
    quarantine: &'a Quarantine,
    now: Timestamp,
    node: &'a NodeView,
    held: &BTreeMap<&str, &Slot>,
) -> Option<Case<'a>> {
    let shadow = node.shadow.as_ref()?;
    let slot = held.contains_key(node.facts.uid.as_str());
    Some(Case { view, node, shadow, policy, quarantine, now, slot })
}

pub(super) fn step_of(node: &NodeView) -> Option<Step> {
    node.shadow.as_ref().and_then(|s| s.status.controller.progress.as_ref()).map(|p| p.step)
}

/// Fewest failures first, the leader's own node last, then by name: the same for the same facts, whatever order they
/// came in.
fn order<'a>(view: &ClusterView, name: &'a str) -> (bool, i64, &'a str) {
    let record = view.nodes.get(name).and_then(|n| n.shadow.as_ref()).and_then(|s| s.status.controller.record.as_ref());
    (view.own_node.as_deref() == Some(name), record.map_or(0, |r| r.failures), name)
}

/// Whether a node that is not disrupted yet has a use for a slot: it waits for one, or has one and begins its drain. The
/// slot has to outlast the write that does so, since until then nothing else says that the node is taken.
fn makes_use_of_slot(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::WantsSlot | Verdict::Wait(Wait::ReadingPods) => true,
        Verdict::Act(Action::Status { status, .. }) => {
            let progress = status.report.progress.as_ref();
            progress.is_some_and(|p| matches!(p.step, Step::LeavingBalancer | Step::Draining))
        }
        Verdict::Act(_) | Verdict::Wait(_) | Verdict::Candidate(_) => false,
    }
}

/// The slots that stay: of nodes that exist and are under way or disrupted, whether they had one or lost it.
fn kept_slots(
    view: &ClusterView,
    held: &BTreeMap<&str, &Slot>,
    wants_slot: &BTreeSet<&str>,
    now: Timestamp,
) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for (name, node) in &view.nodes {
        let uid = node.facts.uid.as_str();
        let past_staging = step_of(node).is_some_and(|s| !matches!(s, Step::Staging | Step::Staged));
        // While a write about the node is under way, it may be the one that begins its drain.
        let busy = view.busy.contains(name);
        let keeps = disrupted(node) || past_staging || busy || wants_slot.contains(name.as_str());
        match held.get(uid) {
            Some(slot) if keeps => slots.push((*slot).clone()),
            None if disrupted(node) => {
                slots.push(Slot { uid: uid.to_owned(), node: name.clone(), since: now });
            }
            _ => {}
        }
    }
    slots
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl Plan {
    /// Whether this action begins the disruption of a node, or an attempt.
    pub(crate) fn starts(action: &Action) -> bool {
        match action {
            Action::Status { status, .. } => status
                .report
                .progress
                .as_ref()
                .is_some_and(|p| matches!(p.step, Step::Staging | Step::LeavingBalancer | Step::Draining)),
            Action::Spec { .. }
            | Action::Claim
            | Action::Release
            | Action::Evict { .. }
            | Action::Go { .. }
            | Action::LookAtLease => false,
        }
    }
}
