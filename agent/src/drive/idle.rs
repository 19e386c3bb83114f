//! A host that waits, idle or with a staged image: reported, and refreshed as often as policy requires.

use models::shadow::HostState;
use tokio::time::Instant;

use super::command::{self, run_command};
use super::facts::read_status;
use super::next::{Next, Stop};
use super::report::report;
use super::settings;
use super::settings_progress::Reading;
use super::turn::{Observed, Turn};
use crate::host::command::Outcome;
use crate::host::types::{Command, UpdateState, UpdateStatus};
use crate::memory::UnrecordedFailure;
use crate::report::Finding;

/// Reports a host with nothing requested and nothing armed, brings its settings to what policy requests, and refreshes
/// when it is due.
pub(super) async fn idle(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    let has_settings = settings::begin(turn);
    let finding = Finding::Reached(HostState::Idle);
    report(turn, found, &finding).await?;
    turn.boot.memory.armed = None;
    turn.boot.refreshes.enter_idle(Instant::now());
    if has_settings {
        settings::settle(turn, found, &finding).await?;
    }
    let now = Instant::now();
    let (by_policy, due) = turn.boot.refreshes.next_idle(turn.refresh_interval(), now);
    if now < due {
        return Ok(Next::At(match turn.boot.settings.reading {
            Reading::Waits(Some(until)) if has_settings => until.min(due),
            _ => due,
        }));
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
    let state = turn.boot.status.get().map(|status| &status.state);
    if matches!(state, Some(UpdateState::Ready | UpdateState::Unknown(_))) {
        turn.boot.refreshes.last = Some(Instant::now());
        turn.boot.refreshes.early = None;
        return Ok(Next::Again);
    }
    let outcome = run_command(turn, Command::Refresh).await;
    let boot = &mut turn.boot;
    if let Outcome::Done(status) = outcome {
        boot.refreshes.backoff.reset();
        let delay = boot.settings.learn_choice(&status, &found.facts.os.version);
        boot.refreshes.early = delay.map(|delay| Instant::now() + delay);
    } else {
        if let Outcome::StillRuns = outcome {
            // The agent does not see how it ends: a failure of now, which the line after the message does not come to count.
            boot.refreshes.backoff.count();
            boot.refreshes.last = Some(Instant::now());
        }
        // The host's own record has the reason of a failure that it recorded.
        let is_recorded = matches!(outcome, Outcome::Failed(..));
        let message = command::failure(boot, outcome)?;
        let before = boot.status.get().and_then(UpdateStatus::timestamp).map(str::to_owned);
        boot.memory.refresh_failure = (!is_recorded).then_some(UnrecordedFailure { message, before });
        boot.refreshes.backoff.count();
        boot.refreshes.early = None;
    }
    boot.refreshes.last = Some(Instant::now());
    Ok(Next::Again)
}
