//! The numbers of rollouts in the history: when a rollout gets a new one, and when it ends.
//!
//! A number is never used twice. It follows from the operator's status, from the shadows and from the history, so that none of
//! them has to be complete. What a rollout is called does not decide what is done to a node.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use models::condition::true_condition;
use models::history::{RecordedRevision, RolloutPhase};
use models::operator::{ActiveRollout, DEGRADED, RolloutRecord};
use models::time::after;

use crate::policy::Policy;
use crate::revisions::is_in_force;
use crate::survey::key::{Key, Targets, borrowed, is_member, key, key_of};
use crate::survey::vouched::{is_acted_on, is_lacked, is_vouched};
use crate::view::{ClusterView, NodeView};

/// The number of records that begin within [`PERIOD`]. Ten kinds of nodes that get two releases in this time have as many. Versions that
/// hosts name, or that change all the time, fill the history no faster.
const MOST_BEGUN: usize = 20;

/// See [`MOST_BEGUN`].
const PERIOD: Duration = Duration::from_hours(1);

/// The reason of `Degraded` while the policy has no revision.
pub(crate) const UNRECORDED: &str = "PolicyNotRecorded";

/// Returns the highest number that was given to a rollout; `None` until that is known.
fn highest(view: &ClusterView) -> Option<i64> {
    let operator = view.operator.as_ref()?;
    let known = operator.status.rollout_count.max(view.history.highest)?;
    let used = view.nodes.values().filter_map(|node| node.shadow.as_ref()).flat_map(|shadow| {
        let report = &shadow.status.controller;
        let under_way = report.progress.iter().filter_map(|progress| Some(progress.rollout.as_ref()?.rollout));
        under_way.chain(report.results.iter().map(|result| result.rollout))
    });
    let recorded = operator.status.active_rollouts.iter().filter_map(|rollout| Some(rollout.record.as_ref()?.number));
    used.chain(recorded).max().map(|used| used.max(known)).or(Some(known))
}

/// Returns the number under which attempts of this rollout were begun although no record of it was written: the write of the
/// status failed, or its leader was killed. A number that the history has is another rollout's.
fn begun_as(view: &ClusterView, own: &Key, above: i64) -> Option<i64> {
    let operator = view.operator.as_ref()?;
    let recorded = operator.status.active_rollouts.iter().filter_map(|rollout| Some(rollout.record.as_ref()?.number));
    let taken: BTreeSet<i64> = recorded.collect();
    let nodes = view.nodes.values().filter_map(|node| Some((node, &node.shadow.as_ref()?.status.controller)));
    let named = nodes.flat_map(|(node, report)| {
        let under_way = report.progress.iter().filter_map(|at| Some((&at.version, at.rollout.as_ref()?.rollout)));
        let ended = report.results.iter().map(|result| (&result.to, result.rollout));
        under_way.chain(ended).filter(move |(version, _)| key(node, version) == borrowed(own)).map(|(_, number)| number)
    });
    named.filter(|number| *number > above && !taken.contains(number)).max()
}

/// Returns the revision of the policy in force, without a number where it has none for long; `None` while its record is behind the policy.
fn revision(view: &ClusterView, policy: &Policy, now: Timestamp) -> Option<RecordedRevision> {
    let status = &view.operator.as_ref()?.status;
    let Some(revisions) = &view.revisions else { return Some(RecordedRevision::default()) };
    let degraded = true_condition(&status.conditions, DEGRADED);
    let fails = view.revisions_failing.as_ref().is_some_and(|failing| failing.is_lasting(now));
    if degraded.is_some_and(|condition| condition.reason == UNRECORDED) || (fails && status.update_revision.is_none()) {
        // The policy has no revision, and may not get one for long.
        return Some(RecordedRevision::default());
    }
    let name = status.update_revision.clone().filter(|_| is_in_force(status, policy))?;
    let number = revisions.iter().find(|revision| revision.name == name)?.number;
    Some(RecordedRevision { name, number })
}

/// Returns the phase in which a rollout that no node waits for any more ends; `None` if it goes on.
fn end(
    view: &ClusterView,
    rollout: &ActiveRollout,
    record: &RolloutRecord,
    now: &RecordedRevision,
) -> Option<RolloutPhase> {
    if rollout.ended.is_some() {
        return Some(RolloutPhase::Superseded);
    }
    let members = view.nodes.values().filter(|node| node.facts.labelled && is_member(node, rollout));
    let running: Vec<_> = members.map(NodeView::running).collect();
    if running.iter().all(|running| running.as_ref().is_some_and(|running| *running >= rollout.version)) {
        // Without a node that runs it, they had it behind them, as before a downgrade, or are gone.
        let any = running.iter().flatten().any(|running| *running == rollout.version);
        return Some(if any { RolloutPhase::Completed } else { RolloutPhase::Stopped });
    }
    // While the revisions are not known, no change of the policy is.
    let known = view.revisions.is_some() && record.revision.number > 0;
    (known && record.revision != *now).then_some(RolloutPhase::Stopped)
}

/// Returns whether the history may lack the end of the record that a rollout has in the operator's status, or the record itself, as where a
/// ResourceQuota has kept it from being created.
pub(super) fn is_unended(view: &ClusterView, rollout: &ActiveRollout) -> bool {
    rollout.record.as_ref().is_some_and(|record| {
        record.ended.is_none()
            || view.history.highest.is_none_or(|highest| record.number > highest)
            || view.history.running.contains(&record.number)
    })
}

/// Returns the times at which the last records began, in order.
fn begun_lately(view: &ClusterView, rollouts: &[ActiveRollout], now: Timestamp) -> Vec<Timestamp> {
    let mut begun = view.history.begun.clone();
    begun.extend(
        rollouts.iter().filter_map(|rollout| rollout.record.as_ref()).map(|record| (record.number, record.begun)),
    );
    let mut lately: Vec<_> = begun.into_values().filter(|at| *at <= now && after(*at, PERIOD) > now).collect();
    lately.sort_unstable();
    lately
}

/// The numbers of rollouts after a plan.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The highest one, once it is known.
    pub(crate) highest: Option<i64>,
    /// The time from which a rollout that waits for its record gets one.
    pub(crate) wake: Option<Timestamp>,
}

/// Gives each rollout with nodes to update (`wanted`, and [lacked](is_lacked)) a record that runs, and ends those of the others that are over.
/// `targets` are the nodes with that version as their target. Beyond [`MOST_BEGUN`], rollouts for which nothing was done to a node wait for
/// theirs. A record that is replaced before the history has its end stays in an ended entry of its own.
pub(crate) fn keep(
    view: &ClusterView,
    policy: &Policy,
    rollouts: &mut Vec<ActiveRollout>,
    (wanted, targets): (&BTreeSet<Key>, &Targets<'_>),
    now: Timestamp,
) -> Numbers {
    let Some(mut count) = highest(view) else { return Numbers::default() };
    let mut wake = None;
    let Some(revision) = revision(view, policy, now) else { return Numbers { highest: Some(count), wake } };
    let mut begun = begun_lately(view, rollouts, now);
    let mut replaced = Vec::new();
    for rollout in rollouts.iter_mut() {
        let runs = rollout.record.as_ref().is_some_and(|record| record.ended.is_none());
        let own = key_of(rollout);
        let unrecorded = rollout.record.is_none() && begun_as(view, &own, -1).is_some();
        if (rollout.ended.is_none() && wanted.contains(&own) && is_lacked(view, rollout, targets)) || unrecorded {
            let full = rollout.record.as_ref().is_some_and(|record| view.history.full.contains(&record.number));
            if (runs && !full) || (rollout.record.is_none() && !is_vouched(view, rollout)) {
                continue;
            }
            let given = begun_as(view, &own, view.history.highest.unwrap_or(0));
            if let Some(oldest) = begun.len().checked_sub(MOST_BEGUN)
                && !(full || given.is_some() || is_acted_on(view, rollout))
            {
                wake = Some(after(begun[oldest], PERIOD));
                continue;
            }
            begun.push(now);
            if full {
                finish(rollout, RolloutPhase::Stopped, now);
            }
            if is_unended(view, rollout) {
                replaced.push(ActiveRollout { ended: Some(now), ledger: None, ..rollout.clone() });
            }
            let before = rollout.record.take();
            let continues = |record: &RolloutRecord| full || record.phase == RolloutPhase::Completed;
            let first = before.filter(continues).map(|record| record.first_number());
            let number = given.unwrap_or_else(|| count.saturating_add(1));
            count = count.max(number);
            rollout.record = Some(RolloutRecord {
                number,
                begun: now,
                first,
                revision: revision.clone(),
                phase: RolloutPhase::Running,
                ended: None,
                first_estimate: None,
            });
        } else if runs
            // A node whose shadow cannot be read may be one of it.
            && view.unreadable.shadows.is_empty()
            && let Some(phase) = rollout.record.as_ref().and_then(|record| end(view, rollout, record, &revision))
        {
            finish(rollout, phase, now);
        }
    }
    rollouts.extend(replaced);
    Numbers { highest: Some(count), wake }
}

/// Ends the record of a rollout.
pub(crate) fn finish(rollout: &mut ActiveRollout, phase: RolloutPhase, now: Timestamp) {
    if let Some(record) = rollout.record.as_mut().filter(|record| record.ended.is_none()) {
        (record.phase, record.ended) = (phase, Some(now));
    }
}

#[cfg(test)]
mod tests;
