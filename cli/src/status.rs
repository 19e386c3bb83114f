//! `kubectl brupop status`.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use models::condition::{Condition, find_condition, true_condition};
use models::names;
use models::operator::{DEGRADED, FROZEN, WINDOW_OPEN};
use models::shadow::{BLOCKED, HOST_REACHABLE, Step};
use models::time::between;
use planner::pause::Pause;
use planner::plan::Plan;
use planner::view::ShadowFacts;
use planner::wait::{Wait, WaitReason};

use crate::cluster::Cluster;
use crate::page::Page;

/// Maximum width of a line where the output is no terminal.
const WIDTH: usize = 120;

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

/// Reads the cluster and reports the state of the fleet.
pub(crate) async fn status(client: &Client, namespace: &str, options: &Options) -> anyhow::Result<Page> {
    let cluster = Cluster::read_now(client, namespace, |_| BTreeSet::new()).await?;
    Ok(render(&cluster, options.width(), Timestamp::now()))
}

/// Returns a condition of the operator that holds.
fn operator_condition<'a>(cluster: &'a Cluster, type_: &str) -> Option<&'a Condition> {
    true_condition(&cluster.operator.as_ref()?.status.conditions, type_)
}

fn render(cluster: &Cluster, width: Option<usize>, now: Timestamp) -> Page {
    let mut page = Page::default();
    let plan = cluster.plan(now);
    let paused = Pause::of(cluster.operator.as_ref(), &cluster.earlier_pods, None, cluster.policy().shutdown, now).wait;
    if let Some(wait) = &paused {
        page.line(format_args!("Paused: {wait}"));
    }
    match &cluster.operator {
        None => page.line(format_args!(
            "There is no BottlerocketUpdateOperator named {}: nothing new starts. Create it to start updates.",
            names::OPERATOR_NAME
        )),
        Some(operator) => {
            let status = &operator.status;
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
                let condition = operator_condition(cluster, type_);
                if let Some(condition) = condition.filter(|c| paused.is_none() || c.reason != PAUSED) {
                    page.line(format_args!("{title}: {}", cluster.filled(&condition.message, "")));
                }
            }
        }
    }
    if let Some(wait) = &plan.approval {
        page.line(format_args!("Approval required: {}", cluster.filled(&wait.to_string(), "")));
    }
    for sentence in &cluster.misplaced {
        page.line(sentence);
    }
    for unread in &cluster.unread {
        page.line(format_args!("Not all was read: {}", unread.reason));
    }
    if cluster.shadows.is_empty() {
        page.line(format_args!(
            "No node is under the operator. Label Bottlerocket nodes with {}={}.",
            names::INTERFACE_LABEL,
            names::INTERFACE_VERSION
        ));
        return page;
    }
    let rows: Vec<_> =
        cluster.shadows.values().map(|shadow| row(cluster, shadow, &plan, width.is_none(), now)).collect();
    let cut = page.table(["NODE", "VERSION", "TARGET", "STEP", "LAST", "WAITS FOR"], rows, width);
    if cut {
        page.line("Lines that end with … are cut; --wide shows them whole.");
    }
    page
}

fn row(cluster: &Cluster, shadow: &ShadowFacts, plan: &Plan, wide: bool, now: Timestamp) -> [String; 6] {
    let node = shadow.node.as_str();
    let status = shadow.status.clone();
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
    let fleet = operator_condition(cluster, models::operator::BLOCKED);
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
    let policy = cluster.policy();
    let facts = cluster.nodes.as_ref()?.get(node)?;
    let limit = match progress.step {
        Step::Staging => policy.stage,
        Step::Draining => policy.for_node(facts).drain.timeout,
        Step::Rebooting => policy.reboot,
        Step::Returning => policy.returning,
        _ => return None,
    };
    progress.since.checked_add(SignedDuration::try_from(limit).ok()?).ok()
}

#[cfg(test)]
mod tests;
