//! One simulated course as a page for browsers.

use jiff::Timestamp;
use models::shadow::UPDATED;
use planner::policy::{Policy, WindowState};
use planner::simulation::{Course, NodeCourse, Scenario};
use serde_json::{Value, json};

use super::report::{duration, facts};
use super::summary::Summary;
use crate::browser::table;
use crate::timeline::{Sheet, render};

/// The most changes of the window that are drawn.
const CHANGES: usize = 500;

/// Returns the times at which the window of nodes in no group opens and closes.
fn changes(policy: &Policy, course: &Course) -> Vec<Value> {
    let (mut at, mut found) = (course.start, Vec::new());
    let entry = |time: Timestamp, kind: &str| json!({"time": time.as_second(), "kind": kind, "step": null, "by": null, "message": ""});
    while at <= course.end && found.len() < CHANGES {
        let (kind, next) = match policy.all.schedule.at(at) {
            WindowState::Open { until } => ("WindowOpened", until),
            WindowState::Closed { opens, .. } => ("WindowClosed", opens),
        };
        if next.is_none() && found.is_empty() && kind == "WindowOpened" {
            return found;
        }
        found.push(entry(at, kind));
        match next.filter(|next| *next > at) {
            Some(next) => at = next,
            None => break,
        }
    }
    found
}

fn row(scenario: &Scenario, course: &Course, index: usize, node: &NodeCourse) -> Option<Value> {
    let at = |second: Option<u32>| second.map(|second| course.time(second).as_second());
    let member = &scenario.members[index];
    // 0: the version before, 1: the new one, 2: updated, 3: failed, 4: still under way.
    let result = match node.ended {
        Some(_) if node.updated => 2,
        Some(_) => 3,
        None => 4,
    };
    let ended = at(node.ended).unwrap_or(course.end.as_second());
    Some(json!([
        models::plain::plain(member.name()),
        node.attempts,
        0,
        0,
        1,
        result,
        "",
        at(node.began)?,
        at(node.drained_from),
        at(node.drained),
        at(node.back),
        ended,
        "",
        "",
        [],
        [],
        node.evicted,
    ]))
}

/// Returns a course as HTML. `summary` has the figures of all of them.
pub(crate) fn page(title: &str, scenario: &Scenario, course: &Course, summary: &Summary) -> anyhow::Result<String> {
    let nodes = || course.nodes.iter().enumerate();
    let rows: Vec<Value> = nodes().filter_map(|(index, node)| row(scenario, course, index, node)).collect();
    let version = |of: fn(&&semver::Version, &&semver::Version) -> std::cmp::Ordering| {
        let all =
            scenario.members.iter().flat_map(|member| member.offered.first().into_iter().chain([&member.host.runs]));
        all.max_by(of).map(ToString::to_string).unwrap_or_default()
    };
    let (newest, oldest) = (version(|a, b| a.cmp(b)), version(|a, b| b.cmp(a)));
    let mut entries = changes(&scenario.policy, course);
    if let Some(freeze) = &course.freeze {
        let time = course.time(freeze.at).as_second();
        entries.push(
            json!({"time": time, "kind": "Frozen", "step": null, "by": null, "message": freeze.version.to_string()}),
        );
    }
    let data = json!({
        "begun": course.start.as_second(), "ended": course.end.as_second(), "entries": entries,
        "succeeds": UPDATED, "texts": [oldest, newest, UPDATED, "Failed", "Under way"], "rows": rows,
    });
    let attempts = nodes().filter(|(_, node)| node.began.is_some()).map(|(index, node)| {
        let at = |second: Option<u32>| second.map(|second| format!("{:.0}", course.time(second))).unwrap_or_default();
        let took = node.began.zip(node.ended).map(|(began, ended)| duration(u64::from(ended.saturating_sub(began))));
        [
            scenario.members[index].name().to_owned(),
            at(node.began),
            at(node.drained_from),
            at(node.ended),
            took.unwrap_or_default(),
            node.attempts.to_string(),
            node.evicted.to_string(),
            if node.updated { "updated".to_owned() } else { String::new() },
        ]
    });
    let header = ["Node", "Begins", "Out of service", "Ends", "Takes", "Attempts", "Evicted", "Result"];
    render(&Sheet {
        title: title.to_owned(),
        fields: facts(summary),
        data,
        tables: vec![table("Attempts", header, attempts)],
        footer: "All times are UTC. This is a simulation: the course with the median duration.".to_owned(),
    })
}
