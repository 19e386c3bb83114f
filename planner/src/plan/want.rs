//! The target version of one node, or the reason why it has none.

use jiff::Timestamp;
use models::operator::KnownVersion;
use models::shadow::AgentReport;
use semver::Version;

use super::Wait;
use crate::policy::{Policy, Range, Target};
use models::time::after;

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

/// Returns why policy no longer allows the version of an attempt, for its record, if it does not.
pub(super) fn no_longer(
    policy: &Policy,
    known: &[KnownVersion],
    agent: &AgentReport,
    version: &Version,
    now: Timestamp,
) -> Option<String> {
    let down = agent.current_version.as_ref().is_some_and(|current| version < current);
    if !policy.target.allows(version) || (down && !policy.target.pins()) {
        return Some(format!("{version} is not a version that spec.version.target '{}' leads to", policy.target));
    }
    refusal(policy, known, agent, version, now).map(|wait| wait.to_string())
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
mod tests;
