//! The health of a node that is back in service: its conditions, its pods and the expressions.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use models::reason::FailureReason;
use models::shadow::{Mode, Progress, Step};
use models::time::{after, between};

use super::comparison::{blame, excuse_expression, nodes_to_compare};
use super::drained::OBSERVED;
use super::hooks::request_of;
use super::lease::sign_of_life;
use super::row::{Attempt, Turn, act, begun, fail, soaked, stay};
use super::unhealthy::{UnhealthyPod, named, pods_to_verify, unhealthy_pods};
use super::usable;
use super::workloads::{READ_AGAIN, drain_began, read_replica_set, uncreated};
use crate::decision::Action;
use crate::expressions::Question;
use crate::gates::{self, Firing};
use crate::survey::unwell::LONGEST;
use crate::view::{NodeFacts, OwnerHealth, PodFacts, STARTING};
use crate::wait::Wait;

/// The number of owners of unhealthy pods that are compared with their pods on other nodes.
const JUDGED_OWNERS: usize = 8;

/// Labels that controllers give to one pod alone, so that they select no other pod of the same owner.
const OF_ONE_POD: &[&str] =
    &["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"];

/// Returns when the verification ends, with whatever is known. Its clock stops while the agent cannot report for want of the web API: that
/// says nothing about the node.
pub(super) fn deadline(ctx: &Attempt<'_>) -> Timestamp {
    let at = ctx.deadline(begun(ctx), ctx.group().after.timeout);
    if usable::awaits_web_api(ctx) { at.max(after(ctx.now, LASTING)) } else { at }
}

/// Time after which an interruption of the soak has lasted, and is no mere instant; half of a shorter `timeout`.
pub(super) const LASTING: Duration = Duration::from_secs(60);

/// The end of a message about an interruption that has not lasted.
const INSTANT: &str = "for an instant only, and the time of its verification is over";

/// The end of a message about what began some time after the update.
pub(super) const OTHER_CAUSES: &str = "which may have other causes by now than the update";

/// Continues the verification; `None` once it is over. The soak has passed without an interruption then, and the pods are Ready. None of their
/// containers was restarted meanwhile, what the node had before its drain is back, and the expressions return nothing. After all that the
/// kubelet has shown a sign of life, and the agent has reported.
pub(super) fn check_health(ctx: &Attempt<'_>) -> Option<Turn> {
    let after_policy = &ctx.group().after;
    let deadline = deadline(ctx);
    let looking = |turn: Turn| Some(querying(ctx, turn));
    let pods = pods_to_verify(ctx);
    let unhealthy = pods.as_ref().map(|pods| unhealthy_pods(ctx, pods));
    match interruption(ctx, unhealthy.as_deref().unwrap_or_default(), deadline) {
        Ok(Some(interruption)) => return looking(interrupted(ctx, interruption, deadline)),
        Ok(None) => {}
        Err(unread) => return looking(read_or_end(ctx, &unread, deadline)),
    }
    let quiet = gates::quiet(&after_policy.checks, ctx.subject(), &ctx.view.expressions);
    // It may be an expression that has interrupted it: that is not over without an answer.
    if ctx.progress.interrupted.is_some() && quiet.is_ok() {
        // From now on the node has the whole soak to stay well, also past the deadline.
        return looking(ctx.next_with(Step::Verifying, Progress { interrupted: None, ..ctx.progress.clone() }, |_| {}));
    }
    let Some(unhealthy) = unhealthy else {
        return looking(unknown_until(ctx, deadline, Wait::ReadingPods));
    };
    let until = soaked(ctx);
    if ctx.now < until {
        // A pod that is starting interrupts the soak once it takes too long.
        let starts = unhealthy.iter().filter_map(|unhealthy| unhealthy.pod.starts_by());
        let wake = starts.filter(|at| *at > ctx.now).fold(until, Timestamp::min);
        return looking(stay(Wait::Soaking { until }).waking_at(wake));
    }
    let counted = match counted(ctx, &unhealthy, deadline) {
        Ok(counted) => counted,
        Err(unread) => return looking(read_or_end(ctx, &unread, deadline)),
    };
    if !counted.is_empty() && ctx.now < deadline {
        let settled = counted.iter().filter_map(|unhealthy| unhealthy.until).min().unwrap_or(deadline).min(deadline);
        // Later its owner's pods on other nodes are read.
        let again = after(ctx.now, STARTING);
        return looking(stay(settling(&counted)?).waking_at(settled).waking_at(again));
    }
    let lasting = counted.iter().filter(|unhealthy| !unhealthy.pod.is_starting(ctx.now)).copied().collect::<Vec<_>>();
    if !lasting.is_empty() {
        return looking(judged(ctx, &lasting));
    }
    // Empty at last: also past the deadline the expressions have the soak to stay so.
    let soaked = soak_ends(ctx);
    let limit = after(deadline.max(soaked), LASTING);
    let (mut missing, mut again) = (usable::missing(ctx), deadline);
    if missing.is_empty() {
        match uncreated(ctx, deadline) {
            Ok(clause) => missing.extend(clause),
            Err(set) => return looking(read_replica_set(ctx, set, limit)),
        }
        again = after(ctx.now, READ_AGAIN);
    }
    if !missing.is_empty() {
        let wait = Wait::NodeNotUsable { missing };
        return looking(if ctx.now < deadline {
            stay(wait).waking_at(deadline).waking_at(again)
        } else {
            fail(FailureReason::NodeNotUsable, wait.to_string())
        });
    }
    let quiet = match quiet {
        Err(wait) => return looking(unknown_until(ctx, deadline, wait)),
        Ok(quiet) => quiet,
    };
    if ctx.now < soaked {
        return looking(stay(Wait::Soaking { until: soaked }).waking_at(soaked));
    }
    // The last answer may be from before the drain, or from before Prometheus has scraped the node again.
    if let Some(quiet) = quiet.filter(|quiet| quiet.asked < soaked) {
        let pending = Wait::ExpressionsPending { name: quiet.oldest };
        return looking(unknown_until(ctx, limit, pending).asking_since(soaked));
    }
    let away = if ctx.view.web_api_missing.is_some() { Wait::WebApiNotReady } else { Wait::NoReport };
    let report = || usable::awaits_report(ctx).then(|| stay(away).waking_at(after(ctx.now, LASTING)));
    sign_of_life(ctx, soaked, limit).or_else(report).and_then(looking)
}

/// Adds the expressions to query. An interval may be longer than the verification: they are queried as it begins, and once more before its
/// end, since an answer from before it, or from its begin alone, says nothing about its end.
fn querying(ctx: &Attempt<'_>, turn: Turn) -> Turn {
    let after_policy = &ctx.group().after;
    let turn = turn.querying(gates::questions(&after_policy.checks, ctx.subject()));
    // If it moved with the deadline, they would be queried without end.
    let last = after(begun(ctx), after_policy.timeout.saturating_sub(LASTING));
    if ctx.now < last { turn.asking_since(begun(ctx)).waking_at(last) } else { turn.asking_since(last) }
}

/// Returns what keeps the node from its soak now, or the pod whose owner has to be read for that. The node is not Ready, or is under pressure,
/// which it was not when it was taken out of service; or a pod is not Ready, and is not just starting; or an expression returns something.
fn interruption<'b>(
    ctx: &Attempt<'_>,
    unhealthy: &[UnhealthyPod<'b>],
    deadline: Timestamp,
) -> Result<Option<Wait>, UnhealthyPod<'b>> {
    if !ctx.facts().ready {
        return Ok(Some(Wait::AwaitingReady));
    }
    if let Some(condition) = ctx.facts().pressure.clone() {
        return Ok(Some(Wait::NodePressure { condition }));
    }
    let late = unhealthy.iter().filter(|unhealthy| !unhealthy.pod.ready && !unhealthy.pod.is_coming_up(ctx.now));
    let counted = counted(ctx, &late.copied().collect::<Vec<_>>(), deadline)?;
    if let Some(wait) = settling(&counted) {
        // What the boot has restarted comes up now, which is nothing to report.
        let comes_up = counted.iter().all(|unhealthy| comes_up(ctx, unhealthy.pod, deadline));
        return Ok(Some(if comes_up { Wait::Soaking { until: after(ctx.now, ctx.group().after.soak) } } else { wait }));
    }
    Ok(firing(ctx).first().map(Firing::wait))
}

/// Returns the expressions that return something.
pub(super) fn firing<'a>(ctx: &'a Attempt<'_>) -> Vec<Firing<'a>> {
    gates::firing(&ctx.group().after.checks, ctx.subject(), &ctx.view.expressions)
}

/// Time that pods have to become Ready after a boot before anything is read of their owners.
fn coming_up(ctx: &Attempt<'_>) -> Duration {
    STARTING.min(ctx.group().after.soak)
}

/// Returns whether a pod has not been Ready since a verification that has just begun.
fn comes_up(ctx: &Attempt<'_>, pod: &PodFacts, deadline: Timestamp) -> bool {
    let is_lost = pod.lost_ready_at.is_some_and(|lost| lost > begun(ctx));
    !pod.ready && !is_lost && ctx.now < after(begun(ctx), coming_up(ctx)).min(deadline)
}

fn settling(unhealthy: &[UnhealthyPod<'_>]) -> Option<Wait> {
    let first = unhealthy.first()?;
    Some(Wait::Settling { pod: first.pod.title(), why: first.why(), count: unhealthy.len() })
}

/// Waits for the end of what interrupts the soak. At the deadline it counts against the version if it has lasted, and if other nodes do
/// not show that it is no evidence.
fn interrupted(ctx: &Attempt<'_>, interruption: Wait, deadline: Timestamp) -> Turn {
    if ctx.now < deadline {
        if ctx.progress.interrupted.is_some() {
            return stay(interruption).waking_at(deadline).waking_at(after(ctx.now, coming_up(ctx)));
        }
        let mut status = ctx.controller_status();
        let (verifying_since, interrupted) = (Some(begun(ctx)), Some(ctx.now));
        status.report.progress = Some(Progress { interrupted, verifying_since, ..ctx.progress.clone() });
        return act(Action::Status { status: Box::new(status), note: None });
    }
    let version = &ctx.progress.version;
    let message = match &interruption {
        Wait::AwaitingReady => "the node did not stay Ready".to_owned(),
        Wait::NodePressure { condition } => format!("the node has had {condition} on {version}"),
        Wait::Settling { .. } => {
            let pods = pods_to_verify(ctx).unwrap_or_default();
            let unhealthy = unhealthy_pods(ctx, &pods);
            return match counted(ctx, &unhealthy, deadline) {
                Ok(counted) => judged(ctx, &counted),
                Err(unread) => read_or_end(ctx, &unread, deadline),
            };
        }
        Wait::ExpressionFires { .. } => return expressions_fire(ctx, &interruption, deadline),
        other => other.to_string(),
    };
    if ctx.mode().is_verification() || was_verified(ctx) {
        return fail(FailureReason::HealthUnknown, format!("{message}, {OTHER_CAUSES}"));
    }
    if !lasts(ctx, began(ctx.facts())) && !ctx.mode().is_drill() {
        return fail(FailureReason::HealthUnknown, format!("{message}, {INSTANT}"));
    }
    blame(ctx, FailureReason::SoakFailed, &message)
}

/// Returns the time since which what the node itself shows has kept it from being well: it is not Ready, or else it is under pressure.
pub(super) fn began(facts: &NodeFacts) -> Option<Timestamp> {
    if facts.ready { facts.pressure_since } else { facts.not_ready_since }
}

/// Ends the attempt of a node that is not well after a boot: against the version in its first verification alone.
pub(super) fn blame_first(ctx: &Attempt<'_>, reason: FailureReason, message: &str) -> Turn {
    if was_verified(ctx) {
        return fail(FailureReason::HealthUnknown, format!("{message}, {OTHER_CAUSES}"));
    }
    blame(ctx, reason, message)
}

/// Returns whether the soak of an update had passed once before: its hooks were asked then.
pub(super) fn was_verified(ctx: &Attempt<'_>) -> bool {
    ctx.facts().hook_request == request_of(ctx, Step::AfterUpdate)
}

/// Returns whether what interrupts the soak now has done so for long enough, if it began then.
fn lasts(ctx: &Attempt<'_>, began: Option<Timestamp>) -> bool {
    let lasting = LASTING.min(ctx.group().after.timeout / 2);
    // Something else may have interrupted it before. The clock of a kubelet may be slow.
    let since = ctx.progress.interrupted.map(|at| began.map_or(at, |began| at.max(began)));
    since.is_some_and(|since| between(since, ctx.now) >= lasting)
}

/// Ends the attempt of a node for which expressions return something at its deadline: against the version where one of them is evidence
/// against it, and otherwise without a proof. Before one counts, it is queried for other nodes.
fn expressions_fire(ctx: &Attempt<'_>, interruption: &Wait, deadline: Timestamp) -> Turn {
    let limit = answered_by(ctx, deadline);
    let (mut excuses, mut queries) = (Vec::new(), Vec::new());
    for fires in firing(ctx) {
        let returned = format!("the expression {} returned {}", fires.name(), fires.series);
        match no_evidence(ctx, &fires, (deadline, limit)) {
            Ok(None) => {
                let message = format!("{returned} on {}", ctx.progress.version);
                return blame(ctx, FailureReason::SoakFailed, &message);
            }
            Ok(Some(excuse)) => excuses.push(format!("{returned}, {excuse}")),
            Err(of_others) => queries.extend(of_others),
        }
    }
    if queries.is_empty() {
        return fail(FailureReason::HealthUnknown, excuses.join("; "));
    }
    stay(interruption.clone()).querying(queries).asking_since(deadline).waking_at(limit)
}

/// Returns when an answer that is missing at the deadline is waited for no longer. The clock stops while the agent cannot report: the deadline may
/// be long over by the time that it goes on.
fn answered_by(ctx: &Attempt<'_>, deadline: Timestamp) -> Timestamp {
    let goes_on = ctx.view.web_api_outage.map(|outage| after(outage.ended, LASTING).min(after(begun(ctx), LONGEST)));
    after(goes_on.map_or(deadline, |at| at.max(deadline)), LASTING)
}

/// Returns why an expression that returns something is no evidence against the version, if it is none; or the queries
/// for other nodes on which this depends, whose answers are waited for between these times.
fn no_evidence(
    ctx: &Attempt<'_>,
    fires: &Firing<'_>,
    answered: (Timestamp, Timestamp),
) -> Result<Option<&'static str>, Vec<Question>> {
    let before = ctx.before();
    let was_quiet = || before.is_some_and(|before| before.quiet_expressions.iter().any(|name| name == fires.name()));
    Ok(match ctx.mode() {
        _ if fires.shared => Some("and is the same for all nodes"),
        Mode::Drill { .. } => None,
        Mode::Verification => Some(OTHER_CAUSES),
        Mode::Update if was_verified(ctx) => Some(OTHER_CAUSES),
        Mode::Update if !was_quiet() => Some("and is not known to have returned nothing before the drain"),
        Mode::Update if !lasts(ctx, Some(fires.since)) => Some(INSTANT),
        Mode::Update => return excuse_expression(ctx, fires, answered),
    })
}

/// Returns the uid of the owner whose other pods a pod is compared with.
fn owner_of(pod: &PodFacts) -> Option<&String> {
    pod.controller_uid.as_ref().filter(|_| !pod.mirror)
}

/// Returns those of the unhealthy pods that count, or the one whose owner has to be read for that. Pods are left out where at least half of
/// their owner's pods on nodes that were not updated are ill, too, or where one was ill before an update to the same version and nothing
/// shows that most of the others are well, or where the owner came after the drain and no pod of it was ever seen healthy.
pub(super) fn counted<'b>(
    ctx: &Attempt<'_>,
    unhealthy: &[UnhealthyPod<'b>],
    deadline: Timestamp,
) -> Result<Vec<UnhealthyPod<'b>>, UnhealthyPod<'b>> {
    let mut asked = BTreeSet::new();
    let mut counted = Vec::new();
    // A DaemonSet has a pod on each node: that of another one excuses none.
    let was_ill = |pod: &PodFacts| pod.daemon_set.is_none() && owner_of(pod).is_some_and(|uid| was_unhealthy(ctx, uid));
    let ill_here = |owner: &String| unhealthy.iter().filter(|one| owner_of(one.pod) == Some(owner)).count();
    // Owners that were well are read first: of the others, those that are not read count for nothing.
    let mut sorted: Vec<_> = unhealthy.iter().map(|unhealthy| (was_ill(unhealthy.pod), unhealthy)).collect();
    sorted.sort_by_key(|(was_ill, _)| *was_ill);
    for (was_ill, unhealthy) in sorted {
        let pod = unhealthy.pod;
        if stays_ill(ctx, pod) || pod.is_elsewhere_by_now(ctx.now) {
            continue;
        }
        let Some(owner) = owner_of(pod) else {
            // A drain leaves no other pod without an owner: this one came afterwards, and there is none like it to compare it with.
            if pod.mirror {
                counted.push(*unhealthy);
            }
            continue;
        };
        let waits = pod.is_starting(ctx.now) && ctx.now < deadline;
        asked.insert(owner);
        match read(ctx, owner, deadline) {
            Some(health) if health.is_ill_elsewhere() || (was_ill && !health.is_well_elsewhere()) => {}
            Some(health) if was_ill && ill_here(owner) == 1 && takes_ill_place(ctx, pod, health) => {}
            Some(health) if came_after_drain(ctx, health) => {}
            // A drill judges no version, and reads nothing.
            None if !waits
                && !comes_up(ctx, pod, deadline)
                && !ctx.mode().is_drill()
                && asked.len() <= JUDGED_OWNERS =>
            {
                return Err(*unhealthy);
            }
            None if !waits && was_ill => {}
            Some(_) | None => counted.push(*unhealthy),
        }
    }
    Ok(counted)
}

/// Returns whether a pod that comes back to its node by itself, of a DaemonSet or of the kubelet, or to the node of its volumes, of a
/// StatefulSet, was unhealthy there before the drain: that is no difference. A pod of a StatefulSet may have been ill on another node, whose
/// drain has moved it here.
fn stays_ill(ctx: &Attempt<'_>, pod: &PodFacts) -> bool {
    let before = ctx.node.record().map(|record| record.unhealthy_before.as_slice()).unwrap_or_default();
    let comes_back = pod.mirror || pod.daemon_set.is_some();
    let own = if comes_back { pod.recorded_as().cloned() } else { pod.replica() };
    own.is_some_and(|own| {
        before.contains(&own) || was_unhealthy_before_drill(ctx, &own) || (!comes_back && was_unhealthy(ctx, &own))
    })
}

/// Returns whether a pod takes the place of one of its owner that was ill on this node before the drain, and none is ill elsewhere: that is no
/// difference. The passive one of a pair is never Ready, wherever it runs. Of a StatefulSet it is known which one was ill.
fn takes_ill_place(ctx: &Attempt<'_>, pod: &PodFacts, health: &OwnerHealth) -> bool {
    let was_ill_here = |owner: &String| ctx.node.record().is_some_and(|record| record.unhealthy_before.contains(owner));
    pod.replica().is_none() && owner_of(pod).is_some_and(was_ill_here) && health.is_ill_nowhere()
}

/// Returns whether an owner was created after the drain of the node began, and no pod of it is healthy on any node: it has been no different
/// before. Where a new version lets no such pod start, those of earlier owners show it.
fn came_after_drain(ctx: &Attempt<'_>, health: &OwnerHealth) -> bool {
    // The last attempt is the update, or a verification after it.
    let last = ctx.node.record().and_then(|record| record.last.as_ref()).filter(|_| ctx.mode().is_verification());
    let began = last.map_or_else(|| drain_began(ctx), |last| last.started);
    health.created.is_some_and(|created| created > after(began, OBSERVED))
}

/// Returns whether this owner's pods, or this pod, were unhealthy before the drill under way.
fn was_unhealthy_before_drill(ctx: &Attempt<'_>, own: &String) -> bool {
    ctx.drain_status().is_some_and(|drain| drain.unhealthy_before.contains(own))
}

/// Returns when the soak is over, in which the expressions have to stay quiet, too.
fn soak_ends(ctx: &Attempt<'_>) -> Timestamp {
    let after_policy = &ctx.group().after;
    let quiet = gates::quiet(&after_policy.checks, ctx.subject(), &ctx.view.expressions);
    quiet.iter().flatten().map(|quiet| after(quiet.since, after_policy.soak)).fold(soaked(ctx), Timestamp::max)
}

/// Returns what was read lately of the pods of an owner: at the end of a soak, since then, as they may have recovered in it.
fn read<'a>(ctx: &Attempt<'a>, owner: &String, deadline: Timestamp) -> Option<&'a OwnerHealth> {
    let fresh = if ctx.now < deadline { READ_AGAIN } else { LASTING };
    let counts_at_end = |health: &OwnerHealth| {
        let end = soak_ends(ctx);
        ctx.now < end || health.read_at >= end
    };
    // Several owners are read one after the other: what was read since the deadline is not read again.
    let is_fresh = |health: &&OwnerHealth| {
        let is_recent = after(health.read_at, fresh) > ctx.now || health.read_at >= deadline;
        health.lacks_pods.is_none() && is_recent && counts_at_end(health)
    };
    ctx.node.node.owners.get(owner).filter(is_fresh)
}

/// Reads the other pods of the owner of a pod, again while they are not known. A minute after the deadline the attempt ends without a proof.
fn read_or_end(ctx: &Attempt<'_>, unread: &UnhealthyPod<'_>, deadline: Timestamp) -> Turn {
    if ctx.now < answered_by(ctx, deadline.max(soak_ends(ctx))) {
        return act(read_owner(ctx, unread.pod));
    }
    let message = format!(
        "{} is not healthy ({}), and whether the version is to blame could not be found out: the other pods of {} could not be \
         read: see the controller's log",
        unread.pod.title(),
        unread.why(),
        unread.pod.controller.as_deref().unwrap_or("its owner")
    );
    fail(FailureReason::HealthUnknown, message)
}

/// Returns the read of the pods of the owner of an unhealthy pod.
pub(super) fn read_owner(ctx: &Attempt<'_>, pod: &PodFacts) -> Action {
    let labels = pod.labels.iter().filter(|(name, _)| !OF_ONE_POD.contains(&name.as_str()));
    Action::ReadOwner {
        owner: pod.controller_uid.clone().unwrap_or_default(),
        namespace: pod.namespace.clone(),
        labels: labels.map(|(name, value)| (name.clone(), value.clone())).collect(),
        nodes: nodes_to_compare(ctx),
    }
}

/// Ends the attempt of a node with unhealthy pods at its deadline: against the version where the pods of an owner fail on updated nodes
/// alone, and otherwise without a proof.
fn judged(ctx: &Attempt<'_>, unhealthy: &[UnhealthyPod<'_>]) -> Turn {
    for unhealthy in unhealthy {
        let owner = owner_of(unhealthy.pod).filter(|owner| !was_unhealthy(ctx, owner));
        let health = owner.and_then(|owner| ctx.node.owners.get(owner)).filter(|health| health.is_evidence());
        if let Some(health) = health.filter(|_| !ctx.mode().is_drill()) {
            let message = format!(
                "{} is not healthy ({}): pods of its owner fail on {} other node(s) with {}, and are healthy on {} without it",
                unhealthy.pod.title(),
                unhealthy.why(),
                health.updated_failing,
                ctx.progress.version,
                health.others_healthy
            );
            return blame(ctx, FailureReason::SoakFailed, &message);
        }
    }
    let message = format!("{} pod(s) are not healthy: {}", unhealthy.len(), named(unhealthy));
    if ctx.mode().is_drill() {
        return fail(FailureReason::SoakFailed, message);
    }
    fail(FailureReason::HealthUnknown, format!("{message}; nothing shows that the version is to blame"))
}

/// Returns whether this owner's pods, or this replica, were unhealthy before a node was drained for the same version, or before the drill
/// under way.
fn was_unhealthy(ctx: &Attempt<'_>, owner: &String) -> bool {
    let mut nodes = ctx.view.nodes.values();
    let before_update = nodes.any(|node| {
        let Some(record) = node.record() else { return false };
        // The record is of updates: a drill leaves it as it is, and may be for another version.
        let progress = node.progress().filter(|progress| !progress.mode().is_drill());
        let version = progress.map(|progress| &progress.version).or(record.last.as_ref().map(|last| &last.version));
        version == Some(&ctx.progress.version) && record.unhealthy_before.contains(owner)
    });
    before_update || was_unhealthy_before_drill(ctx, owner)
}

/// Waits for what is not known, and ends the wait after the deadline: it is no evidence against the version.
fn unknown_until(ctx: &Attempt<'_>, deadline: Timestamp, wait: Wait) -> Turn {
    if ctx.now >= deadline {
        let message = format!("whether the node is healthy could not be found out: {wait}");
        return fail(FailureReason::HealthUnknown, message);
    }
    stay(wait).waking_at(deadline)
}
