use serde_json::json;

use super::*;
use crate::situation::tests::{NEW, OLD, facts};
use crate::statement::tests::signer;

const OTHER: Version = Version::new(1, 19, 0);

fn lock(version: Version) -> RequestedSettings {
    RequestedSettings { lock: Some(version), waves: false }
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
    let own =
        AppliedSettings { version_lock: Some(lock.into()), replaces: Some(old.into()), ..AppliedSettings::default() };
    FoundSettings { applied: Some(own), ..set(lock) }
}

fn foreign(lock: &str) -> FoundSettings {
    FoundSettings { conflicting_lock: Some(lock.into()), ..FoundSettings::default() }
}

fn writes(lock: &str) -> SettingsChange {
    SettingsChange { version_lock: Some(lock.into()), ignore_waves: None }
}

#[test]
fn version_lock_decision_follows_policy_host_and_report() {
    let (none, nothing) = (RequestedSettings::default, FoundSettings::default);
    let (unset, leave) = (HostSettings::default, SettingsChange::default);
    let found_unset = || FoundSettings { version_lock: None, ..set("1.20.5") };
    let changing = || replacing("1.20.0", "1.20.5");
    for (sentence, requested, now, record, expected, change) in [
        ("nothing is requested, nor set", none(), has("v1.19.0"), nothing(), nothing(), leave()),
        ("an open host is locked", lock(NEW), has("latest"), nothing(), set("1.20.5"), writes("1.20.5")),
        ("also one that never had a lock", lock(NEW), unset(), nothing(), found_unset(), writes("1.20.5")),
        ("the operator's own lock remains", lock(NEW), has("1.20.5"), set("1.20.5"), set("1.20.5"), leave()),
        ("whatever its form", lock(NEW), has("v1.20.5"), set("1.20.5"), set("1.20.5"), leave()),
        ("the same lock of another client is its own", lock(NEW), has("v1.20.5"), nothing(), nothing(), leave()),
        ("another lock is another client's", lock(NEW), has("v1.19.0"), nothing(), foreign("v1.19.0"), leave()),
        ("also in place of the operator's", lock(NEW), has("v1.19.0"), set("1.20.5"), foreign("v1.19.0"), leave()),
        ("until it is removed", lock(NEW), has("latest"), foreign("v1.19.0"), set("1.20.5"), writes("1.20.5")),
        ("an unlocked host is locked again", lock(NEW), has("latest"), set("1.20.5"), set("1.20.5"), writes("1.20.5")),
        ("the requested lock changes", lock(OLD), has("1.20.5"), set("1.20.5"), changing(), writes("1.20.0")),
        ("a crash before the change: both are own", lock(OLD), has("1.20.5"), changing(), changing(), writes("1.20.0")),
        ("or after it", lock(OLD), has("1.20.0"), changing(), set("1.20.0"), leave()),
        ("it changes back", lock(NEW), has("1.20.5"), changing(), set("1.20.5"), leave()),
        ("a removed lock is restored", none(), has("1.20.5"), set("1.20.5"), set("1.20.5"), writes("latest")),
        ("also where none was set", none(), has("1.20.5"), found_unset(), found_unset(), writes("latest")),
        ("also in a change of locks", none(), has("1.20.5"), changing(), changing(), writes("latest")),
        ("once", none(), has("latest"), set("1.20.5"), nothing(), leave()),
        ("never what was never set", none(), unset(), found_unset(), nothing(), leave()),
        ("not what another client changed since", none(), has("v1.19.0"), set("1.20.5"), nothing(), leave()),
        ("the other client's is forgotten", none(), has("v1.19.0"), foreign("v1.19.0"), nothing(), leave()),
    ] {
        let decision = decide(&requested, &now, &record);
        assert_eq!(decision, SettingsDecision { record: expected, change }, "{sentence}");
    }
}

#[test]
fn ignore_waves_decision_follows_policy_host_and_report() {
    let has = |waves| HostSettings { version_lock: None, ignore_waves: waves };
    let record = |found, own: bool| FoundSettings {
        ignore_waves: found,
        applied: own.then(|| AppliedSettings { ignore_waves: Some(true), ..AppliedSettings::default() }),
        ..FoundSettings::default()
    };
    let nothing = FoundSettings::default();
    for (sentence, waves, now, before, expected, write) in [
        ("nothing requested", false, Some(true), &nothing, nothing.clone(), None),
        ("requested", true, Some(false), &nothing, record(Some(false), true), Some(true)),
        ("requested of a host that never had it", true, None, &nothing, record(None, true), Some(true)),
        ("the operator's own remains", true, Some(true), &record(Some(false), true), record(Some(false), true), None),
        ("another client wants the same", true, Some(true), &nothing, nothing.clone(), None),
        ("restored", false, Some(true), &record(Some(false), true), record(Some(false), true), Some(false)),
        ("restored where it was not set", false, Some(true), &record(None, true), record(None, true), Some(false)),
        ("changed since", false, Some(false), &record(Some(false), true), nothing.clone(), None),
    ] {
        let requested = RequestedSettings { lock: None, waves };
        let change = SettingsChange { version_lock: None, ignore_waves: write };
        assert_eq!(decide(&requested, &has(now), before), SettingsDecision { record: expected, change }, "{sentence}");
    }
}

#[test]
fn only_requested_or_default_settings_are_written() {
    let locks = [None, Some("latest"), Some("1.20.5"), Some("v1.19.0"), Some("9.9.9")];
    let text = |lock: Option<&str>| lock.map(str::to_owned);
    for requested in [RequestedSettings::default(), lock(NEW), RequestedSettings { lock: Some(OTHER), waves: true }] {
        for (now, waves) in locks.into_iter().flat_map(|lock| [(lock, None), (lock, Some(true))]) {
            for (found, own) in locks.into_iter().flat_map(|found| locks.map(|own| (found, own))) {
                for replaces in locks {
                    let own =
                        AppliedSettings { version_lock: text(own), replaces: text(replaces), ignore_waves: Some(true) };
                    let record = FoundSettings {
                        version_lock: text(found),
                        ignore_waves: Some(true),
                        applied: Some(own),
                        conflicting_lock: None,
                    };
                    let now = HostSettings { version_lock: text(now), ignore_waves: waves };
                    let SettingsChange { version_lock, ignore_waves } = decide(&requested, &now, &record).change;
                    let lock = requested.lock.as_ref().map(Version::to_string);
                    let allowed = [Some(LATEST), lock.as_deref()];
                    let context = format!("{requested:?} {now:?} {record:?}");
                    assert!(version_lock.is_none() || allowed.contains(&version_lock.as_deref()), "{context}");
                    assert!(ignore_waves != Some(true) || requested.waves, "{context}");
                    let change = SettingsChange { version_lock, ignore_waves };
                    assert!(change.is_empty() || !change.is_in(&now), "it would never end: {context}");
                }
            }
        }
    }
}

#[test]
fn settings_decision_is_idempotent() {
    for requested in
        [lock(NEW), RequestedSettings { lock: None, waves: true }, RequestedSettings { lock: Some(OLD), waves: true }]
    {
        let first = decide(&requested, &has("latest"), &FoundSettings::default());
        let SettingsChange { version_lock, ignore_waves } = first.change.clone();
        let after = HostSettings {
            version_lock: version_lock.or(Some("latest".into())),
            ignore_waves: ignore_waves.or(Some(false)),
        };
        assert!(first.change.is_in(&after) && !first.change.is_in(&has("latest")));
        let second = decide(&requested, &after, &first.record);
        assert_eq!(
            second,
            SettingsDecision { record: first.record, change: SettingsChange::default() },
            "{requested:?}"
        );
    }
}

#[test]
fn host_settings_are_parsed_and_unreadable_values_left_unchanged() {
    let read = |value| HostSettings::read(&value);
    assert_eq!(read(json!({})), Some(HostSettings::default()));
    assert_eq!(read(json!({"updates": {"version-lock": "v1.20.4", "ignore-waves": false}})), Some(has("v1.20.4")));
    assert_eq!(read(json!({"updates": {"version-lock": null}})), Some(HostSettings::default()));
    assert_eq!(read(json!([])), None);
    // A value that is not understood is at least not the default, so it is left alone.
    let unusual = read(json!({"updates": {"version-lock": 7, "ignore-waves": "perhaps"}})).unwrap();
    let decision = decide(&RequestedSettings { lock: Some(NEW), waves: true }, &unusual, &FoundSettings::default());
    assert_eq!(decision, SettingsDecision { record: foreign("7"), change: SettingsChange::default() });
}

#[test]
fn version_lock_that_is_not_a_version_is_rejected() {
    let asks = |lock: &str| {
        let policy = HostPolicy { version_lock: Some(lock.into()), ..HostPolicy::default() };
        RequestedSettings::of(&policy)
    };
    assert_eq!(asks("1.20.5"), Ok(lock(NEW)));
    assert_eq!(asks("v1.20.5"), Ok(lock(NEW)));
    for text in ["latest", "1.20", "^1.20", ""] {
        assert_eq!(asks(text), Err(text.to_owned()));
    }
    assert_eq!(RequestedSettings::of(&HostPolicy::default()), Ok(RequestedSettings::default()));
    let declines = HostPolicy { ignore_waves: Some(false), ..HostPolicy::default() };
    assert_eq!(RequestedSettings::of(&declines), Ok(RequestedSettings::default()));
}

#[test]
fn version_lock_allows_only_its_version_and_latest_allows_any() {
    for (lock, lets) in [("latest", true), ("1.20.5", true), ("v1.20.5", true), ("v1.20.0", false), ("odd", false)] {
        assert_eq!(allows(lock, &NEW), lets, "{lock}");
    }
}

#[test]
fn settings_require_matching_signature_for_this_node() {
    let signer = signer("k1");
    let asks = HostPolicy { version_lock: Some("1.20.5".into()), ignore_waves: Some(true), ..HostPolicy::default() };
    let claims = SettingsClaims::of("uid-1", &asks).unwrap();
    let check = |claims: &SettingsClaims| {
        let signed = HostPolicy { signature: Some(signer.sign(claims)), ..asks.clone() };
        verify(&signed, "uid-1", &signer.keys())
    };
    assert_eq!(check(&claims), Ok(()));
    for (what, wrong) in [
        ("purpose", SettingsClaims { aud: "another".into(), ..claims.clone() }),
        ("purpose", SettingsClaims { aud: String::new(), ..claims.clone() }),
        ("node", SettingsClaims { node_uid: "uid-2".into(), ..claims.clone() }),
        ("version lock", SettingsClaims { version_lock: Some("1.20.6".into()), ..claims.clone() }),
        ("version lock", SettingsClaims { version_lock: None, ..claims.clone() }),
        ("choice about waves", SettingsClaims { ignore_waves: None, ..claims.clone() }),
    ] {
        assert_eq!(check(&wrong), Err(StatementError::Other(what)), "{wrong:?}");
    }
    assert_eq!(verify(&asks, "uid-1", &signer.keys()), Err(StatementError::Missing));
    assert_eq!(verify(&HostPolicy::default(), "uid-1", ""), Ok(()), "where nothing is requested, nothing is signed");
}

#[test]
fn permit_is_not_accepted_as_settings_statement() {
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
fn refresh_result_shows_whether_settings_are_effective() {
    let refreshed = |state: &str, available: &[&str], chosen: Option<&str>| {
        let mut status = facts("b", OLD, Some(state), ("refresh", "Success")).status.unwrap();
        status.available = available.iter().map(|text| Version::parse(text).unwrap()).collect();
        status.chosen = chosen.map(|text| Version::parse(text).unwrap());
        status
    };
    let both = ["1.20.5", "1.20.0"];
    let by = |lock| Expected { lock, offered_before: None };
    let after = |offered| Expected { lock: None, offered_before: Some(offered) };
    for (sentence, expected, status, runs, shown) in [
        ("the lock is chosen", by(Some(NEW)), refreshed("Available", &both, Some("1.20.5")), OLD, true),
        ("also downwards", by(Some(OLD)), refreshed("Available", &both, Some("1.20.0")), NEW, true),
        ("or runs already", by(Some(NEW)), refreshed("Idle", &both, None), NEW, true),
        ("another is chosen", by(Some(OLD)), refreshed("Available", &both, Some("1.20.5")), OTHER, false),
        ("another is chosen while it runs", by(Some(OLD)), refreshed("Available", &both, Some("1.20.5")), OLD, false),
        ("nothing is chosen", by(Some(NEW)), refreshed("Idle", &both, None), OLD, false),
        ("a left-over counts for nothing", by(Some(NEW)), refreshed("Idle", &both, Some("1.20.5")), OLD, false),
        ("without a lock the newest is chosen", by(None), refreshed("Available", &both, Some("1.20.5")), OLD, true),
        ("or runs", by(None), refreshed("Idle", &both, None), NEW, true),
        ("an earlier lock still chooses", by(None), refreshed("Available", &both, Some("1.20.0")), OTHER, false),
        ("an earlier lock still applies", by(None), refreshed("Idle", &both, None), OLD, false),
        ("the waves change nothing", after(vec![NEW, OLD]), refreshed("Available", &both, Some("1.20.5")), OLD, false),
        ("the waves change the list", after(vec![OLD]), refreshed("Available", &both, Some("1.20.5")), OLD, true),
    ] {
        assert_eq!(expected.is_shown(&status, &runs), shown, "{sentence}");
    }
}
