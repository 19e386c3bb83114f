//! `status --html`: the state of the fleet as a page for browsers.

use planner::wait::WaitsFor;

use super::shape::{Report, Waiting};
use super::text::{self, ordered, resting_text, rollout_text, row};
use crate::advice::command;
use crate::browser::{Document, escape, fields, render, table};
use crate::page::{Cell, Fields, Page, Style};

/// A label and its text, as the terminal shows them.
type Line = (String, Cell);

fn lines(add: impl FnOnce(&mut Fields<'_>)) -> Vec<Line> {
    let mut lines = Vec::new();
    add(&mut |label: &str, style: Style, text: &str| {
        lines.push((label.trim_end_matches(':').to_owned(), Cell::new(text, style)));
    });
    lines
}

fn section(heading: &str, lines: &[Line], otherwise: &str) -> String {
    let content = match lines {
        [] => format!("<p>{otherwise}</p>\n"),
        lines => fields(lines.iter().map(|(label, cell)| (label.as_str(), cell.clone()))),
    };
    format!("<section>\n<h2>{heading}</h2>\n{content}</section>\n")
}

/// Returns the rollouts under way, each with a bar.
fn rollouts(report: &Report) -> String {
    let rollout = report.rollouts.iter().map(|rollout| {
        let (text, nodes) = (escape(&rollout_text(rollout, report.time)), rollout.nodes.max(1));
        format!("<p><label>{text}<progress value=\"{}\" max=\"{nodes}\"></progress></label></p>\n", rollout.updated)
    });
    let resting = report.resting.iter().map(|rollout| format!("<p>{}</p>\n", escape(&resting_text(rollout))));
    let content: String = rollout.chain(resting).collect();
    let content = if content.is_empty() { "<p>None is under way.</p>\n".to_owned() } else { content };
    format!("<section>\n<h2>Rollouts</h2>\n{content}</section>\n")
}

fn nodes(report: &Report) -> String {
    let content = if report.nodes.is_empty() {
        "<p>None is under the operator.</p>".to_owned()
    } else {
        let rows = ordered(&report.nodes).into_iter().map(|node| row(node, true, report.time));
        let header = ["Node", "Version", "Target", "Step", "Last", "Waits for"];
        table(&format!("Nodes under the operator: {}", report.nodes.len()), header, rows)
    };
    format!("<section class=\"nodes\">\n<h2>Nodes</h2>\n{content}\n</section>\n")
}

/// Returns the state of the fleet as HTML. What needs a user comes first.
pub(super) fn page(report: &Report) -> anyhow::Result<String> {
    let is_of_user = |waiting: &Waiting| waiting.waits_for == Some(WaitsFor::User.to_string());
    let status = |option: &str| command(&report.namespace, &format!("status{option}"));
    let left_out = Page::default().whole_in(Some(status(""))).left_out();
    let policy = lines(|field| text::policy(report, field)).into_iter();
    let (mut in_force, mut to_do): (Vec<Line>, Vec<Line>) = policy.partition(|(_, cell)| cell.style == Style::Good);
    to_do.extend(lines(|field| {
        text::trouble(report, field);
        text::waiting(report, is_of_user, field);
        text::missing(report, &left_out, field);
        if report.nodes.is_empty() {
            field("Nodes:", Style::Warn, &text::no_nodes());
        }
    }));
    let counted = lines(|field| {
        text::counts(report, field);
        text::waiting(report, |waiting| !is_of_user(waiting), field);
    });
    in_force.extend(lines(|field| text::windows(report, field)));
    let main = [
        section("Needs attention", &to_do, "Nothing needs attention."),
        rollouts(report),
        section("Counts", &counted, "The controller has counted no nodes yet."),
        section("Policy", &in_force, "There is none."),
        nodes(report),
    ];
    let footer = format!(
        "Made at {:.0} by {}, and not changed since: the command makes a new page. All times are UTC.",
        report.time,
        status(" --html")
    );
    render(Document {
        title: &format!("Bottlerocket updates in {}", report.namespace),
        head: String::new(),
        main: format!("<main>\n{}</main>\n", main.concat()),
        script: None,
        footer: &footer,
    })
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use serde_json::json;

    use super::super::{StatusOptions, in_browser, report};
    use super::*;
    use crate::cluster::testing::{cluster, condition, current, fleet, idle, last, node, now, operator, shadow};

    fn shown(cluster: &crate::cluster::Cluster) -> String {
        page(&report(cluster, now())).unwrap()
    }

    #[test]
    fn page_has_what_the_screen_has_and_what_needs_a_user_comes_first() {
        let html = shown(&fleet());
        let mut rest = html.as_str();
        for part in [
            "<title>Bottlerocket updates in brupop-system</title>",
            "<h1>Bottlerocket updates in brupop-system</h1>",
            "<main>",
            "<h2>Needs attention</h2>",
            "<dt class=\"busy\">Waiting</dt><dd>1 Held (a user): held</dd>",
            "<dt class=\"warn\">Silent</dt><dd>the agent of silent: brupop-agent-silent is not Ready",
            "<h2>Rollouts</h2>",
            "1.20.5 for aws-k8s-1.37 x86_64, begun 2026-01-01T00:00:00Z (10m ago): 1 of 7 nodes updated; canary step 2",
            "<progress value=\"1\" max=\"7\"></progress>",
            "<h2>Counts</h2>",
            "<dt>Nodes</dt><dd>7: 1 current, 1 updating, 0 staged, 3 blocked, 1 failed</dd>",
            "<dd>1 DrainBlocked (the update): blocked</dd>",
            "<h2>Policy</h2>",
            "<dt class=\"good\">Updates</dt><dd>enabled</dd>",
            "<dt>Target</dt><dd>latest</dd>",
            "<dt class=\"good\">Window</dt><dd>open until 2026-01-01T04:00:00Z",
            "<h2>Nodes</h2>",
            "<caption>Nodes under the operator: 7</caption>",
            "<th scope=\"col\">Waits for</th>",
            "<tr><th scope=\"row\">blocked</th><td>1.20.0</td><td>1.20.5</td><td class=\"busy\">Draining</td><td></td>\
             <td class=\"warn\">DrainBlocked, 20m left (until 2026-01-01T00:30:00Z): the PodDisruptionBudget shop/web \
             allows no disruption of shop/web-1; 1 pod(s) left</td></tr>",
            "<th scope=\"row\">failed</th>",
            "<td class=\"bad\">PrepareFailed: no space left on device</td>",
            "<th scope=\"row\">held</th>",
            "<th scope=\"row\">silent</th>",
            "<th scope=\"row\">updated</th>",
            "<th scope=\"row\">waiting-1</th>",
            "<th scope=\"row\">waiting-2</th>",
            "</main>",
            "<footer>Made at 2026-01-01T00:10:00Z by kubectl brupop status --html, ",
        ] {
            let (_, after) = rest.split_once(part).unwrap_or_else(|| panic!("{part} is missing, or too early: {html}"));
            rest = after;
        }
    }

    #[test]
    fn page_runs_no_script_loads_nothing_and_shows_hostile_names_as_text() {
        const HOSTILE: &str = "</td><script>alert(1)</script><img src=//x>\u{202e}\"&{{style}}";
        let mut status = idle();
        status["variant"] = json!(HOSTILE);
        status["conditions"] = json!([condition("Blocked", HOSTILE, HOSTILE)]);
        status["record"] = json!({"failures": 1, "last": last(HOSTILE, HOSTILE)});
        let name = format!("a{HOSTILE}");
        let degraded = json!({"conditions": [condition("Degraded", HOSTILE, HOSTILE)]});
        let policy = operator(&json!({}), &degraded);
        let html = shown(&cluster(Some(policy), vec![shadow(&name, status)], vec![node(&name, &json!({}))]));
        for forbidden in ["<script", "<img", "<link", "://", "url(", "@import", "\u{202e}"] {
            assert!(!html.contains(forbidden), "{forbidden}: {html}");
        }
        assert!(html.contains("default-src 'none'; style-src 'sha256-") && !html.contains("script-src"), "{html}");
        let escaped = "a&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=//x&gt;";
        assert!(html.contains(&format!("<th scope=\"row\">{escaped}")), "{html}");
        assert_eq!(html.matches("<tr>").count(), 2, "a header and a row: {html}");
    }

    #[test]
    fn page_of_an_empty_cluster_shows_next_steps() {
        let html = shown(&cluster(None, vec![], vec![]));
        for part in [
            "<dt class=\"warn\">Updates</dt><dd>there is no BottlerocketUpdateOperator named default in brupop-system",
            "<dt class=\"warn\">Nodes</dt><dd>none is under the operator. Label Bottlerocket nodes: kubectl label node ",
            "<p>There is none.</p>",
            "<p>None is under the operator.</p>",
        ] {
            assert!(html.contains(part), "{part} is missing: {html}");
        }
        assert!(!html.contains("Nothing needs attention"), "{html}");
    }

    #[test]
    fn page_of_many_nodes_has_all_of_them_and_those_with_something_to_see_first() {
        let names: Vec<String> = (0..200).map(|number| format!("n{number:03}")).collect();
        let status = |name: &str| if name == "n100" { idle() } else { current() };
        let shadows = names.iter().map(|name| shadow(name, status(name))).collect();
        let nodes = names.iter().map(|name| node(name, &json!({}))).collect();
        let policy = operator(&json!({"enabled": false}), &json!({"observedGeneration": 1}));
        let html = shown(&cluster(Some(policy), shadows, nodes));
        let shown: Vec<&str> = html.split("<th scope=\"row\">").skip(1).filter_map(|row| row.get(..4)).collect();
        assert_eq!(shown.len(), 200);
        assert_eq!(shown[..2], ["n100", "n000"]);
    }

    #[test]
    fn page_goes_to_the_file_or_to_the_standard_output() {
        let report = report(&fleet(), now());
        let html = page(&report).unwrap();
        assert_eq!(in_browser(&report, None).unwrap().to_string(), html, "its style keeps the digest of its policy");
        let path = std::env::temp_dir().join(format!("brupop-status-{}.html", std::process::id()));
        let printed = in_browser(&report, Some(&path)).unwrap().to_string();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), html);
        assert!(printed.ends_with(".html: nodes: 7\n"), "{printed}");
        std::fs::remove_file(&path).unwrap();
        let command = || StatusOptions::augment_args(clap::Command::new("status"));
        for (line, expected) in [
            ("status --html", true),
            ("status --html FILE", true),
            ("status --html -o json", false),
            ("status --html --all", false),
        ] {
            assert_eq!(command().try_get_matches_from(line.split(' ')).is_ok(), expected, "{line}");
        }
    }
}
