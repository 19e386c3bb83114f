//! The target version of one node, or the reason why it has none.

use jiff::Timestamp;
use models::operator::KnownVersion;
use models::shadow::AgentReport;
use semver::Version;

use crate::policy::{Policy, Target};
use crate::wait::Wait;
use models::time::after;

/// The target state that policy gives one host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Want {
    /// The required value of the host's own version lock, where policy sets it.
    pub(crate) pin: Option<Version>,
    /// The target version, or the reason why there is none.
    pub(crate) version: Result<Version, Wait>,
}

/// Returns why what the host offers now supersedes an attempt that is not drained for yet, if it does. `wanted` is what
/// policy would begin with.
pub(crate) fn superseded(agent: &AgentReport, version: &Version, wanted: &Result<Version, Wait>) -> Option<String> {
    let knows = agent.updates.as_ref().is_some_and(|updates| updates.refresh_failure.is_none());
    if let Ok(newer) | Err(Wait::Pinning { version: newer }) = wanted
        && knows
        && newer != version
    {
        return Some(format!("{newer} has taken the place of {version} before the node was drained"));
    }
    withdrawn(agent, version)
}

/// Returns that the host no longer offers a version, if it has found that out.
pub(crate) fn withdrawn(agent: &AgentReport, version: &Version) -> Option<String> {
    let updates = agent.updates.as_ref().filter(|updates| updates.refresh_failure.is_none())?;
    let offered = updates.available_versions.contains(version) || updates.chosen_version.as_ref() == Some(version);
    (!offered).then(|| format!("the host no longer offers {version}"))
}

/// One host, as its agent reports it, under a policy.
pub(crate) struct Host<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) known: &'a [KnownVersion],
    pub(crate) agent: &'a AgentReport,
    pub(crate) now: Timestamp,
}

impl<'a> Host<'a> {
    /// The known versions for this kind of host.
    fn known(&self) -> impl Iterator<Item = &'a KnownVersion> {
        let kind = (self.agent.variant.as_deref(), self.agent.arch.as_deref());
        self.known.iter().filter(move |k| (Some(k.variant.as_str()), Some(k.arch.as_str())) == kind)
    }

    /// The versions that the host may have.
    fn offered(&self) -> impl Iterator<Item = &'a Version> {
        self.agent.updates.iter().flat_map(|updates| &updates.available_versions)
    }

    /// The version that the host chooses of them.
    fn chosen(&self) -> Option<&'a Version> {
        self.agent.updates.as_ref()?.chosen_version.as_ref()
    }

    /// Returns why policy no longer allows the version of an attempt that has disrupted nothing, for its record, if it does not.
    pub(crate) fn no_longer(&self, version: &Version) -> Option<String> {
        let current = self.agent.current_version.as_ref();
        self.ruled_out(version, current).or_else(|| Some(self.too_young(version)?.to_string()))
    }

    /// Returns why a user has ruled the version of an attempt out on a host that runs `current`, for its record, if that is so.
    pub(crate) fn ruled_out(&self, version: &Version, current: Option<&Version>) -> Option<String> {
        let target = &self.policy.target;
        let down = current.is_some_and(|current| version < current);
        if !target.allows(version) || (down && !target.pins()) {
            return Some(format!("{version} is not a version that spec.version.target '{target}' leads to"));
        }
        self.excluded(version).map(|wait| wait.to_string())
    }

    /// Returns why a version is refused, whatever the host reports.
    fn refusal(&self, version: &Version) -> Option<Wait> {
        self.excluded(version).or_else(|| self.too_young(version))
    }

    fn excluded(&self, version: &Version) -> Option<Wait> {
        let kind = |part: &'a Option<String>| part.as_deref().unwrap_or_default();
        let (variant, arch) = (kind(&self.agent.variant), kind(&self.agent.arch));
        let rule = self.policy.exclude.iter().find(|exclusion| exclusion.covers(variant, arch, version))?;
        Some(Wait::Excluded { version: version.clone(), rule: rule.to_string() })
    }

    fn too_young(&self, version: &Version) -> Option<Wait> {
        // Only a new version needs an age, not one that a node ran before, or runs.
        let news = self.agent.current_version.as_ref().is_none_or(|current| version > current);
        if news && !self.policy.minimum_age.is_zero() {
            let seen = self.known().find(|k| k.version == *version).map(|k| k.first_seen);
            let until = seen.map(|seen| after(seen, self.policy.minimum_age));
            if until.is_none_or(|until| until > self.now) {
                return Some(Wait::TooYoung { version: version.clone(), until });
            }
        }
        None
    }

    /// Returns the target state of the host.
    ///
    /// `locked` is the version lock that its shadow requests so far: it stays where nothing better is known, as after a
    /// boot, when the host has not refreshed yet.
    pub(crate) fn want(&self, locked: Option<&Version>) -> Want {
        let target = &self.policy.target;
        let kept = locked.filter(|version| target.pins() && target.allows(version)).cloned();
        let Some(current) = &self.agent.current_version else {
            return Want { pin: kept, version: Err(Wait::NoReport) };
        };
        let best = match target {
            Target::Latest => return self.latest(current, locked),
            Target::Exact(version) => Some(version),
            Target::Range(range) => {
                let usable = |version: &&Version| *version != current && self.refusal(version).is_none();
                let fits = |version: &&Version| range.matches(version);
                let best = self.offered().filter(usable).chain([current]).filter(fits).max();
                if best == Some(current) {
                    let kept = kept.filter(|kept| self.is_unknown() && kept > current);
                    let pin = kept.or_else(|| Some(current.clone()));
                    return Want { pin, version: Err(self.stays(current)) };
                }
                best
            }
        };
        match best {
            Some(version) => Want { pin: Some(version.clone()), version: self.pinned(current, version) },
            None => Want { pin: kept, version: Err(self.unoffered()) },
        }
    }

    /// Returns whether it is not known what the host may have, as after a reboot, or while its repository is away.
    pub(crate) fn is_unknown(&self) -> bool {
        self.agent.current_version.is_none() || self.agent.updates.is_none() || self.failing().is_some()
    }

    fn failing(&self) -> Option<Wait> {
        let message = self.agent.updates.as_ref()?.refresh_failure.clone()?;
        Some(Wait::RefreshFails { message })
    }

    /// Returns the best reason that the host's offers give when no version of the target can be used.
    fn unoffered(&self) -> Wait {
        let refused = self.offered().filter(|v| self.policy.target.allows(v)).max().and_then(|v| self.refusal(v));
        self.failing().or(refused).unwrap_or_else(|| self.not_offered())
    }

    fn not_offered(&self) -> Wait {
        Wait::NotOffered { target: self.policy.target.to_string(), newest: self.offered().max().cloned() }
    }

    /// Returns the newer version that the host chooses, or, where policy refuses that one, the newest below it that
    /// policy allows, which the host's lock then chooses. A lower version that a host offers after a release was pulled
    /// is never used.
    fn latest(&self, current: &Version, locked: Option<&Version>) -> Want {
        let locked = locked.filter(|version| *version > current);
        if self.agent.updates.is_none() || self.failing().is_some() {
            return Want { pin: locked.cloned(), version: Err(self.failing().unwrap_or(Wait::UpToDate)) };
        }
        let refused = |version: &Version| self.refusal(version);
        let offered = || self.offered().filter(|version| *version > current);
        let chosen = self.chosen().filter(|chosen| *chosen > current);
        let passed_over = chosen.filter(|version| refused(version).is_some());
        let best = offered().filter(|version| refused(version).is_none()).max();
        if let Some(best) = best.filter(|best| locked.is_some() || passed_over.is_some_and(|chosen| *best < chosen)) {
            let version =
                if chosen == Some(best) { Ok(best.clone()) } else { Err(Wait::Pinning { version: best.clone() }) };
            return Want { pin: Some(best.clone()), version };
        }
        let version = match chosen {
            Some(chosen) => refused(chosen).map_or_else(|| Ok(chosen.clone()), Err),
            None => Err(self.stays(current)),
        };
        Want { pin: None, version }
    }

    /// Returns why the host stays at its version, which is the best of the target that it can have now.
    fn stays(&self, current: &Version) -> Wait {
        if let Some(fails) = self.failing() {
            return fails;
        }
        if self.agent.updates.is_none() {
            return Wait::UpToDate;
        }
        let better = |version: &&Version| *version > current && self.policy.target.allows(version);
        // The list is what the host may have, its wave included: only a lock makes it ignore that.
        if let Some(version) = self.offered().filter(better).max() {
            return self.refusal(version).unwrap_or(Wait::NotChosen { version: version.clone() });
        }
        let others = self.known().map(|known| &known.version).filter(better).max();
        let Some(version) = others else { return Wait::UpToDate };
        self.excluded(version).unwrap_or(Wait::WaveNotCome { version: version.clone() })
    }

    /// One version, which the host's own lock has to choose.
    fn pinned(&self, current: &Version, version: &Version) -> Result<Version, Wait> {
        if version == current {
            return Err(Wait::UpToDate);
        }
        if let Some(wait) = self.refusal(version).or_else(|| self.failing()) {
            return Err(wait);
        }
        if self.chosen() == Some(version) {
            return Ok(version.clone());
        }
        let version = version.clone();
        Err(if self.offered().any(|offered| *offered == version) {
            Wait::Pinning { version }
        } else if self.known().any(|k| k.version == version) {
            Wait::WaveNotCome { version }
        } else {
            self.not_offered()
        })
    }
}

#[cfg(test)]
mod tests;
