//! `kubectl brupop status`.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use models::condition::{Condition, find_condition, true_condition};
use models::names;
use models::operator::{BottlerocketUpdateOperator, DEGRADED, FROZEN, WINDOW_OPEN};
use models::shadow::{BLOCKED, BottlerocketShadow, HOST_REACHABLE, Step};
use models::time::between;
use planner::annotations::{Place, misunderstood};
use planner::pause::Pause;
use planner::plan::{Plan, plan};
use planner::policy::Policy;
use planner::view::{
    BudgetFacts, ClusterView, DaemonSetIs, EarlierPod, NodeFacts, OperatorFacts, PodFacts, Projection as _, ShadowFacts,
};
use planner::wait::{Wait, WaitReason};

use crate::page::Page;

/// Maximum width of a line where the output is no terminal.
const WIDTH: usize = 120;

/// Number of nodes whose pods are read for reasons. More are about to be updated in no usual fleet.
const NODES_WITH_PODS: usize = 8;

/// The reason of the condition that the line about the earlier operator replaces.
const PAUSED: &str = WaitReason::EarlierOperatorRunning.as_str();

/// Options of `status`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Show every text in full, however wide the rows become.
    #[arg(long)]
    wide: bool,
    /// `wide` is the same as --wide.
    #[arg(long, short, value_parser = ["wide"])]
    output: Option<String>,
}

impl Options {
    /// Returns the maximum width of a line; `None` for no limit.
    fn width(&self) -> Option<usize> {
        if self.wide || self.output.is_some() {
            return None;
        }
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let terminal = || comfy_table::Table::new().width().map(usize::from);
        if std::io::stdout().is_terminal() { terminal().or(columns).or(Some(WIDTH)) } else { columns.or(Some(WIDTH)) }
    }
}

/// Objects read from the cluster.
#[derive(Default)]
struct Cluster {
    namespace: String,
    operator: Option<BottlerocketUpdateOperator>,
    shadows: Vec<BottlerocketShadow>,
    nodes: Vec<Node>,
    /// The pods of the earlier operator.
    earlier_pods: Vec<String>,
    /// The pods of the nodes that are about to be updated, by node.
    pods: BTreeMap<String, Vec<PodFacts>>,
    budgets: Vec<BudgetFacts>,
}

/// Reads the cluster and reports the state of the fleet.
pub(crate) async fn status(client: Client, namespace: &str, options: &Options) -> anyhow::Result<Page> {
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), namespace);
    let shadows: Api<BottlerocketShadow> = Api::namespaced(client.clone(), namespace);
    let nodes: Api<Node> = Api::all(client.clone());
    let all = ListParams::default();
    let operator = operators
        .get_opt(names::OPERATOR_NAME)
        .await
        .context("the operator's resource cannot be read; is the operator installed, and may you read it?")?;
    let mut cluster = Cluster {
        namespace: namespace.to_owned(),
        operator,
        shadows: shadows.list(&all).await.context("the shadows cannot be read")?.items,
        nodes: nodes.list(&all).await.context("the nodes cannot be read; may you read them?")?.items,
        ..Cluster::default()
    };
    let pods: Api<Pod> = Api::all(client.clone());
    for selector in models::earlier::pod_selectors() {
        let found = pods.list(&all.clone().labels(&selector)).await;
        let found = found.context("the pods of the earlier operator cannot be read; may you list pods everywhere?")?;
        cluster.earlier_pods.extend(found.iter().filter_map(EarlierPod::project).map(|pod| pod.key()));
    }
    let now = Timestamp::now();
    let wanted = cluster.plan(now).pods;
    if !wanted.is_empty() {
        let budgets: Api<PodDisruptionBudget> = Api::all(client.clone());
        let found = budgets.list(&all).await.context("the PodDisruptionBudgets cannot be read; may you read them?")?;
        cluster.budgets = found.iter().filter_map(BudgetFacts::project).collect();
    }
    for node in wanted.into_iter().take(NODES_WITH_PODS) {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let found = pods.list(&on_node).await.context("the pods cannot be read; may you read them?")?;
        // The controller reads each DaemonSet. Its findings are in its `Blocked` condition.
        let known = |pod: PodFacts| PodFacts { daemon_set_is: DaemonSetIs::There, ..pod };
        cluster.pods.insert(node, found.iter().filter_map(PodFacts::project).map(known).collect());
    }
    Ok(render(&cluster, options.width(), now))
}

impl Cluster {
    fn operator_facts(&self) -> Option<OperatorFacts> {
        self.operator.as_ref().and_then(OperatorFacts::project)
    }

    /// Returns a condition of the operator that holds.
    fn operator_condition(&self, type_: &str) -> Option<&Condition> {
        let status = self.operator.as_ref()?.status.as_ref()?;
        true_condition(&status.conditions, type_)
    }

    /// Plans for this cluster by the controller's own rules.
    fn plan(&self, now: Timestamp) -> Plan {
        let facts = self.shadows.iter().filter_map(ShadowFacts::project);
        let mut shadows: BTreeMap<String, ShadowFacts> = facts.map(|shadow| (shadow.node.clone(), shadow)).collect();
        let mut view = ClusterView {
            operator: self.operator_facts(),
            earlier_pods: self.earlier_pods.clone(),
            budgets: self.budgets.clone(),
            leader_since: now.saturating_sub(SignedDuration::from_hours(1)).unwrap_or(now),
            ..ClusterView::default()
        };
        for facts in self.nodes.iter().filter_map(NodeFacts::project) {
            let shadow = shadows.remove(&facts.name);
            view.insert(facts, shadow, now);
        }
        for (name, node) in &mut view.nodes {
            node.pods = self.pods.get(name).cloned();
        }
        let policy = Policy::in_force(view.operator.as_ref());
        plan(&view, &policy, now)
    }

    /// Fills the placeholders of a text.
    fn filled(&self, text: &str, node: &str) -> String {
        text.replace("<namespace>", &self.namespace).replace("<node>", node)
    }
}

fn render(cluster: &Cluster, width: Option<usize>, now: Timestamp) -> Page {
    let mut page = Page::default();
    let plan = cluster.plan(now);
    let facts = cluster.operator_facts();
    let shutdown = Policy::in_force(facts.as_ref()).shutdown;
    let paused = Pause::of(facts.as_ref(), &cluster.earlier_pods, None, shutdown, now).wait;
    if let Some(wait) = &paused {
        page.line(format_args!("Paused: {wait}"));
    }
    match &cluster.operator {
        None => page.line(format_args!(
            "There is no BottlerocketUpdateOperator named {}: nothing new starts. Create it to start updates.",
            names::OPERATOR_NAME
        )),
        Some(operator) => {
            let status = operator.status.clone().unwrap_or_default();
            if let Some(counts) = &status.counts {
                page.line(format_args!(
                    "{} nodes: {} current, {} updating, {} staged, {} blocked, {} failed",
                    counts.total, counts.current, counts.updating, counts.staged, counts.blocked, counts.failed
                ));
            }
            if operator.spec.enabled == Some(false) {
                page.line("Updates are disabled (spec.enabled is false).");
            }
            let target = operator.spec.version.as_ref().and_then(|version| version.target.as_deref());
            page.line(format_args!("Target version: {}", target.unwrap_or("latest")));
            if let Some(window) = find_condition(&status.conditions, WINDOW_OPEN) {
                let message = if window.message.is_empty() { &window.reason } else { &window.message };
                let open = if window.status == models::condition::ConditionStatus::True { "open" } else { "closed" };
                page.line(format_args!("Window: {open}, {message}"));
            }
            if !status.waiting.is_empty() {
                let reasons = status.waiting.iter().map(|waiting| format!("{} {}", waiting.nodes, waiting.reason));
                page.line(format_args!("Nodes that wait: {}", reasons.collect::<Vec<_>>().join(", ")));
            }
            for (type_, title) in [(DEGRADED, "Degraded"), (FROZEN, "Frozen"), (models::operator::BLOCKED, "Blocked")] {
                let condition = cluster.operator_condition(type_);
                if let Some(condition) = condition.filter(|c| paused.is_none() || c.reason != PAUSED) {
                    page.line(format_args!("{title}: {}", cluster.filled(&condition.message, "")));
                }
            }
        }
    }
    if let Some(wait) = &plan.approval {
        page.line(format_args!("Approval required: {}", cluster.filled(&wait.to_string(), "")));
    }
    for sentence in misplaced(cluster) {
        page.line(sentence);
    }
    if cluster.shadows.is_empty() {
        page.line(format_args!(
            "No node is under the operator. Label Bottlerocket nodes with {}={}.",
            names::INTERFACE_LABEL,
            names::INTERFACE_VERSION
        ));
        return page;
    }
    let rows: Vec<_> = cluster.shadows.iter().map(|shadow| row(cluster, shadow, &plan, width.is_none(), now)).collect();
    let cut = page.table(["NODE", "VERSION", "TARGET", "STEP", "LAST", "WAITS FOR"], rows, width);
    if cut {
        page.line("Lines that end with … are cut; --wide shows them whole.");
    }
    page
}

/// Returns the requests without effect, each with its object.
fn misplaced(cluster: &Cluster) -> Vec<String> {
    let of = |kind: &str, name: String, place: Place, meta: &kube::api::ObjectMeta| -> Vec<String> {
        let found = misunderstood(place, meta.annotations.iter().flat_map(BTreeMap::keys));
        found.into_iter().map(|sentence| format!("{kind} {name}: {sentence}")).collect()
    };
    let operator = cluster.operator.iter().flat_map(|o| of("bruo", o.name_any(), Place::Operator, &o.metadata));
    let shadows = cluster.shadows.iter().flat_map(|s| of("brs", s.name_any(), Place::Shadow, &s.metadata));
    let nodes = cluster.nodes.iter().flat_map(|n| of("node", n.name_any(), Place::Node, &n.metadata));
    operator.chain(shadows).chain(nodes).collect()
}

fn row(cluster: &Cluster, shadow: &BottlerocketShadow, plan: &Plan, wide: bool, now: Timestamp) -> [String; 6] {
    let name = shadow.name_any();
    let node = names::node_of_shadow(&name);
    let status = shadow.status.clone().unwrap_or_default();
    let text = |value: Option<String>| value.unwrap_or_default();
    let last = status.controller.record.and_then(|r| r.last);
    let progress = status.controller.progress.as_ref();
    let because = |c: &Condition| (c.reason.clone(), c.message.clone());
    // The controller's status knows more: of refused evictions, for example, and evaluated expressions.
    let blocked = true_condition(&status.conditions, BLOCKED).map(because);
    let reach = find_condition(&status.conditions, HOST_REACHABLE)
        .filter(|c| c.status != models::condition::ConditionStatus::True)
        .map(|c| (c.reason.clone(), format!("the host is not reached: {}", c.message)));
    let planned = plan.waits.get(node).filter(|wait| !matches!(wait, Wait::UpToDate | Wait::Acting));
    let fleet = cluster.operator_condition(models::operator::BLOCKED);
    let planned = planned.map(|wait| match (wait, fleet) {
        (Wait::ExpressionsPending { .. }, Some(condition)) => because(condition),
        _ => (wait.as_str().to_owned(), wait.to_string()),
    });
    let paused = plan.waits.get(node).is_some_and(Wait::pauses);
    let ends = deadline(cluster, node, progress).filter(|_| !paused).map(|at| {
        let left = between(now, at).as_secs();
        let until = if wide { format!(" (until {at})") } else { String::new() };
        format!("{}m{:02}s left{until}", left / 60, left % 60)
    });
    // A narrow line is cut at its end: the reason and the time come first.
    let recorded = if paused { None } else { blocked.or(reach) };
    let (reason, sentence) = recorded.or(planned).unzip();
    let head: Vec<String> = reason.into_iter().chain(ends).collect();
    let waits: Vec<String> = [head.join(", "), text(sentence)].into_iter().filter(|part| !part.is_empty()).collect();
    [
        node.to_owned(),
        text(status.agent.current_version.map(|v| v.to_string())),
        text(shadow.spec.version.as_ref().map(ToString::to_string)),
        progress.map_or("Idle", |p| Step::as_str(p.step)).to_owned(),
        text(
            last.map(|l| if wide && !l.message.is_empty() { format!("{}: {}", l.reason, l.message) } else { l.reason }),
        ),
        cluster.filled(&waits.join(": "), node),
    ]
}

/// Returns the deadline of the current step of a node's attempt, by the policy for that node.
fn deadline(cluster: &Cluster, node: &str, progress: Option<&models::shadow::Progress>) -> Option<Timestamp> {
    let progress = progress?;
    let policy = Policy::in_force(cluster.operator_facts().as_ref());
    let facts = cluster.nodes.iter().filter_map(NodeFacts::project).find(|facts| facts.name == node)?;
    let limit = match progress.step {
        Step::Staging => policy.stage,
        Step::Draining => {
            policy.group_of(&facts).map_or(&policy.all, |group| &policy.groups[group].policy).drain.timeout
        }
        Step::Rebooting => policy.reboot,
        Step::Returning => policy.returning,
        _ => return None,
    };
    progress.since.checked_add(SignedDuration::try_from(limit).ok()?).ok()
}

#[cfg(test)]
mod tests;
