//! `kubectl brupop plan`: the rollout before it begins, by the controller's own planner in virtual time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use kube::Client;
use models::operator::BottlerocketUpdateOperatorSpec;
use planner::policy::Policy;
use planner::simulation::{Course, ENOUGH, NodeCourse, Scenario, live};
use planner::view::ClusterView;
use serde::Serialize;
use serde_json::json;

use crate::clock::span;
use crate::cluster::Cluster;
use crate::cluster::dump::Dump;
use crate::connect::ConnectOptions;
use crate::files::{write_private, write_text};
use crate::forecast::summary::{Spread, Summary};
use crate::forecast::{self, LATE, html, report};
use crate::history;
use crate::page::{Page, warn};
use crate::shell::word;
use crate::simulate::{parse_policy, read, read_policy};
use crate::terminal::Format;

/// The number of nodes that are listed without --all.
const LISTED: usize = 40;

/// The number of nodes up to which all courses are simulated that are asked for.
const SMALL: usize = 2_000;

#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// Plan with this policy too, and compare: a BottlerocketUpdateOperator, or its spec, as YAML or JSON.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Time by which every node is to be updated: a date, or a time as RFC 3339. Exits with 6 if it is missed.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    by: Option<Timestamp>,
    /// Number of simulated courses. Default: 20, and 4 for more than 2000 nodes.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    courses: Option<u64>,
    /// List every node.
    #[arg(long)]
    all: bool,
    /// `wide` for text in full, `json` or `yaml` for programs.
    #[arg(long, short, value_enum)]
    output: Option<Format>,
    /// Write the course with the median duration as a page for browsers into this file. The page needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write what the plan needs of the cluster into this file, and plan nothing. It has no Secrets and no environment
    /// variables of pods.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["policy", "by", "html", "output", "from_dump"])]
    dump: Option<PathBuf>,
    /// Plan for the cluster in this file (see --dump), as of the time of the dump; needs no cluster.
    #[arg(long, value_name = "FILE")]
    from_dump: Option<PathBuf>,
}

fn deadline(text: &str) -> Result<Timestamp, String> {
    let date = || text.parse::<Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|date| date.timestamp());
    text.parse()
        .ok()
        .or_else(date)
        .ok_or_else(|| "write a date such as 2026-12-01 (UTC), or a time as RFC 3339".to_owned())
}

/// A node in the plan. Times are those of all courses.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlannedNode {
    name: String,
    /// The place in the order in which nodes are taken out of service, from 1; absent if it never is.
    place: Option<usize>,
    zone: String,
    group: Option<String>,
    /// The time at which it is taken out of service, in seconds from the beginning.
    out_seconds: Option<Spread>,
    /// The end of its update, in seconds from the beginning.
    end_seconds: Option<Spread>,
    evicted: u32,
    updated: bool,
    /// The reason why it is not updated.
    reason: Option<String>,
    message: Option<String>,
}

fn planned(scenario: &Scenario, courses: &[Course], median: usize) -> Vec<PlannedNode> {
    let Some(typical) = courses.get(median) else { return Vec::new() };
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    for index in &typical.order {
        let next = places.len() + 1;
        places.entry(*index as usize).or_insert(next);
    }
    let spread = |index: usize, of: fn(&NodeCourse) -> Option<u32>| {
        let all: Vec<u64> = courses.iter().filter_map(|course| of(&course.nodes[index])).map(u64::from).collect();
        (!all.is_empty()).then(|| Spread::of(all))
    };
    let nodes = scenario.members.iter().enumerate().map(|(index, member)| {
        let (course, wait) = (&typical.nodes[index], typical.waits.get(member.name()));
        let group = scenario.policy.group_of(&member.node.facts);
        PlannedNode {
            name: member.name().to_owned(),
            place: places.get(&index).copied(),
            zone: member.node.facts.zone().to_owned(),
            group: group.map(|group| scenario.policy.groups[group].name.clone()),
            out_seconds: spread(index, |node| node.drained_from),
            end_seconds: spread(index, |node| node.ended),
            evicted: course.evicted,
            updated: course.updated,
            reason: wait.map(|wait| wait.as_str().to_owned()),
            message: wait.map(ToString::to_string),
        }
    });
    let mut nodes: Vec<PlannedNode> = nodes.collect();
    nodes.sort_by_key(|node| (node.place.unwrap_or(usize::MAX), node.name.clone()));
    nodes
}

/// One plan: of the present policy, or of another one.
struct Forecast {
    scenario: Scenario,
    courses: Vec<Course>,
    summary: Summary,
    median: usize,
    nodes: Vec<PlannedNode>,
}

impl Forecast {
    /// Plans for a cluster, which the commands in reasons are for.
    fn of(cluster: &Cluster, scenario: Scenario, number: Option<u64>) -> anyhow::Result<Self> {
        let number = number.unwrap_or(if scenario.members.len() > SMALL { 4 } else { 20 });
        let courses = forecast::courses(&scenario, 1, number)?;
        let (mut summary, median) = Summary::of(&scenario, &courses);
        let mut nodes = planned(&scenario, &courses, median);
        for node in &mut nodes {
            node.message = node.message.take().map(|message| cluster.filled(&message, &node.name));
        }
        for behind in &mut summary.behind {
            let node = behind.names.first().map_or("", String::as_str);
            behind.message = cluster.filled(&behind.message, node);
        }
        Ok(Self { scenario, courses, summary, median, nodes })
    }

    /// Returns why it does not do what is asked of it, as sentences.
    fn findings(&self, by: Option<Timestamp>) -> Vec<String> {
        let mut findings = report::findings(&self.scenario, &self.courses, &self.summary);
        let end = |seconds| models::time::after(self.summary.start, Duration::from_secs(seconds));
        if let Some(by) = by {
            let late =
                self.nodes.iter().filter_map(|node| node.end_seconds).filter(|end_at| end(end_at.p50) > by).count();
            let last = end(self.summary.makespan_seconds.p90);
            if last > by && self.summary.updated.p90 > 0 {
                let windows = if self.summary.windows.is_empty() { "" } else { " with these windows" };
                findings.push(format!(
                    "misses {by:.0}{windows}: the last node is updated by {last:.0} in nine of ten courses; in half of them, \
                     {late} nodes are later than that"
                ));
            }
        }
        findings
    }

    /// Adds the plan as text.
    fn text(&self, page: &mut Page, options: &PlanOptions) {
        report::add(page, &self.summary);
        page.line("");
        let at = |seconds: Option<Spread>| {
            let Some(seconds) = seconds else { return String::new() };
            let time = |seconds| models::time::after(self.summary.start, Duration::from_secs(seconds));
            let (early, late) = (seconds.p50 - seconds.p10, seconds.p90 - seconds.p50);
            let range = early.max(late);
            let text = format!("{:.0}", time(seconds.p50));
            if range < 60 { text } else { format!("{text} ± {}", span(Duration::from_secs(range))) }
        };
        let shown = if options.all { self.nodes.len() } else { LISTED };
        let rows = self.nodes.iter().take(shown).map(|node| {
            [
                node.place.map(|place| place.to_string()).unwrap_or_default(),
                node.name.clone(),
                [node.zone.as_str(), node.group.as_deref().unwrap_or_default()].join(" ").trim().to_owned(),
                at(node.out_seconds),
                at(node.end_seconds),
                node.evicted.to_string(),
                node.reason.clone().unwrap_or_default(),
            ]
        });
        page.table(["PLACE", "NODE", "ZONE, GROUP", "OUT OF SERVICE", "UPDATED", "EVICTED", "NOT UPDATED FOR"], rows);
        if self.nodes.len() > shown {
            page.line(format_args!("{} more nodes are not listed: --all lists them.", self.nodes.len() - shown));
        }
    }
}

fn with_policy(view: &ClusterView, spec: BottlerocketUpdateOperatorSpec) -> anyhow::Result<(ClusterView, Policy)> {
    let policy = Policy::from_spec(&spec).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("the policy is invalid: {}", errors.join("; "))
    })?;
    let mut view = view.clone();
    let Some(operator) = &mut view.operator else {
        bail!("there is no operator's resource {}: nothing would start", models::names::OPERATOR_NAME)
    };
    operator.spec = spec;
    Ok((view, policy))
}

/// Compares two plans.
fn compared(page: &mut Page, present: &Summary, other: &Summary) {
    let rows = report::facts(present).into_iter().map(|(name, value)| {
        let other = report::facts(other).into_iter().find(|(found, _)| *found == name).map(|(_, value)| value);
        [name.to_owned(), value, other.unwrap_or_default()]
    });
    page.table(["", "PRESENT POLICY", "OTHER POLICY"], rows);
}

async fn dump(client: &Client, namespace: &str) -> anyhow::Result<Dump> {
    let updates = history::last_updates(client, namespace).await;
    let updates = updates.unwrap_or_else(|error| {
        warn(format_args!("earlier updates are not known, so that common durations are used: {error:#}"));
        Vec::new()
    });
    Dump::read(client, namespace, updates).await
}

/// Returns the line about a dump that was written, with the command that reads it.
fn written(path: &Path) -> String {
    let file = path.display().to_string();
    format!("{file} written: kubectl brupop plan --from-dump {}", word(&file))
}

/// Plans the rollout of a cluster, or of a dump of one.
pub(crate) async fn plan(connect: &ConnectOptions, namespace: &str, options: &PlanOptions) -> anyhow::Result<ExitCode> {
    let dump = match &options.from_dump {
        Some(path) => Dump::parse(read(path)?)?,
        None => dump(&connect.client().await?, namespace).await?,
    };
    if let Some(path) = &options.dump {
        let text = serde_json::to_string(&dump).context("the dump is no JSON")?;
        write_private(path, &text).with_context(|| format!("{} cannot be written", path.display()))?;
        let mut page = Page::default();
        page.line(written(path));
        page.print()?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = if options.from_dump.is_some() { dump.time } else { crate::clock::now() };
    let cluster = dump.cluster()?;
    let (mut view, mut policy) = (cluster.view(now), cluster.policy());
    for node in view.nodes.values_mut() {
        node.pods.get_or_insert_default();
    }
    let scenario = |view, policy| live(view, policy, &dump.updates, now);
    let mut chosen = Forecast::of(&cluster, scenario(view.clone(), policy.clone()), options.courses)?;
    let mut present = None;
    if let Some(path) = &options.policy {
        let spec = parse_policy(&read_policy(path)?).with_context(|| format!("{} is no policy", path.display()))?;
        (view, policy) = with_policy(&view, spec)?;
        let other = Forecast::of(&cluster, scenario(view, policy), options.courses)?;
        present = Some(std::mem::replace(&mut chosen, other).summary);
    }
    let mut findings = chosen.findings(options.by);
    if let Some((_, message)) = cluster.no_leader() {
        findings.push(format!("{message} until one leads: {}", cluster.command("doctor")));
    }
    let code = if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(LATE) };
    if let (Some(path), Some(course)) = (&options.html, chosen.courses.get(chosen.median)) {
        write_text(path, &html::page("Planned rollout", &chosen.scenario, course, &chosen.summary)?)?;
    }
    let observed = dump.updates.len();
    let value = json!({
        "summary": chosen.summary, "presentPolicy": present, "nodes": chosen.nodes, "findings": findings,
        "observedUpdates": observed,
    });
    let text = |width| {
        let mut page = Page::of_width(width);
        if let Some(present) = &present {
            compared(&mut page, present, &chosen.summary);
            page.line("");
        }
        chosen.text(&mut page, options);
        page.cut_note();
        page.line("");
        if observed >= ENOUGH {
            let text = format!("Downloads and reboots take as long as in the last {observed} updates.");
            page.paragraph(&text);
        } else {
            page.paragraph("Few earlier updates are recorded: common durations are used.");
        }
        if chosen.summary.failures.p50 > 0 {
            let budgets = chosen.summary.refusals.iter().take(3).map(|(budget, _)| budget.as_str());
            let budgets = match budgets.collect::<Vec<_>>().join(", ").as_str() {
                "" => String::new(),
                budgets => format!("; these budgets refuse most: {budgets}"),
            };
            page.paragraph(&format!("Some attempts fail, and are repeated{budgets}."));
        }
        report::add_findings(&mut page, &findings);
        page
    };
    Format::show(options.output, &value, text)?.print()?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_that_reads_a_dump_has_its_file_as_one_word() {
        for (path, expected) in [
            ("dump.json", "dump.json written: kubectl brupop plan --from-dump dump.json"),
            ("my dump.json", "my dump.json written: kubectl brupop plan --from-dump 'my dump.json'"),
        ] {
            assert_eq!(written(Path::new(path)), expected);
        }
    }
}
