//! The host's settings: set to what policy requests, where the controller signed it, and restored afterwards.
//!
//! ```text
//!  signed? ──► read ──► decide ──► report, acknowledged ──► stage, commit ──► read again ──► refresh until one
//!                                                                                           shows the change
//! ```
//!
//! Done only under `Idle` or before a download, and never while an image is armed. Where policy requests nothing and
//! there is nothing to restore, no settings call is made.

mod change;
mod failure;

use std::time::Duration;

use models::shadow::FoundSettings;
use models::wire::ShadowView;
use semver::Version;
use tokio::time::Instant;

use super::facts::read_status;
use super::next::{Next, Stop};
use super::report::report;
use super::settings_progress::{Reading, not_changed, requested_in, unsigned};
use super::turn::{Observed, Turn};
use crate::host::types::UpdateState;
use crate::report::{Finding, HostCondition};
use crate::settings::{RequestedSettings, SettingsDecision, allows, decide, verify};
use crate::situation::Facts;
use crate::statement::StatementError;
use failure::{failed, unanswered};

/// Interval of re-checks of a policy whose key is not trusted yet: the keys arrive as a file.
const KEYS_POLL: Duration = Duration::from_secs(5);

/// Records the request. Returns true if there is anything to do: where nothing is requested and nothing has to be
/// restored, no settings call is made.
pub(super) fn begin(turn: &mut Turn<'_>) -> bool {
    let record = turn.settings_record();
    let progress = &mut turn.boot.settings;
    if progress.begin_request(requested_in(&turn.view), &record) {
        return true;
    }
    if record != FoundSettings::default() {
        turn.boot.memory.settings = Some(FoundSettings::default());
    }
    false
}

/// Returns true if the settings are handled before a download of `wanted`: not if policy meanwhile requests another
/// version, or no longer requests the lock that the download needs. Those settings wait for `Idle`.
pub(super) fn are_for(turn: &Turn<'_>, wanted: &Version) -> bool {
    match turn.boot.settings.requested() {
        Ok(RequestedSettings { lock: Some(lock), .. }) => lock == *wanted,
        Ok(RequestedSettings { lock: None, waves }) => waves && !has_own_lock(turn),
        Err(_) => true,
    }
}

/// Returns a lock that another client set and that does not allow this version.
pub(super) fn conflicting_lock(turn: &Turn<'_>, wanted: &Version) -> Option<String> {
    let lock = turn.boot.settings.seen.version_lock.as_ref()?;
    (!has_own_lock(turn) && !allows(lock, wanted)).then(|| lock.clone())
}

fn has_own_lock(turn: &Turn<'_>) -> bool {
    turn.settings_record().applied.is_some_and(|set| set.version_lock.is_some())
}

/// Brings the settings one step closer to what policy requests, until they are as requested or another client's, or
/// there is nothing to do before a later time. `finding` is what a report states of the attempt meanwhile.
pub(super) async fn settle(turn: &mut Turn<'_>, found: &Observed, finding: &Finding) -> Result<(), Stop> {
    match turn.boot.settings.reading {
        Reading::Done(_) => return Ok(()),
        Reading::Waits(until) if until.is_none_or(|until| Instant::now() < until) => return Ok(()),
        Reading::Waits(_) | Reading::Due => {}
    }
    let requested = match signed_request(turn) {
        Ok(requested) => requested,
        Err((problem, until)) => {
            let is_new = turn.boot.settings.wait(problem, until);
            return if is_new { Err(Next::Again.into()) } else { Ok(()) };
        }
    };
    let now = match turn.clients.host.settings().await {
        Ok(now) => now,
        Err(error) => return Err(unanswered(turn, error)),
    };
    turn.boot.outage.end();
    let SettingsDecision { record, change } = decide(&requested, &now, &turn.settings_record());
    let change = turn.boot.settings.with_unapplied(change, &now);
    if change.is_empty() && turn.boot.settings.is_failing() {
        // A commit that was not answered has been carried out. One that failed needs no refresh.
        turn.boot.refreshes.hasten(turn.refresh_interval(), Instant::now());
    }
    let has_new_condition = turn.boot.settings.record_reading(now, &record, &change, Instant::now());
    let is_new_record = turn.boot.memory.settings.replace(record.clone()).as_ref() != Some(&record);
    if change.is_empty() {
        return if has_new_condition || is_new_record { Err(Next::Again.into()) } else { Ok(()) };
    }
    // The step table decides about an armed image; the settings wait.
    read_status(turn).await?;
    let status = turn.boot.status.get();
    if status.is_some_and(|status| matches!(status.state, UpdateState::Ready | UpdateState::Unknown(_))) {
        return Err(Next::Again.into());
    }
    let facts = Facts { status: status.cloned(), ..found.facts.clone() };
    report_record(turn, &Observed { facts, situation: found.situation }, finding, &record).await?;
    Err(change::change(turn, change).await?.into())
}

/// Reports the record before a change: any client that comes after a crash has to know what was found and what this
/// operator set. Ends the turn unless it was acknowledged before.
async fn report_record(
    turn: &mut Turn<'_>,
    found: &Observed,
    finding: &Finding,
    record: &FoundSettings,
) -> Result<(), Stop> {
    let has_record = |view: &ShadowView| view.status.report.host.clone().unwrap_or_default() == *record;
    let reported_before = has_record(&turn.view);
    let acknowledged = report(turn, found, finding).await?;
    if !has_record(&acknowledged) {
        return Err(failed(turn, "the web API did not store the record of them".to_owned()).into());
    }
    // The report may have taken time: the change is decided again, from the current settings.
    if reported_before { Ok(()) } else { Err(Next::Again.into()) }
}

/// Returns the requested settings, if the controller signed them for this node.
fn signed_request(turn: &Turn<'_>) -> Result<RequestedSettings, (HostCondition, Option<Instant>)> {
    let host = &turn.boot.settings.policy;
    if host.asks_settings() {
        let again = Some(Instant::now() + KEYS_POLL);
        let server = turn.clients.server;
        let Some(node_uid) = server.node_uid() else {
            return Err((unsigned(&StatementError::Other("node")), again));
        };
        if let Err(error) = verify(host, &node_uid, &server.permit_keys()) {
            return Err((unsigned(&error), again.filter(|_| error.may_pass())));
        }
    }
    let invalid = |lock| not_changed(&format!("spec.host requests '{lock}', which is not a version"));
    turn.boot.settings.requested().map_err(|lock| (invalid(lock), None))
}
