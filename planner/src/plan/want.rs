//! The target version of one node, or the reason why it has none.

use jiff::Timestamp;
use models::operator::KnownVersion;
use models::shadow::AgentReport;
use semver::Version;

use super::Wait;
use super::attempt::after;
use crate::policy::{Policy, Range, Target};

/// The target state that policy gives one host.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Want {
    /// The required value of the host's own version lock, where policy sets it.
    pub(super) pin: Option<Version>,
    /// The target version, or the reason why there is none.
    pub(super) version: Result<Version, Wait>,
}

/// The known versions for this kind of host.
fn of_kind<'a>(known: &'a [KnownVersion], agent: &'a AgentReport) -> impl Iterator<Item = &'a KnownVersion> {
    known.iter().filter(|k| {
        Some(k.variant.as_str()) == agent.variant.as_deref() && Some(k.arch.as_str()) == agent.arch.as_deref()
    })
}

/// Returns why policy no longer allows the version of an attempt, if it does not.
pub(super) fn no_longer(
    policy: &Policy,
    known: &[KnownVersion],
    agent: &AgentReport,
    version: &Version,
    now: Timestamp,
) -> Option<Wait> {
    let down = agent.current_version.as_ref().is_some_and(|current| version < current);
    if !policy.target.allows(version) || (down && !policy.target.pins()) {
        return Some(Wait::NotWanted { version: version.clone(), target: policy.target.to_string() });
    }
    refusal(policy, known, agent, version, now)
}

/// Returns why what the host offers now supersedes an attempt that is not drained for yet, if it does. `wanted` is what
/// policy would begin with.
pub(super) fn superseded(agent: &AgentReport, version: &Version, wanted: &Result<Version, Wait>) -> Option<String> {
    let updates = agent.updates.as_ref().filter(|updates| updates.refresh_failure.is_none())?;
    if let Ok(newer) | Err(Wait::Pinning { version: newer }) = wanted
        && newer != version
    {
        return Some(format!("{newer} has taken the place of {version} before the node was drained"));
    }
    let offered = updates.available_versions.contains(version) || updates.chosen_version.as_ref() == Some(version);
    (!offered).then(|| format!("the host no longer offers {version}"))
}

/// Returns why a version is refused, whatever the host reports.
fn refusal(
    policy: &Policy,
    known: &[KnownVersion],
    agent: &AgentReport,
    version: &Version,
    now: Timestamp,
) -> Option<Wait> {
    if let Some(rule) = policy.exclude.iter().find(|exclusion| exclusion.covers(version)) {
        return Some(Wait::Excluded { version: version.clone(), rule: rule.to_string() });
    }
    // Only a new version needs an age, not one that a node ran before, or runs.
    let news = agent.current_version.as_ref().is_none_or(|current| version > current);
    if news && !policy.minimum_age.is_zero() {
        let seen = of_kind(known, agent).find(|k| k.version == *version).map(|k| k.first_seen);
        let until = seen.map(|seen| after(seen, policy.minimum_age));
        if until.is_none_or(|until| until > now) {
            return Some(Wait::TooYoung { version: version.clone(), until });
        }
    }
    None
}

/// Returns the target state of a host with this report.
///
/// `locked` is the version lock that its shadow requests so far: it stays where nothing better is known, as after a
/// boot, when the host has not refreshed yet.
pub(super) fn want(
    policy: &Policy,
    known: &[KnownVersion],
    agent: &AgentReport,
    locked: Option<&Version>,
    now: Timestamp,
) -> Want {
    let kept = locked.filter(|version| policy.target.pins() && policy.target.allows(version)).cloned();
    let Some(current) = &agent.current_version else { return Want { pin: kept, version: Err(Wait::NoReport) } };
    match &policy.target {
        Target::Latest => latest(policy, known, agent, current, locked, now),
        Target::Exact(version) => {
            Want { pin: Some(version.clone()), version: pinned(policy, known, agent, current, version, now) }
        }
        Target::Range(range) => {
            let offered = agent.updates.iter().flat_map(|u| &u.available_versions);
            let fits = |version: &&Version| range.matches(version);
            let best = offered
                .filter(fits)
                .filter(|version| *version != current && refusal(policy, known, agent, version, now).is_none())
                .chain([current].into_iter().filter(fits))
                .max();
            match best {
                Some(version) => {
                    Want { pin: Some(version.clone()), version: pinned(policy, known, agent, current, version, now) }
                }
                None => Want { pin: kept, version: Err(unoffered(policy, known, agent, range, now)) },
            }
        }
    }
}

fn failing(agent: &AgentReport) -> Option<Wait> {
    let message = agent.updates.as_ref()?.refresh_failure.clone()?;
    Some(Wait::RefreshFails { message })
}

/// Returns the best reason that the host's offers give when no version in the range can be used.
fn unoffered(policy: &Policy, known: &[KnownVersion], agent: &AgentReport, range: &Range, now: Timestamp) -> Wait {
    let offered = agent.updates.iter().flat_map(|u| &u.available_versions);
    let refused = offered.filter(|v| range.matches(v)).max().and_then(|v| refusal(policy, known, agent, v, now));
    failing(agent).or(refused).unwrap_or_else(|| not_offered(policy, agent))
}

fn not_offered(policy: &Policy, agent: &AgentReport) -> Wait {
    let newest = agent.updates.iter().flat_map(|u| &u.available_versions).max().cloned();
    Wait::NotOffered { target: policy.target.to_string(), newest }
}

/// Returns the newer version that the host chooses, or, where policy refuses that one, the newest below it that policy
/// allows, which the host's lock then chooses. A lower version that a host offers after a release was pulled is never
/// used.
fn latest(
    policy: &Policy,
    known: &[KnownVersion],
    agent: &AgentReport,
    current: &Version,
    locked: Option<&Version>,
    now: Timestamp,
) -> Want {
    let locked = locked.filter(|version| *version > current);
    if agent.updates.is_none() || failing(agent).is_some() {
        return Want { pin: locked.cloned(), version: Err(failing(agent).unwrap_or(Wait::UpToDate)) };
    }
    let refused = |version: &Version| refusal(policy, known, agent, version, now);
    let offered = || agent.updates.iter().flat_map(|u| &u.available_versions).filter(|version| *version > current);
    let chosen = agent.updates.as_ref().and_then(|u| u.chosen_version.as_ref()).filter(|chosen| *chosen > current);
    let passed_over = chosen.filter(|version| refused(version).is_some());
    let best = offered().filter(|version| refused(version).is_none()).max();
    if let Some(best) = best.filter(|best| locked.is_some() || passed_over.is_some_and(|chosen| *best < chosen)) {
        let version =
            if chosen == Some(best) { Ok(best.clone()) } else { Err(Wait::Pinning { version: best.clone() }) };
        return Want { pin: Some(best.clone()), version };
    }
    let version = match chosen {
        Some(chosen) => refused(chosen).map_or_else(|| Ok(chosen.clone()), Err),
        // The list is what the host may have, its wave included: only a lock makes it ignore that.
        None => Err(match offered().max() {
            Some(version) => refused(version).unwrap_or(Wait::NotChosen { version: version.clone() }),
            None => {
                let others = of_kind(known, agent).map(|k| &k.version).filter(|version| *version > current).max();
                others.map_or(Wait::UpToDate, |version| Wait::WaveNotCome { version: version.clone() })
            }
        }),
    };
    Want { pin: None, version }
}

/// One version, which the host's own lock has to choose.
fn pinned(
    policy: &Policy,
    known: &[KnownVersion],
    agent: &AgentReport,
    current: &Version,
    version: &Version,
    now: Timestamp,
) -> Result<Version, Wait> {
    if version == current {
        return Err(Wait::UpToDate);
    }
    if let Some(wait) = refusal(policy, known, agent, version, now) {
        return Err(wait);
    }
    let updates = agent.updates.as_ref();
    if updates.and_then(|u| u.chosen_version.as_ref()) == Some(version) {
        return match failing(agent) {
            Some(wait) => Err(wait),
            None => Ok(version.clone()),
        };
    }
    if updates.is_some_and(|u| u.available_versions.contains(version)) {
        return Err(failing(agent).unwrap_or(Wait::Pinning { version: version.clone() }));
    }
    let elsewhere = of_kind(known, agent).any(|k| k.version == *version);
    Err(failing(agent).unwrap_or(if elsewhere {
        Wait::WaveNotCome { version: version.clone() }
    } else {
        not_offered(policy, agent)
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use models::operator::BottlerocketUpdateOperatorSpec;
    use models::shadow::OfferedUpdates;

    use super::*;

    fn v(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
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
        KnownVersion {
            version: v(version),
            variant: "aws-k8s-1.37".into(),
            arch: "x86_64".into(),
            first_seen: t(first_seen),
            failed: vec![],
            quarantined: None,
        }
    }

    fn policy(version: &str) -> Policy {
        let spec: BottlerocketUpdateOperatorSpec =
            serde_json::from_str(&format!(r#"{{"version": {version}}}"#)).unwrap();
        Policy::from_spec(&spec).unwrap()
    }

    #[test]
    fn what_a_host_is_to_become() {
        let wave = |version: &str| Err(Wait::WaveNotCome { version: v(version) });
        let not_offered = |target: &str| Err(Wait::NotOffered { target: target.to_owned(), newest: Some(v("1.20.5")) });
        let pinning = |version: &str| Err(Wait::Pinning { version: v(version) });
        let offers = ["1.20.5", "1.20.4", "1.20.0", "1.19.0"];
        for (sentence, policy_text, host, known, pin, expected) in [
            (
                "latest takes what the host chooses",
                r#"{}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                None,
                Ok(v("1.20.5")),
            ),
            (
                "latest never goes down",
                r#"{}"#,
                host("1.20.9", Some("1.20.5"), &offers),
                vec![],
                None,
                Err(Wait::UpToDate),
            ),
            (
                "a host that is offered nothing is up to date",
                r#"{}"#,
                host("1.20.0", None, &["1.20.0"]),
                vec![],
                None,
                Err(Wait::UpToDate),
            ),
            (
                "a host whose wave has not come says so",
                r#"{}"#,
                host("1.20.0", None, &["1.20.0"]),
                vec![known("1.20.5", 0)],
                None,
                wave("1.20.5"),
            ),
            (
                "a host whose own lock passes over what it is offered says so",
                r#"{}"#,
                host("1.20.0", None, &offers),
                vec![known("1.20.5", 0)],
                None,
                Err(Wait::NotChosen { version: v("1.20.5") }),
            ),
            (
                "latest takes the newest version below an excluded one, by the host's lock",
                r#"{"exclude": ["1.20.5"]}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                Some("1.20.4"),
                pinning("1.20.4"),
            ),
            (
                "an excluded version is not taken where there is no other one",
                r#"{"exclude": ["1.20.5"]}"#,
                host("1.20.4", Some("1.20.5"), &offers),
                vec![],
                None,
                Err(Wait::Excluded { version: v("1.20.5"), rule: "1.20.5".into() }),
            ),
            (
                "an exact version that the host chooses is taken",
                r#"{"target": "1.20.4"}"#,
                host("1.20.0", Some("1.20.4"), &offers),
                vec![],
                Some("1.20.4"),
                Ok(v("1.20.4")),
            ),
            (
                "an exact version below the running one is taken",
                r#"{"target": "1.19.0"}"#,
                host("1.20.5", Some("1.19.0"), &offers),
                vec![],
                Some("1.19.0"),
                Ok(v("1.19.0")),
            ),
            (
                "the host has to be told first",
                r#"{"target": "1.20.4"}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                Some("1.20.4"),
                pinning("1.20.4"),
            ),
            (
                "an exact version that runs already stays pinned",
                r#"{"target": "1.20.0"}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                Some("1.20.0"),
                Err(Wait::UpToDate),
            ),
            (
                "an exact version that nobody offers is waited for",
                r#"{"target": "1.30.0"}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                Some("1.30.0"),
                not_offered("1.30.0"),
            ),
            (
                "an exact version that others are offered waits for its wave",
                r#"{"target": "1.20.6"}"#,
                host("1.20.0", None, &["1.20.0"]),
                vec![known("1.20.6", 0)],
                Some("1.20.6"),
                wave("1.20.6"),
            ),
            (
                "a range takes its highest version",
                r#"{"target": "<1.20.5"}"#,
                host("1.20.0", Some("1.20.4"), &offers),
                vec![],
                Some("1.20.4"),
                Ok(v("1.20.4")),
            ),
            (
                "a range leads down as well",
                r#"{"target": "~1.19"}"#,
                host("1.20.0", Some("1.19.0"), &offers),
                vec![],
                Some("1.19.0"),
                Ok(v("1.19.0")),
            ),
            (
                "a range keeps the highest version that runs",
                r#"{"target": "~1.20"}"#,
                host("1.20.5", None, &offers),
                vec![],
                Some("1.20.5"),
                Err(Wait::UpToDate),
            ),
            (
                "a range passes over what is excluded",
                r#"{"target": "~1.20", "exclude": ["1.20.5"]}"#,
                host("1.20.0", Some("1.20.4"), &offers),
                vec![],
                Some("1.20.4"),
                Ok(v("1.20.4")),
            ),
            (
                "a range that excludes all but lower ones leaves the running version",
                r#"{"target": "~1.20", "exclude": [">1.20.0"]}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                Some("1.20.0"),
                Err(Wait::UpToDate),
            ),
            (
                "an empty range is waited for",
                r#"{"target": "~2.0"}"#,
                host("1.20.0", None, &offers),
                vec![],
                None,
                not_offered("~2.0"),
            ),
            (
                "a target without its patch is a range",
                r#"{"target": "1.19"}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                Some("1.19.0"),
                pinning("1.19.0"),
            ),
            (
                "an excluded minor release covers no later one",
                r#"{"exclude": ["1.19"]}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                None,
                Ok(v("1.20.5")),
            ),
            (
                "a range of which all versions are excluded names the newest and the rule",
                r#"{"target": "1.19", "exclude": ["<1.20"]}"#,
                host("1.20.0", Some("1.20.5"), &offers),
                vec![],
                None,
                Err(Wait::Excluded { version: v("1.19.0"), rule: "<1.20".into() }),
            ),
        ] {
            let pin = pin.map(v);
            let got = want(&policy(policy_text), &known, &host, None, t(0));
            assert_eq!(got, Want { pin, version: expected }, "{sentence}");
        }
    }

    #[test]
    fn a_lock_in_the_range_stays_while_the_host_has_not_looked() {
        let mut host = host("1.20.5", None, &[]);
        host.updates = None;
        let range = policy(r#"{"target": "<1.20.0"}"#);
        assert_eq!(want(&range, &[], &host, Some(&v("1.19.0")), t(0)).pin, Some(v("1.19.0")));
        assert_eq!(want(&range, &[], &host, Some(&v("1.20.4")), t(0)).pin, None, "a lock of an earlier policy");
        assert_eq!(want(&policy("{}"), &[], &host, Some(&v("1.19.0")), t(0)).pin, None, "latest locks nothing");
    }

    #[test]
    fn a_version_has_to_be_known_for_its_age_before_it_is_taken() {
        let mut policy = policy("{}");
        policy.minimum_age = Duration::from_secs(3600);
        let host = host("1.20.0", Some("1.20.5"), &["1.20.5", "1.20.0"]);
        let young = |until: Option<i64>| Err(Wait::TooYoung { version: v("1.20.5"), until: until.map(t) });
        assert_eq!(want(&policy, &[], &host, None, t(0)).version, young(None), "nobody else has seen it");
        assert_eq!(want(&policy, &[known("1.20.5", 0)], &host, None, t(3599)).version, young(Some(3600)));
        assert_eq!(want(&policy, &[known("1.20.5", 0)], &host, None, t(3600)).version, Ok(v("1.20.5")));
        let elsewhere = KnownVersion { arch: "aarch64".into(), ..known("1.20.5", 0) };
        assert_eq!(want(&policy, &[elsewhere], &host, None, t(3600)).version, young(None), "another kind of host");
    }

    #[test]
    fn latest_takes_the_newest_version_that_is_old_enough() {
        let policy = Policy { minimum_age: Duration::from_secs(3600), ..policy("{}") };
        // A release every half an hour.
        let known = [known("1.20.3", -2000), known("1.20.4", -3000), known("1.20.5", -1200), known("1.20.6", 600)];
        let offers = ["1.20.6", "1.20.5", "1.20.4", "1.20.3", "1.20.0"];
        let pinning = |version: &str| Err(Wait::Pinning { version: v(version) });
        let young = |version: &str, until| Err(Wait::TooYoung { version: v(version), until: Some(t(until)) });
        let newest = || host("1.20.0", Some("1.20.6"), &offers);
        for (sentence, host, locked, now, pin, version) in [
            ("nothing is old enough", newest(), None, 500, None, young("1.20.6", 4200)),
            ("an older one is", newest(), None, 700, Some("1.20.4"), pinning("1.20.4")),
            (
                "the host has chosen it",
                host("1.20.0", Some("1.20.4"), &offers),
                Some("1.20.4"),
                800,
                Some("1.20.4"),
                Ok(v("1.20.4")),
            ),
            (
                "a newer one has become old enough since",
                host("1.20.0", Some("1.20.4"), &offers),
                Some("1.20.4"),
                2400,
                Some("1.20.5"),
                pinning("1.20.5"),
            ),
            (
                "it was withdrawn",
                host("1.20.0", None, &["1.20.6", "1.20.0"]),
                Some("1.20.4"),
                800,
                None,
                young("1.20.6", 4200),
            ),
            (
                "it runs, and the lock is put back",
                host("1.20.4", None, &offers),
                Some("1.20.4"),
                800,
                None,
                young("1.20.6", 4200),
            ),
            ("it runs without a lock", host("1.20.4", Some("1.20.6"), &offers), None, 800, None, young("1.20.6", 4200)),
            (
                "a version below that the host's own lock chooses is taken",
                host("1.20.0", Some("1.20.3"), &offers),
                None,
                5000,
                None,
                Ok(v("1.20.3")),
            ),
        ] {
            let locked = locked.map(v);
            let got = want(&policy, &known, &host, locked.as_ref(), t(now));
            assert_eq!(got, Want { pin: pin.map(v), version }, "{sentence}");
        }
    }

    #[test]
    fn lock_below_latest_stays_while_the_host_has_not_refreshed() {
        let mut host = host("1.20.0", None, &[]);
        host.updates = None;
        assert_eq!(want(&policy("{}"), &[], &host, Some(&v("1.20.4")), t(0)).pin, Some(v("1.20.4")));
    }

    #[test]
    fn staged_version_is_superseded_when_it_is_withdrawn_or_a_newer_one_is_taken() {
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
    fn a_host_that_cannot_look_waits_whatever_it_chose_before() {
        let mut host = host("1.20.0", Some("1.20.5"), &["1.20.5"]);
        host.updates.as_mut().unwrap().refresh_failure = Some("no route".into());
        let fails = Err(Wait::RefreshFails { message: "no route".into() });
        assert_eq!(want(&policy("{}"), &[], &host, None, t(0)).version, fails);
        assert_eq!(want(&policy(r#"{"target": "1.20.5"}"#), &[], &host, None, t(0)).version, fails);
    }
}
