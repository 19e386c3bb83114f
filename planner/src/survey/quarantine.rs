//! The versions that have failed too often. They follow from two places, so that deleting either does not end the
//! quarantine: the unresolved failures in the shadows' records, and the failures in the operator's status.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::{ActiveRollout, KnownVersion};
use models::reason::FailureReason;
use models::shadow::{UPDATED, VersionFailure};
use semver::Version;

use super::key::{Key, of_known};
use super::requests::pending_continue;
use crate::view::{ClusterView, NodeView, OperatorFacts};

/// The reason why a version is quarantined, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The reason of the last node's failure.
    pub(crate) reason: Option<FailureReason>,
    /// The nodes that failed.
    pub(crate) nodes: Vec<String>,
    /// A user has requested that other kinds of nodes go on: it holds its own kind alone.
    pub(crate) contained: bool,
}

/// Returns whether a node has resolved its failures of a version by proving it.
fn has_proven(view: &ClusterView, name: &str, known: &KnownVersion) -> bool {
    let record = view.nodes.get(name).and_then(NodeView::record);
    let of = |failure: &&VersionFailure| {
        (&failure.version, &failure.variant, &failure.arch) == (&known.version, &known.variant, &known.arch)
    };
    let own: Vec<_> = record.iter().flat_map(|record| record.version_failures.iter().filter(of)).collect();
    own.iter().all(|failure| failure.resolved_by.is_some())
        && own.iter().any(|failure| failure.resolved_by.as_deref() == Some(UPDATED))
}

/// The quarantined versions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quarantine {
    /// The quarantined versions and their causes.
    pub(crate) spent: BTreeMap<Key, Cause>,
    /// All failures that no `resume` has resolved, those of versions that are not quarantined yet included.
    pub(crate) failed: BTreeMap<Key, Cause>,
}

impl Quarantine {
    /// Counts each node once per version, variant and architecture.
    pub fn of(view: &ClusterView, max_failures: usize) -> Self {
        Self::with(view, max_failures, &[])
    }

    /// The same with the records of some nodes as they are about to be written.
    pub(crate) fn with(view: &ClusterView, max_failures: usize, pending: &[(&str, Vec<VersionFailure>)]) -> Self {
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
        // Failures of nodes that were deleted or created again still count.
        for known in view.operator.iter().flat_map(|o| &o.status.versions) {
            for name in known.failed.iter().filter(|name| !has_proven(view, name, known)) {
                let cause = failed.entry(of_known(known)).or_default();
                if !cause.nodes.contains(name) {
                    cause.nodes.push(name.clone());
                }
            }
        }
        let mut spent: BTreeMap<Key, Cause> =
            failed.clone().into_iter().filter(|(_, cause)| cause.nodes.len() >= max_failures.max(1)).collect();
        for known in view.operator.iter().flat_map(|o| &o.status.versions) {
            if let Some(quarantined) = &known.quarantined {
                // Nodes that prove a version lift its quarantine, as a `resume` does.
                let proven = known.failed.iter().any(|name| has_proven(view, name, known));
                let left = failed.get(&of_known(known)).map_or(0, |cause| cause.nodes.len());
                if proven && left < max_failures.max(1) {
                    continue;
                }
                let nodes = quarantined.nodes.clone();
                let cause = || Cause { reason: Some(quarantined.reason), nodes, contained: false };
                spent.entry(of_known(known)).or_insert_with(cause).contained = quarantined.contained;
            }
        }
        Self { spent, failed }
    }

    /// Returns whether this version is quarantined for this kind of host.
    pub fn holds(&self, variant: Option<&str>, arch: Option<&str>, version: &Version) -> bool {
        self.spent
            .keys()
            .any(|(v, a, spent)| spent == version && Some(v.as_str()) == variant && Some(a.as_str()) == arch)
    }

    /// Returns a version that has stopped the rollout on every kind of node, if one has.
    pub fn frozen_by(&self) -> Option<&Version> {
        self.freezing().next().map(|((_, _, version), _)| version)
    }

    /// The quarantined versions that stop the rollout on every kind of node.
    pub(crate) fn freezing(&self) -> impl Iterator<Item = (&Key, &Cause)> {
        self.spent.iter().filter(|(_, cause)| !cause.contained)
    }

    /// Returns the same once a pending `continue-others` is acknowledged: it contains what had failed by the time that it names, and the
    /// status has shown. So it does the same if it is carried out again, as after an operator of an earlier version.
    pub(crate) fn with_request(&self, operator: &OperatorFacts) -> Self {
        let mut after = self.clone();
        let until: Option<Timestamp> = pending_continue(operator).and_then(|value| value.trim().parse().ok());
        let shown = |known: &&KnownVersion| {
            let since = known.quarantined.as_ref().map(|quarantined| quarantined.since);
            since.is_some_and(|since| until.is_some_and(|until| since <= until))
        };
        for known in operator.status.versions.iter().filter(shown) {
            if let Some(cause) = after.spent.get_mut(&of_known(known)) {
                cause.contained = true;
            }
        }
        after
    }

    /// The versions with failures that no `resume` has resolved, and the quarantined ones.
    pub fn failed_versions(&self) -> impl Iterator<Item = &Version> {
        self.failed.keys().chain(self.spent.keys()).map(|(_, _, version)| version)
    }

    /// Returns the versions whose failures a `resume` resolves, separated by commas: those that nodes have failed on, and those whose
    /// rollouts are braked. The operator resolves all of them at once, so that a user has to name each.
    pub fn to_resume(&self, rollouts: &[ActiveRollout]) -> String {
        let braked = rollouts.iter().filter(|rollout| rollout.is_braked()).map(|rollout| &rollout.version);
        let versions: BTreeSet<&Version> = self.failed_versions().chain(braked).collect();
        versions.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// The number of quarantined versions.
    pub fn len(&self) -> usize {
        self.spent.len()
    }

    /// Returns whether no version is quarantined.
    pub fn is_empty(&self) -> bool {
        self.spent.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use models::operator::RolloutLedger;

    use super::*;
    use crate::fixtures::{NEW, OLD, cluster, failure, fallen_back, node, rollout, seen, t};

    #[test]
    fn versions_to_resume_are_those_of_braked_rollouts_too() {
        let ledger = RolloutLedger { braked_until: Some(t(60)), ..RolloutLedger::default() };
        let braked = |version| ActiveRollout { ledger: Some(ledger.clone()), ..rollout(version) };
        let none = Quarantine::default();
        assert_eq!(none.len(), 0);
        assert_eq!(none.to_resume(&[braked(NEW), rollout(OLD)]), NEW.to_string());
        assert_eq!(none.to_resume(&[braked(NEW), braked(OLD)]), format!("{OLD},{NEW}"));
    }

    /// Nodes `a` and `b` have failed on a version, which a user has requested to hold for its own nodes alone. Node `a` has proven it since.
    #[test]
    fn quarantine_stays_contained_while_as_many_nodes_as_it_takes_have_not_proven_the_version() {
        let mut nodes = ["a", "b"].map(node);
        for (node, resolved_by) in nodes.iter_mut().zip([Some(UPDATED.to_owned()), None]) {
            let record = &mut node.shadow.as_mut().unwrap().status.controller.record;
            record.get_or_insert_default().version_failures = vec![VersionFailure { resolved_by, ..failure(NEW) }];
        }
        let (mut view, _) = cluster(nodes.into(), &[]);
        let quarantined = models::operator::Quarantined { contained: true, ..fallen_back(&["a", "b"]) };
        let failed = vec!["a".to_owned(), "b".to_owned()];
        let known = KnownVersion { failed, quarantined: Some(quarantined), ..seen(NEW, 0) };
        view.operator.as_mut().unwrap().status.versions = vec![known];
        for (max_failures, held) in [(1, 1), (2, 0)] {
            let found = Quarantine::of(&view, max_failures);
            assert_eq!((found.len(), found.frozen_by()), (held, None), "{max_failures}");
        }
    }
}
