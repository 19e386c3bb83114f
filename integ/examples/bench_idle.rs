//! The cost of an idle fleet, and the gaps after an outage and a dead leader: `make bench-idle`.
//!
//! A real control plane, the operator with its default replicas and simulated hosts. Nothing is asserted: it prints
//! figures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use deploy::Component;
use integ::bed::{TestCluster, TestClusterOptions};
use integ::control_plane::audit::{Record, Stage, requests};
use integ::fleet::Part;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use models::names::{CONTROLLER, SYSTEM_NAMESPACE};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::sleep;

/// Measures an idle fleet, an outage of the API server and a fail-over, on its own control plane.
#[derive(Parser)]
struct Options {
    /// Number of nodes.
    #[arg(long, default_value_t = 10)]
    nodes: usize,
    /// Length of the window in which idle requests are counted, in seconds.
    #[arg(long, default_value_t = 120)]
    window: u64,
    /// Length of an outage of the API server, in seconds.
    #[arg(long, default_value_t = 60)]
    outage: u64,
    /// Number of outages, and of leaders that are stopped.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let deploy = deploy::Options::default();
    let mut bed =
        TestCluster::start(TestClusterOptions { nodes: options.nodes, deploy, ..TestClusterOptions::default() })
            .await?;
    bed.install().await?;
    let nodes = options.nodes;
    bed.wait("all nodes are counted", LIMIT, |history| {
        let operator = history.end().operator;
        operator
            .and_then(|operator| operator.status.counts.clone())
            .is_some_and(|counts| counts.current as usize == nodes)
    })
    .await?;
    sleep(Duration::from_secs(20)).await;
    idle(&bed, &options).await?;
    for _ in 0..options.rounds {
        outage(&mut bed, &options).await?;
        sleep(Duration::from_secs(20)).await;
    }
    for _ in 0..options.rounds {
        fail_over(&bed).await?;
        sleep(Duration::from_secs(20)).await;
    }
    Ok(())
}

/// The name of the component of the operator that made a request.
fn part(record: &Record) -> Option<&'static str> {
    Part::of(record).map(Part::name)
}

/// Counts requests while nothing happens.
async fn idle(bed: &TestCluster, options: &Options) -> anyhow::Result<()> {
    let from = Timestamp::now();
    sleep(Duration::from_secs(options.window)).await;
    let all = bed.control_plane.audit().read()?;
    let mut table = BTreeMap::<(&str, String, String), usize>::new();
    for record in requests(&all).filter(|record| record.received > from) {
        if let Some(part) = part(record) {
            *table.entry((part, record.verb.clone(), record.what())).or_default() += 1;
        }
    }
    let minutes = options.window as f64 / 60.0;
    let sum: usize = table.values().sum();
    println!("{} idle nodes: {:.1} requests a minute", options.nodes, sum as f64 / minutes);
    for ((part, verb, what), count) in table {
        println!("  {:>6.1}  {part:<10} {verb:<7} {what}", count as f64 / minutes);
    }
    Ok(())
}

/// Stops the API server for a time, and prints when each watch of the operator is open again, from the API server's
/// start.
async fn outage(bed: &mut TestCluster, options: &Options) -> anyhow::Result<()> {
    let watches_before = open_watches(&bed.control_plane.audit().read()?, None);
    bed.control_plane.kill_apiserver().await?;
    sleep(Duration::from_secs(options.outage)).await;
    let since = Timestamp::now();
    bed.control_plane.restart_apiserver().await?;
    let (ready, began) = (Timestamp::now(), Instant::now());
    loop {
        let all = bed.control_plane.audit().read()?;
        let again = open_watches(&all, Some(since));
        let missing: Vec<_> = watches_before.keys().filter(|key| !again.contains_key(*key)).collect();
        if missing.is_empty() {
            let mut seconds: Vec<f64> =
                again.values().map(|at| at.duration_since(ready).as_secs_f64().max(0.0)).collect();
            seconds.sort_by(f64::total_cmp);
            let median = seconds.get(seconds.len() / 2).copied().unwrap_or_default();
            let named = again.iter().map(|((part, what), at)| {
                format!("{part} {what} {:.1}", at.duration_since(ready).as_secs_f64().max(0.0))
            });
            println!("  {}", named.collect::<Vec<_>>().join(", "));
            let last = seconds.last().copied().unwrap_or_default();
            println!(
                "after an outage of {} s: {} watches open again, the median after {median:.1} s, the last after {last:.1} s",
                options.outage,
                seconds.len()
            );
            return Ok(());
        }
        anyhow::ensure!(began.elapsed() < LIMIT, "these watches are not open again: {missing:?}");
        sleep(Duration::from_millis(200)).await;
    }
}

/// The kinds of watches that the operator's components have open, with the first response to each since a time.
fn open_watches(records: &[Record], since: Option<Timestamp>) -> BTreeMap<(&'static str, String), Timestamp> {
    let mut watches = BTreeMap::new();
    for record in records.iter().filter(|r| r.verb == "watch" && r.stage == Stage::ResponseStarted) {
        if let (Some(part), true) = (part(record), since.is_none_or(|since| record.reached > since)) {
            watches.entry((part, record.what())).or_insert(record.reached);
        }
    }
    watches
}

/// Stops the leading controller, as the death of its node does, and prints when another one has the Lease. (One that is
/// killed is started again in its pod, and stays the leader.)
async fn fail_over(bed: &TestCluster) -> anyhow::Result<()> {
    let leases: Api<Lease> = Api::namespaced(bed.client.clone(), SYSTEM_NAMESPACE);
    let holder = async || -> anyhow::Result<String> {
        let spec = leases.get(CONTROLLER).await?.spec.unwrap_or_default();
        Ok(spec.holder_identity.unwrap_or_default())
    };
    let leader = holder().await?;
    let process = bed.processes_of(Component::Controller).into_iter().find(|process| process.pod == leader);
    let process = process.context("no process holds the Lease")?;
    let pid = Pid::from_raw(process.pid.try_into()?);
    kill(pid, Signal::SIGSTOP)?;
    let stopped = Instant::now();
    loop {
        let now = holder().await?;
        if !now.is_empty() && now != leader {
            println!("a leader was stopped: another one leads after {:.1} s", stopped.elapsed().as_secs_f64());
            kill(pid, Signal::SIGCONT)?;
            return Ok(());
        }
        anyhow::ensure!(stopped.elapsed() < LIMIT, "no other controller leads");
        sleep(Duration::from_millis(100)).await;
    }
}
