use std::time::Duration;

use models::operator::BottlerocketUpdateOperatorSpec;
use models::shadow::OfferedUpdates;

use super::*;
use crate::fixtures::{seen, t};

fn want(
    policy: &Policy,
    known: &[KnownVersion],
    agent: &AgentReport,
    locked: Option<&Version>,
    now: Timestamp,
) -> Want {
    Host { policy, known, agent, now }.want(locked)
}

fn no_longer(policy: &Policy, agent: &AgentReport, version: &Version) -> Option<String> {
    Host { policy, known: &[], agent, now: t(0) }.no_longer(version)
}

fn v(text: &str) -> Version {
    text.parse().unwrap()
}

fn host(current: &str, chosen: Option<&str>, available: &[&str]) -> AgentReport {
    AgentReport {
        current_version: Some(v(current)),
        variant: Some("aws-k8s-1.37".into()),
        arch: Some("x86_64".into()),
        updates: Some(OfferedUpdates {
            chosen_version: chosen.map(v),
            available_versions: available.iter().map(|text| v(text)).collect(),
            ..OfferedUpdates::default()
        }),
        ..AgentReport::default()
    }
}

fn known(version: &str, first_seen: i64) -> KnownVersion {
    seen(v(version), first_seen)
}

fn policy(version: &str) -> Policy {
    let spec: BottlerocketUpdateOperatorSpec = serde_json::from_str(&format!(r#"{{"version": {version}}}"#)).unwrap();
    Policy::from_spec(&spec).unwrap()
}

/// The cells of a table: a row on each line.
fn cells<const COLUMNS: usize>(table: &str) -> Vec<[&str; COLUMNS]> {
    let rows = table.trim().lines().map(|row| row.split(" | ").map(str::trim).collect::<Vec<_>>());
    rows.map(|row| <[&str; COLUMNS]>::try_from(row).unwrap()).collect()
}

/// The version that a cell has.
fn version(cell: &str) -> Option<&str> {
    Some(cell).filter(|cell| *cell != "-")
}

/// A host with this version, which has chosen another one of those that it is offered.
fn in_words(current: &str, chosen: &str, offered: &str, all: &[&str]) -> AgentReport {
    let offered: Vec<&str> = if offered == "all" { all.to_vec() } else { offered.split(' ').collect() };
    host(current, version(chosen), &offered)
}

/// The version that is wanted, or the reason why none is, with what the reason names.
fn wanted(cell: &str) -> Result<Version, Wait> {
    let (reason, named) = cell.split_once(' ').unwrap_or((cell, ""));
    Err(match reason {
        "UpToDate" => Wait::UpToDate,
        "WaveNotCome" => Wait::WaveNotCome { version: v(named) },
        "NotChosen" => Wait::NotChosen { version: v(named) },
        "Pinning" => Wait::Pinning { version: v(named) },
        "NotOffered" => Wait::NotOffered { target: named.to_owned(), newest: Some(v("1.20.5")) },
        "Excluded" => {
            let (version, rule) = named.split_once(" by ").unwrap();
            Wait::Excluded { version: v(version), rule: rule.to_owned() }
        }
        "TooYoung" => {
            let (version, until) = named.split_once(" until ").unwrap();
            Wait::TooYoung { version: v(version), until: Some(t(until.parse().unwrap())) }
        }
        version => return Ok(v(version)),
    })
}

/// Under a policy, a host that runs a version, has chosen one of those that it is offered, and knows of one since 0 s; then the lock and
/// the version that are wanted.
#[test]
fn target_version_and_lock_follow_policy_and_offers() {
    let table = r#"
        latest takes what the host chooses | {} | 1.20.0 | 1.20.5 | all | - | - | 1.20.5
        latest never goes down | {} | 1.20.9 | 1.20.5 | all | - | - | UpToDate
        a host that is offered nothing is up to date | {} | 1.20.0 | - | 1.20.0 | - | - | UpToDate
        a host whose wave has not come shows this reason | {} | 1.20.0 | - | 1.20.0 | 1.20.5 | - | WaveNotCome 1.20.5
        a host whose own lock passes over what it is offered shows this reason | {} | 1.20.0 | - | all | 1.20.5 | - | NotChosen 1.20.5
        latest takes the newest version below an excluded one, by the host's lock | {"exclude": ["1.20.5"]} | 1.20.0 | 1.20.5 | all | - | 1.20.4 | Pinning 1.20.4
        an excluded version is not taken where there is no other one | {"exclude": ["1.20.5"]} | 1.20.4 | 1.20.5 | all | - | - | Excluded 1.20.5 by 1.20.5
        an exact version that the host chooses is taken | {"target": "1.20.4"} | 1.20.0 | 1.20.4 | all | - | 1.20.4 | 1.20.4
        an exact version below the running one is taken | {"target": "1.19.0"} | 1.20.5 | 1.19.0 | all | - | 1.19.0 | 1.19.0
        the host has to be configured first | {"target": "1.20.4"} | 1.20.0 | 1.20.5 | all | - | 1.20.4 | Pinning 1.20.4
        an exact version that runs already stays pinned | {"target": "1.20.0"} | 1.20.0 | 1.20.5 | all | - | 1.20.0 | UpToDate
        an exact version that no host is offered is waited for | {"target": "1.30.0"} | 1.20.0 | 1.20.5 | all | - | 1.30.0 | NotOffered 1.30.0
        an exact version that others are offered waits for its wave | {"target": "1.20.6"} | 1.20.0 | - | 1.20.0 | 1.20.6 | 1.20.6 | WaveNotCome 1.20.6
        a range takes its highest version | {"target": "<1.20.5"} | 1.20.0 | 1.20.4 | all | - | 1.20.4 | 1.20.4
        a range leads down as well | {"target": "~1.19"} | 1.20.0 | 1.19.0 | all | - | 1.19.0 | 1.19.0
        a range keeps the highest version that runs | {"target": "~1.20"} | 1.20.5 | - | all | - | 1.20.5 | UpToDate
        a range passes over what is excluded | {"target": "~1.20", "exclude": ["1.20.5"]} | 1.20.0 | 1.20.4 | all | - | 1.20.4 | 1.20.4
        a range that excludes all but lower ones leaves the running version | {"target": "~1.20", "exclude": [">1.20.0"]} | 1.20.0 | 1.20.5 | all | - | 1.20.0 | Excluded 1.20.5 by >1.20.0
        an empty range is waited for | {"target": "~2.0"} | 1.20.0 | - | all | - | - | NotOffered ~2.0
        a target without its patch is a range | {"target": "1.19"} | 1.20.0 | 1.20.5 | all | - | 1.19.0 | Pinning 1.19.0
        an excluded minor release covers no later one | {"exclude": ["1.19"]} | 1.20.0 | 1.20.5 | all | - | - | 1.20.5
        a range of which all versions are excluded names the newest and the rule | {"target": "1.19", "exclude": ["<1.20"]} | 1.20.0 | 1.20.5 | all | - | - | Excluded 1.19.0 by <1.20
    "#;
    for [sentence, text, current, chosen, offered, seen, pin, expected] in cells(table) {
        let host = in_words(current, chosen, offered, &["1.20.5", "1.20.4", "1.20.0", "1.19.0"]);
        let known: Vec<_> = version(seen).into_iter().map(|seen| known(seen, 0)).collect();
        let got = want(&policy(text), &known, &host, None, t(0));
        assert_eq!(got, Want { pin: version(pin).map(v), version: wanted(expected) }, "{sentence}");
    }
}

#[test]
fn lock_in_range_is_kept_until_host_refreshes() {
    let mut host = host("1.20.5", None, &[]);
    host.updates = None;
    let range = policy(r#"{"target": "<1.20.0"}"#);
    assert_eq!(want(&range, &[], &host, Some(&v("1.19.0")), t(0)).pin, Some(v("1.19.0")));
    assert_eq!(want(&range, &[], &host, Some(&v("1.20.4")), t(0)).pin, None, "a lock of an earlier policy");
    assert_eq!(want(&policy("{}"), &[], &host, Some(&v("1.19.0")), t(0)).pin, None, "latest locks nothing");
    let range = policy(r#"{"target": ">=1.20.0"}"#);
    let offered = |offers: &[&str]| self::host("1.20.5", None, offers);
    for (sentence, host, locked, expected) in [
        ("the host was rebooted by another client", &host, "1.20.6", "1.20.6"),
        ("the lock is to an earlier version", &host, "1.20.4", "1.20.5"),
        ("the host is not offered it any more", &offered(&["1.20.5"]), "1.20.6", "1.20.5"),
    ] {
        assert_eq!(want(&range, &[], host, Some(&v(locked)), t(0)).pin, Some(v(expected)), "{sentence}");
    }
}

#[test]
fn version_is_not_taken_before_minimum_age() {
    let mut policy = policy("{}");
    policy.minimum_age = Duration::from_secs(3600);
    let host = host("1.20.0", Some("1.20.5"), &["1.20.5", "1.20.0"]);
    let young = |until: Option<i64>| Err(Wait::TooYoung { version: v("1.20.5"), until: until.map(t) });
    assert_eq!(want(&policy, &[], &host, None, t(0)).version, young(None), "no host is known to be offered it");
    assert_eq!(want(&policy, &[known("1.20.5", 0)], &host, None, t(3599)).version, young(Some(3600)));
    assert_eq!(want(&policy, &[known("1.20.5", 0)], &host, None, t(3600)).version, Ok(v("1.20.5")));
    let elsewhere = KnownVersion { arch: "aarch64".into(), ..known("1.20.5", 0) };
    assert_eq!(want(&policy, &[elsewhere], &host, None, t(3600)).version, young(None), "another kind of host");
}

/// A host that runs a version, has chosen one of those that it is offered, and is locked to one, at a second; then the lock and the
/// version that are wanted.
#[test]
fn latest_selects_newest_version_past_minimum_age() {
    let policy = Policy { minimum_age: Duration::from_secs(3600), ..policy("{}") };
    // A release every half an hour.
    let known = [known("1.20.3", -2000), known("1.20.4", -3000), known("1.20.5", -1200), known("1.20.6", 600)];
    let table = "
        nothing is old enough | 1.20.0 | 1.20.6 | all | - | 500 | - | TooYoung 1.20.6 until 4200
        an older one is | 1.20.0 | 1.20.6 | all | - | 700 | 1.20.4 | Pinning 1.20.4
        the host has chosen it | 1.20.0 | 1.20.4 | all | 1.20.4 | 800 | 1.20.4 | 1.20.4
        a newer one has become old enough since | 1.20.0 | 1.20.4 | all | 1.20.4 | 2400 | 1.20.5 | Pinning 1.20.5
        it was withdrawn | 1.20.0 | - | 1.20.6 1.20.0 | 1.20.4 | 800 | - | TooYoung 1.20.6 until 4200
        it runs, and the lock is put back | 1.20.4 | - | all | 1.20.4 | 800 | - | TooYoung 1.20.6 until 4200
        it runs without a lock | 1.20.4 | 1.20.6 | all | - | 800 | - | TooYoung 1.20.6 until 4200
        a version below that the host's own lock chooses is taken | 1.20.0 | 1.20.3 | all | - | 5000 | - | 1.20.3
    ";
    for [sentence, current, chosen, offered, locked, now, pin, expected] in cells(table) {
        let host = in_words(current, chosen, offered, &["1.20.6", "1.20.5", "1.20.4", "1.20.3", "1.20.0"]);
        let got = want(&policy, &known, &host, version(locked).map(v).as_ref(), t(now.parse().unwrap()));
        assert_eq!(got, Want { pin: version(pin).map(v), version: wanted(expected) }, "{sentence}");
    }
}

/// A range that the version a node runs is in says as much about newer ones as `latest` does.
#[test]
fn node_whose_version_is_in_the_range_names_why_it_does_not_go_on() {
    let offers = ["1.21.0", "1.20.5", "1.20.0"];
    let stays = |version: &str, known: &[KnownVersion], host: &AgentReport| {
        let got = want(&policy(version), known, host, Some(&v("1.20.0")), t(100));
        assert_eq!(got.pin, Some(v("1.20.0")), "{version}");
        got.version.unwrap_err()
    };
    let seen = [known("1.20.5", 0), known("1.21.0", 0)];
    let host_of = |available: &[&str]| host("1.20.0", Some("1.20.0"), available);
    let young = r#"{"target": "1.20", "minimumAge": "1h"}"#;
    let until = Some(t(3600));
    assert_eq!(stays(young, &seen, &host_of(&offers)), Wait::TooYoung { version: v("1.20.5"), until });
    let excluded = r#"{"target": "1.20", "exclude": ["1.20.5"]}"#;
    let rule = "1.20.5".to_owned();
    assert_eq!(stays(excluded, &seen, &host_of(&offers)), Wait::Excluded { version: v("1.20.5"), rule });
    let range = r#"{"target": "1.20"}"#;
    assert_eq!(stays(range, &seen, &host_of(&offers[2..])), Wait::WaveNotCome { version: v("1.20.5") });
    let rule = "1.20.5".to_owned();
    let waved = stays(excluded, &seen, &host_of(&offers[2..]));
    assert_eq!(waved, Wait::Excluded { version: v("1.20.5"), rule }, "its wave changes nothing");
    assert_eq!(stays(range, &seen[1..], &host_of(&offers[2..])), Wait::UpToDate, "1.21.0 is of another line");
    let mut failing = host_of(&offers[2..]);
    failing.updates.as_mut().unwrap().refresh_failure = Some("no route".into());
    assert_eq!(stays(range, &[], &failing), Wait::RefreshFails { message: "no route".into() });
    let mut unasked = host_of(&[]);
    unasked.updates = None;
    assert_eq!(stays(range, &seen, &unasked), Wait::UpToDate, "it is not known what the host is offered");
}

#[test]
fn lock_below_latest_is_kept_until_host_refreshes() {
    let mut host = host("1.20.0", None, &[]);
    host.updates = None;
    assert_eq!(want(&policy("{}"), &[], &host, Some(&v("1.20.4")), t(0)).pin, Some(v("1.20.4")));
}

#[test]
fn staged_version_is_superseded_when_withdrawn_or_replaced() {
    let policy = policy("{}");
    for (sentence, host, expected) in [
        ("it is offered", host("1.20.0", Some("1.20.5"), &["1.20.5", "1.20.0"]), None),
        ("it was withdrawn", host("1.20.0", None, &["1.20.0"]), Some("the host no longer offers 1.20.5")),
        (
            "it was withdrawn, and an older one is offered",
            host("1.20.0", Some("1.20.4"), &["1.20.4", "1.20.0"]),
            Some("1.20.4 has taken the place of 1.20.5 before the node was drained"),
        ),
        (
            "a newer one is offered",
            host("1.20.0", Some("1.20.6"), &["1.20.6", "1.20.5"]),
            Some("1.20.6 has taken the place of 1.20.5 before the node was drained"),
        ),
    ] {
        let wanted = want(&policy, &[], &host, None, t(0)).version;
        assert_eq!(superseded(&host, &v("1.20.5"), &wanted).as_deref(), expected, "{sentence}");
    }
    let mut failing = host("1.20.0", None, &["1.20.0"]);
    failing.updates.as_mut().unwrap().refresh_failure = Some("no route".into());
    assert_eq!(superseded(&failing, &v("1.20.5"), &Err(Wait::UpToDate)), None, "nothing is known");
}

#[test]
fn host_with_failed_refresh_waits_despite_chosen_version() {
    let mut host = host("1.20.0", Some("1.20.5"), &["1.20.5"]);
    host.updates.as_mut().unwrap().refresh_failure = Some("no route".into());
    let fails = Err(Wait::RefreshFails { message: "no route".into() });
    assert_eq!(want(&policy("{}"), &[], &host, None, t(0)).version, fails);
    assert_eq!(want(&policy(r#"{"target": "1.20.5"}"#), &[], &host, None, t(0)).version, fails);
}

#[test]
fn running_version_is_up_to_date_and_needs_no_minimum_age() {
    let latest = policy(r#"{"minimumAge": "1h"}"#);
    let same = host("1.20.5", Some("1.20.5"), &["1.20.5"]);
    for known in [vec![], vec![known("1.20.5", 0)]] {
        assert_eq!(want(&latest, &known, &same, None, t(0)).version, Err(Wait::UpToDate), "chosen, and running");
    }
    assert_eq!(no_longer(&latest, &same, &v("1.20.5")), None, "no way down, and no age is needed");
    let down = no_longer(&latest, &same, &v("1.20.4")).unwrap();
    assert_eq!(down, "1.20.4 is not a version that spec.version.target 'latest' leads to");
}

#[test]
fn lock_above_running_version_is_kept_until_host_refreshes() {
    let mut unasked = host("1.20.5", None, &[]);
    unasked.updates = None;
    for (locked, kept) in [("1.20.6", true), ("1.20.5", false), ("1.20.4", false)] {
        let pin = want(&policy("{}"), &[], &unasked, Some(&v(locked)), t(0)).pin;
        assert_eq!(pin, kept.then(|| v(locked)), "{locked}");
    }
}
