//! Canary steps: the number of nodes that may get a version before it has proven itself, and the approval of a user.

use jiff::Timestamp;
use models::operator::{ActiveRollout, CountOrPercent, RolloutLedger};
use models::reason::Proof;
use models::time::after;

use super::state::{NAMED, Rollout};
use crate::policy::{CanaryStep, Policy};
use crate::survey::key::{is_member, may_be_member};
use crate::survey::{fallen, ledger};
use crate::view::{ClusterView, NodeView};
use crate::wait::{Wait, not_ready};

/// The name of a canary step in an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepName {
    /// The number of the rollout's record.
    rollout: i64,
    /// The places of the step.
    places: i64,
    /// True if places that are not proven are accepted.
    unproven: bool,
}

/// The steps that a pending approval names; none without one.
#[derive(Default)]
pub(super) struct Approval(Vec<StepName>);

impl Approval {
    /// Reads the names in an approval: `<rollout>/<places>[/unproven]`, several with commas, and after an `@` what makes it a new value. One
    /// that cannot be read passes nothing.
    pub(super) fn read(value: &str) -> Self {
        let names = value.split_once('@').map_or(value, |(names, _)| names);
        let name = |name: &str| {
            let mut parts = name.trim().split('/');
            let (rollout, places) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let unproven = match (parts.next(), parts.next()) {
                (None, _) => false,
                (Some("unproven"), None) => true,
                _ => return None,
            };
            Some(StepName { rollout, places, unproven })
        };
        // A rollout whose record is not known yet has no name.
        Self(names.split(',').filter_map(name).filter(|step| step.rollout > 0).collect())
    }

    /// Returns whether it passes this step, and if so, whether also with places that are not proven.
    fn of(&self, rollout: i64, places: i64) -> Option<bool> {
        let own = |step: &&StepName| (step.rollout, step.places) == (rollout, places);
        self.0.iter().find(own).map(|step| step.unproven)
    }
}

/// Returns the places of each canary step, with those of the steps before it: shares are of all nodes that the rollout has to
/// update, and round up.
fn places(policy: &Policy, base: usize) -> Vec<i64> {
    let mut before = 0;
    let places = policy.canary.iter().map(|step| {
        let own = step.nodes.rounded_up(base);
        before = i64::try_from(own).unwrap_or(i64::MAX).max(before + 1);
        before
    });
    places.collect()
}

/// The places of a canary step, with those of the steps before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepPlaces {
    /// The index of the step.
    pub(crate) step: usize,
    /// The share of all nodes that the rollout has to update.
    pub(crate) share: i64,
    /// The share of those that are left, and no more than that.
    pub(crate) due: i64,
}

/// Returns the places of the first step above those that are passed; `None` after the last one. Of `base` there may be so few `nodes` left that
/// all of them fit into the step as it was, and it would never be full.
pub(crate) fn due(policy: &Policy, (base, nodes): (usize, usize), passed: i64) -> Option<StepPlaces> {
    let (step, share) = places(policy, base).into_iter().enumerate().find(|(_, share)| *share > passed)?;
    let due = places(policy, nodes).get(step).copied()?.min(share);
    Some(StepPlaces { step, share, due })
}

/// Returns whether a step is due again among so many nodes after the last one was passed among as many as the ledger has.
pub(crate) fn has_outgrown(policy: &Policy, ledger: &RolloutLedger, base: usize) -> bool {
    let is_due = |base| due(policy, (base, base), ledger.passed).is_some();
    ledger.due == 0 && is_due(base) && !is_due(usize::try_from(ledger.base).unwrap_or(0))
}

/// Returns the first few nodes that have failed, or whose places are neither proven nor accepted, each with the end of its attempt.
fn without_proof(ledger: &RolloutLedger, failed: bool) -> Vec<String> {
    let named = ledger.nodes.iter().filter(|node| (node.proof == Proof::Failed) == failed && !node.accepted);
    named.take(NAMED).map(ToString::to_string).collect()
}

/// Returns the first few of the nodes that are not Ready which no user has accepted.
fn not_accepted(ledger: &RolloutLedger, fallen: &[String]) -> Vec<String> {
    let is_accepted = |name: &&String| ledger.nodes.iter().any(|node| node.node == **name && node.accepted);
    fallen.iter().filter(|name| !is_accepted(name)).take(NAMED).map(|name| not_ready(name)).collect()
}

/// Returns the first few nodes that have proven the version of a rollout without any pods of workloads.
fn without_workloads(view: &ClusterView, active: &ActiveRollout) -> Vec<String> {
    let proven = |node: &&NodeView| ledger::place(node, active) == Some(Proof::Proven);
    let alone = |node: &&NodeView| node.record().is_some_and(|record| record.without_workloads);
    let nodes = view.nodes.values().filter(proven).filter(alone);
    nodes.take(NAMED).map(|node| node.facts.name.clone()).collect()
}

/// Returns whether a node that may be of the variant and architecture of a rollout runs its version.
fn is_on_version(node: &NodeView, rollout: &ActiveRollout) -> bool {
    (is_member(node, rollout) || may_be_member(node, rollout)) && ledger::runs(node, rollout)
}

/// Returns whether a node runs the version of a rollout, so that it soaks there, as far as is known: one that cannot be read may run it. One
/// without a place, as after its Node was registered again, is not watched for its health, and has to be Ready.
pub(crate) fn is_run(view: &ClusterView, rollout: &ActiveRollout) -> bool {
    let soaks = |node: &NodeView| {
        let is_watched = || ledger::place(node, rollout).is_some();
        node.facts.labelled && is_on_version(node, rollout) && (node.facts.ready || is_watched())
    };
    !view.unreadable.nodes.is_empty() || view.nodes.values().any(soaks)
}

/// Returns the number of nodes that are there and have a proof of the version of a rollout, or run it, as after their Nodes were registered
/// again: no other node takes their places.
fn there(view: &ClusterView, rollout: &ActiveRollout) -> i64 {
    let is_there =
        |node: &&NodeView| ledger::place(node, rollout) == Some(Proof::Proven) || is_on_version(node, rollout);
    i64::try_from(view.nodes.values().filter(is_there).count()).unwrap_or(i64::MAX)
}

/// Nodes that the reason of a canary step may name, and the state of those in its soak.
pub(super) struct Named {
    on_their_way: Vec<String>,
    without_workloads: Vec<String>,
    fallen: Vec<String>,
    /// The time from which nodes have been Ready again that were not.
    ready_again: Option<Timestamp>,
    /// True if a node runs the version.
    is_run: bool,
    /// The number of nodes that keep proven places: they are there.
    there: i64,
}

impl Named {
    pub(super) fn of(
        view: &ClusterView,
        active: &ActiveRollout,
        (on_their_way, fallen): (Vec<String>, Vec<String>),
        now: Timestamp,
    ) -> Self {
        Self {
            on_their_way,
            without_workloads: without_workloads(view, active),
            fallen,
            ready_again: fallen::ready_again(view, active, now),
            is_run: is_run(view, active),
            there: there(view, active),
        }
    }
}

/// Returns the index of the step due, whose places the ledger has then; `None` after the last one.
fn step_due(
    policy: &Policy,
    active: &mut ActiveRollout,
    ledger: &mut RolloutLedger,
    rollout: &Rollout,
) -> Option<usize> {
    let due = due(policy, (rollout.base, rollout.nodes), ledger.passed);
    let passed = due.map_or(policy.canary.len(), |due| due.step);
    let count = i64::try_from(passed).unwrap_or(i64::MAX);
    if count < active.steps_passed {
        // A step that is due again is to be approved again.
        active.approved_step = active.approved_step.filter(|step| *step <= count);
    }
    active.steps_passed = count;
    let share = due.map_or(0, |due| due.share);
    // An earlier version of the operator recorded no share: its places were that.
    let before = if ledger.share == 0 { ledger.due } else { ledger.share };
    let first = active.ledger.is_none();
    // Fewer nodes were there for a moment, or policy has other places for the same share.
    let outgrown = due.is_some_and(|due| due.due > ledger.due.saturating_mul(2));
    if (share != before || outgrown) && !first {
        // Another step, or a change of this one: an approval and a soak are for one step as it was.
        (active.step_done, active.approved, active.soak_repeated) = (None, false, false);
        active.approved_step = active.approved_step.filter(|step| *step <= count);
    }
    // Other places that are used up stay as they are: nodes that come by day and go by night would begin each soak again.
    if share != before || outgrown || ledger.used() < ledger.due {
        // So do those of nodes that are on their way.
        let taken = ledger.used().saturating_add(i64::try_from(rollout.disrupted).unwrap_or(i64::MAX));
        ledger.due = due.map_or(0, |due| due.due.max(taken).min(due.share));
    }
    ledger.share = share;
    due.map(|due| due.step)
}

/// Passes the canary step due, the one of this index.
fn pass(policy: &Policy, step: usize, rollout: &mut Rollout, ledger: &mut RolloutLedger) {
    if ledger.due < ledger.share {
        // Few nodes have passed it for those that are left alone: with more than twice as many it is due again.
        rollout.base = rollout.base.min(rollout.nodes);
    }
    ledger.passed = places(policy, rollout.base).get(step).copied().unwrap_or(ledger.share);
}

/// Keeps passed steps passed where the rollout has no ledger yet, or the ledger would have one due again.
fn keep_passed(policy: &Policy, active: &ActiveRollout, ledger: &mut RolloutLedger, base: usize) {
    if active.ledger.is_none() {
        let steps = places(policy, base);
        // Of an earlier version of the operator, which counted steps.
        let passed = usize::try_from(active.steps_passed).ok().and_then(|passed| passed.checked_sub(1));
        let counted = passed.and_then(|last| steps.get(last).or(steps.last())).copied().unwrap_or(0);
        // No node was taken beyond a step before it was passed. A share may have been one of more nodes than there are now.
        let margin = |step: &CanaryStep| if matches!(step.nodes, CountOrPercent::Count(_)) { 1 } else { 2 };
        let beyond = |(step, places): &(&CanaryStep, &i64)| places.saturating_mul(margin(step)) < ledger.good();
        let passed = policy.canary.iter().zip(&steps).filter(beyond).map(|(_, places)| *places).max();
        ledger.passed = counted.max(passed.unwrap_or(0));
        ledger.keep_passed();
    } else if has_outgrown(policy, ledger, base) {
        // Proven places open no step again: the first one above the places that are used is due. A policy without steps, or with fewer of
        // them, passes none: they may be back in a moment.
        ledger.passed = ledger.passed.max(ledger.good());
    }
}

/// Returns why a step is not passed whose places are used up, where some of them are not proven.
fn unproven(step: usize, name: &str, ledger: &RolloutLedger) -> Wait {
    if ledger.failed > 0 {
        return Wait::StepFailed { step, nodes: without_proof(ledger, true) };
    }
    Wait::StepUnproven { step, approval: format!("{name}/unproven"), nodes: without_proof(ledger, false) }
}

/// Advances a rollout by as many canary steps as are passed.
pub(super) fn step_on(
    policy: &Policy,
    active: &mut ActiveRollout,
    ledger: &mut RolloutLedger,
    approval: &Approval,
    (mut rollout, named): (Rollout, Named),
    now: Timestamp,
) -> (Rollout, Option<Timestamp>) {
    keep_passed(policy, active, ledger, rollout.base);
    let number = active.number();
    let is_urgent = active.urgent_until.is_some();
    let mut approval_used = false;
    loop {
        let due = step_due(policy, active, ledger, &rollout);
        let places = ledger.due;
        let Some((passed, step)) = due.and_then(|due| Some((due, policy.canary.get(due)?))) else {
            (active.step_done, active.approved, active.soak_repeated) = (None, false, false);
            rollout.left = None;
            return (rollout, None);
        };
        let (own, used) = (passed + 1, ledger.used());
        let name = active.step_name(places);
        let waits =
            |until, approval, nodes, none_runs| Some(Wait::CanaryStep { step: own, until, approval, nodes, none_runs });
        rollout.left = Some(usize::try_from(places.saturating_sub(used)).unwrap_or(0));
        // An approval is for what its user has seen: a step whose places are used up.
        let (given, full) = (approval.of(number, places).filter(|_| !approval_used), used >= places);
        if given == Some(true) && full && ledger.failed == 0 && ledger.open() > 0 {
            ledger.accept();
            active.approved_step = i64::try_from(own).ok();
        }
        if ledger.good_for(is_urgent) < places {
            // An approval stays for the places that its user has seen: a node that was not Ready for a time may be back in a moment.
            active.step_done = None;
            active.approved &= full && ledger.nodes.iter().any(|node| node.has_fallen() && !node.accepted);
            rollout.wait =
                if full { Some(unproven(own, &name, ledger)) } else { waits(None, None, named.on_their_way, false) };
            return (rollout, None);
        }
        if (step.manual || active.soak_repeated) && given.is_some() {
            (active.approved, active.approved_step) = (true, i64::try_from(own).ok());
        }
        let none_runs = !is_urgent && !step.soak.is_zero() && !named.is_run;
        // A user has decided otherwise where one approves the step or accepts its places, or has the version taken urgently.
        let lacks_evidence = none_runs && active.approved_step != i64::try_from(own).ok();
        if lacks_evidence && !step.manual && active.step_done.is_none() && ledger.proven > named.there {
            // A soak needs a node: another one takes the place of one that is gone.
            (ledger.proven, rollout.nodes) = (ledger.proven - 1, rollout.nodes.saturating_sub(1));
            continue;
        }
        let since = active.step_done.map_or(now, |since| named.ready_again.map_or(since, |again| again.max(since)));
        active.step_done = Some(since);
        let until = if is_urgent { since } else { after(since, step.soak) };
        if now < until {
            (rollout.left, rollout.wait) = (Some(0), waits(Some(until), None, Vec::new(), none_runs));
            return (rollout, Some(until));
        }
        if lacks_evidence && !step.manual && !active.soak_repeated {
            // Once: where each node is removed in its soak, all would be drained in vain.
            (active.step_done, active.soak_repeated) = (None, true);
            continue;
        }
        if (step.manual || lacks_evidence) && !active.approved {
            (rollout.left, rollout.wait) = (Some(0), waits(None, Some(name), named.without_workloads, none_runs));
            return (rollout, None);
        }
        let fallen = not_accepted(ledger, &named.fallen);
        if !step.manual && !is_urgent && !fallen.is_empty() {
            (rollout.left, rollout.wait) = (Some(0), waits(None, None, fallen, false));
            return (rollout, None);
        }
        pass(policy, passed, &mut rollout, ledger);
        // The next step may have as many places, and the same share: nothing of this one is for it.
        approval_used |= given.is_some();
        (active.step_done, active.approved, active.soak_repeated) = (None, false, false);
        (ledger.due, ledger.share) = (0, 0);
    }
}
