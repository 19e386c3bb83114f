//! `history ID`: one rollout as text.

use jiff::Timestamp;
use models::history::{HistoryRow, RecordedRollout};
use models::operator::{CanaryStep, CompletionEstimate, CountOrPercent, StepApproval};
use models::shadow::{DrainedPod, PodMove};
use models::time::between;

use super::rollouts::{Rollout, steps};
use crate::page::{Page, Style};

/// Returns a span as `1h02m03s`, without its leading zeros.
pub(super) fn span(from: Timestamp, to: Timestamp) -> String {
    let seconds = between(from, to).as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, s) => format!("{h}h{m:02}m{s:02}s"),
    }
}

/// Returns the versions that nodes ran before, with their numbers.
pub(super) fn origin(head: &RecordedRollout) -> String {
    let from: Vec<String> = head.from.iter().map(|from| format!("{} (nodes: {})", from.version, from.nodes)).collect();
    if from.is_empty() { "unknown".to_owned() } else { from.join(", ") }
}

pub(super) fn step(step: &CanaryStep) -> String {
    let nodes = match &step.nodes {
        CountOrPercent::Count(count) => count.to_string(),
        CountOrPercent::Percent(percent) => percent.clone(),
    };
    let soak = step.soak.map(|soak| format!(", soak {soak}")).unwrap_or_default();
    let approval = if step.approval == Some(StepApproval::Manual) { ", manual approval" } else { "" };
    format!("nodes: {nodes}{soak}{approval}")
}

/// Returns the title of the nodes of a canary step.
pub(super) fn title(rollout: &Rollout, number: i64) -> String {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match index.and_then(|index| rollout.head.steps.get(index)) {
        Some(canary) => format!("Canary step {number} ({})", step(canary)),
        None if number > 0 => format!("Canary step {number}"),
        None if rollout.head.steps.is_empty() => "Nodes".to_owned(),
        None => "After the last canary step".to_owned(),
    }
}

/// Returns the numbers of the removed pages, as ranges.
pub(super) fn removed(numbers: &[i64]) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): (i64, i64)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Returns the number of the pods of a row that left the node in this way.
pub(super) fn moved(row: &HistoryRow, how: PodMove) -> usize {
    row.result.pods.iter().filter(|pod| pod.moved == Some(how)).count()
}

/// Returns the fields of the record's head, each with its name.
pub(super) fn head(rollout: &Rollout) -> Vec<(&'static str, String)> {
    let Rollout { head, status, .. } = rollout;
    let continued = head.first.map(|first| format!(", continues rollout {first}")).unwrap_or_default();
    let ended = match status.ended {
        Some(ended) => format!(", ended {ended} after {}", span(head.begun, ended)),
        None => String::new(),
    };
    let revision = match head.revision.number {
        0 => "not known".to_owned(),
        number => format!("{number} ({})", head.revision.name),
    };
    let failed = rollout.rows.iter().filter(|row| rollout.is_failure(&row.result.result)).count();
    let mut fields = vec![
        ("Rollout", format!("{}{continued}", head.number)),
        ("Record", rollout.name.clone()),
        ("Nodes of", format!("{}/{}", head.variant, head.arch)),
        if head.drill {
            ("Drill on", format!("{}: no host was rebooted", head.version))
        } else {
            ("Version", format!("{}, from {}", head.version, origin(head)))
        },
        ("Policy revision", revision),
        ("Operator", format!("{}/{} (uid {})", head.operator.namespace, head.operator.name, head.operator.uid)),
        ("Phase", format!("{}, begun {}{ended}", rollout.phase(), head.begun)),
        ("Attempts", format!("{} (failed: {failed}), pods to move: {}", status.nodes, status.pods)),
    ];
    if let Some(CompletionEstimate { at, earliest, latest, made }) = &status.first_estimate {
        let range = format!("{at:.0} ({earliest:.0} to {latest:.0}), made at {made:.0}");
        fields.push(("First estimate", format!("completion at {range}")));
    }
    if !rollout.removed.is_empty() {
        let pages = removed(&rollout.removed);
        fields.push((
            "Removed pages",
            format!("{pages} of {}: their nodes and pods are not shown, nor counted as failed", status.pages.len()),
        ));
    }
    for (number, canary) in (1..).zip(&head.steps) {
        fields.push(("Canary step", format!("{number}: {}", step(canary))));
    }
    fields
}

/// Returns the events of a rollout as rows: time, event, step, field manager, message.
pub(super) fn entries(rollout: &Rollout) -> impl Iterator<Item = [String; 5]> {
    rollout.status.entries.iter().map(|entry| {
        [
            entry.time.to_string(),
            entry.kind.as_str().to_owned(),
            entry.step.map(|step| step.to_string()).unwrap_or_default(),
            entry.field_manager.clone().unwrap_or_default(),
            entry.message.clone(),
        ]
    })
}

fn pod(row: &HistoryRow, pod: &DrainedPod) -> [String; 6] {
    [
        row.node.clone(),
        format!("{}/{}", pod.namespace, pod.name),
        pod.owner.clone().unwrap_or_default(),
        pod.budgets.join(","),
        pod.services.join(","),
        pod.moved.map_or("Stayed", PodMove::as_str).to_owned(),
    ]
}

fn node(row: &HistoryRow) -> [String; 11] {
    let result = &row.result;
    // Enough to distinguish boots; -o json has them in full.
    let boot = |id: &str| if id.is_empty() { "-".to_owned() } else { id.chars().take(8).collect() };
    let message = if result.message.is_empty() { String::new() } else { format!(": {}", result.message) };
    [
        row.node.clone(),
        result.attempt.to_string(),
        match &result.drill {
            Some(drill) if drill.evict => format!("drill on {} with evictions", result.to),
            Some(_) => format!("drill on {}", result.to),
            None => format!("{}→{}", result.from.as_ref().map_or("?".to_owned(), ToString::to_string), result.to),
        },
        result.started.to_string(),
        span(result.started, result.ended),
        moved(row, PodMove::Evicted).to_string(),
        moved(row, PodMove::Forced).to_string(),
        moved(row, PodMove::LeftToReboot).to_string(),
        result.running.len().to_string(),
        format!("{}→{}", boot(&result.boot_before), boot(&result.boot_after)),
        format!("{}{message}", result.result),
    ]
}

/// Column at which the values of a rollout's fields begin.
const FIELDS: usize = 17;

pub(super) fn text(rollout: &Rollout, width: Option<usize>) -> Page {
    let mut page = Page::of_width(width);
    for (name, value) in head(rollout) {
        page.indented(&format!("{name}:"), FIELDS, Style::Strong, &value);
    }
    page.line("");
    page.table(["TIME", "EVENT", "STEP", "FIELD MANAGER", "MESSAGE"], entries(rollout));
    for number in steps(&rollout.rows) {
        let rows: Vec<&HistoryRow> = rollout.rows.iter().filter(|row| row.result.step == number).collect();
        page.line("");
        page.line(title(rollout, number));
        page.table(
            [
                "NODE",
                "ATTEMPT",
                "VERSION",
                "STARTED",
                "TOOK",
                "EVICTED",
                "FORCED",
                "LEFT TO REBOOT",
                "RUNNING AFTER",
                "BOOT",
                "RESULT",
            ],
            rows.iter().map(|row| node(row)),
        );
        if rows.iter().any(|row| !row.result.pods.is_empty()) {
            page.line("");
            let pods = rows.iter().flat_map(|row| row.result.pods.iter().map(|of| pod(row, of)));
            page.table(["NODE", "POD", "OWNER", "BUDGETS", "SERVICES", "MOVED"], pods);
        }
    }
    page.cut_note();
    page
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::testing::{page, record, rollout, row};
    use super::*;

    #[test]
    fn rollout_is_shown_with_its_entries_nodes_and_pods() {
        let pages = [page("r", 1, &[row("a", "Updated")]), page("r", 2, &[row("b", "DrainTimeout")])];
        let record = record(&rollout(7, "1.21.0"), &pages);
        // The first page was removed.
        let rollout = Rollout::parse(&record, &BTreeMap::from([(2, pages[1].clone())])).unwrap();
        let text = text(&rollout, None).to_string();
        for part in [
            "Rollout:         7",
            "1.21.0, from 1.20.0 (nodes: 2)",
            "3 (default-x)",
            "1: nodes: 1, soak 10m, manual approval",
            "2: nodes: 10%",
            "Removed pages:   1 of 2",
            "Attempts:        2 (failed: 1), pods to move: 4",
            "FIELD MANAGER",
            "Approved",
            "kubectl-edit",
            "Canary step 1 (nodes: 1, soak 10m, manual approval)",
            "1.20.0→1.21.0",
            "6m05s",
            "0b5f1111→7c331111",
            "DrainTimeout: a message",
            "shop/web-b",
            "Deployment/web",
            "web,web-internal",
            "LeftToReboot",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("web-a"), "{text}");
    }

    #[test]
    fn attempt_that_was_ended_from_outside_is_not_counted_as_failed() {
        let pages = [page("r", 1, &[row("a", "ReleaseRequested"), row("b", "BootFellBack")])];
        let record = record(&rollout(7, "1.21.0"), &pages);
        let rollout = Rollout::parse(&record, &BTreeMap::from([(1, pages[0].clone())])).unwrap();
        let text = text(&rollout, None).to_string();
        assert!(text.contains("(failed: 1)"), "{text}");
        let html = super::super::html::page(&rollout).unwrap();
        assert!(html.contains(r#""withdrawn":["ReleaseRequested"]"#), "{html}");
    }

    #[test]
    fn record_of_drills_names_them_as_drills() {
        let mut of_a = row("a", "Passed");
        of_a["drill"] = serde_json::json!({"request": "1 evict", "evict": true});
        let pages = [page("r", 1, &[of_a])];
        let head = RecordedRollout { drill: true, ..rollout(8, "1.20.0") };
        let record = record(&head, &pages);
        let rollout = Rollout::parse(&record, &BTreeMap::from([(1, pages[0].clone())])).unwrap();
        let text = text(&rollout, None).to_string();
        for part in ["Drill on:        1.20.0", "(failed: 0)", "with evictions"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let html = super::super::html::page(&rollout).unwrap();
        assert!(html.contains("<title>Drills 8: 1.20.0") && html.contains(r#""succeeds":"Passed""#), "{html}");
        let mut list = Page::default();
        super::super::rollouts::table(&mut list, &[record]);
        assert!(list.to_string().contains("1.20.0 (drill)"), "{list}");
    }

    #[test]
    fn numbers_of_removed_pages_and_spans_are_short() {
        assert_eq!(removed(&[1, 2, 3, 7, 9, 10]), "1-3, 7, 9-10");
        let at = |second| Timestamp::from_second(second).unwrap();
        for (seconds, expected) in [(0, "0s"), (59, "59s"), (61, "1m01s"), (3661, "1h01m01s"), (90_000, "25h00m00s")] {
            assert_eq!(span(at(1000), at(1000 + seconds)), expected);
        }
    }
}
