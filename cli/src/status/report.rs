//! The state of the fleet, as `-o json` shows it. docs/plugin.md describes each field.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, find_condition, true_condition};
use models::names;
use models::operator::{BLOCKED as ALL_BLOCKED, Counts, DEGRADED, FROZEN, HISTORY_RECORDED};
use models::shadow::{AttemptResult, BLOCKED, HOST_REACHABLE, Step, UPDATED};
use planner::pause::Pause;
use planner::plan::{Action, Plan, RolloutState, deadlines, key_of, rollouts};
use planner::policy::{Policy, WindowState};
use planner::view::ShadowFacts;
use planner::wait::{Wait, WaitReason};
use semver::Version;
use serde::Serialize;

use super::freshness::{self, Freshness};
use crate::cluster::{Cluster, Unread, is_of};

/// The reason of the condition `Degraded` for an invalid policy, whose errors the report lists by themselves.
const INVALID_POLICY: &str = "InvalidPolicy";

/// The state of the fleet.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) time: Timestamp,
    pub(crate) namespace: String,
    /// The switch: `spec.enabled` of the policy; absent if there is no policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) enabled: Option<bool>,
    pub(crate) policy: PolicyReport,
    /// The reason why nothing is done at all, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) paused: Option<String>,
    /// The windows of all nodes, then those of the node groups with windows of their own.
    pub(crate) windows: Vec<Window>,
    pub(crate) rollouts: Vec<Rollout>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<Counts>,
    /// The age of what the nodes run; absent if no node is behind and policy has no target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) freshness: Option<Freshness>,
    /// The reasons for which nodes wait, the most frequent first.
    pub(crate) waiting: Vec<Waiting>,
    /// The canary step that waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) approval: Option<Request>,
    /// The failures that have stopped the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) frozen: Option<Request>,
    /// Other problems of the operator as a whole.
    pub(crate) problems: Vec<Problem>,
    pub(crate) silent_agents: Vec<SilentAgent>,
    /// Annotations that are meant as requests and have no effect.
    pub(crate) misplaced_requests: Vec<String>,
    /// Parts that the caller may not read, and facts that are missing therefore.
    pub(crate) not_read: Vec<String>,
    pub(crate) nodes: Vec<NodeReport>,
}

/// The policy in force.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyReport {
    /// `InForce`, `Rejected` (an earlier one is in force), `Unusable` (there is no earlier one) or `Missing`.
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generation: Option<i64>,
    /// True if the controller has seen this generation.
    pub(crate) observed: bool,
    /// The fields that are rejected.
    pub(crate) errors: Vec<FieldError>,
    /// The target version.
    pub(crate) target: String,
}

/// A field that cannot be applied.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) message: String,
}

/// The windows in which nodes may be taken out of service.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Window {
    /// The node group; absent for nodes in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    pub(crate) open: bool,
    /// True if a blackout is the reason why it is closed.
    pub(crate) blackout: bool,
    /// The end of the open window; absent if it does not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) closes: Option<Timestamp>,
    /// The next opening; absent if there is none in sight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opens: Option<Timestamp>,
}

/// A rollout under way.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rollout {
    pub(crate) version: Version,
    pub(crate) variant: String,
    pub(crate) arch: String,
    /// The number in the history; absent before it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<i64>,
    pub(crate) started: Timestamp,
    /// Time until which it does not wait for windows and for the soaks of canary steps; absent if it is not urgent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) urgent_until: Option<Timestamp>,
    /// Number of nodes of this variant and architecture.
    pub(crate) nodes: usize,
    /// Number of them that were updated in this rollout.
    pub(crate) updated: usize,
    /// The canary step due, from 1; absent after the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<usize>,
    /// Number of canary steps.
    pub(crate) steps: usize,
    /// Number of nodes that have to be updated in the step due, those of earlier steps included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step_nodes: Option<usize>,
    /// The reason why no more nodes start, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits: Option<String>,
}

/// Nodes that wait for the same reason.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waiting {
    pub(crate) reason: String,
    /// The party whose next step they need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waits_for: Option<String>,
    pub(crate) nodes: Vec<String>,
}

/// A state that a user ends, with the command.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Request {
    pub(crate) message: String,
    pub(crate) command: String,
}

/// A problem of the operator as a whole.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// A node whose agent does not report.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SilentAgent {
    pub(crate) node: String,
    /// `NoAgentPod`, `AgentNotReady`, `NoReport` or `HostNotReached`.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeReport {
    pub(crate) name: String,
    /// The running version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<Version>,
    /// The version of the attempt under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<Version>,
    /// The step of the attempt under way, or `Idle`.
    pub(crate) step: &'static str,
    /// The reason why it waits, as one fixed word; absent if it is up to date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// The time at which the step under way is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<Timestamp>,
    /// The result of its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<LastResult>,
}

/// The result of an attempt.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastResult {
    pub(crate) version: Version,
    /// `Updated`, or the reason of the failure.
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    pub(crate) ended: Timestamp,
}

impl From<AttemptResult> for LastResult {
    fn from(last: AttemptResult) -> Self {
        Self { version: last.version, reason: last.reason, message: last.message, ended: last.ended }
    }
}

impl LastResult {
    /// Returns whether the attempt has failed.
    pub(crate) fn is_failure(&self) -> bool {
        self.reason != UPDATED
    }
}

impl NodeReport {
    /// Returns whether nothing is under way on it, and nothing to be done.
    pub(crate) fn is_current(&self) -> bool {
        self.step == IDLE && self.reason.is_none()
    }

    /// Returns whether its last attempt has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.last.as_ref().is_some_and(LastResult::is_failure)
    }
}

/// The step of a node without an attempt.
pub(crate) const IDLE: &str = "Idle";

/// Returns the state of the fleet.
pub(crate) fn report(cluster: &Cluster, now: Timestamp) -> Report {
    let (policy, (view, plan)) = (cluster.policy(), cluster.plan(now));
    let operator = cluster.operator.as_ref();
    let paused = Pause::of(operator, &cluster.earlier_pods, None, policy.shutdown, now).wait;
    let rollouts = rollouts(&view, &policy, now);
    let deadlines: BTreeMap<String, Timestamp> =
        deadlines(&view, &policy, now).map(|(node, at)| (node.to_owned(), at)).collect();
    let nodes = nodes(cluster, &plan, &deadlines);
    Report {
        time: now,
        namespace: cluster.namespace.clone(),
        enabled: operator.map(|_| policy.enabled),
        policy: policy_report(cluster, &policy),
        windows: windows(&policy, now),
        freshness: freshness::report(&view, &policy, now).filter(|_| operator.is_some()),
        waiting: waiting(&nodes),
        approval: approval(cluster, &plan, &rollouts),
        rollouts: rollouts.iter().filter_map(|state| rollout(cluster, &policy, state)).collect(),
        counts: operator
            .and_then(|operator| operator.status.counts.clone())
            .or_else(|| plan.status.as_ref()?.counts.clone()),
        frozen: frozen(cluster, &plan),
        problems: problems(cluster, paused.is_some()),
        silent_agents: silent_agents(cluster, now),
        misplaced_requests: misplaced(cluster),
        not_read: cluster.unread.iter().map(Unread::sentence).collect(),
        paused: paused.map(|wait| cluster.filled(&wait.to_string(), "")),
        nodes,
    }
}

fn misplaced(cluster: &Cluster) -> Vec<String> {
    let of_object = |(object, found): (&String, &Vec<String>)| {
        found.iter().map(|sentence| format!("{object}: {sentence}")).collect::<Vec<_>>()
    };
    cluster.misplaced.iter().flat_map(of_object).collect()
}

fn policy_report(cluster: &Cluster, policy: &Policy) -> PolicyReport {
    let state = match (policy.present, policy.unusable, policy.errors.is_empty()) {
        (false, _, _) => "Missing",
        (true, true, _) => "Unusable",
        (true, false, false) => "Rejected",
        (true, false, true) => "InForce",
    };
    let operator = cluster.operator.as_ref();
    PolicyReport {
        state,
        generation: operator.map(|operator| operator.generation),
        observed: operator.is_some_and(|operator| operator.status.observed_generation == Some(operator.generation)),
        errors: policy
            .errors
            .iter()
            .map(|error| FieldError { field: error.field.clone(), message: error.message.clone() })
            .collect(),
        target: policy.target.to_string(),
    }
}

fn windows(policy: &Policy, now: Timestamp) -> Vec<Window> {
    let window = |group: Option<&str>, schedule: &planner::policy::Schedule| {
        let group = group.map(str::to_owned);
        match schedule.at(now) {
            WindowState::Open { until } => {
                let opens = until.and_then(|until| match schedule.at(until) {
                    WindowState::Closed { opens, .. } => opens,
                    WindowState::Open { .. } => None,
                });
                Window { group, open: true, blackout: false, closes: until, opens }
            }
            WindowState::Closed { opens, blackout } => Window { group, open: false, blackout, closes: None, opens },
        }
    };
    let all = window(None, &policy.all.schedule);
    let own = policy.groups.iter().filter(|group| group.policy.schedule != policy.all.schedule);
    std::iter::once(all).chain(own.map(|group| window(Some(&group.name), &group.policy.schedule))).collect()
}

/// Returns a rollout that has begun.
fn rollout(cluster: &Cluster, policy: &Policy, state: &RolloutState) -> Option<Rollout> {
    let active = &state.rollout;
    let status = &cluster.operator.as_ref()?.status;
    let key = key_of(active);
    status.active_rollouts.iter().find(|stored| key_of(stored) == key && stored.ended.is_none())?;
    let step = state.step.and_then(|step| policy.canary.get(step.checked_sub(1)?));
    Some(Rollout {
        version: active.version.clone(),
        variant: active.variant.clone(),
        arch: active.arch.clone(),
        number: active.record.as_ref().map(|record| record.number),
        started: active.started,
        urgent_until: active.urgent_until,
        nodes: state.nodes,
        updated: state.updated,
        step: state.step,
        steps: policy.canary.len(),
        step_nodes: step.map(|step| step.nodes.of(state.nodes).unwrap_or(1)),
        waits: state.wait.as_ref().map(canary),
    })
}

/// Returns why no more nodes start in a canary step.
fn canary(wait: &Wait) -> String {
    match wait {
        Wait::CanaryStep { approval: true, .. } => "waits for approval".to_owned(),
        Wait::CanaryStep { until: Some(until), .. } => format!("soaks until {until:.0}"),
        Wait::CanaryStep { nodes, .. } if !nodes.is_empty() => format!("waits for {}", nodes.join(", ")),
        wait => wait.to_string(),
    }
}

fn approval(cluster: &Cluster, plan: &Plan, rollouts: &[RolloutState]) -> Option<Request> {
    let Some(Wait::CanaryStep { step, .. }) = plan.approval else { return None };
    // The newest version's comes first, as in the planner.
    let waits = |state: &&RolloutState| matches!(state.wait, Some(Wait::CanaryStep { approval: true, .. }));
    let of = rollouts.iter().filter(waits).map(|state| &state.rollout.version).max();
    let of = of.map_or_else(String::new, |version| format!(" of the rollout of {version}"));
    Some(Request { message: format!("canary step {step}{of} waits for approval"), command: cluster.command("approve") })
}

fn frozen(cluster: &Cluster, plan: &Plan) -> Option<Request> {
    let recorded = cluster.operator.as_ref().map(|operator| &operator.status.conditions);
    // Without the nodes, whose shadows have the failures, what is recorded counts.
    let planned = plan.status.as_ref().filter(|_| cluster.nodes.is_some()).map(|status| &status.conditions);
    let condition = true_condition(planned.or(recorded)?, FROZEN)?;
    // The command of kubectl alone is replaced by the plugin's.
    let message = condition.message.split(": kubectl annotate").next().unwrap_or_default();
    Some(Request { message: cluster.filled(message, ""), command: cluster.command("resume") })
}

fn problems(cluster: &Cluster, paused: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |reason: &str, message: String| problems.push(Problem { reason: reason.to_owned(), message });
    if let Some(own) = &cluster.own {
        let ready = |component| own.pods.values().any(|pod| is_of(pod, component) && pod.ready && !pod.terminating);
        let pods = |component: &str| {
            format!("kubectl get pods -n {} -l {}={component}", cluster.namespace, names::COMPONENT_LABEL)
        };
        if !ready(names::CONTROLLER) {
            let command = pods(names::CONTROLLER);
            add("ControllerNotReady", format!("no pod of the controller is Ready, so that nothing is done: {command}"));
        }
        if !ready(names::APISERVER) {
            let command = pods(names::APISERVER);
            add(
                WaitReason::WebApiNotReady.as_str(),
                format!("no pod of the web API is Ready, so that no agent can report: {command}"),
            );
        }
    }
    let Some(operator) = &cluster.operator else { return problems };
    let conditions = &operator.status.conditions;
    let known = |condition: &&Condition| {
        condition.reason != INVALID_POLICY && condition.reason != WaitReason::WebApiNotReady.as_str()
    };
    let pauses = |condition: &&Condition| paused && condition.reason == WaitReason::EarlierOperatorRunning.as_str();
    let holding = [DEGRADED, ALL_BLOCKED].into_iter().filter_map(|type_| true_condition(conditions, type_));
    let failing = find_condition(conditions, HISTORY_RECORDED).filter(|c| c.status == ConditionStatus::False);
    for condition in holding.filter(known).filter(|condition| !pauses(condition)).chain(failing) {
        add(&condition.reason, cluster.filled(&condition.message, ""));
    }
    problems
}

/// Returns the nodes whose agent should report and does not.
fn silent_agents(cluster: &Cluster, now: Timestamp) -> Vec<SilentAgent> {
    let agents = cluster.agents.is_some().then(|| cluster.agents_by_node());
    let mut silent = Vec::new();
    for (name, facts) in cluster.nodes.iter().flatten() {
        let shadow = cluster.shadows.get(name);
        let step = shadow.and_then(|shadow| shadow.status.controller.progress.as_ref()).map(|progress| progress.step);
        let goes_down = matches!(step, Some(Step::Rebooting | Step::Returning));
        if !facts.labelled || !facts.ready || facts.deleting || goes_down {
            continue;
        }
        let mut add = |reason, message: String, since| {
            silent.push(SilentAgent { node: name.clone(), reason, message, since });
        };
        let pod = agents.as_ref().map(|agents| agents.get(name.as_str()));
        let reach = shadow.and_then(|shadow| find_condition(&shadow.status.conditions, HOST_REACHABLE));
        let reported = |shadow: &ShadowFacts| shadow.status.agent.boot_id.as_deref() == Some(facts.boot_id.as_str());
        match (pod, reach.filter(|reach| reach.status != ConditionStatus::True)) {
            (Some(None), _) => add("NoAgentPod", "no pod of the agent is on the node".to_owned(), None),
            (Some(Some(pod)), _) if !pod.serves => {
                let why = pod.trouble.as_deref().unwrap_or("terminating");
                add("AgentNotReady", format!("{} is not Ready ({why})", pod.name), pod.since);
            }
            (_, Some(reach)) => {
                add(
                    "HostNotReached",
                    format!("the host is not reached: {}", reach.message),
                    Some(reach.last_transition_time),
                );
            }
            _ if shadow.is_some_and(|shadow| !reported(shadow)) => {
                add("NoReport", "the agent has not reported since the node's last boot".to_owned(), None);
            }
            _ => {}
        }
    }
    silent.retain(|agent| agent.since.is_none_or(|since| since <= now));
    silent
}

fn nodes(cluster: &Cluster, plan: &Plan, deadlines: &BTreeMap<String, Timestamp>) -> Vec<NodeReport> {
    let labelled = cluster.nodes.iter().flatten().filter(|(_, facts)| facts.labelled).map(|(name, _)| name);
    let names: std::collections::BTreeSet<&String> = labelled.chain(cluster.shadows.keys()).collect();
    names.into_iter().map(|name| node(cluster, name, plan, deadlines.get(name).copied())).collect()
}

fn node(cluster: &Cluster, name: &str, plan: &Plan, deadline: Option<Timestamp>) -> NodeReport {
    let shadow = cluster.shadows.get(name);
    let status = shadow.map(|shadow| &shadow.status);
    let progress = status.and_then(|status| status.controller.progress.as_ref());
    let last = status.and_then(|status| status.controller.record.as_ref()?.last.clone());
    let wait = plan.waits.get(name);
    let paused = wait.is_some_and(Wait::pauses);
    let acts = || plan.actions.get(name).map(|action| (Wait::Acting.as_str().to_owned(), next_action(action)));
    let (reason, message) = waits_for(cluster, name, shadow, wait).or_else(acts).unzip();
    let os_version = || cluster.nodes.as_ref()?.get(name)?.os_version();
    NodeReport {
        name: name.to_owned(),
        version: status.and_then(|status| status.agent.current_version.clone()).or_else(os_version),
        target: shadow.and_then(|shadow| shadow.spec.version.clone()).or_else(|| progress.map(|p| p.version.clone())),
        step: progress.map_or(IDLE, |progress| Step::as_str(progress.step)),
        reason,
        message: message.map(|message| cluster.filled(&message, name)),
        deadline: deadline.filter(|_| !paused),
        last: last.map(LastResult::from),
    }
}

/// Returns the next action of the controller, as a sentence.
pub(crate) fn next_action(action: &Action) -> String {
    match (action, action.next_step()) {
        (_, Some(Step::Staging)) => "its attempt begins with the download of the image".to_owned(),
        (_, Some(Step::LeavingLoadBalancer | Step::Draining)) => "it is next to be drained".to_owned(),
        (_, Some(step)) => format!("it goes on to the step {}", step.as_str()),
        (Action::Status { .. }, None) => "the result of its attempt is written".to_owned(),
        (Action::Spec { .. }, None) => "the desired state of its host is written".to_owned(),
        (Action::Claim { .. }, None) => "it is being cordoned".to_owned(),
        (Action::Release, None) => "it is being returned to service".to_owned(),
        (Action::Permit { .. }, None) => "its reboot permit is issued".to_owned(),
        (Action::ReadOwner { .. }, None) => "the other pods of an owner are read".to_owned(),
        (Action::ReadLease, None) => "its Lease is read".to_owned(),
    }
}

/// Returns the reason why a node waits, in a word and as a sentence. What the controller has recorded comes first: it
/// knows more, of refused evictions, for example, and of evaluated expressions.
fn waits_for(
    cluster: &Cluster,
    name: &str,
    shadow: Option<&ShadowFacts>,
    wait: Option<&Wait>,
) -> Option<(String, String)> {
    let because = |condition: &Condition| (condition.reason.clone(), condition.message.clone());
    let conditions = shadow.map(|shadow| shadow.status.conditions.as_slice()).unwrap_or_default();
    let recorded = || {
        let blocked = true_condition(conditions, BLOCKED).map(because);
        let reach = find_condition(conditions, HOST_REACHABLE).filter(|c| c.status != ConditionStatus::True);
        blocked.or_else(|| reach.map(|c| (c.reason.clone(), format!("the host is not reached: {}", c.message))))
    };
    let fleet = cluster.operator.as_ref().and_then(|o| true_condition(&o.status.conditions, ALL_BLOCKED));
    let planned = || {
        let wait = wait.filter(|wait| !matches!(wait, Wait::UpToDate | Wait::Acting))?;
        Some(match (wait, fleet) {
            (Wait::ExpressionsPending { .. }, Some(condition)) => because(condition),
            (Wait::ReadingPods, _) if !cluster.pods.contains_key(name) => {
                (wait.as_str().to_owned(), "its pods, which were not read here, decide".to_owned())
            }
            _ => (wait.as_str().to_owned(), wait.to_string()),
        })
    };
    if wait.is_some_and(Wait::pauses) { planned() } else { recorded().or_else(planned) }
}

fn waiting(nodes: &[NodeReport]) -> Vec<Waiting> {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in nodes {
        if let Some(reason) = node.reason.as_ref().filter(|reason| *reason != Wait::Acting.as_str()) {
            reasons.entry(reason).or_default().push(node.name.clone());
        }
    }
    let waits_for = |reason: &str| Some(reason.parse::<WaitReason>().ok()?.explanation().0.to_string());
    let mut waiting: Vec<Waiting> = reasons
        .into_iter()
        .map(|(reason, nodes)| Waiting { reason: reason.to_owned(), waits_for: waits_for(reason), nodes })
        .collect();
    waiting.sort_by_key(|waiting| std::cmp::Reverse(waiting.nodes.len()));
    waiting
}
