//! Which versions have failed too often. Nothing is kept for it: it follows from the shadows' records each time.

use std::collections::{BTreeMap, BTreeSet};

use models::shadow::VersionFailure;
use semver::Version;

use crate::view::ClusterView;

/// The versions that have failed too often, from the failures that stand unresolved in the shadows' records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quarantine {
    spent: BTreeSet<(String, String, Version)>,
}

impl Quarantine {
    /// Counts each node once per version, variant and architecture.
    pub fn of(view: &ClusterView, max_failures: usize) -> Self {
        Self::with(view, max_failures, &[])
    }

    /// The same with the records of some nodes as they are about to be written.
    pub(super) fn with(view: &ClusterView, max_failures: usize, pending: &[(&str, Vec<VersionFailure>)]) -> Self {
        let mut counts: BTreeMap<(String, String, Version), usize> = BTreeMap::new();
        for (name, node) in &view.nodes {
            let written = node.shadow.as_ref().and_then(|s| s.status.controller.record.as_ref());
            let failures = match pending.iter().find(|(n, _)| n == name) {
                Some((_, failures)) => failures.as_slice(),
                None => written.map(|r| r.version_failures.as_slice()).unwrap_or_default(),
            };
            let keys: BTreeSet<_> = failures
                .iter()
                .filter(|f| f.resolved_by.is_none())
                .map(|f| (f.variant.clone(), f.arch.clone(), f.version.clone()))
                .collect();
            for key in keys {
                *counts.entry(key).or_default() += 1;
            }
        }
        Self { spent: counts.into_iter().filter(|(_, n)| *n >= max_failures.max(1)).map(|(key, _)| key).collect() }
    }

    /// Whether this version is quarantined for this kind of host.
    pub fn holds(&self, variant: Option<&str>, arch: Option<&str>, version: &Version) -> bool {
        self.spent
            .iter()
            .any(|(v, a, spent)| spent == version && Some(v.as_str()) == variant && Some(a.as_str()) == arch)
    }

    /// A version that has stopped the rollout, if one has.
    pub fn frozen_by(&self) -> Option<&Version> {
        self.spent.iter().next().map(|(_, _, version)| version)
    }
}
