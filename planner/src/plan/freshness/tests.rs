//! Tables of the versions that count, and of the nodes that are behind.

use std::time::Duration;

use models::operator::Quarantined;
use models::shadow::OfferedUpdates;

use super::*;
use crate::fixtures::{NEW, OLD, cluster, fallen_back, node, seen, t};
use crate::policy::{Exclusion, Target};
use crate::view::NodeView;

const MIDDLE: Version = Version::new(1, 20, 3);

fn running(name: &str, version: Version, offers: &[Version]) -> NodeView {
    let mut node = node(name);
    let agent = &mut node.shadow.as_mut().unwrap().status.agent;
    agent.current_version = Some(version);
    agent.updates = Some(OfferedUpdates { available_versions: offers.to_vec(), ..OfferedUpdates::default() });
    node
}

/// The time since which node `a`, which runs [`OLD`], is behind, and the newest version that it lacks.
fn behind(policy: &Policy, known: &[KnownVersion], offers: &[Version]) -> Option<(Timestamp, Version)> {
    let (mut view, _) = cluster(vec![running("a", OLD, offers), running("b", NEW, &[])], &[]);
    view.operator.as_mut().unwrap().status.versions = known.to_vec();
    let fleet = freshness(&view, policy, t(1000));
    assert!(fleet.behind.iter().all(|(name, _)| *name == "a"), "b runs the newest version");
    fleet.behind.first().map(|(_, behind)| (behind.since, behind.newest.clone()))
}

#[test]
fn node_is_behind_since_first_version_that_it_lacks_and_may_take() {
    let both = || vec![seen(MIDDLE, 10), seen(NEW, 20)];
    let quarantined = Quarantined { since: t(30), ..fallen_back(&[]) };
    let held = Quarantined { contained: true, ..quarantined.clone() };
    let held = KnownVersion { quarantined: Some(held), ..seen(MIDDLE, 10) };
    let bad = KnownVersion { quarantined: Some(quarantined), ..seen(MIDDLE, 10) };
    let failed = KnownVersion { failed: vec!["c".into()], ..seen(MIDDLE, 10) };
    let with = |change: &dyn Fn(&mut Policy)| {
        let mut policy = Policy::default();
        change(&mut policy);
        policy
    };
    let any = Policy::default();
    let exact = with(&|p| p.target = Target::Exact(MIDDLE));
    let excluding = |text: &str| with(&|p| p.exclude = vec![Exclusion::parse(text).unwrap()]);
    let middle = excluding(&MIDDLE.to_string());
    let middle_here = excluding(&format!("{MIDDLE} on aws-k8s-1.37/x86_64"));
    let middle_elsewhere = excluding(&format!("{MIDDLE} on aws-k8s-1.37/aarch64"));
    let young = with(&|p| p.minimum_age = Duration::from_secs(1_000_000));
    let arm = KnownVersion { arch: "aarch64".into(), ..seen(MIDDLE, 10) };
    for (sentence, policy, known, offers, expected) in [
        ("no version is known", &any, vec![], vec![NEW], None),
        ("the version that it runs", &any, vec![seen(OLD, 1)], vec![OLD], None),
        ("one newer version", &any, vec![seen(NEW, 20)], vec![NEW], Some((20, NEW))),
        ("two: a further release makes it no fresher", &any, both(), vec![MIDDLE, NEW], Some((10, NEW))),
        ("the first one was withdrawn", &any, both(), vec![NEW], Some((20, NEW))),
        ("it was withdrawn after it failed", &any, vec![failed, seen(NEW, 20)], vec![NEW], Some((20, NEW))),
        ("it is quarantined", &any, vec![bad, seen(NEW, 20)], vec![MIDDLE, NEW], Some((20, NEW))),
        ("it is held for its kind alone", &any, vec![held, seen(NEW, 20)], vec![MIDDLE, NEW], Some((10, NEW))),
        ("it is excluded", &middle, both(), vec![MIDDLE, NEW], Some((20, NEW))),
        ("it is excluded for hosts like this one", &middle_here, both(), vec![MIDDLE, NEW], Some((20, NEW))),
        ("it is excluded for other hosts", &middle_elsewhere, both(), vec![MIDDLE, NEW], Some((10, NEW))),
        ("the other one is newer than the exact target", &exact, both(), vec![MIDDLE, NEW], Some((10, MIDDLE))),
        ("the wait for minimumAge counts", &young, vec![seen(NEW, 20)], vec![NEW], Some((20, NEW))),
        ("a version for another kind of host", &any, vec![arm], vec![MIDDLE], None),
    ] {
        let expected = expected.map(|(second, version)| (t(second), version));
        assert_eq!(behind(policy, &known, &offers), expected, "{sentence}");
    }
}

#[test]
fn node_is_not_behind_a_version_that_one_of_three_hosts_is_still_offered() {
    for (offers, behind) in [(&[][..], 0), (&[NEW][..], 3)] {
        let nodes = vec![running("a", OLD, &[NEW]), running("b", OLD, offers), running("c", OLD, &[])];
        let (mut view, policy) = cluster(nodes, &[]);
        view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 10)];
        assert_eq!(freshness(&view, &policy, t(1000)).behind.len(), behind, "{offers:?}");
    }
}

#[test]
fn target_counts_nodes_that_are_behind_for_no_longer() {
    let nodes = ["a", "b"].map(|name| running(name, OLD, &[NEW])).into_iter();
    let mut silent = node("silent");
    silent.shadow.as_mut().unwrap().status.agent.current_version = None;
    let (mut view, mut policy) = cluster(nodes.chain([running("c", NEW, &[]), silent]).collect(), &[]);
    view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
    for (sentence, target, second, within, percent, wake) in [
        ("no target", None, 50, None, None, None),
        ("within it", Some(100), 50, Some(3), Some(75), Some(100)),
        ("it has just passed", Some(100), 100, Some(1), Some(25), None),
        ("with none to spare", Some(0), 50, Some(1), Some(25), None),
    ] {
        policy.freshness_target = target.map(Duration::from_secs);
        let fleet = freshness(&view, &policy, t(second));
        assert_eq!((fleet.within, fleet.percent(), fleet.wake), (within, percent, wake.map(t)), "{sentence}");
        assert_eq!((fleet.total, fleet.behind.len()), (4, 2), "{sentence}");
        let status = fleet.status();
        assert_eq!((status.oldest_node.as_deref(), status.oldest_since), (Some("a"), Some(t(0))), "{sentence}");
    }
}

#[test]
fn node_lags_once_it_has_itself_been_behind_for_a_while() {
    const DAY: i64 = 24 * 3600;
    let now = 100 * DAY;
    // Each node by the days since which it has existed, with the days for which the version that it lacks has been known.
    let lags = |known: i64, nodes: &[Option<i64>], target: Option<i64>| {
        let nodes = nodes.iter().enumerate().map(|(number, days)| {
            let mut node = running(&format!("node-{number}"), OLD, &[NEW]);
            node.facts.created = days.map(|days| t(now - days * DAY));
            node
        });
        let (mut view, mut policy) = cluster(nodes.collect(), &[]);
        policy.freshness_target = target.map(|days| Duration::from_secs(u64::try_from(days * DAY).unwrap()));
        view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, now - known * DAY)];
        let fleet = freshness(&view, &policy, t(now));
        fleet.lagging_since
    };
    for (sentence, known, nodes, target, expected) in [
        ("an old node, an old version", 90, &[Some(200)][..], None, true),
        ("a node from an old image has just joined", 90, &[Some(0)][..], None, false),
        ("the same under a target", 90, &[Some(0)][..], Some(14), false),
        ("one joins each day, and none stays", 90, &[Some(0), Some(1), Some(2)][..], None, false),
        ("one of them stays", 90, &[Some(0), Some(7), Some(1)][..], None, true),
        ("each waits for the window of the next Sunday", 90, &[Some(0), Some(3), Some(6)][..], None, false),
        ("the same under a target that is longer than a week", 90, &[Some(0), Some(3), Some(7)][..], Some(8), false),
        ("one of them stays for longer than the target", 90, &[Some(0), Some(9), Some(1)][..], Some(8), true),
        ("a version that has just come out", 2, &[Some(200)][..], None, false),
        ("a target that is shorter than a week", 2, &[Some(200)][..], Some(1), true),
        ("a node that has just joined, under a short target", 90, &[Some(0)][..], Some(1), false),
        ("it is not known when it was created", 90, &[None][..], None, true),
        ("no node is behind", 90, &[][..], None, false),
    ] {
        assert_eq!(lags(known, nodes, target), expected.then(|| t(now - known * DAY)), "{sentence}");
    }
}

#[test]
fn passing_time_alone_changes_no_freshness_in_status() {
    let (mut view, mut policy) = cluster(vec![running("a", OLD, &[NEW])], &[]);
    policy.freshness_target = Some(Duration::from_secs(1000));
    view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 0)];
    let at = |second| crate::plan::plan(&view, &policy, t(second));
    let status = |second| at(second).status.unwrap().freshness.unwrap();
    assert_eq!((status(1), status(1).nodes_within_target), (status(999), Some(1)));
    assert_eq!([at(999), at(1000)].map(|made| made.lagging_since), [None, Some(t(0))], "metrics alone have it");
    assert!(at(1).wake.is_some_and(|wake| wake <= t(1000)), "the number changes then");
    assert_eq!(status(1000).nodes_within_target, Some(0));
}

#[test]
fn fleet_says_by_how_much_one_node_is_behind() {
    let (mut view, _) = cluster(vec![running("a", OLD, &[NEW]), running("b", NEW, &[])], &[]);
    view.operator.as_mut().unwrap().status.versions = vec![seen(NEW, 20)];
    let policy = Policy::default();
    let fleet = freshness(&view, &policy, t(1000));
    assert_eq!(fleet.of("a").map(|behind| behind.since), Some(t(20)));
    assert!(fleet.of("b").is_none());
}
