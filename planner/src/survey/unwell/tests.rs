//! Tables of the times in which the cluster is unwell: which nodes are compared, and how long clocks stop.

use models::shadow::{HostState, Step};

use super::*;
use crate::fixtures::*;

const DAY: i64 = 24 * 60 * 60;

fn span(since: i64, until: Option<i64>) -> UnwellSpan {
    UnwellSpan {
        since: t(since),
        until: until.map(t),
        compared_since: t(since),
        ill: 2,
        compared: 3,
        nodes: Vec::new(),
    }
}

/// An attempt that began at 0 s and may take 100 s.
#[test]
fn deadline_is_later_by_the_times_in_which_clocks_stop() {
    for (sentence, spans, now, expected) in [
        ("never unwell", vec![], 50, 100),
        ("it was over before", vec![span(-50, Some(0))], 50, 100),
        ("for half a minute", vec![span(50, Some(80))], 90, 130),
        ("twice", vec![span(10, Some(20)), span(105, Some(110))], 120, 115),
        ("only after the end", vec![span(200, Some(300))], 400, 100),
        ("from the end on", vec![span(100, Some(200))], 400, 100),
        ("it goes on since before the end, which moves", vec![span(50, None)], 80, 140),
        ("it goes on since the end", vec![span(100, None)], 110, 100),
        ("it goes on since after the end", vec![span(150, None)], 160, 100),
        ("it has gone on for a day", vec![span(50, None)], 50 + 2 * DAY, 100 + DAY),
    ] {
        let unwell = Unwell { spans, now: t(now), ..Unwell::default() };
        assert_eq!(unwell.deadline(t(0), Duration::from_secs(100)), t(expected), "{sentence}");
    }
}

#[test]
fn time_that_is_over_is_recorded_for_a_day() {
    for (now, kept) in [(DAY - 1, 1), (DAY, 0)] {
        let (mut view, _) = cluster(vec![node("a")], &[]);
        view.operator.as_mut().unwrap().status.unwell = vec![span(-10, Some(0))];
        assert_eq!(Unwell::of(&view, t(now)).spans.len(), kept, "{now} s");
    }
}

#[test]
fn node_has_fallen_ill_if_it_did_after_the_beginning_and_within_a_day() {
    for (since, now, ill) in [(10, 100, 0), (11, 100, 1), (11, 11 + DAY - 1, 1), (11, 11 + DAY, 0)] {
        let mut a = node("a");
        (a.facts.ready, a.facts.not_ready_since) = (false, Some(t(since)));
        let (view, _) = cluster(vec![a, node("b")], &[]);
        let found = Comparison::of(&view, &BTreeSet::new(), t(10), t(now));
        assert_eq!((found.well, found.ill.len()), (1, ill), "ill since {since} s, at {now} s");
    }
}

#[test]
fn nodes_without_the_operator_are_compared_unless_they_come_or_go() {
    type Change = fn(&mut NodeFacts);
    let case = |sentence: &str, compared: usize, change: Change| {
        let (mut view, _) = cluster(vec![], &[]);
        let mut facts = node("a").facts;
        change(&mut facts);
        view.unmanaged.insert("a".into(), facts);
        assert_eq!(comparison_nodes(&view).count(), compared, "{sentence}");
    };
    case("it stays", 1, |_| {});
    case("it is deleted", 0, |facts| facts.deleting = true);
    case("an autoscaler removes it", 0, |facts| facts.removed_by = Some("autoscaler".into()));
    case("it joins", 0, |facts| facts.joining = true);
    case("its machine is shut down", 0, |facts| (facts.ready, facts.taints) = (false, vec![SHUT_DOWN.into()]));
}

#[test]
fn rollout_of_the_version_that_ill_nodes_run_does_not_cure_them() {
    let (variant, arch) = ("aws-k8s-1.37".to_owned(), "x86_64".to_owned());
    let pinned = Target::parse("1.0.0").unwrap();
    for (sentence, runs, target, urgent, cured) in [
        ("an urgent rollout of a later version", OLD, &Target::Latest, true, true),
        ("one that is not urgent", OLD, &Target::Latest, false, false),
        ("an urgent rollout of the same version", NEW, &Target::Latest, true, false),
        ("of the same version, which policy does not allow", NEW, &pinned, false, false),
    ] {
        let runs = BTreeSet::from([(variant.clone(), arch.clone(), runs)]);
        let unwell = Unwell { runs, ..Unwell::default() };
        let node = node("a");
        assert_eq!(unwell.is_cured_by(target, &node, &NEW, urgent), cured, "{sentence}");
    }
}

/// Nodes of a version, of which so many are well, and so many are not Ready since 10 s.
fn running(version: &Version, well: usize, ill: usize) -> impl Iterator<Item = NodeView> {
    (0..well + ill).map(move |number| {
        let mut node = node(&format!("{version}-{number}"));
        node.facts.os_image = format!("Bottlerocket OS {version} (aws-k8s-1.37)");
        if number >= well {
            (node.facts.ready, node.facts.not_ready_since) = (false, Some(t(10)));
        }
        node
    })
}

#[test]
fn version_is_good_where_most_of_its_nodes_are_well_and_the_others_are_not() {
    for (sentence, (well, ill), (others_well, others_ill), good) in [
        ("most are well", (2, 1), (0, 2), true),
        ("as many are well as are not", (2, 2), (0, 2), false),
        ("most are not", (2, 3), (0, 2), false),
        ("most of the others are well", (2, 0), (3, 1), false),
        ("there are no others", (2, 0), (0, 0), false),
    ] {
        let nodes = running(&NEW, well, ill).chain(running(&OLD, others_well, others_ill)).collect();
        let (view, _) = cluster(nodes, &[]);
        let found = good_versions(&view, t(0), t(100));
        assert_eq!(found.iter().any(|(_, _, version)| *version == NEW), good, "{sentence}");
    }
}

/// Two of the three other nodes are not Ready.
#[test]
fn clocks_stop_for_an_attempt_that_has_taken_its_node_out_of_service() {
    for (step, stop) in [(Step::Staged, false), (Step::Draining, true)] {
        let nodes = running(&OLD, 1, 2).chain([at("a", step, 0, HostState::StagedUpdate)]).collect();
        let (view, _) = cluster(nodes, &[]);
        let unwell = Unwell::of(&view, t(100));
        assert_eq!((unwell.open().is_some(), unwell.of_starts().is_some()), (stop, true), "{step:?}");
    }
}

#[test]
fn well_nodes_that_a_simulation_leaves_out_are_compared() {
    for (left_out, is_unwell) in [(0, true), (2, false)] {
        let (mut view, _) = cluster(running(&OLD, 2, 3).collect(), &[]);
        view.left_out = left_out;
        assert_eq!(Unwell::of(&view, t(100)).of_starts().is_some(), is_unwell, "{left_out} left out");
    }
}
