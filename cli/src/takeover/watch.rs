//! `takeover watch`: plans with this operator's rules for nodes that the earlier operator still updates. Nothing is
//! written.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{HostPolicy, HostState, OfferedUpdates, Progress, Step};
use planner::plan::Plan;
use planner::policy::Policy;
use planner::view::{BudgetFacts, ClusterView, NodeFacts, OperatorFacts, PodFacts, Projection as _, ShadowFacts};
use semver::Version;

use super::facts::{Facts, Shadow};
use super::finding::NAMED;
use crate::advice;
use crate::cluster::{self, Cluster};
use crate::marks::NodeState;
use crate::page::Page;

/// Facts that only an agent of this operator reports, and what is taken instead.
const ASSUMED: [&str; 3] = [
    "each host is taken as idle, and its running version from its Node; a host that the earlier operator has armed is not \
     recognized here",
    "each host is taken as offered the version that the earlier operator last reported, and no other; waves are not known",
    "no attempt, failure, age of a version or passed canary step is on record yet; expressions are not queried",
];

#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) nodes: Vec<Node>,
    /// The shadows of the earlier operator, as they were read beside its workloads.
    pub(super) facts: Facts,
    pub(super) budgets: Vec<BudgetFacts>,
    /// The pods of the nodes that would begin.
    pub(super) pods: BTreeMap<String, Vec<PodFacts>>,
}

/// The policy to plan with. It counts as enabled.
pub(super) struct Trial {
    pub(super) operator: BottlerocketUpdateOperator,
    pub(super) policy: Policy,
    /// The source of the policy, for the output.
    pub(super) source: String,
}

impl Trial {
    /// Makes a trial of a policy, which need not be enabled.
    pub(super) fn of(operator: BottlerocketUpdateOperator, policy: Policy, source: String) -> Self {
        let mut operator = operator;
        operator.spec.enabled = Some(true);
        Self { operator, policy: Policy { enabled: true, ..policy }, source }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// It would begin now: download, and then be drained unless this reason prevents that.
    Begins { version: Version, drain: Result<(), String> },
    /// It would wait, for this reason.
    Waits(String),
}

/// Returns the nodes that would begin an attempt.
pub(super) fn beginning(snapshot: &Snapshot, trial: &Trial, now: Timestamp) -> Vec<String> {
    let mut view = view(snapshot, trial, now);
    let plan = settled(&mut view, trial, now);
    begun(&plan).into_keys().map(str::to_owned).collect()
}

pub(super) fn outlooks(snapshot: &Snapshot, trial: &Trial, now: Timestamp) -> BTreeMap<String, Outlook> {
    let mut idle = view(snapshot, trial, now);
    let first = settled(&mut idle, trial, now);
    let begun = begun(&first);
    // The same with their images on the hosts: pods and budgets are checked only then.
    let mut staged = view(snapshot, trial, now);
    for (name, progress) in &begun {
        if let Some(shadow) = staged.nodes.get_mut(*name).and_then(|node| node.shadow.as_mut()) {
            stage(shadow, progress);
        }
    }
    let second = settled(&mut staged, trial, now);
    let slots: BTreeSet<&str> = second.slots.iter().flatten().map(|slot| slot.uid.as_str()).collect();
    let gets_slot = |name: &String| staged.nodes.get(name).is_some_and(|node| slots.contains(node.facts.uid.as_str()));
    let drain = |name: &String| match second.waits.get(name) {
        _ if gets_slot(name) => Ok(()),
        Some(wait) => Err(format!("{}: {wait}", wait.as_str())),
        None => Err("it would not be drained yet".to_owned()),
    };
    let outlook = |name: &String| {
        if let Some(progress) = begun.get(name.as_str()) {
            return Outlook::Begins { version: progress.version.clone(), drain: drain(name) };
        }
        let wait = first.waits.get(name).map(|wait| format!("{}: {wait}", wait.as_str()));
        Outlook::Waits(wait.unwrap_or_else(|| "the plan names no reason".to_owned()))
    };
    idle.nodes.keys().map(|name| (name.clone(), outlook(name))).collect()
}

fn begun(plan: &Plan) -> BTreeMap<&str, &Progress> {
    let starts = plan.actions.iter().filter(|(_, action)| Plan::starts(action));
    starts.filter_map(|(name, action)| Some((name.as_str(), action.next_progress()?))).collect()
}

/// Plans, as if the writes were made that begin nothing: conditions with a reason, and settings of hosts.
fn settled(view: &mut ClusterView, trial: &Trial, now: Timestamp) -> Plan {
    cluster::settled(view, &trial.policy, now, |_, action| !Plan::starts(action))
}

/// Makes the planner's input from the earlier operator's shadows.
fn view(snapshot: &Snapshot, trial: &Trial, now: Timestamp) -> ClusterView {
    let mut operator = OperatorFacts {
        uid: "trial".to_owned(),
        generation: 1,
        spec: trial.operator.spec.clone(),
        ..OperatorFacts::default()
    };
    operator.status.observed_generation = Some(operator.generation);
    let mut cluster = Cluster {
        operator: Some(operator),
        budgets: snapshot.budgets.clone(),
        pods: snapshot.pods.clone(),
        ..Cluster::default()
    };
    for node in &snapshot.nodes {
        cluster.add_node(node);
        let shadow = snapshot.facts.shadow_of(&NodeState::of(node));
        let ours =
            NodeFacts::project(node).zip(shadow).map(|(facts, shadow)| as_ours(shadow, &facts, &trial.policy, now));
        cluster.shadows.extend(ours.map(|ours| (ours.node.clone(), ours)));
    }
    cluster.view(now)
}

/// Returns a shadow of this operator for an idle host with the versions of an earlier one.
fn as_ours(shadow: &Shadow, node: &NodeFacts, policy: &Policy, now: Timestamp) -> ShadowFacts {
    let mut ours = ShadowFacts {
        node: node.name.clone(),
        uid: format!("trial of {}", node.uid),
        generation: 1,
        owner_uid: Some(node.uid.clone()),
        ..ShadowFacts::default()
    };
    ours.spec.host = Some(HostPolicy { refresh_interval: Some(policy.refresh_interval), ..HostPolicy::default() });
    if shadow.state.reported.is_none() {
        // The earlier agent has never reported.
        return ours;
    }
    let version =
        |text: &Option<String>| text.as_ref().and_then(|text| text.trim_start_matches('v').parse::<Version>().ok());
    let agent = &mut ours.status.agent;
    agent.state = Some(HostState::Idle);
    agent.observed_generation = Some(1);
    agent.boot_id = Some(node.boot_id.clone());
    agent.current_version = node.os_version().or_else(|| version(&shadow.state.current_version));
    agent.variant = node.variant().map(str::to_owned);
    agent.arch = node.arch().map(str::to_owned);
    let offered = version(&shadow.offered).filter(|offered| Some(offered) != agent.current_version.as_ref());
    agent.updates = Some(OfferedUpdates {
        available_versions: offered.iter().cloned().collect(),
        chosen_version: offered,
        last_refresh: Some(now),
        refresh_failure: None,
    });
    ours
}

/// Makes the shadow that of a host which has the image of the attempt that would begin.
fn stage(shadow: &mut ShadowFacts, begun: &Progress) {
    (shadow.spec.state, shadow.spec.attempt) = (HostState::StagedUpdate, begun.attempt);
    (shadow.spec.version, shadow.spec.boot_id) = (Some(begun.version.clone()), Some(begun.boot_id.clone()));
    shadow.status.agent.state = Some(HostState::StagedUpdate);
    shadow.status.controller.progress = Some(Progress { step: Step::Staged, rollout: None, ..begun.clone() });
}

pub(super) fn render(snapshot: &Snapshot, trial: &Trial, namespace: &str, now: Timestamp) -> Page {
    let mut page = Page::default();
    let outlooks = outlooks(snapshot, trial, now);
    page.line(format_args!(
        "{now}: this operator's plan beside the earlier operator, by {}. Nothing is written.",
        trial.source
    ));
    let begins = outlooks.iter().filter(|(_, outlook)| matches!(outlook, Outlook::Begins { .. }));
    match advice::some(begins.map(|(name, _)| name), NAMED).as_str() {
        "" => page.line("No node would begin now."),
        next => page.line(format_args!("Next: {next}")),
    }
    let rows = snapshot.nodes.iter().filter_map(|node| {
        let state = NodeState::of(node);
        let outlook = outlooks.get(&state.name)?;
        let facts = NodeFacts::project(node)?;
        let offered = snapshot.facts.shadow_of(&state).and_then(|shadow| shadow.offered.clone()).unwrap_or_default();
        let plan = match outlook {
            Outlook::Begins { version, drain: Ok(()) } => format!("begins {version}, then may be drained"),
            Outlook::Begins { version, drain: Err(reason) } => format!("begins {version}, then waits: {reason}"),
            Outlook::Waits(reason) => reason.clone(),
        };
        let plan = advice::filled(namespace, &plan, &state.name);
        let version = facts.os_version().map(|version| version.to_string()).unwrap_or_default();
        let left = left_by_earlier(&state, &snapshot.facts);
        Some([state.name, version, offered, plan, left])
    });
    page.table(["NODE", "VERSION", "OFFERED", "PLAN", "EARLIER OPERATOR"], rows.collect::<Vec<_>>());
    page
}

/// Makes the list of what the plan takes for granted.
pub(super) fn assumptions() -> Page {
    let mut page = Page::default();
    page.line("Not known without this operator's agents:");
    for sentence in ASSUMED {
        page.line(format_args!("  * {sentence}"));
    }
    page
}

/// Returns the state of the earlier operator on a node.
fn left_by_earlier(node: &NodeState, facts: &Facts) -> String {
    let Some(shadow) = facts.shadow_of(node) else {
        return if facts.is_unreadable(node) { "its shadow cannot be read".to_owned() } else { "no shadow".to_owned() };
    };
    let state = &shadow.state;
    let reported = state.reported.map_or_else(|| "nothing".to_owned(), |reported| format!("{reported:?}"));
    let mut parts = vec![format!("wants {:?}, reports {reported}", state.wanted)];
    if state.crash_count > 0 {
        parts.push(format!("{} failed call(s)", state.crash_count));
    }
    let cordoned =
        node.cordon.as_ref().map(|owners| if owners.are_earlier() { "its cordon" } else { "another's cordon" });
    let balancer = node.balancer.as_ref().filter(|owners| owners.are_earlier()).map(|_| "its balancer label");
    let reboot = state.may_reboot().then_some("may reboot");
    let armed = state.may_be_armed().then_some("may be armed");
    parts.extend([cordoned, balancer, reboot, armed].into_iter().flatten().map(str::to_owned));
    parts.join("; ")
}

#[cfg(test)]
mod tests;
