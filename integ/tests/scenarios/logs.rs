//! The leader's log alone is enough to follow a rollout.

use std::process::Stdio;

use anyhow::Context as _;
use integ::bed::Programs;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::support::ScenarioContext;

/// All log lines of the operator's pods, also of those that have ended.
fn lines(ctx: &ScenarioContext) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for pod in std::fs::read_dir(ctx.bed.control_plane.dir().join("log"))? {
        for log in std::fs::read_dir(pod?.path())? {
            let content = String::from_utf8_lossy(&std::fs::read(log?.path())?).into_owned();
            lines.extend(content.lines().map(str::to_owned));
        }
    }
    Ok(lines)
}

/// A line of a program that logs JSON.
struct Line {
    fields: Map<String, Value>,
    at: Timestamp,
}

impl Line {
    fn text(&self, field: &str) -> &str {
        self.fields.get(field).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Reads all lines. A key that is written twice would lose one of its values in every reader.
fn read(ctx: &ScenarioContext) -> anyhow::Result<Vec<Line>> {
    let read = |line: String| {
        let fields: Map<String, Value> = serde_json::from_str(&line).with_context(|| line.clone())?;
        for key in fields.keys() {
            anyhow::ensure!(line.matches(&format!("\"{key}\":")).count() == 1, "{key} is written twice: {line}");
        }
        let at = fields.get("timestamp").and_then(Value::as_str).context("no timestamp")?.parse()?;
        Ok(Line { fields, at })
    };
    lines(ctx)?.into_iter().map(read).collect()
}

/// The leaders' decisions on a node, in the order of time.
fn decisions(lines: &[Line], node: &str) -> anyhow::Result<Vec<String>> {
    let mut decisions: Vec<(Timestamp, String)> = Vec::new();
    for line in lines {
        if line.text("target") != "controller::decisions" || line.text("node") != node {
            continue;
        }
        let (attempt, version) = (&line.fields["attempt"], line.text("version"));
        anyhow::ensure!(*attempt == 1 && version == "1.20.5", "{:?}", line.fields);
        decisions.push((line.at, line.text("message").to_owned()));
    }
    decisions.sort();
    Ok(decisions.into_iter().map(|(_, text)| text).collect())
}

/// Ensures that the JSON logs show each decision on these nodes once, in one attempt each.
pub(crate) fn ensure_each_decision_is_logged_once(ctx: &ScenarioContext, nodes: &[&str]) -> anyhow::Result<()> {
    let log = read(ctx)?;
    for program in ["agent::", "apiserver::", "controller::"] {
        let logs = log.iter().any(|line| line.text("target").starts_with(program));
        anyhow::ensure!(logs, "nothing is logged by {program}");
    }
    // Only where a node has to wait.
    let waits = ["image staged", "node rebooted: waiting for it to be Ready", "soak interrupted", "soak restarted"];
    for node in nodes {
        let mut lines = decisions(&log, node)?;
        lines.retain(|line| !waits.contains(&line.as_str()));
        let expected = [
            "attempt started",
            "node claimed",
            "drain started",
            "node drained",
            "reboot permitted",
            "node rebooted: released",
            "verification started",
            "node verified",
        ];
        anyhow::ensure!(lines == expected, "{node}: {lines:#?}");
    }
    Ok(())
}

/// The controller finds no cluster.
#[tokio::test]
async fn error_that_ends_a_program_is_one_line_of_its_json_log() -> anyhow::Result<()> {
    let output = tokio::process::Command::new(Programs::find()?.controller)
        .args(["--identity", "a", "--log-format", "json"])
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .output()
        .await?;
    let log = String::from_utf8(output.stderr)?;
    let lines: Vec<Value> =
        log.lines().map(serde_json::from_str).collect::<Result<_, _>>().with_context(|| log.clone())?;
    let line = lines.last().context("nothing is logged")?;
    let error = line["error"].as_str().unwrap_or_default();
    let expected = "no Kubernetes configuration: neither a kubeconfig nor a service account: ";
    assert!(output.status.code() == Some(1) && error.starts_with(expected) && line["level"] == "ERROR", "{line:#}");
    Ok(())
}
