//! Nodes that have proven a version and are not Ready any more. One of them keeps a canary step from being passed.
//! After three minutes their proofs no longer count, also where a repair then replaces the nodes: that holds a step,
//! and brakes the rollout. While their share is larger than that of the nodes without the version, they count against
//! the budgets for a day: the next ones may end like them. The soak of a step begins again when such nodes are back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use models::operator::ActiveRollout;
use models::time::after;

use super::key::is_member;
use super::ledger::{self, is_kept, is_proven};
use super::unavailable::FALLEN_FOR;
use super::unwell::{comparison_nodes, was_taken_out};
use crate::view::{ClusterView, NodeFacts, NodeView};

/// Time for which a node has to be not Ready to count.
const LASTING: Duration = Duration::from_secs(60);

/// Time after which the proof of such a node does not count any more. A machine that is shut down without a taint or a cordon, as an autoscaler may
/// have it, is gone before.
const LOST: Duration = Duration::from_secs(3 * 60);

/// One in so many proven nodes shows that something is wrong.
const SHARE: usize = 20;

/// Time within which nodes are Ready again that were not for one cause, as after an outage of the control plane.
const AT_ONCE: Duration = Duration::from_secs(60 * 60);

/// The proven nodes of a rollout that are not Ready.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Fallen {
    /// Those that have not been Ready for a minute.
    pub(crate) nodes: Vec<String>,
    /// Those whose proof does not count any more.
    pub(crate) lost: Vec<String>,
    /// The time at which another one counts, if it is not Ready until then.
    pub(crate) wake: Option<Timestamp>,
}

/// Returns the proven nodes of a rollout that have not been Ready for a minute, and those that have not been for long enough to be lost.
pub(crate) fn of(view: &ClusterView, rollout: &ActiveRollout, now: Timestamp) -> Fallen {
    let (mut fallen, mut lost) = (Fallen::default(), Vec::new());
    for node in view.nodes.values().filter(|node| !node.facts.ready && is_proven(node, rollout)) {
        let name = &node.facts.name;
        let at = |span: Duration| node.facts.not_ready_since.map(|since| after(since, span));
        fallen.wake = [fallen.wake, at(LASTING), at(LOST)].into_iter().flatten().filter(|at| *at > now).min();
        if at(LASTING).is_none_or(|at| at <= now) {
            fallen.nodes.push(name.clone());
        }
        if at(LOST).is_some_and(|at| at <= now) && !was_taken_out(&node.facts) {
            lost.push(node);
        }
    }
    let lost = evidence(view, rollout, lost, |facts| is_down(facts, rollout.started));
    fallen.lost = lost.into_iter().map(|node| node.facts.name.clone()).collect();
    fallen
}

/// Returns whether a node is not Ready; `None` where it has not been since before this time: it says nothing.
fn is_down(facts: &NodeFacts, since: Timestamp) -> Option<bool> {
    let was_down = !facts.ready && facts.not_ready_since.is_some_and(|at| at < since);
    (!was_down).then_some(!facts.ready)
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
    for node in view.nodes.values().filter(|node| is_kept(node) && !has_failed(node.facts.zone())) {
        if is_proven(node, rollout) {
            proven += 1;
        } else if is_member(node, rollout)
            && !ledger::runs(node, rollout)
            && let Some(happened) = has_happened(&node.facts)
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
        let was_down = is_down(facts, begun)? || back_at(facts).is_some_and(is_recent);
        (!has_joined).then_some(was_down)
    };
    let is_evidence = !evidence(view, rollout, back, is_back).is_empty();
    is_evidence.then_some(last)
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
        let fallen = evidence(view, rollout, fallen, |facts| is_down(facts, rollout.started));
        if fallen.len() >= 2 {
            suspects.extend(fallen.iter().map(|node| node.facts.name.as_str()));
        }
    }
    suspects
}

#[cfg(test)]
mod tests {
    use models::reason::Proof;
    use models::shadow::{NodeProof, Record};

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

    #[test]
    fn others_that_were_not_ready_before_the_rollout_excuse_no_proven_node() {
        for (sentence, since, excused) in [("since before it", t(-1), false), ("since it began", t(0), true)] {
            let (mut view, rollout) = cluster_of((3, 3), (10, 5));
            for number in 0..5 {
                view.nodes.get_mut(&format!("old-{number}")).unwrap().facts.not_ready_since = Some(since);
            }
            let lost = if excused { 0 } else { 3 };
            assert_eq!(of(&view, &rollout, t(280)).lost.len(), lost, "{sentence}");
            assert_eq!(suspects(&view, t(280)).len(), lost, "{sentence}");
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
