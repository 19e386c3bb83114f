//! A Bottlerocket host: the update API on its Unix socket, and the machine behind it, which is simulated.
//!
//! It reproduces the pitfalls of the real host. [`state`] is the update dispatcher, [`disk`] the partition sets and the
//! choice of the next boot, [`releases`] what updog finds, [`settings`] its configuration; `api` and `server` put them
//! on the socket; `power` boots the machine and shuts it down; [`faults`] is the fault injection and [`log`] the
//! events. A test replays the exchanges recorded from a real API server against it.
//!
//! [`guest`] puts the same API, dispatcher and settings on a real machine, whose disk and power are `hardware`.

mod api;
pub mod client;
mod core;
pub mod disk;
pub mod faults;
pub mod guest;
mod hardware;
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

/// Longest path of a Unix socket on Linux, in bytes, without the terminator.
const SOCKET_PATH_LIMIT: usize = 107;

/// Durations on a host.
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
    /// From the request to shut down until nothing runs, when the kubelet does not delay it.
    pub shutdown: Duration,
    /// From GRUB until the API answers.
    pub boot: Duration,
    /// Downtime of the API server during its restart.
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

    /// Roughly the durations of a small machine with a good network.
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

/// Wording of updog's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updog {
    /// `Starting update to 1.20.5`.
    #[default]
    NamesVersion,
    /// `Starting update`, as in the recording.
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

/// Options of a simulated host.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// The name of the host and of its Node.
    pub name: String,
    /// Folder of its file system. `<root>/run/api.sock` has to be shorter than 108 bytes.
    pub root: PathBuf,
    /// The API's socket, below `root`.
    pub socket: PathBuf,
    /// The version that it was installed with.
    pub version: Version,
    /// Variant, for example `aws-k8s-1.37`.
    pub variant: String,
    /// Architecture, for example `x86_64`.
    pub arch: String,
    /// The build id in os-release.
    pub build_id: String,
    /// Place in the waves when the settings have none.
    pub seed: u32,
    /// `settings.updates` at the start.
    pub settings: UpdatesSettings,
    /// The update repository.
    pub releases: Releases,
    /// Durations.
    pub timings: Timings,
    /// Longest delay of a shutdown by the kubelet. There is no delay while no [`Machine`] was taken.
    pub shutdown_limit: Duration,
    /// Time until a committed setting reaches the tools.
    pub settings_lag: Duration,
    /// Time that the API server waits for a complete request head before it closes a connection, also an idle one.
    pub head_timeout: Duration,
    /// Wording of updog's output.
    pub updog: Updog,
}

impl HostOptions {
    /// A host of variant `aws-k8s-1.37` on which nothing takes time, with the settings of a new one.
    pub fn new(name: impl Into<String>, root: impl Into<PathBuf>, version: Version, releases: Releases) -> Self {
        let seed = 42;
        let root = root.into();
        Self {
            name: name.into(),
            socket: root.join("run/api.sock"),
            root,
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

    /// Sets the host's place in the waves, in its settings too.
    #[must_use]
    pub fn seed(mut self, seed: u32) -> Self {
        self.seed = seed;
        self.settings.seed = Some(seed);
        self
    }

    fn check_socket(&self) -> anyhow::Result<()> {
        let length = self.socket.as_os_str().len();
        ensure!(length <= SOCKET_PATH_LIMIT, "{} is too long for a socket: {length} bytes", self.socket.display());
        Ok(())
    }

    fn pretty_name(&self, version: &Version) -> String {
        format!("Bottlerocket OS {version} ({})", self.variant)
    }
}

/// State of a host at one moment, read past all locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The version that runs, or ran last.
    pub running_version: Version,
    /// The running or last boot.
    pub boot_id: String,
    /// Power state.
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
    /// Installs and boots a host, and returns when it is up.
    ///
    /// # Errors
    /// The file system cannot be written or the socket cannot be bound.
    pub async fn start(options: HostOptions) -> anyhow::Result<Self> {
        options.check_socket()?;
        let (orders, received) = mpsc::unbounded_channel();
        let core = Arc::new(Core::new(options, orders));
        let server = power::come_up(&core, None).with_context(|| format!("booting {}", core.options.name))?;
        let life = tokio::spawn(power::run(core.clone(), server, received));
        Ok(Self(Arc::new(Handle { core, life })))
    }

    fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// The machine as a kubelet sees it. From the first call on, a shutdown waits for [`Machine::release_shutdown`].
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

    /// The name of the host.
    pub fn name(&self) -> &str {
        &self.core().options.name
    }

    /// The API's socket.
    pub fn socket(&self) -> PathBuf {
        self.core().options.socket.clone()
    }

    /// All events so far.
    pub fn log(&self) -> Vec<Event> {
        self.core().log.all()
    }

    /// Subscribes to new events.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.core().log.subscribe()
    }

    /// Injects a fault.
    pub fn script(&self, fault: Fault) {
        self.core().lock().script.add(fault);
    }

    /// Removes the faults that have not occurred. Returns their number.
    pub fn clear_faults(&self) -> usize {
        std::mem::take(&mut self.core().lock().script).len()
    }

    /// Cuts the power and restores it. Returns when the machine is down; it boots by itself.
    pub async fn power_loss(&self) {
        self.order(Order::PowerLoss).await;
    }

    /// Runs a command as another client of the API, once the machine runs. Returns when it was accepted, which is
    /// before its end if it takes time.
    ///
    /// # Errors
    /// The dispatcher refuses it.
    pub async fn foreign(&self, command: Command) -> Result<(), Refusal> {
        let core = self.core();
        // The sender lives as long as this handle.
        let _ = core.machine.subscribe().wait_for(|machine| machine.power != Power::Down).await;
        let _turn = core.turn.lock().await;
        let job = core.begin(&mut core.lock(), command)?;
        core.carry_out(job);
        Ok(())
    }

    /// Changes settings as another client of the API, and waits until the tools know them.
    pub fn foreign_settings(&self, change: UpdatesSettings) {
        let state = &mut *self.core().lock();
        state.settings.stage("foreign", change);
        if state.settings.commit("foreign").is_some() {
            state.effective = state.settings.committed().clone();
        }
    }

    /// Reboots the machine gracefully as another client on it. Returns when the shutdown has begun.
    pub async fn foreign_reboot(&self) {
        let mut machine = self.core().machine.subscribe();
        if machine.borrow_and_update().power == Power::Up && self.send(Order::Reboot(ShutdownBy::Foreign)) {
            // The sender lives as long as this handle.
            let _ = machine.changed().await;
        }
    }

    /// Restarts the API server; a running command dies with it. A `clean` stop removes the socket, another leaves one
    /// that refuses connections. Returns when the new server listens.
    pub async fn restart_api(&self, clean: bool) {
        let how = if clean { Stop::Clean } else { Stop::Killed };
        self.order(|done| Order::RestartApi(how, done)).await;
    }

    /// Cuts the power. The machine stays down.
    pub fn power_off(&self) {
        self.send(Order::Off);
    }

    /// Restores the power: a machine that is down boots.
    pub fn power_on(&self) {
        self.send(Order::On);
    }

    /// Waits until the machine is up in another boot than `boot_id`.
    pub async fn booted_after(&self, boot_id: &str) {
        let mut machine = self.core().machine.subscribe();
        // The sender lives as long as this handle.
        let _ = machine.wait_for(|machine| machine.power == Power::Up && machine.boot_id != boot_id).await;
    }

    /// Lets a command with [`Worker::Waits`] end.
    pub fn release_command(&self) {
        self.core().release();
    }

    /// Waits until no command holds the update lock.
    pub async fn lock_free(&self) {
        // The sender lives as long as this handle.
        let _ = self.core().locked.subscribe().wait_for(|locked| !locked).await;
    }

    /// The current state of the host.
    pub fn snapshot(&self) -> Snapshot {
        self.core().snapshot()
    }

    fn send(&self, order: Order) -> bool {
        self.core().orders.send(order).is_ok()
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order) {
        let (done, finished) = oneshot::channel();
        if self.send(order(done)) {
            // A request that a machine without power discards is done as well.
            let _ = finished.await;
        }
    }
}
