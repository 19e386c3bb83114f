//! The state of one node as text.

use jiff::Timestamp;
use models::reason::EndEvent;

use super::report::{Attempt, Explanation, Host, NodeState};
use crate::clock::moment;
use crate::page::{Cell, Page, Style};
use crate::status::NOT_READ;

pub(super) fn render(explanation: &Explanation, width: Option<usize>) -> Page {
    let (mut page, now) = (Page::of_width(width), explanation.time);
    let mut field = |label: &str, style: Style, text: &str| page.field(label, style, text);
    field("Node:", Style::Strong, &node_text(&explanation.node));
    if let Some(host) = &explanation.host {
        for (label, text) in host_lines(host, now) {
            field(label, Style::Plain, &text);
        }
    }
    if let Some((style, text)) = freshness_text(explanation) {
        field("Fresh:", style, &text);
    }
    match &explanation.attempt {
        Some(attempt) => field("Attempt:", Style::Busy, &attempt_text(attempt, now)),
        None => field("Attempt:", Style::Plain, "none is under way"),
    }
    for blocker in explanation.attempt.iter().flat_map(|attempt| &attempt.blockers) {
        let budget =
            blocker.budget.as_ref().map_or_else(String::new, |budget| format!(" (PodDisruptionBudget {budget})"));
        let text = format!("{}{budget}: {}, since {}", blocker.pod, blocker.message, moment(blocker.since, now));
        field("Stays:", Style::Warn, &text);
    }
    if let Some(since) = explanation.slot_since {
        field("Slot:", Style::Plain, &format!("since {}", moment(since, now)));
    }
    if let Some(claim) = &explanation.claim {
        let since = claim.since.map_or_else(String::new, |since| format!(", since {}", moment(since, now)));
        field("Claim:", Style::Plain, &format!("the operator has set {}{since}", claim.fields.join(", ")));
    }
    if let Some(last) = &explanation.last {
        let style = match last.event() {
            EndEvent::Updated | EndEvent::DrillPassed => Style::Good,
            EndEvent::UpdateWithdrawn => Style::Plain,
            EndEvent::UpdateFailed | EndEvent::DrillFailed => Style::Bad,
        };
        let message = if last.message.is_empty() { String::new() } else { format!(": {}", last.message) };
        let text = format!("{} to {}, {}{message}", last.reason, last.version, moment(last.ended, now));
        field("Last:", style, &text);
    }
    if let Some(advice) = &explanation.advice {
        field("Advice:", Style::Plain, advice);
    }
    if explanation.failures > 0 {
        field("Failures:", Style::Bad, &format!("{} in a row", explanation.failures));
    }
    for sentence in &explanation.misplaced_requests {
        field("Request:", Style::Warn, sentence);
    }
    for problem in &explanation.problems {
        field("Problem:", Style::Bad, &format!("{}: {}", problem.reason, problem.message));
    }
    let (style, text) = waits_text(explanation);
    field("Waits:", style, &text);
    if let Some(recorded) = &explanation.recorded {
        let text = format!("the controller has recorded {}: {}", recorded.reason, recorded.message);
        field("Recorded:", Style::Warn, &text);
    }
    for object in &explanation.objects {
        let (style, text) = match (object.result, &object.message) {
            ("True", _) => (Style::Good, "true".to_owned()),
            ("False", Some(message)) => (Style::Warn, message.clone()),
            (_, message) => (Style::Warn, format!("not known: {}", message.as_deref().unwrap_or_default())),
        };
        field("Object:", style, &format!("{}, {} an update: {text}", object.name, object.when));
    }
    for (index, next) in explanation.next.iter().enumerate() {
        let at = next.at.map_or_else(String::new, |at| format!("{}: ", moment(at, now)));
        field(if index == 0 { "Next:" } else { "" }, Style::Plain, &format!("{at}{}", next.what));
    }
    page.commands("To do:", Style::Strong, &explanation.commands);
    page.fields("Not read:", Style::Warn, &explanation.not_read, NOT_READ);
    if !explanation.checks.is_empty() {
        table(&mut page, explanation);
    }
    page
}

/// Adds the checks.
fn table(page: &mut Page, explanation: &Explanation) {
    page.line("");
    let rows = explanation.checks.iter().map(|check| {
        let (word, style) = match check.result {
            "Passed" => ("passed", Style::Good),
            "UpToDate" => ("up to date", Style::Good),
            "Waits" => ("WAITS", Style::Warn),
            "NotKnown" => ("not known", Style::Faint),
            _ => ("not reached", Style::Faint),
        };
        let text = match (&check.message, check.result) {
            (Some(message), "Waits" | "Passed" | "UpToDate") => message.clone(),
            (_, "NotKnown") => format!("{} (the controller evaluates them)", check.holds),
            _ => check.holds.to_owned(),
        };
        [Cell::new(word, style), Cell::from(check.name.to_owned()), Cell::from(text)]
    });
    page.table(["RESULT", "CHECK", "WHAT"], rows);
    page.cut_note();
}

fn waits_text(explanation: &Explanation) -> (Style, String) {
    let (style, text) = match &explanation.waits {
        Some(waits) => {
            let party = waits.waits_for.as_ref().map_or_else(String::new, |party| format!(" (waits for {party})"));
            return (Style::Warn, format!("{}{party}: {}", waits.reason, waits.message));
        }
        None if explanation.checks.is_empty() => {
            (Style::Plain, "for nothing: its Node is gone, and the controller deletes its shadow")
        }
        None if explanation.next.is_empty() => (Style::Good, "for nothing: it is up to date"),
        None if !explanation.problems.is_empty() => (Style::Warn, "for a controller that leads: its next step is due"),
        None => (Style::Busy, "for the controller: its next step is due"),
    };
    (style, text.to_owned())
}

fn node_text(node: &NodeState) -> String {
    let flag = |flag: Option<bool>, yes: &str, no: &str| {
        flag.map(|flag| if flag { yes } else { no }.to_owned()).filter(|word| !word.is_empty())
    };
    let parts = [
        flag(node.ready, "Ready", "not Ready"),
        flag(node.cordoned, "cordoned", ""),
        flag(node.labelled, "", "not labelled"),
        node.pressure.clone(),
        node.group.as_ref().map(|group| format!("group {group}")),
        node.zone.as_ref().map(|zone| format!("zone {zone}")),
        node.priority.map(|priority| format!("priority {priority}")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { node.name.clone() } else { format!("{}, {}", node.name, parts.join(", ")) }
}

fn host_lines(host: &Host, now: Timestamp) -> Vec<(&'static str, String)> {
    let word = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
    let version = host.version.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
    let reported = if host.reported { "" } else { "; the agent has not confirmed the desired state in this boot" };
    let mut lines = vec![("Host:", format!("{version}, {} {}{reported}", word(&host.variant), word(&host.arch)))];
    let mut offers = match &host.chosen_version {
        Some(chosen) => format!("{chosen}, which it would take"),
        None => "nothing that it would take".to_owned(),
    };
    let others: Vec<String> = host
        .available_versions
        .iter()
        .filter(|version| host.version.as_ref().is_none_or(|current| *version > current))
        .filter(|version| host.chosen_version.as_ref() != Some(version))
        .map(ToString::to_string)
        .collect();
    if !others.is_empty() {
        offers.push_str(&format!("; also offered: {}", others.join(", ")));
    }
    if let Some(last) = host.last_refresh {
        offers.push_str(&format!("; this offer was first reported {}", moment(last, now)));
    }
    if let Some(failure) = &host.refresh_failure {
        offers.push_str(&format!("; the last check failed: {failure}"));
    }
    lines.push(("Offers:", offers));
    let waves = if host.ignores_waves { "ignored, as policy requires" } else { "the host keeps its place in them" };
    lines.push(("Waves:", waves.to_owned()));
    let own = host.version_lock.as_ref().map(|lock| format!("policy locks the host to {lock}"));
    let other = host.conflicting_lock.as_ref().map(|lock| format!("another client has locked it to {lock}"));
    let locks: Vec<String> = own.into_iter().chain(other).collect();
    if !locks.is_empty() {
        lines.push(("Lock:", locks.join("; ")));
    }
    if let Some(armed) = &host.armed {
        lines.push(("Armed:", format!("{} ({:?})", armed.version, armed.phase)));
    }
    if let (Some(what), Some(reason)) = (host.unreached, &host.not_reached) {
        lines.push(("Reach:", format!("{what}: {reason}")));
    }
    lines
}

/// Returns the line about the age of what the host runs; `None` if that is not known.
fn freshness_text(explanation: &Explanation) -> Option<(Style, String)> {
    let (host, now) = (explanation.host.as_ref()?, explanation.time);
    let Some(behind) = &explanation.behind else {
        // One that the controller has not recorded yet, or that policy excludes, is not counted.
        let is_checked = host.last_refresh.is_some() && host.refresh_failure.is_none();
        let newest = host.version.is_some() && host.chosen_version.is_none() && is_checked;
        return newest.then(|| (Style::Good, "it runs the newest version that it may have".to_owned()));
    };
    let target = behind.late.map_or_else(String::new, |late| {
        let verb = if now < late { "is exceeded at" } else { "has been exceeded since" };
        format!("; spec.freshness.target {verb} {}", moment(late, now))
    });
    let style = if behind.late.is_some_and(|late| late <= now) { Style::Warn } else { Style::Plain };
    Some((style, format!("behind {} since {}{target}", behind.newest, moment(behind.since, now))))
}

fn attempt_text(attempt: &Attempt, now: Timestamp) -> String {
    let from = attempt.from.as_ref().map_or_else(String::new, |from| format!(" from {from}"));
    let what = match &attempt.drill {
        Some(drill) if drill.evict => ", a drill with evictions: the host is not rebooted".to_owned(),
        Some(_) => ", a drill without evictions: the host is not rebooted".to_owned(),
        None if attempt.verification => {
            format!(", another verification of {}: the node stays in service", attempt.version)
        }
        None => format!("{from} to {}", attempt.version),
    };
    let mut text = format!("{}{what}, begun {}", attempt.number, moment(attempt.started, now));
    text.push_str(&format!("; {} since {}", attempt.step, moment(attempt.since, now)));
    if let Some(pods) = attempt.pods {
        text.push_str(&format!("; {pods} pod(s) to evict"));
    }
    if attempt.permitted {
        text.push_str("; its reboot permit is issued");
    }
    text
}
