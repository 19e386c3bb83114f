//! The versions that hosts offer: the time since which they are known, and their quarantine. Kept in the operator's
//! status, so that an age survives restarts and deleted nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::{KnownVersion, MAX_FAILURES, Quarantined};
use models::reason::FailureReason;
use models::shadow::UPDATED;
use models::time::{after, signed};
use semver::Version;

use super::key::{Key, borrowed, key, of_known};
use super::requests::is_new;
use super::vouched::enough;
use crate::policy::Policy;
use crate::survey::quarantine::Quarantine;
use crate::view::ClusterView;

/// The number of versions that the operator's status keeps.
const KEPT: usize = 128;

/// The number of named nodes that failed on a version: the maximum of `maxFailures`, so that it is reached also if each
/// node that failed is replaced.
const FAILED: usize = MAX_FAILURES as usize;

/// The versions that some nodes are offered.
#[derive(Default)]
struct Offers<'a> {
    /// The number of these nodes.
    nodes: usize,
    versions: BTreeMap<&'a Version, usize>,
    /// The list that the last node was offered, and the number of nodes before it that were offered the same in a row.
    row: (&'a [Version], usize),
}

impl<'a> Offers<'a> {
    /// Counts the offers to one more node, one of which may not be in its list. Most nodes are offered the same, which is counted at once.
    fn count(&mut self, list: &'a [Version], other: Option<&'a Version>) {
        self.nodes += 1;
        if self.row.0 != list {
            self.count_row();
            self.row = (list, 0);
        }
        self.row.1 += 1;
        if let Some(other) = other.filter(|other| !list.contains(other)) {
            *self.versions.entry(other).or_default() += 1;
        }
    }

    fn count_row(&mut self) {
        let (list, nodes) = std::mem::take(&mut self.row);
        for version in list.iter().collect::<BTreeSet<_>>() {
            *self.versions.entry(version).or_default() += nodes;
        }
    }
}

/// The offers to nodes of one variant and architecture.
#[derive(Default)]
pub(crate) struct Kind<'a> {
    /// Offers to hosts that have refreshed.
    refreshed: Offers<'a>,
    /// Offers to the others before their refreshes failed, and the versions that they run.
    unconfirmed: Offers<'a>,
    /// The numbers of hosts that have refreshed and run a version that they are not offered.
    run: BTreeMap<&'a Version, usize>,
    lowest: Option<&'a Version>,
    /// The versions that hosts would take.
    chosen: BTreeSet<&'a Version>,
}

impl Kind<'_> {
    /// Returns whether a host is offered a version, and as many hosts as a version needs to be known are, or run it; or none has
    /// reported its offers. One host alone keeps no version that is withdrawn.
    pub(crate) fn offers(&self, version: &Version) -> bool {
        let count = |versions: &BTreeMap<&Version, usize>| versions.get(version).copied().unwrap_or(0);
        let offered = count(&self.refreshed.versions);
        let named = offered + count(&self.unconfirmed.versions) + count(&self.run);
        self.refreshed.nodes == 0 || (offered > 0 && named >= enough(self.refreshed.nodes))
    }

    /// Returns whether hosts may be offered a version once all have refreshed. Those that have, may be of a later wave; but a few others
    /// whose refreshes fail for ever keep no version that is withdrawn.
    fn may_offer(&self, version: &Version) -> bool {
        let unconfirmed = self.unconfirmed.versions.get(version).copied().unwrap_or(0);
        let needed = enough(self.refreshed.nodes + self.unconfirmed.nodes).max(self.refreshed.nodes);
        self.offers(version) || unconfirmed >= needed
    }
}

/// The offers by variant and architecture.
pub(crate) type Kinds<'a> = BTreeMap<(&'a str, &'a str), Kind<'a>>;

fn new_version(key: &Key, first_seen: Timestamp) -> KnownVersion {
    let (variant, arch, version) = key.clone();
    KnownVersion { version, variant, arch, first_seen, failed: Vec::new(), quarantined: None }
}

/// Returns the time since which a version counts as known that the status lacks. Where the resource was deleted and created again, a version that a
/// node of the kind was updated to was old enough when that began: otherwise a rollout in progress would wait for its age once more.
fn known_since(view: &ClusterView, policy: &Policy, own: &Key, now: Timestamp) -> Timestamp {
    let is_new = view.operator.as_ref().is_some_and(is_new);
    let began = view.nodes.values().filter(|_| is_new).filter_map(|node| {
        let last = node.record()?.last.as_ref().filter(|last| last.reason == UPDATED)?;
        // Policy leads back to a version of any age.
        let is_later = last.from.as_ref().is_some_and(|from| *from < last.version);
        (is_later && key(node, &last.version) == borrowed(own)).then_some(last.started)
    });
    began.min().map_or(now, |began| after(began, -signed(policy.minimum_age)))
}

/// Returns the offers by variant and architecture.
pub(crate) fn kinds(view: &ClusterView) -> Kinds<'_> {
    let mut kinds = Kinds::new();
    for node in view.nodes.values().filter(|node| node.facts.labelled) {
        let Some(agent) = node.shadow.as_ref().map(|s| &s.status.agent) else { continue };
        let (Some(variant), Some(arch)) = (&agent.variant, &agent.arch) else { continue };
        let kind = kinds.entry((variant, arch)).or_default();
        kind.lowest = kind.lowest.into_iter().chain(&agent.current_version).min();
        let list = agent.updates.as_ref().map_or(&[][..], |updates| &updates.available_versions);
        if let Some(updates) = agent.updates.as_ref().filter(|u| u.refresh_failure.is_none()) {
            let chosen = updates.chosen_version.as_ref();
            kind.refreshed.count(list, chosen);
            kind.chosen.extend(chosen);
            let runs = agent.current_version.as_ref();
            if let Some(version) = runs.filter(|runs| chosen != Some(*runs) && !list.contains(runs)) {
                *kind.run.entry(version).or_default() += 1;
            }
        } else {
            kind.unconfirmed.count(list, agent.current_version.as_ref());
        }
    }
    for kind in kinds.values_mut() {
        kind.refreshed.count_row();
        kind.unconfirmed.count_row();
    }
    kinds
}

/// Returns whether a host of its kind may be offered a version once all have refreshed. It may be where there is no host of the kind.
pub(crate) fn may_be_offered(kinds: &Kinds<'_>, known: &KnownVersion) -> bool {
    let kind = kinds.get(&(known.variant.as_str(), known.arch.as_str()));
    kind.is_none_or(|kind| kind.may_offer(&known.version))
}

/// Returns the versions for the operator's status.
pub(crate) fn known(
    view: &ClusterView,
    kinds: &Kinds<'_>,
    quarantine: &Quarantine,
    policy: &Policy,
    now: Timestamp,
) -> Vec<KnownVersion> {
    let new = |key: &Key| new_version(key, known_since(view, policy, key, now));
    let before = view.operator.iter().flat_map(|o| &o.status.versions);
    let mut known: BTreeMap<Key, KnownVersion> = before
        // A version is removed when hosts that have refreshed are not offered it any more; if none has, it stays.
        .filter(|known| known.quarantined.is_some() || !known.failed.is_empty() || may_be_offered(kinds, known))
        .map(|known| (of_known(known), known.clone()))
        .collect();
    for ((variant, arch), kind) in kinds {
        for (version, nodes) in &kind.refreshed.versions {
            // A version that every node of the kind has passed already is not new.
            let news = kind.lowest.is_some_and(|lowest| *version > lowest);
            if news && *nodes >= enough(kind.refreshed.nodes) {
                let key = ((*variant).to_owned(), (*arch).to_owned(), Version::clone(version));
                known.entry(key.clone()).or_insert_with(|| new(&key));
            }
        }
    }
    for (key, entry) in &mut known {
        // What nodes have resolved since by proving the version.
        entry.failed.retain(|_| quarantine.failed.contains_key(key));
        entry.quarantined.take_if(|_| !quarantine.spent.contains_key(key));
    }
    for (key, cause) in &quarantine.failed {
        let entry = known.entry(key.clone()).or_insert_with(|| new(key));
        let mut failed: Vec<String> = cause.nodes.clone();
        failed.sort();
        failed.truncate(FAILED);
        entry.failed = failed;
    }
    for (key, cause) in &quarantine.spent {
        let entry = known.entry(key.clone()).or_insert_with(|| new(key));
        entry.quarantined.get_or_insert_with(|| Quarantined {
            reason: cause.reason.unwrap_or(FailureReason::Unknown),
            nodes: cause.nodes.iter().take(8).cloned().collect(),
            since: now,
            contained: false,
        });
    }
    let known: Vec<KnownVersion> = known.into_values().collect();
    if known.len() > KEPT { most_needed(known, kinds, policy) } else { known }
}

/// Returns those of too many versions that are kept. A version that is not kept never gets old enough for `minimumAge`, so that each
/// kind has its share of the places: first for what policy lets its hosts take, and of these for what they choose; of the
/// others for the newest. Kinds without a host have what is left. Failures are never dropped for want of room.
fn most_needed(mut known: Vec<KnownVersion>, kinds: &Kinds<'_>, policy: &Policy) -> Vec<KnownVersion> {
    let needed = |known: &KnownVersion| {
        let version = &known.version;
        let excluded = policy.exclude.iter().any(|entry| entry.covers(&known.variant, &known.arch, version));
        let allowed = policy.target.allows(version) && !excluded;
        let kind = kinds.get(&(known.variant.as_str(), known.arch.as_str()));
        let chosen = kind.is_some_and(|kind| kind.chosen.contains(version));
        (allowed, chosen, version.clone())
    };
    known.sort_by_cached_key(|known| Reverse(needed(known)));
    let mut of_kind: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut ranked: Vec<_> = known
        .into_iter()
        .map(|known| {
            let place = of_kind.entry((known.variant.clone(), known.arch.clone())).or_default();
            *place += 1;
            let has_hosts = kinds.contains_key(&(known.variant.as_str(), known.arch.as_str()));
            (Reverse((known.quarantined.is_some(), !known.failed.is_empty(), has_hosts)), *place, known)
        })
        .collect();
    ranked.sort_by_key(|(first, place, _)| (*first, *place));
    let mut kept: Vec<KnownVersion> = ranked.into_iter().take(KEPT).map(|(.., known)| known).collect();
    kept.sort_by_cached_key(of_known);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NEW, OLD, cluster, fallen_back, node, seen, t, updated, with_policy};
    use crate::policy::{Exclusion, Target};
    use crate::survey::Survey;
    use crate::survey::want::Want;
    use crate::view::NodeView;
    use crate::wait::Wait;

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

    /// The time since which the new version is known, at 5 s.
    fn first_seen(view: &ClusterView, policy: &Policy) -> Option<Timestamp> {
        let known = known(view, &kinds(view), &Quarantine::of(view, 1), policy, t(5));
        known.iter().find(|known| known.version == NEW).map(|known| known.first_seen)
    }

    /// A node that was offered the new version, and whose refreshes fail since.
    fn failing(name: &str) -> NodeView {
        let mut node = offered(name, Some(&[NEW, OLD]));
        let updates = node.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
        updates.refresh_failure = Some("no route".into());
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
            let (view, policy) = cluster(nodes, &[]);
            assert_eq!(first_seen(&view, &policy), begins.then(|| t(5)), "{sentence}");
        }
    }

    #[test]
    fn version_that_a_node_was_updated_to_is_old_enough_once_the_resource_is_created_again() {
        for (sentence, is_created_again, reason, expected) in [
            ("a node was updated to it since 1 s", true, UPDATED, t(1 - 3600)),
            ("no node has proven it", true, "HealthUnknown", t(5)),
            ("it is released again", false, UPDATED, t(5)),
        ] {
            let mut first = offered("a", Some(&[NEW]));
            let mut record = updated();
            record.last.as_mut().unwrap().reason = reason.into();
            first.shadow.as_mut().unwrap().status.controller.record = Some(record);
            let (mut view, _) = cluster(vec![first, offered("b", Some(&[NEW, OLD]))], &[]);
            let policy = with_policy(&mut view, serde_json::json!({"version": {"minimumAge": "1h"}}));
            if is_created_again {
                view.operator.as_mut().unwrap().status = Default::default();
            }
            assert_eq!(first_seen(&view, &policy), Some(expected), "{sentence}");
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
            let (view, policy) = cluster(nodes.collect(), &[]);
            assert_eq!(first_seen(&view, &policy).is_some(), new, "{sentence}");
        }
    }

    #[test]
    fn known_version_is_kept_while_offered_failed_or_unrefreshed() {
        for (sentence, offers, failed, quarantined, stays) in [
            ("it is offered", Some(&[NEW][..]), vec![], None, true),
            ("it is offered no more", Some(&[OLD][..]), vec![], None, false),
            ("a node failed with it", Some(&[OLD][..]), vec!["a".to_owned()], None, true),
            ("it is quarantined", Some(&[OLD][..]), vec![], Some(fallen_back(&[])), true),
            ("no host has refreshed", None, vec![], None, true),
        ] {
            let (mut view, policy) = cluster(vec![offered("a", offers)], &[]);
            let stored = KnownVersion { failed, quarantined, ..seen(NEW, 0) };
            view.operator.as_mut().unwrap().status.versions = vec![stored];
            let known = known(&view, &kinds(&view), &Quarantine::of(&view, 1), &policy, t(5));
            assert_eq!(known.first().map(|known| known.first_seen), stays.then(|| t(0)), "{sentence}");
        }
    }

    #[test]
    fn version_that_one_of_three_hosts_is_still_offered_is_known_no_more() {
        let old = |name: &str| offered(name, Some(&[OLD]));
        let new = |name: &str| offered(name, Some(&[NEW, OLD]));
        let mut updated = old("b");
        updated.shadow.as_mut().unwrap().status.agent.current_version = Some(NEW);
        for (sentence, other, stays) in [
            ("another one is, too", new("b"), true),
            ("another one runs it", updated, true),
            ("no other one is", old("b"), false),
        ] {
            let (mut view, policy) = cluster(vec![new("a"), other, old("c")], &[]);
            view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
            let survey = Survey::of(&view, &policy, t(5));
            let since = survey.known.iter().find(|known| known.version == NEW).map(|known| known.first_seen);
            assert_eq!(since, stays.then(|| t(0)), "{sentence}");
            let wait = survey.find("c").unwrap().want.clone().unwrap().version.unwrap_err();
            let expected = if stays { Wait::WaveNotCome { version: NEW } } else { Wait::UpToDate };
            assert_eq!(wait, expected, "{sentence}");
        }
    }

    /// Two of four nodes were offered the version, and the first nodes to refresh after an outage are of a later wave.
    #[test]
    fn age_of_a_version_is_kept_while_nodes_that_were_offered_it_have_not_refreshed() {
        let old = |name: &str| offered(name, Some(&[OLD]));
        let new = |name: &str| offered(name, Some(&[NEW, OLD]));
        let unrefreshed = |name: &str| offered(name, None);
        let updated = |name: &str| {
            let mut node = unrefreshed(name);
            node.shadow.as_mut().unwrap().status.agent.current_version = Some(NEW);
            node
        };
        let late = || [old("c"), old("d")];
        for (sentence, early, stays) in [
            ("neither has refreshed since the outage", vec![failing("a"), failing("b")], true),
            ("one has, and is offered it", vec![new("a"), failing("b")], true),
            ("one runs it, and has not refreshed since its boot", vec![failing("a"), updated("b")], true),
            ("both run it", vec![updated("a"), updated("b")], true),
            ("one has, and it is withdrawn; the other one fails for ever", vec![old("a"), failing("b")], false),
            ("both have, and it is withdrawn", vec![old("a"), old("b")], false),
            ("both are gone", vec![], false),
            ("nothing is known of both", vec![unrefreshed("a"), unrefreshed("b")], false),
        ] {
            let (mut view, policy) = cluster(early.into_iter().chain(late()).collect(), &[]);
            view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
            assert_eq!(first_seen(&view, &policy), stays.then(|| t(0)), "{sentence}");
        }
    }

    #[test]
    fn nodes_whose_refreshes_fail_for_ever_keep_no_withdrawn_version_once_more_others_have_refreshed() {
        let failing = |index: usize| failing(&format!("f{index}"));
        for (sentence, fail, refreshed, stays) in [
            ("as many have refreshed", 2, 2, true),
            ("more have refreshed", 2, 3, false),
            ("most have not refreshed yet", 50, 10, true),
            ("most have refreshed", 10, 50, false),
        ] {
            let others = (0..refreshed).map(|index| offered(&format!("r{index}"), Some(&[OLD])));
            let (mut view, policy) = cluster((0..fail).map(failing).chain(others).collect(), &[]);
            view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
            assert_eq!(first_seen(&view, &policy).is_some(), stays, "{sentence}");
        }
    }

    #[test]
    fn host_whose_refreshes_fail_for_ever_keeps_no_withdrawn_version_alone_of_three() {
        let mut other = failing("b");
        let updates = other.shadow.as_mut().unwrap().status.agent.updates.as_mut().unwrap();
        updates.available_versions = vec![OLD];
        let (mut view, policy) = cluster(vec![failing("a"), other, offered("c", Some(&[OLD]))], &[]);
        view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
        assert_eq!(first_seen(&view, &policy), None);
    }

    #[test]
    fn host_that_runs_a_version_which_it_is_offered_counts_once() {
        let mut updated = offered("a", Some(&[Version::new(1, 21, 0), NEW]));
        updated.shadow.as_mut().unwrap().status.agent.current_version = Some(NEW);
        let others = ["b", "c"].map(|name| offered(name, Some(&[OLD])));
        let (view, _) = cluster(others.into_iter().chain([updated]).collect(), &[]);
        assert!(!kinds(&view)[&("aws-k8s-1.37", "x86_64")].offers(&NEW), "one of three");
    }

    /// The first hosts to refresh after an outage are of a later wave than those whose locks have the version.
    #[test]
    fn lock_and_reasons_are_kept_while_nodes_that_were_offered_the_version_have_not_refreshed() {
        let late = ["c", "d"].map(|name| offered(name, Some(&[OLD])));
        let early = ["a", "b"].map(failing);
        let (mut view, _) = cluster(early.into_iter().chain(late).collect(), &[]);
        let version = serde_json::json!({"target": ">=1.20.0, <2.0.0", "minimumAge": "1h"});
        let policy = with_policy(&mut view, serde_json::json!({"version": version}));
        view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
        let survey = Survey::of(&view, &policy, t(7200));
        let want = |name: &str| survey.find(name).unwrap().want.clone().unwrap();
        let fails = Wait::RefreshFails { message: "no route".into() };
        assert_eq!(want("a"), Want { pin: Some(NEW), version: Err(fails) });
        assert_eq!(want("c"), Want { pin: Some(OLD), version: Err(Wait::WaveNotCome { version: NEW }) });
    }

    #[test]
    fn failed_version_is_kept_when_list_is_full() {
        let (mut view, policy) = cluster(vec![], &[]);
        let version = |patch: u64| seen(Version::new(2, 0, patch), 0);
        let failed = KnownVersion { version: NEW, failed: vec!["a".into()], ..version(0) };
        let operator = view.operator.as_mut().unwrap();
        operator.status.versions = (0..200).map(version).chain([failed]).collect();
        let kept = known(&view, &kinds(&view), &Quarantine::of(&view, 2), &policy, t(1));
        assert_eq!(kept.len(), KEPT);
        assert!(kept.iter().any(|known| known.version == NEW && known.failed == ["a"]));
        let newest = Version::new(2, 0, 199);
        assert!(kept.iter().any(|known| known.version == newest), "of the others the newest are kept");
    }

    /// The hosts of several kinds are offered many versions, as those of a fleet that has not been updated for long are. One kind
    /// gets no releases any more.
    #[test]
    fn version_that_policy_leads_to_gets_old_however_many_are_known() {
        const KINDS: u64 = 8;
        let v = |minor| Version::new(1, minor, 0);
        let line = [Version::new(1, 20, 6), NEW];
        let list: Vec<Version> = (21..50).rev().map(v).chain(line.clone()).collect();
        let host = |kind: u64, chosen: &Version| {
            let ended = kind == KINDS;
            let mut node = offered(&format!("a{kind}"), Some(if ended { &line } else { &list }));
            node.facts.os_image = format!("Bottlerocket OS 1.20.0 (aws-k8s-1.{kind})");
            let agent = &mut node.shadow.as_mut().unwrap().status.agent;
            agent.variant = Some(format!("aws-k8s-1.{kind}"));
            agent.updates.as_mut().unwrap().chosen_version = Some(chosen.clone()).filter(|_| !ended);
            node
        };
        let parse = |text: &str| Target::parse(text).unwrap();
        let excluded = |text: &str| Exclusion::parse(text).unwrap();
        let of = |target| Policy { target, exclude: ["1.49", "1.48"].map(excluded).to_vec(), ..Policy::default() };
        for (sentence, policy, chosen, leads_to) in [
            ("the newest", of(Target::Latest), v(47), v(47)),
            ("what hosts choose", of(Target::Latest), v(21), v(21)),
            ("an older line", of(parse("1.20")), v(49), Version::new(1, 20, 6)),
            ("one version", of(parse("1.20.5")), v(49), NEW),
        ] {
            let (mut view, _) = cluster((1..=KINDS).map(|kind| host(kind, &chosen)).collect(), &[]);
            let of_gone_kind =
                |patch| KnownVersion { variant: "aws-k8s-0.1".into(), ..seen(Version::new(9, 0, patch), 0) };
            view.operator.as_mut().unwrap().status.versions = (0..100).map(of_gone_kind).collect();
            for second in [0, 100] {
                let found = known(&view, &kinds(&view), &Quarantine::of(&view, 1), &policy, t(second));
                assert!(found.len() == KEPT && found.is_sorted_by_key(of_known), "{sentence}");
                assert!(found.iter().all(|known| known.variant != "aws-k8s-0.1"), "{sentence}: of hosts that are gone");
                for kind in 1..=KINDS {
                    let wanted = if kind == KINDS { &line[usize::from(leads_to == NEW)] } else { &leads_to };
                    let variant = format!("aws-k8s-1.{kind}");
                    let age = found.iter().find(|known| known.variant == variant && known.version == *wanted);
                    assert_eq!(age.map(|known| known.first_seen), Some(t(0)), "{sentence}: {variant} at {second}");
                }
                view.operator.as_mut().unwrap().status.versions = found;
            }
        }
    }
}
