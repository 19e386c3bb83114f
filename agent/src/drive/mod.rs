//! The loop: read the newest desired state and the host, take the step from the table, report, wait for a change.
//!
//! Each turn runs at most one host command and then decides again, so a withdrawn or newer desired state is noticed
//! between any two calls. All decisions are pure functions in the modules beside this one.

mod arm;
mod facts;
mod put;
mod settings;
mod steps;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use models::agent_step::{ArmedBy, Image, Situation, Step, step};
use models::shadow::HostState;
use models::wire::ShadowView;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::backoff::random;
use crate::boot;
use crate::config::Config;
use crate::host::client::{HostClient, HostError};
use crate::host::types::{OsInfo, UpdateState, UpdateStatus};
use crate::memory::{Memory, OrderKey};
use crate::report::{Reach, Shortened, Word};
use crate::server::Server;
use crate::situation::{Facts, situation, standing};
use crate::staging::Tries;
use crate::stream::chain;
use crate::views::{Known, Views};
use arm::Ask;
use settings::Settling;

/// Time in which a host that accepted the reboot goes down (units are stopped, with systemd's limit of 90 s each way).
/// After it, the host did not reboot, and everything is checked again.
const REBOOT_PATIENCE: Duration = Duration::from_secs(300);

/// Interval of reads of the boot id while a reboot is awaited. No host call.
const BOOT_POLL: Duration = Duration::from_secs(1);

/// Interval of re-checks of a host in an unknown update state, or armed by another client: nothing signals when a user
/// has corrected it.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// An error that ends the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A client cannot be built.
    #[error("cannot make the host's client")]
    Client(#[source] reqwest::Error),
    /// The socket is dead. A bind-mounted socket goes stale when the host's API server restarts, and only a new mount
    /// of its path helps: the pod has to be restarted.
    #[error("the host's socket has been dead for {} s", .0.as_secs())]
    SocketDead(Duration, #[source] HostError),
}

/// Next action of the loop after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Decides again at once.
    Again,
    /// Waits until this time, or for a change.
    At(Instant),
    /// Waits until this time, or for another desired state: no other event of the stream cuts a back-off short.
    BackOff(Instant),
    /// Waits for a change.
    Wait,
}

impl Turn {
    fn after(wait: Duration) -> Self {
        Self::BackOff(Instant::now() + wait)
    }
}

/// Schedule of the host's refreshes.
#[derive(Debug)]
struct Looks {
    /// Last request for a refresh, under any desired state.
    asked: Option<Instant>,
    /// Last attempted refresh.
    last: Option<Instant>,
    /// Consecutive failures.
    failures: u32,
    /// Time since which the desired state has been `Idle`.
    idle_since: Option<Instant>,
    /// Random position of the first refresh in its range.
    random: f64,
    /// An earlier refresh, because the settings that it depends on have changed.
    soon: Option<Instant>,
}

impl Looks {
    fn new() -> Self {
        Self { asked: None, last: None, failures: 0, idle_since: None, random: random(), soon: None }
    }
}

/// An outage of the host.
#[derive(Debug)]
struct Trouble {
    since: Instant,
    dead_since: Option<Instant>,
    calls: u32,
}

/// Drives the host.
#[derive(Debug)]
pub struct Driver<'a> {
    config: &'a Config,
    host: HostClient,
    server: &'a Server,
    views: &'a Views,
    changed: watch::Receiver<Known>,

    // State of the running boot.
    boot_id: String,
    os: Option<OsInfo>,
    status: Option<UpdateStatus>,
    /// The desired state under which the status was read; `None` if it must be read before it is used.
    status_of: Option<OrderKey>,
    memory: Memory,
    looks: Looks,
    settling: Settling,
    /// Time at which the host accepted this agent's reboot request.
    rebooting: Option<Instant>,

    // State of the desired state's attempt.
    tries: Tries,
    tries_of: Option<OrderKey>,
    ask: Option<Ask>,

    // Outages and busy hosts.
    trouble: Option<Trouble>,
    busy: u32,
    held: u32,
    put_failures: u32,
    /// The last report, if it was not stored whole, and the number of streams opened before it.
    shortened: Option<(u64, Shortened)>,
}

impl<'a> Driver<'a> {
    /// Creates a driver without any knowledge of the host.
    pub fn new(config: &'a Config, host: HostClient, server: &'a Server, views: &'a Views) -> Self {
        Self {
            config,
            host,
            server,
            views,
            changed: views.subscribe(),
            boot_id: String::new(),
            os: None,
            status: None,
            status_of: None,
            memory: Memory::default(),
            looks: Looks::new(),
            settling: Settling::default(),
            rebooting: None,
            tries: Tries::default(),
            tries_of: None,
            ask: None,
            trouble: None,
            busy: 0,
            held: 0,
            put_failures: 0,
            shortened: None,
        }
    }

    /// Drives the host for ever.
    ///
    /// # Errors
    ///
    /// Returns an error if the host's socket has been dead for long, outside a reboot that this agent requested.
    pub async fn run(mut self) -> Result<Infallible, AgentError> {
        loop {
            match self.turn().await? {
                // The stream shares this task's thread and must get its share.
                Turn::Again => tokio::task::yield_now().await,
                Turn::At(time) => tokio::select! {
                    () = sleep_until(time) => {}
                    _ = self.changed.changed() => {}
                },
                Turn::BackOff(time) => tokio::select! {
                    () = sleep_until(time) => {}
                    () = self.another_order() => {}
                },
                Turn::Wait => {
                    let _ = self.changed.changed().await;
                }
            }
        }
    }

    /// Returns when the newest shadow has another desired state than the last turn.
    async fn another_order(&mut self) {
        let current = self.tries_of.clone();
        let _ = self.changed.wait_for(|known| known.view.as_deref().map(OrderKey::of) != current).await;
    }

    async fn turn(&mut self) -> Result<Turn, AgentError> {
        self.changed.mark_unchanged();
        match boot::read(&self.config.boot_id_file) {
            Ok(boot_id) if boot_id == self.boot_id => {}
            Ok(boot_id) => self.begin_boot(boot_id),
            Err(error) => {
                tracing::warn!(error = chain(&error), "the boot is not known");
                return Ok(Turn::At(Instant::now() + BOOT_POLL));
            }
        }
        if let Some(since) = self.rebooting {
            if since.elapsed() < REBOOT_PATIENCE {
                return Ok(Turn::At(Instant::now() + BOOT_POLL));
            }
            tracing::warn!("the host accepted the reboot, but still runs");
            self.rebooting = None;
            self.status_of = None;
        }
        let Some(view) = self.views.newest() else { return Ok(Turn::Wait) };
        let key = OrderKey::of(&view);
        if self.tries_of.as_ref() != Some(&key) {
            tracing::info!(state = ?key.state, version = ?key.version, attempt = key.attempt.attempt, "desired state");
            self.tries = Tries::default();
            self.tries_of = Some(key.clone());
        }
        if key.state != HostState::Idle {
            self.looks.idle_since = None;
        }
        match self.facts(&view, &key).await? {
            Ok(facts) => {
                self.inherit(&view);
                self.act(&view, &key, &facts).await
            }
            Err(turn) => Ok(turn),
        }
    }

    /// Takes over what the previous process may have done in this boot. Returns true if there was anything.
    fn inherit(&mut self, view: &ShadowView) -> bool {
        let armed = view.status.report.armed.as_ref().filter(|armed| armed.boot_id == self.boot_id);
        let own = self.ask.as_ref().zip(armed).is_some_and(|(ask, armed)| ask.asked(&armed.nonce));
        // Without a status there is no record to compare later ones with.
        let known = self.status_of.is_some();
        armed.is_some() && !own && known && self.memory.inherit(self.status.as_ref())
    }

    /// Discards the state of the previous boot.
    fn begin_boot(&mut self, boot_id: String) {
        tracing::info!(boot_id, "boot");
        self.boot_id = boot_id;
        self.os = None;
        self.status = None;
        self.status_of = None;
        self.memory = Memory::default();
        self.looks = Looks::new();
        self.settling = Settling::default();
        self.rebooting = None;
        self.tries_of = None;
        self.ask = None;
        self.trouble = None;
    }

    async fn act(&mut self, view: &Arc<ShadowView>, key: &OrderKey, facts: &Facts) -> Result<Turn, AgentError> {
        if let Some(UpdateStatus { state: UpdateState::Unknown(state), .. }) = &facts.status {
            let reach = Reach::Unsupported(format!("the host's update state '{state}' is not known"));
            let word = Word::Standing(view.status.report.state.unwrap_or_default());
            self.status_of = None;
            return Ok(self.tell(key, facts, &word, &reach, Turn::At(Instant::now() + LOOK_AGAIN)).await);
        }
        let found = situation(view, facts, &self.memory);
        let step = step(&found);
        tracing::debug!(?found, ?step, "step");
        let reach = self.reach(&found);
        match step {
            Step::Reached(HostState::Idle) => self.idle(view, key, facts).await,
            Step::Reached(HostState::StagedUpdate) => self.staged(key, facts, &reach).await,
            Step::Reached(state) => Ok(self.tell(key, facts, &Word::Reached(state), &reach, Turn::Wait).await),
            Step::Rest => Ok(self.tell(key, facts, &Word::Rest(standing(&found)), &reach, Turn::Wait).await),
            Step::LeaveArmed => {
                self.status_of = None;
                let word = Word::Rest(HostState::Idle);
                Ok(self.tell(key, facts, &word, &reach, Turn::At(Instant::now() + LOOK_AGAIN)).await)
            }
            Step::Unsupported => {
                let reach =
                    Reach::Unsupported("the desired state is not known to this version of the agent".to_owned());
                Ok(self.tell(key, facts, &Word::Standing(standing(&found)), &reach, Turn::Wait).await)
            }
            Step::Fail(reason) => {
                let message = steps::explain(reason, key, facts);
                Ok(self.fail(key, facts, &found, reason, message).await)
            }
            Step::Deactivate => self.deactivate(key, facts, &found).await,
            Step::PrepareAgain => self.prepare_again(key, facts, &found).await,
            Step::Stage => self.stage(view, key, facts, &found).await,
            Step::Arm => self.arm(key, facts, &found, false).await,
            Step::RebootArmed => self.arm(key, facts, &found, true).await,
        }
    }

    /// Returns the content of `HostReachable` for a host that answers.
    fn reach(&self, found: &Situation) -> Reach {
        let theirs = found.image == Image::Ready && found.armed_by == ArmedBy::Other;
        if theirs { Reach::ArmedByOther } else { self.settling.reach() }
    }
}
