//! The process of a fleet, which has the agents, the hosts and the kubelets: its work, and the handle of the bench.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::agents::AgentProgram;
use super::kubelets::{Kubelets, client};
use super::node::{self, NodeKubelet};
use super::spec::FleetSpec;
use crate::control_plane::marked;
use crate::host::{EventKind, Releases};

/// Number of hosts that are installed, and Nodes that are registered, at a time.
const AT_ONCE: usize = 32;

/// Line by which the process shows that all Nodes are registered.
const REGISTERED: &str = "registered";

/// Line that requests a report.
const REPORT: &str = "report";

/// Longest wait for an answer of the process.
const LIMIT: Duration = Duration::from_secs(1_800);

/// Facts about the hosts and kubelets of a fleet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct FleetReport {
    /// Boots of all hosts after their first one.
    pub reboots: usize,
    /// Most boots of one host after its first one.
    pub most_reboots: usize,
    /// Calls of the host APIs, by method and path.
    pub calls: BTreeMap<String, usize>,
    /// Requests of kubelets that failed and were repeated, and agents that ended.
    pub failures: usize,
}

/// Runs the process of a fleet until its input ends.
pub async fn run(spec: FleetSpec, program: AgentProgram) -> anyhow::Result<()> {
    std::fs::create_dir_all(spec.trust())?;
    let releases = Releases::of([spec.old.clone(), spec.new.clone()]);
    let nodes = stream::iter(0..spec.nodes)
        .map(|number| node::install(&spec, number, &releases))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let client = client(&spec).await?;
    let kubelets = Arc::new(Kubelets::new(spec, client, program, nodes)?);
    tokio::spawn(kubelets.clone().follow_trust());
    tokio::spawn(kubelets.clone().follow_pods());
    stream::iter(kubelets.nodes.values().cloned())
        .map(|node| {
            let mut kubelet = NodeKubelet::new(kubelets.clone(), node);
            async move {
                kubelet.register().await?;
                tokio::spawn(kubelet.run());
                anyhow::Ok(())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    println!("{REGISTERED}");
    let mut lines = read_lines();
    while let Some(line) = lines.recv().await {
        if line == REPORT {
            println!("{}", serde_json::to_string(&report(&kubelets))?);
        }
    }
    Ok(())
}

/// Reads the input in a thread, until its end.
fn read_lines() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.map(|line| sender.send(line)).is_err() {
                return;
            }
        }
    });
    receiver
}

fn report(kubelets: &Kubelets) -> FleetReport {
    let mut report = FleetReport { failures: kubelets.failures.load(Ordering::Relaxed), ..FleetReport::default() };
    for node in kubelets.nodes.values() {
        let mut boots: usize = 0;
        for event in node.host.log() {
            match event.kind {
                EventKind::Booted { .. } => boots += 1,
                EventKind::Call { method, path, .. } => {
                    let path = path.split('?').next().unwrap_or_default();
                    *report.calls.entry(format!("{method} {path}")).or_default() += 1;
                }
                _ => {}
            }
        }
        let reboots = boots.saturating_sub(1);
        report.reboots += reboots;
        report.most_reboots = report.most_reboots.max(reboots);
    }
    report
}

/// The process of a fleet, for the bench. It ends with this.
#[derive(Debug)]
pub(super) struct FleetProcess {
    /// Killed when it is dropped.
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl FleetProcess {
    /// Starts this program with `arguments` as the process of a fleet, whose agents use this proxy, and waits until all
    /// Nodes are registered. The process is marked as part of the cluster with this folder, where its log is.
    pub(super) async fn start(arguments: &[&std::ffi::OsStr], cluster: &Path, proxy: &str) -> anyhow::Result<Self> {
        let log = std::fs::File::create(cluster.join("fleet.log"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).env("HTTPS_PROXY", proxy).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(log));
        let mut child = marked(&mut command, cluster).spawn().context("cannot start the process of the fleet")?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?).lines();
        let mut process = Self { _child: child, input, output };
        let line = process.line().await?;
        ensure!(line == REGISTERED, "the process of the fleet wrote {line}");
        Ok(process)
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        let line = tokio::time::timeout(LIMIT, self.output.next_line()).await;
        line.context("the process of the fleet does not answer")??
            .context("the process of the fleet has ended; its log is fleet.log (BRUPOP_KEEP=1 keeps it)")
    }

    /// Requests the report.
    pub(super) async fn report(&mut self) -> anyhow::Result<FleetReport> {
        self.input.write_all(format!("{REPORT}\n").as_bytes()).await?;
        Ok(serde_json::from_str(&self.line().await?)?)
    }
}
