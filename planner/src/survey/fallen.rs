//! Nodes that have proven a version and are not Ready any more. One of them keeps a canary step from being passed.
//! After three minutes their proofs no longer count, also where a repair then replaces the nodes: that holds a step,
//! and brakes the rollout. While their share is larger than that of the nodes without the version, they count against
//! the budgets for a day: the next ones may end like them. The soak of a step begins again when such nodes are back.
//!
//! The proof of a node that is Ready and under pressure counts for ten minutes. Such a node is in service: it takes no
//! room in the budgets, and what is over before counts for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::{ActiveRollout, NOT_READY, RolloutLedger, UNDER_PRESSURE};
use models::time::after;

use super::key::is_member;
use super::ledger::{self, Memory, is_proven};
use super::unavailable::{FALLEN_FOR, comes_or_goes};
use super::unwell::{LONGEST, comparison_nodes, was_taken_out};
use crate::view::{ClusterView, NodeFacts, NodeView};

/// Time for which a node has to be not Ready to count.
const LASTING: Duration = Duration::from_secs(60);

/// Time after which the proof of such a node does not count any more. A machine that is shut down without a taint or a cordon, as an autoscaler may
/// have it, is gone before.
const LOST: Duration = Duration::from_secs(3 * 60);

/// Time after which the proof of a node under pressure does not count any more. Kubelets show pressure for five minutes after its end
/// (`evictionPressureTransitionPeriod`): one that has removed unused images in time has shown it for less.
const PRESSED: Duration = Duration::from_secs(10 * 60);

/// One in so many proven nodes shows that something is wrong.
const SHARE: usize = 20;

/// Time within which nodes are Ready again that were not for one cause, as after an outage of the control plane.
const AT_ONCE: Duration = Duration::from_secs(60 * 60);

/// The proven nodes of a rollout that are not Ready or under pressure.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Fallen {
    /// Those that have not been Ready for a minute.
    pub(crate) nodes: Vec<String>,
    /// Those whose proof does not count any more.
    pub(crate) lost: Vec<String>,
    /// The time at which another one counts, if it is not well until then.
    pub(crate) wake: Option<Timestamp>,
}

/// Returns the proven nodes of a rollout that have not been Ready for a minute, and those that have not been, or were under pressure, for long
/// enough to be lost. A shortage from before the rollout says nothing.
pub(crate) fn of(view: &ClusterView, rollout: &ActiveRollout, now: Timestamp) -> Fallen {
    let (mut fallen, mut down, mut ill) = (Fallen::default(), Vec::new(), Vec::new());
    for node in view.nodes.values().filter(|node| !node.facts.is_well() && is_proven(node, rollout)) {
        let facts = &node.facts;
        let not_ready = facts.not_ready_since.filter(|_| !facts.ready);
        let pressed = facts.pressure_since.filter(|since| facts.ready && *since >= rollout.started);
        let at = |since: Option<Timestamp>, span: Duration| since.map(|since| after(since, span));
        let ends = [at(not_ready, LASTING), at(not_ready, LOST), at(pressed, PRESSED)];
        fallen.wake = ends.into_iter().chain([fallen.wake]).flatten().filter(|at| *at > now).min();
        let [lasts, is_lost, is_pressed] = ends.map(|at| at.map(|at| at <= now));
        if !facts.ready && lasts != Some(false) {
            fallen.nodes.push(facts.name.clone());
        }
        let is_down = is_lost == Some(true) && !was_taken_out(facts);
        down.extend(is_down.then_some(node));
        ill.extend((is_down || is_pressed == Some(true)).then_some(node));
    }
    // Each is compared with what is like it: others under pressure excuse no node that is not Ready.
    let ill = if ill.len() > down.len() { ill_alone(view, rollout, ill) } else { Vec::new() };
    let lost = down_alone(view, rollout, down).into_iter().chain(ill);
    let lost: BTreeSet<&String> = lost.map(|node| &node.facts.name).collect();
    fallen.lost = lost.into_iter().cloned().collect();
    fallen
}

/// Returns the ledger of a rollout as its nodes show it now, and those that have fallen: a repair may be about to replace them, and with them
/// what they show about the version.
pub(super) fn followed(
    view: &ClusterView,
    rollout: &ActiveRollout,
    memory: Memory,
    now: Timestamp,
) -> (RolloutLedger, Fallen) {
    let (mut ledger, fallen) = (ledger::of(view, rollout, memory), of(view, rollout, now));
    for name in &fallen.lost {
        let is_ready = view.nodes.get(name).is_some_and(|node| node.facts.ready);
        let end = if is_ready { UNDER_PRESSURE } else { NOT_READY };
        ledger.fall((name, end), |name| ledger::is_gone(view, name));
    }
    (ledger, fallen)
}

/// Returns those of the proven nodes that are not Ready, if that is evidence about the version of a rollout. Dead machines
/// may stay for weeks: the others are compared for as long as the first of these has been down.
fn down_alone<'a>(view: &ClusterView, rollout: &ActiveRollout, down: Vec<&'a NodeView>) -> Vec<&'a NodeView> {
    let first = down.iter().filter_map(|node| node.facts.not_ready_since).min().unwrap_or(rollout.started);
    evidence(view, rollout, down, |facts| is_down(facts, rollout.started, first))
}

/// Returns those of the proven nodes that are not Ready or under pressure, if that is evidence in the same way. A node that is out of service
/// for its update says nothing: without its pods it is short of nothing, and others may be short because of them.
fn ill_alone<'a>(view: &ClusterView, rollout: &ActiveRollout, ill: Vec<&'a NodeView>) -> Vec<&'a NodeView> {
    let first = ill.iter().filter_map(|node| node.facts.ill_since()).min().unwrap_or(rollout.started);
    let is_out = |facts: &NodeFacts| view.nodes.get(&facts.name).is_some_and(NodeView::disrupted);
    evidence(view, rollout, ill, |facts| {
        let is_ill = (!facts.is_well()).then(|| facts.ill_since());
        fell_lately(is_ill, rollout.started, first).filter(|_| !is_out(facts))
    })
}

/// Returns whether a node is not Ready; `None` where it says nothing.
fn is_down(facts: &NodeFacts, since: Timestamp, fell: Timestamp) -> Option<bool> {
    fell_lately((!facts.ready).then_some(facts.not_ready_since), since, fell)
}

/// Returns whether something has happened to a node, with the time at which it did, as far as that is known; `None` where it says nothing: it
/// was before `since`, or more than a day before `fell`, the time of those that it is compared with.
fn fell_lately(happened: Option<Option<Timestamp>>, since: Timestamp, fell: Timestamp) -> Option<bool> {
    let is_old = |at: Timestamp| at < since || after(at, LONGEST) < fell;
    (!happened.flatten().is_some_and(is_old)).then_some(happened.is_some())
}

/// Returns whether a node without the version is to get it: it is managed, and neither held nor being removed. It may be
/// on its way already.
fn may_follow(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let stays = node.facts.labelled && !node.facts.held() && !comes_or_goes(node);
    stays && is_member(node, rollout) && !ledger::runs(node, rollout)
}

/// Returns whether the reboot of a node was permitted: what happens to it then may be that reboot, and says nothing.
fn is_permitted(node: &NodeView) -> bool {
    let has_permit = node.shadow.as_ref().is_some_and(|shadow| shadow.spec.permit.is_some());
    node.update().is_some_and(|progress| progress.permit_issued || has_permit)
}

/// Returns the proven nodes to which something has happened, if that is evidence about the version of a rollout: they
/// are at least one in twenty, and it has happened to less than half that share of the nodes without the version. Zones
/// are left out in which it has happened to at least two, and at least half, of the nodes without the version, of any
/// kind.
fn evidence<'a>(
    view: &ClusterView,
    rollout: &ActiveRollout,
    mut nodes: Vec<&'a NodeView>,
    has_happened: impl Fn(&NodeFacts) -> Option<bool>,
) -> Vec<&'a NodeView> {
    if nodes.is_empty() {
        return nodes;
    }
    let mut zones: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for facts in comparison_nodes(view).filter(|facts| facts.os_version().as_ref() != Some(&rollout.version)) {
        let Some(happened) = has_happened(facts) else { continue };
        let (all, ill) = zones.entry(facts.zone()).or_default();
        *all += 1;
        *ill += usize::from(happened);
    }
    let has_failed = |zone: &str| zones.get(zone).is_some_and(|(all, ill)| *ill >= 2 && *ill * 2 >= *all);
    nodes.retain(|node| !has_failed(node.facts.zone()));
    let (mut proven, mut others, mut ill) = (0, 0, 0);
    for node in view.nodes.values().filter(|node| !has_failed(node.facts.zone())) {
        if is_proven(node, rollout) {
            proven += 1;
        } else if may_follow(node, rollout)
            && let Some(happened) = has_happened(&node.facts)
            && !(happened && is_permitted(node))
        {
            others += 1;
            ill += usize::from(happened);
        }
    }
    if nodes.len() * SHARE < proven || nodes.len() * others <= 2 * ill * proven {
        nodes.clear();
    }
    nodes
}

/// Returns the latest time in the soak of a canary step at which a proven node became Ready again, as after a reboot
/// that no leader saw, where the nodes of one hour are evidence about the version. Times to come are ignored: the clock
/// of a kubelet may be ahead.
pub(crate) fn ready_again(view: &ClusterView, rollout: &ActiveRollout, now: Timestamp) -> Option<Timestamp> {
    let begun = rollout.step_done.filter(|_| rollout.urgent_until.is_none())?;
    let back_at = |facts: &NodeFacts| facts.ready_since.filter(|at| facts.ready && *at > begun && *at <= now);
    let proven = view.nodes.values().filter(|node| back_at(&node.facts).is_some() && is_proven(node, rollout));
    let mut back: Vec<&NodeView> = proven.collect();
    let last = back.iter().filter_map(|node| back_at(&node.facts)).max()?;
    let is_recent = |at: Timestamp| after(at, AT_ONCE) >= last;
    back.retain(|node| back_at(&node.facts).is_some_and(is_recent));
    let is_back = |facts: &NodeFacts| {
        // One that has joined meanwhile was not Ready before either.
        let has_joined = facts.created.is_some_and(is_recent);
        let was_down = is_down(facts, begun, last)? || back_at(facts).is_some_and(is_recent);
        (!has_joined).then_some(was_down)
    };
    let is_evidence = !evidence(view, rollout, back, is_back).is_empty();
    is_evidence.then_some(last)
}

/// Returns the node with which the soak of a canary step began again, where it did: the last proven one that became Ready again.
pub fn began_again<'a>(view: &'a ClusterView, rollout: &ActiveRollout) -> Option<&'a str> {
    let is_cause =
        |facts: &NodeFacts| facts.ready && facts.ready_since.is_some() && facts.ready_since == rollout.step_done;
    let cause = view.nodes.values().find(|node| is_cause(&node.facts) && is_proven(node, rollout))?;
    Some(&cause.facts.name)
}

/// Returns the proven nodes of all running rollouts that have become not Ready in the last day, where they are at least two of a rollout and one in
/// twenty, and of its nodes without the version less than half that share is not Ready.
pub(crate) fn suspects(view: &ClusterView, now: Timestamp) -> BTreeSet<&str> {
    let fell = |at: Timestamp| after(at, FALLEN_FOR) > now;
    let has_fallen = |node: &&NodeView| !node.facts.ready && node.facts.not_ready_since.is_some_and(fell);
    let down: Vec<&NodeView> = view.nodes.values().filter(has_fallen).collect();
    let mut suspects = BTreeSet::new();
    let rollouts = view.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
    for rollout in rollouts.filter(|rollout| rollout.ended.is_none()) {
        let fallen: Vec<&NodeView> = down.iter().copied().filter(|node| is_proven(node, rollout)).collect();
        let fallen = down_alone(view, rollout, fallen);
        if fallen.len() >= 2 {
            suspects.extend(fallen.iter().map(|node| node.facts.name.as_str()));
        }
    }
    suspects
}

#[cfg(test)]
mod tests {
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
            let proof =
                NodeProof { version: NEW, rollout: 0, attempt: 1, proof: Proof::Proven, reason: "Updated".into() };
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
        view.nodes.get_mut("old-0").unwrap().facts.hold = Some(crate::hold::Hold::default());
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
        for (ill, lost) in [(3, 6), (4, 0)] {
            let (mut view, rollout) = cluster_of((6, 6), (4, ill));
            for number in 0..3 {
                let other = view.nodes.get_mut(&format!("old-{number}")).unwrap().shadow.as_mut().unwrap();
                other.status.controller.progress =
                    Some(Progress { permit_issued: true, ..progress(Step::Rebooting, 0) });
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
            rollout.urgent_until = Some(t(1000));
            assert_eq!(ready_again(&view, &rollout, t(200)), None, "{sentence}: it is urgent");
        }
    }

    #[test]
    fn proof_of_a_node_that_was_cordoned_before_it_went_down_counts() {
        for (sentence, unschedulable, cordoned, lost) in [
            ("a minute before", true, Some(t(40)), 0),
            ("at that time", true, Some(t(100)), 0),
            ("by a repair, after it", true, Some(t(101)), 1),
            ("at a time that is not known", true, None, 1),
            ("it is not", false, None, 1),
        ] {
            let (mut view, rollout) = cluster_of((1, 1), (9, 0));
            let facts = &mut view.nodes.get_mut("new-0").unwrap().facts;
            (facts.unschedulable, facts.cordoned_since) = (unschedulable, cordoned);
            let found = of(&view, &rollout, t(280));
            assert_eq!(
                (found.lost.len(), found.nodes.len()),
                (lost, 1),
                "{sentence}: it holds the step while it is there"
            );
        }
    }
}
