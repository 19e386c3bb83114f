//! The options of a run.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::limit::{Limits, Makespan};

/// Files that a process of the bench has open for each agent: the two ends of its stream in the proxy, or the stream and now and then
/// a report. In the process of the fleet, each host has a socket besides.
const FILES_OF_AGENT: usize = 2;

/// Files that it has open besides.
const OTHER_FILES: usize = 1_000;

/// Options of a run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Number of nodes.
    #[arg(long, default_value_t = 100)]
    pub nodes: usize,
    /// Number of nodes whose agents run; all by default. With fewer there is no rollout.
    #[arg(long)]
    pub agents: Option<usize>,
    /// Pods of the workload for each node, on average.
    #[arg(long, default_value_t = 10)]
    pub pods_per_node: usize,
    /// Number of Deployments that these pods belong to; by default each has about 100 pods.
    #[arg(long)]
    pub deployments: Option<usize>,
    /// Share of each Deployment's pods that its PodDisruptionBudget lets be disrupted, in percent.
    #[arg(long, default_value_t = 10)]
    pub budget: usize,
    /// Share of the nodes that may be out of service at a time, in percent.
    #[arg(long, default_value_t = 10)]
    pub max_unavailable: usize,
    /// Duration of a download, in seconds. An agent reads its host's status 1, 5 and 21 s after the beginning.
    #[arg(long, default_value_t = 4.5)]
    pub download: f64,
    /// Duration of a reboot, in seconds.
    #[arg(long, default_value_t = 15.0)]
    pub reboot: f64,
    /// Soak of a node after its update, in seconds.
    #[arg(long, default_value_t = 10)]
    pub soak: u64,
    /// Time from the binding of a pod until it is Ready, in seconds.
    #[arg(long, default_value_t = 1.0)]
    pub pod_start: f64,
    /// Time that a pod takes to end, in seconds.
    #[arg(long, default_value_t = 1.0)]
    pub pod_end: f64,
    /// Kubelets do not notice when their hosts shut down, as on Bottlerocket by default: containers end with the host, and are
    /// restarted after its boot. Otherwise they end their pods first, and others replace these.
    #[arg(long)]
    pub abrupt: bool,
    /// Length of the window in which the requests of the idle fleet are counted, in seconds.
    #[arg(long, default_value_t = 60)]
    pub idle: u64,
    /// Leave the rollout out.
    #[arg(long)]
    pub no_rollout: bool,
    /// Length of an outage of the API server, in seconds; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub outage: u64,
    /// Kill a replica of the web API.
    #[arg(long)]
    pub kill_web_api: bool,
}

impl Options {
    /// Number of agents.
    pub(super) fn agents(&self) -> usize {
        self.agents.unwrap_or(self.nodes).min(self.nodes)
    }

    /// Returns true if the run has a rollout.
    pub(super) fn has_rollout(&self) -> bool {
        !self.no_rollout && self.agents() == self.nodes
    }

    /// Number of Deployments, and the pods of each.
    pub(super) fn workload(&self) -> (usize, usize) {
        let pods = self.nodes * self.pods_per_node;
        let deployments = self.deployments.unwrap_or_else(|| (pods / 100).max(1));
        (deployments, pods / deployments.max(1))
    }

    /// Number of files that each process of the bench has to be able to open.
    pub fn open_files(&self) -> usize {
        self.nodes + FILES_OF_AGENT * self.agents() + OTHER_FILES
    }

    /// The policy, as it is before the rollout, and in it.
    pub(super) fn policy(&self, enabled: bool) -> Value {
        json!({
            "enabled": enabled,
            "maxUnavailable": format!("{}%", self.max_unavailable),
            "version": {"target": "latest", "refreshInterval": "1h"},
            "health": {"after": {"soak": format!("{}s", self.soak)}},
        })
    }

    pub(super) fn seconds(seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// The limit of the makespan.
    pub(super) fn makespan(&self) -> Makespan {
        let limits = Limits {
            nodes: self.nodes,
            percent: self.max_unavailable,
            replicas: if self.pods_per_node == 0 { 0 } else { self.workload().1 },
            budget_percent: self.budget,
            start: Self::seconds(self.pod_start),
            termination: Self::seconds(self.pod_end),
        };
        Makespan::of(limits, Self::seconds(self.download), Self::seconds(self.reboot), Duration::from_secs(self.soak))
    }

    /// Name of the run, by which its section of the page is found again.
    pub(super) fn run(&self) -> String {
        let Self { nodes, pods_per_node, max_unavailable, .. } = self;
        if self.has_rollout() {
            let kubelets = if self.abrupt { "-abrupt" } else { "" };
            format!("{nodes}-nodes-{pods_per_node}-pods-{max_unavailable}-percent{kubelets}")
        } else {
            format!("{nodes}-nodes-{}-agents-no-rollout", self.agents())
        }
    }

    /// Title of the run.
    pub(super) fn title(&self) -> String {
        let Self { nodes, pods_per_node, max_unavailable, .. } = self;
        if self.has_rollout() {
            format!("{nodes} nodes with {pods_per_node} pods each, {max_unavailable} % at a time")
        } else {
            format!("{nodes} nodes, {} agents, no rollout", self.agents())
        }
    }
}
