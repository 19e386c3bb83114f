//! The versions that hosts offer: the time since which they are known, and their quarantine. Kept in the operator's
//! status, so that an age survives restarts and deleted nodes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::{KnownVersion, MAX_FAILURES, Quarantined};
use models::reason::FailureReason;
use models::shadow::OfferedUpdates;
use semver::Version;

use super::key::of_known;
use crate::survey::key::Key;
use crate::survey::quarantine::Quarantine;
use crate::view::ClusterView;

/// The number of versions that the operator's status keeps.
const KEPT: usize = 128;

/// The number of nodes that have to be offered a version for it to be known: the report of one host may be wrong.
const SEVERAL: usize = 2;

/// Returns how many of the nodes of a kind that report their offers have to be offered a version. One of them may have
/// an agent that reports no more: without the others it must not keep an age from beginning.
fn enough(reporting: usize) -> usize {
    SEVERAL.min(reporting.saturating_sub(1)).max(1)
}

/// The number of named nodes that failed on a version: the maximum of `maxFailures`, so that it is reached also if each
/// node that failed is replaced.
const FAILED: usize = MAX_FAILURES as usize;

/// The offers to nodes of one variant and architecture.
#[derive(Default)]
pub(crate) struct Kind<'a> {
    /// The number of nodes that have reported their offers.
    reported: usize,
    lowest: Option<&'a Version>,
    offered: BTreeMap<&'a Version, usize>,
    /// The list that the last node was offered, and the number of nodes before it that were offered the same in a row.
    row: (&'a [Version], usize),
}

impl<'a> Kind<'a> {
    /// Returns whether a host is offered a version, or none has reported its offers.
    pub(crate) fn offers(&self, version: &Version) -> bool {
        self.reported == 0 || self.offered.contains_key(version)
    }

    /// Counts the offers to one more node. Most nodes are offered the same, which is counted at once.
    fn count(&mut self, updates: &'a OfferedUpdates) {
        self.reported += 1;
        let list = updates.available_versions.as_slice();
        if self.row.0 != list {
            self.count_row();
            self.row = (list, 0);
        }
        self.row.1 += 1;
        if let Some(chosen) = updates.chosen_version.as_ref().filter(|chosen| !list.contains(chosen)) {
            *self.offered.entry(chosen).or_default() += 1;
        }
    }

    fn count_row(&mut self) {
        let (list, nodes) = std::mem::take(&mut self.row);
        for version in list.iter().collect::<BTreeSet<_>>() {
            *self.offered.entry(version).or_default() += nodes;
        }
    }
}

/// The offers by variant and architecture.
pub(crate) type Kinds<'a> = BTreeMap<(&'a str, &'a str), Kind<'a>>;

fn new_version(key: &Key, now: Timestamp) -> KnownVersion {
    let (variant, arch, version) = key.clone();
    KnownVersion { version, variant, arch, first_seen: now, failed: Vec::new(), quarantined: None }
}

/// Returns the offers by variant and architecture.
pub(crate) fn kinds(view: &ClusterView) -> Kinds<'_> {
    let mut kinds = Kinds::new();
    for node in view.nodes.values().filter(|n| n.facts.labelled) {
        let Some(agent) = node.shadow.as_ref().map(|s| &s.status.agent) else { continue };
        let (Some(variant), Some(arch)) = (&agent.variant, &agent.arch) else { continue };
        let kind = kinds.entry((variant, arch)).or_default();
        kind.lowest = kind.lowest.into_iter().chain(&agent.current_version).min();
        if let Some(updates) = agent.updates.as_ref().filter(|u| u.refresh_failure.is_none()) {
            kind.count(updates);
        }
    }
    kinds.values_mut().for_each(Kind::count_row);
    kinds
}

/// Returns the versions for the operator's status.
pub(crate) fn known(
    view: &ClusterView,
    kinds: &Kinds<'_>,
    quarantine: &Quarantine,
    now: Timestamp,
) -> Vec<KnownVersion> {
    let before = view.operator.iter().flat_map(|o| &o.status.versions);
    let mut known: BTreeMap<Key, KnownVersion> = before
        .filter(|known| {
            let kind = kinds.get(&(known.variant.as_str(), known.arch.as_str()));
            // A version is removed when hosts that have refreshed do not offer it any more; if none has, it stays.
            known.quarantined.is_some()
                || !known.failed.is_empty()
                || kind.is_none_or(|kind| kind.offers(&known.version))
        })
        .map(|known| (of_known(known), known.clone()))
        .collect();
    for ((variant, arch), kind) in kinds {
        for (version, nodes) in &kind.offered {
            // A version that every node of the kind has passed already is not new.
            let news = kind.lowest.is_some_and(|lowest| *version > lowest);
            if news && *nodes >= enough(kind.reported) {
                let key = ((*variant).to_owned(), (*arch).to_owned(), Version::clone(version));
                known.entry(key.clone()).or_insert_with(|| new_version(&key, now));
            }
        }
    }
    for (key, cause) in &quarantine.failed {
        let entry = known.entry(key.clone()).or_insert_with(|| new_version(key, now));
        let mut failed: Vec<String> = cause.nodes.clone();
        failed.sort();
        failed.truncate(FAILED);
        entry.failed = failed;
    }
    for (key, cause) in &quarantine.spent {
        let entry = known.entry(key.clone()).or_insert_with(|| new_version(key, now));
        entry.quarantined.get_or_insert_with(|| Quarantined {
            reason: cause.reason.unwrap_or(FailureReason::Unknown),
            nodes: cause.nodes.iter().take(8).cloned().collect(),
            since: now,
        });
    }
    let mut known: Vec<KnownVersion> = known.into_values().collect();
    if known.len() > KEPT {
        // Failures are never dropped for want of room; then the newest versions matter most.
        let matters = |v: &KnownVersion| (v.quarantined.is_some(), !v.failed.is_empty(), v.version.clone());
        known.sort_by_cached_key(|version| std::cmp::Reverse(matters(version)));
        known.truncate(KEPT);
        known.sort_by(|a, b| (&a.variant, &a.arch, &a.version).cmp(&(&b.variant, &b.arch, &b.version)));
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NEW, OLD, cluster, node, t};
    use crate::view::NodeView;

    fn offered(name: &str, versions: Option<&[Version]>) -> NodeView {
        let mut node = node(name);
        let agent = &mut node.shadow.as_mut().unwrap().status.agent;
        agent.updates = versions.map(|versions| models::shadow::OfferedUpdates {
            chosen_version: versions.first().cloned(),
            available_versions: versions.to_vec(),
            ..models::shadow::OfferedUpdates::default()
        });
        node
    }

    #[test]
    fn version_age_starts_despite_one_node_without_new_version() {
        let new = || offered("new", Some(&[NEW, OLD]));
        let old = |name| offered(name, Some(&[OLD]));
        let silent = |name| offered(name, None);
        for (sentence, nodes, begins) in [
            ("the only node", vec![new()], true),
            ("the other one has never refreshed", vec![new(), silent("b")], true),
            ("the other one has reported before the release and never since", vec![new(), old("b")], true),
            ("both are offered it", vec![new(), offered("b", Some(&[NEW, OLD]))], true),
            ("none is offered it", vec![old("a"), old("b")], false),
            ("one of three", vec![new(), old("b"), old("c")], false),
            ("two of three", vec![new(), offered("b", Some(&[NEW])), old("c")], true),
            ("one of three, and one never reports", vec![new(), old("b"), silent("c")], true),
        ] {
            let (view, _) = cluster(nodes, &[]);
            let known = known(&view, &kinds(&view), &Quarantine::of(&view, 1), t(5));
            let since = known.iter().find(|known| known.version == NEW).map(|known| known.first_seen);
            assert_eq!(since, begins.then(|| t(5)), "{sentence}");
        }
    }

    #[test]
    fn version_is_new_while_any_node_runs_an_older_one() {
        for (sentence, running, new) in [
            ("the first one does", [OLD, NEW], true),
            ("the last one does", [NEW, OLD], true),
            ("all run it", [NEW, NEW], false),
        ] {
            let nodes = ["a", "b"].into_iter().zip(running).map(|(name, current)| {
                let mut node = offered(name, Some(&[NEW]));
                node.shadow.as_mut().unwrap().status.agent.current_version = Some(current);
                node
            });
            let (view, _) = cluster(nodes.collect(), &[]);
            let known = known(&view, &kinds(&view), &Quarantine::of(&view, 1), t(5));
            assert_eq!(known.iter().any(|known| known.version == NEW), new, "{sentence}");
        }
    }

    #[test]
    fn known_version_is_kept_while_offered_failed_or_unrefreshed() {
        let quarantined = Quarantined { reason: FailureReason::BootFellBack, nodes: vec![], since: t(0) };
        for (sentence, offers, failed, quarantined, stays) in [
            ("it is offered", Some(&[NEW][..]), vec![], None, true),
            ("it is offered no more", Some(&[OLD][..]), vec![], None, false),
            ("a node failed with it", Some(&[OLD][..]), vec!["a".to_owned()], None, true),
            ("it is quarantined", Some(&[OLD][..]), vec![], Some(quarantined), true),
            ("no host has refreshed", None, vec![], None, true),
        ] {
            let (mut view, _) = cluster(vec![offered("a", offers)], &[]);
            let key = ("aws-k8s-1.37".into(), "x86_64".into(), NEW);
            let stored = KnownVersion { failed, quarantined, ..new_version(&key, t(0)) };
            view.operator.as_mut().unwrap().status.versions = vec![stored];
            let known = known(&view, &kinds(&view), &Quarantine::of(&view, 1), t(5));
            assert_eq!(known.first().map(|known| known.first_seen), stays.then(|| t(0)), "{sentence}");
        }
    }

    #[test]
    fn failed_version_is_kept_when_list_is_full() {
        let (mut view, _) = cluster(vec![], &[]);
        let version = |patch: u64| {
            let key = ("aws-k8s-1.37".into(), "x86_64".into(), Version::new(2, 0, patch));
            new_version(&key, t(0))
        };
        let failed = KnownVersion { version: NEW, failed: vec!["a".into()], ..version(0) };
        let operator = view.operator.as_mut().unwrap();
        operator.status.versions = (0..200).map(version).chain([failed]).collect();
        let kept = known(&view, &kinds(&view), &Quarantine::of(&view, 2), t(1));
        assert_eq!(kept.len(), KEPT);
        assert!(kept.iter().any(|known| known.version == NEW && known.failed == ["a"]));
        let newest = Version::new(2, 0, 199);
        assert!(kept.iter().any(|known| known.version == newest), "of the others the newest are kept");
    }
}
