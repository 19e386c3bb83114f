//! The loop: read the newest desired state and the host, take the step from the table, report, wait for a change.
//!
//! ```text
//!  read_facts ──► situation ──► step ─┬─ idle, wait_staged   refresh as often as policy requires
//!                   (pure)     (pure) ├─ stage               settings, refresh, download
//!                                     ├─ deactivate, prepare_again   disarm a host
//!                                     ├─ permit              request ──► verify ──► activate, reboot; in a drill neither
//!                                     └─ fail                ends the attempt, with the reason from the step table
//! ```
//!
//! Each turn runs at most one host command and then decides again, so a withdrawn or newer desired state is noticed
//! between any two calls. All decisions are pure functions: the step table in `models::agent_step`, the
//! rest in the modules of this crate (`situation`, `staging`, `settings`, `refreshes`).

mod boot_state;
mod command;
mod disarm;
mod facts;
mod fail;
mod idle;
mod outage;
mod permit;
mod report;
mod settings;
mod stage;
mod turn;

use std::convert::Infallible;
use std::time::Duration;

use models::agent_step::{Step, step};
use models::shadow::HostState;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::boot;
use crate::config::Config;
use crate::desired_state::DesiredState;
use crate::host::client::{HostClient, HostError};
use crate::host::types::{UpdateState, UpdateStatus};
use crate::report::{Finding, HostCondition};
use crate::server::Server;
use crate::situation::{host_state, situation};
use crate::stream::chain;
use crate::views::{Known, Views};
use boot_state::BootState;
use report::ReportState;
use turn::{Clients, Next, Observed, Stop, Turn};

/// Interval of reads of the boot id while a reboot is awaited. No host call.
const BOOT_POLL: Duration = Duration::from_secs(1);

/// Interval of re-checks of a host in an unknown update state, or armed by another client: nothing signals when a user
/// has corrected it.
const RECHECK: Duration = Duration::from_secs(300);

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
                tracing::warn!(error = chain(&*error), "the boot id cannot be read");
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
            Err(Stop::Host(error)) => outage::retry(&mut turn, error).await,
        }
    }
}

/// Reads the facts and takes the step that the table has for them.
async fn take_step(turn: &mut Turn<'_>) -> Result<Next, Stop> {
    let facts = facts::read_facts(turn).await?;
    turn.boot.take_over_activation(&turn.view);
    if let Some(UpdateStatus { state: UpdateState::Unknown(state), .. }) = &facts.status {
        let condition = HostCondition::unsupported(format!("the host's update state '{state}' is not known"));
        let finding = Finding::InProgress(turn.view.status.report.state.unwrap_or_default());
        turn.boot.status.expire();
        report::report_with(turn, &facts, &finding, &condition).await?;
        return Ok(Next::At(Instant::now() + RECHECK));
    }
    let situation = situation(&turn.view, &facts, &turn.boot.memory);
    let step = step(&situation);
    tracing::debug!(?situation, ?step, "next step");
    let found = &Observed { facts, situation };
    match step {
        Step::Reached(HostState::Idle) => idle::idle(turn, found).await,
        Step::Reached(HostState::StagedUpdate) => idle::wait_staged(turn, found).await,
        Step::Reached(state) => report_and_wait(turn, found, &Finding::Reached(state)).await,
        Step::Rest => report_and_wait(turn, found, &Finding::AtRest(host_state(&found.situation))).await,
        Step::LeaveArmed => {
            turn.boot.status.expire();
            report::report(turn, found, &Finding::AtRest(HostState::Idle)).await?;
            Ok(Next::At(Instant::now() + RECHECK))
        }
        Step::Unsupported => {
            let message = "the desired state is not known to this version of the agent";
            let finding = Finding::InProgress(host_state(&found.situation));
            report::report_with(turn, &found.facts, &finding, &HostCondition::unsupported(message)).await?;
            Ok(Next::Wait)
        }
        Step::Fail(reason) => {
            let message = fail::explain(reason, &turn.desired, &found.facts);
            fail::fail(turn, found, reason, message).await
        }
        Step::Deactivate => disarm::deactivate(turn, found).await,
        Step::PrepareAgain => disarm::prepare_again(turn, found).await,
        Step::Stage => stage::stage(turn, found).await,
        Step::Arm => permit::arm(turn, found).await,
        Step::RebootArmed => permit::reboot_armed(turn, found).await,
        Step::Rehearse => permit::rehearse(turn, found).await,
    }
}

async fn report_and_wait(turn: &mut Turn<'_>, found: &Observed, finding: &Finding) -> Result<Next, Stop> {
    report::report(turn, found, finding).await?;
    Ok(Next::Wait)
}
