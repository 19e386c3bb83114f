//! The host's settings that determine updates: as the host answers them, and the body of a change.

use semver::Version;
use serde::Serialize;
use serde_json::{Value, json};

/// The default of the version lock.
pub(crate) const LATEST: &str = "latest";

/// The settings that determine updates, as the host has them; unset ones are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostSettings {
    /// `settings.updates.version-lock`.
    pub(crate) version_lock: Option<String>,
    /// `settings.updates.ignore-waves`.
    pub(crate) ignore_waves: Option<bool>,
}

impl HostSettings {
    /// Reads the answer of `GET /settings`; `None` if it is not an object.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let updates = value.as_object()?.get("updates");
        let field = |name: &str| updates.and_then(|updates| updates.get(name)).filter(|value| !value.is_null());
        Some(Self {
            // A lock of another type is at least not the default, so it is another client's.
            version_lock: field("version-lock").map(|lock| lock.as_str().map_or(lock.to_string(), str::to_owned)),
            ignore_waves: field("ignore-waves").map(|waves| waves.as_bool().unwrap_or(true)),
        })
    }
}

/// A change of settings; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct SettingsChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version_lock: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ignore_waves: Option<bool>,
}

impl SettingsChange {
    /// Returns the body of `PATCH /settings`: the tree below `settings`.
    pub(crate) fn body(&self) -> Value {
        json!({ "updates": self })
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the host has all values of the change.
    pub(crate) fn is_in(&self, now: &HostSettings) -> bool {
        let lock = self.version_lock.as_deref();
        lock.is_none_or(|lock| same_lock(lock, now.version_lock.as_deref().unwrap_or(LATEST)))
            && self.ignore_waves.is_none_or(|waves| waves == now.ignore_waves.unwrap_or(false))
    }
}

/// Returns true if two locks name the same version, in any form.
pub(crate) fn same_lock(one: &str, other: &str) -> bool {
    one == other || parse_lock(one).is_some_and(|one| Some(one) == parse_lock(other))
}

/// Returns the version that a lock names; `None` for `latest`.
pub(crate) fn parse_lock(lock: &str) -> Option<Version> {
    Version::parse(lock.strip_prefix('v').unwrap_or(lock)).ok()
}
