//! `kubectl brupop takeover`: moves a cluster from the earlier operator to this one. The commands here only read; those
//! that write are in `swap`.

mod facts;
mod finding;
mod findings;
mod report;
mod settings;
mod survey;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::api::ListParams;
use planner::view::{BudgetFacts, Projection as _};
use tokio::time::Instant;

use self::facts::Facts;
use self::finding::Severity;
use self::settings::Settings;
use self::watch::{Snapshot, Trial};
use crate::call::{code, list_everywhere, nodes};
use crate::cluster::pods_of;
use crate::connect::ConnectOptions;
use crate::files::read_text;
use crate::marks::NodeState;
use crate::page::{Page, complain, print_line, warn};
use crate::swap;
use crate::terminal::Format;

/// Interval of `watch`.
const PERIOD: Duration = Duration::from_secs(30);

/// Number of nodes whose pods are read for `watch`.
const NODES_WITH_PODS: usize = 8;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check whether this operator can take over from the earlier one, and show what to do before; changes nothing.
    Preflight(PreflightOptions),
    /// Propose a policy from the settings of the earlier operator; changes nothing.
    Settings(SettingsOptions),
    /// Show how this operator would update the nodes while the earlier one runs; changes nothing.
    Watch(TakeoverWatchOptions),
    /// Stop the earlier operator and replace its shadows and their definition; goes on where it was interrupted.
    Swap(swap::SwapOptions),
    /// Put the earlier operator back as it was, until the last step of `swap`.
    Undo(swap::SwapOptions),
}

#[derive(Debug, Args)]
pub(crate) struct PreflightOptions {
    /// `json` for programs; docs/takeover.md describes it.
    #[arg(long, short, value_parser = Format::only([Format::Json]))]
    output: Option<Format>,
}

#[derive(Debug, Args)]
pub(crate) struct SettingsOptions {
    /// Read the values of the earlier operator's chart from this file, and not its workloads from the cluster: the values, those of
    /// a parent chart, a HelmRelease, an Argo CD Application or a Helmfile.
    #[arg(long)]
    values: Option<PathBuf>,
    /// A maintenance window: five fields of cron, how long it is open, and a time zone unless it is UTC, such as "0 2 * * SAT 4h
    /// Europe/Berlin"; or "always". May be repeated.
    #[arg(long)]
    window: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TakeoverWatchOptions {
    /// Plan with the policy in this file. Default: the one that `takeover settings` proposes.
    #[arg(long)]
    policy: Option<PathBuf>,
    /// End after this time, e.g. 10m. Default: never.
    #[arg(long = "for")]
    duration: Option<models::duration::Duration>,
    /// Show the plan once.
    #[arg(long, conflicts_with = "duration")]
    once: bool,
}

pub(crate) async fn takeover(connect: &ConnectOptions, namespace: &str, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Preflight(options) => preflight(&connect.client().await?, options).await,
        Command::Settings(options) => settings(connect, namespace, options).await,
        Command::Watch(options) => watch(&connect.client().await?, namespace, options).await,
        Command::Swap(options) => swap::swap(&connect.client().await?, options).await,
        Command::Undo(options) => swap::undo(&connect.client().await?, options).await,
    }
}

async fn preflight(client: &Client, options: &PreflightOptions) -> anyhow::Result<()> {
    let facts = survey::survey(client).await?;
    let findings = findings::findings(&facts);
    let text = |width| report::page(&facts, &findings, width);
    Format::show(options.output, &report::json(&facts, &findings), text)?.print()?;
    let blocking = findings.iter().filter(|finding| finding.severity == Severity::Blocks).count();
    if blocking > 0 {
        bail!("{blocking} finding(s) prevent the takeover, and nothing was changed");
    }
    Ok(())
}

/// Proposes a policy. With `--values` it needs no cluster.
async fn settings(connect: &ConnectOptions, namespace: &str, options: &SettingsOptions) -> anyhow::Result<()> {
    let windows = settings::windows(&options.window)?;
    let settings = match &options.values {
        Some(path) => Settings::of_values(&read_text(path)?).with_context(|| {
            format!("{} cannot be used as the values of the earlier operator's chart", path.display())
        })?,
        None => of_cluster(&connect.client().await?).await?,
    };
    settings.remarks().iter().for_each(warn);
    let proposal = settings::propose(&settings, windows.as_deref(), namespace);
    settings::parse(&proposal.text)?;
    let mut page = Page::default();
    page.text(&proposal.text);
    page.print()?;
    match proposal.question {
        Some(question) => bail!(
            "choose a maintenance window: {question}. Repeat the command with --window, such as \
             --window \"0 2 * * SAT 4h Europe/Berlin\", or --window always"
        ),
        None => Ok(()),
    }
}

async fn of_cluster(client: &Client) -> anyhow::Result<Settings> {
    let mut workloads = survey::workloads(client).await?;
    let recorded = match survey::recorded_workloads(client).await {
        Ok(recorded) => recorded,
        // Before a swap there is no record.
        Err(error) if code(&error) == Some(403) && !workloads.is_empty() => Vec::new(),
        Err(error) => return Err(error),
    };
    let stopped = recorded.into_iter().filter(|recorded| !workloads.iter().any(|live| live.id() == recorded.id()));
    workloads.extend(stopped.collect::<Vec<_>>());
    if workloads.is_empty() {
        bail!(
            "no workload of the earlier operator is in the cluster, or recorded by takeover swap; give the values of its chart with --values FILE, as \
             helm get values --all writes them"
        );
    }
    Ok(Settings::of_workloads(&workloads))
}

async fn watch(client: &Client, namespace: &str, options: &TakeoverWatchOptions) -> anyhow::Result<()> {
    let trial = trial(client, namespace, options).await?;
    let deadline = options.duration.map(|duration| Instant::now() + duration.0);
    let mut shown = false;
    loop {
        match snapshot(client, &trial).await {
            Ok(snapshot) => {
                watch::render(&snapshot, &trial, namespace, crate::clock::now()).print()?;
                if !shown {
                    watch::assumptions().print()?;
                }
                shown = true;
            }
            Err(error) if shown => complain(&error.context("the plan was not refreshed")),
            Err(error) => return Err(error),
        }
        if options.once || deadline.is_some_and(|deadline| Instant::now() + PERIOD > deadline) {
            return Ok(());
        }
        tokio::time::sleep(PERIOD).await;
        print_line("");
    }
}

async fn trial(client: &Client, namespace: &str, options: &TakeoverWatchOptions) -> anyhow::Result<Trial> {
    let (text, source) = match &options.policy {
        Some(path) => (read_text(path)?, format!("the policy in {}", path.display())),
        None => {
            let proposal = settings::propose(&of_cluster(client).await?, None, namespace);
            let source = "the policy that takeover settings proposes";
            let source = match proposal.question {
                Some(_) => format!("{source}, without the window that has to be chosen"),
                None => source.to_owned(),
            };
            (proposal.text, source)
        }
    };
    let (operator, policy) = settings::parse(&text).with_context(|| source.clone())?;
    let source = if policy.enabled { source } else { format!("{source}, as if enabled") };
    Ok(Trial::of(operator, policy, source))
}

async fn snapshot(client: &Client, trial: &Trial) -> anyhow::Result<Snapshot> {
    let Some(definition) = swap::definition(client).await?.filter(|definition| !definition.ours) else {
        bail!("there is no definition of the earlier operator's shadows: there is nothing to plan beside it");
    };
    let nodes = nodes(client).await?;
    let mut facts = Facts {
        workloads: survey::workloads(client).await?,
        nodes: nodes.iter().map(NodeState::of).collect(),
        ..Facts::default()
    };
    survey::shadows(client, &definition, &mut facts).await?;
    let budgets: Vec<PodDisruptionBudget> = list_everywhere(client, ListParams::default()).await?;
    let budgets = budgets.iter().filter_map(BudgetFacts::project).collect();
    let mut snapshot = Snapshot { nodes, facts, budgets, ..Snapshot::default() };
    let next = watch::beginning(&snapshot, trial, crate::clock::now());
    snapshot.pods = pods_of(client, next.into_iter().take(NODES_WITH_PODS).collect()).await?;
    Ok(snapshot)
}
