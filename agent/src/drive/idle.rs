//! A host that waits, idle or with a staged image: reported, and refreshed as often as policy requires.

use models::shadow::HostState;
use tokio::time::Instant;

use super::command::{LEFT_NO_RECORD, run_command};
use super::facts::read_status;
use super::report::report;
use super::settings::{self, Settled};
use super::turn::{Next, Observed, Stop, Turn};
use crate::host::command::Outcome;
use crate::host::types::{Command, UpdateState};
use crate::report::Finding;

/// Reports a host with nothing requested and nothing armed, brings its settings to what policy requests, and refreshes
/// when it is due.
pub(super) async fn idle(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    let has_settings = settings::begin(turn);
    let finding = Finding::Reached(HostState::Idle);
    report(turn, found, &finding).await?;
    turn.boot.memory.armed = None;
    turn.boot.refreshes.enter_idle(Instant::now());
    let settled = if has_settings { settings::settle(turn, found, &finding).await? } else { Settled::Yes };
    let now = Instant::now();
    let (by_policy, due) = turn.boot.refreshes.next_idle(turn.refresh_interval(), now);
    if now < due {
        return Ok(Next::At(settled.wait_until().map_or(due, |until| until.min(due))));
    }
    // A client may have changed the settings since: each refresh by policy begins with them.
    if has_settings && by_policy <= now && turn.boot.settings.read_before(by_policy) {
        turn.boot.settings.read_again();
        return Ok(Next::Again);
    }
    refresh(turn, found).await
}

/// Reports a staged image that waits to be armed, and refreshes as often as policy requires, so that a withdrawn
/// version is not booted. A refresh leaves the staged image as it is.
pub(super) async fn wait_staged(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    report(turn, found, &Finding::Reached(HostState::StagedUpdate)).await?;
    let now = Instant::now();
    let due = turn.boot.refreshes.next_staged(turn.refresh_interval(), now);
    if now < due {
        return Ok(Next::At(due));
    }
    refresh(turn, found).await
}

async fn refresh(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    if let Some(allowed) = turn.boot.refreshes.too_soon(Instant::now()) {
        return Ok(Next::At(allowed));
    }
    read_status(turn).await?;
    if turn
        .boot
        .status
        .get()
        .is_some_and(|status| !matches!(status.state, UpdateState::Idle | UpdateState::Available | UpdateState::Staged))
    {
        turn.boot.refreshes.record(Instant::now());
        turn.boot.refreshes.early = None;
        return Ok(Next::Again);
    }
    let refreshed = match run_command(turn, Command::Refresh).await {
        Outcome::Done(status) => Ok(status),
        // The reason is in the host's own record.
        Outcome::Failed(..) => Err(None),
        Outcome::Vanished(_) => Err(Some(LEFT_NO_RECORD.to_owned())),
        Outcome::NotStarted(message) | Outcome::Refused(message) => Err(Some(message)),
        Outcome::Busy => return Ok(turn.boot.wait_for_lock()),
        Outcome::Interrupted => return Ok(Next::Again),
        Outcome::Host(error) if error.may_have_arrived() => Err(Some(error.to_string())),
        Outcome::Host(error) => return Err(error.into()),
    };
    let boot = &mut turn.boot;
    let now = Instant::now();
    boot.refreshes.record(now);
    match refreshed {
        Ok(status) => {
            boot.refreshes.failures.reset();
            let delay = boot.settings.learn_choice(&status, &found.facts.os.version);
            boot.refreshes.early = delay.map(|delay| now + delay);
        }
        Err(message) => {
            boot.refreshes.early = None;
            boot.refreshes.failures.count();
            boot.memory.refresh_failure = message;
        }
    }
    Ok(Next::Again)
}
