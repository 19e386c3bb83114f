//! The end of an attempt: its result is recorded, the desired state is withdrawn, and the node is released.

use std::time::Duration;

use models::condition::{ConditionStatus, find_condition};
use models::operator::ActiveRollout;
use models::plain::cut;
use models::reason::{End, FailureClass, FailureReason, Permitted, Proof};
use models::shadow::{
    AttemptResult, ControllerStatus, HEALTHY, HOST_REACHABLE, HostState, Mode, NodeProof, Place, Record,
    UNSUPPORTED_STATE, UPDATED, VersionFailure,
};
use models::time::{after, between};

use super::drained::{asked_in_vain, drain_blockers};
use super::drill;
use super::result::{keep_result, release, running};
use super::row::{Attempt, Outcome, Turn, fail};
use super::status::unblock;
use super::unhealthy::{named, pods_to_verify, unhealthy_pods};
use super::workloads::is_without_workloads;
use crate::decision::{Action, Note};
use crate::gates;
use crate::policy::BACK_OFF_LIMIT;
use crate::survey::key::kind_by_node;
use crate::survey::want;
use crate::view::{ARCH_LENGTH, VARIANT_LENGTH};
use crate::wait::Wait;

/// The number of failures against versions that a shadow keeps.
const VERSION_FAILURES: usize = 8;

/// Explanation of an end under the defaults alone, for users.
const NO_POLICY: &str = "the operator's resource is gone, or no policy of it can be applied";

/// Ends an attempt that has failed, or is withdrawn.
pub(super) fn failed(ctx: &Attempt<'_>, reason: FailureReason, message: &str) -> Action {
    if ctx.mode().is_drill() {
        return drill::end(ctx, reason.as_str(), message);
    }
    // Policy says how long a node has to become well. A host that fell back has done so under any.
    let is_judged = reason.end().class == FailureClass::Version && reason != FailureReason::BootFellBack;
    if is_judged && !ctx.policy.is_usable() {
        let message = format!("{message}, which is no evidence against the version: {NO_POLICY}");
        return failed(ctx, FailureReason::HealthUnknown, &message);
    }
    let progress = ctx.progress;
    let mut status = ctx.controller_status();
    let mut record = status.report.record.take().unwrap_or_default();
    let end = reason.end();
    // A verification that shows nothing is no further failure of the node.
    let fails = end.backs_off() && !(ctx.mode().is_verification() && end.class != FailureClass::Version);
    if fails {
        record.failures = record.failures.saturating_add(1);
    }
    record.drain_blockers = drain_blockers(ctx, reason);
    let guarded = reason == FailureReason::GuardedPodsStayed;
    let refusing_budgets = if guarded { asked_in_vain(ctx) } else { Vec::new() };
    // Trouble of the cluster may be that it has no room for the pods: no failure, but the next drain would bring it back. Nor is a node taken
    // out of service again and again where its host offers the version now and then, or its agent says so, or where pods break or a webhook
    // fails at each drain, so that no budget backs off.
    let superseded = reason == FailureReason::Superseded && progress.step.place() != Place::Waiting;
    if guarded && refusing_budgets.is_empty() {
        record.not_before = Some(after(ctx.now, unwell_back_off(ctx, &record)));
    } else if fails || reason == FailureReason::ClusterUnwell || superseded {
        record.not_before = Some(after(ctx.now, ctx.policy.back_off_after(record.failures.max(1))));
    }
    record.refusing_budgets = refusing_budgets;
    if end.class == FailureClass::Version {
        record_version_failure(ctx, &mut record, reason);
        ctx.set_condition(&mut status, HEALTHY, false, reason.as_str(), message);
    } else if matches!(ctx.phase.step.place(), Place::Booted | Place::Back) {
        ctx.set_condition(&mut status, HEALTHY, ConditionStatus::Unknown, reason.as_str(), message);
    }
    record.last = Some(attempt_result(ctx, reason.as_str(), message));
    record_proof(ctx, &mut record, end);
    status.report.record = Some(record);
    let (attempt, version) = (progress.attempt, &progress.version);
    let attempt = if ctx.mode().is_verification() {
        format!("verification {attempt} of {version}")
    } else {
        keep_result(ctx, &mut status, reason.as_str(), message, Vec::new());
        format!("attempt {attempt} to {version}")
    };
    release(ctx, &mut status);
    let note = Note {
        warning: end.event.is_warning(),
        reason: end.event.as_str(),
        message: format!("{attempt}: {reason}: {message}"),
    };
    Action::Status { status: Box::new(status), note: Some(note) }
}

/// Returns how long a node backs off whose guarded pods stayed and no budget was asked in vain, as while pods of it were broken: as after a
/// failure, and twice as long as before where its last attempt ended so, too.
fn unwell_back_off(ctx: &Attempt<'_>, before: &Record) -> Duration {
    let first = ctx.policy.back_off_after(before.failures.max(1));
    let ended_so = |last: &&AttemptResult| {
        last.reason == FailureReason::GuardedPodsStayed.as_str() && before.refusing_budgets.is_empty()
    };
    let again = before.last.as_ref().filter(ended_so).zip(before.not_before);
    again.map_or(first, |(last, until)| between(last.ended, until).saturating_mul(2)).clamp(first, BACK_OFF_LIMIT)
}

/// Returns whether the last attempt for the version did not come to its drain either: it ended for this reason, or a check refused it.
fn has_ended_so(ctx: &Attempt<'_>, reason: FailureReason) -> bool {
    let last = ctx.node.record().and_then(|record| record.last.as_ref());
    let refused = [reason, FailureReason::GateRefused].map(FailureReason::as_str);
    last.is_some_and(|last| last.version == ctx.progress.version && refused.contains(&last.reason.as_str()))
}

/// Ends an attempt whose node a check refuses. What an update would wait for is the result of a drill.
pub(super) fn refused(ctx: &Attempt<'_>, wait: &Wait) -> Action {
    if ctx.mode().is_drill() {
        return drill::end(ctx, wait.as_str(), &wait.to_string());
    }
    let reason = match wait {
        Wait::Blackout { .. } => FailureReason::BlackoutBegan,
        // Neither of these a second time in a row: its hooks may be longer than the windows, or cause what an expression shows. Others go first,
        // and as many as brake a rollout stop it.
        Wait::WindowClosed { .. } if !has_ended_so(ctx, FailureReason::WindowEnded) => FailureReason::WindowEnded,
        Wait::ExpressionFires { shared: true, .. } | Wait::ExpressionFails { .. }
            if !has_ended_so(ctx, FailureReason::ClusterUnwell) =>
        {
            FailureReason::ClusterUnwell
        }
        Wait::ClusterUnwell { .. }
        | Wait::ControlPlaneBusy { .. }
        | Wait::BudgetBusy { .. }
        | Wait::UnhealthyNodes { .. }
        | Wait::WebApiNotReady => FailureReason::ClusterUnwell,
        Wait::Braked { .. } => FailureReason::RolloutBraked,
        _ => FailureReason::GateRefused,
    };
    failed(ctx, reason, &wait.to_string())
}

/// Returns the end of an attempt whose agent, or host, did not do its part in time, with what keeps it from that now. Without a Ready pod of the
/// web API no agent can, which counts against no node, unless its host may still act on a permit.
pub(super) fn timed_out(ctx: &Attempt<'_>, reason: FailureReason, message: &str) -> Turn {
    let trouble = gates::agent_trouble(ctx);
    let is_of_all = trouble == Some(Wait::WebApiNotReady) && !ctx.permit_issued(ctx.progress);
    let reason = if is_of_all { FailureReason::ClusterUnwell } else { reason };
    let trouble = trouble.map_or_else(String::new, |wait| format!("; {wait}"));
    fail(reason, format!("{message}{trouble}"))
}

/// Ends an attempt that went through. Without a policy that says what it has to go through, it has shown nothing about its version.
pub(super) fn passed(ctx: &Attempt<'_>, unanswered: Option<Note>) -> Action {
    if !ctx.mode().is_drill() && !ctx.policy.is_usable() {
        let message = format!("the node runs {}, and has not proven it: {NO_POLICY}", ctx.progress.version);
        return failed(ctx, FailureReason::Disabled, &message);
    }
    let (status, note) = if let Some(drill) = &ctx.progress.drill { drill::passed(ctx, drill) } else { updated(ctx) };
    Action::Status { status, note: Some(note.with(unanswered)) }
}

/// Records the node as updated, or as verified again. Pods that are still unhealthy are named, and count against nothing.
fn updated(ctx: &Attempt<'_>) -> (Box<ControllerStatus>, Note) {
    let progress = ctx.progress;
    let pods = pods_to_verify(ctx);
    let without_workloads = is_without_workloads(ctx);
    let no_workloads = if without_workloads { ", and no pods of workloads were scheduled to it" } else { "" };
    let unhealthy = unhealthy_pods(ctx, &pods.unwrap_or_default());
    let mut status = ctx.controller_status();
    let mut record = status.report.record.take().unwrap_or_default();
    record.failures = 0;
    record.not_before = None;
    record.before = None;
    record.drain_blockers = Vec::new();
    record.without_workloads = without_workloads;
    let from = progress.from.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
    let mut text = if ctx.mode().is_verification() {
        format!("verified again: {} is proven", progress.version)
    } else {
        format!("updated from {from} to {}", progress.version)
    };
    let message = if unhealthy.is_empty() {
        let message = format!("Ready on {} for the soak{no_workloads}", progress.version);
        ctx.set_condition(&mut status, HEALTHY, true, "Soaked", &message);
        message
    } else {
        let message = format!(
            "Ready on {}, but {} pod(s) are not healthy, which does not count against the version: {}",
            progress.version,
            unhealthy.len(),
            named(&unhealthy)
        );
        text = format!("{text}; {message}");
        ctx.set_condition(&mut status, HEALTHY, false, "PodsUnhealthy", &message);
        message
    };
    for failure in resolve_failures(ctx, &mut record) {
        text = format!("{text}; its failure of {:.0} ({}) is resolved", failure.time, failure.reason);
    }
    record.last = Some(attempt_result(ctx, UPDATED, &message));
    if let Some(end) = End::of(UPDATED) {
        record_proof(ctx, &mut record, end);
    }
    status.report.record = Some(record);
    if !ctx.mode().is_verification() {
        keep_result(ctx, &mut status, UPDATED, &message, running(ctx));
    }
    status.report.progress = None;
    status.report.drain = None;
    unblock(&mut status);
    (Box::new(status), Note { warning: !unhealthy.is_empty(), reason: "Updated", message: text })
}

/// Returns the end of an attempt without an issued permit, whatever its step.
pub(super) fn ended_from_outside(ctx: &Attempt<'_>) -> Option<Turn> {
    let agent = &ctx.shadow.status.agent;
    let version = &ctx.progress.version;
    // A node that is verified again runs the version, and may show that it is good.
    if ctx.mode().downloads() && ctx.survey.quarantine.holds(agent.variant.as_deref(), agent.arch.as_deref(), version) {
        return Some(fail(FailureReason::Quarantined, "the version has failed on other nodes"));
    }
    // The defaults have no hooks, no exclusions and no windows: what they stop is not known.
    if !ctx.policy.is_usable() {
        return Some(fail(FailureReason::Disabled, NO_POLICY));
    }
    if !ctx.facts().labelled {
        let message = "the node lost the label that puts it under the operator";
        return Some(fail(FailureReason::LabelRemoved, message));
    }
    if ctx.facts().held() {
        return Some(fail(FailureReason::Held, "the node is held"));
    }
    if ctx.facts().deleting {
        return Some(fail(FailureReason::NodeDeleted, "the node is being deleted"));
    }
    if let Some(taint) = &ctx.facts().removed_by {
        let message = format!("an autoscaler or a user is removing the node (taint {taint})");
        return Some(fail(FailureReason::NodeDeleted, message));
    }
    None
}

/// Returns the end of an attempt without an issued permit whose node is out of service.
pub(super) fn ended_before_permit(ctx: &Attempt<'_>) -> Option<Turn> {
    ended_from_outside(ctx).or_else(|| stopped_by_policy(ctx))
}

/// Returns the end of an attempt whose node is out of service without an issued permit, and that policy stops: a blackout has
/// begun, or a user has ruled its version out, or its release was withdrawn; or while trouble of the cluster says nothing about any version.
fn stopped_by_policy(ctx: &Attempt<'_>) -> Option<Turn> {
    if let Some(refused) = gates::blackout(ctx).or_else(|| gates::cluster_unwell(ctx)) {
        return Some(Turn::of(Outcome::Refuse(refused)));
    }
    if !ctx.mode().downloads() {
        return None;
    }
    let version = &ctx.progress.version;
    if let Some(message) = ctx.host().ruled_out(version, ctx.node.running().as_ref()) {
        return Some(fail(FailureReason::PolicyChanged, message));
    }
    // A newer release is no reason to throw a drain away. A drill boots nothing.
    let withdrawn = want::withdrawn(&ctx.shadow.status.agent, version).filter(|_| ctx.mode() == Mode::Update);
    withdrawn.map(|message| fail(FailureReason::Superseded, message))
}

/// Returns the end of an attempt that its agent, or the host, cannot go on with.
pub(super) fn ended_by_host(ctx: &Attempt<'_>) -> Option<Turn> {
    if let Some((reason, message)) = ctx.agent_failure(ctx.progress) {
        return Some(fail(reason, message));
    }
    let asked = ctx.shadow.spec.state == HostState::RehearsedUpdate && ctx.shadow.spec.attempt == ctx.progress.attempt;
    let condition = find_condition(&ctx.shadow.status.conditions, HOST_REACHABLE);
    let unsupported = condition.filter(|condition| asked && condition.reason == UNSUPPORTED_STATE)?;
    let message = format!("the agent or the web API does not know drills: {}", cut(&unsupported.message, 512));
    Some(fail(FailureReason::UnsupportedState, message))
}

/// Returns the consequence of the permit of an update that ends now.
fn permitted(ctx: &Attempt<'_>) -> Permitted {
    let booted = matches!(ctx.progress.step.place(), Place::Booted | Place::Back);
    if !ctx.permit_issued(ctx.progress) && !booted {
        Permitted::Nothing
    } else if ctx.runs_target(ctx.progress) {
        Permitted::Version
    } else if booted || ctx.facts().boot_id != ctx.progress.boot_id {
        Permitted::OtherVersion
    } else {
        Permitted::Reboot
    }
}

/// Records the place that a node has in its rollout after its update. Without one it keeps the place that it had, and so does a
/// node whose verification was ended from outside.
fn record_proof(ctx: &Attempt<'_>, record: &mut Record, end: &End) {
    let proof = end.proof(permitted(ctx));
    let verification = ctx.mode().is_verification();
    let ended_from_outside = end.failure.is_some() && end.class == FailureClass::Nothing;
    if proof == Proof::Free || (verification && ended_from_outside) {
        return;
    }
    let progress = ctx.progress;
    let before = record.proof.as_ref().filter(|proof| verification && proof.version == progress.version);
    if proof == Proof::Unproven && before.is_some_and(|before| before.proof == Proof::Failed) {
        // A verification that shows nothing does not make a failed place one that a user may accept.
        return;
    }
    let begun = progress.rollout.as_ref().map_or(0, |place| place.rollout);
    // A verification is for the rollout that goes on, whichever the attempt was of.
    let before = before.map_or(0, |proof| proof.rollout);
    let active = || ctx.survey.rollouts.active(ctx.node, &progress.version);
    let current = || active().map_or(0, ActiveRollout::number).max(before);
    record.proof = Some(NodeProof {
        version: progress.version.clone(),
        rollout: if begun == 0 { current() } else { begun },
        attempt: progress.attempt,
        proof,
        reason: end.reason.to_owned(),
    });
}

/// Charges a failure to the version, for the kind of host that the Node names: it concerns other nodes.
fn record_version_failure(ctx: &Attempt<'_>, record: &mut Record, reason: FailureReason) {
    let (variant, arch) = kind_by_node(ctx.node);
    let failure = VersionFailure {
        version: ctx.progress.version.clone(),
        variant: cut(variant, VARIANT_LENGTH),
        arch: cut(arch, ARCH_LENGTH),
        reason,
        time: ctx.now,
        resolved_by: None,
    };
    let failures = &mut record.version_failures;
    let same = |f: &VersionFailure| {
        f.resolved_by.is_none()
            && (&f.version, &f.variant, &f.arch) == (&failure.version, &failure.variant, &failure.arch)
    };
    if failures.iter().any(same) {
        return;
    }
    if failures.len() >= VERSION_FAILURES {
        let resolved = failures.iter().position(|f| f.resolved_by.is_some()).unwrap_or(0);
        failures.remove(resolved);
    }
    failures.push(failure);
}

/// Resolves the failures of a node against the version that it has proven now, and returns them.
fn resolve_failures<'r>(ctx: &Attempt<'_>, record: &'r mut Record) -> Vec<&'r VersionFailure> {
    let own = |failure: &&mut VersionFailure| failure.version == ctx.progress.version && failure.resolved_by.is_none();
    let resolve = |failure: &'r mut VersionFailure| {
        failure.resolved_by = Some(UPDATED.to_owned());
        &*failure
    };
    record.version_failures.iter_mut().filter(own).map(resolve).collect()
}

fn attempt_result(ctx: &Attempt<'_>, reason: &str, message: &str) -> AttemptResult {
    let progress = ctx.progress;
    AttemptResult {
        attempt: progress.attempt,
        from: progress.from.clone(),
        version: progress.version.clone(),
        reason: reason.to_owned(),
        message: cut(message, 1024),
        started: progress.started,
        ended: ctx.now,
    }
}
