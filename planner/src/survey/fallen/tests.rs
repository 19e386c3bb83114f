//! Tables of proven nodes that are not Ready any more, or under pressure: which of them are evidence.

use models::operator::RolloutRecord;
use models::reason::Proof;
use models::shadow::{NodeProof, Progress, Record, Step};

use super::*;
use crate::fixtures::*;
use crate::view::OperatorFacts;

/// A rollout with so many nodes that have proven it, and so many without it, of which the first few are not Ready.
fn cluster_of((proven, fallen): (usize, usize), (others, ill): (usize, usize)) -> (ClusterView, ActiveRollout) {
    let rollout = ActiveRollout::new(NEW, "aws-k8s-1.37".into(), "x86_64".into(), t(0));
    let mut operator = OperatorFacts::default();
    operator.status.active_rollouts = vec![rollout.clone()];
    let mut view = ClusterView { operator: Some(operator), ..ClusterView::default() };
    let all = (0..proven).map(|n| (format!("new-{n}"), true, n < fallen));
    for (name, is_new, is_down) in all.chain((0..others).map(|n| (format!("old-{n}"), false, n < ill))) {
        let mut node = node(&name);
        let version = if is_new { NEW } else { OLD };
        node.facts.os_image = format!("Bottlerocket OS {version} (aws-k8s-1.37)");
        if is_down {
            (node.facts.ready, node.facts.not_ready_since) = (false, Some(t(100)));
        }
        let status = &mut node.shadow.as_mut().unwrap().status;
        (status.agent.variant, status.agent.arch) = (Some("aws-k8s-1.37".into()), Some("x86_64".into()));
        let proof = NodeProof { version: NEW, rollout: 0, attempt: 1, proof: Proof::Proven, reason: "Updated".into() };
        status.controller.record = Some(Record { proof: is_new.then_some(proof), ..Record::default() });
        view.nodes.insert(name, node);
    }
    (view, rollout)
}

#[test]
fn proven_nodes_that_are_down_count_without_an_end_where_fewer_of_the_others_are() {
    for (sentence, new, old, expected) in [
        ("all are well", (10, 0), (10, 0), 0),
        ("one alone", (10, 1), (10, 0), 0),
        ("two, and none of the others", (10, 2), (10, 0), 2),
        ("as large a share of the others", (10, 2), (5, 1), 0),
        ("half of it", (10, 4), (5, 1), 0),
        ("a smaller one", (10, 5), (5, 1), 5),
        ("one in twenty", (40, 2), (10, 0), 2),
        ("fewer", (41, 2), (10, 0), 0),
        ("there are no others", (10, 3), (0, 0), 0),
    ] {
        let (view, _) = cluster_of(new, old);
        assert_eq!(suspects(&view, t(200)).len(), expected, "{sentence}");
    }
    let (mut view, _) = cluster_of((10, 2), (1, 0));
    let day = 24 * 60 * 60;
    assert_eq!([99 + day, 100 + day].map(|at| suspects(&view, t(at)).len()), [2, 0], "for a day");
    view.nodes.remove("old-0");
    assert_eq!(suspects(&view, t(200)).len(), 0, "no node is left to be updated");
}

#[test]
fn proven_node_has_fallen_once_it_is_not_ready_for_a_minute() {
    let (mut view, rollout) = cluster_of((2, 1), (1, 1));
    let (nodes, wake) = (vec!["new-0".to_owned()], Some(t(280)));
    assert_eq!(of(&view, &rollout, t(159)), Fallen { wake: Some(t(160)), ..Fallen::default() });
    assert_eq!(of(&view, &rollout, t(160)), Fallen { nodes, wake, lost: vec![] });
    view.nodes.get_mut("new-0").unwrap().facts.hold = Some(crate::hold::Hold::default());
    assert_eq!(of(&view, &rollout, t(160)), Fallen::default(), "it is held");
}

#[test]
fn proof_of_a_fallen_node_counts_for_three_minutes_where_others_are_well() {
    for (sentence, new, old, lost) in [
        ("the only one, after three minutes", (1, 1), (9, 0), 1),
        ("one in twenty", (20, 1), (9, 0), 1),
        ("fewer", (21, 1), (9, 0), 0),
        ("as many of the others are not Ready", (10, 10), (10, 10), 0),
    ] {
        let (mut view, rollout) = cluster_of(new, old);
        assert_eq!([279, 280].map(|at| of(&view, &rollout, t(at)).lost.len()), [0, lost], "{sentence}");
        let fallen = view.nodes.get_mut("new-0").unwrap();
        fallen.facts.not_ready_since = None;
        let left = of(&view, &rollout, t(280)).lost;
        assert!(!left.contains(&"new-0".to_owned()), "{sentence}: since when is not known");
    }
}

/// Has the nodes of this name, of those that are not Ready, Ready and under pressure since then.
fn press(view: &mut ClusterView, prefix: &str, since: i64) {
    for node in view.nodes.values_mut().filter(|node| !node.facts.ready && node.facts.name.starts_with(prefix)) {
        let facts = &mut node.facts;
        (facts.ready, facts.not_ready_since) = (true, None);
        (facts.pressure, facts.pressure_since) = (Some("MemoryPressure".into()), Some(t(since)));
    }
}

#[test]
fn proof_of_a_node_under_pressure_counts_for_ten_minutes_where_others_are_well() {
    for (sentence, new, old, since, drained, lost) in [
        ("the only one", (1, 1), (9, 0), 100, false, 1),
        ("one in twenty", (20, 1), (9, 0), 100, false, 1),
        ("fewer", (21, 1), (9, 0), 100, false, 0),
        ("as many of the others", (10, 10), (10, 10), 100, false, 0),
        ("half as large a share of the others", (10, 4), (5, 1), 100, false, 0),
        ("since before the rollout", (1, 1), (9, 0), -1, false, 0),
        ("the only other one is drained, and its pods are elsewhere", (1, 1), (1, 0), 100, true, 0),
    ] {
        let (mut view, rollout) = cluster_of(new, old);
        press(&mut view, "", since);
        if drained {
            let other = view.nodes.get_mut("old-0").unwrap().shadow.as_mut().unwrap();
            other.status.controller.progress = Some(progress(Step::Draining, 0));
        }
        let [before, after] = [since + 599, since + 600].map(|at| of(&view, &rollout, t(at)));
        assert_eq!((before.lost.len(), after.lost.len()), (0, lost), "{sentence}");
        assert_eq!(before.wake, (since > 0).then(|| t(700)), "{sentence}");
        assert_eq!(after.nodes.len() + suspects(&view, t(since + 600)).len(), 0, "{sentence}: it is in service");
    }
}

#[test]
fn nodes_under_pressure_excuse_none_that_is_not_ready_and_are_counted_with_those_that_are_not() {
    let (mut view, rollout) = cluster_of((3, 3), (10, 5));
    press(&mut view, "old", 100);
    assert_eq!(of(&view, &rollout, t(700)).lost.len(), 3, "the others are Ready");
    let (mut view, rollout) = cluster_of((40, 2), (9, 0));
    press(&mut view, "new-0", 100);
    assert_eq!(of(&view, &rollout, t(700)).lost, ["new-0", "new-1"], "two of forty are not well");
}

/// Three of five nodes that have proven the version are not well, or were not.
#[test]
fn others_that_are_ready_and_not_to_get_the_version_show_that_a_lost_proof_is_evidence() {
    type Change = fn(&mut ClusterView);
    fn each(view: &mut ClusterView, change: fn(&mut NodeView)) {
        let others = view.nodes.iter_mut().filter(|(name, _)| name.starts_with("old"));
        others.for_each(|(_, node)| change(node));
    }
    fn hold(view: &mut ClusterView) {
        each(view, |node| node.facts.hold = Some(crate::hold::Hold::default()));
    }
    fn unlabel(view: &mut ClusterView) {
        each(view, |node| node.facts.labelled = false);
    }
    fn leave(view: &mut ClusterView, arch: &str) {
        let labels: BTreeMap<String, String> = [("kubernetes.io/arch".to_owned(), arch.to_owned())].into();
        for number in 0..3 {
            let facts = view.nodes.remove(&format!("old-{number}")).unwrap().facts;
            let facts = NodeFacts { labelled: false, labels: std::sync::Arc::new(labels.clone()), ..facts };
            view.unmanaged.insert(facts.name.clone(), facts);
        }
    }
    let remove: Change = |view| each(view, |node| node.facts.removed_by = Some("ToBeDeleted".into()));
    let of_other_kind: Change = |view| {
        unlabel(view);
        each(view, |node| node.shadow.as_mut().unwrap().status.agent.arch = Some("aarch64".into()));
    };
    let cases: [(&str, Change, bool); 7] = [
        ("the others are all held", hold, true),
        ("the others have no label", unlabel, true),
        ("the others have no label and no shadow", |view| leave(view, "amd64"), true),
        ("the others are all being removed", remove, true),
        ("the others have no label and are of another kind", of_other_kind, false),
        ("the others have no label and no shadow, and are of another kind", |view| leave(view, "arm64"), false),
        ("there are no others", |view| view.nodes.retain(|name, _| name.starts_with("new")), false),
    ];
    for (sentence, change, is_evidence) in cases {
        let (mut view, mut rollout) = cluster_of((5, 3), (3, 0));
        change(&mut view);
        let lost = if is_evidence { 3 } else { 0 };
        let found = (of(&view, &rollout, t(280)).lost.len(), suspects(&view, t(280)).len());
        assert_eq!(found, (lost, lost), "{sentence}");
        press(&mut view, "", 100);
        assert_eq!(of(&view, &rollout, t(700)).lost.len(), lost, "{sentence}: they are under pressure");
        for node in view.nodes.values_mut().filter(|node| !node.facts.is_well()) {
            (node.facts.pressure, node.facts.pressure_since) = (None, None);
            node.facts.ready_since = Some(t(160));
        }
        rollout.step_done = Some(t(50));
        let again = ready_again(&view, &rollout, t(200));
        assert_eq!(again.is_some(), is_evidence, "{sentence}: they are Ready again");
    }
    let cases: [(&str, Change, usize); 3] = [
        ("one of the others is not Ready", |_| {}, 0),
        ("the same, and they are held: it may be powered off", hold, 3),
        ("the same, and they have no label", unlabel, 3),
    ];
    for (sentence, change, lost) in cases {
        let (mut view, rollout) = cluster_of((5, 3), (3, 1));
        change(&mut view);
        assert_eq!(of(&view, &rollout, t(280)).lost.len(), lost, "{sentence}");
    }
    const DAY: i64 = 24 * 60 * 60;
    let cases: [(&str, Change, i64, usize); 4] = [
        ("a day after the rollout has ended", hold, 100 - DAY, 3),
        ("later, as machines fail", hold, 99 - DAY, 0),
        ("later, and they have no label and no shadow", |view| leave(view, "amd64"), 99 - DAY, 0),
        ("later, but the others are to get the version", |_| {}, 99 - DAY, 3),
    ];
    for (sentence, change, ended, lost) in cases {
        let (mut view, mut rollout) = cluster_of((5, 3), (3, 0));
        change(&mut view);
        rollout.record = Some(RolloutRecord { number: 0, ended: Some(t(ended)), ..recorded(0) });
        assert_eq!(of(&view, &rollout, t(280)).lost.len(), lost, "{sentence}");
    }
}

#[test]
fn others_that_were_not_ready_before_the_rollout_or_long_before_excuse_no_proven_node() {
    const DAY: i64 = 24 * 60 * 60;
    for (sentence, since, fell, excused) in [
        ("since before it", -1, 100, false),
        ("since it began", 0, 100, true),
        ("since a day before the proven ones", 100, 100 + DAY, true),
        ("since more than a day before the proven ones", 99, 100 + DAY, false),
    ] {
        let (mut view, rollout) = cluster_of((3, 3), (10, 5));
        for node in view.nodes.values_mut().filter(|node| !node.facts.ready) {
            let at = if node.facts.name.starts_with("old") { since } else { fell };
            node.facts.not_ready_since = Some(t(at));
        }
        let lost = if excused { 0 } else { 3 };
        assert_eq!(of(&view, &rollout, t(fell + 180)).lost.len(), lost, "{sentence}");
        assert_eq!(suspects(&view, t(fell + 180)).len(), lost, "{sentence}");
    }
    let (mut view, rollout) = cluster_of((3, 3), (10, 5));
    view.nodes.get_mut("new-2").unwrap().facts.not_ready_since = Some(t(100 + 2 * DAY));
    let lost = of(&view, &rollout, t(280 + 2 * DAY)).lost;
    assert_eq!(lost.len(), 0, "two of the proven ones have been down for as long");
}

/// Both nodes that have proven the version are not Ready, in a zone with six of the twenty without it.
#[test]
fn zone_excuses_its_proven_nodes_where_half_of_its_others_are_not_ready() {
    for (ill, lost) in [(2, 2), (3, 0)] {
        let (mut view, rollout) = cluster_of((2, 2), (20, ill));
        for name in ["new-0", "new-1", "old-0", "old-1", "old-2", "old-3", "old-4", "old-5"] {
            let labels: BTreeMap<String, String> = [(models::names::ZONE_LABEL.to_owned(), "a".to_owned())].into();
            view.nodes.get_mut(name).unwrap().facts.labels = std::sync::Arc::new(labels);
        }
        assert_eq!(of(&view, &rollout, t(280)).lost.len(), lost, "{ill} of six");
    }
}

#[test]
fn other_node_that_is_on_its_way_shows_whether_a_lost_proof_is_evidence() {
    for (sentence, step, permit_issued, ready, lost) in [
        ("it is drained", Step::Draining, false, true, 1),
        ("it is drained, and is not Ready either", Step::Draining, false, false, 0),
        ("its reboot is permitted", Step::Rebooting, true, true, 1),
        ("it goes down by its permit, and no other is left", Step::Rebooting, true, false, 0),
    ] {
        let (mut view, rollout) = cluster_of((1, 1), (1, usize::from(!ready)));
        let other = view.nodes.get_mut("old-0").unwrap().shadow.as_mut().unwrap();
        other.status.controller.progress = Some(Progress { permit_issued, ..progress(step, 0) });
        assert_eq!(of(&view, &rollout, t(280)).lost.len(), lost, "{sentence}");
    }
    let (mut view, rollout) = cluster_of((1, 1), (2, 1));
    let other = view.nodes.get_mut("old-0").unwrap().shadow.as_mut().unwrap();
    other.status.controller.progress = Some(progress(Step::Draining, 0));
    let lost = of(&view, &rollout, t(280)).lost;
    assert_eq!(lost.len(), 0, "one of two is drained, and is not Ready either");
    for (ill, lost) in [(3, 6), (4, 0)] {
        let (mut view, rollout) = cluster_of((6, 6), (4, ill));
        for number in 0..3 {
            let other = view.nodes.get_mut(&format!("old-{number}")).unwrap().shadow.as_mut().unwrap();
            other.status.controller.progress = Some(Progress { permit_issued: true, ..progress(Step::Rebooting, 0) });
        }
        let found = of(&view, &rollout, t(280)).lost.len();
        assert_eq!(found, lost, "three go down by their permits, and the last one shows it: {ill} are not Ready");
    }
}

#[test]
fn proven_nodes_that_are_ready_again_count_as_those_that_are_not_ready() {
    for (sentence, new, old, counts) in [
        ("the only one", (1, 1), (9, 0), true),
        ("one in twenty", (20, 1), (9, 0), true),
        ("fewer", (21, 1), (9, 0), false),
        ("as many of the others", (10, 10), (10, 10), false),
        ("half as large a share of the others", (10, 4), (5, 1), false),
    ] {
        let (mut view, mut rollout) = cluster_of(new, old);
        for node in view.nodes.values_mut().filter(|node| !node.facts.ready) {
            (node.facts.ready, node.facts.ready_since) = (true, Some(t(160)));
        }
        rollout.step_done = Some(t(50));
        assert_eq!(ready_again(&view, &rollout, t(200)), counts.then(|| t(160)), "{sentence}");
        let soaks = ActiveRollout { step_done: Some(t(160)), ..rollout.clone() };
        let named = [&rollout, &soaks].map(|rollout| began_again(&view, rollout));
        assert_eq!(named, [None, Some("new-0")], "{sentence}: it names the node");
        assert_eq!(ready_again(&view, &soaks, t(200)), None, "{sentence}: the soak began with it");
        rollout.urgent_until = Some(t(1000));
        assert_eq!(ready_again(&view, &rollout, t(200)), None, "{sentence}: it is urgent");
    }
}

#[test]
fn proof_of_a_node_that_was_cordoned_before_it_went_down_counts() {
    for (sentence, unschedulable, cordoned, lost) in [
        ("a minute before", true, Some(t(40)), 0),
        ("at that time", true, Some(t(100)), 0),
        ("by a repair, after it", true, Some(t(101)), 2),
        ("at a time that is not known", true, None, 2),
        ("they are not", false, None, 2),
    ] {
        let (mut view, rollout) = cluster_of((2, 2), (9, 0));
        for name in ["new-0", "new-1"] {
            let facts = &mut view.nodes.get_mut(name).unwrap().facts;
            (facts.unschedulable, facts.cordoned_since) = (unschedulable, cordoned);
        }
        let found = of(&view, &rollout, t(280));
        assert_eq!(
            (found.lost.len(), found.nodes.len()),
            (lost, 2),
            "{sentence}: they hold the step while they are there"
        );
        assert_eq!(suspects(&view, t(280)).len(), lost, "{sentence}: they count against the budgets for a day");
    }
}

/// Five of twelve nodes that have proven the version are not well, and four of eighteen without it are not Ready.
#[test]
fn others_that_a_user_has_taken_down_excuse_no_proven_node() {
    type Change = fn(&mut NodeFacts);
    fn cordon(facts: &mut NodeFacts, second: i64) {
        (facts.unschedulable, facts.cordoned_since) = (true, Some(t(second)));
    }
    let shut_down: Change = |facts| facts.taints.push("node.cloudprovider.kubernetes.io/shutdown:NoSchedule".into());
    let cases: [(&str, Change, usize); 4] = [
        ("they went down by themselves", |_| {}, 0),
        ("another client cordoned them before they went down", |facts| cordon(facts, 40), 5),
        ("a repair cordoned them after it", |facts| cordon(facts, 101), 0),
        ("their cloud shows their machines as shut down", shut_down, 5),
    ];
    for (sentence, change, lost) in cases {
        let (mut view, mut rollout) = cluster_of((12, 5), (18, 4));
        for (_, node) in view.nodes.iter_mut().filter(|(name, node)| name.starts_with("old") && !node.facts.ready) {
            change(&mut node.facts);
        }
        let found = (of(&view, &rollout, t(280)).lost.len(), suspects(&view, t(280)).len());
        assert_eq!(found, (lost, lost), "{sentence}");
        press(&mut view, "new", 100);
        assert_eq!(of(&view, &rollout, t(700)).lost.len(), lost, "{sentence}: the proven ones are under pressure");
        for node in view.nodes.values_mut().filter(|node| node.facts.pressure.is_some()) {
            (node.facts.pressure, node.facts.pressure_since) = (None, None);
            node.facts.ready_since = Some(t(160));
        }
        rollout.step_done = Some(t(50));
        let again = ready_again(&view, &rollout, t(200));
        assert_eq!(again.is_some(), lost > 0, "{sentence}: the proven ones are Ready again");
    }
}
