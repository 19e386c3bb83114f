//! The state of the fleet as one screen of text.

use jiff::Timestamp;
use models::names;
use models::operator::CompletionEstimate;
use models::time::between;
use planner::wait::{WaitReason, WaitsFor};

use super::shape::{IDLE, NodeReport, Report, RestingRollout, Rollout, Waiting, Window};
use crate::advice::{command, counted, labelling, some};
use crate::clock::{moment, span};
use crate::page::{Cell, Fields, Page, Style, first_of};
use crate::shell::for_cluster;

/// Number of nodes up to which all are listed, and of those that are listed of more.
const LISTED: usize = 50;

/// Number of nodes that a line names.
const NAMED: usize = 3;

/// Number of sentences about what was not read: each right that is missing, which come first, and objects.
pub(crate) const NOT_READ: usize = 12;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Maximum width of a line; `None`: every text in full.
    pub(crate) width: Option<usize>,
    pub(crate) all: bool,
    /// True for the screen of `watch`, which has no `-o`.
    pub(crate) is_live: bool,
}

pub(crate) fn render(report: &Report, look: Look) -> Page {
    let other = look.is_live.then(|| command(&report.namespace, "status"));
    let mut page = Page::of_width(look.width).whole_in(other);
    head(&mut page, report);
    if report.nodes.is_empty() {
        page.field("Nodes:", Style::Warn, &no_nodes());
        return page;
    }
    let listed = listed(&report.nodes, look.all);
    let wide = look.width.is_none();
    page.line("");
    let rows = listed.iter().map(|node| row(node, wide, report.time));
    page.table(["NODE", "VERSION", "TARGET", "STEP", "LAST", "WAITS FOR"], rows);
    let hidden = report.nodes.len() - listed.len();
    if hidden > 0 {
        let current = report.nodes.iter().filter(|node| node.is_current()).count();
        page.line(format_args!(
            "{hidden} of {} nodes are not listed ({current} of them are up to date): --all lists them.",
            report.nodes.len()
        ));
    }
    page.cut_note();
    page
}

/// Returns the sentence in the place of the table where there is no node.
pub(super) fn no_nodes() -> String {
    format!("none is under the operator. Label Bottlerocket nodes: {}", for_cluster(&labelling("NAME")))
}

/// Adds the lines above the table.
fn head(page: &mut Page, report: &Report) {
    let left_out = page.left_out();
    let mut field = |label: &str, style: Style, text: &str| page.field(label, style, text);
    policy(report, &mut field);
    windows(report, &mut field);
    for rollout in &report.rollouts {
        field("Rollout:", Style::Busy, &rollout_text(rollout, report.time));
    }
    for rollout in &report.resting {
        field("Rollout:", Style::Faint, &resting_text(rollout));
    }
    counts(report, &mut field);
    trouble(report, &mut field);
    waiting(report, |_| true, &mut field);
    missing(report, &left_out, &mut field);
}

/// Adds whether updates are enabled, and what is wrong with the policy.
pub(super) fn policy(report: &Report, field: &mut Fields<'_>) {
    if let Some(paused) = &report.paused {
        field("Paused:", Style::Bad, paused);
    }
    let policy = &report.policy;
    match report.enabled {
        None => field(
            "Updates:",
            Style::Warn,
            &format!(
                "there is no BottlerocketUpdateOperator named {} in {}, so that nothing new starts. Create it to start updates. \
                 To see whether another namespace has the operator: {}",
                names::OPERATOR_NAME,
                report.namespace,
                command(&report.namespace, "doctor")
            ),
        ),
        Some(true) => field("Updates:", Style::Good, "enabled"),
        Some(false) => field(
            "Updates:",
            Style::Warn,
            &format!("disabled (spec.enabled is false): {}", command(&report.namespace, "resume")),
        ),
    }
    for (index, error) in policy.errors.iter().enumerate() {
        let label = if index == 0 { "Rejected:" } else { "" };
        field(label, Style::Bad, &format!("{}: {}", error.field, error.message));
    }
    match policy.state {
        "Rejected" => {
            field("", Style::Plain, "Nothing new starts. Updates under way are finished under the last valid policy.");
        }
        "Unusable" => field(
            "",
            Style::Plain,
            "There is no valid policy to go back to: nothing new starts, and updates without a reboot permit end.",
        ),
        _ => {}
    }
    if let Some(generation) = policy.generation.filter(|_| !policy.observed) {
        let text = format!("the controller has not seen generation {generation} of the policy yet");
        field("Pending:", Style::Warn, &text);
    }
}

/// Adds the target version and the windows.
pub(super) fn windows(report: &Report, field: &mut Fields<'_>) {
    if report.enabled.is_some() {
        field("Target:", Style::Plain, &report.policy.target);
        for window in &report.windows {
            let (style, text) = window_text(window, report.time);
            field("Window:", style, &text);
        }
    }
}

/// Adds the numbers of nodes, and the age of what they run.
pub(super) fn counts(report: &Report, field: &mut Fields<'_>) {
    if let Some(counts) = &report.counts {
        let text = format!(
            "{}: {} current, {} updating, {} staged, {} blocked, {} failed",
            counts.total, counts.current, counts.updating, counts.staged, counts.blocked, counts.failed
        );
        field("Nodes:", Style::Plain, &text);
    }
    if let Some(freshness) = &report.freshness {
        let (style, text) = freshness.text(report.time);
        field("Fresh:", style, &text);
    }
}

/// Adds what stops the rollout, and problems.
pub(super) fn trouble(report: &Report, field: &mut Fields<'_>) {
    for (label, style, requests) in [
        ("Frozen:", Style::Bad, report.frozen.as_slice()),
        ("Held:", Style::Warn, report.held.as_slice()),
        ("Braked:", Style::Bad, report.braked.as_slice()),
        ("Approval:", Style::Warn, report.approvals.as_slice()),
    ] {
        for request in requests {
            field(label, style, &format!("{}: {}", request.message, request.command));
        }
    }
    for problem in &report.problems {
        field("Problem:", Style::Bad, &format!("{}: {}", problem.reason, problem.message));
    }
}

/// Adds what nodes wait for, of the reasons that are to be shown.
pub(super) fn waiting(report: &Report, is_shown: impl Fn(&Waiting) -> bool, field: &mut Fields<'_>) {
    for (index, waiting) in report.waiting.iter().filter(|waiting| is_shown(waiting)).enumerate() {
        let label = if index == 0 { "Waiting:" } else { "" };
        let party = waiting.waits_for.as_ref().map_or_else(String::new, |party| format!(" ({party})"));
        let nodes = some(&waiting.nodes, NAMED);
        field(label, Style::Busy, &format!("{} {}{party}: {nodes}", waiting.nodes.len(), waiting.reason));
    }
}

/// Adds agents that do not report, requests without an effect, and what was not read.
pub(super) fn missing(report: &Report, left_out: &str, field: &mut Fields<'_>) {
    for (index, agent) in report.silent_agents.iter().take(NAMED).enumerate() {
        let label = if index == 0 { "Silent:" } else { "" };
        let since = agent.since.map_or_else(String::new, |since| format!(", since {}", moment(since, report.time)));
        field(label, Style::Warn, &format!("the agent of {}: {}{since}", agent.node, agent.message));
    }
    if let Some(more) = report.silent_agents.len().checked_sub(NAMED).filter(|more| *more > 0) {
        field("", Style::Plain, &format!("and the agents of {}{left_out}", counted(more, "more node")));
    }
    first_of("Request:", Style::Warn, &report.misplaced_requests, NAMED, left_out, field);
    first_of("Not read:", Style::Warn, &report.not_read, NOT_READ, left_out, field);
}

fn window_text(window: &Window, now: Timestamp) -> (Style, String) {
    let group = window.group.as_ref().map_or_else(String::new, |group| format!("group {group}: "));
    let next = window.opens.map(|opens| moment(opens, now));
    let text = match (window.open, window.closes) {
        (true, None) => "always open".to_owned(),
        (true, Some(closes)) => {
            let next = next.map_or_else(|| "none follows".to_owned(), |next| format!("the next one opens {next}"));
            format!("open until {}; {next}", moment(closes, now))
        }
        (false, _) => {
            let closed = if window.blackout { "closed by a blackout" } else { "closed" };
            let next = next.map_or_else(|| "none is in sight".to_owned(), |next| format!("the next one opens {next}"));
            format!("{closed}; {next}")
        }
    };
    (if window.open { Style::Good } else { Style::Warn }, format!("{group}{text}"))
}

pub(super) fn rollout_text(rollout: &Rollout, now: Timestamp) -> String {
    let mut text = format!(
        "{} for {} {}, begun {}: {} of {} nodes updated",
        rollout.version,
        rollout.variant,
        rollout.arch,
        moment(rollout.started, now),
        rollout.updated,
        rollout.nodes
    );
    if let (Some(step), Some(nodes)) = (rollout.step, rollout.step_nodes) {
        text.push_str(&format!("; canary step {step} of {} ({})", rollout.steps, counted(nodes, "node")));
        match (&rollout.waits, rollout.step_free) {
            (Some(waits), _) => text.push_str(&format!(", which {waits}")),
            (None, Some(free)) => text.push_str(&format!(", which has {free} of {nodes} places free")),
            (None, None) => {}
        }
    }
    if let Some(until) = rollout.urgent_until {
        text.push_str(&format!("; urgent until {}", moment(until, now)));
    }
    if let Some(CompletionEstimate { at, earliest, latest, .. }) = &rollout.estimated_completion {
        let range = if earliest == latest { String::new() } else { format!(", between {earliest:.0} and {latest:.0}") };
        text.push_str(&format!("; completion expected at {}{range}", moment(*at, now)));
    }
    text
}

/// Returns the line about a rollout that waits for nodes that are to have its version.
pub(super) fn resting_text(rollout: &RestingRollout) -> String {
    let RestingRollout { version, variant, arch, number } = rollout;
    format!("{version} for {variant} {arch} (rollout {number}): rests; no node is to have it now")
}

/// Returns all nodes in their order: of many, those with something to see come first, the most important at the head.
pub(super) fn ordered(nodes: &[NodeReport]) -> Vec<&NodeReport> {
    let blocks =
        |node: &NodeReport| node.reason.as_ref().is_some_and(|reason| reason.parse().is_ok_and(WaitReason::blocks));
    let rank = |node: &&NodeReport| match node.step {
        IDLE if node.is_current() => 5,
        "Staged" | IDLE if blocks(node) => 1,
        "Staged" | IDLE if node.has_failed() => 2,
        "Staged" => 3,
        IDLE => 4,
        _ => 0,
    };
    let mut ordered: Vec<&NodeReport> = nodes.iter().collect();
    if nodes.len() > LISTED {
        ordered.sort_by_key(rank);
    }
    ordered
}

/// Returns the nodes to list, in their order: of many only those with something to see.
pub(super) fn listed(nodes: &[NodeReport], all: bool) -> Vec<&NodeReport> {
    if all || nodes.len() <= LISTED {
        return nodes.iter().collect();
    }
    let mut listed = ordered(nodes);
    listed.retain(|node| !node.is_current());
    listed.truncate(LISTED);
    listed
}

pub(super) fn row(node: &NodeReport, wide: bool, now: Timestamp) -> [Cell; 6] {
    let text = |version: &Option<semver::Version>| version.as_ref().map(ToString::to_string).unwrap_or_default();
    let ends = node.ends.map(|at| {
        let named = node.message.as_ref().is_some_and(|message| message.contains(&format!("{at:.0}")));
        let until = if wide && !named { format!(" (until {at:.0})") } else { String::new() };
        format!("{} left{until}", span(between(now, at)))
    });
    let last = node.last.as_ref().map(|last| match last.message.as_str() {
        message if wide && !message.is_empty() => format!("{}: {message}", last.reason),
        _ => last.reason.clone(),
    });
    // A narrow line is cut at its end: the reason and the time come first.
    let head: Vec<String> = node.reason.clone().into_iter().chain(ends).collect();
    let waits: Vec<String> = [head.join(", "), node.message.clone().unwrap_or_default()].into();
    let waits: Vec<String> = waits.into_iter().filter(|part| !part.is_empty()).collect();
    let step = if node.step == IDLE { Style::Plain } else { Style::Busy };
    let result = if node.has_failed() { Style::Bad } else { Style::Plain };
    let kind = match (node.drill, node.verification) {
        (true, _) => " (drill)",
        (false, true) => " (again)",
        (false, false) => "",
    };
    [
        Cell::from(node.name.clone()),
        Cell::from(text(&node.version)),
        Cell::from(text(&node.target)),
        Cell::new(format!("{}{kind}", node.step), step),
        Cell::new(last.unwrap_or_default(), result),
        Cell::new(waits.join(": "), reason_style(node.reason.as_deref())),
    ]
}

pub(crate) fn reason_style(reason: Option<&str>) -> Style {
    match reason.and_then(|reason| reason.parse::<WaitReason>().ok()) {
        Some(WaitReason::Frozen | WaitReason::Quarantined) => Style::Bad,
        Some(reason) if reason.blocks() || reason.explanation().0 == WaitsFor::User => Style::Warn,
        _ => Style::Plain,
    }
}
