//! `kubectl brupop takeover swap` and `undo`: move a cluster from the earlier operator to this one, or back.
//!
//! A loop of three parts: read the facts, decide the next step, carry it out. Nothing is remembered between two runs but
//! what is in the cluster.

mod act;
mod armed;
mod ending;
mod facts;
mod preview;
mod record;
mod settle;
mod steps;
mod undo;

use std::collections::BTreeMap;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use kube::Client;
use models::plain::some_by;
use tokio::time::Instant;

use self::facts::{Memory, gather};
pub(crate) use self::facts::{definition, record, shadow_resource, workloads};
pub(crate) use self::steps::Definition;
use self::steps::{Facts, Next, Phase, Step, Waiting};
use crate::call::{self, code, is_transient, or_waiting};
use crate::clock::span;
use crate::helm::Releases;
use crate::page::{confirm, print_line};
use crate::preflight::outdated;
use crate::rights;
use crate::shell::for_cluster;

/// Polling interval.
const PERIOD: Duration = Duration::from_secs(1);

/// Interval at which a wait shows how long it still lasts at most.
const COUNTED: Duration = Duration::from_secs(15);

/// Number of times that the same step may be taken in one run: others may write at the same time, or undo it.
const TRIES: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct SwapOptions {
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
    /// Only print what would be done from the present state on, in order.
    #[arg(long)]
    dry_run: bool,
    /// Time-out for what has to happen by itself, such as the end of pods, e.g. 90s or 1h30m.
    #[arg(long, default_value = "15m")]
    timeout: models::duration::Duration,
    /// Time for which a node whose host was asked to reboot has to be Ready in one boot.
    #[arg(long, default_value = "3m")]
    settle: models::duration::Duration,
}

pub(crate) async fn swap(client: &Client, options: &SwapOptions) -> anyhow::Result<()> {
    let question = "This stops the earlier operator and replaces its shadows and their definition by this operator's. \
                    Everything is recorded first. Continue? [y/N]";
    if run(client, options, question, steps::next).await?.is_none() {
        return Ok(());
    }
    or_waiting(show_ending(client, options).await, |error| {
        print_line(format_args!(
            "every step is taken; which ones are left to you is not known ({error:#}): run the command again"
        ));
    })
}

/// Prints what the steps have led to, and those that are left to the user.
async fn show_ending(client: &Client, options: &SwapOptions) -> anyhow::Result<()> {
    let facts = gather(client, &mut Memory::default(), options.settle.signed(), false).await?;
    let releases = Releases::read(client, &facts.record.tools()).await;
    let nodes = call::nodes(client).await?;
    print_line(ending::title(&facts));
    for line in ending::lines(&facts, &releases, &nodes) {
        print_line(line);
    }
    Ok(())
}

pub(crate) async fn undo(client: &Client, options: &SwapOptions) -> anyhow::Result<()> {
    let question = "This puts the earlier operator back as it was recorded. Continue? [y/N]";
    match run(client, options, question, undo::next).await? {
        None => {}
        Some(0) => print_line("nothing was changed: there is no record of an earlier operator"),
        Some(_) => {
            let nodes = or_waiting(call::nodes(client).await, |error| {
                let list = for_cluster("kubectl get nodes");
                print_line(format_args!("which nodes are cordoned is not known ({error:#}): {list}"));
                Vec::new()
            })?;
            let cordoned =
                nodes.iter().filter(|node| node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)));
            let cordoned: Vec<String> = cordoned.filter_map(|node| node.metadata.name.clone()).collect();
            if !cordoned.is_empty() {
                print_line(format_args!("cordoned, by whichever client: {}", first(&cordoned)));
            }
            print_line(format_args!(
                "every recorded workload of the earlier operator exists; the namespace {} stays, delete it if nothing else is in it",
                models::names::SYSTEM_NAMESPACE
            ));
        }
    }
    Ok(())
}

/// Refuses an uninstallation while the record of the earlier operator is needed: it is in the namespace of this operator.
pub(crate) async fn check_ended(client: &Client) -> anyhow::Result<()> {
    let phase = definition(client).await?.as_ref().map_or(Phase::Absent, Definition::phase);
    if matches!(phase, Phase::Earlier | Phase::Both | Phase::Returning) && !record(client).await?.is_empty() {
        bail!(
            "a takeover from the earlier operator is under way, and its record would be deleted with the namespace {}: first \
             finish it ({}), or put the earlier operator back ({})",
            models::names::SYSTEM_NAMESPACE,
            for_cluster("kubectl brupop takeover swap"),
            for_cluster("kubectl brupop takeover undo")
        );
    }
    Ok(())
}

/// Checks what has to be so before anything is changed, and returns the rights that are missing: a dry run needs none of these.
async fn check(client: &Client, options: &SwapOptions) -> anyhow::Result<Vec<String>> {
    if options.settle.0 >= options.timeout.0 {
        bail!(
            "--timeout ({}) has to be longer than --settle ({}); nothing was changed",
            options.timeout,
            options.settle
        );
    }
    let version = call::call("get /version", client.apiserver_version()).await?;
    if let Some(reason) = outdated(&version) {
        bail!("{reason}; nothing was changed");
    }
    let missing = rights::missing(client).await?;
    if !missing.is_empty() && !options.dry_run {
        bail!(
            "you need these rights too: {}; nothing was changed. docs/takeover.md has a ClusterRole with all that is needed",
            missing.join(", ")
        );
    }
    Ok(missing)
}

/// Takes all steps and returns their number; `None` after a dry run.
async fn run(
    client: &Client,
    options: &SwapOptions,
    question: &str,
    next: impl Fn(&Facts) -> Next,
) -> anyhow::Result<Option<usize>> {
    let missing = check(client, options).await?;
    let mut memory = Memory::default();
    if options.dry_run {
        if !missing.is_empty() {
            print_line(format_args!("you need these rights too, before anything is changed: {}", missing.join(", ")));
        }
        let facts = gather(client, &mut memory, options.settle.signed(), true).await?;
        return show(facts, options, next).map(|()| None);
    }
    if !options.yes {
        confirm("this changes the cluster: use --yes, or --dry-run to see what would be done", question)?;
    }
    // Number of times that each step was tried, and the last refusal.
    let (mut tries, mut refusal) = (BTreeMap::<String, usize>::new(), None);
    let mut taken = 0;
    let (mut waits, mut silent): (Option<Waited>, Option<Waited>) = (None, None);
    loop {
        let facts = match gather(client, &mut memory, options.settle.signed(), false).await {
            Err(error) if is_transient(&error) => {
                // Nothing was observed meanwhile.
                memory = Memory::default();
                wait(&Waiting::Answer(format!("{error:#}")), &mut silent, options).await?;
                continue;
            }
            facts => facts?,
        };
        silent = None;
        match next(&facts) {
            Next::Done => return Ok(Some(taken)),
            Next::Blocked(reason) => bail!("{reason}"),
            Next::Wait(waiting) => wait(&waiting, &mut waits, options).await?,
            Next::Act(step) => {
                waits = None;
                let planned = step.planned();
                let times = tries.entry(planned.clone()).or_default();
                *times += 1;
                // Every part of the record is another one.
                if *times > TRIES && !matches!(step, Step::Keep(_)) {
                    bail!(
                        "\"{planned}\" has no lasting effect after {TRIES} tries: {}. Stop that client, then run the command \
                         again.",
                        refusal.unwrap_or_else(|| {
                            "another client, such as Argo CD, Flux or Helm, undoes it".to_owned()
                        })
                    );
                }
                match act::carry_out(client, &facts, &step).await {
                    Ok(()) => {
                        taken += 1;
                        print_line(step.done());
                    }
                    // The object has changed since it was read: read it again.
                    Err(error) if code(&error) == Some(409) => {
                        refusal = Some(format!("another client writes it at the same time ({error:#})"));
                        tokio::time::sleep(PERIOD).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Prints the steps of a dry run.
fn show(facts: Facts, options: &SwapOptions, next: impl Fn(&Facts) -> Next) -> anyhow::Result<()> {
    if let Err(reason) = &facts.earlier {
        print_line(format_args!(
            "the steps for the earlier operator's shadows are missing here: they can be read only once the conversion is \
             None ({reason})"
        ));
    }
    for next in preview::all(facts, next) {
        match next {
            Next::Act(step) => print_line(format_args!("would {}", step.planned())),
            Next::Wait(waiting) => print_line(format_args!("would wait: {}", waiting.sentence(options))),
            Next::Blocked(reason) => bail!("{reason}"),
            Next::Done => print_line("nothing was changed"),
        }
    }
    Ok(())
}

/// A wait for one kind of thing.
struct Waited {
    kind: Discriminant<Waiting>,
    since: Instant,
    /// The sentence that was shown last, and when.
    shown: (String, Instant),
}

/// Returns the line to show about a wait at this time, if there is one: what is waited for and how long at most, then what
/// has changed of it, and otherwise from time to time how long it still lasts at most.
fn progress(waiting: &Waiting, waits: &mut Option<Waited>, now: Instant, options: &SwapOptions) -> Option<String> {
    let (sentence, kind) = (waiting.sentence(options), discriminant(waiting));
    let Some(waited) = waits.as_mut().filter(|waited| waited.kind == kind) else {
        *waits = Some(Waited { kind, since: now, shown: (sentence.clone(), now) });
        return Some(format!("waiting (at most {}): {sentence}", options.timeout));
    };
    let left = span(options.timeout.0.saturating_sub(now - waited.since));
    if waited.shown.0 != sentence {
        waited.shown = (sentence.clone(), now);
        return Some(format!("waiting ({left} left): {sentence}"));
    }
    (now - waited.shown.1 >= COUNTED).then(|| {
        waited.shown.1 = now;
        format!("waiting ({left} left)")
    })
}

/// Shows the progress of a wait, and waits for a moment.
async fn wait(waiting: &Waiting, waits: &mut Option<Waited>, options: &SwapOptions) -> anyhow::Result<()> {
    let now = Instant::now();
    if let Some(line) = progress(waiting, waits, now, options) {
        print_line(line);
    }
    if waits.as_ref().is_some_and(|waited| now - waited.since >= options.timeout.0) {
        bail!(
            "after {} this is still so: {}. {} What the earlier operator left on nodes so far: {}",
            options.timeout,
            waiting.sentence(options),
            waiting.advice(),
            for_cluster("kubectl brupop takeover preflight")
        );
    }
    tokio::time::sleep(PERIOD).await;
    Ok(())
}

impl Waiting {
    /// The fact that is waited for.
    fn sentence(&self, options: &SwapOptions) -> String {
        match self {
            Self::Answer(error) => format!("the API server has not answered: {error}"),
            Self::Pods(pods) => format!("pods of the earlier operator are left: {}", first(pods)),
            Self::Nodes(nodes) => format!(
                "the earlier operator asked hosts to reboot; each has to come back, or to be Ready in one boot for {} (--settle): {}",
                options.settle,
                first(nodes)
            ),
            Self::Shadows(reason) => format!("the earlier operator's shadows cannot be read: {reason}"),
            Self::ReadOnly(None) => "the API server does not refuse writes at v1 and v2 yet".to_owned(),
            Self::ReadOnly(Some(refusal)) => {
                format!("writes at v1 and v2 are not refused by the policy yet: {refusal}")
            }
            Self::Served => "the API server does not serve v3 yet".to_owned(),
            Self::Stored => {
                "the version of the earlier operator is stored again; every API server gets some seconds to notice"
                    .to_owned()
            }
            Self::Recheck => "no old shadow is left; they are listed again after a delay".to_owned(),
        }
    }

    /// The user's next step if it does not happen.
    fn advice(&self) -> &'static str {
        match self {
            Self::Pods(_) => {
                "A pod that no Deployment or DaemonSet owns has to be deleted by you. A pod on a node that does not answer \
                 ends when the node is back, when you delete the Node, or, once its host is surely down, when you delete the pod with \
                 --force. Then run the command again: it goes on from there."
            }
            Self::Nodes(_) => {
                "Nodes that may still reboot only need time. Bring the others back, or delete those that are gone for good. Then run \
                 the command again: it goes on from there."
            }
            Self::ReadOnly(Some(_)) => {
                "If a policy of another tool refuses it, let that tool leave out bottlerocketshadows. Then run the command again: it \
                 goes on from there."
            }
            Self::Answer(_) | Self::Shadows(_) | Self::ReadOnly(None) | Self::Served | Self::Recheck | Self::Stored => {
                "See whether all API servers are in order, then run the command again: it goes on from there."
            }
        }
    }
}

fn first(all: &[String]) -> String {
    some_by(all, 5, "; ", "; and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_shows_once_what_it_waits_for_and_how_long_at_most_and_then_counts_down() {
        let time = |text: &str| text.parse().unwrap();
        let options = SwapOptions { yes: true, dry_run: false, timeout: time("15m"), settle: time("3m") };
        let (start, mut waits, mut lines) = (Instant::now(), None, Vec::new());
        let nodes = |nodes: &[&str]| {
            let rest = |node: &&str| format!("{node} may still reboot");
            Waiting::Nodes(nodes.iter().map(rest).collect())
        };
        for second in 0..=40 {
            let waiting = if second < 20 { nodes(&["a", "b"]) } else { nodes(&["b"]) };
            let at = start + Duration::from_secs(second);
            lines.extend(progress(&waiting, &mut waits, at, &options).map(|line| (second, line)));
        }
        lines
            .extend(progress(&Waiting::Served, &mut waits, start + Duration::from_secs(41), &options).map(|l| (41, l)));
        let asked = "the earlier operator asked hosts to reboot; each has to come back, or to be Ready in one boot for 3m \
                     (--settle): ";
        assert_eq!(
            lines,
            [
                (0, format!("waiting (at most 15m): {asked}a may still reboot; b may still reboot")),
                (15, "waiting (14m 45s left)".to_owned()),
                (20, format!("waiting (14m 40s left): {asked}b may still reboot")),
                (35, "waiting (14m 25s left)".to_owned()),
                (41, "waiting (at most 15m): the API server does not serve v3 yet".to_owned()),
            ]
        );
    }
}
