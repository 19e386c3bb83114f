//! The agent in simulated time: hours of faults in seconds, and every moment at which it can be ended.
//!
//! Host, web API and agent run on one thread whose clock is paused until [`Time::pass`] moves it. The wall clock does
//! not move with it: an agent that measured by it alone would see no time pass.

mod agent_exits;
mod busy_host;
mod constant_faults;
mod each_call;
mod kept_images;
mod random_faults;
mod web_api;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent::config::Config;
use integ::host::{Event, EventKind, ShutdownBy};
use models::shadow::HostState;
use models::wire::ShadowView;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::Instant;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::bench::Bench;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Step of the clock. Much shorter than any time that the agent gives an answer.
const STEP: Duration = Duration::from_millis(250);

/// Number of turns that every task gets before the clock moves.
const TURNS: usize = 10;

/// Lets simulated time pass.
pub(crate) async fn pass(span: Duration) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        settle(TURNS).await;
        tokio::time::advance(STEP).await;
    }
}

/// Runs all tasks that can continue, without any time passing.
pub(crate) async fn settle(turns: usize) {
    for _ in 0..turns {
        tokio::task::yield_now().await;
    }
}

/// Lets time pass until a condition holds; returns true if it did.
pub(crate) async fn pass_until(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !holds() {
        if Instant::now() >= end {
            return false;
        }
        pass(STEP).await;
    }
    true
}

/// Counts the agent's actions, by its log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Calls to the host.
    calls: Arc<AtomicU64>,
    /// All log lines, each turn of its loop included.
    lines: Arc<AtomicU64>,
    warnings: Arc<AtomicU64>,
}

impl Counts {
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    pub(crate) fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Relaxed)
    }
}

impl<S: tracing::Subscriber> Layer<S> for Counts {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("agent") {
            self.lines.fetch_add(1, Ordering::Relaxed);
            let is_warning = *event.metadata().level() <= tracing::Level::WARN;
            self.warnings.fetch_add(u64::from(is_warning), Ordering::Relaxed);
            if event.metadata().fields().field("path").is_some() {
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// An agent in this process.
pub(crate) struct InProcessAgent {
    /// Dropped to end it, as a SIGTERM does.
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), agent::drive::AgentError>>,
}

impl InProcessAgent {
    pub(crate) fn start(bench: &Bench) -> Self {
        let config = Config {
            node_name: "a".into(),
            host_socket: bench.host.socket(),
            boot_id_file: bench.path("proc/sys/kernel/random/boot_id"),
            server_url: bench.web.url.clone(),
            token_file: bench.path("token"),
            trust_dir: bench.path("trust"),
            alive_file: bench.path("alive"),
            check: None,
            log_filter: String::new(),
            log_format: models::log::LogFormat::Text,
        };
        let (shutdown, requested) = oneshot::channel::<()>();
        let task = tokio::task::spawn_local(agent::run(config, async {
            let _ = requested.await;
        }));
        Self { shutdown: Some(shutdown), task }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it, as a SIGTERM does, and returns its result.
    pub(crate) async fn end(mut self) -> Result<(), agent::drive::AgentError> {
        drop(self.shutdown.take());
        self.task.await.expect("the agent never panics")
    }

    /// Kills it.
    pub(crate) async fn kill(self) {
        self.task.abort();
        if let Err(error) = self.task.await {
            assert!(error.is_cancelled(), "the agent never panics: {error}");
        }
    }
}

/// Runs a scenario in simulated time.
pub(crate) fn simulate(scenario: impl AsyncFnOnce(&Counts)) {
    let counts = Counts::default();
    // With a log of the agent where a user requests one.
    let shown = std::env::var_os("BRUPOP_SHOW").is_some();
    let log = shown.then(|| tracing_subscriber::fmt::layer().with_writer(std::io::stderr));
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(counts.clone()).with(log));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, scenario(&counts));
    drop(guard);
}

/// Runs a scenario in simulated time, beside an agent that is ended after it.
fn simulate_agent(scenario: impl AsyncFnOnce(&Bench)) {
    simulate(async |_| {
        let bench = Bench::without_agent().await;
        bench.web.create();
        let agent = InProcessAgent::start(&bench);
        scenario(&bench).await;
        agent.end().await.unwrap();
    });
}

/// Lets time pass until the shadow matches.
async fn until(bench: &Bench, limit: Duration, holds: impl Fn(&ShadowView) -> bool) {
    assert!(pass_until(limit, || holds(&bench.web.view())).await, "{:#?}", bench.web.view());
}

fn is_staged(view: &ShadowView) -> bool {
    view.status.report.state == Some(HostState::StagedUpdate)
}

/// Stages an image, and waits until the agent requests a permit for it.
async fn until_permit_requested(bench: &Bench) -> ShadowView {
    bench.stage(1);
    until(bench, MINUTE, is_staged).await;
    bench.request_reboot();
    until(bench, MINUTE, |view| view.status.report.armed.is_some()).await;
    bench.web.view()
}

/// Returns how often the host was rebooted by the agent, or accepted its reboot request.
pub(crate) fn reboots(log: &[Event]) -> usize {
    let ordered = |event: &&Event| event.kind == EventKind::ShutdownOrdered { by: ShutdownBy::Api };
    let taken = |event: &&Event| matches!(&event.kind, EventKind::Call { path, status: Some(200..300), .. } if path == "/actions/reboot");
    log.iter().filter(ordered).count().max(log.iter().filter(taken).count())
}

/// Returns how often an image was armed.
pub(crate) fn arms(log: &[Event]) -> usize {
    log.iter().filter(|event| matches!(event.kind, EventKind::Armed { .. })).count()
}
