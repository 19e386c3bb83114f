//! A run: the cluster, its fleet and its workload, and the phases that are measured.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use semver::Version;
use tempfile::TempDir;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use std::sync::Arc;

use super::cluster::FleetCluster;
use super::course::Course;
use super::faults::{KillResult, OutageResult, kill_web_api, outage};
use super::metrics::Metrics;
use super::options::Options;
use super::outcome::{Outcome, ensure_updated};
use super::page::Section;
use super::process::{FleetProcess, FleetReport};
use super::requests::Requests;
use super::samples::Samples;
use super::spec::FleetSpec;
use super::workload::deploy_workload;

/// The version that the hosts run at first, and the one that they are offered.
const OLD: Version = Version::new(1, 20, 0);
const NEW: Version = Version::new(1, 20, 5);

/// Folder in memory for the files of hosts and agents, each of which writes one every few seconds.
const IN_MEMORY: &str = "/dev/shm";

/// Interval at which the audit log is read.
const READ: Duration = Duration::from_secs(1);

/// Longest wait until all agents have reported; a host checks for updates within its first minute.
const REPORTED: Duration = Duration::from_secs(1_800);

/// Time after the start of the fleet or a fault, for it to come to rest.
const REST: Duration = Duration::from_secs(15);

/// Time that a rollout may take, as a multiple of its limit and in addition to it.
const PATIENCE: u32 = 3;
const MORE_PATIENCE: Duration = Duration::from_secs(600);

/// Name of the histogram of the durations of the controller's turns, in seconds.
const TURNS: &str = "brupop_controller_turn_duration_seconds";

/// A time by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    pub(super) instant: Instant,
}

impl Moment {
    pub(super) fn now() -> Self {
        Self { at: Timestamp::now(), instant: Instant::now() }
    }
}

/// A part of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    pub(super) from: Moment,
    pub(super) to: Moment,
}

impl Phase {
    pub(super) fn seconds(&self) -> f64 {
        self.to.instant.duration_since(self.from.instant).as_secs_f64()
    }
}

/// The cumulative histogram of the leader's turns.
pub(super) type Turns = Vec<(f64, f64)>;

/// Measurements of a run besides the series.
pub(super) struct Measured {
    pub(super) registered: Duration,
    pub(super) reported: Duration,
    pub(super) workload: Option<Duration>,
    pub(super) idle: Phase,
    pub(super) idle_turns: (Turns, Turns),
    pub(super) rollout: Option<(Phase, Turns, Turns)>,
    pub(super) outcome: Option<Outcome>,
    pub(super) kill: Option<KillResult>,
    pub(super) outage: Option<OutageResult>,
    pub(super) report: FleetReport,
}

/// A run.
// The fleet ends before its cluster, and the folder of its files last.
pub struct Bench {
    pub(super) options: Options,
    fleet: FleetProcess,
    pub(super) course: Course,
    pub(super) requests: Arc<Requests>,
    pub(super) samples: Samples,
    reading: AbortHandle,
    metrics: Metrics,
    registered: Duration,
    cluster: FleetCluster,
    _folder: TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Bench {
    /// Starts the cluster with the operator and the fleet.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("brupop-").tempdir_in(IN_MEMORY).or_else(|_| TempDir::new())?;
        eprintln!("starting the control plane and the operator");
        let cluster = FleetCluster::start().await?;
        cluster.apply_policy(&options.policy(false)).await?;
        let samples = Samples::start(cluster.control_plane.dir());
        let requests = Arc::new(Requests::new(cluster.control_plane.audit()));
        let reading = tokio::spawn(read(requests.clone())).abort_handle();
        let course = Course::follow(&cluster.client);
        let spec = FleetSpec {
            kubeconfig: cluster.control_plane.kubeconfig().to_owned(),
            folder: folder.path().to_owned(),
            nodes: options.nodes,
            agents: options.agents(),
            old: OLD,
            new: NEW,
            download: Options::seconds(options.download),
            reboot: Options::seconds(options.reboot),
            start: Options::seconds(options.pod_start),
            termination: Options::seconds(options.pod_end),
            graceful: !options.abrupt,
        };
        let file = folder.path().join("fleet.json");
        spec.write(&file)?;
        eprintln!("registering {} nodes", options.nodes);
        let began = Instant::now();
        let arguments = [OsStr::new("--fleet"), file.as_os_str()];
        let fleet = FleetProcess::start(&arguments, cluster.control_plane.dir(), &cluster.proxy_url()).await?;
        let registered = began.elapsed();
        let metrics = Metrics::new()?;
        Ok(Self { options, fleet, course, requests, samples, reading, metrics, registered, cluster, _folder: folder })
    }

    /// Measures all phases.
    ///
    /// # Errors
    /// Returns an error if nodes do not end on the new version, or one is left cordoned.
    pub async fn measure(mut self) -> anyhow::Result<Section> {
        let began = Instant::now();
        self.course.reported(self.options.agents(), REPORTED).await?;
        let reported = began.elapsed();
        eprintln!("all agents have reported after {:.0} s", reported.as_secs_f64());
        let workload = self.deploy_workload().await?;
        sleep(REST).await;
        let idle_turns = self.turns().await;
        let idle = self.phase(async || {
            sleep(Duration::from_secs(self.options.idle)).await;
            Ok(())
        });
        let idle = idle.await?;
        let idle_turns = (idle_turns, self.turns().await);
        let (mut rollout, mut outcome) = (None, None);
        if self.options.has_rollout() {
            let before = self.turns().await;
            let phase = self.phase(async || self.roll_out().await).await?;
            rollout = Some((phase, before, self.turns().await));
            ensure_updated(&self.cluster.client, &NEW).await?;
            sleep(REST).await;
            outcome = Some(Outcome::read(&self.cluster.client, phase.from.at).await?);
        }
        let report = self.fleet.report().await?;
        let mut kill = None;
        if self.options.kill_web_api {
            eprintln!("killing a replica of the web API");
            kill = Some(kill_web_api(&self.cluster).await?);
            sleep(REST).await;
        }
        let mut outage_result = None;
        if self.options.outage > 0 {
            eprintln!("stopping the API server for {} s", self.options.outage);
            let duration = Duration::from_secs(self.options.outage);
            outage_result = Some(outage(&mut self.cluster, &self.requests, duration).await?);
        }
        self.requests.read()?;
        let registered = self.registered;
        let outage = outage_result;
        let measured =
            Measured { registered, reported, workload, idle, idle_turns, rollout, outcome, kill, outage, report };
        Ok(super::figures::section(&self, &measured))
    }

    async fn phase(&self, run: impl AsyncFnOnce() -> anyhow::Result<()>) -> anyhow::Result<Phase> {
        let from = Moment::now();
        run().await?;
        let to = Moment::now();
        // The record of a request may appear shortly after its response.
        sleep(READ).await;
        self.requests.read()?;
        Ok(Phase { from, to })
    }

    async fn deploy_workload(&self) -> anyhow::Result<Option<Duration>> {
        if self.options.pods_per_node == 0 {
            return Ok(None);
        }
        let (deployments, replicas) = self.options.workload();
        eprintln!("starting {deployments} Deployments of {replicas} pods");
        let began = Instant::now();
        let budget = format!("{}%", self.options.budget);
        deploy_workload(&self.cluster.client, deployments, replicas, &budget).await?;
        Ok(Some(began.elapsed()))
    }

    async fn roll_out(&self) -> anyhow::Result<()> {
        let makespan = self.options.makespan();
        eprintln!("rolling out; the limit is {:.0} s: {makespan}", makespan.limit().as_secs_f64());
        self.cluster.apply_policy(&self.options.policy(true)).await?;
        let limit = makespan.limit() * PATIENCE + MORE_PATIENCE;
        self.course.updated(self.options.nodes, &NEW, limit).await.context("the rollout did not end")
    }

    /// Reads the histogram of the leader's turns; empty where there is none.
    async fn turns(&self) -> Turns {
        let Ok((controllers, _)) = self.cluster.metrics().await else { return Turns::new() };
        for url in controllers {
            if let Ok(text) = self.metrics.read(&url).await
                && text.sum("brupop_controller_leader") == Some(1.0)
            {
                return text.histogram(TURNS);
            }
        }
        Turns::new()
    }
}

async fn read(requests: Arc<Requests>) {
    loop {
        sleep(READ).await;
        if let Err(error) = requests.read() {
            tracing::warn!(error = format!("{error:#}"), "the audit log cannot be read");
        }
    }
}
