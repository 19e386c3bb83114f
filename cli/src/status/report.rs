//! The state of the fleet, derived from the cluster by the controller's own rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use models::condition::{Condition, ConditionStatus, false_condition, find_condition, true_condition};
use models::names;
use models::operator::{
    ActiveRollout, BLOCKED as ALL_BLOCKED, BRAKED, CONTAINED, DEGRADED, FROZEN, HISTORY_RECORDED, NOTICES_SENT,
};
use models::reason::{FailureReason, Proof};
use models::shadow::{BLOCKED, HOST_REACHABLE, Mode, Place, Step};
use models::time::after;
use planner::annotations::UNKNOWN_REQUEST;
use planner::claims::ClaimField;
use planner::pause::Pause;
use planner::plan::{
    Action, GROUP_HIDDEN, INVALID_POLICY, POD_GRACE_PERIOD, Plan, RolloutState, deadlines, rollouts, without_proof,
};
use planner::policy::{Policy, WindowState};
use planner::view::ShadowFacts;
use planner::wait::{Property, StepRequest, Wait, WaitReason, end_in, without_command};

use super::freshness;
use super::rollouts::{canary, resting, rollout};
use super::shape::*;
use crate::advice::{Proving, pods};
use crate::cluster::Cluster;
use crate::failures::{freezing, list, offers_others, unresolved};

/// The word for a node of which it is not known whether it waits.
pub(crate) const NOT_KNOWN: &str = "NotKnown";

pub(crate) fn report(cluster: &Cluster, now: Timestamp) -> Report {
    let (policy, (view, plan)) = (cluster.policy(), cluster.plan(now));
    let operator = cluster.operator.as_ref();
    let paused = Pause::of(operator, &cluster.earlier_pods, None, policy.shutdown, now).wait;
    let rollouts = rollouts(&view, &policy, now);
    let deadlines: BTreeMap<String, Timestamp> =
        deadlines(&view, &policy, now).map(|(node, at)| (node.to_owned(), at)).collect();
    let unproven = without_proof(&view, &policy, now);
    let nodes = nodes(cluster, (&plan, &unproven), &deadlines, now);
    Report {
        time: now,
        namespace: cluster.namespace.clone(),
        enabled: operator.map(|_| policy.enabled),
        policy: policy_report(cluster, &policy),
        windows: windows(&policy, now),
        freshness: freshness::report(&view, &policy, now).filter(|_| operator.is_some()),
        waiting: waiting(&nodes),
        approvals: approvals(cluster, &plan, &rollouts),
        rollouts: rollouts.iter().filter_map(|state| rollout(cluster, &policy, state)).collect(),
        resting: resting(cluster, &rollouts),
        counts: operator
            .and_then(|operator| operator.status.counts.clone())
            .or_else(|| plan.status.as_ref()?.counts.clone()),
        frozen: stopped(cluster, &plan, FROZEN, |conditions| true_condition(conditions, FROZEN)),
        held: stopped(cluster, &plan, CONTAINED, |conditions| {
            find_condition(conditions, FROZEN).filter(|condition| condition.reason == CONTAINED)
        }),
        braked: stopped(cluster, &plan, BRAKED, |conditions| true_condition(conditions, BRAKED)),
        problems: problems(cluster, &policy, &plan, paused.is_some()),
        silent_agents: silent_agents(cluster, now),
        misplaced_requests: misplaced(cluster),
        not_read: cluster.not_read(),
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
        errors: policy.errors.clone(),
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

/// Returns the requests for the canary steps that wait for a user, in the order of the rollouts.
fn approvals(cluster: &Cluster, plan: &Plan, rollouts: &[RolloutState]) -> Vec<Request> {
    let is_awaited = |wait: &&Wait| plan.approvals.contains(wait);
    let awaited = rollouts.iter().filter_map(|state| Some((&state.rollout, state.wait.as_ref().filter(is_awaited)?)));
    let awaited: Vec<(&ActiveRollout, &Wait)> = awaited.collect();
    let has_several = awaited.len() > 1;
    let request = |(rollout, wait): (&ActiveRollout, &Wait)| {
        let (step, request) = wait.step()?;
        let command = cluster.command(&request.arguments(step, &to_resume(plan)));
        let ActiveRollout { version, variant, arch, .. } = rollout;
        let kind = if has_several { format!(" for {variant} {arch}") } else { String::new() };
        let before = match (request, wait) {
            (StepRequest::ApproveUnproven(_), Wait::StepUnproven { nodes, .. }) => {
                let verify = match cluster.proving(nodes) {
                    Some(Proving::Retry(command)) => format!(". To have a node verified again at once: {command}"),
                    Some(Proving::Unhold(command)) => format!(". To let it prove the version, end its hold: {command}"),
                    Some(Proving::Return(node)) => {
                        let shown = crate::shell::for_cluster(&format!("kubectl describe node {node}"));
                        format!(". {node} is not back from its reboot: {shown}")
                    }
                    None => String::new(),
                };
                format!("{verify}. To accept them as they are")
            }
            (StepRequest::Resume, _) => AGAIN.to_owned(),
            (StepRequest::Approve(_) | StepRequest::ApproveUnproven(_), _) => String::new(),
        };
        let message = format!("canary step {step} of the rollout of {version}{kind} {}{before}", canary(wait));
        Some(Request { reason: wait.as_str(), message, command })
    };
    awaited.into_iter().filter_map(request).collect()
}

/// Returns the versions whose failures a user has to name to resolve them.
fn to_resume(plan: &Plan) -> String {
    plan.quarantine.to_resume(plan.status.as_ref().map_or(&[], |status| &status.active_rollouts))
}

/// The words before a command that tries a version again although nothing shows that it is good.
const AGAIN: &str = ". Once the cause is removed, to try again";

/// Returns the request of an operator of which a condition says that it is stopped, or nodes are held, until a user resumes it.
fn stopped(
    cluster: &Cluster,
    plan: &Plan,
    reason: &'static str,
    find: impl Fn(&[Condition]) -> Option<&Condition>,
) -> Option<Request> {
    let recorded = cluster.operator.as_ref().map(|operator| &operator.status.conditions);
    // Without the nodes, whose shadows have the failures, what is recorded counts.
    let planned = plan.status.as_ref().filter(|_| cluster.nodes.is_some()).map(|status| &status.conditions);
    let condition = find(planned.or(recorded)?)?;
    let message = without_command(&condition.message);
    let operator = cluster.operator.as_ref().filter(|_| reason == FROZEN);
    let failed = operator.map(|operator| unresolved(&operator.status)).unwrap_or_default();
    let mut skip = String::new();
    for version in freezing(&failed) {
        let quarantine = cluster.command(&format!("quarantine {version}"));
        let _ = write!(skip, ". To skip {version}, first: {quarantine}");
    }
    if offers_others(condition) && !skip.is_empty() {
        let others = cluster.command(&format!("resume --others {}", list(freezing(&failed))));
        let _ = write!(skip, ". To go on with nodes of another variant or architecture: {others}");
    }
    let again = if reason == BRAKED { AGAIN } else { ". To try again" };
    let command = match to_resume(plan).as_str() {
        "" => "resume".to_owned(),
        versions => format!("resume --failures {versions}"),
    };
    let message = format!("{}{skip}{again}", cluster.filled(message, ""));
    Some(Request { reason, message, command: cluster.command(&command) })
}

/// Returns the problem for which nothing is done at all: no controller leads.
pub(crate) fn no_leader(cluster: &Cluster) -> Option<Problem> {
    let (reason, what) = cluster.no_leader()?;
    let message = format!("{what}: {}", pods(&cluster.namespace, names::CONTROLLER));
    Some(Problem { reason: reason.to_owned(), message, warning: None })
}

fn problems(cluster: &Cluster, policy: &Policy, plan: &Plan, paused: bool) -> Vec<Problem> {
    let mut problems: Vec<Problem> = no_leader(cluster).into_iter().collect();
    let mut add = |reason: &str, message: String, warning: Option<&'static str>| {
        problems.push(Problem { reason: reason.to_owned(), message, warning });
    };
    let web_api = WaitReason::WebApiNotReady.as_str();
    if cluster.has_none_ready(names::APISERVER) {
        let pods = pods(&cluster.namespace, names::APISERVER);
        add(web_api, format!("no pod of the web API is Ready, so that no agent can report: {pods}"), None);
    }
    let Some(operator) = &cluster.operator else { return problems };
    let conditions = &operator.status.conditions;
    // The plugin finds these by itself: the errors of a policy are listed one by one, and pods are read now.
    let found = |condition: &&Condition| {
        let is_policy = condition.reason == INVALID_POLICY && !policy.errors.is_empty();
        is_policy || (condition.reason == web_api && cluster.own.is_some())
    };
    let pauses = |condition: &&Condition| paused && condition.reason == WaitReason::EarlierOperatorRunning.as_str();
    let holding = [DEGRADED, ALL_BLOCKED].into_iter().filter_map(|type_| true_condition(conditions, type_));
    let failing = [HISTORY_RECORDED, NOTICES_SENT].into_iter().filter_map(|type_| false_condition(conditions, type_));
    // Those that the plugin knows are listed by themselves.
    let is_listed = |condition: &&Condition| {
        condition.reason == UNKNOWN_REQUEST && cluster.misplaced.contains_key(&format!("bruo {}", names::OPERATOR_NAME))
    };
    let holding = holding.filter(|condition| !(found(condition) || pauses(condition) || is_listed(condition)));
    // The recorded message of an unwell cluster is the first one: nodes come and go meanwhile.
    let unwell = plan.waits.values().find(|wait| matches!(wait, Wait::ClusterUnwell { .. }));
    for condition in holding.chain(failing) {
        let planned = unwell.filter(|wait| condition.reason == wait.as_str());
        let message = planned.map_or_else(|| condition.message.clone(), ToString::to_string);
        add(&condition.reason, cluster.filled(&message, ""), warning(condition));
    }
    problems
}

/// Returns the word of a condition that is no error of the operator.
fn warning(condition: &Condition) -> Option<&'static str> {
    use WaitReason::{ClusterUnwell, ExpressionFires};
    match (condition.type_.as_str(), condition.reason.parse::<WaitReason>()) {
        (ALL_BLOCKED, Ok(reason @ (ClusterUnwell | ExpressionFires))) => Some(reason.as_str()),
        (NOTICES_SENT, _) => Some("NoticesNotSent"),
        _ => [UNKNOWN_REQUEST, GROUP_HIDDEN].into_iter().find(|known| condition.reason == *known),
    }
}

/// Returns the nodes whose agent should report and does not.
fn silent_agents(cluster: &Cluster, now: Timestamp) -> Vec<SilentAgent> {
    let agents = cluster.agents.is_some().then(|| cluster.agents_by_node());
    let mut silent = Vec::new();
    for (name, facts) in cluster.nodes.iter().flatten() {
        let shadow = cluster.shadows.get(name);
        let progress = shadow.and_then(|shadow| shadow.status.controller.progress.as_ref());
        let update = progress.filter(|progress| progress.mode() == Mode::Update);
        let goes_down = matches!(update.map(|update| update.step.place()), Some(Place::Away | Place::Booted));
        if !facts.labelled || !facts.ready || facts.deleting || goes_down {
            continue;
        }
        let mut add = |reason, message: String, since| {
            silent.push(SilentAgent { node: name.clone(), reason, message, since });
        };
        let pod = agents.as_ref().map(|agents| agents.get(name.as_str()));
        let reach = shadow.and_then(|shadow| find_condition(&shadow.status.conditions, HOST_REACHABLE));
        let reported = |shadow: &ShadowFacts| shadow.status.agent.boot_id.as_deref() == Some(facts.boot_id.as_str());
        let ready_since = cluster.ready_since.get(name).copied();
        // As long as the controller waits: the pod of a new node, or one that is replaced, is Ready within that.
        let is_new =
            |since: Option<Timestamp>| since.max(ready_since).is_some_and(|since| now < after(since, POD_GRACE_PERIOD));
        match (pod, reach.filter(|reach| reach.status != ConditionStatus::True)) {
            (Some(None), _) if is_new(None) => {}
            (Some(Some(pod)), _) if !pod.serves && is_new(pod.since) => {}
            (Some(None), _) => add("NoAgentPod", "no pod of the agent is on the node".to_owned(), None),
            (Some(Some(pod)), _) if !pod.serves => {
                let why = pod.trouble.as_deref().unwrap_or("terminating");
                add("AgentNotReady", format!("{} is not Ready ({why})", pod.name), pod.since);
            }
            (_, Some(reach)) => {
                let message = format!("{}: {}", unreached(reach), reach.message);
                add("HostNotReached", message, Some(reach.last_transition_time));
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

/// Returns what it means that a condition `HostReachable` is not true. Where the agent is silent, the controller sets it to unknown.
pub(crate) fn unreached(reach: &Condition) -> &'static str {
    if reach.status == ConditionStatus::Unknown {
        "it is not known whether the agent reaches the host"
    } else {
        "the agent does not reach the host"
    }
}

/// A plan, and the reasons for which nodes have no proof of their version.
type Planned<'a> = (&'a Plan, &'a BTreeMap<String, Wait>);

fn nodes(
    cluster: &Cluster,
    planned: Planned<'_>,
    deadlines: &BTreeMap<String, Timestamp>,
    now: Timestamp,
) -> Vec<NodeReport> {
    let labelled = cluster.nodes.iter().flatten().filter(|(_, facts)| facts.labelled).map(|(name, _)| name);
    let names: std::collections::BTreeSet<&String> = labelled.chain(cluster.shadows.keys()).collect();
    names.into_iter().map(|name| node(cluster, name, planned, deadlines.get(name).copied(), now)).collect()
}

fn node(
    cluster: &Cluster,
    name: &str,
    (plan, without_proof): Planned<'_>,
    deadline: Option<Timestamp>,
    now: Timestamp,
) -> NodeReport {
    let shadow = cluster.shadows.get(name);
    let status = shadow.map(|shadow| &shadow.status);
    let progress = status.and_then(|status| status.controller.progress.as_ref());
    let last = status.and_then(|status| status.controller.record.as_ref()?.last.as_ref());
    let wait = plan.waits.get(name);
    let paused = wait.is_some_and(Wait::pauses);
    let acts = || plan.actions.get(name).map(|action| (Wait::Acting.as_str().to_owned(), due(cluster, action)));
    let waits = waits_for(cluster, name, shadow, wait).or_else(acts);
    // Others may wait for its proof.
    let proof = without_proof.get(name).filter(|_| waits.is_none());
    let waits = waits.or_else(|| proof.map(|wait| (wait.as_str().to_owned(), wait.to_string())));
    let (reason, message) = waits.or_else(|| not_known(cluster, name)).unzip();
    let deadline = deadline.filter(|_| !paused);
    let sentence = || Some((reason.as_deref()?, message.as_deref()?));
    let of_sentence = sentence().and_then(|(reason, message)| end_of(reason, message, wait));
    // A pod may have more time than the step, and a recorded time may be over.
    let first = [of_sentence, deadline].into_iter().flatten().filter(|at| *at > now).min();
    let os_version = || cluster.nodes.as_ref()?.get(name)?.os_version();
    NodeReport {
        name: name.to_owned(),
        version: status.and_then(|status| status.agent.current_version.clone()).or_else(os_version),
        target: shadow.and_then(|shadow| shadow.spec.version.clone()).or_else(|| progress.map(|p| p.version.clone())),
        step: progress.map_or(IDLE, |progress| {
            // A node that has its image, and waits for others, does not record that at first.
            let staged = progress.step == Step::Staging && wait.is_some_and(Wait::is_for_others);
            Step::as_str(if staged { Step::Staged } else { progress.step })
        }),
        drill: progress.is_some_and(|progress| progress.mode().is_drill()),
        verification: progress.is_some_and(|progress| progress.mode().is_verification()),
        reason,
        message: message.map(|message| cluster.filled(&message, name)),
        held_by_failures: wait.is_some_and(|wait| wait.reason().is(Property::OfFailures)),
        unproven: shadow.and_then(|shadow| unproven(cluster, name, shadow, plan)),
        waits_for_proof: proof.is_some(),
        deadline,
        ends: progress.and(first.or(deadline)),
        last: last.map(|last| LastResult::of(last, cluster, name)),
    }
}

/// Returns the place of a node that runs its version without a proof, unless a user has resolved or accepted that.
fn unproven(cluster: &Cluster, name: &str, shadow: &ShadowFacts, plan: &Plan) -> Option<Proof> {
    let version = shadow.status.agent.current_version.as_ref()?;
    let failures = shadow.status.controller.record.iter().flat_map(|record| &record.version_failures);
    let own = failures.filter(|failure| failure.version == *version && failure.resolved_by.is_none());
    let own: Vec<FailureReason> = own.map(|failure| failure.reason).collect();
    let rollouts = plan.status.iter().flat_map(|status| &status.active_rollouts);
    let going_on = rollouts.filter(|rollout| rollout.ended.is_none() && rollout.version == *version);
    let mut named = going_on.filter_map(|rollout| rollout.ledger.as_ref()).flat_map(|ledger| &ledger.nodes);
    let named = named.find(|named| named.node == name && !named.accepted);
    // A node that came back late is verified again by itself.
    let is_late = !own.is_empty() && own.iter().all(|reason| *reason == FailureReason::NotReadyAfterBoot);
    // A hold without an end keeps a node from its verification until a user removes it.
    let hold = cluster.nodes.as_ref().and_then(|nodes| nodes.get(name)?.hold.as_ref());
    let is_held = hold.is_some_and(|hold| hold.until.is_none());
    match named {
        Some(named) if named.is_unproven() || is_late => Some(if is_held { Proof::Failed } else { Proof::Unproven }),
        _ => (!own.is_empty()).then_some(Proof::Failed),
    }
}

/// Returns the words for a node of which it is not known whether it waits: its Node was not read, or its host was not asked for updates
/// since its boot.
pub(crate) fn not_known(cluster: &Cluster, name: &str) -> Option<(String, String)> {
    let is_unread = cluster.nodes.is_none() || cluster.unreadable.nodes.contains_key(name);
    let is_read = || cluster.nodes.as_ref().is_some_and(|nodes| nodes.contains_key(name));
    let shadow = || cluster.shadows.get(name).filter(|shadow| shadow.status.controller.progress.is_none());
    let has_no_offer = || is_read() && shadow().is_some_and(|shadow| shadow.status.agent.updates.is_none());
    let why = match is_unread {
        true => "its Node was not read",
        false if has_no_offer() => "its host has not been asked for updates yet",
        false => return None,
    };
    Some((NOT_KNOWN.to_owned(), why.to_owned()))
}

/// Returns the time at which a reason may end, if its sentence has one. A reason that only the controller knows has no more
/// than the recorded message, and in that of most reasons a time would be another client's.
fn end_of(reason: &str, message: &str, wait: Option<&Wait>) -> Option<Timestamp> {
    if let Some(planned) = wait.filter(|wait| wait.to_string() == message) {
        return planned.ends_at();
    }
    let time = |word: &str| word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).parse().ok();
    match reason.parse::<WaitReason>().ok()? {
        reason if reason.is(Property::FirstTime) => message.split_whitespace().find_map(time),
        reason if reason.is(Property::MarkedTime) => end_in(message).map(|(at, _)| at),
        _ => None,
    }
}

/// Returns the next action of the controller, as a sentence, which says where none is there to take it.
pub(crate) fn due(cluster: &Cluster, action: &Action) -> String {
    let once = if cluster.no_leader().is_some() { " once a controller leads" } else { "" };
    format!("{}{once}", next_action(action))
}

/// Returns an action of the controller as a sentence.
pub(super) fn next_action(action: &Action) -> String {
    match (action, action.next_step()) {
        _ if action.begins_disruption() && action.mode().is_dry() => "the dry run of its drain begins".to_owned(),
        (_, Some(Step::Staging)) if action.mode().is_drill() => "its drill begins".to_owned(),
        (_, Some(Step::Verifying)) if action.mode().is_verification() => "it is verified again".to_owned(),
        (_, Some(Step::Staging)) => "its attempt begins with the download of the image".to_owned(),
        _ if action.begins_disruption() => "it is next to be drained".to_owned(),
        (_, Some(step)) => format!("it goes on to the step {}", step.as_str()),
        (Action::Status { .. }, None) => "the result of its attempt is written".to_owned(),
        (Action::Spec { .. }, None) => "the desired state of its host is written".to_owned(),
        (Action::Claim { fields, .. }, None) if fields.has(ClaimField::Cordon) => "it is being cordoned".to_owned(),
        (Action::Claim { .. }, None) => "it is in service, and protected from autoscalers".to_owned(),
        (Action::Hook { .. }, None) => "the request to hooks is set or withdrawn".to_owned(),
        (Action::Release, None) => "it is being returned to service".to_owned(),
        (Action::Permit { pods_stay: true, .. }, None) => "its rehearsal permit is issued".to_owned(),
        (Action::Permit { .. }, None) => "its reboot permit is issued".to_owned(),
        (Action::ReadOwner { .. }, None) => "the other pods of an owner are read".to_owned(),
        (Action::ReadReplicaSet { set }, None) => format!("the ReplicaSet {} is read", set.name),
        (Action::ReadLease { .. }, None) => "its Lease is read".to_owned(),
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
        blocked.or_else(|| reach.map(|c| (c.reason.clone(), format!("{}: {}", unreached(c), c.message))))
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
        let waits = |reason: &&String| *reason != Wait::Acting.as_str() && *reason != NOT_KNOWN;
        if let Some(reason) = node.reason.as_ref().filter(waits) {
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
