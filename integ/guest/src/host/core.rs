//! Internals of one simulated host: its state behind a lock, and the workers that change it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use semver::Version;
use tokio::sync::{Notify, mpsc, watch};

use crate::machine::{MachineState, Power};

use super::disk::Disk;
use super::faults::{Script, Worker};
use super::hardware::{Hardware, Kept, KeptBoot};
use super::log::{EventKind, Log};
use super::power::Order;
use super::releases::Listing;
use super::settings::{SettingsStore, UpdatesSettings, VersionLock};
use super::state::{Command, Dispatcher, Ending, Found, Refusal, UpdateImage, UpdateStatus};
use super::{HostOptions, Snapshot};

/// The shared state of the tasks of one host.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) options: HostOptions,
    /// The machine of a real host; `None`: all of it is simulated.
    pub(super) hardware: Option<Arc<Hardware>>,
    pub(super) log: Log,
    state: Mutex<State>,
    /// Power, boot id and image, as the kubelet sees them.
    pub(super) machine: watch::Sender<MachineState>,
    /// Notified when the kubelet releases a shutdown.
    pub(super) shutdown_released: Arc<Notify>,
    /// True if the kubelet may delay a shutdown.
    pub(super) machine_taken: AtomicBool,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    /// The API server's only worker.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// True while a command holds the update lock.
    pub(super) locked: watch::Sender<bool>,
}

/// The mutable state of the machine.
#[derive(Debug)]
pub(super) struct State {
    pub(super) dispatcher: Dispatcher,
    pub(super) disk: Disk,
    pub(super) settings: SettingsStore,
    /// The tools' configuration files as the applier wrote them; they lag behind the settings.
    pub(super) effective: UpdatesSettings,
    pub(super) script: Script,
    /// True while a shutdown is under way.
    pub(super) shutting_down: bool,
    /// Number of commands, so that a worker of an earlier boot cannot end a later one's command.
    serial: u64,
    /// Number of boots, for the same reason.
    pub(super) boots: u64,
    last_record: Timestamp,
    /// A command that runs until it is released.
    waiting: Option<Job>,
}

/// An accepted command that has to be carried out.
#[derive(Clone, Debug)]
pub(super) struct Job {
    serial: u64,
    command: Command,
    worker: Worker,
    /// The version that a prepare writes, decided by updog at its start.
    writes: Option<Version>,
    /// The error that ended its work on a real disk.
    failure: Option<String>,
    delay: Duration,
}

/// The effect of a command that succeeds.
struct Effect {
    stderr: String,
    /// Result of a refresh.
    found: Option<Found>,
    /// The version that a refresh chose, a prepare wrote, or an activate armed.
    version: Option<Version>,
    /// The change of the next boot.
    flags: Option<EventKind>,
}

impl Effect {
    fn new(stderr: impl Into<String>, version: Option<Version>) -> Self {
        Self { stderr: stderr.into(), found: None, version, flags: None }
    }
}

impl Core {
    pub(super) fn new(options: HostOptions, orders: mpsc::UnboundedSender<Order>) -> Self {
        let settings = options.settings.clone();
        let boot_id = String::new();
        let machine = MachineState { power: Power::Down, boot_id, os_image: String::new() };
        Self {
            state: Mutex::new(State {
                dispatcher: Dispatcher::default(),
                disk: Disk::installed(options.version.clone()),
                settings: SettingsStore::new(settings.clone()),
                effective: settings,
                script: Script::default(),
                shutting_down: false,
                serial: 0,
                boots: 0,
                last_record: Timestamp::UNIX_EPOCH,
                waiting: None,
            }),
            log: Log::new(),
            machine: watch::Sender::new(machine),
            shutdown_released: Arc::default(),
            machine_taken: AtomicBool::new(false),
            orders,
            turn: tokio::sync::Mutex::default(),
            locked: watch::Sender::new(false),
            hardware: None,
            options,
        }
    }

    /// The state of a real host on this machine, with what it kept.
    pub(super) fn on(
        hardware: Hardware,
        disk: Disk,
        options: HostOptions,
        orders: mpsc::UnboundedSender<Order>,
    ) -> Self {
        let mut core = Self::new(options, orders);
        let state = core.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.disk = disk;
        if let Some(Kept { settings, boot }) = hardware.kept() {
            state.settings = settings;
            state.effective = boot.effective;
            let last = boot.status.as_ref().and_then(|status| status.most_recent_command.as_ref());
            state.last_record = last.map_or(state.last_record, |last| last.timestamp);
            state.dispatcher = Dispatcher::resume(boot.status);
        }
        core.hardware = Some(Arc::new(hardware));
        core
    }

    /// The current state, read past all locks.
    pub(super) fn snapshot(&self) -> Snapshot {
        let state = &*self.lock();
        let machine = self.machine.borrow().clone();
        Snapshot {
            running_version: self.running(state),
            boot_id: machine.boot_id,
            power: machine.power,
            status: state.dispatcher.peek().cloned(),
            running_command: state.dispatcher.running(),
            disk: state.disk.clone(),
            settings: state.settings.committed().clone(),
            effective_settings: state.effective.clone(),
        }
    }

    /// Reads the boot flags again: on a real host another program marks a good boot.
    fn read_flags(&self, state: &mut State) -> Result<(), String> {
        if let Some(hardware) = &self.hardware {
            state.disk = hardware.read_flags()?;
        }
        Ok(())
    }

    fn write_flags(&self, state: &State) -> Result<(), String> {
        self.hardware.as_ref().map_or(Ok(()), |hardware| hardware.write_flags(&state.disk))
    }

    /// Keeps what a restart of a real host's API server does not change.
    pub(super) fn keep(&self, state: &State) -> Result<(), String> {
        let Some(hardware) = &self.hardware else { return Ok(()) };
        let boot = KeptBoot { status: state.dispatcher.peek().cloned(), effective: state.effective.clone() };
        hardware.keep(Kept { settings: state.settings.clone(), boot })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn boot_id(&self) -> String {
        self.machine.borrow().boot_id.clone()
    }

    pub(super) fn note(&self, kind: EventKind) {
        self.log.add(&self.boot_id(), kind);
    }

    fn image(&self, version: Version) -> UpdateImage {
        UpdateImage { arch: self.options.arch.clone(), version, variant: self.options.variant.clone() }
    }

    /// The version on the running set.
    pub(super) fn running(&self, state: &State) -> Version {
        state.disk.active_set().version.clone().unwrap_or_else(|| self.options.version.clone())
    }

    fn listing(&self, state: &State) -> Listing {
        let seed = state.effective.seed.unwrap_or(self.options.seed);
        let ignore_waves = state.effective.ignore_waves.unwrap_or(false);
        self.options.releases.list(seed, ignore_waves, Timestamp::now())
    }

    /// Returns the version that updog, or the dispatcher after it ran updog, picks by the current configuration files.
    fn pick(&self, state: &State, listing: &Listing) -> Option<Version> {
        let latest = VersionLock::latest();
        let lock = state.effective.version_lock.as_ref().unwrap_or(&latest);
        listing.choose(lock, &self.running(state)).cloned()
    }

    /// Starts a command: everything up to the response to the caller.
    pub(super) fn begin(&self, state: &mut State, command: Command) -> Result<Job, Refusal> {
        if let Err(error) = self.read_flags(state) {
            tracing::warn!(error, host = self.options.name, "boot flags cannot be read");
        }
        let running = self.image(self.running(state));
        let next_to_boot = state.disk.next() == Some(state.disk.active);
        state.dispatcher.begin(command, || UpdateStatus::fresh(running, next_to_boot))?;
        self.locked.send_replace(true);
        state.serial += 1;
        let (delay, worker) = state.script.command(command);
        let timings = &self.options.timings;
        let delay = delay.unwrap_or(match command {
            Command::Refresh => timings.refresh,
            Command::Prepare => timings.prepare,
            Command::Activate => timings.activate,
            Command::Deactivate => timings.deactivate,
        });
        let (mut writes, mut failure) = (None, None);
        if command == Command::Prepare {
            writes = match &worker {
                Worker::Writes(version) => Some(version.clone()),
                Worker::WritesNothing | Worker::Exits { overwrote: false, .. } => None,
                // updog does not know what the dispatcher chose: it chooses again, by its own configuration.
                _ => self.pick(state, &self.listing(state)),
            };
            if writes.is_some() {
                if state.disk.next() != Some(state.disk.active) {
                    self.note(EventKind::Disarmed);
                }
                state.disk.clear_inactive();
                failure = self.write_flags(state).err();
            }
        }
        Ok(Job { serial: state.serial, command, worker, writes, failure, delay })
    }

    /// Carries out a command: at once if it takes no time, otherwise in the background.
    pub(super) fn carry_out(self: &Arc<Self>, job: Job) {
        match job.worker {
            Worker::NeverEnds => return,
            Worker::Waits => {
                self.lock().waiting = Some(job);
                return;
            }
            _ => {}
        }
        if job.delay.is_zero() && !self.writes_image(&job) {
            self.end(&job);
            return;
        }
        let core = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(job.delay).await;
            if let Some(core) = core.upgrade() {
                let job = core.write_image(job).await;
                core.end(&job);
            }
        });
    }

    /// Returns true if the command has an image to write to a real disk.
    fn writes_image(&self, job: &Job) -> bool {
        let works = matches!(job.worker, Worker::Succeeds | Worker::LosesRecord | Worker::Writes(_));
        self.hardware.is_some() && works && job.failure.is_none() && job.writes.is_some()
    }

    /// Writes the command's image to a real disk.
    async fn write_image(&self, mut job: Job) -> Job {
        if self.writes_image(&job)
            && let (Some(hardware), Some(version)) = (self.hardware.clone(), job.writes.clone())
        {
            let set = self.lock().disk.inactive();
            let written = tokio::task::spawn_blocking(move || hardware.write_image(set, &version)).await;
            job.failure = written.unwrap_or_else(|error| Err(error.to_string())).err();
        }
        job
    }

    /// Ends the waiting command.
    pub(super) fn release(self: &Arc<Self>) {
        let waiting = self.lock().waiting.take();
        if let Some(job) = waiting {
            self.carry_out(Job { worker: Worker::Succeeds, delay: Duration::ZERO, ..job });
        }
    }

    /// Does the work of a command that no fault ends: its effect on the disk.
    fn work(&self, state: &mut State, job: &Job) -> Result<Effect, String> {
        if let Some(failure) = &job.failure {
            return Err(failure.clone());
        }
        self.read_flags(state)?;
        let before = state.disk.clone();
        let effect = match job.command {
            Command::Refresh => {
                let listing = self.listing(state);
                let version = self.pick(state, &listing);
                let chosen = Some(version.clone().map(|version| self.image(version)));
                let found = Some(Found { available: listing.available, chosen });
                Effect { found, ..Effect::new("", version) }
            }
            Command::Prepare => match &job.writes {
                Some(written) => {
                    state.disk.write_inactive(written.clone());
                    Effect::new(self.options.updog.starting(written), Some(written.clone()))
                }
                None => Effect::new("No update required\n", None),
            },
            Command::Activate => {
                state.disk.upgrade_to_inactive()?;
                let version = state.disk.inactive_set().version.clone();
                let flags = version.clone().map(|version| EventKind::Armed { version });
                Effect { flags, ..Effect::new("", version) }
            }
            Command::Deactivate => {
                state.disk.cancel_upgrade();
                Effect { flags: Some(EventKind::Disarmed), ..Effect::new("", None) }
            }
        };
        if state.disk != before
            && let Err(error) = self.write_flags(state)
        {
            state.disk = before;
            return Err(error);
        }
        Ok(effect)
    }

    /// Ends a command: its effect on the disk, its record, and the release of the lock, in one step.
    fn end(&self, job: &Job) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.dispatcher.running() != Some(job.command) || state.serial != job.serial {
            return;
        }
        let mut version = None;
        let mut flags = None;
        let ending = match &job.worker {
            Worker::Vanishes | Worker::NeverEnds => Ending::Unrecorded,
            Worker::Killed { signal } => Ending::Failed { exit_status: *signal, stderr: String::new() },
            Worker::Exits { status, stderr, .. } => Ending::Failed { exit_status: *status, stderr: stderr.clone() },
            Worker::BadConfig if job.command == Command::Refresh => {
                let found = Some(Found { available: self.listing(state).available, chosen: None });
                Ending::Succeeded { stderr: String::new(), found }
            }
            Worker::Succeeds
            | Worker::Waits
            | Worker::LosesRecord
            | Worker::BadConfig
            | Worker::Writes(_)
            | Worker::WritesNothing => match self.work(state, job) {
                Ok(effect) => {
                    (version, flags) = (effect.version, effect.flags);
                    Ending::Succeeded { stderr: effect.stderr, found: effect.found }
                }
                Err(error) => Ending::Failed { exit_status: 1, stderr: format!("{error}\n") },
            },
        };
        let ending = if job.worker == Worker::LosesRecord { Ending::Unrecorded } else { ending };
        let ok = matches!(ending, Ending::Succeeded { .. });
        let at = Timestamp::now().max(state.last_record + Duration::from_nanos(1));
        state.last_record = at;
        state.dispatcher.end(ending, at);
        if let Err(error) = self.keep(state) {
            tracing::error!(error, host = self.options.name, "record of a command not kept");
        }
        self.locked.send_replace(false);
        if let Some(flags) = flags {
            self.note(flags);
        }
        self.note(EventKind::CommandFinished { command: job.command, ok, version });
    }

    /// Ends the worker with the API server or the machine; the lock is free again and there is no record.
    pub(super) fn kill_worker(&self, state: &mut State) {
        if let Some(command) = state.dispatcher.end(Ending::Unrecorded, Timestamp::UNIX_EPOCH) {
            self.locked.send_replace(false);
            self.note(EventKind::CommandFinished { command, ok: false, version: None });
        }
    }

    /// Starts the applier: some time later the tools' configuration files contain the settings.
    pub(super) fn apply_settings(self: &Arc<Self>, state: &mut State) {
        let lag = self.options.settings_lag;
        if lag.is_zero() {
            state.effective = state.settings.committed().clone();
            return;
        }
        let (core, boot) = (Arc::downgrade(self), state.boots);
        tokio::spawn(async move {
            tokio::time::sleep(lag).await;
            if let Some(core) = core.upgrade() {
                let mut state = core.lock();
                if state.boots == boot {
                    state.effective = state.settings.committed().clone();
                }
            }
        });
    }
}
