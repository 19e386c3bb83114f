//! The fleet: policy, nodes, agents, and what rules drains out.

use std::collections::BTreeMap;

use jiff::Timestamp;
use models::condition::{find_condition, true_condition};
use models::names;
use models::operator::NodeSelector;
use models::shadow::{BLOCKED, HOST_BUSY, HOST_REACHABLE, UNSUPPORTED_STATE};
use planner::annotations::UNKNOWN_REQUEST;
use planner::plan::{GROUP_HIDDEN, drain_refusals, long_grace_periods};
use planner::policy::Group;
use planner::view::{NodeFacts, ShadowFacts};
use planner::wait::{Property, Wait, WaitReason};

use super::finding::{Finding, NAMED, Severity};
use super::objects::APPLY_POLICY;
use crate::advice::{labelling, logs_of, pods, refused_pods};
use crate::cluster::{CONTROLLER_NOT_READY, Cluster, NO_LEADER};
use crate::status::{Report, report};

pub(super) fn check(cluster: &Cluster, now: Timestamp, found: &mut Vec<Finding>) {
    let report = report(cluster, now);
    unreadable(cluster, found);
    operator(cluster, &report, found);
    misplaced(cluster, found);
    nodes(cluster, found);
    groups(cluster, found);
    agents(cluster, &report, found);
    hosts(cluster, found);
    blocked(cluster, found);
    drains(cluster, now, found);
    long_graces(cluster, now, found);
}

/// Objects that this version cannot read. Those of one kind with the same fault are one finding.
fn unreadable(cluster: &Cluster, found: &mut Vec<Finding>) {
    let mut faults: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
    for (object, error) in cluster.unreadable.objects() {
        let kind = object.split(' ').next().unwrap_or_default().to_owned();
        faults.entry((kind, error)).or_default().push(object);
    }
    for ((_, error), objects) in faults {
        let message = format!("this version of the plugin cannot read it, as the controller may not: {error}");
        let edit = objects.first().map(|first| format!("kubectl edit {first} -n {}", cluster.namespace));
        let next = edit.into_iter().flat_map(|edit| {
            [format!("{edit} --subresource=status  # a field of status"), format!("{edit}  # another field")]
        });
        found.push(of_objects(Finding::error("ObjectUnreadable", message), objects).next(next));
    }
}

/// Annotations without effect. A mistake that many objects have is one finding.
fn misplaced(cluster: &Cluster, found: &mut Vec<Finding>) {
    let mut mistakes: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for (object, sentences) in &cluster.misplaced {
        for sentence in sentences {
            mistakes.entry(sentence).or_default().push(object.clone());
        }
    }
    let finding = |(sentence, objects): (&String, _)| of_objects(Finding::warning(UNKNOWN_REQUEST, sentence), objects);
    found.extend(mistakes.into_iter().map(finding));
}

/// Adds objects to a finding, each as kubectl names it.
fn of_objects(finding: Finding, objects: Vec<String>) -> Finding {
    objects.into_iter().fold(finding, |finding, object| finding.of(object.replacen(' ', "/", 1)))
}

fn operator(cluster: &Cluster, report: &Report, found: &mut Vec<Finding>) {
    let object = || format!("bottlerocketupdateoperator/{}/{}", cluster.namespace, names::OPERATOR_NAME);
    let edit = || format!("kubectl edit bruo {} -n {}", names::OPERATOR_NAME, cluster.namespace);
    if cluster.operator.is_none() && cluster.unreadable.operator.is_none() {
        let message = "it does not exist, so that no update starts";
        // Shadows exist from the first label on. With an attempt, there was a policy: it has been deleted.
        let mut reports = cluster.shadows.values().map(|shadow| &shadow.status.controller);
        let deleted = reports.any(|report| report.record.is_some() || report.progress.is_some());
        let severity = if deleted { Severity::Error } else { Severity::Warning };
        found.push(Finding::new(severity, "NoOperatorResource", message).of(object()).next([APPLY_POLICY.to_owned()]));
    }
    for error in &report.policy.errors {
        let message = format!("{}: {}", error.field, error.message);
        found.push(Finding::error("PolicyRejected", message).of(object()).next([edit()]));
    }
    if report.policy.generation.is_some() && !report.policy.observed {
        let message = "the controller has not seen the last change of it";
        let logs = logs_of(&cluster.namespace, names::CONTROLLER);
        found.push(Finding::warning("PolicyNotObserved", message).of(object()).next([logs]));
    }
    if let Some(paused) = &report.paused {
        found.push(Finding::warning("Paused", paused.clone()).next([cluster.command("takeover preflight")]));
    }
    // That a user is to approve a canary step is as the policy has it.
    let step = report.approvals.iter().filter(|request| request.reason != WaitReason::CanaryStep.as_str());
    let stopped = [&report.frozen, &report.held, &report.braked].into_iter().flatten();
    for request in stopped.chain(step) {
        let finding = Finding::warning(request.reason, request.message.clone());
        found.push(finding.of(object()).next([request.command.clone()]));
    }
    // The Lease has a finding of its own.
    for problem in report.problems.iter().filter(|problem| problem.reason != NO_LEADER) {
        let namespace = &cluster.namespace;
        let component = match problem.reason.as_str() {
            CONTROLLER_NOT_READY => Some(names::CONTROLLER),
            reason if reason == WaitReason::WebApiNotReady.as_str() => Some(names::APISERVER),
            _ => None,
        };
        let (object, next) = match component {
            Some(name) => {
                let next = vec![pods(namespace, name), refused_pods(namespace), logs_of(namespace, name)];
                (format!("deployment/{namespace}/{name}"), next)
            }
            None => (object(), vec![format!("kubectl describe bruo {} -n {namespace}", names::OPERATOR_NAME)]),
        };
        let finding = match problem.warning {
            Some(reason) => Finding::warning(reason, problem.message.clone()),
            None => Finding::error("OperatorDegraded", format!("{}: {}", problem.reason, problem.message)),
        };
        found.push(finding.of(object).next(next));
    }
}

fn nodes(cluster: &Cluster, found: &mut Vec<Finding>) {
    let Some(nodes) = &cluster.nodes else { return };
    let names_of = |chosen: &dyn Fn(&&NodeFacts) -> bool| -> Vec<&str> {
        nodes.values().filter(|node| chosen(node)).map(|node| node.name.as_str()).collect()
    };
    let label = |node: &NodeFacts| node.labels.get(names::INTERFACE_LABEL).cloned();
    if nodes.values().all(|node| !node.labelled) {
        let message = "no node has the label that selects it for updates";
        found.push(Finding::warning("NoNodes", message).next([labelling("NAME")]));
    }
    let mut add = |nodes: Vec<&str>, reason, message: &str, next: &dyn Fn(&str) -> Vec<String>| {
        if let Some(first) = nodes.first().copied() {
            found.push(Finding::warning(reason, message).of_nodes(nodes).next(next(first)));
        }
    };
    let logs = || vec![logs_of(&cluster.namespace, names::CONTROLLER)];
    if cluster.policy().label_nodes {
        let message = "it runs Bottlerocket, and the controller has not given it the label that selects it for updates, as \
                       spec.labelNodes requires: it is not updated until then";
        add(names_of(&|node| node.lacks_label()), "NotUpdated", message, &|_| logs());
    } else {
        let message = "it runs Bottlerocket, and lacks the label that selects it for updates: it is never updated";
        let unlabelled = names_of(&|node| node.bottlerocket() && label(node).is_none());
        add(unlabelled, "NotUpdated", message, &|first| vec![labelling(first)]);
    }
    let message = format!("its label {} has another value than {}", names::INTERFACE_LABEL, names::INTERFACE_VERSION);
    let other = |node: &&NodeFacts| label(node).is_some_and(|value| value != names::INTERFACE_VERSION);
    add(names_of(&other), "WrongLabel", &message, &|first| vec![labelling(first)]);
    let foreign = |node: &&NodeFacts| node.labelled && !node.os_image.is_empty() && !node.bottlerocket();
    let message = "it has the label that selects it for updates, and does not run Bottlerocket: no agent works there, which holds up an \
                   upgrade of the agents";
    add(names_of(&foreign), "NotBottlerocket", message, &|first| {
        vec![format!("kubectl label node {first} {}-", names::INTERFACE_LABEL)]
    });
    let without = |node: &&NodeFacts| {
        let exists = cluster.shadows.contains_key(&node.name) || cluster.unreadable.shadows.contains_key(&node.name);
        node.labelled && !exists
    };
    add(names_of(&without), "NoShadow", "the controller has not created its shadow", &|_| logs());
    let orphans: Vec<&str> = cluster
        .shadows
        .values()
        .filter(|shadow| nodes.get(&shadow.node).is_none_or(|node| Some(&node.uid) != shadow.owner_uid.as_ref()))
        .map(|shadow| shadow.node.as_str())
        .collect();
    add(
        orphans,
        "OrphanedShadow",
        "its shadow is that of an earlier node, or of none; the controller deletes it",
        &|_| logs(),
    );
}

/// Node groups that no node is in, and those with an empty selector that all are in: selectors, or the labels of nodes, may be mistyped.
fn groups(cluster: &Cluster, found: &mut Vec<Finding>) {
    let policy = cluster.policy();
    let labelled: Vec<&NodeFacts> = cluster.nodes.iter().flat_map(BTreeMap::values).filter(|n| n.labelled).collect();
    let takes_all = |group: &Group| group.selector == NodeSelector::default();
    // The operator warns of an empty selector before other groups, and names it.
    let is_warned = found.iter().any(|finding| finding.reason == GROUP_HIDDEN);
    for (index, group) in policy.groups.iter().enumerate().filter(|_| !labelled.is_empty()) {
        let members = labelled.iter().filter(|node| policy.group_of(node) == Some(index)).count();
        let (reason, nodes, why) = if members == labelled.len() && takes_all(group) {
            ("NodeGroupAll", "every", "its selector is empty, as also where the fields of one are mistyped and dropped")
        } else if members > 0 {
            continue;
        } else if labelled.iter().any(|node| group.selector.matches(&node.labels)) {
            if is_warned && policy.groups[..index].iter().any(takes_all) {
                continue;
            }
            (GROUP_HIDDEN, "no", "each node that its selector matches is in a group before it")
        } else {
            ("NodeGroupEmpty", "no", "its selector matches no node with the label that selects it for updates")
        };
        let message = format!("{nodes} node is in the node group {}: {why}", group.name);
        let finding = Finding::new(Severity::Note, reason, message);
        let object = format!("bottlerocketupdateoperator/{}/{}", cluster.namespace, names::OPERATOR_NAME);
        found.push(finding.of(object).next(["kubectl get nodes --show-labels".to_owned()]));
    }
}

fn agents(cluster: &Cluster, report: &Report, found: &mut Vec<Finding>) {
    let mut silent: BTreeMap<&'static str, Vec<&crate::status::SilentAgent>> = BTreeMap::new();
    for agent in &report.silent_agents {
        silent.entry(agent.reason).or_default().push(agent);
    }
    for (reason, agents) in silent {
        let Some(first) = agents.first() else { continue };
        let severity = if reason == "NoReport" { Severity::Warning } else { Severity::Error };
        let finding = Finding::new(severity, reason, first.message.clone());
        found.push(
            finding.of_nodes(agents.iter().map(|agent| agent.node.as_str())).next(cluster.agent_commands(&first.node)),
        );
    }
}

/// Hosts that cannot check for updates, or that their agents cannot use. Those that do not answer are among the silent agents.
fn hosts(cluster: &Cluster, found: &mut Vec<Finding>) {
    let mut add = |reason: &'static str, what: &str, message_of: fn(&ShadowFacts) -> Option<&String>| {
        let hosts = cluster.shadows.values().filter_map(|shadow| Some((shadow.node.as_str(), message_of(shadow)?)));
        let hosts: Vec<(&str, &String)> = hosts.collect();
        if let Some((first, message)) = hosts.first() {
            let finding = Finding::warning(reason, format!("{what}: {message}"));
            found.push(finding.of_nodes(hosts.iter().map(|(name, _)| *name)).next(cluster.agent_commands(first)));
        }
    };
    add("RefreshFails", "the host cannot check for updates", |shadow| {
        shadow.status.agent.updates.as_ref()?.refresh_failure.as_ref()
    });
    add("HostNotUsable", "the agent does not know the state of its host", |shadow| {
        let reachable = find_condition(&shadow.status.conditions, HOST_REACHABLE)?;
        (reachable.reason == UNSUPPORTED_STATE).then_some(&reachable.message)
    });
    add("HostBusy", "the host is busy", |shadow| {
        let reachable = find_condition(&shadow.status.conditions, HOST_REACHABLE)?;
        (reachable.reason == HOST_BUSY).then_some(&reachable.message)
    });
}

/// Reports nodes whose next action fails again and again, or for which a query gets no answer, as the controller has recorded it on them. A
/// reason that is the same for all nodes is among the problems of the operator.
fn blocked(cluster: &Cluster, found: &mut Vec<Finding>) {
    for reason in [WaitReason::ActionFails, WaitReason::ExpressionFails].map(WaitReason::as_str) {
        let message = |shadow: &ShadowFacts| {
            let blocked = true_condition(&shadow.status.conditions, BLOCKED).filter(|c| c.reason == reason)?;
            Some(cluster.filled(&blocked.message, &shadow.node))
        };
        let nodes = cluster.shadows.values().filter_map(|shadow| Some((shadow.node.as_str(), message(shadow)?)));
        let nodes: Vec<(&str, String)> = nodes.collect();
        if let Some((_, message)) = nodes.first() {
            let finding = Finding::error(reason, message.clone()).of_nodes(nodes.iter().map(|(name, _)| *name));
            found.push(finding.next([logs_of(&cluster.namespace, names::CONTROLLER)]));
        }
    }
}

/// Pods that may take longer to end than the drain of their node may take.
fn long_graces(cluster: &Cluster, now: Timestamp, found: &mut Vec<Finding>) {
    let nodes = long_grace_periods(&cluster.view(now), &cluster.policy(), now);
    let Some((_, pods)) = nodes.first() else { return };
    let named: Vec<&str> = pods.iter().take(NAMED).map(String::as_str).collect();
    let message = format!(
        "pods on it may take longer to end than drain.timeout, so that they are evicted first and alone: {}",
        named.join(", ")
    );
    let finding = Finding::new(Severity::Note, "LongGracePeriod", message);
    found.push(finding.of_nodes(nodes.iter().map(|(node, _)| node.as_str())));
}

/// Pods and budgets that rule the drain of nodes out, whenever it comes, or come first in it.
fn drains(cluster: &Cluster, now: Timestamp, found: &mut Vec<Finding>) {
    let mut causes: BTreeMap<(String, String), Vec<(String, Wait)>> = BTreeMap::new();
    for (node, wait) in drain_refusals(&cluster.view(now), &cluster.policy(), now) {
        let cause = match &wait {
            Wait::BudgetNeverAllows { budget, .. }
            | Wait::GuardedPods { budget, .. }
            | Wait::BudgetUnhealthy { budget, .. }
            | Wait::BudgetSyncFailed { budget, .. } => budget.clone(),
            Wait::MultipleBudgets { budgets, .. } => budgets.join(", "),
            Wait::DrainRefused { why, .. } => format!("{why:?}"),
            _ => String::new(),
        };
        causes.entry((wait.as_str().to_owned(), cause)).or_default().push((node, wait));
    }
    for refusals in causes.into_values() {
        let Some((node, wait)) = refusals.first() else { continue };
        let more = match refusals.len() {
            1 => String::new(),
            count => format!(" (the first of {count} nodes)"),
        };
        let reason = wait.as_str();
        let asked = matches!(wait, Wait::GuardedPods { .. });
        let severity = if wait.reason().is(Property::Passes) { Severity::Note } else { Severity::Warning };
        let message = if asked { format!("{wait}{more}") } else { format!("it cannot be drained{more}: {wait}") };
        let finding = Finding::new(severity, reason, message);
        let nodes = refusals.iter().map(|(node, _)| node.as_str());
        found.push(finding.of_nodes(nodes).next(cluster.commands(node, wait).into_iter().take(NAMED)));
    }
}
