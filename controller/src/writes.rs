//! Selection of the plan's actions that begin now: a change of policy concerns every shadow at once, and nodes that are
//! out of service must not wait behind it.

use std::collections::BTreeMap;

use planner::plan::Action;
use planner::view::{ClusterView, NodeView};

/// Maximum number of writes under way that can wait, of nodes and of shadows that are created or deleted: enough for
/// thousands of nodes in seconds, and no burst for the API server.
pub const AT_A_TIME: usize = 20;

/// Maximum number of nodes labelled at a time: labelling a whole fleet must not be a burst for the API server.
pub const LABELS_AT_A_TIME: usize = 10;

/// The urgency of an action; the most urgent first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Cannot wait: a permit, a claim or its release, and the next action for a node that is out of service. Their
    /// number is bounded by the budget.
    #[default]
    Urgent,
    /// The desired state of a node in service.
    Spec,
    /// The status of a node in service, and every write that can wait and is no action of a node.
    Status,
}

/// Returns the urgency of this action.
pub fn priority(node: &NodeView, action: &Action) -> Priority {
    match action {
        Action::Permit { .. }
        | Action::Release
        | Action::Claim { .. }
        | Action::Hook { .. }
        | Action::ReadOwner { .. }
        | Action::ReadReplicaSet { .. }
        | Action::ReadLease { .. } => Priority::Urgent,
        Action::Spec { .. } | Action::Status { .. } if node.disrupted() => Priority::Urgent,
        Action::Spec { .. } => Priority::Spec,
        Action::Status { .. } => Priority::Status,
    }
}

/// Returns the actions that begin now, the most urgent first, and among equals those whose `failures` are fewest. Of those that can wait,
/// as many begin as there is `room` for by their priority, and in all no more than the greater of these numbers.
pub fn begin(
    actions: BTreeMap<String, Action>,
    view: &ClusterView,
    failures: impl Fn(&str) -> u32,
    room: impl Fn(Priority) -> usize,
) -> Vec<(&NodeView, Action, Priority)> {
    let mut ready: Vec<_> = actions
        .into_iter()
        .filter(|(name, _)| !view.busy.contains(name))
        .filter_map(|(name, action)| view.nodes.get(&name).map(|node| (node, priority(node, &action), action)))
        .map(|(node, priority, action)| (node, action, priority))
        .collect();
    ready.sort_by_cached_key(|(node, _, priority)| (*priority, failures(&node.facts.name)));
    let (mut specs, mut statuses) = (room(Priority::Spec), room(Priority::Status));
    let mut all = specs.max(statuses);
    ready.retain(|(_, _, priority)| {
        let left = match priority {
            Priority::Urgent => return true,
            Priority::Spec => &mut specs,
            Priority::Status => &mut statuses,
        };
        let begins = *left > 0 && all > 0;
        if begins {
            *left -= 1;
            all -= 1;
        }
        begins
    });
    ready
}

#[cfg(test)]
mod tests {
    use models::shadow::{BottlerocketShadowSpec, ControllerStatus, Progress, Step};

    use super::*;
    use planner::view::ShadowFacts;

    fn spec() -> Action {
        Action::Spec { spec: Box::new(BottlerocketShadowSpec::default()) }
    }

    fn status() -> Action {
        Action::Status { status: Box::new(ControllerStatus::default()), note: None }
    }

    #[test]
    fn urgent_actions_start_at_once_and_others_are_limited() {
        let mut view = ClusterView::default();
        let mut actions = BTreeMap::new();
        let mut add = |name: String, action: Action, disruptive: bool| {
            let mut shadow = ShadowFacts::default();
            shadow.status.controller.progress = disruptive.then(|| Progress {
                step: Step::Draining,
                since: jiff::Timestamp::UNIX_EPOCH,
                attempt: 1,
                boot_id: String::new(),
                version: semver::Version::new(1, 20, 5),
                from: None,
                started: jiff::Timestamp::UNIX_EPOCH,
                permit_issued: false,
                soak_restarted: false,
                interrupted: None,
                verifying_since: None,
                drill: None,
                verification: false,
                rollout: None,
                disruptive,
            });
            let mut node = NodeView { shadow: Some(Box::new(shadow)), ..NodeView::default() };
            node.facts.name.clone_from(&name);
            view.nodes.insert(name.clone(), node);
            actions.insert(name, action);
        };
        for number in 0..5000 {
            add(format!("node-{number:04}"), if number % 2 == 0 { status() } else { spec() }, false);
        }
        // By name behind all others.
        add("permit".into(), Action::Permit { nonce: "n".into(), rules: Default::default(), pods_stay: false }, true);
        add("claim".into(), Action::Claim { fields: Default::default(), note: None }, true);
        add("release".into(), Action::Release, true);
        add("status".into(), status(), true);
        view.busy.insert("node-0001".into());
        for (under_way, routine) in [(0, AT_A_TIME), (AT_A_TIME - 1, 1), (AT_A_TIME, 0), (AT_A_TIME + 5, 0)] {
            let begun = begin(actions.clone(), &view, |_| 0, |_| AT_A_TIME.saturating_sub(under_way));
            let names: Vec<&str> = begun.iter().map(|(node, ..)| node.facts.name.as_str()).collect();
            assert_eq!(names[..4], ["claim", "permit", "release", "status"]);
            assert_eq!(names.len() - 4, routine, "{under_way} under way");
            assert!(begun[4..].iter().all(|(_, _, priority)| *priority == Priority::Spec), "{names:?}");
            assert!(!names.contains(&"node-0001"), "it is busy");
        }
        // While each desired state is refused, one is tried, which has failed least, and the statuses follow as before.
        let failures = |name: &str| u32::from(name != "node-4999");
        let room = |priority: Priority| if priority == Priority::Spec { 1 } else { AT_A_TIME };
        let begun = begin(actions.clone(), &view, failures, room);
        let priorities: Vec<_> = begun[4..].iter().map(|(.., priority)| *priority).collect();
        assert_eq!((begun[4].0.facts.name.as_str(), priorities.len()), ("node-4999", AT_A_TIME));
        assert_eq!(priorities[..2], [Priority::Spec, Priority::Status]);
        let begun = begin(actions.clone(), &view, failures, |_| 0);
        assert_eq!(begun.len(), 4, "urgent ones are never held back");
        actions.retain(|name, action| matches!(action, Action::Status { .. }) || name == "node-0003");
        let begun = begin(actions, &view, |_| 0, |_| AT_A_TIME);
        assert_eq!(begun[1].2, Priority::Spec);
        assert_eq!(begun[2].2, Priority::Status);
    }
}
