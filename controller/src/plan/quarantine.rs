//! Which versions have failed too often. It follows from two places, so that deleting either does not end it: the
//! failures that stand unresolved in the shadows' records, and what the operator's status remembers of them.

use std::collections::BTreeMap;

use models::operator::KnownVersion;
use models::reason::FailureReason;
use models::shadow::VersionFailure;
use semver::Version;

use crate::view::ClusterView;

/// A version for one kind of host: variant, architecture, version.
pub(super) type Key = (String, String, Version);

pub(super) fn key_of(known: &KnownVersion) -> Key {
    (known.variant.clone(), known.arch.clone(), known.version.clone())
}

/// Why a version is quarantined, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cause {
    /// How the last node failed.
    pub(super) reason: Option<FailureReason>,
    /// The nodes that failed.
    pub(super) nodes: Vec<String>,
}

/// The versions that have failed too often.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quarantine {
    spent: BTreeMap<Key, Cause>,
    /// All failures that no one has resumed, those of versions that are not quarantined yet included.
    failed: BTreeMap<Key, Cause>,
}

fn clone<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

impl Quarantine {
    /// Counts each node once per version, variant and architecture.
    pub fn of(view: &ClusterView, max_failures: usize) -> Self {
        Self::with(view, max_failures, &[])
    }

    /// The same with the records of some nodes as they are about to be written.
    pub(super) fn with(view: &ClusterView, max_failures: usize, pending: &[(&str, Vec<VersionFailure>)]) -> Self {
        let pending: BTreeMap<&str, &[VersionFailure]> = pending.iter().map(|(n, f)| (*n, f.as_slice())).collect();
        let mut failed: BTreeMap<Key, Cause> = BTreeMap::new();
        for (name, node) in &view.nodes {
            let written = node.record();
            let failures = match pending.get(name.as_str()) {
                Some(failures) => failures,
                None => written.map(|r| r.version_failures.as_slice()).unwrap_or_default(),
            };
            for failure in failures.iter().filter(|f| f.resolved_by.is_none()) {
                let key = (failure.variant.clone(), failure.arch.clone(), failure.version.clone());
                let cause = failed.entry(key).or_default();
                cause.reason = Some(failure.reason);
                if !cause.nodes.contains(name) {
                    cause.nodes.push(name.clone());
                }
            }
        }
        // Nodes that failed and are gone, or were created again, have failed all the same.
        for known in view.operator.iter().flat_map(|o| &o.status.versions) {
            for name in &known.failed {
                let cause = failed.entry(key_of(known)).or_default();
                if !cause.nodes.contains(name) {
                    cause.nodes.push(name.clone());
                }
            }
        }
        let mut spent: BTreeMap<Key, Cause> =
            failed.iter().filter(|(_, cause)| cause.nodes.len() >= max_failures.max(1)).map(clone).collect();
        for known in view.operator.iter().flat_map(|o| &o.status.versions) {
            if let Some(quarantined) = &known.quarantined {
                let cause = || Cause { reason: Some(quarantined.reason), nodes: quarantined.nodes.clone() };
                spent.entry(key_of(known)).or_insert_with(cause);
            }
        }
        Self { spent, failed }
    }

    /// Whether this version is quarantined for this kind of host.
    pub fn holds(&self, variant: Option<&str>, arch: Option<&str>, version: &Version) -> bool {
        self.spent
            .keys()
            .any(|(v, a, spent)| spent == version && Some(v.as_str()) == variant && Some(a.as_str()) == arch)
    }

    /// A version that has stopped the rollout, if one has.
    pub fn frozen_by(&self) -> Option<&Version> {
        self.spent.keys().next().map(|(_, _, version)| version)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.spent.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spent.is_empty()
    }

    /// The nodes that failed, by what they failed on.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&Key, &Cause)> {
        self.failed.iter()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Cause)> {
        self.spent.iter()
    }
}
