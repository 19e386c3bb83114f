//! Commands that a user can type next, by the reason why a node waits.

use models::names;
use models::operator::{ActiveRollout, LedgerNode};
use planner::wait::{StepRequest, Wait, WaitReason, node_name, without_command};
use semver::Version;

use crate::cluster::Cluster;
use crate::failures::{freezing, has_others, list, unproven, unresolved};
use crate::page::with_commands;
use crate::shell::{for_cluster, names_namespace};

pub(crate) use models::plain::{counted, some};

/// Returns a command of this plugin for the operator of a namespace.
pub(crate) fn command(namespace: &str, arguments: &str) -> String {
    let is_default = namespace == names::SYSTEM_NAMESPACE && !names_namespace();
    let option = if is_default { String::new() } else { format!(" -n {namespace}") };
    for_cluster(&format!("kubectl brupop {arguments}{option}"))
}

/// Returns a command that shows the logs of all replicas of a component: which of them leads, or was asked, is not known.
pub(crate) fn logs_of(namespace: &str, component: &str) -> String {
    let label = names::COMPONENT_LABEL;
    for_cluster(&format!("kubectl logs -n {namespace} -l {label}={component} --prefix --tail=200"))
}

/// Returns the command that lists the pods of a component of the operator.
pub(crate) fn pods(namespace: &str, component: &str) -> String {
    for_cluster(&format!("kubectl get pods -n {namespace} -l {}={component}", names::COMPONENT_LABEL))
}

/// Returns the command that shows why the API server refuses to create pods of the operator, as for a quota or an admission check.
pub(crate) fn refused_pods(namespace: &str) -> String {
    let events = format!("kubectl get events -n {namespace} --field-selector reason=FailedCreate");
    for_cluster(&format!("{events}  # where there are no pods"))
}

/// Returns the command that places a node under the operator, also one whose label has another value.
pub(crate) fn labelling(node: &str) -> String {
    format!("kubectl label node {node} --overwrite {}={}", names::INTERFACE_LABEL, names::INTERFACE_VERSION)
}

/// A way for a node without a proof to get one, the quickest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proving {
    /// The command that verifies the node again at once.
    Retry(String),
    /// The command that ends the hold that keeps the node from being verified.
    Unhold(String),
    /// The name of the node, which is not back from its reboot.
    Return(String),
}

/// Fills the placeholders of a text of the controller's rules. Its commands are for the chosen cluster and for this namespace. A command of
/// `kubectl annotate` is left out, since the plugin has its own.
pub(crate) fn filled(namespace: &str, text: &str, node: &str) -> String {
    let text = without_command(text).replace("<namespace>", namespace).replace("<node>", node);
    with_commands(&text, |typed| match typed.strip_prefix("kubectl brupop ") {
        Some(arguments) if !typed.contains(" -n ") => command(namespace, arguments),
        _ => for_cluster(typed),
    })
}

/// Returns the command that describes an object, with its namespace where the name has one.
fn describe(kind: &str, object: &str) -> String {
    match object.split_once('/') {
        Some((namespace, name)) => format!("kubectl describe {kind} {name} -n {namespace}"),
        None => format!("kubectl describe {kind} {object}"),
    }
}

/// Returns the commands about a node that is not back from its reboot.
fn not_returned(node: &str) -> Vec<String> {
    vec![describe("node", node), format!("kubectl delete node {node}  # if it is gone for good")]
}

/// Returns the one object whose state is the reason, by its kind and name.
fn subject<'a>(node: &'a str, wait: &'a Wait) -> Option<(&'static str, &'a str)> {
    match wait {
        Wait::NodeNotReady
        | Wait::NodePressure { .. }
        | Wait::NodeNotUsable { .. }
        | Wait::AwaitingReady
        | Wait::BeingRemoved { .. } => Some(("node", node)),
        Wait::DrainRefused { pod, .. }
        | Wait::PodsNotReady { pod, .. }
        | Wait::PodsTerminating { pod, .. }
        | Wait::MarkedPods { pod, .. }
        | Wait::Settling { pod, .. } => Some(("pod", pod.as_str())),
        Wait::BudgetNeverAllows { budget, .. }
        | Wait::GuardedPods { budget, .. }
        | Wait::BudgetBusy { budget, .. }
        | Wait::BudgetUnhealthy { budget, .. }
        | Wait::BudgetSyncFailed { budget, .. } => Some(("pdb", budget.as_str())),
        _ => None,
    }
}

impl Cluster {
    pub(crate) fn command(&self, arguments: &str) -> String {
        command(&self.namespace, arguments)
    }

    pub(crate) fn filled(&self, text: &str, node: &str) -> String {
        filled(&self.namespace, text, node)
    }

    /// Returns what a user can do about the wait of a node, as commands; none where there is nothing to do but to wait.
    pub(crate) fn commands(&self, node: &str, wait: &Wait) -> Vec<String> {
        self.listed(node, wait).iter().map(|command| for_cluster(command)).collect()
    }

    /// Returns the same commands without the options that choose the cluster, where they are of kubectl alone.
    fn listed(&self, node: &str, wait: &Wait) -> Vec<String> {
        let namespace = &self.namespace;
        let plugin = |arguments: &str| vec![self.command(arguments)];
        match wait {
            Wait::NoOperatorResource | Wait::ShadowUnreadable | Wait::ExpressionFails { .. } => plugin("doctor"),
            Wait::EarlierOperatorRunning { .. } => plugin("takeover preflight"),
            Wait::Disabled => plugin("resume"),
            Wait::Frozen { version } | Wait::Quarantined { version } => self.skip_or_resume(node, version),
            Wait::Held { .. } => plugin(&format!("unhold {node}")),
            Wait::Cordoned => vec![format!("kubectl uncordon {node}  # once it is known who cordoned it, and why")],
            Wait::NotLabelled => vec![labelling(node)],
            Wait::NoShadow | Wait::ActionFails { .. } => vec![logs_of(namespace, names::CONTROLLER)],
            Wait::Deleting => vec![
                format!("kubectl get node {node} -o yaml"),
                format!("kubectl get brs {} -n {namespace} -o yaml", names::shadow_name(node)),
            ],
            Wait::BudgetUsedUp { node, .. }
            | Wait::ControlPlaneBusy { node }
            | Wait::ZoneBusy { node, .. }
            | Wait::GroupFull { node: Some(node), .. }
            | Wait::FirstNode { node: Some(node), .. } => self.describe_node([node]),
            Wait::FirstNode { not_back: Some(node), .. } => not_returned(node),
            Wait::CanaryStep { approval: None, nodes, .. }
            | Wait::ClusterUnwell { nodes, .. }
            | Wait::UnhealthyNodes { nodes, .. } => self.describe_node(nodes),
            Wait::NodeNotReturned { .. } => not_returned(node),
            Wait::NoReport
            | Wait::AgentNotReady
            | Wait::AgentNotSynced
            | Wait::AwaitingAgent
            | Wait::AwaitingRehearsal
            | Wait::AwaitingReboot
            | Wait::DisarmPending
            | Wait::HostNotUsable { .. }
            | Wait::HostBusy { .. }
            | Wait::RefreshFails { .. } => self.agent_commands(node),
            Wait::WebApiNotReady => vec![pods(namespace, names::APISERVER)],
            Wait::HostArmedByOther => vec![self.noted(&format!("retry {node}"), "disarms the image")],
            Wait::BackOff { .. } => vec![self.noted(&format!("retry {node}"), "once the cause is removed")],
            Wait::DrainBlocked { pod, budget, .. } => {
                let budget = budget.iter().map(|budget| describe("pdb", budget));
                budget.chain([describe("pod", pod), self.command(&format!("release {node}"))]).collect()
            }
            Wait::MultipleBudgets { budgets, .. } => budgets.iter().map(|budget| describe("pdb", budget)).collect(),
            Wait::CanaryStep { approval: Some(_), nodes, .. } | Wait::StepUnproven { nodes, .. } => {
                let Some((step, request)) = wait.step() else { return Vec::new() };
                let (arguments, note) = (request.arguments(step, ""), "accepts the nodes without a proof as they are");
                match request {
                    StepRequest::ApproveUnproven(_) => self.verify_again(nodes, self.noted(&arguments, note)),
                    _ => plugin(&arguments),
                }
            }
            Wait::StepFailed { .. } => vec![self.resume("once the cause is removed, or the version excluded")],
            Wait::Braked { until: None, trial: None, nodes, .. } => {
                self.verify_again(nodes, self.resume("once the cause is removed"))
            }
            Wait::Braked { .. } => vec![self.resume("once the cause is removed")],
            Wait::PolicyInvalid => vec![format!("kubectl edit bruo {} -n {namespace}", names::OPERATOR_NAME)],
            Wait::AttemptsExhausted => {
                let shadow = names::shadow_name(node);
                vec![format!("kubectl delete brs {shadow} -n {namespace}  # its attempts begin at 0 again")]
            }
            // Hooks answer with an annotation of the Node.
            Wait::AwaitingHook { .. } => vec![format!("kubectl get node {node} -o yaml")],
            Wait::DetachingVolumes { .. } => vec!["kubectl get volumeattachments".to_owned()],
            // The others end by themselves, or by what the sentence says.
            _ => subject(node, wait).map(|(kind, object)| describe(kind, object)).into_iter().collect(),
        }
    }

    /// Returns a command that goes on without evidence: its note says so, and it comes after those that do not.
    fn noted(&self, arguments: &str, note: &str) -> String {
        format!("{}  # {note}", self.command(arguments))
    }

    /// Returns the command that resolves the failures of all versions.
    fn resume(&self, note: &str) -> String {
        let status = self.operator.as_ref().map(|operator| &operator.status);
        let versions = status.map_or_else(|| "VERSION".to_owned(), |status| list(unresolved(status).keys()));
        self.noted(&format!("resume --failures {versions}"), note)
    }

    /// Returns the commands that skip a version that has failed, that try it again, and that go on with other kinds of nodes.
    fn skip_or_resume(&self, node: &str, version: &Version) -> Vec<String> {
        let status = self.operator.as_ref().map(|operator| &operator.status);
        let failed = status.map(unresolved).unwrap_or_default();
        // Where others go on with it, it is excluded for the kind of this node alone.
        let agent = self.shadows.get(node).map(|shadow| &shadow.status.agent);
        let kind = agent.and_then(|agent| Some(format!("{}/{}", agent.variant.as_ref()?, agent.arch.as_ref()?)));
        let held = kind.filter(|kind| failed.get(version).is_some_and(|failed| failed.held_for.contains(kind)));
        let kind = held.map_or_else(String::new, |kind| format!(" --kind {kind}"));
        let skip = self.noted(&format!("quarantine {version}{kind}"), "to skip the version: first this");
        let mut commands = vec![skip, self.resume("tries a version again that is not skipped")];
        let freezing = list(freezing(&failed));
        if !freezing.is_empty() && status.is_some_and(has_others) {
            let note = "goes on without the nodes of the kind that failed";
            commands.push(self.noted(&format!("resume --others {freezing}"), note));
        }
        commands
    }

    /// Returns a command that goes on without a proof, after those by which a node may get it.
    fn verify_again(&self, named: &[String], otherwise: String) -> Vec<String> {
        let noted = |command: &str, note: &str| vec![format!("{command}  # {note}")];
        let mut commands = match self.proving(named) {
            Some(Proving::Retry(command)) => noted(&command, "of a node that runs the version without a proof"),
            Some(Proving::Unhold(command)) => noted(&command, "it may prove the version once it is not held"),
            Some(Proving::Return(node)) => not_returned(&node),
            None => Vec::new(),
        };
        commands.push(otherwise);
        commands
    }

    /// Returns how a node without a proof may get one, in the rollout of the nodes that a reason names, each with its end: it names the last few
    /// ends alone, also of nodes that never ran the version.
    pub(crate) fn proving(&self, named: &[String]) -> Option<Proving> {
        let rollouts = self.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
        let is_named = |end: &LedgerNode| named.contains(&end.to_string());
        let of = rollouts.filter(|rollout| {
            rollout.ledger.iter().flat_map(|ledger| ledger.nodes.iter().chain(&ledger.row)).any(is_named)
        });
        of.flat_map(|rollout| unproven(rollout).filter_map(move |end| self.way(rollout, end))).min()
    }

    /// Returns how a node that a rollout names without a proof may get one; `None` where it runs another version, is being verified, is gone, or
    /// had a proof, which counts again by itself.
    fn way(&self, rollout: &ActiveRollout, end: &LedgerNode) -> Option<Proving> {
        let node = end.node.as_str();
        let status = &self.shadows.get(node).filter(|_| !end.accepted && self.may_exist(node))?.status;
        if let Some(progress) = &status.controller.progress {
            return progress.may_still_reboot().then(|| Proving::Return(node.to_owned()));
        }
        if status.agent.current_version.as_ref() != Some(&rollout.version) {
            return None;
        }
        let facts = self.nodes.as_ref().and_then(|nodes| nodes.get(node)).cloned();
        // Holds whose time is over stay on their nodes.
        if facts.is_some_and(|facts| facts.at(crate::clock::now()).held()) {
            return Some(Proving::Unhold(self.command(&format!("unhold {node}"))));
        }
        (!end.has_fallen()).then(|| Proving::Retry(self.command(&format!("retry {node}"))))
    }

    /// Returns the commands about a reason that only the controller knows, as it has recorded it.
    pub(crate) fn recorded_commands(&self, node: &str, reason: &str) -> Vec<String> {
        match reason.parse() {
            // Nothing that the plugin reads rules the drain out: the controller could not read what it needs.
            Ok(WaitReason::ActionFails | WaitReason::DrainRefused) => vec![logs_of(&self.namespace, names::CONTROLLER)],
            Ok(WaitReason::ExpressionFails) => vec![self.command("doctor")],
            Ok(WaitReason::HostArmedByOther) => self.commands(node, &Wait::HostArmedByOther),
            _ => Vec::new(),
        }
    }

    /// Returns whether a node exists, as far as the nodes could be read.
    fn may_exist(&self, node: &str) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains_key(node))
    }

    /// Returns a command that shows the first of the nodes that a reason names, without those whose Node is gone.
    fn describe_node<'a>(&self, named: impl IntoIterator<Item = &'a String>) -> Vec<String> {
        let first = named.into_iter().filter_map(|named| node_name(named)).find(|name| self.may_exist(name));
        first.map(|name| format!("kubectl describe node {name}")).into_iter().collect()
    }

    /// Returns commands that show the state of a node's agent.
    pub(crate) fn agent_commands(&self, node: &str) -> Vec<String> {
        match self.agents_by_node().get(node) {
            Some(agent) => vec![
                format!("kubectl logs -n {} {}", names::AGENT_NAMESPACE, agent.name),
                format!("kubectl describe pod {} -n {}", agent.name, names::AGENT_NAMESPACE),
            ],
            None => vec![
                format!("kubectl get pods -n {} -o wide --field-selector spec.nodeName={node}", names::AGENT_NAMESPACE),
                format!("kubectl describe daemonset {} -n {}", names::AGENT, names::AGENT_NAMESPACE),
            ],
        }
    }
}

#[cfg(test)]
mod tests;
