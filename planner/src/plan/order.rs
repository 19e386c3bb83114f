//! The order in which nodes are updated.

use std::time::Duration;

use jiff::Timestamp;
use models::reason::End;
use models::time::after;

use crate::survey::{Survey, SurveyedNode};
use crate::view::{ClusterView, NodeView};

/// Time for which a node that has joined comes after others. Where images lag behind and nodes are replaced often, those that join would use up
/// each window, and the same ones would wait in each. A canary that has just joined is the first to be removed again, too.
const YOUNG: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the key that nodes are ordered by. It does not depend on the order of the input. `name` is the node's.
///
/// 1. The leader's own node is last.
/// 2. A higher priority label is first.
/// 3. Groups are in their order; nodes in none are last.
/// 4. Nodes that were created less than a day ago are last.
/// 5. Zone by zone.
/// 6. Nodes with fewer failures are first.
/// 7. Nodes whose last attempt was released at a user's request are last.
/// 8. By name.
pub fn order_key<'a>(
    own_node: Option<&str>,
    group: Option<usize>,
    name: &'a str,
    node: &'a NodeView,
    now: Timestamp,
) -> impl Ord + use<'a> {
    (
        own_node == Some(name),
        std::cmp::Reverse(node.facts.priority()),
        group.unwrap_or(usize::MAX),
        node.facts.created.is_some_and(|created| after(created, YOUNG) > now),
        node.facts.zone(),
        (node.record().map_or(0, |record| record.failures), was_released(node)),
        name,
    )
}

/// Returns whether the last attempt of a node was released at a user's request.
pub(super) fn was_released(node: &NodeView) -> bool {
    let last = node.record().and_then(|record| record.last.as_ref());
    last.and_then(|last| End::of(&last.reason)).is_some_and(End::is_release)
}

/// Returns how late a node is tried while its rollout is braked: first those of groups in which no node has ended without a proof, then
/// the other nodes of such groups, then these nodes, the last one at the end.
fn trial(survey: &Survey<'_>, node: &SurveyedNode<'_>) -> usize {
    let version = node.update().map(|progress| &progress.version).or(node.wanted().ok());
    let rollout = version.and_then(|version| survey.rollouts.of(node, version));
    let Some(brake) = rollout.and_then(|rollout| rollout.brake.as_ref()) else { return 0 };
    let shares_group = |name: &String| survey.find(name).is_some_and(|failed| failed.group == node.group);
    match brake.row.iter().position(|name| *name == node.facts.name) {
        Some(position) => 2 + position,
        None => usize::from(brake.row.iter().any(shares_group)),
    }
}

/// Sorts nodes in the order in which they are updated.
pub(super) fn rank<'a, T>(
    view: &ClusterView,
    survey: &Survey<'_>,
    all: &mut [T],
    now: Timestamp,
    node: impl Fn(&T) -> &'a SurveyedNode<'a>,
) {
    all.sort_by_cached_key(|one| {
        let node = node(one);
        let usual = order_key(view.own_node.as_deref(), node.group, &node.node.facts.name, node.node, now);
        (trial(survey, node), usual)
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use models::shadow::Record;

    use super::*;
    use crate::fixtures::{cluster, node, t};
    use crate::policy::{Group, GroupPolicy, Policy};

    fn labels(labels: &[(&str, &str)]) -> Arc<BTreeMap<String, String>> {
        Arc::new(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn nodes_are_ordered_by_priority_group_age_zone_failures_and_name_leader_last() {
        let with = |name: &str, change: &dyn Fn(&mut NodeView)| {
            let mut node = node(name);
            change(&mut node);
            node
        };
        let zone =
            |zone: &'static str| move |n: &mut NodeView| n.facts.labels = labels(&[(models::names::ZONE_LABEL, zone)]);
        let failed = |n: &mut NodeView| {
            let shadow = n.shadow.as_mut().unwrap();
            shadow.status.controller.record = Some(Record { failures: 2, ..Record::default() });
        };
        let released = |n: &mut NodeView| {
            let mut record = crate::fixtures::updated();
            record.last.as_mut().unwrap().reason = "ReleaseRequested".into();
            n.shadow.as_mut().unwrap().status.controller.record = Some(record);
        };
        let created = |second| move |n: &mut NodeView| n.facts.created = Some(t(second));
        let young = created(-86_399);
        let nodes = vec![
            with("a-released", &released),
            with("g-urgent", &|n| {
                young(n);
                n.facts.labels = labels(&[(models::names::PRIORITY_LABEL, "10")]);
            }),
            with("f-in-a-group", &|n| {
                young(n);
                n.facts.labels = labels(&[("tier", "db")]);
            }),
            with("a-young", &young),
            with("e-no-zone", &|_| {}),
            with("d-failed", &failed),
            with("c-zone-1", &zone("1")),
            with("b-zone-1-for-a-day", &|n| {
                created(-86_400)(n);
                zone("1")(n);
            }),
            with("h-zone-2", &zone("2")),
            with("a-leader", &|_| {}),
            with("i-odd-priority", &|n| n.facts.labels = labels(&[(models::names::PRIORITY_LABEL, "high")])),
        ];
        let selector = serde_json::from_str(r#"{"matchLabels": {"tier": "db"}}"#).unwrap();
        let group = Group { name: "db".into(), selector, max_unavailable: None, policy: GroupPolicy::default() };
        let policy = Policy { present: true, groups: vec![group], ..Policy::default() };
        let (mut view, _) = cluster(nodes, &[]);
        view.own_node = Some("a-leader".into());
        let survey = Survey::of(&view, &policy, t(0));
        let mut names: Vec<_> = survey.nodes.iter().collect();
        rank(&view, &survey, &mut names, t(0), |node| node);
        let names: Vec<_> = names.iter().map(|n| n.facts.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "g-urgent",
                "f-in-a-group",
                "e-no-zone",
                "i-odd-priority",
                "a-released",
                "d-failed",
                "b-zone-1-for-a-day",
                "c-zone-1",
                "h-zone-2",
                "a-young",
                "a-leader"
            ]
        );
    }
}
