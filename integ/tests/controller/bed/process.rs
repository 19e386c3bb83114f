//! The real controller, in a runtime of its own: killing it is dropping that, as ending a process is.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use controller::clock::Clock;
use controller::config::Config;
use controller::leader::Parameters;
use controller::surroundings::Surroundings;
use jiff::SignedDuration;
use models::names::CONTROLLER;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing_subscriber::fmt::MakeWriter;

use super::{Faults, Stage, Time};

/// Name of the threads of controllers, before the identity.
const THREADS: &str = "controller ";
/// Time for a controller to stop by itself.
const GRACE: Duration = Duration::from_secs(30);

/// Controllers a thread of which has panicked.
static PANICKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No case waits until a Lease runs out, and a slow API server must not end a leader.
pub(crate) const LEASE: Parameters = Parameters {
    lease_duration: Duration::from_secs(600),
    renew_deadline: Duration::from_secs(480),
    renew_period: Duration::from_secs(6),
    call_limit: Duration::from_secs(60),
    retry_period: Duration::from_secs(1),
};

/// Notes panics in threads of controllers: tokio catches those of tasks.
pub(crate) fn note_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some(thread) = std::thread::current().name().filter(|name| name.starts_with(THREADS)) {
            locked(&PANICKED).insert(thread.to_owned());
        }
        before(info);
    }));
}

/// Options of a controller.
#[derive(Clone, Debug)]
pub(crate) struct ControllerOptions {
    /// The identity in the Lease, which is the name of the pod.
    pub(crate) identity: String,
    /// The node that it runs on.
    pub(crate) node: Option<String>,
    /// The error of its machine's clock.
    pub(crate) skew: SignedDuration,
    /// More arguments of the program.
    pub(crate) arguments: Vec<String>,
    /// The times of its Lease.
    pub(crate) lease: Parameters,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        let (node, skew, arguments, lease) = (None, SignedDuration::ZERO, Vec::new(), LEASE);
        Self { identity: "controller-1".to_owned(), node, skew, arguments, lease }
    }
}

/// The output of a controller.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        locked(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// A controller that runs, or has run.
pub(crate) struct ControllerProcess {
    identity: String,
    thread: String,
    runtime: Option<Runtime>,
    run: JoinHandle<anyhow::Result<()>>,
    stop: watch::Sender<bool>,
    log: Log,
    /// The address of its metrics.
    pub(crate) plain: SocketAddr,
}

impl ControllerProcess {
    /// Starts a controller as its service account.
    pub(super) fn start(
        stage: &Stage,
        time: &Time,
        faults: Option<&Faults>,
        number: usize,
        options: &ControllerOptions,
    ) -> anyhow::Result<Self> {
        // Another process could take the port in between; then the controller ends, and says so.
        let plain = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut arguments = vec![
            "brupop-controller".to_owned(),
            format!("--identity={}", options.identity),
            format!("--plain-listen={plain}"),
        ];
        arguments.extend(options.node.iter().map(|node| format!("--node-name={node}")));
        arguments.extend(options.arguments.iter().cloned());
        let config = Config::try_parse_from(arguments)?;
        let kubernetes = Self::configuration(stage)?;
        let log = Log::default();
        let filter = "info,controller=debug";
        let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log.clone()).with_ansi(false);
        let dispatch = tracing::Dispatch::new(subscriber.finish());
        let thread = format!("{THREADS}{} {number} of {}", options.identity, stage.control_plane.url());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(&thread)
            .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&dispatch)))
            .enable_all()
            .build()?;
        let (stop, stopped) = watch::channel(false);
        let (time, machine, lease) = (time.clone(), time.machine(options.skew), options.lease);
        let faults = faults.cloned();
        let run = runtime.spawn(async move {
            let client = kube::Client::try_from(kubernetes).context("the client cannot be set up")?;
            let (mut client, mut parameters) = (time.dated(client), lease);
            if let Some(faults) = faults {
                client = faults.around(client, number);
                // Often enough for a fault in the middle of the rollout.
                parameters.renew_period = Duration::from_secs(1);
            }
            let surroundings = Surroundings { client, clock: Clock::new(machine), parameters };
            let result = controller::run(config, surroundings, stopped).await;
            if let Err(error) = &result {
                tracing::error!("the controller ended: {error:#}");
            }
            result
        });
        Ok(Self { identity: options.identity.clone(), thread, runtime: Some(runtime), run, stop, log, plain })
    }

    fn configuration(stage: &Stage) -> anyhow::Result<kube::Config> {
        let mut kubernetes = stage.config_of(CONTROLLER)?;
        kubernetes.default_retry = false;
        Ok(kubernetes)
    }

    /// A client with the rights of a controller.
    pub(super) fn client(stage: &Stage) -> anyhow::Result<kube::Client> {
        Ok(kube::Client::try_from(Self::configuration(stage)?)?)
    }

    /// The identity in the Lease.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// The output so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&locked(&self.log.0)).into_owned()
    }

    /// Forgets the output but for its end.
    pub(super) fn shorten_log(&self) {
        const KEPT: usize = 64 << 10;
        let mut log = locked(&self.log.0);
        let before = log.len().saturating_sub(KEPT);
        log.drain(..before);
        log.shrink_to_fit();
    }

    /// Number of its tasks.
    pub(crate) fn tasks(&self) -> usize {
        self.runtime.as_ref().map_or(0, |runtime| runtime.handle().metrics().num_alive_tasks())
    }

    /// True while it has not ended.
    pub(crate) fn runs(&self) -> bool {
        self.runtime.is_some() && !self.run.is_finished()
    }

    /// Ends it as SIGKILL does: whatever it waits for, it never sees the answer.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Ends it as SIGTERM does.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        if self.runtime.is_none() {
            return Ok(());
        }
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(GRACE, &mut self.run).await;
        self.kill();
        match ended.context("the controller does not stop")? {
            Ok(result) => result.context("the controller failed"),
            Err(error) => Err(error).context("the controller was ended"),
        }
    }

    /// A defect in its output: a panic, or a plan that the validator rejected.
    pub(super) fn defect(&self) -> Option<String> {
        if locked(&PANICKED).contains(&self.thread) {
            return Some(format!("{} panicked", self.identity));
        }
        let log = self.log();
        let line = log.lines().find(|line| line.contains("the plan violates a safety property"))?;
        Some(format!("{}: {line}", self.identity))
    }
}

impl Drop for ControllerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
