//! Canary steps: how far a version may spread before it has proven itself.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use models::operator::ActiveRollout;
use models::shadow::{Step, UPDATED};
use semver::Version;

use super::Wait;
use super::attempt::after;
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// How many rollouts the operator's status keeps, those under way first.
const KEPT: usize = 8;

/// How many there is room for.
const MOST: usize = 32;

/// All rollouts: each version that nodes become is tried on its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rollouts {
    by_version: BTreeMap<Version, Rollout>,
    /// What the operator's status has to say of them.
    pub(super) active: Vec<ActiveRollout>,
    /// When that may change by time alone.
    pub(super) wake: Option<Timestamp>,
    /// Whether the pending approval has been taken in, or had nothing to approve.
    pub(super) approval_taken: bool,
}

impl Rollouts {
    /// The rollout of one version.
    pub(super) fn of(&self, version: &Version) -> Option<&Rollout> {
        self.by_version.get(version)
    }
}

/// A rollout as it stands, and what it allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rollout {
    /// How many nodes may be on their way at a time for the step that is due; `None`: as many as the budget allows.
    left: Option<usize>,
    /// How many nodes are on their way. One that has its image and waits is not: it may have to wait for long.
    under_way: usize,
    /// How many nodes are out of service for it, or have a slot.
    disrupted: usize,
    /// Why no more may start, where none may.
    pub(super) wait: Option<Wait>,
}

impl Rollout {
    /// How many more nodes may begin an attempt; `None`: as many as the budget allows.
    pub(super) fn room_to_begin(&self) -> Option<usize> {
        self.left.map(|left| left.saturating_sub(self.under_way))
    }

    /// How many more of those that are staged may be taken out of service.
    pub(super) fn room_for_slots(&self) -> Option<usize> {
        self.left.map(|left| left.saturating_sub(self.disrupted))
    }
}

/// Whether a node was updated to the rollout's version by us since it began.
fn done(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let last = node.record().and_then(|record| record.last.as_ref());
    last.is_some_and(|l| l.reason == UPDATED && l.version == rollout.version && l.ended >= rollout.started)
        && node.progress().is_none()
}

/// Follows the rollouts. `wanted` are the versions that nodes are to become and have not begun; `total` the number of nodes.
pub(super) fn follow<'a>(
    view: &'a ClusterView,
    policy: &Policy,
    wanted: impl Iterator<Item = &'a Version>,
    total: usize,
    now: Timestamp,
) -> Rollouts {
    let Some(operator) = &view.operator else { return Rollouts::default() };
    let under_way = view.nodes.values().filter_map(NodeView::progress).map(|progress| &progress.version);
    let versions: BTreeSet<&Version> = wanted.chain(under_way).collect();
    let pending = operator.approve_step.is_some()
        && !super::requests::is_new(operator)
        && operator.approve_step != operator.status.requests.as_ref().and_then(|r| r.approve_step.clone());
    let mut rollouts = Rollouts { approval_taken: pending, ..Rollouts::default() };
    // An approval is for one step: the newest version's first.
    let mut approval = pending;
    for version in versions.iter().rev() {
        let stored = operator.status.active_rollouts.iter().find(|stored| stored.version == **version).cloned();
        let mut active = stored.unwrap_or_else(|| ActiveRollout {
            version: (*version).clone(),
            started: now,
            steps_passed: 0,
            step_done: None,
            approved: false,
        });
        let (rollout, wake) = step_on(view, policy, &mut active, total, &mut approval, now);
        rollouts.wake = [rollouts.wake, wake].into_iter().flatten().min();
        rollouts.by_version.insert((*version).clone(), rollout);
        rollouts.active.push(active);
    }
    // Those that nobody is on any more stay for people to read, and in case a version comes back.
    let over = operator.status.active_rollouts.iter().filter(|stored| !versions.contains(&stored.version));
    rollouts.active.extend(over.take(KEPT.saturating_sub(rollouts.by_version.len())).cloned());
    rollouts.active.truncate(MOST);
    rollouts
}

/// Takes a rollout as many canary steps on as are passed.
fn step_on(
    view: &ClusterView,
    policy: &Policy,
    active: &mut ActiveRollout,
    total: usize,
    approval: &mut bool,
    now: Timestamp,
) -> (Rollout, Option<Timestamp>) {
    let finished = view.nodes.values().filter(|n| n.facts.labelled && done(n, active)).count();
    // Who has a slot is about to be taken out of service.
    let slots: BTreeSet<&str> = view.slots().map(|slot| slot.uid.as_str()).collect();
    let ours = view.nodes.values().filter(|n| n.progress().is_some_and(|p| p.version == active.version));
    let mut rollout = Rollout::default();
    for node in ours {
        let staged = node.progress().is_some_and(|p| p.step == Step::Staged);
        let disrupted = node.disrupted() || slots.contains(node.facts.uid.as_str());
        rollout.under_way += usize::from(!staged || disrupted);
        rollout.disrupted += usize::from(disrupted);
    }
    loop {
        let passed = usize::try_from(active.steps_passed).unwrap_or(0);
        let Some(step) = policy.canary.get(passed) else {
            (active.step_done, active.approved) = (None, false);
            return (rollout, None);
        };
        let waits = |until, approval| Some(Wait::CanaryStep { step: passed + 1, until, approval });
        let nodes = step.nodes.of(total).unwrap_or(1);
        if finished < nodes {
            active.step_done = None;
            (rollout.left, rollout.wait) = (Some(nodes - finished), waits(None, false));
            return (rollout, None);
        }
        let since = *active.step_done.get_or_insert(now);
        let until = after(since, step.soak);
        if now < until {
            (rollout.left, rollout.wait) = (Some(0), waits(Some(until), false));
            return (rollout, Some(until));
        }
        if step.manual && !active.approved && *approval {
            // For this step, which waits for it, and for no other.
            active.approved = true;
            *approval = false;
        }
        if step.manual && !active.approved {
            (rollout.left, rollout.wait) = (Some(0), waits(None, true));
            return (rollout, None);
        }
        active.steps_passed += 1;
        (active.step_done, active.approved) = (None, false);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use models::operator::CountOrPercent;

    use super::*;
    use crate::plan::fixtures::{NEW, cluster, node, progress, t, updated};
    use crate::policy::CanaryStep;

    /// `done` nodes updated, `moving` on their way, of `total`.
    fn fleet(total: usize, done: usize, moving: usize) -> ClusterView {
        let nodes = (0..total).map(|number| {
            let mut node = node(&format!("n{number:02}"));
            let status = &mut node.shadow.as_mut().unwrap().status;
            if number < done {
                status.controller.record = Some(updated());
            } else if number < done + moving {
                status.controller.progress = Some(progress(Step::Draining, 1));
            }
            node
        });
        let (mut view, _) = cluster(nodes.collect(), &[]);
        view.operator.as_mut().unwrap().status.active_rollouts =
            vec![ActiveRollout { version: NEW, started: t(0), steps_passed: 0, step_done: None, approved: false }];
        view
    }

    fn one(rollouts: &Rollouts) -> &Rollout {
        rollouts.of(&NEW).unwrap()
    }

    fn followed(view: &ClusterView, policy: &Policy, total: usize, second: i64) -> Rollouts {
        follow(view, policy, [NEW].iter(), total, t(second))
    }

    fn step(nodes: &str, soak: u64, manual: bool) -> CanaryStep {
        let nodes = nodes.parse().map_or_else(|_| CountOrPercent::Percent(nodes.into()), CountOrPercent::Count);
        CanaryStep { nodes, soak: Duration::from_secs(soak), manual }
    }

    fn policy(canary: &[CanaryStep]) -> Policy {
        Policy { present: true, canary: canary.to_vec(), ..Policy::default() }
    }

    #[test]
    fn a_step_lets_as_many_nodes_start_as_it_names() {
        for (sentence, steps, done, moving, room) in [
            ("no steps, no limit", vec![], 0, 0, None),
            ("one node first", vec![step("1", 0, false)], 0, 0, Some(1)),
            ("the one is on its way", vec![step("1", 0, false)], 0, 1, Some(0)),
            ("the one is done and the step is passed", vec![step("1", 0, false)], 1, 0, None),
            ("a percentage is of all nodes", vec![step("30%", 0, false)], 1, 1, Some(1)),
            (
                "a later step counts the nodes of earlier ones",
                vec![step("1", 0, false), step("5", 0, false)],
                2,
                1,
                Some(2),
            ),
            ("a soak holds all back", vec![step("1", 600, false)], 1, 0, Some(0)),
            ("an approval is waited for", vec![step("1", 0, true)], 1, 0, Some(0)),
        ] {
            let rollouts = followed(&fleet(10, done, moving), &policy(&steps), 10, 100);
            assert_eq!(one(&rollouts).room_to_begin(), room, "{sentence}");
            assert_eq!(one(&rollouts).wait.is_some(), room.is_some(), "{sentence}");
        }
    }

    #[test]
    fn nodes_that_are_staged_ahead_of_time_take_nothing_from_a_step() {
        let mut view = fleet(10, 0, 6);
        for node in view.nodes.values_mut() {
            if let Some(progress) = &mut node.shadow.as_mut().unwrap().status.controller.progress {
                (progress.step, progress.disruptive) = (Step::Staged, false);
            }
        }
        let rollouts = followed(&view, &policy(&[step("2", 0, false)]), 10, 100);
        assert_eq!((one(&rollouts).room_to_begin(), one(&rollouts).room_for_slots()), (Some(2), Some(2)));
    }

    #[test]
    fn a_soak_is_counted_from_the_steps_last_node_and_over_restarts() {
        let policy = policy(&[step("1", 600, false)]);
        let mut view = fleet(4, 1, 0);
        let rollouts = followed(&view, &policy, 4, 100);
        assert_eq!((rollouts.wake, one(&rollouts).room_to_begin()), (Some(t(700)), Some(0)));
        view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
        assert_eq!(one(&followed(&view, &policy, 4, 699)).room_to_begin(), Some(0));
        let passed = followed(&view, &policy, 4, 700);
        assert_eq!((one(&passed).room_to_begin(), passed.active[0].steps_passed), (None, 1));
    }

    #[test]
    fn an_approval_passes_one_step_and_no_more() {
        let policy = policy(&[step("1", 0, true), step("2", 0, true)]);
        let mut view = fleet(4, 1, 0);
        view.operator.as_mut().unwrap().approve_step = Some("yes".into());
        let rollouts = followed(&view, &policy, 4, 100);
        assert!(rollouts.approval_taken);
        assert_eq!(rollouts.active[0].steps_passed, 1);
        assert_eq!(one(&rollouts).room_to_begin(), Some(1), "the second step's node");
        // Acknowledged: the same value approves nothing more.
        let operator = view.operator.as_mut().unwrap();
        operator.status.active_rollouts = rollouts.active;
        operator.status.requests.get_or_insert_default().approve_step = Some("yes".into());
        let mut two = fleet(4, 2, 0);
        two.operator = view.operator;
        let rollouts = followed(&two, &policy, 4, 101);
        assert_eq!(one(&rollouts).wait, Some(Wait::CanaryStep { step: 2, until: None, approval: true }));
    }

    #[test]
    fn an_approval_that_no_step_waits_for_approves_none() {
        let policy = policy(&[step("1", 600, true)]);
        let mut view = fleet(4, 1, 0);
        view.operator.as_mut().unwrap().approve_step = Some("early".into());
        let rollouts = followed(&view, &policy, 4, 100);
        assert!(
            rollouts.approval_taken,
            "it is acknowledged, so that it is not kept for a step that nobody has looked at"
        );
        let operator = view.operator.as_mut().unwrap();
        operator.status.active_rollouts = rollouts.active;
        operator.status.requests.get_or_insert_default().approve_step = Some("early".into());
        let soaked = followed(&view, &policy, 4, 700);
        assert_eq!(one(&soaked).wait, Some(Wait::CanaryStep { step: 1, until: None, approval: true }));
    }

    #[test]
    fn another_version_begins_at_the_first_step_and_nodes_of_the_last_one_do_not_count() {
        let policy = policy(&[step("1", 0, false)]);
        let view = fleet(4, 2, 0);
        let newer = Version::new(1, 21, 0);
        let rollouts = follow(&view, &policy, [&newer].into_iter(), 4, t(100));
        assert_eq!(rollouts.of(&newer).unwrap().room_to_begin(), Some(1));
        assert_eq!((&rollouts.active[0].version, rollouts.active[0].started), (&newer, t(100)));
        assert_eq!(rollouts.active[1].version, NEW, "the last one stays to be read, and in case it comes back");
    }

    #[test]
    fn each_version_has_to_pass_the_steps_by_nodes_of_its_own() {
        let policy = policy(&[step("1", 0, false)]);
        let newer = Version::new(1, 21, 0);
        // One node was updated to the older of two versions that are on their way, after both had begun.
        let mut view = fleet(4, 1, 0);
        view.operator.as_mut().unwrap().status.active_rollouts.push(ActiveRollout {
            version: newer.clone(),
            started: t(0),
            steps_passed: 0,
            step_done: None,
            approved: false,
        });
        let rollouts = follow(&view, &policy, [&NEW, &newer].into_iter(), 4, t(100));
        assert_eq!(rollouts.of(&NEW).unwrap().room_to_begin(), None, "passed");
        assert_eq!(rollouts.of(&newer).unwrap().room_to_begin(), Some(1), "not passed by the other one's node");
    }

    #[test]
    fn a_step_that_is_passed_stays_passed_when_its_nodes_are_deleted() {
        let policy = policy(&[step("2", 0, false)]);
        let mut view = fleet(4, 2, 0);
        let rollouts = followed(&view, &policy, 4, 100);
        view.operator.as_mut().unwrap().status.active_rollouts = rollouts.active;
        view.nodes.retain(|name, _| name != "n00" && name != "n01");
        assert_eq!(one(&followed(&view, &policy, 2, 101)).room_to_begin(), None);
    }
}
