//! `kubectl brupop watch`: the state of the fleet, live. On a terminal it is a table that is redrawn, elsewhere a line per
//! change.

mod follow;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use kube::Client;
use models::plain::some_by;
use models::reason::Proof;
use planner::wait::{Property, WaitReason};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use self::follow::{Follow, watches};
use crate::advice::command;
use crate::call::check_nodes;
use crate::cluster::{Cluster, Components, Part};
use crate::page::{Screen, progress, write_line};
use crate::status::{IDLE, Look, NOT_KNOWN, NOT_READ, NodeReport, Report, render, report};
use crate::terminal;

/// Pause before watches that have failed begin again.
const BEGIN_AGAIN: Duration = Duration::from_secs(1);

/// Time for which changes are gathered before they are shown.
const PAUSE: Duration = Duration::from_millis(250);

/// Interval at which the state is shown although no object has changed: windows open, and deadlines come closer.
const FRAME: Duration = Duration::from_secs(5);

/// Interval at which the operator's own pods and the agents' are read.
const COMPONENTS: Duration = Duration::from_secs(60);

/// Exit code of a rollout that failures have stopped.
const FROZEN: u8 = 4;

/// Exit code of a rollout that has not ended in time.
const LATE: u8 = 5;

/// Exit code of a command that Ctrl-C has ended before its time, as shells have it.
const INTERRUPTED: u8 = 130;

/// The state that ends the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Until {
    /// No node is to be updated or verified any more: exit code 0. If failures hold all nodes that are left, or these have failed on the
    /// version that they run and are not to be updated: exit code 4.
    Completed,
}

#[derive(Debug, Args)]
pub(crate) struct WatchOptions {
    /// End with exit code 0 once no node is to be updated or verified any more, and with 4 if failures freeze the rollout or are all
    /// that is left. Without it, Ctrl-C ends the command.
    #[arg(long, value_enum)]
    until: Option<Until>,
    /// Time to wait for that, e.g. 90m or 4h: then the exit code is 5. Default: no limit.
    #[arg(long, requires = "until")]
    timeout: Option<models::duration::Duration>,
    /// List all nodes, also where there are many.
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    /// Failures have frozen it, or are all that is left, and nothing is under way any more.
    Frozen,
    Late,
    /// Ctrl-C, or the end of the output's reader, without a state to wait for.
    Stopped,
    /// The same before that state was reached.
    Interrupted,
}

impl End {
    /// Returns the exit code, as docs/plugin.md has it.
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Completed | Self::Stopped => ExitCode::SUCCESS,
            Self::Frozen => ExitCode::from(FROZEN),
            Self::Late => ExitCode::from(LATE),
            Self::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

pub(crate) async fn watch(client: &Client, namespace: &str, options: &WatchOptions) -> anyhow::Result<End> {
    if options.until.is_some() {
        // Without the nodes, it is not known which of them are to be updated.
        check_nodes(client).await?;
    }
    let cluster = Cluster::read(client, namespace).await?;
    require_nodes(&cluster)?;
    run(client, cluster, options, Output::new(options.all), tokio::signal::ctrl_c()).await
}

/// Fails where the nodes had no answer: only what could be read is watched, and they would be missing until the end.
fn require_nodes(cluster: &Cluster) -> anyhow::Result<()> {
    match cluster.unread.get(&Part::Nodes) {
        Some(unread) if unread.is_unanswered => bail!("{}", unread.reason),
        _ => Ok(()),
    }
}

/// Shows a cluster as it changes, until the state, the time or the interrupt that ends the command.
async fn run(
    client: &Client,
    mut cluster: Cluster,
    options: &WatchOptions,
    mut output: Output,
    interrupt: impl Future<Output = io::Result<()>>,
) -> anyhow::Result<End> {
    let stopped = if options.until.is_some() { End::Interrupted } else { End::Stopped };
    let namespace = cluster.namespace.clone();
    let (mut watches, mut follow) = (watches(client, &cluster), Follow::new(options.until.is_some()));
    let mut frames = interval_at(Instant::now(), FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut components = interval_at(Instant::now() + COMPONENTS, COMPONENTS);
    components.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // At most one, and beside the rest: without a network, it lasts for the time limits of its calls.
    let mut reading = FuturesUnordered::new();
    tokio::pin!(interrupt);
    let late = sleep(options.timeout.map_or(Duration::MAX, |timeout| timeout.0));
    tokio::pin!(late);
    let mut changed = false;
    loop {
        tokio::select! {
            signal = &mut interrupt => {
                signal.context("Ctrl-C cannot be noticed")?;
                return Ok(stopped);
            }
            () = &mut late, if options.timeout.is_some() => {
                progress("the rollout has not ended within --timeout");
                return Ok(End::Late);
            }
            change = watches.next() => {
                let change = change.context("the watches have ended")?;
                let said = follow.take(&mut cluster, change)?;
                if !has_reader(output.say(said))? {
                    return Ok(stopped);
                }
                if follow.begins_again() {
                    sleep(BEGIN_AGAIN).await;
                    watches = self::watches(client, &cluster);
                }
                changed = true;
                continue;
            }
            () = sleep(PAUSE), if changed => changed = false,
            _ = frames.tick() => {}
            _ = components.tick(), if reading.is_empty() => {
                reading.push(Components::read(client, &namespace));
                continue;
            }
            Some(read) = reading.next() => {
                // As they were, while they cannot be read.
                let _ = cluster.add_components(read);
            }
        }
        if follow.is_lost() {
            continue;
        }
        let report = report(&cluster, crate::clock::now());
        if !has_reader(output.show(&report))? {
            return Ok(stopped);
        }
        if options.until.is_some()
            && let Some(end) = ended(&report)
        {
            return Ok(end);
        }
    }
}

/// Returns whether the output has a reader, by what came of a write.
fn has_reader(written: io::Result<()>) -> anyhow::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("the standard output cannot be written"),
    }
}

fn ended(report: &Report) -> Option<End> {
    let under_way = report.nodes.iter().any(|node| !matches!(node.step, IDLE | "Staged"));
    let has_failed = |node: &NodeReport| (rests(node) || is_stuck(node)) && place(node) == Some(Proof::Failed);
    let held = |node: &NodeReport| node.held_by_failures || has_failed(node);
    let only_held = report.nodes.iter().any(held) && report.nodes.iter().all(|node| rests(node) || held(node));
    if report.frozen.is_some() || only_held {
        return (!under_way).then_some(End::Frozen);
    }
    let is_done = |node: &NodeReport| rests(node) && place(node).is_none();
    let all_done = !report.nodes.is_empty() && report.nodes.iter().all(is_done);
    (report.enabled == Some(true) && report.policy.observed && all_done).then_some(End::Completed)
}

/// Returns the place of a node that runs its version without a proof. One that leaves the operator is not verified again.
fn place(node: &NodeReport) -> Option<Proof> {
    node.unproven.filter(|_| !node.reason.as_ref().is_some_and(|reason| is(reason, Property::Leaves)))
}

/// Returns whether a word is a reason to wait that has a property.
fn is(reason: &str, property: Property) -> bool {
    reason.parse().is_ok_and(|reason: WaitReason| reason.is(property))
}

/// Returns whether nothing is under way on a node, and it is not to be updated.
fn rests(node: &NodeReport) -> bool {
    node.step == IDLE && (node.waits_for_proof || node.reason.as_ref().is_none_or(|reason| is(reason, Property::Rests)))
}

/// Returns whether nothing is under way on a node, and its agent or host keeps it from any update.
fn is_stuck(node: &NodeReport) -> bool {
    let is_of_host = |reason: &String| match reason.parse::<WaitReason>() {
        Ok(reason) => reason.is(Property::Stuck),
        // A reason of the condition HostReachable.
        Err(_) => reason != NOT_KNOWN,
    };
    node.step == IDLE && node.reason.as_ref().is_some_and(is_of_host)
}

struct Output {
    look: Look,
    /// The screen, if the output is a terminal.
    screen: Option<Screen>,
    /// The lines that were printed last, by what they are about.
    printed: BTreeMap<String, String>,
}

impl Output {
    fn new(all: bool) -> Self {
        let screen = std::io::stdout().is_terminal().then(Screen::default);
        let look = Look { all, is_live: true, ..Look::default() };
        Self { look, screen, printed: BTreeMap::new() }
    }

    /// Shows what there is to say about the connection.
    fn say(&mut self, said: Option<String>) -> io::Result<()> {
        let Some(said) = said else { return Ok(()) };
        match &mut self.screen {
            Some(screen) => screen.note(format_args!("{:.0} {said}", crate::clock::now()), terminal::width()),
            None => write_line(format_args!("{:.0} {said}", crate::clock::now())),
        }
    }

    fn show(&mut self, report: &Report) -> io::Result<()> {
        if let Some(screen) = &mut self.screen {
            let width = terminal::width();
            let look = Look { width: Some(width), ..self.look };
            return screen.draw(&render(report, look), width, terminal::height());
        }
        for line in changes(report, &mut self.printed) {
            write_line(format_args!("{:.0} {line}", report.time))?;
        }
        Ok(())
    }
}

/// Returns the lines that differ from those before, and remembers them.
fn changes(report: &Report, printed: &mut BTreeMap<String, String>) -> Vec<String> {
    let mut lines = fleet_lines(report);
    // A node that there is nothing to say about at the beginning is not worth a line.
    let nodes = report.nodes.iter().filter(|node| !node.is_current() || printed.contains_key(&node.name));
    lines.extend(nodes.map(|node| (node.name.clone(), node_line(node))));
    printed.retain(|about, _| lines.iter().any(|(other, _)| about == other));
    let mut changed = Vec::new();
    for (about, line) in lines {
        if printed.get(&about) != Some(&line) {
            changed.push(line.clone());
            printed.insert(about, line);
        }
    }
    changed
}

/// Returns the lines about the fleet, each with what it is about.
fn fleet_lines(report: &Report) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    let mut line = |about: &str, text: String| lines.push((format!("/{about}"), format!("{about}: {text}")));
    let switch = match report.enabled {
        None => format!("no policy in {} ({})", report.namespace, command(&report.namespace, "doctor")),
        Some(true) => "enabled".to_owned(),
        Some(false) => "disabled".to_owned(),
    };
    line("Updates", format!("{switch}, target {}", report.policy.target));
    if let Some(paused) = &report.paused {
        line("Paused", paused.clone());
    }
    if let Some(window) = report.windows.first() {
        line("Window", if window.open { "open" } else { "closed" }.to_owned());
    }
    for rollout in &report.rollouts {
        let waits = rollout.waits.as_ref().map_or_else(String::new, |waits| format!(", {waits}"));
        let about = format!("Rollout of {} for {} {}", rollout.version, rollout.variant, rollout.arch);
        line(&about, format!("{} of {} nodes updated{waits}", rollout.updated, rollout.nodes));
    }
    for (about, requests) in [
        ("Frozen", report.frozen.as_slice()),
        ("Held", report.held.as_slice()),
        ("Braked", report.braked.as_slice()),
        ("Approval", report.approvals.as_slice()),
    ] {
        if !requests.is_empty() {
            let texts = requests.iter().map(|request| format!("{}: {}", request.message, request.command));
            line(about, texts.collect::<Vec<_>>().join("; "));
        }
    }
    for problem in &report.problems {
        line(&format!("Problem {}", problem.reason), problem.message.clone());
    }
    let rejected = report.policy.errors.iter().map(|error| format!("{}: {}", error.field, error.message));
    let rejected: Vec<String> = rejected.collect();
    for (about, sentences) in
        [("Rejected", &rejected), ("Request", &report.misplaced_requests), ("Not read", &report.not_read)]
    {
        if !sentences.is_empty() {
            line(about, some_by(sentences, NOT_READ, "; ", "; and "));
        }
    }
    lines
}

fn node_line(node: &NodeReport) -> String {
    let version = node.version.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
    let target = node.target.as_ref().map_or_else(String::new, |target| format!(" -> {target}"));
    let waits = match (&node.reason, &node.message) {
        (Some(reason), Some(message)) => format!(" {reason}: {message}"),
        (Some(reason), None) => format!(" {reason}"),
        _ => String::new(),
    };
    let last = node.last.as_ref().filter(|_| node.step == IDLE);
    let last = last.map_or_else(String::new, |last| format!(" (last: {})", last.reason));
    format!("{} {version}{target} {}{last}{waits}", node.name, node.step)
}

#[cfg(test)]
mod tests;
