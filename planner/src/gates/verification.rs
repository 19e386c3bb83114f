//! The repeated verification of a node that runs a version without having proven it. It disrupts nothing, so that windows, a
//! freeze, canary steps and the budgets are no obstacle.

use jiff::{SignedDuration, Timestamp};
use models::operator::{ActiveRollout, LedgerNode};
use models::reason::{End, FailureReason, Proof};
use models::shadow::{AttemptResult, VersionFailure};
use semver::Version;

use super::{fleet, host, node};
use crate::survey::key::{is_member, key_of};
use crate::survey::{NodeContext, ledger};
use crate::wait::Wait;

/// The time from the end of an attempt to the next verification, and between two of them.
const INTERVAL: SignedDuration = SignedDuration::from_hours(1);

/// Returns whether a node has failed on its version by coming back too late, and by nothing else: its own verification resolves that.
pub(crate) fn came_back_late(ctx: &NodeContext<'_>) -> bool {
    let Some(record) = &ctx.shadow.status.controller.record else { return false };
    let Some(proof) = &record.proof else { return false };
    let late = |failure: &&VersionFailure| failure.reason == FailureReason::NotReadyAfterBoot;
    let own = record.version_failures.iter().filter(|f| f.version == proof.version && f.resolved_by.is_none());
    match proof.proof {
        Proof::Failed => proof.reason == FailureReason::NotReadyAfterBoot.as_str(),
        Proof::Unproven => own.clone().count() > 0 && own.clone().all(|failure| late(&failure)),
        Proof::Proven | Proof::Free | Proof::Unknown => false,
    }
}

/// A node that runs a version without a proof, as the ledger of its rollout names it.
#[derive(Clone, Copy)]
pub(crate) struct Unproven<'a> {
    pub(crate) version: &'a Version,
    /// The end of its attempt.
    pub(crate) reason: &'a str,
}

/// Returns the rollout that goes on in which an idle node runs the version, with the place that it has there without a proof. The ledger says
/// so, and not the node's own record: that may be of an earlier version of the operator, or be gone with its Node object.
fn place<'a>(ctx: &NodeContext<'a>) -> Option<(&'a ActiveRollout, &'a LedgerNode)> {
    if ctx.node.progress().is_some() {
        return None;
    }
    // Few nodes have a name there, and what a node runs is read from a text.
    let of = |rollout: &'a ActiveRollout| {
        let ledger = rollout.ledger.as_ref().filter(|_| rollout.ended.is_none())?;
        let named = ledger.nodes.iter().find(|named| named.node == ctx.facts().name)?;
        (is_member(ctx.node, rollout) && ctx.runs(&rollout.version)).then_some((rollout, named))
    };
    ctx.survey.rollouts.active.iter().find_map(of)
}

/// Returns the version that an idle node runs without a proof, where its verification may give it one.
pub(crate) fn unproven<'a>(ctx: &NodeContext<'a>) -> Option<Unproven<'a>> {
    let (rollout, named) = place(ctx)?;
    let is_open = named.is_unproven() || named.proof == Proof::Failed && came_back_late(ctx);
    // One that had fallen has its proof, which counts again once it has been well in service for its soak.
    let has_proof = || named.has_fallen() && ledger::place(ctx.node, rollout) == Some(Proof::Proven);
    (is_open && !has_proof()).then_some(Unproven { version: &rollout.version, reason: &named.reason })
}

/// Returns the reason for which an idle node has no proof of the version that it runs, unless a user has accepted that: what keeps it from its
/// verification, or when that is due; of one that is not verified, that for which others wait because of it.
pub(crate) fn wait(ctx: &NodeContext<'_>) -> Option<Wait> {
    let (rollout, named) = place(ctx).filter(|(_, named)| !named.accepted)?;
    if let Some(Unproven { version, reason }) = unproven(ctx) {
        let until = Some(due(ctx)).filter(|due| *due > ctx.now);
        let back_off = |until| Wait::BackOff { until, reason: reason.to_owned(), unproven: Some(version.clone()) };
        return refusal(ctx).or_else(|| until.map(back_off));
    }
    // One that had fallen counts again once it is well and in service.
    let keeps = if named.has_fallen() { refusal(ctx) } else { None };
    keeps.or_else(|| wait_of_others(ctx, rollout, named))
}

/// Returns the reason for which other nodes of a rollout wait because of one without a proof.
fn wait_of_others(ctx: &NodeContext<'_>, rollout: &ActiveRollout, named: &LedgerNode) -> Option<Wait> {
    let (variant, arch, version) = (&rollout.variant, &rollout.arch, &rollout.version);
    let has_failed = named.proof == Proof::Failed;
    if has_failed && ctx.survey.quarantine.holds(Some(variant.as_str()), Some(arch.as_str()), version) {
        return Some(Wait::Quarantined { version: version.clone() });
    }
    let state = ctx.survey.rollouts.by_key(&key_of(rollout))?;
    let step = state.wait.as_ref().filter(|wait| matches!(wait, Wait::StepUnproven { .. } | Wait::StepFailed { .. }));
    let brake = state.brake.as_ref().map(|brake| &brake.wait).filter(|wait| matches!(wait, Wait::Braked { .. }));
    step.or(brake).cloned()
}

/// Returns the time from which such a node is verified again by itself: at once if it came back after its attempt, or was held.
pub(crate) fn due(ctx: &NodeContext<'_>) -> Timestamp {
    let last = ctx.shadow.status.controller.record.as_ref().and_then(|record| record.last.as_ref());
    let at_once = |last: &&AttemptResult| End::of(&last.reason).is_some_and(End::is_verified_at_once);
    match last {
        None => ctx.now,
        Some(last) if at_once(&last) => last.ended,
        Some(last) => last.ended.checked_add(INTERVAL).unwrap_or(Timestamp::MAX),
    }
}

/// Checks that such a node may be verified now.
pub(crate) fn refusal(ctx: &NodeContext<'_>) -> Option<Wait> {
    let checks = [
        node::is_labelled,
        node::is_not_deleted,
        node::is_not_held,
        node::is_not_being_removed,
        node::is_ready,
        node::has_no_pressure,
        host::is_usable,
        host::has_reported,
        host::has_attempts_left,
        fleet::has_valid_policy,
    ];
    checks.iter().find_map(|check| check(ctx))
}

#[cfg(test)]
mod tests {
    use super::super::testing::refusal_of;
    use super::*;
    use crate::fixtures::{NEW, OLD, failure, updated};

    #[test]
    fn node_that_came_back_late_and_failed_by_nothing_else_resolves_that_itself() {
        let late = || VersionFailure { reason: FailureReason::NotReadyAfterBoot, ..failure(NEW) };
        let fell_back = || failure(NEW);
        let resolved = || VersionFailure { resolved_by: Some("1".into()), ..late() };
        let of_another = || VersionFailure { version: OLD, ..late() };
        let (is_late, other) = (FailureReason::NotReadyAfterBoot, FailureReason::BootFellBack);
        for (sentence, proof, reason, failures, expected) in [
            ("its place is failed", Proof::Failed, is_late, vec![], true),
            ("its place is failed by another end", Proof::Failed, other, vec![late()], false),
            ("its place is unproven, and it came back late", Proof::Unproven, other, vec![late()], true),
            ("it has not failed", Proof::Unproven, other, vec![], false),
            ("it failed in another way, too", Proof::Unproven, other, vec![late(), fell_back()], false),
            ("its failure is resolved", Proof::Unproven, other, vec![resolved()], false),
            ("it failed on another version", Proof::Unproven, other, vec![of_another()], false),
            ("it has proven its version", Proof::Proven, is_late, vec![late()], false),
        ] {
            let check = |ctx: &NodeContext<'_>| came_back_late(ctx).then_some(());
            let found = refusal_of(check, |view, _| {
                let mut record = updated();
                let own = record.proof.as_mut().unwrap();
                (own.proof, own.reason) = (proof, reason.as_str().to_owned());
                record.version_failures = failures;
                view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.record = Some(record);
            });
            assert_eq!(found.is_some(), expected, "{sentence}");
        }
    }
}
