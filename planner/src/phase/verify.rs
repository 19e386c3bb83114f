//! The verification: the updated node, its pods and the expressions have to stay healthy for the soak.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{HEALTHY, HostState, Progress, Step, UPDATED};

use super::desired::withdraw;
use super::drill;
use super::fail::{attempt_result, fail};
use super::hooks;
use super::result::{keep_result, running};
use super::status::{go_to, unblock};
use models::time::after;

use crate::decision::{Action, Decision, Note};
use crate::gates;
use crate::survey::NodeContext;
use crate::view::{Compared, NodeView, PodFacts};
use crate::wait::Wait;

/// The number of unhealthy pods that a record names.
const NAMED: usize = 4;

/// The number of owners of unhealthy pods that are compared with their pods on other nodes.
const JUDGED_OWNERS: usize = 8;

/// Labels that controllers give to one pod alone, so that they select no other pod of the same owner.
const OF_ONE_POD: &[&str] =
    &["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"];

/// Verifies a node that is back in service, and ends its attempt.
pub(super) fn decide(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if ctx.needs_release() {
        return Decision::act(Action::Release);
    }
    let until = after(progress.since, ctx.group().after.soak);
    if ctx.shadow.spec.state != HostState::Idle {
        let another_boot = ctx.facts().boot_id != progress.boot_id;
        if another_boot && !ctx.runs_target(progress) {
            let message = "the node was rebooted into another version";
            return fail(ctx, progress, FailureReason::BootedOtherVersion, message);
        }
        if another_boot || !ctx.facts().ready {
            // Once is nothing: the soak begins again when the node is Ready. A second time is a failure.
            if progress.soak_restarted {
                return fail(ctx, progress, FailureReason::SoakFailed, "the node did not stay Ready in one boot");
            }
            let again = Progress { soak_restarted: true, ..progress.clone() };
            return Decision::act(go_to(ctx, &again, Step::Returning, |_| {}));
        }
        return check_health(ctx, progress, until).unwrap_or_else(|| Decision::act(withdraw(ctx)));
    }
    finish(ctx, progress)
}

/// Ends the attempt of a verified node once its hooks have answered.
pub(super) fn finish(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    if hooks::awaited(ctx.policy, Step::AfterUpdate).next().is_some() {
        return Decision::act(go_to(ctx, progress, Step::AfterUpdate, |_| {}));
    }
    record(ctx, progress)
}

/// Records the result of an attempt that went through.
pub(super) fn record(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    match &progress.drill {
        Some(drill) => drill::pass(ctx, progress, drill),
        None => record_update(ctx, progress),
    }
}

/// Returns when the verification ends, with whatever is known.
pub(super) fn deadline(ctx: &NodeContext<'_>, progress: &Progress) -> Timestamp {
    ctx.deadline(progress.verifying_since.unwrap_or(progress.since), ctx.group().after.timeout)
}

/// Continues the verification; `None` once it is over: when the soak has passed, the pods are Ready, none of their containers was
/// restarted meanwhile, and the expressions return nothing.
pub(super) fn check_health(ctx: &NodeContext<'_>, progress: &Progress, until: Timestamp) -> Option<Decision> {
    let after_policy = &ctx.group().after;
    let deadline = deadline(ctx, progress);
    let queries = gates::queries(&after_policy.expressions, &ctx.facts().name);
    let looking = |decision: Decision| Some(decision.querying(queries));
    let Some(pods) = pods_to_verify(ctx) else {
        return looking(unknown_until(ctx, progress, deadline, Wait::ReadingPods));
    };
    // None was there before: a node under pressure is not taken out of service.
    if let Some(condition) = ctx.facts().pressure.clone() {
        if ctx.now >= deadline {
            let message = format!("the node has had {condition} since its update to {}", progress.version);
            return Some(fail(ctx, progress, FailureReason::SoakFailed, &message));
        }
        return looking(Decision::wait(Wait::NodePressure { condition }).waking_at(deadline));
    }
    if ctx.now < until {
        return looking(Decision::wait(Wait::Soaking { until }).waking_at(until));
    }
    let unhealthy = unhealthy_pods(ctx, &pods);
    if let Some(first) = unhealthy.first() {
        if ctx.now < deadline {
            let settled =
                unhealthy.iter().filter_map(|unhealthy| unhealthy.until).min().unwrap_or(deadline).min(deadline);
            let (pod, why) = (first.pod.title(), first.why.clone());
            return looking(Decision::wait(Wait::Settling { pod, why, count: unhealthy.len() }).waking_at(settled));
        }
        if progress.drill.is_some() {
            let message =
                format!("{} pod(s) are not healthy, {} first ({})", unhealthy.len(), first.pod.title(), first.why);
            return Some(fail(ctx, progress, FailureReason::SoakFailed, &message));
        }
        if let Some(decision) = evidence(ctx, progress, &unhealthy) {
            return looking(decision);
        }
    }
    match gates::quiet_since(&after_policy.expressions, &ctx.facts().name, &ctx.view.expressions) {
        // One that is the same for all nodes is no evidence against this node's version.
        Err(Wait::ExpressionFires { name, series, shared: false }) if ctx.now >= deadline => {
            let message = format!("the expression {name} returned {series} on {}", progress.version);
            Some(fail(ctx, progress, FailureReason::SoakFailed, &message))
        }
        Err(wait) => looking(unknown_until(ctx, progress, deadline, wait)),
        // Empty at last: also past the deadline it has the soak to stay so, and fails at once if it does not.
        Ok(Some(since)) if ctx.now < after(since, after_policy.soak) => {
            let until = after(since, after_policy.soak);
            looking(Decision::wait(Wait::Soaking { until }).waking_at(until))
        }
        Ok(_) => None,
    }
}

/// Records the node as updated after its verification, with the desired state withdrawn. Pods that are still unhealthy are
/// named, and count against nothing.
fn record_update(ctx: &NodeContext<'_>, progress: &Progress) -> Decision {
    let pods = pods_to_verify(ctx);
    let without_workloads =
        pods.as_ref().is_some_and(|pods| !pods.iter().any(|pod| !pod.mirror && pod.daemon_set.is_none()));
    let no_workloads = if without_workloads { ", and no pods of workloads were scheduled to it" } else { "" };
    let unhealthy = unhealthy_pods(ctx, &pods.unwrap_or_default());
    let mut status = ctx.controller_status();
    let mut record = status.report.record.take().unwrap_or_default();
    record.failures = 0;
    record.not_before = None;
    let from = progress.from.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
    let mut text = format!("updated from {from} to {}", progress.version);
    let message = if unhealthy.is_empty() {
        let message = format!("Ready on {} for the soak{no_workloads}", progress.version);
        ctx.set_condition(&mut status, HEALTHY, true, "Soaked", &message);
        message
    } else {
        let names: Vec<_> = unhealthy
            .iter()
            .take(NAMED)
            .map(|unhealthy| format!("{} ({})", unhealthy.pod.title(), unhealthy.why))
            .collect();
        let message = format!(
            "Ready on {}, but {} pod(s) are not healthy, which does not count against the version: {}",
            progress.version,
            unhealthy.len(),
            names.join(", ")
        );
        text = format!("{text}; {message}");
        ctx.set_condition(&mut status, HEALTHY, false, "PodsUnhealthy", &message);
        message
    };
    record.last = Some(attempt_result(ctx, progress, UPDATED, &message));
    status.report.record = Some(record);
    keep_result(ctx, &mut status, progress, UPDATED, &message, running(ctx));
    status.report.progress = None;
    status.report.drain = None;
    unblock(&mut status);
    let note = Note { warning: !unhealthy.is_empty(), reason: "Updated", message: text };
    Decision::act(Action::Status { status: Box::new(status), note: Some(note) })
}

/// Reads how the other pods of the owners are if pods are still unhealthy at the deadline, and fails the attempt
/// where that is evidence against the version. `None` if nothing is.
fn evidence(ctx: &NodeContext<'_>, progress: &Progress, unhealthy: &[UnhealthyPod<'_>]) -> Option<Decision> {
    let mut seen = BTreeSet::new();
    let owned = unhealthy.iter().filter_map(|unhealthy| Some((unhealthy, unhealthy.pod.controller_uid.as_ref()?)));
    let candidates = owned.filter(|(unhealthy, owner)| {
        !unhealthy.pod.mirror && seen.insert(*owner) && !was_unhealthy(ctx, progress, owner)
    });
    for (UnhealthyPod { pod, why, .. }, owner) in candidates.take(JUDGED_OWNERS) {
        let Some(health) = ctx.node.owners.get(owner) else {
            let labels = pod.labels.iter().filter(|(name, _)| !OF_ONE_POD.contains(&name.as_str()));
            return Some(Decision::act(Action::ReadOwner {
                owner: owner.clone(),
                namespace: pod.namespace.clone(),
                labels: labels.map(|(name, value)| (name.clone(), value.clone())).collect(),
                nodes: nodes_to_compare(ctx, progress),
            }));
        };
        if health.is_evidence() {
            let message = format!(
                "{} is not healthy ({why}): pods of its owner fail on {} other node(s) with {}, and are healthy on {} without it",
                pod.title(),
                health.updated_failing,
                progress.version,
                health.others_healthy
            );
            return Some(fail(ctx, progress, FailureReason::SoakFailed, &message));
        }
    }
    None
}

/// Returns whether this owner's pods were unhealthy before a node was drained for the same version.
fn was_unhealthy(ctx: &NodeContext<'_>, progress: &Progress, owner: &String) -> bool {
    ctx.view.nodes.values().any(|node| {
        let Some(record) = node.record() else { return false };
        let now = node.progress().map(|progress| &progress.version);
        let version = now.or(record.last.as_ref().map(|last| &last.version));
        version == Some(&progress.version) && record.unhealthy_before.contains(owner)
    })
}

/// The nodes on which an owner's other pods are evidence about the version: those in service. A pod on an updated
/// one has had enough time when it has had as much again as an update waits for pods.
fn nodes_to_compare(ctx: &NodeContext<'_>, progress: &Progress) -> BTreeMap<String, Compared> {
    let others = ctx.view.nodes.values().filter(|node| node.facts.name != ctx.facts().name);
    let in_service = others.filter(|node| node.facts.ready && !node.disrupted());
    let class = |node: &NodeView| {
        if node.facts.os_version().as_ref() != Some(&progress.version) {
            return Compared::NotUpdated;
        }
        let last = node.record().and_then(|record| record.last.as_ref());
        let by = last
            .filter(|last| last.version == progress.version)
            .map(|last| after(last.ended, ctx.group().after.timeout));
        if by.is_some_and(|by| by <= ctx.now) { Compared::Updated } else { Compared::JustUpdated }
    };
    in_service.map(|node| (node.facts.name.clone(), class(node))).collect()
}

/// Waits for what is not known, and ends the wait after the deadline: it is no evidence against the version.
fn unknown_until(ctx: &NodeContext<'_>, progress: &Progress, deadline: Timestamp, wait: Wait) -> Decision {
    if ctx.now >= deadline {
        let message = format!("whether the node is healthy could not be found out: {wait}");
        return fail(ctx, progress, FailureReason::HealthUnknown, &message);
    }
    Decision::wait(wait).waking_at(deadline)
}

/// The pods on the node that have to be healthy after its update; `None` while they are not known. Pods of owners
/// that were not healthy before the drain are left out.
fn pods_to_verify<'a>(ctx: &NodeContext<'a>) -> Option<Vec<&'a PodFacts>> {
    if !ctx.group().after.pods_ready {
        return Some(Vec::new());
    }
    let record = ctx.node.record();
    let excused = record.map(|record| record.unhealthy_before.as_slice()).unwrap_or_default();
    let counted = |pod: &&PodFacts| {
        let unhealthy_before = pod.controller_uid.as_ref().is_some_and(|owner| excused.contains(owner));
        !pod.finished && !pod.terminating && !unhealthy_before
    };
    Some(ctx.node.pods.as_ref()?.iter().filter(counted).collect())
}

/// The pods that are not Ready, or had a container restarted less than the soak ago.
fn unhealthy_pods<'b>(ctx: &NodeContext<'_>, pods: &[&'b PodFacts]) -> Vec<UnhealthyPod<'b>> {
    let soak = ctx.group().after.soak;
    let unhealthy = |pod: &&'b PodFacts| {
        let restarted = pod.restarted_at.filter(|at| after(*at, soak) > ctx.now);
        match (pod.ready, restarted) {
            (false, _) => Some(UnhealthyPod { pod, why: pod.trouble.clone().unwrap_or_default(), until: None }),
            (true, Some(at)) => Some(UnhealthyPod {
                pod,
                why: format!("a container was restarted at {at}"),
                until: Some(after(at, soak)),
            }),
            (true, None) => None,
        }
    };
    pods.iter().filter_map(unhealthy).collect()
}

/// A pod that is not healthy on an updated node.
struct UnhealthyPod<'a> {
    pod: &'a PodFacts,
    why: String,
    /// The time at which it counts as healthy again if nothing happens to it.
    until: Option<Timestamp>,
}
