//! Content of the update repository, and updog's choice from it.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use semver::Version;

use super::settings::VersionLock;

/// The update repository of a fleet: all hosts that hold a clone see the same releases.
#[derive(Clone, Debug, Default)]
pub struct Releases(Arc<Mutex<Vec<Release>>>);

#[derive(Clone, Debug)]
struct Release {
    version: Version,
    /// For each wave the first seed that no longer belongs to it, and its start; ascending. Empty: open to all.
    waves: Vec<(u32, Timestamp)>,
}

impl Release {
    fn open_to(&self, seed: u32, now: Timestamp) -> bool {
        self.waves.is_empty()
            || self.waves.iter().find(|(bound, _)| seed < *bound).is_some_and(|(_, opens)| *opens <= now)
    }
}

impl Releases {
    /// A repository that offers these versions to all hosts.
    pub fn of(versions: impl IntoIterator<Item = Version>) -> Self {
        let releases = Self::default();
        for version in versions {
            releases.publish(version);
        }
        releases
    }

    /// Offers `version` to all hosts from now on.
    pub fn publish(&self, version: Version) {
        self.publish_in_waves(version, []);
    }

    /// Offers `version` in waves: to hosts whose seed is below the bound (and not below an earlier wave's) from that
    /// time on. A seed above every bound is never served.
    pub fn publish_in_waves(&self, version: Version, waves: impl IntoIterator<Item = (u32, Timestamp)>) {
        let mut waves: Vec<_> = waves.into_iter().collect();
        waves.sort_unstable();
        self.with(|releases| {
            releases.retain(|known| known.version != version);
            releases.push(Release { version, waves });
            releases.sort_by(|one, other| other.version.cmp(&one.version));
        });
    }

    /// Withdraws `version`.
    pub fn withdraw(&self, version: &Version) {
        self.with(|releases| releases.retain(|known| known.version != *version));
    }

    /// The list of updog for a host with this seed, newest first.
    pub fn list(&self, seed: u32, ignore_waves: bool, now: Timestamp) -> Listing {
        self.with(|releases| Listing {
            available: releases
                .iter()
                .filter(|release| ignore_waves || release.open_to(seed, now))
                .map(|release| release.version.clone())
                .collect(),
            max_version: releases.first().map(|release| release.version.clone()),
        })
    }

    fn with<T>(&self, change: impl FnOnce(&mut Vec<Release>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The result of one query of the repository by one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The versions available to this host, newest first, with the running and older ones.
    pub available: Vec<Version>,
    /// The newest version published at all, also when its wave has not reached this host.
    pub max_version: Option<Version>,
}

impl Listing {
    /// The version that the lock selects for a host that runs `running`.
    ///
    /// Under `latest` that is the first listed update if it is newer, **or if the running version is newer than all
    /// that is published**: a withdrawn release makes its hosts downgrade. An exact lock may downgrade as well.
    pub fn choose(&self, lock: &VersionLock, running: &Version) -> Option<&Version> {
        let pulled = self.max_version.as_ref().is_some_and(|max| running > max);
        match lock.exact() {
            Some(wanted) => self.available.iter().find(|listed| **listed == wanted && wanted != *running),
            None => self.available.iter().find(|listed| *listed > running || pulled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    fn lock(text: &str) -> VersionLock {
        VersionLock::parse(text).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn listing() -> Listing {
        Releases::of([v("1.20.4"), v("1.20.0"), v("1.20.5")]).list(0, false, at(0))
    }

    #[test]
    fn latest_chooses_newest_version_or_none_if_running() {
        assert_eq!(listing().choose(&lock("latest"), &v("1.20.0")), Some(&v("1.20.5")));
        assert_eq!(listing().choose(&lock("latest"), &v("1.20.5")), None);
    }

    #[test]
    fn latest_downgrades_when_running_release_was_withdrawn() {
        assert_eq!(listing().choose(&lock("latest"), &v("1.21.0")), Some(&v("1.20.5")));
    }

    #[test]
    fn exact_lock_may_downgrade_but_needs_existing_other_version() {
        assert_eq!(listing().choose(&lock("v1.20.0"), &v("1.20.5")), Some(&v("1.20.0")));
        assert_eq!(listing().choose(&lock("1.20.5"), &v("1.20.5")), None);
        assert_eq!(listing().choose(&lock("9.9.9"), &v("1.20.5")), None);
    }

    #[test]
    fn release_is_hidden_until_wave_reaches_seed() {
        let releases = Releases::of([v("1.20.0")]);
        releases.publish_in_waves(v("1.20.5"), [(512, at(100)), (2048, at(200))]);
        let listed = |seed, ignore, now| releases.list(seed, ignore, at(now)).available.len();
        assert_eq!(listed(511, false, 99), 1);
        assert_eq!(listed(511, false, 100), 2);
        assert_eq!(listed(512, false, 199), 1);
        assert_eq!(listed(512, false, 200), 2);
        assert_eq!(listed(512, true, 0), 2);
    }

    #[test]
    fn running_release_in_later_wave_is_not_downgraded() {
        let releases = Releases::of([v("1.20.0")]);
        releases.publish_in_waves(v("1.20.5"), [(2048, at(200))]);
        assert_eq!(releases.list(0, false, at(0)).choose(&lock("latest"), &v("1.20.5")), None);
    }
}
