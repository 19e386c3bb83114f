//! The demo: the README's first command.

mod summary;
mod table;
mod vm;

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use jiff::Timestamp;
use semver::Version;
use serde_json::json;
use tokio::time::Instant;

use crate::bed::{TestCluster, TestClusterOptions, workload};
use crate::host::{BootFault, Command, Fault, Timings};
use crate::oracle::{Expectations, History};

/// Namespace of the demo's workload.
const SHOP: &str = "shop";

/// Speed of the simulated hosts.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Speed {
    /// Commands take no time, reboots almost none.
    Instant,
    /// Downloads and reboots take seconds, as on a small machine.
    Realistic,
}

/// Fault injected on the first node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoFault {
    /// The first download fails.
    Prepare,
    /// Arming the image fails once.
    Activate,
    /// The new image does not boot and the host falls back: the rollout freezes, and the demo expects just that.
    Boot,
}

/// Shows one update rolling through simulated Bottlerocket nodes on a real Kubernetes control plane.
#[derive(Clone, Debug, Parser)]
#[command(name = "brupop-demo", version)]
pub struct Options {
    /// Number of nodes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=50))]
    pub nodes: u8,
    /// Number of pods of the workload; its PodDisruptionBudget allows one disruption at a time (on a single node: all
    /// of them).
    #[arg(long, default_value_t = 6)]
    pub pods: u16,
    /// Speed of the hosts.
    #[arg(long, value_enum, default_value_t = Speed::Instant)]
    pub speed: Speed,
    /// Fault injected on the first node; may be given several times.
    #[arg(long = "fault", value_enum)]
    pub faults: Vec<DemoFault>,
    /// Keep everything running after the summary, for kubectl; Ctrl-C ends it.
    #[arg(long)]
    pub keep: bool,
    /// Longest duration of the update, in seconds.
    #[arg(long, default_value_t = 300)]
    pub limit: u64,
    /// Update two virtual machines with real kernels and kubelets instead, which takes about ten minutes (as root, by make demo).
    #[arg(long, conflicts_with_all = ["nodes", "pods", "speed", "faults", "keep", "limit"])]
    pub vm: bool,
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
}

/// Runs the demo; returns true if everything that it promises held.
pub async fn run(options: Options) -> anyhow::Result<bool> {
    if options.vm {
        return vm::run().await;
    }
    let (old, new) = (Version::new(1, 20, 0), Version::new(1, 20, 5));
    let timings = match options.speed {
        Speed::Instant => Timings::instant(),
        Speed::Realistic => Timings::realistic(),
    };
    say("Starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler ...");
    let bed = TestCluster::start(TestClusterOptions {
        nodes: usize::from(options.nodes),
        version: old.clone(),
        timings,
        policy: json!({"enabled": true, "version": {"refreshInterval": "1s"}, "health": {"after": {"soak": "1s"}}}),
        ..TestClusterOptions::default()
    })
    .await?;
    say(&format!(
        "  up in {:.1} s; {} simulated Bottlerocket nodes on {old} join",
        bed.control_plane.started_in().as_secs_f64(),
        options.nodes
    ));

    let pods = usize::from(options.pods);
    // On a single node evicted pods have no other node: a budget that kept one of them would rightly block for ever.
    let (budget, allows) = if options.nodes == 1 { (json!("100%"), "all") } else { (json!(1), "1") };
    workload::apply(&bed.client, workload::web(SHOP, pods, budget)).await?;
    say(&format!("Deployment {SHOP}/web: {pods} pods, a PodDisruptionBudget lets {allows} be disrupted at a time"));
    say("Installing the operator from its manifest, by server-side apply, with updates enabled ...");
    let began = Instant::now();
    bed.install().await?;
    settled(&bed, pods, &old).await?;
    say(&format!("  every pod of it runs and every agent has reported after {:.1} s\n", began.elapsed().as_secs_f64()));

    if let Some(first) = bed.members.first() {
        for fault in &options.faults {
            first.host.script(match fault {
                DemoFault::Prepare => Fault::fails(Command::Prepare, "Metadata error: the repository did not answer\n"),
                DemoFault::Activate => Fault::fails(Command::Activate, "the partition table is busy\n"),
                DemoFault::Boot => Fault::boot(BootFault::NewImageFails),
            });
        }
    }
    let released = Timestamp::now();
    let calls_before = host_calls(&bed);
    bed.releases.publish(new.clone());
    say(&format!("Release {new} appears in the hosts' update repository."));
    let expects_freeze = options.faults.contains(&DemoFault::Boot);
    let (limit, mut agents) = (Duration::from_secs(options.limit), summary::Agents::default());
    // Agents end with every reboot of their hosts, so they are measured meanwhile.
    let measure = || agents.sample(&bed);
    let end = table::follow(&bed.recorder, bed.members.len(), &new, expects_freeze, limit, measure).await?;
    let ended = Timestamp::now();

    let view = summary::Run {
        released,
        ended,
        host_calls: host_calls(&bed) - calls_before,
        workload_ready: workload_ready(&bed.recorder.so_far()?, pods),
        agents,
        audit: bed.control_plane.audit().read()?,
    };
    let expectations = Expectations { max_unavailable: Some(1), nothing_left: true };
    if options.keep {
        let (verdict, history) = bed.judge_so_far(&expectations).await?;
        summary::print(&view, &history, &new);
        summary::held(&view, &history, &verdict, &new, &end, expects_freeze);
        say(&format!(
            "\nEverything keeps running. In another terminal:\n\n  export KUBECONFIG={}\n  {} get brs\n\nCtrl-C ends it.",
            bed.control_plane.kubeconfig().display(),
            bed.control_plane.kubectl().display()
        ));
        std::future::pending::<()>().await;
    }
    let (verdict, history) = bed.judge(&expectations).await?;
    summary::print(&view, &history, &new);
    Ok(summary::held(&view, &history, &verdict, &new, &end, expects_freeze))
}

fn host_calls(bed: &TestCluster) -> usize {
    bed.members
        .iter()
        .flat_map(|m| m.host.log())
        .filter(|e| matches!(e.kind, crate::host::EventKind::Call { .. }))
        .count()
}

fn workload_ready(history: &History, pods: usize) -> bool {
    history.end().ready_pods(SHOP) == pods
}

/// Waits until the workload is ready and every agent has reported.
async fn settled(bed: &TestCluster, pods: usize, version: &Version) -> anyhow::Result<()> {
    let nodes = bed.members.len();
    let version = version.clone();
    bed.wait("the workload is ready and every agent has reported", Duration::from_secs(90), move |history| {
        let end = history.end();
        let reported = end
            .shadows
            .values()
            .filter(|s| s.status.agent.current_version.as_ref() == Some(&version) && s.status.agent.updates.is_some())
            .count();
        reported == nodes && workload_ready(history, pods)
    })
    .await
    .context("the operator did not come up; its pods' output is in the bed's folder (set BRUPOP_KEEP=1 to keep it)")?;
    Ok(())
}
