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
use serde_json::{Value, json};

use crate::host::types::{UpdateState, UpdateStatus};
use crate::statement::{StatementError, open};

/// Version lock of an unchanged host.
pub const LATEST: &str = "latest";

/// Maximum length of a text in the report, in characters.
const LONGEST: usize = 64;

/// The settings that determine updates, as the host has them; unset ones are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// `settings.updates.version-lock`.
    pub version_lock: Option<String>,
    /// `settings.updates.ignore-waves`.
    pub ignore_waves: Option<bool>,
}

impl HostSettings {
    /// Reads the answer of `GET /settings`; `None` if it is not an object.
    pub fn read(value: &Value) -> Option<Self> {
        let updates = value.as_object()?.get("updates");
        let field = |name: &str| updates.and_then(|updates| updates.get(name)).filter(|value| !value.is_null());
        Some(Self {
            // A lock of another type is at least not the default, so it is another client's.
            version_lock: field("version-lock").map(|lock| lock.as_str().map_or(lock.to_string(), str::to_owned)),
            ignore_waves: field("ignore-waves").map(|waves| waves.as_bool().unwrap_or(true)),
        })
    }
}

/// The settings that policy requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The version to lock the host to.
    pub lock: Option<Version>,
    /// True to ignore waves; otherwise the setting is left alone.
    pub waves: bool,
}

impl Asked {
    /// Returns the request of a policy in the shadow, without verifying its signature.
    ///
    /// # Errors
    ///
    /// Returns the lock if it is no version.
    pub fn of(host: Option<&HostPolicy>) -> Result<Self, String> {
        let Some(host) = host else { return Ok(Self::default()) };
        let lock = match &host.version_lock {
            None => None,
            Some(text) => Some(exact(text).ok_or_else(|| text.clone())?),
        };
        Ok(Self { lock, waves: host.ignore_waves == Some(true) })
    }
}

/// A change of settings; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// `settings.updates.version-lock`.
    pub version_lock: Option<String>,
    /// `settings.updates.ignore-waves`.
    pub ignore_waves: Option<bool>,
}

impl Change {
    /// Returns the body of `PATCH /settings`: the tree below `settings`.
    pub fn body(&self) -> Value {
        let mut updates = serde_json::Map::new();
        if let Some(lock) = &self.version_lock {
            updates.insert("version-lock".to_owned(), json!(lock));
        }
        if let Some(waves) = self.ignore_waves {
            updates.insert("ignore-waves".to_owned(), json!(waves));
        }
        json!({ "updates": updates })
    }

    /// Returns true if it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the host has all values of the change.
    pub fn is_in(&self, now: &HostSettings) -> bool {
        let lock = self.version_lock.as_deref();
        lock.is_none_or(|lock| same_lock(lock, now.version_lock.as_deref().unwrap_or(LATEST)))
            && self.ignore_waves.is_none_or(|waves| waves == now.ignore_waves.unwrap_or(false))
    }
}

/// A decision about the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The record that has to be reported before any change.
    pub record: FoundSettings,
    /// The change to make.
    pub change: Change,
}

/// Decides, with `record` as the reported record.
pub fn decide(asked: &Asked, now: &HostSettings, record: &FoundSettings) -> Decision {
    let set = record.applied.clone().unwrap_or_default();
    let lock = of_lock(asked.lock.as_ref(), now.version_lock.as_deref(), &set, record.version_lock.as_deref());
    let waves = of_waves(asked.waves, now.ignore_waves, set.ignore_waves, record.ignore_waves);
    let ours = AppliedSettings { ignore_waves: waves.set, ..lock.set };
    Decision {
        record: FoundSettings {
            version_lock: lock.found,
            ignore_waves: waves.found,
            applied: (ours != AppliedSettings::default()).then_some(ours),
            conflicting_lock: lock.foreign,
        },
        change: Change { version_lock: lock.write, ignore_waves: waves.write },
    }
}

/// Decision about the lock.
#[derive(Default)]
struct Lock {
    found: Option<String>,
    set: AppliedSettings,
    foreign: Option<String>,
    write: Option<String>,
}

fn of_lock(asked: Option<&Version>, now: Option<&str>, set: &AppliedSettings, found: Option<&str>) -> Lock {
    let present = now.unwrap_or(LATEST);
    let ours = present != LATEST
        && [&set.version_lock, &set.replaces].into_iter().flatten().any(|own| same_lock(own, present));
    let owning = |lock: String, replaces: Option<String>| AppliedSettings {
        version_lock: Some(lock),
        replaces,
        ignore_waves: None,
    };
    let found = found.map(str::to_owned);
    let Some(asked) = asked.map(Version::to_string) else {
        // No longer requested: the default is restored unless another client has changed the value since.
        return if ours {
            let set = AppliedSettings { ignore_waves: None, ..set.clone() };
            Lock { found, set, foreign: None, write: Some(LATEST.to_owned()) }
        } else {
            Lock::default()
        };
    };
    if same_lock(&asked, present) {
        // It may be another client's with the same value: then there is nothing to restore.
        return if ours { Lock { found, set: owning(asked, None), ..Lock::default() } } else { Lock::default() };
    }
    if present == LATEST {
        let found = now.map(str::to_owned);
        return Lock { found, set: owning(asked.clone(), None), foreign: None, write: Some(asked) };
    }
    if ours {
        let set = owning(asked.clone(), Some(cut(present)));
        return Lock { found, set, foreign: None, write: Some(asked) };
    }
    Lock { foreign: Some(cut(present)), ..Lock::default() }
}

/// Decision about the waves.
#[derive(Default)]
struct Waves {
    found: Option<bool>,
    set: Option<bool>,
    write: Option<bool>,
}

fn of_waves(asked: bool, now: Option<bool>, set: Option<bool>, found: Option<bool>) -> Waves {
    let ours = set == Some(true);
    match (asked, now.unwrap_or(false)) {
        (true, false) => Waves { found: now, set: Some(true), write: Some(true) },
        (true, true) if ours => Waves { found, set, write: None },
        (false, true) if ours => Waves { found, set, write: Some(false) },
        _ => Waves::default(),
    }
}

/// Returns true if a host with this lock accepts this version.
pub fn lets_in(lock: &str, wanted: &Version) -> bool {
    lock == LATEST || exact(lock).as_ref() == Some(wanted)
}

/// Verifies that the controller signed the requested settings for this node: `keys` is the trusted JWKS.
///
/// # Errors
///
/// Returns the first mismatch.
pub fn verify(host: &HostPolicy, node_uid: &str, keys: &str) -> Result<(), StatementError> {
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
pub struct Expected {
    /// The lock by which the host has to choose; absent: the newest.
    pub lock: Option<Version>,
    /// The offer before waves were to be ignored, or no longer ignored; absent if that did not change.
    pub offered_before: Option<Vec<Version>>,
}

impl Expected {
    /// Returns true if this status, of a successful refresh, shows it for a host that runs `running`.
    pub fn is_shown(&self, status: &UpdateStatus, running: &Version) -> bool {
        // In the state Idle a choice is left over from an earlier refresh.
        let chosen = status.chosen.as_ref().filter(|_| status.state != UpdateState::Idle);
        let newest = status.available.first();
        match (&self.lock, chosen) {
            (Some(lock), Some(chosen)) => chosen == lock,
            (Some(lock), None) => running == lock,
            // A change of the waves shows in the list alone.
            (None, _) if self.offered_before.as_ref() == Some(&status.available) => false,
            (None, Some(chosen)) => Some(chosen) == newest,
            (None, None) => newest.is_none_or(|newest| newest <= running),
        }
    }
}

/// Returns true if two locks name the same version, in any form.
fn same_lock(one: &str, other: &str) -> bool {
    one == other || exact(one).is_some_and(|one| Some(one) == exact(other))
}

/// Returns the version that a lock names; `None` for `latest`.
pub fn exact(lock: &str) -> Option<Version> {
    Version::parse(lock.strip_prefix('v').unwrap_or(lock)).ok()
}

fn cut(text: &str) -> String {
    plain::cut(text, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::situation::tests::{NEW, OLD, facts};
    use crate::statement::tests::signer;

    const OTHER: Version = Version::new(1, 19, 0);

    fn lock(version: Version) -> Asked {
        Asked { lock: Some(version), waves: false }
    }

    fn has(version_lock: &str) -> HostSettings {
        HostSettings { version_lock: Some(version_lock.into()), ignore_waves: Some(false) }
    }

    /// Returns a report with the found lock `latest` and the set lock `lock`.
    fn set(lock: &str) -> FoundSettings {
        FoundSettings {
            version_lock: Some("latest".into()),
            applied: Some(AppliedSettings { version_lock: Some(lock.into()), ..AppliedSettings::default() }),
            ..FoundSettings::default()
        }
    }

    fn replacing(lock: &str, old: &str) -> FoundSettings {
        let own = AppliedSettings {
            version_lock: Some(lock.into()),
            replaces: Some(old.into()),
            ..AppliedSettings::default()
        };
        FoundSettings { applied: Some(own), ..set(lock) }
    }

    fn foreign(lock: &str) -> FoundSettings {
        FoundSettings { conflicting_lock: Some(lock.into()), ..FoundSettings::default() }
    }

    fn writes(lock: &str) -> Change {
        Change { version_lock: Some(lock.into()), ignore_waves: None }
    }

    #[test]
    fn the_lock_is_decided_by_policy_host_and_report() {
        let nothing = FoundSettings::default();
        let leave = Change::default();
        let unset = HostSettings::default();
        let found_unset = FoundSettings { version_lock: None, ..set("1.20.5") };
        for (sentence, asked, now, record, expected, change) in [
            ("nothing asked, nothing ours", Asked::default(), has("v1.19.0"), &nothing, &nothing, leave.clone()),
            ("an open host is locked", lock(NEW), has("latest"), &nothing, &set("1.20.5"), writes("1.20.5")),
            ("also one that never had a lock", lock(NEW), unset.clone(), &nothing, &found_unset, writes("1.20.5")),
            ("a lock of ours stands", lock(NEW), has("1.20.5"), &set("1.20.5"), &set("1.20.5"), leave.clone()),
            ("whatever its form", lock(NEW), has("v1.20.5"), &set("1.20.5"), &set("1.20.5"), leave.clone()),
            ("the same wish of somebody else is theirs", lock(NEW), has("v1.20.5"), &nothing, &nothing, leave.clone()),
            ("another lock is theirs", lock(NEW), has("v1.19.0"), &nothing, &foreign("v1.19.0"), leave.clone()),
            ("also in place of ours", lock(NEW), has("v1.19.0"), &set("1.20.5"), &foreign("v1.19.0"), leave.clone()),
            (
                "it is told until it goes",
                lock(NEW),
                has("latest"),
                &foreign("v1.19.0"),
                &set("1.20.5"),
                writes("1.20.5"),
            ),
            ("no lock is nobody's", lock(NEW), has("latest"), &set("1.20.5"), &set("1.20.5"), writes("1.20.5")),
            (
                "the pin moves",
                lock(OLD),
                has("1.20.5"),
                &set("1.20.5"),
                &replacing("1.20.0", "1.20.5"),
                writes("1.20.0"),
            ),
            (
                "and a crash before the change finds both as ours",
                lock(OLD),
                has("1.20.5"),
                &replacing("1.20.0", "1.20.5"),
                &replacing("1.20.0", "1.20.5"),
                writes("1.20.0"),
            ),
            ("or after it", lock(OLD), has("1.20.0"), &replacing("1.20.0", "1.20.5"), &set("1.20.0"), leave.clone()),
            ("it moves back", lock(NEW), has("1.20.5"), &replacing("1.20.0", "1.20.5"), &set("1.20.5"), leave.clone()),
            (
                "a removed pin is put back",
                Asked::default(),
                has("1.20.5"),
                &set("1.20.5"),
                &set("1.20.5"),
                writes("latest"),
            ),
            (
                "also in the middle of a move",
                Asked::default(),
                has("1.20.5"),
                &replacing("1.20.0", "1.20.5"),
                &replacing("1.20.0", "1.20.5"),
                writes("latest"),
            ),
            ("once", Asked::default(), has("latest"), &set("1.20.5"), &nothing, leave.clone()),
            ("never what was never set", Asked::default(), unset.clone(), &found_unset, &nothing, leave.clone()),
            (
                "not what somebody changed since",
                Asked::default(),
                has("v1.19.0"),
                &set("1.20.5"),
                &nothing,
                leave.clone(),
            ),
            (
                "a removed pin forgets their lock",
                Asked::default(),
                has("v1.19.0"),
                &foreign("v1.19.0"),
                &nothing,
                leave,
            ),
        ] {
            let decision = decide(&asked, &now, record);
            assert_eq!(decision, Decision { record: expected.clone(), change }, "{sentence}");
        }
    }

    #[test]
    fn waves_are_decided_by_policy_host_and_report() {
        let has = |waves| HostSettings { version_lock: None, ignore_waves: waves };
        let record = |found, own: bool| FoundSettings {
            ignore_waves: found,
            applied: own.then(|| AppliedSettings { ignore_waves: Some(true), ..AppliedSettings::default() }),
            ..FoundSettings::default()
        };
        let nothing = FoundSettings::default();
        for (sentence, waves, now, before, expected, write) in [
            ("nothing asked", false, Some(true), &nothing, nothing.clone(), None),
            ("asked", true, Some(false), &nothing, record(Some(false), true), Some(true)),
            ("asked of a host that never had it", true, None, &nothing, record(None, true), Some(true)),
            ("ours stands", true, Some(true), &record(Some(false), true), record(Some(false), true), None),
            ("somebody wants the same", true, Some(true), &nothing, nothing.clone(), None),
            ("put back", false, Some(true), &record(Some(false), true), record(Some(false), true), Some(false)),
            ("put back where it was not set", false, Some(true), &record(None, true), record(None, true), Some(false)),
            ("changed since", false, Some(false), &record(Some(false), true), nothing.clone(), None),
        ] {
            let asked = Asked { lock: None, waves };
            let change = Change { version_lock: None, ignore_waves: write };
            assert_eq!(decide(&asked, &has(now), before), Decision { record: expected, change }, "{sentence}");
        }
    }

    #[test]
    fn nothing_is_written_but_what_is_asked_and_the_defaults_whatever_the_report_says() {
        let locks = [None, Some("latest"), Some("1.20.5"), Some("v1.19.0"), Some("9.9.9")];
        let text = |lock: Option<&str>| lock.map(str::to_owned);
        for asked in [Asked::default(), lock(NEW), Asked { lock: Some(OTHER), waves: true }] {
            for (now, waves) in locks.into_iter().flat_map(|lock| [(lock, None), (lock, Some(true))]) {
                for (found, own) in locks.into_iter().flat_map(|found| locks.map(|own| (found, own))) {
                    for replaces in locks {
                        let own = AppliedSettings {
                            version_lock: text(own),
                            replaces: text(replaces),
                            ignore_waves: Some(true),
                        };
                        let record = FoundSettings {
                            version_lock: text(found),
                            ignore_waves: Some(true),
                            applied: Some(own),
                            conflicting_lock: None,
                        };
                        let now = HostSettings { version_lock: text(now), ignore_waves: waves };
                        let Change { version_lock, ignore_waves } = decide(&asked, &now, &record).change;
                        let lock = asked.lock.as_ref().map(Version::to_string);
                        let allowed = [Some(LATEST), lock.as_deref()];
                        let says = format!("{asked:?} {now:?} {record:?}");
                        assert!(version_lock.is_none() || allowed.contains(&version_lock.as_deref()), "{says}");
                        assert!(ignore_waves != Some(true) || asked.waves, "{says}");
                        let change = Change { version_lock, ignore_waves };
                        assert!(change.is_empty() || !change.is_in(&now), "it would never end: {says}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_decision_that_was_carried_out_asks_for_nothing_more() {
        for asked in [lock(NEW), Asked { lock: None, waves: true }, Asked { lock: Some(OLD), waves: true }] {
            let first = decide(&asked, &has("latest"), &FoundSettings::default());
            let Change { version_lock, ignore_waves } = first.change.clone();
            let after = HostSettings {
                version_lock: version_lock.or(Some("latest".into())),
                ignore_waves: ignore_waves.or(Some(false)),
            };
            assert!(first.change.is_in(&after) && !first.change.is_in(&has("latest")));
            let second = decide(&asked, &after, &first.record);
            assert_eq!(second, Decision { record: first.record, change: Change::default() }, "{asked:?}");
        }
    }

    #[test]
    fn a_host_is_read_as_it_answers() {
        let read = |value| HostSettings::read(&value);
        assert_eq!(read(json!({})), Some(HostSettings::default()));
        assert_eq!(read(json!({"updates": {"version-lock": "v1.20.4", "ignore-waves": false}})), Some(has("v1.20.4")));
        assert_eq!(read(json!({"updates": {"version-lock": null}})), Some(HostSettings::default()));
        assert_eq!(read(json!([])), None);
        // A value that is not understood is at least not the default, so it is left alone.
        let strange = read(json!({"updates": {"version-lock": 7, "ignore-waves": "perhaps"}})).unwrap();
        let decision = decide(&Asked { lock: Some(NEW), waves: true }, &strange, &FoundSettings::default());
        assert_eq!(decision, Decision { record: foreign("7"), change: Change::default() });
    }

    #[test]
    fn a_lock_that_is_no_version_is_asked_of_nobody() {
        let asks = |lock: &str| {
            let policy = HostPolicy { version_lock: Some(lock.into()), ..HostPolicy::default() };
            Asked::of(Some(&policy))
        };
        assert_eq!(asks("1.20.5"), Ok(lock(NEW)));
        assert_eq!(asks("v1.20.5"), Ok(lock(NEW)));
        for text in ["latest", "1.20", "^1.20", ""] {
            assert_eq!(asks(text), Err(text.to_owned()));
        }
        assert_eq!(Asked::of(None), Ok(Asked::default()));
        let declines = HostPolicy { ignore_waves: Some(false), ..HostPolicy::default() };
        assert_eq!(Asked::of(Some(&declines)), Ok(Asked::default()));
    }

    #[test]
    fn a_lock_lets_its_own_version_in_and_an_open_host_any() {
        for (lock, lets) in [("latest", true), ("1.20.5", true), ("v1.20.5", true), ("v1.20.0", false), ("odd", false)]
        {
            assert_eq!(lets_in(lock, &NEW), lets, "{lock}");
        }
    }

    #[test]
    fn settings_are_obeyed_as_they_were_signed_for_this_node_and_for_nothing_else() {
        let signer = signer("k1");
        let asks =
            HostPolicy { version_lock: Some("1.20.5".into()), ignore_waves: Some(true), ..HostPolicy::default() };
        let said = SettingsClaims::of("uid-1", &asks).unwrap();
        let check = |claims: &SettingsClaims| {
            let signed = HostPolicy { signature: Some(signer.sign(claims)), ..asks.clone() };
            verify(&signed, "uid-1", &signer.keys())
        };
        assert_eq!(check(&said), Ok(()));
        for (what, wrong) in [
            ("purpose", SettingsClaims { aud: "another".into(), ..said.clone() }),
            ("purpose", SettingsClaims { aud: String::new(), ..said.clone() }),
            ("node", SettingsClaims { node_uid: "uid-2".into(), ..said.clone() }),
            ("version lock", SettingsClaims { version_lock: Some("1.20.6".into()), ..said.clone() }),
            ("version lock", SettingsClaims { version_lock: None, ..said.clone() }),
            ("choice about waves", SettingsClaims { ignore_waves: None, ..said.clone() }),
        ] {
            assert_eq!(check(&wrong), Err(StatementError::Other(what)), "{wrong:?}");
        }
        assert_eq!(verify(&asks, "uid-1", &signer.keys()), Err(StatementError::Missing));
        assert_eq!(verify(&HostPolicy::default(), "uid-1", ""), Ok(()), "where nothing is asked, nothing is signed");
    }

    #[test]
    fn a_permit_is_no_statement_of_settings() {
        let signer = signer("k1");
        let asks = HostPolicy { version_lock: Some("1.20.5".into()), ..HostPolicy::default() };
        let permit = models::permit::PermitClaims {
            node_uid: "uid-1".into(),
            boot_id: "b1".into(),
            attempt: 1,
            version: NEW,
            nonce: "n".into(),
            host: Some(asks.clone()),
        };
        let signed = HostPolicy { signature: Some(signer.sign(&permit)), ..asks };
        assert_eq!(verify(&signed, "uid-1", &signer.keys()), Err(StatementError::Other("purpose")));
    }

    #[test]
    fn a_look_shows_whether_the_hosts_tools_know_the_settings() {
        let looked = |state: &str, available: &[&str], chosen: Option<&str>| {
            let mut status = facts("b", OLD, Some(state), ("refresh", "Success")).status.unwrap();
            status.available = available.iter().map(|text| Version::parse(text).unwrap()).collect();
            status.chosen = chosen.map(|text| Version::parse(text).unwrap());
            status
        };
        let both = ["1.20.5", "1.20.0"];
        let by = |lock| Expected { lock, offered_before: None };
        for (sentence, expected, status, runs, shown) in [
            ("the lock is chosen", by(Some(NEW)), looked("Available", &both, Some("1.20.5")), OLD, true),
            ("also downwards", by(Some(OLD)), looked("Available", &both, Some("1.20.0")), NEW, true),
            ("or runs already", by(Some(NEW)), looked("Idle", &both, None), NEW, true),
            ("another is chosen", by(Some(OLD)), looked("Available", &both, Some("1.20.5")), OTHER, false),
            ("another is chosen while it runs", by(Some(OLD)), looked("Available", &both, Some("1.20.5")), OLD, false),
            ("nothing is chosen", by(Some(NEW)), looked("Idle", &both, None), OLD, false),
            ("a left-over counts for nothing", by(Some(NEW)), looked("Idle", &both, Some("1.20.5")), OLD, false),
            ("without a lock the newest is chosen", by(None), looked("Available", &both, Some("1.20.5")), OLD, true),
            ("or runs", by(None), looked("Idle", &both, None), NEW, true),
            ("a lock still chooses", by(None), looked("Available", &both, Some("1.20.0")), OTHER, false),
            ("a lock still holds", by(None), looked("Idle", &both, None), OLD, false),
            (
                "the list has not changed with the waves",
                Expected { lock: None, offered_before: Some(vec![NEW, OLD]) },
                looked("Available", &both, Some("1.20.5")),
                OLD,
                false,
            ),
            (
                "the list has changed with the waves",
                Expected { lock: None, offered_before: Some(vec![OLD]) },
                looked("Available", &both, Some("1.20.5")),
                OLD,
                true,
            ),
        ] {
            assert_eq!(expected.is_shown(&status, &runs), shown, "{sentence}");
        }
    }
}
