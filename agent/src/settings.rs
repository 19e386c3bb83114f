//! Decisions about the host's settings: a pure function of the policy's request, the host's settings, and what this
//! operator set before.
//!
//! Two rules decide everything. A value other than the host's default that this operator did not set is another
//! client's: it is never changed. So a replaced value was always the default, only the default is ever restored, and
//! only where the host still has the operator's value. Hence a report that a client tampered with can cause only writes
//! of defaults; every other value written is in a signed statement.

use models::permit::SettingsClaims;
use models::plain;
use models::shadow::{AppliedSettings, FoundSettings, HostPolicy};
use semver::Version;

use crate::host::settings::{HostSettings, LATEST, SettingsChange, parse_lock, same_lock};
use crate::host::types::{UpdateState, UpdateStatus};
use crate::statement::{StatementError, open};

/// Maximum length of a text in the report, in characters.
const LONGEST: usize = 64;

/// The settings that policy requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedSettings {
    /// The version to lock the host to.
    pub(crate) lock: Option<Version>,
    /// True to ignore waves; otherwise the setting is left alone.
    pub(crate) waves: bool,
}

impl RequestedSettings {
    /// Returns the request of a policy in the shadow, without verifying its signature, or its lock if that is no version.
    pub(crate) fn of(host: &HostPolicy) -> Result<Self, String> {
        let lock = match &host.version_lock {
            None => None,
            Some(text) => Some(parse_lock(text).ok_or_else(|| text.clone())?),
        };
        Ok(Self { lock, waves: host.ignore_waves == Some(true) })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SettingsDecision {
    /// The record that has to be reported before any change.
    pub(crate) record: FoundSettings,
    pub(crate) change: SettingsChange,
}

/// Decides, with `record` as the reported record.
pub(crate) fn decide(requested: &RequestedSettings, now: &HostSettings, record: &FoundSettings) -> SettingsDecision {
    let mut decision = SettingsDecision::default();
    let SettingsDecision { record: new, change } = &mut decision;
    let set = record.applied.clone().unwrap_or_default();
    let mut own = AppliedSettings::default();

    let present = now.version_lock.as_deref().unwrap_or(LATEST);
    let is_own = present != LATEST
        && [&set.version_lock, &set.replaces].into_iter().flatten().any(|lock| same_lock(lock, present));
    match requested.lock.as_ref().map(Version::to_string) {
        // No longer requested: the default is restored unless another client has changed the value since.
        None if is_own => {
            new.version_lock.clone_from(&record.version_lock);
            (own.version_lock, own.replaces) = (set.version_lock, set.replaces);
            change.version_lock = Some(LATEST.to_owned());
        }
        Some(lock) if same_lock(&lock, present) && is_own => {
            new.version_lock.clone_from(&record.version_lock);
            own.version_lock = Some(lock);
        }
        // It is another client's with the same value, so there is nothing to restore.
        Some(lock) if same_lock(&lock, present) => {}
        Some(lock) if is_own || present == LATEST => {
            new.version_lock.clone_from(if is_own { &record.version_lock } else { &now.version_lock });
            (own.version_lock, own.replaces) = (Some(lock.clone()), is_own.then(|| plain::cut(present, LONGEST)));
            change.version_lock = Some(lock);
        }
        Some(_) => new.conflicting_lock = Some(plain::cut(present, LONGEST)),
        None => {}
    }

    match (requested.waves, now.ignore_waves.unwrap_or(false)) {
        (true, false) => {
            (new.ignore_waves, own.ignore_waves) = (now.ignore_waves, Some(true));
            change.ignore_waves = Some(true);
        }
        (wanted, true) if set.ignore_waves == Some(true) => {
            (new.ignore_waves, own.ignore_waves) = (record.ignore_waves, Some(true));
            change.ignore_waves = (!wanted).then_some(false);
        }
        _ => {}
    }

    new.applied = (own != AppliedSettings::default()).then_some(own);
    decision
}

/// Returns true if a host with this lock accepts this version.
pub(crate) fn allows(lock: &str, wanted: &Version) -> bool {
    lock == LATEST || parse_lock(lock).as_ref() == Some(wanted)
}

/// Verifies that the controller signed the requested settings for this node: `keys` is the trusted JWKS.
pub(crate) fn verify(host: &HostPolicy, node_uid: &str, keys: &str) -> Result<(), StatementError> {
    let Some(expected) = SettingsClaims::of(node_uid, host) else { return Ok(()) };
    let jws = host.signature.as_deref().ok_or(StatementError::Missing)?;
    let SettingsClaims { aud, node_uid, version_lock, ignore_waves } = open(jws, keys)?;
    let checks = [
        ("purpose", aud == expected.aud),
        ("node", node_uid == expected.node_uid),
        ("version lock", version_lock == expected.version_lock),
        ("choice about waves", ignore_waves == expected.ignore_waves),
    ];
    checks.iter().find(|(_, same)| !same).map_or(Ok(()), |(what, _)| Err(StatementError::Other(what)))
}

/// Result that a refresh has to show before a change of settings counts as known to the host's tools, which read files
/// that are written some time after the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The lock by which the host has to choose; absent: the newest.
    pub(crate) lock: Option<Version>,
    /// The offer before waves were to be ignored, or no longer ignored; absent if that did not change.
    pub(crate) offered_before: Option<Vec<Version>>,
}

impl Expected {
    /// Returns true if this status, of a successful refresh, shows it for a host that runs `running`.
    pub(crate) fn is_shown(&self, status: &UpdateStatus, running: &Version) -> bool {
        // In the state Idle a choice is left over from an earlier refresh.
        let chosen = status.chosen.as_ref().filter(|_| status.state != UpdateState::Idle);
        let newest = status.available.first();
        match (&self.lock, chosen) {
            (Some(lock), Some(chosen)) => chosen == lock,
            (Some(lock), None) => running == lock,
            (None, _) if self.is_offered_as_before(status) => false,
            (None, Some(chosen)) => Some(chosen) == newest,
            (None, None) => newest.is_none_or(|newest| newest <= running),
        }
    }

    /// Returns true if a change of the waves does not show. Without a lock it shows in the list alone, and not at all
    /// where no version is in its waves.
    pub(crate) fn is_offered_as_before(&self, status: &UpdateStatus) -> bool {
        self.lock.is_none() && self.offered_before.as_ref() == Some(&status.available)
    }
}

#[cfg(test)]
mod tests;
