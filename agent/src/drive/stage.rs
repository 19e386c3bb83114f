//! Staging: brings the target version onto the inactive partition set.

use std::time::Duration;

use models::backoff::Delays;
use models::reason::FailureReason;
use semver::Version;
use tokio::time::Instant;

use super::command::{self, run_command};
use super::fail::fail;
use super::next::{Next, Stop};
use super::report::report;
use super::settings;
use super::settings_progress::Reading;
use super::turn::{Observed, Turn};
use crate::host::command::Outcome;
use crate::host::settings::LATEST;
use crate::host::types::{Command, UpdateStatus};
use crate::report::Finding;
use crate::situation::host_state;
use crate::staging::{StagingAction, next_action};

/// Delay before another refresh because the host chose another version.
const OTHER_CHOSEN: Delays = (Duration::from_millis(500), Duration::from_secs(8));

/// Takes the next action towards a staged image.
pub(super) async fn stage(turn: &mut Turn<'_>, found: &Observed) -> Result<Next, Stop> {
    let Some(wanted) = turn.desired.version.clone() else { return Ok(Next::Wait) };
    // A download takes long: the shadow must not show another boot for that time. The facts found before it are
    // reported with the outcome.
    if !turn.boot.tries.announced {
        report(turn, found, &Finding::InProgress(host_state(&found.situation))).await?;
        turn.boot.tries.announced = true;
    }
    if settings::begin(turn)
        && settings::are_for(turn, &wanted)
        && let Some(next) = settle(turn, found, &wanted).await?
    {
        return Ok(next);
    }
    let boot = &turn.boot;
    match next_action(boot.status.get(), boot.memory.chosen.as_ref(), &wanted, &boot.tries) {
        StagingAction::Fail(reason, message) => fail(turn, found, reason, message).await,
        StagingAction::Refresh => refresh(turn, &wanted).await,
        StagingAction::Prepare => prepare(turn).await,
    }
}

/// Handles the settings that the download depends on; returns what to do first if they are not as requested.
async fn settle(turn: &mut Turn<'_>, found: &Observed, wanted: &Version) -> Result<Option<Next>, Stop> {
    if !turn.boot.tries.settled {
        turn.boot.settings.begin_desired_state();
        turn.boot.tries.settled = true;
    }
    let finding = Finding::InProgress(host_state(&found.situation));
    settings::settle(turn, found, &finding).await?;
    if let Reading::Waits(until) = turn.boot.settings.reading {
        if let Some(message) = turn.boot.settings.refusal() {
            return fail(turn, found, FailureReason::SettingsFailed, message).await.map(Some);
        }
        report(turn, found, &finding).await?;
        return Ok(Some(until.map_or(Next::Wait, Next::At)));
    }
    let Some(lock) = settings::conflicting_lock(turn, wanted) else { return Ok(None) };
    let message = format!(
        "another client set the host's version-lock to '{lock}', which does not allow {wanted}; set it back to '{LATEST}'"
    );
    fail(turn, found, FailureReason::LockedByOther, message).await.map(Some)
}

async fn refresh(turn: &mut Turn<'_>, wanted: &Version) -> Result<Next, Stop> {
    if let Some(allowed) = turn.boot.refreshes.too_soon(Instant::now()) {
        return Ok(Next::At(allowed));
    }
    let outcome = run_command(turn, Command::Refresh).await;
    let Outcome::Done(_) = outcome else { return command::retry(turn, outcome, |tries| &mut tries.refresh) };
    let boot = &mut turn.boot;
    boot.refreshes.last = Some(Instant::now());
    boot.refreshes.backoff.reset();
    boot.tries.refreshed = true;
    if boot.memory.chosen.as_ref() == Some(wanted) {
        boot.settings.shown();
        boot.refreshes.early = None;
        return Ok(Next::Again);
    }
    Ok(Next::after(boot.tries.mismatch.next_delay(OTHER_CHOSEN)))
}

async fn prepare(turn: &mut Turn<'_>) -> Result<Next, Stop> {
    match run_command(turn, Command::Prepare).await {
        Outcome::Done(status) => {
            if turn.boot.memory.prepared.as_ref() != Some(&turn.desired.attempt) {
                record_wrong_image(turn, &status);
            }
            Ok(Next::Again)
        }
        outcome => {
            if let Outcome::Refused(_) = outcome {
                // The choice of the last refresh is used up.
                turn.boot.memory.chosen = None;
            }
            command::retry(turn, outcome, |tries| &mut tries.prepare)
        }
    }
}

/// Handles a successful download of another version than wanted. After a refresh under this desired state that is the
/// host's answer; otherwise a release has come since the last refresh, and another one is needed.
fn record_wrong_image(turn: &mut Turn<'_>, status: &UpdateStatus) {
    let recorded = status.staged_version().map_or("nothing".to_owned(), ToString::to_string);
    let output = status.last.as_ref().map(|last| last.stderr.trim()).unwrap_or_default();
    let tries = &mut turn.boot.tries;
    tries.message = format!("the host recorded {recorded}; output of its download: {output}");
    tracing::warn!(detail = ?tries.message, "the host staged another image than the wanted one");
    tries.wrong_image = tries.refreshed;
    turn.boot.memory.chosen = None;
}
