//! The figures as text.

use std::time::Duration;

use planner::simulation::{Course, Scenario};

use super::summary::{Spread, Summary};
use crate::clock::span;
use crate::page::{Page, Style};

/// Returns a number of seconds in its two largest units.
pub(crate) fn duration(seconds: u64) -> String {
    span(Duration::from_secs(seconds))
}

/// Returns a spread as text: `5`, or `5 (4 to 7)`.
fn spread(spread: Spread, text: impl Fn(u64) -> String) -> String {
    if spread.p10 == spread.p90 {
        return text(spread.p50);
    }
    format!("{} ({} to {})", text(spread.p50), text(spread.p10), text(spread.p90))
}

/// Returns the figures of a simulation, each with its name.
pub(crate) fn facts(summary: &Summary) -> Vec<(&'static str, String)> {
    let number = |value: u64| value.to_string();
    let all = usize::try_from(summary.up_to_date.p10).is_ok_and(|current| current == summary.nodes);
    let all = if all { " (all)" } else { "" };
    let mut facts = vec![
        ("Updated", format!("{} nodes", spread(summary.updated, number))),
        ("Up to date", format!("{} of {} nodes{all}", spread(summary.up_to_date, number), summary.nodes)),
    ];
    if summary.cut * 2 > summary.courses {
        facts.push(("Takes", "it does not end: nodes fail or wait without an end".to_owned()));
    } else if summary.updated.p90 > 0 {
        let end = models::time::after(summary.start, Duration::from_secs(summary.makespan_seconds.p50));
        facts.push(("Takes", spread(summary.makespan_seconds, duration)));
        facts.push(("Ends", format!("{end:.0} if it begins at {:.0}", summary.start)));
    }
    facts.push(("At a time", format!("at most {} nodes out of service", spread(summary.peak, number))));
    facts.push(("Evictions", spread(summary.evictions, number)));
    if summary.failures.p90 > 0 {
        facts.push(("Failures", format!("{} attempts", spread(summary.failures, number))));
    }
    facts.extend(summary.freezes.iter().map(|freeze| {
        let text = format!(
            "by {} in {} of {} courses, with {} nodes on it and {} taken out of service",
            freeze.version,
            freeze.courses,
            summary.courses,
            spread(freeze.updated, number),
            spread(freeze.disrupted, number)
        );
        ("Frozen", text)
    }));
    if summary.cut > 0 {
        facts.push(("Not ended", format!("{} courses at the end of the simulated time", summary.cut)));
    }
    facts
}

/// Column at which the figures begin.
const FIGURES: usize = 13;

/// Adds the figures of a simulation.
pub(crate) fn add(page: &mut Page, summary: &Summary) {
    let number = |value: u64| value.to_string();
    if summary.courses > 1 {
        let text = format!(
            "{} simulated courses. Each figure is the median; in brackets are the tenth and the ninetieth percentile.",
            summary.courses
        );
        page.paragraph(&text);
    }
    for (name, value) in facts(summary) {
        page.indented(&format!("{name}:"), FIGURES, Style::Strong, &value);
    }
    if !summary.refusals.is_empty() {
        page.line("");
        let rows = summary.refusals.iter().take(10).map(|(budget, times)| [budget.clone(), spread(*times, number)]);
        page.table(["BUDGET", "REFUSED EVICTIONS"], rows);
    }
    if !summary.windows.is_empty() {
        page.line("");
        let rows = summary.windows.iter().map(|window| {
            let closes = window.closes.map(|at| format!("{at:.0}")).unwrap_or_default();
            [format!("{:.0}", window.opens), closes, window.updated.to_string()]
        });
        page.table(["WINDOW OPENS", "CLOSES", "NODES UPDATED"], rows);
    }
    if !summary.behind.is_empty() {
        page.line("");
        let rows = summary.behind.iter().map(|behind| {
            let more = if behind.nodes > behind.names.len() && !behind.names.is_empty() { ", …" } else { "" };
            [
                behind.nodes.to_string(),
                behind.reason.clone(),
                format!("{}{more}", behind.names.join(", ")),
                behind.message.clone(),
            ]
        });
        page.table(["NODES", "NOT UPDATED FOR", "NAMES", "MESSAGE OF THE FIRST"], rows);
    }
}

/// Returns why not every node is updated, as sentences; none if every node is.
pub(crate) fn findings(scenario: &Scenario, courses: &[Course], summary: &Summary) -> Vec<String> {
    let mut findings = Vec::new();
    let left = courses.iter().map(|course| summary.nodes.saturating_sub(course.current)).max();
    if let Some(left) = left.filter(|left| *left > 0) {
        findings.push(format!("up to {left} nodes are not updated at the end of a course: see NOT UPDATED FOR"));
    }
    findings.extend(summary.freezes.iter().map(|freeze| {
        format!(
            "failures of {} freeze the rollout in {} of {} courses",
            freeze.version, freeze.courses, summary.courses
        )
    }));
    if summary.cut > 0 {
        findings.push(format!(
            "the rollout has not ended after {} in {} of {} courses",
            span(scenario.horizon.unsigned_abs()),
            summary.cut,
            summary.courses
        ));
    }
    findings
}

pub(crate) fn add_findings(page: &mut Page, findings: &[String]) {
    for finding in findings {
        page.indented("!", 2, Style::Bad, finding);
    }
}
