//! A simulated Bottlerocket host: the update API on its Unix socket, and the machine behind it.
//!
//! It is a stand-in for the real thing and keeps its traps. [`state`] is the update dispatcher, [`disk`] the partition sets
//! and who boots, [`releases`] what updog finds, [`settings`] what steers it; `api` and `server` put them on the socket;
//! `power` boots the machine and takes it down; [`faults`] is the script of what goes wrong and [`log`] what happened.
//! The exchanges recorded from a real API server are replayed against it by a test.

mod api;
pub mod client;
mod core;
pub mod disk;
pub mod faults;
pub mod log;
mod power;
pub mod releases;
mod server;
pub mod settings;
pub mod state;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use semver::Version;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::machine::{Machine, Power};

pub use disk::Disk;
pub use faults::{BootFault, Fault, RebootFault, Transport, Worker};
pub use log::{Event, EventKind, ShutdownBy};
pub use releases::Releases;
pub use settings::{UpdatesSettings, VersionLock};
pub use state::{Command, Refusal, UpdateState, UpdateStatus};

use self::core::Core;
use self::power::Order;
use self::server::Stop;

/// The longest path that a Unix socket can have on Linux, in bytes, without the terminator.
const SOCKET_PATH_LIMIT: usize = 107;

/// How long things take on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// `refresh`.
    pub refresh: Duration,
    /// `prepare`: the download.
    pub prepare: Duration,
    /// `activate`.
    pub activate: Duration,
    /// `deactivate`.
    pub deactivate: Duration,
    /// From the order to shut down until nothing runs, when the kubelet does not delay it.
    pub shutdown: Duration,
    /// From GRUB until the API answers.
    pub boot: Duration,
    /// How long the API server is away when it restarts.
    pub api_restart: Duration,
}

impl Timings {
    /// Everything takes no time, and a boot just enough to be seen.
    pub fn instant() -> Self {
        Self {
            refresh: Duration::ZERO,
            prepare: Duration::ZERO,
            activate: Duration::ZERO,
            deactivate: Duration::ZERO,
            shutdown: Duration::ZERO,
            boot: Duration::from_millis(30),
            api_restart: Duration::from_millis(30),
        }
    }

    /// Roughly what a small machine with a good network takes.
    pub fn realistic() -> Self {
        Self {
            refresh: Duration::from_millis(1500),
            prepare: Duration::from_secs(20),
            activate: Duration::from_millis(200),
            deactivate: Duration::from_millis(200),
            shutdown: Duration::from_secs(3),
            boot: Duration::from_secs(15),
            api_restart: Duration::from_secs(5),
        }
    }
}

/// How updog words what it writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updog {
    /// `Starting update to 1.20.5`.
    #[default]
    NamesVersion,
    /// `Starting update`, as the stand-in in the recording.
    Terse,
}

impl Updog {
    fn starting(self, version: &Version) -> String {
        match self {
            Self::NamesVersion => format!("Starting update to {version}\n"),
            Self::Terse => "Starting update\n".to_owned(),
        }
    }
}

/// What kind of host to simulate.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Its name, which is also its Node's.
    pub name: String,
    /// Where its file system stands. `<root>/run/api.sock` has to be shorter than 108 bytes.
    pub root: PathBuf,
    /// What it was installed with.
    pub version: Version,
    /// For example `aws-k8s-1.37`.
    pub variant: String,
    /// For example `x86_64`.
    pub arch: String,
    /// The build that os-release names.
    pub build_id: String,
    /// Its place in the waves when its settings name none.
    pub seed: u32,
    /// `settings.updates` as they are at the start.
    pub settings: UpdatesSettings,
    /// The repository it looks into.
    pub releases: Releases,
    /// How long things take.
    pub timings: Timings,
    /// How long the kubelet can delay a shutdown. No one can while no [`Machine`] was taken.
    pub shutdown_limit: Duration,
    /// How long a committed setting takes to reach the tools.
    pub settings_lag: Duration,
    /// How long the API server waits for a whole request head before it closes a connection, idle ones too.
    pub head_timeout: Duration,
    /// How updog words what it writes.
    pub updog: Updog,
}

impl HostOptions {
    /// A host of variant `aws-k8s-1.37` for which nothing takes time, with the settings of a new one.
    pub fn new(name: impl Into<String>, root: impl Into<PathBuf>, version: Version, releases: Releases) -> Self {
        let seed = 42;
        Self {
            name: name.into(),
            root: root.into(),
            version,
            variant: "aws-k8s-1.37".to_owned(),
            arch: "x86_64".to_owned(),
            build_id: "abcdef01".to_owned(),
            seed,
            settings: UpdatesSettings::defaults(seed),
            releases,
            timings: Timings::instant(),
            shutdown_limit: Duration::from_secs(150),
            settings_lag: Duration::ZERO,
            head_timeout: Duration::from_secs(5),
            updog: Updog::default(),
        }
    }

    /// Gives the host another place in the waves, in its settings too.
    #[must_use]
    pub fn seed(mut self, seed: u32) -> Self {
        self.seed = seed;
        self.settings.seed = Some(seed);
        self
    }

    fn socket(&self) -> PathBuf {
        self.root.join("run/api.sock")
    }

    fn pretty_name(&self, version: &Version) -> String {
        format!("Bottlerocket OS {version} ({})", self.variant)
    }
}

/// What a host is like at one moment, past all locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What runs, or ran last.
    pub running_version: Version,
    /// The running or last boot.
    pub boot_id: String,
    /// Whether it runs.
    pub power: Power,
    /// The update status; `None` before the first command of a boot.
    pub status: Option<UpdateStatus>,
    /// The command that holds the update lock.
    pub running_command: Option<Command>,
    /// The partition sets.
    pub disk: Disk,
    /// `settings.updates` as committed.
    pub settings: UpdatesSettings,
    /// `settings.updates` as the tools know them.
    pub effective_settings: UpdatesSettings,
}

/// A handle of a simulated host. The host ends with its last handle; its file system stays.
#[derive(Clone, Debug)]
pub struct Host(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
    life: JoinHandle<()>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.life.abort();
    }
}

impl Host {
    /// Installs and boots a host. It is up when this returns.
    ///
    /// # Errors
    /// When its file system cannot be written or its socket cannot be bound.
    pub async fn start(options: HostOptions) -> anyhow::Result<Self> {
        let length = options.socket().as_os_str().len();
        ensure!(length <= SOCKET_PATH_LIMIT, "{} is too long for a socket: {length} bytes", options.socket().display());
        let (orders, received) = mpsc::unbounded_channel();
        let core = Arc::new(Core::new(options, orders));
        let server = power::come_up(&core, None).with_context(|| format!("booting {}", core.options.name))?;
        let life = tokio::spawn(power::run(core.clone(), server, received));
        Ok(Self(Arc::new(Handle { core, life })))
    }

    fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// The machine as a kubelet sees it. From the first call on a shutdown waits for [`Machine::release_shutdown`].
    pub fn machine(&self) -> Machine {
        let core = self.core();
        core.machine_taken.store(true, Ordering::Release);
        Machine::new(
            core.options.name.clone(),
            core.options.root.clone(),
            core.machine.subscribe(),
            core.shutdown_released.clone(),
        )
    }

    /// The host's name.
    pub fn name(&self) -> &str {
        &self.core().options.name
    }

    /// The API's socket.
    pub fn socket(&self) -> PathBuf {
        self.core().options.socket()
    }

    /// All that happened so far.
    pub fn log(&self) -> Vec<Event> {
        self.core().log.all()
    }

    /// What happens from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.core().log.subscribe()
    }

    /// Adds to the script of what goes wrong.
    pub fn script(&self, fault: Fault) {
        self.core().lock().script.add(fault);
    }

    /// Forgets what was scripted and has not happened.
    pub fn mend(&self) {
        self.core().lock().script = faults::Script::default();
    }

    /// The power fails now and comes back. Returns when the machine is down; it boots by itself.
    pub async fn power_loss(&self) {
        self.order(Order::PowerLoss).await;
    }

    /// Another client of the API runs a command, once the machine runs. Returns when it was accepted, which is before its end if it takes time.
    ///
    /// # Errors
    /// When the dispatcher refuses it.
    pub async fn foreign(&self, command: Command) -> Result<(), Refusal> {
        let core = self.core();
        // The sender lives as long as this handle.
        let _ = core.machine.subscribe().wait_for(|machine| machine.power != Power::Down).await;
        let _turn = core.turn.lock().await;
        let job = core.begin(&mut core.lock(), command)?;
        core.carry_out(job);
        Ok(())
    }

    /// Another client of the API changes settings, and waits until the tools know them.
    pub fn foreign_settings(&self, change: UpdatesSettings) {
        let state = &mut *self.core().lock();
        state.settings.stage("foreign", change);
        if state.settings.commit("foreign").is_some() {
            state.effective = state.settings.committed().clone();
        }
    }

    /// A client on the machine reboots it gracefully. Returns when the shutdown has begun.
    pub async fn foreign_reboot(&self) {
        let mut machine = self.core().machine.subscribe();
        if machine.borrow_and_update().power == Power::Up && self.send(Order::Reboot(ShutdownBy::Foreign)) {
            // The sender lives as long as this handle.
            let _ = machine.changed().await;
        }
    }

    /// The API server restarts; a running command dies with it. A `clean` stop removes the socket, another leaves one
    /// that refuses. Returns when the new server listens.
    pub async fn restart_api(&self, clean: bool) {
        let how = if clean { Stop::Clean } else { Stop::Killed };
        self.order(|done| Order::RestartApi(how, done)).await;
    }

    /// Pulls the plug. The machine stays down.
    pub fn power_off(&self) {
        self.send(Order::Off);
    }

    /// Puts the plug back: a machine that is down boots.
    pub fn power_on(&self) {
        self.send(Order::On);
    }

    /// Returns when the machine is up in another boot than `boot_id`.
    pub async fn booted_after(&self, boot_id: &str) {
        let mut machine = self.core().machine.subscribe();
        // The sender lives as long as this handle.
        let _ = machine.wait_for(|machine| machine.power == Power::Up && machine.boot_id != boot_id).await;
    }

    /// Lets a command that was scripted to wait ([`Worker::Waits`]) come to its end.
    pub fn release_command(&self) {
        self.core().release();
    }

    /// Returns when no command holds the update lock.
    pub async fn lock_free(&self) {
        // The sender lives as long as this handle.
        let _ = self.core().locked.subscribe().wait_for(|locked| !locked).await;
    }

    /// What the host is like now.
    pub fn snapshot(&self) -> Snapshot {
        let core = self.core();
        let state = &*core.lock();
        let machine = core.machine.borrow().clone();
        Snapshot {
            running_version: core.running(state),
            boot_id: machine.boot_id,
            power: machine.power,
            status: state.dispatcher.peek().cloned(),
            running_command: state.dispatcher.running(),
            disk: state.disk.clone(),
            settings: state.settings.committed().clone(),
            effective_settings: state.effective.clone(),
        }
    }

    fn send(&self, order: Order) -> bool {
        self.core().orders.send(order).is_ok()
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order) {
        let (done, finished) = oneshot::channel();
        if self.send(order(done)) {
            // An order that a machine without power throws away is done as well.
            let _ = finished.await;
        }
    }
}
