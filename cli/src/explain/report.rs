//! The state of one node, as `-o json` shows it. docs/plugin.md describes each field.

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, find_condition, true_condition};
use models::operator::BLOCKED as ALL_BLOCKED;
use models::reason::End;
use models::shadow::{ArmedPhase, BLOCKED, Drill, HOST_REACHABLE, HostState};
use models::time::after;
use planner::drain::DENIAL_RETRIED;
use planner::phase::Phase;
use planner::plan::{CheckResult, checks, deadlines, freshness};
use planner::view::{ClusterView, NodeFacts, NodeView, ShadowFacts};
use planner::wait::{DENIED_FOR_GOOD, Wait, WaitReason};
use semver::Version;
use serde::Serialize;

use super::objects::ObjectReport;
use crate::cluster::Cluster;
use crate::status::{LastResult, Problem, due, no_leader, not_known, unreached};

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub(crate) time: Timestamp,
    pub(crate) node: NodeState,
    pub(crate) host: Option<Host>,
    pub(crate) behind: Option<Behind>,
    pub(crate) claim: Option<Claim>,
    pub(crate) slot_since: Option<Timestamp>,
    pub(crate) attempt: Option<Attempt>,
    pub(crate) last: Option<LastResult>,
    pub(crate) advice: Option<String>,
    pub(crate) failures: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) misplaced_requests: Vec<String>,
    /// The problems of the operator for which nothing is done, whatever the node waits for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<Problem>,
    pub(crate) waits: Option<Waits>,
    pub(crate) recorded: Option<Waits>,
    /// The checks of the planner, in its order.
    pub(crate) checks: Vec<CheckReport>,
    /// The checks of objects, with what they return now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) objects: Vec<ObjectReport>,
    /// Changes of the state to come, the next first.
    pub(crate) next: Vec<Next>,
    /// Commands that a user can type.
    pub(crate) commands: Vec<String>,
    /// Parts that could not be read, and facts that are missing therefore.
    pub(crate) not_read: Vec<String>,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeState {
    pub(crate) name: String,
    /// True if it has the label that selects it for updates.
    pub(crate) labelled: Option<bool>,
    pub(crate) ready: Option<bool>,
    pub(crate) cordoned: Option<bool>,
    /// The condition of a shortage, such as `DiskPressure`.
    pub(crate) pressure: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) zone: Option<String>,
    pub(crate) priority: Option<i64>,
    pub(crate) os_image: Option<String>,
    pub(crate) boot_id: Option<String>,
}

/// The facts about the host, as its agent reports it.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Host {
    /// The running version.
    pub(crate) version: Option<Version>,
    pub(crate) variant: Option<String>,
    pub(crate) arch: Option<String>,
    /// The state that it has reached.
    pub(crate) state: Option<HostState>,
    pub(crate) reported: bool,
    /// The version that the host would take.
    pub(crate) chosen_version: Option<Version>,
    pub(crate) available_versions: Vec<Version>,
    pub(crate) last_refresh: Option<Timestamp>,
    pub(crate) refresh_failure: Option<String>,
    /// True if policy makes the host skip its place in the waves of a release.
    pub(crate) ignores_waves: bool,
    pub(crate) version_lock: Option<String>,
    pub(crate) conflicting_lock: Option<String>,
    pub(crate) armed: Option<Armed>,
    /// The reason why the agent does not reach the host, or it is not known whether it does.
    pub(crate) not_reached: Option<String>,
    #[serde(skip)]
    pub(crate) unreached: Option<&'static str>,
}

/// A node that runs an earlier version than policy lets it take.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Behind {
    pub(crate) since: Timestamp,
    pub(crate) newest: Version,
    pub(crate) late: Option<Timestamp>,
}

/// An image that is armed, or about to be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Armed {
    pub(crate) version: Version,
    pub(crate) phase: ArmedPhase,
}

/// The fields of a Node that the operator owns.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    pub(crate) fields: Vec<&'static str>,
    pub(crate) since: Option<Timestamp>,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    pub(crate) number: i64,
    /// The drill that it is; absent in an update.
    pub(crate) drill: Option<Drill>,
    /// True if it verifies again a node that has not proven its version.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) verification: bool,
    pub(crate) from: Option<Version>,
    pub(crate) version: Version,
    pub(crate) started: Timestamp,
    pub(crate) step: &'static str,
    /// Time at which the step began.
    pub(crate) since: Timestamp,
    /// Time at which the step is given up.
    pub(crate) deadline: Option<Timestamp>,
    /// True if the host may act on a reboot permit.
    pub(crate) permitted: bool,
    /// Number of pods to evict.
    pub(crate) pods: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) blockers: Vec<Blocker>,
}

/// A pod that does not leave.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Blocker {
    pub(crate) pod: String,
    pub(crate) budget: Option<String>,
    pub(crate) message: String,
    pub(crate) since: Timestamp,
}

/// A reason why a node waits.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waits {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The party whose next step the node needs.
    pub(crate) waits_for: Option<String>,
    /// Event that ends the wait.
    pub(crate) ends_with: Option<String>,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CheckReport {
    pub(crate) name: &'static str,
    pub(crate) holds: &'static str,
    /// `Passed`, `UpToDate`, `Waits`, `NotReached`, or `NotKnown` if only the controller knows.
    pub(crate) result: &'static str,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

/// A change to come.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Next {
    /// The time, where that is known.
    pub(crate) at: Option<Timestamp>,
    pub(crate) what: String,
}

pub(crate) fn explain(cluster: &Cluster, name: &str, now: Timestamp) -> Explanation {
    let (policy, (view, plan)) = (cluster.policy(), cluster.plan(now));
    let facts = cluster.nodes.as_ref().and_then(|nodes| nodes.get(name));
    let shadow = cluster.shadows.get(name);
    let status = shadow.map(|shadow| &shadow.status);
    let record = status.and_then(|status| status.controller.record.as_ref());
    let deadline = deadlines(&view, &policy, now).find(|(node, _)| *node == name).map(|(_, at)| at);
    let found = if facts.is_some() { checks(&view, &policy, &plan, now, name) } else { Vec::new() };
    let first = found.iter().find_map(|check| check.wait());
    let planned = first.or_else(|| plan.waits.get(name)).filter(|wait| **wait != Wait::UpToDate);
    // What only the controller knows is taken from its record.
    let unknown = |wait: &Wait| matches!(wait, Wait::ExpressionsPending { .. });
    let recorded = recorded(cluster, name, planned.is_some_and(unknown));
    let waits = |reason: &str, message: &str| waits(cluster, name, reason, message);
    let not_known = || not_known(cluster, name).map(|(reason, message)| waits(&reason, &message));
    let waits = match planned {
        Some(wait) if unknown(wait) && recorded.is_some() => recorded.clone(),
        Some(wait) => Some(waits(wait.as_str(), &wait.to_string())),
        // An action of the controller is due, or its plan is not known.
        None if facts.is_none() || plan.actions.contains_key(name) => recorded.clone().or_else(not_known),
        None => not_known(),
    };
    let shown = recorded.as_ref().filter(|of| waits.as_ref().is_some_and(|waits| waits.reason == of.reason));
    let commands = first.map(|wait| cluster.commands(name, wait)).filter(|commands| !commands.is_empty());
    let commands = commands.or_else(|| Some(cluster.recorded_commands(name, &shown?.reason))).unwrap_or_default();
    // One that fails again and again is no change to come.
    let action =
        plan.actions.get(name).filter(|_| shown.is_none_or(|of| of.reason != WaitReason::ActionFails.as_str()));
    let last = record.and_then(|record| record.last.as_ref());
    let advice = last.and_then(|last| End::of(&last.reason));
    let advice = advice.map(|end| cluster.filled(&without_links(end.advice), name));
    let group = facts.and_then(|facts| policy.group_of(facts)).map(|index| policy.groups[index].name.clone());
    let mut next: Vec<Next> = action.map(|action| Next { at: None, what: due(cluster, action) }).into_iter().collect();
    let end = first.and_then(Wait::end).filter(|(at, _)| *at > now);
    next.extend(end.map(|(at, what)| Next { at: Some(at), what: what.to_owned() }));
    // One that has passed is no change to come, but the action that is due.
    let late = deadline.filter(|at| *at > now).map(|at| Next { at: Some(at), what: given_up(&view, name, shadow, at) });
    // The reason may have the same end.
    let late = late.filter(|late| next.iter().all(|next| next.what != late.what));
    next.extend(late);
    let end = waits.as_ref().and_then(|waits| waits.ends_with.clone());
    next.extend(end.filter(|_| next.is_empty()).map(|end| Next { at: None, what: format!("what ends it: {end}") }));
    next.sort_by_key(|next| (next.at.is_none(), next.at));
    Explanation {
        time: now,
        node: node_state(name, facts, group),
        host: shadow.map(|shadow| host(shadow, facts, policy.ignore_waves)),
        behind: freshness(&view, &policy, now).of(name).map(|behind| Behind {
            since: behind.since,
            newest: behind.newest.clone(),
            late: policy.freshness_target.map(|target| after(behind.since, target)),
        }),
        claim: facts.filter(|facts| facts.claimed()).map(|facts| Claim {
            fields: facts.claims.iter().map(planner::claims::ClaimField::name).collect(),
            since: facts.claimed_since,
        }),
        slot_since: facts.and_then(|facts| view.slots().find(|slot| slot.uid == facts.uid).map(|slot| slot.since)),
        attempt: shadow.and_then(|shadow| attempt(shadow, deadline)),
        last: last.map(|last| LastResult::of(last, cluster, name)),
        advice: advice.filter(|advice| !advice.is_empty()),
        failures: record.map_or(0, |record| record.failures),
        misplaced_requests: cluster.misplaced_requests_of(name),
        problems: no_leader(cluster).into_iter().collect(),
        recorded: recorded.filter(|recorded| waits.as_ref().is_none_or(|waits| waits.reason != recorded.reason)),
        waits,
        commands,
        checks: found.iter().map(|check| check_report(cluster, name, check)).collect(),
        objects: Vec::new(),
        next,
        not_read: cluster.not_read(),
    }
}

/// Returns what happens when the time limit of the step of a node has passed.
fn given_up(view: &ClusterView, name: &str, shadow: Option<&ShadowFacts>, at: Timestamp) -> String {
    let drain = shadow.and_then(|shadow| shadow.status.controller.drain.as_ref());
    let mut denied = drain.into_iter().flat_map(|drain| &drain.blockers).filter_map(|blocker| blocker.denied_since);
    // A pod whose eviction is denied is not deleted either, whatever policy says of the deadline.
    if denied.any(|since| after(since, DENIAL_RETRIED) == at) {
        return DENIED_FOR_GOOD.to_owned();
    }
    let progress = view.nodes.get(name).and_then(NodeView::progress);
    let phase = progress.and_then(|progress| Some((Phase::of_step(progress.step)?, progress.mode())));
    phase.map_or("the attempt is given up", |(phase, mode)| (phase.late)(mode)).to_owned()
}

/// Returns a reason to wait. The commands in its texts are for the chosen cluster.
fn waits(cluster: &Cluster, name: &str, reason: &str, message: &str) -> Waits {
    let explanation = reason.parse::<WaitReason>().ok().map(WaitReason::explanation);
    Waits {
        reason: reason.to_owned(),
        message: cluster.filled(message, name),
        waits_for: explanation.map(|(party, _)| party.to_string()),
        ends_with: explanation.map(|(_, end)| cluster.filled(&without_links(end), name)),
    }
}

/// Returns a text of the docs without its links and marks.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((shown, after)) = link.split_once("](") else { break };
        let Some((_, after)) = after.split_once(')') else { break };
        plain.push_str(before);
        plain.push_str(shown);
        rest = after;
    }
    plain.push_str(rest);
    plain.replace('`', "")
}

/// Returns the reason that the controller has recorded for a node, or else, where the node may share it, the one for all nodes.
fn recorded(cluster: &Cluster, name: &str, may_be_shared: bool) -> Option<Waits> {
    let conditions = cluster.shadows.get(name).map(|shadow| shadow.status.conditions.as_slice()).unwrap_or_default();
    let operator = cluster.operator.as_ref().filter(|_| may_be_shared);
    let fleet = || true_condition(&operator?.status.conditions, ALL_BLOCKED);
    let condition: &Condition = true_condition(conditions, BLOCKED).or_else(fleet)?;
    Some(waits(cluster, name, &condition.reason, &condition.message))
}

fn node_state(name: &str, facts: Option<&NodeFacts>, group: Option<String>) -> NodeState {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    NodeState {
        name: name.to_owned(),
        labelled: facts.map(|facts| facts.labelled),
        ready: facts.map(|facts| facts.ready),
        cordoned: facts.map(|facts| facts.unschedulable),
        pressure: facts.and_then(|facts| facts.pressure.clone()),
        group,
        zone: facts.and_then(|facts| some(facts.zone())),
        priority: facts.map(NodeFacts::priority).filter(|priority| *priority != 0),
        os_image: facts.and_then(|facts| some(&facts.os_image)),
        boot_id: facts.and_then(|facts| some(&facts.boot_id)),
    }
}

fn host(shadow: &ShadowFacts, facts: Option<&NodeFacts>, ignores_waves: bool) -> Host {
    let agent = &shadow.status.agent;
    let updates = agent.updates.clone().unwrap_or_default();
    let this_boot = facts.is_none_or(|facts| agent.boot_id.as_deref() == Some(facts.boot_id.as_str()));
    let reach = find_condition(&shadow.status.conditions, HOST_REACHABLE);
    let reach = reach.filter(|reach| reach.status != ConditionStatus::True);
    Host {
        version: agent.current_version.clone(),
        variant: agent.variant.clone(),
        arch: agent.arch.clone(),
        state: agent.state,
        reported: this_boot && agent.observed_generation == Some(shadow.generation),
        chosen_version: updates.chosen_version,
        available_versions: updates.available_versions,
        last_refresh: updates.last_refresh,
        refresh_failure: updates.refresh_failure,
        ignores_waves,
        version_lock: shadow.spec.host.as_ref().and_then(|host| host.version_lock.clone()),
        conflicting_lock: agent.host.as_ref().and_then(|host| host.conflicting_lock.clone()),
        armed: agent.armed.as_ref().map(|armed| Armed { version: armed.version.clone(), phase: armed.phase }),
        not_reached: reach.map(|reach| format!("{}: {}", reach.reason, reach.message)),
        unreached: reach.map(unreached),
    }
}

fn attempt(shadow: &ShadowFacts, deadline: Option<Timestamp>) -> Option<Attempt> {
    let controller = &shadow.status.controller;
    let progress = controller.progress.as_ref()?;
    let blockers = controller.drain.iter().flat_map(|drain| &drain.blockers).map(|blocker| Blocker {
        pod: blocker.pod.clone(),
        budget: blocker.budget.clone(),
        message: blocker.message.clone(),
        since: blocker.since,
    });
    Some(Attempt {
        number: progress.attempt,
        drill: progress.drill.clone(),
        verification: progress.mode().is_verification(),
        from: progress.from.clone(),
        version: progress.version.clone(),
        started: progress.started,
        step: progress.step.as_str(),
        since: progress.since,
        deadline,
        permitted: progress.permit_issued || (shadow.spec.permit.is_some() && progress.drill.is_none()),
        pods: controller.drain.as_ref().map(|drain| drain.pods.len()),
        blockers: blockers.collect(),
    })
}

fn check_report(cluster: &Cluster, node: &str, check: &planner::plan::Check) -> CheckReport {
    let result = match &check.result {
        CheckResult::Passed => "Passed",
        CheckResult::NotReached => "NotReached",
        CheckResult::Waits(Wait::UpToDate) => "UpToDate",
        CheckResult::Waits(Wait::ExpressionsPending { .. }) => "NotKnown",
        CheckResult::Waits(_) => "Waits",
    };
    CheckReport {
        name: check.name,
        holds: check.holds,
        result,
        reason: check.wait().map(|wait| wait.as_str().to_owned()),
        message: check.wait().map(|wait| cluster.filled(&wait.to_string(), node)).or_else(|| check.exception.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_have_no_links() {
        assert_eq!(
            without_links("Its `spec`: [move over](install.md#x), then [resume](policy.md)."),
            "Its spec: move over, then resume."
        );
        assert_eq!(without_links("a [b"), "a [b");
    }
}
