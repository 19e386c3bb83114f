//! One-shot requests of users: annotations on a shadow, each carried out once and then acknowledged.

use models::plain::cut;
use models::reason::Proof;
use models::shadow::{ControllerStatus, MOST_MISUNDERSTOOD, ShadowRequests};

use super::desired::{disarm_in_boot, withdraw_and_disarm};
use crate::annotations::Misunderstood;
use crate::decision::{Action, Note};
use crate::gates;
use crate::survey::key::is_member;
use crate::survey::requests::{has_unresolved_failures, pending_resume};
use crate::survey::{NodeContext, unavailable};

/// The length to which the text about a request that is not understood is cut: that of its field.
const MESSAGE_LENGTH: usize = 512;

/// The requests that are acknowledged in a status.
fn acknowledged_in(status: &mut ControllerStatus) -> &mut ShadowRequests {
    status.report.record.get_or_insert_default().requests.get_or_insert_default()
}

/// Returns the write that resolves a node's failures of versions, if a `resume` requests it.
pub(super) fn resume(ctx: &NodeContext<'_>) -> Option<Action> {
    let asked = pending_resume(ctx.view.operator.as_ref()?)?;
    if !has_unresolved_failures(ctx.shadow) {
        return None;
    }
    let mut status = ctx.controller_status();
    let record = status.report.record.get_or_insert_default();
    for failure in &mut record.version_failures {
        failure.resolved_by.get_or_insert_with(|| asked.clone());
    }
    // A place that a failure has used up is free again.
    record.proof.take_if(|proof| proof.proof == Proof::Failed);
    Some(Action::Status { status: Box::new(status), note: None })
}

pub(super) fn acknowledged(ctx: &NodeContext<'_>) -> ShadowRequests {
    ctx.shadow.status.controller.record.as_ref().and_then(|r| r.requests.clone()).unwrap_or_default()
}

/// Returns whether the rollout of a node is recorded as braked, in a pause that is not over and that its `retry` ends.
fn is_in_pause(ctx: &NodeContext<'_>) -> bool {
    let Some(operator) = &ctx.view.operator else { return false };
    let Ok(version) = ctx.version() else { return false };
    // The request ends no pause then.
    if unavailable::kept_out(ctx.policy, ctx.facts()).is_some() {
        return false;
    }
    operator.status.active_rollouts.iter().any(|rollout| {
        let own = rollout.ended.is_none() && rollout.version == *version && is_member(ctx.node, rollout);
        own && rollout.ledger.as_ref().and_then(|ledger| ledger.braked_until).is_some_and(|until| until > ctx.now)
    })
}

/// Carries out a `retry`: an armed image without a record may be disarmed, in this boot; then the back-off ends, and a node that
/// has not proven its version is verified again.
pub(super) fn retry(ctx: &NodeContext<'_>) -> Option<Action> {
    ctx.shadow.pending_retry()?;
    if is_in_pause(ctx) {
        // The request ends the pause of the rollout first, which is recorded elsewhere: once acknowledged, it is not known any more.
        return None;
    }
    if ctx.is_armed_by_other() && disarm_in_boot(ctx).is_none() && !ctx.facts().boot_id.is_empty() {
        return Some(withdraw_and_disarm(ctx));
    }
    let mut effects = Vec::new();
    if ctx.is_armed_by_other() && disarm_in_boot(ctx).is_some() {
        effects.push("the agent may disarm the image that it has no record of".to_owned());
    }
    let record = ctx.shadow.status.controller.record.as_ref();
    if record.and_then(|record| record.not_before).is_some_and(|until| until > ctx.now) {
        effects.push("the back-off is over".to_owned());
    }
    if gates::verification::unproven(ctx).is_some() {
        // The write that begins the verification acknowledges the request.
        let wait = gates::verification::refusal(ctx)?;
        effects.push(format!("the node cannot be verified again now: {wait}"));
    }
    let mut status = ctx.controller_status();
    acknowledge_retry(ctx, &mut status);
    let did = if effects.is_empty() { String::new() } else { format!(": {}", effects.join("; ")) };
    let message = format!("retry requested{did}");
    let note = Note { warning: false, reason: "Retry", message };
    Some(Action::Status { status: Box::new(status), note: Some(note) })
}

/// Writes the acknowledgement of a `retry` into a status, and with it the end of the back-off.
pub(super) fn acknowledge_retry(ctx: &NodeContext<'_>, status: &mut ControllerStatus) {
    if let Some(asked) = ctx.shadow.pending_retry() {
        acknowledged_in(status).retry = Some(asked.clone());
        status.report.record.get_or_insert_default().not_before = None;
    }
}

/// Records the requests that are not understood as they are written, each with an Event. A write has one Event, so that it adds one
/// of them.
pub(super) fn misunderstood(ctx: &NodeContext<'_>) -> Option<Action> {
    let requests = ctx.shadow.status.controller.record.as_ref().and_then(|record| record.requests.as_ref());
    let recorded = requests.map(|requests| requests.misunderstood.as_slice()).unwrap_or_default();
    let found = ctx.facts().misunderstood.iter().chain(&ctx.shadow.misunderstood).take(MOST_MISUNDERSTOOD);
    let found: Vec<(&Misunderstood, String)> =
        found.map(|found| (found, cut(&found.message, MESSAGE_LENGTH))).collect();
    let is_recorded = |message: &String| recorded.contains(message);
    let new = found.iter().find(|(_, message)| !is_recorded(message)).map(|(found, _)| *found);
    let kept = found.iter().filter(|(found, message)| is_recorded(message) || Some(*found) == new);
    let kept: Vec<String> = kept.map(|(_, message)| message.clone()).collect();
    if kept == recorded {
        return None;
    }
    let mut status = ctx.controller_status();
    acknowledged_in(&mut status).misunderstood = kept;
    let note = new.map(|new| Note { warning: true, reason: new.reason, message: new.message.clone() });
    Some(Action::Status { status: Box::new(status), note })
}

/// Writes the acknowledgement of a `drill` into the status that begins or refuses it.
pub(super) fn acknowledge_drill(ctx: &NodeContext<'_>, status: &mut ControllerStatus) {
    acknowledged_in(status).drill.clone_from(&ctx.shadow.drill);
}

/// Acknowledges a `release` of a node without an attempt.
pub(super) fn nothing_to_release(ctx: &NodeContext<'_>) -> Action {
    let mut status = ctx.controller_status();
    acknowledge_release(ctx, &mut status);
    Action::Status { status: Box::new(status), note: None }
}

/// Writes the acknowledgement of a `release` into the status that ends the attempt.
pub(super) fn acknowledge_release(ctx: &NodeContext<'_>, status: &mut ControllerStatus) {
    if let Some(asked) = ctx.shadow.pending_release() {
        acknowledged_in(status).release = Some(asked.clone());
    }
}

#[cfg(test)]
mod tests {
    use models::operator::{ActiveRollout, RolloutLedger};
    use models::shadow::NodeProof;

    use super::*;
    use crate::fixtures::{NEW, OLD, failure, rollout, t, updated};
    use crate::gates::testing::refusal_of;
    use crate::hold::Hold;

    #[test]
    fn node_is_in_the_pause_of_its_own_rollout_until_that_is_over() {
        let braked = |until| {
            let ledger = RolloutLedger { braked_until: until, ..RolloutLedger::default() };
            ActiveRollout { ledger: Some(ledger), ..rollout(NEW) }
        };
        let later = || braked(Some(t(1)));
        for (sentence, rollout, expected) in [
            ("it is paused", later(), true),
            ("it is paused, and a user holds the node", later(), false),
            ("the pause is over", braked(Some(t(0))), false),
            ("it is not paused", braked(None), false),
            ("the rollout has ended", ActiveRollout { ended: Some(t(0)), ..later() }, false),
            ("of another version", ActiveRollout { version: OLD, ..later() }, false),
            ("of another kind of nodes", ActiveRollout { arch: "aarch64".into(), ..later() }, false),
        ] {
            let check = |ctx: &NodeContext<'_>| is_in_pause(ctx).then_some(());
            let found = refusal_of(check, |view, _| {
                view.nodes.get_mut("a").unwrap().facts.hold = sentence.ends_with("holds the node").then(Hold::default);
                view.operator.as_mut().unwrap().status.active_rollouts = vec![rollout];
            });
            assert_eq!(found.is_some(), expected, "{sentence}");
        }
    }

    #[test]
    fn resume_frees_the_place_that_a_failure_has_used_up_alone() {
        for (proof, left) in [(Proof::Failed, None), (Proof::Unproven, Some(Proof::Unproven))] {
            let written = refusal_of(resume, |view, _| {
                view.operator.as_mut().unwrap().resume = Some("1".into());
                let proof = NodeProof { proof, ..updated().proof.unwrap() };
                let record =
                    models::shadow::Record { proof: Some(proof), version_failures: vec![failure(NEW)], ..updated() };
                view.nodes.get_mut("a").unwrap().shadow.as_mut().unwrap().status.controller.record = Some(record);
            });
            let Some(Action::Status { status, .. }) = written else { panic!("{written:?}") };
            let record = status.report.record.unwrap();
            assert_eq!(record.version_failures[0].resolved_by.as_deref(), Some("1"));
            assert_eq!(record.proof.map(|proof| proof.proof), left);
        }
    }
}
