//! Commands that a user can type next, by the reason why a node waits.

use models::names;
use planner::wait::{StepRequest, Wait, WaitReason, has_fallen, node_name, without_command};
use semver::Version;

use crate::cluster::Cluster;
use crate::failures::{freezing, has_others, list, unresolved};
use crate::page::with_commands;
use crate::shell::for_cluster;

pub(crate) use models::plain::some;

/// Returns a command of this plugin for the operator of a namespace.
pub(crate) fn command(namespace: &str, arguments: &str) -> String {
    let option = if namespace == names::SYSTEM_NAMESPACE { String::new() } else { format!(" -n {namespace}") };
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

/// A command by which a node without a proof may get one.
pub(crate) enum Proving {
    /// Verifies the node again at once.
    Retry(String),
    /// Ends the hold that keeps the node from being verified.
    Unhold(String),
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
            Wait::NoOperatorResource | Wait::ExpressionFails { .. } => plugin("doctor"),
            Wait::EarlierOperatorRunning { .. } => plugin("takeover preflight"),
            Wait::Disabled => plugin("resume"),
            Wait::Frozen { version } | Wait::Quarantined { version } => self.skip_or_resume(node, version),
            Wait::Held { .. } => plugin(&format!("unhold {node}")),
            Wait::Cordoned => vec![format!("kubectl uncordon {node}  # once it is known who cordoned it, and why")],
            Wait::NotLabelled => vec![labelling(node)],
            Wait::NoShadow | Wait::ShadowUnreadable | Wait::ActionFails { .. } => {
                vec![logs_of(namespace, names::CONTROLLER)]
            }
            Wait::Deleting => vec![
                format!("kubectl get node {node} -o yaml"),
                format!("kubectl get brs {} -n {namespace} -o yaml", names::shadow_name(node)),
            ],
            Wait::UnhealthyNodes { .. } => vec!["kubectl get nodes".to_owned()],
            Wait::BudgetUsedUp { node, .. }
            | Wait::ControlPlaneBusy { node }
            | Wait::ZoneBusy { node, .. }
            | Wait::GroupFull { node: Some(node), .. }
            | Wait::FirstNode { node: Some(node) } => self.describe_node([node]),
            Wait::CanaryStep { approval: None, nodes, .. } | Wait::ClusterUnwell { nodes, .. } => {
                self.describe_node(nodes)
            }
            Wait::NodeNotReturned { .. } => {
                vec![describe("node", node), format!("kubectl delete node {node}  # if it is gone for good")]
            }
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

    /// Returns a command that goes on without a proof, after the one by which a node may get it.
    fn verify_again(&self, named: &[String], otherwise: String) -> Vec<String> {
        let verify = self.proving(named).map(|proving| match proving {
            Proving::Retry(command) => format!("{command}  # of a node that runs the version without a proof"),
            Proving::Unhold(command) => format!("{command}  # it may prove the version once it is not held"),
        });
        verify.into_iter().chain([otherwise]).collect()
    }

    /// Returns the command by which one of the nodes that a reason names, each with its end, may get a proof. None does anything where each of
    /// them had one, which counts again by itself, or is gone.
    pub(crate) fn proving(&self, named: &[String]) -> Option<Proving> {
        let now = crate::clock::now();
        let facts = |name: &str| self.nodes.as_ref().and_then(|nodes| nodes.get(name)).cloned();
        // Holds whose time is over stay on their nodes.
        let is_held = |name: &str| facts(name).is_some_and(|facts| facts.at(now).held());
        let names = named.iter().filter_map(|named| Some((named.split(' ').next()?, has_fallen(named))));
        let there: Vec<(&str, bool)> = names.filter(|(name, _)| self.may_exist(name)).collect();
        let verified = there.iter().find(|(name, has_fallen)| !has_fallen && !is_held(name)).map(|(name, _)| *name);
        if let Some(node) = verified.or_else(|| named.is_empty().then_some("NODE")) {
            return Some(Proving::Retry(self.command(&format!("retry {node}"))));
        }
        let (held, _) = there.into_iter().find(|(name, _)| is_held(name))?;
        Some(Proving::Unhold(self.command(&format!("unhold {held}"))))
    }

    /// Returns the same for a reason that only the controller knows, as it has recorded it.
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
mod tests {
    use planner::wait::{gone, not_ready};
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::{cluster, node, now, operator};
    use crate::shell::testing::with_context;

    #[test]
    fn logs_are_those_of_all_replicas() {
        let cluster = cluster(Some(operator(&json!({}), &json!({}))), vec![], vec![]);
        let logs = "kubectl logs -n brupop-system -l app.kubernetes.io/component=brupop-controller --prefix --tail=200";
        assert_eq!(cluster.commands("a", &Wait::NoShadow), [logs]);
        assert_eq!(cluster.recorded_commands("a", "ActionFails"), [logs]);
        // brupop-aws has one replica.
        let of_one = |line: &&str| {
            let one = ["deployment/brupop-controller", "deployment/brupop-apiserver", "logs deploy/"];
            line.contains(" logs") && one.iter().any(|one| line.contains(one))
        };
        for folder in ["docs/runbook", "cli/src", "cli/src/doctor", "cli/src/swap", "cli/src/uninstall"] {
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
            let paths = std::fs::read_dir(format!("{root}/{folder}")).unwrap().map(|entry| entry.unwrap().path());
            // The names that are looked for are in this file.
            for path in paths.filter(|path| path.is_file() && !path.ends_with("advice.rs")) {
                let page = std::fs::read_to_string(&path).unwrap();
                assert_eq!(page.lines().find(of_one), None, "{}", path.display());
            }
        }
    }

    /// A user who copies a block has not read what is below it.
    #[test]
    fn blocks_on_pages_of_alerts_let_no_rollout_go_on_or_stop() {
        let changes = ["approve", "pause", "resume", "retry", "release", "quarantine"];
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbook")).unwrap() {
            let path = entry.unwrap().path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("Brupop")) {
                continue;
            }
            let page = std::fs::read_to_string(&path).unwrap();
            for line in page.split("```").skip(1).step_by(2).flat_map(str::lines) {
                let command = line.trim().strip_prefix("kubectl brupop ").and_then(|rest| rest.split(' ').next());
                assert!(command.is_none_or(|command| !changes.contains(&command)), "{}: {line}", path.display());
            }
        }
    }

    /// A user copies a block whole: a command that changes something comes after its condition, and alone.
    #[test]
    fn block_of_the_runbook_that_reads_changes_nothing() {
        let verbs = ["apply", "cordon", "delete", "drain", "edit", "label", "patch", "scale", "uncordon"];
        let of_plugin = ["approve", "hold", "pause", "pin", "quarantine", "release", "resume", "retry", "unhold"];
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbook")).unwrap() {
            let path = entry.unwrap().path();
            let page = std::fs::read_to_string(&path).unwrap();
            for block in page.split("```").skip(1).step_by(2) {
                let commands = block.lines().filter_map(|line| line.trim().strip_prefix("kubectl "));
                let (mut reads, mut writes, mut requests) = (0_usize, 0_usize, 0_usize);
                for command in commands {
                    let mut words = command.split(' ');
                    let verb = words.next().unwrap_or_default();
                    let request = words.next().filter(|_| verb == "brupop" && !command.contains("--dry-run"));
                    if verbs.contains(&verb) {
                        writes += 1;
                    } else if request.is_some_and(|request| of_plugin.contains(&request)) {
                        requests += 1;
                    } else {
                        reads += 1;
                    }
                }
                let (at, is_one) = (path.display(), writes + requests.min(1) <= 1);
                assert!(is_one && (reads == 0 || writes + requests == 0), "{at}:{block}");
            }
        }
    }

    #[test]
    fn commands_in_texts_of_the_controller_are_for_the_chosen_cluster_and_namespace() {
        let mut cluster = cluster(None, vec![], vec![]);
        cluster.namespace = "ops".to_owned();
        let (approval, nodes) = ("7/1/unproven".to_owned(), vec!["b (HookTimedOut)".to_owned()]);
        let earlier = Wait::EarlierOperatorRunning { pods: vec!["a/b".to_owned()], count: 1 };
        for (wait, end) in [
            (Wait::StepUnproven { step: 1, approval, nodes }, "by kubectl brupop retry NODE -n ops --context c"),
            (Wait::StepFailed { step: 1, nodes: vec![] }, "nodes have failed on the version"),
            (Wait::Braked { count: 3, nodes: vec![], until: None, trial: Some("a".to_owned()) }, "a is tried alone"),
            (Wait::HostArmedByOther, "let the operator disarm it"),
            (earlier, ": kubectl brupop takeover preflight -n ops --context c"),
            (Wait::AgentNotReady, "app.kubernetes.io/component=brupop-agent --context c"),
        ] {
            let text = with_context("c", || cluster.filled(&wait.to_string(), "a"));
            assert!(text.ends_with(end), "{text}");
        }
    }

    #[test]
    fn command_that_goes_on_without_evidence_says_so_and_comes_last() {
        let known = json!({"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "firstSeen": "2026-01-01T00:00:00Z",
            "failed": ["b"], "quarantined": {"reason": "BootFellBack", "nodes": ["b"], "since": "2026-01-01T00:00:00Z"}});
        let operator = operator(&json!({}), &json!({"versions": [known]}));
        let cluster = cluster(Some(operator), vec![], ["a", "b"].map(|name| node(name, &json!({}))).to_vec());
        let version: semver::Version = "1.20.5".parse().unwrap();
        let (approval, nodes) = ("7/1".to_owned(), vec!["b".to_owned()]);
        let braked = |until| Wait::Braked { count: 3, nodes: vec![], until, trial: None };
        let (skip, resume) = ("brupop quarantine 1.20.5", "brupop resume --failures 1.20.5");
        let (unproven, accept) =
            (Wait::StepUnproven { step: 1, approval, nodes: nodes.clone() }, "brupop approve 1 --rollout 7 --unproven");
        for (wait, expected) in [
            (Wait::Frozen { version: version.clone() }, [skip, resume]),
            (Wait::Quarantined { version }, [skip, resume]),
            (unproven, ["brupop retry b", accept]),
            (braked(None), ["brupop retry NODE", resume]),
            (braked(Some(now())), [resume, ""]),
            (Wait::StepFailed { step: 1, nodes }, [resume, ""]),
            (Wait::BackOff { until: now(), reason: "x".to_owned() }, ["brupop retry a", ""]),
            (Wait::HostArmedByOther, ["brupop retry a", ""]),
            (Wait::Cordoned, ["uncordon a", ""]),
            (Wait::AttemptsExhausted, ["delete brs brs-a -n brupop-system", ""]),
        ] {
            let commands = cluster.commands("a", &wait);
            let expected: Vec<&str> = expected.into_iter().filter(|command| !command.is_empty()).collect();
            assert_eq!(commands.len(), expected.len(), "{wait:?}: {commands:?}");
            for (command, expected) in commands.iter().zip(expected) {
                let (before, note) = command.split_once("  # ").unwrap_or_default();
                assert!(before == format!("kubectl {expected}") && !note.is_empty(), "{wait:?}: {commands:?}");
            }
        }
    }

    #[test]
    fn command_about_nodes_without_a_proof_is_one_by_which_a_node_that_is_named_may_prove_the_version() {
        let hold = |name: &str, value: &str| node(name, &json!({names::HOLD_ANNOTATION: value}));
        let over = hold("e", "until=2020-01-01T00:00:00Z reason=audit");
        let nodes = vec![node("b", &json!({})), hold("d", "the auditors are here"), over];
        let cluster = cluster(Some(operator(&json!({}), &json!({}))), vec![], nodes);
        let (retry, unhold) = (Some("kubectl brupop retry b  #"), Some("kubectl brupop unhold d  #"));
        for (sentence, named, advised) in [
            ("its hook was silent", &["b (HookTimedOut)"][..], retry),
            ("it has fallen", &["b (NotReady)"], None),
            ("it is gone", &["c (HookTimedOut)"], None),
            ("one has fallen, and one is gone", &["b (NotReady)", "c (HookTimedOut)"], None),
            ("beside one that has fallen", &["c (NotReady)", "b (HookTimedOut)"], retry),
            ("it is held", &["d (Held)"], unhold),
            ("it has fallen, and is held", &["d (NotReady)"], unhold),
            ("its hold is over", &["e (HookTimedOut)"], Some("kubectl brupop retry e  #")),
            ("beside one that is held", &["d (Held)", "b (HookTimedOut)"], retry),
            ("one is held, and one is gone", &["c (HookTimedOut)", "d (Held)"], unhold),
        ] {
            let nodes: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
            let unproven = Wait::StepUnproven { step: 1, approval: "7/1/unproven".to_owned(), nodes: nodes.clone() };
            for wait in [unproven, Wait::Braked { count: 3, nodes, until: None, trial: None }] {
                let commands = cluster.commands("a", &wait);
                let (_, others) = commands.split_last().unwrap();
                let are = |expected: &str| others.iter().all(|command| command.starts_with(expected));
                let is_alone = others.len() == advised.iter().count();
                assert!(is_alone && advised.is_none_or(are), "{sentence}: {commands:?}");
            }
        }
    }

    #[test]
    fn command_about_another_node_ends_with_the_name_of_a_node_that_exists() {
        let nodes = ["a", "b"].map(|name| node(name, &json!({}))).to_vec();
        let cluster = cluster(Some(operator(&json!({}), &json!({}))), vec![], nodes);
        let canary =
            |nodes: &[String]| Wait::CanaryStep { step: 1, until: None, approval: None, nodes: nodes.to_vec() };
        let first = |node: String| Wait::FirstNode { node: Some(node) };
        let c = || gone("c", now());
        let unwell = Wait::ClusterUnwell { ill: 2, compared: 3, nodes: vec!["c".into(), "b".into()] };
        for (sentence, wait, expected) in [
            ("a canary is under way", canary(&["b".into()]), Some("b")),
            ("a canary is not Ready", canary(&[not_ready("b")]), Some("b")),
            ("the Node of a canary is gone", canary(&[c()]), None),
            ("beside another canary", canary(&[c(), not_ready("b")]), Some("b")),
            ("the first node is under way", first("b".into()), Some("b")),
            ("the Node of the first one is gone", first(c()), None),
            ("nodes are ill, of which one is gone", unwell, Some("b")),
            ("a node of the control plane", Wait::ControlPlaneBusy { node: "b".into() }, Some("b")),
            ("one that is gone", Wait::ControlPlaneBusy { node: "c".into() }, None),
            ("a node of another zone", Wait::ZoneBusy { zone: "z".into(), node: "b".into() }, Some("b")),
            ("a node of its group", Wait::GroupFull { group: "g".into(), node: Some("b".into()) }, Some("b")),
        ] {
            let expected: Vec<String> =
                expected.map(|name| format!("kubectl describe node {name}")).into_iter().collect();
            assert_eq!(cluster.commands("a", &wait), expected, "{sentence}");
        }
    }
}
