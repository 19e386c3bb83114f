//! Canary steps: how far a version may spread before it has proven itself.

use std::collections::BTreeSet;

use jiff::Timestamp;
use models::operator::ActiveRollout;
use models::shadow::UPDATED;
use semver::Version;

use super::Wait;
use super::attempt::after;
use crate::policy::Policy;
use crate::view::{ClusterView, NodeView};

/// The rollout as it stands, and what it allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rollout {
    /// What the operator's status has to say of it.
    pub(super) active: Option<ActiveRollout>,
    /// How many nodes may be on their way at a time for the step that is due; `None`: as many as the budget allows.
    left: Option<usize>,
    /// How many nodes are on their way.
    under_way: usize,
    /// How many of them are out of service, or have a slot.
    disrupted: usize,
    /// Why no more may start, where none may.
    pub(super) wait: Option<Wait>,
    /// When that may change by time alone.
    pub(super) wake: Option<Timestamp>,
    /// Whether the pending approval has been taken in, or had nothing to approve.
    pub(super) approval_taken: bool,
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

/// Whether a node was updated by us since the rollout began.
fn done(node: &NodeView, since: Timestamp) -> bool {
    let record = node.shadow.as_ref().and_then(|s| s.status.controller.record.as_ref());
    record.and_then(|r| r.last.as_ref()).is_some_and(|last| last.reason == UPDATED && last.ended >= since)
        && super::fleet::step_of(node).is_none()
}

/// Follows the rollout. `wanted` are the versions that nodes are to become and have not begun; `total` the number of nodes.
pub(super) fn follow(
    view: &ClusterView,
    policy: &Policy,
    wanted: Option<&Version>,
    total: usize,
    now: Timestamp,
) -> Rollout {
    let Some(operator) = &view.operator else { return Rollout::default() };
    let under_way = view.nodes.values().filter_map(|n| n.shadow.as_ref()?.status.controller.progress.as_ref());
    let version = wanted.into_iter().chain(under_way.map(|p| &p.version)).max();
    let stored = operator.status.active_rollout.clone();
    let pending = operator.approve_step.is_some()
        && !super::requests::is_new(operator)
        && operator.approve_step != operator.status.requests.as_ref().and_then(|r| r.approve_step.clone());
    let mut active = match (stored, version) {
        (stored, None) => {
            // Nothing is wanted: the last rollout stays for people to read.
            return Rollout { active: stored, approval_taken: pending, ..Rollout::default() };
        }
        (Some(stored), Some(version)) if stored.version == *version => stored,
        (_, Some(version)) => {
            ActiveRollout { version: version.clone(), started: now, steps_passed: 0, step_done: None, approved: false }
        }
    };
    let finished = view.nodes.values().filter(|n| n.facts.labelled && done(n, active.started)).count();
    // Who has a slot is about to be taken out of service.
    let slots: BTreeSet<&str> = operator.status.slots.iter().map(|slot| slot.uid.as_str()).collect();
    let mut rollout = Rollout {
        approval_taken: pending,
        under_way: view.nodes.values().filter(|n| super::fleet::step_of(n).is_some()).count(),
        disrupted: view.nodes.values().filter(|n| n.disrupted() || slots.contains(n.facts.uid.as_str())).count(),
        ..Rollout::default()
    };
    let mut approval = pending;
    loop {
        let passed = usize::try_from(active.steps_passed).unwrap_or(0);
        let Some(step) = policy.canary.get(passed) else {
            (active.step_done, active.approved) = (None, false);
            break;
        };
        if approval && step.manual {
            active.approved = true;
            approval = false;
        }
        let nodes = step.nodes.of(total).unwrap_or(1);
        if finished < nodes {
            active.step_done = None;
            rollout.left = Some(nodes - finished);
            rollout.wait = Some(Wait::CanaryStep { step: passed + 1, until: None, approval: false });
            break;
        }
        let since = *active.step_done.get_or_insert(now);
        let until = after(since, step.soak);
        if now < until {
            rollout.left = Some(0);
            rollout.wait = Some(Wait::CanaryStep { step: passed + 1, until: Some(until), approval: false });
            rollout.wake = Some(until);
            break;
        }
        if step.manual && !active.approved {
            rollout.left = Some(0);
            rollout.wait = Some(Wait::CanaryStep { step: passed + 1, until: None, approval: true });
            break;
        }
        active.steps_passed += 1;
        (active.step_done, active.approved) = (None, false);
    }
    rollout.active = Some(active);
    rollout
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use models::operator::CountOrPercent;
    use models::shadow::{AttemptResult, Record, Step};

    use super::*;
    use crate::plan::cases::{NEW, OLD, cluster, node, progress, t};
    use crate::policy::CanaryStep;

    /// `done` nodes updated, `moving` on their way, of `total`.
    fn fleet(total: usize, done: usize, moving: usize) -> ClusterView {
        let nodes = (0..total).map(|number| {
            let mut node = node(&format!("n{number:02}"));
            let status = &mut node.shadow.as_mut().unwrap().status;
            if number < done {
                let last = AttemptResult {
                    attempt: 1,
                    from: Some(OLD),
                    version: NEW,
                    reason: UPDATED.into(),
                    message: String::new(),
                    started: t(1),
                    ended: t(50),
                };
                status.controller.record = Some(Record { last: Some(last), ..Record::default() });
            } else if number < done + moving {
                status.controller.progress = Some(progress(Step::Draining, 1));
            }
            node
        });
        let (mut view, _) = cluster(nodes.collect(), &[]);
        view.operator.as_mut().unwrap().status.active_rollout =
            Some(ActiveRollout { version: NEW, started: t(0), steps_passed: 0, step_done: None, approved: false });
        view
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
            let rollout = follow(&fleet(10, done, moving), &policy(&steps), Some(&NEW), 10, t(100));
            assert_eq!(rollout.room_to_begin(), room, "{sentence}");
            assert_eq!(rollout.wait.is_some(), room.is_some(), "{sentence}");
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
        let rollout = follow(&view, &policy(&[step("2", 0, false)]), Some(&NEW), 10, t(100));
        assert_eq!((rollout.room_to_begin(), rollout.room_for_slots()), (Some(0), Some(2)));
    }

    #[test]
    fn a_soak_is_counted_from_the_steps_last_node_and_over_restarts() {
        let policy = policy(&[step("1", 600, false)]);
        let mut view = fleet(4, 1, 0);
        let rollout = follow(&view, &policy, Some(&NEW), 4, t(100));
        assert_eq!((rollout.wake, rollout.room_to_begin()), (Some(t(700)), Some(0)));
        view.operator.as_mut().unwrap().status.active_rollout = rollout.active;
        assert_eq!(follow(&view, &policy, Some(&NEW), 4, t(699)).room_to_begin(), Some(0));
        let passed = follow(&view, &policy, Some(&NEW), 4, t(700));
        assert_eq!((passed.room_to_begin(), passed.active.unwrap().steps_passed), (None, 1));
    }

    #[test]
    fn an_approval_passes_one_step_and_no_more() {
        let policy = policy(&[step("1", 0, true), step("2", 0, true)]);
        let mut view = fleet(4, 1, 0);
        view.operator.as_mut().unwrap().approve_step = Some("yes".into());
        let rollout = follow(&view, &policy, Some(&NEW), 4, t(100));
        assert!(rollout.approval_taken);
        assert_eq!(rollout.active.as_ref().unwrap().steps_passed, 1);
        assert_eq!(rollout.room_to_begin(), Some(1), "the second step's node");
        // Acknowledged: the same value approves nothing more.
        let operator = view.operator.as_mut().unwrap();
        operator.status.active_rollout = rollout.active;
        operator.status.requests.get_or_insert_default().approve_step = Some("yes".into());
        let mut two = fleet(4, 2, 0);
        two.operator = view.operator;
        let rollout = follow(&two, &policy, Some(&NEW), 4, t(101));
        assert_eq!(rollout.wait, Some(Wait::CanaryStep { step: 2, until: None, approval: true }));
    }

    #[test]
    fn another_version_begins_at_the_first_step_and_nodes_of_the_last_one_do_not_count() {
        let policy = policy(&[step("1", 0, false)]);
        let view = fleet(4, 2, 0);
        let newer = Version::new(1, 21, 0);
        let rollout = follow(&view, &policy, Some(&newer), 4, t(100));
        assert_eq!(rollout.room_to_begin(), Some(1));
        assert_eq!(rollout.active.unwrap().started, t(100));
    }

    #[test]
    fn a_step_that_is_passed_stays_passed_when_its_nodes_are_deleted() {
        let policy = policy(&[step("2", 0, false)]);
        let mut view = fleet(4, 2, 0);
        let rollout = follow(&view, &policy, Some(&NEW), 4, t(100));
        view.operator.as_mut().unwrap().status.active_rollout = rollout.active;
        view.nodes.retain(|name, _| name != "n00" && name != "n01");
        assert_eq!(follow(&view, &policy, Some(&NEW), 2, t(101)).room_to_begin(), None);
    }
}
