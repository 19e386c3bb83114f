//! The nodes that follow the policy, the revision that each node has, and the history of revisions that is due.

use std::collections::BTreeMap;

use models::shadow::HostState;

use super::Plan;
use crate::decision::Action;
use crate::revisions::{self, LabelledShadow, PolicyRevision, RevisionAction, RevisionPlan, RevisionSnapshot};
use crate::survey::{Survey, SurveyedNode};
use crate::view::{ClusterView, ShadowFacts};
use crate::wait::Wait;

/// Returns whether a write about a node is due or under way, also one that fails.
fn is_written(wait: &Wait) -> bool {
    matches!(wait, Wait::Acting | Wait::ActionFails { .. })
}

/// Returns whether a node has no attempt and is what the policy makes of it. A write about it that is due, or under way, changes
/// nothing of that.
pub(super) fn is_current(node: &SurveyedNode<'_>, wait: Option<&Wait>) -> bool {
    let current = match wait {
        Some(wait) if !wait.pauses() && !is_written(wait) => *wait == Wait::UpToDate,
        Some(wait) if wait.pauses() => node.wanted() == Err(Wait::UpToDate),
        _ => node.wanted() == Err(Wait::UpToDate) && !node.facts.held(),
    };
    node.labelled && node.step.is_none() && current
}

/// Returns whether nothing is about to be written about a node: what follows from the policy, such as settings of its host, is there.
fn is_at_rest(wait: Option<&Wait>) -> bool {
    wait.is_some_and(|wait| !is_written(wait))
}

/// Returns whether a node is known to follow the policy: its host has looked for updates in this boot.
fn follows(node: &SurveyedNode<'_>, wait: Option<&Wait>) -> bool {
    is_current(node, wait) && node.shadow.as_ref().is_some_and(|shadow| shadow.status.agent.updates.is_some())
}

/// Returns the history that is due, nothing but its state during a pause; `None` until the revisions are known, or without
/// the operator's resource.
pub(super) fn history(view: &ClusterView, survey: &Survey<'_>, plan: &Plan) -> Option<RevisionPlan> {
    let revisions: Vec<_> = view.revisions.as_ref()?.iter().cloned().map(PolicyRevision::from).collect();
    let operator = view.operator.as_ref()?;
    let of = |shadow: &ShadowFacts, follows| LabelledShadow {
        node: shadow.node.clone(),
        label: shadow.revision.clone(),
        deleting: shadow.deleting,
        follows,
    };
    let nodes: Vec<_> = survey.waits(&plan.waits).map(|(node, wait)| (node, follows(node, wait))).collect();
    let own = nodes.iter().filter_map(|(node, follows)| Some(of(node.shadow.as_ref()?, *follows)));
    let gone = view.revisions_in_use.iter().map(|revision| LabelledShadow {
        label: Some(revision.clone()),
        deleting: true,
        ..LabelledShadow::default()
    });
    let orphans = view.orphaned_shadows.values().map(|shadow| of(shadow, false));
    let shadows: Vec<_> = own.chain(orphans).chain(gone).collect();
    let mut members = survey.waits(&plan.waits).filter(|(node, _)| node.labelled).peekable();
    let all_follow = members.peek().is_some() && members.all(|(node, wait)| follows(node, wait) && is_at_rest(wait));
    let snapshot = RevisionSnapshot {
        operator: Some(operator),
        policy: survey.policy,
        all_follow,
        revisions: &revisions,
        shadows: &shadows,
    };
    let mut plan = revisions::plan(&snapshot);
    if survey.pause.wait.is_some() {
        plan.actions.clear();
        plan.labels.clear();
    }
    Some(plan)
}

/// Returns the collision count to record with the operator's status.
pub(super) fn raised_count(history: &RevisionPlan) -> Option<i32> {
    history.actions.iter().find_map(|action| match action {
        RevisionAction::RaiseCollisionCount(count) => Some(*count),
        _ => None,
    })
}

/// Returns the nodes without an attempt whose shadow gets the label of another revision, with its name: in the write of its spec that
/// is due, or in one of its own. A node with a write under way, or with one of another kind that is due, gets it later.
pub(super) fn relabelled(view: &ClusterView, plan: &Plan, history: &RevisionPlan) -> BTreeMap<String, String> {
    let is_due = |(name, revision): &(&String, &String)| {
        let Some((node, shadow)) = view.nodes.get(*name).and_then(|node| Some((node, node.shadow.as_ref()?))) else {
            return false;
        };
        let idle = match plan.actions.get(*name) {
            Some(Action::Spec { spec }) => spec.state == HostState::Idle,
            Some(_) => false,
            None => shadow.spec.state == HostState::Idle,
        };
        idle && node.step().is_none()
            && !shadow.deleting
            && shadow.revision.as_ref() != Some(*revision)
            && !view.busy.contains(*name)
    };
    history.labels.iter().filter(is_due).map(|(name, revision)| (name.clone(), revision.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NEW, cluster, node, record_history, t};

    #[test]
    fn node_is_current_by_its_reason_or_where_a_write_hides_that_by_what_it_runs() {
        let earlier = || Wait::EarlierOperatorGone { until: t(60) };
        for (sentence, offered, held, wait, current) in [
            ("it is up to date", false, false, Some(Wait::UpToDate), true),
            ("it waits for something", false, false, Some(Wait::NodeNotReady), false),
            ("a write about it is due", false, false, Some(Wait::Acting), true),
            ("a write about it is due, and an update is offered", true, false, Some(Wait::Acting), false),
            ("a write about it is due, and a user holds it", false, true, Some(Wait::Acting), false),
            ("nothing is done", false, false, Some(earlier()), true),
            ("nothing is done, and an update is offered", true, false, Some(earlier()), false),
            ("nothing is done, and a user holds it", false, true, Some(earlier()), true),
        ] {
            let mut a = node("a");
            a.facts.hold = held.then(crate::hold::Hold::default);
            if !offered {
                let agent = &mut a.shadow.as_mut().unwrap().status.agent;
                agent.updates.as_mut().unwrap().chosen_version = None;
            }
            let (view, policy) = cluster(vec![a], &[]);
            let survey = Survey::of(&view, &policy, t(0));
            assert_eq!(is_current(survey.find("a").unwrap(), wait.as_ref()), current, "{sentence}");
        }
        let at_rest = [Some(Wait::UpToDate), Some(Wait::Acting), None].map(|wait| is_at_rest(wait.as_ref()));
        assert_eq!(at_rest, [true, false, false]);
    }

    #[test]
    fn revision_is_current_once_all_nodes_follow_it_and_nothing_is_to_be_written_about_them() {
        for (sentence, offered, wait, current) in [
            ("both are up to date", false, Wait::UpToDate, true),
            ("one waits with an update", true, Wait::NodeNotReady, false),
            ("a write about one is due", false, Wait::Acting, false),
        ] {
            let mut nodes = ["a", "b"].map(node);
            for node in &mut nodes {
                let chosen = Some(NEW).filter(|_| offered && node.facts.name == "b");
                let agent = &mut node.shadow.as_mut().unwrap().status.agent;
                agent.updates.as_mut().unwrap().chosen_version = chosen;
            }
            let (mut view, policy) = cluster(nodes.into(), &[]);
            record_history(&mut view, &policy);
            let waits = [("a".to_owned(), Wait::UpToDate), ("b".to_owned(), wait)].into();
            let survey = Survey::of(&view, &policy, t(0));
            let found = history(&view, &survey, &Plan { waits, ..Plan::default() }).unwrap();
            assert_eq!((found.update.is_some(), found.current.is_some()), (true, current), "{sentence}");
        }
    }

    #[test]
    fn revision_that_the_shadow_of_a_gone_node_names_labels_no_other_shadow() {
        let (mut view, policy) = cluster(vec![node("a")], &[]);
        record_history(&mut view, &policy);
        view.revisions_in_use = view.revisions.iter().flatten().map(|revision| revision.name.clone()).collect();
        assert_eq!(view.revisions_in_use.len(), 1);
        let survey = Survey::of(&view, &policy, t(0));
        assert_eq!(history(&view, &survey, &Plan::default()).unwrap().labels, BTreeMap::new());
    }

    #[test]
    fn collision_count_is_recorded_only_once_it_is_raised() {
        let raised = RevisionPlan { actions: vec![RevisionAction::RaiseCollisionCount(3)], ..RevisionPlan::default() };
        assert_eq!((raised_count(&raised), raised_count(&RevisionPlan::default())), (Some(3), None));
    }
}
