//! The loop over the turns.

use std::convert::Infallible;
use std::time::Duration;

use models::failures::with_causes;
use models::wire::ShadowView;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::boot_state::BootState;
use super::moment::Moment;
use super::next::{Next, Stop};
use super::report::{put, report_if_possible};
use super::report_state::ReportState;
use super::step::take_step;
use super::turn::{Clients, Turn};
use crate::boot;
use crate::config::Config;
use crate::desired_state::DesiredState;
use crate::host::client::{HostClient, HostError};
use crate::report::{HostCondition, build_condition};
use crate::server::Server;
use crate::views::{Known, Views};

/// Interval of reads of the boot id while a reboot is awaited. No host call.
const BOOT_POLL: Duration = Duration::from_secs(1);

/// An error that ends the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A client cannot be built.
    #[error("cannot make the host's client")]
    Client(#[source] reqwest::Error),
    /// The socket is dead. A bind-mounted socket goes stale when the host's API server restarts, and only a new mount
    /// of its path helps: another container.
    #[error("the host's socket has been dead for {} s", .0.as_secs())]
    SocketDead(Duration, #[source] HostError),
}

#[derive(Debug)]
pub(crate) struct Driver<'a> {
    clients: Clients<'a>,
    changed: watch::Receiver<Known>,
    boot: BootState,
    reports: ReportState,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(config: &'a Config, host: HostClient, server: &'a Server, views: &'a Views) -> Self {
        Self {
            clients: Clients { config, host, server, views },
            changed: views.subscribe(),
            boot: BootState::default(),
            reports: ReportState::default(),
        }
    }

    /// Drives the host for ever, or until its socket has been dead for long outside a reboot that this agent requested.
    pub(crate) async fn run(mut self) -> Result<Infallible, AgentError> {
        loop {
            match self.turn().await? {
                // The stream shares this task's thread and must get its share.
                Next::Again => tokio::task::yield_now().await,
                Next::At(time) => tokio::select! {
                    () = sleep_until(time) => {}
                    _ = self.changed.changed() => {}
                },
                Next::BackOff(time) => tokio::select! {
                    () = sleep_until(time) => {}
                    () = self.new_desired_state() => {}
                },
                Next::Wait => {
                    let _ = self.changed.changed().await;
                }
            }
        }
    }

    /// Returns when the newest shadow has another desired state than the last turn.
    async fn new_desired_state(&mut self) {
        let last = &self.boot.desired;
        let _ = self.changed.wait_for(|known| known.view.as_deref().map(DesiredState::of) != *last).await;
    }

    async fn turn(&mut self) -> Result<Next, AgentError> {
        self.changed.mark_unchanged();
        match boot::read(&self.clients.config.boot_id_file) {
            Ok(boot_id) if boot_id == self.boot.id => {}
            Ok(boot_id) => {
                tracing::info!(boot_id, "new boot");
                self.boot = BootState { id: boot_id, ..BootState::default() };
            }
            Err(error) => {
                self.boot.outage.log.failed("the boot id cannot be read", &with_causes(&*error));
                return Ok(Next::At(Instant::now() + BOOT_POLL));
            }
        }
        if self.boot.is_rebooting(Instant::now()) {
            return Ok(Next::At(Instant::now() + BOOT_POLL));
        }
        let Some(view) = self.clients.views.newest() else { return Ok(Next::Wait) };
        let desired = DesiredState::of(&view);
        self.boot.begin(&desired);
        let mut turn = Turn { clients: &self.clients, boot: &mut self.boot, reports: &mut self.reports, view, desired };
        match take_step(&mut turn).await {
            Ok(next) | Err(Stop::Next(next)) => Ok(next),
            Err(Stop::Host(error)) => retry_host(&mut turn, error).await,
        }
    }
}

/// Handles a call without an answer: returns when to retry, or an error if the socket is dead.
async fn retry_host(turn: &mut Turn<'_>, error: HostError) -> Result<Next, AgentError> {
    let now = Instant::now();
    turn.boot.status.expire();
    let outage = &mut turn.boot.outage;
    let delay = outage.record(error.socket_is_dead(), now);
    let dead_for = outage.dead_for(now);
    outage.log.failed("the host does not answer", &with_causes(&error));
    if outage.is_reported(now) {
        let condition = HostCondition::unreachable(&error);
        let make = |view: &ShadowView| build_condition(&view.status, &condition, Moment::now().wall);
        report_if_possible(turn, async |turn| put(turn, make).await).await;
        // Staging, too, reports again once the host answers.
        turn.boot.tries.announced = false;
    }
    match dead_for {
        Some(dead_for) => Err(AgentError::SocketDead(dead_for, error)),
        None => Ok(Next::after(delay)),
    }
}
