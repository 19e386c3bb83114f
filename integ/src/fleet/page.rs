//! The page with the figures of all runs. Each run replaces its own section, and leaves the others.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::chart::{Line, svg};

/// Begin of the page.
const HEAD: &str = "# Scale, measured

<!-- Written by `make bench-fleet`; do not edit. A run writes the section of its size again, and leaves the others. -->

Each section is one run of `make bench-fleet`: the operator's programs, its manifests, etcd, the API server, the scheduler and the controllers
for workloads, budgets and nodes are real. Each node has an agent (all of them are tasks of one process, with TLS and with tokens that
are bound to their pods) and a simulated Bottlerocket host. `make bench-fleet` builds all of them as they ship; a section says where its run had
other builds. Kubelets are played by one task for each node: pods of workloads run no process, no Lease
is renewed, and no Event of a kubelet is written. Where a run does not measure something, its table has no figure for it. The window of the
idle fleet begins soon after the agents' streams are opened: it does not count the TokenReviews with which they are
[opened again](web-api.md#what-it-costs) from five minutes on.

";

/// Marker of a section, before the name of its run.
const MARKER: &str = "<!-- run: ";

/// One figure.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the figure.
    pub figure: String,
    /// Limit, if there is one.
    pub limit: String,
    /// Measured value.
    pub seen: String,
}

/// A chart, by the end of its file name.
#[derive(Clone, Debug)]
struct Chart {
    name: String,
    title: String,
    svg: String,
}

/// The section of one run.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Name of the run, of letters that a file name may have.
    pub run: String,
    /// Title.
    pub title: String,
    /// Description of the run and of the machine.
    pub text: String,
    /// The figures.
    pub rows: Vec<Row>,
    /// Further text after the table.
    pub details: String,
    charts: Vec<Chart>,
}

impl Section {
    /// A section without figures.
    pub(super) fn new(run: String, title: String, text: String) -> Self {
        Self { run, title, text, ..Self::default() }
    }

    /// Adds a figure.
    pub fn row(&mut self, figure: impl Into<String>, limit: impl Into<String>, seen: impl Into<String>) {
        self.rows.push(Row { figure: figure.into(), limit: limit.into(), seen: seen.into() });
    }

    /// Adds a chart of lines, one value for each second, with marks at some seconds.
    pub fn chart(&mut self, name: &str, title: &str, lines: Vec<(&'static str, Vec<f64>)>, marks: &[(f64, &str)]) {
        let lines: Vec<Line> = lines.into_iter().map(|(name, values)| Line { name, values }).collect();
        let svg = svg(title, &lines, marks);
        self.charts.push(Chart { name: name.to_owned(), title: title.to_owned(), svg });
    }

    fn file(&self, chart: &str) -> String {
        format!("images/scale-{}-{chart}.svg", self.run)
    }

    /// The section as Markdown.
    fn markdown(&self) -> String {
        let mut text = format!("{MARKER}{} -->\n\n## {}\n\n{}\n\n", self.run, self.title, self.text);
        text += "| figure | limit | seen |\n| --- | --- | --- |\n";
        for Row { figure, limit, seen } in &self.rows {
            let limit = if limit.is_empty() { "–" } else { limit };
            let _ = writeln!(text, "| {figure} | {limit} | {seen} |");
        }
        for Chart { name, title, .. } in &self.charts {
            let _ = write!(text, "\n![{title}]({})\n", self.file(name));
        }
        if !self.details.is_empty() {
            let _ = write!(text, "\n{}\n", self.details.trim_end());
        }
        text + "\n"
    }
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}\n{}\n", self.title, self.text)?;
        for Row { figure, limit, seen } in &self.rows {
            writeln!(f, "  {figure:<58} {limit:<12} {seen}")?;
        }
        write!(f, "\n{}", self.details)
    }
}

/// The page.
#[derive(Clone, Debug)]
pub struct Page(PathBuf);

impl Page {
    /// The page in this file, which may not exist.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self(file.into())
    }

    /// Writes a section, and its charts into `images` beside the page.
    pub fn write(&self, section: &Section) -> anyhow::Result<()> {
        let folder = self.0.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder.join("images"))?;
        for chart in &section.charts {
            std::fs::write(folder.join(section.file(&chart.name)), &chart.svg)?;
        }
        let before = std::fs::read_to_string(&self.0).unwrap_or_default();
        let page = with_section(&before, &section.run, &section.markdown());
        std::fs::write(&self.0, page).with_context(|| self.0.display().to_string())
    }
}

/// Returns the page with the section of a run replaced, or added at its end.
fn with_section(page: &str, run: &str, section: &str) -> String {
    let marker = format!("{MARKER}{run} -->");
    let mut sections: Vec<String> = page.split(MARKER).skip(1).map(|rest| format!("{MARKER}{rest}")).collect();
    match sections.iter_mut().find(|known| known.starts_with(&marker)) {
        Some(known) => section.clone_into(known),
        None => sections.push(section.to_owned()),
    }
    format!("{}\n", (HEAD.to_owned() + &sections.concat()).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_replaces_its_own_section_alone() {
        let section = |run: &str, seen: &str| {
            let mut section = Section { run: run.to_owned(), title: format!("Run {run}"), ..Section::default() };
            section.row("time", "", seen);
            section.markdown()
        };
        let page = with_section("", "a", &section("a", "1 s"));
        let page = with_section(&page, "b", &section("b", "2 s"));
        let page = with_section(&page, "a", &section("a", "3 s"));
        assert_eq!(page.matches("# Scale").count(), 1);
        assert!(page.contains("| time | – | 3 s |") && page.contains("| time | – | 2 s |") && !page.contains("1 s |"));
        assert!(page.find("## Run a") < page.find("## Run b"));
    }
}
