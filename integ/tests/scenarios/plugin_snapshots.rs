//! The whole output of the plugin's reading commands on a real control plane, 80 and 200 columns wide, with and without
//! colours, compared with the files in `integ/tests/snapshots`. The commands that write are in `plugin_snapshots_writes`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;

use anyhow::{Context as _, ensure};
use models::names::HOLD_ANNOTATION;
use regex::Regex;
use serde_json::json;
use tokio::process::Command;

use crate::interfere::{poll, unblock};
use crate::support::{NEW, ScenarioContext, is_updated, nodes, run, status};

/// With this environment variable the snapshots are written, and not compared.
const WRITE: &str = "BRUPOP_WRITE_SNAPSHOTS";

/// A fleet for `simulate`.
const FLEET: &str = "
start: 2026-01-01T00:00:00Z
horizon: 72h
policy: {maxUnavailable: 2, schedule: {windows: [{cron: \"0 2 * * *\", duration: 1h}]}}
nodes:
- {count: 9, version: 1.20.0, zones: [a, b], name: a-node-whose-name-takes-a-good-part-of-a-narrow-terminal}
versions: [1.20.5]
workloads:
- {name: shop/web, replicas: 20, budget: {maxUnavailable: 1}}
";

/// Alphabet of the names that Kubernetes generates.
const GENERATED: &str = "[bcdfghjklmnpqrstvwxz2456789]";

/// The parts that differ from run to run, and their placeholders.
#[expect(clippy::expect_used, reason = "each is constant")]
static PLACEHOLDERS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z".to_owned(), "TIME"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}".to_owned(), "UID"),
        (r"\brollout-(\d+)-[0-9a-f]{10}\b".to_owned(), "rollout-$1-HASH"),
        (r"[0-9a-f]{8}→[0-9a-f]{8}".to_owned(), "BOOT→BOOT"),
        (format!("-{GENERATED}{{6,10}}-{GENERATED}{{5}}\\b"), "-POD"),
        (format!("\\b(brupop-agent)-{GENERATED}{{5}}\\b"), "$1-POD"),
        (format!("\\bdefault-{GENERATED}{{6,10}}\\b"), "default-HASH"),
        (r"(\d+ s before|within|\d+ s after) the range".to_owned(), "HELD the range"),
        // Not the end of a colour.
        (r"(^|[^\w\[])\d+[dhms]( ?\d+[dhms])*\b".to_owned(), "${1}AGE"),
        // A blocked drain counts once it has lasted for a while.
        (r"\b\d+ blocked".to_owned(), "N blocked"),
        (r"\bv1\.\d+\.\d+\b".to_owned(), "vKUBERNETES"),
        // The padding of a column depends on its longest text.
        (r" +(\x1b\[0m)".to_owned(), "$1"),
        (r" {3,}".to_owned(), "  "),
    ]
    .into_iter()
    .map(|(pattern, placeholder)| (Regex::new(&pattern).expect("a valid expression"), placeholder))
    .collect()
});

#[expect(clippy::expect_used, reason = "it is constant")]
static COLOUR: LazyLock<Regex> = LazyLock::new(|| Regex::new("\x1b\\[[0-9;]*m").expect("a valid expression"));

fn is_command(line: &str) -> bool {
    line.trim_start().starts_with("kubectl ")
}

/// Returns an output without what differs from run to run. Where a text is wrapped and where a row is cut depends on such
/// parts: wrapped lines are put together again, and the cell in which a row is cut is left out.
fn normalised(output: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in output.lines() {
        let wrapped = line.starts_with("  ") && !is_command(line) && !line.starts_with("  *");
        // A row of a table begins with a space, and its first cell may be empty.
        let goes_on =
            |last: &&mut String| wrapped && (!last.starts_with(' ') || last.starts_with("  *")) && !last.is_empty();
        match lines.last_mut().filter(goes_on) {
            Some(last) => *last = format!("{last} {}", line.trim_start()),
            None => lines.push(line.to_owned()),
        }
    }
    for line in &mut lines {
        if COLOUR.replace_all(line, "").ends_with('…') {
            line.truncate(line.trim_end().rfind("  ").unwrap_or(0));
            line.push_str("  …");
        }
        *line = replaced(line);
        line.truncate(line.trim_end().len());
    }
    lines.join("\n") + "\n"
}

/// Returns a text with placeholders for what differs from run to run.
fn replaced(text: &str) -> String {
    PLACEHOLDERS
        .iter()
        .fold(text.to_owned(), |text, (pattern, placeholder)| pattern.replace_all(&text, *placeholder).into_owned())
}

/// Output of a command.
struct Printed {
    text: String,
    errors: String,
    code: i32,
}

impl Printed {
    /// All of it, the standard output first, and the exit code, without what differs from run to run.
    fn replaced(&self) -> String {
        format!("{}exit code {}\n", replaced(&(self.text.clone() + &self.errors)), self.code)
    }
}

/// Runs a command. Lines about its progress are left out, for which ones there are depends on the time that it takes, and
/// those about logs, which the kubelets of the test cluster do not serve.
async fn output(ctx: &ScenarioContext, line: &str, width: usize, colour: &str) -> anyhow::Result<Printed> {
    let output = Command::new(integ::bed::Programs::find()?.plugin)
        .args(line.split(' '))
        .arg(format!("--color={colour}"))
        .env("KUBECONFIG", ctx.bed.control_plane.kubeconfig())
        .env("COLUMNS", width.to_string())
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let left_out = |line: &str| line.starts_with("waiting: ") || line.starts_with("missing: logs/");
    let progress = |line: &str| line.ends_with('…') || line.ends_with("...");
    let text: Vec<&str> = std::str::from_utf8(&output.stdout)?.lines().filter(|line| !left_out(line)).collect();
    let errors = std::str::from_utf8(&output.stderr)?.lines().filter(|line| !left_out(line) && !progress(line));
    let joined = |lines: Vec<&str>| lines.into_iter().map(|line| format!("{line}\n")).collect::<String>();
    let (text, errors) = (joined(text), joined(errors.collect()));
    ensure!(colour == "always" || !text.contains('\u{1b}'), "{line}: colours: {text:?}");
    Ok(Printed { text, errors, code: output.status.code().context("the plugin was killed")? })
}

/// Forms of an output: columns, and whether colours are used.
const FORMS: [(usize, &str); 4] = [(80, "never"), (200, "never"), (80, "always"), (200, "always")];

/// The snapshots of a scenario.
#[derive(Default)]
pub(crate) struct Snapshots {
    taken: BTreeMap<&'static str, String>,
}

impl Snapshots {
    /// Runs a command that reads in each form, and keeps what it prints and its exit code.
    async fn take(&mut self, ctx: &ScenarioContext, name: &'static str, line: &str) -> anyhow::Result<()> {
        let mut sections =
            format!("$ kubectl brupop {}\n", normalised(line).trim_end().replace(&folder(ctx), "FOLDER"));
        for (width, colour) in FORMS {
            let Printed { text, errors, code } = output(ctx, line, width, colour).await?;
            // A command that writes prints one line for each object.
            let fits = |shown: &&str| is_command(shown) || line.starts_with("undo");
            for shown in COLOUR.replace_all(&text, "").lines().filter(|shown| !fits(shown)) {
                ensure!(shown.chars().count() <= width, "{line}: a line is wider than {width}: {shown}");
            }
            let colours = if colour == "always" { ", colours" } else { "" };
            let text = normalised(&(text + &errors)).replace(&folder(ctx), "FOLDER");
            sections.push_str(&format!("\n=== {width} columns{colours}, exit code {code}\n{text}"));
        }
        self.taken.insert(name, sections);
        Ok(())
    }

    /// Runs commands that write, one after the other, and keeps what they print and their exit codes.
    pub(crate) async fn write(
        &mut self,
        ctx: &ScenarioContext,
        name: &'static str,
        lines: &[&str],
    ) -> anyhow::Result<()> {
        for line in lines {
            let printed = output(ctx, line, 80, "never").await?.replaced();
            self.add(ctx, name, line, &printed);
        }
        Ok(())
    }

    /// Adds a command that writes, and what it has printed.
    fn add(&mut self, ctx: &ScenarioContext, name: &'static str, line: &str, printed: &str) {
        let taken = self.taken.entry(name).or_default();
        taken.push_str(if taken.is_empty() { "" } else { "\n" });
        taken.push_str(&format!("$ kubectl brupop {line}\n{printed}").replace(&folder(ctx), "FOLDER"));
    }

    /// The same with a dry run of the API server before each, which prints the same in every form.
    pub(crate) async fn rehearse_and_write(
        &mut self,
        ctx: &ScenarioContext,
        name: &'static str,
        lines: &[&str],
    ) -> anyhow::Result<()> {
        for line in lines {
            let dry = format!("{line} --dry-run=server");
            let mut forms = Vec::new();
            for (width, colour) in FORMS {
                forms.push(output(ctx, &dry, width, colour).await?.replaced());
            }
            ensure!(forms.windows(2).all(|two| two[0] == two[1]), "{dry}: width or colours change it: {forms:#?}");
            self.add(ctx, name, &dry, &forms[0]);
            self.write(ctx, name, &[line]).await?;
        }
        Ok(())
    }

    /// Compares all of them with their files, or writes those.
    pub(crate) fn compare(&self) -> anyhow::Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
        let mut differences = Vec::new();
        for (name, taken) in &self.taken {
            let path: PathBuf = folder.join(format!("{name}.txt"));
            if std::env::var_os(WRITE).is_some() {
                std::fs::write(&path, taken)?;
            }
            let expected = std::fs::read_to_string(&path).unwrap_or_default();
            if *taken != expected {
                let (a, b) = (taken.lines(), expected.lines());
                let first = a.zip(b).find(|(a, b)| a != b);
                differences.push(format!("{}: {first:?}\n{taken}", path.display()));
            }
        }
        ensure!(differences.is_empty(), "outputs differ ({WRITE}=1 writes them):\n{}", differences.join("\n"));
        Ok(())
    }
}

/// A folder of this test cluster alone.
pub(crate) fn folder(ctx: &ScenarioContext) -> String {
    ctx.bed.control_plane.dir().display().to_string()
}

/// Writes a file, and returns its path.
fn file(ctx: &ScenarioContext, name: &str, content: &str) -> anyhow::Result<String> {
    let path = ctx.bed.control_plane.dir().join(name);
    std::fs::write(&path, content)?;
    Ok(path.display().to_string())
}

/// Waits until the plugin explains a node with this reason; `null` for none.
pub(crate) async fn until_reason(ctx: &ScenarioContext, node: &str, reason: serde_json::Value) -> anyhow::Result<()> {
    poll(&format!("{node} waits for {reason}"), async || {
        let output = crate::plugin::plugin(ctx, &["explain", node, "-o", "json"]).await?;
        let explained: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let recorded = explained["recorded"].is_null();
        Ok((explained["time"].is_string() && explained["waits"]["reason"] == reason && recorded).then_some(()))
    })
    .await
}

/// Waits until the controller has counted so many nodes as up to date and as updating, and knows the rollout, and when it is
/// completed if nodes are updated.
async fn until_counts(ctx: &ScenarioContext, current: i64, updating: i64) -> anyhow::Result<()> {
    ctx.until("the nodes are counted", |world| {
        let status = status(world);
        let counts = status.counts.map(|counts| (counts.current, counts.updating));
        let estimated = || status.active_rollouts.iter().any(|rollout| rollout.estimated_completion.is_some());
        let rollout = if updating > 0 { estimated() } else { current == 3 || !status.active_rollouts.is_empty() };
        counts == Some((current, updating)) && rollout
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn output_of_reading_commands_is_that_of_the_snapshots() -> anyhow::Result<()> {
    let mut shots = Snapshots::default();
    let taken = &mut shots;
    run(nodes(3), async |ctx| {
        taken.take(ctx, "preflight", "preflight").await?;
        // The operator's own pods are on the last node, which is updated last.
        ctx.kubectl(&["taint", "nodes", "node-1", "node-2", "example.com/last=:NoSchedule"]).await?;
        ctx.install().await?;
        ctx.kubectl(&["taint", "nodes", "node-1", "node-2", "example.com/last-"]).await?;
        taken.take(ctx, "doctor", "doctor").await?;
        taken.take(ctx, "doctor-nowhere", "doctor -n nowhere").await?;
        taken.take(ctx, "takeover-preflight", "takeover preflight").await?;
        taken.take(ctx, "takeover-settings", "takeover settings").await?;
        let fleet = file(ctx, "fleet.yaml", FLEET)?;
        taken.take(ctx, "simulate", &format!("simulate -f {fleet} --courses 5")).await?;

        // A version that nodes may not take yet.
        ctx.policy(&json!({"enabled": false, "version": {"target": NEW.to_string()}})).await?;
        ctx.release();
        for node in ["node-1", "node-2", "node-3"] {
            until_reason(ctx, node, json!("Disabled")).await?;
        }
        until_counts(ctx, 0, 0).await?;
        taken.take(ctx, "status-disabled", "status").await?;
        taken.take(ctx, "explain-disabled", "explain node-1").await?;
        taken.take(ctx, "plan-disabled", "plan").await?;
        let enabled =
            file(ctx, "enabled.json", &json!({"spec": {"version": {"target": NEW.to_string()}}}).to_string())?;
        taken.take(ctx, "plan-with-policy", &format!("plan --policy {enabled}")).await?;

        // The first node is updated, the second one is drained, and the third one is held.
        for node in ["node-2", "node-3"] {
            ctx.kubectl(&["annotate", "node", node, &format!("{HOLD_ANNOTATION}=")]).await?;
        }
        ctx.policy(&json!({"enabled": true})).await?;
        ctx.until("the first node is updated", |world| is_updated(world, "node-1")).await?;
        ctx.guarded_shop(3).await?;
        until_reason(ctx, "node-1", json!(null)).await?;
        ctx.kubectl(&["annotate", "node", "node-2", &format!("{HOLD_ANNOTATION}-")]).await?;
        until_reason(ctx, "node-2", json!("DrainBlocked")).await?;
        until_reason(ctx, "node-3", json!("Held")).await?;
        until_counts(ctx, 1, 1).await?;
        taken.take(ctx, "status-draining", "status").await?;
        taken.take(ctx, "explain-up-to-date", "explain node-1").await?;
        taken.take(ctx, "explain-draining", "explain node-2").await?;
        taken.take(ctx, "explain-held", "explain node-3").await?;
        taken.take(ctx, "explain-unknown", "explain node-4").await?;
        taken.take(ctx, "undo-dry-run", "undo --dry-run").await?;

        // The evicted pod goes to the first node.
        ctx.kubectl(&["taint", "nodes", "node-3", "example.com/last=:NoSchedule"]).await?;
        unblock(ctx).await?;
        ctx.kubectl(&["annotate", "node", "node-3", &format!("{HOLD_ANNOTATION}-")]).await?;
        ctx.updated().await?;
        crate::history::until_recorded(ctx, 1).await?;
        for node in ["node-1", "node-2", "node-3"] {
            until_reason(ctx, node, json!(null)).await?;
        }
        until_counts(ctx, 3, 0).await?;
        taken.take(ctx, "status-updated", "status").await?;
        taken.take(ctx, "watch-updated", "watch --until=completed").await?;
        taken.take(ctx, "plan-updated", "plan").await?;
        taken.take(ctx, "history", "history").await?;
        taken.take(ctx, "history-rollout", "history 1").await?;
        Ok(())
    })
    .await?;
    shots.compare()
}
