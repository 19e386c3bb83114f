//! The whole output of the plugin on a real control plane, compared with the files in `integ/tests/snapshots`: of commands
//! that read 80 columns wide, and 200 columns with colours, and of commands that write first as a dry run of the API server,
//! if they have one, then for real.

use std::sync::LazyLock;

use regex::Regex;

use super::*;

/// With this environment variable the snapshots are written, and not compared.
const WRITE: &str = "BRUPOP_WRITE_SNAPSHOTS";

/// Alphabet of the names that Kubernetes generates.
const GENERATED: &str = "[bcdfghjklmnpqrstvwxz2456789]";

/// The parts that differ from run to run, and their placeholders.
#[expect(clippy::expect_used, reason = "each is constant")]
static PLACEHOLDERS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z".to_owned(), "TIME"),
        (r"(\d+/\d+(/unproven)?)@[0-9a-z]{8}\b".to_owned(), "$1@NEW"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}".to_owned(), "UID"),
        (r"\brollout-(\d+)-[0-9a-f]{10}\b".to_owned(), "rollout-$1-HASH"),
        (r"[0-9a-f]{8}→[0-9a-f]{8}".to_owned(), "BOOT→BOOT"),
        (format!("-{GENERATED}{{6,10}}-{GENERATED}{{5}}\\b"), "-POD"),
        (format!("\\b(brupop-agent)-{GENERATED}{{5}}\\b"), "$1-POD"),
        (format!("\\bdefault-{GENERATED}{{6,10}}\\b"), "default-HASH"),
        (r"(\d+ s before|within|\d+ s after) the range".to_owned(), "HELD the range"),
        // One that was changed again at once is none.
        (r"\brolled back to revision \d+".to_owned(), "rolled back to revision N"),
        // Not the end of a colour.
        (r"(^|[^\w\[])\d+[dhms]( ?\d+[dhms])*\b".to_owned(), "${1}AGE"),
        // The scheduler places the pods, and so those that move.
        (r"pods to move: \d+".to_owned(), "pods to move: N"),
        // On a slow machine the end that was expected has passed.
        (r"expected at TIME \((in AGE|AGE ago)\)(, between TIME and TIME)?".to_owned(), "expected at TIME (WHEN)"),
        // A blocked drain counts once it has lasted for a while.
        (r"\b\d+ blocked".to_owned(), "N blocked"),
        (r"\bv1\.\d+\.\d+\b".to_owned(), "vKUBERNETES"),
        // The padding of a column depends on its longest text.
        (r" +(\x1b\[0m)".to_owned(), "$1"),
        (r" {3,}".to_owned(), "  "),
        (r"(Completed +TIME +TIME) +\d+ +\d+".to_owned(), "$1  N  N"),
        (r"(→[\d.]+ +TIME +AGE) +\d+".to_owned(), "$1  N"),
    ]
    .into_iter()
    .map(|(pattern, placeholder)| (Regex::new(&pattern).expect("a valid expression"), placeholder))
    .collect()
});

#[expect(clippy::expect_used, reason = "it is constant")]
static COLOUR: LazyLock<Regex> = LazyLock::new(|| Regex::new("\x1b\\[[0-9;]*m").expect("a valid expression"));

/// An age in a table of kubectl, or its heading.
#[expect(clippy::expect_used, reason = "it is constant")]
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(AGE|\d+[dhms]\w*) *").expect("a valid expression"));

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
    let moved = |line: &String| line.split_whitespace().nth(1).is_some_and(|cell| cell.ends_with("-POD"));
    lines.retain(|line| !(line.starts_with(" node-") && moved(line)));
    lines.join("\n") + "\n"
}

/// Returns a text with placeholders for what differs from run to run.
fn replaced(text: &str) -> String {
    PLACEHOLDERS
        .iter()
        .fold(text.to_owned(), |text, (pattern, placeholder)| pattern.replace_all(&text, *placeholder).into_owned())
}

/// Forms of an output: columns, and whether colours are used.
const NARROW: (usize, &str) = (80, "never");
const WIDE: (usize, &str) = (200, "always");

impl Walk<'_> {
    /// Runs a command. Returns its standard output, its errors and its exit code. Lines about its progress are left out,
    /// for which ones there are depends on the time that it takes, and those about logs, which the kubelets of the test
    /// cluster do not serve.
    async fn output(&self, line: &str, (columns, colour): (usize, &str)) -> Result<(String, String, i32)> {
        let output = self.run(line, columns, colour).await?;
        let shown = |line: &&str| !line.starts_with("waiting: ") && !line.starts_with("missing: logs/");
        let ended = |line: &&str| !line.ends_with('…') && !line.ends_with("...");
        let text = std::str::from_utf8(&output.stdout)?.lines().filter(shown);
        let errors = std::str::from_utf8(&output.stderr)?.lines().filter(shown).filter(ended);
        let (text, errors) = (text.map(with_end).collect::<String>(), errors.map(with_end).collect());
        ensure!(colour == "always" || !text.contains('\u{1b}'), "{line}: colours: {text:?}");
        Ok((text, errors, output.status.code().context("the plugin was killed")?))
    }

    /// Runs a command that reads in each form, and keeps what it prints and its exit code.
    pub(super) async fn take(&mut self, name: &'static str, line: &str) -> Result<()> {
        let mut sections = format!("$ kubectl brupop {line}\n");
        for form in [NARROW, WIDE] {
            let (text, errors, code) = self.output(line, form).await?;
            let columns = form.0;
            // A command that writes prints one line for each object.
            let fits = |shown: &&str| is_command(shown) || line.starts_with("undo");
            for shown in COLOUR.replace_all(&text, "").lines().filter(|shown| !fits(shown)) {
                ensure!(shown.chars().count() <= columns, "{line}: a line is wider than {columns}: {shown}");
            }
            let colours = if form.1 == "always" { ", colours" } else { "" };
            sections +=
                &format!("\n=== {columns} columns{colours}, exit code {code}\n{}", normalised(&(text + &errors)));
        }
        self.keep(name, &sections);
        Ok(())
    }

    /// Adds to a snapshot.
    pub(super) fn keep(&mut self, name: &'static str, printed: &str) {
        let printed = printed.replace(self.path("").trim_end_matches('/'), "FOLDER");
        self.taken.entry(name).and_modify(|taken| taken.push('\n')).or_default().push_str(&printed);
    }

    /// Runs commands that write, one after the other, and keeps what they print and their exit codes.
    pub(super) async fn write(&mut self, name: &'static str, lines: &[&str]) -> Result<()> {
        for line in lines {
            let (text, errors, code) = self.output(line, NARROW).await?;
            let printed = format!("$ kubectl brupop {line}\n{}exit code {code}\n", replaced(&(text + &errors)));
            self.keep(name, &printed);
        }
        Ok(())
    }

    /// The same with a dry run of the API server before each, which prints the same in every form. Nothing is written by
    /// it, nor by a command whose dry run fails.
    pub(super) async fn rehearse(&mut self, name: &'static str, lines: &[&str]) -> Result<()> {
        for line in lines {
            let dry = format!("{line} --dry-run=server");
            let before = self.written().await?;
            let (text, errors, code) = self.output(&dry, WIDE).await?;
            let wide = replaced(&(text + &errors));
            self.write(name, &[&dry]).await?;
            ensure!(self.taken[name].contains(&wide), "{dry}: width or colours change it: {wide}");
            ensure!(self.written().await? == before, "{dry}: it has written: {before:?}");
            self.write(name, &[line]).await?;
            ensure!(code == OK || self.written().await? == before, "{line}: it has written: {before:?}");
        }
        Ok(())
    }

    /// Compares all snapshots with their files, or writes those.
    pub(super) fn compare(&self) -> Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
        let mut differences = Vec::new();
        for (name, taken) in &self.taken {
            let path = folder.join(format!("{name}.txt"));
            if std::env::var_os(WRITE).is_some() {
                std::fs::write(&path, taken)?;
            }
            let expected = std::fs::read_to_string(&path).unwrap_or_default();
            if *taken != expected {
                let first = taken.lines().zip(expected.lines()).find(|(a, b)| a != b);
                differences.push(format!("{}: {first:?}\n{taken}", path.display()));
            }
        }
        ensure!(differences.is_empty(), "outputs differ ({WRITE}=1 writes them):\n{}", differences.join("\n"));
        Ok(())
    }
}

/// Returns a table of kubectl without the ages in it. A column after an age begins anywhere.
pub(super) fn table_without_ages(table: &str) -> String {
    AGE.replace_all(table, "AGE  ").lines().map(|line| with_end(line.trim_end())).collect()
}

fn with_end(line: &str) -> String {
    format!("{line}\n")
}

/// Waits until the plugin explains a node with this reason; `null` for none.
pub(super) async fn until_reason(ctx: &ScenarioContext, node: &str, reason: Value) -> Result<()> {
    poll(&format!("{node} waits for {reason}"), async || {
        let output = plugin(ctx, &["explain", node, "-o", "json"]).await?;
        let explained: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let recorded = explained["recorded"].is_null();
        Ok((explained["time"].is_string() && explained["waits"]["reason"] == reason && recorded).then_some(()))
    })
    .await
}

/// Waits until the controller has counted so many nodes as up to date and as updating, and knows the rollout, and when it is
/// completed if nodes are updated.
pub(super) async fn until_counts(ctx: &ScenarioContext, current: i64, updating: i64) -> Result<()> {
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
