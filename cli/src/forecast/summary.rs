//! Figures of many simulated courses of one rollout.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use planner::policy::{Policy, WindowState};
use planner::simulation::{Course, NodeCourse, Scenario};
use planner::wait::{Wait, without_command};
use serde::Serialize;

/// The most windows that are listed.
const WINDOWS: usize = 60;

/// The most reasons that are listed, and the most nodes that each names.
const REASONS: usize = 12;
const NAMED: usize = 5;

/// A figure of several courses: in one tenth of them it is lower than the first number, in one tenth higher than the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Spread {
    pub(crate) p10: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
}

impl Spread {
    /// Returns the spread of these numbers; zeros for none.
    pub(crate) fn of(numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut all: Vec<u64> = numbers.into_iter().collect();
        all.sort_unstable();
        let at = |tenths: usize| all.get((all.len().saturating_sub(1) * tenths + 5) / 10).copied().unwrap_or(0);
        Self { p10: at(1), p50: at(5), p90: at(9) }
    }
}

/// The nodes that were updated in a window, in the course with the median makespan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WindowProgress {
    pub(crate) opens: Timestamp,
    /// Absent if it was open to the end.
    pub(crate) closes: Option<Timestamp>,
    pub(crate) updated: usize,
}

/// Nodes that are not updated for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Behind {
    pub(crate) reason: String,
    pub(crate) nodes: usize,
    /// The first nodes.
    pub(crate) names: Vec<String>,
    /// The reason of the first node in full.
    pub(crate) message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Freezes {
    pub(crate) version: String,
    /// The number of courses in which it froze the rollout.
    pub(crate) courses: usize,
    /// The number of nodes that ran it by then.
    pub(crate) updated: Spread,
    /// The number of nodes taken out of service for it by the end.
    pub(crate) disrupted: Spread,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// The number of nodes under the operator.
    pub(crate) nodes: usize,
    pub(crate) courses: usize,
    pub(crate) start: Timestamp,
    /// Nodes with an attempt that has updated them.
    pub(crate) updated: Spread,
    /// Nodes on the version that the policy wants, at the end.
    pub(crate) up_to_date: Spread,
    /// From the beginning to the end of the last attempt, in seconds.
    pub(crate) makespan_seconds: Spread,
    /// Nodes out of service at a time, at most.
    pub(crate) peak: Spread,
    pub(crate) evictions: Spread,
    /// Evictions refused by a budget, by its namespace and name, most first.
    pub(crate) refusals: Vec<(String, Spread)>,
    pub(crate) failures: Spread,
    pub(crate) freezes: Vec<Freezes>,
    pub(crate) windows: Vec<WindowProgress>,
    /// The nodes that were not updated in the course with the median makespan.
    pub(crate) behind: Vec<Behind>,
    /// The number of courses that had not ended at the horizon.
    pub(crate) cut: usize,
}

impl Summary {
    /// Returns the figures of these courses of a scenario, and the index of the one with the median makespan.
    pub(crate) fn of(scenario: &Scenario, courses: &[Course]) -> (Self, usize) {
        let over = |figure: &dyn Fn(&Course) -> usize| Spread::of(courses.iter().map(|course| figure(course) as u64));
        let seconds = |course: &Course| u64::try_from(course.makespan().as_secs()).unwrap_or(0);
        let mut order: Vec<usize> = (0..courses.len()).collect();
        order.sort_by_key(|index| courses[*index].makespan());
        let median = order.get(order.len() / 2).copied().unwrap_or(0);
        let typical = courses.get(median);
        let mut refusals: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (budget, number) in courses.iter().flat_map(|course| &course.refusals) {
            refusals.entry(budget).or_default().push(*number);
        }
        let missing = |mut numbers: Vec<u64>| {
            numbers.resize(courses.len(), 0);
            Spread::of(numbers)
        };
        let mut refusals: Vec<(String, Spread)> =
            refusals.into_iter().map(|(budget, numbers)| (budget.to_owned(), missing(numbers))).collect();
        refusals.sort_by(|(a, x), (b, y)| y.p50.cmp(&x.p50).then_with(|| a.cmp(b)));
        let failures = |course: &Course| course.nodes.iter().map(|node| node.failures as usize).sum();
        let summary = Self {
            nodes: scenario.members.len(),
            courses: courses.len(),
            start: scenario.start,
            updated: over(&Course::updated),
            up_to_date: over(&|course| course.current),
            makespan_seconds: Spread::of(courses.iter().map(seconds)),
            peak: over(&|course| course.peak),
            evictions: Spread::of(courses.iter().map(|course| course.evictions)),
            refusals,
            failures: over(&failures),
            freezes: freezes(courses),
            windows: typical.map(|course| windows(&scenario.policy, course)).unwrap_or_default(),
            behind: typical.map(behind).unwrap_or_default(),
            cut: courses.iter().filter(|course| course.cut).count(),
        };
        (summary, median)
    }
}

fn freezes(courses: &[Course]) -> Vec<Freezes> {
    let mut by_version: BTreeMap<String, Vec<(&Course, usize)>> = BTreeMap::new();
    for course in courses {
        if let Some(freeze) = &course.freeze {
            by_version.entry(freeze.version.to_string()).or_default().push((course, freeze.updated));
        }
    }
    let freezes = by_version.into_iter().map(|(version, all)| {
        let disrupted = |course: &Course| course.nodes.iter().filter(|node| node.drained_from.is_some()).count() as u64;
        Freezes {
            version,
            courses: all.len(),
            updated: Spread::of(all.iter().map(|(_, updated)| *updated as u64)),
            disrupted: Spread::of(all.iter().map(|(course, _)| disrupted(course))),
        }
    });
    freezes.collect()
}

/// Returns the windows for nodes in no group up to the end of a course. None if it is always open.
fn windows(policy: &Policy, course: &Course) -> Vec<WindowProgress> {
    let (mut at, mut found) = (course.start, Vec::new());
    while at <= course.end && found.len() < WINDOWS {
        let (opens, closes) = match policy.all.schedule.at(at) {
            WindowState::Open { until: None } if found.is_empty() => return found,
            WindowState::Open { until } => (at, until),
            WindowState::Closed { opens: Some(opens), .. } if opens > at => {
                at = opens;
                continue;
            }
            WindowState::Closed { .. } => break,
        };
        let until = closes.unwrap_or(Timestamp::MAX);
        // An attempt that begins in a window may end after it.
        let within = |node: &&NodeCourse| {
            let out = node.drained_from.map(|second| course.time(second));
            node.updated && out.is_some_and(|out| opens <= out && out < until)
        };
        found.push(WindowProgress { opens, closes, updated: course.nodes.iter().filter(within).count() });
        match closes.and_then(|closes| closes.checked_add(SignedDuration::from_secs(1)).ok()) {
            Some(next) if next > at => at = next,
            _ => break,
        }
    }
    found
}

fn behind(course: &Course) -> Vec<Behind> {
    let mut by_reason: BTreeMap<&str, Vec<(&String, &Wait)>> = BTreeMap::new();
    for (node, wait) in &course.waits {
        by_reason.entry(wait.as_str()).or_default().push((node, wait));
    }
    let mut all: Vec<Behind> = by_reason
        .into_iter()
        .map(|(reason, nodes)| Behind {
            reason: reason.to_owned(),
            nodes: nodes.len(),
            names: nodes.iter().take(NAMED).map(|(node, _)| (*node).clone()).collect(),
            message: nodes.first().map_or_else(String::new, |(_, wait)| without_command(&wait.to_string()).to_owned()),
        })
        .collect();
    all.sort_by(|a, b| b.nodes.cmp(&a.nodes).then_with(|| a.reason.cmp(&b.reason)));
    all.truncate(REASONS);
    if course.behind > 0 {
        // They wait for those before them.
        let message = "they come after the nodes above".to_owned();
        all.push(Behind { reason: "NotReached".to_owned(), nodes: course.behind, names: Vec::new(), message });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_nodes_that_are_not_updated_has_no_command_with_placeholders() {
        let (approval, nodes) = (Some("7/1".to_owned()), Vec::new());
        let canary = Wait::CanaryStep { step: 1, until: None, approval, nodes, none_runs: false };
        assert!(canary.to_string().contains("<namespace>"), "{canary}");
        let behind = behind(&Course { waits: BTreeMap::from([("a".to_owned(), canary)]), ..Course::default() });
        let messages: Vec<&str> = behind.iter().map(|behind| behind.message.as_str()).collect();
        assert_eq!(messages, ["canary step 1 waits for approval"]);
    }

    #[test]
    fn spread_is_taken_from_sorted_numbers() {
        assert_eq!(Spread::of([]), Spread::default());
        assert_eq!(Spread::of([7]), Spread { p10: 7, p50: 7, p90: 7 });
        assert_eq!(Spread::of((0..=100).rev()), Spread { p10: 10, p50: 50, p90: 90 });
    }
}
