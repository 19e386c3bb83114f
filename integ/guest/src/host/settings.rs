//! The host's settings for updates, and the transactions that change them.

use std::collections::BTreeMap;

use semver::Version;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};

/// `settings.updates.version-lock`: `latest`, or a version with or without a leading `v`. Kept as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VersionLock(String);

impl VersionLock {
    /// The lock of a new host.
    pub fn latest() -> Self {
        Self("latest".to_owned())
    }

    /// A lock to exactly `version`.
    pub fn to(version: &Version) -> Self {
        Self(version.to_string())
    }

    /// Parses a lock as the host does.
    ///
    /// # Errors
    /// The host's own message when it is neither `latest` nor a version.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lock = Self(text.to_owned());
        if text == "latest" || lock.exact().is_some() {
            Ok(lock)
        } else {
            Err(format!("Unable to deserialize into FriendlyVersion: Invalid version string '{text}'"))
        }
    }

    /// The version that it names; `None` for `latest`.
    pub fn exact(&self) -> Option<Version> {
        Version::parse(self.0.strip_prefix('v').unwrap_or(&self.0)).ok()
    }
}

impl<'de> Deserialize<'de> for VersionLock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// `settings.updates`. In a change, absent fields stay as they are; nothing can be unset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct UpdatesSettings {
    /// URL of the repository's metadata.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "url")]
    pub metadata_base_url: Option<String>,
    /// URL of the repository's images.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "url")]
    pub targets_base_url: Option<String>,
    /// The host's place in the waves, 0 to 2047.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// The version lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version_lock: Option<VersionLock>,
    /// Also take releases whose wave has not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_waves: Option<bool>,
}

/// Parses a URL, as far as the host checks it.
fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let rest = |text: &str| text.split_once("://").is_some_and(|(_, rest)| !rest.is_empty() && !rest.contains(' '));
    match text {
        Some(text) if !rest(&text) => {
            Err(D::Error::custom(format!("Unable to deserialize into Url: Invalid URL '{text}'")))
        }
        text => Ok(text),
    }
}

impl UpdatesSettings {
    /// The settings of a new host with this seed.
    pub fn defaults(seed: u32) -> Self {
        Self {
            metadata_base_url: Some("https://updates.example.org/metadata/".to_owned()),
            targets_base_url: Some("https://updates.example.org/targets/".to_owned()),
            seed: Some(seed),
            version_lock: Some(VersionLock::latest()),
            ignore_waves: Some(false),
        }
    }

    /// Overwrites these settings with the fields set in `change`.
    pub fn merge(&mut self, change: Self) {
        let Self { metadata_base_url, targets_base_url, seed, version_lock, ignore_waves } = change;
        fn put<T>(old: &mut Option<T>, new: Option<T>) {
            if new.is_some() {
                *old = new;
            }
        }
        put(&mut self.metadata_base_url, metadata_base_url);
        put(&mut self.targets_base_url, targets_base_url);
        put(&mut self.seed, seed);
        put(&mut self.version_lock, version_lock);
        put(&mut self.ignore_waves, ignore_waves);
    }

    /// The data store's entries: full key (`settings.updates.…`) and value.
    fn entries(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => {
                fields.into_iter().map(|(name, value)| (format!("settings.updates.{name}"), value)).collect()
            }
            _ => Map::new(),
        }
    }
}

/// The settings tree that `PATCH /settings` takes and `GET /settings` returns. Of the whole model only `updates` is
/// simulated; any other name is refused, to catch a client that writes it by mistake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsTree {
    /// The settings for updates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<UpdatesSettings>,
}

/// The data store: committed settings and pending transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SettingsStore {
    committed: UpdatesSettings,
    pending: BTreeMap<String, UpdatesSettings>,
}

impl SettingsStore {
    pub(super) fn new(committed: UpdatesSettings) -> Self {
        Self { committed, pending: BTreeMap::new() }
    }

    pub(super) fn committed(&self) -> &UpdatesSettings {
        &self.committed
    }

    /// The whole tree; `None` if the store is empty.
    pub(super) fn whole(&self) -> Option<Value> {
        let entries = self.committed.entries();
        if entries.is_empty() { None } else { Some(tree(entries)) }
    }

    /// The values of keys that begin with `prefix`; `settings.` may be omitted.
    pub(super) fn under(&self, prefix: &str) -> Value {
        let prefix = if prefix.starts_with("settings") { prefix.to_owned() } else { format!("settings.{prefix}") };
        tree(self.committed.entries().into_iter().filter(|(key, _)| key.starts_with(&prefix)).collect())
    }

    /// The values of these full keys; unknown and unset ones are omitted.
    pub(super) fn at(&self, keys: &str) -> Value {
        tree(
            self.committed
                .entries()
                .into_iter()
                .filter(|(key, _)| keys.split(',').any(|wanted| wanted == key))
                .collect(),
        )
    }

    pub(super) fn stage(&mut self, transaction: &str, change: UpdatesSettings) {
        if change != UpdatesSettings::default() {
            self.pending.entry(transaction.to_owned()).or_default().merge(change);
        }
    }

    /// Commits a transaction. Returns the keys, also those whose value did not change; `None` if nothing was pending.
    pub(super) fn commit(&mut self, transaction: &str) -> Option<Vec<String>> {
        let change = self.pending.remove(transaction)?;
        let keys = change.entries().into_iter().map(|(key, _)| key).collect();
        self.committed.merge(change);
        Some(keys)
    }

    pub(super) fn transactions(&self) -> Vec<&String> {
        self.pending.keys().collect()
    }

    pub(super) fn pending(&self, transaction: &str) -> Value {
        self.pending.get(transaction).map_or_else(|| tree(Map::new()), |change| tree(change.entries()))
    }

    pub(super) fn delete(&mut self, transaction: &str) -> Vec<String> {
        let change = self.pending.remove(transaction).unwrap_or_default();
        change.entries().into_iter().map(|(key, _)| key).collect()
    }

    /// Drops pending transactions, as a reboot does; committed settings stay.
    pub(super) fn forget_pending(&mut self) {
        self.pending.clear();
    }
}

fn tree(entries: Map<String, Value>) -> Value {
    let updates: Map<String, Value> = entries
        .into_iter()
        .filter_map(|(key, value)| Some((key.strip_prefix("settings.updates.")?.to_owned(), value)))
        .collect();
    if updates.is_empty() { Value::Object(Map::new()) } else { serde_json::json!({ "updates": updates }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(json: &str) -> UpdatesSettings {
        serde_json::from_str::<SettingsTree>(json).unwrap().updates.unwrap_or_default()
    }

    #[test]
    fn transaction_takes_effect_only_on_commit() {
        let mut store = SettingsStore::new(UpdatesSettings::defaults(7));
        store.stage("t", change(r#"{"updates":{"version-lock":"v1.20.4","ignore-waves":true}}"#));
        assert_eq!(store.committed().version_lock, Some(VersionLock::latest()));
        let mut keys = store.commit("t").unwrap();
        keys.sort();
        assert_eq!(keys, ["settings.updates.ignore-waves", "settings.updates.version-lock"]);
        assert_eq!(store.committed().version_lock.as_ref().unwrap().exact(), Version::parse("1.20.4").ok());
        assert_eq!(store.committed().seed, Some(7));
        assert_eq!(store.commit("t"), None);
    }

    #[test]
    fn empty_and_null_changes_stage_nothing() {
        let mut store = SettingsStore::new(UpdatesSettings::defaults(7));
        for nothing in ["{}", r#"{"updates":{}}"#, r#"{"updates":null}"#, r#"{"updates":{"seed":null}}"#] {
            store.stage("t", change(nothing));
            assert_eq!(store.commit("t"), None, "{nothing}");
        }
    }

    #[test]
    fn keys_query_requires_full_setting_name_and_prefix_query_does_not() {
        let store = SettingsStore::new(UpdatesSettings::defaults(7));
        let lock = serde_json::json!({"updates": {"version-lock": "latest"}});
        assert_eq!(store.at("settings.updates.version-lock,settings.motd"), lock);
        assert_eq!(store.at("updates.version-lock"), serde_json::json!({}));
        assert_eq!(store.under("updates.version"), lock);
        assert_eq!(store.under("settings.updates.version"), lock);
        assert_eq!(store.under("motd"), serde_json::json!({}));
    }
}
