//! The health of a node that is back in service: its conditions, its pods and the expressions.

use std::collections::{BTreeMap, BTreeSet};

use std::time::Duration;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Progress, Step};
use models::time::{after, between};

use super::comparison::blame;
use super::row::{Attempt, Turn, act, fail, stay};
use crate::decision::Action;
use crate::gates;
use crate::survey::NodeContext;
use crate::view::{Compared, NodeView, PodFacts};
use crate::wait::Wait;

/// The number of owners of unhealthy pods that are compared with their pods on other nodes.
const JUDGED_OWNERS: usize = 8;

/// Labels that controllers give to one pod alone, so that they select no other pod of the same owner.
const OF_ONE_POD: &[&str] =
    &["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"];

/// Returns when the verification ends, with whatever is known.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Timestamp {
    ctx.deadline(ctx.progress.verifying_since.unwrap_or(ctx.progress.since), ctx.group().after.timeout)
}

/// Time after which an interruption of the soak has lasted, and is no mere instant; half of a shorter `timeout`.
const LASTING: Duration = Duration::from_secs(60);

/// Continues the verification; `None` once it is over: when the soak has passed, the pods are Ready, none of their containers was
/// restarted meanwhile, and the expressions return nothing.
pub(super) fn check_health(ctx: &Attempt<'_>) -> Option<Turn> {
    let after_policy = &ctx.group().after;
    let deadline = deadline(ctx);
    let queries = gates::queries(&after_policy.expressions, &ctx.facts().name);
    let looking = |turn: Turn| Some(turn.querying(queries));
    if let Some(interruption) = interruption(ctx) {
        return looking(interrupted(ctx, interruption, deadline));
    }
    if ctx.progress.interrupted.is_some() {
        // From now on the node has the whole soak to stay well, also past the deadline.
        return looking(ctx.next_with(Step::Verifying, Progress { interrupted: None, ..ctx.progress.clone() }, |_| {}));
    }
    let Some(pods) = pods_to_verify(ctx) else {
        return looking(unknown_until(ctx, deadline, Wait::ReadingPods));
    };
    let until = after(ctx.progress.since, after_policy.soak);
    if ctx.now < until {
        return looking(stay(Wait::Soaking { until }).waking_at(until));
    }
    let unhealthy = unhealthy_pods(ctx, &pods);
    if let Some(first) = unhealthy.first() {
        if ctx.now < deadline {
            let settled =
                unhealthy.iter().filter_map(|unhealthy| unhealthy.until).min().unwrap_or(deadline).min(deadline);
            let (pod, why) = (first.pod.title(), first.why.clone());
            return looking(stay(Wait::Settling { pod, why, count: unhealthy.len() }).waking_at(settled));
        }
        if ctx.mode().is_drill() {
            let message =
                format!("{} pod(s) are not healthy, {} first ({})", unhealthy.len(), first.pod.title(), first.why);
            return Some(fail(FailureReason::SoakFailed, message));
        }
        if let Some(decision) = evidence(ctx, &unhealthy) {
            return looking(decision);
        }
    }
    match gates::quiet_since(&after_policy.expressions, &ctx.facts().name, &ctx.view.expressions) {
        // One that is the same for all nodes is no evidence against this node's version.
        Err(Wait::ExpressionFires { name, series, shared: false }) if ctx.now >= deadline => {
            let message = format!("the expression {name} returned {series} on {}", ctx.progress.version);
            Some(fail(FailureReason::SoakFailed, message))
        }
        Err(wait) => looking(unknown_until(ctx, deadline, wait)),
        // Empty at last: also past the deadline it has the soak to stay so, and fails at once if it does not.
        Ok(Some(since)) if ctx.now < after(since, after_policy.soak) => {
            let until = after(since, after_policy.soak);
            looking(stay(Wait::Soaking { until }).waking_at(until))
        }
        Ok(_) => None,
    }
}

/// Returns what keeps the node from its soak now. A node under pressure is not taken out of service: it had none before.
fn interruption(ctx: &Attempt<'_>) -> Option<Wait> {
    if !ctx.facts().ready {
        return Some(Wait::AwaitingReady);
    }
    ctx.facts().pressure.clone().map(|condition| Wait::NodePressure { condition })
}

/// Waits for the end of what interrupts the soak. At the deadline it counts against the version if it has lasted, and if other nodes do
/// not show that it is no evidence.
fn interrupted(ctx: &Attempt<'_>, interruption: Wait, deadline: Timestamp) -> Turn {
    if ctx.now < deadline {
        if ctx.progress.interrupted.is_some() {
            return stay(interruption).waking_at(deadline);
        }
        let mut status = ctx.controller_status();
        let verifying_since = ctx.progress.verifying_since.or(Some(ctx.progress.since));
        let interrupted = Some(ctx.now);
        status.report.progress = Some(Progress { interrupted, verifying_since, ..ctx.progress.clone() });
        return act(Action::Status { status: Box::new(status), note: None });
    }
    let message = match &interruption {
        Wait::AwaitingReady => "the node did not stay Ready".to_owned(),
        Wait::NodePressure { condition } => {
            format!("the node has had {condition} since its update to {}", ctx.progress.version)
        }
        other => other.to_string(),
    };
    let lasting = LASTING.min(ctx.group().after.timeout / 2);
    let lasts = ctx.progress.interrupted.is_some_and(|since| between(since, ctx.now) >= lasting);
    if !lasts && !ctx.mode().is_drill() {
        let message = format!("{message}, for an instant only, and the time of its verification is over");
        return fail(FailureReason::HealthUnknown, message);
    }
    blame(ctx, FailureReason::SoakFailed, &message)
}

/// Reads how the other pods of the owners are if pods are still unhealthy at the deadline, and fails the attempt
/// where that is evidence against the version. `None` if nothing is.
fn evidence(ctx: &Attempt<'_>, unhealthy: &[UnhealthyPod<'_>]) -> Option<Turn> {
    let mut seen = BTreeSet::new();
    let owned = unhealthy.iter().filter_map(|unhealthy| Some((unhealthy, unhealthy.pod.controller_uid.as_ref()?)));
    let candidates =
        owned.filter(|(unhealthy, owner)| !unhealthy.pod.mirror && seen.insert(*owner) && !was_unhealthy(ctx, owner));
    for (UnhealthyPod { pod, why, .. }, owner) in candidates.take(JUDGED_OWNERS) {
        let Some(health) = ctx.node.owners.get(owner) else {
            let labels = pod.labels.iter().filter(|(name, _)| !OF_ONE_POD.contains(&name.as_str()));
            return Some(act(Action::ReadOwner {
                owner: owner.clone(),
                namespace: pod.namespace.clone(),
                labels: labels.map(|(name, value)| (name.clone(), value.clone())).collect(),
                nodes: nodes_to_compare(ctx),
            }));
        };
        if health.is_evidence() {
            let message = format!(
                "{} is not healthy ({why}): pods of its owner fail on {} other node(s) with {}, and are healthy on {} without it",
                pod.title(),
                health.updated_failing,
                ctx.progress.version,
                health.others_healthy
            );
            return Some(fail(FailureReason::SoakFailed, message));
        }
    }
    None
}

/// Returns whether this owner's pods were unhealthy before a node was drained for the same version.
fn was_unhealthy(ctx: &Attempt<'_>, owner: &String) -> bool {
    ctx.view.nodes.values().any(|node| {
        let Some(record) = node.record() else { return false };
        let now = node.progress().map(|progress| &progress.version);
        let version = now.or(record.last.as_ref().map(|last| &last.version));
        version == Some(&ctx.progress.version) && record.unhealthy_before.contains(owner)
    })
}

/// The nodes on which an owner's other pods are evidence about the version: those in service. A pod on an updated
/// one has had enough time when it has had as much again as an update waits for pods.
fn nodes_to_compare(ctx: &Attempt<'_>) -> BTreeMap<String, Compared> {
    let others = ctx.view.nodes.values().filter(|node| node.facts.name != ctx.facts().name);
    let in_service = others.filter(|node| node.facts.ready && !node.disrupted());
    let class = |node: &NodeView| {
        if node.facts.os_version().as_ref() != Some(&ctx.progress.version) {
            return Compared::NotUpdated;
        }
        let last = node.record().and_then(|record| record.last.as_ref());
        let by = last
            .filter(|last| last.version == ctx.progress.version)
            .map(|last| after(last.ended, ctx.group().after.timeout));
        if by.is_some_and(|by| by <= ctx.now) { Compared::Updated } else { Compared::JustUpdated }
    };
    in_service.map(|node| (node.facts.name.clone(), class(node))).collect()
}

/// Waits for what is not known, and ends the wait after the deadline: it is no evidence against the version.
fn unknown_until(ctx: &Attempt<'_>, deadline: Timestamp, wait: Wait) -> Turn {
    if ctx.now >= deadline {
        let message = format!("whether the node is healthy could not be found out: {wait}");
        return fail(FailureReason::HealthUnknown, message);
    }
    stay(wait).waking_at(deadline)
}

/// The pods on the node that have to be healthy after its update; `None` while they are not known. Pods of owners
/// that were not healthy before the drain are left out.
pub(super) fn pods_to_verify<'a>(ctx: &NodeContext<'a>) -> Option<Vec<&'a PodFacts>> {
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
pub(super) fn unhealthy_pods<'b>(ctx: &NodeContext<'_>, pods: &[&'b PodFacts]) -> Vec<UnhealthyPod<'b>> {
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
pub(super) struct UnhealthyPod<'a> {
    pub(super) pod: &'a PodFacts,
    pub(super) why: String,
    /// The time at which it counts as healthy again if nothing happens to it.
    until: Option<Timestamp>,
}
